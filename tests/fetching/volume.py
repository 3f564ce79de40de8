"""A claim's folder, and attempts at fetching into it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fetching.models import Files

from shardwright.fetching import Places, main
from shardwright.fetching.patience import Patience
from shardwright.runner.contract import (
    MANIFEST,
    STEP_MODEL,
    Manifest,
    Report,
    StepRequest,
    artifact_folder,
    artifact_key,
    decode,
)
from shardwright.runner.steps.stop import Stop

# Short waits: the tests count tries, not seconds.
QUICK = Patience(tries=4, first_wait_seconds=0.01, longest_wait_seconds=0.05, silence_seconds=10)


@dataclass(slots=True)
class Volume:
    """A claim's folder, and attempts at fetching into it."""

    root: Path
    step: str = STEP_MODEL
    attempts: int = 0
    patience: Patience = QUICK
    log: list[dict[str, Any]] = field(default_factory=list)
    output: Callable[[], str] = str

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def places(self) -> Places:
        return Places(self.store, self.root / "source", self.root / "termination-log")

    def final(self, uri: str) -> Path:
        return self.store / artifact_folder(self.step, artifact_key(self.step, {"uri": uri}))

    def request(self, uri: str, source: str = "", timeout_seconds: int = 0) -> StepRequest:
        return StepRequest(
            step=self.step,
            key=artifact_key(self.step, {"uri": uri}),
            inputs={"uri": uri},
            commands=(),
            expected_files=(),
            source=source or uri,
            timeout_seconds=timeout_seconds,
        )

    def fetch(
        self,
        uri: str,
        env: Mapping[str, str],
        *,
        source: str = "",
        timeout_seconds: int = 0,
        stop: Stop | None = None,
        pod: str = "",
    ) -> Report:
        """One attempt of a pod of its own; its report, and its log lines in `log`."""
        self.attempts += 1
        log = self.places.termination_log
        log.unlink(missing_ok=True)
        status = main(
            self.request(uri, source, timeout_seconds),
            pod_uid=pod or f"pod-{self.attempts}",
            env=env,
            places=self.places,
            patience=self.patience,
            stop=stop,
        )
        self.log = [json.loads(line) for line in self.output().splitlines()]
        assert log.stat().st_size <= 4096
        report = decode(Report, log.read_text())
        assert status == (0 if report.outcome == "Done" else 1)
        return report

    def manifest(self, uri: str) -> Manifest:
        return decode(Manifest, (self.final(uri) / MANIFEST).read_text())

    def files(self, uri: str) -> Files:
        """All files of the artifact's folder but its manifest."""
        final = self.final(uri)
        return {
            path.relative_to(final).as_posix(): path.read_bytes()
            for path in final.rglob("*")
            if path.is_file() and path.name != MANIFEST
        }

    def leftovers(self) -> list[str]:
        """Temporary folders."""
        return sorted(path.name for path in (self.store / "shardwright" / self.step).glob(".tmp-*"))

    def said(self, message: str) -> list[dict[str, Any]]:
        """The log lines of the last attempt with this message."""
        return [line for line in self.log if line["message"] == message]
