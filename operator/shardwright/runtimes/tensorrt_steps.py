"""The steps below the model: TensorRT-LLM's checkpoint and engine, their keys and command lines.

TensorRT path: model → checkpoint (rank files for one tensor × pipeline) → engine (for one GPU
product). PyTorch path: nothing, or one quantized checkpoint in Hugging Face form that is split when
it is loaded. Every flag here is checked by a test against tests/contracts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from shardwright.api.settings import Settings
from shardwright.api.spec import (
    Backend,
    KVPrecision,
    LLMDeploymentSpec,
    WeightPrecision,
)
from shardwright.observe.gpus import catalogue_memory
from shardwright.observe.quantity import to_millis, to_whole
from shardwright.observe.world import Resources
from shardwright.resolved import Artifact
from shardwright.runner.contract import (
    CALIBRATION_FLAG,
    STEP_CHECKPOINT,
    STEP_ENGINE,
    STORE,
    Command,
    ModelFacts,
    artifact_folder,
    artifact_key,
    checkpoint_files,
    engine_files,
)
from shardwright.runtimes import tensorrt_lora, tensorrt_speculative
from shardwright.runtimes.base import ModelSource, stored
from shardwright.runtimes.tensorrt_experts import convert_flags
from shardwright.runtimes.tensorrt_precision import (
    CALIBRATED,
    GROUPED,
    KV_DTYPES,
    QFORMATS,
    model_dtype,
)
from shardwright.runtimes.triton_versions import examples_of

# Families whose convert_checkpoint.py takes --tp_size and --pp_size alike, by the config's
# model_type. Gemma's takes a world size and no pipeline; it is left to quantize.py and PyTorch.
CONVERTERS: Mapping[str, str] = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen",
    "qwen2_moe": "qwen",
    "qwen3": "qwen",
    "qwen3_moe": "qwen",
}
# Only this family's converter takes the quantized checkpoint by a flag of its own; the other one
# recognizes GPTQ from the model's config.
_TAKES_QUANT_CKPT_PATH = frozenset({"llama"})

# What quantize.py knows by name; anything else is a folder on the claim.
CALIBRATION_DATASETS = frozenset({"cnn_dailymail", "pileval"})

GPUS_PER_NODE_AT_MOST = 8
# Calibration holds the weights and the activations of a few samples.
QUANTIZE_ROOM = 1.15
# Converting holds the model and one rank's share of it.
CONVERT_ROOM = 1.2


def paged_context_fmha(spec: LLMDeploymentSpec) -> bool:
    """Whether the engine really gets paged context attention.

    The builder switches it off by itself, with a warning, for an INT8 KV cache, and for an FP8 one
    unless the weights are quantized with FP8 activations. Saying so in the command keeps engine,
    key and the server's block reuse in agreement.
    """
    kv_cache, weights = spec.quantization.kv_cache, spec.quantization.weights
    with_fp8 = {WeightPrecision.FP8, WeightPrecision.W4A8_AWQ, WeightPrecision.NVFP4}
    if kv_cache is KVPrecision.INT8 or (kv_cache is KVPrecision.FP8 and weights not in with_fp8):
        return False
    return spec.engine.build.plugins.paged_context_fmha


def needs_checkpoint(spec: LLMDeploymentSpec) -> bool:
    """Whether a checkpoint is made: always for TensorRT, else only to quantize."""
    if spec.engine.backend is Backend.TENSORRT:
        return True
    return spec.quantization.weights is not WeightPrecision.NONE


def needs_quantizer(spec: LLMDeploymentSpec) -> bool:
    """Whether quantize.py makes the checkpoint, rather than convert_checkpoint.py."""
    weights = spec.quantization.weights
    if weights is WeightPrecision.INT4_GPTQ:
        return False
    return weights is not WeightPrecision.NONE or bool(_kv_in_checkpoint(spec))


def build_chain(
    spec: LLMDeploymentSpec, model: ModelSource, image: str, settings: Settings
) -> tuple[Artifact, ...]:
    """Checkpoint and engine, as far as the backend needs them."""
    if not needs_checkpoint(spec):
        return ()
    checkpoint = _checkpoint(spec, model, image, settings)
    if spec.engine.backend is Backend.PYTORCH:
        return (checkpoint,)
    return (checkpoint, _engine(spec, checkpoint, model.facts, image, settings))


def _kv_in_checkpoint(spec: LLMDeploymentSpec) -> str | None:
    """KV precision whose scales the checkpoint holds; on PyTorch it is a start option instead."""
    if spec.engine.backend is Backend.PYTORCH:
        return None
    return KV_DTYPES.get(spec.quantization.kv_cache)


def _calibration(spec: LLMDeploymentSpec) -> dict[str, object] | None:
    """Calibration as far as it decides the result; None when no data are used."""
    if spec.quantization.weights not in CALIBRATED and not _kv_in_checkpoint(spec):
        return None
    asked = spec.quantization.calibration
    used: dict[str, object] = {
        "dataset": asked.dataset,
        "samples": asked.samples,
        "batchSize": asked.batch_size,
        "maxSeqLen": asked.max_seq_len,
    }
    if spec.quantization.weights in GROUPED:
        used["groupSize"] = asked.group_size
    return used


def _checkpoint(
    spec: LLMDeploymentSpec, model: ModelSource, image: str, settings: Settings
) -> Artifact:
    compiled = spec.engine.backend is Backend.TENSORRT
    quantized = needs_quantizer(spec)
    weights = spec.quantization.weights
    split = {
        "tensor": spec.parallelism.tensor,
        "pipeline": spec.parallelism.pipeline,
        "expert": spec.parallelism.expert,
        "kvCache": _kv_in_checkpoint(spec),
    }
    inputs: dict[str, object] = {
        "model": model.key,
        "commit": model.commit or None,
        "image": image,
        "format": "trtllm" if compiled else "hf",
        "dtype": model_dtype(spec.model.dtype, model.facts.dtype),
        "weights": weights.value if weights is not WeightPrecision.NONE else None,
        "calibration": _calibration(spec) if quantized else None,
        **(split if compiled else {}),
        **tensorrt_speculative.checkpoint_inputs(spec, model),
    }
    gpus = _quantize_gpus(model.facts, spec.gpu.product) if quantized else 0
    return Artifact(
        step=STEP_CHECKPOINT,
        key=artifact_key(STEP_CHECKPOINT, inputs),
        inputs={name: value for name, value in inputs.items() if value is not None},
        source_key=model.key,
        image=image,
        commands=(_quantize(spec, model) if quantized else _convert(spec, model),),
        expected_files=(
            checkpoint_files(spec.world_size)
            if compiled
            else ("config.json", "hf_quant_config.json")
        ),
        gpus=gpus,
        product=spec.gpu.product if gpus else "",
        resources=_resources(settings, gpus, math.ceil(model.facts.bytes * CONVERT_ROOM)),
        # Heads are read with the model that they are compiled into.
        also=stored(model.draft) if tensorrt_speculative.compiled_heads(spec) else (),
    )


def _quantize_gpus(facts: ModelFacts, product: str) -> int:
    """GPUs of one node that hold the 16-bit weights while they are calibrated.

    Counted by the catalogue's memory, below the driver's where weights are this large: a GPU more
    costs minutes, one too few a failed step. Beyond eight the rest is held in host memory
    (`--device_map auto`): slower, never refused.
    """
    needed = math.ceil(facts.bytes * QUANTIZE_ROOM / catalogue_memory(product))
    return min(GPUS_PER_NODE_AT_MOST, max(1, needed))


def _quantize(spec: LLMDeploymentSpec, model: ModelSource) -> Command:
    compiled = spec.engine.backend is Backend.TENSORRT
    argv = [
        *("python3", f"{examples_of(spec)}/quantization/quantize.py"),
        *("--model_dir", model.folder),
        *("--output_dir", "{out}"),
        *("--dtype", model_dtype(spec.model.dtype, model.facts.dtype)),
        *("--qformat", QFORMATS[spec.quantization.weights]),
        *("--device_map", "auto"),
        *("--export_format", "tensorrt_llm" if compiled else "hf"),
    ]
    if compiled:
        argv += ["--tp_size", str(spec.parallelism.tensor)]
        argv += ["--pp_size", str(spec.parallelism.pipeline)]
    kv_cache = _kv_in_checkpoint(spec)
    if kv_cache:
        argv += ["--kv_cache_dtype", kv_cache]
    if _calibration(spec) is not None:
        data = spec.quantization.calibration
        known = data.dataset in CALIBRATION_DATASETS
        argv += [CALIBRATION_FLAG, data.dataset if known else f"{STORE}/{data.dataset}"]
        argv += ["--calib_size", str(data.samples)]
        argv += ["--batch_size", str(data.batch_size)]
        argv += ["--calib_max_seq_length", str(data.max_seq_len)]
        if spec.quantization.weights in GROUPED:
            argv += ["--awq_block_size", str(data.group_size)]
    argv += tensorrt_speculative.quantize_flags(spec, model.draft)
    return Command(tool="quantize", argv=tuple(argv))


def _convert(spec: LLMDeploymentSpec, model: ModelSource) -> Command:
    if tensorrt_speculative.compiled_heads(spec):
        return tensorrt_speculative.convert(spec, model)
    family = CONVERTERS[model.facts.model_type]
    argv = [
        *("python3", f"{examples_of(spec)}/models/core/{family}/convert_checkpoint.py"),
        *("--model_dir", model.folder),
        *("--output_dir", "{out}"),
        *("--dtype", model_dtype(spec.model.dtype, model.facts.dtype)),
        *("--tp_size", str(spec.parallelism.tensor)),
        *("--pp_size", str(spec.parallelism.pipeline)),
        *convert_flags(spec),
        # The step asks for no GPU and must not look for one.
        "--load_model_on_cpu",
    ]
    if spec.quantization.weights is WeightPrecision.INT4_GPTQ:
        argv += ["--use_weight_only", "--weight_only_precision", "int4_gptq", "--per_group"]
        if family in _TAKES_QUANT_CKPT_PATH:
            argv += ["--quant_ckpt_path", model.folder]
    return Command(tool="convert_checkpoint", argv=tuple(argv))


def _engine(
    spec: LLMDeploymentSpec,
    checkpoint: Artifact,
    facts: ModelFacts,
    image: str,
    settings: Settings,
) -> Artifact:
    limits, build = spec.engine.limits, spec.engine.build
    paged = paged_context_fmha(spec)
    inputs: dict[str, object] = {
        "checkpoint": checkpoint.key,
        "image": image,
        "version": spec.engine.version,
        "product": spec.gpu.product,
        "limits": {
            "maxBatchSize": limits.max_batch_size,
            "maxNumTokens": limits.max_num_tokens,
            "maxInputLen": limits.max_input_len,
            "maxSeqLen": limits.max_seq_len,
        },
        "plugins": {"gemm": build.plugins.gemm, "pagedContextFMHA": paged},
        "workers": build.workers,
        **tensorrt_lora.engine_inputs(spec),
        **tensorrt_speculative.engine_inputs(spec),
    }
    argv = (
        "trtllm-build",
        *("--checkpoint_dir", f"{STORE}/{artifact_folder(STEP_CHECKPOINT, checkpoint.key)}"),
        *("--output_dir", "{out}"),
        *("--max_batch_size", str(limits.max_batch_size)),
        *("--max_num_tokens", str(limits.max_num_tokens)),
        *("--max_input_len", str(limits.max_input_len)),
        *("--max_seq_len", str(limits.max_seq_len)),
        *("--gemm_plugin", build.plugins.gemm),
        *("--use_paged_context_fmha", "enable" if paged else "disable"),
        *("--workers", str(build.workers)),
        *tensorrt_lora.build_flags(spec),
        *tensorrt_speculative.build_flags(spec),
        # Its default is a file in the working directory, which may be read-only.
        *("--output_timing_cache", "{scratch}/model.cache"),
    )
    return Artifact(
        step=STEP_ENGINE,
        key=artifact_key(STEP_ENGINE, inputs),
        inputs=inputs,
        source_key=checkpoint.key,
        image=image,
        commands=(Command(tool="trtllm-build", argv=argv),),
        expected_files=engine_files(spec.world_size),
        gpus=build.workers,
        product=spec.gpu.product,
        resources=_resources(settings, build.workers, facts.bytes),
    )


def _resources(settings: Settings, gpus: int, memory_bytes: int) -> Resources:
    """The settings' step resources, with host memory for what the step holds."""
    asked = settings.step_resources
    return Resources(
        cpu_millis=to_millis(asked.cpu),
        memory_bytes=max(to_whole(asked.memory), _whole_mebibytes(memory_bytes)),
        ephemeral_bytes=to_whole(asked.ephemeral_storage),
        pods=1,
        gpus=gpus,
    )


def _whole_mebibytes(amount: int) -> int:
    return -(-amount // 2**20) * 2**20
