"""What the words at the end of a tool's log tell: one row a cause, tried in this order.

Matched against single lines of the end of a log, never against a whole log: an early warning is no
cause. Beside each row stands the public place where such lines were seen.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.runner.contract import (
    ENVIRONMENT,
    PERMANENT,
    REASON_ACCESS_DENIED,
    REASON_DISK_FULL,
    REASON_GPU_MISMATCH,
    REASON_NETWORK,
    REASON_OUT_OF_MEMORY,
    REASON_UNKNOWN_FLAG,
    REASON_UNSUPPORTED_GPU,
    TOOL_LM_EVAL,
    TOOL_PERPLEXITY,
)

# Words that also stand in warnings count only this near to the end.
NEAR_LINES = 60
HOST_MEMORY_SAID = (
    "{tool} ran out of host memory{limit}{how}; raise {memory} in the operator's settings, or "
    "choose a smaller model"
)
# Who only asks a server has what a fetch has.
_ASKING = frozenset({TOOL_LM_EVAL, TOOL_PERPLEXITY})


def memory_field(tool: str) -> str:
    """The field of the settings that gives a tool's container its host memory."""
    return "fetchResources.memory" if tool in _ASKING else "stepResources.memory"


@dataclass(frozen=True)
class Row:
    """One kind of cause.

    Attributes:
        outcome: Whether the same command may end otherwise elsewhere, or later.
        reason: The stable word.
        said: The message: `{tool}`, `{line}` (the line that tells), `{rooms}` (free space),
            `{limit}`, `{how}` and `{memory}` (of host memory).
        lines: What a line must match to tell it.
        near: It counts only near the end, and not for a tool that ended well: such a one has
            overcome what it warned of.
        code: The only exit status that it goes with; None for any.
    """

    outcome: str
    reason: str
    said: str
    lines: tuple[re.Pattern[str], ...]
    near: bool = True
    code: int | None = None

    def told_by(self, tail: Sequence[str], code: int) -> str:
        """The last line that tells this cause, or an empty string."""
        if self.near:
            tail = tail[-NEAR_LINES:] if code else ()
        if self.code not in (None, code):
            return ""
        found = ""
        for line in tail:
            if any(pattern.search(line) for pattern in self.lines):
                found = line.strip()
        return found


def _lines(*patterns: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern) for pattern in patterns)


ROWS = (
    # argparse: "prog: error: unrecognized arguments: --x", "argument --x: invalid choice".
    # click: "Error: No such option: --x", "Error: Invalid value for '--x'", "Missing option".
    # Documented at docs.python.org/3/library/argparse.html and click.palletsprojects.com; their
    # usage errors exit with 2, and nothing else of theirs does.
    Row(
        PERMANENT,
        REASON_UNKNOWN_FLAG,
        "{tool} does not take its command line: {line}; change the field that this option comes "
        "from, or engine.version or engine.image",
        _lines(
            r": error: (unrecognized arguments|ambiguous option|argument )",
            r": error: (the following arguments are req)",
            r": error: (one of the arguments|not allowed with argument|expected )",
            r"^\s*(│ )?(Error: )?(No such option|Invalid value for)",
            r"^\s*(│ )?(Error: )?Missing (option|argument|parameter)",
            r"^\s*(│ )?(Error: )?Got unexpected extra argument",
            r"^\s*(│ )?(Error: )?Option '?-\S+ (does not take|requires)",
        ),
        code=2,
    ),
    # hiyouga/LlamaFactory#5155: safetensors' form of it.
    Row(
        ENVIRONMENT,
        REASON_DISK_FULL,
        "{tool} found no space: {line}; {rooms}; make room on the claim or raise "
        "stepResources.ephemeralStorage in the operator's settings",
        _lines(
            r"No space left on device",
            r"\bENOSPC\b|\[Errno 28\]|os error 28\b|StorageFull",
            r"(?i)disk quota exceeded|\[Errno 122\]|os error 122\b",
        ),
        near=False,
    ),
    # pytorch/pytorch: torch.OutOfMemoryError (torch.cuda.OutOfMemoryError before 2.5).
    # NVIDIA/TensorRT-LLM#346: TensorRT's "Error Code 2: OutOfMemory (…)". Its warnings of memory
    # that a tactic did not get are no cause: the builder goes on without the tactic.
    # NVIDIA/TensorRT#840: "Cuda Error in allocate: 2 (out of memory)".
    Row(
        PERMANENT,
        REASON_OUT_OF_MEMORY,
        "{tool} ran out of GPU memory: {line}; lower engine.limits, raise parallelism.tensor, or "
        "choose another precision",
        _lines(
            r"CUDA out of memory",
            r"CUDA error: out of memory",
            r"torch(\.cuda)?\.OutOfMemoryError",
            r"Error Code 2: OutOfMemory",
            r"Cuda Error in \S+: 2 \(out of memory\)",
            r"CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation",
            r"CUDA runtime error .*out of memory",
            r"insufficient GPU memory",
        ),
        near=False,
    ),
    # Of the environment: the memory limit is in no key, and is raised under the same one.
    Row(
        ENVIRONMENT,
        REASON_OUT_OF_MEMORY,
        HOST_MEMORY_SAID,
        _lines(
            r"^MemoryError\b",
            r"\bstd::bad_alloc\b",
            r"numpy\.\S*_?ArrayMemoryError",
            r"DefaultCPUAllocator: can't allocate memory",
            r"(?i)\bcannot allocate memory\b|\[Errno 12\]",
            r"(?i)\bout of memory: killed process\b",
        ),
        near=False,
    ),
    # Not the product's fault but this node's: another node of the same product may do.
    Row(
        ENVIRONMENT,
        REASON_GPU_MISMATCH,
        "{tool} could not use the node's GPU: {line}; look at the node's driver and at nvidia-smi "
        "there",
        _lines(
            r"CUDA driver version is insufficient for CUDA runtime version",
            r"(?i)no CUDA-capable device is detected|Found no NVIDIA driver",
            r"(?i)CUDA unknown error|CUDA_ERROR_(NOT_INITIALIZED|SYSTEM_NOT_READY|NO_DEVICE|ECC_)",
            r"(?i)uncorrectable ECC error|GPU has fallen off the bus",
            r"(?i)\bXid\b.*\b(48|63|64|74|79|94|95)\b",
            r"(?i)system not yet initialized",
        ),
    ),
    # pytorch/pytorch#31285, NVIDIA/TensorRT-LLM#159; the second is torch.cuda's own warning.
    # NVIDIA/TensorRT#2176: an engine of another compute capability.
    Row(
        PERMANENT,
        REASON_UNSUPPORTED_GPU,
        "{tool} does not support this GPU: {line}; choose another gpu.product, "
        "quantization.weights or engine.version",
        _lines(
            r"no kernel image is available for execution on the device",
            r"with CUDA capability sm_\d+ is not compatible",
            r"(?i)(requires?|supported only on|only supported (on|for)|needs) .*"
            r"(compute capability|\bsm_?\d+|hopper|ada|blackwell)",
            r"(?i)(unsupported|not supported on|does not support) .*"
            r"(\bsm_?\d+|compute capability|this gpu)",
            r"(?i)unsupported (sm|arch(itecture)?|compute capability|gpu)\b",
            r"incompatible device, expecting compute",
        ),
    ),
    Row(
        PERMANENT,
        REASON_ACCESS_DENIED,
        "{tool} was denied access: {line}; mend the Secret or the permissions on the claim, then "
        "edit the spec or set the annotation shardwright.dev/restartedAt",
        _lines(
            r"\b(401|403) Client Error\b|GatedRepoError|gated repo",
            r"\[Errno 13\]|os error 13\b|(?i:permission denied)",
            r"\[Errno 30\]|os error 30\b|(?i:read-only file system)",
        ),
    ),
    # huggingface_hub and requests, for calibration data that are not on the claim.
    Row(
        ENVIRONMENT,
        REASON_NETWORK,
        "{tool} could not reach the network: {line}; put the calibration data on the claim, or let "
        "the pod reach where they come from",
        _lines(
            r"Max retries exceeded with url",
            r"(?i)temporary failure in name resolution|name or service not known",
            r"(?i)couldn't connect to '?https?://|LocalEntryNotFoundError|OfflineModeIsEnabled",
            r"(?i)\bconnection (refused|reset by peer|timed out|aborted)\b|network is unreachable",
            r"(?i)\b(ReadTimeout|ConnectTimeout|ConnectionError|RemoteDisconnected)\b",
            r"(?i)\bIncompleteRead\b",
            r"\b(429 Client|50[0234] Server) Error\b",
        ),
    ),
)

# A line that ends a Python traceback: "package.SomeError: what", or the bare name.
EXCEPTION = re.compile(
    r"^(?:\[\S+\]:?\s*|\S+\s*\|\s*)?"
    r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Failure)\b(?::|$)"
)
# What C++ tools print instead.
FATAL = re.compile(
    r"(?i)terminate called|what\(\):|\bfatal\b|\bsegmentation fault\b|assertion .*failed"
    r"|\[(?:trt|trt-llm|tensorrt-llm)\]\s*\[(?:e|error)\]|\[error\]|(?<!\w)error:"
)
