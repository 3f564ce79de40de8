"""GPUs that are taken, come, and go: a replica has all of its nodes or none of them.

Whoever waits holds nothing, says what is missing, and goes on when room appears, not at the next
poll. A replica that loses a node leaves whole, once, and does not come back there.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from kubernetes import client
from kubernetes.client.exceptions import ApiException
from tests.support.history import History, watched
from tests.support.kube import H100, Json, Kube, ready
from tests.support.operator import PATIENT, Operator

from shardwright_sandbox.fleet import Pool, Taint
from shardwright_sandbox.nodes import (
    add_node,
    cordon,
    delete_node,
    kill_kubelet,
    set_allocatable,
    set_ready,
    taint,
    untaint,
)
from shardwright_sandbox.player.control import Act, Match, PlayerControl, Rule
from shardwright_sandbox.pytest_plugin import FleetMaker

pytestmark = pytest.mark.e2e

# No build: what is looked at here is where pods go.
PYTORCH: Json = {"engine": {"backend": "PyTorch"}}
PATIENCE = 180.0
# Long enough for a scheduler on a slow machine, and one test waits for it.
BIND_SECONDS = 20.0
# No deadline but that of binding is tested here: no other may pass on a slow machine.
OPERATOR: Json = {"timeouts": {**PATIENT["timeouts"], "bindSeconds": BIND_SECONDS}}
# What a slow machine may add to a deadline: a pass, a watch event, deleting the pods.
SLACK = 60.0
# Far below the operator's resync of ten minutes: whatever comes sooner was no poll. Alone on two
# cores it takes a fraction of a second.
SOON = 120.0


def nodes_of(fleet: FleetMaker, count: int) -> list[str]:
    """So many nodes of eight H100.

    No name is used twice: a scheduler may not have forgotten the node of the test before.
    """
    name = f"h100-{uuid.uuid4().hex[:6]}"
    return fleet([{"name": name, "count": count, "gpu": {"product": H100, "count": 8}}])


def shape(tensor: int, pipeline: int, replicas: int = 1, **more: Any) -> Json:
    return {
        **PYTORCH,
        "parallelism": {"tensor": tensor, "pipeline": pipeline},
        "replicas": replicas,
        **more,
    }


def take(
    kube: Kube, name: str, *, node: str = "", gpus: int = 8, affinity: Json | None = None
) -> None:
    """A pod of somebody else's with GPUs; bound to a node, or left to the scheduler."""
    amount = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    body: Any = {
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            **({"nodeName": node} if node else {}),
            **({"affinity": affinity} if affinity else {}),
            "containers": [
                {"name": "c", "image": "example.com/other:1", "resources": {"limits": amount}}
            ],
        },
    }
    kube.core.create_namespaced_pod(kube.namespace, body)


def free(kube: Kube, *names: str) -> None:
    """Delete pods of somebody else's."""
    for name in names:
        kube.core.delete_namespaced_pod(name, kube.namespace, grace_period_seconds=0)


def finish(kube: Kube, name: str) -> None:
    """A pod of somebody else's has done its work."""
    kube.wait(
        f"{name} runs", lambda: kube.raw(_pod(kube, name))["status"].get("phase") == "Running"
    )
    kube.core.patch_namespaced_pod_status(name, kube.namespace, {"status": {"phase": "Succeeded"}})


def label(pod: Json, name: str) -> int:
    return int(pod["metadata"]["labels"][f"shardwright.dev/{name}"])


def homes(pods: Iterable[Json]) -> dict[int, dict[int, str]]:
    """Replica → stage → node, empty where a pod has none."""
    found: dict[int, dict[int, str]] = {}
    for pod in pods:
        node = pod["spec"].get("nodeName", "")
        found.setdefault(label(pod, "replica"), {})[label(pod, "stage")] = node
    return found


def holds_nothing(pods: Iterable[Json]) -> bool:
    """Whether these pods are gated, and neither bound nor promised a node."""
    return all(
        pod["spec"].get("schedulingGates")
        and not pod["spec"].get("nodeName")
        and "kubernetes.io/hostname" not in pod["spec"].get("nodeSelector", {})
        for pod in pods
    )


def uids(pods: Iterable[Json]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def group(kube: Kube, name: str, index: int) -> Json:
    """What status says of one replica."""
    groups: list[Json] = kube.get(name)["status"].get("groups", [])
    return next((item for item in groups if item["index"] == index), {})


def no_room(kube: Kube, name: str) -> Json:
    """Wait until a deployment says that GPUs are missing; a candidate calls them spare ones."""
    found: Json = kube.wait(
        f"{name} waits for GPUs",
        lambda: (
            item
            if (item := kube.condition(name, "Placed")).get("reason")
            in ("InsufficientGPUs", "NoSpareGPUs")
            else None
        ),
        PATIENCE,
    )
    assert found["status"] == "False"
    return found


def both(kube: Kube, name: str) -> list[Json]:
    """Wait until the pods of both stages are there."""
    found: list[Json] = kube.wait(
        f"the pods of {name}",
        lambda: pods if len(pods := kube.pods(name)) == 2 else None,
        PATIENCE,
    )
    return found


def hanging_build(kube: Kube, player: PlayerControl) -> Rule:
    """Have a small engine be built that takes a GPU and does not end; the order to take back."""
    hang = Rule(act=Act.HANG, match=Match(namespace=kube.namespace, step="engine"))
    player.add(hang)
    kube.create("built", {"parallelism": {"tensor": 1, "pipeline": 1}, "replicas": 0})
    kube.wait("the build runs", lambda: player.hits(hang) == 1, PATIENCE)
    return hang


def condition(kube: Kube, name: str, kind: str) -> tuple[str, str]:
    found = kube.condition(name, kind)
    return found.get("status", ""), found.get("reason", "")


# Room for one and a half.


def test_with_room_for_one_and_a_half_replicas_one_is_whole_and_the_other_holds_nothing(
    running: Operator, kube: Kube, fleet: FleetMaker
) -> None:
    nodes_of(fleet, 3)
    with watched(kube) as history:
        kube.create("llama", shape(8, 2, 2))
        said = no_room(kube, "llama")
        assert said["status"] == "False"
        for part in ("needs 16 GPUs", H100, "8 free", "largest free block 8 GPUs"):
            assert part in said["message"]

        def halves() -> tuple[list[Json], list[Json]] | None:
            """Two pods that serve, as status says too, and two that are not bound."""
            pods = kube.pods("llama")
            bound = [pod for pod in pods if pod["spec"].get("nodeName")]
            waiting = [pod for pod in pods if pod not in bound]
            told = kube.get("llama")["status"]["readyReplicas"]
            whole = len(bound) == 2 and all(ready(pod) for pod in bound) and told == 1
            return (bound, waiting) if whole and len(waiting) == 2 else None

        bound, waiting = kube.wait("one serves, two pods wait", halves, PATIENCE)
        assert {label(pod, "replica") for pod in bound} != {
            label(pod, "replica") for pod in waiting
        }
        assert len({pod["spec"]["nodeName"] for pod in bound}) == 2
        assert holds_nothing(waiting)
        first, second = label(bound[0], "replica"), label(waiting[0], "replica")
        assert group(kube, "llama", first)["state"] == "Ready"
        assert set(group(kube, "llama", first)["nodes"]) == {
            pod["spec"]["nodeName"] for pod in bound
        }
        assert (group(kube, "llama", second)["state"], group(kube, "llama", second)["nodes"]) == (
            "Pending",
            [],
        )
        assert condition(kube, "llama", "Ready")[0] == "False"
        assert condition(kube, "llama", "Stalled")[0] == "False"
        assert condition(kube, "llama", "Available")[0] == "True"
        assert kube.get("llama")["status"]["readyReplicas"] == 1
        # The first is deleted by hand: the second was there before it comes back, and binds.
        for pod in bound:
            kube.core.delete_namespaced_pod(pod["metadata"]["name"], kube.namespace)
        kube.wait(
            "the second binds whole",
            lambda: all(homes(kube.pods("llama")).get(second, {0: ""}).values()),
            PATIENCE,
        )
        no_room(kube, "llama")
        kube.wait(
            "the second is ready, the first waits whole",
            lambda: (
                group(kube, "llama", second).get("state") == "Ready"
                and len(again := [p for p in kube.pods("llama") if label(p, "replica") == first])
                == 2
                and holds_nothing(again)
            ),
            PATIENCE,
        )
        # Scaled to the one that fits, all is well: the one that waits goes.
        kube.edit("llama", {"replicas": 1})
        kube.wait_ready("llama")
        assert {label(pod, "replica") for pod in kube.pods("llama")} == {second}
        assert history.bound_by_half() <= BIND_SECONDS + SLACK


@pytest.mark.parametrize("how", ["deleted", "scaled to zero"])
def test_of_two_deployments_the_second_binds_when_the_first_goes(
    running: Operator, kube: Kube, fleet: FleetMaker, how: str
) -> None:
    nodes_of(fleet, 3)
    kube.create("first", shape(8, 2))
    kube.wait_ready("first", PATIENCE)
    with watched(kube) as history:
        kube.create("second", shape(8, 2))
        no_room(kube, "second")
        assert holds_nothing(both(kube, "second"))
        if how == "deleted":
            kube.delete("first")
        else:
            kube.edit("first", {"replicas": 0})
        kube.wait_ready("second", PATIENCE)
        assert len(set(homes(kube.pods("second"))[0].values())) == 2
        assert history.incarnations("second", 0) == [1]


def test_a_foreign_pod_that_races_for_a_freed_node_splits_no_replica(
    running: Operator, kube: Kube, fleet: FleetMaker
) -> None:
    names = nodes_of(fleet, 3)
    for turn in range(3):
        other = f"other-{turn}"
        take(kube, "a", node=names[0])
        take(kube, "b", node=names[1])
        with watched(kube) as history:
            kube.create("llama", shape(8, 2))
            no_room(kube, "llama")
            # In the scheduler's queue before anything is free: it takes what comes first.
            take(kube, "filler", gpus=8)
            kube.wait(
                "the filler holds the free node",
                lambda: kube.raw(_pod(kube, "filler"))["spec"].get("nodeName"),
            )
            take(kube, other, gpus=8)
            free(kube, "a", "b", "filler")
            kube.wait_ready("llama", PATIENCE)
            kube.wait(
                "the other got its node",
                lambda other=other: kube.raw(_pod(kube, other))["spec"].get("nodeName"),
            )
            whole = set(homes(kube.pods("llama"))[0].values())
            assert len(whole) == 2
            assert kube.raw(_pod(kube, other))["spec"]["nodeName"] not in whole
            assert history.bound_by_half() <= BIND_SECONDS + SLACK
        kube.delete("llama")
        free(kube, other)
        kube.wait("all gone", lambda: not kube.pods(live=False), PATIENCE)


def _pod(kube: Kube, name: str) -> str:
    return f"/api/v1/namespaces/{kube.namespace}/pods/{name}"


def test_a_foreign_pod_that_gets_the_last_node_leaves_the_replica_with_nothing(
    running: Operator, kube: Kube, fleet: FleetMaker
) -> None:
    names = nodes_of(fleet, 2)
    take(kube, "a", node=names[0])
    take(kube, "b", node=names[1])
    with watched(kube) as history:
        kube.create("llama", shape(8, 2))
        no_room(kube, "llama")
        for turn in range(3):
            take(kube, f"next-{turn}", gpus=8)
            free(kube, "a" if turn == 0 else f"next-{turn - 1}")
            kube.wait(
                "the next one is bound",
                lambda turn=turn: kube.raw(_pod(kube, f"next-{turn}"))["spec"].get("nodeName"),
            )
            kube.wait(
                "nothing is held",
                lambda: len(pods := kube.pods("llama")) == 2 and holds_nothing(pods),
                PATIENCE,
            )
        free(kube, "b", "next-2")
        kube.wait_ready("llama", PATIENCE)
        assert history.bound_by_half() <= BIND_SECONDS + SLACK


def test_a_build_that_takes_one_gpu_keeps_a_replica_out_whole_and_lets_it_in_when_done(
    running: Operator, kube: Kube, fleet: FleetMaker, player: PlayerControl
) -> None:
    nodes_of(fleet, 2)
    build = hanging_build(kube, player)
    with watched(kube) as history:
        kube.create("llama", shape(8, 2))
        said = no_room(kube, "llama")
        assert "15 free, largest free block 8 GPUs on one node, 1 node has room" in said["message"]
        assert holds_nothing(both(kube, "llama"))
        player.remove(build)
        kube.wait_ready("llama", PATIENCE)
        assert history.bound_by_half() <= BIND_SECONDS + SLACK
        assert history.incarnations("llama", 0) == [1]


def test_with_room_for_one_and_a_half_a_build_of_another_takes_its_gpu_beside_the_one(
    running: Operator, kube: Kube, fleet: FleetMaker, player: PlayerControl
) -> None:
    nodes_of(fleet, 3)
    kube.create("first", shape(8, 2))
    kube.wait_ready("first", PATIENCE)
    with watched(kube) as history:
        kube.create("second", shape(8, 2))
        no_room(kube, "second")
        # Who waits holds nothing, so the build gets the GPU that the second cannot use.
        build = hanging_build(kube, player)
        kube.delete("first")
        kube.wait_ready("second", PATIENCE)
        assert history.bound_by_half() <= BIND_SECONDS + SLACK
    player.remove(build)
    kube.wait_ready("built", PATIENCE)


# Between planning and binding.


def test_what_stands_in_the_way_of_binding_releases_the_replica_whole_and_it_goes_elsewhere(
    running: Operator, kube: Kube, fleet: FleetMaker
) -> None:
    names = nodes_of(fleet, 3)
    # Anti-affinity of somebody else's pod is the scheduler's business, which no plan foresees: on
    # two nodes of three it stands in the way, so that whatever is planned meets it at least once.
    affinity = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {
                    "topologyKey": "kubernetes.io/hostname",
                    "namespaceSelector": {},
                    "labelSelector": {
                        "matchExpressions": [
                            {"key": "shardwright.dev/replica", "operator": "Exists"}
                        ]
                    },
                }
            ]
        }
    }
    take(kube, "lonely-0", node=names[0], gpus=0, affinity=affinity)
    take(kube, "lonely-1", node=names[1], gpus=0, affinity=affinity)
    with watched(kube) as history:
        kube.create("llama", shape(8, 2))
        first = kube.wait(
            "the first try is given up",
            lambda: told if (told := group(kube, "llama", 0)).get("restarts") else None,
            PATIENCE,
        )
        assert first["reason"] == "NotBoundInTime"
        assert first["avoidNodes"][0] in names[:2]
        assert f"was not bound to {first['avoidNodes'][0]}" in first["cause"]
        free(kube, "lonely-0", "lonely-1")
        kube.wait_ready("llama", PATIENCE)
        half = history.bound_by_half()
        assert half <= BIND_SECONDS + SLACK
        # Released whole: no pod of an older incarnation outlives the try.
        alive = {life.incarnation for life in history.of("llama") if life.gone is None}
        assert len(alive) == 1
        assert not set(group(kube, "llama", 0)["avoidNodes"]) & set(
            homes(kube.pods("llama"))[0].values()
        )


# Room appears.


@dataclass(frozen=True)
class Appears:
    """How room is kept and how it appears: both are told the third of three nodes."""

    keep: Callable[[Kube, str], None]
    give: Callable[[Kube, str], None]


def _nothing(kube: Kube, node: str) -> None:
    del kube, node


def add_again(kube: Kube, node: str) -> None:
    """The node that was deleted, of its pool of three."""
    name, _, index = node.rpartition("-")
    pool = {"name": name, "count": 3, "gpu": {"product": H100, "count": 8}}
    add_node(kube.api, Pool.model_validate(pool), int(index))


def not_ready(kube: Kube, node: str) -> None:
    """Have a kubelet say that it is not ready, and wait until it has."""
    set_ready(kube.api, node, ready=False)
    path = f"/api/v1/nodes/{node}"
    kube.wait(f"{node} is not ready", lambda: not ready(kube.raw(path)))


LOCK = Taint(key="example.com/maintenance")
APPEARS = {
    "a pod is deleted": Appears(
        lambda kube, node: take(kube, "other", node=node), lambda kube, _: free(kube, "other")
    ),
    "a pod finishes": Appears(
        lambda kube, node: take(kube, "other", node=node), lambda kube, _: finish(kube, "other")
    ),
    "a node is added": Appears(
        lambda kube, node: delete_node(kube.api, node),
        add_again,
    ),
    "a cordon is lifted": Appears(
        lambda kube, node: cordon(kube.api, node),
        lambda kube, node: cordon(kube.api, node, on=False),
    ),
    "a taint is taken off": Appears(
        lambda kube, node: taint(kube.api, node, LOCK),
        lambda kube, node: untaint(kube.api, node, LOCK.key),
    ),
    "a node is Ready again": Appears(
        not_ready,
        lambda kube, node: set_ready(kube.api, node, ready=True),
    ),
    "a GPU is well again": Appears(
        lambda kube, node: set_allocatable(kube.api, node, 7),
        lambda kube, node: set_allocatable(kube.api, node, 8),
    ),
}


@pytest.mark.parametrize("how", APPEARS)
def test_a_replica_that_waits_is_placed_as_soon_as(
    running: Operator, kube: Kube, fleet: FleetMaker, how: str
) -> None:
    names = nodes_of(fleet, 3)
    # One node is taken, one is free, and the third is what the replica waits for.
    take(kube, "holder", node=names[0])
    APPEARS[how].keep(kube, names[2])
    with watched(kube) as history:
        kube.create("llama", shape(8, 2))
        said = no_room(kube, "llama")
        assert "largest free block 8 GPUs" in said["message"]
        assert holds_nothing(both(kube, "llama"))
        APPEARS[how].give(kube, names[2])
        gave = time.monotonic()
        kube.wait(
            "all bound",
            lambda: [bool(life.bound) for life in history.of("llama")] == [True, True],
            SOON,
            every=0.05,
        )
        took = max(life.bound or 0.0 for life in history.of("llama")) - gave
        print(f"bound {took:.2f} s after {how}")  # noqa: T201 - the measured time
        kube.wait_ready("llama", PATIENCE)
        assert history.incarnations("llama", 0) == [1]
        assert {life.node for life in history.of("llama")} == set(names[1:])


def test_the_older_of_two_deployments_gets_the_last_node(
    running: Operator, kube: Kube, fleet: FleetMaker
) -> None:
    names = nodes_of(fleet, 2)
    take(kube, "a", node=names[0])
    take(kube, "b", node=names[1])
    kube.create("older", shape(8, 1))
    time.sleep(1.1)  # creation times are whole seconds
    kube.create("younger", shape(8, 1))
    for name in ("older", "younger"):
        said = no_room(kube, name)
        assert "needs 8 GPUs" in said["message"]
        assert "0 free, largest free block 0 GPUs" in said["message"]
        kube.wait("gated", lambda name=name: len(kube.pods(name)) == 1, PATIENCE)
        assert holds_nothing(kube.pods(name))
    free(kube, "a")
    kube.wait_ready("older", PATIENCE)
    assert holds_nothing(kube.pods("younger"))
    no_room(kube, "younger")
    assert condition(kube, "younger", "Stalled")[0] == "False"
    free(kube, "b")
    kube.wait_ready("younger", PATIENCE)


def test_one_that_waited_behind_another_is_placed_when_the_other_goes_away(
    running: Operator, kube: Kube, fleet: FleetMaker
) -> None:
    names = nodes_of(fleet, 2)
    take(kube, "a", node=names[0])
    kube.create("wide", shape(8, 2))
    no_room(kube, "wide")
    # What the wide one cannot use it does not hold: a small one goes past it.
    kube.create("small", shape(8, 1))
    kube.wait_ready("small", PATIENCE)
    assert holds_nothing(kube.pods("wide"))
    kube.delete("small")
    free(kube, "a")
    kube.wait_ready("wide", PATIENCE)


# A node goes bad under a replica.


def _dead(kube: Kube, node: str) -> None:
    kill_kubelet(kube.api, node)


def _evicted(kube: Kube, node: str) -> None:
    taint(kube.api, node, Taint(key="example.com/broken", effect="NoExecute"))


def _closed(kube: Kube, node: str) -> None:
    """Closed to new pods, which evicts nobody; then the pod there is deleted by hand."""
    taint(kube.api, node, LOCK)
    time.sleep(1)
    (there,) = [pod for pod in kube.pods("llama") if pod["spec"].get("nodeName") == node]
    assert ready(there)
    kube.core.delete_namespaced_pod(there["metadata"]["name"], kube.namespace)


# What happens to the node → (how, the reasons that status may give and the restarts they count).
GOES_BAD: dict[str, tuple[Callable[[Kube, str], None], dict[str, int]]] = {
    "cordoned": (lambda kube, node: cordon(kube.api, node), {"": 0}),
    "tainted NoSchedule and its pod deleted": (_closed, {"PodDeleted": 0}),
    "tainted NoExecute": (_evicted, {"Evicted": 0}),
    "NotReady": (lambda kube, node: set_ready(kube.api, node, ready=False), {"NodeLost": 1}),
    # Its peers may miss it before the node counts as dead.
    "dead": (_dead, {"NodeLost": 1, "PeerLost": 1}),
    "out of service": (
        lambda kube, node: taint(
            kube.api,
            node,
            Taint(key="node.kubernetes.io/out-of-service", value="shutdown", effect="NoExecute"),
        ),
        # The node controller evicts at the same moment: whichever is seen first is told.
        {"NodeLost": 1, "Evicted": 0},
    ),
    "deleted": (lambda kube, node: delete_node(kube.api, node), {"NodeLost": 1}),
}


@pytest.mark.parametrize("stage", [0, 1], ids=["the leader's node", "the worker's node"])
@pytest.mark.parametrize("event", GOES_BAD)
def test_a_replica_whose_node_goes_bad_leaves_whole_and_once_and_the_other_stays(
    running: Operator, kube: Kube, fleet: FleetMaker, event: str, stage: int
) -> None:
    happens, reasons = GOES_BAD[event]
    nodes_of(fleet, 6)
    kube.create("llama", shape(8, 2, 2))
    kube.wait_ready("llama", PATIENCE)
    before = kube.pods("llama")
    bad = homes(before)[0][stage]
    stays = uids(pod for pod in before if label(pod, "replica") == 1)
    leaves = uids(pod for pod in before if label(pod, "replica") == 0)
    with watched(kube) as history:
        happens(kube, bad)
        after, found = kube.wait_replaced("llama", leaves, PATIENCE)
        assert stays <= uids(after)
        # And that was all.
        assert not kube.wait_quietly(2, lambda: uids(kube.pods("llama")) != uids(after))
        known = {pod["metadata"]["name"] for pod in before}
        new = [life for life in history.of("llama") if life.name not in known]
        assert len(new) == 2
        assert bad not in {life.node for life in new}
        assert len({life.node for life in new}) == 2
        assert history.bound_by_half() <= BIND_SECONDS + SLACK
        status = found["status"]
        assert status["readyReplicas"] == 2
        groups = {one["index"]: one for one in status["groups"]}
        told = groups[new[0].replica]
        assert told["reason"] in reasons
        assert told["restarts"] == reasons[told["reason"]]
        assert set(told["nodes"]) == {life.node for life in new}
        if told["restarts"]:
            assert bad in told["cause"]
            assert told["avoidNodes"] == [bad]
        other = groups[1]
        assert (other["restarts"], other["reason"], other["cause"]) == (0, "", "")


def test_a_cordon_with_no_room_elsewhere_moves_nobody(
    running: Operator, kube: Kube, fleet: FleetMaker
) -> None:
    names = nodes_of(fleet, 3)
    kube.create("llama", shape(8, 2))
    kube.wait_ready("llama", PATIENCE)
    before = uids(kube.pods("llama"))
    used = homes(kube.pods("llama"))[0]
    (spare,) = set(names) - set(used.values())
    take(kube, "other", node=spare)
    cordon(kube.api, used[1])
    time.sleep(3)
    assert uids(kube.pods("llama")) == before
    assert condition(kube, "llama", "Ready")[0] == "True"
    # Two free nodes: the move is made as soon as it can be, not at the next poll.
    free(kube, "other")
    fleet([{"name": "more", "count": 1, "gpu": {"product": H100, "count": 8}}])
    pods, _ = kube.wait_replaced("llama", before, PATIENCE)
    assert used[1] not in {pod["spec"]["nodeName"] for pod in pods}


def test_the_disruption_budget_lets_one_replica_go_and_no_second(
    running: Operator, kube: Kube, fleet: FleetMaker
) -> None:
    nodes = nodes_of(fleet, 4)
    kube.create("llama", shape(8, 2, 2))
    kube.wait_ready("llama", PATIENCE)
    budgets = f"/apis/policy/v1/namespaces/{kube.namespace}/poddisruptionbudgets"

    def allowed() -> int:
        (budget,) = kube.raw(budgets)["items"]
        if budget["status"].get("observedGeneration") != budget["metadata"]["generation"]:
            return -1
        return int(budget["status"]["disruptionsAllowed"])

    kube.wait("one disruption is allowed", lambda: allowed() == 1)
    pods = kube.pods("llama")
    with watched(kube) as history:
        # No room until both were tried: the first replica cannot be whole again in between.
        for node in nodes:
            cordon(kube.api, node)
        evict(kube, next(pod for pod in pods if label(pod, "replica") == 0))
        for pod in pods:
            if label(pod, "replica") == 1:
                with pytest.raises(ApiException) as caught:
                    evict(kube, pod)
                assert caught.value.status == 429
        for node in nodes:
            cordon(kube.api, node, on=False)
        first = uids(pod for pod in pods if label(pod, "replica") == 0)
        now, found = kube.wait_replaced("llama", first, PATIENCE)
        assert uids(pods) - first <= uids(now)
        [told] = [one for one in found["status"]["groups"] if one["index"] == 0]
        assert (told["restarts"], told["reason"]) == (0, "Evicted")
        assert len(history.incarnations("llama", 0)) == 2
        assert len(history.incarnations("llama", 1)) == 1
    kube.wait("one disruption is allowed again", lambda: allowed() == 1)


def evict(kube: Kube, pod: Json) -> None:
    """Ask for an eviction as `kubectl drain` does."""
    name = pod["metadata"]["name"]
    meta = client.V1ObjectMeta(name=name, namespace=kube.namespace)
    kube.core.create_namespaced_pod_eviction(name, kube.namespace, client.V1Eviction(metadata=meta))


def test_a_gpu_that_falls_ill_under_a_running_replica_moves_it_only_when_its_pod_dies(
    running: Operator, kube: Kube, fleet: FleetMaker
) -> None:
    nodes_of(fleet, 3)
    kube.create("llama", shape(8, 2))
    kube.wait_ready("llama", PATIENCE)
    before = kube.pods("llama")
    ill = homes(before)[0][1]
    set_allocatable(kube.api, ill, 7)
    time.sleep(3)
    assert uids(kube.pods("llama")) == uids(before)
    assert condition(kube, "llama", "Ready")[0] == "True"
    assert condition(kube, "llama", "Accepted")[0] == "True"
    (worker,) = [pod for pod in before if label(pod, "stage") == 1]
    kube.core.delete_namespaced_pod(worker["metadata"]["name"], kube.namespace)
    pods, _ = kube.wait_replaced("llama", uids(before), PATIENCE)
    assert ill not in {pod["spec"]["nodeName"] for pod in pods}


@pytest.mark.parametrize("stage", [0, 1], ids=["the leader's node", "the worker's node"])
def test_where_no_other_node_is_left_a_replica_waits_for_its_rebooted_node(
    running: Operator, kube: Kube, fleet: FleetMaker, stage: int
) -> None:
    nodes_of(fleet, 2)
    kube.create("llama", shape(8, 2))
    kube.wait_ready("llama", PATIENCE)
    before = kube.pods("llama")
    rebooted = homes(before)[0][stage]
    with watched(kube) as history:
        set_ready(kube.api, rebooted, ready=False)
        kube.wait(
            "it waits",
            lambda: (
                len(now := kube.pods("llama")) == 2
                and not uids(now) & uids(before)
                and holds_nothing(now)
            ),
            PATIENCE,
        )
        kube.wait(
            "it says which node is missing",
            lambda: "1 node NotReady" in no_room(kube, "llama")["message"],
        )
        set_ready(kube.api, rebooted, ready=True)
        kube.wait_ready("llama", PATIENCE)
        assert history.bound_by_half() <= BIND_SECONDS + SLACK


def test_where_no_other_node_is_left_a_crashed_replica_comes_back_on_its_own_nodes(
    running: Operator, kube: Kube, fleet: FleetMaker, player: PlayerControl
) -> None:
    nodes_of(fleet, 2)
    kube.create("llama", shape(8, 2))
    kube.wait_ready("llama", PATIENCE)
    crash = Rule(
        act=Act.CRASH,
        match=Match(namespace=kube.namespace, stage="1"),
        outcome="Environment",
        reason="RankDied",
    )
    player.add(crash)
    kube.wait("it crashed", lambda: player.hits(crash) == 1)
    kube.wait("the restart is told", lambda: _restarts(kube) == 1, PATIENCE)
    kube.wait_ready("llama", PATIENCE)


def test_each_replicas_status_tells_its_own_story(
    running: Operator, kube: Kube, fleet: FleetMaker, player: PlayerControl
) -> None:
    nodes_of(fleet, 7)
    kube.create("llama", shape(8, 2, 3))
    kube.wait_ready("llama", PATIENCE)
    before = {index: group(kube, "llama", index) for index in range(3)}
    crash = Rule(
        act=Act.CRASH,
        match=Match(
            deployment="llama",
            namespace=kube.namespace,
            stage="1",
            incarnation=str(before[1]["incarnation"]),
        ),
        outcome="Environment",
        reason="RankDied",
        message="rank 9 got signal 9",
    )
    player.add(crash)
    kube.wait("it crashed", lambda: player.hits(crash) == 1)
    told = kube.wait(
        "the restart is told",
        lambda: one if (one := group(kube, "llama", 1)).get("restarts") else None,
        PATIENCE,
    )
    assert told["restarts"] == 1
    assert told["reason"] == "RankDied"
    assert "rank 9 got signal 9" in told["cause"]
    assert before[1]["nodes"][1] in told["cause"]
    assert told["incarnation"] > max(one["incarnation"] for one in before.values())
    kube.wait_ready("llama", PATIENCE)
    after = {index: group(kube, "llama", index) for index in range(3)}
    assert after[0] == before[0]
    assert after[2] == before[2]
    assert after[1]["restarts"] == 1
    for index, stages in homes(kube.pods("llama")).items():
        assert after[index]["nodes"] == [stages[0], stages[1]]
    assert kube.get("llama")["status"]["readyReplicas"] == 3


def test_a_replica_that_comes_back_leaves_no_half_bound_group_behind(
    running: Operator, kube: Kube, fleet: FleetMaker, player: PlayerControl
) -> None:
    nodes_of(fleet, 4)
    player.add(
        Rule(
            act=Act.CRASH,
            match=Match(namespace=kube.namespace, stage="0", incarnation="[12]"),
            times=2,
            after_seconds=1.0,
            outcome="Environment",
            reason="RankDied",
        )
    )
    with watched(kube) as history:
        kube.create("llama", shape(8, 2, 2))
        kube.wait("two crashes", lambda: _restarts(kube) >= 2, PATIENCE)
        kube.wait_ready("llama", PATIENCE)
        assert history.bound_by_half() <= BIND_SECONDS + SLACK
        check_whole(history)


def _restarts(kube: Kube) -> int:
    return sum(item["restarts"] for item in kube.get("llama")["status"].get("groups", []))


def check_whole(history: History) -> None:
    """Every incarnation that ever had a node had one for each of its stages."""
    groups: dict[tuple[str, int, int], list[str]] = {}
    for life in history.of():
        groups.setdefault(life.group, []).append(life.node)
    for nodes in groups.values():
        assert all(nodes) or not any(nodes)
