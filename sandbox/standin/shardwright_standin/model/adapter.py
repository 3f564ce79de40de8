"""Low-rank updates in PEFT's form, added to a rank's own weights: W + alpha / r × B A.

Names and shapes are PEFT's: `lora_A` is (rank, inputs), `lora_B` (outputs, rank). An adapted rank
has weights of its own here, where the real ones multiply twice; the tokens are the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright_standin.model import shards, tensorfile
from shardwright_standin.model.geometry import Geometry
from shardwright_standin.model.shards import Place, Weights

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")


class AdapterError(ValueError):
    """The folder holds no adapter of this model."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server was started or built for."""

    rank: int
    modules: tuple[str, ...]


def read_config(folder: Path) -> dict[str, Any]:
    """adapter_config.json.

    Raises:
        FileNotFoundError: There is none.
        AdapterError: It lacks what every LoRA has.
    """
    found: dict[str, Any] = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    lacking = {"r", "lora_alpha", "target_modules"} - set(found)
    if lacking:
        raise AdapterError(f"Missing required configuration fields: {sorted(lacking)}")
    return found


def adapted(
    base: Weights, folder: Path, shape: Geometry, place: Place, modules: tuple[str, ...]
) -> dict[str, NDArray[np.float32]]:
    """A rank's weights with an adapter's update of these modules.

    Raises:
        AdapterError: A matrix has another size than the model's, or is of no module of it.
        FileNotFoundError: The folder lacks a file.
    """
    deltas = _deltas(folder, modules)
    whole: dict[str, NDArray[np.float32]] = {}
    for name, size in _shapes(shape).items():
        delta = deltas.pop(name, None)
        if delta is not None and delta.shape != size:
            raise AdapterError(f"{name}: the update has shape {delta.shape}, the weight {size}")
        whole[name] = np.zeros(size, np.float32) if delta is None else delta
    if deltas:
        raise AdapterError(f"{min(deltas)} is no weight of this model")
    own = shards.cut(whole, shape, place)
    return {name: value + own[name] for name, value in base.items()}


def _deltas(folder: Path, modules: tuple[str, ...]) -> dict[str, NDArray[np.float32]]:
    config = read_config(folder)
    scale = np.float32(config["lora_alpha"] / config["r"])
    halves: dict[str, dict[str, NDArray[np.float32]]] = {}
    for name, value in tensorfile.read(folder / WEIGHTS).items():
        found = _NAME.fullmatch(name)
        if found is None:
            raise AdapterError(f"{name} is no lora_A or lora_B")
        halves.setdefault(found[1], {})[found[2]] = value
    deltas = {}
    for path, half in halves.items():
        if set(half) != {"A", "B"}:
            raise AdapterError(f"{path} has only lora_{min(half)}")
        if path.rsplit(".", 1)[-1] in modules:
            delta: NDArray[np.float32] = scale * (half["B"] @ half["A"])
            deltas[f"{path}.weight"] = delta.astype(np.float32)
    return deltas


def _shapes(shape: Geometry) -> Mapping[str, tuple[int, ...]]:
    """Every weight of the model by its Hugging Face name."""
    hidden, wide = shape.hidden, shape.intermediate
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (shape.vocabulary, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (shape.vocabulary, hidden),
    }
    for layer in range(shape.layers):
        name = f"model.layers.{layer}"
        found |= {
            f"{name}.input_layernorm.weight": (hidden,),
            f"{name}.post_attention_layernorm.weight": (hidden,),
            f"{name}.self_attn.q_proj.weight": (queries, hidden),
            f"{name}.self_attn.k_proj.weight": (keys, hidden),
            f"{name}.self_attn.v_proj.weight": (keys, hidden),
            f"{name}.self_attn.o_proj.weight": (hidden, queries),
            f"{name}.mlp.gate_proj.weight": (wide, hidden),
            f"{name}.mlp.up_proj.weight": (wide, hidden),
            f"{name}.mlp.down_proj.weight": (hidden, wide),
        }
    return found
