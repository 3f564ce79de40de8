"""What a leader loads and unloads: the difference between the table and the server, and no more."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.adapters import adapter, write

from shardwright.runner.contract import (
    ADAPTER_FAILED,
    ADAPTER_LEAVING,
    ADAPTER_REFUSED,
    ADAPTER_WAITING,
    MANIFEST,
    STEP_ADAPTER,
    Adapter,
    AdapterServing,
    AdapterTable,
    FileEntry,
    Manifest,
    artifact_folder,
    artifact_key,
    encode,
    table_digest,
)
from shardwright.runner.serve.adapter_plan import (
    LAST_RETRY_SECONDS,
    Tried,
    listed_adapters,
    plan_round,
)
from shardwright.runner.serve.adapters import AT_ONCE, AdapterKeeper
from shardwright.runner.serve.view import View, told, unready
from shardwright.runner.verify import sha256_of

LIMITS = AdapterServing(16, ("q_proj", "v_proj"), "/load", "/unload")
SIZES = {"q_proj": (8, 8), "v_proj": (8, 4)}


def one(name: str, folder: str = "", **changes: Any) -> Adapter:
    made = Adapter(name, folder or f"/f/{name}", name.ljust(16, "0"), 1, 8, ("q_proj",))
    return replace(made, **changes)


def table(*names: str) -> AdapterTable:
    return AdapterTable(tuple(one(name) for name in names))


# The plan of one look


def test_what_is_asked_for_and_absent_is_loaded_and_what_is_not_asked_for_goes() -> None:
    found = plan_round(table("a", "b"), LIMITS, {"b": "/f/b", "c": "/f/c"}, {}, {}, 0.0)
    assert [item.name for item in found.load] == ["a"]
    assert found.unload == ("c",)
    assert found.loaded == ("b",)
    assert found.troubles["a"][0] == ADAPTER_WAITING
    assert found.troubles["c"][0] == ADAPTER_LEAVING


def test_another_folder_under_the_same_name_is_loaded_anew() -> None:
    found = plan_round(table("a"), LIMITS, {"a": "/f/old"}, {}, {}, 0.0)
    assert found.unload == ("a",)
    assert [item.folder for item in found.load] == ["/f/a"]
    assert found.loaded == ()


@pytest.mark.parametrize("changes", [{"rank": 17}, {"modules": ("o_proj",)}])
def test_one_outside_of_what_the_pod_was_built_for_is_left_out(changes: dict[str, Any]) -> None:
    odd = AdapterTable((one("a"), one("b", **changes)))
    found = plan_round(odd, LIMITS, {"b": "/f/b"}, {}, {}, 0.0)
    assert [item.name for item in found.load] == ["a"]
    assert found.unload == ("b",)
    assert found.troubles["b"][0] == ADAPTER_REFUSED


def test_files_that_are_not_there_are_waited_for_and_what_runs_stays() -> None:
    found = plan_round(table("a", "b"), LIMITS, {"b": "/f/b"}, {"a": "not there"}, {}, 0.0)
    assert (found.load, found.unload, found.loaded) == ((), (), ("b",))
    assert found.troubles == {"a": (ADAPTER_WAITING, "not there")}


def test_a_failure_is_tried_again_ever_more_rarely_and_told_meanwhile() -> None:
    tried = Tried("/f/a", 0, 0.0, "").again("500 no", 10.0)
    waiting = plan_round(table("a", "b"), LIMITS, {}, {}, {"a": tried}, 10.5)
    assert [item.name for item in waiting.load] == ["b"]
    assert waiting.troubles["a"] == (ADAPTER_FAILED, "500 no")
    due = plan_round(table("a"), LIMITS, {}, {}, {"a": tried}, 11.0)
    assert [item.name for item in due.load] == ["a"]
    assert due.troubles["a"] == (ADAPTER_FAILED, "500 no")
    waits = []
    for _ in range(12):
        waits.append(tried.again("", 0.0).at)
        tried = tried.again("", 0.0)
    assert waits == sorted(waits)
    assert waits[-1] == LAST_RETRY_SECONDS


def test_one_that_fails_for_weeks_is_still_tried_ever_so_often() -> None:
    tried = Tried("/f/a", 5_000, 0.0, "no")
    assert tried.again("no", 10.0) == Tried("/f/a", 5_001, 10.0 + LAST_RETRY_SECONDS, "no")


def test_another_folder_is_tried_at_once() -> None:
    tried = Tried("/f/old", 5, 1e9, "500 no")
    assert plan_round(table("a"), LIMITS, {}, {}, {"a": tried}, 0.0).load


@given(
    asked=st.sets(st.sampled_from("abcdef")),
    there=st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["/f/{}", "/old"])),
)
def test_after_its_acts_the_server_has_exactly_what_is_asked_for(
    asked: set[str], there: dict[str, str]
) -> None:
    listed = {name: folder.format(name) for name, folder in there.items()}
    found = plan_round(table(*sorted(asked)), LIMITS, listed, {}, {}, 0.0)
    after = {name: folder for name, folder in listed.items() if name not in found.unload}
    for item in found.load:
        assert item.name not in after
        after[item.name] = item.folder
    assert after == {name: f"/f/{name}" for name in asked}
    again = plan_round(table(*sorted(asked)), LIMITS, after, {}, {}, 0.0)
    assert (again.load, again.unload, set(again.loaded)) == ((), (), asked)


def test_the_base_model_in_a_list_is_no_adapter() -> None:
    base = {"id": "llama", "root": "/m", "parent": None}
    low = {"id": "legal", "root": "/f/legal", "parent": "llama"}
    assert listed_adapters({"data": [base, low]}) == {"legal": "/f/legal"}
    for page in ({"data": 5}, {"data": ["x"]}, {"data": [{"parent": "x"}]}):
        with pytest.raises(ValueError, match="cannot be read"):
            listed_adapters(page)


# The keeper against a server


@dataclass
class Server:
    """Lists, loads and unloads; refuses names that begin with `bad`, in vLLM's form."""

    loaded: dict[str, str] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    down: bool = False
    slow: threading.Event = field(default_factory=threading.Event)

    def handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                cards = [{"id": "base", "root": "/m", "parent": None}]
                cards += [
                    {"id": name, "root": folder, "parent": "base"}
                    for name, folder in list(server.loaded.items())
                ]
                self._send(503 if server.down else 200, {"data": cards})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                name = body["lora_name"]
                server.calls.append(f"{self.path} {name}")
                if name.startswith("slow"):
                    server.slow.wait(300)
                if self.path == "/unload":
                    server.loaded.pop(name, None)
                    self._send(200, {})
                elif name.startswith("bad"):
                    self._send(500, {"error": {"message": "LoRA rank 64 is greater", "code": 500}})
                else:
                    server.loaded[name] = body["lora_path"]
                    self._send(200, {})

            def _send(self, status: int, content: object) -> None:
                data = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Quiet."""

        return Handler


@dataclass
class Site:
    """A claim, a table's file and a server."""

    root: Path
    server: Server
    port: int

    @property
    def file(self) -> Path:
        return self.root / "adapters/adapters.json"

    def fetched(self, name: str, seed: int = 0) -> Adapter:
        """An adapter of a sealed artifact."""
        key = artifact_key(STEP_ADAPTER, {"uri": f"hf://acme/{name}-{seed}"})
        folder = write(
            self.root / artifact_folder(STEP_ADAPTER, key), adapter(SIZES, layers=1, seed=seed)
        )
        files = {
            path.name: FileEntry(path.stat().st_size, sha256_of(path)) for path in folder.iterdir()
        }
        inputs = {"uri": f"hf://acme/{name}-{seed}"}
        (folder / MANIFEST).write_text(encode(Manifest(STEP_ADAPTER, key, inputs, files)))
        return one(name, str(folder), key=key)

    def tell(self, *adapters: Adapter) -> str:
        """Write the table as the kubelet does: whole, at once."""
        text = encode(AdapterTable(adapters))
        self.file.parent.mkdir(exist_ok=True)
        draft = self.file.with_suffix(".draft")
        draft.write_text(text)
        draft.replace(self.file)
        return table_digest(text)

    def keeper(self, serving: AdapterServing = LIMITS) -> AdapterKeeper:
        return AdapterKeeper(serving, self.file, self.root, self.port, look_seconds=0.02)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    server = Server()
    http = ThreadingHTTPServer(("127.0.0.1", 0), server.handler())
    threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
    yield Site(tmp_path, server, http.server_address[1])
    http.shutdown()
    http.server_close()


def eventually(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline, "it never was so"
        time.sleep(0.01)


def test_before_there_is_a_table_nothing_is_touched(site: Site) -> None:
    site.server.loaded["mine"] = "/x"
    keeper = site.keeper()
    eventually(lambda: keeper.looked)
    assert (site.server.calls, keeper.heard.table) == ([], "")
    keeper.close()


def test_the_server_follows_the_table_and_one_that_it_refuses_holds_up_no_other(
    site: Site,
) -> None:
    a, bad, c = site.fetched("a"), site.fetched("bad"), site.fetched("c")
    digest = site.tell(a, bad, c)
    keeper = site.keeper()
    eventually(lambda: keeper.looked)
    assert set(site.server.loaded) == {"a", "c"}
    assert keeper.heard.table == digest
    assert keeper.heard.loaded == ("a", "c")
    assert keeper.heard.troubles["bad"] == (ADAPTER_FAILED, "500 LoRA rank 64 is greater")
    newer = site.fetched("a", seed=1)
    digest = site.tell(newer)
    eventually(lambda: keeper.heard.table == digest and keeper.heard.loaded == ("a",))
    assert site.server.loaded == {"a": newer.folder}
    assert keeper.heard.troubles == {}
    keeper.close()


def test_one_that_takes_long_holds_up_no_other_and_is_begun_once(site: Site) -> None:
    slow = site.fetched("slow")
    site.tell(slow, site.fetched("a"))
    keeper = site.keeper()
    eventually(lambda: keeper.heard.loaded == ("a",))
    # Not everything was tried yet, and whatever the table says meanwhile is done.
    assert not keeper.looked
    site.server.loaded["slow-old"] = "/x"
    site.tell(slow, site.fetched("b"))
    eventually(lambda: set(site.server.loaded) == {"b", "slow-old"})
    assert keeper.heard.troubles["slow"] == (ADAPTER_WAITING, "its turn")
    site.server.slow.set()
    eventually(lambda: keeper.looked)
    assert keeper.heard.loaded == ("b", "slow")
    assert site.server.calls.count("/load slow") == 1
    assert site.server.calls.count("/unload slow-old") == 1
    keeper.close()


def test_no_more_than_eight_are_loaded_at_a_time_and_all_of_them_in_the_end(site: Site) -> None:
    site.tell(*(site.fetched(f"slow{number}") for number in range(12)))
    keeper = site.keeper()
    eventually(lambda: len(site.server.calls) == AT_ONCE)
    time.sleep(0.3)
    assert len(site.server.calls) == AT_ONCE
    site.server.slow.set()
    eventually(lambda: len(keeper.heard.loaded) == 12)
    assert len(site.server.calls) == 12
    keeper.close()


def test_a_pod_is_not_ready_before_more_than_eight_are_loaded(site: Site) -> None:
    site.tell(*(site.fetched(f"a{number:02}") for number in range(20)))
    keeper = site.keeper()
    eventually(lambda: keeper.looked)
    assert len(site.server.loaded) == 20
    assert len(keeper.heard.loaded) == 20
    keeper.close()


def test_a_server_that_lost_them_gets_them_again(site: Site) -> None:
    site.tell(site.fetched("a"))
    keeper = site.keeper()
    eventually(lambda: site.server.loaded)
    site.server.loaded.clear()
    eventually(lambda: site.server.loaded)
    keeper.close()


def test_a_server_that_does_not_answer_is_left_alone_until_it_does(site: Site) -> None:
    site.server.down = True
    site.tell(site.fetched("a"))
    keeper = site.keeper()
    time.sleep(0.2)
    assert (site.server.calls, keeper.looked) == ([], False)
    site.server.down = False
    eventually(lambda: keeper.looked)
    assert set(site.server.loaded) == {"a"}
    keeper.close()


def test_damaged_files_never_reach_the_server(site: Site) -> None:
    good, odd = site.fetched("good"), site.fetched("odd")
    weights = Path(odd.folder) / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    site.tell(odd, good)
    keeper = site.keeper()
    eventually(lambda: keeper.looked)
    assert set(site.server.loaded) == {"good"}
    assert "truncated" in keeper.heard.troubles["odd"][1]
    keeper.close()


def test_a_table_that_cannot_be_read_changes_nothing(site: Site) -> None:
    site.tell(site.fetched("a"))
    keeper = site.keeper()
    eventually(lambda: site.server.loaded)
    for text in ("{", "[]", '{"contract": 99}', '{"contract": 1, "adapters": [{"name": "x"}]}'):
        site.file.write_text(text)
        time.sleep(0.1)
    assert set(site.server.loaded) == {"a"}
    keeper.close()


def test_where_requests_name_the_folder_the_files_are_what_counts(site: Site) -> None:
    serving = AdapterServing(16, ("q_proj", "v_proj"))
    there = site.fetched("a")
    digest = site.tell(there, one("b", str(site.root / "nowhere")))
    keeper = site.keeper(serving)
    eventually(lambda: keeper.heard.table == digest)
    assert keeper.heard.loaded == ("a",)
    assert keeper.heard.troubles["b"][0] == ADAPTER_WAITING
    assert site.server.calls == []
    keeper.close()


# The status page


def view(**changes: Any) -> View:
    base = View("llama", 0, 1, 0, 1, 1, "Serving", engine=True)
    return replace(base, **changes)


def test_the_status_page_tells_adapters_only_where_there_are_any() -> None:
    assert "adapters" not in told(view(), 0.0)
    assert told(view(adapters={"table": "x"}), 0.0)["adapters"] == {"table": "x"}


def test_a_leader_is_not_ready_before_its_adapters_were_loaded_once() -> None:
    row = {"rank": 0, "stage": 0, "tensor_rank": 0, "node": "n", "pod": "p", "gpu": "g"}
    from shardwright.runner.serve.view import RankRow  # noqa: PLC0415

    ready = view(
        rows=(RankRow(**row, pid=1, state="R"),),  # type: ignore[arg-type]
        generated_at=1.0,
        healthy_at=1.0,
    )
    assert unready(ready, 1.0) == ""
    assert "adapters" in unready(replace(ready, loading_adapters=True), 1.0)
