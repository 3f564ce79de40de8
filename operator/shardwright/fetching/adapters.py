"""Which files of an adapter are fetched, and whether they are one: PEFT's two files, no pickles."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path, PurePosixPath

from shardwright.fetching.failures import (
    REASON_ADAPTER_INVALID,
    REASON_UNSAFE_WEIGHTS,
    permanent,
)
from shardwright.fetching.remote import RemoteFile
from shardwright.fetching.selection import LICENCES, PICKLES
from shardwright.fetching.uris import ClaimFolder
from shardwright.runner.adapter_facts import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    AdapterFactsError,
    adapter_facts,
    config_of,
)
from shardwright.runner.contract import (
    REASON_ACCESS_DENIED,
    REASON_MODEL_NOT_FOUND,
    AdapterFacts,
)


def choose_adapter(files: Sequence[RemoteFile], where: str) -> tuple[RemoteFile, ...]:
    """Configuration, weights and licence; tokenizers and what training has left are no part.

    Raises:
        FetchError: One of the two is missing, or the weights are a pickle.
    """
    names = {file.name for file in files}
    if ADAPTER_CONFIG not in names:
        raise permanent(
            REASON_MODEL_NOT_FOUND,
            f"{where} holds no {ADAPTER_CONFIG} ({len(files)} files): the adapter's uri must name "
            "a folder in PEFT's form",
        )
    if ADAPTER_WEIGHTS not in names:
        pickles = sorted(name for name in names if PurePosixPath(name).suffix.lower() in PICKLES)
        if pickles:
            raise permanent(
                REASON_UNSAFE_WEIGHTS,
                f"{where} has its weights as a pickle only ({pickles[0]}), and loading a pickle "
                f"executes what is in it; save the adapter as {ADAPTER_WEIGHTS}",
            )
        raise permanent(
            REASON_MODEL_NOT_FOUND, f"{where} has no {ADAPTER_WEIGHTS} beside its {ADAPTER_CONFIG}"
        )
    return tuple(
        file
        for file in sorted(files, key=lambda file: (file.name == ADAPTER_WEIGHTS, file.name))
        if file.name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS) or file.name.upper().startswith(LICENCES)
    )


def check_adapter_texts(folder: Path, names: Collection[str], where: str) -> None:  # noqa: ARG001
    """Do nothing if the configuration can be read; asked before the weights are fetched.

    Raises:
        FetchError: It is no JSON object.
        OSError: The storage failed.
    """
    try:
        config_of(folder)
    except AdapterFactsError as error:
        raise permanent(REASON_ADAPTER_INVALID, f"{where}: {error}") from error


def check_adapter(folder: Path, names: Sequence[str], where: str) -> AdapterFacts:  # noqa: ARG001
    """The adapter's facts, if its files are whole and tell them.

    Raises:
        FetchError: They do not.
        OSError: The storage failed.
    """
    try:
        return adapter_facts(folder)
    except AdapterFactsError as error:
        raise permanent(REASON_ADAPTER_INVALID, f"{where}: {error}") from error


def inspect_adapter(place: ClaimFolder, root: Path) -> AdapterFacts:
    """The facts of an adapter that lies on a claim already; nothing is copied.

    Args:
        place: Claim and path, as the uri has it.
        root: Where the claim is mounted.

    Raises:
        FetchError: There is no such folder, it cannot be read, or it is no adapter.
        OSError: The storage failed.
    """
    where = f"pvc://{place.claim}/{place.path}"
    folder = root / place.path
    if not folder.resolve().is_relative_to(root.resolve()):
        raise permanent(REASON_MODEL_NOT_FOUND, f"{where}: a link leads out of the claim")
    try:
        if not (folder / ADAPTER_CONFIG).is_file():
            raise permanent(
                REASON_MODEL_NOT_FOUND,
                f"{where}: the claim holds no {place.path}/{ADAPTER_CONFIG}; correct the adapter's "
                "uri, or copy the adapter there",
            )
        return check_adapter(folder, (), where)
    except PermissionError as error:
        raise permanent(
            REASON_ACCESS_DENIED,
            f"{where}: {error.filename} cannot be read by user {os.getuid()} and group "
            f"{os.getgid()}; give others read access to it (chmod -R o+rX)",
        ) from error
