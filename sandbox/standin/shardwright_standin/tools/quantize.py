"""`quantize.py`: weights rounded, then cut (or kept whole in Hugging Face form)."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwright_standin import commandline, gpu
from shardwright_standin.faults import Faults
from shardwright_standin.model import geometry, make, tensorfile
from shardwright_standin.tools.convert_checkpoint import resolve_dtype
from shardwright_standin.tools.played import refuse_others
from shardwright_standin.trtllm import checkpoint, quantization

_PLAYED = {
    "model_dir",
    "device",
    "dtype",
    "qformat",
    "output_dir",
    "tp_size",
    "pp_size",
    "awq_block_size",
    "kv_cache_dtype",
    "export_format",
    "calib_dataset",
    # Calibration chooses scales of activations, and nothing here rounds activations.
    "device_map",
    "calib_size",
    "calib_max_seq_length",
    "batch_size",
    "seed",
    "tokenizer_max_seq_length",
}
_DATASETS = {"cnn_dailymail", "pileval"}


def main() -> int:
    """The program."""
    values = commandline.parse("quantize", sys.argv[1:]).values
    Faults(program="quantize.py").reach("start")
    refuse_others("quantize", values, _PLAYED)
    if values["model_dir"] is None:
        raise ValueError("One source checkpoint should be specified: --model_dir")
    if values["device"] == "cuda" and not gpu.visible(os.environ):
        raise OSError("GPU is required for inference.")
    data = str(values["calib_dataset"])
    if data not in _DATASETS and not Path(data).exists():
        raise FileNotFoundError(f"Couldn't find a dataset at {data}, and the stand-in has no hub")
    source, target = Path(values["model_dir"]), Path(values["output_dir"])
    shape = geometry.read(source)
    qformat, group = str(values["qformat"]), int(values["awq_block_size"])
    scheme = quantization.SCHEMES[qformat]
    weights = quantization.apply(make.read(source), qformat, group)
    precision = checkpoint.Precision(
        dtype=resolve_dtype(str(values["dtype"]), shape.dtype),
        algorithm=scheme.algorithm,
        kv_algorithm=quantization.KV_ALGORITHMS.get(values["kv_cache_dtype"] or ""),
        group_size=group if scheme.grouped else 128,
    )
    if values["export_format"] == "hf":
        _write_hugging_face(source, target, weights, precision)
    else:
        cut = (int(values["tp_size"]), int(values["pp_size"]))
        checkpoint.write(target, shape, weights, cut, precision)
    print(f"Quantization done. Total time used: 0.00 s. Exported to {target}")
    return 0


def _write_hugging_face(
    source: Path,
    target: Path,
    weights: tensorfile.Tensors,
    precision: checkpoint.Precision,
) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for path in source.glob("*.json"):
        shutil.copyfile(path, target / path.name)
    stored = "F32" if precision.algorithm else "BF16"
    (target / "model.safetensors").write_bytes(tensorfile.encode(weights, stored))
    content: Mapping[str, Any] = {
        "producer": {"name": "modelopt", "version": "0.0-standin"},
        "quantization": {
            "quant_algo": precision.algorithm,
            "kv_cache_quant_algo": precision.kv_algorithm,
            "group_size": precision.group_size,
            "exclude_modules": ["lm_head"],
        },
    }
    text = json.dumps(content, indent=4) + "\n"
    (target / "hf_quant_config.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
