"""Whatever is killed in a serving group, it is whole again, and nothing of the old one is left.

Two replicas of two stages over three nodes: each case breaks the leader's pod of one and the
worker's of the other at once. A node that fails has just these two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import permutations

import pytest
from tests.real.site import Site
from tests.support.kube import ready
from tests.support.operator import Operator
from tests.support.real_recovery import RECOVERY, Members, Recovery, Timing, Watch, standing
from tests.support.watcher import Watcher, watching

from shardwright.api import names
from shardwright_sandbox.real.node import RealNode

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

NAME = "tiny"
LEADER, WORKER = names.ROLE_LEADER, names.ROLE_WORKER
GPUS = 8
# A runner that hears nothing from its peers for 20 s ends; the rest is for a busy machine.
ALONE_SECONDS = 120.0
ROUNDS = 5


@pytest.fixture(scope="module")
def timeouts() -> Mapping[str, float]:
    """Restarts are forgiven as soon as a group serves: each case is a first failure."""
    return {
        "bindSeconds": 30,
        "startSeconds": 60,
        "readySeconds": 90,
        "nodeDeadSeconds": 2,
        "restartBackoffSeconds": 0.5,
        "restartBackoffMaxSeconds": 1,
        "restartResetSeconds": 1,
        "restartBudget": 20,
    }


@dataclass(frozen=True, slots=True)
class Groups:
    """A deployment of two replicas and its nodes."""

    site: Site
    nodes: Mapping[str, RealNode]
    watcher: Watcher

    def settled(self) -> dict[int, Members]:
        """Wait until every replica serves and nothing is held against any node or replica."""
        self.site.kube.wait("every node is well", self._nodes_well, 120)
        self.site.kube.wait("all serve and all is forgiven", self._forgiven, 240)
        return standing(self.site, NAME)

    def chosen(self) -> tuple[Members, Members]:
        """Whose leader's pod to break and whose worker's, so that the replicas then share a node.

        Each is made anew without the node of its broken pod.
        """
        pairs = list(permutations(self.settled().values(), 2))
        for one, other in pairs:
            moved = self._without(one.nodes[0]), self._without(other.nodes[-1])
            if _chain(*moved) or _chain(*reversed(moved)):
                return one, other
        return pairs[0]

    def arranged(self) -> tuple[Members, Members]:
        """A replica whose worker is on the node of another one's leader, and that one."""
        low, middle, high = sorted(self.nodes)
        for _ in range(3):
            groups = list(self.settled().values())
            for one, other in permutations(groups, 2):
                if _chain(one.nodes, other.nodes):
                    return one, other
            homes = [one.nodes for one in groups]
            stays = next((index for index, home in enumerate(homes) if middle in home), 0)
            full = high if homes[stays] == (middle, high) else low
            self._move(groups[1 - stays], full)
        raise AssertionError(f"they do not share a node: {self.site.kube.state()}")

    def _move(self, moves: Members, full: str) -> None:
        """Have a replica made anew while a node has room for nobody."""
        self.nodes[full].set_unhealthy(*range(GPUS))
        self.site.kube.wait("the node shows no GPU", lambda: self._gpus(full) == 0, 120)
        self.site.kube.core.delete_namespaced_pod(moves.pods[0].name, self.site.kube.namespace)
        old = {pod.name for pod in moves.pods}
        self.site.kube.wait(
            "a new incarnation is bound",
            lambda: len(self._bound(moves.replica) - old) == len(old),
            120,
        )
        self.nodes[full].set_unhealthy()

    def _without(self, node: str) -> tuple[str, ...]:
        return tuple(sorted(set(self.nodes) - {node}))

    def _bound(self, replica: int) -> set[str]:
        return {
            str(pod["metadata"]["name"])
            for pod in self.site.kube.pods(NAME)
            if pod["metadata"]["labels"][names.LABEL_REPLICA] == str(replica)
            and pod["spec"].get("nodeName")
        }

    def _gpus(self, node: str) -> int:
        status = self.site.kube.raw(f"/api/v1/nodes/{node}")["status"]
        return int(status["allocatable"][names.GPU_RESOURCE])

    def _nodes_well(self) -> bool:
        return all(
            any(one["type"] == "Ready" and one["status"] == "True" for one in status["conditions"])
            and self._gpus(name) == GPUS
            for name in self.nodes
            for status in [self.site.kube.raw(f"/api/v1/nodes/{name}")["status"]]
        )

    def _forgiven(self) -> bool:
        kube = self.site.kube
        groups = kube.get(NAME)["status"].get("groups", [])
        pods = kube.pods(NAME, live=False)
        return (
            kube.condition(NAME, "Ready").get("status") == "True"
            and not any(group["restarts"] for group in groups)
            and len(pods) == sum(len(group["nodes"]) for group in groups)
            # What status says may be of before; what breaks next must be whole.
            and all(ready(pod) and "deletionTimestamp" not in pod["metadata"] for pod in pods)
        )


def _chain(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether the last stage of the one is on the node of the other's first."""
    return one[-1] == other[0]


@pytest.fixture(scope="module")
def groups(running: Operator, shared_site: Site) -> Iterator[Groups]:
    """The deployment, serving; afterwards every node is mended."""
    nodes = shared_site.sandbox.real_nodes()
    shared_site.create(NAME, 2, 2, replicas=2, engine={"backend": "PyTorch"})
    shared_site.ready(NAME)
    with watching(shared_site.sandbox.api, shared_site.kube.namespace) as watcher:
        yield Groups(shared_site, nodes, watcher)
    for node in nodes.values():
        mend(node)


def mend(node: RealNode) -> None:
    node.mend()
    node.start_containerd()
    node.start_kubelet()
    node.set_unhealthy()


# What is broken in one pod: given its group, stage and node.
Strike = Callable[[Members, int, RealNode], None]


def part(leader: str, worker: str) -> Strike:
    def strike(members: Members, stage: int, node: RealNode) -> None:
        members.part(worker if stage else leader, stage).kill()

    return strike


def container(members: Members, stage: int, node: RealNode) -> None:
    """The container runtime kills everything in the container."""
    node.ctr("tasks", "kill", "--all", "--signal", "SIGKILL", members.pods[stage].container)


PROCESSES: Mapping[str, Strike] = {
    "rank": part("rank", "rank"),
    "rank's parent": part("parent", "parent"),
    "MPI's launcher": part("mpirun", "daemon"),
    "runner": part("runner", "runner"),
    "container": container,
}
NODES: Mapping[str, Callable[[RealNode], None]] = {
    "kubelet": RealNode.stop_kubelet,
    "network": RealNode.cut,
    "containerd": RealNode.kill_containerd,
}
# Processes between nodes: what they leave is what a node's failure wants to find.
ORDER = ("rank", "rank's parent", "MPI's launcher", "kubelet", "runner", "network", "container")


@pytest.mark.parametrize("what", ORDER)
def test_a_group_that_lost_something_is_whole_again(
    what: str, groups: Groups, request: pytest.FixtureRequest
) -> None:
    lose(what, groups, request.node)


@pytest.mark.soak
@pytest.mark.parametrize("what", [*ORDER, "containerd"])
@pytest.mark.parametrize("number", range(ROUNDS))
def test_soak_a_group_that_lost_something_is_whole_again(
    number: int, what: str, groups: Groups, request: pytest.FixtureRequest
) -> None:
    lose(what, groups, request.node)


def lose(what: str, groups: Groups, item: pytest.Item) -> None:
    """Break something in a leader's pod and a worker's; both groups must be whole again."""
    if what in PROCESSES:
        break_processes(what, groups, item)
    else:
        break_node(what, groups, item)


def break_processes(what: str, groups: Groups, item: pytest.Item) -> None:
    """Break the leader's pod of one replica and the worker's of the other."""
    one, other = groups.chosen()
    broken = [Recovery(what, LEADER, one), Recovery(what, WORKER, other)]
    watch = Watch(groups.site, NAME, groups.watcher, broken)
    for recovery, stage in zip(broken, (0, 1), strict=True):
        PROCESSES[what](recovery.old, stage, groups.nodes[recovery.node])
    recovered(watch, item)
    for recovery, stage in zip(broken, (0, 1), strict=True):
        pod = recovery.old.pods[stage]
        assert f"pod {pod.name}" in recovery.cause, "another one is blamed"
        assert pod.node in recovery.cause


def break_node(what: str, groups: Groups, item: pytest.Item) -> None:
    """Break the node that has the worker of one replica and the leader of the other."""
    one, other = groups.arranged()
    name = other.nodes[0]
    broken = [Recovery(what, LEADER, other), Recovery(what, WORKER, one)]
    watch = Watch(groups.site, NAME, groups.watcher, broken)
    node = groups.nodes[name]
    try:
        NODES[what](node)
        recovered(watch, item)
        for recovery in broken:
            assert name in recovery.cause
        homes = {pod["spec"]["nodeName"] for pod in groups.site.kube.pods(NAME)}
        assert name not in homes
    finally:
        mend(node)
    groups.settled()


def recovered(watch: Watch, item: pytest.Item) -> None:
    """Both serve again, with a cause, and nothing of the old ones runs, cut off or not."""
    watch.until("it serves again", lambda one: one.served is not None)
    # Also where nobody can tell a pod that it is deleted: its runner misses its peers.
    watch.until("nothing old runs", lambda one: one.gone is not None, ALONE_SECONDS)
    assert watch.twice == set(), "two groups share a port or memory"
    item.user_properties += [(RECOVERY, asdict(Timing.of(one))) for one in watch.broken]
