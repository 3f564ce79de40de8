"""Models that the player can fetch: their facts, not their weights."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from shardwright.runner.config_keys import kept_config, pack_config
from shardwright.runner.contract import ModelFacts

FOLDER = Path(__file__).resolve().parents[2] / "models"


@dataclass(frozen=True)
class Model:
    """One model: its config.json, and how many bytes its weights would have."""

    config: dict[str, Any]
    bytes: int


@cache
def _table() -> dict[str, Model]:
    models: dict[str, Model] = {}
    for path in sorted(FOLDER.glob("*.json")):
        content = json.loads(path.read_text())
        for name in content["ids"]:
            models[name.lower()] = Model(content["config"], int(content["bytes"]))
    return models


def find(uri: str) -> Model | None:
    """The model of a uri such as `hf://org/name@revision`; the bare name decides."""
    path = uri.split("://", 1)[-1].split("@", 1)[0].strip("/").lower()
    table = _table()
    parts = path.split("/")
    # buckets and registries put more in front of the model's own name
    for start in range(len(parts)):
        if (model := table.get("/".join(parts[start:]))) is not None:
            return model
    return next((m for name, m in table.items() if name.rsplit("/", 1)[-1] == parts[-1]), None)


def facts(model: Model) -> ModelFacts:
    """What the fetch reports of this model."""
    config = model.config
    heads = int(config["num_attention_heads"])
    quantization = config.get("quantization_config") or {}
    return ModelFacts(
        architecture=str(config["architectures"][0]),
        model_type=str(config["model_type"]),
        layers=int(config["num_hidden_layers"]),
        hidden_size=int(config["hidden_size"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
        vocab_size=int(config["vocab_size"]),
        max_positions=int(config["max_position_embeddings"]),
        dtype=str(config.get("torch_dtype", "bfloat16")),
        quantization=str(quantization.get("quant_method", "")),
        experts=int(config.get("num_local_experts") or config.get("num_experts") or 0),
        bytes=model.bytes,
        config=pack_config(kept_config(config, {})),
    )
