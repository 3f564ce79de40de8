"""What planning commands are asked: a manifest, nodes, a model; a live cluster is `cluster`'s.

Whatever is wrong is one `BadInputError`, whose lines name file, field, value and a fix.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from shardwright.api.problems import problems
from shardwright.api.settings import Settings
from shardwright.api.yamltext import load_all
from shardwright.observe.nodes import node_view
from shardwright.observe.projections import pod_view
from shardwright.observe.quantity import QuantityError
from shardwright.observe.world import NodeView, PodView
from shardwright.plan.capacity import usage
from shardwright.sizing.fleet import FleetError, fleet_of_nodes, fleet_of_yaml
from shardwright.sizing.question import Fleet, NodeGroup

_MOST_BYTES = 64 * 2**20


class BadInputError(ValueError):
    """Something that was given cannot be used; the message names it and a fix."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """A fleet with the names of its nodes.

    Attributes:
        fleet: What planning asks of.
        names: Names of the nodes by group, empty where a file only counted them.
        source: Where it comes from, for people.
    """

    fleet: Fleet
    names: Mapping[str, tuple[str, ...]]
    source: str


def read_text(path: Path) -> str:
    """A file's text.

    Raises:
        BadInputError: It cannot be read, is larger than 64 MiB, or is no UTF-8.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise BadInputError(f"{path}: larger than 64 MiB; is it the right file?")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInputError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise BadInputError(
            f"{path}: no UTF-8 text ({error.reason} at byte {error.start})"
        ) from error


def faults(error: ValidationError, model: type[BaseModel], source: str, root: str = "") -> str:
    """All that is wrong with what `source` gave to read as `model`, a line each."""
    return "\n".join(f"{source}: {said}" for said in problems(error, model, root))


def documents(text: str, source: str) -> list[Any]:
    """All documents of a YAML (or JSON) text that are not empty.

    Raises:
        BadInputError: It is no YAML.
    """
    try:
        return [found for found in load_all(text) if found is not None]
    except yaml.YAMLError as error:
        raise BadInputError(f"{source}: no YAML: {error}") from error


def nodes_of_file(path: Path) -> Nodes:
    """Nodes from a file: what `kubectl get nodes -o yaml` prints, or a list of kinds of nodes.

    Pods that stand beside Nodes take their GPUs.

    Raises:
        BadInputError: It is neither, or holds no node that can be used.
    """
    text, source = read_text(path), str(path)
    found = documents(text, source)
    bodies = list(_objects(found))
    if not bodies:
        try:
            fleet = fleet_of_yaml(text)
        except FleetError as error:
            raise BadInputError(
                f"{source}: {error}. Write `nodes: [{{product: NVIDIA-H100-80GB-HBM3, count: 2, "
                "gpus: 8}}]`, or give what `kubectl get nodes -o yaml` prints"
            ) from error
        return Nodes(fleet, {}, source)
    try:
        nodes = [node_view(body, Settings()) for body in bodies if body.get("kind") == "Node"]
        pods = [pod_view(body) for body in bodies if body.get("kind") == "Pod"]
    except (KeyError, TypeError, AttributeError, QuantityError) as error:
        raise BadInputError(
            f"{source}: holds a Node or Pod that cannot be read ({type(error).__name__}: {error}); "
            "use what `kubectl get nodes,pods -A -o yaml` prints"
        ) from error
    if not nodes:
        raise BadInputError(f"{source}: holds Kubernetes objects, and none of them is a Node")
    return checked(nodes_of_views(nodes, pods, source))


def _objects(found: Iterable[Any]) -> Iterable[dict[str, Any]]:
    """Kubernetes objects of the documents, lists opened."""
    for document in found:
        if not isinstance(document, dict) or "kind" not in document:
            continue
        if str(document["kind"]).endswith("List"):
            items = document.get("items")
            one = str(document["kind"]).removesuffix("List")
            for item in items if isinstance(items, list) else ():
                if isinstance(item, dict):
                    yield {"kind": one, **item}
        else:
            yield document


def nodes_of_views(nodes: Sequence[NodeView], pods: Sequence[PodView], source: str) -> Nodes:
    """The fleet of nodes, less what pods hold."""
    taken = {name: held.gpus for name, held in usage(pods, ()).items() if held.gpus}
    fleet = fleet_of_nodes(nodes, used=taken)
    names: dict[str, list[str]] = {}
    for node in sorted(nodes, key=lambda node: node.name):
        alone = fleet_of_nodes([node], used=taken).groups
        group = next((g for one in alone for g in fleet.groups if _alike(one, g)), None)
        if group is not None:
            names.setdefault(group.name, []).append(node.name)
    return Nodes(fleet, {name: tuple(found) for name, found in names.items()}, source)


def _alike(one: NodeGroup, group: NodeGroup) -> bool:
    """Whether a node of its own belongs to a group; its clique is only seen among the others."""
    return (
        one.product,
        one.gpus_per_node,
        one.free_gpus,
        one.nvlink_size,
        one.memory_bytes,
        one.compute,
        one.fabric,
    ) == (
        group.product,
        group.gpus_per_node,
        group.free_gpus,
        group.nvlink_size,
        group.memory_bytes,
        group.compute,
        group.fabric,
    )


def checked(nodes: Nodes) -> Nodes:
    """The nodes, of which some can be planned with.

    Raises:
        BadInputError: None has GPUs that can be; the message says why.
    """
    if not nodes.fleet.groups:
        why = "; ".join(nodes.fleet.skipped) or "it has no nodes with GPUs"
        raise BadInputError(f"{nodes.source}: no node can be used: {why}")
    return nodes
