"""The labels that GPU Feature Discovery, a driver and a cloud put on GPU nodes.

Forms and values as seen on real nodes, since the operator must read them in
all their real forms.
"""

from dataclasses import dataclass

from shardwright_sandbox.errors import SandboxError
from shardwright_sandbox.fleet import Gpu, Level, Pool, fill


@dataclass(frozen=True)
class _Known:
    memory_mib: int
    compute: str
    mig_capable: bool


# What NVML reports for each. Drivers and ECC settings move the memory a little;
# a fleet file may give its own numbers, and must for a product not named here.
_KNOWN = {
    "NVIDIA-A100-SXM4-40GB": _Known(40960, "8.0", mig_capable=True),
    "NVIDIA-A100-SXM4-80GB": _Known(81920, "8.0", mig_capable=True),
    "NVIDIA-A100-80GB-PCIe": _Known(81920, "8.0", mig_capable=True),
    "NVIDIA-H100-80GB-HBM3": _Known(81559, "9.0", mig_capable=True),
    "NVIDIA-H100-PCIe": _Known(81559, "9.0", mig_capable=True),
    "NVIDIA-H100-NVL": _Known(95830, "9.0", mig_capable=True),
    "NVIDIA-H200": _Known(143771, "9.0", mig_capable=True),
    "NVIDIA-B200": _Known(182631, "10.0", mig_capable=True),
    "NVIDIA-GB200": _Known(189471, "10.0", mig_capable=True),
    "NVIDIA-L40S": _Known(46068, "8.9", mig_capable=False),
    "NVIDIA-L4": _Known(23034, "8.9", mig_capable=False),
    "Tesla-T4": _Known(15360, "7.5", mig_capable=False),
}

_ADA_MINOR = 9
_FAMILIES = {7: "turing", 9: "hopper", 10: "blackwell", 12: "blackwell", 13: "rubin"}
# A date, not the clock: node objects of one fleet file are the same each time.
_TIMESTAMP = "1780000000"


def _family(compute: str) -> str:
    major, minor = (int(part) for part in compute.split("."))
    if major == 8:  # noqa: PLR2004 - two families share this major version
        return "ada-lovelace" if minor == _ADA_MINOR else "ampere"
    return _FAMILIES.get(major, "undefined")


def memory_and_compute(gpu: Gpu) -> tuple[int, str, bool]:
    """Memory in MiB, compute capability and whether the GPU can be cut."""
    known = _KNOWN.get(gpu.product)
    memory = gpu.memory_mib or (known.memory_mib if known else None)
    compute = gpu.compute or (known.compute if known else None)
    if memory is None or compute is None:
        raise SandboxError(
            f"gpu.product {gpu.product!r} is not known to the sandbox: give gpu.memoryMiB and "
            f"gpu.compute too, or use one of {', '.join(sorted(_KNOWN))}"
        )
    return memory, compute, known.mig_capable if known else False


def gpu_labels(gpu: Gpu) -> dict[str, str]:
    """What GPU Feature Discovery and the GPU operator write for these GPUs."""
    memory, compute, mig_capable = memory_and_compute(gpu)
    if not gpu.labels:
        return {}
    product, count, replicas = gpu.product, gpu.count, 1
    extra: dict[str, str] = {}
    if gpu.sharing is not None:
        product, replicas = f"{product}-SHARED", gpu.sharing.replicas
    if gpu.mig is not None and gpu.mig.strategy == "single":
        # The trap this form sets: gpu.count now counts slices, and gpu.memory is one slice's.
        product = f"{product}-MIG-{gpu.mig.profile}"
        count, memory = gpu.count * gpu.mig.slices_per_gpu, gpu.mig.memory_mib
    elif gpu.mig is not None:
        replicas = 0
        extra = _mixed_mig_labels(gpu, product)
    major, minor = compute.split(".")
    cuda_major, cuda_minor = gpu.cuda.split(".")
    driver = [*gpu.driver.split("."), ""]
    labels = {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.count": str(count),
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.memory": str(memory),
        "nvidia.com/gpu.family": _family(compute),
        "nvidia.com/gpu.compute.major": major,
        "nvidia.com/gpu.compute.minor": minor,
        "nvidia.com/gpu.machine": gpu.machine,
        "nvidia.com/gpu.mode": "compute",
        "nvidia.com/gpu.replicas": str(replicas),
        "nvidia.com/gpu.sharing-strategy": gpu.sharing.strategy if gpu.sharing else "none",
        "nvidia.com/mig.capable": str(mig_capable).lower(),
        "nvidia.com/mig.config": f"all-{gpu.mig.profile}" if gpu.mig else "all-disabled",
        "nvidia.com/mig.config.state": "success",
        "nvidia.com/mig.strategy": gpu.mig.strategy if gpu.mig else "single",
        "nvidia.com/mps.capable": str(
            gpu.sharing is not None and gpu.sharing.strategy == "mps"
        ).lower(),
        "nvidia.com/vgpu.present": "false",
        "nvidia.com/cuda.driver-version.full": gpu.driver,
        "nvidia.com/cuda.driver-version.major": driver[0],
        "nvidia.com/cuda.driver-version.minor": driver[1],
        "nvidia.com/cuda.driver-version.revision": driver[2],
        "nvidia.com/cuda.runtime-version.full": gpu.cuda,
        "nvidia.com/cuda.runtime-version.major": cuda_major,
        "nvidia.com/cuda.runtime-version.minor": cuda_minor,
        # the deprecated names, which GPU Feature Discovery still writes as well
        "nvidia.com/cuda.driver.major": driver[0],
        "nvidia.com/cuda.driver.minor": driver[1],
        "nvidia.com/cuda.driver.rev": driver[2],
        "nvidia.com/cuda.runtime.major": cuda_major,
        "nvidia.com/cuda.runtime.minor": cuda_minor,
        "nvidia.com/gfd.timestamp": _TIMESTAMP,
        "nvidia.com/gpu-driver-upgrade-state": "upgrade-done",
        **{f"nvidia.com/gpu.deploy.{part}": "true" for part in _DEPLOYED},
        **extra,
    }
    if gpu.clique is not None:
        labels["nvidia.com/gpu.clique"] = gpu.clique
    return labels


_DEPLOYED = (
    "container-toolkit",
    "dcgm",
    "dcgm-exporter",
    "device-plugin",
    "driver",
    "gpu-feature-discovery",
    "node-status-exporter",
    "operator-validator",
)


def _mixed_mig_labels(gpu: Gpu, product: str) -> dict[str, str]:
    if gpu.mig is None:
        return {}
    name = f"nvidia.com/mig-{gpu.mig.profile}"
    return {
        f"{name}.count": str(gpu.count * gpu.mig.slices_per_gpu),
        f"{name}.product": f"{product}-MIG-{gpu.mig.profile}",
        f"{name}.memory": str(gpu.mig.memory_mib),
        f"{name}.replicas": "1",
        f"{name}.sharing-strategy": "none",
    }


def node_labels(pool: Pool, index: int) -> dict[str, str]:
    """All labels of one node; the pool's own come last and win."""
    name = f"{pool.name}-{index}"
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "topology.kubernetes.io/region": pool.region,
    }
    if pool.zone is not None:
        labels["topology.kubernetes.io/zone"] = fill(pool.zone, index)
    if pool.gpu is not None:
        labels |= gpu_labels(pool.gpu)
        if pool.gpu.clique is not None and pool.gpu.labels:
            labels["nvidia.com/gpu.clique"] = fill(pool.gpu.clique, index)
    for key, pattern in pool.network.items():
        if isinstance(pattern, Level):
            labels[key] = f"{pattern.prefix}{index // pattern.per}"
        else:
            labels[key] = fill(pattern, index)
    labels |= {key: fill(value, index) for key, value in pool.labels.items()}
    if (override := pool.nodes.get(index)) is not None:
        labels |= override.labels
    return labels
