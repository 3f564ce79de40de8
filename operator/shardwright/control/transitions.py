"""Events: only when something turned, never because a pass was made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardwright.api.status import Condition, LLMDeploymentStatus, PlanStatus
from shardwright.apply.writes import PostEvent
from shardwright.observe.world import DeploymentView
from shardwright.plan.question import shape_words
from shardwright.sizing.shape import Shape

# Conditions whose turn is worth telling, and whether a turn to False is a warning.
_TOLD = {"Accepted": True, "EngineReady": False, "Placed": True, "Ready": False}
# Turns that every deployment goes through at the start say nothing; the end of each is told.
_QUIET = frozenset({"NotPlacedYet", "Proving", "NotResolved", "Accepted", "AllPlaced"})
# True, and yet something to look at.
_WARNINGS = frozenset({"AcceptedWithWarning"})


def transitions(
    view: DeploymentView, old: LLMDeploymentStatus, new: LLMDeploymentStatus, now: float
) -> list[PostEvent]:
    """Events for conditions that turned or changed their reason, and for groups that broke."""
    before = {item.type: item for item in old.conditions}
    posts: list[PostEvent] = []

    def post(reason: str, note: str, action: str, *, warning: bool) -> None:
        posts.append(
            PostEvent(
                namespace=view.namespace,
                name=view.name,
                uid=view.uid,
                reason=reason,
                note=note,
                action=action,
                key=f"{view.generation}/{reason}/{note}/{int(now)}",
                at=now,
                warning=warning,
            )
        )

    for condition in _turned(before, new.conditions):
        if condition.type == "Stalled":
            if condition.status == "True":
                post(condition.reason, condition.message, "Stalled", warning=True)
            continue
        if condition.type not in _TOLD or condition.reason in _QUIET:
            continue
        good = condition.status == "True"
        if condition.type == "Ready" and not good:
            continue
        post(
            condition.reason,
            condition.message,
            condition.type,
            warning=condition.reason in _WARNINGS
            or (condition.status == "False" and _TOLD[condition.type]),
        )
    for reason, note in _planned(old.plan, new.plan):
        post(reason, note, "Plan", warning=False)
    known = {(group.index, group.incarnation) for group in old.groups}
    for group in new.groups:
        if (group.index, group.incarnation) not in known and group.cause:
            post(
                group.reason or "GroupBroken",
                f"replica {group.index} is replaced whole: {group.cause}",
                "ReplaceGroup",
                warning=True,
            )
    return posts


def _planned(old: PlanStatus | None, new: PlanStatus | None) -> Iterator[tuple[str, str]]:
    """What the planner chose, and a better plan that has become possible: once each."""
    if new is None or not new.chosen:
        return
    if old is None or not old.chosen or _choice(old) != _choice(new):
        yield (
            "PlanChosen",
            f"{_choice(new)}, chosen for {', '.join(new.chosen)}: {'; '.join(new.reasons)}",
        )
    if new.better and (old is None or new.better != old.better):
        yield (
            "BetterPlanPossible",
            f"{new.better} has become possible; {_choice(new)} is kept until the spec changes",
        )


def _choice(plan: PlanStatus) -> str:
    shape = Shape(plan.tensor, plan.pipeline, plan.expert or 1, plan.attention_data or 1)
    return (
        f"{shape_words(shape)} on {plan.gpu_product}, weights {plan.weights}, KV cache "
        f"{plan.kv_cache}"
    )


def _turned(before: dict[str, Condition], conditions: Iterable[Condition]) -> Iterable[Condition]:
    """Conditions whose status or reason differs; at the start only what is not just waiting."""
    stalled = any(item.type == "Stalled" and item.status == "True" for item in conditions)
    for condition in conditions:
        old = before.get(condition.type)
        if old is not None and (old.status, old.reason) == (condition.status, condition.reason):
            continue
        # Why it is stalled is told once, by Stalled itself.
        if stalled and condition.type != "Stalled":
            continue
        # An engine that was proven before this deployment came is no news.
        if old is None and condition.type == "EngineReady" and condition.status == "True":
            continue
        yield condition
