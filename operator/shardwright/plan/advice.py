"""What the use of a serving replica suggests to change. Told in status, never done.

It rests on sums over half an hour that leaders' runners make while requests are under way, so it is
about the revision that serves: another one starts without advice. An advice stands from when its
figure passes one mark until it passes another one, farther back, and is written anew only when the
figure has moved much meanwhile; where nothing new is known it stays as it is. So a use that goes up
and down around a mark writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from shardwright.api.status import AdviceStatus
from shardwright.observe.world import PodView
from shardwright.plan import advice_words as words
from shardwright.plan.situation import Findings, Situation
from shardwright.plan.times import stamp
from shardwright.plan.used import Used, drafting, together
from shardwright.resolved import Resolved
from shardwright.runner.contract import USAGE_SECONDS, Usage
from shardwright.sizing.speculation import speedup

_FULL, _FULL_UNTIL = 0.80, 0.75
_IDLE, _IDLE_UNTIL = 0.50, 0.55
# A cache that is over 80 % full now and then needs its room.
_PEAKS = 0.05
_PAYS, _PAYS_SURELY = 1.0, 1.05
_ALONE, _ALONE_UNTIL = 0.90, 0.80


@dataclass(frozen=True, slots=True)
class Figure:
    """What an advice rests on: a number, the adapter that it is of, and the message if it holds."""

    value: float
    words: Callable[[], str]
    about: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of advice.

    Attributes:
        reason: Its stable word.
        figure: What it rests on; None where that is not known now.
        holds: Whether a figure gives the advice, or keeps one that stands.
        step: So far a figure moves before a standing advice is written anew.
    """

    reason: str
    figure: Callable[[Resolved, Used], Figure | None]
    holds: Callable[[Used, float, bool], bool]
    step: float


def advised(situation: Situation, findings: Findings) -> list[AdviceStatus]:
    """All advice on the revision that serves; of a deployment that cannot be read the last one."""
    old = situation.status.advice
    serving = findings.answering
    if serving is None:
        return list(old) if situation.unreadable else []
    told = [
        situation.usage[pod.uid]
        for pod in _leaders(findings, serving.name)
        if pod.uid in situation.usage and situation.usage[pod.uid].revision == serving.name
    ]
    lora = situation.spec.lora if situation.spec is not None else None
    asked = (
        None if situation.spec is None else {one.name for one in (lora.adapters if lora else ())}
    )
    return advice(serving.name, serving.resolved, told, old, adapters=asked, now=situation.now)


def telling(situation: Situation, findings: Findings) -> tuple[PodView, ...]:
    """Leaders that are asked how they are used: of ready groups of the revision that serves."""
    serving = findings.answering
    if serving is None or not situation.settings.read_links:
        return ()
    return _leaders(findings, serving.name)


def _leaders(findings: Findings, revision: str) -> tuple[PodView, ...]:
    return tuple(
        group.leader
        for group in findings.groups
        if group.ready and group.serving and group.revision == revision and group.leader is not None
    )


def advice(
    revision: str,
    resolved: Resolved,
    told: Sequence[Usage],
    old: Sequence[AdviceStatus],
    *,
    adapters: Collection[str] | None,
    now: float,
) -> list[AdviceStatus]:
    """What to say of a revision.

    Args:
        revision: Its name.
        resolved: Its content.
        told: What its leaders have told, each of its own last half hour.
        old: What status says now.
        adapters: Those that the spec asks for; None where it cannot be read.
        now: Seconds since the epoch.
    """
    used = together(told)
    standing = {one.reason: one for one in old if one.revision == revision}
    found: list[AdviceStatus] = []
    for rule in RULES:
        kept = standing.get(rule.reason)
        one = kept if used is None else _judge(rule, resolved, used, kept, revision, now)
        if one is not None and _concerns(one, adapters):
            found.append(one)
    return found


def _concerns(one: AdviceStatus, adapters: Collection[str] | None) -> bool:
    """An adapter that was taken out gets no requests any more; one alone is told of as such."""
    return not one.about or adapters is None or (one.about in adapters and len(adapters) > 1)


def _judge(
    rule: Rule,
    resolved: Resolved,
    used: Used,
    kept: AdviceStatus | None,
    revision: str,
    now: float,
) -> AdviceStatus | None:
    figure = rule.figure(resolved, used)
    if figure is None:
        return kept
    stands = kept is not None and kept.about == figure.about
    if not rule.holds(used, figure.value, stands):
        return None
    if stands and kept is not None and abs(figure.value - kept.figure) < rule.step:
        return kept
    return AdviceStatus(
        reason=rule.reason,
        message=figure.words(),
        revision=revision,
        figure=round(figure.value, 4),
        about=figure.about,
        since=stamp(now - USAGE_SECONDS),
        until=stamp(now),
    )


def _full_cache(resolved: Resolved, used: Used) -> Figure | None:
    share = used.kv_cache
    if share is None:
        return None
    return Figure(share, lambda: words.cache_full(resolved, used, share))


def _idle_cache(resolved: Resolved, used: Used) -> Figure | None:
    share = used.kv_cache
    if share is None:
        return None
    return Figure(share, lambda: words.cache_idle(resolved, used, share))


def _gain(resolved: Resolved, used: Used) -> Figure | None:
    """Speed with drafts over that without, by tokens accepted and weights read."""
    found = drafting(resolved, used)
    if found is None:
        return None
    gain = speedup(found.alpha, found.way, used.at_once)
    return Figure(gain, lambda: words.costs_more(found, used, gain))


def _most_alone(_: Resolved, used: Used) -> Figure | None:
    if used.alone is None:
        return None
    most = max(used.alone.items(), key=lambda one: (one[1], one[0]), default=("", 0.0))
    name, share = most
    return Figure(share, lambda: words.dominates(used, name, share), about=name)


def _full(_: Used, share: float, stands: bool) -> bool:  # noqa: FBT001 - a state
    return share >= (_FULL_UNTIL if stands else _FULL)


def _idle(used: Used, share: float, stands: bool) -> bool:  # noqa: FBT001 - a state
    return share < (_IDLE_UNTIL if stands else _IDLE) and used.kv_high < _PEAKS


def _costs(_: Used, gain: float, stands: bool) -> bool:  # noqa: FBT001 - a state
    return gain < (_PAYS_SURELY if stands else _PAYS)


def _alone(_: Used, share: float, stands: bool) -> bool:  # noqa: FBT001 - a state
    return share >= (_ALONE_UNTIL if stands else _ALONE)


RULES = (
    Rule("KVCacheNearlyFull", _full_cache, _full, 0.1),
    Rule("KVCacheHalfEmpty", _idle_cache, _idle, 0.1),
    Rule("SpeculationCostsMore", _gain, _costs, 0.15),
    Rule("OneAdapterDominates", _most_alone, _alone, 0.1),
)
