"""Versions of the tools in this image, from their package metadata; nothing of them is imported.

They are written into a manifest by the step that makes an artifact, and compared before it is
loaded: TensorRT refuses an engine of another version, and says so only after minutes.
"""

from __future__ import annotations

from importlib import metadata

# Name in manifests and reports → distributions that bring it, the first one found counts. TensorRT
# is packaged under several names, by CUDA version (as the pages of the packages say).
_TOOLS = {
    "tensorrt_llm": ("tensorrt_llm",),
    "tensorrt": ("tensorrt", "tensorrt-cu13", "tensorrt-cu12"),
    "modelopt": ("nvidia-modelopt",),
    "torch": ("torch",),
    "transformers": ("transformers",),
}


def tool_versions() -> dict[str, str]:
    """Versions by tool, for those that are installed."""
    found = {}
    for tool, names in _TOOLS.items():
        for name in names:
            try:
                found[tool] = metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
            break
    return found
