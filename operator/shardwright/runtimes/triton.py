"""Triton Inference Server with TensorRT-LLM's backend as an engine runtime.

What is built is TensorRT-LLM's own chain, in Triton's image: builder and server are of one image.
What differs is how it is served: from a repository of models, over Triton's own HTTP protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.api.settings import Settings
from shardwright.api.spec import LLMDeploymentSpec, Runtime
from shardwright.resolved import Resolved
from shardwright.runner.contract import AdapterServing, Command
from shardwright.runtimes import triton_serve, triton_versions
from shardwright.runtimes.base import Refusal, Serving
from shardwright.runtimes.tensorrt_llm import TensorRTLLM
from shardwright.runtimes.triton_checks import SPEC_CHECKS, TritonAsked


class Triton(TensorRTLLM):
    """TensorRT-LLM's models, chain and proof; what differs stands here."""

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
