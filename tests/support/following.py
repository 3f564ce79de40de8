"""Follows the objects of one kind: every state that is stored comes by, and none is missed.

A watch is a moment behind what a request reads, and far behind on a busy machine. So whoever asks
what has come by first waits for all that was stored when it asked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from tests.support.kube import Kube
from urllib3.exceptions import HTTPError

from shardwright_sandbox.rest import GONE, Json, Rest, RestError, rest_of

# A watch is asked for anew this often: it is how the thread sees that it shall stop.
_WATCH_SECONDS = "2"
_PAUSE_SECONDS = 0.2
# Only for a server that hangs.
_PATIENCE_SECONDS = 60.0


class Follower:
    """Lists one path and watches it, and tells of each object: ADDED, MODIFIED or DELETED."""

    def __init__(
        self, rest: Rest, path: str, tell: Callable[[str, Json], None], **query: str
    ) -> None:
        self._rest = rest
        self._path = path
        self._tell = tell
        self._query = query
        self._stop = threading.Event()
        self._moved = threading.Condition()
        self._there: dict[str, Json] = {}  # by uid, as they were told last
        self._gone: set[str] = set()
        self._listed = False
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"follow {path}", daemon=True)

    def start(self) -> None:
        """Begin, and wait until what is there already has been told."""
        self._thread.start()
        self._wait_for(lambda: self._listed, "could not be listed")

    def catch_up(self) -> None:
        """Wait until all that is stored by now has been told; at once after the end."""
        if self._stop.is_set():
            return
        answer = self._rest.get(self._path, **self._query)
        stored = int(answer["metadata"]["resourceVersion"])
        listed = {_uid(item): _version(item) for item in answer["items"]}
        self._wait_for(lambda: self._knows(listed, stored), "is behind")

    def stop(self) -> None:
        """End; raises what went wrong, since then something may have been missed."""
        self._stop.set()
        self._thread.join(_PATIENCE_SECONDS)
        self._raise()

    def _wait_for(self, done: Callable[[], bool], what: str) -> None:
        with self._moved:
            came = self._moved.wait_for(
                lambda: self._problem is not None or done(), _PATIENCE_SECONDS
            )
        self._raise()
        assert came, f"{self._path} {what}"

    def _raise(self) -> None:
        if self._problem is not None:
            raise AssertionError(f"{self._path}: something was missed") from self._problem

    def _knows(self, listed: Mapping[str, int], stored: int) -> bool:
        """Whether all of a list was told, and the end of what it does not have any more."""
        told = {uid: _version(item) for uid, item in self._there.items()}
        return all(
            uid in self._gone or told.get(uid, -1) >= version for uid, version in listed.items()
        ) and all(uid in listed or version > stored for uid, version in told.items())

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    self._follow(self._list())
                except (HTTPError, OSError):
                    self._stop.wait(_PAUSE_SECONDS)
        except BaseException as error:  # noqa: BLE001 - raised by whoever asks
            with self._moved:
                self._problem = error
                self._moved.notify_all()

    def _list(self) -> str:
        """Tell what is there, and the end of what is not any more; the list's version."""
        answer = self._rest.get(self._path, **self._query)
        present = {_uid(item): item for item in answer["items"]}
        for uid in set(self._there) - set(present):
            self._take("DELETED", self._there[uid])
        for uid, item in present.items():
            if uid not in self._there or _version(self._there[uid]) < _version(item):
                self._take("ADDED", item)
        with self._moved:
            self._listed = True
            self._moved.notify_all()
        return str(answer["metadata"]["resourceVersion"])

    def _follow(self, version: str) -> None:
        """Watch from a version on, in short watches; returns when it is too old."""
        while not self._stop.is_set():
            try:
                events = self._rest.watch(
                    self._path,
                    self._stop,
                    timeoutSeconds=_WATCH_SECONDS,
                    resourceVersion=version,
                    **self._query,
                )
                for event in events:
                    if event["type"] == "ERROR":
                        if event["object"].get("code") == GONE:
                            return
                        raise AssertionError(event)
                    version = str(event["object"]["metadata"]["resourceVersion"])
                    if event["type"] != "BOOKMARK":
                        self._take(str(event["type"]), event["object"])
            except RestError as error:
                if error.status != GONE:
                    raise
                return
            except (HTTPError, OSError):
                # Nothing is missed: the next watch begins where this one ended.
                self._stop.wait(_PAUSE_SECONDS)

    def _take(self, kind: str, item: Json) -> None:
        self._tell(kind, item)
        with self._moved:
            if kind == "DELETED":
                self._there.pop(_uid(item), None)
                self._gone.add(_uid(item))
            else:
                self._there[_uid(item)] = item
            self._moved.notify_all()


@contextmanager
def pods_followed(
    kube: Kube, tell: Callable[[str, Json], None], selector: str
) -> Iterator[Follower]:
    """Follow the namespace's pods of a label selector for the length of a block."""
    path = f"/api/v1/namespaces/{kube.namespace}/pods"
    follower = Follower(rest_of(kube.api), path, tell, labelSelector=selector)
    follower.start()
    try:
        yield follower
    finally:
        follower.stop()


def _uid(item: Json) -> str:
    return str(item["metadata"]["uid"])


def _version(item: Json) -> int:
    return int(item["metadata"]["resourceVersion"])
