"""Records: what is known of an artifact on a claim, as a ConfigMap that people can read.

The reading side is `observe.projections.record_view`.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime

from shardwright.api import names
from shardwright.observe.world import ClaimView, Record
from shardwright.render.common import Manifest, labels
from shardwright.render.names import record_name


def record_body(record: Record, claim: ClaimView) -> Manifest:
    """The ConfigMap of a record; the claim owns it, so that it goes when the volume goes.

    Raises:
        ValueError: When record and claim do not belong together.
    """
    if record.claim_uid != claim.uid:
        raise ValueError(
            f"record of {record.step} {record.key} is of claim {record.claim_uid}, not of "
            f"{claim.namespace}/{claim.name} ({claim.uid})"
        )
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": record_name(record.claim_uid, record.key),
            "namespace": claim.namespace,
            "labels": labels(
                {
                    names.LABEL_RECORD: "true",
                    names.LABEL_STEP: record.step,
                    names.LABEL_KEY: record.key,
                    names.LABEL_CLAIM_UID: record.claim_uid,
                }
            ),
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "name": claim.name,
                    "uid": claim.uid,
                    "controller": False,
                    "blockOwnerDeletion": False,
                }
            ],
        },
        "data": _data(record),
    }


def _data(record: Record) -> dict[str, str]:
    facts = asdict(record.facts) if record.facts else {}
    data = {
        "step": record.step,
        "key": record.key,
        "state": record.state.value,
        "inputs": _readable(record.inputs),
        "commit": record.commit,
        # A key of its own: an operator that does not know it yet reads the facts all the same.
        "config": facts.pop("config", ""),
        "facts": _readable(facts) if facts else "",
        "adapter": _readable(asdict(record.adapter)) if record.adapter else "",
        "totalBytes": str(record.total_bytes) if record.total_bytes else "",
        "reason": record.reason,
        "message": record.message,
        "logTail": record.log_tail,
        "createdAt": moment(record.created),
        "usedAt": moment(record.used),
        "attempt": str(record.attempt) if record.attempt else "",
        "rebuilds": str(record.rebuilds) if record.rebuilds else "",
        "unusedSince": moment(record.unused),
        "trashStamp": record.trash,
        "score": repr(record.score) if record.score is not None else "",
        "samples": str(record.samples) if record.samples else "",
        "triedUnder": " ".join(record.tried),
    }
    return {name: text for name, text in data.items() if text}


def _readable(value: object) -> str:
    return json.dumps(value, indent=2, sort_keys=True)


def moment(seconds: float) -> str:
    """RFC 3339 in UTC, with microseconds, so that reading gives the same number back."""
    return datetime.fromtimestamp(seconds, UTC).isoformat() if seconds else ""
