"""Experts over ranks and attention by data: what is rendered, keyed, planned, and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from tests.golden import specs

from shardwright.api.asked import AskedSpec, asked_of
from shardwright.api.spec import LLMDeploymentSpec
from shardwright.observe.gpus import DriverMemory
from shardwright.plan.given import given_room
from shardwright.plan.question import headline_of, limits_of, shape_of
from shardwright.plan.resolve import Planned
from shardwright.plan.revisions import dump, load, spec_digest
from shardwright.render.pods import group_pods
from shardwright.runner.config_keys import kept_config, pack_config
from shardwright.runner.contract import ModelFacts
from shardwright.runtimes.base import Refusal
from shardwright.runtimes.registry import runtime
from shardwright.sizing.catalogue import catalogue_config
from shardwright.sizing.shape import Shape

SOURCES = yaml.safe_load(
    (Path(__file__).parents[1] / "data" / "support_sources.yaml").read_text(encoding="utf-8")
)
MIXTRAL = specs.facts(
    architecture="MixtralForCausalLM", model_type="mixtral", experts=8, max_positions=32768
)


def asked(backend: str = "PyTorch", **changes: Any) -> LLMDeploymentSpec:
    split = changes.pop("parallelism", {"tensor": 4, "expert": 4})
    return specs.spec(engine={"backend": backend}, parallelism=split, **changes)


def refused(spec: LLMDeploymentSpec, facts: ModelFacts = MIXTRAL) -> Refusal | None:
    engine = runtime(spec.engine.runtime)
    return engine.refuse_spec(spec, (9, 0)) or engine.refuse_model(spec, facts)


def config(spec: LLMDeploymentSpec) -> dict[str, Any]:
    engine = runtime(spec.engine.runtime)
    return dict(engine.serve_config(specs.resolved(spec, MIXTRAL)))


def keys(spec: LLMDeploymentSpec) -> dict[str, str]:
    found = specs.resolved(spec, MIXTRAL)
    return {**{one.step: one.key for one in found.artifacts}, "proof": found.proof_key}


@pytest.mark.parametrize("split", [{"expert": 4}, {"attentionData": 4}, {"expert": 2}, {}])
def test_groups_of_a_stage_take_no_gpus_of_their_own(split: dict[str, int]) -> None:
    spec = asked(parallelism={"tensor": 4, "pipeline": 2, **split})
    assert refused(spec) is None
    found = group_pods(specs.resolved(spec, MIXTRAL), specs.identity(), "runner")
    gpus = [pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] for pod in found]
    assert gpus == ["4", "4"]
    assert spec.world_size == 8


def test_the_converter_deals_experts_out() -> None:
    found = specs.resolved(asked("TensorRT", parallelism={"tensor": 4, "expert": 2}), MIXTRAL)
    argv = " ".join(found.artifacts[1].commands[0].argv)
    assert "--tp_size 4 --pp_size 1 --moe_tp_size 2 --moe_ep_size 2 " in argv
    assert found.artifacts[1].inputs["expert"] == 2
    assert "moe" not in " ".join(found.artifacts[2].commands[0].argv)


def test_the_server_is_told_on_the_other_backend_and_nothing_by_default() -> None:
    both = config(asked(parallelism={"tensor": 4, "expert": 2, "attentionData": 4}))
    assert both["moe_expert_parallel_size"] == 2
    assert both["moe_tensor_parallel_size"] == 2
    assert both["enable_attention_dp"] is True
    plain = config(asked(parallelism={"tensor": 4}))
    assert not {"moe_expert_parallel_size", "enable_attention_dp"} & set(plain)
    assert "moe_expert_parallel_size" not in config(asked("TensorRT"))


@pytest.mark.parametrize("backend", ["TensorRT", "PyTorch"])
def test_a_1_is_the_same_as_nothing(backend: str) -> None:
    plain = {"tensor": 4, "pipeline": 1}
    one = AskedSpec.read(
        {**ASKED, "engine": {"backend": backend}, "parallelism": {**plain, "expert": 1}}
    ).filled()
    two = AskedSpec.read(
        {**ASKED, "engine": {"backend": backend}, "parallelism": {**plain, "attentionData": 1}}
    ).filled()
    none = asked(backend, parallelism=plain)
    assert keys(one) == keys(two) == keys(none)
    assert spec_digest(one) == spec_digest(two) == spec_digest(none)


ASKED: dict[str, Any] = {
    "model": {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct@main"},
    "gpu": {"product": specs.H100},
    "storage": {"claimName": "models"},
}


def test_a_change_makes_exactly_what_depends_on_it_anew() -> None:
    def differ(backend: str, split: dict[str, int]) -> set[str]:
        one = keys(asked(backend, parallelism={"tensor": 4}))
        two = keys(asked(backend, parallelism=split))
        return {name for name in one if one[name] != two[name]}

    assert differ("TensorRT", {"tensor": 4, "expert": 4}) == {"checkpoint", "engine", "proof"}
    assert differ("PyTorch", {"tensor": 4, "expert": 4}) == {"proof"}
    assert differ("PyTorch", {"tensor": 4, "attentionData": 4}) == {"proof"}


def test_a_revision_keeps_it_and_an_older_one_without_it_reads_as_before() -> None:
    found = specs.resolved(asked(parallelism={"tensor": 4, "expert": 4}), MIXTRAL)
    assert load(dump(found)).spec.parallelism.expert_groups == 4
    data = dump(specs.resolved(asked(parallelism={"tensor": 4}), MIXTRAL))
    del data["spec"]["parallelism"]["expert"], data["spec"]["parallelism"]["attentionData"]
    assert load(data).spec.parallelism.expert_groups == 1


REFUSED = {
    "no experts": (asked(), specs.LLAMA_8B, "ExpertsNotDivisible", "experts-of-dense"),
    "uneven experts": (
        asked(parallelism={"tensor": 12, "expert": 6}),
        specs.facts(experts=8, heads=48, kv_heads=12),
        "ExpertsNotDivisible",
        "",
    ),
    "attention of a dense model": (
        asked(parallelism={"tensor": 4, "attentionData": 4}),
        specs.LLAMA_8B,
        "AttentionDataWithoutExperts",
        "attention-data-of-dense",
    ),
    "attention with an engine": (
        asked("TensorRT", parallelism={"tensor": 4, "attentionData": 4}),
        MIXTRAL,
        "AttentionDataNotSupported",
        "trtllm-attention-data-pytorch",
    ),
    "attention in some ranks": (
        asked(parallelism={"tensor": 4, "attentionData": 2}),
        MIXTRAL,
        "AttentionDataNotSupported",
        "trtllm-attention-data-all",
    ),
    "experts by the quantizer": (
        asked("TensorRT", quantization={"weights": "FP8"}),
        MIXTRAL,
        "ExpertsNotSupported",
        "trtllm-quantize-experts",
    ),
    "experts by the quantizer, for its cache": (
        asked("TensorRT", quantization={"kvCache": "FP8"}),
        MIXTRAL,
        "ExpertsNotSupported",
        "trtllm-quantize-experts",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_with_its_source(name: str) -> None:
    spec, facts, reason, source = REFUSED[name]
    found = refused(spec, facts)
    assert found is not None
    assert (found.reason, found.source) == (reason, source)
    assert "parallelism." in found.message
    assert not source or set(SOURCES[source]) == {"says", "where"}


def test_what_can_be_is_not_refused() -> None:
    assert refused(asked()) is None
    assert refused(asked("TensorRT")) is None
    assert refused(asked(quantization={"weights": "FP8"})) is None
    assert refused(asked(parallelism={"tensor": 4, "expert": 4, "attentionData": 4})) is None


def test_attention_by_data_asks_nothing_of_the_number_of_heads() -> None:
    spec = asked(parallelism={"tensor": 8, "expert": 8, "attentionData": 8})
    assert refused(spec, specs.facts(experts=8, heads=12, kv_heads=3)) is None
    plain = refused(asked(parallelism={"tensor": 8}), specs.facts(experts=8, heads=12, kv_heads=3))
    assert plain is not None
    assert plain.reason == "HeadsNotDivisible"


@pytest.mark.parametrize("field", ["expert", "attentionData"])
def test_uneven_groups_are_no_split(field: str) -> None:
    split = {"tensor": 4, "pipeline": 1, field: 3}
    with pytest.raises(ValidationError, match=f"{field} 3 does not divide tensor 4"):
        AskedSpec.read({**ASKED, "parallelism": split})
    with pytest.raises(ValidationError, match="use a divisor of 4"):
        asked(parallelism=split)
    assert AskedSpec.read({**ASKED, "parallelism": {field: 3}}).open


@pytest.mark.parametrize(
    "key", ["enable_attention_dp", "moe_expert_parallel_size", "moe_tensor_parallel_size"]
)
def test_the_runtime_s_own_keys_are_refused_by_the_field_s_name(key: str) -> None:
    spec = specs.spec(engine={"backend": "PyTorch", "config": {key: 2}})
    found = refused(spec)
    assert found is not None
    assert found.reason == "ReservedEngineConfig"
    assert "use parallelism." in found.message


def test_left_out_they_are_open_only_where_the_shape_is() -> None:
    given = AskedSpec.read({**ASKED, "parallelism": {"tensor": 4, "pipeline": 1}})
    assert (limits_of(given, 1).expert, limits_of(given, 1).attention_data) == (1, 1)
    opened = AskedSpec.read({**ASKED, "parallelism": {"tensor": 4}})
    assert (limits_of(opened, 1).expert, limits_of(opened, 1).attention_data) == (None, None)
    fixed = AskedSpec.read({**ASKED, "parallelism": {"expert": 2}})
    assert limits_of(fixed, 1).expert == 2


def test_a_filled_spec_carries_them_and_goes_back_and_forth() -> None:
    opened = AskedSpec.read({**ASKED, "parallelism": {"tensor": 4}})
    whole = opened.filled(pipeline=1, expert=4, attention_data=4)
    assert shape_of(whole) == Shape(4, 1, 4, 4)
    assert asked_of(whole).filled() == whole
    words = "tensor 4 × pipeline 1, experts over 4 ranks, attention in 4 groups on "
    assert headline_of(whole).startswith(words)
    assert opened.filled(pipeline=1).parallelism.expert is None


def test_memory_of_a_given_shape_counts_the_groups() -> None:
    raw = catalogue_config("Mixtral-8x7B")
    facts = specs.facts(
        architecture="MixtralForCausalLM",
        model_type="mixtral",
        experts=8,
        bytes=0,
        config=pack_config(kept_config(raw, {})),
    )

    def weights(split: dict[str, int]) -> int:
        spec = AskedSpec.read({**ASKED, "engine": {"backend": "PyTorch"}, "parallelism": split})
        given = given_room(spec, spec.filled(), facts, DriverMemory(80 * 2**30))
        assert isinstance(given, Planned), given
        assert given.room is not None
        return given.room.stages[0].weights

    plain = weights({"tensor": 4, "pipeline": 1})
    whole = weights({"tensor": 4, "pipeline": 1, "expert": 4})
    copies = weights({"tensor": 4, "pipeline": 1, "expert": 4, "attentionData": 4})
    assert whole == plain
    assert copies > plain + 2 * 10**9
