"""Models for the tests of fetching: small, and of the same form as real ones."""

from __future__ import annotations

import json
import random
import struct

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 256,
    "torch_dtype": "bfloat16",
}
SHARDS = tuple(f"model-{n:05d}-of-00002.safetensors" for n in (1, 2))
Files = dict[str, bytes]


def safetensors(size: int, seed: int) -> bytes:
    """A file of this format with one tensor of `size` random bytes."""
    header = {"weight": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + random.Random(seed).randbytes(size)  # noqa: S311


def model(shard_bytes: int = 3 * 2**20) -> Files:
    """A sharded model with a tokenizer, and beside it what must not be fetched."""
    shards = {name: safetensors(shard_bytes, seed) for seed, name in enumerate(SHARDS)}
    index = {"weight_map": {f"layer.{n}": name for n, name in enumerate(SHARDS)}}
    return {
        "config.json": json.dumps(CONFIG).encode(),
        "generation_config.json": b"{}",
        "tokenizer.json": b'{"version": "1.0"}' + b" " * 100_000,
        "LICENSE": b"Apache-2.0\n",
        "model.safetensors.index.json": json.dumps(index).encode(),
        **shards,
        "README.md": b"# A model\n",
        "pytorch_model.bin": b"pickle" * 1000,
        "consolidated.safetensors": safetensors(4096, 9),
        "original/consolidated.00.pth": b"pickle",
    }


WANTED = frozenset(
    {
        *("config.json", "generation_config.json", "tokenizer.json", "LICENSE"),
        *("model.safetensors.index.json", *SHARDS),
    }
)


def wanted(files: Files) -> Files:
    """What a fetch leaves of a model's files."""
    return {name: data for name, data in files.items() if name in WANTED}
