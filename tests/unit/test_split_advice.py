"""Every way out that a refusal of a split names is one: the split it names is taken."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from tests.golden import specs

from shardwright.api.spec import LLMDeploymentSpec, Runtime
from shardwright.runner.contract import ModelFacts
from shardwright.runtimes.base import Refusal
from shardwright.runtimes.registry import runtime

MODELS = {
    "8 experts": specs.facts(experts=8),
    "12 experts": specs.facts(experts=12),
    "160 experts, 10 layers": specs.facts(experts=160, layers=10, heads=128, kv_heads=128),
    "uneven heads": specs.facts(experts=6, heads=12, kv_heads=4),
    "dense": specs.LLAMA_8B,
}
FIELDS = {
    "tensor": "tensor",
    "pipeline": "pipeline",
    "expert": "expert",
    "attentionData": "attention_data",
}


def asked(name: str, split: dict[str, int], **changes: Any) -> LLMDeploymentSpec:
    engine = {"runtime": name, **({"backend": "PyTorch"} if name == "TensorRTLLM" else {})}
    return specs.spec(engine=engine, parallelism=split, **changes)


def refused(spec: LLMDeploymentSpec, facts: ModelFacts) -> Refusal | None:
    return runtime(spec.engine.runtime).refuse_model(spec, facts)


def fixed(spec: LLMDeploymentSpec, fix: tuple[tuple[str, int | None], ...]) -> LLMDeploymentSpec:
    """The spec after a user did what the refusal says."""
    data = spec.model_dump(by_alias=True, exclude_none=True)
    for path, value in fix:
        section, field = path.split(".")
        data[section].pop(field, None)
        if value is not None:
            data[section][field] = value
    return LLMDeploymentSpec.model_validate(data)


def splits() -> list[dict[str, int]]:
    sizes = product((1, 2, 3, 4, 6, 8, 16), (1, 2, 64), (1, 2, 4, 8, 16), (1, 2, 4, 8, 16))
    return [
        {"tensor": tensor, "pipeline": pipeline, "expert": expert, "attentionData": data}
        for tensor, pipeline, expert, data in sizes
        if tensor % expert == 0 and tensor % data == 0
    ]


@pytest.mark.parametrize("name", ["VLLM", "SGLang", "TensorRTLLM"])
@pytest.mark.parametrize("title", MODELS)
@pytest.mark.parametrize("lora", [False, True])
def test_what_a_refusal_names_is_taken(name: str, title: str, *, lora: bool) -> None:
    facts, refusals = MODELS[title], 0
    for split in splits():
        spec = asked(name, split, **({"lora": {}} if lora else {}))
        found = refused(spec, facts)
        if found is None:
            continue
        refusals += 1
        assert found.fix, found
        again = fixed(spec, found.fix)
        assert refused(again, facts) is None, f"{split}: {found.message}"
        assert again.world_size <= spec.world_size
        for path, value in found.fix:
            words = path if value is None else f"{path} {value}"
            assert words in found.message.split("; ")[-1]
        if "or use engine.runtime" in found.message:
            other = "SGLang" if name == "VLLM" else "VLLM"
            assert found.message.endswith(f", or use engine.runtime {other}")
            there = asked(other, split, **({"lora": {}} if lora else {}))
            assert refused(there, facts) is None
    assert refusals > 10


def test_the_circle_of_vllm() -> None:
    """Uneven experts once led to a number that vLLM does not deal out, and that back again."""
    found = refused(asked("VLLM", {"tensor": 8, "expert": 8}), MODELS["12 experts"])
    assert found == Refusal(
        "ExpertsNotDivisible",
        "parallelism.expert 8 does not divide the model's 12 experts: every rank holds equally "
        "many; leave parallelism.expert out",
        fix=(("parallelism.expert", None),),
    )
    some = refused(asked("VLLM", {"tensor": 8, "expert": 4}), MODELS["12 experts"])
    assert some is not None
    assert some.message == (
        "parallelism.expert 4 with tensor 8: vLLM deals experts out to all ranks of a stage or to "
        "none; leave parallelism.expert out, or use engine.runtime SGLang"
    )


def test_several_fields_change_where_one_is_not_enough() -> None:
    found = refused(asked("VLLM", {"tensor": 3, "pipeline": 64}), specs.LLAMA_8B)
    assert found is not None
    assert found.message == (
        "parallelism.tensor 3 does not divide the model's 32 attention heads; use "
        "parallelism.tensor 2 and parallelism.pipeline 32"
    )


def test_another_runtime_is_named_only_if_it_drafts_so_too() -> None:
    split = {"tensor": 4, "pipeline": 2, "expert": 2}
    plain = refused(asked("VLLM", split), MODELS["8 experts"])
    drafting = refused(asked("VLLM", split, speculative={"method": "NGram"}), MODELS["8 experts"])
    assert plain is not None
    assert drafting is not None
    assert plain.message.endswith(", or use engine.runtime SGLang")
    assert "SGLang" not in drafting.message
    assert runtime(Runtime.SGLANG).refuse_spec(
        asked("SGLang", split, speculative={"method": "NGram"}), (9, 0)
    )
