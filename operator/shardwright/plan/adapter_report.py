"""What status says of adapters: each by name, and the condition AdaptersReady over all of them.

Ready is about replicas: a base model that serves is Ready whatever becomes of its adapters.
"""

from __future__ import annotations

from typing import NamedTuple

from shardwright.api.status import AdapterStatus, ConditionStatus
from shardwright.observe.world import PodView
from shardwright.plan.adapter_states import AdapterState, Loaded, loaded
from shardwright.plan.situation import Findings, Situation

_TOLD = 3


class Verdict(NamedTuple):
    """The condition AdaptersReady before it has times."""

    status: ConditionStatus
    reason: str
    message: str


def readers(findings: Findings) -> tuple[PodView, ...]:
    """Leaders that are asked what they have loaded: of groups that are ready."""
    if findings.adapters.table is None:
        return ()
    return tuple(
        group.leader for group in findings.groups if group.ready and group.leader is not None
    )


def _loaded(situation: Situation, findings: Findings) -> tuple[Loaded, ...]:
    uids = [pod.uid for pod in readers(findings)]
    return loaded(findings.adapters, uids, situation.adapters)


def adapters_status(situation: Situation, findings: Findings) -> list[AdapterStatus]:
    """Each adapter of the spec; of a spec that was refused what was said last."""
    if findings.adapters.table is None:
        return list(situation.status.adapters)
    return [
        AdapterStatus(
            name=one.found.name,
            state=one.state.value,
            reason="AdapterNotLoaded" if one.trouble else one.found.reason,
            message=(one.trouble or one.found.message)[:1000],
            loaded_on=f"{one.count} of {one.leaders}",
        )
        for one in _loaded(situation, findings)
    ]


def adapters_ready(situation: Situation, findings: Findings) -> Verdict | None:
    """Whether all adapters are loaded wherever the base model serves; None without any limits."""
    spec = situation.spec
    if spec is None or spec.lora is None:
        return None
    if findings.adapters.table is None:
        return Verdict("Unknown", "NotAccepted", "adapters wait for the spec and its model")
    found = _loaded(situation, findings)
    for state, reason in (
        (AdapterState.INVALID, "AdapterInvalid"),
        (AdapterState.FAILED, "AdapterFailed"),
        (AdapterState.FETCHING, "FetchingAdapters"),
    ):
        those = [one for one in found if one.state is state]
        if those:
            return Verdict("False", reason, _words(those, len(found)))
    leaders = len(readers(findings))
    if not leaders:
        return Verdict("Unknown", "NothingServes", f"{len(found)} adapters; no replica serves yet")
    loading = [one for one in found if not one.everywhere]
    if loading:
        return Verdict("False", "AdaptersLoading", _words(loading, len(found)))
    return Verdict("True", "AdaptersLoaded", f"{len(found)} adapters on {leaders} leaders")


def _words(those: list[Loaded], total: int) -> str:
    told = [
        f"{one.found.name}: {one.trouble or one.found.message or _on(one)}" for one in those[:_TOLD]
    ]
    more = f" and {len(those) - _TOLD} more" if len(those) > _TOLD else ""
    return f"{len(those)} of {total} adapters: {'; '.join(told)}{more}"


def _on(one: Loaded) -> str:
    return f"loaded on {one.count} of {one.leaders} leaders"
