"""Every check a spec must pass before anything is made: what passes, what is refused, the words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError
from tests.golden import specs
from tests.support.fleet import gpu_node

from shardwright.api.asked import AskedSpec, asked_of
from shardwright.api.settings import FabricProfile, PoolSettings, Settings
from shardwright.api.status import LLMDeploymentStatus
from shardwright.observe.world import ClaimView, DeploymentView, NodeView, Sharing
from shardwright.plan import checks
from shardwright.plan.checks import CHECKS, NAME_LIMIT, accept
from shardwright.plan.revisions import Revision
from shardwright.plan.situation import Situation

H100, A100 = specs.H100, specs.A100
SHARED_CLAIM = ClaimView("llm", "models", "claim-uid", bound=True, access_modes=("ReadWriteMany",))
NODES = (gpu_node("a", 8), gpu_node("b", 8))


def claim(*modes: str, **more: Any) -> ClaimView:
    return replace(SHARED_CLAIM, access_modes=modes, **more)


def situation(
    *,
    name: str = "llama",
    nodes: tuple[NodeView, ...] = NODES,
    claims: dict[str, ClaimView] | None = None,
    secrets: tuple[str, ...] = (),
    **settings: Any,
) -> Situation:
    """A cluster with two nodes of eight H100 and a shared claim, but for what is given."""
    return Situation(
        now=1000.0,
        jitter=0.0,
        settings=Settings(**settings),
        deployment=DeploymentView("llm", name, "uid", generation=1, resource_version=1),
        spec=None,
        spec_error="",
        spec_digest="",
        status=LLMDeploymentStatus(),
        claims={"models": SHARED_CLAIM} if claims is None else claims,
        missing_secrets=secrets,
        revisions=(),
        pods=(),
        jobs=(),
        job_pods={},
        records={},
        nodes={node.name: node for node in nodes},
    )


def split(tensor: int, pipeline: int = 1) -> dict[str, Any]:
    return {"parallelism": {"tensor": tensor, "pipeline": pipeline}}


def pool(gpus: int = 8, product: str = H100, **more: Any) -> list[PoolSettings]:
    return [PoolSettings(name="burst", product=product, gpus_per_node=gpus, max_nodes=4, **more)]


MIG = gpu_node("mig", 56, sharing=Sharing.MIG)
TIMED = gpu_node("timed", 32, sharing=Sharing.SHARED)
BROKEN = gpu_node("broken", 8, sharing=Sharing.INVALID)
ISLANDS = gpu_node("islands", 8, nvlink=4)
AMPERE = gpu_node("ampere", 8, product=A100, inventory={"compute": (8, 0)})
FP8 = {"gpu": {"product": A100}, "quantization": {"weights": "FP8"}}
PACKED = {"placement": {"pipelineStages": "Pack"}}

# (check, what the situation has, what the spec asks, the reason or "", parts of the message)
ROWS: list[tuple[str, dict[str, Any], dict[str, Any], str, tuple[str, ...]]] = [
    ("name_fits", {"name": "a" * NAME_LIMIT}, {}, "", ()),
    (
        "name_fits",
        {"name": "a" * (NAME_LIMIT + 1)},
        {},
        "NameTooLong",
        ("metadata.name aaaa", "41 characters", "at most 40", "choose a shorter name"),
    ),
    ("product_exists", {}, {}, "", ()),
    ("product_exists", {"nodes": (), "node_pools": pool()}, {}, "", ()),
    (
        "product_exists",
        {},
        {"gpu": {"product": "NVIDIA-H100-80GB-HBM2"}},
        "GPUProductNotFound",
        ("spec.gpu.product NVIDIA-H100-80GB-HBM2", f"Did you mean {H100}?", "8 GPUs on 2 nodes"),
    ),
    (
        "product_exists",
        {"nodes": ()},
        {},
        "GPUProductNotFound",
        ("no node and no node pool has it", "no GPUs whose product is known"),
    ),
    (
        "product_exists",
        {"nodes": (gpu_node("bare", 8, product=""),)},
        {},
        "GPUProductNotFound",
        ("bare", "install GPU Feature Discovery"),
    ),
    ("gpus_whole", {}, split(8), "", ()),
    ("gpus_whole", {"nodes": (MIG,)}, split(1, 2), "", ()),
    ("gpus_whole", {"nodes": (TIMED,)}, split(1), "", ()),
    # Nodes with whole GPUs of the same name beside: the placer passes the sliced ones over.
    ("gpus_whole", {"nodes": (*NODES, MIG, TIMED)}, split(8), "", ()),
    ("gpus_whole", {"nodes": (MIG,), "node_pools": pool()}, split(8), "", ()),
    (
        "gpus_whole",
        {"nodes": (MIG,)},
        split(2),
        "GPUNotExclusive",
        ("spec.parallelism.tensor 2", H100, "MIG slices", "no peer-to-peer", "tensor 1"),
    ),
    (
        "gpus_whole",
        {"nodes": (TIMED,)},
        split(4, 2),
        "GPUNotExclusive",
        ("spec.parallelism.tensor 4", "time-shared", "tensor 1"),
    ),
    (
        "gpus_whole",
        {"nodes": (BROKEN,)},
        split(1),
        "GPUNotExclusive",
        ("invalid MIG configuration",),
    ),
    ("tensor_in_domain", {}, split(8, 2), "", ()),
    ("tensor_in_domain", {}, split(8, 200), "", ()),  # how many stages find room is no refusal
    ("tensor_in_domain", {"node_pools": pool(16)}, split(16), "", ()),
    # A GPU that is ill, or a cordon, is no property of the hardware.
    ("tensor_in_domain", {"nodes": (gpu_node("ill", 8, healthy=7),)}, split(8), "", ()),
    ("tensor_in_domain", {"nodes": (gpu_node("shut", 8, unschedulable=True),)}, split(8), "", ()),
    (
        "tensor_in_domain",
        {},
        split(16),
        "TensorParallelExceedsNVLinkDomain",
        ("spec.parallelism.tensor 16 (pipeline 1)", "8 GPUs", "tensor: 8, pipeline: 2"),
    ),
    (
        "tensor_in_domain",
        {},
        split(12, 2),
        "TensorParallelExceedsNVLinkDomain",
        ("tensor 12 (pipeline 2)", "TP=8 × PP=3", "the same 24 GPUs", "stages on 3 nodes"),
    ),
    (
        "tensor_in_domain",
        {"nodes": (ISLANDS,)},
        split(8),
        "TensorParallelExceedsNVLinkDomain",
        ("4 GPUs", "TP=4 × PP=2"),
    ),
    (
        "tensor_in_domain",
        {"node_pools": pool(16, nvlink_size=8)},
        split(16),
        "TensorParallelExceedsNVLinkDomain",
        ("8 GPUs", "TP=8 × PP=2"),
    ),
    ("engine_fits", {}, {"quantization": {"weights": "FP8"}}, "", ()),
    # Nothing tells what an unknown product computes with: the proof will.
    ("engine_fits", {"nodes": (gpu_node("odd", 8, product=A100),)}, FP8, "", ()),
    (
        "engine_fits",
        {"nodes": (AMPERE,)},
        FP8,
        "PrecisionNotSupported",
        ("quantization.weights FP8", A100, "8.9 or higher", "has 8.0", "INT4AWQ"),
    ),
    (
        "engine_fits",
        {},
        {"engine": {"version": "1.3.0", "backend": "TensorRT"}},
        "BuilderNotAvailable",
        ("engine.version 1.3.0", "up to TensorRTLLM 1.2", "backend PyTorch", "1.2.1"),
    ),
    (
        "engine_fits",
        {},
        {"engine": {"config": {"max_beams": 4}}},
        "UnknownEngineConfig",
        ("engine.config.max_beams", "1.2.1"),
    ),
    ("image_known", {}, {}, "", ()),
    ("image_known", {}, {"engine": {"version": "1.2.9", "image": "example.com/t:1"}}, "", ()),
    (
        "image_known",
        {"images": {"TensorRTLLM/1.2.9": "example.com/t:1"}},
        {"engine": {"version": "1.2.9"}},
        "",
        (),
    ),
    (
        "image_known",
        {},
        {"engine": {"version": "1.2.9"}},
        "ImageUnknown",
        ("spec.engine.version 1.2.9", "TensorRTLLM 1.2.9", "spec.engine.image"),
    ),
    ("gate_has_tool", {}, {}, "", ()),
    ("gate_has_tool", {}, {"quantization": {"accuracy": {"task": "mmlu", "maxDrop": 1}}}, "", ()),
    (
        "gate_has_tool",
        {"evaluation_image": "registry.example.com/lm-eval:1"},
        {
            **split(2, 2),
            "quantization": {"accuracy": {"task": "gsm8k", "minScore": 50}},
        },
        "",
        (),
    ),
    (
        "gate_has_tool",
        {},
        {
            **split(2, 2),
            "quantization": {"accuracy": {"task": "gsm8k", "minScore": 50}},
        },
        "EvaluationImageUnknown",
        ("quantization.accuracy.task gsm8k", "pipeline 2", "evaluationImage", "administrator"),
    ),
    (
        "gate_has_tool",
        {},
        {
            "quantization": {
                "accuracy": {"task": "perplexity", "dataset": "t", "maxPerplexity": 9}
            },
        },
        "AccuracyTaskNotSupported",
        ("task perplexity", "runtime TensorRTLLM", "no log probabilities", "VLLM or SGLang"),
    ),
    ("fabric_known", {}, {}, "", ()),
    (
        "fabric_known",
        {"fabric_profiles": {"ib": FabricProfile()}},
        {"pod": {"fabricProfile": "ib"}},
        "",
        (),
    ),
    (
        "fabric_known",
        {"fabric_profiles": {"roce": FabricProfile(), "ib": FabricProfile()}},
        {"pod": {"fabricProfile": "efa"}},
        "FabricProfileNotFound",
        ("spec.pod.fabricProfile efa", "ib, roce", "fabricProfiles"),
    ),
    ("claim_exists", {}, {}, "", ()),
    (
        "claim_exists",
        {"claims": {}},
        {},
        "ClaimNotFound",
        ("spec.storage.claimName models", "namespace llm", "ReadWriteMany"),
    ),
    (
        "claim_exists",
        {"claims": {"models": claim("ReadWriteMany", deleting=True)}},
        {},
        "ClaimNotFound",
        ("spec.storage.claimName models", "being deleted", "create it anew"),
    ),
    ("source_exists", {}, {}, "", ()),
    ("source_exists", {}, {"model": {"uri": "pvc://models/llama"}}, "", ()),
    (
        "source_exists",
        {},
        {"model": {"uri": "pvc://weights/llama"}},
        "ClaimNotFound",
        ("spec.model.uri pvc://weights/llama", "weights", "namespace llm"),
    ),
    ("storage_shared", {}, split(8, 2), "", ()),
    ("storage_shared", {"claims": {"models": claim("ReadWriteOnce")}}, split(8), "", ()),
    (
        "storage_shared",
        {"claims": {"models": claim("ReadWriteOnce")}},
        {**split(4, 2), **PACKED},
        "",
        (),
    ),
    (
        "storage_shared",
        {"claims": {"models": claim("ReadWriteOnce")}},
        {**split(4), "replicas": 2},
        "",
        (),
    ),
    (
        "storage_shared",
        {"claims": {"models": claim("ReadWriteOnce")}},
        split(4, 2),
        "StorageNotShared",
        ("spec.storage.claimName models", "ReadWriteOnce", "2 pipeline stages", "ReadWriteMany"),
    ),
    (
        "storage_shared",
        {"claims": {"models": claim("ReadWriteOnce")}},
        {**split(8), "replicas": 2},
        "StorageNotShared",
        ("it takes 16 GPUs", "one node has 8"),
    ),
    (
        "storage_shared",
        {"claims": {"models": claim("ReadWriteOnce")}},
        {**split(8, 2), **PACKED},
        "StorageNotShared",
        ("it takes 16 GPUs", "one node has 8"),
    ),
    (
        "storage_shared",
        {"claims": {"models": claim("ReadWriteOncePod")}},
        split(1),
        "StorageNotShared",
        ("ReadWriteOncePod", "ReadWriteMany"),
    ),
    (
        "storage_shared",
        {"claims": {"models": claim("ReadOnlyMany")}},
        split(8, 2),
        "StorageNotShared",
        ("ReadOnlyMany", "ReadWriteMany"),
    ),
    ("secrets_exist", {}, {"model": {"uri": "hf://o/m", "secretRef": {"name": "hf"}}}, "", ()),
    (
        "secrets_exist",
        {"secrets": ("hf",)},
        {"model": {"uri": "hf://o/m", "secretRef": {"name": "hf"}}},
        "SecretNotFound",
        ("spec.model.secretRef", "Secret hf", "namespace llm", "create it"),
    ),
    (
        "secrets_exist",
        {"secrets": ("registry",)},
        {"pod": {"imagePullSecrets": [{"name": "registry"}]}},
        "SecretNotFound",
        ("spec.pod.imagePullSecrets", "Secret registry"),
    ),
]


def spec_of(**fields: Any) -> AskedSpec:
    """A spec with nothing open, by its top-level fields."""
    return asked_of(specs.spec(**fields))


def open_spec(**fields: Any) -> AskedSpec:
    """A spec as it is written, with no more than model and claim but for what is given."""
    raw = {"model": {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct"}}
    return AskedSpec.read({**raw, "storage": {"claimName": "models"}, **fields})


def asked(seen: Situation, spec: Any) -> checks.Asked:
    """What a check looks at, by the way that `accept` takes."""
    caught: list[checks.Asked] = []

    def look(one: checks.Asked) -> None:
        caught.append(one)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "CHECKS", (look,))
        accept(seen, spec)
    return caught[0]


@pytest.mark.parametrize(
    ("check", "has", "asks", "reason", "parts"),
    ROWS,
    ids=[f"{row[0]}-{number}" for number, row in enumerate(ROWS)],
)
def test_each_check_passes_or_refuses_in_words(
    check: str,
    has: dict[str, Any],
    asks: dict[str, Any],
    reason: str,
    parts: tuple[str, ...],
) -> None:
    found = getattr(checks, check)(asked(situation(**has), spec_of(**asks)))
    assert (found.reason if found else "") == reason
    for part in parts:
        assert part in found.message


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if row[0] != "image_known" and row[3]],
    ids=lambda row: f"{row[0]}-{row[3]}",
)
def test_a_refusal_of_one_check_is_what_the_user_reads(row: Any) -> None:
    _, has, asks, reason, parts = row
    found = accept(situation(**has), spec_of(**asks))
    assert found is not None
    assert found.reason == reason
    for part in parts:
        assert part in found.message


def test_every_check_has_a_row_that_passes_and_one_that_refuses() -> None:
    names = {check.__name__ for check in CHECKS}
    assert {row[0] for row in ROWS if not row[3]} == names
    assert {row[0] for row in ROWS if row[3]} == names


def test_a_spec_that_fits_is_accepted() -> None:
    assert accept(situation(), spec_of(**split(8, 2))) is None


def test_reasons_are_stable_words() -> None:
    assert all(row[3].isalnum() for row in ROWS if row[3])


def test_of_several_the_first_in_the_tuple_speaks() -> None:
    everything = spec_of(
        **split(16),
        pod={"fabricProfile": "efa"},
        engine={"config": {"max_beams": 4}},
        storage={"claimName": "nowhere"},
    )
    seen = situation(secrets=("hf",))
    assert [accept(seen, everything)] == [checks.tensor_in_domain(asked(seen, everything))]
    order = [check.__name__ for check in CHECKS]
    # What the hardware cannot is told before what an administrator can create in a minute.
    assert order.index("tensor_in_domain") < order.index("claim_exists")
    # The storage is judged before any Secret is needed for a download.
    assert order.index("storage_shared") < order.index("secrets_exist")


def test_the_image_that_was_resolved_before_stays_known_when_the_table_forgets_it() -> None:
    spec = spec_of(engine={"version": "1.2.9"})
    table = Settings(images={"TensorRTLLM/1.2.9": "example.com/t:1"})
    before = Revision("llama-1", "uid", 1, specs.resolved(spec.filled(), settings=table))
    assert checks.image_known(asked(situation(), spec)) is not None
    assert checks.image_known(asked(replace(situation(), revisions=(before,)), spec)) is None


# (what the spec leaves open but for this, the reason that is known before any model is, or "")
OPEN: list[tuple[dict[str, Any], str]] = [
    ({}, ""),
    ({"engine": {"build": {"workers": 8}}}, ""),
    ({"gpu": {"product": H100}}, ""),
    ({"gpu": {"product": "NVIDIA-H900"}}, "GPUProductNotFound"),
    ({"parallelism": {"tensor": 16}}, ""),  # of which product is not known yet
    (
        {"parallelism": {"tensor": 16}, "gpu": {"product": H100}},
        "TensorParallelExceedsNVLinkDomain",
    ),
    ({"parallelism": {"pipeline": 300}}, "not read"),
    # Of groups that no power of two is a multiple of, the tensor is still open.
    ({"parallelism": {"expert": 3}, "engine": {"backend": "PyTorch"}}, ""),
    ({"parallelism": {"attentionData": 6, "pipeline": 1}, "engine": {"runtime": "SGLang"}}, ""),
    ({"parallelism": {"expert": 3, "attentionData": 1000}}, "not read"),
    ({"engine": {"config": {"max_beams": 4}}}, "UnknownEngineConfig"),
    ({"engine": {"version": "1.3.0"}}, "BuilderNotAvailable"),
    ({"quantization": {"kvCache": "INT8"}, "engine": {"backend": "PyTorch"}}, "PrecisionNot"),
    ({"pod": {"fabricProfile": "efa"}}, "FabricProfileNotFound"),
    ({"storage": {"claimName": "nowhere"}}, "ClaimNotFound"),
    (
        {
            "parallelism": {"expert": 3},
            "engine": {"runtime": "VLLM"},
            "quantization": {"accuracy": {"task": "mmlu", "minScore": 60}},
        },
        "EvaluationImageUnknown",
    ),
]


@pytest.mark.parametrize(("asks", "reason"), OPEN, ids=[str(row[0])[:60] for row in OPEN])
def test_checks_of_open_fields_wait_for_the_plan_and_the_others_do_not(
    asks: dict[str, Any], reason: str
) -> None:
    if reason == "not read":
        with pytest.raises(ValidationError):
            open_spec(**asks)
        return
    found = accept(situation(), open_spec(**asks))
    assert (found.reason if found else "")[: len(reason) or None] == reason


def test_a_volume_for_one_node_is_no_matter_before_the_shape_is_known() -> None:
    seen = situation(claims={"models": claim("ReadWriteOnce")})
    assert accept(seen, open_spec()) is None
    apart = open_spec().filled(product=H100, tensor=8, pipeline=2)
    found = accept(seen, asked_of(apart))
    assert found is not None
    assert found.reason == "StorageNotShared"
