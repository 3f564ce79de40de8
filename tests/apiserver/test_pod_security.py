"""Which security level each kind of pod passes, asked of a real API server and its admission.

Every pod that the operator renders for the examples, under every kind of fabric profile, is created
(as a dry run) in a namespace of each level. docs/security.md must say the same.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client
from tests.golden import specs
from tests.unit.test_examples import FILES, known, spec_of

from shardwright.api.settings import FabricProfile, Settings
from shardwright.observe.world import Record, RecordState
from shardwright.render.jobs import step_job
from shardwright.render.pods import group_pods
from shardwright.render.sweeps import sweep_job
from shardwright.resolved import Resolved
from shardwright.runner.contract import SWEEPS
from shardwright_sandbox.cluster import Sandbox
from shardwright_sandbox.namespaces import make_namespace, remove_namespace

pytestmark = pytest.mark.apiserver

ROOT = Path(__file__).resolve().parents[2]
LEVELS = ("restricted", "baseline", "privileged")  # the strictest first
ENFORCE = "pod-security.kubernetes.io/enforce"
FORBIDDEN = 403
STEPS = "fetch, checkpoint, engine, sweep"
SERVING = "TensorRT-LLM, engine or PyTorch backend"


def charted() -> dict[str, FabricProfile]:
    """The profiles that the chart's page shows."""
    text = (ROOT / "charts/shardwright/README.md").read_text(encoding="utf-8")
    section = text.split("## Node pools and fabric profiles", 1)[1]
    block = re.search(r"```yaml\n(.*?)```", section, re.DOTALL)
    assert block
    given = yaml.safe_load(block[1])["settings"]["fabricProfiles"]
    return {name: FabricProfile.model_validate(value) for name, value in given.items()}


PROFILES: dict[str, tuple[str, FabricProfile]] = {
    "": ("none", FabricProfile()),
    "device": (
        "with resources and environment only",
        FabricProfile(resources={"rdma/ib": "8"}, env={"NCCL_IB_HCA": "mlx5"}),
    ),
    "host": ("with `hostNetwork`", FabricProfile(host_network=True)),
    **{
        name: (f"with `capabilities: [{', '.join(profile.capabilities)}]`", profile)
        for name, profile in charted().items()
    },
}
SETTINGS = Settings(
    fabric_profiles={name: profile for name, (_, profile) in PROFILES.items() if name}
)


@dataclass(frozen=True)
class Rendered:
    """One pod, and the row of the document that speaks of it."""

    row: tuple[str, str]
    name: str
    labels: dict[str, str]
    annotations: dict[str, str]
    spec: dict[str, Any]


def pod(row: tuple[str, str], name: str, body: dict[str, Any]) -> Rendered:
    meta = body["metadata"]
    return Rendered(row, name, meta.get("labels", {}), meta.get("annotations", {}), body["spec"])


def resolved(path: Path, profile: str) -> Resolved:
    asked = spec_of(path)
    asked = asked.model_copy(
        update={"pod": asked.pod.model_copy(update={"fabric_profile": profile})}
    )
    return specs.resolved(asked, known(asked).facts, SETTINGS)


def serving(path: Path, profile: str) -> Iterator[Rendered]:
    found = resolved(path, profile)
    row = (SERVING, PROFILES[profile][0])
    for stage, body in enumerate(group_pods(found, specs.identity(), "runner")):
        yield pod(row, f"{path.stem} {profile} stage {stage}", body)


def steps(path: Path, profile: str) -> Iterator[Rendered]:
    found = resolved(path, profile)
    row = (STEPS, "any")
    for artifact in found.artifacts:
        job = step_job(
            artifact,
            attempt=1,
            owners=[specs.owner()],
            spec=found.spec,
            claim=specs.CLAIM,
            settings=SETTINGS,
            runner_config_map="runner",
        )
        yield pod(row, f"{path.stem} {profile} {artifact.step}", job["spec"]["template"])
    trashed = Record("engine", "0" * 16, specs.CLAIM.uid, RecordState.TRASHED, trash="1" * 17)
    for action in SWEEPS:
        job = sweep_job(trashed, action, specs.CLAIM, SETTINGS, found.spec)
        yield pod(row, f"{path.stem} {profile} {action}", job["spec"]["template"])


def every_pod() -> list[Rendered]:
    found = [
        each
        for path in FILES
        for profile in PROFILES
        for each in (*serving(path, profile), *steps(path, profile))
    ]
    # What differs in no field that admission looks at is asked for once.
    distinct = {(each.row, str(_looked_at(each.spec))): each for each in found}
    return list(distinct.values())


def _looked_at(spec: dict[str, Any]) -> dict[str, Any]:
    """A pod's spec without what no level speaks of: the environment, sizes and names."""
    kept = {name: value for name, value in spec.items() if name not in ("hostname", "affinity")}
    drop = ("env", "resources", "image", "command")
    kept["containers"] = [
        {name: value for name, value in container.items() if name not in drop}
        for container in spec["containers"]
    ]
    return kept


PODS = every_pod()


@pytest.fixture(scope="module")
def namespaces(sandbox: Sandbox) -> Iterator[dict[str, str]]:
    """A namespace of each level."""
    tag = uuid.uuid4().hex[:6]
    made = {level: f"level-{level}-{tag}" for level in LEVELS}
    for level, name in made.items():
        make_namespace(sandbox.api, name, labels={ENFORCE: level})
    yield made
    for name in made.values():
        remove_namespace(sandbox.api, name)


def admitted(sandbox: Sandbox, namespace: str, rendered: Rendered) -> bool:
    """Whether the namespace's level lets the pod in; any other refusal is an error."""
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"p-{uuid.uuid4().hex[:8]}",
            "labels": rendered.labels,
            "annotations": rendered.annotations,
        },
        "spec": rendered.spec,
    }
    try:
        client.CoreV1Api(sandbox.api).create_namespaced_pod(
            namespace, body, dry_run="All", field_validation="Strict"
        )
    except client.ApiException as error:
        if error.status == FORBIDDEN and "violates PodSecurity" in str(error.body):
            return False
        raise
    return True


def level_of(sandbox: Sandbox, namespaces: dict[str, str], rendered: Rendered) -> str:
    """The strictest level that lets the pod in."""
    return next(level for level in LEVELS if admitted(sandbox, namespaces[level], rendered))


def documented() -> dict[tuple[str, str], str]:
    text = (ROOT / "docs/security.md").read_text(encoding="utf-8").partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    return {
        (row[0].strip(), row[1].strip()): row[2].strip(" `")
        for row in rows
        if not row[0].startswith((" ---", " pods "))
    }


# The operator's own pod is shown to be admitted by tests/apiserver/test_chart.py.
ELSEWHERE = {("the operator", "–")}


def test_every_row_of_the_document_speaks_of_a_pod_and_every_pod_has_one() -> None:
    assert {each.row for each in PODS} == set(documented()) - ELSEWHERE


@pytest.mark.parametrize("rendered", PODS, ids=lambda rendered: rendered.name)
def test_a_pod_passes_exactly_the_level_that_the_document_says(
    sandbox: Sandbox, namespaces: dict[str, str], rendered: Rendered
) -> None:
    assert level_of(sandbox, namespaces, rendered) == documented()[rendered.row]


def test_the_servers_own_words_are_what_is_judged_by(
    sandbox: Sandbox, namespaces: dict[str, str]
) -> None:
    """A pod that asks for the host's processes is let in by no level but the last."""
    plain = next(each for each in PODS if each.row[0] == STEPS)
    worse = Rendered(plain.row, "", plain.labels, {}, {**plain.spec, "hostPID": True})
    assert level_of(sandbox, namespaces, worse) == "privileged"
    as_root = {**plain.spec["securityContext"], "runAsNonRoot": False, "runAsUser": 0}
    root = Rendered(plain.row, "", plain.labels, {}, {**plain.spec, "securityContext": as_root})
    assert level_of(sandbox, namespaces, root) == "baseline"
