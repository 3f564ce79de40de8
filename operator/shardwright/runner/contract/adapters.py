"""Adapters: what a leader is to have loaded, what it has, and what their own files say."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from shardwright.runner.contract.folders import ContractError
from shardwright.runner.contract.words import CONTRACT_VERSION


@dataclass(frozen=True)
class Adapter:
    """One adapter that a leader is to have loaded.

    `folder` is where its files are in the pod, `key` the artifact that they are; `in_place` means
    that they are somebody else's, of which no list of files exists. `number` is the same for the
    same artifact, and another for any other: what some runtimes know an adapter by.
    """

    name: str
    folder: str
    key: str
    number: int
    rank: int
    modules: tuple[str, ...]
    in_place: bool = False


@dataclass(frozen=True)
class AdapterTable:
    """All adapters that the leaders of a deployment are to have loaded, and no others."""

    adapters: tuple[Adapter, ...] = ()
    contract: int = CONTRACT_VERSION


def table_digest(text: str) -> str:
    """What names one table: 16 hex digits over its bytes."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class AdapterServing:
    """How a server is given adapters while it serves.

    `max_rank` and `modules` (by the adapters' names) are what it was built or started with. `load`
    takes {lora_name, lora_path} and `unload` {lora_name} by POST; `models` lists what is loaded,
    the base model first among them. Without `load` a request itself names the adapter's folder,
    and there is nothing to do but to see that it is there.
    """

    max_rank: int
    modules: tuple[str, ...]
    load: str = ""
    unload: str = ""
    models: str = "/v1/models"


@dataclass(frozen=True)
class AdapterFacts:
    """What an adapter's own files say of it; whether a base model can take it rests on this.

    `rank` is the highest of any module. `modules` are the last parts of the names of adapted
    projections (`q_proj`), `sizes` their inputs and outputs where all layers agree, `layers` the
    highest layer that is adapted plus one. `features` is whatever it has beyond low-rank matrices
    of projections: such an adapter is not served. `scales` are PEFT's ways to scale that make the
    factor of some module another one than alpha / r: not every runtime knows them. `base` is the
    model it was trained on, by its own word; `bytes` is the size of its weights on disk.
    """

    rank: int
    alpha: float
    modules: tuple[str, ...]
    base: str = ""
    dtype: str = ""
    layers: int = 0
    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    bytes: int = 0
    scales: tuple[str, ...] = ()

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> AdapterFacts:
        """Facts as another version wrote them: what it knows and we do not is passed over.

        Raises:
            TypeError, ValueError: A field is missing or of another form.
        """
        known = {item.name for item in fields(cls)}
        values = {name: value for name, value in raw.items() if name in known}
        for name in ("modules", "features", "scales"):
            values[name] = tuple(map(str, values.get(name, ())))
        values["sizes"] = {
            name: (int(size[0]), int(size[1])) for name, size in values.get("sizes", {}).items()
        }
        return cls(**values)


# What a leader says of an adapter that is not as it is asked for.
ADAPTER_WAITING = "Waiting"  # its turn or its files have not come yet
ADAPTER_REFUSED = "Refused"  # outside of what this pod was built or started for
ADAPTER_FAILED = "Failed"  # the server did not take it; it is tried again
ADAPTER_LEAVING = "Leaving"  # nobody asks for it any more, and it is still there


@dataclass(frozen=True)
class AdaptersHeard:
    """What a leader has loaded: by name, of the table whose digest it names.

    `troubles` has (state, words) of each adapter that is asked for and not loaded, or the other
    way round.
    """

    table: str
    loaded: tuple[str, ...] = ()
    troubles: dict[str, tuple[str, str]] = field(default_factory=dict)

    def told(self) -> dict[str, Any]:
        """As the status page has it."""
        return {
            "table": self.table,
            "loaded": list(self.loaded),
            "troubles": {name: list(trouble) for name, trouble in self.troubles.items()},
        }


def adapters_heard(page: Any) -> AdaptersHeard:
    """Adapters from the object that a leader answers at STATUS_PATH.

    Raises:
        ContractError: It is no such object.
    """
    try:
        told = page["adapters"]
        return AdaptersHeard(
            table=str(told["table"]),
            loaded=tuple(map(str, told["loaded"])),
            troubles={
                str(name): (str(trouble[0]), str(trouble[1]))
                for name, trouble in told["troubles"].items()
            },
        )
    except (AttributeError, KeyError, TypeError, IndexError) as error:
        raise ContractError(f"the status page tells no adapters: {error!r}") from error
