"""What a run of the tests tells of itself, and how it is dealt out to processes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from tests.support.parts import Parts, part_of
from tests.support.processes import long_first, scope_of


@pytest.mark.parametrize(
    ("nodeid", "part"),
    [
        ("tests/unit/test_queue.py::test_a[x/y::z]", "unit"),
        ("tests/runner/test_serve_group.py::test_a", "runner"),
        ("tests/e2e/test_kill.py::test_a[0]", "e2e/test_kill"),
        ("tests/sandbox/test_real_nodes.py::test_a", "sandbox/test_real_nodes"),
        ("tests/test_alone.py::test_a", "test_alone"),
    ],
)
def test_a_part_is_a_folder_or_a_module_of_slow_ones(nodeid: str, part: str) -> None:
    assert part_of(nodeid) == part


def _report(nodeid: str, when: Literal["setup", "call", "teardown"], seconds: float) -> Any:
    return SimpleNamespace(nodeid=nodeid, when=when, duration=seconds)


def test_all_phases_of_all_tests_of_a_part_are_added(tmp_path: Path) -> None:
    file = tmp_path / "parts"
    file.write_text("before\t1\t0\n")
    parts = Parts(file)
    parts.pytest_runtest_logstart()
    for nodeid in ("tests/unit/test_a.py::test_a", "tests/unit/test_b.py::test_b"):
        parts.pytest_runtest_logreport(_report(nodeid, "setup", 2.0))
        parts.pytest_runtest_logreport(_report(nodeid, "call", 3.0))
        parts.pytest_runtest_logreport(_report(nodeid, "teardown", 0.5))
    parts.pytest_runtest_logreport(_report("tests/e2e/test_kill.py::test_a", "setup", 7.0))
    parts.pytest_sessionfinish()
    assert file.read_text().splitlines() == [
        "before\t1\t0",
        "collection\t0\t0",
        "unit\t11\t2",
        "e2e/test_kill\t7\t1",
    ]


def test_modules_stay_whole_and_all_on_real_nodes_share_a_process() -> None:
    assert scope_of("tests/e2e/test_kill.py::test_a[0]") == "tests/e2e/test_kill.py"
    real = {
        scope_of("tests/sandbox/test_real_nodes.py::test_a"),
        scope_of("tests/real/test_one.py::test_a"),
        scope_of("tests/real/test_two.py::test_a"),
    }
    assert len(real) == 1
    assert scope_of("tests/sandbox/test_real_parts.py::test_a") not in real


def test_long_modules_come_first_and_each_keeps_its_order() -> None:
    names = [
        "tests/unit/test_a.py::test_2",
        "tests/unit/test_a.py::test_1",
        "tests/fault/test_c.py::test_1",
        "tests/e2e/test_b.py::test_2",
        "tests/e2e/test_b.py::test_1",
    ]
    items: list[Any] = [SimpleNamespace(nodeid=name) for name in names]
    long_first(items)
    assert [item.nodeid for item in items] == [*names[3:], names[2], *names[:2]]
