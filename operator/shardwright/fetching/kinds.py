"""What is fetched: a whole model, or an adapter of one. They differ in files and facts only."""

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
from shardwright.runner.contract import STEP_ADAPTER, STEP_MODEL


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
