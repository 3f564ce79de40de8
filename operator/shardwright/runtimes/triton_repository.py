"""The model repository that Triton serves from: which models, their configurations, their files.

For an engine: preprocessing (tokenizer), tensorrt_llm (the engine), postprocessing, and the
ensemble of them, which bears the served name. For the PyTorch backend: the one model of the LLM
API, which bears it too. The Python of these models is the image's own, copied beside our
configurations when a pod starts, so that it always fits the image's TensorRT-LLM.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwright.api.spec import Backend, LLMDeploymentSpec
from shardwright.resolved import Resolved
from shardwright.runtimes import tensorrt_serve
from shardwright.runtimes import triton_tensors as known
from shardwright.runtimes.tensorrt_speculative import COMPILED, choices
from shardwright.runtimes.tensorrt_steps import paged_context_fmha
from shardwright.runtimes.triton_model_config import (
    Batching,
    ModelConfig,
    Step,
    Value,
)
from shardwright.runtimes.triton_options import Place, of_place, options
from shardwright.runtimes.triton_tensors import tensors
from shardwright.runtimes.triton_versions import ALL_MODELS

ENGINE = "tensorrt_llm"
PREPROCESSING = "preprocessing"
POSTPROCESSING = "postprocessing"
# Names that the served model cannot have beside them.
PARTS = (PREPROCESSING, ENGINE, POSTPROCESSING)
VERSION = "1"
CONFIG = "config.pbtxt"
# A version's folder must be there, also where the backend wants no file in it.
EMPTY = ".keep"
LLM_CONFIG = "model.yaml"

# docs/model_config.md of the backend: one instance holds requests up, five do well in most cases.
INSTANCES = 5


@dataclass(frozen=True, slots=True)
class Repository:
    """Models, files beside their configurations, and folders of the image to copy first."""

    models: tuple[ModelConfig, ...]
    files: Mapping[str, str]
    copies: Mapping[str, str]

    def written(self) -> dict[str, str]:
        """All files by their path in the repository."""
        configs = {f"{model.name}/{CONFIG}": model.text() for model in self.models}
        return {**configs, **self.files}


def repository(resolved: Resolved) -> Repository:
    """What a revision's replicas serve from."""
    if resolved.spec.engine.backend is Backend.PYTORCH:
        return _llm_api(resolved)
    return _engine(resolved.spec, resolved.pipeline)


def _engine(spec: LLMDeploymentSpec, stages: int) -> Repository:
    asked = options(spec)
    name = spec.model.served_name
    return Repository(
        models=(
            _preprocessing(spec, asked),
            _tensorrt_llm(spec, stages, asked),
            _postprocessing(spec, asked),
            _ensemble(name, spec.engine.limits.max_batch_size),
        ),
        files={f"{model}/{VERSION}/{EMPTY}": "" for model in (ENGINE, name)},
        copies={
            part: f"{ALL_MODELS}/inflight_batcher_llm/{part}"
            for part in (PREPROCESSING, POSTPROCESSING)
        },
    )


def _preprocessing(spec: LLMDeploymentSpec, asked: Mapping[str, Value]) -> ModelConfig:
    return ModelConfig(
        name=PREPROCESSING,
        backend="python",
        max_batch_size=spec.engine.limits.max_batch_size,
        batching=_batching(spec, asked),
        inputs=tensors(known.PREPROCESSING_INPUTS),
        outputs=tensors(known.PREPROCESSING_OUTPUTS),
        instances=_instances(asked, "preprocessing_instance_count"),
        parameters={
            "tokenizer_dir": "{model}",
            "add_special_tokens": True,
            # Empty: no pictures. The model looks these up.
            "multimodal_model_path": "",
            "gpt_model_path": "{artifact}",
            **of_place(asked, Place.PREPROCESSING),
        },
    )


def _tensorrt_llm(spec: LLMDeploymentSpec, stages: int, asked: Mapping[str, Value]) -> ModelConfig:
    """The engine's model.

    A rank's GPU is its number modulo the listed ones, and these times the nodes must be all ranks
    (executorImpl.cpp of TensorRT-LLM); left out, eight GPUs a node are assumed.
    """
    tensor = spec.parallelism.tensor
    return ModelConfig(
        name=ENGINE,
        backend="tensorrtllm",
        max_batch_size=spec.engine.limits.max_batch_size,
        decoupled=bool(asked.get("decoupled_mode", True)),
        batching=_batching(spec, asked),
        inputs=tensors(known.ENGINE_INPUTS),
        outputs=tensors(known.ENGINE_OUTPUTS),
        instances=1,
        parameters={
            "gpt_model_type": "inflight_fused_batching",
            "gpt_model_path": "{artifact}",
            "max_beam_width": 1,
            "gpu_device_ids": tuple(range(tensor)),
            "num_nodes": stages,
            "kv_cache_free_gpu_mem_fraction": spec.engine.limits.gpu_memory_fraction,
            "enable_kv_cache_reuse": paged_context_fmha(spec),
            # An answer without its prompt, as other servers give it.
            "exclude_input_in_output": True,
            # Looked up unconditionally (getGuidedDecodingConfigFromParams); empty: no guiding.
            "tokenizer_dir": "{model}",
            "guided_decoding_backend": "",
            "xgrammar_tokenizer_info_path": "",
            **of_place(asked, Place.ENGINE),
            **_drafting(spec),
        },
    )


def _drafting(spec: LLMDeploymentSpec) -> dict[str, Value]:
    """Heads that are compiled in, and which of their tokens are tried.

    Left out, the backend tries a tree of 63 paths (`mc_sim_7b_63`), for which no engine here is
    built.
    """
    wish = spec.speculative
    if wish is None or wish.method not in COMPILED:
        return {}
    mode, _ = COMPILED[wish.method]
    paths = (", ".join(map(str, path)) for path in choices(wish.max_draft_len))
    return {
        "decoding_mode": mode,
        f"{mode}_choices": ", ".join(f"{{{path}}}" for path in paths),
    }


def _postprocessing(spec: LLMDeploymentSpec, asked: Mapping[str, Value]) -> ModelConfig:
    return ModelConfig(
        name=POSTPROCESSING,
        backend="python",
        max_batch_size=spec.engine.limits.max_batch_size,
        batching=_batching(spec, {}),
        inputs=tensors(known.POSTPROCESSING_INPUTS),
        outputs=tensors(known.POSTPROCESSING_OUTPUTS),
        instances=_instances(asked, "postprocessing_instance_count"),
        parameters={
            "tokenizer_dir": "{model}",
            "skip_special_tokens": True,
            **of_place(asked, Place.POSTPROCESSING),
        },
    )


def _ensemble(name: str, max_batch_size: int) -> ModelConfig:
    return ModelConfig(
        name=name,
        platform="ensemble",
        max_batch_size=max_batch_size,
        inputs=tensors(known.ENSEMBLE_INPUTS),
        outputs=tensors(known.ENSEMBLE_OUTPUTS),
        steps=(
            Step(PREPROCESSING, known.TO_PREPROCESSING, known.FROM_PREPROCESSING),
            Step(ENGINE, known.TO_ENGINE, known.FROM_ENGINE),
            Step(POSTPROCESSING, known.TO_POSTPROCESSING, known.FROM_POSTPROCESSING),
        ),
    )


def _batching(spec: LLMDeploymentSpec, asked: Mapping[str, Value]) -> Batching:
    found = of_place(asked, Place.BATCHING)
    return Batching(
        preferred=spec.engine.limits.max_batch_size,
        **{name: value for name, value in found.items() if isinstance(value, int)},
    )


def _instances(asked: Mapping[str, Value], name: str) -> int:
    value = asked.get(name, INSTANCES)
    return value if isinstance(value, int) else INSTANCES


def _llm_api(resolved: Resolved) -> Repository:
    """The LLM API's model: it takes no batches of Triton's, and streams where it is asked to."""
    name = resolved.spec.model.served_name
    model = ModelConfig(
        name=name,
        backend="python",
        max_batch_size=0,
        decoupled=True,
        inputs=tensors(known.LLMAPI_INPUTS),
        outputs=tensors(known.LLMAPI_OUTPUTS),
        instances=1,
    )
    # JSON is YAML too.
    config = json.dumps(llm_config(resolved), indent=1)
    return Repository(
        models=(model,),
        files={f"{name}/{VERSION}/{LLM_CONFIG}": config + "\n"},
        copies={name: f"{ALL_MODELS}/llmapi/{ENGINE}"},
    )


def llm_config(resolved: Resolved) -> dict[str, Any]:
    """The LLM API's arguments, and the part of its model.yaml that is for Triton.

    That part must agree with the model's configuration: the model reads both.
    """
    spec = resolved.spec
    return {
        "model": "{artifact}",
        "tokenizer": "{model}",
        "backend": "pytorch",
        "tensor_parallel_size": resolved.tensor,
        "pipeline_parallel_size": resolved.pipeline,
        "gpus_per_node": resolved.tensor,
        **({"trust_remote_code": True} if spec.model.trust_remote_code else {}),
        **tensorrt_serve.serve_config(resolved),
        "triton_config": {"max_batch_size": 0, "decoupled": True},
    }
