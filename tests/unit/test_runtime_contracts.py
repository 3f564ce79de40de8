"""Every flag, choice and key that is rendered stands in a recorded contract (tests/contracts)."""

from __future__ import annotations

import itertools
import re
from collections import deque
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.golden import specs

from shardwright.api.spec import Backend, KVPrecision, WeightPrecision
from shardwright.runner.contract import Command
from shardwright.runtimes.registry import runtime
from shardwright.runtimes.tensorrt_config import CONFIG_KEYS, NESTED_KEYS, PYTORCH_ONLY

CONTRACTS = Path(__file__).parents[1] / "contracts"
SHAPES = ((1, 1), (2, 1), (8, 1), (8, 2), (4, 4))
CONVERTER = re.compile(r"^/app/tensorrt_llm/examples/(?:models/core/)?(\w+)/convert_checkpoint.py$")


@lru_cache
def contract(tool: str) -> dict[str, Any]:
    text = (CONTRACTS / f"{tool}-1.2.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def split(command: Command) -> tuple[dict[str, Any], list[str], list[str]]:
    """The flags' contract, the positional arguments' names, and the arguments after the tool."""
    recorded, argv = contract(command.tool), list(command.argv)
    if command.tool == "trtllm-llmapi-launch":
        assert argv[0] == command.tool
        pattern = re.compile(recorded["argument_pattern"])
        broken = [word for word in argv if not pattern.match(word)]
        assert not broken, f"the launcher would break {broken}"
        return split(Command(tool=argv[1], argv=tuple(argv[1:])))
    if "script" not in recorded:
        assert argv[0] == command.tool
        return recorded["flags"], recorded["positional"], argv[1:]
    assert argv[0] == "python3"
    if "families" not in recorded:
        assert argv[1] == recorded["script"]
        return recorded["flags"], recorded["positional"], argv[2:]
    family = CONVERTER.match(argv[1])
    assert family, f"{argv[1]} is no converter of a release image"
    return recorded["families"][family.group(1)]["flags"], recorded["positional"], argv[2:]


def fits(value: str, recorded: dict[str, Any]) -> bool:
    if "choices" in recorded:
        return value in [str(choice) for choice in recorded["choices"]]
    kind = recorded["type"]
    if kind == "enable|disable":
        return value in ("enable", "disable")
    if kind == "integer":
        return value.isdigit()
    return bool(value)


def violations(command: Command) -> list[str]:
    """What the tool would refuse; empty when it takes the command."""
    flags, positional, words = split(command)
    wrong = []
    left = deque(words)
    free: list[str] = []
    given: set[str] = set()
    while left:
        word = left.popleft()
        if not word.startswith("-"):
            free.append(word)
            continue
        if word in given:
            wrong.append(f"{command.tool} is given {word} twice")
        given.add(word)
        if word not in flags:
            wrong.append(f"{command.tool} has no {word}")
        elif flags[word]["type"] == "list":
            items = 0
            while left and not left[0].startswith("-"):
                left.popleft()
                items += 1
            if not items:
                wrong.append(f"{command.tool} {word} needs a value")
        elif flags[word]["type"] != "switch":
            value = left.popleft() if left else ""
            if not fits(value, flags[word]):
                wrong.append(f"{command.tool} {word} does not take {value!r}")
    if len(free) != len(positional):
        wrong.append(f"{command.tool} takes {positional}, given {free}")
    return wrong


def matrix() -> list[Any]:
    """Each precision, KV precision, shape and backend that the runtime does not refuse."""
    cases = []
    for backend, weights, kv_cache, (tensor, pipeline), family in itertools.product(
        Backend, WeightPrecision, KVPrecision, SHAPES, ("llama", "qwen2")
    ):
        gptq = weights is WeightPrecision.INT4_GPTQ
        asked = specs.spec(
            model={
                "uri": "hf://org/model-gptq" if gptq else "hf://org/model",
                "servedName": "my-model_1.0",
                "trustRemoteCode": tensor == 8,
                "dtype": "FP16" if pipeline == 2 else "Auto",
            },
            engine={"backend": backend.value},
            parallelism={"tensor": tensor, "pipeline": pipeline},
            quantization={"weights": weights.value, "kvCache": kv_cache.value},
        )
        model = specs.facts(quantization="gptq" if gptq else "", model_type=family)
        engine = runtime(asked.engine.runtime)
        if engine.refuse_spec(asked, None) or engine.refuse_model(asked, model):
            continue
        name = f"{backend}-{weights}-{kv_cache}-tp{tensor}pp{pipeline}-{family}"
        cases.append(pytest.param(asked, model, id=name))
    return cases


MATRIX = matrix()


def test_the_matrix_covers_every_precision_on_some_backend() -> None:
    seen = {(case.values[0].quantization.weights) for case in MATRIX}
    assert seen == set(WeightPrecision)
    assert {case.values[0].quantization.kv_cache for case in MATRIX} == set(KVPrecision)
    assert len(MATRIX) > 200


@pytest.mark.parametrize(("asked", "model"), MATRIX)
def test_every_rendered_command_fits_its_recorded_contract(asked: Any, model: Any) -> None:
    found = specs.resolved(asked, model)
    commands = [command for artifact in found.artifacts for command in artifact.commands]
    commands.append(runtime(asked.engine.runtime).serve_command(found))
    assert [wrong for command in commands for wrong in violations(command)] == []


@pytest.mark.parametrize(("asked", "model"), MATRIX)
def test_every_rendered_configuration_key_is_recorded(asked: Any, model: Any) -> None:
    recorded = contract("llm_args")
    keys = dict(recorded["keys"])
    if asked.engine.backend is Backend.PYTORCH:
        keys |= recorded["pytorch_keys"]
    config = runtime(asked.engine.runtime).serve_config(specs.resolved(asked, model))
    assert set(config) <= set(keys)
    for name, value in config.items():
        if isinstance(value, dict):
            assert set(value) <= set(keys[name]["keys"])


def test_no_key_stands_on_the_command_line_and_in_the_file() -> None:
    spelled = {"tp_size": "tensor_parallel_size", "pp_size": "pipeline_parallel_size"}
    for case in MATRIX:
        found = specs.resolved(*case.values)
        engine = runtime(found.spec.engine.runtime)
        argv = engine.serve_command(found).argv
        flags = {word.removeprefix("--") for word in argv if word.startswith("--")}
        keys = set(engine.serve_config(found)) | set(engine.serve_config(found)["kv_cache_config"])
        assert not {spelled.get(flag, flag) for flag in flags} & keys


def test_keys_offered_to_users_are_those_recorded() -> None:
    recorded = contract("llm_args")
    both, pytorch = set(recorded["keys"]), set(recorded["pytorch_keys"])
    assert set(CONFIG_KEYS) <= both | pytorch
    assert {name for name in pytorch if CONFIG_KEYS.get(name) != PYTORCH_ONLY} == set()
    everything = recorded["keys"] | recorded["pytorch_keys"]
    for name, inner in NESTED_KEYS.items():
        assert inner <= set(everything[name]["keys"])


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (("trtllm-build", "--tp_size", "8"), "trtllm-build has no --tp_size"),
        (("trtllm-build", "--gemm_plugin", "int4"), "--gemm_plugin does not take 'int4'"),
        (("trtllm-build", "--workers", "two"), "--workers does not take 'two'"),
        (("trtllm-build", "engine"), "takes [], given ['engine']"),
        (("trtllm-build", "--workers", "1", "--workers", "1"), "given --workers twice"),
    ],
)
def test_the_check_itself_finds_wrong_flags(argv: tuple[str, ...], complaint: str) -> None:
    assert complaint in " ".join(violations(Command(tool="trtllm-build", argv=argv)))


def test_the_launcher_s_check_finds_arguments_that_a_shell_would_split() -> None:
    argv = ("trtllm-llmapi-launch", "trtllm-serve", "a model", "--host", "0.0.0.0")  # noqa: S104
    with pytest.raises(AssertionError, match="would break"):
        violations(Command(tool="trtllm-llmapi-launch", argv=argv))


@pytest.mark.parametrize("path", sorted(CONTRACTS.glob("*.yaml")), ids=lambda path: path.stem)
def test_each_contract_names_tool_version_and_provenance(path: Path) -> None:
    recorded = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert path.stem == f"{recorded['tool']}-{recorded['version']}"
    for source in recorded["provenance"]:
        assert source["file"]
        assert source.get("commit") or source.get("note")
