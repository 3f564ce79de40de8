"""The contract between operator and runner: folders, keys, requests, manifests, reports.

Both sides import this module and nothing else of each other. It decides names and bytes only: which
folder an artifact lives in, how its key is computed from its inputs, what a request to a pod looks
like, what a finished artifact leaves behind, and how a pod's last words fit a termination message.
Each side reads its own version and the one before (`READABLE_VERSIONS`), so that an operator
upgrade rolls no pod. Standard library only, Python 3.9 and later.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from shardwright.runner.measures import Page

CONTRACT_VERSION = 1
READABLE_VERSIONS = (1,)

# Mount points and folders. `STORE` is where spec.storage.claimName is mounted in every pod.
STORE = "/shardwright/store"
SOURCE = "/shardwright/source"  # a pvc:// model on another claim, read-only
DRAFT_SOURCE = "/shardwright/draft"  # a pvc:// draft on a third claim, read-only
RUNNER_DIR = "/shardwright/runner"
RUNNER_FILE = "shardwright-runner.pyz"
SCRATCH = "/shardwright/scratch"
ROOT = "shardwright"
MANIFEST = "shardwright-manifest.json"
TRASH = "trash"

# The environment variable that holds a StepRequest or a ServeRequest as JSON.
ENV_REQUEST = "SHARDWRIGHT_REQUEST"
# Downward-API values that differ between pods of one group.
ENV_POD_NAME = "SHARDWRIGHT_POD_NAME"
ENV_NODE_NAME = "SHARDWRIGHT_NODE_NAME"
ENV_POD_UID = "SHARDWRIGHT_POD_UID"  # names the temporary folder of a step

# What the runner answers on its own port. Ready: a leader's server has answered a checked
# generation, a worker's ranks run. Live: the runner itself runs, nothing more. Status: a JSON
# object with the group's phase, its rank table and what its links are.
READY_PATH = "/readyz"
LIVE_PATH = "/healthz"
STATUS_PATH = "/status"

# What tensor ranks of a stage, or stages, talk over (StageLinks).
LINK_NVLINK = "NVLink"
LINK_PCIE = "PCIe"
LINK_SHARED_MEMORY = "SharedMemory"
LINK_NETWORK = "Network"
LINK_RDMA = "RDMA"
LINK_RDMA_HOST = "RDMAWithoutGPUDirect"
LINK_SOCKET = "Socket"
LINK_NONE = "None"  # one rank, or one stage: there is nobody to talk to
LINK_UNKNOWN = "Unknown"

# Where the Secret of an incarnation is mounted in its serving pods, and the key in it. The value
# is text of TOKEN_MIN_CHARS printable characters or more, drawn at random for this incarnation.
TOKEN_DIR = "/shardwright/token"  # noqa: S105 - where it is, not what
TOKEN_FILE = "token"  # noqa: S105 - as above
TOKEN_MIN_CHARS = 32

# Where the table of adapters is mounted in pods that can load some, and the file in it. The volume
# is optional, and the kubelet writes it anew while the pod runs.
ADAPTERS_DIR = "/shardwright/adapters"
ADAPTERS_FILE = "adapters.json"

# How the ranks of a group with several stages are started. MPI: stage 0 starts them all with
# `mpirun`. Each: every stage starts its own part, which finds the others by itself. Empty in a
# request means: by the tool of its command.
LAUNCH_MPI = "mpi"
LAUNCH_EACH = "each"
LAUNCHES = (LAUNCH_MPI, LAUNCH_EACH)
MPI_TOOLS = ("trtllm-llmapi-launch",)

# The flag of quantizers that names calibration data; below STORE they are on the claim.
CALIBRATION_FLAG = "--calib_dataset"

# Tools whose scores the runner can read (Command.tool of the step `score`).
TOOL_TRTLLM_EVAL = "trtllm-eval"
TOOL_LM_EVAL = "lm_eval"
TOOL_PERPLEXITY = "perplexity"  # the runner itself asks the server

# Where a pod's runner writes the `config` of its request: as JSON, which is YAML too.
SERVE_CONFIG = "{scratch}/config.yaml"

# Where it puts the folders and files of Prepared, and how large these may be. Texts stand in an
# environment variable, of which the kernel takes 128 KiB.
REPOSITORY = "{scratch}/repository"
FILES_LIMIT_BYTES = 80 * 1024
COPIES_LIMIT_BYTES = 16 * 2**20

# The kubelet cuts a termination message at 4,096 bytes without an error.
TERMINATION_LIMIT_BYTES = 4096

STEP_MODEL = "model"
STEP_CHECKPOINT = "checkpoint"
STEP_ENGINE = "engine"
STEP_PROOF = "proof"
STEP_ADAPTER = "adapter"
# Measures and leaves no files: what it finds is in its report, and then in a record.
STEP_SCORE = "score"
# Steps that leave a folder on the claim.
STEPS = (STEP_MODEL, STEP_CHECKPOINT, STEP_ENGINE, STEP_ADAPTER)
# Made by the fetcher in the operator's own image, from files that somebody else keeps.
FETCHED = (STEP_MODEL, STEP_ADAPTER)

# An input of a fetch: only a part of a model is asked for, which tells no facts of its own.
INPUT_PART = "part"
PART_HEADS = "heads"

# What a sweep's pod does with an artifact's folder. SWEEP is the role of these pods, the action
# their step.
SWEEP = "sweep"
SWEEP_TRASH = "Trash"  # take it out of the way, by one rename
SWEEP_RESTORE = "Restore"  # rename it back
SWEEP_PURGE = "Purge"  # delete what lies in the trash
SWEEPS = (SWEEP_TRASH, SWEEP_RESTORE, SWEEP_PURGE)

DONE = "Done"
PERMANENT = "Permanent"
ENVIRONMENT = "Environment"
OUTCOMES = (DONE, PERMANENT, ENVIRONMENT)

# Reasons a pod may report. Stable words: they reach conditions.
REASON_OUT_OF_MEMORY = "OutOfMemory"
REASON_UNKNOWN_FLAG = "UnknownFlag"
REASON_UNSUPPORTED_GPU = "UnsupportedGPU"
REASON_DISK_FULL = "DiskFull"
REASON_KILLED = "Killed"
REASON_TIMEOUT = "Timeout"
REASON_NETWORK = "NetworkFailed"
REASON_MODEL_NOT_FOUND = "ModelNotFound"
REASON_ACCESS_DENIED = "AccessDenied"
REASON_MANIFEST_MISSING = "ManifestMissing"
REASON_MANIFEST_MISMATCH = "ManifestMismatch"
REASON_GPU_MISMATCH = "GPUMismatch"
REASON_WORLD_MISMATCH = "WorldMismatch"
REASON_TOOL_FAILED = "ToolFailed"
REASON_PEER_LOST = "PeerLost"
REASON_RANK_FAILED = "RankFailed"
REASON_RANK_HUNG = "RankHung"
REASON_NO_SCORE = "NoScore"  # the tool ended well and told no score
REASON_DATASET_NOT_FOUND = "DatasetNotFound"
REASON_LEADER_GONE = "LeaderGone"  # the replica that was to be asked does not answer

# A serving pod that dies of one of these says that the artifact itself is bad (it is trashed and
# rebuilt); the others say that this node does not fit the artifact (the node is avoided).
ARTIFACT_FAULTS = frozenset({REASON_MANIFEST_MISSING, REASON_MANIFEST_MISMATCH})
NODE_FAULTS = frozenset({REASON_GPU_MISMATCH, REASON_WORLD_MISMATCH})


_KEY = re.compile(r"[0-9a-f]{16}")
_STAMP = re.compile(r"[0-9]{1,20}")
_PATH = re.compile(r"[A-Za-z0-9._/-]{1,256}")


class ContractError(ValueError):
    """A message of the other side cannot be read: wrong version, shape or type."""


def canonical(value: Any) -> str:
    """JSON with sorted keys and no blanks: the one byte form that hashes are taken of."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def artifact_key(step: str, inputs: Mapping[str, Any]) -> str:
    """The key of an artifact: 16 hex digits of SHA-256 over step and inputs.

    Inputs that are None are left out, so that a new input at its neutral value leaves old keys as
    they were. 64 bits are ample: a claim holds thousands of artifacts at most, and the manifest is
    compared input by input before anything is loaded.
    """
    kept = {name: value for name, value in inputs.items() if value is not None}
    return hashlib.sha256(canonical([step, kept]).encode()).hexdigest()[:16]


def artifact_folder(step: str, key: str) -> str:
    """Folder of a finished artifact, relative to the claim's root."""
    return f"{ROOT}/{step}/{key}"


def temporary_folder(step: str, key: str, pod_uid: str) -> str:
    """Folder a pod works in before it publishes by rename, relative to the claim's root."""
    return f"{ROOT}/{step}/.tmp-{key}-{pod_uid}"


def trash_folder(step: str, key: str, stamp: str) -> str:
    """Where a withdrawn artifact waits for its grace time, relative to the claim's root."""
    return f"{ROOT}/{TRASH}/{step}-{key}-{stamp}"


def purged_folder(step: str, key: str, stamp: str) -> str:
    """What a folder in the trash is called while it is deleted, relative to the claim's root."""
    return f"{ROOT}/{TRASH}/.purge-{step}-{key}-{stamp}"


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


def served_model(served_name: str) -> str:
    """Link to the artifact that a serving pod's runner makes before it starts the server.

    Servers name a model after the last part of the path they are given.
    """
    return f"{{scratch}}/served/{served_name}"


def inside(path: str) -> bool:
    """Whether a relative path names something below the folder that it is put into."""
    parts = path.split("/")
    return bool(_PATH.fullmatch(path)) and not {"", ".", ".."} & set(parts)


def engine_files(world_size: int) -> tuple[str, ...]:
    """Files that make a TensorRT-LLM engine folder complete: config.json alone proves nothing."""
    return ("config.json", *(f"rank{rank}.engine" for rank in range(world_size)))


def checkpoint_files(world_size: int) -> tuple[str, ...]:
    """Files that make a TensorRT-LLM checkpoint folder complete."""
    return ("config.json", *(f"rank{rank}.safetensors" for rank in range(world_size)))


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
class StepRequest:
    """What a step Job's pod is asked to do: make the artifact `key` of `step` from `inputs`.

    The step `score` makes no files: `config` is written to SERVE_CONFIG for its tool, `leader` is
    the DNS name of the replica that it asks, empty when the tool loads the engine itself.
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
class Adapter:
    """One adapter that a leader is to have loaded.

    `folder` is where its files are in the pod, `key` the artifact that they are; `in_place` means
    that they are somebody else's, of which no list of files exists. `number` is the same for the
    same artifact, and another for any other: what some runtimes know an adapter by.
    """

    name: str
    folder: str
    key: str
    number: int
    rank: int
    modules: tuple[str, ...]
    in_place: bool = False


@dataclass(frozen=True)
class AdapterTable:
    """All adapters that the leaders of a deployment are to have loaded, and no others."""

    adapters: tuple[Adapter, ...] = ()
    contract: int = CONTRACT_VERSION


def table_digest(text: str) -> str:
    """What names one table: 16 hex digits over its bytes."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class AdapterServing:
    """How a server is given adapters while it serves.

    `max_rank` and `modules` (by the adapters' names) are what it was built or started with. `load`
    takes {lora_name, lora_path} and `unload` {lora_name} by POST; `models` lists what is loaded,
    the base model first among them. Without `load` a request itself names the adapter's folder,
    and there is nothing to do but to see that it is there.
    """

    max_rank: int
    modules: tuple[str, ...]
    load: str = ""
    unload: str = ""
    models: str = "/v1/models"


@dataclass(frozen=True)
class Also:
    """An artifact that is loaded beside the served one, to be checked like it before that.

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


@dataclass(frozen=True)
class ModelFacts:
    """What a model's own config.json says; the operator's refusals and plans rest on it.

    Sizes are counts; `bytes` is the size of the fetched weights on disk, 0 when unknown.
    `quantization` is the method of a checkpoint that comes quantized ("gptq", "awq", "fp8", …) or
    empty. `experts` is 0 for dense models. `remote_code`: the folder brings Python code that its
    config, or its tokenizer's, asks to be executed (`auto_map`). `config` is the part of
    config.json that sizes follow from (`config_keys.pack_config`); empty when an earlier version
    fetched it or it is too long.
    """

    architecture: str
    model_type: str
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    dtype: str
    quantization: str = ""
    experts: int = 0
    bytes: int = 0
    remote_code: bool = False
    config: str = ""

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> ModelFacts:
        """Facts as another version wrote them: what it knows and we do not is passed over.

        Raises:
            TypeError: A field without a default is missing.
        """
        known = {item.name for item in fields(cls)}
        return cls(**{name: value for name, value in raw.items() if name in known})


@dataclass(frozen=True)
class AdapterFacts:
    """What an adapter's own files say of it; whether a base model can take it rests on this.

    `rank` is the highest of any module. `modules` are the last parts of the names of adapted
    projections (`q_proj`), `sizes` their inputs and outputs where all layers agree, `layers` the
    highest layer that is adapted plus one. `features` is whatever it has beyond low-rank matrices
    of projections: such an adapter is not served. `base` is the model it was trained on, by its
    own word; `bytes` is the size of its weights on disk.
    """

    rank: int
    alpha: float
    modules: tuple[str, ...]
    base: str = ""
    dtype: str = ""
    layers: int = 0
    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    bytes: int = 0

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> AdapterFacts:
        """Facts as another version wrote them: what it knows and we do not is passed over.

        Raises:
            TypeError, ValueError: A field is missing or of another form.
        """
        known = {item.name for item in fields(cls)}
        values = {name: value for name, value in raw.items() if name in known}
        for name in ("modules", "features"):
            values[name] = tuple(map(str, values.get(name, ())))
        values["sizes"] = {
            name: (int(size[0]), int(size[1])) for name, size in values.get("sizes", {}).items()
        }
        return cls(**values)


@dataclass(frozen=True)
class FileEntry:
    """Size in bytes and SHA-256 of one file of an artifact."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Written last into a finished artifact's folder: what it is, from what, made by what."""

    step: str
    key: str
    inputs: dict[str, Any]
    files: dict[str, FileEntry]
    tools: dict[str, str] = field(default_factory=dict)
    gpu: dict[str, str] = field(default_factory=dict)
    facts: ModelFacts | None = None
    commit: str = ""
    adapter: AdapterFacts | None = None
    contract: int = CONTRACT_VERSION

    @property
    def total_bytes(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.files.values())


@dataclass(frozen=True)
class StageLinks:
    """What the tensor ranks of one stage, and this stage to others, talk over.

    `tensor` is NVLink, PCIe, SharedMemory, Network, None (one rank) or Unknown; `pipeline` RDMA,
    RDMAWithoutGPUDirect, Socket, None (one stage) or Unknown. `slow_tensor` and `slow_pipeline`
    name each pair that has less than the others of its kind, or than it could have.
    """

    tensor: str
    pipeline: str
    slow_tensor: tuple[str, ...] = ()
    slow_pipeline: tuple[str, ...] = ()

    def told(self) -> dict[str, Any]:
        """As the status page has it."""
        return {
            "tensor": self.tensor,
            "pipeline": self.pipeline,
            "slowTensor": list(self.slow_tensor),
            "slowPipeline": list(self.slow_pipeline),
        }


def links_heard(page: Any) -> dict[int, StageLinks]:
    """Links by stage, from the object that a leader answers at STATUS_PATH.

    Raises:
        ContractError: It is no such object.
    """
    try:
        return {
            int(stage): StageLinks(
                tensor=str(told["tensor"]),
                pipeline=str(told["pipeline"]),
                slow_tensor=tuple(map(str, told.get("slowTensor", ()))),
                slow_pipeline=tuple(map(str, told.get("slowPipeline", ()))),
            )
            for stage, told in page["links"].items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ContractError(f"the status page tells no links: {error!r}") from error


# What a leader says of an adapter that is not as it is asked for.
ADAPTER_WAITING = "Waiting"  # its turn or its files have not come yet
ADAPTER_REFUSED = "Refused"  # outside of what this pod was built or started for
ADAPTER_FAILED = "Failed"  # the server did not take it; it is tried again
ADAPTER_LEAVING = "Leaving"  # nobody asks for it any more, and it is still there


@dataclass(frozen=True)
class AdaptersHeard:
    """What a leader has loaded: by name, of the table whose digest it names.

    `troubles` has (state, words) of each adapter that is asked for and not loaded, or the other
    way round.
    """

    table: str
    loaded: tuple[str, ...] = ()
    troubles: dict[str, tuple[str, str]] = field(default_factory=dict)

    def told(self) -> dict[str, Any]:
        """As the status page has it."""
        return {
            "table": self.table,
            "loaded": list(self.loaded),
            "troubles": {name: list(trouble) for name, trouble in self.troubles.items()},
        }


def adapters_heard(page: Any) -> AdaptersHeard:
    """Adapters from the object that a leader answers at STATUS_PATH.

    Raises:
        ContractError: It is no such object.
    """
    try:
        told = page["adapters"]
        return AdaptersHeard(
            table=str(told["table"]),
            loaded=tuple(map(str, told["loaded"])),
            troubles={
                str(name): (str(trouble[0]), str(trouble[1]))
                for name, trouble in told["troubles"].items()
            },
        )
    except (AttributeError, KeyError, TypeError, IndexError) as error:
        raise ContractError(f"the status page tells no adapters: {error!r}") from error


@dataclass(frozen=True)
class FirstCause:
    """What a pod that only lost its peers was told: who went first, and how.

    `rank` is −1 where no rank is meant. The end of that rank's log is the report's own `log_tail`.
    """

    stage: int
    rank: int
    outcome: str
    reason: str
    message: str


@dataclass(frozen=True)
class Report:
    """A pod's last words, in its termination message: at most 4,096 bytes of JSON.

    `first` goes with REASON_PEER_LOST, where the pod knows more than that. `score` is what the step
    `score` has measured, over `samples` of its task (0: not told).
    """

    outcome: str
    reason: str = ""
    message: str = ""
    step: str = ""
    key: str = ""
    commit: str = ""
    facts: ModelFacts | None = None
    tools: dict[str, str] = field(default_factory=dict)
    total_bytes: int = 0
    seconds: float = 0.0
    reused: bool = False
    rank: int = -1
    log_tail: str = ""
    first: FirstCause | None = None
    adapter: AdapterFacts | None = None
    score: float | None = None
    samples: int = 0
    contract: int = CONTRACT_VERSION


# Of a first cause's words, in a report that is too long.
_FIRST_CHARS = 500

Message = TypeVar(
    "Message", StepRequest, SweepRequest, ServeRequest, Manifest, Report, AdapterTable
)


def encode(message: Any) -> str:
    """A message as JSON of one line; what it says nothing of is left out."""
    return canonical({name: value for name, value in asdict(message).items() if value is not None})


def encode_report(report: Report) -> str:
    """A report cut to the kubelet's limit: the log's middle goes first, its last line never.

    The last lines hold the exception, which is what the reader needs.
    """
    text = encode(report)
    if len(text.encode()) <= TERMINATION_LIMIT_BYTES:
        return text
    bare = asdict(report)
    tail, message = report.log_tail, report.message
    bare["log_tail"] = ""
    if report.first is not None:
        bare["first"]["message"] = report.first.message[:_FIRST_CHARS]
    while True:
        bare["message"] = message
        room = TERMINATION_LIMIT_BYTES - len(canonical(bare).encode()) - 2
        if room >= 0 or not message:
            break
        message = message[: max(0, len(message) + room - 16)]
    while tail and len(canonical(tail).encode()) > room:
        surplus = len(canonical(tail).encode()) - room
        tail = tail[max(1, surplus // 6) :]
    bare["log_tail"] = tail
    return canonical(bare)


def read_json(text: str | bytes) -> Any:
    """JSON that a stranger may have written, as it can be written out again.

    Half characters (lone surrogates: of a name that is no UTF-8, or malice) become question marks;
    no server would take them.

    Raises:
        ValueError: It is no JSON, or nested too deep to be read.
    """
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("JSON that is nested too deep") from None
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.loads(json.dumps(found, ensure_ascii=False).encode(errors="replace"))
    return found


def decode(kind: type[Message], text: str) -> Message:
    """Read a message of the other side.

    Raises:
        ContractError: When the text is not JSON, the version is unknown or a field is missing.
    """
    try:
        raw = read_json(text) if kind is Report else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ContractError(f"{kind.__name__} is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise ContractError(f"{kind.__name__} is not a JSON object")
    version = raw.get("contract")
    if version not in READABLE_VERSIONS:
        raise ContractError(
            f"{kind.__name__} has contract version {version!r}; this side reads {READABLE_VERSIONS}"
        )
    known = {item.name for item in fields(kind)}
    values = {name: value for name, value in raw.items() if name in known}
    try:
        if kind is Report:
            _plain(Report, values)
            _plain(FirstCause, values.get("first") or {})
        return kind(**_shaped(kind, values))
    except (TypeError, KeyError, AttributeError, ValueError, IndexError) as error:
        raise ContractError(f"{kind.__name__} cannot be read: {error}") from error


_PLAIN = {"str": (str,), "int": (int,), "float": (int, float), "bool": (bool,)}


def _plain(kind: type[Any], values: Mapping[str, Any]) -> None:
    """Make sure that plain fields have their types: any container may leave what looks like one.

    Raises:
        TypeError: One has not.
    """
    for item in fields(kind):
        wanted = _PLAIN.get(str(item.type))
        value = values.get(item.name)
        if item.name not in values or wanted is None:
            continue
        if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
            raise TypeError(f"{item.name} is {type(value).__name__}, not {item.type}")
        if isinstance(value, float) and not math.isfinite(value):
            raise TypeError(f"{item.name} is {value}, not a number")


def _shaped(kind: type[Any], values: dict[str, Any]) -> dict[str, Any]:
    """Turn decoded lists and objects back into the tuples and dataclasses of `kind`."""
    shaped = dict(values)
    if "command" in shaped:
        shaped["command"] = _command(shaped["command"])
    if "commands" in shaped:
        shaped["commands"] = tuple(_command(item) for item in shaped["commands"])
    for name in ("expected_files", "peers"):
        if name in shaped:
            shaped[name] = tuple(shaped[name])
    if "metrics" in shaped:
        shaped["metrics"] = tuple(Page.read(item) for item in shaped["metrics"])
    if kind is Manifest:
        shaped["files"] = {name: FileEntry(**entry) for name, entry in values["files"].items()}
    if shaped.get("facts") is not None:
        shaped["facts"] = ModelFacts.read(shaped["facts"])
    if shaped.get("adapter") is not None:
        shaped["adapter"] = AdapterFacts.read(shaped["adapter"])
    if shaped.get("first") is not None:
        shaped["first"] = FirstCause(**shaped["first"])
    if kind is AdapterTable:
        shaped["adapters"] = tuple(_adapter(item) for item in values.get("adapters", ()))
    elif shaped.get("adapters") is not None:
        raw = shaped["adapters"]
        shaped["adapters"] = AdapterServing(**{**raw, "modules": tuple(raw["modules"])})
    if "also" in shaped:
        shaped["also"] = tuple(Also(**item) for item in shaped["also"])
    if shaped.get("prepared") is not None:
        shaped["prepared"] = _prepared(shaped["prepared"])
    return shaped


def _adapter(raw: Mapping[str, Any]) -> Adapter:
    known = {item.name for item in fields(Adapter)}
    values = {name: value for name, value in raw.items() if name in known}
    return Adapter(**{**values, "modules": tuple(raw["modules"])})


def _prepared(raw: Mapping[str, Any]) -> Prepared:
    generation, counters = raw.get("generation"), raw.get("counters")
    return Prepared(
        files=dict(raw.get("files", {})),
        copies=dict(raw.get("copies", {})),
        followers=tuple(raw.get("followers", ())),
        generation=(
            Generation(generation["path"], dict(generation["body"]), generation["answer"])
            if generation
            else None
        ),
        counters=(
            Counters(int(counters["port"]), counters["path"], tuple(counters["series"]))
            if counters
            else None
        ),
    )


def _command(raw: Mapping[str, Any]) -> Command:
    return Command(tool=raw["tool"], argv=tuple(raw["argv"]), env=dict(raw.get("env", {})))


def manifest_problem(manifest: Manifest, step: str, key: str, world_size: int) -> str:
    """Why this manifest is not the artifact asked for, or an empty string.

    `world_size` 0 skips the count of rank files (models, and checkpoints that are not split).
    """
    if (manifest.step, manifest.key) != (step, key):
        return f"manifest is of {manifest.step} {manifest.key}, asked for {step} {key}"
    if artifact_key(step, manifest.inputs) != key:
        return f"manifest's inputs hash to {artifact_key(step, manifest.inputs)}, not to {key}"
    if world_size and step in (STEP_CHECKPOINT, STEP_ENGINE):
        wanted = engine_files(world_size) if step == STEP_ENGINE else checkpoint_files(world_size)
        missing = sorted(set(wanted) - set(manifest.files))
        if missing:
            return f"{len(missing)} of {len(wanted)} files are missing, first {missing[0]}"
    return ""


def differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Each input that differs, with both values: those that a spec names before other keys."""

    def flat(inputs: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, value in inputs.items():
            if isinstance(value, Mapping):
                values.update(flat(value, f"{prefix}{name}."))
            elif value is not None:
                values[prefix + name] = value
        return values

    have, want = flat(found), flat(wanted)
    differ = [
        name for name in {**want, **have} if canonical(have.get(name)) != canonical(want.get(name))
    ]
    differ.sort(key=lambda name: (_SPOKEN.index(name) if name in _SPOKEN else len(_SPOKEN), name))
    return [f"{name} is {have.get(name)!r}, asked for {want.get(name)!r}" for name in differ]


# What a person compares first.
_SPOKEN = ("tensor", "pipeline", "product", "version")

_RANK = re.compile(r"^rank(\d+)\.(engine|safetensors)$")


def ranks_of(names: list[str]) -> list[int]:
    """Ranks whose files are among `names`, sorted."""
    found = (_RANK.match(name) for name in names)
    return sorted(int(match.group(1)) for match in found if match)
