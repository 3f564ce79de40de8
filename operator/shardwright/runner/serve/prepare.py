"""What a serving pod prepares before it starts anything: link, configuration, command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwright.runner.contract import REPOSITORY, ServeRequest
from shardwright.runner.serve.places import Places
from shardwright.runner.serve.repository import write_repository
from shardwright.runner.serve.text import filled
from shardwright.runner.served import link_model, write_config

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
    link_model(places.scratch, request.served_name, request.artifact)
    write_config(places.scratch, request.config)
    if request.prepared is not None:
        values = substitutes(request, places)
        write_repository(request.prepared, Path(filled(REPOSITORY, values)), values)
