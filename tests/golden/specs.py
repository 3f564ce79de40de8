"""Specs, models' facts and resolved revisions that the render and runtime tests share."""

from __future__ import annotations

from typing import Any

from shardwright.api.settings import FabricProfile, Settings
from shardwright.api.spec import LLMDeploymentSpec
from shardwright.observe.world import ClaimView, Record, RecordState
from shardwright.plan.drafts import draft_key
from shardwright.plan.resolve import model_key, resolve
from shardwright.render.common import Owner
from shardwright.render.pods import GroupIdentity
from shardwright.resolved import Resolved
from shardwright.runner.contract import STEP_MODEL, ModelFacts
from shardwright.runtimes.registry import runtime

H100 = "NVIDIA-H100-80GB-HBM3"
A100 = "NVIDIA-A100-SXM4-80GB"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CLAIM = ClaimView(
    namespace="llm",
    name="models",
    uid="5f0c2a54-8a7b-4f0e-9d52-2f6f5a1f9c11",
    bound=True,
    access_modes=("ReadWriteMany",),
)
SETTINGS = Settings(
    fabric_profiles={
        "infiniband": FabricProfile(
            resources={"rdma/ib": "8"},
            env={"NCCL_IB_HCA": "mlx5"},
            capabilities=["IPC_LOCK"],
            annotations={"k8s.v1.cni.cncf.io/networks": "ib"},
        ),
        "host": FabricProfile(host_network=True),
    }
)


def facts(**changes: Any) -> ModelFacts:
    """A dense 8B model; `changes` by field."""
    values: dict[str, Any] = {
        "architecture": "LlamaForCausalLM",
        "model_type": "llama",
        "layers": 32,
        "hidden_size": 4096,
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
        "max_positions": 131072,
        "dtype": "bfloat16",
        "bytes": 16_060_000_000,
    }
    return ModelFacts(**{**values, **changes})


LLAMA_8B = facts()
LLAMA_70B = facts(layers=80, hidden_size=8192, heads=64, bytes=141_107_000_000)
LLAMA_405B = facts(layers=126, hidden_size=16384, heads=128, bytes=811_706_000_000)


def spec(**changes: Any) -> LLMDeploymentSpec:
    """A spec by its top-level fields (as in YAML); what is not named has its default."""
    values: dict[str, Any] = {
        "model": {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct@main"},
        "gpu": {"product": H100},
        "storage": {"claimName": "models"},
    }
    return LLMDeploymentSpec.model_validate({**values, **changes})


def resolved(
    asked: LLMDeploymentSpec,
    model: ModelFacts = LLAMA_8B,
    settings: Settings = SETTINGS,
    *,
    draft: ModelFacts | None = None,
) -> Resolved:
    """What the planner makes of a spec once the model, and what drafts for it, were fetched."""
    fetched = Record(
        step=STEP_MODEL,
        key=draft_key(asked),
        claim_uid=CLAIM.uid,
        state=RecordState.READY,
        commit=COMMIT,
        facts=draft,
    )
    return resolve(
        asked,
        runtime=runtime(asked.engine.runtime),
        settings=settings,
        claim=CLAIM,
        record=Record(
            step=STEP_MODEL,
            key=model_key(asked),
            claim_uid=CLAIM.uid,
            state=RecordState.READY,
            commit=COMMIT,
            facts=model,
        ),
        facts=model,
        restarted_at="",
        previous=None,
        drafts=fetched if draft is not None else None,
    )


def owner(name: str = "llama") -> Owner:
    """The LLMDeployment that owns everything."""
    return Owner(name=name, uid="0b9a1f5e-52c4-4c53-8a43-6d6c1f0f7a21")


def identity(name: str = "llama", **changes: Any) -> GroupIdentity:
    """The first incarnation of replica 0, serving."""
    values: dict[str, Any] = {
        "namespace": "llm",
        "owner": owner(name),
        "replica": 0,
        "incarnation": 1,
        "revision": f"{name}-4f1c2b3a5d",
        "serving": True,
    }
    return GroupIdentity(**{**values, **changes})


# The three deployments whose objects and keys are kept in this folder.
EXAMPLES: dict[str, tuple[LLMDeploymentSpec, ModelFacts]] = {
    "llama-405b-fp8-tp8": (
        spec(
            model={
                "uri": "hf://meta-llama/Llama-3.1-405B-Instruct@main",
                "servedName": "llama-405b",
                "secretRef": {"name": "hf-token"},
                "dtype": "BF16",
            },
            parallelism={"tensor": 8},
            quantization={"weights": "FP8", "kvCache": "FP8"},
            replicas=2,
            pod={"resources": {"cpu": "64", "memory": "512Gi"}, "shmSize": "32Gi"},
        ),
        LLAMA_405B,
    ),
    "llama-70b-tp8-pp2": (
        spec(
            model={
                "uri": "hf://meta-llama/Llama-3.3-70B-Instruct@main",
                "servedName": "llama-70b",
            },
            engine={"limits": {"maxBatchSize": 64, "maxNumTokens": 8192}, "build": {"workers": 2}},
            parallelism={"tensor": 8, "pipeline": 2},
            rollout={"maxSurge": 1},
            pod={
                "fabricProfile": "infiniband",
                "priorityClassName": "serving",
                "imagePullSecrets": [{"name": "ngc"}],
                "env": [{"name": "NCCL_DEBUG", "value": "WARN"}],
                "annotations": {"example.com/team": "search"},
            },
            placement={
                "tolerations": [{"key": "dedicated", "value": "llm", "effect": "NoSchedule"}],
                "nodeSelector": {"topology.kubernetes.io/zone": "a"},
            },
        ),
        LLAMA_70B,
    ),
    "llama-8b-pytorch": (
        spec(
            engine={
                "backend": "PyTorch",
                "config": {
                    "enable_chunked_prefill": True,
                    "kv_cache_config": {"enable_block_reuse": False},
                },
            },
            quantization={"kvCache": "FP8"},
        ),
        LLAMA_8B,
    ),
}
