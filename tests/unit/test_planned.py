"""Specs that leave fields open: what is chosen, that it is kept, what is said when it cannot be."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.golden import specs
from tests.support.fleet import gpu_node

from shardwright.api.asked import AskedKVCache, AskedSpec, AskedWeights, Objective, asked_of
from shardwright.api.serving import KVPrecision, WeightPrecision
from shardwright.api.settings import PoolSettings, Settings
from shardwright.api.spec import LLMDeploymentSpec, StagePlacement
from shardwright.api.status import LLMDeploymentStatus
from shardwright.observe.gpus import DriverMemory
from shardwright.observe.world import (
    ClaimView,
    DeploymentView,
    NodeView,
    Record,
    RecordState,
    Resources,
    RevisionView,
    Taint,
)
from shardwright.plan import given as given_shape
from shardwright.plan.conditions import Outcome
from shardwright.plan.deployment import decide
from shardwright.plan.fleets import Fleets, fleets_of, free_fleet
from shardwright.plan.question import headline_of, workload_of
from shardwright.plan.report import report
from shardwright.plan.resolve import Planned, model_key
from shardwright.plan.revisions import Revision, asked_digest, dump, read, spec_digest
from shardwright.plan.situation import (
    Decision,
    DeletePod,
    MakeRevision,
    RaiseRevision,
    Situation,
)
from shardwright.runner.contract import STEP_MODEL, ModelFacts
from shardwright.runtimes.base import Refusal
from shardwright.sizing.catalogue import catalogue_config
from shardwright.sizing.question import Objective as SizingObjective
from shardwright_sandbox.player import models

H100, A100, H200, L40S = specs.H100, specs.A100, "NVIDIA-H200", "NVIDIA-L40S"
LLAMA_405B = "hf://meta-llama/Llama-3.1-405B-Instruct@main"
LLAMA_70B = "hf://meta-llama/Llama-3.3-70B-Instruct@main"
CLAIM = ClaimView("llm", "models", "claim-uid", bound=True, access_modes=("ReadWriteMany",))


def hopper(count: int = 2, product: str = H100, prefix: str = "h") -> list[NodeView]:
    return [
        gpu_node(f"{prefix}{number}", 8, product=product, inventory={"compute": (9, 0)})
        for number in range(count)
    ]


def ampere(count: int = 2) -> list[NodeView]:
    return [
        gpu_node(f"a{number}", 8, product=A100, inventory={"compute": (8, 0)})
        for number in range(count)
    ]


def facts_of(uri: str) -> ModelFacts:
    model = models.find(uri)
    assert model is not None
    return models.facts(model)


def asked(**fields: Any) -> AskedSpec:
    base = {"model": {"uri": LLAMA_70B}, "storage": {"claimName": "models"}}
    return AskedSpec.read({**base, **fields})


class World:
    """A deployment as its passes see it: revisions and status of one are there in the next."""

    def __init__(self, nodes: Iterable[NodeView], **settings: Any) -> None:
        self.nodes = list(nodes)
        self.settings = Settings(**settings)
        self.status = LLMDeploymentStatus()
        self.revisions: tuple[Revision, ...] = ()
        self.generation = 0
        self.facts: ModelFacts | None = None
        self.fleets: Fleets | None = None
        self.before: AskedSpec | None = None
        self.decision: Decision

    def situation(self, spec: AskedSpec) -> Situation:
        facts = self.facts or facts_of(spec.model.uri)
        record = Record(
            STEP_MODEL, model_key(spec), CLAIM.uid, RecordState.READY, commit="abc", facts=facts
        )
        return Situation(
            now=1000.0,
            jitter=0.0,
            settings=self.settings,
            deployment=DeploymentView(
                "llm", "llama", "uid", generation=self.generation, resource_version=1
            ),
            spec=spec,
            spec_error="",
            spec_digest=asked_digest(spec),
            status=self.status,
            claims={"models": CLAIM},
            missing_secrets=(),
            revisions=self.revisions,
            pods=(),
            jobs=(),
            job_pods={},
            records={(CLAIM.uid, record.step, record.key): record},
            nodes={node.name: node for node in self.nodes},
            fleets=self.fleets,
        )

    def see(self, spec: AskedSpec) -> LLMDeploymentStatus:
        """One pass; what it writes is there afterwards, through JSON as the API server has it."""
        self.generation += spec != self.before
        self.before = spec
        situation = self.situation(spec)
        self.decision = decide(situation)
        self.status = report(situation, self.decision, Outcome())
        for intent in self.decision.intents:
            if isinstance(intent, MakeRevision):
                made = intent.revision
                data = json.loads(json.dumps(dump(made.resolved)))
                view = RevisionView(
                    made.name, f"uid-{made.name}", 1, made.number, "uid", text=json.dumps(data)
                )
                self.revisions = (*self.revisions, read(view))
            elif isinstance(intent, RaiseRevision):
                others = tuple(one for one in self.revisions if one.name != intent.revision.name)
                raised = replace(intent.revision, number=intent.number)
                self.revisions = (*others, raised)
        return self.status

    @property
    def target(self) -> Revision:
        found = self.decision.findings.target
        assert found is not None
        return found

    def condition(self, kind: str) -> tuple[str, str, str]:
        found = next(item for item in self.status.conditions if item.type == kind)
        return found.status, found.reason, found.message


# What is chosen


def test_a_spec_without_shape_gets_one_and_status_says_what_and_why() -> None:
    world = World(hopper())
    status = world.see(asked())
    plan = status.plan
    assert plan is not None
    assert plan.chosen == list(asked().open)
    assert (plan.gpu_product, plan.tensor * plan.pipeline) == (H100, plan.world_size)
    assert plan.weights == world.target.resolved.spec.quantization.weights.value
    assert any("weights" in reason for reason in plan.reasons)
    assert plan.runner_up
    assert plan.better == ""
    assert plan.constants == "tensorrt-llm-tensorrt"
    assert [stage.stage for stage in plan.per_gpu] == list(range(plan.pipeline))
    for stage in plan.per_gpu:
        parts = stage.weights_gib + stage.activation_gib + stage.runtime_gib + stage.kv_cache_gib
        assert 40 < parts < 79.2, "of one H100, less what the memory fraction leaves"
        assert stage.weights_gib > 0
    assert plan.kv_tokens > 8192
    assert world.condition("Accepted")[:2] == ("True", "Accepted")


def test_what_is_given_is_not_chosen() -> None:
    given = asked(
        gpu={"product": A100},
        parallelism={"pipeline": 2},
        quantization={"weights": "None", "kvCache": "Auto"},
    )
    world = World([*hopper(), *ampere()])
    plan = world.see(given).plan
    assert plan is not None
    assert (plan.gpu_product, plan.pipeline, plan.weights) == (A100, 2, "None")
    assert plan.chosen == ["parallelism.tensor", "quantization.kvCache"]


def test_precision_left_out_beside_a_given_shape_stays_16_bit() -> None:
    world = World(hopper())
    plan = world.see(asked(parallelism={"tensor": 8, "pipeline": 1})).plan
    assert plan is not None
    assert (plan.chosen, plan.weights, plan.kv_cache) == (["gpu.product"], "None", "None")


def test_only_nodes_that_the_placement_allows_are_counted() -> None:
    kept = [replace(node, taints=(Taint("team", "other"),)) for node in hopper()]
    labelled = [replace(node, labels={**node.labels, "pool": "old"}) for node in ampere()]
    assert World([*kept, *labelled]).see(asked()).plan.gpu_product == A100  # type: ignore[union-attr]
    tolerant = {"placement": {"tolerations": [{"key": "team", "operator": "Exists"}]}}
    assert World([*kept, *labelled]).see(asked(**tolerant)).plan.gpu_product == H100  # type: ignore[union-attr]
    selected = {"placement": {**tolerant["placement"], "nodeSelector": {"pool": "old"}}}
    assert World([*kept, *labelled]).see(asked(**selected)).plan.gpu_product == A100  # type: ignore[union-attr]


def test_cordoned_and_unready_nodes_are_hardware_all_the_same() -> None:
    placement = asked().placement
    settings = Settings()
    healthy = fleets_of(hopper(4), placement, settings)
    ill = hopper(4)
    ill[0] = replace(ill[0], ready=False, not_ready_since=1.0)
    ill[1] = replace(
        ill[1], unschedulable=True, taints=(Taint("node.kubernetes.io/unschedulable"),)
    )
    assert fleets_of(ill, placement, settings) == healthy
    free = free_fleet(ill, placement, settings, {"h2": Resources(gpus=8)})
    assert (free.gpus, free.free_gpus) == (32, 8)


def test_what_is_free_goes_before_what_others_hold() -> None:
    nodes = [*hopper(2), *ampere(2)]
    spec = asked(quantization={"weights": "None"})
    placement, settings = spec.placement, Settings()
    owned = fleets_of(nodes, placement, settings)
    busy = {f"h{number}": Resources(gpus=8) for number in range(2)}
    world = World(nodes)
    world.fleets = replace(owned, free=free_fleet(nodes, placement, settings, busy))
    plan = world.see(spec).plan
    assert plan is not None
    assert plan.gpu_product == A100
    chosen = world.target.resolved.chosen
    assert chosen is not None
    assert H100 in chosen.all_free
    # The others leave: nothing has become possible that was not thought of.
    world.fleets = owned
    assert world.see(spec).plan.better == ""  # type: ignore[union-attr]


def test_with_everything_taken_it_plans_and_waits_for_room() -> None:
    nodes = hopper()
    placement, settings = asked().placement, Settings()
    taken = {node.name: Resources(gpus=8) for node in nodes}
    world = World(nodes)
    world.fleets = replace(
        fleets_of(nodes, placement, settings), free=free_fleet(nodes, placement, settings, taken)
    )
    plan = world.see(asked()).plan
    assert plan is not None
    assert plan.gpu_product == H100
    assert any("waits" in reason for reason in plan.reasons)


def test_node_pools_count_where_nodes_do_not_do() -> None:
    pool = PoolSettings(
        name="burst", product=H100, gpus_per_node=8, max_nodes=2, compute_capability="9.0"
    )
    world = World([], node_pools=[pool])
    plan = world.see(asked()).plan
    assert plan is not None
    assert plan.gpu_product == H100


def test_more_replicas_than_there_is_room_for_wait_for_room() -> None:
    plan = World(hopper(1)).see(asked(replicas=200)).plan
    assert plan is not None
    assert plan.gpus == 200 * plan.world_size


def test_stages_that_were_planned_on_one_node_are_not_spread_over_several() -> None:
    pcie = [
        gpu_node("l0", 8, product=L40S, nvlink=0, inventory={"compute": (8, 9)}),
    ]
    spec = asked(parallelism={"tensor": 2, "pipeline": 4}, quantization={"weights": "Auto"})
    world = World(pcie)
    world.see(spec)
    assert world.target.resolved.spec.placement.pipeline_stages is StagePlacement.PACK
    assert spec.placement.pipeline_stages is StagePlacement.AUTO


# It is kept


def test_nodes_that_come_and_go_change_no_plan() -> None:
    world = World(hopper())
    world.see(asked())
    first = world.target
    drained = [replace(node, unschedulable=True) for node in world.nodes]
    for nodes in (
        [*world.nodes, *hopper(6, prefix="more")],
        drained,
        [replace(node, ready=False, not_ready_since=900.0) for node in world.nodes],
        world.nodes[:1],
        [*hopper(), *hopper(4, H200, "x")],
    ):
        world.nodes = nodes
        world.see(asked())
        assert world.target.name == first.name
        assert world.target.resolved.spec == first.resolved.spec
        assert world.target.resolved.artifacts == first.resolved.artifacts
        assert not any(isinstance(item, MakeRevision) for item in world.decision.intents)
        assert world.condition("Accepted")[0] == "True"
    assert len(world.revisions) == 1


def test_a_better_plan_is_shown_while_it_is_possible_and_not_acted_on() -> None:
    world = World(ampere())
    assert world.see(asked()).plan.better == ""  # type: ignore[union-attr]
    first = world.target
    world.nodes = [*ampere(), *hopper(2, H200, "x")]
    plan = world.see(asked()).plan
    assert plan is not None
    assert H200 in plan.better
    assert (plan.gpu_product, world.target.name) == (A100, first.name)
    assert world.condition("Stalled")[0] == "False"
    world.nodes = ampere()
    assert world.see(asked()).plan.better == ""  # type: ignore[union-attr]


def test_an_edit_that_asks_the_planner_nothing_new_keeps_the_plan() -> None:
    world = World(hopper())
    world.see(asked())
    first = world.target
    world.nodes = [*hopper(), *hopper(4, H200, "x")]
    world.see(asked(model={"uri": LLAMA_70B, "servedName": "other"}, replicas=3))
    assert world.target.name != first.name
    assert headline_of(world.target.resolved.spec) == headline_of(first.resolved.spec)
    assert world.target.resolved.serve_key == first.resolved.serve_key
    assert world.target.resolved.chosen == first.resolved.chosen


def test_replicas_are_no_matter_of_the_plan() -> None:
    world = World(hopper())
    world.see(asked())
    first = world.target
    world.see(asked(replicas=5))
    assert world.target.name == first.name


def test_an_edit_of_the_workload_has_it_chosen_anew() -> None:
    world = World(hopper())
    world.see(asked(workload={"objective": "Latency", "concurrency": 1}))
    first = world.target
    world.see(asked(workload={"objective": "Throughput", "concurrency": 512}))
    assert world.target.name != first.name
    assert headline_of(world.target.resolved.spec) != headline_of(first.resolved.spec)


def test_going_back_to_an_old_spec_finds_its_old_plan() -> None:
    old, new = asked(), asked(workload={"objective": "Latency", "concurrency": 1})
    world = World(hopper())
    world.see(old)
    first = world.target
    world.see(new)
    world.nodes = [*hopper(), *hopper(4, H200, "x")]
    world.see(old)
    assert world.target.name == first.name
    assert world.target.number == 3
    assert world.target.resolved.spec == first.resolved.spec


def test_writing_down_what_was_chosen_and_taking_it_out_again_rolls_nothing() -> None:
    world = World(hopper())
    world.see(asked())
    first = world.target
    whole = first.resolved.spec
    pinned = asked(
        gpu={"product": whole.gpu.product},
        parallelism={"tensor": whole.parallelism.tensor, "pipeline": whole.parallelism.pipeline},
        quantization={
            "weights": whole.quantization.weights.value,
            "kvCache": whole.quantization.kv_cache.value,
        },
    )
    assert pinned.open == ()
    for spec in (pinned, asked()):
        world.see(spec)
        assert world.target.name == first.name
        assert len(world.revisions) == 1


def test_auto_and_left_out_are_one_wish() -> None:
    spelled = asked(quantization={"weights": "Auto", "kvCache": "Auto"}, parallelism={})
    assert asked_digest(spelled) == asked_digest(asked())
    assert asked_digest(asked(workload={})) == asked_digest(asked())
    assert asked_digest(asked(workload={"concurrency": 1})) != asked_digest(asked())


# It has become impossible


def test_a_plan_whose_product_is_gone_stalls_and_names_what_would_be_chosen() -> None:
    world = World(hopper())
    world.see(asked())
    first = world.target
    world.see(asked())
    wishes = world.status.groups
    world.nodes = ampere()
    world.see(asked())
    status, reason, message = world.condition("Stalled")
    assert (status, reason) == ("True", "PlanNotPossible")
    assert headline_of(first.resolved.spec) in message
    assert f"on {A100}" in message.split("now ", 1)[1]
    assert world.condition("Accepted")[:2] == ("False", "PlanNotPossible")
    assert world.target.name == first.name
    assert not any(isinstance(item, DeletePod) for item in world.decision.intents)
    assert world.status.groups == wishes
    # Another field of the spec makes no new plan either.
    world.see(asked(model={"uri": LLAMA_70B, "servedName": "other"}))
    assert world.condition("Stalled")[1] == "PlanNotPossible"
    # They come back.
    world.nodes = hopper()
    world.see(asked())
    assert world.condition("Stalled")[0] == "False"
    assert world.target.name == first.name


def test_a_plan_larger_than_any_domain_left_is_impossible() -> None:
    small = [gpu_node("small", 4, inventory={"compute": (9, 0)})]
    given = asked(
        gpu={"product": H100},
        parallelism={"pipeline": 1, "tensor": 8},
        quantization={"weights": "Auto"},
    )
    world = World(hopper())
    world.see(given)
    world.nodes = small
    world.see(given)
    # The shape was the user's own: it is refused in the words of a given shape.
    assert world.condition("Stalled")[1] == "TensorParallelExceedsNVLinkDomain"
    open_ = World(hopper())
    open_.see(asked())
    assert open_.target.resolved.tensor == 8
    open_.nodes = small
    open_.see(asked())
    status, reason, message = open_.condition("Stalled")
    assert (status, reason) == ("True", "PlanNotPossible")
    assert "has 4 GPUs" in message
    assert "tensor 4" in message.rsplit("now ", 1)[1]


def test_with_nothing_else_possible_it_says_so() -> None:
    world = World(hopper())
    world.see(asked())
    world.nodes = []
    world.see(asked())
    assert "nothing else would be possible" in world.condition("Stalled")[2]


# There is none


def test_a_model_too_large_for_all_gpus_is_refused_with_the_nearest_miss() -> None:
    world = World([gpu_node("t", 2, product=L40S, nvlink=0, inventory={"compute": (8, 9)})])
    world.see(asked(model={"uri": "hf://meta-llama/Llama-3.1-405B-Instruct@main"}))
    status, reason, message = world.condition("Accepted")
    assert (status, reason) == ("False", "NoPlanPossible")
    assert "nearest was" in message
    assert "GiB" in message
    assert f"1 × 2 {L40S}" in message
    assert world.decision.findings.target is None
    assert not any(isinstance(item, MakeRevision) for item in world.decision.intents)
    world.nodes = hopper(2)
    world.see(asked(model={"uri": "hf://meta-llama/Llama-3.1-405B-Instruct@main"}))
    assert world.condition("Accepted")[0] == "True"


def test_of_several_refusals_the_message_has_the_cause() -> None:
    """Every number of ranks is refused with three experts, some for reasons of their own."""
    engine = {"runtime": "TensorRTLLM", "backend": "PyTorch"}
    uri = "hf://mistralai/Mixtral-8x7B-Instruct-v0.1@main"
    world = World(hopper(2))
    world.see(asked(model={"uri": uri}, engine=engine, parallelism={"expert": 3}))
    assert world.condition("Accepted")[1] == "NoPlanPossible"
    assert (
        "nearest was expert 3: the model has 8 routed experts; use 1 or a divisor of their number"
    ) in world.condition("Accepted")[2]


def test_a_given_size_that_the_heads_refuse_names_the_size() -> None:
    world = World(hopper())
    world.see(asked(parallelism={"tensor": 3}))
    assert world.condition("Accepted")[1] == "NoPlanPossible"
    assert "64 attention heads" in world.condition("Accepted")[2]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("", "config.json is not kept"),
        ('{"model_type": "unheard_of", "architectures": ["X"]}', "model_type"),
        ("zlib:%%", "cannot be unpacked"),
        ("[", "no JSON"),
    ],
)
def test_a_model_whose_sizes_are_not_known_is_not_guessed_at(config: str, said: str) -> None:
    world = World(hopper())
    world.facts = replace(facts_of(LLAMA_70B), config=config)
    world.see(asked())
    status, reason, message = world.condition("Accepted")
    assert (status, reason) == ("False", "NoPlanPossible")
    assert said in message
    # With its shape given the same model is served: nothing of it needs to be known.
    world.see(asked(gpu={"product": H100}, parallelism={"tensor": 8, "pipeline": 1}))
    assert world.condition("Accepted")[0] == "True"
    assert world.status.plan.per_gpu == []  # type: ignore[union-attr]


# Shapes that are given

GIVEN = {"gpu": {"product": H100}, "parallelism": {"tensor": 8, "pipeline": 2}}


def test_a_given_shape_shows_its_memory_too() -> None:
    world = World(hopper())
    plan = world.see(asked(**GIVEN, workload={"inputLen": 1000, "outputLen": 24})).plan
    assert plan is not None
    assert plan.chosen == []
    assert [stage.layers for stage in plan.per_gpu] == [40, 40]
    assert all(8 < stage.weights_gib < 9 for stage in plan.per_gpu)
    assert "spec's own" in plan.reasons[0]
    assert "requests of 1024 tokens" in plan.reasons[1]


# Two H100 hold the weights of 70B in 16 bits, and by estimate not one long request beside them.
TIGHT = {
    "gpu": {"product": H100},
    "parallelism": {"tensor": 2, "pipeline": 1},
    "engine": {"limits": {"maxSeqLen": 131072, "maxInputLen": 4096}},
}
# One does not even hold the weights.
HEAVY = {"gpu": {"product": H100}, "parallelism": {"tensor": 1, "pipeline": 1}}


def test_a_given_shape_that_does_not_fit_by_estimate_is_warned_of() -> None:
    world = World(hopper())
    plan = world.see(asked(**TIGHT)).plan
    assert plan is not None
    status, reason, message = world.condition("Accepted")
    assert (status, reason) == ("True", "AcceptedWithWarning")
    assert message == plan.reasons[-1]
    assert message.startswith("warning: by estimate it does not fit: tensor 2 × pipeline 1")
    assert "one sequence of maxSeqLen 131072" in message
    shorter = int(message.split("a maxSeqLen of at most ")[1].split(",")[0])
    fitting = {**TIGHT["engine"]["limits"], "maxSeqLen": shorter}
    world.see(asked(**{**TIGHT, "engine": {"limits": fitting}}))
    assert world.condition("Accepted")[:2] == ("True", "Accepted"), "what is offered fits"
    world.see(asked(**GIVEN))
    assert world.condition("Accepted")[:2] == ("True", "Accepted")


def test_a_share_of_memory_that_leaves_too_little_to_start_is_warned_of() -> None:
    world = World(hopper())
    share = {"runtime": "VLLM", "limits": {"gpuMemoryFraction": 0.995, "maxSeqLen": 4096}}
    plan = world.see(asked(**{**GIVEN, "engine": share})).plan
    assert plan is not None
    assert world.condition("Accepted")[:2] == ("True", "AcceptedWithWarning")
    safer = float(plan.reasons[-1].split("a memory fraction of ")[1].split()[0])
    assert safer < 0.995
    share["limits"] |= {"gpuMemoryFraction": safer - 0.01}
    world.see(asked(**{**GIVEN, "engine": share}))
    assert world.condition("Accepted")[:2] == ("True", "Accepted")


def test_where_constants_are_measured_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_shape, "measured", lambda _engine: True)
    world = World(hopper())
    world.see(asked(**TIGHT))
    status, reason, message = world.condition("Accepted")
    assert (status, reason) == ("False", "DoesNotFit")
    assert "79.2 GiB" in message
    assert "the nearest shape that fits is tensor 4, pipeline 1" in message
    world.see(asked(**GIVEN))
    assert world.condition("Accepted")[0] == "True"


def test_weights_alone_larger_than_the_gpu_are_refused_whatever_the_constants() -> None:
    assert not given_shape.measured(asked(**HEAVY).engine)
    world = World(hopper())
    world.see(asked(**HEAVY))
    status, reason, message = world.condition("Accepted")
    assert (status, reason) == ("False", "DoesNotFit")
    assert world.condition("Stalled")[:2] == ("True", "DoesNotFit")
    assert "the weights alone are 131.4 GiB on a GPU" in message
    assert "a GPU has 79.2 GiB in all" in message
    assert "the nearest shape that fits is tensor 2, pipeline 1 (65.7 GiB of weights" in message
    assert not any(isinstance(item, MakeRevision) for item in world.decision.intents)


def test_the_shape_that_is_offered_is_accepted_and_fits() -> None:
    for heavy in (
        {"parallelism": {"tensor": 1, "pipeline": 2}},
        {"parallelism": {"tensor": 2, "pipeline": 1}},
        {"parallelism": {"tensor": 8, "pipeline": 1}},
        {"parallelism": {"tensor": 4, "pipeline": 1}, "quantization": {"weights": "FP8"}},
    ):
        spec = {"model": {"uri": LLAMA_405B}, "gpu": {"product": H100}, **heavy}
        world = World(hopper())
        world.see(asked(**spec))
        status, reason, message = world.condition("Accepted")
        assert (status, reason) == ("False", "DoesNotFit")
        found = re.search(r"fits is tensor (\d+), pipeline (\d+) ", message)
        assert found is not None, message
        offered = {"tensor": int(found[1]), "pipeline": int(found[2])}
        plan = world.see(asked(**{**spec, "parallelism": offered})).plan
        assert world.condition("Accepted")[:2] == ("True", "Accepted"), offered
        assert plan is not None
        assert plan.kv_tokens > 8192


def test_a_gpu_whose_memory_is_only_guessed_refuses_nothing() -> None:
    unheard_of = [gpu_node("u", 8, product="Acme-9000", inventory={"compute": (9, 0)})]
    spec = asked(**{**HEAVY, "gpu": {"product": "Acme-9000"}})
    world = World(unheard_of)
    world.see(spec)
    assert world.condition("Accepted")[:2] == ("True", "AcceptedWithWarning")
    # A label tells what the board has.
    world = World([replace(unheard_of[0], gpu=replace(unheard_of[0].gpu, memory_mib=81559))])
    world.see(spec)
    assert world.condition("Accepted")[:2] == ("False", "DoesNotFit")


def test_what_already_runs_is_not_refused_later() -> None:
    world = World([gpu_node("u", 8, product="Acme-9000", inventory={"compute": (9, 0)})])
    spec = asked(**{**HEAVY, "gpu": {"product": "Acme-9000"}})
    world.see(spec)
    first = world.target
    world.nodes = [replace(node, gpu=replace(node.gpu, memory_mib=81559)) for node in world.nodes]
    world.see(spec)
    assert world.condition("Accepted")[0] == "True"
    assert world.target.name == first.name


def block_wise(block: list[int] | None) -> ModelFacts:
    """DeepSeek-V3's kind of checkpoint, small: experts of 1,536 as Qwen3-235B has them."""
    config = dict(catalogue_config("Qwen/Qwen3-235B-A22B-FP8"))
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": block}
    facts = facts_of("hf://Qwen/Qwen3-235B-A22B-FP8")
    return replace(facts, config=json.dumps(config))


def quantized(section: Mapping[str, Any]) -> ModelFacts:
    """The 70B model as somebody quantized it."""
    config = {**catalogue_config("meta-llama/Llama-3.3-70B-Instruct")}
    config["quantization_config"] = dict(section)
    facts = facts_of(LLAMA_70B)
    return replace(facts, quantization=section["quant_method"], config=json.dumps(config))


@pytest.mark.parametrize("tensor", [4, 8])
def test_a_given_shape_that_tears_the_checkpoints_blocks_is_refused(tensor: int) -> None:
    spec = asked(
        model={"uri": "hf://Qwen/Qwen3-235B-A22B-FP8"},
        gpu={"product": H200},
        parallelism={"tensor": tensor, "pipeline": 1},
        engine={"backend": "PyTorch"},
    )
    world = World(hopper(2, H200))
    world.facts = block_wise([128, 128])
    world.see(spec)
    status, reason, message = world.condition("Accepted")
    if tensor == 4:
        assert (status, reason) == ("True", "Accepted")
        return
    assert (status, reason) == ("False", "QuantizationBlockSplit")
    assert "192 of mlp.experts.gate_proj's 1536" in message
    assert "use tensor 4" in message
    # Scales of whole tensors tear nowhere; TensorRT-LLM does not read such checkpoints.
    world.facts = block_wise(None)
    other = {"engine": {"runtime": "VLLM"}}
    world.see(asked(**{**spec.model_dump(by_alias=True, exclude_none=True), **other}))
    assert world.condition("Accepted")[0] == "True"


def test_a_checkpoint_is_held_against_the_gpu_though_no_precision_is_asked_for() -> None:
    """A given shape: after the fetch, and before anything runs."""
    spec = asked(
        engine={"runtime": "SGLang"},
        gpu={"product": A100},
        parallelism={"tensor": 2, "pipeline": 1},
    )
    world = World([*ampere(), *hopper()])
    section = {"quant_method": "modelopt", "quant_algo": "FP8"}
    world.facts = quantized(section)
    world.see(spec)
    status, reason, message = world.condition("Accepted")
    assert (status, reason) == ("False", "PrecisionNotSupported")
    assert "the checkpoint is quantized as modelopt FP8, which SGLang 0.5.23 runs with" in message
    assert f"{A100} has 8.0" in message


def test_a_chosen_plan_takes_gpus_that_compute_with_the_checkpoint() -> None:
    world = World([*ampere(4), *hopper()])
    world.facts = quantized({"quant_method": "modelopt", "quant_algo": "FP8"})
    world.see(asked(engine={"runtime": "SGLang"}))
    assert world.condition("Accepted")[:2] == ("True", "Accepted")
    assert world.target.resolved.spec.gpu.product == H100
    alone = World(ampere(4))
    alone.facts = world.facts
    alone.see(asked(engine={"runtime": "SGLang"}))
    assert alone.condition("Accepted")[1] == "NoPlanPossible"


def test_a_chosen_plan_leaves_blocks_whole() -> None:
    world = World(hopper(2, H200))
    world.facts = block_wise([128, 128])
    spec = {
        "model": {"uri": "hf://Qwen/Qwen3-235B-A22B-FP8"},
        "engine": {"backend": "PyTorch"},
    }
    cut = world.see(asked(**spec, parallelism={"expert": 1, "attentionData": 1})).plan
    assert cut is not None
    assert (cut.tensor, cut.expert) == (4, None)
    # Experts that stay whole are torn by no number of ranks.
    whole = world.see(asked(**spec)).plan
    assert whole is not None
    assert (whole.tensor, whole.expert, whole.attention_data) == (8, 8, 8)
    assert world.target.resolved.spec.parallelism.expert_groups == 8


# Stages apart


def test_spread_is_a_constraint_of_the_plan() -> None:
    pcie = [
        gpu_node(f"l{number}", 8, product=L40S, nvlink=0, inventory={"compute": (8, 9)})
        for number in range(4)
    ]
    spec = {"parallelism": {"tensor": 2, "pipeline": 4}, "quantization": {"weights": "Auto"}}
    for stages in ("Auto", "Pack"):
        world = World(pcie[:1])
        world.see(asked(**spec, placement={"pipelineStages": stages}))
        assert world.condition("Accepted")[0] == "True"
        assert world.target.resolved.spec.placement.pipeline_stages is StagePlacement.PACK
    spread = asked(**spec, placement={"pipelineStages": "Spread"})
    world = World(pcie[:3])
    world.see(spread)
    status, reason, message = world.condition("Accepted")
    assert (status, reason) == ("False", "NoPlanPossible")
    assert "pipelineStages Spread with pipeline 4 needs as many nodes" in message
    assert f"{L40S} has 3" in message
    world.nodes = pcie
    world.see(spread)
    assert world.condition("Accepted")[0] == "True"
    assert world.target.resolved.spec.placement.pipeline_stages is StagePlacement.SPREAD


def test_spread_or_not_is_another_question_only_where_it_bars_something() -> None:
    world = World(hopper())
    world.see(asked())
    first = world.target
    world.see(asked(placement={"pipelineStages": "Spread"}))
    assert headline_of(world.target.resolved.spec) == headline_of(first.resolved.spec)


# What is to be done before


def test_what_the_nodes_lack_for_a_step_is_warned_of() -> None:
    tight = [
        gpu_node(f"l{n}", 2, product=L40S, nvlink=0, inventory={"compute": (8, 9)}, memory=96)
        for n in range(8)
    ]
    world = World(tight)
    plan = world.see(asked(quantization={"weights": "FP8", "kvCache": "None"})).plan
    assert plan is not None
    assert any(
        reason.startswith("warning: Calibrate takes 4 GPUs of one node, the largest has 2")
        for reason in plan.reasons
    )
    assert world.condition("Accepted")[1] == "AcceptedWithWarning"


def test_a_given_shape_that_the_model_cannot_have_is_refused_in_the_runtimes_words() -> None:
    world = World(hopper())
    world.see(asked(gpu={"product": H100}, parallelism={"tensor": 3, "pipeline": 1}))
    assert world.condition("Accepted")[1] == "HeadsNotDivisible"


@pytest.mark.parametrize(
    "uri",
    [
        LLAMA_70B,
        "hf://mistralai/Mixtral-8x7B-Instruct-v0.1",
        "hf://google/gemma-2-9b-it",
        "hf://Qwen/Qwen3-235B-A22B-FP8",
        "hf://sandbox/Llama-3.1-70B-Instruct-GPTQ",
    ],
)
def test_no_shape_that_somebody_gives_ends_a_pass(uri: str) -> None:
    facts = facts_of(uri)
    for tensor in range(1, 17):
        for pipeline in (1, 2, 3, 64, 256):
            for weights in WeightPrecision:
                whole = asked(model={"uri": uri}).filled(
                    product="NVIDIA-Unheard-Of", tensor=tensor, pipeline=pipeline, weights=weights
                )
                for gpu in (DriverMemory(10**10), DriverMemory(10**10, "a guess")):
                    found = given_shape.given_room(asked_of(whole), whole, facts, gpu, domain=8)
                    assert isinstance(found, Planned | Refusal)


def test_constants_that_stand_in_for_a_measurement_refuse_nothing() -> None:
    assert not given_shape.measured(asked().engine)


# Specs and revisions of earlier versions

# SHA-256 of `hashed_spec` before any field could be left open: no revision may get another name.
DIGESTS = {
    "llama-405b-fp8-tp8": "9921c83c01d8e9b8fd7c66aa4d877bdba6c352ecdaf2a7ec100df8400ac1294a",
    "llama-70b-tp8-pp2": "0ed8af3d96f6d73b423c3de9c065854a5ab28380cf45e8bedc0844d6445c763f",
    "llama-8b-pytorch": "1e9a8a2967f7af7d5cf0b61d4e6ff16b75089a722dcd398840b2f47883d6891d",
}


@pytest.mark.parametrize("name", DIGESTS)
def test_a_spec_that_gives_its_shape_is_the_wish_that_it_always_was(name: str) -> None:
    spec, _ = specs.EXAMPLES[name]
    assert spec_digest(spec) == DIGESTS[name]
    stored = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert asked_digest(AskedSpec.read(stored)) == DIGESTS[name]
    assert asked_digest(asked_of(spec)) == DIGESTS[name]
    # A workload beside a given shape is of class NONE.
    assert asked_digest(AskedSpec.read({**stored, "workload": {"concurrency": 9}})) == DIGESTS[name]


@pytest.mark.parametrize("name", DIGESTS)
def test_a_revision_without_a_plan_is_written_and_read_as_before(name: str) -> None:
    spec, facts = specs.EXAMPLES[name]
    resolved = specs.resolved(spec, facts)
    data = dump(resolved)
    assert set(data) == {
        *("version", "spec", "claimUID", "image", "commit", "facts", "artifacts", "serve"),
        *("proof", "levels", "fabric", "restartedAt", "reasons"),
    }
    assert "config" not in data["facts"]
    stored = json.loads(json.dumps(data))
    view = RevisionView("llama-1", "uid", 1, 1, "owner", text=json.dumps(stored))
    again = read(view)
    assert again.resolved == resolved
    assert again.wish == again.pinned


def test_a_planned_revision_comes_back_whole() -> None:
    world = World(hopper())
    world.see(asked(workload={"objective": "Latency"}))
    made = world.revisions[0]
    assert made.resolved.asked == asked(workload={"objective": "Latency"})
    assert made.wish != made.pinned
    assert made.resolved.chosen is not None
    assert made.resolved.room is not None
    assert made.resolved.room.kv_tokens > 0


def test_words_of_the_spec_and_of_the_planner_are_the_same() -> None:
    assert {*AskedWeights} == {"Auto", *WeightPrecision}
    assert {*AskedKVCache} == {"Auto", *KVPrecision}
    assert {*Objective} == {*SizingObjective}


@pytest.mark.parametrize(
    ("limits", "workload", "expected"),
    [
        ({}, None, (2048, 512)),
        ({"maxSeqLen": 1024, "maxInputLen": 1024}, None, (820, 204)),
        ({"maxSeqLen": 1, "maxInputLen": 1, "maxNumTokens": 64}, None, (1, 1)),
        ({"maxInputLen": 100}, None, (100, 512)),
        ({}, {"inputLen": 4000}, (4000, 512)),
        ({"maxSeqLen": 8192}, {"outputLen": 8000}, (192, 8000)),
    ],
)
def test_lengths_that_are_left_out_fit_the_engine(
    limits: dict[str, int], workload: dict[str, int] | None, expected: tuple[int, int]
) -> None:
    load = workload_of(asked(engine={"limits": limits}, workload=workload))
    assert (load.input_len, load.output_len) == expected


@pytest.mark.parametrize("objective", [*Objective])
def test_every_objective_gets_a_plan_that_passes_all_checks(objective: Objective) -> None:
    world = World([*hopper(), *ampere()])
    world.see(asked(workload={"objective": objective.value}))
    assert world.condition("Accepted")[0] == "True"
    assert isinstance(world.target.resolved.spec, LLMDeploymentSpec)
