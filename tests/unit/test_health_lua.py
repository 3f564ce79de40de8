"""Argo CD's health of an LLMDeployment: health.lua run as Argo CD runs it."""

from __future__ import annotations

import pathlib
from pathlib import Path
from typing import Any

import lupa
import pytest
import yaml
from hack import sync_chart
from tests.support import kstatus

FOLDER = sync_chart.LUA.parent
SCRIPT = sync_chart.LUA.read_text()
CASES = yaml.safe_load((FOLDER / "health_test.yaml").read_text())["tests"]
# Argo CD opens base, table, package and a small os; these only with useOpenLibs.
CLOSED = ("string", "math", "io", "debug", "coroutine", "utf8")


def health(resource: dict[str, Any], script: str = SCRIPT) -> dict[str, str]:
    """What Argo CD would show."""
    lua = lupa.LuaRuntime(unpack_returned_tuples=True)
    for library in CLOSED:
        lua.globals()[library] = None
    lua.globals()["obj"] = _decoded(lua, resource)
    result = lua.execute(script)
    return {str(key): str(value) for key, value in result.items()}


def _decoded(lua: Any, value: Any) -> Any:
    if isinstance(value, dict):
        return lua.table_from({key: _decoded(lua, item) for key, item in value.items()})
    if isinstance(value, list):
        return lua.table_from([_decoded(lua, item) for item in value])
    return value


def loaded(case: dict[str, Any]) -> dict[str, Any]:
    resource = yaml.safe_load((FOLDER / case["inputPath"]).read_text())
    assert isinstance(resource, dict)
    return resource


@pytest.mark.parametrize("case", CASES, ids=lambda case: Path(case["inputPath"]).stem)
def test_health_is_as_the_upstream_test_file_says(case: dict[str, Any]) -> None:
    assert health(loaded(case)) == case["healthStatus"]


def test_every_file_of_testdata_has_a_case() -> None:
    named = {case["inputPath"] for case in CASES}
    assert named == {
        str(path.relative_to(FOLDER)) for path in pathlib.Path(FOLDER, "testdata").glob("*.yaml")
    }


# The schema gives status a default, and Ready is always written: kstatus would call these ready.
IMPOSSIBLE = ("testdata/no-status.yaml", "testdata/no-ready.yaml")


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case["inputPath"] not in IMPOSSIBLE],
    ids=lambda case: Path(case["inputPath"]).stem,
)
def test_argo_and_kstatus_agree_on_every_object_that_can_be(case: dict[str, Any]) -> None:
    """Helm, Flux and Argo CD must not tell three stories about one object."""
    resource = loaded(case)
    same = {"Healthy": "Current", "Progressing": "InProgress", "Degraded": "Failed"}
    assert same[case["healthStatus"]["status"]] == kstatus.verdict(resource).status


def test_ready_false_alone_is_never_degraded() -> None:
    """Argo CD ends a sync at a Degraded resource; Ready is False through every rollout."""
    case = next(case for case in CASES if "waiting-for-gpus" in case["inputPath"])
    assert health(loaded(case))["status"] == "Progressing"


def test_a_script_that_needs_a_closed_library_would_fail_this_test_too() -> None:
    with pytest.raises(lupa.LuaError):
        health({"metadata": {}}, 'return {status = string.format("%s", "Healthy")}')


def test_the_configmap_snippet_holds_the_same_script() -> None:
    snippet = yaml.safe_load(sync_chart.ARGO_CM.read_text())
    key = "resource.customizations.health.shardwright.dev_LLMDeployment"
    assert snippet["data"] == {key: SCRIPT}
