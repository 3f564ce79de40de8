"""Models that the player can fetch: their facts, not their weights."""

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from shardwright.runner.contract import ModelFacts
from shardwright.runner.facts import facts_of

FOLDER = Path(__file__).resolve().parents[2] / "models"


@dataclass(frozen=True)
class Model:
    """One model: its config.json, how many bytes its weights would have, hf_quant_config.json."""

    config: dict[str, Any]
    bytes: int
    modelopt: dict[str, Any] = field(default_factory=dict)


@cache
def _table() -> dict[str, Model]:
    models: dict[str, Model] = {}
    for path in sorted(FOLDER.glob("*.json")):
        content = json.loads(path.read_text())
        for name in content["ids"]:
            models[name.lower()] = Model(
                content["config"], int(content["bytes"]), content.get("hf_quant_config", {})
            )
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
    return facts_of(model.config, model.modelopt, model.bytes)
