"""Which release this installation claims to be, and the library versions that go with it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

VERSION = "SHARDWRIGHT_STANDIN_VERSION"
DEFAULT_VERSION = "1.2.1"
INSTALLED = Path(__file__).parent / "installed.json"

# TensorRT of a TensorRT-LLM release: the support matrix of Triton's containers for 1.0 and 1.1
# (25.09, 25.12), the Dockerfiles of tensorrtllm_backend r26.04 to r26.07 for 1.2.1.
TENSORRT: Mapping[str, str] = {
    "1.0.0": "10.11.0.33",
    "1.1.0": "10.13.3.9",
    "1.2.0": "10.14.1.48",  # by analogy to 1.2.1, not read
    "1.2.1": "10.14.1.48",
}
# No engine is built by it, and which TensorRT it brings is not known.
WITHOUT_BUILDER = frozenset({"1.3.0rc14"})


class UnknownReleaseError(ValueError):
    """The release asked for has no known TensorRT."""


def version() -> str:
    """TensorRT-LLM's version: from the environment, else what was installed, else 1.2.1."""
    asked = os.environ.get(VERSION)
    if asked:
        return asked
    if INSTALLED.exists():
        return str(json.loads(INSTALLED.read_text(encoding="utf-8"))["version"])
    return DEFAULT_VERSION


def tensorrt(release: str) -> str:
    """TensorRT's version in that release.

    Raises:
        UnknownReleaseError: When it is not known.
    """
    found = TENSORRT.get(release)
    if found is None:
        known = ", ".join(TENSORRT)
        raise UnknownReleaseError(f"{VERSION}={release} has no known TensorRT; known are {known}")
    return found


def distributions(release: str) -> dict[str, str]:
    """Names and versions of the Python packages that an image of that release has.

    Raises:
        UnknownReleaseError: When the release is not known.
    """
    if release in WITHOUT_BUILDER:
        return {"tensorrt_llm": release}
    return {"tensorrt_llm": release, "tensorrt": tensorrt(release)}


def serialization_tag(tensorrt_version: str) -> int:
    """The number that stands for a TensorRT version in a plan file.

    Real tags are small integers of which only a few are known (tensorrtllm_backend#531 has 228 and
    237), so these are the stand-in's own: equal exactly when major and minor version are.
    """
    major, minor = tensorrt_version.split(".")[:2]
    return int(major) * 100 + int(minor)
