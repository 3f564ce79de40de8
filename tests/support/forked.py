"""Operators forked from a process that has imported everything.

Importing takes seconds of a processor; a test that starts a hundred operators must not pay for a
hundred of them. Each is still a process of its own, with nothing of its predecessor's but the code.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.support.operator import Operator

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["__main__", "shardwright.cli.run", "tests.support.forked"])


def _serve(kubeconfig: str, config: str, log: str) -> None:
    """What the child does: as the command line would."""
    from shardwright.cli.app import main  # noqa: PLC0415 - the server has imported what it loads

    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ["KUBECONFIG"] = kubeconfig
    sys.argv = ["shardwright", "run", "--config", config]
    main()


class ForkedOperator(Operator):
    """An operator that starts in no time."""

    child: BaseProcess | None = None

    def start(self) -> ForkedOperator:
        """Start it; it acts as soon as it holds the Lease."""
        self.log.touch()
        arguments = (str(self._kubeconfig), str(self._config), str(self.log))
        self.child = _CONTEXT.Process(target=_serve, args=arguments, daemon=True)
        self.child.start()
        return self

    @property
    def pid(self) -> int:
        """Its process."""
        assert self.child is not None
        assert self.child.pid is not None
        return self.child.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.child is not None and self.child.is_alive()

    def kill(self) -> None:
        """SIGKILL: no last words, the Lease stays held until it expires."""
        assert self.child is not None
        self.child.kill()
        self.child.join()
        assert not Path(f"/proc/{self.pid}/exe").exists()

    def stop(self, seconds: float = 90.0) -> int:
        """SIGTERM; the exit code, which must come in time."""
        if self.child is None:
            return 0
        self.child.terminate()
        self.child.join(seconds)
        assert self.child.exitcode is not None, f"it does not end within {seconds:.0f} s"
        return self.child.exitcode
