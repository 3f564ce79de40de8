"""The limits of adapters: what they build, how they are served, what memory they take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError
from shardwright_standin import commandline
from tests.golden import specs
from tests.unit.test_runtime_contracts import contract, violations

from shardwright.api.asked import asked_of
from shardwright.api.changes import ChangeClass, change_class, hashed_spec
from shardwright.api.lora import HF_NAMES, MAX_ADAPTERS, LoRA, TargetModule, module_of
from shardwright.api.spec import Backend
from shardwright.plan import revisions
from shardwright.plan.question import engine_settings, same_question
from shardwright.plan.room import memory_plan, room_of
from shardwright.resolved import Resolved
from shardwright.runner.contract import Command
from shardwright.runtimes.adapter_slots import slots_of
from shardwright.runtimes.registry import runtime
from shardwright.sizing.catalogue import catalogue_model

LIMITS = {"maxRank": 32, "maxLoaded": 4, "targetModules": ["attn_v", "attn_q", "mlp_gate"]}
PYTORCH = {"backend": "PyTorch"}


def resolved(**changes: Any) -> Resolved:
    return specs.resolved(specs.spec(**{"lora": LIMITS, **changes}))


def keys(**changes: Any) -> dict[str, str]:
    found = specs.resolved(specs.spec(**changes))
    return {**{one.step: one.key for one in found.artifacts}, "proof": found.proof_key}


def build(found: Resolved) -> Command:
    return next(one.commands[0] for one in found.artifacts if one.step == "engine")


def after(argv: tuple[str, ...], flag: str, count: int = 1) -> tuple[str, ...]:
    at = argv.index(flag) + 1
    return argv[at : at + count]


# The spec


def test_modules_stand_in_one_order_whichever_way_they_were_written() -> None:
    one = LoRA.read({"targetModules": ["attn_v", "mlp_gate", "attn_q"]})
    assert one.hf_modules == ("q_proj", "v_proj", "up_proj")
    others = [
        specs.spec(lora={**LIMITS, "targetModules": modules})
        for modules in (["attn_q", "attn_v"], ["attn_v", "attn_q"])
    ]
    assert hashed_spec(others[0]) == hashed_spec(others[1])


def test_a_module_stands_once() -> None:
    with pytest.raises(ValidationError, match="attn_q is given twice"):
        LoRA.read({"targetModules": ["attn_q", "attn_v", "attn_q"]})


def test_every_module_has_a_name_in_transformers_and_back() -> None:
    assert set(HF_NAMES) == set(TargetModule)
    for module, name in HF_NAMES.items():
        assert module_of(f"model.layers.0.self_attn.{name}") is module
    assert module_of("model.layers.0.self_attn.qkv_proj") is None


def test_a_spec_without_adapters_has_the_hash_it_had() -> None:
    assert "lora" not in hashed_spec(specs.spec())
    assert hashed_spec(specs.spec(lora=LIMITS))["lora"] == {
        "maxRank": 32,
        "maxLoaded": 4,
        "targetModules": ["attn_q", "attn_v", "mlp_gate"],
    }


def test_limits_that_are_built_in_rebuild_and_slots_only_roll() -> None:
    assert change_class("lora.maxRank") is ChangeClass.BUILD
    assert change_class("lora.targetModules") is ChangeClass.BUILD
    assert change_class("lora.maxLoaded") is ChangeClass.ROLLING


# TensorRT engines


def test_an_engine_is_built_with_the_plugin_for_rank_and_modules() -> None:
    argv = build(resolved()).argv
    assert after(argv, "--lora_plugin") == ("auto",)
    assert after(argv, "--max_lora_rank") == ("32",)
    assert after(argv, "--lora_target_modules", 3) == ("attn_q", "attn_v", "mlp_gate")


def test_an_engine_without_adapters_is_built_as_before() -> None:
    assert not [word for word in build(resolved(lora=None)).argv if "lora" in word]


@pytest.mark.parametrize(
    ("changed", "moved"),
    [
        ({"maxRank": 64}, {"engine", "proof"}),
        ({"targetModules": ["attn_q"]}, {"engine", "proof"}),
        ({"targetModules": ["mlp_gate", "attn_q", "attn_v"]}, set()),
        ({"maxLoaded": 8}, set()),
    ],
)
def test_a_changed_limit_moves_exactly_what_it_is_built_into(
    changed: dict[str, Any], moved: set[str]
) -> None:
    before, now = keys(lora=LIMITS), keys(lora={**LIMITS, **changed})
    assert {step for step in before if before[step] != now[step]} == moved


def test_the_first_limits_rebuild_the_engine_and_not_the_checkpoint() -> None:
    before, now = keys(), keys(lora=LIMITS)
    assert {step for step in before if before[step] != now[step]} == {"engine", "proof"}


def test_the_caches_of_an_engine_hold_as_many_adapters_as_asked_for() -> None:
    found = resolved()
    config = runtime(found.spec.engine.runtime).serve_config(found)
    # q and v bring k along; with the gate four modules in each of 32 layers, at rank 32
    one = 32 * 32 * 4
    assert config["peft_cache_config"] == {
        "num_device_module_layer": 4 * one,
        "num_host_module_layer": 8 * one,
    }
    assert "lora_config" not in config


# PyTorch


def test_the_pytorch_backend_starts_with_the_limits() -> None:
    found = resolved(engine=PYTORCH)
    config = runtime(found.spec.engine.runtime).serve_config(found)
    assert config["lora_config"] == {
        "max_lora_rank": 32,
        "lora_target_modules": ["attn_q", "attn_v", "mlp_gate"],
        "max_loras": 4,
        "max_cpu_loras": 8,
    }


@pytest.mark.parametrize(("changed", "proof"), [({"maxRank": 64}, True), ({"maxLoaded": 8}, False)])
def test_on_pytorch_the_same_limits_ask_for_a_proof(changed: dict[str, Any], proof: bool) -> None:
    before = keys(engine=PYTORCH, lora=LIMITS)
    now = keys(engine=PYTORCH, lora={**LIMITS, **changed})
    assert before["model"] == now["model"]
    assert (before["proof"] != now["proof"]) is proof


@pytest.mark.parametrize("backend", list(Backend))
def test_what_is_rendered_fits_the_recorded_contracts(backend: Backend) -> None:
    found = resolved(engine={"backend": backend.value})
    commands = [command for one in found.artifacts for command in one.commands]
    assert [wrong for command in commands for wrong in violations(command)] == []
    recorded = contract("llm_args")["keys"]
    config = runtime(found.spec.engine.runtime).serve_config(found)
    for name in ("lora_config", "peft_cache_config"):
        assert set(config.get(name, ())) <= set(recorded[name]["keys"])


@pytest.mark.parametrize("name", ["lora_config", "peft_cache_config"])
def test_a_key_that_follows_from_the_limits_is_refused(name: str) -> None:
    engine = {**PYTORCH, "config": {name: {}}}
    asked = specs.spec(engine=engine, lora=LIMITS)
    refusal = runtime(asked.engine.runtime).refuse_spec(asked, None)
    assert refusal is not None
    assert refusal.reason == "ReservedEngineConfig"
    assert f"engine.config.{name}" in refusal.message
    assert "lora.maxRank" in refusal.message
    alone = specs.spec(engine=engine)
    assert runtime(alone.engine.runtime).refuse_spec(alone, None) is None


# Memory


MODEL = catalogue_model("meta-llama/Llama-3.1-8B")
GPU_BYTES = 80 * 2**30


def held(**changes: Any) -> int:
    """Bytes of adapter slots on the only GPU of a given shape."""
    plan = memory_plan(specs.spec(**changes), MODEL, GPU_BYTES)
    assert plan is not None
    return room_of(plan).stages[0].lora


def test_slots_are_counted_for_rank_number_and_modules() -> None:
    # (inputs + outputs) of q, k, v and up, k with the others: a row of rank 1 in one layer
    row = (4096 + 4096) + 2 * (4096 + 1024) + (4096 + 14336)
    assert held(lora=LIMITS) == 4 * 32 * row * 32 * 2
    assert held() == 0


def test_slots_are_taken_from_the_kv_cache_of_a_given_shape() -> None:
    plain = memory_plan(specs.spec(), MODEL, GPU_BYTES)
    adapted = memory_plan(specs.spec(lora={**LIMITS, "maxRank": 256}), MODEL, GPU_BYTES)
    assert plain is not None
    assert adapted is not None
    assert room_of(adapted).stages[0].kv_cache < room_of(plain).stages[0].kv_cache


def test_the_planner_is_asked_with_the_slots() -> None:
    asked = asked_of(specs.spec(lora=LIMITS))
    settings = engine_settings(asked.engine, asked.lora)
    assert (settings.lora_slots, settings.lora_rank) == (4, 32)
    assert settings.lora_modules == ("q_proj", "k_proj", "v_proj", "up_proj")
    assert not same_question(asked, asked_of(specs.spec()))


def test_a_revision_keeps_the_slots_and_an_older_one_reads_as_before() -> None:
    plan = memory_plan(specs.spec(lora=LIMITS), MODEL, GPU_BYTES)
    assert plan is not None
    found = replace(resolved(), room=room_of(plan))
    data = revisions.dump(found)
    assert revisions.load(data).room == found.room
    bare = memory_plan(specs.spec(), MODEL, GPU_BYTES)
    assert bare is not None
    without = revisions.dump(replace(resolved(lora=None), room=room_of(bare)))
    assert all("lora" not in stage for stage in without["room"]["stages"])
    assert revisions.load(without).room == room_of(bare)


# vLLM and SGLang


def command(runtime_name: str, **limits: Any) -> Command:
    asked = specs.spec(engine={"runtime": runtime_name}, lora={**LIMITS, **limits})
    found = specs.resolved(asked)
    return runtime(found.spec.engine.runtime).serve_command(found)


def test_vllm_starts_with_slots_of_the_next_rank_that_it_has() -> None:
    found = command("VLLM", maxRank=20)
    assert "--enable-lora" in found.argv
    assert after(found.argv, "--max-lora-rank") == ("32",)
    assert after(found.argv, "--max-loras") == ("4",)
    assert after(found.argv, "--max-cpu-loras") == ("8",)
    assert after(found.argv, "--lora-target-modules", 3) == ("q_proj", "v_proj", "up_proj")
    assert found.env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"


def test_sglang_starts_with_one_slot_more_for_the_base_and_keeps_all_that_a_spec_names() -> None:
    found = command("SGLang", maxRank=20)
    assert after(found.argv, "--max-loras-per-batch") == ("5",)
    assert int(after(found.argv, "--max-loaded-loras")[0]) > MAX_ADAPTERS
    assert after(found.argv, "--max-lora-rank") == ("20",)
    assert after(found.argv, "--lora-target-modules", 3) == ("q_proj", "v_proj", "up_proj")


@pytest.mark.parametrize("name", ["VLLM", "SGLang"])
def test_both_parse_what_is_rendered_and_start_without_adapters_as_before(name: str) -> None:
    found = command(name)
    program = {"VLLM": 2, "SGLang": 3}[name]  # words before the arguments
    values = commandline.parse(found.tool, list(found.argv[program:])).values
    assert values["enable_lora"]
    assert list(values["lora_target_modules"]) == ["q_proj", "v_proj", "up_proj"]
    plain = specs.resolved(specs.spec(engine={"runtime": name}))
    engine = runtime(plain.spec.engine.runtime)
    argv = engine.serve_command(plain)
    assert not [word for word in (*argv.argv, *argv.env) if "lora" in word.lower()]
    assert engine.adapters(plain) is None
    assert "lora" not in plain.proof_inputs


@pytest.mark.parametrize(
    ("name", "load"), [("VLLM", "/v1/load_lora_adapter"), ("SGLang", "/load_lora_adapter")]
)
def test_the_runner_is_told_how_adapters_are_loaded(name: str, load: str) -> None:
    found = specs.resolved(specs.spec(engine={"runtime": name}, lora=LIMITS))
    serving = runtime(found.spec.engine.runtime).adapters(found)
    assert serving is not None
    assert (serving.load, serving.unload) == (load, load.replace("/load", "/unload"))
    assert (serving.max_rank, serving.modules) == (32, ("q_proj", "v_proj", "up_proj"))


@pytest.mark.parametrize("name", ["VLLM", "SGLang"])
@pytest.mark.parametrize(("changed", "proof"), [({"maxRank": 64}, True), ({"maxLoaded": 8}, False)])
def test_a_raised_limit_is_proven_and_more_slots_are_rolled(
    name: str, changed: dict[str, Any], proof: bool
) -> None:
    engine = {"runtime": name}
    before, now = keys(engine=engine, lora=LIMITS), keys(engine=engine, lora={**LIMITS, **changed})
    assert (before["proof"] != now["proof"]) is proof


@pytest.mark.parametrize(
    ("name", "flag"),
    [("VLLM", "max-lora-rank"), ("VLLM", "lora-modules"), ("SGLang", "lora-paths")],
)
def test_flags_that_follow_from_the_limits_are_refused(name: str, flag: str) -> None:
    asked = specs.spec(engine={"runtime": name, "config": {flag: "16"}})
    refusal = runtime(asked.engine.runtime).refuse_spec(asked, None)
    assert refusal is not None
    assert refusal.reason == "ReservedEngineConfig"
    assert "lora." in refusal.message


def test_slots_are_those_that_the_runtime_makes() -> None:
    lora = LoRA.read({**LIMITS, "maxRank": 20})
    found = {name: slots_of(name, lora) for name in ("TensorRTLLM", "VLLM", "SGLang")}
    assert [(one.count, one.rank) for one in found.values()] == [(4, 20), (4, 32), (5, 20)]
    assert len(found["TensorRTLLM"].modules) == 4
    assert len(found["VLLM"].modules) == len(found["SGLang"].modules) == 5
