"""What the tiny transformer looks like, read from a Hugging Face `config.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# A model is computed in Python: what is larger than this was not made by `make_model`.
LARGEST_HIDDEN = 1024


class GeometryError(ValueError):
    """The model's config.json cannot be run here; the message names field, value and limit."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Counts of a Llama-shaped decoder; `intermediate` is the width of the gated MLP."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    max_positions: int
    rope_theta: float
    norm_epsilon: float
    bos: int
    eos: int
    architecture: str
    dtype: str

    @property
    def mlp_group(self) -> int:
        """MLP columns that belong to one head's group."""
        return self.intermediate // self.heads


def from_config(config: Mapping[str, Any]) -> Geometry:
    """The geometry of a parsed config.json.

    Raises:
        GeometryError: When a field is missing, of the wrong kind, or beyond what is computed here.
    """
    heads = _count(config, "num_attention_heads")
    hidden = _count(config, "hidden_size")
    found = Geometry(
        layers=_count(config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=_count(config, "num_key_value_heads"),
        head_dim=int(config.get("head_dim") or hidden // heads),
        intermediate=_count(config, "intermediate_size"),
        vocabulary=_count(config, "vocab_size"),
        max_positions=_count(config, "max_position_embeddings"),
        rope_theta=float(config.get("rope_theta", 10000.0)),
        norm_epsilon=float(config.get("rms_norm_eps", 1e-5)),
        bos=_count(config, "bos_token_id"),
        eos=_count(config, "eos_token_id"),
        architecture=str((config.get("architectures") or ["?"])[0]),
        dtype=str(config.get("torch_dtype", "bfloat16")),
    )
    if problem := _problem(found):
        raise GeometryError(f"config.json: {problem}; the stand-in runs models of make_model only")
    return found


def read(folder: Path) -> Geometry:
    """The geometry of the model in `folder`.

    Raises:
        GeometryError: When there is no such file or it is no config of a model that runs here.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise GeometryError(f"{folder}/config.json cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise GeometryError(f"{folder}/config.json is not a JSON object")
    return from_config(config)


def _count(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise GeometryError(f"config.json: {name} is {value!r}; a number of at least 1 is needed")
    return value


def _problem(found: Geometry) -> str:
    if found.hidden > LARGEST_HIDDEN:
        return f"hidden_size {found.hidden} exceeds {LARGEST_HIDDEN}"
    if found.heads & (found.heads - 1) or found.kv_heads & (found.kv_heads - 1):
        return f"{found.heads} heads and {found.kv_heads} KV heads are not both powers of two"
    if found.kv_heads > found.heads:
        return f"{found.kv_heads} KV heads exceed {found.heads} heads"
    if found.intermediate % found.heads or found.vocabulary % found.heads:
        return "intermediate_size and vocab_size are no multiples of num_attention_heads"
    if found.head_dim % 2:
        return f"head_dim {found.head_dim} is odd, rotary embedding needs pairs"
    return ""
