"""A port that a server will listen on is nobody else's until then."""

from __future__ import annotations

import socket

import pytest
from shardwright_standin.ports import LOOPBACK, reserved


def test_no_port_is_given_twice() -> None:
    """Of some 14,000 that the kernel chooses from, any 600 drawn blindly have equals among them."""
    assert len({reserved() for _ in range(600)}) == 600


@pytest.mark.parametrize("host", [LOOPBACK, ""])
def test_a_server_listens_on_it_and_nobody_asks_for_it_by_chance(host: str) -> None:
    port = reserved()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((host, port))
    with socket.create_server((host, port)), socket.create_connection((LOOPBACK, port)) as client:
        assert client.getpeername() == (LOOPBACK, port)


def test_until_then_it_answers_nothing() -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((LOOPBACK, reserved()))
