"""Events are told on turns, and counted with them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from shardwright.api.status import (
    Condition,
    EngineStatus,
    GroupStatus,
    LLMDeploymentStatus,
    NextEngine,
    PlanStatus,
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


def test_what_is_not_known_yet_is_no_warning() -> None:
    """A model is fetched before its shape can be judged: every first apply begins so."""
    fetching = status(condition("Accepted", "Unknown", "FetchingModel"))
    assert told(status(), fetching) == [("FetchingModel", False)]
    refused = status(condition("Accepted", "False", "HeadsNotDivisible"))
    assert told(status(), refused) == [("HeadsNotDivisible", True)]


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


def planned(**more: object) -> LLMDeploymentStatus:
    fields = {"tensor": 8, "pipeline": 1, "gpuProduct": "H100", "weights": "FP8", "kvCache": "FP8"}
    plan = PlanStatus.model_validate({**fields, "chosen": ["gpu.product"], **more})
    return LLMDeploymentStatus(observed_generation=2, plan=plan)


def test_a_plan_is_told_once_with_its_reasons_and_again_when_it_is_another() -> None:
    made = planned(reasons=["shrinking goes before splitting"])
    (post,) = transitions(VIEW, LLMDeploymentStatus(), made, 5.0)
    assert (post.reason, post.action, post.warning) == ("PlanChosen", "Plan", False)
    assert "tensor 8 × pipeline 1 on H100, weights FP8, KV cache FP8" in post.note
    assert "gpu.product" in post.note
    assert "shrinking goes before splitting" in post.note
    assert told(made, planned(reasons=["other words"])) == []
    assert told(made, planned(tensor=4)) == [("PlanChosen", False)]


def test_a_better_plan_is_told_when_it_becomes_possible_and_not_when_it_goes() -> None:
    assert told(planned(), planned(better="tensor 4 on H200")) == [("BetterPlanPossible", False)]
    assert told(planned(better="tensor 4 on H200"), planned(better="tensor 4 on H200")) == []
    assert told(planned(better="tensor 4 on H200"), planned()) == []


def test_a_shape_that_the_user_gave_is_no_news() -> None:
    assert told(LLMDeploymentStatus(), planned(chosen=[])) == []
