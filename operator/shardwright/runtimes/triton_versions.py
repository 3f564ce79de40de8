"""Which of Triton's images holds which TensorRT-LLM, and where things are in it.

`engine.version` is TensorRT-LLM's: what can be built and served follows from it, and several
monthly releases of Triton hold the same one. Source of the pairs: the table of trtllm-python-py3 in
docs/introduction/compatibility.md of triton-inference-server/server (read at e1db8a60); the
Dockerfiles of triton-inference-server/tensorrtllm_backend (r25.09 to r26.07) say the same, but for
26.03, which they build from 1.2.0rc8. None of the images was pulled by us.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardwright.api.spec import LLMDeploymentSpec, Runtime
from shardwright.runtimes import tensorrt_versions

# The newest release of Triton for each version of TensorRT-LLM.
RELEASES: Mapping[str, str] = {
    "1.0.0": "25.10",
    "1.1.0": "26.02",
    "1.2.0": "26.03",
    "1.2.1": "26.07",
}
KNOWN_VERSIONS = tuple(RELEASES)
_REPOSITORY = "nvcr.io/nvidia/tritonserver"

# dockerfile/Dockerfile.triton.trt_llm_backend copies TensorRT-LLM's examples, and the models of its
# triton_backend, into /app; the server itself is where every image of Triton has it.
EXAMPLES = "/app/examples"
ALL_MODELS = "/app/all_models"
SERVER = "/opt/tritonserver/bin/tritonserver"


def examples_of(spec: LLMDeploymentSpec) -> str:
    """Where an image that builds has TensorRT-LLM's examples."""
    return EXAMPLES if spec.engine.runtime is Runtime.TRITON else tensorrt_versions.EXAMPLES


def known_image(version: str) -> str | None:
    """The image that holds a known version of TensorRT-LLM."""
    release = RELEASES.get(version)
    return f"{_REPOSITORY}:{release}-trtllm-python-py3" if release else None
