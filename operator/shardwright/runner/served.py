"""What a server finds on the scratch volume: the model under its name, and its configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwright.runner.contract import SERVE_CONFIG, ContractError, served_model


def write_config(scratch: Path | str, config: Mapping[str, Any]) -> None:
    """Write a tool's configuration file.

    Raises:
        OSError: The scratch volume cannot be written.
    """
    path = Path(SERVE_CONFIG.replace("{scratch}", str(scratch)))
    path.write_text(json.dumps(config, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def link_model(scratch: Path | str, name: str, folder: Path | str) -> None:
    """Make the link that servers name the model after, anew if it is there.

    Raises:
        OSError: The scratch volume cannot be written.
        ContractError: The served name is no name of a file.
    """
    if not name or "\0" in name or ".." in Path(name).parts or Path(name).is_absolute():
        raise ContractError(f"served_name {name!r} cannot be the name of a link: choose another")
    link = Path(served_model(name).replace("{scratch}", str(scratch)))
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.is_symlink():
        link.unlink()
    link.symlink_to(folder, target_is_directory=True)
