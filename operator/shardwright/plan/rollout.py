"""What should exist next: from the wish, what became of it, and the revisions, to the next wish.

The wish is a list of replicas, each with an incarnation and a revision; it stands in status, so
that a crash forgets nothing. This module only rewrites the wish: the next pass deletes what no wish
names and creates what a wish lacks. The rules, in order:

1. A broken group comes back whole: from its own revision while the target is unproven, from the
   serving one afterwards, after a backoff, elsewhere; a spent budget holds it.
2. An unproven target gets one candidate beside the serving groups (as soon as its artifacts are
   there), on spare GPUs; it counts neither as a replica nor as surge.
3. Otherwise old groups give way to new ones: at most `replicas + maxSurge` exist, and no more are
   taken down than `groups − (replicas − maxUnavailable) − new ones that are not ready`, unhealthy
   ones first, a ready one only while more than the minimum are ready.

One pass changes little: each rule that takes something down is decided on what is ready now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shardwright.api.settings import Timeouts
from shardwright.api.spec import Rollout
from shardwright.plan.breakage import Breakage, Fault
from shardwright.plan.groups import Group

HELD_LOG_CHARACTERS = 500
_OWN_FAULTS = frozenset({Fault.CRASH, Fault.PERMANENT, Fault.ARTIFACT, Fault.MEMORY})
CANDIDATE_CRASHES = 3  # a candidate that died so often for reasons of its own is a failed proof


@dataclass(frozen=True, slots=True)
class Wish:
    """One replica that should exist, and what is held against it."""

    index: int
    incarnation: int
    revision: str
    restarts: int = 0
    not_before: float = 0.0
    avoid: tuple[str, ...] = ()
    cause: str = ""
    reason: str = ""
    held: bool = False
    held_edit: str = ""


@dataclass(frozen=True, slots=True)
class Goal:
    """What the wish is steered toward.

    `target` is the newest revision, `serving` the newest proven one that was not rolled back (both
    by name, empty if none); `candidate_possible` says that the target's artifacts exist and that
    its proof has not failed for good.
    """

    replicas: int
    rollout: Rollout
    target: str
    serving: str
    target_proven: bool
    candidate_possible: bool
    proven: frozenset[str] = frozenset()  # every revision with a proof
    settled: bool = False  # a group of the target was ready at some time
    borrowed: bool = False
    edit: str = ""
    cordoned: frozenset[str] = frozenset()  # nodes that take no new pods
    move_possible: bool = False  # a group could be placed elsewhere on free GPUs


@dataclass(frozen=True, slots=True)
class Verdict:
    """The next wish, and what must be remembered beside it."""

    wishes: tuple[Wish, ...]
    incarnations: int  # highest number ever used
    failed_proof: Breakage | None = None  # the candidate failed for good
    rolled_back: Breakage | None = None  # a proven target's first new group spent its budget
    bad_artifact: Breakage | None = None  # files of this revision are not what they should be
    bad_revision: str = ""


def mend(
    wishes: Sequence[Wish],
    groups: Mapping[int, Group],
    goal: Goal,
    *,
    incarnations: int,
    now: float,
    jitter: float,
    timeouts: Timeouts,
) -> Verdict:
    """Rule 1: answer every broken group; whole groups and their wishes stay as they are.

    `jitter` in [0, 1) spreads the backoffs of many groups.
    """
    kept: list[Wish] = []
    failed: Breakage | None = None
    rolled: Breakage | None = None
    artifact: tuple[Breakage, str] | None = None
    for wish in wishes:
        group = groups.get(wish.index)
        breakage = group.breakage if group is not None else None
        if breakage is None:
            kept.append(_eased(wish, group, goal, now, timeouts))
            continue
        candidate = wish.revision == goal.target and not goal.target_proven
        if breakage.fault is Fault.ARTIFACT and artifact is None:
            artifact = (breakage, wish.revision)
        if candidate and _is_failed_proof(wish, breakage):
            failed = breakage
            continue
        incarnations += 1
        again = _again(wish, breakage, goal, incarnations, now, jitter, timeouts)
        spent = again.held or breakage.fault is Fault.PERMANENT
        if spent and _may_roll_back(wish, goal, groups):
            rolled = breakage
        kept.append(again)
    return Verdict(
        wishes=tuple(kept),
        incarnations=incarnations,
        failed_proof=failed,
        rolled_back=rolled,
        bad_artifact=artifact[0] if artifact else None,
        bad_revision=artifact[1] if artifact else "",
    )


def _eased(wish: Wish, group: Group | None, goal: Goal, now: float, timeouts: Timeouts) -> Wish:
    """Forgive: a held group after an edit, restarts after a long time of being ready."""
    if wish.held and wish.held_edit != goal.edit:
        return replace(wish, held=False, restarts=0, not_before=0.0, reason="", cause="")
    if until_forgiven(wish, group, now, timeouts) == 0:
        return replace(wish, restarts=0, avoid=(), cause="", reason="", not_before=0.0)
    return wish


def until_forgiven(wish: Wish, group: Group | None, now: float, timeouts: Timeouts) -> float | None:
    """Seconds until a ready group's restarts are forgiven, and nodes avoided for them taken again.

    None when there is nothing to forgive, or the group is not ready.
    """
    if not wish.restarts or group is None or not group.ready:
        return None
    since = max(pod.ready_changed or now for pod in group.pods)
    return max(0.0, since + timeouts.restart_reset_seconds - now)


def _is_failed_proof(wish: Wish, breakage: Breakage) -> bool:
    """A candidate lost to a node, an eviction or bad files has proven nothing either way.

    Nor has one that was given too little memory: with more of it the same engine may load.
    """
    if breakage.fault is Fault.PERMANENT:
        return True
    return breakage.fault is Fault.CRASH and wish.restarts + 1 >= CANDIDATE_CRASHES


def _again(
    wish: Wish,
    breakage: Breakage,
    goal: Goal,
    incarnation: int,
    now: float,
    jitter: float,
    timeouts: Timeouts,
) -> Wish:
    # While the target is unproven every group comes back as it was; afterwards as what serves.
    revision = goal.serving if goal.target_proven and goal.serving else wish.revision
    blameless = breakage.fault is Fault.EVICTED
    restarts = wish.restarts if blameless else wish.restarts + 1
    # Nodes that die and races for capacity are waited out; only its own deaths are held against it.
    held = restarts > timeouts.restart_budget and breakage.fault in _OWN_FAULTS
    delay = 0.0
    if not blameless:
        delay = min(
            timeouts.restart_backoff_max_seconds,
            timeouts.restart_backoff_seconds * 2 ** min(max(0, restarts - 1), 20),
        )
        delay *= 1 + jitter / 4
    # A node is avoided for as long as the wish stands, the last four of them: more would
    # shut a small pool out of its own nodes.
    fresh = [node for node in breakage.nodes if node]
    avoid = tuple(dict.fromkeys([*fresh, *wish.avoid]))[:4]
    return Wish(
        index=wish.index,
        incarnation=incarnation,
        revision=revision,
        restarts=restarts,
        not_before=now + delay if delay else 0.0,
        avoid=avoid,
        cause=_last_words(breakage) if held else breakage.cause,
        reason=breakage.reason,
        held=held,
        held_edit=goal.edit if held else "",
    )


def _last_words(breakage: Breakage) -> str:
    """The cause of a group that is held, with the end of its log: its pods go, this stays."""
    tail = breakage.log_tail[-HELD_LOG_CHARACTERS:]
    return f"{breakage.cause}; end of its log: {tail}" if tail else breakage.cause


def _may_roll_back(wish: Wish, goal: Goal, groups: Mapping[int, Group]) -> bool:
    """Whether a spent budget speaks against the revision: none of its groups was ever ready."""
    if wish.revision != goal.target or not goal.target_proven or goal.settled:
        return False
    return not any(group.ready for group in groups.values() if group.revision == goal.target)


def advance(
    wishes: Sequence[Wish],
    groups: Mapping[int, Group],
    goal: Goal,
    *,
    incarnations: int,
) -> tuple[tuple[Wish, ...], int]:
    """Rules 2 and 3: the next wish and the highest incarnation used."""
    board = _Board(list(wishes), groups, goal, incarnations)
    if goal.replicas == 0:
        board.wishes.clear()
    elif goal.target_proven or not goal.target:
        board.roll()
    else:
        board.prove()
    return tuple(sorted(board.wishes, key=lambda wish: wish.index)), board.incarnations


@dataclass(slots=True)
class _Board:
    """The wish while it is being rewritten."""

    wishes: list[Wish]
    groups: Mapping[int, Group]
    goal: Goal
    incarnations: int

    def ready(self, wish: Wish) -> bool:
        group = self.groups.get(wish.index)
        return group is not None and group.incarnation == wish.incarnation and group.ready

    def add(self, revision: str) -> None:
        taken = {wish.index for wish in self.wishes}
        free = next(number for number in range(len(taken) + 1) if number not in taken)
        self.incarnations += 1
        self.wishes.append(Wish(free, self.incarnations, revision))

    def serves(self, wish: Wish) -> bool:
        group = self.groups.get(wish.index)
        return group is not None and group.incarnation == wish.incarnation and group.serving

    def cordoned(self, wish: Wish) -> bool:
        group = self.groups.get(wish.index)
        return group is not None and any(node in self.goal.cordoned for node in group.nodes)

    @property
    def floor(self) -> int:
        """Replicas that must stay ready: one replica with surge to spare never goes below one."""
        rollout = self.goal.rollout
        down = rollout.max_unavailable
        if rollout.max_surge > 0:
            down = min(down, max(0, self.goal.replicas - 1))
        return max(0, self.goal.replicas - down)

    def give_up(self, choice: list[Wish], count: int) -> None:
        """Take down up to `count` of `choice` in order; a ready one only above the floor."""
        ready = sum(self.ready(wish) for wish in self.wishes)
        for wish in choice:
            if count <= 0:
                return
            if self.ready(wish):
                if ready - 1 < self.floor:
                    return
                ready -= 1
            count -= 1
            self.wishes.remove(wish)

    def weakest(self, wishes: list[Wish]) -> list[Wish]:
        """The ones that serve least first, then the youngest index."""
        return sorted(wishes, key=lambda wish: (self.ready(wish), not wish.held, -wish.index))

    def roll(self) -> None:
        """Rule 3: toward `replicas` groups of the serving revision."""
        goal = self.goal
        if not goal.serving:
            return
        old = self.weakest([wish for wish in self.wishes if wish.revision != goal.serving])
        fresh = [wish for wish in self.wishes if wish.revision == goal.serving]
        if not old:
            self.settle()
            return
        limit = goal.replicas + goal.rollout.max_surge
        # A promoted candidate, or fewer replicas asked for in the middle of a rollout.
        unready_fresh = [wish for wish in self.weakest(fresh) if not self.ready(wish)]
        unready_old = [wish for wish in old if not self.ready(wish)]
        ready_old = [wish for wish in old if self.ready(wish)]
        self.give_up([*unready_old, *unready_fresh, *ready_old], len(self.wishes) - limit)
        left = [wish for wish in old if wish in self.wishes]
        unready = sum(not self.ready(wish) for wish in self.wishes if wish not in left)
        self.give_up(left, len(self.wishes) - self.floor - unready)
        current = sum(wish.revision == goal.serving for wish in self.wishes)
        for _ in range(min(limit - len(self.wishes), goal.replicas - current)):
            self.add(goal.serving)

    def settle(self) -> None:
        """All groups are current: their number may differ, or a node may have been cordoned."""
        goal = self.goal
        leaving = [wish for wish in self.wishes if self.cordoned(wish)]
        staying = [wish for wish in self.wishes if wish not in leaving]
        surplus = len(self.wishes) - goal.replicas
        if surplus < 0:
            for _ in range(-surplus):
                self.add(goal.serving)
        elif surplus > 0:
            if surplus == 1 and leaving and not all(self.ready(wish) for wish in staying):
                return  # a move under way: the old group goes when the new one is ready
            for wish in [*self.weakest(leaving), *self.weakest(staying)][:surplus]:
                self.wishes.remove(wish)
        elif leaving and goal.move_possible:
            # A cordon is not an edit: the move is made before it breaks, outside the surge.
            self.add(goal.serving)

    def prove(self) -> None:
        """Rule 2: serving groups stay as they are, the target gets its candidate."""
        goal = self.goal
        for wish in list(self.wishes):
            # A candidate of an older wish that never served.
            abandoned = wish.revision not in goal.proven and not self.serves(wish)
            if abandoned and wish.revision != goal.target:
                self.wishes.remove(wish)
        # A proven target is here since its files are gone: its replicas wait, none is a candidate.
        unproven = goal.target not in goal.proven
        candidates = [
            wish
            for wish in self.wishes
            if unproven and wish.revision == goal.target and not self.serves(wish)
        ]
        others = [wish for wish in self.wishes if wish not in candidates]
        for wish in candidates[1 if goal.candidate_possible else 0 :]:
            self.wishes.remove(wish)
        wanted = goal.replicas - (1 if goal.borrowed and goal.replicas else 0)
        surplus = len(others) - wanted
        for wish in self.weakest(others)[: max(0, surplus)]:
            self.wishes.remove(wish)
        if goal.serving:
            for _ in range(-surplus):
                self.add(goal.serving)
        if goal.candidate_possible and not candidates:
            self.add(goal.target)
