"""`convert_checkpoint.py`: a Hugging Face model cut into a TensorRT-LLM checkpoint."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwright_standin import commandline, contracts
from shardwright_standin.faults import Faults
from shardwright_standin.model import geometry, make
from shardwright_standin.tools.played import NotPlayedError, refuse_others
from shardwright_standin.trtllm import checkpoint, quantization

_PLAYED = {
    "model_dir",
    "tp_size",
    "pp_size",
    "dtype",
    "use_weight_only",
    "weight_only_precision",
    "per_group",
    "group_size",
    "quant_ckpt_path",
    "output_dir",
    "save_config_only",
    # How it is done, not what comes out.
    "load_by_shard",
    "load_model_on_cpu",
    "workers",
    "calib_dataset",
    "calib_size",
    "calib_max_seq_length",
}
# Algorithm's name and rounding of each --weight_only_precision.
_WEIGHT_ONLY: Mapping[str, tuple[str, str]] = {
    "int8": ("W8A16", "int8_wo"),
    "int4": ("W4A16", "int4_wo"),
    "int4_gptq": ("W4A16_GPTQ", "int4_awq"),
    "int4_awq": ("W4A16_AWQ", "int4_awq"),
}


def main(family: str) -> int:
    """The program of one model family."""
    values = commandline.parse("convert_checkpoint", sys.argv[1:], family).values
    Faults(program="convert_checkpoint.py").reach("start")
    flags = contracts.load("convert_checkpoint")["families"][family]["flags"]
    refuse_others("convert_checkpoint", values, _PLAYED, flags)
    if values["model_dir"] is None:
        raise ValueError("model_dir is None; the stand-in makes no random models")
    source = Path(values["model_dir"])
    shape = geometry.read(source)
    algorithm, qformat = _precision(values)
    group = int(values["group_size"])
    precision = checkpoint.Precision(
        dtype=resolve_dtype(str(values["dtype"]), shape.dtype),
        algorithm=algorithm,
        group_size=group,
    )
    cut = (int(values["tp_size"]), int(values["pp_size"]))
    weights = quantization.apply(make.read(source), qformat, group)
    target = Path(values["output_dir"])
    checkpoint.write(target, shape, weights, cut, precision)
    if values["save_config_only"]:
        for path in target.glob("rank*.safetensors"):
            path.unlink()
    print(f"Total time of converting checkpoints: 00:00:00 ({cut[0]} × {cut[1]} ranks)")
    return 0


def resolve_dtype(asked: str, own: str) -> str:
    """`auto` is the model's own, float32 excepted (infer_dtype in convert_utils.py)."""
    if asked != "auto":
        return asked
    return "float16" if own == "float32" else own


def _precision(values: Mapping[str, Any]) -> tuple[str | None, str]:
    if not values["use_weight_only"]:
        return None, "full_prec"
    asked = str(values["weight_only_precision"])
    if asked not in _WEIGHT_ONLY:
        raise NotPlayedError(f"convert_checkpoint: --weight_only_precision {asked} is not played")
    return _WEIGHT_ONLY[asked]
