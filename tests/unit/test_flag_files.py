"""Which keys a user's own configuration may hold for runtimes that read it as flags."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hack import engine_flags
from hypothesis import given
from hypothesis import strategies as st

from shardwright.runtimes import sglang, vllm
from shardwright.runtimes.direct import Direct
from shardwright.runtimes.flag_files import flags, refuse_config

ENGINES = {"vllm": vllm.ENGINE, "sglang": sglang.ENGINE}
both = pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))


def refused(engine: Direct, **config: Any) -> tuple[str, str]:
    named = {name.replace("_", "-"): value for name, value in config.items()}
    found = refuse_config(
        named, engine.record, engine.owned, tool="it", switches_off=engine.switches_off
    )
    return (found.reason, found.message) if found else ("", "")


@pytest.mark.parametrize("tool", engine_flags.TOOLS)
def test_the_packages_copy_is_that_of_the_recorded_command_line(tool: str) -> None:
    kept = (engine_flags.TARGET / f"{tool}.json").read_text("utf-8")
    assert kept == engine_flags.written(tool), "run python hack/engine_flags.py"
    assert engine_flags.main(["--check"]) == 0


@both
def test_every_owned_flag_is_one_that_the_tool_has(engine: Direct) -> None:
    assert set(engine.owned) <= set(flags(engine.record))


@both
def test_every_owned_flag_is_refused_by_its_name_and_says_where_to_ask(engine: Direct) -> None:
    known = flags(engine.record)
    for name, entry in known.items():
        instead = engine.owned.get(entry.get("flag", name))
        if instead is not None:
            reason, message = refused(engine, **{name.replace("-", "_"): 1})
            assert reason == "ReservedEngineConfig"
            assert f"engine.config.{name} " in message
            assert message.endswith(f"use {instead} instead")


def test_aliases_of_owned_flags_are_owned() -> None:
    assert refused(vllm.ENGINE, device_memory_utilization=0.5)[0] == "ReservedEngineConfig"
    assert refused(sglang.ENGINE, tensor_parallel_size=2)[0] == "ReservedEngineConfig"
    assert refused(sglang.ENGINE, model="/elsewhere")[0] == "ReservedEngineConfig"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("enable-prefix-cashing", "enable-prefix-caching"),
        ("enable_prefix_caching", "enable-prefix-caching"),
        ("no-enable-prefix-caching", "enable-prefix-caching"),
        ("--seed", "seed"),
    ],
)
def test_a_misspelled_key_names_the_one_that_was_meant(name: str, near: str) -> None:
    found = refuse_config({name: True}, "vllm-serve-0.33.0", {}, tool="vLLM", switches_off=True)
    assert found is not None
    assert found.reason == "UnknownEngineConfig"
    assert f"did you mean {near}?" in found.message


@pytest.mark.parametrize(
    ("engine", "name", "said"),
    [
        (
            vllm.ENGINE,
            "tensorParallelSize",
            (
                "engine.config.tensorParallelSize is no long flag of it without its "
                "dashes; did you mean tensor-parallel-size? It is set by the operator; use "
                "parallelism.tensor instead"
            ),
        ),
        (
            vllm.ENGINE,
            "foo",
            "engine.config.foo is no long flag of it without its dashes; leave it out",
        ),
        (
            vllm.ENGINE,
            "no-enable-prefix-caching",
            (
                "engine.config.no-enable-prefix-caching is no long flag of it without its "
                "dashes; a switch is turned off by false; did you mean enable-prefix-caching?"
            ),
        ),
        (
            sglang.ENGINE,
            "max-rank",
            (
                "engine.config.max-rank is no long flag of it without its dashes; use "
                "spec.lora.maxRank instead"
            ),
        ),
    ],
)
def test_an_unknown_flag_is_told_with_what_to_write(engine: Direct, name: str, said: str) -> None:
    assert refused(engine, **{name: 1}) == ("UnknownEngineConfig", said)


@both
def test_no_flag_is_offered_that_would_be_refused_in_its_turn(engine: Direct) -> None:
    offered = 0
    for name in sorted(flags(engine.record))[::5]:
        _, message = refused(engine, **{f"{name}x": True})
        for other in re.findall(r"did you mean ([^?]*)\?$", message):
            for one in other.split(" or "):
                offered += 1
                reason, told = refused(engine, **{one: False})
                assert not reason or ", it takes " in told, (name, told)
    assert offered > 30


@pytest.mark.parametrize(
    ("config", "taken"),
    [
        ({"seed": 1}, True),
        ({"seed": "one"}, False),
        ({"seed": True}, False),
        ({"seed": None}, False),
        ({"enable_prefix_caching": False}, True),
        ({"enable_prefix_caching": "no"}, False),
        ({"compilation_config": {"mode": 3}}, True),
        ({"compilation_config": '{"mode": 3}'}, True),
        ({"compilation_config": [1]}, False),
        ({"logprobs_mode": "raw_logits"}, True),
        ({"logprobs_mode": "loud"}, False),
        ({"cpu_offload_gb": 1.5}, True),
        ({"safetensors_prefetch_block_size": "8M"}, True),
        ({"safetensors_prefetch_block_size": "8 M"}, False),
        ({"ignore_patterns": ["a", "b"]}, True),
        ({"ignore_patterns": "a"}, True),
        ({"ignore_patterns": []}, False),
        ({"ignore_patterns": ["a", "--trust-remote-code"]}, False),
        ({"tokenizer_mode": "--trust-remote-code"}, False),
    ],
)
def test_values_are_what_the_flag_takes(config: dict[str, Any], taken: bool) -> None:
    reason, message = refused(vllm.ENGINE, **config)
    assert (reason == "") is taken, message


def test_switches_that_sglangs_file_does_not_take_are_refused() -> None:
    reason, message = refused(sglang.ENGINE, speculative_enable_w4a4_mxfp4_megamoe=False)
    assert (reason, "command line only" in message) == ("UnknownEngineConfig", True)
    assert refused(sglang.ENGINE, disable_cuda_graph=True)[0] == "UnknownEngineConfig"
    assert refused(sglang.ENGINE, disable_radix_cache=True) == ("", "")


@given(
    st.dictionaries(
        st.sampled_from(sorted(flags("vllm-serve-0.33.0"))) | st.text(max_size=12),
        st.none() | st.booleans() | st.integers() | st.text(max_size=12) | st.lists(st.text()),
        max_size=4,
    )
)
def test_no_taken_value_can_be_read_as_another_flag(config: dict[str, Any]) -> None:
    engine = vllm.ENGINE
    found = refuse_config(config, engine.record, engine.owned, tool="vLLM", switches_off=True)
    if found is None:
        for value in config.values():
            texts = [value] if isinstance(value, str) else value if isinstance(value, list) else []
            assert not any(text.startswith("-") for text in texts)


def test_a_token_does_not_stand_in_the_spec_for_all_to_read() -> None:
    for name in ("hf-token", "hf_token"):
        reason, message = refused(vllm.ENGINE, **{name: "hf_x"})
        assert reason == "ReservedEngineConfig"
        assert "use model.secretRef instead" in message
        assert "hf_x" not in message
