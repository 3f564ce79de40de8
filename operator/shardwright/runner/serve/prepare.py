"""What a serving pod prepares before it starts anything: link, configuration, command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwright.runner.contract import REPOSITORY, SERVE_CONFIG, ServeRequest, served_model
from shardwright.runner.serve.places import Places
from shardwright.runner.serve.repository import write_repository
from shardwright.runner.serve.text import filled

# NCCL tells its ways in these parts of its log; whoever sets the level himself gets what he asked.
NCCL_ENV: Mapping[str, str] = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}


def substitutes(request: ServeRequest, places: Places) -> dict[str, str]:
    """What the placeholders of a command stand for."""
    return {
        "{scratch}": places.scratch,
        "{model}": request.model_folder,
        "{artifact}": request.artifact,
        "{stage}": str(request.stage),
        "{stages}": str(request.pipeline),
        "{leader}": request.peers[0],
    }


def order(request: ServeRequest, places: Places, environment: Mapping[str, str]) -> dict[str, Any]:
    """`argv` and `env` of each rank, or of the stage's server; `env` goes on top of the pod's.

    `followers` is the command line of ranks above 0 where they have another one. A rank's own
    number is filled in by `order_of`.
    """
    values = substitutes(request, places)
    added = {name: filled(value, values) for name, value in request.command.env.items()}
    if request.world_size > 1 and "NCCL_DEBUG" not in {*environment, *added}:
        added.update(NCCL_ENV)
    others = request.prepared.followers if request.prepared is not None else ()
    return {
        "argv": [filled(word, values) for word in request.command.argv],
        "env": added,
        **({"followers": [filled(word, values) for word in others]} if others else {}),
    }


def order_of(whole: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """What one rank is to run."""
    words = whole.get("followers", whole["argv"]) if rank else whole["argv"]
    number = {"{rank}": str(rank)}
    return {
        "argv": [filled(word, number) for word in words],
        "env": {name: filled(value, number) for name, value in whole["env"].items()},
    }


def write_files(request: ServeRequest, places: Places) -> None:
    """Make the link that servers name the model after, and write their configuration.

    Raises:
        OSError: The scratch volume cannot be written.
        ValueError: The served name is no name of a file, or what is to be put into the repository
            leads out of it, is too large, or is not in this image.
    """
    name = request.served_name
    if not name or "\0" in name or ".." in Path(name).parts or Path(name).is_absolute():
        raise ValueError(f"served_name {name!r} cannot be the name of a link: choose another")
    values = substitutes(request, places)
    link = Path(filled(served_model(name), values))
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.is_symlink():
        link.unlink()
    link.symlink_to(request.artifact, target_is_directory=True)
    config = Path(filled(SERVE_CONFIG, values))
    config.write_text(json.dumps(request.config, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    if request.prepared is not None:
        write_repository(request.prepared, Path(filled(REPOSITORY, values)), values)
