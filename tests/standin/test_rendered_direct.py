"""What vLLM and SGLang are started with parses in strict parsers of their recorded command lines.

Both on the command line and in their own configuration file, which is read as flags.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from shardwright_standin import commandline
from tests.golden import specs
from tests.unit.test_examples import FILES, known, spec_of

from shardwright.api.spec import Runtime
from shardwright.runner.contract import Command
from shardwright.runtimes.registry import DIRECT, runtime

SHAPES = ((1, 1), (2, 1), (2, 2), (8, 4))
# Weights with the quantizer of the checkpoint that brings them.
WEIGHTS = (
    *(("None", ""), ("None", "awq"), ("None", "compressed-tensors"), ("FP8", ""), ("FP8", "fp8")),
    *(("INT4AWQ", "awq"), ("INT4GPTQ", "gptq"), ("NVFP4", "modelopt")),
    ("INT8SmoothQuant", "compressed-tensors"),
)
CONFIG: Mapping[str, dict[str, Any]] = {
    "VLLM": {
        "enable-prefix-caching": False,
        "compilation-config": {"mode": 3},
        "ignore-patterns": ["original/*", "*.pth"],
        "max-logprobs": 5,
    },
    "SGLang": {"disable-radix-cache": True, "schedule-policy": "fcfs", "watchdog-timeout": 600},
}


def words(command: Command, config: Mapping[str, Any]) -> list[str]:
    """The arguments after the program's name, with the file's keys in its place as the tools do."""
    argv = list(command.argv)
    rest = argv[{"vllm-serve": 2, "nim-serve": 1}.get(command.tool, 3) :]
    if "--config" not in rest:
        return rest
    at = rest.index("--config")
    before, after = rest[:at], rest[at + 2 :]
    first = before[:1] if command.tool == "vllm-serve" else []
    return [*first, *as_flags(config), *before[len(first) :], *after]


def as_flags(config: Mapping[str, Any]) -> Iterator[str]:
    for name, value in config.items():
        if isinstance(value, bool):
            if value:
                yield f"--{name}"
            else:
                yield f"--no-{name}"
            continue
        yield f"--{name}"
        if isinstance(value, list):
            yield from (str(item) for item in value)
        else:
            yield json.dumps(value) if isinstance(value, dict) else str(value)


def rendered() -> Iterator[Any]:
    for name in CONFIG:
        for tensor, pipeline in SHAPES:
            for weights, quantization in WEIGHTS:
                asked = specs.spec(
                    model={
                        "uri": "hf://meta-llama/Llama-3.1-8B-Instruct@main",
                        "dtype": "BF16",
                        "trustRemoteCode": True,
                    },
                    engine={"runtime": name, "config": CONFIG[name]},
                    parallelism={"tensor": tensor, "pipeline": pipeline},
                    quantization={"weights": weights, "kvCache": "FP8"},
                )
                facts = specs.facts(quantization=quantization)
                engine = runtime(Runtime(name))
                assert engine.refuse_spec(asked, None) is None
                assert engine.refuse_model(asked, facts) is None
                resolved = specs.resolved(asked, facts)
                for stage in {0, pipeline - 1}:
                    yield pytest.param(
                        engine.serve_command(resolved, stage),
                        engine.serve_config(resolved),
                        id=f"{name}-{tensor}x{pipeline}-{weights}-{quantization}-{stage}",
                    )


def of_examples() -> Iterator[Any]:
    for path in FILES:
        asked = spec_of(path)
        if asked.engine.runtime not in DIRECT:
            continue
        resolved = specs.resolved(asked, known(asked).facts)
        engine = runtime(asked.engine.runtime)
        for stage in range(resolved.pipeline):
            yield pytest.param(
                engine.serve_command(resolved, stage),
                engine.serve_config(resolved),
                id=f"{path.stem}-{stage}",
            )


CASES = [*rendered(), *of_examples()]


def test_every_example_of_these_runtimes_is_among_them() -> None:
    assert len(list(of_examples())) == 5


def parse(command: Command, given: Sequence[str]) -> commandline.Parsed:
    filled = [word.replace("{stages}", "2").replace("{stage}", "1") for word in given]
    return commandline.parse(command.tool, filled)


@pytest.mark.parametrize(("command", "config"), CASES)
def test_it_parses(command: Command, config: Mapping[str, Any]) -> None:
    given = words(command, config)
    parse(command, given)
    flags = [word for word in given if word.startswith("--")]
    assert len(flags) == len(set(flags)), "a key stands on the command line or in the file"


@pytest.mark.parametrize(("command", "config"), CASES[:: len(WEIGHTS)])
def test_each_flag_of_it_renamed_is_refused(
    command: Command, config: Mapping[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    given = words(command, config)
    for index in (at for at, word in enumerate(given) if word.startswith("--")):
        changed = [*given[:index], f"{given[index]}_", *given[index + 1 :]]
        with pytest.raises(SystemExit) as ended:
            parse(command, changed)
        assert ended.value.code == 2
        told = capsys.readouterr().err
        assert changed[index] in told or "are required: --model-path" in told
