"""Fixtures of fetching: a hub and a volume."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fetching.hub_server import HubServer
from tests.fetching.volume import Volume


@pytest.fixture
def volume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Volume:
    found = Volume(tmp_path, output=lambda: capsys.readouterr().out)
    found.store.mkdir()
    return found


@pytest.fixture
def hub() -> Iterator[HubServer]:
    server = HubServer()
    yield server
    server.close()
