"""What an engine's version and backend are where the user leaves them out: they go by the runtime.

They are no defaults of the schema, since a default cannot follow another field: who changes the one
line `runtime` would be left with the other runtime's version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

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


class Engine(Protocol):
    """The part of an engine that is kept while the user leaves it out."""

    @property
    def runtime(self) -> str:
        """Name of the runtime."""

    @property
    def version(self) -> str:
        """Its version."""


def with_defaults(raw: Mapping[str, Any], first: str) -> dict[str, Any]:
    """An engine as written, with version and backend; `first` is the default runtime."""
    runtime = str(raw.get("runtime") or first)
    found = dict(raw)
    for name, table in (("version", DEFAULT_VERSIONS), ("backend", DEFAULT_BACKENDS)):
        if found.get(name) is None and runtime in table:
            found[name] = table[runtime]
    return found


def kept_version(spec: Mapping[str, Any], before: Engine | None, first: str) -> Mapping[str, Any]:
    """A spec as written, with the version that an earlier revision ran where it names none.

    So an operator that recommends a newer version changes nothing that runs; who wants it writes
    it down.
    """
    engine = spec.get("engine") or {}
    if before is None or not isinstance(engine, Mapping) or engine.get("version") is not None:
        return spec
    if str(engine.get("runtime") or first) != before.runtime:
        return spec
    return {**spec, "engine": {**engine, "version": before.version}}
