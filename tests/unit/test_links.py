"""TopologyVerified: what ranks talk over is measured, kept with its incarnation, and told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from tests.golden import specs
from tests.support import passes

from shardwright.api.settings import Settings
from shardwright.api.status import LinksStatus, LLMDeploymentStatus
from shardwright.plan.conditions import Outcome
from shardwright.plan.deployment import decide
from shardwright.plan.links import links_of, summary, unheard
from shardwright.plan.report import report
from shardwright.plan.situation import Situation
from shardwright.resolved import Resolved
from shardwright.runner.contract import ContractError, StageLinks, links_heard

NVLINK, RDMA = "NVLink", "RDMA"
TWO_STAGES = specs.spec(parallelism={"tensor": 8, "pipeline": 2})
ON_FABRIC = specs.spec(
    parallelism={"tensor": 8, "pipeline": 2}, pod={"fabricProfile": "infiniband"}
)
ONE_RANK = specs.spec(parallelism={"tensor": 1, "pipeline": 1})
GOOD = {0: StageLinks(NVLINK, RDMA), 1: StageLinks(NVLINK, RDMA)}


def situation(
    resolved: Resolved,
    links: Mapping[str, Mapping[int, StageLinks]],
    *,
    replicas: int = 1,
    kept: LinksStatus | None = None,
    settings: Settings | None = None,
) -> Situation:
    """Replicas that serve; `kept` is what status remembers of replica 0."""
    revision = replace(passes.SERVING, resolved=resolved)
    pods = (
        passes.pod(stage, 3, replica, ip=f"10.1.{replica}.{stage}")
        for replica in range(replicas)
        for stage in range(resolved.pipeline)
    )
    wishes = [
        passes.WISH.model_copy(update={"index": index, "links": None if index else kept})
        for index in range(replicas)
    ]
    found = passes.situation(*pods, revision=revision, wishes=wishes)
    return replace(found, links=links, settings=settings or found.settings)


def status(found: Situation) -> LLMDeploymentStatus:
    return report(found, decide(found), Outcome())


def verified(found: Situation) -> tuple[str, str, str]:
    (said,) = [one for one in status(found).conditions if one.type == "TopologyVerified"]
    return said.status, said.reason, said.message


def test_ranks_on_what_they_were_placed_for_verify_the_topology() -> None:
    found = situation(specs.resolved(ON_FABRIC), {"uid-0-3-0": GOOD})
    state, reason, message = verified(found)
    assert (state, reason) == ("True", "LinksAsPlanned")
    assert "tensor ranks talk over NVLink, stages over RDMA" in message


def test_what_a_leader_told_is_kept_with_its_incarnation_and_is_not_asked_for_again() -> None:
    resolved = specs.resolved(ON_FABRIC)
    told = situation(resolved, {"uid-0-3-0": GOOD})
    kept = status(told).groups[0].links
    assert kept == LinksStatus(tensor=NVLINK, pipeline=RDMA)
    after_restart = situation(resolved, {}, kept=kept)
    assert status(after_restart).groups[0].links == kept
    assert verified(after_restart)[0] == "True"
    assert unheard(after_restart, decide(after_restart).findings) == ()


def test_what_an_older_incarnation_talked_over_says_nothing_of_this_one() -> None:
    found = situation(specs.resolved(ON_FABRIC), {}, kept=LinksStatus(tensor=NVLINK))
    (group,) = decide(found).findings.groups
    assert links_of(found, group) == LinksStatus(tensor=NVLINK)
    assert links_of(found, replace(group, incarnation=4)) is None
    assert links_of(found, replace(group, index=1)) is None


def test_only_leaders_of_groups_that_serve_are_asked() -> None:
    found = situation(specs.resolved(TWO_STAGES), {"uid-1-3-0": GOOD}, replicas=3)
    pods = tuple(replace(one, ready=False) if one.uid == "uid-2-3-1" else one for one in found.pods)
    found = replace(found, pods=pods)
    asked = unheard(found, decide(found).findings)
    assert [one.uid for one in asked] == ["uid-0-3-0"]


def test_a_single_rank_has_no_links_to_verify() -> None:
    found = situation(specs.resolved(ONE_RANK), {})
    assert unheard(found, decide(found).findings) == ()
    assert "TopologyVerified" not in {one.type for one in status(found).conditions}


def test_switched_off_nobody_is_asked_and_nothing_is_said() -> None:
    found = situation(specs.resolved(TWO_STAGES), {}, settings=Settings(read_links=False))
    assert unheard(found, decide(found).findings) == ()
    assert "TopologyVerified" not in {one.type for one in status(found).conditions}


def test_a_leader_that_has_not_answered_leaves_it_unknown_and_says_what_to_allow() -> None:
    found = situation(specs.resolved(TWO_STAGES), {"uid-0-3-0": GOOD}, replicas=2)
    state, reason, message = verified(found)
    assert (state, reason) == ("Unknown", "LinksNotRead")
    assert message.startswith("1 of 2 leaders")
    assert "NetworkPolicy" in message


@pytest.mark.parametrize(
    ("links", "words"),
    [
        (
            {0: StageLinks("SharedMemory", RDMA, ("GPUs 0 and 1 talk through host memory",))},
            "replica 0: stage 0: GPUs 0 and 1 talk through host memory",
        ),
        ({0: StageLinks("Network", RDMA)}, "tensor ranks talk over Network"),
        ({0: StageLinks("PCIe", RDMA)}, "PCIe on nodes whose GPUs have NVLink"),
        (
            {1: StageLinks(NVLINK, "Socket", (), ("ranks 7 and 8 talk over TCP sockets",))},
            "stage 1: ranks 7 and 8 talk over TCP sockets",
        ),
    ],
)
def test_a_slower_pair_is_named_and_disturbs_nothing(
    links: Mapping[int, StageLinks], words: str
) -> None:
    found = situation(specs.resolved(ON_FABRIC), {"uid-0-3-0": {**GOOD, **links}})
    state, reason, message = verified(found)
    assert (state, reason) == ("False", "LinksDegraded")
    assert words in message
    assert decide(found).intents == decide(replace(found, links={"uid-0-3-0": GOOD})).intents


def test_sockets_are_what_was_asked_for_where_no_fabric_is_named() -> None:
    slow = StageLinks(NVLINK, "Socket", (), ("ranks 7 and 8 talk over TCP sockets",))
    found = situation(specs.resolved(TWO_STAGES), {"uid-0-3-0": {0: slow, 1: slow}})
    state, _, message = verified(found)
    assert state == "True"
    assert "stages over Socket" in message


def test_pcie_is_as_planned_where_there_is_no_nvlink() -> None:
    pcie = {0: StageLinks("PCIe", RDMA), 1: StageLinks("PCIe", RDMA)}
    found = situation(specs.resolved(TWO_STAGES), {"uid-0-3-0": pcie})
    plain = {
        name: replace(node, gpu=replace(node.gpu, nvlink_size=0))
        for name, node in found.nodes.items()
    }
    assert verified(replace(found, nodes=plain))[0] == "True"


def test_what_the_pods_cannot_tell_is_not_verified() -> None:
    unsure = {0: StageLinks(NVLINK, RDMA), 1: StageLinks("Unknown", RDMA)}
    state, reason, _ = verified(situation(specs.resolved(TWO_STAGES), {"uid-0-3-0": unsure}))
    assert (state, reason) == ("Unknown", "LinksUnknown")


def test_many_slow_pairs_are_counted() -> None:
    pairs = tuple(f"GPUs 0 and {one} talk through host memory" for one in range(1, 8))
    links = {0: StageLinks("SharedMemory", RDMA, pairs)}
    message = verified(situation(specs.resolved(TWO_STAGES), {"uid-0-3-0": links}))[2]
    assert " and 4 more" in message


def test_one_end_of_a_link_between_stages_is_enough_and_the_slowest_counts() -> None:
    stages = {
        0: StageLinks(NVLINK, "Unknown"),
        1: StageLinks(NVLINK, "RDMAWithoutGPUDirect"),
        2: StageLinks(NVLINK, RDMA),
    }
    assert summary(stages) == LinksStatus(tensor=NVLINK, pipeline="RDMAWithoutGPUDirect")


@pytest.mark.parametrize(
    "page",
    [
        None,
        [],
        {},
        {"links": []},
        {"links": {"0": {"tensor": "NVLink"}}},
        {"links": {"first": {"tensor": "NVLink", "pipeline": "RDMA"}}},
        {"links": {"0": None}},
        {"links": {"0": {"tensor": "NVLink", "pipeline": "RDMA", "slowTensor": 3}}},
    ],
)
def test_a_page_that_tells_no_links_is_refused(page: object) -> None:
    with pytest.raises(ContractError):
        links_heard(page)


def test_a_leader_s_words_take_no_more_of_status_than_this() -> None:
    """Whoever has the address of a leader's pod answers, and the words go into a status."""
    words = {"tensor": "x" * 10_000, "pipeline": "y" * 10_000}
    slow = {
        name: [f"{number} {'z' * 10_000}" for number in range(100)]
        for name in ("slowTensor", "slowPipeline")
    }
    (found,) = links_heard({"links": {"0": {**words, **slow}}}).values()
    assert (len(found.tensor), len(found.pipeline)) == (300, 300)
    assert [len(found.slow_tensor), len(found.slow_pipeline)] == [64, 64]
    assert {len(pair) for pair in (*found.slow_tensor, *found.slow_pipeline)} == {300}
