"""Services, budgets, step Jobs, records, the runner, and patches of all of them."""

from __future__ import annotations

import base64
import copy
import io
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.golden import specs

from shardwright.api import names
from shardwright.observe.projections import job_view, record_view
from shardwright.observe.quantity import to_whole
from shardwright.observe.world import ClaimView, Record, RecordState
from shardwright.render import names as rendered_names
from shardwright.render import patches
from shardwright.render.common import Owner
from shardwright.render.jobs import byte_quantity, step_job
from shardwright.render.pods import group_pods
from shardwright.render.records import record_body
from shardwright.render.runner import runner_archive, runner_config_map, runner_config_map_name
from shardwright.render.services import disruption_budget, leader_service, ranks_service
from shardwright.runner.contract import STORE, StepRequest, artifact_folder, decode

RUNNER = "shardwright-runner-0123456789"
OWNER = specs.owner()


def valid(body: dict[str, Any]) -> dict[str, Any]:
    kubernetes_validate.validate(body, "1.37", strict=True)
    assert len(body["metadata"]["name"]) <= 63
    return body


def jobs(
    asked: Any = None, model: Any = specs.LLAMA_8B, **changes: Any
) -> dict[str, dict[str, Any]]:
    found = specs.resolved(asked if asked is not None else specs.spec(), model)
    arguments: dict[str, Any] = {
        "attempt": 1,
        "owners": [OWNER],
        "spec": found.spec,
        "claim": specs.CLAIM,
        "settings": specs.SETTINGS,
        "runner_config_map": RUNNER,
    }
    return {
        artifact.step: valid(step_job(artifact, **{**arguments, **changes}))
        for artifact in found.artifacts
    }


def pod_spec(job: dict[str, Any]) -> dict[str, Any]:
    return dict(job["spec"]["template"]["spec"])


def container(job: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod_spec(job)["containers"]
    return dict(only)


def env(job: dict[str, Any]) -> dict[str, str]:
    return {item["name"]: item.get("value", "") for item in container(job)["env"]}


def request(job: dict[str, Any]) -> StepRequest:
    return decode(StepRequest, env(job)["SHARDWRIGHT_REQUEST"])


def patched(body: dict[str, Any], operations: patches.Operations) -> dict[str, Any]:
    """Apply a JSON patch (RFC 6902: test, add, replace, remove) as the API server does."""
    result = copy.deepcopy(body)
    for operation in operations:
        *parents, last = (
            part.replace("~1", "/").replace("~0", "~") for part in operation["path"][1:].split("/")
        )
        at: Any = result
        for part in parents:
            at = at[int(part)] if isinstance(at, list) else at[part]
        key: Any = len(at) if last == "-" else int(last) if isinstance(at, list) else last
        match operation["op"]:
            case "test":
                assert at[key] == operation["value"], f"test of {operation['path']} failed"
            case "remove":
                del at[key]
            case "add" if isinstance(at, list):
                at.insert(key, operation["value"])
            case "replace":
                assert key in at
                at[key] = operation["value"]
            case "add":
                at[key] = operation["value"]
    return result


def stored(body: dict[str, Any]) -> dict[str, Any]:
    """As the API server stores an object: with a uid."""
    return {**body, "metadata": {**body["metadata"], "uid": "uid-1"}}


POD = stored(group_pods(specs.resolved(specs.spec()), specs.identity(serving=False), RUNNER)[0])


def test_ranks_resolve_before_they_are_ready() -> None:
    service = valid(ranks_service("llm", OWNER))
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert POD["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"].items() <= POD["metadata"]["labels"].items()


def test_clients_reach_only_leaders_that_serve() -> None:
    service = valid(leader_service("llm", OWNER))
    assert service["metadata"]["name"] == "llama"
    assert service["spec"]["ports"] == [
        {"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"}
    ]
    selector = service["spec"]["selector"].items()
    two = specs.spec(parallelism={"pipeline": 2})
    leader, worker = group_pods(specs.resolved(two), specs.identity(), RUNNER)
    assert selector <= leader["metadata"]["labels"].items()
    assert not selector <= worker["metadata"]["labels"].items()
    assert not selector <= POD["metadata"]["labels"].items()


def test_the_budget_counts_pods_of_serving_groups_and_lets_sick_ones_go() -> None:
    budget = valid(disruption_budget("llm", OWNER, minimum_available=3))
    assert budget["spec"]["minAvailable"] == 3
    assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    selector = budget["spec"]["selector"]["matchLabels"].items()
    two = specs.spec(parallelism={"pipeline": 2})
    for pod in group_pods(specs.resolved(two), specs.identity(), RUNNER):
        assert selector <= pod["metadata"]["labels"].items()
    assert not selector <= POD["metadata"]["labels"].items()


def test_children_go_with_their_owner_and_do_not_block_it() -> None:
    for child in (
        ranks_service("llm", OWNER),
        leader_service("llm", OWNER),
        disruption_budget("llm", OWNER, minimum_available=1),
    ):
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (OWNER.uid, True)
        assert owner["blockOwnerDeletion"] is False


def test_a_step_s_job_is_created_suspended_and_tried_once() -> None:
    for step, job in jobs().items():
        spec = job["spec"]
        assert (spec["suspend"], spec["backoffLimit"]) == (True, 0)
        assert (spec["parallelism"], spec["completions"]) == (1, 1)
        assert spec["podReplacementPolicy"] == "Failed"
        assert "ttlSecondsAfterFinished" not in spec
        assert pod_spec(job)["restartPolicy"] == "Never"
        assert job["metadata"]["labels"][names.LABEL_STEP] == step


def test_the_runner_gives_up_before_the_job_s_deadline_so_that_it_can_report() -> None:
    for job in jobs().values():
        assert job["spec"]["activeDeadlineSeconds"] > request(job).timeout_seconds > 0


def test_a_job_s_name_is_its_step_key_claim_and_attempt() -> None:
    engine = jobs()["engine"]
    again = jobs()["engine"]
    assert engine["metadata"]["name"] == again["metadata"]["name"]
    second = jobs(attempt=2)["engine"]
    elsewhere = ClaimView("llm", "models", "another-uid", bound=True, access_modes=())
    other = jobs(claim=elsewhere)["engine"]
    assert len({job["metadata"]["name"] for job in (engine, second, other)}) == 3


def test_a_job_is_read_back_as_what_it_was_made_for() -> None:
    resolved = specs.resolved(specs.spec(quantization={"weights": "FP8"}))
    for artifact, job in zip(
        resolved.artifacts, jobs(resolved.spec, attempt=3).values(), strict=True
    ):
        view = job_view(stored(job))
        assert (view.step, view.key, view.attempt) == (artifact.step, artifact.key, 3)
        assert view.source_attempt == 0
        assert view.claim_uid == specs.CLAIM.uid
        assert view.owners == (OWNER.uid,)
        assert view.suspended
        assert view.node == ""
        assert view.requests.gpus == artifact.gpus
        assert view.requests.memory_bytes == artifact.resources.memory_bytes
    for job in jobs(resolved.spec, source_attempt=5).values():
        assert job_view(stored(job)).source_attempt == 5


def test_several_deployments_own_one_job_and_none_controls_it() -> None:
    owners = [Owner("a", "uid-a"), Owner("b", "uid-b")]
    found = jobs(owners=owners)["engine"]["metadata"]["ownerReferences"]
    assert [(item["uid"], item["controller"]) for item in found] == [
        ("uid-a", False),
        ("uid-b", False),
    ]


def test_the_fetch_runs_in_the_operator_s_image_with_the_user_s_secret() -> None:
    asked = specs.spec(
        model={"uri": "hf://org/model@main", "secretRef": {"name": "hf-token"}},
    )
    found = jobs(asked)
    fetch = container(found["model"])
    assert fetch["image"] == specs.SETTINGS.operator_image
    assert fetch["command"] == ["python3", "-m", "shardwright.runner", "fetch"]
    assert fetch["envFrom"] == [{"secretRef": {"name": "hf-token", "optional": False}}]
    assert request(found["model"]).source == f"hf://org/model@{specs.COMMIT}"
    for step in ("checkpoint", "engine"):
        assert "envFrom" not in container(found[step])
        assert container(found[step])["command"][-1] == "step"


def test_each_step_is_told_where_what_it_is_made_from_lies() -> None:
    resolved = specs.resolved(specs.spec())
    found = jobs()
    folders = {
        artifact.step: f"{STORE}/{artifact_folder(artifact.step, artifact.key)}"
        for artifact in resolved.artifacts
    }
    assert request(found["checkpoint"]).source == folders["model"]
    assert request(found["engine"]).source == folders["checkpoint"]
    for artifact in resolved.artifacts[1:]:
        asked = request(found[artifact.step])
        assert (asked.key, asked.inputs) == (artifact.key, artifact.inputs)
        assert asked.commands == artifact.commands
        assert asked.expected_files == artifact.expected_files


def test_the_store_is_writable_in_steps_and_another_claim_s_model_is_not() -> None:
    found = jobs(specs.spec(model={"uri": "pvc://shared/llama"}))
    mounts = {item["name"]: item for item in container(found["checkpoint"])["volumeMounts"]}
    assert "readOnly" not in mounts["store"]
    assert mounts["source"]["readOnly"] is True
    assert "source" not in {item["name"] for item in container(found["engine"])["volumeMounts"]}


@pytest.mark.parametrize(
    ("amount", "written"),
    [
        (2**30, "1Gi"),
        (3 * 2**20, "3Mi"),
        (2**30 + 2**20, "1025Mi"),
        (10**9, "1000000000"),
        (0, "0"),
    ],
)
def test_bytes_are_written_exactly_in_the_largest_unit(amount: int, written: str) -> None:
    assert byte_quantity(amount) == written
    assert to_whole(written) == amount


def test_shared_memory_fits_into_the_memory_of_its_step() -> None:
    for job in jobs().values():
        limit = to_whole(container(job)["resources"]["limits"]["memory"])
        for item in pod_spec(job)["volumes"]:
            if item["name"] == "shm":
                assert to_whole(item["emptyDir"]["sizeLimit"]) < limit


def test_a_step_without_a_gpu_sees_none() -> None:
    found = jobs()
    assert env(found["checkpoint"])["NVIDIA_VISIBLE_DEVICES"] == "none"
    assert "nvidia.com/gpu" not in container(found["checkpoint"])["resources"]["limits"]
    assert "NVIDIA_VISIBLE_DEVICES" not in env(found["engine"])
    assert container(found["engine"])["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_steps_keep_to_the_restricted_standard() -> None:
    for job in jobs(specs.EXAMPLES["llama-70b-tp8-pp2"][0]).values():
        spec = pod_spec(job)
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        inner = container(job)["securityContext"]
        assert inner == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)


def test_steps_take_tolerations_selector_priority_and_pull_secrets_of_their_owner() -> None:
    for job in jobs(specs.EXAMPLES["llama-70b-tp8-pp2"][0]).values():
        spec = pod_spec(job)
        assert spec["priorityClassName"] == "serving"
        assert spec["imagePullSecrets"] == [{"name": "ngc"}]
        assert spec["nodeSelector"]["topology.kubernetes.io/zone"] == "a"
        assert any(item.get("key") == "dedicated" for item in spec["tolerations"])


def test_a_record_is_read_back_as_it_was_written() -> None:
    record = Record(
        step="model",
        key="0123456789abcdef",
        claim_uid=specs.CLAIM.uid,
        state=RecordState.READY,
        inputs={"uri": "hf://org/model@main"},
        commit=specs.COMMIT,
        facts=specs.LLAMA_70B,
        total_bytes=141_107_000_000,
        created=1_795_953_600.25,
        used=1_795_957_200.0,
        rebuilds=1,
    )
    body = valid(record_body(record, specs.CLAIM))
    view = record_view(
        {**body, "metadata": {**body["metadata"], "uid": "u", "resourceVersion": "7"}}
    )
    expected = {**{name: getattr(record, name) for name in Record.__slots__}}
    expected |= {"name": body["metadata"]["name"], "uid": "u", "resource_version": 7}
    assert view == Record(**expected)


def test_a_failure_record_keeps_reason_and_log() -> None:
    record = Record(
        step="engine",
        key="0123456789abcdef",
        claim_uid=specs.CLAIM.uid,
        state=RecordState.FAILED,
        reason="OutOfMemory",
        message="rank 3 needs 91 GiB",
        log_tail="line 1\nline 2",
    )
    data = record_body(record, specs.CLAIM)["data"]
    assert data["state"] == "Failed"
    assert (data["reason"], data["logTail"]) == ("OutOfMemory", "line 1\nline 2")
    assert "createdAt" not in data


def test_a_record_belongs_to_its_claim() -> None:
    record = Record("engine", "0123456789abcdef", specs.CLAIM.uid, RecordState.READY)
    (owner,) = record_body(record, specs.CLAIM)["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("PersistentVolumeClaim", specs.CLAIM.uid)
    other = ClaimView("llm", "other", "another-uid", bound=True, access_modes=())
    with pytest.raises(ValueError, match="not of llm/other"):
        record_body(record, other)


def test_the_runner_is_one_immutable_file_named_by_its_content() -> None:
    body = valid(runner_config_map("llm"))
    assert body["immutable"] is True
    assert body["metadata"]["name"] == runner_config_map_name()
    archive = base64.b64decode(body["binaryData"]["shardwright-runner.pyz"])
    assert archive == runner_archive()
    assert rendered_names.runner_name(archive + b"x") != runner_config_map_name()


def test_the_runner_archive_is_the_same_wherever_it_is_built() -> None:
    first = runner_archive()
    runner_archive.cache_clear()
    assert runner_archive() == first
    with zipfile.ZipFile(io.BytesIO(first)) as archive:
        found = archive.namelist()
        assert found == sorted(found)
        assert {"__main__.py", "shardwright/runner/contract/words.py"} <= set(found)
        assert {item.date_time for item in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert not [name for name in found if "__pycache__" in name]


def test_the_runner_archive_stands_alone(tmp_path: Path) -> None:
    """The contract works from the archive, with no other package to be found."""
    path = tmp_path / "shardwright-runner.pyz"
    path.write_bytes(runner_archive())
    program = (
        f"import sys; sys.path[:] = [{str(path)!r}] + [p for p in sys.path if 'site-' not in p];"
        "from shardwright.runner import contract;"
        "print(contract.__file__, contract.artifact_key('model', {}))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True
    )
    file, key = done.stdout.split()
    assert file.startswith(str(path))
    assert len(key) == 16


def test_a_runner_fits_a_config_map() -> None:
    assert len(base64.b64encode(runner_archive())) < 900_000


def test_a_placement_pins_marks_and_ungates_in_one_patch() -> None:
    gates = [gate["name"] for gate in POD["spec"]["schedulingGates"]]
    after = patched(POD, patches.placement_patch("uid-1", "gpu-1", '["gpu-1"]', gates))
    assert after["spec"]["nodeSelector"][names.HOSTNAME_LABEL] == "gpu-1"
    assert after["metadata"]["annotations"][names.ANNOTATION_PLACEMENT] == '["gpu-1"]'
    assert after["spec"]["schedulingGates"] == []


def test_a_placement_leaves_the_gates_of_others() -> None:
    mine, other = {"name": names.SCHEDULING_GATE}, {"name": "kueue.x-k8s.io/admission"}
    pod = copy.deepcopy(POD)
    pod["spec"]["schedulingGates"] = [other, mine]
    order = [other["name"], mine["name"]]
    after = patched(pod, patches.placement_patch("uid-1", "gpu-1", "[]", order))
    assert after["spec"]["schedulingGates"] == [other]
    with pytest.raises(AssertionError, match="test of /spec/schedulingGates/0/name failed"):
        patched(pod, patches.placement_patch("uid-1", "gpu-1", "[]", order[::-1]))


def test_a_pod_without_our_gate_cannot_be_placed_again() -> None:
    with pytest.raises(ValueError, match="was placed already"):
        patches.placement_patch("uid-1", "gpu-1", "[]", [])


@pytest.mark.parametrize(
    "operations",
    [
        patches.placement_patch("uid-2", "gpu-1", "[]", [names.SCHEDULING_GATE]),
        patches.serve_patch("uid-2", leader=True),
        patches.unserve_patch("uid-2"),
        patches.resume_patch("uid-2", "gpu-1"),
        patches.adopt_patch("uid-2", OWNER),
        patches.disown_patch("uid-2", ["a", "b"], "a"),
    ],
)
def test_every_patch_fails_on_an_object_of_another_uid(operations: patches.Operations) -> None:
    with pytest.raises(AssertionError, match="test of /metadata/uid failed"):
        patched(POD, operations)


def test_a_proven_candidate_is_let_into_service_and_budget() -> None:
    leader = patched(POD, patches.serve_patch("uid-1", leader=True))["metadata"]["labels"]
    worker = patched(POD, patches.serve_patch("uid-1", leader=False))["metadata"]["labels"]
    assert (names.LABEL_SERVING in leader, names.LABEL_PROTECTED in leader) == (True, True)
    assert (names.LABEL_SERVING in worker, names.LABEL_PROTECTED in worker) == (False, True)


def test_a_leader_leaves_the_service_and_stays_protected_while_it_drains() -> None:
    serving = patched(POD, patches.serve_patch("uid-1", leader=True))
    labels = patched(serving, patches.unserve_patch("uid-1"))["metadata"]["labels"]
    assert (names.LABEL_SERVING in labels, names.LABEL_PROTECTED in labels) == (False, True)


def test_a_job_is_pinned_and_resumed_in_one_patch_and_never_twice() -> None:
    job = stored(jobs()["engine"])
    after = patched(job, patches.resume_patch("uid-1", "gpu-1"))
    assert after["spec"]["suspend"] is False
    assert job_view(after).node == "gpu-1"
    with pytest.raises(AssertionError, match="test of /spec/suspend failed"):
        patched(after, patches.resume_patch("uid-1", "gpu-2"))


def test_a_job_is_shared_and_given_up_by_its_owners() -> None:
    job = stored(jobs()["engine"])
    shared = patched(job, patches.adopt_patch("uid-1", Owner("b", "uid-b")))
    assert job_view(shared).owners == (OWNER.uid, "uid-b")
    left = patched(shared, patches.disown_patch("uid-1", job_view(shared).owners, OWNER.uid))
    assert job_view(left).owners == ("uid-b",)
    with pytest.raises(ValueError, match="cannot leave others"):
        patches.disown_patch("uid-1", ["uid-b"], "uid-b")


@given(
    stem=st.text("ab-", max_size=80).map(lambda middle: f"a{middle}z"),
    suffix=st.text("0f-", max_size=30).map(lambda middle: f"0{middle}1"),
)
def test_names_are_cut_in_the_stem_and_never_in_what_tells_them_apart(
    stem: str, suffix: str
) -> None:
    name = rendered_names.bounded(stem, suffix)
    assert len(name) <= 63
    assert name.endswith(f"-{suffix}")
    assert name[0].isalpha()
    assert stem.startswith(name.removesuffix(f"-{suffix}"))


def test_a_suffix_that_leaves_no_room_is_an_error() -> None:
    with pytest.raises(ValueError, match="no room"):
        rendered_names.bounded("llama", "x" * 63)


@pytest.mark.parametrize("name", ["l", "l" * 40])
def test_children_of_the_longest_name_fit(name: str) -> None:
    owner = specs.owner(name)
    for body in (
        ranks_service("llm", owner),
        leader_service("llm", owner),
        disruption_budget("llm", owner, minimum_available=0),
        record_body(
            Record("checkpoint", "f" * 16, specs.CLAIM.uid, RecordState.READY), specs.CLAIM
        ),
    ):
        valid(body)
