from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from shardwright_sandbox import guard
from shardwright_sandbox.config import CONTEXT
from shardwright_sandbox.errors import RefusedCluster, SandboxError


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Callable[..., Path]:
    def write(context: str, server: str = "https://127.0.0.1:9") -> Path:
        path = tmp_path / "kubeconfig"
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "c", "cluster": {"server": server}}],
                    "users": [{"name": "u", "user": {"token": "t"}}],
                    "contexts": [{"name": context, "context": {"cluster": "c", "user": "u"}}],
                    "current-context": context,
                }
            )
        )
        return path

    return write


def test_any_other_cluster_is_refused_before_it_is_asked_anything(
    kubeconfig: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(guard.ALLOWED, raising=False)
    with pytest.raises(RefusedCluster, match="'production'") as refused:
        guard.check(kubeconfig("production"))
    assert f"{guard.ALLOWED}=production" in str(refused.value)


def test_a_cluster_may_be_allowed_by_name(
    kubeconfig: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(guard.ALLOWED, "other, production")
    assert guard.check(kubeconfig("production")).configuration.host == "https://127.0.0.1:9"


def test_a_name_must_match_as_a_whole(
    kubeconfig: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(guard.ALLOWED, "production-test,prod")
    with pytest.raises(RefusedCluster):
        guard.check(kubeconfig("production"))


def test_the_sandboxs_name_alone_is_not_enough(
    kubeconfig: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(guard.ALLOWED, raising=False)
    with pytest.raises(RefusedCluster, match="does not answer"):
        guard.check(kubeconfig(CONTEXT))


def test_an_unreadable_kubeconfig_is_named(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="correct or unset KUBECONFIG"):
        guard.check(tmp_path / "none")
