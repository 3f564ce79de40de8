"""Write what `engine.config` may name, from the recorded command lines; `--check` only compares.

vLLM and SGLang read their own configuration file as further flags, so what it may hold is what the
command line takes. The operator's package carries a short form of the records in tests/contracts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
CONTRACTS = ROOT / "tests" / "contracts"
TARGET = ROOT / "operator" / "shardwright" / "runtimes" / "data"
TOOLS = ("vllm-serve-0.33.0", "sglang.launch_server-0.5.23", "nim-serve-2.1.5")
# What a value may be, as far as it is recorded.
KEPT = ("type", "of", "choices", "pattern", "negated")


def short_form(recorded: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """By each long name without its dashes: the flag it belongs to, and what its value may be."""
    found: dict[str, dict[str, Any]] = {}
    for flag, entry in recorded["flags"].items():
        kept = {name: entry[name] for name in KEPT if name in entry}
        kept["negated"] = bool(kept.get("negated"))
        kept["deprecated"] = entry.get("note") == "deprecated"
        for name in (flag, *entry.get("aliases", ())):
            if name.startswith("--"):
                own = {"flag": flag[2:]} if name != flag else {}
                found[name[2:]] = {**own, **{key: value for key, value in kept.items() if value}}
    return dict(sorted(found.items()))


def written(tool: str) -> str:
    """The file's text: one flag a line, so that a change can be read."""
    recorded = yaml.safe_load((CONTRACTS / f"{tool}.yaml").read_text("utf-8"))
    lines = (
        f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in short_form(recorded).items()
    )
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main(arguments: list[str]) -> int:
    """Write the files, or tell which of them differ."""
    stale = []
    for tool in TOOLS:
        target = TARGET / f"{tool}.json"
        if arguments == ["--check"]:
            if not target.exists() or target.read_text("utf-8") != written(tool):
                stale.append(str(target.relative_to(ROOT)))
        else:
            target.parent.mkdir(exist_ok=True)
            target.write_text(written(tool), "utf-8")
    for name in stale:
        print(f"{name} differs from the record: run python hack/engine_flags.py")  # noqa: T201
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
