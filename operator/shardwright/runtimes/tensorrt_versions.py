"""TensorRT-LLM's versions: which have an image, an engine builder, and a recorded command line."""

from __future__ import annotations

import re

# The tags 1.0.0, 1.1.0, 1.2.0 and 1.3.0rc14 were seen in vendor documents and in public code. 1.2.1
# is by analogy: it was seen in other people's configurations only, and never pulled by us.
_REPOSITORY = "nvcr.io/nvidia/tensorrt-llm/release"
KNOWN_VERSIONS = ("1.0.0", "1.1.0", "1.2.0", "1.2.1", "1.3.0rc14")

# trtllm-build and convert_checkpoint.py were removed from the main branch in mid 2026, after 1.2.
LAST_WITH_BUILDER = (1, 2)

# Where the release images install the examples, quantize.py and convert_checkpoint.py among them.
EXAMPLES = "/app/tensorrt_llm/examples"

# The major version whose command line is recorded (tests/contracts).
RECORDED_MAJOR = 1

_VERSION = re.compile(r"^(\d+)\.(\d+)\.")


def release_line(version: str) -> tuple[int, int]:
    """Major and minor of a version such as `1.3.0rc14`.

    Raises:
        ValueError: When the text does not start with three numbers.
    """
    match = _VERSION.match(version)
    if match is None:
        raise ValueError(f"engine.version {version!r} is not of the form 1.2.1 or 1.3.0rc14")
    return int(match.group(1)), int(match.group(2))


def known_image(version: str) -> str | None:
    """The vendor's release image of a known version."""
    return f"{_REPOSITORY}:{version}" if version in KNOWN_VERSIONS else None


def has_builder(version: str) -> bool:
    """Whether this version can compile a TensorRT engine."""
    return release_line(version) <= LAST_WITH_BUILDER
