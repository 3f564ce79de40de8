"""Tests on the sandbox's control plane: its fixtures, wherever the run was started from."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Load the sandbox's fixtures; a second import of a plugin is none."""
    config.pluginmanager.import_plugin("shardwright_sandbox.pytest_plugin")
