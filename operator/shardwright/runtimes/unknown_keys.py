"""What to write instead of a key of `engine.config` that a runtime does not know."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from shardwright.api.asked import AskedSpec
from shardwright.api.forms import form_of, squeezed

_FREE = ("engine", "config")
_ALIKE = 0.7
# A field of the spec is named by another tool than the key: it must be as good as the same.
_ALIKE_FIELD = 0.85
_AS_NEAR = 0.03
_MOST_NEAR = 3
_MOST_FIELDS = 3
_MOST_LISTED = 40


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one place, and those below it by their paths (`kv_cache_config.max_tokens`).

    Attributes:
        known: Those that a user may set.
        reserved: Those that the operator sets, and the field of the spec that decides each.
        block: The block that they all lie in; empty for the whole configuration.
    """

    known: Collection[str]
    reserved: Mapping[str, str] = field(default_factory=dict)
    block: str = ""

    def path(self, key: str) -> str:
        """A key by its path in the configuration."""
        return f"{self.block}.{key}" if self.block else key


def instead_of(name: str, keys: Keys) -> str:
    """What to write instead of `name`: a field of the spec, the nearest keys, or any of the known.

    `name` is without its block. The same name in another spelling comes first (`maxBatchSize`,
    `max-batch-size`), then the same one block deeper, then what is like it, keys before fields.
    """
    asked, every = squeezed(name), (*keys.reserved, *keys.known)
    same = [key for key in every if squeezed(key) == asked]
    if same or (same := [key for key in every if squeezed(_last(key)) == asked]):
        return _offer(same[:1], keys)
    if there := _fields(asked, 1.0):
        return f"use {' or '.join(there)} instead"
    if near := _nearest(asked, every):
        return _offer(near, keys)
    if there := _fields(asked, _ALIKE_FIELD):
        return f"use {' or '.join(there)} instead"
    here = [keys.path(key) for key in sorted(keys.known) if "." not in key]
    if len(here) > _MOST_LISTED:
        return "leave it out"
    return f"leave it out, or write one of {', '.join(here)}"


def _offer(names: list[str], keys: Keys) -> str:
    """The first of the names decides: it is one to write, or one that a field stands for."""
    first = names[0]
    if first in keys.reserved:
        return (
            f"did you mean {keys.path(first)}? It is set by the operator; use "
            f"{keys.reserved[first]} instead"
        )
    return f"did you mean {' or '.join(keys.path(key) for key in names if key in keys.known)}?"


def _nearest(asked: str, names: Iterable[str]) -> list[str]:
    """The names that are most like it: the best, and others that are as good."""
    alike: dict[str, float] = {}
    for name in names:
        likeness = max(_likeness(asked, form, _ALIKE) for form in {name, _last(name)})
        if likeness >= _ALIKE:
            alike[name] = likeness
    least = max(alike.values(), default=0.0) - _AS_NEAR
    near = [name for name, likeness in alike.items() if likeness >= least]
    return sorted(near, key=lambda name: (-alike[name], name))[:_MOST_NEAR]


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def _likeness(asked: str, name: str, least: float) -> float:
    """How like two names are, 0 to 1; 0 where it is less than `least`, which is cheap to see."""
    pair = SequenceMatcher(None, squeezed(name), asked, autojunk=False)
    if pair.real_quick_ratio() < least or pair.quick_ratio() < least:
        return 0.0
    return pair.ratio()


def _fields(asked: str, alike: float) -> list[str]:
    """Fields of the spec of such a name; none where there are too many to mean one."""
    found = [
        ".".join(("spec", *path))
        for path in form_of(AskedSpec).fields()
        if path != _FREE and _likeness(asked, path[-1], alike) >= alike
    ]
    return found if len(found) <= _MOST_FIELDS else []
