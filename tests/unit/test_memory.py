"""What is remembered in status comes back as it was; what was lost is rebuilt from the pods."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright.api import names
from shardwright.api.settings import Timeouts
from shardwright.api.status import (
    BarredRevision,
    EngineStatus,
    GroupStatus,
    LLMDeploymentStatus,
    NextEngine,
    StepStatus,
)
from shardwright.observe.world import PodView
from shardwright.plan.attempts import Tries
from shardwright.plan.memory import Memory, recall, same, within_reach
from shardwright.plan.rollout import Wish
from shardwright.plan.times import stamp

NOW = 1_800_000_000.0

WISH = Wish(
    index=2,
    incarnation=7,
    revision="llama-b",
    restarts=3,
    not_before=NOW + 40,
    avoid=("n1", "n2"),
    cause="pod x ended",
    reason="PodFailed",
    held=True,
    held_edit="4@x",
)
TRIES = Tries(
    attempts=4,
    failures=2,
    edit="3",
    not_before=NOW + 15,
    avoid=("n9",),
    reason="NoReport",
    cause="no word",
)


def pod(replica: int, incarnation: int, stage: int = 0, revision: str = "llama-a") -> PodView:
    return PodView(
        namespace="llm",
        name=f"llama-{replica}-{incarnation}-{stage}",
        uid=f"u-{replica}-{incarnation}-{stage}",
        labels={
            names.LABEL_REPLICA: str(replica),
            names.LABEL_INCARNATION: str(incarnation),
            names.LABEL_STAGE: str(stage),
            names.LABEL_REVISION: revision,
        },
    )


def status_of(memory: Memory, generation: int = 1) -> LLMDeploymentStatus:
    """Memory as the report writes it, through the JSON that the API server stores."""
    written = LLMDeploymentStatus(
        observed_generation=generation,
        groups=[
            GroupStatus(
                index=wish.index,
                incarnation=wish.incarnation,
                revision=wish.revision,
                restarts=wish.restarts,
                not_before=stamp(wish.not_before),
                avoid_nodes=list(wish.avoid),
                cause=wish.cause,
                reason=wish.reason,
                held=wish.held,
                held_edit=wish.held_edit,
            )
            for wish in memory.wishes
        ],
        steps=[
            StepStatus(
                step=step,
                key=key,
                attempts=tries.attempts,
                failures=tries.failures,
                edit=tries.edit,
                not_before=stamp(tries.not_before),
                avoid_nodes=list(tries.avoid),
                reason=tries.reason,
                cause=tries.cause,
            )
            for (step, key), tries in memory.tries.items()
        ],
        incarnations=memory.incarnations,
        failed_revision=memory.failed_revision,
        failed_cause=memory.failed_cause,
        barred_revisions=[
            BarredRevision(revision=revision, cause=cause) for revision, cause in memory.barred
        ],
        settled_revision=memory.settled,
        engine=EngineStatus(next=NextEngine(borrowed=memory.borrowed)) if memory.borrowed else None,
    )
    return LLMDeploymentStatus.model_validate(
        written.model_dump(by_alias=True, mode="json", exclude_none=True)
    )


@pytest.mark.parametrize(
    "memory",
    [
        Memory(),
        Memory(wishes=(Wish(0, 1, "llama-a"),), incarnations=1),
        Memory(wishes=(Wish(0, 1, "llama-a"), WISH), incarnations=9),
        Memory(tries={("engine", "k1"): TRIES, ("model", "k2"): Tries(attempts=1)}),
        Memory(failed_revision="llama-b", failed_cause="it died"),
        Memory(
            failed_revision="llama-d",
            failed_cause="it died",
            barred=(("llama-b", "it hung"), ("llama-c", "")),
        ),
        Memory(settled="llama-a"),
        Memory(borrowed="replica 1 on n1, n2"),
    ],
    ids=[
        "nothing",
        "a wish",
        "all of a wish",
        "tries",
        "a rollback",
        "rollbacks",
        "settled",
        "a loan",
    ],
)
def test_memory_comes_back_from_status_as_it_was_written(memory: Memory) -> None:
    assert recall(status_of(memory), ()) == memory


def test_a_pause_that_a_fast_clock_has_written_is_over() -> None:
    """The longest real ones are waited out; a clock that was a day ahead holds nobody for a day."""
    now, times = 1_900_000_000.0, Timeouts()
    restart = times.restart_backoff_max_seconds * 1.25
    step = times.step_backoff_seconds * 2 ** (times.step_attempts - 1) * 1.25

    def kept(wish: float, tries: float) -> tuple[float, float]:
        memory = Memory(
            wishes=(replace(WISH, not_before=wish),),
            tries={("engine", "k1"): replace(TRIES, not_before=tries)},
        )
        found = within_reach(memory, now, times)
        return found.wishes[0].not_before, found.tries["engine", "k1"].not_before

    longest = (now + restart, now + step)
    assert kept(*longest) == longest
    assert kept(now - 5, now - 5) == (now - 5, now - 5)
    assert kept(now + 86400, now + 86400) == (now, now)


def test_a_lost_status_is_rebuilt_from_the_newest_incarnation_of_each_replica() -> None:
    pods = [
        pod(0, 3),
        pod(0, 3, 1),
        pod(1, 2, revision="llama-old"),
        pod(1, 5, revision="llama-b"),
        pod(1, 5, 1, revision="llama-b"),
    ]
    found = recall(LLMDeploymentStatus(), pods)
    assert found == Memory(
        wishes=(Wish(0, 3, "llama-a"), Wish(1, 5, "llama-b")),
        incarnations=5,
    )


def test_a_lost_status_does_not_take_pods_without_our_labels_for_replicas() -> None:
    stranger = replace(pod(0, 1), labels={names.LABEL_REPLICA: "x"})
    assert recall(LLMDeploymentStatus(), [stranger]) == Memory()


def test_an_incarnation_is_never_used_again_though_status_is_older_than_the_pods() -> None:
    status = status_of(Memory(wishes=(Wish(0, 3, "llama-a"),), incarnations=3))
    assert recall(status, [pod(0, 4)]).incarnations == 4
    assert recall(status, [pod(0, 2)]).incarnations == 3


def test_wishes_in_status_outweigh_pods() -> None:
    status = status_of(Memory(wishes=(Wish(0, 3, "llama-a"),), incarnations=3))
    found = recall(status, [pod(0, 2), pod(1, 2)])
    assert found.wishes == (Wish(0, 3, "llama-a"),)


def test_the_empty_wish_of_a_seen_deployment_is_not_rebuilt_from_leaving_pods() -> None:
    """Scaled to zero, the last pods still going: they must not come back."""
    status = status_of(Memory(incarnations=2))
    assert recall(status, [pod(0, 2)]).wishes == ()


OTHERS = [
    Memory(wishes=(replace(WISH, incarnation=8),), incarnations=7),
    Memory(wishes=(replace(WISH, restarts=4),), incarnations=7),
    Memory(wishes=(replace(WISH, not_before=NOW + 41),), incarnations=7),
    Memory(wishes=(replace(WISH, held=False),), incarnations=7),
    Memory(wishes=(replace(WISH, avoid=("n1",)),), incarnations=7),
    Memory(wishes=(replace(WISH, revision="llama-a"),), incarnations=7),
    Memory(wishes=(WISH,), incarnations=8),
    Memory(wishes=(), incarnations=7),
    Memory(wishes=(WISH,), incarnations=7, tries={("engine", "k1"): TRIES}),
    Memory(wishes=(WISH,), incarnations=7, failed_revision="llama-b"),
    Memory(wishes=(WISH,), incarnations=7, barred=(("llama-b", ""),)),
    Memory(wishes=(WISH,), incarnations=7, settled="llama-b"),
    Memory(wishes=(WISH,), incarnations=7, borrowed="replica 0 on n1"),
]


@pytest.mark.parametrize("other", OTHERS)
def test_a_change_of_anything_that_a_later_pass_acts_on_is_a_change(other: Memory) -> None:
    assert not same(Memory(wishes=(WISH,), incarnations=7), other)


def test_parts_of_a_second_are_no_change_since_status_does_not_keep_them() -> None:
    old = Memory(
        wishes=(replace(WISH, not_before=NOW),),
        tries={("engine", "k1"): replace(TRIES, not_before=NOW)},
    )
    new = Memory(
        wishes=(replace(WISH, not_before=NOW + 0.9),),
        tries={("engine", "k1"): replace(TRIES, not_before=NOW + 0.9)},
    )
    assert same(old, new)
    assert recall(status_of(new), ()) == old
