"""The GPUs this container is said to have.

`NVIDIA_VISIBLE_DEVICES` holds the node's indices that the device plugin gave to the container, as
the real plugin's does; what the node's GPUs are like stands in `SHARDWRIGHT_STANDIN_GPU_*`. As with
the real runtime the container sees its devices renumbered from 0, and their UUIDs tell them apart
over all nodes.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
PRODUCT = "SHARDWRIGHT_STANDIN_GPU_PRODUCT"
COUNT = "SHARDWRIGHT_STANDIN_GPU_COUNT"
MEMORY = "SHARDWRIGHT_STANDIN_GPU_MEMORY_MIB"
COMPUTE = "SHARDWRIGHT_STANDIN_GPU_COMPUTE"
DRIVER = "SHARDWRIGHT_STANDIN_DRIVER"
LINK = "SHARDWRIGHT_STANDIN_LINK"
NICS = "SHARDWRIGHT_STANDIN_NICS"
NODE = "SHARDWRIGHT_STANDIN_NODE"
_NODE_OF_THE_POD = "SHARDWRIGHT_NODE_NAME"

DEFAULT_PRODUCT = "NVIDIA-H100-80GB-HBM3"
# Driver of the release notes that go with TensorRT-LLM 1.1's container (CUDA 13.0.2).
DEFAULT_DRIVER = "580.95.05"
LINKS = ("X", "SYS", "NODE", "PHB", "PXB", "PIX")

# Name as the driver prints it, memory in MiB, compute capability, by the label of GPU Feature
# Discovery (the name with its blanks turned to dashes, which cannot be turned back by rule).
KNOWN: Mapping[str, tuple[str, int, str]] = {
    "NVIDIA-A100-SXM4-80GB": ("NVIDIA A100-SXM4-80GB", 81920, "8.0"),
    "NVIDIA-B200": ("NVIDIA B200", 183359, "10.0"),
    "NVIDIA-H100-80GB-HBM3": ("NVIDIA H100 80GB HBM3", 81559, "9.0"),
    "NVIDIA-H200": ("NVIDIA H200", 143771, "9.0"),
    "NVIDIA-L40S": ("NVIDIA L40S", 46068, "8.9"),
}


class GPUError(ValueError):
    """The environment describes no GPUs; the message names the variable."""


@dataclass(frozen=True, slots=True)
class GPU:
    """One visible device; `index` in this container, `physical` on the node."""

    index: int
    physical: int
    product: str
    name: str
    memory_mib: int
    compute: str
    uuid: str

    @property
    def bus_id(self) -> str:
        """A PCI address that goes with the physical index."""
        return f"00000000:{0x10 + self.physical:02X}:00.0"


def visible(environment: Mapping[str, str]) -> tuple[GPU, ...]:
    """The devices of this container, in its own order; none when it was given none.

    Raises:
        GPUError: When a variable cannot be read, or an index is named that the node has not.
    """
    asked = environment.get(VISIBLE, "").strip()
    if asked in ("", "none", "void"):
        return ()
    count = _number(environment, COUNT, 8)
    physical = list(range(count)) if asked == "all" else [_index(word) for word in asked.split(",")]
    if wrong := [index for index in physical if index >= count]:
        raise GPUError(f"{VISIBLE}={asked} names GPU {wrong[0]}; the node has {count} ({COUNT})")
    product = environment.get(PRODUCT, DEFAULT_PRODUCT)
    name, memory, compute = KNOWN.get(product, (product.replace("-", " "), 81920, ""))
    compute = environment.get(COMPUTE, compute)
    if not compute:
        raise GPUError(f"{PRODUCT}={product} is none of {', '.join(KNOWN)}; set {COMPUTE} for it")
    node = environment.get(NODE) or environment.get(_NODE_OF_THE_POD, "")
    return tuple(
        GPU(
            index=index,
            physical=number,
            product=product,
            name=name,
            memory_mib=_number(environment, MEMORY, memory),
            compute=compute,
            uuid=f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'{node}/{product}/{number}')}",
        )
        for index, number in enumerate(physical)
    )


def driver(environment: Mapping[str, str]) -> str:
    """The driver's version."""
    return environment.get(DRIVER, DEFAULT_DRIVER)


def link(environment: Mapping[str, str]) -> str:
    """How two GPUs of the node are connected, in the words of `nvidia-smi topo -m`.

    Raises:
        GPUError: For a word that the tool does not know.
    """
    word = environment.get(LINK, "NV18")
    if word in LINKS[1:] or (word.startswith("NV") and word[2:].isdigit()):
        return word
    raise GPUError(f"{LINK}={word} is neither NV<links> nor one of {', '.join(LINKS[1:])}")


def _index(word: str) -> int:
    if not word.strip().isdigit():
        raise GPUError(f"{VISIBLE} has {word!r} in it; the stand-in reads indices, all or none")
    return int(word)


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, str(default))
    if not text.isdigit() or int(text) < 1:
        raise GPUError(f"{name}={text} is no number of at least 1")
    return int(text)
