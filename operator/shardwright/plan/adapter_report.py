"""What status says of adapters: each by name, and the condition AdaptersReady over all of them.

Ready is about replicas: a base model that serves is Ready whatever becomes of its adapters.
"""

from __future__ import annotations

from typing import NamedTuple

from shardwright.api.names import LABEL_REVISION, PORT_RUNNER
from shardwright.api.status import AdapterStatus, ConditionStatus
from shardwright.observe.world import PodView
from shardwright.plan.adapter_states import AdapterState, Loaded, Reader, loaded
from shardwright.plan.groups import Group
from shardwright.plan.situation import Findings, Situation

_TOLD = 3


class Verdict(NamedTuple):
    """The condition AdaptersReady before it has times."""

    status: ConditionStatus
    reason: str
    message: str


def readers(findings: Findings) -> tuple[tuple[PodView, str], ...]:
    """Leaders that are asked what they have loaded, of ready groups, and their tables' digests."""
    digests = findings.adapters.digests
    return tuple(
        (leader, digests[revision]) for leader, revision in _ready(findings) if revision in digests
    )


def _ready(findings: Findings) -> list[tuple[PodView, str]]:
    return [
        (group.leader, table_of(group.leader, group))
        for group in findings.groups
        if group.ready and group.leader is not None
    ]


def table_of(leader: PodView, group: Group) -> str:
    """The revision whose table a leader reads.

    Its pod was made with the name of that one, and may have become another's since.
    """
    return leader.labels.get(LABEL_REVISION) or group.revision


def _loaded(situation: Situation, findings: Findings) -> tuple[Loaded, ...]:
    digests = findings.adapters.digests
    found = [
        Reader(leader.uid, revision, digests.get(revision, ""))
        for leader, revision in _ready(findings)
    ]
    return loaded(findings.adapters, found, situation.adapters)


def adapters_status(situation: Situation, findings: Findings) -> list[AdapterStatus]:
    """Each adapter of the spec; of a spec that was refused what was said last.

    Leaders keep what they have loaded meanwhile, but nothing is fetched: nobody waits for that.
    """
    if not findings.adapters.told:
        return [
            one for one in situation.status.adapters if one.state != AdapterState.FETCHING.value
        ]
    return [
        AdapterStatus(
            name=one.found.name,
            state=one.state.value,
            reason="AdapterNotLoaded" if one.trouble else one.found.reason,
            message=_message(one)[:1000],
            loaded_on=f"{one.count} of {one.leaders}",
        )
        for one in _loaded(situation, findings)
    ]


def _message(one: Loaded) -> str:
    """What is said of an adapter, also by replicas that are not yet what the spec asks for."""
    parts = [one.trouble or one.found.message]
    if one.found.entry is None and one.count:
        parts.append(f"{one.count} of {one.leaders} replicas, of a revision before, still serve it")
    if one.found.entry is not None:
        parts += [f"replicas of {name}: {words}" for name, words in one.left_out.items()]
    return "; ".join(part for part in parts if part)


def adapters_ready(situation: Situation, findings: Findings) -> Verdict | None:
    """Whether all adapters are loaded wherever the base model serves; None without any limits."""
    spec = situation.spec
    if spec is None or spec.lora is None:
        return None
    if findings.adapters.told not in findings.adapters.by_revision:
        return Verdict("Unknown", "NotAccepted", "adapters wait for the spec and its model")
    found = _loaded(situation, findings)
    for state, reason, what in (
        (AdapterState.INVALID, "AdapterInvalid", "cannot be served"),
        (AdapterState.FAILED, "AdapterFailed", "failed"),
        (AdapterState.FETCHING, "FetchingAdapters", "being fetched"),
    ):
        those = [one for one in found if one.state is state]
        if those:
            return Verdict("False", reason, _words(those, len(found), what))
    leaders = len(_ready(findings))
    if not leaders:
        return Verdict("Unknown", "NothingServes", f"{len(found)} adapters; no replica serves yet")
    loading = [one for one in found if not one.everywhere]
    if loading:
        words = _words(loading, len(found), "not loaded everywhere")
        return Verdict("False", "AdaptersLoading", words + _silence(loading[0]))
    return Verdict("True", "AdaptersLoaded", f"{len(found)} adapters on {leaders} leaders")


def _words(those: list[Loaded], total: int, what: str) -> str:
    told = [f"{one.found.name}: {_message(one) or _on(one)}" for one in those[:_TOLD]]
    more = f" and {len(those) - _TOLD} more" if len(those) > _TOLD else ""
    return f"{len(those)} of {total} adapters {what}: {'; '.join(told)}{more}"


def _on(one: Loaded) -> str:
    return f"loaded on {one.count} of {one.leaders} leaders"


def _silence(one: Loaded) -> str:
    """That leaders have not answered: nothing would tell it from a server that is slow."""
    if not one.silent:
        return ""
    return (
        f"; {one.silent} of {one.leaders} leaders have not told yet what they have loaded: the "
        f"operator asks them at port {PORT_RUNNER} of their pods"
    )
