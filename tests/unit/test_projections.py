"""From objects as the API server returns them to views: what is kept, and what it means."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support import bodies

from shardwright.api import names
from shardwright.observe.projections import (
    RecordError,
    child_view,
    claim_view,
    deployment_view,
    epoch,
    job_view,
    pod_view,
    record_view,
    revision_view,
)
from shardwright.observe.world import PodView, RecordState
from shardwright.runner.contract import ModelFacts, Report, encode_report

T0, T1 = "2026-01-01T00:00:10Z", "2026-01-01T00:00:20Z"


def status(**more: Any) -> dict[str, Any]:
    return {"phase": "Running", **more}


def test_a_bound_and_ready_pod() -> None:
    body = bodies.pod("p", "u", 7, owners=[bodies.owner("o")], node="n1", phase="Running", gpus=8)
    body["metadata"]["labels"] = {names.LABEL_STAGE: "1", "app": "x"}
    body["metadata"]["annotations"] = {names.ANNOTATION_PLACEMENT: "{}"}
    body["spec"]["priority"] = 100
    body["status"] = status(
        conditions=[
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": T0},
            {"type": "Ready", "status": "True", "lastTransitionTime": T1},
        ],
        containerStatuses=[{"state": {"running": {}}, "restartCount": 2}],
    )
    view = pod_view(body)
    assert (view.namespace, view.name, view.uid, view.resource_version) == ("llm", "p", "u", 7)
    assert (view.owner_uid, view.owner_kind) == ("o", names.KIND)
    assert view.labels == {names.LABEL_STAGE: "1"}, "only our own labels are kept"
    assert (view.node, view.ready, view.started, view.gated) == ("n1", True, True, False)
    assert (view.bound_at, view.ready_changed) == (epoch(T0), epoch(T1))
    assert (view.requests.gpus, view.priority, view.restarts) == (8, 100, 2)
    assert view.placement == "{}"
    assert not view.finished


def test_a_gated_pod_is_not_unschedulable() -> None:
    body = bodies.pod("p", "u", 1, schedulingGates=[{"name": names.SCHEDULING_GATE}])
    body["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "gated"}
    ]
    view = pod_view(body)
    assert view.gated
    assert view.unschedulable == ""
    assert view.bound_at is None


def test_a_pinned_pod_that_the_scheduler_refuses_says_why() -> None:
    body = bodies.pod("p", "u", 1, nodeSelector={names.HOSTNAME_LABEL: "n3"})
    body["status"]["conditions"] = [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/3 nodes are available",
        }
    ]
    view = pod_view(body)
    assert (view.pin, view.node) == ("n3", "")
    assert view.unschedulable == "0/3 nodes are available"


@pytest.mark.parametrize(
    ("waiting", "told"),
    [
        ({"reason": "ImagePullBackOff", "message": "no such image"}, "ImagePullBackOff"),
        ({"reason": "ContainerCreating"}, ""),
        ({"reason": "PodInitializing"}, ""),
    ],
)
def test_why_a_container_waits(waiting: dict[str, str], told: str) -> None:
    body = bodies.pod("p", "u", 1)
    body["status"] = status(containerStatuses=[{"state": {"waiting": waiting}}])
    view = pod_view(body)
    assert view.waiting == told
    assert not view.started


def test_a_pod_that_is_being_deleted_tells_when_it_should_be_gone() -> None:
    body = bodies.pod("p", "u", 1)
    assert pod_view(body).gone_by is None
    body["metadata"]["deletionTimestamp"] = T1
    view = pod_view(body)
    assert view.deleting
    assert view.gone_by == epoch(T1)


def test_a_failed_pod_gives_its_report_and_the_time_of_its_end() -> None:
    report = Report(outcome="Permanent", reason="UnknownFlag", message="--gemm")
    body = bodies.pod("p", "u", 1, phase="Failed")
    ended = {"exitCode": 3, "reason": "Error", "message": encode_report(report), "finishedAt": T1}
    body["status"] = {
        "phase": "Failed",
        "initContainerStatuses": [
            {"state": {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": T0}}}
        ],
        "containerStatuses": [{"state": {"terminated": ended}}],
    }
    view = pod_view(body)
    assert view.finished
    assert view.report == report
    assert (view.exit_code, view.exit_reason, view.finished_at) == (3, "Error", epoch(T1))


def crashing(message: str) -> PodView:
    """A pod whose sidecar ends at once, again and again, as a kubelet tells of it."""
    body = bodies.pod("p", "u", 1)
    body["spec"]["initContainers"] = [{"name": "server", "restartPolicy": "Always"}]
    last = {"exitCode": 128, "reason": "StartError", "message": message}
    back_off = {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}
    body["status"] = {
        "phase": "Pending",
        "initContainerStatuses": [
            {
                "name": "server",
                "restartCount": 2,
                "state": {"waiting": back_off},
                "lastState": {"terminated": last},
            }
        ],
        "containerStatuses": [
            {"name": "engine", "state": {"waiting": {"reason": "PodInitializing"}}}
        ],
    }
    return pod_view(body)


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ('exec: "python3": executable file not found in $PATH', "executable file not found"),
        (encode_report(Report("Permanent", "ToolFailed", "python3 is too old")), "is too old"),
        ("", "StartError with exit code 128"),
    ],
)
def test_a_container_that_crashes_in_a_loop_is_told_by_its_last_words(
    message: str, told: str
) -> None:
    view = crashing(message)
    assert view.waiting == "CrashLoopBackOff"
    assert told in view.waiting_message
    assert view.report is None, "it is no pod's end"
    assert view.exit_code is None


def test_text_that_is_no_report_is_an_absent_report() -> None:
    body = bodies.pod("p", "u", 1, phase="Failed")
    ended = {"exitCode": 137, "reason": "OOMKilled", "message": "Killed\n"}
    body["status"]["containerStatuses"] = [{"state": {"terminated": ended}}]
    view = pod_view(body)
    assert view.report is None
    assert (view.exit_code, view.exit_reason) == (137, "OOMKilled")


@pytest.mark.parametrize(
    "message",
    [
        "[" * 4000,
        '{"contract":1,"outcome":"Done","tools":' + "[" * 4000,
        '{"contract":1,"outcome":"Environment","reason":5}',
        '{"contract":1,"outcome":"Environment","message":{"a":1}}',
        '{"contract":1,"outcome":"Environment","rank":"3"}',
        '{"contract":1,"outcome":"Environment","rank":1e400}',
        '{"contract":1,"outcome":"Environment","seconds":NaN}',
        '{"contract":1,"outcome":"Environment","reused":1}',
        '{"contract":1,"outcome":"Environment","first":5}',
        '{"contract":1,"outcome":"X","first":{"stage":1,"rank":0,"outcome":"X","reason":["x"]}}',
    ],
    ids=lambda text: text[:60],
)
def test_whatever_any_container_of_the_cluster_leaves_is_a_report_or_none(message: str) -> None:
    """All pods are watched: words of one must not end the watch, nor break a pass later."""
    body = bodies.pod("p", "u", 1, phase="Failed")
    body["status"]["containerStatuses"] = [
        {"state": {"terminated": {"exitCode": 1, "message": message, "finishedAt": T0}}}
    ]
    assert pod_view(body).report is None


def test_a_report_with_half_characters_can_be_written_out_again() -> None:
    """A file of the model may have a name that is no UTF-8; no server takes that back."""
    text = encode_report(Report("Permanent", "ModelIncomplete", "a\udcff.safetensors, b\u00e4"))
    body = bodies.pod("p", "u", 1, phase="Failed")
    body["status"]["containerStatuses"] = [
        {"state": {"terminated": {"exitCode": 1, "message": text, "finishedAt": T0}}}
    ]
    report = pod_view(body).report
    assert report is not None
    assert report.message == "a?.safetensors, b\u00e4"


def test_an_evicted_pod_has_a_reason_without_any_container() -> None:
    body = bodies.pod("p", "u", 1, phase="Failed")
    body["status"] |= {
        "reason": "Evicted",
        "conditions": [
            {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
        ],
    }
    view = pod_view(body)
    assert (view.exit_reason, view.disrupted) == ("Evicted", "TerminationByKubelet")


def test_only_the_controller_counts_as_a_pods_owner() -> None:
    owners = [bodies.owner("x", controller=False), bodies.owner("y", "Job")]
    view = pod_view(bodies.pod("p", "u", 1, owners=owners))
    assert (view.owner_uid, view.owner_kind) == ("y", "Job")
    assert pod_view(bodies.pod("p", "u", 1, owners=owners[:1])).owner_uid == ""


def test_a_job_with_all_its_owners() -> None:
    body = bodies.job("j", "u", 5, owners=["a", "b"], suspend=True)
    body["spec"]["template"]["spec"] = {
        "nodeSelector": {names.HOSTNAME_LABEL: "n1"},
        "containers": [{"name": "c", "resources": {"requests": {names.GPU_RESOURCE: 2}}}],
    }
    view = job_view(body)
    assert (view.step, view.key, view.attempt, view.claim_uid) == ("engine", "k1", 2, "claim-uid")
    assert view.owners == ("a", "b")
    assert (view.suspended, view.node, view.requests.gpus) == (True, "n1", 2)
    assert not view.complete
    assert not view.failed


@pytest.mark.parametrize(
    ("kind", "complete", "failed"),
    [("Complete", True, False), ("Failed", False, True), ("FailureTarget", False, True)],
)
def test_how_a_job_ended(kind: str, complete: bool, failed: bool) -> None:
    condition = {
        "type": kind,
        "status": "True",
        "reason": "R",
        "message": "M",
        "lastTransitionTime": T1,
    }
    suspended = {"type": "Suspended", "status": "False", "lastTransitionTime": T0}
    body = bodies.job("j", "u", 1, owners=["a"], status={"conditions": [suspended, condition]})
    view = job_view(body)
    assert (view.complete, view.failed) == (complete, failed)
    assert view.finished_at == epoch(T1)
    assert view.failure_reason == ("R" if failed else "")


def test_a_claim_has_the_places_of_its_volume() -> None:
    pvc = bodies.claim(volume="v")
    required = {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}
        ]
    }
    pv = bodies.volume("v", nodeAffinity={"required": required})
    view = claim_view(pvc, pv)
    assert view.bound
    assert view.shared
    assert view.node_terms == ({"zone": ("a", "b")},)
    assert claim_view(pvc, None).node_terms == ()
    assert not claim_view(bodies.claim(), None).bound


def test_a_volume_term_that_names_no_place_is_anywhere() -> None:
    term = {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}
    pv = bodies.volume("v", nodeAffinity={"required": {"nodeSelectorTerms": [term]}})
    assert claim_view(bodies.claim(volume="v"), pv).node_terms == ()


def test_a_record_is_read_whole() -> None:
    facts = ModelFacts("L", "llama", 80, 8192, 64, 8, 128, 128256, 131072, "bfloat16")
    body = bodies.record(
        "r",
        "u",
        9,
        facts=json.dumps(facts.__dict__),
        inputs='{"tp": 8}',
        commit="abc",
        totalBytes="123",
        createdAt="2026-01-01T00:00:00+00:00",
        usedAt="2026-01-02T00:00:00+00:00",
        rebuilds="1",
    )
    view = record_view(body)
    assert view.state is RecordState.READY
    assert view.facts == facts
    assert view.inputs == {"tp": 8}
    assert (view.commit, view.total_bytes, view.rebuilds) == ("abc", 123, 1)
    assert view.used - view.created == 86400


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"state": "Perhaps"}, "'Perhaps' is not a valid RecordState"),
        ({"totalBytes": "much"}, "much"),
        ({"inputs": "{"}, "llm/r"),
        ({"facts": '{"layers": 1}'}, "missing"),
    ],
)
def test_a_record_that_somebody_broke_is_named(change: dict[str, str], told: str) -> None:
    with pytest.raises(RecordError, match=told):
        record_view(bodies.record("r", "u", 1, **change))


def test_a_record_without_a_key_says_so() -> None:
    body = bodies.record("r", "u", 1)
    del body["data"]["key"]
    with pytest.raises(RecordError, match="ConfigMap llm/r: key is missing"):
        record_view(body)


def test_a_revision() -> None:
    body = {
        "metadata": bodies.meta("a-1", "u", 3, ownerReferences=[bodies.owner("d")]),
        "revision": 4,
        "data": {"spec": {}},
    }
    view = revision_view(body)
    assert (view.number, view.owner_uid, view.data) == (4, "d", {"spec": {}})


def test_a_deployment_and_its_restart_annotation() -> None:
    body = bodies.deployment(generation=4)
    body["metadata"]["annotations"] = {names.ANNOTATION_RESTARTED_AT: T0, "other": "x"}
    body["metadata"]["deletionTimestamp"] = T1
    view = deployment_view(body)
    assert (view.generation, view.restarted_at, view.deleting) == (4, T0, True)
    assert view.spec["replicas"] == 2


def test_a_child_has_a_generation_where_its_kind_has_one() -> None:
    assert child_view(bodies.child("s", "u", 1, "d")).generation == 0
    assert child_view(bodies.child("s", "u", 1, "d", generation=3)).generation == 3
