"""Speculation, expert parallelism and attention by data in vLLM and SGLang."""

from __future__ import annotations

import json
from typing import Any

import pytest
from shardwright_standin import commandline
from tests.golden import specs
from tests.support.matrix import SOURCES
from tests.unit.test_speculative import DRAFT, OWN, drafted

from shardwright.api.spec import LLMDeploymentSpec, SpeculationMethod
from shardwright.observe.world import Record, RecordState
from shardwright.plan.draft_checks import refuse_draft
from shardwright.plan.drafts import draft_folder
from shardwright.plan.resolve import model_key, resolve
from shardwright.resolved import Resolved
from shardwright.runner.contract import STEP_MODEL, Command, ModelFacts
from shardwright.runtimes.base import Refusal
from shardwright.runtimes.registry import runtime

RUNTIMES = ("VLLM", "SGLang")
MIXTRAL = specs.facts(
    architecture="MixtralForCausalLM", model_type="mixtral", experts=8, max_positions=32768
)


def asked(name: str, method: str = "", **changes: Any) -> LLMDeploymentSpec:
    if method:
        source = {} if method in OWN else {"model": {"uri": DRAFT}}
        changes["speculative"] = {"method": method, "maxDraftLen": 4, **source}
    return specs.spec(engine={"runtime": name, **changes.pop("engine", {})}, **changes)


def resolved(spec: LLMDeploymentSpec, facts: ModelFacts = specs.LLAMA_8B) -> Resolved:
    return resolve(
        spec,
        runtime=runtime(spec.engine.runtime),
        settings=specs.SETTINGS,
        claim=specs.CLAIM,
        record=Record(STEP_MODEL, model_key(spec), specs.CLAIM.uid, RecordState.READY, facts=facts),
        facts=facts,
        restarted_at="",
        previous=None,
        drafts=drafted(spec),
    )


def command(spec: LLMDeploymentSpec, facts: ModelFacts = specs.LLAMA_8B) -> Command:
    return runtime(spec.engine.runtime).serve_command(resolved(spec, facts), 0)


def parsed(spec: LLMDeploymentSpec, facts: ModelFacts = specs.LLAMA_8B) -> dict[str, Any]:
    """What the strict parser of the recorded command line reads."""
    made = command(spec, facts)
    words = list(made.argv)[2:] if made.tool == "vllm-serve" else list(made.argv)[3:]
    stages = [word.replace("{stages}", "2").replace("{stage}", "0") for word in words]
    return dict(commandline.parse(made.tool, stages).values)


def refused(spec: LLMDeploymentSpec, facts: ModelFacts = specs.LLAMA_8B) -> Refusal | None:
    engine = runtime(spec.engine.runtime)
    return engine.refuse_spec(spec, (9, 0)) or engine.refuse_model(spec, facts)


def proof(spec: LLMDeploymentSpec, facts: ModelFacts = specs.LLAMA_8B) -> str:
    return resolved(spec, facts).proof_key


VLLM = {
    "DraftModel": {"method": "draft_model", "num_speculative_tokens": 4},
    "Eagle": {"method": "eagle", "num_speculative_tokens": 4},
    "Eagle3": {"method": "eagle3", "num_speculative_tokens": 4},
    "NGram": {"method": "ngram", "num_speculative_tokens": 4},
    "MTP": {"method": "mtp", "num_speculative_tokens": 4},
}
_CHAIN = {"speculative_num_steps": 4, "speculative_eagle_topk": 1}
SGLANG = {
    "DraftModel": {"speculative_algorithm": "STANDALONE", **_CHAIN},
    "Eagle": {"speculative_algorithm": "EAGLE", **_CHAIN},
    "Eagle3": {"speculative_algorithm": "EAGLE3", **_CHAIN},
    "NGram": {"speculative_algorithm": "NGRAM", "speculative_ngram_max_bfs_breadth": 1},
    "MTP": {"speculative_algorithm": "NEXTN", **_CHAIN},
}


@pytest.mark.parametrize("name", RUNTIMES)
@pytest.mark.parametrize("method", [method.value for method in SpeculationMethod])
def test_every_method_is_rendered_or_refused_with_a_source(name: str, method: str) -> None:
    spec = asked(name, method)
    found = refused(spec)
    table = VLLM if name == "VLLM" else SGLANG
    if method not in table:
        assert found is not None
        assert found.reason == "SpeculationNotSupported"
        assert found.source == f"{name.lower()}-speculation-methods"
        assert found.source in SOURCES
        return
    assert found is None
    read, folder = parsed(spec), draft_folder(spec) if method not in OWN else None
    if name == "VLLM":
        own = {} if folder is None else {"model": folder}
        assert read["speculative_config"] == {**VLLM[method], **own}
        return
    assert {key: read[key] for key in SGLANG[method]} == SGLANG[method]
    assert read["speculative_num_draft_tokens"] == 5
    assert read["speculative_draft_model_path"] == folder


@pytest.mark.parametrize("name", RUNTIMES)
def test_without_speculation_no_flag_speaks_of_it(name: str) -> None:
    assert not [word for word in command(asked(name)).argv if "specul" in word]


def test_the_configuration_is_one_word_that_no_placeholder_is_taken_for() -> None:
    argv = command(asked("VLLM", "NGram")).argv
    text = argv[argv.index("--speculative-config") + 1]
    assert json.loads(text)["method"] == "ngram"
    assert " " not in text
    assert not {"{out}", "{scratch}", "{model}", "{stage}"} & {text}


@pytest.mark.parametrize("method", ["DraftModel", "Eagle", "Eagle3", "NGram", "MTP"])
def test_vllm_drafts_over_stages_where_the_model_hands_its_states_on(method: str) -> None:
    """The draft runs on the last stage; Eagle3 alone reads what earlier stages computed."""
    spec = asked("VLLM", method, parallelism={"tensor": 2, "pipeline": 2})
    assert refused(spec) is None
    found = refused(spec, MIXTRAL)
    if method != "Eagle3":
        assert found is None
        return
    assert found is not None
    assert (found.reason, found.source) == ("SpeculationNotSupported", "vllm-eagle3-stages")
    assert found.message == (
        "speculative.method Eagle3 with parallelism.pipeline 2: vLLM 0.33.0 hands "
        "MixtralForCausalLM's hidden states on to no later stage; use one stage, or another method "
        "of DraftModel, Eagle, MTP, NGram"
    )
    assert refused(asked("VLLM", method, parallelism={"tensor": 2}), MIXTRAL) is None


@pytest.mark.parametrize(
    ("method", "fits"), [("DraftModel", False), ("Eagle3", False), ("NGram", True)]
)
def test_a_draft_is_split_as_its_model_is(method: str, fits: bool) -> None:
    draft = specs.facts(heads=12, kv_heads=4)
    spec = asked("VLLM", method, parallelism={"tensor": 8})
    found = refuse_draft(spec, specs.LLAMA_8B, draft)
    assert (found is None) is fits
    if found is not None:
        assert (found.reason, found.source) == ("DraftDoesNotFit", "draft-tensor-ranks")
        assert found.message.endswith(
            "has 12 attention heads, which 8 tensor ranks cannot share evenly, and a draft is "
            "split as its model is; use one whose heads 8 divides, or so few ranks as 6"
        )
    four = asked("VLLM", method, parallelism={"tensor": 8, "attentionData": 2})
    assert refuse_draft(four, specs.LLAMA_8B, draft) is None


NOT_ON_SGLANG = {
    "stages": (
        asked("SGLang", "Eagle3", parallelism={"tensor": 2, "pipeline": 2}),
        "sglang-speculation-stages",
    ),
    "attention by data": (
        asked("SGLang", "NGram", parallelism={"tensor": 2, "attentionData": 2}),
        "sglang-speculation-attention-data",
    ),
    "adapters": (asked("SGLang", "DraftModel", lora={}), "sglang-speculation-lora"),
}


@pytest.mark.parametrize("case", NOT_ON_SGLANG)
def test_what_does_not_go_together_on_sglang_is_refused(case: str) -> None:
    spec, source = NOT_ON_SGLANG[case]
    found = refused(spec)
    assert found is not None
    assert (found.reason, found.source) == ("SpeculationNotSupported", source)
    assert source in SOURCES


def test_what_goes_together_is_not_refused() -> None:
    stages = {"tensor": 2, "pipeline": 2}
    assert refused(asked("SGLang", "Eagle", parallelism=stages)) is None
    assert refused(asked("SGLang", "MTP", parallelism=stages)) is None
    assert refused(asked("SGLang", "NGram", lora={})) is None
    assert refused(asked("VLLM", "Eagle3", parallelism=stages, lora={})) is None


@pytest.mark.parametrize("name", RUNTIMES)
def test_another_draft_or_split_asks_for_a_candidate(name: str) -> None:
    plain = proof(asked(name))
    assert proof(asked(name, parallelism={"tensor": 1})) == plain
    assert len({plain, *(proof(asked(name, method)) for method in VLLM)}) == 1 + len(VLLM)
    split = {"tensor": 4}
    groups = ({}, {"expert": 4}, {"attentionData": 4})
    assert len({proof(asked(name, parallelism=split | one), MIXTRAL) for one in groups}) == 3


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("VLLM", "speculative-config"),
        ("VLLM", "enable-expert-parallel"),
        ("VLLM", "data-parallel-size"),
        ("SGLang", "speculative-algorithm"),
        ("SGLang", "speculative-num-steps"),
        ("SGLang", "ep-size"),
        ("SGLang", "attn-dp-size"),
    ],
)
def test_the_runtime_s_own_flags_are_refused_by_the_field_s_name(name: str, key: str) -> None:
    found = refused(asked(name, engine={"config": {key: 2}}))
    assert found is not None
    assert found.reason == "ReservedEngineConfig"
    assert "speculative" in found.message or "parallelism." in found.message


# Groups.


def test_vllm_counts_its_tensor_ranks_for_each_group() -> None:
    both = parsed(
        asked("VLLM", parallelism={"tensor": 8, "expert": 8, "attentionData": 4}), MIXTRAL
    )
    assert (both["tensor_parallel_size"], both["data_parallel_size"]) == (2, 4)
    assert both["enable_expert_parallel"] is True
    plain = parsed(asked("VLLM", parallelism={"tensor": 8}), MIXTRAL)
    assert (plain["tensor_parallel_size"], plain["data_parallel_size"]) == (8, 1)
    assert not plain["enable_expert_parallel"]


def test_sglang_s_limits_are_those_of_all_groups() -> None:
    both = parsed(
        asked("SGLang", parallelism={"tensor": 8, "expert": 2, "attentionData": 4}), MIXTRAL
    )
    assert (both["tp_size"], both["ep_size"], both["attn_dp_size"]) == (8, 2, 4)
    assert (both["max_running_requests"], both["chunked_prefill_size"]) == (4 * 64, 4 * 8192)
    plain = parsed(asked("SGLang", parallelism={"tensor": 8}), MIXTRAL)
    assert (plain["ep_size"], plain["attn_dp_size"]) == (1, 1)
    assert plain["max_running_requests"] == 64


@pytest.mark.parametrize("name", RUNTIMES)
@pytest.mark.parametrize(
    ("split", "reason"),
    [
        ({"tensor": 4, "expert": 4}, "ExpertsNotDivisible"),
        ({"tensor": 4, "attentionData": 4}, "AttentionDataWithoutExperts"),
    ],
)
def test_a_dense_model_has_no_groups(name: str, split: dict[str, int], reason: str) -> None:
    found = refused(asked(name, parallelism=split))
    assert found is not None
    assert found.reason == reason
    assert found.source in SOURCES


@pytest.mark.parametrize(
    ("split", "reason", "source"),
    [
        ({"tensor": 4, "expert": 2}, "ExpertsNotSupported", "vllm-expert-parallel-size"),
        (
            {"tensor": 4, "pipeline": 2, "attentionData": 4},
            "AttentionDataNotSupported",
            "vllm-data-parallel-nodes",
        ),
    ],
)
def test_groups_that_vllm_does_not_make_are_refused(
    split: dict[str, int], reason: str, source: str
) -> None:
    found = refused(asked("VLLM", parallelism=split), MIXTRAL)
    assert found is not None
    assert (found.reason, found.source) == (reason, source)
    assert source in SOURCES
    assert refused(asked("SGLang", parallelism=split), MIXTRAL) is None


def test_sglang_loads_no_adapter_into_several_groups() -> None:
    groups = {"tensor": 4, "attentionData": 4}
    found = refused(asked("SGLang", parallelism=groups, lora={}), MIXTRAL)
    assert found is not None
    assert (found.reason, found.source) == ("AttentionDataNotSupported", "sglang-lora-groups")
    assert found.source in SOURCES
    assert refused(asked("SGLang", parallelism={"tensor": 4}, lora={}), MIXTRAL) is None
    assert refused(asked("VLLM", parallelism=groups, lora={}), MIXTRAL) is None


def test_vllm_has_one_http_server_where_adapters_are_loaded_into_groups() -> None:
    groups = {"tensor": 4, "attentionData": 2}
    assert parsed(asked("VLLM", parallelism=groups, lora={}), MIXTRAL)["api_server_count"] == 1
    assert parsed(asked("VLLM", parallelism=groups), MIXTRAL)["api_server_count"] is None
    assert parsed(asked("VLLM", lora={}), MIXTRAL)["api_server_count"] is None
