"""The temporary folder of a step's pod on the volume, and what crashed pods have left there.

A pod works in `.tmp-<key>-<pod uid>` beside the finished artifacts: `out` is what its tools write
and what is published by rename, `beat` is a file whose time is set every few seconds.

How is a crashed pod's folder told from a live one's? Not by a lock, since network file systems
differ in what a lock means across nodes and after a crash; not by comparing times, since clocks of
nodes differ. A folder is abandoned when its beat has not changed for `ABANDONED_SECONDS` while this
process watched it, counted on this process's own monotonic clock.

Even a wrong judgement (a pod that was frozen for minutes) breaks nothing: an abandoned folder is
first renamed, in one atomic step, and then deleted under its new name. Its pod, should it come
back, no longer finds what it wanted to rename, says so and ends; and what was published before is
out of reach. So a folder that is half deleted can never be published, whoever is wrong.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shardwright.runner.contract import (
    ENV_POD_UID,
    ROOT,
    STEP_CHECKPOINT,
    STEP_ENGINE,
    ContractError,
    temporary_folder,
)
from shardwright.runner.log import say
from shardwright.runner.publish import discard, make

BEAT_SECONDS = 10.0
# Eighteen beats: longer than the time for which clients of network file systems cache attributes
# (60 s at most on NFS by default), and than the pause of a virtual machine that is moved.
ABANDONED_SECONDS = 180.0
_OUT = "out"
_BEAT = "beat"
# The same letters that a uid of the API server has: nothing that leads out of the folder.
_UID = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,62}")
_TEMPORARY = re.compile(r"\.tmp-[0-9a-f]{16}-[0-9A-Za-z-]{1,63}")
_DEAD = ".dead-"


class WorkspaceLostError(Exception):
    """The temporary folder is gone: this pod was taken for dead."""


class Workspace:
    """This pod's temporary folder, kept alive by a thread until it is closed."""

    def __init__(self, store: Path, step: str, key: str, pod_uid: str) -> None:
        """Name the folder; nothing is made yet.

        Raises:
            ContractError: The uid could name another folder.
        """
        if not _UID.fullmatch(pod_uid):
            raise ContractError(
                f"pod uid {pod_uid!r} in {ENV_POD_UID} is malformed: letters, digits and dashes"
            )
        self.folder = store / temporary_folder(step, key, pod_uid)
        self.out = self.folder / _OUT
        self.lost = threading.Event()
        self._closed = threading.Event()
        self._beating = threading.Thread(target=self._beat, name="beat", daemon=True)

    def open(self) -> None:
        """Make the folder, empty, and begin to beat.

        Raises:
            OSError: The volume cannot be written to.
        """
        make(self.folder.parent)
        if self.folder.exists():
            discard(self.folder)  # a container of this very pod left it
        self.folder.mkdir()
        (self.folder / _BEAT).touch()
        self.out.mkdir()
        self._beating.start()

    def check(self) -> None:
        """Do nothing if the folder is still this pod's.

        Raises:
            WorkspaceLostError: It is gone.
        """
        if self.lost.is_set():
            raise self._lost()

    def check_after(self, error: OSError) -> None:
        """As `check`, when a call has failed: the thread may not have noticed yet.

        Raises:
            WorkspaceLostError: It failed because the folder is gone.
        """
        if isinstance(error, FileNotFoundError) and not self.folder.exists():
            raise self._lost() from error

    def close(self) -> None:
        """End the beat and delete the folder.

        Raises:
            OSError: It cannot be deleted.
        """
        self._closed.set()
        if self._beating.is_alive():
            self._beating.join(BEAT_SECONDS)
        discard(self.folder)

    def _lost(self) -> WorkspaceLostError:
        return WorkspaceLostError(
            f"{self.folder.name} was taken away: this pod gave no sign of life for "
            f"{ABANDONED_SECONDS:.0f} s, or somebody deleted its folder"
        )

    def _beat(self) -> None:
        failing = False
        while not self._closed.wait(BEAT_SECONDS):
            try:
                # Setting the time needs no space, so it also works on a full volume.
                os.utime(self.folder / _BEAT)
                failing = False
            except FileNotFoundError:
                if not self._closed.is_set():
                    self.lost.set()
                return
            except OSError as error:
                if not failing:
                    say("the volume does not take this pod's sign of life", error=str(error))
                failing = True


@dataclass
class _Watched:
    sign: tuple[int, int]
    since: float
    alive: bool = False


class Janitor:
    """Watches the temporary folders of other pods and deletes those that are abandoned."""

    def __init__(self, store: Path, own: Path) -> None:
        self._places = [store / ROOT / step for step in (STEP_CHECKPOINT, STEP_ENGINE)]
        self._own = own
        self._watched: dict[Path, _Watched] = {}
        self._busy = True  # until a round has found nothing that may yet be abandoned
        self._closed = threading.Event()

    def start(self) -> None:
        """Look now and then until closed. The thread is the janitor's own: deleting takes long."""
        threading.Thread(target=self._work, name="janitor", daemon=True).start()

    def close(self) -> None:
        """Look no more; a deletion under way ends with the process and is resumed by another."""
        self._closed.set()

    def look(self) -> bool:
        """One round: delete what is abandoned.

        Returns:
            Whether folders are left of which it is not known yet if their pods live.

        Raises:
            OSError: The volume cannot be read, or something cannot be deleted.
        """
        now = time.monotonic()
        undecided = False
        signs = {path: _sign(path) for path in self._others()}
        self._watched = {path: seen for path, seen in self._watched.items() if path in signs}
        for path, sign in signs.items():
            if path.name.startswith(_DEAD):
                discard(path)
                continue
            if sign is None:
                continue
            seen = self._watched.setdefault(path, _Watched(sign, now))
            if seen.sign != sign:
                self._watched[path] = _Watched(sign, now, alive=True)
            elif now - seen.since >= ABANDONED_SECONDS:
                _bury(path)
            else:
                undecided = undecided or not seen.alive
        return undecided

    def finish(self, stopped: Callable[[], bool]) -> None:
        """Wait until what is abandoned is deleted: before a full disk is reported, room is made.

        Args:
            stopped: Asked every second; true ends the wait.
        """
        limit = time.monotonic() + ABANDONED_SECONDS + 3 * BEAT_SECONDS
        while self._busy and time.monotonic() < limit and not stopped():
            self._closed.wait(1.0)

    def _work(self) -> None:
        failing = False
        while not self._closed.is_set():
            try:
                self._busy = self.look()
                failing = False
            except OSError as error:
                # Other pods' ruins are no reason to fail this one's step.
                if not failing:
                    say("leftovers of crashed pods cannot be deleted", error=str(error))
                failing = True
            self._closed.wait(BEAT_SECONDS)

    def _others(self) -> list[Path]:
        found: list[Path] = []
        for place in self._places:
            try:
                paths = list(place.iterdir())
            except FileNotFoundError:
                continue
            found.extend(
                path
                for path in paths
                if path.name.startswith(_DEAD) or _TEMPORARY.fullmatch(path.name)
            )
        return [path for path in found if path != self._own]


def _sign(path: Path) -> tuple[int, int] | None:
    """What changes while the folder's pod lives; None when the folder is gone."""
    try:
        folder = path.stat()
    except FileNotFoundError:
        return None
    try:
        # Opened, not only looked at: on a network file system that fetches the attributes anew.
        with (path / _BEAT).open("rb") as file:
            return folder.st_ino, os.fstat(file.fileno()).st_mtime_ns
    except FileNotFoundError:
        return folder.st_ino, folder.st_mtime_ns


def _bury(path: Path) -> None:
    dead = path.with_name(_DEAD + path.name[1:])
    try:
        os.rename(path, dead)  # noqa: PTH104 - from here on nobody can publish it
    except FileNotFoundError:
        return
    say("a crashed pod's temporary folder is deleted", folder=path.name)
    discard(dead)
