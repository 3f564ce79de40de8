"""How a run in several processes deals its tests out: module by module, the long ones first.

A module's tests share what is dear (an operator, a fleet), so a module stays in one process. Each
process has a sandbox of its own; real nodes are started once, for all modules that need them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer

LONG_FIRST = ("e2e", "real", "sandbox", "runner", "standin", "apiserver", "fetching", "fault")
"""Folders whose modules take long, longest first: none of them may be what everything waits for."""
REAL_NODES = "real nodes"


def scope_of(nodeid: str) -> str:
    """What a test has to share a process with: its module, or all that runs on real nodes."""
    path = nodeid.partition("::")[0]
    on_real_nodes = path.startswith("tests/real/") or path == "tests/sandbox/test_real_nodes.py"
    return REAL_NODES if on_real_nodes else path


class ByModule(LoadScopeScheduling):
    """Gives the next module in order to the process that is done first."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        # by count of tests is the default: a module of two tests may take minutes
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def long_first(items: list[pytest.Item]) -> None:
    """Put modules of the folders that take long in front, each as it is."""

    def rank(item: pytest.Item) -> int:
        folder = item.nodeid.split("/")[1]
        return LONG_FIRST.index(folder) if folder in LONG_FIRST else len(LONG_FIRST)

    items.sort(key=rank)
