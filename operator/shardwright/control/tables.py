"""One kind's objects as the operator knows them: newest version wins, whatever order it comes in.

Watch events, answers to our own writes and lists mix. Resource versions are compared as integers
(Kubernetes guarantees since 1.35 that they can be, and etcd's were before), so an older message
never overwrites a newer one, and what is gone stays gone: a deleted uid is remembered with the
version at which it went, and only a later version (a label lost and regained) brings it back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from shardwright.apply.executor import Version

View = TypeVar("View")
Place = tuple[str, str]  # namespace, name
_TOMBSTONES: Final = 16384
_FOREVER: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class Entry(Generic[View]):
    """An object: which one, in which version, and what is known of it."""

    version: Version
    view: View


@dataclass(frozen=True, slots=True)
class Change(Generic[View]):
    """What a message changed: `old` None for a new object, `new` None for one that went.

    An object that was replaced under its name shows both, with different uids.
    """

    place: Place
    old: Entry[View] | None
    new: Entry[View] | None


class Table(Generic[View]):
    """Objects of one kind by namespace and name, with secondary indexes.

    Args:
        indexes: Name to a function that gives the keys under which a view is found.
    """

    def __init__(
        self, indexes: Mapping[str, Callable[[View], Iterable[Hashable]]] | None = None
    ) -> None:
        self._entries: dict[Place, Entry[View]] = {}
        self._functions = dict(indexes or {})
        self._indexes: dict[str, dict[Hashable, dict[Place, View]]] = {
            name: {} for name in self._functions
        }
        self._gone: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[View]:
        return (entry.view for entry in self._entries.values())

    def get(self, namespace: str, name: str) -> View | None:
        """The object of this name."""
        entry = self._entries.get((namespace, name))
        return entry.view if entry else None

    def entry(self, namespace: str, name: str) -> Entry[View] | None:
        """The object of this name with its version."""
        return self._entries.get((namespace, name))

    def by(self, index: str, key: Hashable) -> tuple[View, ...]:
        """Objects found under `key`, in no particular order."""
        return tuple(self._indexes[index].get(key, {}).values())

    def put(self, place: Place, version: Version, view: View) -> Change[View] | None:
        """Take a version of an object; None if nothing new was learnt."""
        old = self._entries.get(place)
        if self._gone.get(version.uid, -1) >= version.resource_version:
            return None
        if old is not None and old.version.resource_version >= version.resource_version:
            return None
        self._unindex(place, old)
        new = Entry(version, view)
        self._entries[place] = new
        for name, function in self._functions.items():
            for key in function(view):
                self._indexes[name].setdefault(key, {})[place] = view
        return Change(place, old, new)

    def remove(self, place: Place, uid: str, resource_version: int) -> Change[View] | None:
        """Take note that the object with `uid` is gone as of a version (0: for good)."""
        self._bury(uid, resource_version or _FOREVER)
        old = self._entries.get(place)
        if old is None or old.version.uid != uid:
            return None
        del self._entries[place]
        self._unindex(place, old)
        return Change(place, old, None)

    def retain(
        self, listed: Collection[Place], resource_version: int, within: Callable[[Place], bool]
    ) -> list[Change[View]]:
        """Remove what a list of a later version does not hold.

        Args:
            listed: Places that the list holds.
            resource_version: The list's.
            within: Which places the list was about.
        """
        missing = [
            (place, entry)
            for place, entry in self._entries.items()
            if entry.version.resource_version <= resource_version
            and place not in listed
            and within(place)
        ]
        changes = (
            self.remove(place, entry.version.uid, resource_version) for place, entry in missing
        )
        return [change for change in changes if change is not None]

    def _bury(self, uid: str, resource_version: int) -> None:
        self._gone[uid] = max(self._gone.pop(uid, 0), resource_version)
        while len(self._gone) > _TOMBSTONES:
            # insertion order: the oldest goes, long after its last event can have been under way
            del self._gone[next(iter(self._gone))]

    def _unindex(self, place: Place, old: Entry[View] | None) -> None:
        if old is None:
            return
        for name, function in self._functions.items():
            index = self._indexes[name]
            for key in function(old.view):
                found = index.get(key)
                if found is not None:
                    found.pop(place, None)
                    if not found:
                        del index[key]
