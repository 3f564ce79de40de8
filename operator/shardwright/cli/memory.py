"""`shardwright memory`: what one shape takes on every GPU, and the KV cache that is left.

The memory model alone: no cluster, no choice of a shape. `shardwright plan` chooses one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from shardwright.api.serving import KVPrecision, WeightPrecision
from shardwright.cli.memory_answer import document, show
from shardwright.observe.gpus import gpu_of_total
from shardwright.sizing.catalogue import catalogue_model
from shardwright.sizing.config_json import (
    MAX_CONFIG_BYTES,
    MAX_INDEX_BYTES,
    load_json,
    model_from_config,
)
from shardwright.sizing.gpus import gpu_memory
from shardwright.sizing.memory import plan_memory
from shardwright.sizing.model import Model
from shardwright.sizing.question import GIB
from shardwright.sizing.shape import (
    EngineSettings,
    GPUMemory,
    Precision,
    Shape,
)

_SIXTEEN_BIT = frozenset({"bf16", "fp16", "none"})
_LONGEST_NAME = 120
# As of the other planning commands; their module would bring a cluster's client with it.
_BAD_INPUT = 2
_OTHER_NAMES = {
    "int4": WeightPrecision.INT4_AWQ,
    "w4a16": WeightPrecision.INT4_AWQ,
    "w8a8": WeightPrecision.FP8,
}


class Output(StrEnum):
    """How the answer is printed."""

    TEXT = "text"
    JSON = "json"


def memory(  # noqa: PLR0917 - typer makes options of arguments
    model_config: Annotated[
        Path | None, typer.Option("--model-config", help="The model's config.json.")
    ] = None,
    model: Annotated[
        str, typer.Option("--model", help="A well-known model's name instead of its config.json.")
    ] = "",
    index: Annotated[
        Path | None, typer.Option("--index", help="Its model.safetensors.index.json.")
    ] = None,
    quant_config: Annotated[
        Path | None, typer.Option("--quant-config", help="Its hf_quant_config.json (ModelOpt).")
    ] = None,
    runtime: Annotated[
        str, typer.Option("--runtime", help="VLLM, SGLang, TensorRTLLM, NIM or Triton.")
    ] = "VLLM",
    version: Annotated[str, typer.Option("--version", help="The runtime's version.")] = "0.19.0",
    backend: Annotated[
        str, typer.Option("--backend", help="TensorRT or PyTorch, for TensorRT-LLM.")
    ] = "",
    gpu_memory_gib: Annotated[
        float | None,
        typer.Option("--gpu-memory-gib", help="Memory of a GPU as its driver reports it."),
    ] = None,
    gpu_product: Annotated[
        str, typer.Option("--gpu-product", help="The GPU's product, such as NVIDIA-H200.")
    ] = "",
    memory_fraction: Annotated[
        float, typer.Option("--memory-fraction", help="As the runtime counts it.")
    ] = 0.9,
    tensor: Annotated[int, typer.Option("--tensor", min=1, max=1024, help="Ranks of a stage.")] = 1,
    pipeline: Annotated[int, typer.Option("--pipeline", min=1, max=256, help="Stages.")] = 1,
    expert: Annotated[
        int, typer.Option("--expert", min=1, max=1024, help="Expert-parallel ranks of a stage.")
    ] = 1,
    attention_data: Annotated[
        int, typer.Option("--attention-data", min=1, max=1024, help="Attention groups of a stage.")
    ] = 1,
    weights: Annotated[
        str, typer.Option("--weights", help="Precision; left out, the checkpoint's own.")
    ] = "",
    kv_cache: Annotated[
        str, typer.Option("--kv-cache", help="Precision of the KV cache: BF16, FP8 or INT8.")
    ] = "BF16",
    max_seq_len: Annotated[
        int, typer.Option("--max-seq-len", min=1, max=2**31, help="Tokens of one request.")
    ] = 8192,
    max_num_tokens: Annotated[
        int, typer.Option("--max-num-tokens", min=1, max=2**22, help="Tokens of a forward pass.")
    ] = 8192,
    max_batch_size: Annotated[
        int, typer.Option("--max-batch-size", min=1, max=2**16, help="Requests in flight.")
    ] = 64,
    kv_pool_gib: Annotated[
        list[str] | None,
        typer.Option("--kv-pool-gib", help="The pool instead of the computed one; one a stage."),
    ] = None,
    lora_slots: Annotated[
        int, typer.Option("--lora-slots", min=0, max=4096, help="Adapters held at once.")
    ] = 0,
    lora_rank: Annotated[
        int, typer.Option("--lora-rank", min=0, max=4096, help="Highest rank of an adapter.")
    ] = 0,
    draft_model: Annotated[
        str, typer.Option("--draft-model", help="A well-known model that drafts tokens.")
    ] = "",
    own_draft: Annotated[
        bool, typer.Option("--own-draft", help="Load the checkpoint's own drafting layers.")
    ] = False,
    output: Annotated[Output, typer.Option("--output", "-o", help="Form.")] = Output.TEXT,
) -> None:
    """Show what one shape of a model takes on every GPU, and the KV cache that is left.

    Exit code 0 whether it fits or not, 2 when the input is wrong.
    """
    try:
        gpu, notes = _gpu(gpu_memory_gib, gpu_product)
        served = _model(model_config, model, index, quant_config)
        engine = EngineSettings(
            runtime=runtime,
            version=version,
            backend=backend,
            memory_fraction=_fraction(memory_fraction),
            max_seq_len=max_seq_len,
            max_num_tokens=max_num_tokens,
            max_batch_size=max_batch_size,
            lora_slots=lora_slots,
            lora_rank=lora_rank,
            own_draft=own_draft,
        )
        plan = plan_memory(
            served,
            Shape(tensor, pipeline, expert, attention_data),
            Precision(_weights(weights), _kv_cache(kv_cache)),
            engine,
            gpu,
            kv_pool=_pools(kv_pool_gib or ()),
            draft=catalogue_model(draft_model) if draft_model else None,
        )
    except (ValueError, OSError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(_BAD_INPUT) from error
    if output is Output.JSON:
        typer.echo(json.dumps(document(served, engine, plan, notes), indent=2))
    else:
        show(served, engine, plan, notes)


def _model(file: Path | None, name: str, index: Path | None, quantization: Path | None) -> Model:
    if (file is None) == (not name):
        raise ValueError("give either --model-config FILE or --model NAME")
    if file is None:
        if index is not None or quantization is not None:
            raise ValueError("--index and --quant-config belong to --model-config, not to --model")
        return catalogue_model(name)
    tensors = load_json(_read(index, MAX_INDEX_BYTES), limit=MAX_INDEX_BYTES) if index else None
    config = dict(load_json(_read(file, MAX_CONFIG_BYTES)))
    if quantization is not None:
        config["quantization"] = load_json(_read(quantization, MAX_CONFIG_BYTES))
    return model_from_config(config, name=_label(config, file), index=tensors)


def _label(config: Mapping[str, Any], file: Path) -> str:
    """What to call a model: as its file says, if that may be printed, or by its folder."""
    named = config.get("_name_or_path")
    plain = isinstance(named, str) and named.isprintable() and 0 < len(named) <= _LONGEST_NAME
    return str(named) if plain else file.absolute().parent.name


def _read(file: Path, limit: int) -> bytes:
    """At most one byte more than is allowed, so that a huge or endless file is not read whole."""
    with file.open("rb") as stream:
        return stream.read(limit + 1)


def _gpu(gib: float | None, product: str) -> tuple[GPUMemory, tuple[str, ...]]:
    if gib is None:
        if not product:
            raise ValueError("give --gpu-memory-gib or --gpu-product")
        return gpu_memory(product)
    if not 0 < gib < 2**20:
        raise ValueError(f"--gpu-memory-gib {gib}: must be above 0; 79.19 is an H100-80GB")
    total = round(gib * GIB)
    if product:
        return GPUMemory(total, product), ()
    kind = gpu_of_total(total)
    if kind is None:
        return GPUMemory(total), ()
    note = f"{gib:g} GiB is what an {kind.name} reports: taken as one; --gpu-product overrules it"
    return GPUMemory(total, kind.name), (note,)


def _fraction(value: float) -> float:
    if not 0 < value <= 1:
        raise ValueError(f"--memory-fraction {value}: must be above 0 and at most 1, such as 0.9")
    return value


def _weights(name: str) -> WeightPrecision | None:
    if not name:
        return None
    if name.lower() in _SIXTEEN_BIT:
        return WeightPrecision.NONE
    if name.lower() in _OTHER_NAMES:
        return _OTHER_NAMES[name.lower()]
    for precision in WeightPrecision:
        if precision.value.lower() == name.lower():
            return precision
    known = ", ".join(["BF16", *(item.value for item in WeightPrecision if item.value != "None")])
    raise ValueError(
        f"--weights {name} is not one of {known}; leave it out for the checkpoint's own precision"
    )


def _kv_cache(name: str) -> KVPrecision:
    if name.lower() in _SIXTEEN_BIT:
        return KVPrecision.NONE
    for precision in KVPrecision:
        if precision.value.lower() == name.lower():
            return precision
    raise ValueError(f"--kv-cache {name} is not one of BF16, FP16, FP8, INT8")


def _pools(values: Iterable[str]) -> list[int] | None:
    pools: list[int] = []
    for value in ",".join(values).split(",") if values else ():
        try:
            gib = float(value)
        except ValueError:
            gib = -1
        if not 0 <= gib < 2**20:
            raise ValueError(
                f"--kv-pool-gib {value}: must be a number of GiB, or one for each stage"
            )
        pools.append(round(gib * GIB))
    return pools or None
