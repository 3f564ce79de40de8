"""Fixtures of the sandbox for every test, the switch for the long runs, and where time goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tests.support.parts import Parts
from tests.support.processes import ByModule, long_first

# How long an example takes says nothing on a machine that others work on too.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")

pytest_plugins = ["shardwright_sandbox.pytest_plugin"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--soak` runs what is marked soak, and nothing runs it by accident; `--parts` tells times."""
    parser.addoption("--soak", action="store_true", help="run the long tests")
    parser.addoption("--parts", type=Path, help="append the seconds of each part to this file")


def pytest_configure(config: pytest.Config) -> None:
    """Add times up where reports of all processes arrive."""
    if (file := config.getoption("--parts")) and not _is_worker(config):
        config.pluginmanager.register(Parts(file))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long tests out of every other run."""
    if _is_worker(config):
        long_first(items)
    if config.getoption("--soak"):
        return
    kept = [item for item in items if "soak" not in item.keywords]
    config.hook.pytest_deselected(items=[item for item in items if "soak" in item.keywords])
    items[:] = kept


@pytest.hookimpl(optionalhook=True)  # the hook is there only where xdist is loaded
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByModule:
    """Deal out module by module."""
    return ByModule(config, log)


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")
