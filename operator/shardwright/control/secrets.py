"""Which Secrets are there: asked of the server now and then, as they are not watched."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from shardwright.control.queue import Key

# A Secret that was there is asked for again this rarely: idle must cost next to no requests.
SECRET_SECONDS = 3600.0

SecretThere = Callable[[str, str], Awaitable[bool]]


class Secrets:
    """Keeps when each Secret that some deployment names was seen last, and of no other.

    Deployments of a namespace share what is known.
    """

    def __init__(self, there: SecretThere, clock: Callable[[], float]) -> None:
        """`there` asks whether namespace and name exist; `clock` counts seconds."""
        self._there = there
        self._clock = clock
        self._named: dict[Key, frozenset[str]] = {}
        self._seen: dict[tuple[str, str], float] = {}

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._seen)

    def name(self, key: Key, names: Iterable[str]) -> None:
        """These are all that a deployment names now."""
        before, now = self._named.get(key, frozenset()), frozenset(names)
        if now:
            self._named[key] = now
        else:
            self._named.pop(key, None)
        for gone in before - now:
            shared = any(
                gone in others and other.namespace == key.namespace
                for other, others in self._named.items()
            )
            if not shared:
                self._seen.pop((key.namespace, gone), None)

    def forget(self, key: Key) -> None:
        """A deployment is gone."""
        self.name(key, ())

    async def missing(self, key: Key, names: Iterable[str]) -> tuple[str, ...]:
        """Which of these, that the deployment has named, are not there."""
        missing = []
        for name in names:
            place = (key.namespace, name)
            seen = self._seen.get(place)
            now = self._clock()
            if seen is not None and now - seen <= SECRET_SECONDS:
                continue
            # A missing one is asked for at every pass: someone is waiting for it.
            if await self._there(*place):
                self._seen[place] = now
            else:
                self._seen.pop(place, None)
                missing.append(name)
        return tuple(missing)
