"""Fixtures of the sandbox for every test, the switches for long runs, and where time goes."""

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

# What is marked so runs only where its option is given.
LONG = {"soak": "--soak", "e2e_all": "--e2e-all"}

pytest_plugins = ["shardwright_sandbox.pytest_plugin"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """What is marked long runs by its option, and never by accident; `--parts` tells times."""
    for mark, option in LONG.items():
        parser.addoption(option, action="store_true", help=f"run what is marked {mark} too")
    parser.addoption("--parts", type=Path, help="append the seconds of each part to this file")


def pytest_configure(config: pytest.Config) -> None:
    """Add times up where reports of all processes arrive."""
    if (file := config.getoption("--parts")) and not _is_worker(config):
        config.pluginmanager.register(Parts(file))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long tests out of every other run."""
    if _is_worker(config):
        long_first(items)
    out = {mark for mark, option in LONG.items() if not config.getoption(option)}
    config.hook.pytest_deselected(items=[item for item in items if out & set(item.keywords)])
    items[:] = [item for item in items if not out & set(item.keywords)]


@pytest.hookimpl(optionalhook=True)  # the hook is there only where xdist is loaded
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByModule:
    """Deal out module by module."""
    return ByModule(config, log)


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")
