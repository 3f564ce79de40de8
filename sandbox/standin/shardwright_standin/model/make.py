"""Make the tiny model: a folder in Hugging Face form, the same bytes for the same seed.

`python -m shardwright_standin.model.make FOLDER [--seed N] [--layers N] [--model-type NAME]`
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright_standin.model import geometry, tensorfile, tokenizer

# Weights are multiples of this with at most eight significant bits: BF16 and F16 both hold them,
# so that no --dtype of a conversion changes a token.
_GRID = 2.0**-10

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}


def config(layers: int = 4, model_type: str = "llama") -> dict[str, Any]:
    """The config.json of the tiny model."""
    return {
        "architectures": [_ARCHITECTURES[model_type]],
        "model_type": model_type,
        "torch_dtype": "bfloat16",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": layers,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "vocab_size": 264,
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": tokenizer.BOS,
        "eos_token_id": tokenizer.EOS,
        "transformers_version": "4.57.3",
    }


def weights(shape: geometry.Geometry, seed: int) -> tensorfile.Tensors:
    """Random weights by Hugging Face names, float32 values that BF16 and F16 hold exactly."""
    random = np.random.default_rng(seed)

    def draw(rows: int, columns: int, scale: float) -> NDArray[np.float32]:
        raw = random.normal(0.0, scale, (rows, columns))
        steps = np.clip(np.round(raw / _GRID), -(2**12), 2**12).astype(np.float32)
        return tensorfile.bfloat16(steps * np.float32(_GRID))

    hidden, wide = shape.hidden, shape.intermediate
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    tensors = {"model.embed_tokens.weight": draw(shape.vocabulary, hidden, 1.0)}
    for layer in range(shape.layers):
        name = f"model.layers.{layer}"
        tensors |= {
            f"{name}.input_layernorm.weight": np.ones(hidden, np.float32),
            f"{name}.self_attn.q_proj.weight": draw(queries, hidden, 0.3),
            f"{name}.self_attn.k_proj.weight": draw(keys, hidden, 0.3),
            f"{name}.self_attn.v_proj.weight": draw(keys, hidden, 0.3),
            f"{name}.self_attn.o_proj.weight": draw(hidden, queries, 0.3),
            f"{name}.post_attention_layernorm.weight": np.ones(hidden, np.float32),
            f"{name}.mlp.gate_proj.weight": draw(wide, hidden, 0.3),
            f"{name}.mlp.up_proj.weight": draw(wide, hidden, 0.3),
            f"{name}.mlp.down_proj.weight": draw(hidden, wide, 0.3),
        }
    tensors["model.norm.weight"] = np.ones(hidden, np.float32)
    tensors["lm_head.weight"] = draw(shape.vocabulary, hidden, 0.3)
    return tensors


def write(folder: Path, *, seed: int = 0, layers: int = 4, model_type: str = "llama") -> None:
    """Write config, tokenizer's description and weights into `folder`, which is made."""
    settings = config(layers, model_type)
    tensors = weights(geometry.from_config(settings), seed)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(tensorfile.encode(tensors, "BF16"))
    _write_json(folder / "config.json", settings)
    _write_json(
        folder / "generation_config.json",
        {"bos_token_id": tokenizer.BOS, "eos_token_id": tokenizer.EOS, "do_sample": False},
    )
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "StandinByteTokenizer",
            "bos_token": tokenizer.SPECIAL[tokenizer.BOS],
            "eos_token": tokenizer.SPECIAL[tokenizer.EOS],
        },
    )


def read(folder: Path) -> tensorfile.Tensors:
    """All tensors of a folder in Hugging Face form.

    Raises:
        FileNotFoundError: When it has no safetensors file.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder} has no *.safetensors file")
    tensors: tensorfile.Tensors = {}
    for path in files:
        tensors |= tensorfile.read(path)
    return tensors


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--model-type", choices=sorted(_ARCHITECTURES), default="llama")
    asked = parser.parse_args()
    write(asked.folder, seed=asked.seed, layers=asked.layers, model_type=asked.model_type)


if __name__ == "__main__":
    main()
