"""The sandbox: starts, reuses and stops a control plane in a state folder."""

import os
import shutil
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from kubernetes import client

from shardwright_sandbox import credentials, guard, storage
from shardwright_sandbox.binaries import Binaries, control_plane
from shardwright_sandbox.cache import locked
from shardwright_sandbox.config import Layout, SandboxConfig
from shardwright_sandbox.errors import SandboxError
from shardwright_sandbox.launch import launch, user_kubeconfig
from shardwright_sandbox.processes import Processes
from shardwright_sandbox.progress import Progress
from shardwright_sandbox.real import start as real_start
from shardwright_sandbox.real.clear import clear as clear_real
from shardwright_sandbox.real.node import RealNode, find
from shardwright_sandbox.real.programs import Programs, find_programs
from shardwright_sandbox.rest import rest_of

_PLAYER_GRACE = 3.0
_OPERATOR_GRACE = 10.0


class Sandbox:
    """A running cluster with its folder. Made by `start` or `attach`.

    `kubeconfig` and `api` are the administrator's. `layout` is None for a
    cluster that somebody else runs (`KUBECONFIG`): nothing of it is on disk here.
    """

    def __init__(
        self, kubeconfig: Path, api: client.ApiClient, layout: Layout | None, config: SandboxConfig
    ) -> None:
        self.kubeconfig = kubeconfig
        self.api = api
        self.layout = layout
        self.config = config
        self.seconds_to_ready = 0.0
        self.started_here = False
        self._processes = Processes(layout.processes) if layout is not None else None

    @classmethod
    def start(
        cls,
        state_dir: Path,
        config: SandboxConfig | None = None,
        *,
        progress: Progress | None = None,
    ) -> Self:
        """Start a control plane in `state_dir`, or take the live one with the same settings.

        With `KUBECONFIG` set, that cluster is used instead, if the guard lets it.

        Raises:
            SandboxError: If it is not ready in time (with the end of the failing
                log), or if a sandbox with other settings lives there.
            RefusedCluster: If `KUBECONFIG` names a cluster that must not be written to.
        """
        config = config or SandboxConfig()
        progress = progress or Progress()
        if given := os.environ.get("KUBECONFIG"):
            progress.say(f"using the cluster of KUBECONFIG={given}")
            return cls.attach(Path(given), config)
        layout = Layout(state_dir.absolute())
        layout.root.mkdir(parents=True, exist_ok=True)
        with locked(layout.lock, progress):
            if (live := cls._reuse(layout, config)) is not None:
                progress.say(f"the sandbox in {layout.root} already runs")
                return live
            _clear(layout, keep=(layout.lock,))
            binaries = control_plane(progress)
            programs = find_programs(progress) if config.real else None
            return cls._fresh(layout, config, binaries, programs, progress)

    @classmethod
    def _fresh(
        cls,
        layout: Layout,
        config: SandboxConfig,
        binaries: Binaries,
        programs: Programs | None,
        progress: Progress,
    ) -> Self:
        began = time.monotonic()
        processes = Processes(layout.processes)
        with ExitStack() as undo:
            # also for Ctrl-C: a start that did not end well leaves nothing running
            undo.callback(clear_real, layout)
            undo.callback(processes.stop)
            if programs is None:
                api = launch(layout, config, binaries, processes, progress)
            else:
                given = (layout, config, programs)
                addresses = real_start.prepare(*given, processes, progress)
                host = str(addresses.host)
                api = launch(layout, config, binaries, processes, progress, host)
                real_start.join(*given, addresses, processes, api, progress)
            sandbox = cls(layout.kubeconfig, api, layout, config)
            sandbox._processes = processes
            sandbox.started_here = True
            if config.player:
                sandbox.start_player()
            undo.pop_all()
        sandbox.seconds_to_ready = time.monotonic() - began
        return sandbox

    @classmethod
    def attach(cls, kubeconfig: Path, config: SandboxConfig | None = None) -> Self:
        """A cluster that already runs, after the guard's check.

        When it is a sandbox of this machine its folder is found beside the
        kubeconfig, so that claims and logs can be used.
        """
        api = guard.check(kubeconfig)
        beside = Layout(kubeconfig.absolute().parent)
        layout = beside if beside.processes.exists() else None
        storage.ensure_class(api)
        return cls(kubeconfig, api, layout, config or SandboxConfig())

    @classmethod
    def _reuse(cls, layout: Layout, config: SandboxConfig) -> Self | None:
        if not layout.processes.exists():
            return None
        processes = Processes(layout.processes)
        dead = [entry.name for entry in processes.entries if not entry.alive()]
        if dead or not processes.entries:
            # what is left of a crash cannot be trusted: away with it, and start anew
            processes.stop()
            clear_real(layout)
            return None
        if processes.fingerprint != config.fingerprint():
            raise SandboxError(
                f"a sandbox with other settings runs in {layout.root}; stop it first "
                "(`make sandbox-down`), or choose another state folder"
            )
        return cls.attach(layout.kubeconfig, config)

    def real_nodes(self) -> dict[str, RealNode]:
        """The real nodes by name, each with its switches; none where none were asked for."""
        layout, processes = self._own()
        return find(layout, processes, die_with_parent=self.config.die_with_parent)

    def start_player(self) -> None:
        """Start the process that plays our containers."""
        layout, processes = self._own()
        command = [
            sys.executable,
            "-m",
            "shardwright_sandbox.player",
            f"--kubeconfig={user_kubeconfig(layout, 'sandbox-player')}",
            f"--state={layout.root}",
        ]
        processes.start(
            "player",
            command,
            layout.logs / "player.log",
            env=python_environment(),
            die_with_parent=self.config.die_with_parent,
        )

    def start_operator(self, *arguments: str) -> None:
        """Start the operator as a process under its own user; the log is `logs/operator.log`."""
        layout, processes = self._own()
        env = python_environment() | {"KUBECONFIG": str(self.kubeconfig_for("sandbox-operator"))}
        processes.start(
            "operator",
            [sys.executable, "-m", "shardwright", "run", *arguments],
            layout.logs / "operator.log",
            env=env,
            die_with_parent=self.config.die_with_parent,
        )

    def check_after(self, seconds: float) -> None:
        """Look once more after a moment: a process that cannot start ends at once, or never."""
        time.sleep(seconds)
        self.check()

    def stop_process(self, name: str, *, grace: float = _OPERATOR_GRACE) -> None:
        """End one process: `operator` or `player`, or a part of the control plane."""
        self._own()[1].stop(name, grace=grace)

    def kubeconfig_for(self, user: str) -> Path:
        """A kubeconfig of one of the token users."""
        path = user_kubeconfig(self._own()[0], user)
        if not path.exists():
            raise SandboxError(
                f"the sandbox has no user {user!r}; it has {', '.join(self.config.all_users)}; "
                "name it in SandboxConfig(users=...)"
            )
        return path

    def kubeconfig_for_account(
        self, namespace: str, account: str, path: Path, *, seconds: int = 3600
    ) -> Path:
        """A kubeconfig with a real token of a ServiceAccount, for tests of rights."""
        answer = rest_of(self.api).post(
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token",
            {"spec": {"expirationSeconds": seconds}},
        )
        layout = self._own()[0]
        return credentials.write_kubeconfig(
            path,
            str(self.api.configuration.host),
            layout.certs / "apiserver.crt",
            str(answer["status"]["token"]),
        )

    @property
    def claims(self) -> Path:
        """Folder that holds the claims' folders."""
        return self._own()[0].claims

    def check(self) -> None:
        """Raise with the end of its log if a process has ended."""
        if self._processes is not None:
            self._processes.check()

    def stop(self, *, keep_logs: bool = False) -> None:
        """End every process and remove every file, if `start` of this object started them.

        One that was there before (`KUBECONFIG`, or a live one in the folder) goes on
        running: it is somebody's. The function `stop` of this module ends any.
        """
        rest_of(self.api).close()
        if self.layout is not None and self._processes is not None and self.started_here:
            _stop(self.layout, self._processes, keep_logs=keep_logs)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        self.stop(keep_logs=kind is not None)

    def _own(self) -> tuple[Layout, Processes]:
        if self.layout is None or self._processes is None:
            raise SandboxError(
                f"the cluster of {self.kubeconfig} was not started by a sandbox on this machine: "
                "its processes and files are not ours to use; unset KUBECONFIG"
            )
        return self.layout, self._processes


def stop(state_dir: Path, *, keep_logs: bool = False) -> bool:
    """Stop the sandbox in `state_dir`, live, half started or crashed; whether there was one.

    Only what a sandbox writes is removed, and the folder if nothing else is in it.
    """
    layout = Layout(state_dir.absolute())
    if not layout.root.is_dir():
        return False
    known = layout.processes.exists()
    _stop(layout, Processes(layout.processes), keep_logs=keep_logs)
    return known


def _stop(layout: Layout, processes: Processes, *, keep_logs: bool) -> None:
    with locked(layout.lock, Progress(quiet=True)):
        processes.stop("operator", grace=_OPERATOR_GRACE)
        processes.stop("player", grace=_PLAYER_GRACE)
        processes.stop()
        clear_real(layout)
        _clear(layout, keep=(layout.logs,) if keep_logs else ())
    if not any(layout.root.iterdir()):
        layout.root.rmdir()


def python_environment() -> dict[str, str]:
    """This process's environment with its import path, for a Python child."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def _clear(layout: Layout, keep: tuple[Path, ...] = ()) -> None:
    for path in layout.owned():
        if path in keep:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
