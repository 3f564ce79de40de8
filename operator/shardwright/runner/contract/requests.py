"""What the operator asks of a pod: a step, a sweep, or a part of a replica."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shardwright.runner.contract.adapters import AdapterServing
from shardwright.runner.contract.folders import (
    _KEY,
    _STAMP,
    ContractError,
    artifact_folder,
    purged_folder,
    trash_folder,
)
from shardwright.runner.contract.words import (
    CONTRACT_VERSION,
    LAUNCH_EACH,
    LAUNCH_MPI,
    MPI_TOOLS,
    STEPS,
    SWEEPS,
)
from shardwright.runner.measures import Page


def sweep_folders(request: SweepRequest) -> tuple[str, str, str]:
    """The folders of a sweep, relative to the claim's root: the artifact's, in the trash, purged.

    Raises:
        ContractError: When the request could name anything but an artifact's own folder. It is made
            from a ConfigMap, which others may write too.
    """
    step, key, stamp = request.step, request.key, request.stamp
    if request.action not in SWEEPS or step not in STEPS:
        raise ContractError(f"no sweep {request.action!r} of {step!r}")
    if not _KEY.fullmatch(key) or not _STAMP.fullmatch(stamp):
        raise ContractError(f"key {key!r} or stamp {stamp!r} of a sweep is malformed")
    named = (step, key, stamp)
    return artifact_folder(step, key), trash_folder(*named), purged_folder(*named)


@dataclass(frozen=True)
class Command:
    """One call of a vendor's tool.

    `tool` names the recorded contract that its flags were checked against; `{out}` in an argument
    stands for the temporary folder, `{scratch}` for the pod's scratch volume and, when serving,
    `{model}` for ServeRequest.model_folder, `{artifact}` for ServeRequest.artifact, `{stage}` and
    `{stages}` for this pod's pipeline stage and their number, `{leader}` for the DNS name of stage
    0, `{rank}` for the rank that runs it (of a stage's server, the first). In the step `score`,
    `{leader}` is the DNS name of the replica that is asked.
    """

    tool: str
    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Beside:
    """A server that a step starts in a container beside its own, and asks on this pod's address.

    It loads the folder that the step's `source` names, under `served_name`; `config` is written to
    SERVE_CONFIG. It is ready once `health_path` of its `port` answers 200.
    """

    command: Command
    served_name: str
    config: dict[str, Any] = field(default_factory=dict)
    health_path: str = "/health"
    port: int = 8000


@dataclass(frozen=True)
class StepRequest:
    """What a step Job's pod is asked to do: make the artifact `key` of `step` from `inputs`.

    The step `score` makes no files: `config` is written to SERVE_CONFIG for its tool, `leader` is
    the DNS name of the replica that it asks, empty when the tool loads the engine itself. With
    `beside` it asks a server of its own pod, whose container has the same request. `also` is what a
    step reads beside its source, to be checked like that.
    """

    step: str
    key: str
    inputs: dict[str, Any]
    commands: tuple[Command, ...]
    expected_files: tuple[str, ...]
    source: str = ""  # model: its uri; else the folder of the artifact it is made from
    timeout_seconds: int = 0
    deployment: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    leader: str = ""
    also: tuple[Also, ...] = ()
    beside: Beside | None = None
    contract: int = CONTRACT_VERSION


@dataclass(frozen=True)
class SweepRequest:
    """What a sweep's pod is asked to do with the folder of one artifact.

    Each action may be repeated at will, and is over in one rename as far as others can see. Trash:
    the folder goes to the trash; one that is there already, or is nowhere, is fine. Restore: it
    comes back; if it is in neither place the report is Permanent, ManifestMissing. Purge: the
    folder in the trash is renamed once more (`purged_folder`), so that nobody can take half of it
    back, and deleted; the artifact's own folder is never touched.
    """

    action: str
    step: str
    key: str
    stamp: str
    contract: int = CONTRACT_VERSION


@dataclass(frozen=True)
class Generation:
    """How a server is asked for one token over HTTP, where it does not speak OpenAI's way.

    `body` is sent as JSON to `path`; a good answer is a JSON object that has text under `answer`.
    """

    path: str
    body: dict[str, Any]
    answer: str


@dataclass(frozen=True)
class Counters:
    """Where a server counts its work, if not on its HTTP port: Prometheus' text on `port`.

    A series whose line begins with one of `series` changes only as requests are worked on.
    """

    port: int
    path: str
    series: tuple[str, ...]


@dataclass(frozen=True)
class Prepared:
    """What a server needs besides a command and one configuration file.

    `copies` are folders of the image by where they are put below REPOSITORY, `files` texts by
    where they are written, afterwards; placeholders as in Command. `followers` is the command of
    each rank but the first, where that is another one and Open MPI starts the ranks.
    """

    files: dict[str, str] = field(default_factory=dict)
    copies: dict[str, str] = field(default_factory=dict)
    followers: tuple[str, ...] = ()
    generation: Generation | None = None
    counters: Counters | None = None


@dataclass(frozen=True)
class Also:
    """An artifact that is loaded beside the served one, or read by a step beside its source.

    `artifact` is its folder, `key` what its manifest must say, made from `inputs`.
    """

    step: str
    key: str
    artifact: str
    inputs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ServeRequest:
    """What a serving pod is asked to do: check the artifact, meet its peers, start its ranks.

    `artifact` is the folder the runtime loads (engine, checkpoint or model) and `key` what its
    manifest must say, made from `inputs`; `model_folder` holds the tokenizer. Ranks of this pod are
    `stage × tensor … stage × tensor + tensor − 1` of `tensor × pipeline`.

    `channel_port` is where the runners of one incarnation talk to each other. `launch` is one of
    LAUNCHES, or empty. A peer that is silent for `peer_timeout_seconds` is lost; ranks that load
    without a sign of progress for `stall_seconds`, or that serve and answer no generation for
    `hang_seconds`, hang. `metrics` are the engine's pages that the leader reads, in order.
    """

    deployment: str
    replica: int
    incarnation: int
    stage: int
    tensor: int
    pipeline: int
    step: str
    key: str
    artifact: str
    model_folder: str
    served_name: str
    product: str
    command: Command
    config: dict[str, Any]
    peers: tuple[str, ...]  # DNS names, by stage
    peer_deadline_seconds: int = 1800
    drain_timeout_seconds: int = 120
    http_port: int = 8000
    runner_port: int = 8091
    channel_port: int = 8092
    launch: str = ""
    health_path: str = "/health"
    peer_timeout_seconds: int = 20
    stall_seconds: int = 900
    hang_seconds: int = 300
    inputs: dict[str, Any] = field(default_factory=dict)
    prepared: Prepared | None = None
    revision: str = ""
    metrics: tuple[Page, ...] = ()
    adapters: AdapterServing | None = None
    also: tuple[Also, ...] = ()
    contract: int = CONTRACT_VERSION

    @property
    def world_size(self) -> int:
        """Number of ranks of the group."""
        return self.tensor * self.pipeline

    @property
    def by_mpi(self) -> bool:
        """Whether stage 0 starts all ranks with `mpirun`; servers of one stage do it themselves."""
        if self.launch:
            return self.launch == LAUNCH_MPI and self.world_size > 1
        return self.pipeline > 1 and self._usual_launch == LAUNCH_MPI

    @property
    def _usual_launch(self) -> str:
        return LAUNCH_MPI if self.command.tool in MPI_TOOLS else LAUNCH_EACH
