"""Twenty adapters come and go under load while the pod is replaced: what serves is what is asked.

The runner as it is, in front of the stand-ins' vLLM and SGLang, which compute with each adapter's
own weights, so that an answer tells whose it is.
"""

from __future__ import annotations

import http.client
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.runner.serve_world import SECONDS, Pod, eventually, solo
from tests.standin.conftest import installed, machine, model  # noqa: F401 - fixtures
from tests.standin.running import DEADLINE_SECONDS, Machine, ask
from tests.standin.test_adapters import expected, with_standin
from tests.support.adapters import adapter, write

from shardwright.runner.contract import (
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
from shardwright.runner.verify import sha256_of

pytestmark = pytest.mark.timeout(600)

COUNT = 20
# Of these the matrices are of another model: only the server can tell.
BROKEN = frozenset({"adapter-07", "adapter-13"})
MODULES = ("q_proj", "v_proj")
SIZES = {"q_proj": (64, 64), "v_proj": (64, 32)}
WRONG = {"q_proj": (128, 64), "v_proj": (128, 32)}
PROMPT = "Two nodes"
FLAGS = ("--enable-lora", "--max-lora-rank", "16", "--lora-target-modules", *MODULES)


@dataclass(frozen=True)
class Program:
    """One server: its command line, its endpoints, and how a request names an adapter."""

    argv: Callable[[Path], tuple[str, ...]]
    serving: AdapterServing
    asked: Callable[[str], str]
    absent: int  # the status of an answer about an adapter that is not loaded


VLLM = Program(
    lambda folder: (
        *("vllm", "serve", str(folder), "--served-model-name", "m"),
        *("--host", "127.0.0.1", "--port", "{http}", *FLAGS),
    ),
    AdapterServing(16, MODULES, "/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
    lambda name: name,
    404,
)
SGLANG = Program(
    lambda folder: (
        *("python3", "-m", "sglang.launch_server", "--model-path", str(folder)),
        *("--served-model-name", "m", "--host", "127.0.0.1", "--port", "{http}", *FLAGS),
    ),
    AdapterServing(16, MODULES, "/load_lora_adapter", "/unload_lora_adapter"),
    lambda name: f"m:{name}",
    400,
)


@dataclass
class Site:
    """The claim with all adapters, the table's file, and what each adapter must say."""

    root: Path
    adapters: Mapping[str, Adapter]
    says: Mapping[str, str]
    wanted: set[str] = field(default_factory=set)

    @property
    def file(self) -> Path:
        return self.root / "table/adapters.json"

    @property
    def valid(self) -> set[str]:
        return self.wanted - BROKEN

    def tell(self) -> str:
        """Write the table whole, as the kubelet does; its digest."""
        chosen = tuple(self.adapters[name] for name in sorted(self.wanted))
        text = encode(AdapterTable(chosen))
        self.file.parent.mkdir(exist_ok=True)
        draft = self.file.with_suffix(".draft")
        draft.write_text(text)
        draft.replace(self.file)
        return table_digest(text)


@pytest.fixture(scope="module")
def site(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Site:  # noqa: F811
    """Twenty adapters as the fetcher leaves them."""
    pytest.importorskip("numpy")
    root = tmp_path_factory.mktemp("site")
    adapters, says = {}, {"": expected(model, None, PROMPT, 8)}
    for number in range(COUNT):
        name = f"adapter-{number:02}"
        inputs = {"uri": f"hf://acme/{name}"}
        key = artifact_key(STEP_ADAPTER, inputs)
        sizes = WRONG if name in BROKEN else SIZES
        files = adapter(sizes, layers=4, seed=number + 1)
        folder = write(root / "store" / artifact_folder(STEP_ADAPTER, key), files)
        listed = {
            path.name: FileEntry(path.stat().st_size, sha256_of(path)) for path in folder.iterdir()
        }
        (folder / MANIFEST).write_text(encode(Manifest(STEP_ADAPTER, key, inputs, listed)))
        adapters[name] = Adapter(name, str(folder), key, number + 1, 8, MODULES)
        if name not in BROKEN:
            says[name] = expected(model, folder, PROMPT, 8)
    # Equal answers would not tell one adapter from another.
    assert len(set(says.values())) == len(says)
    return Site(root, adapters, says)


class Load:
    """Requests without a pause: each answer must be that of the adapter it was asked of."""

    def __init__(self, program: Program, site: Site, seed: int) -> None:
        self.program, self.site = program, site
        self.url = ""
        self.wrong: list[str] = []
        self.answered = 0
        self._source = random.Random(seed)  # noqa: S311 - the order of a test
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(2)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(DEADLINE_SECONDS)
            assert not thread.is_alive(), "a request is never answered"

    def _run(self) -> None:
        names = ["", *self.site.adapters]
        while not self._done.is_set():
            # Once: it is emptied while a pod is replaced.
            url = self.url
            if not url:
                self._done.wait(0.05)
                continue
            name = self._source.choice(names)
            try:
                status, text = say(url, self.program, name)
            except (OSError, http.client.HTTPException):
                continue  # the pod is being replaced
            if status == 200 and text != self.site.says.get(name):
                self.wrong.append(f"{name or 'the base'} said {text!r}")
            elif status not in (200, self.program.absent) or (status != 200 and not name):
                self.wrong.append(f"{name or 'the base'}: {status} {text}")
            self.answered += status == 200


def say(url: str, program: Program, name: str) -> tuple[int, str]:
    asked = program.asked(name) if name else "m"
    body = {"model": asked, "prompt": PROMPT, "max_tokens": 8}
    status, content = ask(f"{url}/v1/completions", body)
    return status, content["choices"][0]["text"] if status == 200 else str(content)


def listed(url: str) -> set[str]:
    return {card["id"] for card in ask(f"{url}/v1/models")[1]["data"] if card["parent"]}


def settled(pod: Pod, digest: str) -> Mapping[str, Any] | None:
    """What the status page tells of this very table, once all that can be loaded is."""
    told: Mapping[str, Any] = pod.status()["adapters"]
    if told["table"] != digest:
        return None
    return told if all(state == "Failed" for state, _ in told["troubles"].values()) else None


def compare(pod: Pod, site: Site, program: Program, digest: str) -> None:
    """The server has exactly what is asked for and valid; what it refused is named."""
    url = f"http://127.0.0.1:{pod.http_port}"
    told = eventually(lambda: settled(pod, digest), says=pod.log)
    assert set(told["loaded"]) == site.valid == listed(url)
    assert set(told["troubles"]) == site.wanted & BROKEN
    for name in sorted(site.valid)[:3]:
        assert say(url, program, name) == (200, site.says[name])
    for name in sorted(set(site.adapters) - site.valid)[:3]:
        assert say(url, program, name)[0] == program.absent
    assert say(url, program, "") == (200, site.says[""])


@pytest.fixture
def pods(
    site: Site,
    machine: Machine,  # noqa: F811
    model: Path,  # noqa: F811
    tmp_path: Path,
) -> Iterator[Callable[[Program], Pod]]:
    """Starts one pod after the other; each ends the one before, as a replaced replica does."""
    running: list[ExitStack] = []

    def start(program: Program) -> Pod:
        for old in running:
            old.close()
        stack = ExitStack()
        running.append(stack)
        folder = tmp_path / f"pod-{len(running)}"
        (folder / "store/shardwright").mkdir(parents=True)
        (folder / "store/shardwright/adapter").symlink_to(site.root / "store/shardwright/adapter")
        env = {
            **machine.environment(NVIDIA_VISIBLE_DEVICES="0"),
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
            **(with_standin(machine) if program is SGLANG else {}),
        }
        argv = tuple(machine.command(program.argv(model)))
        places = {"adapters": str(site.file.parent)}
        pod = stack.enter_context(solo(folder, argv, env, places=places, adapters=program.serving))
        eventually(lambda: pod.get("/readyz")[0] == 200, says=pod.log)
        return pod

    yield start
    for stack in running:
        stack.close()


@pytest.mark.parametrize("program", [VLLM, SGLANG], ids=["vllm", "sglang"])
def test_twenty_adapters_come_and_go_under_load_while_pods_are_replaced(
    program: Program, site: Site, pods: Callable[[Program], Pod]
) -> None:
    seed = 20
    source = random.Random(seed)  # noqa: S311 - the order of a test
    site.wanted = set()
    digest = site.tell()
    pod = pods(program)
    load = Load(program, site, seed)
    load.url = f"http://127.0.0.1:{pod.http_port}"
    try:
        names = list(site.adapters)
        source.shuffle(names)
        # Each is added once and removed once, in any order that allows it.
        turns = [*names, *source.sample(names, len(names))]
        source.shuffle(turns)
        for number, name in enumerate(turns, 1):
            site.wanted ^= {name}
            digest = site.tell()
            if number in (13, 29):
                load.url = ""
                pod.process.send_signal(signal.SIGKILL if number == 13 else signal.SIGTERM)
                pod.process.wait(SECONDS)
                pod = pods(program)
                # Ready means that what can be loaded is there again.
                url = f"http://127.0.0.1:{pod.http_port}"
                assert listed(url) == site.valid
                load.url = url
            elif number % 5 == 0:
                compare(pod, site, program, digest)
            else:
                time.sleep(source.random() / 2)
        compare(pod, site, program, digest)
        site.wanted = set(names)
        compare(pod, site, program, site.tell())
        assert len(site.valid) == COUNT - len(BROKEN)
        eventually(lambda: load.answered > 50)
    finally:
        load.close()
    assert load.wrong == []
    assert {line["name"] for line in pod.said("adapter not loaded")} <= BROKEN
