"""Whether a model's folder is whole: every shard its index names, no file cut off, facts that hold.

A checksum says that a file is what the source has; this says that what the source has is a model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from shardwright.fetching.failures import REASON_MODEL_INCOMPLETE, permanent
from shardwright.fetching.selection import CONFIG, is_weight
from shardwright.runner.contract import ModelFacts
from shardwright.runner.facts import (
    CONFIG_LIMIT_BYTES,
    INDEX,
    INDEX_LIMIT_BYTES,
    ModelFactsError,
    facts_of,
    model_facts,
)
from shardwright.runner.jsonfile import JsonFileError, read_object
from shardwright.runner.steps.result import safetensors_problem


def check_texts(folder: Path, names: Collection[str], where: str, *, heads: bool = False) -> None:
    """Do nothing if what has come so far promises a model; asked before any weights are fetched.

    Args:
        folder: Holds config.json and, if the model has one, the index of its shards.
        names: All files that the folder has or will have.
        where: The uri, for messages.
        heads: A part of a model is asked for, whose config tells no facts of one.

    Raises:
        FetchError: The config tells no facts, or the index names shards that the source lacks.
        OSError: The storage failed.
    """
    try:
        config = read_object(folder / CONFIG, CONFIG_LIMIT_BYTES)
        if not heads:
            facts_of(config, {}, 0)
        if INDEX not in names:
            return
        table = read_object(folder / INDEX, INDEX_LIMIT_BYTES).get("weight_map")
    except (ModelFactsError, JsonFileError) as error:
        raise permanent(REASON_MODEL_INCOMPLETE, f"{where}: {error}") from error
    if not isinstance(table, Mapping):
        raise permanent(REASON_MODEL_INCOMPLETE, f"{where}: {INDEX} has no weight_map")
    lacking = sorted({str(name) for name in table.values()} - set(names))
    if lacking:
        raise permanent(
            REASON_MODEL_INCOMPLETE,
            f"{where}: {INDEX} names {len(lacking)} files that are not there, first "
            f"{lacking[0]}; the upload is not complete",
        )


def check_weights(
    folder: Path, names: Sequence[str], where: str, *, heads: bool = False
) -> ModelFacts | None:
    """The model's facts, if every weight file is whole; None of heads, which have none.

    Raises:
        FetchError: Something is missing, cut off, or makes no sense.
        OSError: The storage failed.
    """
    check_texts(folder, names, where, heads=heads)
    for name in names:
        if is_weight(name) and (problem := safetensors_problem(folder / name)):
            raise permanent(
                REASON_MODEL_INCOMPLETE, f"{where}: {problem}; upload or copy that file again"
            )
    if heads:
        return None
    try:
        return model_facts(folder)
    except ModelFactsError as error:
        raise permanent(REASON_MODEL_INCOMPLETE, f"{where}: {error}") from error
