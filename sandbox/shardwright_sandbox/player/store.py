"""What the player sees of the cluster: pods of ours, nodes, its orders."""

import threading
import time
from collections.abc import Callable

import structlog
from urllib3.exceptions import HTTPError

from shardwright_sandbox.player.view import PodView
from shardwright_sandbox.rest import GONE, Json, Rest, RestError
from shardwright_sandbox.stages import KUBELET_LABEL, KUBELET_RUNNING

_log = structlog.get_logger()
_PAUSE = 0.5


class Store:
    """Pods and nodes by name, kept by the watches. All methods are thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._pods: dict[str, PodView] = {}
        self._groups: dict[tuple[str, ...], set[str]] = {}
        self._nodes: dict[str, Json] = {}

    def put_pod(self, pod: PodView) -> None:
        """Keep the newest form of a pod."""
        with self._lock:
            self._pods[pod.uid] = pod
            if pod.serving:
                self._groups.setdefault(pod.group, set()).add(pod.uid)

    def drop_pod(self, pod: PodView) -> None:
        """Forget a pod."""
        with self._lock:
            self._pods.pop(pod.uid, None)
            members = self._groups.get(pod.group)
            if members is not None:
                members.discard(pod.uid)
                if not members:
                    del self._groups[pod.group]

    def pod(self, uid: str) -> PodView | None:
        """A pod by its uid."""
        with self._lock:
            return self._pods.get(uid)

    def members(self, pod: PodView) -> list[PodView]:
        """The pods of the same incarnation, itself included."""
        with self._lock:
            return [self._pods[uid] for uid in self._groups.get(pod.group, ())]

    def uids(self, *, node: str | None = None) -> list[str]:
        """All pods, or those on one node."""
        with self._lock:
            return [uid for uid, pod in self._pods.items() if node is None or pod.node == node]

    def keep_only(self, uids: set[str]) -> None:
        """Forget pods that a fresh list does not have."""
        with self._lock:
            for uid in set(self._pods) - uids:
                self.drop_pod(self._pods[uid])

    def put_node(self, node: Json) -> bool:
        """Keep a node; whether its kubelet came to life or died with that."""
        name = node["metadata"]["name"]
        with self._lock:
            before = self.alive(name)
            self._nodes[name] = node
            return before != self.alive(name)

    def drop_node(self, name: str) -> None:
        """Forget a node."""
        with self._lock:
            self._nodes.pop(name, None)

    def alive(self, node: str) -> bool:
        """Whether a node is there and its kubelet runs."""
        with self._lock:
            found = self._nodes.get(node)
        labels = found["metadata"].get("labels", {}) if found else {}
        return bool(labels.get(KUBELET_LABEL) == KUBELET_RUNNING)

    def product(self, node: str) -> str:
        """The GPU product of a node, empty if no label says it."""
        with self._lock:
            found = self._nodes.get(node)
        labels = found["metadata"].get("labels", {}) if found else {}
        return str(labels.get("nvidia.com/gpu.product", ""))


def follow(
    rest: Rest,
    path: str,
    stop: threading.Event,
    on_list: Callable[[list[Json]], None],
    on_event: Callable[[str, Json], None],
    **query: str,
) -> None:
    """List, then watch, for ever; lists anew when the watch cannot be continued."""
    while not stop.is_set():
        try:
            listed = rest.get(path, **query)
            on_list(listed.get("items", []))
            version = listed["metadata"]["resourceVersion"]
            while not stop.is_set():
                for event in rest.watch(path, stop, resourceVersion=version, **query):
                    _refuse_error(path, event)
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        on_event(event["type"], event["object"])
        except (RestError, HTTPError, OSError) as error:
            if not stop.is_set():
                _log.warning("watch ended, listing anew", path=path, error=str(error))
                time.sleep(_PAUSE)


def _refuse_error(path: str, event: Json) -> None:
    """A watch reports its end (history gone) as an event of its own kind."""
    if event["type"] == "ERROR":
        raise RestError("WATCH", path, GONE, str(event["object"].get("message")))
