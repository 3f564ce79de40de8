"""Triton Inference Server with TensorRT-LLM's backend as an engine runtime.

What is built is TensorRT-LLM's own chain, in Triton's image: builder and server are of one image.
What differs is how it is served: from a repository of models, over Triton's own HTTP protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.api.settings import Settings
from shardwright.api.spec import LLMDeploymentSpec, Runtime
from shardwright.resolved import Artifact, Resolved
from shardwright.runner.contract import AdapterServing, Command, ModelFacts
from shardwright.runtimes import tensorrt_serve, triton_serve, triton_versions
from shardwright.runtimes.base import ModelSource, Probe, Refusal, Serving
from shardwright.runtimes.tensorrt_model_checks import MODEL_CHECKS
from shardwright.runtimes.tensorrt_steps import build_chain
from shardwright.runtimes.triton_checks import SPEC_CHECKS, TritonAsked


class Triton:
    """See `runtimes.base.EngineRuntime` for what each method answers."""

    name: str = Runtime.TRITON.value

    def known_image(self, version: str) -> str | None:
        """The image of Triton that holds this version of TensorRT-LLM."""
        return triton_versions.known_image(version)

    def refuse_spec(
        self,
        spec: LLMDeploymentSpec,
        compute: tuple[int, int] | None,
        settings: Settings | None = None,
    ) -> Refusal | None:
        """The first of SPEC_CHECKS that objects; a compute capability of 0.0 is unknown."""
        asked = TritonAsked(spec, compute if compute and compute > (0, 0) else None, settings)
        return next((refusal for check in SPEC_CHECKS if (refusal := check(asked))), None)

    def refuse_model(self, spec: LLMDeploymentSpec, facts: ModelFacts) -> Refusal | None:
        """The first of TensorRT-LLM's MODEL_CHECKS that objects."""
        return next((refusal for check in MODEL_CHECKS if (refusal := check(spec, facts))), None)

    def chain(
        self, spec: LLMDeploymentSpec, model: ModelSource, image: str, settings: Settings
    ) -> tuple[Artifact, ...]:
        """TensorRT-LLM's, with the tools of Triton's image."""
        return build_chain(spec, model, image, settings)

    def proof_inputs(
        self, spec: LLMDeploymentSpec, model: ModelSource, image: str, serve_key: str
    ) -> Mapping[str, object]:
        """Everything whose change asks for a new proof by a candidate."""
        return tensorrt_serve.proof_inputs(spec, model, image, serve_key)

    def serve_command(self, resolved: Resolved, stage: int = 0) -> Command:  # noqa: ARG002
        """`tritonserver`, of the first rank where the ranks differ."""
        return triton_serve.serve_command(resolved)

    def serve_config(self, resolved: Resolved) -> Mapping[str, Any]:  # noqa: ARG002
        """Nothing: Triton reads the repository."""
        return {}

    def serving(self, resolved: Resolved) -> Serving:
        """The repository, the other ranks' command, and how the server is asked."""
        return triton_serve.serving(resolved)

    def adapters(self, resolved: Resolved) -> AdapterServing | None:  # noqa: ARG002
        """None: adapters are refused."""
        return None

    def readiness(self, resolved: Resolved) -> Probe:
        """The runner's readiness endpoint."""
        return tensorrt_serve.readiness(resolved)
