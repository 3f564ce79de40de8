"""Fleet files: pools of GPU nodes, as people would describe their cluster.

A file says products and counts; what a node of such a pool looks like to
Kubernetes (labels of GPU Feature Discovery, capacity, taints) is worked out in
`nodes.py`. Unknown keys are refused: a typing error must not quietly give
another fleet.
"""

import re
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from shardwright_sandbox.errors import SandboxError

GPU_RESOURCE = "nvidia.com/gpu"
_NAME = r"^[a-z]([a-z0-9-]{0,40}[a-z0-9])?$"
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_EXPRESSION = re.compile(r"i(?:(//|%)([1-9]\d*))?")


_NOT_OF_REAL_POOLS = frozenset({"allocatable", "capacity", "nodes", "ready", "unschedulable"})
MAX_REAL = 14
"""As many ranges for pods as the sandbox's network has."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Taint(_Strict):
    """A node taint."""

    key: str
    value: str = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"


class Sharing(_Strict):
    """GPUs that several pods share: each shows as `replicas` of them, product ends in -SHARED."""

    strategy: Literal["time-slicing", "mps"] = "time-slicing"
    replicas: Annotated[int, Field(ge=2, le=64)]


class Mig(_Strict):
    """GPUs cut into slices.

    `single`: every GPU is cut alike and slices show as `nvidia.com/gpu`, with
    `gpu.count` counting slices and `gpu.memory` that of one slice. `mixed`:
    slices have a resource name of their own.
    """

    profile: str = Field(default="1g.5gb", pattern=r"^\d+g\.\d+gb$")
    slices_per_gpu: int = Field(default=7, ge=1, le=7, alias="slicesPerGPU")
    memory_mib: int = Field(default=4864, gt=0, alias="memoryMiB")
    strategy: Literal["single", "mixed"] = "single"


class Level(_Strict):
    """A network level by group size: nodes 0…per-1 are in `<prefix>0`, and so on."""

    per: Annotated[int, Field(ge=1)]
    prefix: str


class Gpu(_Strict):
    """The GPUs of one node."""

    product: str = Field(min_length=1)
    count: int = Field(default=8, ge=0, le=64)
    memory_mib: int | None = Field(default=None, gt=0, alias="memoryMiB")
    compute: str | None = Field(default=None, pattern=r"^\d+\.\d+$")
    driver: str = Field(default="580.95.05", pattern=r"^\d+\.\d+(\.\d+)?$")
    cuda: str = Field(default="13.0", pattern=r"^\d+\.\d+$")
    machine: str = "sandbox-hgx"
    clique: str | None = None
    sharing: Sharing | None = None
    mig: Mig | None = None
    labels: bool = True
    """False: no GPU Feature Discovery labels at all (it is not installed everywhere)."""
    dra: bool = False
    """True: GPUs show only as a ResourceSlice, there is no `nvidia.com/gpu` in allocatable."""

    @model_validator(mode="after")
    def _one_way_to_cut(self) -> Self:
        if self.sharing is not None and self.mig is not None:
            raise ValueError("sharing and mig exclude each other in one pool; make two pools")
        return self


class Override(_Strict):
    """What one node of a pool, by its index, has otherwise."""

    labels: dict[str, str] = {}
    capacity: dict[str, str | int] = {}
    allocatable: dict[str, str | int] = {}
    taints: tuple[Taint, ...] = ()
    ready: bool = True
    unschedulable: bool = False


class Pool(_Strict):
    """Nodes of one kind, named `<name>-<index>`."""

    name: str = Field(pattern=_NAME)
    count: int = Field(ge=1, le=5000)
    gpu: Gpu | None = None
    cpu: str | int = 192
    memory: str = "2Ti"
    pods: int = 110
    ephemeral_storage: str = Field(default="7Ti", alias="ephemeralStorage")
    zone: str | None = None
    region: str = "sandbox"
    network: dict[str, str | Level] = {}
    """Label key of a network level to a pattern (`rack-{i//2}`) or a group size."""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    capacity: dict[str, str | int] = {}
    allocatable: dict[str, str | int] = {}
    """Less than the capacity: that many GPUs are unhealthy."""
    ready: bool = True
    unschedulable: bool = False
    nodes: dict[int, Override] = {}
    real: bool = False
    """True: kubelets and containers on this machine."""

    @field_validator("network")
    @classmethod
    def _patterns_can_be_filled(cls, network: dict[str, str | Level]) -> dict[str, str | Level]:
        for pattern in network.values():
            if isinstance(pattern, str):
                fill(pattern, 0)
        return network

    @model_validator(mode="after")
    def _nodes_exist(self) -> Self:
        beyond = [index for index in self.nodes if not 0 <= index < self.count]
        if beyond:
            raise ValueError(
                f"nodes: pool {self.name} has the nodes 0 to {self.count - 1}, no node {beyond[0]}"
            )
        return self

    @model_validator(mode="after")
    def _real_nodes_are_what_they_are(self) -> Self:
        if not self.real:
            return self
        if beyond := sorted(self.model_fields_set & _NOT_OF_REAL_POOLS):
            raise ValueError(
                f"{beyond[0]}: the kubelet of a real node tells that itself; leave it out, and use "
                "the node's switches once it runs"
            )
        if not str(self.cpu).isdigit() or int(self.cpu) < 1:
            raise ValueError(f"cpu: {self.cpu}: a real node has whole cores, 1 or more")
        if self.gpu is not None and (self.gpu.sharing or self.gpu.mig or self.gpu.dra):
            raise ValueError("gpu: the device plugin of real nodes offers whole GPUs only")
        if self.count > MAX_REAL:
            raise ValueError(f"count: {self.count} real nodes, {MAX_REAL} are the limit")
        return self

    def node_names(self) -> list[str]:
        """Names of the pool's nodes."""
        return [f"{self.name}-{index}" for index in range(self.count)]


class Fleet(_Strict):
    """All pools."""

    pools: tuple[Pool, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [pool.name for pool in self.pools]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"pools: the name {min(twice)} is given twice; names must differ")
        return self

    @property
    def real(self) -> tuple[Pool, ...]:
        """Pools of real nodes: these start with the sandbox."""
        return tuple(pool for pool in self.pools if pool.real)

    @property
    def simulated(self) -> tuple[Pool, ...]:
        """Pools of simulated nodes."""
        return tuple(pool for pool in self.pools if not pool.real)

    def and_pool(self, pool: Pool) -> "Fleet":
        """The same with one more pool.

        Raises:
            SandboxError: If its name is taken.
        """
        if pool.name in {one.name for one in self.pools}:
            raise SandboxError(f"the fleet has a pool {pool.name} already; rename that one")
        return Fleet(pools=(*self.pools, pool))

    def node_names(self) -> list[str]:
        """Names of all nodes."""
        return [name for pool in self.pools for name in pool.node_names()]


def real_pool(count: int, *, name: str = "real", product: str = "NVIDIA-H100-80GB-HBM3") -> Pool:
    """A pool of real nodes as the GPU nodes of a fleet are: eight GPUs, tainted."""
    return Pool(
        name=name,
        count=count,
        real=True,
        gpu=Gpu(product=product),
        taints=(Taint(key=GPU_RESOURCE, value="present"),),
    )


def fill(pattern: str, index: int) -> str:
    """Fill `{i}`, `{i//N}` and `{i%N}` with a node's index within its pool.

    Three forms and no more: a fleet file is data, not a program.
    """

    def value(match: re.Match[str]) -> str:
        found = _EXPRESSION.fullmatch(match[1].replace(" ", ""))
        if found is None:
            raise ValueError(
                f"pattern {pattern!r}: {{{match[1]}}} is none of {{i}}, {{i//N}} and {{i%N}}"
            )
        if found[1] is None:
            return str(index)
        divisor = int(found[2])
        return str(index // divisor if found[1] == "//" else index % divisor)

    return _PLACEHOLDER.sub(value, pattern)


def load_fleet(path: Path) -> Fleet:
    """Read and check a fleet file.

    Raises:
        SandboxError: With every wrong field, its value and what is allowed.
    """
    try:
        content = yaml.safe_load(path.read_text())
    except FileNotFoundError as error:
        raise SandboxError(f"the fleet file {path} does not exist") from error
    except yaml.YAMLError as error:
        raise SandboxError(f"the fleet file {path} is not YAML: {error}") from error
    return parse_fleet(content, str(path))


def parse_fleet(content: object, source: str) -> Fleet:
    """Check a decoded fleet."""
    try:
        return Fleet.model_validate(content)
    except ValidationError as error:
        lines = [
            f"  {'.'.join(str(part) for part in one['loc']) or '(file)'}: {one['msg']}"
            f" (given: {str(one['input'])[:80]!r})"
            for one in error.errors()
        ]
        raise SandboxError(f"{source} is not a fleet:\n" + "\n".join(lines)) from error
