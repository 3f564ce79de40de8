"""What a revision's artifacts ask for next: every answer, and who is to blame for a failed Job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.golden.specs import CLAIM, LLAMA_8B

from shardwright.api.settings import Settings, Timeouts
from shardwright.api.spec import LLMDeploymentSpec
from shardwright.observe.world import (
    GPUInventory,
    JobView,
    NodeView,
    PodView,
    Record,
    RecordState,
    Resources,
)
from shardwright.plan.attempts import Chain, Next, Shop, Tries, doing
from shardwright.plan.chain import MAX_REBUILDS, judge, judge_artifact, missing
from shardwright.plan.resolve import model_key, resolve
from shardwright.plan.stepfaults import floors
from shardwright.resolved import Artifact, Resolved
from shardwright.runner.contract import (
    DONE,
    ENVIRONMENT,
    PERMANENT,
    REASON_ACCESS_DENIED,
    REASON_MANIFEST_MISMATCH,
    REASON_MANIFEST_MISSING,
    REASON_OUT_OF_MEMORY,
    REASON_UNKNOWN_FLAG,
    STEP_CHECKPOINT,
    STEP_ENGINE,
    STEP_MODEL,
    Report,
)
from shardwright.runtimes.registry import runtime

NOW = 50_000.0
TIMES = Timeouts(step_attempts=3, step_backoff_seconds=10, node_dead_seconds=50)


def resolved() -> Resolved:
    spec = LLMDeploymentSpec.model_validate(
        {
            "model": {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct@main", "servedName": "llama"},
            "engine": {"backend": "TensorRT"},
            "gpu": {"product": "NVIDIA-H100-80GB-HBM3"},
            "parallelism": {"tensor": 2, "pipeline": 1},
            "storage": {"claimName": "models"},
        }
    )
    model = Record(
        STEP_MODEL, model_key(spec), CLAIM.uid, RecordState.READY, commit="c" * 40, facts=LLAMA_8B
    )
    return resolve(
        spec,
        runtime=runtime(spec.engine.runtime),
        settings=Settings(),
        claim=CLAIM,
        record=model,
        facts=LLAMA_8B,
        restarted_at="",
        previous=None,
    )


RESOLVED = resolved()
BY_STEP = {artifact.step: artifact for artifact in RESOLVED.artifacts}
MODEL, CHECKPOINT, ENGINE = (BY_STEP[step] for step in (STEP_MODEL, STEP_CHECKPOINT, STEP_ENGINE))


def record(artifact: Artifact, **more: Any) -> Record:
    return Record(
        **{
            "step": artifact.step,
            "key": artifact.key,
            "claim_uid": CLAIM.uid,
            "state": RecordState.READY,
            "name": f"swr-{artifact.key}",
            "attempt": 1,
            **more,
        }
    )


def job(artifact: Artifact = ENGINE, attempt: int = 1, **more: Any) -> JobView:
    return JobView(
        **{
            "namespace": "llm",
            "name": f"sw-{artifact.step}-{attempt}",
            "uid": f"job-{artifact.step}-{attempt}",
            "step": artifact.step,
            "key": artifact.key,
            "attempt": attempt,
            "claim_uid": CLAIM.uid,
            "node": "n1",
            "active": 1,
            **more,
        }
    )


def pod(of: JobView, **more: Any) -> PodView:
    return PodView(
        **{
            "namespace": "llm",
            "name": f"{of.name}-x",
            "uid": f"pod-{of.uid}",
            "owner_uid": of.uid,
            "node": "n1",
            **more,
        }
    )


def node(name: str, **more: Any) -> NodeView:
    return NodeView(name=name, uid=name, gpu=GPUInventory(), allocatable=Resources(), **more)


def ruling(
    *records: Record,
    jobs: tuple[JobView, ...] = (),
    pods: tuple[PodView, ...] = (),
    tries: Tries | None = None,
    **more: Any,
) -> Chain:
    """The judgement with model and checkpoint there, unless `records` say otherwise."""
    known = {
        (item.claim_uid, item.step, item.key): item
        for item in (record(MODEL), record(CHECKPOINT), *records)
    }
    job_pods: dict[str, list[PodView]] = {}
    for item in pods:
        job_pods.setdefault(item.owner_uid, []).append(item)
    values: dict[str, Any] = {
        "records": known,
        "jobs": jobs,
        "job_pods": job_pods,
        "tries": {} if tries is None else {(ENGINE.step, ENGINE.key): tries},
        "nodes": {"n1": node("n1"), "n2": node("n2")},
        "edit": "4",
        "now": NOW,
        "jitter": 0.0,
        "timeouts": TIMES,
        **more,
    }
    return judge(RESOLVED, Shop(**values))


def report(outcome: str = DONE, key: str = ENGINE.key, **more: Any) -> Report:
    return Report(outcome=outcome, step=STEP_ENGINE, key=key, **more)


# What is lacking, and in which order.


@pytest.mark.parametrize(
    ("there", "lacking"),
    [
        ((), (MODEL, CHECKPOINT, ENGINE)),
        ((MODEL,), (CHECKPOINT, ENGINE)),
        ((MODEL, CHECKPOINT), (ENGINE,)),
        ((MODEL, CHECKPOINT, ENGINE), ()),
        ((MODEL, ENGINE), ()),
        ((ENGINE,), (MODEL,)),
        ((CHECKPOINT, ENGINE), (MODEL,)),
        ((CHECKPOINT,), (MODEL, ENGINE)),
    ],
)
def test_a_recorded_artifact_needs_nothing_of_what_it_was_made_from_but_the_model(
    there: tuple[Artifact, ...], lacking: tuple[Artifact, ...]
) -> None:
    records = {(CLAIM.uid, item.step, item.key): record(item) for item in there}
    assert missing(RESOLVED, records) == lacking


@pytest.mark.parametrize("state", [RecordState.FAILED, RecordState.TRASHED])
def test_failed_and_trashed_artifacts_are_lacking(state: RecordState) -> None:
    records = {(CLAIM.uid, item.step, item.key): record(item) for item in (MODEL, CHECKPOINT)} | {
        (CLAIM.uid, ENGINE.step, ENGINE.key): record(ENGINE, state=state)
    }
    assert missing(RESOLVED, records) == (ENGINE,)


def test_records_of_another_claim_do_not_count() -> None:
    other = record(ENGINE, claim_uid="another")
    assert ruling(other).next is Next.CREATE


# Every answer.


def test_ready_when_all_is_there() -> None:
    chain = ruling(record(ENGINE))
    assert (chain.next, chain.ready) == (Next.READY, True)


def test_create_the_first_attempt() -> None:
    chain = ruling()
    assert (chain.next, chain.artifact, chain.attempt) == (Next.CREATE, ENGINE, 1)
    assert not chain.ready
    assert chain.reason == "Building"


def test_the_chain_starts_at_its_first_missing_link() -> None:
    chain = ruling(record(CHECKPOINT, state=RecordState.TRASHED))
    assert (chain.next, chain.artifact) == (Next.CREATE, CHECKPOINT)
    assert chain.reason == "Converting"


@pytest.mark.parametrize(
    ("inputs", "word"),
    [
        ({"dtype": "bfloat16"}, "Converting"),
        ({"weights": "FP8"}, "Quantizing"),
        ({"kvCache": "INT8"}, "Quantizing"),
        ({"calibration": {"size": 512}}, "Quantizing"),
    ],
)
def test_a_checkpoint_of_16_bits_is_only_converted(inputs: dict[str, object], word: str) -> None:
    assert doing(replace(CHECKPOINT, inputs=inputs)) == word


def test_place_a_suspended_job() -> None:
    chain = ruling(jobs=(job(suspended=True, active=0),))
    assert (chain.next, chain.attempt) == (Next.PLACE, 1)


def test_wait_for_a_running_job() -> None:
    chain = ruling(jobs=(job(),), pods=(pod(job()),))
    assert (chain.next, chain.reason) == (Next.WAIT, "Building")
    assert "n1" in chain.message


@pytest.mark.parametrize("waiting", ["ErrImagePull", "ImagePullBackOff", "InvalidImageName"])
def test_wait_and_name_an_image_that_cannot_be_pulled(waiting: str) -> None:
    chain = ruling(
        jobs=(job(),), pods=(pod(job(), waiting=waiting, waiting_message="manifest unknown"),)
    )
    assert (chain.next, chain.reason) == (Next.WAIT, "ImagePullFailed")
    assert f"{waiting}: manifest unknown" in chain.message
    assert "check spec.engine.image, spec.pod.imagePullSecrets" in chain.message


def test_the_image_of_a_fetch_is_the_operators_and_no_field_of_the_spec() -> None:
    fetch = job(MODEL)
    waiting = pod(fetch, waiting="ErrImagePull", waiting_message="no such host")
    chain = ruling(jobs=(fetch,), pods=(waiting,), records={})
    assert chain.reason == "ImagePullFailed"
    assert "operatorImage" in chain.message
    assert "spec.engine.image" not in chain.message


def test_a_job_that_has_no_pod_is_told_only_when_that_lasts() -> None:
    young = ruling(jobs=(job(created=NOW - 4),), pods=())
    assert "ResourceQuota" not in young.message
    assert young.delay == 6
    old = ruling(jobs=(job(created=NOW - 10),), pods=())
    assert "has no pod yet; if that lasts, a ResourceQuota" in old.message


def test_wait_and_say_why_the_pod_is_not_bound() -> None:
    young = pod(job(), node="", pin="n1", unschedulable="taken", created=NOW - 5)
    chain = ruling(jobs=(job(),), pods=(young,))
    assert (chain.next, chain.reason) == (Next.WAIT, "Unschedulable")
    assert "taken" in chain.message
    assert chain.delay == TIMES.bind_seconds - 5


def test_a_pod_that_is_not_bound_in_time_is_given_up_for_another_node() -> None:
    late = pod(job(), node="", pin="n1", unschedulable="taken", created=NOW - TIMES.bind_seconds)
    chain = ruling(jobs=(job(),), pods=(late,))
    assert (chain.next, chain.reason) == (Next.COUNT, "NotBoundInTime")
    assert chain.discard == job()
    assert "taken" in chain.message


def test_a_step_whose_server_crashes_in_a_loop_gives_its_gpus_back() -> None:
    """The kubelet starts a sidecar for ever, and the step beside it waits for it for hours."""
    said = {"waiting": "CrashLoopBackOff", "waiting_message": "python3: not found"}
    chain = ruling(jobs=(job(),), pods=(pod(job(), **said),))
    assert (chain.next, chain.reason) == (Next.COUNT, "CrashLoopBackOff")
    assert chain.discard == job()
    assert "python3: not found" in chain.message
    assert chain.tries is not None
    assert chain.tries.avoid == ("n1",)
    # What the step itself has said counts, whatever becomes of its server meanwhile.
    over = pod(job(), report=report(), exit_code=0, **said)
    assert ruling(jobs=(job(),), pods=(over,)).next is Next.WAIT


def test_wait_and_say_why_a_container_is_not_started() -> None:
    said = {"waiting": "CreateContainerConfigError", "waiting_message": 'secret "hub" not found'}
    chain = ruling(jobs=(job(),), pods=(pod(job(), **said),))
    assert (chain.next, chain.reason) == (Next.WAIT, "CreateContainerConfigError")
    assert 'secret "hub" not found' in chain.message


def test_wait_for_a_job_that_is_being_deleted() -> None:
    chain = ruling(jobs=(job(deleting=True),))
    assert (chain.next, chain.reason) == (Next.WAIT, "PreviousAttemptEnding")


def test_wait_for_an_older_attempt_that_still_ends() -> None:
    chain = ruling(jobs=(job(deleting=True),), tries=Tries(attempts=1, failures=1, edit="4"))
    assert (chain.next, chain.reason) == (Next.WAIT, "PreviousAttemptEnding")


def test_record_a_job_that_is_done() -> None:
    chain = ruling(jobs=(job(complete=True),), pods=(pod(job(), report=report()),))
    assert chain.next is Next.RECORD
    assert chain.report == report()


@pytest.mark.parametrize(
    "last", [None, report(key="0123456789abcdef"), report(ENVIRONMENT)], ids=str
)
def test_a_job_that_ended_well_without_a_report_of_this_key_is_counted(
    last: Report | None,
) -> None:
    chain = ruling(jobs=(job(complete=True),), pods=(pod(job(), report=last),))
    assert (chain.next, chain.reason) == (Next.COUNT, "NoReport")


def test_fail_for_good_what_the_step_says_is_permanent() -> None:
    last = report(PERMANENT, reason=REASON_UNKNOWN_FLAG, message="--x", log_tail="usage:")
    chain = ruling(jobs=(job(failed=True),), pods=(pod(job(), report=last),))
    assert (chain.next, chain.reason, chain.message) == (Next.FAIL, REASON_UNKNOWN_FLAG, "--x")
    assert chain.log_tail == "usage:"


def test_what_the_user_can_mend_is_counted_and_not_held_against_the_key() -> None:
    last = report(PERMANENT, reason=REASON_ACCESS_DENIED, message="401")
    chain = ruling(jobs=(job(failed=True),), pods=(pod(job(), report=last),))
    assert (chain.next, chain.reason) == (Next.COUNT, REASON_ACCESS_DENIED)


@pytest.mark.parametrize(
    ("last", "reason", "told"),
    [
        ({"report": report(ENVIRONMENT, reason="DiskFull", message="0 left")}, "DiskFull", "0 le"),
        ({"disrupted": "PreemptionByScheduler"}, "Evicted", "Preemption"),
        ({"exit_reason": "Error", "exit_code": 3}, "Error", "exit code 3"),
        ({}, "DeadlineExceeded", "too long"),
    ],
)
def test_count_what_the_environment_did(last: dict[str, Any], reason: str, told: str) -> None:
    failed = job(failed=True, failure_reason="DeadlineExceeded", failure_message="too long")
    chain = ruling(jobs=(failed,), pods=(pod(failed, **last),))
    assert (chain.next, chain.reason) == (Next.COUNT, reason)
    assert told in chain.message
    assert chain.tries == Tries(
        attempts=1,
        failures=1,
        edit="4",
        not_before=NOW + 10,
        avoid=("n1",),
        reason=reason,
        cause=chain.message,
    )


def test_count_a_job_whose_node_died_and_discard_it() -> None:
    dead = {"n1": node("n1", ready=False, not_ready_since=NOW - 50)}
    running = job()
    chain = ruling(jobs=(running,), pods=(pod(running),), nodes=dead)
    assert (chain.next, chain.reason, chain.discard) == (Next.COUNT, "NodeLost", running)
    assert ruling(jobs=(running,), pods=(pod(running),), nodes={}).next is Next.COUNT
    spared = ruling(jobs=(running,), pods=(pod(running),), nodes=dead, fleet_lost=True)
    assert spared.next is Next.WAIT


def test_a_job_whose_node_died_is_counted_by_its_pin_while_it_has_no_pod() -> None:
    assert ruling(jobs=(job(),), nodes={}).next is Next.COUNT


def test_a_finished_job_is_recorded_though_its_node_died_since() -> None:
    chain = ruling(jobs=(job(complete=True),), pods=(pod(job(), report=report()),), nodes={})
    assert chain.next is Next.RECORD


def test_backoff_until_the_next_try() -> None:
    tries = Tries(attempts=1, failures=1, edit="4", not_before=NOW + 7, reason="R", cause="why")
    chain = ruling(tries=tries)
    assert (chain.next, chain.attempt, chain.delay) == (Next.BACKOFF, 2, 7)
    assert "1 of 3" in chain.message
    assert "why" in chain.message
    assert ruling(tries=tries, now=NOW + 7).next is Next.CREATE


def test_backoffs_double_and_are_spread_by_jitter() -> None:
    failed = job(attempt=2, failed=True)
    tries = Tries(attempts=1, failures=1, edit="4", avoid=("n0",))
    chain = ruling(jobs=(failed,), tries=tries, jitter=0.8)
    assert chain.tries is not None
    assert (chain.tries.failures, chain.tries.attempts) == (2, 2)
    assert chain.tries.not_before == pytest.approx(NOW + 20 * 1.2)
    assert chain.tries.avoid == ("n1", "n0")


def test_no_more_than_four_nodes_are_avoided() -> None:
    tries = Tries(attempts=1, failures=1, edit="4", avoid=("a", "n1", "b", "c", "d"))
    chain = ruling(jobs=(job(attempt=2, failed=True),), tries=tries)
    assert chain.tries is not None
    assert chain.tries.avoid == ("n1", "a", "b", "c")


def test_a_counted_attempt_is_never_judged_again_and_never_made_again() -> None:
    tries = Tries(attempts=1, failures=1, edit="4")
    chain = ruling(jobs=(job(failed=True, active=0),), tries=tries)
    assert (chain.next, chain.attempt) == (Next.CREATE, 2)


def test_the_newest_attempt_is_judged() -> None:
    jobs = (job(attempt=2), job(failed=True), job(attempt=3, suspended=True))
    assert ruling(jobs=jobs).attempt == 3


def test_stalled_when_the_tries_are_spent() -> None:
    tries = Tries(attempts=3, failures=3, edit="4", reason="DiskFull", cause="0 left")
    chain = ruling(tries=tries)
    assert (chain.next, chain.reason) == (Next.STALLED, "DiskFull")
    assert "failed 3 times: 0 left" in chain.message
    assert "restartedAt" in chain.message


def test_an_edit_gives_spent_tries_another_life_with_a_new_attempt_number() -> None:
    tries = Tries(attempts=3, failures=3, edit="3", not_before=NOW + 99)
    chain = ruling(tries=tries)
    assert (chain.next, chain.attempt) == (Next.CREATE, 4)
    again = ruling(jobs=(job(attempt=4, failed=True),), tries=tries)
    assert again.tries is not None
    assert (again.tries.failures, again.tries.attempts, again.tries.edit) == (1, 4, "4")


def test_an_edit_does_not_shorten_a_backoff_that_is_under_way() -> None:
    tries = Tries(attempts=1, failures=1, edit="3", not_before=NOW + 7)
    assert ruling(tries=tries).next is Next.BACKOFF


def test_stalled_by_a_failure_record_until_the_key_changes() -> None:
    failed = record(
        ENGINE, state=RecordState.FAILED, reason="UnknownFlag", message="--x", log_tail="usage:"
    )
    for edit in ("4", "5"):
        chain = ruling(failed, edit=edit)
        assert (chain.next, chain.reason) == (Next.STALLED, "UnknownFlag")
        assert (chain.record, chain.log_tail) == (failed, "usage:")
        assert "failed for good: --x; once mended, set the annotation" in chain.message


def test_what_failed_for_good_is_tried_once_more_each_time_the_user_asks_for_it() -> None:
    plain = job(attempt=1, failed=True)
    words = report(PERMANENT, reason="UnknownFlag", message="--x")
    first = ruling(jobs=(plain,), pods=(pod(plain, report=words),))
    assert (first.next, first.wish) == (Next.FAIL, "")
    failed = record(ENGINE, state=RecordState.FAILED, reason="UnknownFlag", message="--x")
    again = ruling(failed, jobs=(plain,), asked_again="a")
    assert (again.next, again.attempt, again.wish) == (Next.CREATE, 2, "a")

    second = job(attempt=2)
    assert ruling(failed, jobs=(plain, second), asked_again="a").next is Next.WAIT
    ended = replace(second, failed=True, active=0)
    once = ruling(failed, jobs=(ended,), pods=(pod(ended, report=words),), asked_again="a")
    assert (once.next, once.attempt, once.wish) == (Next.FAIL, 2, "a")
    asked = replace(failed, attempt=2, tried=("a",))
    for value, then in (("a", Next.STALLED), ("", Next.STALLED), ("b", Next.CREATE)):
        assert ruling(asked, asked_again=value).next is then, value


def test_a_trashed_artifact_is_rebuilt_by_an_attempt_after_the_one_that_made_it() -> None:
    trashed = record(ENGINE, state=RecordState.TRASHED, attempt=2, rebuilds=1)
    chain = ruling(trashed, jobs=(job(attempt=2, complete=True, active=0),))
    assert (chain.next, chain.attempt) == (Next.CREATE, 3)


@pytest.mark.parametrize("made", [(), (job(attempt=1, suspended=True, active=0),), (job(),)])
def test_why_a_bad_artifact_is_made_again_is_told_until_it_is_there(
    made: tuple[JobView, ...],
) -> None:
    words = "rank0.engine is truncated: 9 bytes, the manifest says 10 (1 are missing)"
    bad = record(
        ENGINE,
        state=RecordState.TRASHED,
        reason="ArtifactUnusable",
        attempt=0,
        rebuilds=1,
        message=words,
    )
    chain = ruling(bad, jobs=made)
    assert chain.message.endswith(f"; made again, 1 of 2 times: {words}")


@pytest.mark.parametrize(
    ("rebuilds", "wanted"),
    [(1, Next.CREATE), (MAX_REBUILDS, Next.CREATE), (MAX_REBUILDS + 1, Next.STALLED)],
)
def test_stalled_after_two_rebuilds(rebuilds: int, wanted: Next) -> None:
    trashed = record(ENGINE, state=RecordState.TRASHED, rebuilds=rebuilds, message="rank0 bad")
    chain = ruling(trashed)
    assert chain.next is wanted
    if wanted is Next.STALLED:
        assert chain.reason == "ArtifactUnusable"
        assert "rank0 bad" in chain.message
        assert f"ConfigMap {trashed.name}" in chain.message


# Out of memory: again under the same limit it would run out again.

LIMIT = Resources(memory_bytes=64 * 2**30)
KILLED = {"exit_reason": "OOMKilled", "exit_code": 137}


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (KILLED, "its limit of 64.0 GiB; raise stepResources.memory in the operator's settings"),
        (
            {"report": report(ENVIRONMENT, reason=REASON_OUT_OF_MEMORY, message="raise it")},
            "raise it",
        ),
    ],
    ids=["by-the-kernel", "told-by-the-runner"],
)
def test_a_step_out_of_memory_is_tried_once_more_elsewhere_and_then_waits(
    last: dict[str, Any], words: str
) -> None:
    first = job(failed=True, requests=LIMIT)
    once = ruling(jobs=(first,), pods=(pod(first, **last),))
    assert (once.next, once.reason) == (Next.COUNT, REASON_OUT_OF_MEMORY)
    assert words in once.message
    assert once.tries is not None
    assert once.tries.avoid == ("n1",)
    waiting = ruling(jobs=(first,), tries=once.tries)
    assert waiting.next is Next.BACKOFF
    assert "failed 1 of 2 times" in waiting.message
    second = job(attempt=2, node="n2", failed=True, requests=LIMIT)
    twice = ruling(jobs=(first, second), pods=(pod(second, **last),), tries=once.tries)
    assert twice.tries is not None
    spent = ruling(jobs=(first, second), tries=twice.tries, now=NOW + 1000)
    assert (spent.next, spent.reason) == (Next.STALLED, REASON_OUT_OF_MEMORY)
    assert words in spent.message
    assert "goes on by itself with more memory" in spent.message


@pytest.mark.parametrize("more", [0, 1])
def test_a_step_that_ran_out_of_memory_goes_on_once_the_settings_give_it_more(more: int) -> None:
    tries = Tries(2, 2, "4", NOW + 99, reason=REASON_OUT_OF_MEMORY, cause="killed")
    had = Resources(memory_bytes=2 * ENGINE.resources.memory_bytes)
    jobs = (job(failed=True), job(attempt=2, failed=True, requests=had))
    given = {STEP_ENGINE: Resources(memory_bytes=had.memory_bytes + more)}
    chain = ruling(jobs=jobs, tries=tries, floors=given)
    assert chain.next is (Next.CREATE if more else Next.STALLED)
    if more:
        assert chain.attempt == 3
        assert chain.artifact is not None
        assert chain.artifact.resources.memory_bytes == had.memory_bytes + 1
        again = job(attempt=3, failed=True, requests=given[STEP_ENGINE])
        counted = ruling(
            jobs=(*jobs, again), pods=(pod(again, **KILLED),), tries=tries, floors=given
        )
        assert counted.tries is not None
        assert (counted.tries.failures, counted.tries.attempts) == (1, 3)


def test_a_fetch_out_of_memory_names_its_own_setting() -> None:
    fetch = job(MODEL, failed=True, requests=LIMIT)
    records = {(CLAIM.uid, MODEL.step, MODEL.key): record(MODEL, state=RecordState.TRASHED)}
    fetch = replace(fetch, attempt=2)
    chain = ruling(jobs=(fetch,), pods=(pod(fetch, **KILLED),), records=records)
    assert (chain.next, chain.reason) == (Next.COUNT, REASON_OUT_OF_MEMORY)
    assert "raise fetchResources.memory" in chain.message


def test_gpu_memory_is_a_matter_of_the_key() -> None:
    last = report(PERMANENT, reason=REASON_OUT_OF_MEMORY, message="CUDA out of memory")
    assert ruling(jobs=(job(failed=True),), pods=(pod(job(), report=last),)).next is Next.FAIL


def test_settings_never_take_anything_from_a_step() -> None:
    chain = ruling(floors=floors(Settings()))
    assert chain.artifact == ENGINE
    smaller = {STEP_ENGINE: Resources(memory_bytes=1, cpu_millis=1)}
    assert ruling(floors=smaller).artifact == ENGINE


# The source is damaged: it is withdrawn, not the step that found it.

FOUND = report(ENVIRONMENT, reason=REASON_MANIFEST_MISMATCH, message="rank1 is truncated")


def found_bad(attempt: int = 1, *, of: int = 1, by: Report = FOUND) -> dict[str, Any]:
    """An attempt at the engine that found the checkpoint bad which attempt `of` had made."""
    failed = job(attempt=attempt, failed=True, active=0, source_attempt=of)
    return {"jobs": (failed,), "pods": (pod(failed, report=by),)}


@pytest.mark.parametrize("reason", [REASON_MANIFEST_MISMATCH, REASON_MANIFEST_MISSING])
def test_a_damaged_checkpoint_that_the_engine_step_finds_is_withdrawn(reason: str) -> None:
    chain = ruling(**found_bad(by=replace(FOUND, reason=reason)))
    assert (chain.next, chain.artifact, chain.source) == (
        Next.WITHDRAW,
        ENGINE,
        record(CHECKPOINT),
    )
    assert (chain.reason, chain.message) == (reason, "rank1 is truncated")
    assert chain.tries is None


def test_a_damaged_model_that_the_checkpoint_step_finds_is_withdrawn() -> None:
    failed = job(CHECKPOINT, attempt=1, failed=True, source_attempt=1)
    records = {(CLAIM.uid, MODEL.step, MODEL.key): record(MODEL)}
    bad = replace(FOUND, step=STEP_CHECKPOINT, key=CHECKPOINT.key)
    chain = ruling(jobs=(failed,), pods=(pod(failed, report=bad),), records=records)
    assert (chain.next, chain.artifact, chain.source) == (
        Next.WITHDRAW,
        CHECKPOINT,
        record(MODEL),
    )


def test_a_withdrawn_checkpoint_is_made_anew_before_the_engine_is_tried_again() -> None:
    withdrawn = record(CHECKPOINT, state=RecordState.TRASHED, rebuilds=1)
    chain = ruling(withdrawn, **found_bad())
    assert (chain.next, chain.artifact, chain.attempt) == (Next.CREATE, CHECKPOINT, 2)
    again = ruling(record(CHECKPOINT, attempt=2, rebuilds=1), **found_bad())
    assert (again.next, again.artifact, again.attempt) == (Next.CREATE, ENGINE, 2)
    assert again.source is not None
    assert again.source.attempt == 2


def test_one_damage_is_held_against_one_checkpoint_whoever_looks() -> None:
    """Two deployments share the Job, and each has a status of its own."""
    rebuilt = record(CHECKPOINT, attempt=2, rebuilds=1)
    for tries in (None, Tries(attempts=1, failures=1, edit="4"), Tries(edit="9")):
        assert ruling(rebuilt, tries=tries, **found_bad()).next is Next.CREATE


def test_a_rebuilt_checkpoint_that_is_found_bad_too_is_withdrawn_again_and_at_last_left() -> None:
    rebuilt = record(CHECKPOINT, attempt=3, rebuilds=MAX_REBUILDS)
    assert ruling(rebuilt, **found_bad(3, of=3)).next is Next.WITHDRAW
    withdrawn = replace(rebuilt, state=RecordState.TRASHED, rebuilds=MAX_REBUILDS + 1)
    chain = ruling(withdrawn, **found_bad(3, of=3))
    assert (chain.next, chain.artifact) == (Next.STALLED, CHECKPOINT)
    assert chain.reason == "ArtifactUnusable"


def test_a_job_that_does_not_say_which_checkpoint_it_saw_is_counted() -> None:
    chain = ruling(**found_bad(of=0))
    assert (chain.next, chain.reason) == (Next.COUNT, REASON_MANIFEST_MISMATCH)


def test_the_first_attempt_knows_which_checkpoint_it_works_on() -> None:
    chain = ruling()
    assert chain.source == record(CHECKPOINT)


# What a step reads beside its source: heads that are compiled in, a tokenizer.

HEADS = replace(MODEL, key="1234567890abcdef", inputs={"uri": "hf://org/heads"})
HEADED = replace(CHECKPOINT, also=(HEADS.key,))


def ruled(
    *records: Record, jobs: tuple[JobView, ...] = (), pods: tuple[PodView, ...] = ()
) -> Chain:
    """What the checkpoint with heads asks for; the model is there."""
    known = {(one.claim_uid, one.step, one.key): one for one in (record(MODEL), *records)}
    shop = Shop(
        records=known,
        jobs=jobs,
        job_pods={item.owner_uid: [item] for item in pods},
        tries={},
        nodes={"n1": node("n1")},
        edit="4",
        now=NOW,
        jitter=0.0,
        timeouts=TIMES,
    )
    return judge_artifact(CLAIM.uid, HEADED, shop)


def found_heads_bad(*, of: tuple[int, ...], key: str = HEADS.key) -> dict[str, Any]:
    failed = job(HEADED, failed=True, source_attempt=1, also_attempts=of)
    told = replace(FOUND, step=STEP_CHECKPOINT, key=key)
    return {"jobs": (failed,), "pods": (pod(failed, report=told),)}


def test_damaged_heads_are_withdrawn_and_not_the_model_beside_them() -> None:
    first = ruled(record(HEADS))
    assert (first.next, first.also_attempts) == (Next.CREATE, (1,))
    assert first.source == record(MODEL)
    chain = ruled(record(HEADS), **found_heads_bad(of=(1,)))
    assert (chain.next, chain.source) == (Next.WITHDRAW, record(HEADS))
    assert chain.reason == REASON_MANIFEST_MISMATCH
    of_model = ruled(record(HEADS), **found_heads_bad(of=(1,), key=HEADED.key))
    assert (of_model.next, of_model.source) == (Next.WITHDRAW, record(MODEL))


def test_heads_that_were_fetched_anew_are_read_by_another_attempt() -> None:
    again = ruled(record(HEADS, attempt=2, rebuilds=1), **found_heads_bad(of=(1,)))
    assert (again.next, again.attempt, again.also_attempts) == (Next.CREATE, 2, (2,))


@pytest.mark.parametrize("of", [(), (0,)])
def test_a_job_that_does_not_say_which_heads_it_saw_is_counted(of: tuple[int, ...]) -> None:
    chain = ruled(record(HEADS), **found_heads_bad(of=of))
    assert (chain.next, chain.reason) == (Next.COUNT, REASON_MANIFEST_MISMATCH)


# Written down before the first Job.


def test_an_artifact_that_was_only_begun_is_made_as_if_nothing_were_known() -> None:
    begun = record(ENGINE, state=RecordState.BUILDING, attempt=0)
    assert missing(RESOLVED, {(CLAIM.uid, ENGINE.step, ENGINE.key): begun})[-1] == ENGINE
    chain = ruling(begun)
    assert (chain.next, chain.artifact, chain.attempt) == (Next.CREATE, ENGINE, 1)
    done = ruling(begun, jobs=(job(complete=True),), pods=(pod(job(), report=report()),))
    assert done.next is Next.RECORD


def test_the_report_of_any_of_a_jobs_pods_counts() -> None:
    """The Job controller replaces a pod that was deleted; the first one's word may be the word."""
    running = job(complete=True)
    first = pod(running, uid="a", created=NOW - 9, report=report())
    second = replace(pod(running, uid="b", created=NOW - 3))
    assert ruling(jobs=(running,), pods=(first, second)).next is Next.RECORD


def test_an_attempt_that_ends_on_a_living_node_is_waited_for_and_on_a_dead_one_is_not() -> None:
    counted = Tries(attempts=1, failures=1)
    ending = job(deleting=True)
    there = ruling(jobs=(ending,), tries=counted)
    assert (there.next, there.reason) == (Next.WAIT, "PreviousAttemptEnding")
    lost = node("n1", not_ready_since=NOW - TIMES.node_dead_seconds)
    gone = ruling(jobs=(ending,), tries=counted, nodes={"n1": lost})
    assert (gone.next, gone.attempt) == (Next.CREATE, 2)
