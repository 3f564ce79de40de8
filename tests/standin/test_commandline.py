"""The stand-ins take what the contracts record, and nothing else."""

from __future__ import annotations

import contextlib
import importlib.util
import io
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from shardwright_standin import commandline, contracts, identity
from shardwright_standin.install import install

CONTRACTS = Path(__file__).parents[1] / "contracts"
TOOLS = (
    "quantize",
    "convert_checkpoint",
    "trtllm-build",
    "trtllm-serve",
    "trtllm-eval",
    "trtllm-bench",
    "vllm-serve",
    "sglang.launch_server",
)


def parsers() -> Iterator[Any]:
    """Each parser of each contract: tool, family, words in front, flags, words behind."""
    for tool in TOOLS:
        recorded = contracts.load(tool)
        if "families" in recorded:
            for family, entry in recorded["families"].items():
                yield pytest.param(tool, family, [], entry["flags"], [], id=f"{tool}-{family}")
            continue
        words = required(recorded["flags"])
        tail = ["word" for name in recorded["positional"] if not name.endswith("?")]
        commands = recorded.get("commands", {})
        behind = [next(iter(commands))] if commands else tail
        yield pytest.param(tool, "", words, recorded["flags"], behind, id=tool)
        for name, entry in commands.items():
            yield pytest.param(tool, "", [*words, name], entry["flags"], [], id=f"{tool}-{name}")


def required(flags: Mapping[str, Any]) -> list[str]:
    return [
        word
        for flag, entry in flags.items()
        if entry.get("required")
        for word in (flag, value(entry))
    ]


def value(entry: Mapping[str, Any]) -> str:
    """A value that the entry allows."""
    if "choices" in entry:
        return str(entry["choices"][-1])
    if entry.get("exists"):
        return str(CONTRACTS)
    if "pattern" in entry:
        return "8192"
    kind = entry.get("of", entry["type"])
    words = {"integer": "3", "number": "0.5", "json": "{}", "boolean": "true"}
    return words.get(kind, "enable" if kind == "enable|disable" else "word")


def wrong(entry: Mapping[str, Any]) -> str:
    """A value that the entry refuses, or nothing for free text."""
    if "choices" in entry:
        return "no-such-choice"
    if "minimum" in entry:
        return str(entry["minimum"] - 1)
    if entry.get("exists"):
        return "no-such-path"
    kind = entry.get("of", entry["type"])
    if "pattern" in entry or kind in ("integer", "number", "json", "boolean"):
        return "no-such-value"
    return "maybe" if kind == "enable|disable" else ""


def refusal(tool: str, words: list[str], family: str) -> str:
    """What the parser says while it ends with code 2."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), pytest.raises(SystemExit) as ended:
        commandline.parse(tool, words, family)
    assert ended.value.code == 2
    return said.getvalue()


@pytest.mark.parametrize(("tool", "family", "front", "flags", "behind"), list(parsers()))
def test_each_recorded_flag_and_alias_is_taken_with_an_allowed_value(
    tool: str, family: str, front: list[str], flags: Mapping[str, Any], behind: list[str]
) -> None:
    for flag, entry in flags.items():
        switch = entry["type"] == "switch"
        for spelling in (flag, *entry.get("aliases", ())):
            words = [] if switch else [value(entry)]
            line = [*front, spelling, *words, *behind]
            parsed = commandline.parse(tool, line, family)
            given = parsed.inner if parsed.command and not behind else parsed.values
            assert given[commandline.key(flag)] not in (None, (), False), line


@pytest.mark.parametrize(("tool", "family", "front", "flags", "behind"), list(parsers()))
def test_a_value_of_the_wrong_kind_is_a_usage_error_that_names_the_flag(
    tool: str, family: str, front: list[str], flags: Mapping[str, Any], behind: list[str]
) -> None:
    seen = 0
    for flag, entry in flags.items():
        bad = "" if entry["type"] == "switch" else wrong(entry)
        if not bad:
            continue
        said = refusal(tool, [*front, flag, bad, *behind], family)
        assert flag in said, said
        seen += 1
    assert seen, "the contract has no typed flag, so this test would prove nothing"


@pytest.mark.parametrize(("tool", "family", "front", "flags", "behind"), list(parsers()))
def test_a_flag_that_is_not_recorded_is_a_usage_error(
    tool: str, family: str, front: list[str], flags: Mapping[str, Any], behind: list[str]
) -> None:
    said = refusal(tool, [*front, "--no-such-flag", "1", *behind], family)
    assert "--no-such-flag" in said
    # argparse would guess a flag from its beginning; the guess is off.
    longest = max((flag for flag in flags if flags[flag]["type"] != "switch"), key=len)
    assert longest[:-1] not in flags
    assert longest[:-1] in refusal(tool, [*front, longest[:-1], "1", *behind], family)


@pytest.mark.parametrize("tool", ["trtllm-eval", "trtllm-bench", "sglang.launch_server"])
def test_a_required_flag_is_asked_for(tool: str) -> None:
    said = refusal(tool, ["mmlu"] if tool == "trtllm-eval" else ["build"], "")
    assert "--model" in said


def test_the_words_are_those_of_each_tool_s_own_library() -> None:
    said = refusal("trtllm-build", ["--tp_size", "8"], "")
    assert said.startswith("usage: trtllm-build [-h]")
    assert "trtllm-build: error: unrecognized arguments: --tp_size 8" in said
    said = refusal("trtllm-serve", ["model", "--grpc"], "")
    assert said.startswith("Usage: trtllm-serve serve [OPTIONS] MODEL\n")
    assert "No such option" in said
    assert "Missing argument 'MODEL'" in refusal("trtllm-serve", [], "")
    assert "No such command 'gsm9k'" in refusal("trtllm-eval", ["--model", "m", "gsm9k"], "")


def test_switches_that_can_be_taken_back_are_three_valued() -> None:
    def asked(*words: str) -> object:
        return commandline.parse("vllm-serve", ["m", *words]).values["enable_prefix_caching"]

    assert asked() is None
    assert asked("--enable-prefix-caching") is True
    assert asked("--no-enable-prefix-caching") is False


def test_defaults_are_those_recorded() -> None:
    values = commandline.parse("trtllm-serve", ["model"]).values
    assert (values["host"], values["port"], values["backend"]) == ("localhost", 8000, "pytorch")
    values = commandline.parse("sglang.launch_server", ["--model-path", "m"]).values
    assert (values["host"], values["port"]) == ("127.0.0.1", 30000)


def forget() -> None:
    contracts.load.cache_clear()
    commandline.argument_parser.cache_clear()


def test_a_changed_contract_changes_the_parser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = yaml.safe_load((CONTRACTS / "trtllm-build-1.2.yaml").read_text())
    del recorded["flags"]["--workers"]
    (tmp_path / "trtllm-build-1.2.yaml").write_text(yaml.safe_dump(recorded))
    monkeypatch.setenv(contracts.FOLDER, str(tmp_path))
    forget()
    try:
        assert "--workers" in refusal("trtllm-build", ["--workers", "1"], "")
    finally:
        forget()


def test_a_tool_without_contract_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(contracts.ContractMissingError, match="no contract of trtllm-refit"):
        contracts.load("trtllm-refit")


@pytest.mark.parametrize(
    ("release", "has"),
    [
        ("1.1.0", {"tensorrt_llm": "1.1.0", "tensorrt": "10.13.3.9"}),
        ("1.3.0rc14", {"tensorrt_llm": "1.3.0rc14"}),
    ],
)
def test_an_image_has_the_package_metadata_of_its_release(
    tmp_path: Path, release: str, has: dict[str, str]
) -> None:
    install(tmp_path, "1.2.1")
    install(tmp_path, release)
    library = str(tmp_path / "usr/local/lib/shardwright-standin")
    found = metadata.distributions(path=[library])
    assert {one.metadata["Name"]: one.version for one in found} == has
    with pytest.raises(identity.UnknownReleaseError, match=r"2\.0\.0 has no known TensorRT"):
        install(tmp_path, "2.0.0")


def test_what_is_installed_is_compiled_and_is_not_looked_at_again(installed: Path) -> None:
    sources = sorted((installed / "usr/local/lib/shardwright-standin").rglob("*.py"))
    assert sources
    for source in sources:
        compiled = Path(importlib.util.cache_from_source(str(source))).read_bytes()
        # PEP 552: by the content's hash, unchecked.
        assert int.from_bytes(compiled[4:8], "little") == 0b01, source
