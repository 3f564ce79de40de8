"""Triton: which image, which chain, which commands, and what is refused."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from shardwright_standin import commandline, contracts
from shardwright_standin.triton import pbtxt
from tests.golden import specs
from tests.unit import test_speculative
from tests.unit.test_triton_repository import resolved

from shardwright.api.settings import Settings
from shardwright.api.spec import Runtime
from shardwright.render.pods import group_pods, serve_request
from shardwright.resolved import Resolved
from shardwright.runner.contract import ENV_REQUEST, ServeRequest, decode, encode
from shardwright.runtimes import triton_versions
from shardwright.runtimes.base import Refusal, serving_of
from shardwright.runtimes.metrics import pages_of
from shardwright.runtimes.registry import runtime
from shardwright.runtimes.tensorrt_versions import KNOWN_VERSIONS

ENGINE = runtime(Runtime.TRITON)
SERVER = "/opt/tritonserver/bin/tritonserver"


def refusal(**changes: Any) -> Refusal | None:
    engine = {"runtime": "Triton", **changes.pop("engine", {})}
    asked = specs.spec(engine=engine, **changes)
    return ENGINE.refuse_spec(asked, (9, 0))


def test_versions_are_those_of_tensorrt_llm_that_an_image_holds() -> None:
    assert set(triton_versions.RELEASES) < set(KNOWN_VERSIONS)
    image = ENGINE.known_image("1.2.1")
    assert image == "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"
    assert ENGINE.known_image("26.07") is None
    assert specs.spec(engine={"runtime": "Triton"}).engine.version == "1.2.1"


def test_builder_and_server_are_of_one_image() -> None:
    found = resolved()
    _, checkpoint, engine = found.artifacts
    assert {checkpoint.image, engine.image, found.image} == {ENGINE.known_image("1.2.1")}
    (convert,) = checkpoint.commands
    assert convert.argv[1] == "/app/examples/models/core/llama/convert_checkpoint.py"
    (quantize,) = resolved(quantization={"weights": "FP8"}).artifacts[1].commands
    assert quantize.argv[1] == "/app/examples/quantization/quantize.py"


def test_the_chain_is_that_of_tensorrt_llm_from_another_image() -> None:
    """Artifacts are shared by what they are made from, and an image is part of that."""
    same = {"image": "registry.example.com/both:1"}
    triton = resolved(engine=same)
    other = specs.resolved(
        specs.spec(
            model={"uri": "hf://org/model", "servedName": "llama-8b"},
            engine=same,
            parallelism={"tensor": 2, "pipeline": 2},
        )
    )
    assert [one.key for one in triton.artifacts] == [one.key for one in other.artifacts]
    assert triton.proof_key != other.proof_key
    assert resolved().artifacts[1].key != triton.artifacts[1].key


def request(found: Resolved, stage: int = 0) -> ServeRequest:
    return serve_request(found, specs.identity(), stage)


def parsed(words: tuple[str, ...]) -> dict[str, Any]:
    assert words[0] == SERVER
    return dict(commandline.parse("tritonserver", words[1:]).values)


@pytest.mark.parametrize(("tensor", "pipeline"), [(1, 1), (8, 1), (1, 2), (4, 2)])
def test_an_engine_is_served_by_one_server_a_rank(tensor: int, pipeline: int) -> None:
    asked = request(resolved(tensor=tensor, pipeline=pipeline))
    assert asked.by_mpi is (tensor * pipeline > 1)
    assert asked.prepared is not None
    lead = parsed(asked.command.argv)
    assert (lead["http_port"], lead["metrics_port"]) == (8000, 8002)
    assert lead["model_control_mode"] is None
    assert lead["disable_auto_complete_config"]
    if not asked.by_mpi:
        assert asked.prepared.followers == ()
        return
    follow = parsed(asked.prepared.followers)
    assert follow["model_control_mode"] == "explicit"
    assert follow["load_model"] == ["tensorrt_llm"]
    differ = {name for name in lead if lead[name] != follow[name]}
    assert differ == {"model_control_mode", "load_model"}


def test_the_llm_api_starts_its_ranks_itself_or_finds_them_under_the_launcher() -> None:
    alone = request(resolved("PyTorch", 8, 1))
    assert (alone.by_mpi, alone.command.tool) == (False, "tritonserver")
    over = request(resolved("PyTorch", 8, 2))
    assert (over.by_mpi, over.launch) == (True, "")
    assert over.command.argv[0] == "trtllm-llmapi-launch"
    assert parsed(over.command.argv[1:]) == parsed(alone.command.argv)
    # The launcher joins its arguments and lets a shell split them.
    pattern = contracts.load("trtllm-llmapi-launch")["argument_pattern"]
    assert all(re.match(pattern, word) for word in over.command.argv)
    for asked in (alone, over):
        assert asked.prepared is not None
        assert asked.prepared.followers == ()


def test_the_runner_knows_how_to_ask() -> None:
    for backend, budget in (("TensorRT", "max_tokens"), ("PyTorch", "sampling_param_max_tokens")):
        asked = request(resolved(backend))
        assert asked.health_path == "/v2/health/ready"
        assert asked.prepared is not None
        generation = asked.prepared.generation
        assert generation is not None
        assert generation.path == "/v2/models/llama-8b/generate"
        assert generation.body == {"text_input": "1", budget: 1}
        models = contracts.load("triton-models")["models"]
        kind = "ensemble" if backend == "TensorRT" else "llmapi"
        assert set(generation.body) <= set(models[kind]["inputs"])
        assert generation.answer in models[kind]["outputs"]


def test_requests_are_counted_where_they_are_answered() -> None:
    for backend, model in (("TensorRT", "tensorrt_llm"), ("PyTorch", "llama-8b")):
        (page,) = pages_of(resolved(backend))
        assert page.port == 8002
        (total,) = (one for one in page.sources if one.family == "shardwright_requests_total")
        assert total.labels["model"] == model


@pytest.mark.parametrize("backend", ["TensorRT", "PyTorch"])
def test_its_pods_carry_the_whole_request(backend: str) -> None:
    """The kernel takes 128 KiB in one variable of the environment."""
    found = resolved(backend)
    for stage, pod in enumerate(group_pods(found, specs.identity(), "runner")):
        env = {item["name"]: item for item in pod["spec"]["containers"][0]["env"]}
        text = env[ENV_REQUEST]["value"]
        assert len(text) < 64 * 1024
        assert decode(ServeRequest, text) == request(found, stage)
        assert encode(request(found, stage)) == text


def test_other_runtimes_need_nothing_of_this() -> None:
    found = specs.resolved(specs.spec())
    assert serving_of(runtime(Runtime.TENSORRT_LLM), found).prepared is None
    assert request(found).prepared is None
    assert request(found).health_path == "/health"


@pytest.mark.parametrize(
    ("engine", "reason", "words"),
    [
        ({"version": "26.7.0"}, "UnknownVersion", "version of TensorRT-LLM that its image holds"),
        ({"version": "1.2.9"}, "UnknownVersion", "1.2.1 (26.07)"),
        ({"version": "1.3.0"}, "BuilderNotAvailable", "up to TensorRT-LLM 1.2"),
        ({"backend": "PyTorch", "build": {"workers": 2}}, "NoBuildStep", "engine.build"),
        ({"config": {"engine_dir": "/x"}}, "ReservedEngineConfig", "the one that was built"),
        (
            {"config": {"triton_max_batch_size": 4}},
            "ReservedEngineConfig",
            "engine.limits.maxBatchSize",
        ),
        (
            {"config": {"kv_cache_free_gpu_mem_fraction": 0.5}},
            "ReservedEngineConfig",
            "gpuMemoryFraction",
        ),
        ({"config": {"max_queue_sise": 4}}, "UnknownEngineConfig", "did you mean max_queue_size?"),
        (
            {"config": {"foo": 4}},
            "UnknownEngineConfig",
            (
                "engine.config.foo is no option of Triton's models for engines; leave it out, or "
                "write one of add_special_tokens, batch_scheduler_policy, "
            ),
        ),
        (
            {"config": {"kv_cache_free_gpu_memory_fraction": 0.5}},
            "UnknownEngineConfig",
            (
                "engines; did you mean kv_cache_free_gpu_mem_fraction? It is set by the operator; "
                "use engine.limits.gpuMemoryFraction instead"
            ),
        ),
        (
            {"config": {"gpu_memory_fraction": 0.5}},
            "UnknownEngineConfig",
            "engines; use spec.engine.limits.gpuMemoryFraction instead",
        ),
        (
            {"config": {"stats_max_iterations": 5}},
            "UnknownEngineConfig",
            "engines; did you mean iter_stats_max_iterations?",
        ),
        ({"config": {"max_queue_size": "4"}}, "UnknownEngineConfig", "a whole number from 0"),
        ({"config": {"max_queue_size": True}}, "UnknownEngineConfig", "a whole number from 0"),
        ({"config": {"decoupled_mode": "true"}}, "UnknownEngineConfig", "true or false"),
        ({"config": {"decoupled_mode": None}}, "UnknownEngineConfig", "true or false"),
        ({"config": {"decoding_mode": "medusa"}}, "UnknownEngineConfig", "one of top_k, top_p"),
        ({"config": {"max_attention_window_size": [1, 0]}}, "UnknownEngineConfig", "one a layer"),
        ({"config": {"max_attention_window_size": []}}, "UnknownEngineConfig", "one a layer"),
        (
            {
                "config": {"enable_chunked_context": True},
                "build": {"plugins": {"pagedContextFMHA": False}},
            },
            "UnknownEngineConfig",
            "paged context attention",
        ),
        # Keys of the LLM API belong to the other backend, and the other way round.
        ({"config": {"cuda_graph_config": {}}}, "UnknownEngineConfig", "no option of Triton"),
        (
            {"backend": "PyTorch", "config": {"max_queue_size": 4}},
            "UnknownEngineConfig",
            "not a key that Triton 1.2.1 knows",
        ),
        ({"backend": "PyTorch", "config": {"backend": "x"}}, "ReservedEngineConfig", "backend"),
    ],
)
def test_what_is_refused(engine: dict[str, Any], reason: str, words: str) -> None:
    found = refusal(engine=engine)
    assert found is not None
    assert found.reason == reason
    assert words in found.message


def test_an_image_makes_any_version_of_the_recorded_line_known() -> None:
    assert refusal(engine={"version": "1.2.9", "image": "registry.example.com/t:1"}) is None
    mirrored = Settings(images={"Triton/1.2.9": "registry.example.com/t:1"})
    asked = specs.spec(engine={"runtime": "Triton", "version": "1.2.9"})
    assert ENGINE.refuse_spec(asked, (9, 0), mirrored) is None


@pytest.mark.parametrize("name", ["preprocessing", "tensorrt_llm", "postprocessing"])
def test_a_served_name_is_none_of_its_parts(name: str) -> None:
    model = {"uri": "hf://org/model", "servedName": name}
    found = refusal(model=model)
    assert found is not None
    assert found.reason == "ServedNameTaken"
    assert refusal(model=model, engine={"backend": "PyTorch"}) is None


@pytest.mark.parametrize("backend", ["TensorRT", "PyTorch"])
def test_adapters_are_refused_with_a_source(backend: str) -> None:
    found = refusal(engine={"backend": backend}, lora={"maxRank": 8})
    assert found is not None
    assert (found.reason, bool(found.source)) == ("LoRANotSupported", True)


def test_adapters_of_a_later_version_are_refused_for_what_is_so_there() -> None:
    engine = {"backend": "PyTorch", "version": "1.3.0rc14", "image": "registry.example.com/t:1"}
    found = refusal(engine=engine, lora={"maxRank": 8})
    assert found is not None
    assert (found.reason, found.source) == ("LoRANotSupported", "triton-llmapi-lora-since")
    assert found.message == (
        "lora with Triton with TensorRT-LLM 1.3.0rc14 and engine.backend PyTorch: inputs that name "
        "one came to its model of the LLM API after 1.2, and no release of Triton is known to hold "
        "a later TensorRT-LLM than 1.2.1: none is served from the claim; use engine.runtime "
        "TensorRTLLM or VLLM, or leave lora out"
    )


def test_a_model_with_code_of_its_own_needs_trust() -> None:
    """The image's preprocessing loads the tokenizer with trust_remote_code on."""
    asked = specs.spec(engine={"runtime": "Triton"})
    found = ENGINE.refuse_model(asked, specs.facts(remote_code=True))
    assert found is not None
    assert found.reason == "RemoteCodeNotTrusted"


@pytest.mark.parametrize(
    "words",
    [
        ["--http-prot=8000"],
        ["--http-port=many"],
        ["--exit-on-error=maybe"],
        ["--model-control-mode=none", "--model-control-mode"],
        ["repository"],
    ],
)
def test_the_recorded_command_line_is_strict(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        commandline.parse("tritonserver", words)


def drafting(method: str, backend: str, **config: Any) -> dict[str, Any]:
    model = {"model": {"uri": test_speculative.DRAFT}}
    wish = {"method": method, "maxDraftLen": 3}
    return {
        "engine": {"backend": backend, "config": config},
        "speculative": wish if method in test_speculative.OWN else {**wish, **model},
    }


def drafted(method: str, backend: str) -> Resolved:
    changes = drafting(method, backend)
    engine = {"runtime": "Triton", **changes.pop("engine")}
    return test_speculative.resolved(specs.spec(engine=engine, **changes))


@pytest.mark.parametrize(
    ("method", "backend", "source"),
    [
        ("Medusa", "TensorRT", ""),
        ("Eagle", "TensorRT", ""),
        ("DraftModel", "TensorRT", "triton-bls-drafts"),
        ("Eagle3", "TensorRT", "triton-decoding-modes"),
        ("NGram", "TensorRT", "triton-decoding-modes"),
        ("MTP", "TensorRT", "triton-decoding-modes"),
        ("DraftModel", "PyTorch", ""),
        ("Eagle3", "PyTorch", ""),
        ("NGram", "PyTorch", ""),
        ("MTP", "PyTorch", ""),
        ("Medusa", "PyTorch", "trtllm-speculation-tensorrt"),
        ("Eagle", "PyTorch", "trtllm-eagle-is-eagle3"),
    ],
)
def test_what_drafts_is_taken_or_refused_with_a_source(
    method: str, backend: str, source: str
) -> None:
    found = refusal(**drafting(method, backend))
    assert (found.source if found else "") == source
    if found:
        assert found.reason == "SpeculationNotSupported"
        assert f"speculative.method {method}" in found.message


@pytest.mark.parametrize(("method", "mode"), [("Medusa", "medusa"), ("Eagle", "eagle")])
def test_heads_are_converted_built_and_decoded_with(method: str, mode: str) -> None:
    found = drafted(method, "TensorRT")
    convert, build = (artifact.commands[0].argv for artifact in found.artifacts[-2:])
    assert convert[1] == f"/app/examples/{mode}/convert_checkpoint.py"
    at = build.index("--speculative_decoding_mode")
    assert build[at + 1] == mode
    prepared = request(found).prepared
    assert prepared is not None
    written = prepared.files["tensorrt_llm/config.pbtxt"]
    parameters = {
        key: value["string_value"] for key, value in pbtxt.parse(written)["parameters"].items()
    }
    assert parameters["decoding_mode"] == mode
    assert parameters[f"{mode}_choices"] == "{0}, {0, 0}, {0, 0, 0}"
    asked = refusal(**drafting(method, "TensorRT", decoding_mode="top_k"))
    assert asked is not None
    assert asked.message.endswith("use speculative instead")


def test_the_llm_api_s_model_gets_what_drafts() -> None:
    found = drafted("DraftModel", "PyTorch")
    asked = request(found)
    assert asked.prepared is not None
    (config,) = (
        json.loads(text)
        for path, text in asked.prepared.files.items()
        if path.endswith("model.yaml")
    )
    (draft,) = asked.also
    assert config["speculative_config"] == {
        "decoding_type": "Draft_Target",
        "max_draft_len": 3,
        "speculative_model_dir": draft.artifact,
    }


def test_experts_and_attention_by_data_reach_the_llm_api_or_are_refused() -> None:
    split = {"tensor": 4, "expert": 4, "attentionData": 4}
    found = resolved("PyTorch", parallelism=split)
    prepared = request(found).prepared
    assert prepared is not None
    config = json.loads(prepared.files["llama-8b/1/model.yaml"])
    assert config["moe_expert_parallel_size"] == 4
    assert config["enable_attention_dp"] is True
    asked = refusal(parallelism=split)
    assert asked is not None
    assert asked.source == "trtllm-attention-data-pytorch"
