"""The GPUs that this pod sees, as `nvidia-smi` tells them, and whether they fit a product label."""

from __future__ import annotations

import csv
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

# nvidia-smi waits for the driver, which on a sick GPU may take for ever.
_TIMEOUT_SECONDS = 60
_FIELDS = ("index", "name", "compute_cap", "driver_version")
_QUERY = ("nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader")
_NONE = "No devices were found"
_SHOWN = 200
# What GPU Feature Discovery drops from a name and what it appends for shared and sliced GPUs
# (NVIDIA/k8s-device-plugin, internal/lm/resource.go).
_DROPPED = re.compile(r"[^A-Za-z0-9\-_. ]")
_APPENDED = re.compile(r"(-MIG-[^-]+)?(-SHARED)?$")
_DISCOVERED = re.compile(r"(NVIDIA|Tesla|Quadro|GeForce)-")
_CLOUD = "nvidia-"
_TOKEN = re.compile(r"[a-z0-9]+")
# Words of cloud labels that NVML's names leave out or put differently.
_LOOSE = re.compile(r"nvidia|tesla|mega|\d+gb?")


class GPUError(Exception):
    """nvidia-smi is there and does not tell: the node's driver or GPU is not well."""


@dataclass(frozen=True)
class GPU:
    """One visible GPU; `compute` as NVIDIA writes it, such as `9.0`."""

    index: int
    name: str
    compute: str
    driver: str

    @property
    def product(self) -> str:
        """The name as GPU Feature Discovery labels it, such as `NVIDIA-H100-80GB-HBM3`."""
        return "-".join(_DROPPED.sub("", self.name).split())


def ask(query: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str] | None:
    """What nvidia-smi answers; None where there is none.

    Raises:
        GPUError: It cannot be run, or does not answer in time.
    """
    try:
        return subprocess.run(  # noqa: S603 - a fixed command line
            query, capture_output=True, text=True, timeout=seconds, check=False
        )
    except FileNotFoundError:
        return None
    except subprocess.TimeoutExpired:
        raise GPUError(f"nvidia-smi gave no answer in {seconds} s") from None
    except OSError as error:
        raise GPUError(f"nvidia-smi cannot be run: {error}") from error


def visible_gpus() -> tuple[GPU, ...] | None:
    """All that this pod sees; None where there is no nvidia-smi to ask.

    Raises:
        GPUError: It fails, does not answer, or answers something else.
    """
    done = ask(_QUERY, _TIMEOUT_SECONDS)
    if done is None:
        return None
    said = (done.stdout + done.stderr).strip()
    if _NONE in said:
        return ()
    if done.returncode != 0:
        raise GPUError(f"nvidia-smi failed with exit status {done.returncode}: {said[:_SHOWN]}")
    return read_gpus(done.stdout)


def read_gpus(text: str) -> tuple[GPU, ...]:
    """GPUs from nvidia-smi's lines of index, name, compute capability and driver version.

    Raises:
        GPUError: A line has other fields.
    """
    found = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        fields = [field.strip() for field in row]
        if not any(fields):
            continue
        if len(fields) != len(_FIELDS) or not fields[0].isdigit():
            raise GPUError(f"nvidia-smi answered {row!r}, expected {', '.join(_FIELDS)}")
        found.append(GPU(int(fields[0]), fields[1], fields[2], fields[3]))
    return tuple(found)


def same_product(label: str, gpu: GPU) -> bool:
    """Whether a node's product label can be of this GPU.

    GPU Feature Discovery's labels are NVML's name with dashes. Cloud labels are looser
    (`nvidia-h100-80gb` is an `NVIDIA H100 80GB HBM3`): there every word that names a model must be
    in NVML's name, so that an H100 is never taken for an H200. Labels of an administrator's own
    making tell nothing that could be compared.
    """
    bare = _APPENDED.sub("", label)
    if bare == gpu.product:
        return True
    if _DISCOVERED.match(bare):
        return False
    if not bare.startswith(_CLOUD):
        return True
    wanted = {word for word in _TOKEN.findall(bare) if not _LOOSE.fullmatch(word)}
    return wanted <= set(_TOKEN.findall(gpu.name.lower()))


def manifest_entry(gpus: tuple[GPU, ...] | None, label: str) -> dict[str, str]:
    """What an engine's manifest says of the GPU it was built on: product, compute, driver.

    Args:
        gpus: What the pod sees; None where nobody tells, and the node's label is all there is.
        label: The product label of the node, which the artifact is keyed by.
    """
    if not gpus:
        return {"product": label} if label else {}
    first = gpus[0]
    return {"product": first.product, "compute": first.compute, "driver": first.driver}
