"""Where a run of the tests spends its time: seconds by part, written for whoever adds them up.

A part is a folder of tests, or one module of the folders whose modules take a minute each. Seconds
of tests that run side by side are added, so that parts can be compared; they sum to more than the
clock shows.
"""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path, PurePosixPath

import pytest

COLLECTION = "collection"
BY_MODULE = ("e2e", "sandbox")
"""Folders that are told module by module."""


def part_of(nodeid: str) -> str:
    """The part that a test belongs to: `unit`, or `e2e/test_kill`.

    Args:
        nodeid: as pytest has it, with forward slashes: `tests/e2e/test_kill.py::test_a`.
    """
    path = PurePosixPath(nodeid.partition("::")[0])
    folders = path.parts[1:-1]  # below `tests`
    if not folders:
        return path.stem
    if folders[0] in BY_MODULE:
        return f"{folders[0]}/{path.stem}"
    return folders[0]


class Parts:
    """Adds up what the phases of all tests took; appends `part<TAB>seconds<TAB>tests` lines."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._began = time.monotonic()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._tests: defaultdict[str, int] = defaultdict(int)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        """The first test begins: what came before was collection."""
        if COLLECTION not in self._seconds:
            self._seconds[COLLECTION] = time.monotonic() - self._began

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One phase of a test: setup (with the fixtures made for it), call or teardown."""
        part = part_of(report.nodeid)
        self._seconds[part] += report.duration
        self._tests[part] += report.when == "setup"

    def pytest_sessionfinish(self) -> None:
        """Write, also when tests failed."""
        with self._file.open("a", encoding="utf-8") as lines:
            for part, seconds in self._seconds.items():
                lines.write(f"{part}\t{seconds:.0f}\t{self._tests[part]}\n")
