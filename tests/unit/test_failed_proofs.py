"""A proof that failed is remembered with the wishes it failed under: others may try the key."""

from __future__ import annotations

from dataclasses import replace

from tests.golden import specs
from tests.support.played import World

from shardwright.observe.projections import record_view
from shardwright.observe.world import Record, RecordState
from shardwright.plan.breakage import Breakage, Fault
from shardwright.plan.gating import proof_failure
from shardwright.plan.recording import KEPT_TRIES, records_of_verdict
from shardwright.plan.revisions import Revision, revision_of
from shardwright.plan.rollout import Verdict
from shardwright.plan.situation import Situation, WriteRecord
from shardwright.render.records import record_body
from shardwright.runner.contract import STEP_PROOF

CAUSE = Breakage(Fault.PERMANENT, "OutOfMemory", "the leader ran out of memory")


def revision(fraction: float, restarted_at: str = "") -> Revision:
    """One of a deployment; the share of memory has no place in the proof's key."""
    spec = specs.spec(engine={"limits": {"gpuMemoryFraction": fraction}})
    resolved = replace(specs.resolved(spec), restarted_at=restarted_at)
    return revision_of(f"llama-{fraction}", "uid", 1, resolved)


def situation(*records: Record) -> Situation:
    world = World()
    world.edit()
    found = {(one.claim_uid, one.step, one.key): one for one in records}
    return replace(world.situation(), records=found)


def failed(target: Revision, *before: Record) -> Record:
    """What is written down when the candidate of a revision fails."""
    verdict = Verdict((), 1, failed_proof=CAUSE)
    [intent] = records_of_verdict(situation(*before), verdict, {target.name: target}, target.name)
    assert isinstance(intent, WriteRecord)
    record = intent.record
    assert (record.step, record.state) == (STEP_PROOF, RecordState.FAILED)
    assert (record.reason, record.message) == (CAUSE.reason, CAUSE.cause)
    return record


def test_what_failed_is_not_tried_again_under_the_same_wish() -> None:
    target = revision(0.95)
    assert proof_failure(target, situation(failed(target))) is not None


def test_an_option_that_is_in_no_key_may_be_the_cure() -> None:
    one, other = revision(0.95), revision(0.8)
    assert one.resolved.proof_key == other.resolved.proof_key
    assert proof_failure(other, situation(failed(one))) is None


def test_a_restart_that_is_asked_for_tries_the_same_again() -> None:
    target = revision(0.95)
    again = revision(0.95, restarted_at="2026-01-01T00:00:00Z")
    assert proof_failure(again, situation(failed(target))) is None


def test_two_that_differ_so_do_not_try_in_turn_for_ever() -> None:
    one, other = revision(0.95), revision(0.8)
    record = failed(other, failed(one))
    for target in (one, other):
        assert proof_failure(target, situation(record)) is not None
    assert failed(one, record).tried == (other.pinned, one.pinned), "each stands there once"


def test_what_is_remembered_is_bounded_and_survives_its_config_map() -> None:
    record = failed(revision(0.5))
    for number in range(KEPT_TRIES + 3):
        record = failed(revision(0.1 + number / 100), record)
    assert len(record.tried) == KEPT_TRIES
    body = record_body(record, specs.CLAIM)
    body["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    assert record_view(body).tried == record.tried


def test_a_record_of_an_older_operator_holds_for_every_wish() -> None:
    record = replace(failed(revision(0.95)), tried=())
    assert proof_failure(revision(0.8), situation(record)) is not None


def test_a_proof_that_succeeds_forgets_the_failures() -> None:
    target = revision(0.95)
    ready = replace(failed(target), state=RecordState.READY)
    assert proof_failure(target, situation(ready)) is None
    assert failed(target, ready).tried == (target.pinned,)
