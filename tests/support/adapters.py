"""Adapters in PEFT's form, small and made here; weights of a seed, so that each says its own."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Inputs and outputs of the projections of the tiny models that tests fetch and serve.
Sizes = Mapping[str, tuple[int, int]]


def peft_config(rank: int = 8, modules: Sequence[str] = ("q_proj", "v_proj"), **more: Any) -> bytes:
    """adapter_config.json."""
    content = {
        "peft_type": "LORA",
        "base_model_name_or_path": "acme/tiny",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": list(modules),
        "bias": "none",
        **more,
    }
    return json.dumps(content).encode()


def peft_weights(
    sizes: Sizes, *, rank: int = 8, layers: int = 2, seed: int = 0, extra: Sequence[str] = ()
) -> bytes:
    """adapter_model.safetensors in float32: lora_A (rank, inputs), lora_B (outputs, rank)."""
    shapes: dict[str, tuple[int, int]] = {}
    for layer in range(layers):
        for module, (inputs, outputs) in sizes.items():
            block = "mlp" if module in ("gate_proj", "up_proj", "down_proj") else "self_attn"
            path = f"base_model.model.model.layers.{layer}.{block}.{module}"
            shapes[f"{path}.lora_A.weight"] = (rank, inputs)
            shapes[f"{path}.lora_B.weight"] = (outputs, rank)
    shapes |= dict.fromkeys(extra, (2, 2))
    header: dict[str, Any] = {}
    numbers: list[float] = []
    source = random.Random(seed)  # noqa: S311 - weights of a test
    for name, (rows, columns) in shapes.items():
        start = 4 * len(numbers)
        numbers += [source.gauss(0, 0.2) for _ in range(rows * columns)]
        offsets = [start, 4 * len(numbers)]
        header[name] = {"dtype": "F32", "shape": [rows, columns], "data_offsets": offsets}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + struct.pack(f"<{len(numbers)}f", *numbers)


def adapter(sizes: Sizes, *, rank: int = 8, layers: int = 2, seed: int = 0) -> dict[str, bytes]:
    """The files of one adapter, by name."""
    return {
        "adapter_config.json": peft_config(rank, tuple(sizes)),
        "adapter_model.safetensors": peft_weights(sizes, rank=rank, layers=layers, seed=seed),
    }


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Put files into a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder
