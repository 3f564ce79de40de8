"""What is known of Secrets: asked for rarely, and kept for no longer than somebody names them."""

from __future__ import annotations

import asyncio

import pytest

from shardwright.control.queue import Key
from shardwright.control.secrets import SECRET_SECONDS, Secrets

LLAMA = Key("deployment", "llm", "llama")
QWEN = Key("deployment", "llm", "qwen")
OTHER = Key("deployment", "other", "llama")


class Cluster:
    """Secrets that exist, the questions about them, and the time."""

    def __init__(self, *there: tuple[str, str]) -> None:
        self.there = set(there)
        self.asked: list[tuple[str, str]] = []
        self.now = 0.0
        self.secrets = Secrets(self.exists, lambda: self.now)

    async def exists(self, namespace: str, name: str) -> bool:
        self.asked.append((namespace, name))
        return (namespace, name) in self.there

    def look(self, key: Key, *names: str) -> tuple[str, ...]:
        """One pass of a deployment."""
        self.secrets.name(key, names)
        self.asked.clear()
        return asyncio.run(self.secrets.missing(key, names))


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(("llm", "token"), ("llm", "pull"), ("other", "token"))


def test_one_that_is_there_is_asked_for_once_an_hour(cluster: Cluster) -> None:
    assert cluster.look(LLAMA, "token") == ()
    assert cluster.asked == [("llm", "token")]
    cluster.now = SECRET_SECONDS
    assert (cluster.look(LLAMA, "token"), cluster.asked) == ((), [])
    cluster.now = SECRET_SECONDS + 1
    cluster.there.clear()
    assert (cluster.look(LLAMA, "token"), cluster.asked) == (("token",), [("llm", "token")])


def test_a_missing_one_is_asked_for_at_every_pass(cluster: Cluster) -> None:
    for _ in range(3):
        assert cluster.look(LLAMA, "token", "none") == ("none",)
        assert ("llm", "none") in cluster.asked
    assert len(cluster.secrets) == 1


def test_deployments_of_a_namespace_share_what_is_known(cluster: Cluster) -> None:
    cluster.look(LLAMA, "token")
    assert (cluster.look(QWEN, "token"), cluster.asked) == ((), [])
    assert (cluster.look(OTHER, "token"), cluster.asked) == ((), [("other", "token")])


def test_what_nobody_names_is_forgotten(cluster: Cluster) -> None:
    cluster.look(LLAMA, "token", "pull")
    cluster.look(QWEN, "token")
    cluster.look(OTHER, "token")
    assert len(cluster.secrets) == 3
    cluster.look(LLAMA, "token")
    assert len(cluster.secrets) == 2
    cluster.secrets.forget(LLAMA)
    # qwen names it still
    assert (cluster.look(QWEN, "token"), cluster.asked) == ((), [])
    cluster.secrets.forget(QWEN)
    cluster.secrets.forget(OTHER)
    cluster.secrets.forget(OTHER)
    assert len(cluster.secrets) == 0


def test_deployments_that_come_and_go_leave_nothing_behind(cluster: Cluster) -> None:
    for number in range(50):
        key = Key("deployment", f"team-{number}", "llama")
        cluster.there.add((f"team-{number}", "token"))
        cluster.look(key, "token")
        cluster.secrets.forget(key)
    assert len(cluster.secrets) == 0
    assert cluster.secrets._named == {}
