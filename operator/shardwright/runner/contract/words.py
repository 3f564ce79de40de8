"""The words that both sides write alike: paths, environment, steps, outcomes, reasons."""

from __future__ import annotations

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
