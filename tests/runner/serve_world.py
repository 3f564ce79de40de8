"""Pods as process groups on this machine: each its own network, host name, process 1 and /dev/shm.

Needs root, `ip` and `unshare`; two pods see each other over a bridge, by names in their own hosts
files, as pods of a cluster do.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import shardwright
from shardwright.runner.contract import (
    ENV_NODE_NAME,
    ENV_POD_NAME,
    ENV_REQUEST,
    MANIFEST,
    Command,
    FileEntry,
    Manifest,
    Report,
    ServeRequest,
    artifact_folder,
    artifact_key,
    decode,
    encode,
    engine_files,
)
from shardwright.runner.processes import all_processes, kill_process
from shardwright.runner.verify import sha256_of

HERE = Path(__file__).parent
ROOT = str(Path(shardwright.__file__).parents[1])
PACE: Mapping[str, float] = {
    "beat": 0.3,
    "look": 0.3,
    "canary": 1.0,
    "generation": 2.0,
    "lame_duck": 1.0,
    "end": 3.0,
    "adapters": 300.0,
}
# Long enough for a pod on a machine that is busy with something else; waits poll and end early.
SECONDS = 90.0
HTTP, RUNNER, CHANNEL = 8000, 8091, 8092
MARK = "SERVE_WORLD"  # in the environment of everything that a world starts
GATE = "ENGINE_GATE"  # `serve_engine.py` holds requests back until this file is there


def python() -> str:
    """The oldest Python that the runner must work on, where this machine has it; else this one."""
    found = shutil.which("python3.9")
    if found:
        asked = [found, "-c", "import sys; print(sys.executable)"]
        answer = subprocess.run(asked, capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            return answer.stdout.strip()
    return sys.executable


def why_not(*programs: str) -> str:
    """Why real pods cannot be played here, empty if they can."""
    if sys.platform != "linux" or os.getuid() != 0:
        return "network namespaces need root on Linux"
    missing = [name for name in ("ip", "unshare", "nsenter", *programs) if not shutil.which(name)]
    return f"not installed: {', '.join(missing)}" if missing else ""


def engine_artifact(store: Path, tensor: int, pipeline: int) -> tuple[str, Path]:
    """A finished engine folder of no real weights; returns its key and the folder."""
    inputs = {"tensor": tensor, "pipeline": pipeline}
    key = artifact_key("engine", inputs)
    folder = store / artifact_folder("engine", key)
    folder.mkdir(parents=True)
    world = tensor * pipeline
    mapping = {"world_size": world, "tp_size": tensor, "pp_size": pipeline}
    for name in engine_files(world):
        text = (
            json.dumps({"pretrained_config": {"mapping": mapping}})
            if name == "config.json"
            else f"weights of {name}" * 100
        )
        (folder / name).write_text(text)
    files = {
        path.name: FileEntry(path.stat().st_size, sha256_of(path)) for path in folder.iterdir()
    }
    manifest = Manifest(step="engine", key=key, inputs=inputs, files=files)
    (folder / MANIFEST).write_text(encode(manifest))
    return key, folder


@dataclass
class Pod:
    """One pod that was started."""

    name: str
    stage: int
    folder: Path
    process: subprocess.Popen[bytes]
    address: str
    namespace: str
    http_port: int = HTTP
    runner_port: int = RUNNER
    own_processes: bool = True
    tag: str = ""

    @property
    def init(self) -> int:
        """Process id, as this machine sees it, of the pod's process 1: the runner."""
        if not (self.namespace and self.own_processes):
            return self.process.pid
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return int(children.split()[0])

    def log(self) -> str:
        """All that the pod has printed."""
        return (self.folder / "log").read_text(errors="replace")

    def said(self, message: str) -> list[dict[str, Any]]:
        """The runner's own lines with this message, as far as they are written."""
        lines = self.log().splitlines(keepends=True)
        own = [json.loads(one) for one in lines if one.startswith("{") and one.endswith("\n")]
        return [line for line in own if line["message"] == message]

    def wait_for(self, text: str, times: int = 1) -> None:
        """Until the log has it: what a rank prints comes there through two other processes."""
        eventually(lambda: self.log().count(text) >= times, says=self.log)

    def get(self, path: str, port: int | None = None) -> tuple[int, str]:
        """Ask one of the pod's ports; status 0 when nobody answers."""
        url = f"http://{self.address}:{port or self.runner_port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=SECONDS) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except (OSError, http.client.HTTPException) as error:
            return 0, str(error)

    def status(self) -> dict[str, Any]:
        """The status page."""
        code, text = self.get("/status")
        assert code == 200, text
        found: dict[str, Any] = json.loads(text)
        return found

    def processes(self) -> list[int]:
        """Process ids, as this machine sees them, of everything in the pod but its runner."""
        if not self.namespace:
            return []
        space = str(Path(f"/proc/{self.init}/ns/pid").readlink())
        return [pid for pid in in_space(space) if pid != self.init]

    def engine(self, rank: int) -> int:
        """Process id of the program that plays this rank."""
        variable = f"OMPI_COMM_WORLD_RANK={rank}".encode()
        for pid in self.running("serve_engine.py"):
            if variable in look_into(pid, "environ").split(b"\0"):
                return pid
        raise AssertionError(f"no rank {rank} in {self.name}: {self.log()}")

    def running(self, word: str) -> list[int]:
        """Processes of the pod with this in their command line."""
        return [pid for pid in self.processes() if word.encode() in look_into(pid, "cmdline")]

    def end(self, seconds: float = SECONDS) -> Report:
        """Wait for the pod's end; its report."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} does not end: {self.log()}") from None
        text = (self.folder / "termination").read_text()
        assert len(text.encode()) <= 4096
        return decode(Report, text)

    def left(self) -> dict[int, str]:
        """Command lines of what lives of all that its world has started, whoever its parent is."""
        return marked(self.tag)

    def signal(self, number: int) -> None:
        """Send the runner a signal, as the kubelet does."""
        os.kill(self.init, number)


def look_into(pid: int, name: str) -> bytes:
    """A file of a process's folder; empty when it has ended meanwhile."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def in_space(space: str) -> list[int]:
    """Processes of a pid namespace."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                if str((path / "ns/pid").readlink()) == space:
                    found.append(int(path.name))
            except OSError:
                continue  # ended meanwhile
    return found


def eventually(what: Any, seconds: float = SECONDS, says: Any = None) -> Any:
    """What `what` gives, as soon as it is true."""
    deadline = time.monotonic() + seconds
    while True:
        found = what()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(says() if says else "it never was so")
        time.sleep(0.05)


@dataclass
class World:
    """A group's pods: their folders, addresses and token."""

    folder: Path
    tensor: int
    pipeline: int
    request: ServeRequest
    tag: str = field(default_factory=lambda: secrets.token_hex(2))
    token: str = field(default_factory=lambda: secrets.token_hex(32))
    pods: list[Pod] = field(default_factory=list)
    pace: Mapping[str, float] = field(default_factory=lambda: dict(PACE))
    environment: Mapping[str, str] = field(default_factory=dict)
    # Without a process namespace nothing but the runner ends what it has started.
    own_processes: bool = True
    # Open files: ended with the world.
    held: ExitStack = field(default_factory=ExitStack)

    def address(self, stage: int) -> str:
        return f"10.{self.number >> 8}.{self.number & 255}.{10 + stage}"

    @property
    def number(self) -> int:
        return int(self.tag, base=16)

    def spaces(self) -> list[str]:
        """The pid namespaces of the pods, to be looked at after their end.

        They are held open: the kernel gives the number of one that is gone to the next.
        """
        found = []
        for pod in self.pods:
            path = Path(f"/proc/{pod.init}/ns/pid")
            self.held.callback(os.close, os.open(path, os.O_RDONLY))
            found.append(str(path.readlink()))
        return found

    def namespace(self, stage: int) -> str:
        return f"sw{self.tag}-{stage}"

    def start(self, stage: int, *, token: str | None = None, **changes: Any) -> Pod:
        """Start one stage's pod."""
        name = self.request.peers[stage].split(".")[0]
        folder = self.folder / f"pod-{stage}-{len(self.pods)}"
        scratch = self.folder / "scratch"
        scratch.mkdir(exist_ok=True)
        (folder / "scratch").mkdir(parents=True)
        (folder / "token").write_text(f"{token or self.token}\n")
        hosts = [f"{self.address(s)} {peer}" for s, peer in enumerate(self.request.peers)]
        hosts.append(f"{self.address(stage)} {name}")
        (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *hosts]) + "\n")
        request = replace(self.request, stage=stage, **changes)
        given = {
            "root": ROOT,
            "places": {
                "store": str(self.folder / "store"),
                "scratch": str(scratch),
                "token": str(folder / "token"),
                "termination_log": str(folder / "termination"),
                "shm": "/dev/shm",  # noqa: S108 - the pod's own, mounted below
            },
            "pace": dict(self.pace),
        }
        script = (
            f"hostname {name} && mount -t tmpfs tmpfs /dev/shm && "
            f"mount --bind {folder / 'hosts'} /etc/hosts && "
            f"mount --bind {folder / 'scratch'} {scratch} && "
            'exec "$0" "$@"'
        )
        inner = [python(), str(HERE / "serve_pod.py"), json.dumps(given)]
        outer = [
            *("ip", "netns", "exec", self.namespace(stage)),
            *("unshare", "--uts", "--mount"),
            *(("--pid", "--fork", "--kill-child", "--mount-proc") if self.own_processes else ()),
            *("sh", "-c", script),
        ]
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(scratch),
            ENV_REQUEST: encode(request),
            ENV_POD_NAME: name,
            ENV_NODE_NAME: f"node-{stage}",
            "NVIDIA_VISIBLE_DEVICES": ",".join(str(4 + i) for i in range(self.tensor)),
            MARK: self.tag,
            **self.environment,
        }
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [*outer, *inner], env=environment, stdout=log, stderr=subprocess.STDOUT
            )
        pod = Pod(
            name,
            stage,
            folder,
            process,
            self.address(stage),
            self.namespace(stage),
            own_processes=self.own_processes,
            tag=self.tag,
        )
        self.pods.append(pod)
        return pod

    def logs(self) -> str:
        return "\n".join(f"=== {pod.name}\n{pod.log()}" for pod in self.pods)

    def ready(self, seconds: float = SECONDS) -> None:
        """Wait until every pod is ready."""
        for pod in self.pods:
            eventually(lambda pod=pod: pod.get("/readyz")[0] == 200, seconds, self.logs)

    def left(self) -> dict[int, str]:
        """Command lines of processes of this world that live, wherever they have gone."""
        return marked(self.tag)

    def cut(self, stage: int) -> None:
        """Cut a pod off the network, as a broken switch does: nothing is refused, nothing comes."""
        run("ip", "link", "set", f"v{self.namespace(stage)}", "down")


def marked(tag: str) -> dict[int, str]:
    """Command lines of living processes with a mark in their environment."""
    mark = f"{MARK}={tag}".encode()
    found = {}
    for process in all_processes():
        folder = Path(f"/proc/{process.pid}")
        try:
            ours = mark in (folder / "environ").read_bytes().split(b"\0")
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
        except OSError:
            continue  # ended meanwhile
        if ours and process.state not in ("Z", "X"):
            found[process.pid] = words.decode(errors="replace")
    return found


def run(*words: str) -> None:
    """Run a command that must succeed."""
    answer = subprocess.run(words, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, f"{words}: {answer.stderr}"


def asked(folder: Path, tensor: int, pipeline: int, argv: tuple[str, ...]) -> ServeRequest:
    """A request for stage 0, and the engine it names."""
    key, artifact = engine_artifact(folder / "store", tensor, pipeline)
    peers = tuple(f"m-{stage}.m-ranks.test.svc" for stage in range(pipeline))
    by_mpi = pipeline > 1
    return ServeRequest(
        deployment="m",
        replica=0,
        incarnation=3,
        stage=0,
        tensor=tensor,
        pipeline=pipeline,
        step="engine",
        key=key,
        artifact=str(artifact),
        model_folder=str(folder / "model"),
        served_name="m",
        product="",
        command=Command(tool="trtllm-llmapi-launch" if by_mpi else "trtllm-serve", argv=argv),
        config={"max_batch_size": 8},
        peers=peers,
        # Those of a busy machine: a test of one brings its own.
        peer_deadline_seconds=120,
        drain_timeout_seconds=20,
        peer_timeout_seconds=15,
        http_port=HTTP,
        runner_port=RUNNER,
        channel_port=CHANNEL,
    )


@contextmanager
def world(
    folder: Path, tensor: int, pipeline: int, argv: tuple[str, ...], **changes: Any
) -> Iterator[World]:
    """A network of `pipeline` pods, ended and removed with all that is in it."""
    request = asked(folder, tensor, pipeline, argv)
    made = World(folder, tensor, pipeline, replace(request, **changes))
    bridge = f"sw{made.tag}"
    run("ip", "link", "add", bridge, "type", "bridge")
    try:
        prefix = made.address(0).rpartition(".")[0]
        run("ip", "addr", "add", f"{prefix}.1/24", "dev", bridge)
        run("ip", "link", "set", bridge, "up")
        for stage in range(pipeline):
            join(made, bridge, stage)
        yield made
    finally:
        made.held.close()
        for pod in made.pods:
            pod.process.send_signal(signal.SIGKILL)
            pod.process.wait()
        for pid in made.left():
            kill_process(pid, signal.SIGKILL)
        for stage in range(pipeline):
            # The namespace itself goes later, when the kernel comes to it.
            subprocess.run(["ip", "link", "del", f"v{made.namespace(stage)}"], check=False)
            subprocess.run(["ip", "netns", "del", made.namespace(stage)], check=False)
        run("ip", "link", "del", bridge)


@contextmanager
def own_port() -> Iterator[int]:
    """A port that only who asks for it by its number gets, as long as the block lasts.

    A socket is bound to it and does not listen: Linux lets others listen there that reuse
    addresses, as servers do, and gives the port to nobody who takes any.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        yield port


@contextmanager
def solo(
    folder: Path,
    argv: tuple[str, ...],
    environment: Mapping[str, str] | None = None,
    pace: Mapping[str, float] | None = None,
    tensor: int = 1,
    places: Mapping[str, str] | None = None,
    **changes: Any,
) -> Iterator[Pod]:
    """A pod of one stage in no namespace of its own, so that no privilege is needed."""
    tag = secrets.token_hex(8)
    with own_port() as http, own_port() as runner:
        argv = tuple(word.replace("{http}", str(http)) for word in argv)
        request = asked(folder, tensor, 1, argv)
        request = replace(request, http_port=http, runner_port=runner, **changes)
        for name in ("scratch", "shm"):
            (folder / name).mkdir()
        given = {
            "root": ROOT,
            "places": {
                "store": str(folder / "store"),
                "scratch": str(folder / "scratch"),
                "token": str(folder / "token"),
                "termination_log": str(folder / "termination"),
                "shm": str(folder / "shm"),
                **(places or {}),
            },
            "pace": {**PACE, **(pace or {})},
        }
        given_environment = {
            "PATH": os.environ["PATH"],
            ENV_REQUEST: encode(request),
            ENV_POD_NAME: "m-0",
            ENV_NODE_NAME: "node-0",
            MARK: tag,
            **(environment or {}),
        }
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [python(), str(HERE / "serve_pod.py"), json.dumps(given)],
                env=given_environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        pod = Pod("m-0", 0, folder, process, "127.0.0.1", "", http, runner, tag=tag)
        try:
            yield pod
        finally:
            process.kill()
            process.wait()
            # Also what has lost its parent.
            for pid in pod.left():
                kill_process(pid, signal.SIGKILL)


def join(made: World, bridge: str, stage: int) -> None:
    """One pod's network."""
    namespace = made.namespace(stage)
    outside, inside = f"v{namespace}", f"p{namespace}"
    run("ip", "netns", "add", namespace)
    run("ip", "link", "add", outside, "type", "veth", "peer", "name", inside)
    run("ip", "link", "set", outside, "master", bridge, "up")
    run("ip", "link", "set", inside, "netns", namespace, "name", "eth0")
    for words in (
        ("addr", "add", f"{made.address(stage)}/24", "dev", "eth0"),
        ("link", "set", "eth0", "up"),
        ("link", "set", "lo", "up"),
    ):
        run("ip", "-n", namespace, *words)


def mpi_reason() -> str:
    """Why ranks over real MPI cannot be started here, empty if they can."""
    return why_not("mpirun")


needs_mpi = pytest.mark.skipif(bool(mpi_reason()), reason=mpi_reason() or "it runs here")
needs_root = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it runs here")
