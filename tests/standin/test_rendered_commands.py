"""Every command the operator renders for an example parses in the stand-ins' strict parsers.

And each of its flags counts: renamed, or with a value of another kind, the line is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import pytest
from shardwright_standin import commandline, contracts
from tests.golden import specs
from tests.unit.test_examples import FILES as EXAMPLES
from tests.unit.test_examples import known, spec_of

from shardwright.api.spec import Runtime
from shardwright.runner.contract import Command
from shardwright.runtimes import tensorrt_serve, tensorrt_steps
from shardwright.runtimes.registry import DIRECT, runtime

# The others' are in test_rendered_direct.
FILES = [path for path in EXAMPLES if spec_of(path).engine.runtime not in DIRECT]
CONVERTER = re.compile(r"/examples/(?:models/core/)?(\w+)/convert_checkpoint\.py$")


def rendered(path: Path) -> list[Command]:
    """What the pods of an example's deployment run, in order."""
    asked = spec_of(path)
    found = specs.resolved(asked, known(asked).facts)
    commands = [command for artifact in found.artifacts for command in artifact.commands]
    return [*commands, runtime(asked.engine.runtime).serve_command(found)]


def parse(argv: Sequence[str]) -> commandline.Parsed:
    """Parse a whole command line as the program of its first words would.

    Raises:
        SystemExit: When the program refuses it.
    """
    words = list(argv)
    if words[0] == "trtllm-llmapi-launch":
        pattern = re.compile(contracts.load(words[0])["argument_pattern"])
        broken = [word for word in words if not pattern.match(word)]
        assert not broken, f"the launcher would break {broken}"
        return parse(words[1:])
    if words[0] != "python3":
        return commandline.parse(PurePath(words[0]).name, words[1:])
    if words[1].endswith("/examples/quantization/quantize.py"):
        return commandline.parse("quantize", words[2:])
    family = CONVERTER.search(words[1])
    assert family, f"no stand-in is called {words[1]}"
    return commandline.parse("convert_checkpoint", words[2:], family[1])


def cases() -> Iterator[Any]:
    for path in FILES:
        for command in rendered(path):
            yield pytest.param(command, id=f"{path.stem}-{command.tool}")


CASES = list(cases())
SERVERS = ("trtllm-serve", "trtllm-llmapi-launch", "tritonserver")


def test_every_example_builds_and_serves() -> None:
    assert len(FILES) == 13
    for path in FILES:
        assert rendered(path)[-1].tool in SERVERS
    tools = {command.tool for path in FILES for command in rendered(path)}
    assert tools == {
        "quantize",
        "convert_checkpoint",
        "trtllm-build",
        "trtllm-serve",
        "trtllm-llmapi-launch",
        "tritonserver",
    }


@pytest.mark.parametrize("command", CASES)
def test_the_rendered_command_parses(command: Command) -> None:
    parse(command.argv)


@pytest.mark.parametrize("command", CASES)
def test_each_flag_of_it_renamed_is_refused(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [index for index, word in enumerate(command.argv) if word.startswith("--")]
    assert flags
    for index in flags:
        changed = list(command.argv)
        name, sign, value = changed[index].partition("=")
        changed[index] = f"{name}_{sign}{value}"
        with pytest.raises(SystemExit) as ended:
            parse(changed)
        assert ended.value.code == 2
        assert changed[index] in capsys.readouterr().err


@pytest.mark.parametrize("command", CASES)
def test_each_number_of_it_turned_into_a_word_is_refused(command: Command) -> None:
    numbers = [
        index for index, word in enumerate(command.argv) if word.rpartition("=")[2].isdigit()
    ]
    assert numbers or command.tool == "quantize"
    for index in numbers:
        changed = list(command.argv)
        name, sign, _ = changed[index].rpartition("=")
        changed[index] = f"{name}{sign}many"
        with pytest.raises(SystemExit):
            parse(changed)


def test_a_flag_changed_in_the_renderer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same through the renderer itself: what it writes is what is parsed."""
    whole = tensorrt_serve.serve_command

    def changed(resolved: Any) -> Command:
        command = whole(resolved)
        argv = ["--served_model_name" if word == "--tokenizer" else word for word in command.argv]
        return replace(command, argv=tuple(argv))

    monkeypatch.setattr(tensorrt_serve, "serve_command", changed)
    own = [path for path in FILES if spec_of(path).engine.runtime is Runtime.TENSORRT_LLM]
    assert len(own) > 5
    for path in own:
        with pytest.raises(SystemExit):
            parse(rendered(path)[-1].argv)


def test_a_build_flag_of_another_version_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builders before 0.10 took --tp_size; the recorded one must refuse it."""
    convert = tensorrt_steps._convert

    def older(*arguments: Any) -> Command:
        command = convert(*arguments)
        return replace(command, argv=(*command.argv, "--world_size", "2"))

    monkeypatch.setattr(tensorrt_steps, "_convert", older)
    (path,) = (path for path in FILES if path.stem == "llama-70b-pp2")
    with pytest.raises(SystemExit):
        parse(rendered(path)[0].argv)
