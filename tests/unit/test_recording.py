"""What is written down of artifacts, and when: no folder on a claim without a record of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.golden import specs
from tests.support.passes import RESOLVED, SERVING, acting, pod, situation

from shardwright.observe.world import JobView, Record, RecordState
from shardwright.plan.attempts import Chain, Next
from shardwright.plan.recording import begun, records_of_chains
from shardwright.plan.situation import CreateStep, Situation, WriteRecord
from shardwright.runner.contract import Report

CLAIM = replace(specs.CLAIM, uid=RESOLVED.claim_uid)
BY_STEP = {artifact.step: artifact for artifact in RESOLVED.artifacts}
CHECKPOINT, ENGINE = BY_STEP["checkpoint"], BY_STEP["engine"]
PLACE = (RESOLVED.claim_uid, ENGINE.step, ENGINE.key)
SOURCE = (RESOLVED.claim_uid, CHECKPOINT.step, CHECKPOINT.key)


def without_engine(*records: Record) -> Situation:
    """A replica serves, and its engine is gone from the records, or in the given state."""
    found = situation(pod(0, 3), pod(1, 3))
    known = {place: record for place, record in found.records.items() if place != PLACE}
    known |= {(item.claim_uid, item.step, item.key): item for item in records}
    known[SOURCE] = replace(known[SOURCE], attempt=4)
    claim = RESOLVED.spec.storage.claim_name
    return replace(found, claims={claim: CLAIM}, records=known)


def asked(found: Situation) -> list[WriteRecord | CreateStep]:
    """Records and Jobs of one pass, in order."""
    return [
        intent for intent in acting(found).intents if isinstance(intent, WriteRecord | CreateStep)
    ]


def test_a_record_comes_before_the_first_job_of_a_key() -> None:
    """The Job may publish and be dropped before anybody has seen its report."""
    first, then = asked(without_engine())
    assert isinstance(first, WriteRecord)
    assert (first.record.state, first.record.key) == (RecordState.BUILDING, ENGINE.key)
    assert first.record.inputs == ENGINE.inputs
    assert first.claim == CLAIM
    assert isinstance(then, CreateStep)
    assert (then.artifact, then.attempt) == (ENGINE, 1)


@pytest.mark.parametrize("state", [RecordState.BUILDING, RecordState.TRASHED])
def test_what_has_a_record_gets_no_second_one(state: RecordState) -> None:
    known = Record(ENGINE.step, ENGINE.key, RESOLVED.claim_uid, state, rebuilds=1)
    (only,) = asked(without_engine(known))
    assert isinstance(only, CreateStep)
    assert begun(without_engine(known), ENGINE, CLAIM) == []


def test_a_step_is_told_which_attempt_made_what_it_works_on() -> None:
    then = asked(without_engine())[-1]
    assert isinstance(then, CreateStep)
    assert then.source_attempt == 4


@pytest.mark.parametrize(
    ("wish", "before", "tried"),
    [("", (), ()), ("b", (), ("b",)), ("b", ("a",), ("a", "b")), ("b", ("b", "a"), ("a", "b"))],
)
def test_a_failure_is_recorded_with_the_wishes_that_it_was_tried_under(
    wish: str, before: tuple[str, ...], tried: tuple[str, ...]
) -> None:
    old = Record(*PLACE[1:], PLACE[0], RecordState.FAILED, tried=before)
    report = Report("Permanent", "ToolFailed", "no kernel")
    job = JobView("llm", "j", "u", claim_uid=PLACE[0], attempt=3)
    chain = Chain(Next.FAIL, ENGINE, 3, job, report, wish=wish)
    (intent,) = records_of_chains(without_engine(old), {SERVING.name: chain})
    assert isinstance(intent, WriteRecord)
    assert (intent.record.state, intent.record.attempt) == (RecordState.FAILED, 3)
    assert intent.record.tried == tried
    done = replace(chain, next=Next.RECORD, report=replace(report, outcome="Done"))
    (intent,) = records_of_chains(without_engine(old), {SERVING.name: done})
    assert isinstance(intent, WriteRecord)
    assert intent.record.tried == ()


def test_a_source_found_damaged_is_trashed_and_keeps_count() -> None:
    found = without_engine()
    source = replace(found.records[SOURCE], name="record-c", rebuilds=1)
    chain = Chain(Next.WITHDRAW, ENGINE, source=source, message="rank1 is truncated")
    (intent,) = records_of_chains(found, {SERVING.name: chain})
    assert isinstance(intent, WriteRecord)
    trashed = intent.record
    assert (trashed.step, trashed.key) == (CHECKPOINT.step, CHECKPOINT.key)
    assert (trashed.state, trashed.reason) == (RecordState.TRASHED, "ArtifactUnusable")
    assert (trashed.rebuilds, trashed.attempt, trashed.name) == (2, 4, "record-c")
    assert trashed.message == "rank1 is truncated"
