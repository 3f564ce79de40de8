"""What to load into a server and what to take out of it, from the table and what it lists. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardwright.runner.contract import (
    ADAPTER_FAILED,
    ADAPTER_LEAVING,
    ADAPTER_REFUSED,
    ADAPTER_WAITING,
    Adapter,
    AdapterServing,
    AdaptersHeard,
    AdapterTable,
)

LAST_RETRY_SECONDS = 300.0
_DOUBLINGS = 16  # far more than it takes to the last, and no float is too small for it


@dataclass(frozen=True)
class Tried:
    """Failures in a row to load one adapter's folder; `at` is when it is tried again."""

    folder: str
    failures: int
    at: float
    words: str

    def again(self, words: str, now: float) -> Tried:
        """One more failure: it is tried again after twice as long."""
        wait = min(2.0 ** min(self.failures, _DOUBLINGS), LAST_RETRY_SECONDS)
        return Tried(self.folder, self.failures + 1, now + wait, words)


@dataclass(frozen=True)
class Round:
    """What one look comes to.

    `unload` is done before `load`. `troubles` has (state, words) of what is asked for and stays
    out; what is about to be loaded is among them until it is there.
    """

    unload: tuple[str, ...] = ()
    load: tuple[Adapter, ...] = ()
    loaded: tuple[str, ...] = ()
    troubles: dict[str, tuple[str, str]] = field(default_factory=dict)

    def heard(self, table: str) -> AdaptersHeard:
        """As the status page tells it."""
        return AdaptersHeard(table, self.loaded, dict(self.troubles))


def outside(adapter: Adapter, limits: AdapterServing) -> str:
    """Why a server that was built or started for these limits must not get it; empty if it may.

    While a deployment moves to other limits, the table is of the new ones.
    """
    if adapter.rank > limits.max_rank:
        return f"rank {adapter.rank} exceeds {limits.max_rank}, for which this replica was built"
    lacking = sorted(set(adapter.modules) - set(limits.modules))
    if lacking:
        return f"this replica was not built to have {', '.join(lacking)} adapted"
    return ""


def plan_round(
    table: AdapterTable,
    limits: AdapterServing,
    listed: Mapping[str, str],
    missing: Mapping[str, str],
    tried: Mapping[str, Tried],
    now: float,
) -> Round:
    """The difference between what is asked for and what the server has.

    Args:
        table: What is asked for.
        limits: What the server was built or started for.
        listed: What the server has: folder by name.
        missing: What is wrong with the files of an adapter that is not loaded, by name.
        tried: Failures so far, by name.
        now: Of the clock that `tried` counts in.
    """
    wanted: dict[str, Adapter] = {}
    troubles: dict[str, tuple[str, str]] = {}
    for adapter in table.adapters:
        why = outside(adapter, limits)
        if why:
            troubles[adapter.name] = (ADAPTER_REFUSED, why)
        else:
            wanted[adapter.name] = adapter
    stale = [
        name
        for name, folder in listed.items()
        if name not in wanted or wanted[name].folder != folder
    ]
    load = []
    for name, adapter in wanted.items():
        if listed.get(name) == adapter.folder:
            continue
        last = tried.get(name)
        if missing.get(name):
            troubles[name] = (ADAPTER_WAITING, missing[name])
        elif last is not None and last.folder == adapter.folder and now < last.at:
            troubles[name] = (ADAPTER_FAILED, last.words)
        else:
            known = last is not None and last.folder == adapter.folder
            state = (
                (ADAPTER_FAILED, last.words) if known and last else (ADAPTER_WAITING, "its turn")
            )
            troubles[name] = state
            load.append(adapter)
    kept = tuple(sorted(set(wanted) - set(troubles)))
    for name in stale:
        troubles.setdefault(name, (ADAPTER_LEAVING, "it is taken out"))
    return Round(tuple(sorted(stale)), tuple(load), kept, troubles)


def listed_adapters(page: object) -> dict[str, str]:
    """Folder by name of the adapters in a server's list of models: those that have a parent.

    vLLM and SGLang answer `{"data": [{"id", "root", "parent"}, …]}`; the base model has no parent.

    Raises:
        ValueError: It is no such list.
    """
    models = page.get("data") if isinstance(page, dict) else None
    try:
        return {
            str(model["id"]): str(model["root"]) for model in models or () if model.get("parent")
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"the list of models cannot be read: {error!r}") from error
