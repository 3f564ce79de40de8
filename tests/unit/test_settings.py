"""The configuration file: what is wrong in it is said by field, value and limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.control.settings import SettingsError, load_settings


def test_without_a_file_the_defaults_hold() -> None:
    settings = load_settings(environ={})
    assert settings.concurrency == 16
    assert settings.lease.duration_seconds == 15


def test_the_file_is_named_by_the_environment_or_directly(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("resyncSeconds: 30\nlease: {name: other}\n")
    for settings in (
        load_settings(file, environ={}),
        load_settings(environ={"SHARDWRIGHT_CONFIG": str(file)}),
    ):
        assert settings.resync_seconds == 30
        assert settings.lease.name == "other"


def test_an_empty_file_is_no_error(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("# nothing set\n")
    assert load_settings(file, environ={}) == load_settings(environ={})


def test_a_few_variables_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("namespace: a\nhttpPort: 1\n")
    settings = load_settings(
        file,
        environ={
            "SHARDWRIGHT_NAMESPACE": "b",
            "SHARDWRIGHT_HTTP_PORT": "9090",
            "SHARDWRIGHT_LOG_LEVEL": "DEBUG",
        },
    )
    assert (settings.namespace, settings.http_port, settings.log_level) == ("b", 9090, "DEBUG")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("concurrency: 0", ["concurrency: 0 is less than 1: write a whole number from 1 to"]),
        ("concurrency: many", ['concurrency: "many" is a text: write a whole number from 1 to']),
        (
            "timeouts: {bindSeconds: -3}",
            ["timeouts.bindSeconds: -3 is not more than 0: write a number greater than 0"],
        ),
        ("concurency: 3", ["concurency: is no field: did you mean concurrency?"]),
        (
            "nodePools: [{name: p, product: X, gpusPerNode: 0, maxNodes: 1}]",
            ["nodePools[0].gpusPerNode: 0 is less than 1: write a whole number from 1 to"],
        ),
        ("lease: {renewSeconds: 20}", ["renewSeconds 20 < lease.durationSeconds 15", "2, 10, 15"]),
        (
            "timeouts: {restartBackoffSeconds: 900}",
            ["restartBackoffSeconds 900 exceeds", "restartBackoffMaxSeconds 600"],
        ),
        ("fabric: {gigabytesPerSecond: 50}", ["fabric.kind"]),
        (
            "fabric: {kind: TokenRing}",
            ['fabric.kind: "TokenRing" is not known: write RDMA or Ethernet'],
        ),
        (
            "fabric: {kind: RDMA, gigabytesPerSecond: 0}",
            ["fabric.gigabytesPerSecond: 0 is not more than 0: write a number greater than 0"],
        ),
        (
            "logLevel: LOUD",
            ['logLevel: "LOUD" has not the form asked: write DEBUG, INFO, WARNING or ERROR'],
        ),
        ("[1, 2]", ["must hold a mapping"]),
        ("a: [", ["is not YAML"]),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, told: list[str]) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError) as raised:
        load_settings(file, environ={})
    assert str(file) in str(raised.value)
    for words in told:
        assert words in str(raised.value)


def test_every_problem_is_listed_at_once(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("concurrency: 0\nresyncSeconds: 0\n")
    with pytest.raises(SettingsError) as raised:
        load_settings(file, environ={})
    assert len(str(raised.value).splitlines()) == 2


def test_a_bad_override_names_the_variable() -> None:
    with pytest.raises(
        SettingsError, match='SHARDWRIGHT_HTTP_PORT: httpPort: "abc" is a text: write a'
    ):
        load_settings(environ={"SHARDWRIGHT_HTTP_PORT": "abc"})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.yaml cannot be read: No such file"):
        load_settings(tmp_path / "none.yaml", environ={})
