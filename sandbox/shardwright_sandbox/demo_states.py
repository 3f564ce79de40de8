"""Every state of the demo's deployment that was stored: a look now and then would miss some."""

import threading
from dataclasses import dataclass

from shardwright_sandbox.errors import SandboxError
from shardwright_sandbox.player.store import follow
from shardwright_sandbox.rest import Json, Rest

# Only for a server that hangs.
PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class State:
    """The deployment as it was stored once."""

    version: int
    generation: int
    status: Json


def state_of(found: Json) -> State:
    """What an object says; versions are numbers in order, as the API server gives them."""
    meta = found["metadata"]
    return State(int(meta["resourceVersion"]), meta["generation"], found.get("status", {}))


class States:
    """Collects the states of the one object under a path, on a thread of its own."""

    def __init__(self, rest: Rest, path: str) -> None:
        self._rest = rest
        self._path = path
        self._came = threading.Condition()
        self._waiting: list[State] = []
        self._newest = 0
        self._listed = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="states", daemon=True)

    def start(self) -> None:
        """Begin, and wait until what comes from now on is collected."""
        self._thread.start()
        with self._came:
            if not self._came.wait_for(lambda: self._listed, PATIENCE_SECONDS):
                raise SandboxError(f"{self._path} could not be listed")

    def stop(self) -> None:
        """Collect no more; the thread ends with its watch."""
        self._stop.set()

    def until(self, version: int) -> list[State]:
        """The states that nobody has taken yet, in order, up to this one at least.

        Raises:
            SandboxError: When it does not come.
        """
        with self._came:
            if not self._came.wait_for(lambda: self._newest >= version, PATIENCE_SECONDS):
                raise SandboxError(f"{self._path}: state {version} did not come by")
            taken, self._waiting = self._waiting, []
        return taken

    def _follow(self) -> None:
        follow(self._rest, self._path, self._stop, self._on_list, self._on_event)

    def _on_list(self, items: list[Json]) -> None:
        for item in items:
            self._on_event("ADDED", item)
        with self._came:
            self._listed = True
            self._came.notify_all()

    def _on_event(self, kind: str, item: Json) -> None:
        state = state_of(item)
        with self._came:
            if kind != "DELETED" and state.version > self._newest:
                self._waiting.append(state)
                self._newest = state.version
                self._came.notify_all()
