"""`nvidia-smi`: the questions that runners ask it, answered from the environment.

Played: `-L`, `--query-gpu=… --format=csv[,noheader][,nounits] [-i N]`, `topo -m`, `--version` and
the plain call. Exit codes and words of failures as the real tool's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence

from shardwright_standin import gpu

_NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that "
    "the latest NVIDIA driver is installed and running."
)
_BAD_ARGUMENT, _NOT_FOUND, _DRIVER_MISSING = 2, 6, 9
_CUDA = "13.0"

_FIELDS: Mapping[str, Callable[[gpu.GPU], str]] = {
    "index": lambda one: str(one.index),
    "name": lambda one: one.name,
    "gpu_name": lambda one: one.name,
    "uuid": lambda one: one.uuid,
    "gpu_uuid": lambda one: one.uuid,
    "compute_cap": lambda one: one.compute,
    "memory.total": lambda one: f"{one.memory_mib} MiB",
    "memory.used": lambda _: "0 MiB",
    "utilization.gpu": lambda _: "0 %",
    "memory.free": lambda one: f"{one.memory_mib} MiB",
    "driver_version": lambda _: gpu.driver(os.environ),
    "pci.bus_id": lambda one: one.bus_id,
    "gpu_bus_id": lambda one: one.bus_id,
    "count": lambda _: str(len(gpu.visible(os.environ))),
    "mig.mode.current": lambda _: "Disabled",
}


_UNITS: Mapping[str, str] = {
    "memory.total": "MiB",
    "memory.used": "MiB",
    "memory.free": "MiB",
    "utilization.gpu": "%",
}


def main() -> int:
    """The program.

    Returns:
        0, or the real tool's exit code of a failure.
    """
    words = sys.argv[1:]
    try:
        devices = gpu.visible(os.environ)
        word = gpu.link(os.environ)
    except gpu.GPUError as error:
        print(f"[standin] {error}", file=sys.stderr)
        return _BAD_ARGUMENT
    if words == ["--version"]:
        print(f"NVIDIA-SMI version  : {gpu.driver(os.environ)}")
        print(f"DRIVER version      : {gpu.driver(os.environ)}\nCUDA Version        : {_CUDA}")
        return 0
    if not devices:
        print(_NO_DRIVER)
        return _DRIVER_MISSING
    if words == ["-L"]:
        for one in devices:
            print(f"GPU {one.index}: {one.name} (UUID: {one.uuid})")
        return 0
    if words[:2] == ["topo", "-m"]:
        nics = [nic for nic in os.environ.get(gpu.NICS, "").split(",") if nic]
        print(topology(devices, word, nics))
        return 0
    return _query(words, devices) if words else _plain(devices)


def topology(devices: Sequence[gpu.GPU], link: str, nics: Sequence[str]) -> str:
    """The matrix of `nvidia-smi topo -m`: GPUs joined by `link`, network cards each at a GPU."""
    cards = [f"NIC{index}" for index in range(len(nics))]
    head = [f"GPU{one.index}" for one in devices]
    lines = ["\t" + "\t".join([*head, *cards, "CPU Affinity", "NUMA Affinity"])]
    for one in devices:
        row = ["X" if other is one else link for other in devices]
        row += ["PIX" if index == one.physical else "SYS" for index in range(len(nics))]
        lines.append("\t".join([f"GPU{one.index}", *row, "0-63", "0"]))
    for index, card in enumerate(cards):
        row = ["PIX" if index == one.physical else "SYS" for one in devices]
        row += ["X" if other == index else "SYS" for other in range(len(nics))]
        lines.append("\t".join([card, *row]))
    legend = (
        "\nLegend:\n\n"
        "  X    = Self\n"
        "  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes\n"
        "  NODE = Connection traversing PCIe and the interconnect of PCIe Host Bridges in a node\n"
        "  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge\n"
        "  PXB  = Connection traversing multiple PCIe bridges\n"
        "  PIX  = Connection traversing at most a single PCIe bridge\n"
        "  NV#  = Connection traversing a bonded set of # NVLinks"
    )
    names = [f"  {card}: {nic}" for card, nic in zip(cards, nics, strict=True)]
    ending = "\n\nNIC Legend:\n\n" + "\n".join(names) if names else ""
    return "\n".join(lines) + "\n" + legend + ending


def _query(words: Sequence[str], devices: Sequence[gpu.GPU]) -> int:
    options = dict(_options(words))
    fields = [name for name in options.pop("--query-gpu", "").split(",") if name]
    form = options.pop("--format", "").split(",")
    chosen = options.pop("-i", options.pop("--id", ""))
    if options or not fields or form[0] != "csv" or set(form[1:]) - {"noheader", "nounits"}:
        unknown = next(iter(options), " ".join(words))
        print(f"Invalid combination of input arguments: {unknown}. Please run 'nvidia-smi -h'.")
        return _BAD_ARGUMENT
    for name in fields:
        if name not in _FIELDS:
            print(f'Field "{name}" is not a valid field to query.')
            return _BAD_ARGUMENT
    if chosen:
        devices = [one for one in devices if chosen in (str(one.index), one.uuid, one.bus_id)]
        if not devices:
            print("No devices were found")
            return _NOT_FOUND
    if "noheader" not in form:
        units = "nounits" not in form
        print(
            ", ".join(
                f"{name} [{_UNITS[name]}]" if name in _UNITS and units else name for name in fields
            )
        )
    for one in devices:
        values = [_FIELDS[name](one) for name in fields]
        if "nounits" in form:
            values = [value.removesuffix(" MiB").removesuffix(" %") for value in values]
        print(", ".join(values))
    return 0


def _options(words: Sequence[str]) -> list[tuple[str, str]]:
    found = []
    left = iter(words)
    for word in left:
        name, given, value = word.partition("=")
        found.append((name, value if given else next(left, "")))
    return found


def _plain(devices: Sequence[gpu.GPU]) -> int:
    driver = gpu.driver(os.environ)
    print(f"NVIDIA-SMI {driver}    Driver Version: {driver}    CUDA Version: {_CUDA}")
    for one in devices:
        print(f"| {one.index}  {one.name} | {one.bus_id} | 0MiB / {one.memory_mib}MiB | Default |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
