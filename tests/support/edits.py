"""Edits that a user may make to a deployment at any moment, each by itself a small one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.golden import specs
from tests.support.played import MMLU

from shardwright.runner.contract import AdapterFacts, ModelFacts

MODELS = {
    "hf://meta-llama/Llama-3.1-8B-Instruct@main": specs.LLAMA_8B,
    "hf://meta-llama/Llama-3.1-70B-Instruct@main": specs.LLAMA_70B,
}
MODULES = ("q_proj", "v_proj")


def _adapter(model: ModelFacts, rank: int, *scales: str) -> AdapterFacts:
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    sizes = {"q_proj": (model.hidden_size, queries), "v_proj": (model.hidden_size, keys)}
    return AdapterFacts(
        rank, 16.0, MODULES, dtype="BF16", layers=model.layers, sizes=sizes, scales=scales
    )


# Of either model, outside of some limits, or with a scale that one runtime leaves out.
ADAPTERS = {
    "legal": _adapter(specs.LLAMA_8B, 8),
    "poems": _adapter(specs.LLAMA_8B, 16),
    "long": _adapter(specs.LLAMA_8B, 64),
    "rooted": _adapter(specs.LLAMA_8B, 16, "use_rslora"),
    "large": _adapter(specs.LLAMA_70B, 16),
}


def _one(name: str) -> dict[str, str]:
    return {"name": name, "uri": f"hf://acme/{name}"}


def _limits(rank: int, *chosen: str) -> dict[str, Any]:
    adapters = [_one(name) for name in chosen]
    return {"maxRank": rank, "targetModules": ["attn_q", "attn_v"], "adapters": adapters}


def _plain(spec: dict[str, Any], engine: dict[str, Any]) -> None:
    """Back to what every cluster can serve: most other edits together are refused."""
    spec.pop("speculative", None)
    spec.update(engine=engine, parallelism={"tensor": 1, "pipeline": 1})


def _toggle(spec: dict[str, Any], name: str) -> None:
    """Add an adapter, or take it out; without any there are limits for some."""
    lora = spec.setdefault("lora", _limits(16))
    kept = [one for one in lora["adapters"] if one["name"] != name]
    lora["adapters"] = kept if len(kept) < len(lora["adapters"]) else [*kept, _one(name)]


NIM = "nvcr.io/nim/nvidia/llm-nim:2.1.5"
DRAFT = {"method": "DraftModel", "model": {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct@main"}}

EDITS: list[Callable[[dict[str, Any]], None]] = [
    lambda spec: spec.update(quantization={"weights": "None"}),
    lambda spec: spec.update(quantization={"weights": "FP8"}),
    lambda spec: spec.update(quantization={"weights": "INT4AWQ"}),
    lambda spec: spec["quantization"].update(accuracy={**MMLU, "maxDrop": 1.0}),
    lambda spec: spec["quantization"].update(accuracy={**MMLU, "maxDrop": 3.0}),
    lambda spec: spec["quantization"].update(accuracy={**MMLU, "minScore": 64.0}),
    lambda spec: spec["quantization"].update(accuracy={**MMLU, "minScore": 67.0}),
    lambda spec: spec["quantization"].pop("accuracy", None),
    lambda spec: _plain(spec, {"backend": "TensorRT"}),
    lambda spec: _plain(spec, {"backend": "PyTorch"}),
    lambda spec: _plain(spec, {"runtime": "VLLM"}),
    lambda spec: spec.update(engine={"backend": "TensorRT"}),
    lambda spec: spec.update(engine={"backend": "TensorRT", "limits": {"maxBatchSize": 16}}),
    lambda spec: spec.update(engine={"backend": "PyTorch"}),
    lambda spec: spec.update(engine={"runtime": "VLLM"}),
    lambda spec: spec.update(engine={"runtime": "SGLang"}),
    lambda spec: spec.update(engine={"runtime": "Triton"}),
    lambda spec: spec.update(engine={"runtime": "NIM", "image": NIM}),
    lambda spec: spec.pop("parallelism", None),
    lambda spec: spec.update(parallelism={"expert": 3}),
    lambda spec: spec.update(parallelism={"tensor": 2, "attentionData": 2}),
    lambda spec: spec.update(parallelism={"tensor": 1, "pipeline": 1}),
    lambda spec: spec.update(parallelism={"tensor": 2, "pipeline": 1}),
    lambda spec: spec.update(parallelism={"tensor": 2, "pipeline": 2}),
    lambda spec: spec.update(replicas=0),
    lambda spec: spec.update(replicas=1),
    lambda spec: spec.update(replicas=2),
    lambda spec: spec.update(replicas=3),
    lambda spec: spec.update(rollout={"maxSurge": 1, "maxUnavailable": 0}),
    lambda spec: spec.pop("rollout", None),
    lambda spec: spec.update(speculative=DRAFT),
    lambda spec: spec.update(speculative={"method": "NGram"}),
    lambda spec: spec.pop("speculative", None),
    lambda spec: spec.update(lora=_limits(16, "legal", "poems")),
    lambda spec: spec.update(lora=_limits(64, "long")),
    lambda spec: spec.pop("lora", None),
    lambda spec: spec.get("lora", {}).update(maxRank=16),
    lambda spec: spec.get("lora", {}).update(maxRank=64),
    *(lambda spec, name=name: _toggle(spec, name) for name in ADAPTERS for _ in range(2)),
    *(lambda spec, uri=uri: spec["model"].update(uri=uri) for uri in MODELS),
]
