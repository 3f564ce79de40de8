"""TensorRT-LLM checkpoints: `config.json` and a `rank{N}.safetensors` for each rank."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright_standin import identity
from shardwright_standin.model import shards, tensorfile
from shardwright_standin.model.geometry import Geometry

_DTYPES: Mapping[str, str] = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


class CheckpointError(ValueError):
    """The folder is no whole checkpoint."""


@dataclass(frozen=True, slots=True)
class Precision:
    """How weights were rounded; algorithms are None for none."""

    dtype: str
    algorithm: str | None = None
    kv_algorithm: str | None = None
    group_size: int = 128


def write(
    folder: Path,
    shape: Geometry,
    weights: Mapping[str, NDArray[np.float32]],
    cut: tuple[int, int],
    precision: Precision,
) -> None:
    """Write a checkpoint of `cut` = (tensor, pipeline) ranks; the folder is made.

    Raises:
        ShardError: When the model cannot be cut so.
    """
    tensor, pipeline = cut
    shards.check(shape, tensor, pipeline)
    folder.mkdir(parents=True, exist_ok=True)
    stored = "F32" if precision.algorithm else _DTYPES[precision.dtype]
    for rank in range(tensor * pipeline):
        part = shards.cut(weights, shape, shards.Place(rank, tensor, pipeline))
        (folder / f"rank{rank}.safetensors").write_bytes(tensorfile.encode(part, stored))
    text = json.dumps(config(shape, cut, precision), indent=4)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")


def config(shape: Geometry, cut: tuple[int, int], precision: Precision) -> dict[str, Any]:
    """The checkpoint's config.json, which is an engine's `pretrained_config` too.

    Keys as in docs/source/legacy/architecture/checkpoint.md; the last ones the network needs and
    real configurations have as well.
    """
    tensor, pipeline = cut
    return {
        "producer": {"name": "modelopt" if precision.algorithm else "shardwright-standin"},
        "architecture": shape.architecture,
        "dtype": precision.dtype,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "head_size": shape.head_dim,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.max_positions,
        "hidden_act": "silu",
        "norm_epsilon": shape.norm_epsilon,
        "rotary_base": shape.rope_theta,
        "position_embedding_type": "rope_gpt_neox",
        "logits_dtype": "float32",
        "quantization": {
            "quant_algo": precision.algorithm,
            "kv_cache_quant_algo": precision.kv_algorithm,
            "group_size": precision.group_size,
        },
        "mapping": {
            "world_size": tensor * pipeline,
            "gpus_per_node": 8,
            "tp_size": tensor,
            "pp_size": pipeline,
            "cp_size": 1,
            "moe_tp_size": tensor,
            "moe_ep_size": 1,
        },
        "bos_token_id": shape.bos,
        "eos_token_id": shape.eos,
        "standin": identity.version(),
    }


def geometry(configured: Mapping[str, Any]) -> Geometry:
    """The geometry in a checkpoint's config.json.

    Raises:
        CheckpointError: When a key is missing.
    """
    try:
        return Geometry(
            layers=configured["num_hidden_layers"],
            hidden=configured["hidden_size"],
            heads=configured["num_attention_heads"],
            kv_heads=configured["num_key_value_heads"],
            head_dim=configured["head_size"],
            intermediate=configured["intermediate_size"],
            vocabulary=configured["vocab_size"],
            max_positions=configured["max_position_embeddings"],
            rope_theta=configured["rotary_base"],
            norm_epsilon=configured["norm_epsilon"],
            bos=configured["bos_token_id"],
            eos=configured["eos_token_id"],
            architecture=configured["architecture"],
            dtype=configured["dtype"],
        )
    except KeyError as error:
        raise CheckpointError(f"config.json of the checkpoint has no {error}") from error


def read_config(folder: Path) -> dict[str, Any]:
    """The checkpoint's config.json.

    Raises:
        FileNotFoundError: When there is none.
        CheckpointError: When it is no checkpoint's.
    """
    found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if not isinstance(found, dict) or not {"architecture", "dtype", "mapping"} <= set(found):
        raise CheckpointError(f"{folder}/config.json is not of a TensorRT-LLM checkpoint")
    return found
