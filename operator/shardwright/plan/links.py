"""What the ranks of a group talk over, and whether that is what the plan counts on.

The plan puts tensor ranks into one NVLink domain and stages on a fabric by labels and tables, which
are a prior. What the runners read from the driver and from NCCL is the measurement: it is kept in
status with the incarnation it belongs to, and never decides anything by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from shardwright.api.status import ConditionStatus, LinksStatus
from shardwright.observe.world import PodView
from shardwright.plan.groups import Group
from shardwright.plan.situation import Findings, Situation
from shardwright.runner.contract import (
    LINK_NETWORK,
    LINK_NONE,
    LINK_NVLINK,
    LINK_PCIE,
    LINK_RDMA,
    LINK_RDMA_HOST,
    LINK_SHARED_MEMORY,
    LINK_SOCKET,
    LINK_UNKNOWN,
    STATUS_PATH,
    StageLinks,
)

# The first that any stage shows is what the group has. A stage that does not know is not verified;
# of a link between stages it is enough that one end knows.
_TENSOR = (LINK_NETWORK, LINK_SHARED_MEMORY, LINK_PCIE, LINK_UNKNOWN, LINK_NVLINK, LINK_NONE)
_PIPELINE = (LINK_SOCKET, LINK_RDMA_HOST, LINK_RDMA, LINK_UNKNOWN, LINK_NONE)
_SLOW_LIMIT = 16
_TOLD = 3


class Verdict(NamedTuple):
    """The condition TopologyVerified before it has times."""

    status: ConditionStatus
    reason: str
    message: str


def summary(stages: Mapping[int, StageLinks]) -> LinksStatus:
    """The links of a whole group from those of its stages."""
    slow = [
        f"stage {stage}: {pair}"
        for stage, links in sorted(stages.items())
        for pair in (*links.slow_tensor, *links.slow_pipeline)
    ]
    return LinksStatus(
        tensor=_first(_TENSOR, [links.tensor for links in stages.values()]),
        pipeline=_first(_PIPELINE, [links.pipeline for links in stages.values()]),
        slow=slow[:_SLOW_LIMIT],
    )


def _first(order: tuple[str, ...], found: list[str]) -> str:
    return next((kind for kind in order if kind in found), LINK_UNKNOWN)


def links_of(situation: Situation, group: Group) -> LinksStatus | None:
    """What is known of a group: heard from its leader now, or kept in status."""
    heard = next(
        (situation.links[pod.uid] for pod in group.pods if pod.uid in situation.links), None
    )
    if heard is not None:
        return summary(heard)
    return next(
        (
            kept.links
            for kept in situation.status.groups
            if (kept.index, kept.incarnation) == (group.index, group.incarnation)
        ),
        None,
    )


def unheard(situation: Situation, findings: Findings) -> tuple[PodView, ...]:
    """Leaders that are to be asked: of groups that serve, have links, and have not told of them."""
    if not situation.settings.read_links:
        return ()
    return tuple(
        group.leader
        for group in findings.groups
        if group.ready
        and group.leader is not None
        and _several(situation, group)
        and links_of(situation, group) is None
    )


def _several(situation: Situation, group: Group) -> bool:
    revision = situation.revision(group.revision)
    return revision is not None and revision.resolved.world_size > 1


def topology(situation: Situation, findings: Findings) -> Verdict | None:
    """Whether ranks talk over what they were placed for; None where there is nothing to verify."""
    if not situation.settings.read_links:
        return None
    groups = [group for group in findings.groups if _several(situation, group)]
    target = findings.target
    if not groups and (target is None or target.resolved.world_size == 1):
        return None
    ready = [group for group in groups if group.ready]
    if not ready:
        return Verdict("Unknown", "NothingServes", "no replica of several ranks serves yet")
    known = {group.index: links_of(situation, group) for group in ready}
    told = {
        group.index: _slow(situation, group, links)
        for group in ready
        if (links := known[group.index]) is not None
    }
    slow = [f"replica {index}: {words}" for index, found in told.items() for words in found]
    if slow:
        more = f" and {len(slow) - _TOLD} more" if len(slow) > _TOLD else ""
        return Verdict(
            "False",
            "LinksDegraded",
            f"{'; '.join(slow[:_TOLD])}{more}; it serves, but slower than planned: look at the "
            "node's NVLink (nvidia-smi topo -m, fabric manager), at IOMMU and ACS, and at the "
            "fabric that spec.pod.fabricProfile names",
        )
    silent = [index for index, links in known.items() if links is None]
    if silent:
        return Verdict(
            "Unknown",
            "LinksNotRead",
            f"{len(silent)} of {len(ready)} leaders have not told what their ranks talk over; the "
            f"operator asks them at {STATUS_PATH} on the port `runner`, which a NetworkPolicy "
            "must allow",
        )
    kinds = [links for links in known.values() if links is not None]
    tensor = _first(_TENSOR, [links.tensor for links in kinds])
    pipeline = _first(_PIPELINE, [links.pipeline for links in kinds])
    if LINK_UNKNOWN in (tensor, pipeline):
        return Verdict(
            "Unknown",
            "LinksUnknown",
            f"{_words(tensor, pipeline)}: the image has no nvidia-smi, or NCCL_DEBUG is not INFO",
        )
    return Verdict(
        "True", "LinksAsPlanned", f"{_words(tensor, pipeline)} in {len(ready)} serving replicas"
    )


def _words(tensor: str, pipeline: str) -> str:
    parts = [] if tensor == LINK_NONE else [f"tensor ranks talk over {_word(tensor)}"]
    parts += [] if pipeline == LINK_NONE else [f"stages over {_word(pipeline)}"]
    return ", ".join(parts)


def _word(kind: str) -> str:
    return "what is not known" if kind == LINK_UNKNOWN else kind


def _slow(situation: Situation, group: Group, links: LinksStatus) -> list[str]:
    """What of a group is slower than its placement and its fabric profile let expect."""
    revision = situation.revision(group.revision)
    if revision is None:
        return []
    resolved = revision.resolved
    expected = resolved.fabric is not None
    found = [
        pair
        for pair in links.slow
        # Without a fabric profile nothing but TCP was asked for.
        if expected or links.pipeline != LINK_SOCKET or " ranks " not in pair
    ]
    if not found and links.tensor in (LINK_NETWORK, LINK_SHARED_MEMORY):
        found.append(f"tensor ranks talk over {links.tensor}")
    if not found and links.tensor == LINK_PCIE and _linked(situation, group):
        found.append("tensor ranks talk over PCIe on nodes whose GPUs have NVLink")
    return found


def _linked(situation: Situation, group: Group) -> bool:
    """Whether the group's nodes are known to have NVLink."""
    return any(
        situation.nodes[node].gpu.nvlink_size > 1 for node in group.nodes if node in situation.nodes
    )
