"""The player: decides for each pod what happens next and when, and does it.

Nothing is remembered that the pod's status does not show, except when a
waiting time began: a restarted player carries on.
"""

import json
import threading
import time
from collections.abc import Callable

import structlog

from shardwright.runner.contract import (
    ContractError,
)
from shardwright_sandbox.config import Layout
from shardwright_sandbox.player import control
from shardwright_sandbox.player.control import Act, Orders, Rule
from shardwright_sandbox.player.deeds import Deeds
from shardwright_sandbox.player.store import Store, follow
from shardwright_sandbox.player.timer import Timer
from shardwright_sandbox.player.view import PodView
from shardwright_sandbox.rest import (
    MERGE_PATCH,
    Json,
    Rest,
)

_log = structlog.get_logger()
_FINAL = ("Succeeded", "Failed")
_Deed = Callable[[], None]


class Player:
    """Plays every pod of ours on nodes whose kubelet lives."""

    def __init__(self, rest: Rest, layout: Layout) -> None:
        self._rest = rest
        self._store = Store()
        self._orders = Orders()
        self._hits: dict[str, int] = {}
        self._since: dict[tuple[str, str], float] = {}
        self._orders_seen = ("", "")
        self._lock = threading.Lock()
        self._telling = threading.Lock()
        self._deeds = Deeds(rest, layout, self._store, self._rule)
        self._timer = Timer(self._act)

    def run(self, stop: threading.Event) -> None:
        """Play until `stop` is set."""
        # orders first: a pod must not be played before the rules are known
        follow_orders = threading.Thread(
            target=follow,
            args=(
                self._rest,
                f"/api/v1/namespaces/{control.NAMESPACE}/configmaps",
                stop,
                self._list_orders,
                self._on_orders,
            ),
            kwargs={"fieldSelector": f"metadata.name={control.NAME}"},
            daemon=True,
        )
        follow_nodes = threading.Thread(
            target=follow,
            args=(self._rest, "/api/v1/nodes", stop, self._list_nodes, self._on_node),
            daemon=True,
        )
        follow_orders.start()
        follow_nodes.start()
        follow(
            self._rest,
            "/api/v1/pods",
            stop,
            self._list_pods,
            self._on_pod,
            labelSelector="shardwright.dev/role",
        )

    # What happens in the cluster.

    def _list_pods(self, items: list[Json]) -> None:
        self._store.keep_only({item["metadata"]["uid"] for item in items})
        for item in items:
            self._on_pod("ADDED", item)

    def _on_pod(self, kind: str, raw: Json) -> None:
        pod = PodView(raw)
        if kind == "DELETED":
            self._store.drop_pod(pod)
            with self._lock:
                self._since = {k: v for k, v in self._since.items() if k[0] != pod.uid}
            return
        self._store.put_pod(pod)
        self._look_at(pod.uid)
        if pod.serving and pod.phase != "Pending":
            # its peers may have waited for it, or lost it
            for peer in self._store.members(pod):
                if peer.uid != pod.uid and (peer.leader or pod.phase == "Failed"):
                    self._look_at(peer.uid)

    def _list_nodes(self, items: list[Json]) -> None:
        for item in items:
            self._on_node("ADDED", item)

    def _on_node(self, kind: str, raw: Json) -> None:
        name = raw["metadata"]["name"]
        if kind == "DELETED":
            self._store.drop_node(name)
        elif self._store.put_node(raw):
            for uid in self._store.uids(node=name):
                self._look_at(uid)
                if (pod := self._store.pod(uid)) is not None and pod.serving:
                    for peer in self._store.members(pod):
                        self._look_at(peer.uid)

    def _list_orders(self, items: list[Json]) -> None:
        for item in items:
            self._on_orders("ADDED", item)

    def _on_orders(self, kind: str, raw: Json) -> None:
        data = raw.get("data") or {}
        seen = (data.get(control.MARK, ""), data.get(control.ORDERS, "{}"))
        if kind == "DELETED" or seen == self._orders_seen:
            return
        self._orders_seen = seen
        problem = self._orders.read(seen[1])
        _log.info("orders", problem=problem, rules=len(self._orders.control.rules))
        answer = {control.READ: data.get(control.MARK, ""), control.PROBLEM: problem}
        self._rest.patch(control.PATH, {"data": answer}, MERGE_PATCH)
        for uid in self._store.uids():
            self._look_at(uid)

    # What happens next.

    def _look_at(self, uid: str) -> None:
        pod = self._store.pod(uid)
        if pod is None:
            return
        if (due := self._next(pod)[0]) is not None:
            self._timer.set(uid, due)
        else:
            # no deed follows that would tell that a rule holds this pod still
            self._tell_hits()

    def _act(self, uid: str) -> None:
        """Do what is due for a pod, on a thread of the timer."""
        pod = self._store.pod(uid)
        if pod is None:
            return
        due, deed = self._next(pod)
        if due is None or deed is None:
            return
        if due > time.monotonic():
            self._timer.set(uid, due)
            return
        deed()
        self._tell_hits()

    def _next(self, pod: PodView) -> tuple[float | None, _Deed | None]:
        """When this pod's next deed is due, and the deed; (None, None) if nothing is to be done."""
        if (
            not pod.ours
            or pod.going
            or not pod.node
            or pod.phase in _FINAL
            or not self._store.alive(pod.node)
        ):
            return None, None
        delays = self._orders.control.delays
        if pod.phase == "Pending":
            if (rule := self._rule(pod, Act.NEVER_START)) is not None:
                if pod.waiting == rule.reason:
                    return None, None
                return time.monotonic(), lambda: self._deeds.wait_for(pod, rule)
            return self._after(pod, "start", delays.start), lambda: self._deeds.start(pod)
        if not pod.serving:
            if self._rule(pod, Act.HANG) is not None:
                return None, None
            seconds = delays.of_step(pod.label("step") or pod.label("role")) + self._extra(pod)
            return self._after(pod, "work", seconds), lambda: self._deeds.work(pod)
        return self._next_serving(pod)

    def _next_serving(self, pod: PodView) -> tuple[float | None, _Deed | None]:
        delays = self._orders.control.delays
        members = self._store.members(pod)
        if any(self._lost(member) for member in members if member.uid != pod.uid):
            return self._after(pod, "lost", delays.peer_lost), lambda: self._deeds.lose(pod)
        if (rule := self._rule(pod, Act.CRASH)) is not None and pod.ready:
            deed: _Deed = lambda: self._deeds.fail(pod, rule)  # noqa: E731 - a deed like the others
            return self._after(pod, "crash", rule.after_seconds), deed
        if pod.ready or self._rule(pod, Act.NEVER_READY) is not None:
            return None, None
        if pod.leader and not self._all_running(pod, members):
            return None, None
        seconds = (delays.ready if pod.leader else 0.0) + self._extra(pod)
        return self._after(pod, "ready", seconds), lambda: self._deeds.become_ready(pod)

    def _all_running(self, pod: PodView, members: list[PodView]) -> bool:
        """A leader answers only when all ranks have met."""
        stages = {member.label("stage") for member in members if member.phase == "Running"}
        try:
            wanted: int = getattr(pod.request(), "pipeline", 1)
        except ContractError:
            wanted = 1  # reported when the pod starts
        return len(stages) >= wanted

    def _lost(self, member: PodView) -> bool:
        """Whether the others of its group have lost this one for good."""
        if member.going:
            return False  # the operator takes the group down in its own order
        return member.phase == "Failed" or (
            member.phase == "Running" and not self._store.alive(member.node)
        )

    def _rule(self, pod: PodView, *acts: Act) -> Rule | None:
        with self._lock:
            return self._orders.rule(pod.uid, pod.facts(), *acts)

    def _extra(self, pod: PodView) -> float:
        rule = self._rule(pod, Act.SLOW)
        return rule.after_seconds if rule is not None else 0.0

    def _after(self, pod: PodView, what: str, seconds: float) -> float:
        """The time `seconds` after this pod was first seen waiting for `what`."""
        with self._lock:
            return self._since.setdefault((pod.uid, what), time.monotonic()) + seconds

    def _tell_hits(self) -> None:
        # one write after the other: an older count must not come last
        with self._telling:
            with self._lock:
                hits = self._orders.hits()
            if hits == self._hits:
                return
            self._rest.patch(control.PATH, {"data": {control.HITS: json.dumps(hits)}}, MERGE_PATCH)
            self._hits = hits
