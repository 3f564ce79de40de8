"""TensorRT-LLM as an engine runtime: compiled engines (up to 1.2) and the PyTorch backend.

How ranks are laid out: global rank = stage × tensor + tensor rank. The tensor rank counts fastest
and a rank's GPU is its number modulo the GPUs that its pod sees, so a pod of exactly `tensor` GPUs
is one stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.api.settings import Settings
from shardwright.api.spec import LLMDeploymentSpec, Runtime
from shardwright.resolved import Artifact, Resolved
from shardwright.runner.contract import AdapterServing, Command, ModelFacts
from shardwright.runtimes import tensorrt_lora, tensorrt_serve, tensorrt_versions
from shardwright.runtimes.base import ModelSource, Probe, Refusal
from shardwright.runtimes.tensorrt_checks import SPEC_CHECKS, Asked
from shardwright.runtimes.tensorrt_model_checks import MODEL_CHECKS, checkpoint_not_loaded
from shardwright.runtimes.tensorrt_steps import build_chain


class TensorRTLLM:
    """See `runtimes.base.EngineRuntime` for what each method answers."""

    name: str = Runtime.TENSORRT_LLM.value

    def known_image(self, version: str) -> str | None:
        """The vendor's release image, None when this version is not known."""
        return tensorrt_versions.known_image(version)

    def refuse_spec(
        self,
        spec: LLMDeploymentSpec,
        compute: tuple[int, int] | None,
        settings: Settings | None = None,
    ) -> Refusal | None:
        """The first of SPEC_CHECKS that objects; a compute capability of 0.0 is unknown."""
        asked = Asked(spec, compute if compute and compute > (0, 0) else None, settings)
        return next((refusal for check in SPEC_CHECKS if (refusal := check(asked))), None)

    def refuse_model(
        self,
        spec: LLMDeploymentSpec,
        facts: ModelFacts,
        compute: tuple[int, int] | None = None,
    ) -> Refusal | None:
        """The first of MODEL_CHECKS that objects; a compute capability of 0.0 is unknown."""
        known = compute if compute and compute > (0, 0) else None
        found = next((refusal for check in MODEL_CHECKS if (refusal := check(spec, facts))), None)
        return found or checkpoint_not_loaded(spec, facts, known)

    def chain(
        self, spec: LLMDeploymentSpec, model: ModelSource, image: str, settings: Settings
    ) -> tuple[Artifact, ...]:
        """Checkpoint and engine for TensorRT; at most a quantized checkpoint for PyTorch."""
        return build_chain(spec, model, image, settings)

    def proof_inputs(
        self, spec: LLMDeploymentSpec, model: ModelSource, image: str, serve_key: str
    ) -> Mapping[str, object]:
        """Everything whose change asks for a new proof by a candidate."""
        return tensorrt_serve.proof_inputs(spec, model, image, serve_key)

    def serve_command(self, resolved: Resolved, stage: int = 0) -> Command:  # noqa: ARG002
        """`trtllm-serve`, under the vendor's launcher when there are several stages."""
        return tensorrt_serve.serve_command(resolved)

    def serve_config(self, resolved: Resolved) -> Mapping[str, Any]:
        """The content of the file that `--extra_llm_api_options` names."""
        return tensorrt_serve.serve_config(resolved)

    def adapters(self, resolved: Resolved) -> AdapterServing | None:
        """Requests name an adapter's folder; nothing is loaded before."""
        return tensorrt_lora.serving(resolved.spec)

    def readiness(self, resolved: Resolved) -> Probe:
        """The runner's readiness endpoint."""
        return tensorrt_serve.readiness(resolved)
