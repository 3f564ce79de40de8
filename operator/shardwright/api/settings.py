"""What an administrator sets for the whole operator: one YAML file, filled from the chart's values.

Nothing here is a user's wish: a change of these settings rolls no serving pod (what a revision
resolved stays resolved).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from shardwright.api.spec import LabelKey, LabelValue, Model, Quantity


class PoolSettings(Model):
    """Nodes that an autoscaler may bring: they count as possible, never as free."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=63)]
    product: LabelValue
    gpus_per_node: int = Field(ge=1, le=1024)
    max_nodes: int = Field(ge=1, le=100000)
    nvlink_size: int = Field(default=0, ge=0, le=1024)
    compute_capability: Annotated[str, StringConstraints(pattern=r"^[0-9]+\.[0-9]+$")] = "0.0"
    memory_mib: int = Field(default=0, ge=0)


class FabricProfile(Model):
    """How pods reach the fabric between nodes: InfiniBand or RDMA resources and their settings."""

    resources: dict[str, Quantity] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    capabilities: list[str] = Field(default_factory=list)
    host_network: bool = False
    annotations: dict[str, str] = Field(default_factory=dict)


class FabricSettings(Model):
    """The network between nodes, where a node does not tell it by labels or resources itself."""

    kind: Literal["RDMA", "Ethernet"] = Field(description="RDMA (InfiniBand, RoCE) or Ethernet.")
    gigabytes_per_second: float | None = Field(
        default=None,
        gt=0,
        le=10000,
        description="10⁹ bytes a second for each GPU of a node, one way; left out: assumed.",
    )


class Timeouts(Model):
    """Deadlines and backoffs, all in seconds."""

    bind_seconds: float = Field(default=120, gt=0, description="From ungating to all pods bound.")
    start_seconds: float = Field(
        default=3600, gt=0, description="From bound to started: slow image pulls are no failure."
    )
    ready_seconds: float = Field(
        default=3600, gt=0, description="From started to ready: loading a large model takes long."
    )
    node_dead_seconds: float = Field(default=60, gt=0, description="NotReady longer is dead.")
    restart_backoff_seconds: float = Field(default=10, gt=0)
    restart_backoff_max_seconds: float = Field(default=600, gt=0)
    restart_budget: int = Field(default=6, ge=1, description="Restarts before a group is held.")
    restart_reset_seconds: float = Field(
        default=1800, gt=0, description="Ready for so long, restarts are forgiven."
    )
    step_attempts: int = Field(default=5, ge=1, description="Tries of a step in bad environments.")
    step_backoff_seconds: float = Field(default=15, gt=0)
    step_seconds: float = Field(default=21600, gt=0, description="Deadline of one step's pod.")
    trash_grace_seconds: float = Field(default=86400, ge=0)


class LeaseSettings(Model):
    """Leader election: one operator acts at a time."""

    enabled: bool = True
    name: Annotated[str, StringConstraints(min_length=1, max_length=63)] = "shardwright"
    duration_seconds: float = Field(default=15, gt=0)
    renew_seconds: float = Field(default=10, gt=0)
    retry_seconds: float = Field(default=2, gt=0)


class StepResources(Model):
    """Host resources of the step Jobs' pods; GPUs follow from the step."""

    cpu: Quantity = "8"
    memory: Quantity = "64Gi"
    ephemeral_storage: Quantity = "50Gi"


class FetchResources(Model):
    """Host resources of the pods that fetch models: they copy, they do not compute."""

    cpu: Quantity = "2"
    memory: Quantity = "4Gi"
    ephemeral_storage: Quantity = "2Gi"


class Retention(Model):
    """Which artifacts are collected; those that a live revision names never are."""

    keep_artifacts: int = Field(default=10, ge=0, description="Unused ones kept on a claim.")
    min_age_seconds: float = Field(default=86400, ge=0)


class Settings(Model):
    """The operator's configuration file."""

    namespace: str = Field(default="shardwright-system", description="Where the Lease lives.")
    watch_namespaces: list[str] = Field(default_factory=list, description="Empty watches all.")
    concurrency: int = Field(default=16, ge=1, le=256, description="Deployments at a time.")
    resync_seconds: float = Field(default=600, gt=0)
    operator_image: str = Field(default="ghcr.io/shardwright/operator:0.1.0")
    images: dict[str, str] = Field(
        default_factory=dict, description="Runtime/version to image, for mirrors: TensorRTLLM/1.2.1"
    )
    product_keys: list[LabelKey] = Field(
        default_factory=lambda: [
            "nvidia.com/gpu.product",
            "gpu.nvidia.com/model",
            "cloud.google.com/gke-accelerator",
        ],
        description="Node labels that name the GPU product, first found wins.",
    )
    nvlink_islands: dict[str, int] = Field(
        default_factory=dict,
        description="GPU product to GPUs of a node that share NVLink, where our table errs.",
    )
    levels: list[LabelKey] = Field(
        default_factory=lambda: [
            "fabric.topograph.run/tier-0",
            "network.topology.nvidia.com/leaf",
            "cloud.google.com/gce-topology-subblock",
            "topology.k8s.aws/network-node-layer-3",
            "fabric.topograph.run/tier-1",
            "network.topology.nvidia.com/spine",
            "cloud.google.com/gce-topology-block",
            "topology.k8s.aws/network-node-layer-2",
            "topology.kubernetes.io/zone",
            "topology.kubernetes.io/region",
        ],
        description="Node labels of the network's levels, nearest first.",
    )
    node_pools: list[PoolSettings] = Field(default_factory=list)
    fabric: FabricSettings | None = Field(
        default=None,
        description="The network between nodes that do not tell theirs; plans are timed with it.",
    )
    fabric_profiles: dict[str, FabricProfile] = Field(default_factory=dict)
    read_links: bool = Field(
        default=True,
        description="Ask leaders' pods what their ranks talk over (TopologyVerified), and how "
        "their engines are used (status.advice).",
    )
    evaluation_image: str | None = Field(
        default=None,
        description="Holds lm_eval for accuracy gates of runtimes without a tool of their own.",
    )
    step_resources: StepResources = Field(default_factory=StepResources)
    fetch_resources: FetchResources = Field(default_factory=FetchResources)
    timeouts: Timeouts = Field(default_factory=Timeouts)
    lease: LeaseSettings = Field(default_factory=LeaseSettings)
    retention: Retention = Field(default_factory=Retention)
    http_port: int = Field(default=8080, ge=0, le=65535, description="Probes and metrics; 0 any.")
    log_level: str = Field(default="INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$")
    log_format: str = Field(default="json", pattern="^(json|console)$")
