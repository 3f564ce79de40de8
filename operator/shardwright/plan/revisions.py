"""Revisions: an accepted and resolved spec, kept as an immutable ControllerRevision.

Which revision is the target (the highest number), which one serves (the highest number that is
proven and was not rolled back), how one is named (by the hash of the user's wish) and how it is
written down and read back. A revision's data never change; only its number does, when an old wish
comes back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from shardwright.api.asked import AskedSpec
from shardwright.api.changes import hashed_spec, hashed_wish
from shardwright.api.settings import FabricProfile
from shardwright.api.spec import LLMDeploymentSpec
from shardwright.observe.world import Record, RecordState, Resources, RevisionView
from shardwright.resolved import (
    Artifact,
    Chosen,
    Draft,
    Gate,
    Resolved,
    Room,
    Score,
    ServerBeside,
    StageRoom,
)
from shardwright.runner.contract import STEP_PROOF, STEP_SCORE, Command, ModelFacts, canonical

DATA_VERSION = 1
KEPT_REVISIONS = 10

Records = Mapping[tuple[str, str, str], Record]


@dataclass(frozen=True, slots=True)
class Revision:
    """A revision with its data read: name, number and what it resolves to.

    `wish` is worked out from the data as today's models read them, so that a field that a newer
    operator brings, with its default, makes no new revision of an old wish. `pinned` is the wish of
    somebody who writes down all that was chosen: it means this revision too, and rolls nothing.
    """

    name: str
    uid: str
    number: int
    resolved: Resolved
    wish: str = ""
    pinned: str = ""

    def means(self, wish: str) -> bool:
        """Whether a wish asks for this revision."""
        return wish in (self.wish, self.pinned)


def spec_digest(spec: LLMDeploymentSpec) -> str:
    """SHA-256 over the fields that change a pod, in hex."""
    return _digest(hashed_spec(spec))


def asked_digest(spec: AskedSpec) -> str:
    """The same of a user's spec; without open fields it is the digest of what it says."""
    return _digest(hashed_wish(spec))


def _digest(hashed: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(hashed).encode()).hexdigest()


def wish_of(digest: str, restarted_at: str, claim_uid: str) -> str:
    """Ten hex digits that name a wish: the spec, the restart asked for, and the claim.

    The claim's uid is part of it: a claim made anew under the old name holds nothing of the old.
    """
    parts = [digest, claim_uid, restarted_at]
    return hashlib.sha256("/".join(parts).encode()).hexdigest()[:10]


def asked_again(restarted_at: str) -> str:
    """Ten hex digits that stand for a value of the annotation `restartedAt`; empty without one."""
    return hashlib.sha256(restarted_at.encode()).hexdigest()[:10] if restarted_at else ""


def dump(resolved: Resolved) -> dict[str, Any]:
    """The data of a ControllerRevision.

    What only planned specs have stands under keys of its own, absent otherwise. The model's config
    is left to the model's record.
    """
    facts = asdict(resolved.facts)
    del facts["config"]
    return {
        "version": DATA_VERSION,
        "spec": resolved.spec.model_dump(by_alias=True, mode="json"),
        "claimUID": resolved.claim_uid,
        "image": resolved.image,
        "commit": resolved.commit,
        "facts": facts,
        "artifacts": [_made(artifact) for artifact in resolved.artifacts],
        "serve": {"step": resolved.serve_step, "key": resolved.serve_key},
        "proof": {"key": resolved.proof_key, "inputs": dict(resolved.proof_inputs)},
        "levels": list(resolved.levels),
        "fabric": resolved.fabric.model_dump(by_alias=True, mode="json")
        if resolved.fabric
        else None,
        "restartedAt": resolved.restarted_at,
        "reasons": list(resolved.reasons),
        **_planned(resolved),
        **({"draft": asdict(resolved.draft)} if resolved.draft is not None else {}),
        **({"versionGiven": resolved.version_given} if resolved.version_given is not None else {}),
    }


def _made(artifact: Artifact) -> dict[str, Any]:
    """An artifact; most read nothing beside their source."""
    data = asdict(artifact)
    if not artifact.also:
        del data["also"]
    return data


def _planned(resolved: Resolved) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if resolved.asked is not None:
        data["asked"] = resolved.asked.model_dump(by_alias=True, mode="json", exclude_none=True)
    if resolved.chosen is not None:
        data["chosen"] = asdict(resolved.chosen)
    if resolved.room is not None:
        data["room"] = _written(resolved.room)
    if resolved.gate is not None:
        data["gate"] = asdict(resolved.gate)
        for score in (data["gate"]["score"], data["gate"]["baseline"]):
            if score is not None and score["beside"] is None:
                del score["beside"]
    return data


def _written(room: Room) -> dict[str, Any]:
    """A memory plan; what a model without adapters or a draft has none of is left out."""
    data = asdict(room)
    for stage in data["stages"]:
        for part in ("lora", "draft"):
            if not stage[part]:
                del stage[part]
    return data


def load(data: Mapping[str, Any]) -> Resolved:
    """Read a ControllerRevision's data.

    Raises:
        ValueError: When the data are of a version that this operator does not read.
    """
    version = data.get("version")
    if version != DATA_VERSION:
        raise ValueError(
            f"revision data of version {version!r}; this operator reads {DATA_VERSION}"
        )
    fabric = data.get("fabric")
    return Resolved(
        spec=LLMDeploymentSpec.read(data["spec"]),
        claim_uid=data["claimUID"],
        image=data["image"],
        commit=data["commit"],
        facts=ModelFacts.read(data["facts"]),
        artifacts=tuple(_artifact(raw) for raw in data["artifacts"]),
        serve_step=data["serve"]["step"],
        serve_key=data["serve"]["key"],
        proof_key=data["proof"]["key"],
        proof_inputs=data["proof"]["inputs"],
        levels=tuple(data["levels"]),
        fabric=FabricProfile.model_validate(fabric) if fabric else None,
        restarted_at=data["restartedAt"],
        reasons=tuple(data["reasons"]),
        asked=AskedSpec.read(data["asked"]) if "asked" in data else None,
        chosen=Chosen(**data["chosen"]) if "chosen" in data else None,
        room=_room(data["room"]) if "room" in data else None,
        gate=_gate(data["gate"]) if "gate" in data else None,
        draft=Draft(**data["draft"]) if "draft" in data else None,
        version_given=data.get("versionGiven"),
    )


def _room(raw: Mapping[str, Any]) -> Room:
    return Room(tuple(StageRoom(**stage) for stage in raw["stages"]), raw["constants"])


def _gate(raw: Mapping[str, Any]) -> Gate:
    baseline = raw["baseline"]
    return Gate(
        score=_score(raw["score"]),
        baseline=_score(baseline) if baseline is not None else None,
        loads_key=raw["loads_key"],
        loads_inputs=raw["loads_inputs"],
    )


def _score(raw: Mapping[str, Any]) -> Score:
    beside = raw.get("beside")
    if beside is None:
        return Score(**_fields(raw))
    server = ServerBeside(
        **{
            **beside,
            "command": _command(beside["command"]),
            "resources": Resources(**beside["resources"]),
        }
    )
    return Score(**{**_fields(raw), "beside": server})


def _artifact(raw: Mapping[str, Any]) -> Artifact:
    return Artifact(**_fields(raw))


def _command(raw: Mapping[str, Any]) -> Command:
    return Command(tool=raw["tool"], argv=tuple(raw["argv"]), env=dict(raw.get("env", {})))


def _fields(raw: Mapping[str, Any]) -> dict[str, Any]:
    commands = tuple(_command(item) for item in raw["commands"])
    return {
        **raw,
        "commands": commands,
        "expected_files": tuple(raw["expected_files"]),
        "resources": Resources(**raw["resources"]),
        "also": tuple(raw.get("also", ())),
    }


def read(view: RevisionView) -> Revision:
    """A revision from its ControllerRevision.

    Raises:
        ValueError: When the data cannot be read.
    """
    return revision_of(view.name, view.uid, view.number, load(view.data))


def revision_of(name: str, uid: str, number: int, resolved: Resolved) -> Revision:
    """A revision with the wishes that mean it."""

    def wish(digest: str) -> str:
        return wish_of(digest, resolved.restarted_at, resolved.claim_uid)

    pinned = wish(spec_digest(resolved.spec))
    asked = resolved.asked
    own = pinned if asked is None else wish(asked_digest(asked))
    return Revision(name, uid, number, resolved, own, pinned)


def ungated_wish(resolved: Resolved) -> str:
    """The wish of a revision without its accuracy gate: all that decides whether it loads."""
    plain = resolved.spec.quantization.model_copy(update={"accuracy": None})
    spec = resolved.spec.model_copy(update={"quantization": plain})
    return wish_of(spec_digest(spec), resolved.restarted_at, resolved.claim_uid)


def cured(record: Record, wish: str) -> bool:
    """Whether what failed was never tried under this wish, which may be the cure.

    A score or a proof without wishes failed under one that nobody wrote down: it may be this one.
    """
    unknown = record.step in (STEP_PROOF, STEP_SCORE) and not record.tried
    return bool(wish) and not unknown and wish not in record.tried


def proven(resolved: Resolved, records: Records) -> bool:
    """Whether a candidate of this revision's key has loaded and answered."""
    record = records.get((resolved.claim_uid, STEP_PROOF, resolved.proof_key))
    return record is not None and record.state is RecordState.READY


def serving(
    revisions: Iterable[Revision], records: Records, rolled_back: Collection[str]
) -> Revision | None:
    """The highest numbered revision that is proven and was not rolled back (by name)."""
    fit = [
        revision
        for revision in revisions
        if revision.name not in rolled_back and proven(revision.resolved, records)
    ]
    return fit[-1] if fit else None


def prunable(revisions: tuple[Revision, ...], live: frozenset[str]) -> tuple[Revision, ...]:
    """Revisions that nothing names and that are not among the last ten."""
    recent = {revision.name for revision in revisions[-KEPT_REVISIONS:]}
    return tuple(
        revision
        for revision in revisions
        if revision.name not in recent and revision.name not in live
    )
