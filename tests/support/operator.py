"""The operator as a process of its own, as it runs in a cluster: started, killed, watched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
SETTINGS: dict[str, Any] = {
    "evaluationImage": "registry.example.com/lm-eval:0.4.9.2",
    "namespace": "kube-system",
    "httpPort": 0,
    "logLevel": "INFO",
    # Simulated nodes give pods addresses at which nobody answers.
    "readLinks": False,
    # Short deadlines, so that a test of one does not wait for minutes.
    "timeouts": {
        "bindSeconds": 6,
        "startSeconds": 20,
        "readySeconds": 20,
        "nodeDeadSeconds": 3,
        "restartBackoffSeconds": 0.5,
        "restartBackoffMaxSeconds": 4,
        "restartBudget": 3,
        "stepBackoffSeconds": 0.5,
    },
    # As in a real installation: a busy machine must not cost the Lease. SIGTERM gives it back.
    "lease": {"durationSeconds": 15, "renewSeconds": 10, "retrySeconds": 0.5},
}

# For tests of no deadline: on a slow machine none passes by itself.
PATIENT: dict[str, Any] = {
    "timeouts": {
        **SETTINGS["timeouts"],
        "bindSeconds": 60,
        "startSeconds": 120,
        "readySeconds": 120,
    }
}


class Operator:
    """One operator process. `settings` are merged over the tests' own, one level deep."""

    def __init__(self, kubeconfig: Path, folder: Path, **settings: Any) -> None:
        self._kubeconfig = kubeconfig
        self.log = folder / "operator.log"
        self._config = folder / "config.yaml"
        merged = {
            name: {**value, **settings.pop(name, {})} if isinstance(value, dict) else value
            for name, value in SETTINGS.items()
        }
        self._config.write_text(yaml.safe_dump({**merged, **settings}), encoding="utf-8")
        self.process: subprocess.Popen[bytes] | None = None
        self._begun = 0  # where in the log the present life begins

    def start(self) -> Operator:
        """Start it; it acts as soon as it holds the Lease."""
        self._begun = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "shardwright", "run", "--config", str(self._config)],
                cwd=ROOT,
                env={**os.environ, "KUBECONFIG": str(self._kubeconfig)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return self

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.poll() is None

    @property
    def acts(self) -> bool:
        """Whether it has filled its store since its last start: from then on it acts."""
        return b"store filled" in self.log.read_bytes()[self._begun :]

    def kill(self) -> None:
        """SIGKILL: no last words, the Lease stays held until it expires."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self, seconds: float = 90.0) -> int:
        """SIGTERM; the exit code."""
        if self.process is None:
            return 0
        if self.alive:
            self.process.terminate()
        return self.process.wait(seconds)

    def memory_bytes(self) -> int:
        """Highest resident memory so far."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024

    def errors(self) -> list[str]:
        """Lines of the log that report an error: a healthy run has none."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        return [
            line for line in text.splitlines() if '"level": "error"' in line or "Traceback" in line
        ]

    def wait(self, seconds: float = 120.0) -> None:
        """Until it has filled its store: from then on it acts."""
        ends = time.monotonic() + seconds
        while not self.acts:
            assert self.alive, self.log.read_text(encoding="utf-8")[-3000:]
            assert time.monotonic() < ends, self.log.read_text(encoding="utf-8")[-3000:]
            time.sleep(0.05)
