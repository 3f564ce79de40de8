"""Which nodes a replica takes: the tightest domain that has room for all of it, filled from small.

A level is a node label; nodes that share its value form a domain, as with `topologyKey` in pod
affinity. A domain is chosen by the room it has for the whole replica and never by where its first
pod would fit best: that is how a leader ends up bound beside workers that can never join it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

NODE_LEVEL = -1


class Candidate(NamedTuple):  # one is made for each node of each placement: tuples are cheap
    """A node that may be taken.

    `slots` is how many stages fit, `free` its free GPUs, `sibling` whether another replica of the
    deployment is there, `domains` its value of every level, nearest first, "" where it lacks one.
    """

    name: str
    slots: int
    free: int
    sibling: bool
    domains: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """The node of every stage, and the level that holds them all.

    `level` is NODE_LEVEL when one node does, an index of the levels, or their number when no domain
    of any level could hold all stages.
    """

    nodes: tuple[str, ...]
    level: int
    domain: str


class _Domain(NamedTuple):
    """Candidates that share a level's value, with their sums, which are asked for often."""

    level: int
    name: str
    members: tuple[Candidate, ...]
    slots: int
    free: int
    siblings: int

    @classmethod
    def of(cls, level: int, name: str, members: Sequence[Candidate]) -> _Domain:
        return cls(
            level,
            name,
            tuple(members),
            sum(member.slots for member in members),
            sum(member.free for member in members),
            sum(member.sibling for member in members),
        )


def choose(candidates: Iterable[Candidate], stages: int, gpus_per_stage: int) -> Choice | None:
    """Nodes for all stages, or None when no choice of nodes holds them.

    The nearest level at which a single domain has room decides; there, domains are taken in which
    no node holds a sibling, if any do. Among the domains left, in this order: fewest siblings and
    nodes, stages that follow each other nearest, least left over, first name. The answer depends on
    the set of candidates only, never on their order.

    Args:
        candidates: Nodes with room for one stage or more; all with equally many levels.
        stages: How many stages there are.
        gpus_per_stage: For telling what a domain would have left over.
    """
    able = sorted((one for one in candidates if one.slots > 0), key=lambda one: one.name)
    if sum(one.slots for one in able) < stages:
        return None
    top = len(able[0].domains)
    for level in range(NODE_LEVEL, top + 1):
        domains = _domains(able, level, top, stages)
        strangers = [_without_siblings(domain) for domain in domains]
        fitting = [one for one in strangers if one.slots >= stages] or domains
        if fitting:
            return _best(fitting, stages, gpus_per_stage)
    raise AssertionError("all candidates together have room, so the widest level holds them")


def _domains(
    members: Sequence[Candidate], level: int, top: int, at_least: int = 1
) -> list[_Domain]:
    """The domains of a level with room for `at_least` stages; nodes without its label are in none.

    Level `top` is all of them together.
    """
    if level == NODE_LEVEL:
        return [
            _Domain(NODE_LEVEL, one.name, (one,), one.slots, one.free, int(one.sibling))
            for one in members
            if one.slots >= at_least
        ]
    if level == top:
        return [_Domain.of(top, "", members)]
    grouped: dict[str, list[Candidate]] = defaultdict(list)
    for member in members:
        if value := member.domains[level]:
            grouped[value].append(member)
    domains = (_Domain.of(level, name, group) for name, group in sorted(grouped.items()))
    return [domain for domain in domains if domain.slots >= at_least]


def _without_siblings(domain: _Domain) -> _Domain:
    if not domain.siblings:
        return domain
    return _Domain.of(domain.level, domain.name, [one for one in domain.members if not one.sibling])


def _best(fitting: Sequence[_Domain], stages: int, gpus_per_stage: int) -> Choice:
    """The best of the domains of one level that each hold all stages."""
    if fitting[0].level == NODE_LEVEL:
        one = min(fitting, key=_as_last)
        return Choice((one.name,) * stages, NODE_LEVEL, one.name)

    def rank(option: tuple[_Domain, list[Candidate]]) -> tuple[int, int, int, int, str]:
        domain, taken = option
        distinct = {one.name: one for one in taken}.values()
        return (
            sum(one.sibling for one in distinct),
            len(distinct),
            _distance(taken),
            domain.free - stages * gpus_per_stage,
            domain.name,
        )

    options = [(domain, taken) for domain in fitting for taken in _fillings(domain, stages)]
    domain, taken = min(options, key=rank)
    return Choice(tuple(one.name for one in taken), domain.level, domain.name)


def _fillings(domain: _Domain, stages: int) -> Iterator[list[Candidate]]:
    """Ways to fill a domain, each with the stages in an order that keeps neighbours near."""
    yield sorted(_arrange(domain, stages), key=_path)
    if any(one.slots > 1 for one in domain.members):
        # Stages may share nodes: the fewest nodes need not lie in the fewest inner domains.
        nodes = _domains(domain.members, NODE_LEVEL, domain.level)
        yield sorted(
            (part.members[0] for part, portion in _cover(nodes, stages) for _ in range(portion)),
            key=_path,
        )


def _arrange(domain: _Domain, stages: int) -> list[Candidate]:
    """Nodes for `stages` inside a domain that has room for them, in as few inner domains as may be.

    The tightest inner domain that holds all of them is taken if there is one; otherwise they are
    shared out over the next nearer level, and the same again within each part.
    """
    if domain.level == NODE_LEVEL:
        return [domain.members[0]] * stages
    for level in range(NODE_LEVEL, domain.level):
        if inner := _domains(domain.members, level, domain.level, stages):
            return _arrange(min(inner, key=_as_last), stages)
    taken: list[Candidate] = []
    for part, portion in _cover(_children(domain.members, domain.level - 1), stages):
        taken += _arrange(part, portion)
    return taken


def _children(members: Sequence[Candidate], level: int) -> list[_Domain]:
    """The parts of a domain one level nearer; nodes without that label go by the level below."""
    if level == NODE_LEVEL:
        return _domains(members, NODE_LEVEL, level + 1)
    parts = _domains(members, level, level + 1)
    lacking = [member for member in members if not member.domains[level]]
    return parts + (_children(lacking, level - 1) if lacking else [])


def _cover(parts: Sequence[_Domain], stages: int) -> list[tuple[_Domain, int]]:
    """Share `stages` out over the fewest parts, with what each is given.

    The largest go first, then the smallest that holds the rest, so that large ones stay whole where
    small ones do.
    """
    by_size = sorted(parts, key=_as_bulk)
    shares: list[tuple[_Domain, int]] = []
    while by_size[len(shares)].slots < stages:
        part = by_size[len(shares)]
        shares.append((part, part.slots))
        stages -= part.slots
    holding = [part for part in by_size[len(shares) :] if part.slots >= stages]
    return [*shares, (min(holding, key=_as_last), stages)]


def _as_last(domain: _Domain) -> tuple[int, int, int, str]:
    return domain.siblings, domain.slots, domain.free, domain.name


def _as_bulk(domain: _Domain) -> tuple[int, int, int, str]:
    return -domain.slots, domain.siblings, domain.free, domain.name


def _path(candidate: Candidate) -> tuple[str, ...]:
    """Widest level first, so that sorting keeps the nodes of a domain together at every level."""
    return (*reversed(candidate.domains), candidate.name)


def _distance(taken: Sequence[Candidate]) -> int:
    """Levels that consecutive stages are apart, summed: 0 on one node, 1 in the nearest domain."""
    return sum(_apart(one, two) for one, two in pairwise(taken))


def _apart(one: Candidate, two: Candidate) -> int:
    if one.name == two.name:
        return 0
    shared = (
        level
        for level, pair in enumerate(zip(one.domains, two.domains, strict=True), start=1)
        if pair[0] and pair[0] == pair[1]
    )
    return next(shared, len(one.domains) + 1)
