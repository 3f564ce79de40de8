"""What is fetched: a model, heads or an adapter of one. They differ in files and facts only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright.fetching.adapters import (
    check_adapter,
    check_adapter_texts,
    choose_adapter,
    inspect_adapter,
)
from shardwright.fetching.claim import inspect
from shardwright.fetching.remote import RemoteFile
from shardwright.fetching.selection import choose
from shardwright.fetching.uris import ClaimFolder
from shardwright.fetching.weights import check_texts, check_weights
from shardwright.runner.contract import (
    INPUT_PART,
    PART_HEADS,
    STEP_ADAPTER,
    STEP_MODEL,
    StepRequest,
)


@dataclass(frozen=True, slots=True)
class Kind:
    """How one kind of artifact is chosen from a source's files, and checked.

    Attributes:
        step: Its step.
        choose: The files that are fetched of all that the source has.
        check_texts: Refuses by what has come before any weights.
        facts: What the manifest says of it beside its files, once all of them are there.
        inspect: The same of one that lies on a claim already.
    """

    step: str
    choose: Callable[[Sequence[RemoteFile], str], tuple[RemoteFile, ...]]
    check_texts: Callable[[Path, Collection[str], str], None]
    facts: Callable[[Path, Sequence[str], str], dict[str, Any]]
    inspect: Callable[[ClaimFolder, Path], dict[str, Any]]


KINDS: Mapping[str, Kind] = {
    STEP_MODEL: Kind(
        STEP_MODEL,
        choose,
        check_texts,
        lambda folder, names, where: {"facts": check_weights(folder, names, where)},
        lambda place, root: {"facts": inspect(place, root)},
    ),
    STEP_ADAPTER: Kind(
        STEP_ADAPTER,
        choose_adapter,
        check_adapter_texts,
        lambda folder, names, where: {"adapter": check_adapter(folder, names, where)},
        lambda place, root: {"adapter": inspect_adapter(place, root)},
    ),
}


def _heads_texts(folder: Path, names: Collection[str], where: str) -> None:
    check_texts(folder, names, where, heads=True)


def _heads_facts(folder: Path, names: Sequence[str], where: str) -> dict[str, Any]:
    check_weights(folder, names, where, heads=True)
    return {}


def _heads_in_place(place: ClaimFolder, root: Path) -> dict[str, Any]:
    inspect(place, root, heads=True)
    return {}


# Heads lie where models do and are chosen like them; their config tells no model's facts.
HEADS = Kind(STEP_MODEL, choose, _heads_texts, _heads_facts, _heads_in_place)


def kind_of(request: StepRequest) -> Kind | None:
    """What a request asks for; None for a step that fetches nothing."""
    if request.step == STEP_MODEL and request.inputs.get(INPUT_PART) == PART_HEADS:
        return HEADS
    return KINDS.get(request.step)
