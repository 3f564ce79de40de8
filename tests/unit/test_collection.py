"""What is collected from a claim, what never is, and that no order of events loses a named file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.specs import MINIMAL_SPEC

from shardwright.api.settings import Retention, Settings
from shardwright.api.spec import LLMDeploymentSpec
from shardwright.observe.projections import record_view
from shardwright.observe.world import ClaimView, JobView, Record, RecordState, Resources
from shardwright.plan.attempts import Next, Shop
from shardwright.plan.chain import judge_artifact, missing
from shardwright.plan.collection import (
    COLLECTED,
    DISCARDED,
    HOLD_SECONDS,
    MAX_SWEEPS,
    PURGING,
    Act,
    Clear,
    Collection,
    Forget,
    Mark,
    Note,
    Order,
    Revive,
    Stock,
    UnreadableError,
    collect,
    leaving,
    moment_of,
    named_by_revision,
    named_by_spec,
    restorable,
    stamp_of,
)
from shardwright.plan.resolve import model_key
from shardwright.render.records import record_body
from shardwright.render.sweeps import record_patch, sweep_job, sweep_name
from shardwright.resolved import Artifact, Resolved
from shardwright.runner.contract import (
    PERMANENT,
    REASON_MANIFEST_MISSING,
    STEP_CHECKPOINT,
    STEP_ENGINE,
    STEP_MODEL,
    STEP_PROOF,
    SWEEP_PURGE,
    SWEEP_RESTORE,
    SWEEP_TRASH,
    ContractError,
    Report,
    SweepRequest,
    decode,
    sweep_folders,
)
from shardwright_sandbox.player.sweep import sweep

NOW = 1_800_000_000.0
DAY = 86400.0
STAMP = stamp_of(NOW)
CLAIM = ClaimView("llm", "models", "claim-uid", bound=True, access_modes=("ReadWriteMany",))
GONE = Report(outcome=PERMANENT, reason=REASON_MANIFEST_MISSING)


def key_of(number: int) -> str:
    return f"{number:016x}"


def record(number: int = 1, **fields: Any) -> Record:
    values: dict[str, Any] = {
        "step": STEP_ENGINE,
        "state": RecordState.READY,
        "name": f"swr-{number}",
        "uid": f"uid-{number}",
        "resource_version": 7,
        **fields,
    }
    return Record(key=key_of(number), claim_uid="claim-uid", **values)


def marked(number: int = 1, reason: str = COLLECTED, at: float = NOW, **fields: Any) -> Record:
    found = record(number, state=RecordState.TRASHED, reason=reason, message="m", **fields)
    return replace(found, trash=stamp_of(at), unused=at - DAY)


def sweep_view(of: Record, action: str, **fields: Any) -> JobView:
    return JobView(
        "llm",
        sweep_name(action, of),
        uid=f"{action}-{of.uid}",
        step=action,
        key=of.key,
        attempt=int(of.trash or STAMP),
        claim_uid="claim-uid",
        owners=(of.uid,),
        **fields,
    )


def look(
    *records: Record,
    named: Iterable[str] = (),
    jobs: Iterable[JobView] = (),
    keep: int = 0,
    age: float = DAY,
    **fields: Any,
) -> Collection:
    return collect(
        Stock(
            records=records,
            named=frozenset(named),
            jobs=tuple(jobs),
            retention=Retention(keep_artifacts=keep, min_age_seconds=age),
            **{
                "hold": "",
                "reports": {},
                "grace_seconds": DAY,
                "now": NOW,
                **fields,
            },
        )
    )


# What is collected.


def test_what_a_revision_names_is_left_alone_and_costs_nothing() -> None:
    found = look(record(), named=[key_of(1)])
    assert (found.acts, found.due) == ([], None)


def test_that_nothing_names_a_record_is_written_down_once_and_taken_back() -> None:
    one = record()
    assert look(one).acts == [Note(one, NOW)]
    noted = replace(one, unused=NOW)
    assert look(noted).acts == []
    assert look(noted, named=[one.key]).acts == [Note(noted, 0.0)]


def test_a_young_one_is_looked_at_again_when_it_is_old_enough() -> None:
    found = look(record(unused=NOW - DAY + 60))
    assert (found.acts, found.due) == ([], 60.0)


def test_beyond_the_newest_that_are_kept_the_old_ones_are_marked() -> None:
    ages = [record(number, unused=NOW - number * DAY) for number in range(1, 5)]
    assert look(*ages, keep=2).acts == [Mark(one, COLLECTED, STAMP) for one in ages[2:]]
    assert look(*ages, keep=4) == Collection()


def test_named_ones_do_not_count_among_those_that_are_kept() -> None:
    named, old = record(1), record(2, unused=NOW - 2 * DAY)
    assert look(named, old, named=[named.key], keep=1).acts == []


def test_an_old_proof_and_an_old_failure_are_deleted_and_count_for_nothing() -> None:
    proof = record(1, step=STEP_PROOF, unused=NOW - 2 * DAY)
    failure = record(2, state=RecordState.FAILED, unused=NOW - 2 * DAY)
    engine = record(3, unused=NOW - 3 * DAY)
    assert look(proof, failure, engine, keep=1).acts == [Forget(proof), Forget(failure)]


def test_the_job_that_failed_goes_before_its_record_or_it_would_be_recorded_again() -> None:
    failure = record(state=RecordState.FAILED, unused=NOW - 2 * DAY)
    job = JobView("llm", "j", "u", step=STEP_ENGINE, key=failure.key, failed=True)
    assert look(failure, jobs=[job]).acts == [Clear(job)]
    assert look(failure, jobs=[replace(job, deleting=True)]).acts == []


def test_a_record_of_bad_files_is_not_touched_while_named_and_discarded_afterwards() -> None:
    bad = record(state=RecordState.TRASHED, reason="ArtifactUnusable", unused=NOW - 2 * DAY)
    assert look(bad).acts == [Mark(bad, DISCARDED, STAMP)]
    assert look(replace(bad, unused=0.0), named=[bad.key]).acts == []


@pytest.mark.parametrize(
    "one",
    [
        record(unused=NOW - 2 * DAY),
        record(step=STEP_PROOF, unused=NOW - 2 * DAY),
        marked(),
        marked(reason=PURGING),
    ],
    ids=["ready", "proof", "marked", "purging"],
)
def test_nothing_is_taken_away_while_something_runs_whose_needs_are_not_known(one: Record) -> None:
    found = look(one, hold="pod p serves a revision that is gone")
    assert (found.acts, found.due) == ([], HOLD_SECONDS)


# On the way to the trash, out of it, or away.


def test_a_marked_one_is_renamed_waits_out_its_grace_and_is_purged() -> None:
    one = marked()
    trash = sweep_view(one, SWEEP_TRASH, active=1)
    assert look(one).acts == [Order(one, SWEEP_TRASH)]
    assert look(one, jobs=[trash]) == Collection()
    done = replace(trash, active=0, complete=True)
    assert look(one, jobs=[done]).due == pytest.approx(DAY)
    late = NOW + DAY
    assert look(one, jobs=[done], now=late).acts == [Mark(one, PURGING, one.trash)]
    going = replace(one, reason=PURGING)
    assert look(going, jobs=[done], now=late).acts == [Order(going, SWEEP_PURGE)]
    purged = sweep_view(going, SWEEP_PURGE, complete=True)
    step = JobView("llm", "j", "u", step=STEP_ENGINE, key=going.key, complete=True)
    assert look(going, jobs=[done, purged, step], now=late).acts == [Clear(step)]
    assert look(going, jobs=[done, purged], now=late).acts == [Forget(going)]


def test_one_that_is_named_again_is_renamed_back_and_ready_again() -> None:
    one = marked()
    trash = sweep_view(one, SWEEP_TRASH, complete=True)
    assert look(one, jobs=[trash], named=[one.key]).acts == [Order(one, SWEEP_RESTORE)]
    back = sweep_view(one, SWEEP_RESTORE, active=1)
    assert look(one, jobs=[trash, back], named=[one.key]).acts == []
    done = replace(back, active=0, complete=True)
    assert look(one, jobs=[trash, done], named=[one.key]).acts == [Revive(one)]


def test_a_rename_that_was_perhaps_asked_for_is_over_before_the_way_back_begins() -> None:
    one = marked()
    assert look(one, named=[one.key]).acts == [Order(one, SWEEP_TRASH)]
    running = sweep_view(one, SWEEP_TRASH, active=1)
    assert look(one, jobs=[running], named=[one.key]).acts == []


def test_one_that_was_never_renamed_is_ready_again_at_once() -> None:
    one = marked()
    untouched = frozenset({(one.uid, one.trash)})
    assert look(one, named=[one.key], untouched=untouched).acts == [Revive(one)]
    bad = marked(reason=DISCARDED)
    assert look(bad, named=[bad.key], untouched=untouched).acts == [Order(bad, SWEEP_TRASH)]


def test_a_purge_that_was_decided_but_not_begun_is_taken_back_when_it_is_named() -> None:
    one = marked(reason=PURGING)
    assert look(one, named=[one.key]).acts == [Mark(one, COLLECTED, one.trash)]


def test_a_purge_that_has_begun_is_carried_through() -> None:
    one = marked(reason=PURGING)
    purge = sweep_view(one, SWEEP_PURGE, active=1)
    assert look(one, named=[one.key], jobs=[purge]).acts == []
    done = replace(purge, active=0, complete=True)
    assert look(one, named=[one.key], jobs=[done]).acts == [Forget(one)]


def test_files_that_are_in_neither_place_make_room_for_a_build() -> None:
    one = marked()
    back = sweep_view(one, SWEEP_RESTORE, failed=True)
    jobs = [sweep_view(one, SWEEP_TRASH, complete=True), back]
    found = look(one, jobs=jobs, named=[one.key], reports={back.uid: GONE})
    assert found.acts == [Forget(one)]


def test_bad_files_never_come_back() -> None:
    bad = marked(reason=DISCARDED)
    trash = sweep_view(bad, SWEEP_TRASH, complete=True)
    for named in ([], [bad.key]):
        assert look(bad, jobs=[trash], named=named).acts == [Order(bad, SWEEP_PURGE)]


def test_a_sweep_that_failed_is_tried_again_sooner_when_somebody_waits() -> None:
    one = marked()
    failed = sweep_view(one, SWEEP_TRASH, failed=True, finished_at=NOW - 90)
    assert look(one, jobs=[failed]).due == 510.0
    assert look(one, jobs=[failed], named=[one.key]).acts == [Clear(failed)]
    ending = replace(failed, active=1)
    assert look(one, jobs=[ending], named=[one.key]).acts == []


def test_jobs_of_an_older_stay_in_the_trash_say_nothing_and_are_cleared() -> None:
    one = marked(at=NOW)
    older = sweep_view(marked(at=NOW - 5 * DAY), SWEEP_TRASH, complete=True)
    assert look(one, jobs=[older]).acts == [Order(one, SWEEP_TRASH)]
    ready = record()
    assert look(ready, jobs=[older], named=[ready.key]).acts == [Clear(older)]


def test_only_so_many_folders_are_moved_at_a_time_but_nobody_waits_for_his_own() -> None:
    many = [marked(number) for number in range(MAX_SWEEPS + 5)]
    awaited = many[-1]
    done = sweep_view(awaited, SWEEP_TRASH, complete=True)
    acts = look(*many, jobs=[done], named=[awaited.key]).acts
    assert len(acts) == MAX_SWEEPS + 1
    assert Order(awaited, SWEEP_RESTORE) in acts


@pytest.mark.parametrize(
    "changes",
    [{"trash": "../../etc"}, {"reason": "Mine"}, {"state": RecordState.READY}],
    ids=["stamp", "reason", "state"],
)
def test_a_record_that_was_changed_by_hand_is_dropped_and_no_file_moved(changes: Any) -> None:
    odd = replace(marked(), **changes)
    assert look(odd).acts == [Forget(odd)]


def test_a_stamp_tells_its_moment_to_the_millisecond() -> None:
    assert stamp_of(NOW + 0.1234) == "20270115080000123"
    assert moment_of(stamp_of(NOW + 0.5)) == NOW + 0.5


# Who names what.


def revision_data(**more: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "spec": {"model": {"uri": "hf://o/m"}},
        "claimUID": "claim-uid",
        "artifacts": [{"key": "m"}, {"key": "c"}, {"key": "e"}],
        "serve": {"key": "e"},
        "proof": {"key": "p"},
        **more,
    }


def test_a_revision_names_its_whole_chain_and_its_proof_on_its_own_claim() -> None:
    assert named_by_revision(revision_data(), "claim-uid") == {"m", "c", "e", "p"}
    assert named_by_revision(revision_data(), "another") == set()


def test_a_model_in_place_that_is_an_artifact_of_ours_is_named_on_any_claim() -> None:
    spec = {"model": {"uri": f"pvc://models/shardwright/checkpoint/{key_of(5)}"}}
    assert named_by_revision(revision_data(spec=spec), "another") == {key_of(5)}
    assert key_of(5) in named_by_spec(spec)


def test_a_spec_names_the_model_that_its_fetch_would_record() -> None:
    spec = LLMDeploymentSpec.read(MINIMAL_SPEC)
    assert named_by_spec(MINIMAL_SPEC) == {model_key(spec)}


@pytest.mark.parametrize("data", [revision_data(version=2), {"version": 1}, {}])
def test_a_revision_that_cannot_be_read_is_no_licence_to_delete(data: Any) -> None:
    with pytest.raises(UnreadableError):
        named_by_revision(data, "claim-uid")


# What whoever needs it does meanwhile.


def artifact(step: str, number: int, source: str) -> Artifact:
    return Artifact(step, key_of(number), {}, source, "i", (), (), 0, "", Resources())


MODEL = artifact(STEP_MODEL, 1, "hf://o/m")
CHECKPOINT = artifact(STEP_CHECKPOINT, 2, MODEL.key)
ENGINE = artifact(STEP_ENGINE, 3, CHECKPOINT.key)


def shop(*records: Record, jobs: Iterable[JobView] = ()) -> Shop:
    return Shop(
        records={(one.claim_uid, one.step, one.key): one for one in records},
        jobs=tuple(jobs),
        job_pods={},
        tries={},
        nodes={},
        edit="1",
        now=NOW,
        jitter=0.0,
        timeouts=Settings().timeouts,
    )


@pytest.mark.parametrize(
    ("reason", "told"),
    [(COLLECTED, "Restoring"), (PURGING, "Purging"), (DISCARDED, "Purging")],
)
def test_a_collected_artifact_is_waited_for_not_built(reason: str, told: str) -> None:
    one = replace(marked(3, reason=reason), rebuilds=3)
    old = JobView("llm", "j", "u", step=STEP_ENGINE, key=ENGINE.key, attempt=1, complete=True)
    chain = judge_artifact("claim-uid", ENGINE, shop(one, jobs=[replace(old, claim_uid="c")]))
    assert (chain.next, chain.reason) == (Next.WAIT, told)


def test_what_an_artifact_was_made_from_is_not_built_when_it_comes_back() -> None:
    resolved: Any = Resolved.__new__(Resolved)
    for name, value in (
        ("artifacts", (MODEL, CHECKPOINT, ENGINE)),
        ("claim_uid", "claim-uid"),
        ("serve_key", ENGINE.key),
        ("draft", None),
    ):
        object.__setattr__(resolved, name, value)
    there = record(1, step=STEP_MODEL)
    assert missing(resolved, shop(there, marked(3)).records) == (ENGINE,)
    gone = missing(resolved, shop(there, marked(3, reason=PURGING)).records)
    assert gone == (CHECKPOINT, ENGINE)


# The objects.


@pytest.mark.parametrize(
    "act",
    [
        Note(record(), NOW),
        Note(record(unused=NOW), 0.0),
        Mark(record(unused=NOW - DAY), COLLECTED, STAMP),
        Mark(marked(), PURGING, STAMP),
        Revive(marked()),
    ],
    ids=["note", "clear", "mark", "purge", "revive"],
)
def test_a_patch_of_a_record_tests_its_version_and_says_what_the_plan_says(act: Any) -> None:
    body = record_body(act.record, CLAIM)
    body["metadata"] |= {"uid": act.record.uid, "resourceVersion": "7"}
    first, *ops = record_patch(act)
    assert first == {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}
    for op in ops:
        name = op["path"].removeprefix("/data/")
        if op["op"] == "remove":
            del body["data"][name]
        else:
            body["data"][name] = op["value"]
    found = record_view(body)
    match act:
        case Note(_, unused):
            assert found.unused == unused
        case Mark(_, reason, stamp):
            assert (found.state, found.reason, found.trash) == (
                RecordState.TRASHED,
                reason,
                stamp,
            )
            assert restorable(found) is (reason == COLLECTED)
            assert leaving(found) is (reason == PURGING)
        case _:
            assert found.state is RecordState.READY
            assert (found.reason, found.message, found.trash, found.unused) == ("", "", "", 0.0)


def test_a_sweep_takes_no_gpu_tolerates_their_nodes_and_goes_with_its_record() -> None:
    one = marked()
    body = sweep_job(one, SWEEP_TRASH, CLAIM, Settings(), None)
    pod = body["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert "nvidia.com/gpu" not in container["resources"]["limits"]
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in pod["tolerations"]
    assert [owner["uid"] for owner in body["metadata"]["ownerReferences"]] == [one.uid]
    assert "suspend" not in body["spec"]
    request = next(item for item in container["env"] if item["name"] == "SHARDWRIGHT_REQUEST")
    assert decode(SweepRequest, request["value"]) == SweepRequest(
        SWEEP_TRASH, STEP_ENGINE, one.key, one.trash
    )


def test_a_sweep_is_named_by_action_key_claim_and_stamp() -> None:
    names = {
        sweep_name(action, of)
        for action in (SWEEP_TRASH, SWEEP_RESTORE, SWEEP_PURGE)
        for of in (marked(), marked(2), marked(at=NOW + 1), replace(marked(), claim_uid="other"))
    }
    assert len(names) == 12
    assert max(map(len, names)) <= 63


def test_a_sweep_takes_the_nodes_and_pull_secrets_of_a_deployment_but_not_its_priority() -> None:
    raw = {
        **MINIMAL_SPEC,
        "placement": {"nodeSelector": {"pool": "a"}},
        "pod": {"priorityClassName": "high", "imagePullSecrets": [{"name": "pull"}]},
    }
    spec = LLMDeploymentSpec.read(raw)
    pod = sweep_job(marked(), SWEEP_TRASH, CLAIM, Settings(), spec)["spec"]["template"]["spec"]
    assert pod["nodeSelector"]["pool"] == "a"
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    assert "priorityClassName" not in pod


@pytest.mark.parametrize(
    ("step", "key", "stamp"),
    [
        ("..", key_of(1), STAMP),
        (STEP_PROOF, key_of(1), STAMP),
        (STEP_ENGINE, "../../models", STAMP),
        (STEP_ENGINE, key_of(1) + "\n", STAMP),
        (STEP_ENGINE, key_of(1), "../x"),
    ],
)
def test_a_sweep_cannot_name_anything_but_an_artifact(step: str, key: str, stamp: str) -> None:
    with pytest.raises(ContractError):
        sweep_folders(SweepRequest(SWEEP_PURGE, step, key, stamp))


# What a sweep does to files.


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def claim(tmp_path: Path) -> Path:
    """A claim with an artifact, another of the same step, and something of the user's."""
    for name in (f"shardwright/engine/{key_of(1)}", f"shardwright/engine/{key_of(2)}", "mine"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text(name)
    return tmp_path


@pytest.mark.parametrize("times", [1, 2])
def test_a_sweep_may_be_repeated_and_touches_nothing_else(claim: Path, times: int) -> None:
    before = files(claim)
    live = f"shardwright/engine/{key_of(1)}/file"

    def do(action: str) -> set[str]:
        for _ in range(times):
            sweep(SweepRequest(action, STEP_ENGINE, key_of(1), STAMP), claim)
        return files(claim)

    trashed = f"shardwright/trash/engine-{key_of(1)}-{STAMP}/file"
    assert do(SWEEP_TRASH) == before - {live} | {trashed}
    assert do(SWEEP_RESTORE) == before
    assert do(SWEEP_PURGE) == before
    do(SWEEP_TRASH)
    assert do(SWEEP_PURGE) == before - {live}


def test_a_restore_of_nothing_says_so_for_good(claim: Path) -> None:
    report = sweep(SweepRequest(SWEEP_RESTORE, STEP_ENGINE, key_of(9), STAMP), claim)
    assert (report.outcome, report.reason) == (PERMANENT, REASON_MANIFEST_MISSING)


# Any order of naming, time, crashes, lost answers and failing Jobs.

KEYS = [key_of(number) for number in range(3)]
AGE, GRACE, KEEP = 10.0, 20.0, 1


@dataclass
class Run:
    """A sweep's Job: `seen` by the operator, or created by a call whose answer was lost."""

    view: JobView
    seen: bool = True


@dataclass
class Claim:
    """A claim, its records and Jobs, and one operator after another."""

    live: set[str] = field(default_factory=set)
    trash: set[tuple[str, str]] = field(default_factory=set)
    records: dict[str, Record] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)
    untouched: set[tuple[str, str]] = field(default_factory=set)
    now: float = NOW
    version: int = 0
    builds: int = 0

    def next_version(self) -> int:
        self.version += 1
        return self.version

    def stock(self) -> Stock:
        return Stock(
            records=tuple(self.records.values()),
            named=frozenset(self.named),
            hold="",
            jobs=tuple(run.view for run in self.runs.values() if run.seen),
            reports={
                run.view.uid: GONE
                for run in self.runs.values()
                if run.view.failed and run.view.failure_reason == "gone"
            },
            retention=Retention(keep_artifacts=KEEP, min_age_seconds=AGE),
            grace_seconds=GRACE,
            now=self.now,
            untouched=frozenset(self.untouched),
            retry_seconds=(2.0, 1.0),
        )

    def apply(self, act: Act, *, answered: bool) -> None:
        """The API server takes a write; the resourceVersion it was read with must still hold."""
        if isinstance(act, Clear):
            self.runs.pop(act.job.name, None)
            return
        known = self.records.get(act.record.key)
        if isinstance(act, Order):
            if act.action == SWEEP_TRASH:
                self.untouched.discard((act.record.uid, act.record.trash))
            if known is not None and known.uid == act.record.uid:
                name = sweep_name(act.action, act.record)
                made = Run(replace(sweep_view(act.record, act.action), active=1))
                run = self.runs.setdefault(name, made)
                run.seen = answered or (run.seen and run is not made)
            return
        if known is None or known.uid != act.record.uid:
            return
        if isinstance(act, Forget):
            del self.records[known.key]
            self.runs = {
                name: run for name, run in self.runs.items() if known.uid not in run.view.owners
            }
        elif known.resource_version == act.record.resource_version:
            self.records[known.key] = replace(
                self.patched(act, known), resource_version=self.next_version()
            )
            if isinstance(act, Mark) and answered and not known.trash:
                self.untouched.add((known.uid, act.stamp))

    @staticmethod
    def patched(act: Act, known: Record) -> Record:
        match act:
            case Note(_, unused):
                return replace(known, unused=unused)
            case Mark(_, reason, stamp):
                return replace(known, state=RecordState.TRASHED, reason=reason, trash=stamp)
            case _:
                return replace(known, state=RecordState.READY, reason="", trash="", unused=0.0)

    def run(self, run: Run, *, does: bool, reports: bool) -> None:
        """A Job's pod moves the folder (or dies before), and says so (or dies after)."""
        key, stamp = run.view.key, str(run.view.attempt)
        gone = False
        if does:
            place = (key, stamp)
            if run.view.step == SWEEP_TRASH:
                if key in self.live and place not in self.trash:
                    self.live.discard(key)
                    self.trash.add(place)
            elif run.view.step == SWEEP_RESTORE:
                if place in self.trash and key not in self.live:
                    self.trash.discard(place)
                    self.live.add(key)
                gone = key not in self.live
            else:
                self.trash.discard(place)
        ended = replace(run.view, active=0, finished_at=self.now)
        done = does and reports and not gone
        run.view = replace(
            ended, complete=done, failed=not done, failure_reason="gone" if gone else ""
        )

    def build(self, key: str) -> None:
        """Who names it and finds neither the record nor one that is on its way builds it."""
        if key in self.named and key not in self.records:
            # a valid manifest that is there is found and reported
            self.builds += key not in self.live
            self.live.add(key)
            self.records[key] = replace(
                record(int(key, 16)),
                uid=f"uid-{key}-{self.next_version()}",
                resource_version=self.next_version(),
            )


class AnyOrder(RuleBasedStateMachine):
    """Rules are what may happen; invariants are what a user is promised."""

    def __init__(self) -> None:
        super().__init__()
        self.claim = Claim()

    @initialize()
    def three_artifacts(self) -> None:
        self.claim.named = set(KEYS)
        for key in KEYS:
            self.claim.build(key)

    @rule(key=st.sampled_from(KEYS))
    def name(self, key: str) -> None:
        self.claim.named.add(key)

    @rule(key=st.sampled_from(KEYS))
    def unname(self, key: str) -> None:
        self.claim.named.discard(key)

    @rule(seconds=st.sampled_from([0.1, 3.0, AGE, GRACE]))
    def time_passes(self, seconds: float) -> None:
        self.claim.now += seconds

    @rule(key=st.sampled_from(KEYS))
    def build(self, key: str) -> None:
        self.claim.build(key)

    @rule()
    def crash(self) -> None:
        self.claim.untouched = set()
        for run in self.claim.runs.values():
            run.seen = True  # a new operator lists

    @rule(
        upto=st.integers(0, 6),
        answered=st.booleans(),
        meanwhile=st.sets(st.sampled_from(KEYS)),
    )
    def look(self, upto: int, answered: bool, meanwhile: set[str]) -> None:
        acts = collect(self.claim.stock()).acts
        for act in acts:
            if (
                isinstance(act, Mark)
                and act.reason in (COLLECTED, PURGING)
                and not (restorable_back(act))
            ):
                assert act.record.key not in self.claim.named
            if isinstance(act, Order) and act.action == SWEEP_PURGE:
                assert act.record.key not in self.claim.named
        # revisions are made while the answers are under way
        self.claim.named |= meanwhile
        for act in acts[:upto]:
            self.claim.apply(act, answered=answered)

    @rule()
    def look_through(self) -> None:
        self.look(upto=6, answered=True, meanwhile=set())

    @rule(rounds=st.integers(1, 9), only=st.sampled_from([None, *KEYS]))
    def all_goes_well_for_a_while(self, rounds: int, only: str | None) -> None:
        """What is rare one by one: far into the trash, with a name or two left."""
        if only is not None:
            self.claim.named = {only}
        for _ in range(rounds):
            self.claim.now += AGE
            self.look_through()
            for run in list(self.claim.runs.values()):
                if run.view.active:
                    self.claim.run(run, does=True, reports=True)

    @precondition(lambda self: any(run.view.active for run in self.claim.runs.values()))
    @rule(data=st.data(), does=st.booleans(), reports=st.booleans())
    def job(self, data: st.DataObject, does: bool, reports: bool) -> None:
        active = [name for name, run in self.claim.runs.items() if run.view.active]
        run = self.claim.runs[data.draw(st.sampled_from(sorted(active)))]
        self.claim.run(run, does=does, reports=reports)

    @invariant()
    def what_is_said_to_be_there_is_there(self) -> None:
        for key, one in self.claim.records.items():
            if one.state is RecordState.READY:
                assert key in self.claim.live

    @invariant()
    def no_two_operators_share_a_folder(self) -> None:
        for key in KEYS:
            assert sum(place[0] == key for place in self.claim.trash) <= 1

    def teardown(self) -> None:
        """From wherever it stopped: what is named is there, what is not ends, all is at rest."""
        self.crash()
        for _ in range(60):
            self.claim.now += 3.0
            for act in collect(self.claim.stock()).acts:
                self.claim.apply(act, answered=True)
            for run in list(self.claim.runs.values()):
                if run.view.active:
                    self.claim.run(run, does=True, reports=True)
            for key in KEYS:
                self.claim.build(key)
            self.what_is_said_to_be_there_is_there()
        left = self.claim.records
        assert {key for key, one in left.items() if one.state is RecordState.READY} == set(left)
        assert self.claim.named <= set(left)
        assert len(set(left) - self.claim.named) <= KEEP
        assert self.claim.trash == set()
        assert collect(self.claim.stock()) == Collection()


def restorable_back(act: Mark) -> bool:
    """Whether a mark only takes back a purge that was not begun."""
    return act.reason == COLLECTED and act.record.reason == PURGING


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = hypothesis_settings(max_examples=150, stateful_step_count=60, deadline=None)
