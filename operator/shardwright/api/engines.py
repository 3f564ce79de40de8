"""What an engine's version and backend are where the user leaves them out: they go by the runtime.

They are no defaults of the schema, since a default cannot follow another field: who changes the one
line `runtime` would be left with the other runtime's version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# The newest version of each runtime whose command line and limits are recorded.
DEFAULT_VERSIONS: Mapping[str, str] = {
    "TensorRTLLM": "1.2.1",
    "VLLM": "0.33.0",
    "SGLang": "0.5.23",
    # of the TensorRT-LLM in its image
    "Triton": "1.2.1",
    # of the container, which holds vLLM 0.31.0
    "NIM": "2.1.5",
}
# Runtimes with a choice of backends, and which is meant: the others have one way to run.
DEFAULT_BACKENDS: Mapping[str, str] = {"TensorRTLLM": "TensorRT", "Triton": "TensorRT"}


def with_defaults(raw: Mapping[str, Any], first: str) -> dict[str, Any]:
    """An engine as written, with version and backend; `first` is the default runtime."""
    runtime = str(raw.get("runtime") or first)
    found = dict(raw)
    for name, table in (("version", DEFAULT_VERSIONS), ("backend", DEFAULT_BACKENDS)):
        if found.get(name) is None and runtime in table:
            found[name] = table[runtime]
    return found


def leaves_version_open(spec: Mapping[str, Any]) -> bool:
    """Whether a spec as written names no version of its engine."""
    engine = spec.get("engine") or {}
    return isinstance(engine, Mapping) and engine.get("version") is None


def runtime_of(spec: Mapping[str, Any], first: str) -> str:
    """The runtime of a spec as written; `first` is the default one."""
    return str((spec.get("engine") or {}).get("runtime") or first)


def with_version(spec: Mapping[str, Any], version: str) -> dict[str, Any]:
    """A spec as written that names a version; the spec that is given stays as it is."""
    return {**spec, "engine": {**(spec.get("engine") or {}), "version": version}}
