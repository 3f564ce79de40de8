"""Fixtures of the sandbox for every test, and the switch for the long runs."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says nothing on a machine that others work on too.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")

pytest_plugins = ["shardwright_sandbox.pytest_plugin"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--soak` runs what is marked soak, and nothing runs it by accident."""
    parser.addoption("--soak", action="store_true", help="run the long tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long tests out of every other run."""
    if config.getoption("--soak"):
        return
    kept = [item for item in items if "soak" not in item.keywords]
    config.hook.pytest_deselected(items=[item for item in items if "soak" in item.keywords])
    items[:] = kept
