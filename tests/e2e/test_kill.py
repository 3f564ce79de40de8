"""The operator is killed at random moments of a deployment's life, and started again.

For each seed the same life is led twice: once undisturbed and once with an operator that is
SIGKILLed every now and then, from some hundredths of a second after it began to act. Both must come
to the same end, and in between nothing may be there twice. The seed decides the life and the waits
between kills; it is in the test's name.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kubernetes import client
from tests.support.census import counted
from tests.support.claims import published_lines
from tests.support.ending import ending, token_owners
from tests.support.forked import ForkedOperator
from tests.support.kube import H100, H200, Kube
from tests.support.operator import PATIENT, SETTINGS

from shardwright_sandbox.cluster import Sandbox
from shardwright_sandbox.namespaces import make_namespace, remove_namespace
from shardwright_sandbox.pytest_plugin import FleetMaker
from shardwright_sandbox.rest import Json
from shardwright_sandbox.storage import make_claim, remove_claims

pytestmark = pytest.mark.e2e

NAME = "llama"
LEASE = "shardwright-kill"
# A group that is bound by half for so long is given up. Nothing here is in the scheduler's way.
BIND_SECONDS = PATIENT["timeouts"]["bindSeconds"]
CHUNK = 8  # undisturbed lives led side by side
KILLS_A_STEP = 3
PATIENCE = 240.0
SEEDS = range(8)
SOAK_SEEDS = range(100, 150)

# Each is an edit that stands for one row of the table of changes, or a change of scale.
EDITS: dict[str, Json] = {
    "shape": {"parallelism": {"tensor": 2, "pipeline": 3}},
    "flat": {"parallelism": {"tensor": 8, "pipeline": 1}},
    "gpu": {"gpu": {"product": H200}},
    "limits": {"engine": {"limits": {"maxBatchSize": 32}}},
    "pods": {"pod": {"env": [{"name": "NCCL_DEBUG", "value": "INFO"}]}},
    "up": {"replicas": 3},
    "down": {"replicas": 1},
    "zero": {"replicas": 0},
}


def life(seed: int) -> tuple[Json, list[str]]:
    """How a deployment begins, and what is edited then."""
    chance = random.Random(seed)  # noqa: S311 - a test's own dice
    surge = chance.choice([0, 1])
    begin = {
        "parallelism": {"tensor": 4, "pipeline": 2},
        "replicas": chance.choice([1, 2]),
        "rollout": {"maxSurge": surge, "maxUnavailable": 1},
    }
    return begin, chance.sample(sorted(EDITS), 3)


@pytest.fixture(scope="module")
def nodes(sandbox: Sandbox) -> Iterator[None]:
    """Enough for all lives side by side."""
    maker = FleetMaker(sandbox.api)
    maker(
        [
            {"name": "killh100", "count": 24, "gpu": {"product": H100, "count": 8}},
            {"name": "killh200", "count": 24, "gpu": {"product": H200, "count": 8}},
        ]
    )
    yield
    maker.remove()


@contextlib.contextmanager
def namespaces(sandbox: Sandbox, count: int) -> Iterator[list[Kube]]:
    """Fresh namespaces with a claim each, gone afterwards."""
    made = [f"kill-{uuid.uuid4().hex[:8]}" for _ in range(count)]
    try:
        for name in made:
            make_namespace(sandbox.api, name)
            make_claim(sandbox.api, sandbox.claims, name, "models")
        yield [Kube(sandbox.api, name) for name in made]
    finally:
        for name in made:
            Kube(sandbox.api, name).clear()
        for name in made:
            remove_claims(sandbox.api, sandbox.claims, name)
            remove_namespace(sandbox.api, name)


class Lives:
    """The ends of undisturbed lives, led when one is asked for: its whole chunk at once."""

    def __init__(self, sandbox: Sandbox, folder: Path) -> None:
        self._sandbox = sandbox
        self._folder = folder
        self._ends: dict[int, Json] = {}

    def end(self, seed: int) -> Json:
        """What the life of a seed comes to when nobody disturbs it."""
        if seed not in self._ends:
            seeds = SEEDS if seed in SEEDS else SOAK_SEEDS
            at = (seed - seeds.start) // CHUNK * CHUNK + seeds.start
            self._lead(range(at, min(at + CHUNK, seeds.stop)))
        return self._ends[seed]

    def _lead(self, seeds: range) -> None:
        with namespaces(self._sandbox, len(seeds)) as kubes:
            operator = operator_in(self._sandbox, self._folder, kubes)
            try:
                lives = [(kube, *life(seed)) for kube, seed in zip(kubes, seeds, strict=True)]
                for kube, begin, _ in lives:
                    kube.create(NAME, begin)
                for step in range(4):
                    for kube, _, edits in lives:
                        kube.wait_ready(NAME, PATIENCE)
                        if step < 3:
                            kube.edit(NAME, EDITS[edits[step]])
                for kube, seed in zip(kubes, seeds, strict=True):
                    self._ends[seed] = settled(kube)
            finally:
                operator.kill()


def operator_in(sandbox: Sandbox, folder: Path, kubes: list[Kube]) -> ForkedOperator:
    """An operator for these namespaces only, with a Lease of its own."""
    place = folder / f"operator-{uuid.uuid4().hex[:8]}"
    place.mkdir()
    # A long Lease: on a slow machine a short one is lost by itself, which is another test's matter.
    lease = {
        "name": f"{LEASE}-{kubes[0].namespace}",
        "durationSeconds": 60,
        "renewSeconds": 40,
        "retrySeconds": 0.2,
    }
    operator = ForkedOperator(
        sandbox.kubeconfig_for("sandbox-operator"),
        place,
        watchNamespaces=[kube.namespace for kube in kubes],
        lease=lease,
        **PATIENT,
    )
    return operator.start()


class Storm:
    """Operators that are killed one after the other; the next one is always standing by."""

    def __init__(self, sandbox: Sandbox, folder: Path, kube: Kube, seed: int) -> None:
        self._sandbox, self._folder, self._kube = sandbox, folder, kube
        self._chance = random.Random(seed)  # noqa: S311 - a test's own dice
        self.all: list[ForkedOperator] = []
        self.kills = 0
        self._acting = self._fresh()
        self._acting.wait()
        self._standby = self._fresh()

    def _fresh(self) -> ForkedOperator:
        operator = operator_in(self._sandbox, self._folder, [self._kube])
        self.all.append(operator)
        return operator

    def strike(self) -> None:
        """Let the acting operator work for a moment, then kill it; the next one takes over."""
        longest = self._chance.choice([0.3, 1.5])
        time.sleep(self._chance.uniform(0.05, longest))
        self._acting.kill()
        self.kills += 1
        dead, standby = self._acting, self._standby
        fresh = self._fresh()
        # Either may be the one that gets the Lease.
        self._kube.wait(
            "another one acts",
            lambda: standby.acts or fresh.acts or self._bury(dead),
            PATIENCE,
        )
        self._acting, self._standby = (standby, fresh) if standby.acts else (fresh, standby)

    def _bury(self, dead: ForkedOperator) -> None:
        """Take the Lease of the dead away, who cannot renew it, instead of waiting for its end.

        More than once: a renewal that was under way at its death may still come through.
        """
        leases = client.CoordinationV1Api(self._kube.api)
        place = (f"{LEASE}-{self._kube.namespace}", SETTINGS["namespace"])
        with contextlib.suppress(client.ApiException):
            if f"_{dead.pid}_" in str(leases.read_namespaced_lease(*place).spec):
                leases.delete_namespaced_lease(*place)

    def errors(self) -> list[str]:
        """What any of them logged as an error."""
        return [line for operator in self.all for line in operator.errors()]

    def end(self) -> None:
        """Kill what is left."""
        for operator in self.all:
            if operator.alive:
                operator.kill()


def settled(kube: Kube) -> Json:
    """What it has come to: no pod is on its way out, no Job at work, and status has said so.

    An ending is read piece by piece, while the world may move: it counts when it was the same
    before and after all was found at rest.
    """

    def rests() -> bool:
        return (
            all("deletionTimestamp" not in pod["metadata"] for pod in kube.pods(live=False))
            and all(job["status"].get("completionTime") for job in kube.jobs())
            and kube.condition(NAME, "Ready").get("status") == "True"
            and all(owners == [True] for owners in token_owners(kube))
        )

    def rested() -> Json | None:
        if not rests():
            return None
        found = ending(kube, NAME)
        return found if not kube.wait_quietly(1, lambda: ending(kube, NAME) != found) else None

    found: Json = kube.wait("nothing is on its way any more", rested, PATIENCE)
    return found


@pytest.fixture(scope="module")
def lives(sandbox: Sandbox, nodes: None, tmp_path_factory: pytest.TempPathFactory) -> Lives:
    return Lives(sandbox, tmp_path_factory.mktemp("lives"))


Say = Callable[[str], None]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Prints past the capture: a run that passes says too which lives were led."""

    def spoken(text: str) -> None:
        with capsys.disabled():
            print(f"\n{text}", end="")  # noqa: T201 - what this is for

    return spoken


def check(seed: int, sandbox: Sandbox, lives: Lives, folder: Path, say: Say) -> None:
    begin, edits = life(seed)
    say(f"seed {seed}: begin with {json.dumps(begin)}, then {', '.join(edits)}")
    wanted = lives.end(seed)
    with namespaces(sandbox, 1) as [kube], counted(kube) as census:
        storm = Storm(sandbox, folder, kube, seed)
        try:
            kube.create(NAME, begin)
            for edit in [*edits, None]:
                for number in range(KILLS_A_STEP):
                    # Once in any case: a test that is slow must not look on.
                    if number and kube.condition(NAME, "Ready").get("status") == "True":
                        break
                    storm.strike()
                kube.wait_ready(NAME, PATIENCE)
                if edit is not None:
                    kube.edit(NAME, EDITS[edit])
            found = settled(kube)
            assert storm.errors() == []
        finally:
            storm.end()
        say(f"seed {seed}: {storm.kills} kills, half bound for {census.settle():.2f} s at most")
        for part, value in wanted.items():
            assert found[part] == value, f"{part} differs from the undisturbed run"
        assert census.twice == []
        assert census.settle() < BIND_SECONDS
        assert published_twice(sandbox, kube) == []


def published_twice(sandbox: Sandbox, kube: Kube) -> list[tuple[str, str]]:
    """Keys that more than one pod published."""
    assert sandbox.layout is not None
    lines = published_lines(sandbox.layout.publishes)
    ours = [line for line in lines if line["namespace"] == kube.namespace]
    assert ours, "nothing was published at all"
    counts = Counter((line["step"], line["key"]) for line in ours)
    return [key for key, count in counts.items() if count > 1]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_operator_comes_to_the_same_end_and_doubles_nothing(
    seed: int, sandbox: Sandbox, lives: Lives, tmp_path: Path, say: Say
) -> None:
    check(seed, sandbox, lives, tmp_path, say)


@pytest.mark.soak
@pytest.mark.parametrize("seed", SOAK_SEEDS)
def test_soak_a_killed_operator_comes_to_the_same_end_and_doubles_nothing(
    seed: int, sandbox: Sandbox, lives: Lives, tmp_path: Path, say: Say
) -> None:
    check(seed, sandbox, lives, tmp_path, say)
