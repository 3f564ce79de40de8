"""Old artifacts on a claim: collected by age and count, back within the grace, rebuilt after it.

The operators here have tiny retention settings. Folders are real; the sandbox's player moves them
as the sweeps' pods would.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from tests.support.claims import Claim
from tests.support.kube import Kube
from tests.support.operator import PATIENT, SETTINGS, Operator

from shardwright.plan.collection import moment_of
from shardwright_sandbox import audit
from shardwright_sandbox.cluster import Sandbox
from shardwright_sandbox.player.control import Act, Match, PlayerControl, Rule
from shardwright_sandbox.rest import Json

pytestmark = pytest.mark.e2e

LONG = 3600.0
LEASE = "shardwright-collection"
EDITS = 12  # more than the revisions that are kept
Make = Callable[..., Operator]


def settings(*, keep: int = 0, age: float = 0.5, grace: float = LONG) -> dict[str, Any]:
    return {
        "retention": {"keepArtifacts": keep, "minAgeSeconds": age},
        "timeouts": {**PATIENT["timeouts"], "trashGraceSeconds": grace},
        "lease": {"name": LEASE, "durationSeconds": 30, "renewSeconds": 20},
    }


@pytest.fixture
def claim(sandbox: Sandbox, kube: Kube) -> Claim:
    return Claim(sandbox, kube)


def batch(size: int) -> Json:
    """An edit that needs another engine, from the same checkpoint."""
    return {"engine": {"limits": {"maxBatchSize": size}}}


def edit_until_unnamed(kube: Kube, claim: Claim, name: str = "llama") -> str:
    """Edit until no revision names the first engine any more; its key."""
    for number in range(EDITS):
        if number:
            kube.edit(name, batch(8 + number))

        def recorded(wanted: int = number) -> bool:
            made = claim.published("engine")
            return len(made) > wanted and claim.state(made[wanted]) == "Ready"

        kube.wait(f"engine {number + 1} recorded", recorded)
    return claim.published("engine")[0]


def served(kube: Kube, claim: Claim, key: str) -> bool:
    """Whether the target's engine is the one with this key, and nothing stands in its way."""
    following = kube.get("llama").get("status", {}).get("engine", {}).get("next") or {}
    reason = kube.condition("llama", "EngineReady").get("reason")
    return (
        claim.state(key) == "Ready"
        and key in claim.there("engine")
        and following.get("key", key) == key
        and reason
        not in ("Restoring", "Purging", "Building", "Converting", "Quantizing", "Fetching", None)
    )


def test_an_engine_that_no_kept_revision_names_is_collected_and_a_revert_brings_it_back(
    make_operator: Make, kube: Kube, claim: Claim, h100s: list[str]
) -> None:
    operator = make_operator(**settings()).start()
    operator.wait()
    kube.create("llama", {"replicas": 0, **batch(8)})
    first = edit_until_unnamed(kube, claim)
    kube.wait("first engine in the trash", lambda: first in claim.trash())
    assert first not in claim.there("engine")
    assert claim.state(first) == "Trashed Collected"
    before = Counter(claim.published())
    named = set(claim.published("engine")[-10:])
    assert named <= claim.there("engine")
    assert len(claim.there("checkpoint")) == len(claim.there("model")) == 1

    kube.edit("llama", batch(8))
    kube.wait("first engine restored", lambda: served(kube, claim, first))
    assert Counter(claim.published()) == before
    assert first not in claim.trash()
    kube.wait(
        "the sweeps' Jobs gone",
        lambda: (
            not [job for job in kube.jobs() if first in job["metadata"]["name"] and _swept(job)]
        ),
    )
    assert operator.stop() == 0
    assert operator.errors() == []


def _swept(job: Json) -> bool:
    return bool(job["spec"]["template"]["metadata"]["labels"]["shardwright.dev/role"] == "sweep")


def test_a_revert_after_the_purge_builds_again_and_only_that(
    make_operator: Make, kube: Kube, claim: Claim, h100s: list[str]
) -> None:
    operator = make_operator(**settings(grace=0.5)).start()
    operator.wait()
    kube.create("llama", {"replicas": 0, **batch(8)})
    first = edit_until_unnamed(kube, claim)
    kube.wait("first engine purged", lambda: not claim.state(first))
    assert first not in claim.there("engine") | claim.trash()
    before = Counter(claim.published())

    kube.edit("llama", batch(8))
    kube.wait("first engine rebuilt", lambda: served(kube, claim, first))
    assert Counter(claim.published()) - before == Counter([first])
    assert operator.stop() == 0
    assert operator.errors() == []


def test_artifacts_outlive_their_deployment_for_their_age_and_serve_the_next_one(
    make_operator: Make, kube: Kube, claim: Claim, h100s: list[str]
) -> None:
    age = 6
    operator = make_operator(**settings(age=age)).start()
    operator.wait()
    kube.create("llama")
    kube.wait_ready("llama")
    built = set(claim.published())
    assert len(built) == 3
    # named: at zero replicas too, and however long
    kube.edit("llama", {"replicas": 0})
    kube.wait("scaled to zero", lambda: not kube.pods("llama", live=False))
    time.sleep(age + 1)
    assert {claim.state(key) for key in built} == {"Ready"}
    assert all("unusedSince" not in data for data in claim.records().values())
    kube.delete("llama")
    kube.wait(
        "the end of their use written down",
        lambda: all("unusedSince" in data for data in claim.records().values()),
    )
    kube.wait("all in the trash", lambda: claim.trash() == built)
    collected = claim.records()
    assert {claim.state(key) for key in built} == {"Trashed Collected"}
    for key in built:
        unused, marked = collected[key]["unusedSince"], collected[key]["trashStamp"]
        lasted = moment_of(marked) - datetime.fromisoformat(unused).timestamp()
        assert lasted >= age - 0.001, "a stamp is cut to the millisecond"
    kube.create("llama")
    found = kube.wait_ready("llama")
    assert found["status"]["engine"]["serving"]["key"] in built
    # Ready needs the engine alone; what it was made of comes back with it, in no order.
    kube.wait("all is back", lambda: {claim.state(key) for key in built} == {"Ready"})
    assert claim.trash() == set()
    assert sorted(claim.published()) == sorted(built)
    assert operator.stop() == 0
    assert operator.errors() == []


def test_a_record_deleted_by_hand_costs_no_build(
    make_operator: Make, kube: Kube, claim: Claim, h100s: list[str]
) -> None:
    operator = make_operator(**settings(age=LONG)).start()
    operator.wait()
    kube.create("llama", {"replicas": 0})
    kube.wait("engine published", lambda: claim.published("engine"))
    key = claim.published("engine")[0]
    kube.wait("recorded", lambda: served(kube, claim, key))
    kube.delete("llama")
    kube.wait("Jobs gone", lambda: not kube.jobs())
    kube.core.delete_collection_namespaced_config_map(
        kube.namespace, label_selector="shardwright.dev/record=true"
    )
    before = Counter(claim.published())
    kube.create("llama", {"replicas": 0})
    kube.wait("recorded again", lambda: served(kube, claim, key))
    assert Counter(claim.published()) == before
    assert operator.stop() == 0


def test_what_is_kept_costs_no_request(
    sandbox: Sandbox, make_operator: Make, kube: Kube, claim: Claim, h100s: list[str]
) -> None:
    assert sandbox.layout is not None
    operator = make_operator(**settings(keep=3, age=0.5), resyncSeconds=1).start()
    operator.wait()
    kube.create("llama", {"replicas": 0})
    kube.wait(
        "engine recorded",
        lambda: [key for key in claim.published("engine") if claim.state(key) == "Ready"],
    )
    kube.delete("llama")
    kube.wait(
        "noted",
        lambda: claim.records() and all("unusedSince" in one for one in claim.records().values()),
    )
    log = sandbox.layout.audit_log

    def asked(seconds: float) -> set[str]:
        """What is asked for so long; lists are the resync's, which is every second here."""
        offset = audit.position(log)
        time.sleep(seconds)
        found = audit.requests(log, "sandbox-operator", offset=offset)
        return {
            what
            for what in found
            if not what.startswith(("list", "watch")) and not what.endswith("leases")
        }

    # Proofs are none; the age of the others passes, and what belongs to the end of their use.
    kube.wait("nothing is asked any more", lambda: not asked(2))
    assert asked(6) == set()
    assert len(claim.records()) == 3
    assert claim.trash() == set()
    assert operator.stop() == 0


@pytest.mark.parametrize("seed", range(3))
def test_an_operator_that_is_killed_at_any_moment_of_it_leaves_nothing_halfway(
    sandbox: Sandbox,
    make_operator: Make,
    kube: Kube,
    claim: Claim,
    player: PlayerControl,
    h100s: list[str],
    seed: int,
) -> None:
    chance = random.Random(seed)  # noqa: S311 - moments, not secrets
    # a short grace, so that a revert meets marks, renames, purges and what is gone
    operator = make_operator(**settings(age=0.5, grace=chance.choice([0.0, 2.0]))).start()
    operator.wait()
    kube.create("llama", {"replicas": 0})
    kube.wait("engine published", lambda: claim.published("engine"))
    built = set(claim.published())
    (engine,) = claim.published("engine")
    player.delays(other=0.3)
    leases = client.CoordinationV1Api(sandbox.api)
    there = True
    for _ in range(6):
        if there:
            # The one that made it may have died before it wrote a status.
            kube.wait("made", lambda: kube.get("llama").get("status", {}).get("conditions"))
            kube.delete("llama")
        else:
            kube.create("llama", {"replicas": 0})
        there = not there
        time.sleep(chance.uniform(0.1, 2.5))
        operator.kill()
        with contextlib.suppress(client.ApiException):
            leases.delete_namespaced_lease(LEASE, SETTINGS["namespace"])
        operator.start().wait()
    if not there:
        kube.create("llama", {"replicas": 0})

    def back() -> bool:
        records = claim.records()
        return (
            served(kube, claim, engine)
            and {records.get(key, {}).get("state") for key in built} == {"Ready"}
            and claim.there("engine") | claim.there("checkpoint") | claim.there("model") == built
            and not [job for job in kube.jobs() if _swept(job)]
        )

    kube.wait("all is there and no sweep is left", back)
    kube.delete("llama")
    kube.wait("all collected", lambda: not claim.records())
    assert _files(claim.root) == []
    assert operator.alive


def _files(root: Path) -> list[str]:
    return [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]


def test_what_was_published_and_dropped_before_it_was_recorded_is_collected_too(
    make_operator: Make, kube: Kube, claim: Claim, player: PlayerControl, h100s: list[str]
) -> None:
    """The user takes the edit back in the very moment in which the build has published."""
    operator = make_operator(**settings(grace=0.5)).start()
    operator.wait()
    kube.create("llama", {"replicas": 0, **batch(8)})
    first = kube.wait("the first engine", lambda: claim.published("engine"))
    kube.wait("which is recorded", lambda: claim.state(first[0]) == "Ready")
    hang = Rule(act=Act.HANG, match=Match(step="engine", namespace=kube.namespace))
    player.add(hang)
    kube.edit("llama", batch(16))
    [key] = kube.wait("the build begins", lambda: _begun(claim))
    # Its pod is the one that hangs: taken back before it ran, the next one's would.
    kube.wait("its pod hangs", lambda: player.hits(hang) == 1)
    folder = claim.root / "engine" / key
    folder.mkdir()
    (folder / "rank0.engine").write_text("published by a pod that nobody heard")
    for number in range(EDITS):
        kube.edit("llama", batch(20 + number))

        def recorded(wanted: int = number + 2) -> bool:
            return len(claim.published("engine")) >= wanted

        kube.wait(f"engine {number + 2}", recorded)
        if not number:
            kube.wait("its Job dropped", lambda: not [j for j in kube.jobs() if _of(j, key)])
            assert claim.state(key) == "Building"
    kube.wait("no revision names it: deleted", lambda: not claim.state(key))
    assert key not in claim.there("engine") | claim.trash()
    assert operator.stop() == 0
    assert operator.errors() == []


def _begun(claim: Claim) -> list[str]:
    """Keys of engines that are asked for and not made."""
    return [
        key
        for key, data in claim.records().items()
        if (data["step"], data["state"]) == ("engine", "Building")
    ]


def _of(job: Json, key: str) -> bool:
    return bool(job["metadata"]["labels"].get("shardwright.dev/key") == key)
