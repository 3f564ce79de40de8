"""Keeps the adapters that a server has loaded equal to the table that the operator wrote.

Level-triggered: every second the file is read and the server is asked what it has, and the
difference is carried out, so that it does not matter what was missed meanwhile. The kubelet writes
the file anew when the table changes; before there is one, nothing is touched. One adapter that
cannot be loaded is told by name and tried again ever more rarely; the others do not wait for it,
nor for one that takes long: each is loaded and unloaded in a thread of its own.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from shardwright.runner.adapter_facts import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from shardwright.runner.contract import (
    STEP_ADAPTER,
    Adapter,
    AdapterServing,
    AdaptersHeard,
    AdapterTable,
    ContractError,
    artifact_folder,
    decode,
    table_digest,
)
from shardwright.runner.log import say
from shardwright.runner.serve.adapter_plan import Round, Tried, listed_adapters, plan_round
from shardwright.runner.verify import ArtifactError, Wanted, check

LOOK_SECONDS = 1.0
LIST_SECONDS = 5.0
# Reading an adapter from a slow volume, on every rank.
LOAD_SECONDS = 300.0
# SGLang answers when the last request of the adapter is done.
UNLOAD_SECONDS = 600.0
# So many adapters are loaded or unloaded at the same time.
AT_ONCE = 8
# A look waits so long for what it has begun; what takes longer goes on without it.
_QUICK_SECONDS = 1.0
_BODY_LIMIT_BYTES = 4 * 2**20
_TABLE_LIMIT_BYTES = 2**20
_WORDS = 500


class AdapterKeeper:
    """Works in a thread of its own until it is closed; `heard` may be read from any other."""

    def __init__(
        self,
        serving: AdapterServing,
        table: Path,
        store: Path,
        port: int,
        *,
        host: str = "127.0.0.1",
        look_seconds: float = LOOK_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep from now on.

        Args:
            serving: How the server is given adapters, and which.
            table: The file that the operator writes.
            store: Where the claim is mounted.
            port: The server's HTTP port.
            host: Where it listens.
            look_seconds: Between two looks.
            clock: Counts the waits between failures.
        """
        self._serving, self._table, self._store = serving, table, store
        self._host, self._port = host, port
        self._look_seconds, self._clock = look_seconds, clock
        self._heard = AdaptersHeard(table="")
        self._lock = threading.Lock()
        self._tried: dict[str, Tried] = {}
        self._busy: dict[str, threading.Thread] = {}
        # Whether the last look has begun all that it came to.
        self._begun = True
        self._whole: set[str] = set()
        self._closed = threading.Event()
        self._looked = threading.Event()
        self._thread = threading.Thread(target=self._run, name="adapters", daemon=True)
        self._thread.start()

    @property
    def heard(self) -> AdaptersHeard:
        """What the last look has found."""
        return self._heard

    @property
    def looked(self) -> bool:
        """Whether everything that the first table asked for was loaded, or tried."""
        return self._looked.is_set()

    def close(self) -> None:
        """Ask no more: a drained server's connections are counted."""
        self._closed.set()

    def _run(self) -> None:
        told = ""
        while not self._closed.is_set():
            try:
                problem = self._look()
                if self._begun and not self._busy:
                    self._looked.set()
            except Exception as error:  # noqa: BLE001 - it is told; nobody else would keep them
                problem = f"{type(error).__name__}: {error}"
            if problem != told:
                say("adapters cannot be kept", why=problem) if problem else say("adapters are kept")
                told = problem
            if self._begun or self._busy:
                self._closed.wait(self._look_seconds)

    def _look(self) -> str:
        """One look and what follows from it; returns what stands in the way of all of them."""
        self._begun = True
        text = self._text()
        if text is None:
            return ""
        try:
            table = decode(AdapterTable, text)
        except ContractError as error:
            return str(error)
        digest = table_digest(text)
        if not self._serving.load:
            self._heard = self._files_only(table).heard(digest)
            return ""
        found = self._round(table)
        self._heard = found.heard(digest)
        self._begun = self._begin(found)
        until = time.monotonic() + _QUICK_SECONDS
        for worker in self._busy.values():
            worker.join(max(0.0, until - time.monotonic()))
        if self._busy:
            self._busy = {name: worker for name, worker in self._busy.items() if worker.is_alive()}
            self._heard = self._round(table).heard(digest)
        return ""

    def _begin(self, found: Round) -> bool:
        """Start what a round comes to, each adapter's part in its own thread; whether all of it."""
        load = {adapter.name: adapter for adapter in found.load}
        for name in dict.fromkeys((*found.unload, *load)):
            if name in self._busy:
                continue
            if self._closed.is_set() or len(self._busy) >= AT_ONCE:
                return False
            act = (name, name in found.unload, load.get(name))
            worker = threading.Thread(target=self._act, args=act, name="adapter", daemon=True)
            self._busy[name] = worker
            worker.start()
        return True

    def _act(self, name: str, unload: bool, adapter: Adapter | None) -> None:  # noqa: FBT001
        """One adapter's part: what has its name goes first."""
        if unload:
            self._unload(name)
        if adapter is not None and not self._closed.is_set():
            self._load(adapter)

    def _text(self) -> str | None:
        """The table as written; None before there is one."""
        try:
            with self._table.open("rb") as file:
                data = file.read(_TABLE_LIMIT_BYTES + 1)
        except FileNotFoundError:
            return None
        if len(data) > _TABLE_LIMIT_BYTES:
            raise ValueError(f"{self._table} is longer than {_TABLE_LIMIT_BYTES} bytes")
        return data.decode("utf-8")

    def _round(self, table: AdapterTable) -> Round:
        status, text = self._ask("GET", self._serving.models, None, LIST_SECONDS)
        if status != HTTPStatus.OK:
            raise ValueError(f"{self._serving.models} answered {status} {text[:_WORDS]}")
        listed = listed_adapters(json.loads(text))
        names = {adapter.name for adapter in table.adapters}
        with self._lock:
            self._tried = {name: tried for name, tried in self._tried.items() if name in names}
            before = dict(self._tried)
        missing = {
            one.name: problem
            for one in table.adapters
            if listed.get(one.name) != one.folder and (problem := self._problem(one))
        }
        return plan_round(table, self._serving, listed, missing, before, self._clock())

    def _files_only(self, table: AdapterTable) -> Round:
        """For a server that reads an adapter when a request names it: its files must be there."""
        missing = {one.name: problem for one in table.adapters if (problem := self._problem(one))}
        there = {one.name: one.folder for one in table.adapters if one.name not in missing}
        return plan_round(table, self._serving, there, missing, {}, self._clock())

    def _problem(self, adapter: Adapter) -> str:
        """What is wrong with an adapter's files; once they were whole only whether they are there.

        Of files that are not ours there is no list: the server has the last word.
        """
        folder = Path(adapter.folder)
        there = (folder / ADAPTER_CONFIG).is_file() and (folder / ADAPTER_WEIGHTS).is_file()
        if not there:
            self._whole.discard(adapter.key)
            return f"{folder} holds no {ADAPTER_CONFIG} and {ADAPTER_WEIGHTS} yet"
        if adapter.in_place or adapter.key in self._whole:
            return ""
        try:
            where = self._store / artifact_folder(STEP_ADAPTER, adapter.key)
            check(where, Wanted(STEP_ADAPTER, adapter.key))
        except (ArtifactError, OSError) as error:
            return str(error)[:_WORDS]
        self._whole.add(adapter.key)
        return ""

    def _load(self, adapter: Adapter) -> None:
        body = {"lora_name": adapter.name, "lora_path": adapter.folder}
        status, text = self._ask("POST", self._serving.load, body, LOAD_SECONDS)
        if status == HTTPStatus.OK:
            with self._lock:
                self._tried.pop(adapter.name, None)
            say("adapter loaded", name=adapter.name, key=adapter.key)
            return
        words = f"{status} {_said(text)}"[:_WORDS] if status else _said(text)[:_WORDS]
        with self._lock:
            last = self._tried.get(adapter.name)
            if last is None or last.folder != adapter.folder:
                last = Tried(adapter.folder, 0, 0.0, "")
            self._tried[adapter.name] = last.again(words, self._clock())
        say("adapter not loaded", name=adapter.name, key=adapter.key, why=words)

    def _unload(self, name: str) -> None:
        status, text = self._ask("POST", self._serving.unload, {"lora_name": name}, UNLOAD_SECONDS)
        gone = status in (HTTPStatus.OK, HTTPStatus.NOT_FOUND)
        if gone:
            say("adapter unloaded", name=name)
        else:
            say("adapter not unloaded", name=name, why=f"{status} {_said(text)}"[:_WORDS])

    def _ask(
        self, method: str, path: str, body: dict[str, Any] | None, seconds: float
    ) -> tuple[int, str]:
        """Status and text of an answer; status 0 and the reason when there is none."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=seconds)
        headers = {"Connection": "close"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, headers)
            answer = connection.getresponse()
            return answer.status, answer.read(_BODY_LIMIT_BYTES).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            return 0, f"{path}: {error or type(error).__name__}"
        finally:
            connection.close()


def _said(text: str) -> str:
    """The server's own words in an answer that refuses: vLLM nests them, SGLang does not."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text.strip()
    if isinstance(found, dict):
        inner = found.get("error")
        holder = inner if isinstance(inner, dict) else found
        for name in ("message", "error_message"):
            if isinstance(holder.get(name), str):
                return str(holder[name])
    return text.strip()
