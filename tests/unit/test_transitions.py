"""Events are told on turns, and counted with them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from shardwright.api.status import (
    Condition,
    EngineStatus,
    GroupStatus,
    LLMDeploymentStatus,
    NextEngine,
    ServingEngine,
)
from shardwright.control.measure import measure_turns
from shardwright.control.metrics import Metrics
from shardwright.control.transitions import transitions
from shardwright.observe.world import DeploymentView

VIEW = DeploymentView("ns", "llama", "uid", 2, 7)


def condition(kind: str, status: str, reason: str, message: str = "words") -> Condition:
    return Condition.model_validate(
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    )


def status(*conditions: Condition, groups: tuple[GroupStatus, ...] = ()) -> LLMDeploymentStatus:
    return LLMDeploymentStatus(
        observed_generation=2, conditions=list(conditions), groups=list(groups)
    )


def told(old: LLMDeploymentStatus, new: LLMDeploymentStatus) -> list[tuple[str, bool]]:
    return [(post.reason, post.warning) for post in transitions(VIEW, old, new, 5.0)]


def test_becoming_ready_is_told_once() -> None:
    before = status(condition("Ready", "False", "Proving"))
    after = status(condition("Ready", "True", "AllReplicasReady"))
    assert told(before, after) == [("AllReplicasReady", False)]
    assert told(after, after) == []


def test_a_changed_message_alone_is_no_event() -> None:
    before = status(condition("Placed", "False", "NoSpareGPUs", "3 free"))
    after = status(condition("Placed", "False", "NoSpareGPUs", "4 free"))
    assert told(before, after) == []


def test_a_refusal_is_one_warning_however_many_conditions_say_it() -> None:
    after = status(
        condition("Accepted", "False", "GPUProductNotFound"),
        condition("Ready", "False", "GPUProductNotFound"),
        condition("Stalled", "True", "GPUProductNotFound"),
    )
    assert told(status(), after) == [("GPUProductNotFound", True)]


def test_an_engine_that_was_proven_before_is_no_news() -> None:
    after = status(condition("EngineReady", "True", "Proven"))
    assert told(status(), after) == []
    before = status(condition("EngineReady", "False", "Building"))
    assert told(before, after) == [("Proven", False)]


def test_a_group_that_was_replaced_is_told_and_counted_with_its_cause() -> None:
    old = status(groups=(GroupStatus(index=0, incarnation=1, revision="r"),))
    new = status(
        groups=(
            GroupStatus(
                index=0, incarnation=2, revision="r", cause="pod x died", reason="PodFailed"
            ),
        )
    )
    assert told(old, new) == [("PodFailed", True)]
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    measure_turns(metrics, old, new)
    measure_turns(metrics, new, new)
    name = "shardwright_group_restarts_total"
    assert registry.get_sample_value(name, {"cause": "PodFailed"}) == 1


def test_a_rollout_counts_as_completed_when_what_was_next_serves() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    old = LLMDeploymentStatus(
        engine=EngineStatus(serving=ServingEngine(revision="a"), next=NextEngine(revision="b"))
    )
    new = LLMDeploymentStatus(engine=EngineStatus(serving=ServingEngine(revision="b")))
    measure_turns(metrics, old, new)
    name = "shardwright_rollouts_total"
    assert registry.get_sample_value(name, {"result": "Completed"}) == 1
    dropped = LLMDeploymentStatus(engine=EngineStatus(serving=ServingEngine(revision="a")))
    measure_turns(metrics, old, dropped)
    assert registry.get_sample_value(name, {"result": "Completed"}) == 1
