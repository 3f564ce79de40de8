"""The recorded command lines and keys (tests/contracts) that the stand-ins hold callers to."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import yaml

FOLDER = "SHARDWRIGHT_STANDIN_CONTRACTS"
_INSTALLED = Path(__file__).parent / "contracts"
_REPOSITORY = Path(__file__).parents[3] / "tests" / "contracts"


class ContractMissingError(FileNotFoundError):
    """No contract of that tool was recorded."""


def folder() -> Path:
    """Where the contracts are: as the environment says, beside this file, or in the repository."""
    return Path(os.environ.get(FOLDER) or (_INSTALLED if _INSTALLED.is_dir() else _REPOSITORY))


@cache
def load(tool: str) -> dict[str, Any]:
    """The one recorded contract of a tool.

    Raises:
        ContractMissingError: When there is none.
    """
    for path in sorted(folder().glob(f"{tool}-*.yaml")):
        found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        if found["tool"] == tool:
            return found
    raise ContractMissingError(f"{folder()} has no contract of {tool}")
