"""One deployment's part of the world, and what a pass decides about it.

`Situation` is everything a pass may rest on, `Decision` everything it comes to: the next memory,
the intents to carry out, and the findings that status is written from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardwright.api.asked import AskedSpec
from shardwright.api.settings import Settings
from shardwright.api.spec import CommonSpec
from shardwright.api.status import LLMDeploymentStatus
from shardwright.observe.world import (
    ClaimView,
    DeploymentView,
    JobView,
    NodeView,
    PodView,
    Record,
)
from shardwright.plan.adapter_states import Adapters
from shardwright.plan.attempts import Chain
from shardwright.plan.fleets import Fleets
from shardwright.plan.gate import Verdict
from shardwright.plan.groups import Group
from shardwright.plan.inventory import Product
from shardwright.plan.memory import Memory
from shardwright.plan.revisions import Records, Revision
from shardwright.plan.rollout import Wish
from shardwright.resolved import Artifact, Resolved
from shardwright.runner.contract import AdaptersHeard, AdapterTable, StageLinks, Usage
from shardwright.runtimes.base import Refusal


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known at the start of a pass.

    `claims` and `missing_secrets` answer for names that the spec mentions; `revisions` are sorted
    by number; `pods` are the deployment's own, `jobs` all step Jobs of the claims that its
    revisions use. `fleet_lost`: most GPU nodes went at once. `move_possible`: asked only when a
    group sits on a cordoned node.
    """

    now: float
    jitter: float
    settings: Settings
    deployment: DeploymentView
    spec: AskedSpec | None
    spec_error: str
    spec_digest: str
    status: LLMDeploymentStatus
    claims: Mapping[str, ClaimView]
    missing_secrets: tuple[str, ...]
    revisions: tuple[Revision, ...]
    pods: tuple[PodView, ...]
    jobs: tuple[JobView, ...]
    job_pods: Mapping[str, tuple[PodView, ...]]
    records: Records
    nodes: Mapping[str, NodeView]
    fleet_lost: bool = False
    products: Mapping[str, Product] | None = None  # of `nodes`, when somebody counted them already
    fleets: Fleets | None = None  # of `nodes` for this spec, likewise
    # Links by stage that leaders told of, by the UID of their pods.
    links: Mapping[str, Mapping[int, StageLinks]] = field(default_factory=dict)
    # Adapters that leaders told of, likewise; and Secrets that are lacking for some adapters only.
    adapters: Mapping[str, AdaptersHeard] = field(default_factory=dict)
    missing_adapter_secrets: frozenset[str] = frozenset()
    version_given: bool = True  # whether the user wrote down the version that `spec` has
    # How leaders were used of late, as they told, likewise.
    usage: Mapping[str, Usage] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()  # revisions that this operator cannot read, and why

    @property
    def edit(self) -> str:
        """Changes whenever the user does something: generation and restartedAt."""
        restarted = self.deployment.restarted_at
        return f"{self.deployment.generation}{'@' if restarted else ''}{restarted}"

    def revision(self, name: str) -> Revision | None:
        """A revision by name."""
        return next((item for item in self.revisions if item.name == name), None)


# Intents: what a pass wants done, in words of this domain; `render` turns them into objects.


@dataclass(frozen=True, slots=True)
class MakeRevision:
    """Write down a new revision."""

    revision: Revision


@dataclass(frozen=True, slots=True)
class RaiseRevision:
    """An old wish came back: its revision becomes the newest."""

    revision: Revision
    number: int


@dataclass(frozen=True, slots=True)
class PruneRevision:
    """A revision that nothing names any more."""

    revision: Revision


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """Write down what is known of an artifact."""

    record: Record
    claim: ClaimView


@dataclass(frozen=True, slots=True)
class CreateStep:
    """Create the suspended Job of one attempt."""

    artifact: Artifact
    attempt: int
    spec: CommonSpec
    claim: ClaimView
    source_attempt: int = 0  # which attempt made what it works on
    also_attempts: tuple[int, ...] = ()  # and what it reads beside that
    leader: str = ""  # pod that a score asks


@dataclass(frozen=True, slots=True)
class AdoptStep:
    """Become an owner of a Job that another deployment created for the same key."""

    job: JobView


@dataclass(frozen=True, slots=True)
class DropStep:
    """Give up a Job: delete it when nobody else owns it."""

    job: JobView
    alone: bool


@dataclass(frozen=True, slots=True)
class PlaceStep:
    """Find a node for a suspended Job."""

    job: JobView
    artifact: Artifact
    avoid: tuple[str, ...]
    spec: CommonSpec


@dataclass(frozen=True, slots=True)
class CreatePods:
    """Create the gated pods of a group that do not exist yet."""

    wish: Wish
    resolved: Resolved
    stages: tuple[int, ...]
    serving: bool


@dataclass(frozen=True, slots=True)
class PlaceGroup:
    """Find nodes for all pods of a gated group."""

    group: Group
    wish: Wish
    resolved: Resolved
    candidate: bool


@dataclass(frozen=True, slots=True)
class FinishPlacement:
    """Lift the remaining gates of a placement that was begun."""

    group: Group


@dataclass(frozen=True, slots=True)
class LetServe:
    """Let a proven candidate's pods into the Service and the disruption budget."""

    group: Group


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete one pod; `grace` None keeps the pod's own grace period."""

    pod: PodView
    grace: int | None = None


@dataclass(frozen=True, slots=True)
class KeepChildren:
    """Services and the disruption budget as they should be."""

    minimum_available: int


@dataclass(frozen=True, slots=True)
class KeepAdapters:
    """The tables of adapters that leaders read, by revision; `first` is one of them."""

    tables: Mapping[str, AdapterTable]
    first: str


@dataclass(frozen=True, slots=True)
class TellAdapters:
    """Have a leader's kubelet look at the table now, not within a minute."""

    pod: PodView
    digest: str


Intent = (
    MakeRevision
    | RaiseRevision
    | PruneRevision
    | WriteRecord
    | CreateStep
    | AdoptStep
    | DropStep
    | PlaceStep
    | CreatePods
    | PlaceGroup
    | FinishPlacement
    | LetServe
    | DeletePod
    | KeepChildren
    | KeepAdapters
    | TellAdapters
)


@dataclass(frozen=True, slots=True)
class Findings:
    """What status is written from."""

    refusal: Refusal | None = None
    fetching: Chain | None = None  # the model's chain, while its facts are unknown
    target: Revision | None = None
    serving: Revision | None = None  # the newest that was proven; what is steered toward
    standing: tuple[Revision, ...] = ()  # with a replica that serves; newest last
    target_proven: bool = False
    chain: Chain | None = None  # the target's
    scoring: Chain | None = None  # scores that a replica of the target is asked for
    verdict: Verdict | None = None  # of the target's accuracy gate
    try_next: str = ""  # what its failed gate advises
    proof_failure: Record | None = None
    groups: tuple[Group, ...] = ()
    wishes: tuple[Wish, ...] = ()
    leaving: int = 0  # pods on their way out
    rebuild_reason: str = ""
    model: Record | None = None
    adapters: Adapters = field(default_factory=Adapters)
    better: str = ""  # a plan that has become possible and is not acted on

    @property
    def steps(self) -> tuple[Chain, ...]:
        """What is made or measured now, in the order in which it is told."""
        return tuple(
            chain for chain in (self.fetching, self.chain, self.scoring) if chain is not None
        )

    @property
    def answering(self) -> Revision | None:
        """What serves, as status shows it: the target as soon as one proven replica is ready.

        A revision that was proven before, and is asked for again, serves no sooner either.
        """
        names = {revision.name for revision in self.standing}
        for revision in (self.target if self.target_proven else None, self.serving):
            if revision is not None and revision.name in names:
                return revision
        return self.standing[-1] if self.standing else self.serving

    def to_be_proven(self, revision: str, group: Group | None) -> bool:
        """Whether a replica of this revision is the candidate: the target's, not let in yet."""
        return (
            self.target is not None
            and revision == self.target.name
            and not self.target_proven
            and not (group is not None and group.serving)
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """What a pass comes to."""

    memory: Memory
    remembered: bool  # memory changed: write status first, act in the next pass
    intents: tuple[Intent, ...]
    findings: Findings
    requeue: float | None = None
