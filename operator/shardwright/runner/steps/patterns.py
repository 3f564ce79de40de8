"""Words by which tools say why they failed.

Each row: what a line must match, and the public place where such a line was seen. Matched against
single lines of the end of a log, never against a whole log: an early warning is no cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Sign:
    """One kind of cause and the lines that tell it."""

    name: str
    lines: tuple[re.Pattern[str], ...]

    def last(self, tail: Iterable[str]) -> str:
        """The last line that tells this cause, or an empty string."""
        found = ""
        for line in tail:
            if any(pattern.search(line) for pattern in self.lines):
                found = line.strip()
        return found


def _sign(name: str, *patterns: str) -> Sign:
    return Sign(name, tuple(re.compile(pattern) for pattern in patterns))


# argparse (exit 2): "prog: error: unrecognized arguments: --x", "argument --x: invalid choice".
# click (exit 2): "Error: No such option: --x", "Error: Invalid value for '--x'", "Missing option".
# argparse and click are documented at docs.python.org/3/library/argparse.html and
# click.palletsprojects.com; their usage errors exit with 2, and nothing else of theirs does.
USAGE = _sign(
    "usage",
    r": error: (unrecognized arguments|ambiguous option|argument |the following arguments are req)",
    r": error: (one of the arguments|not allowed with argument|expected )",
    r"^\s*(│ )?(Error: )?(No such option|Invalid value for|Missing (option|argument|parameter))",
    r"^\s*(│ )?(Error: )?(Got unexpected extra argument|Option '?-\S+ (does not take|requires))",
)

# pytorch/pytorch: torch.OutOfMemoryError (torch.cuda.OutOfMemoryError before 2.5).
# NVIDIA/TensorRT-LLM#346: TensorRT's "Error Code 2: OutOfMemory (…)". Its warnings of memory that a
# tactic did not get are no cause: the builder goes on without the tactic.
# NVIDIA/TensorRT#840: "Cuda Error in allocate: 2 (out of memory)".
GPU_MEMORY = _sign(
    "GPU memory",
    r"CUDA out of memory",
    r"CUDA error: out of memory",
    r"torch(\.cuda)?\.OutOfMemoryError",
    r"Error Code 2: OutOfMemory",
    r"Cuda Error in \S+: 2 \(out of memory\)",
    r"CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation",
    r"CUDA runtime error .*out of memory",
    r"insufficient GPU memory",
)
HOST_MEMORY = _sign(
    "host memory",
    r"^MemoryError\b",
    r"\bstd::bad_alloc\b",
    r"numpy\.\S*_?ArrayMemoryError",
    r"DefaultCPUAllocator: can't allocate memory",
    r"(?i)\bcannot allocate memory\b|\[Errno 12\]",
    r"(?i)\bout of memory: killed process\b",
)
# pytorch/pytorch#31285, NVIDIA/TensorRT-LLM#159; the second is torch.cuda's own warning.
# NVIDIA/TensorRT#2176: an engine of another compute capability.
UNSUPPORTED_GPU = _sign(
    "unsupported GPU",
    r"no kernel image is available for execution on the device",
    r"with CUDA capability sm_\d+ is not compatible",
    r"(?i)(requires?|supported only on|only supported (on|for)|needs) .*"
    r"(compute capability|\bsm_?\d+|hopper|ada|blackwell)",
    r"(?i)(unsupported|not supported on|does not support) .*"
    r"(\bsm_?\d+|compute capability|this gpu)",
    r"(?i)unsupported (sm|arch(itecture)?|compute capability|gpu)\b",
    r"incompatible device, expecting compute",
)
# Not the product's fault but this node's: another node of the same product may do.
SICK_GPU = _sign(
    "the node's GPU",
    r"CUDA driver version is insufficient for CUDA runtime version",
    r"(?i)no CUDA-capable device is detected|Found no NVIDIA driver",
    r"(?i)CUDA unknown error|CUDA_ERROR_(NOT_INITIALIZED|SYSTEM_NOT_READY|NO_DEVICE|ECC_)",
    r"(?i)uncorrectable ECC error|GPU has fallen off the bus|\bXid\b.*\b(48|63|64|74|79|94|95)\b",
    r"(?i)system not yet initialized",
)
# hiyouga/LlamaFactory#5155: safetensors' form of it.
DISK = _sign(
    "disk",
    r"No space left on device",
    r"\bENOSPC\b|\[Errno 28\]|os error 28\b|StorageFull",
    r"(?i)disk quota exceeded|\[Errno 122\]|os error 122\b",
)
ACCESS = _sign(
    "access",
    r"\b(401|403) Client Error\b|GatedRepoError|gated repo",
    r"\[Errno 13\]|os error 13\b|(?i:permission denied)",
    r"\[Errno 30\]|os error 30\b|(?i:read-only file system)",
)
# huggingface_hub and requests, for calibration data that are not on the claim.
NETWORK = _sign(
    "network",
    r"Max retries exceeded with url",
    r"(?i)temporary failure in name resolution|name or service not known",
    r"(?i)couldn't connect to '?https?://|LocalEntryNotFoundError|OfflineModeIsEnabled",
    r"(?i)\bconnection (refused|reset by peer|timed out|aborted)\b|network is unreachable",
    r"(?i)\b(ReadTimeout|ConnectTimeout|ConnectionError|RemoteDisconnected|IncompleteRead)\b",
    r"\b(429 Client|50[0234] Server) Error\b",
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
