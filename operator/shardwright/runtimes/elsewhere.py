"""Which other runtimes take a published checkpoint that one does not: the way out of a refusal."""

from __future__ import annotations

from collections.abc import Mapping

from shardwright.api.spec import LLMDeploymentSpec, Runtime
from shardwright.runner.contract import ModelFacts
from shardwright.runtimes import sglang_loads, vllm_loads
from shardwright.runtimes.loads import Table, loads
from shardwright.runtimes.tensorrt_precision import Compute

_TABLES: Mapping[Runtime, Table] = {
    Runtime.VLLM: vllm_loads.LOADS,
    Runtime.SGLANG: sglang_loads.LOADS,
}


def elsewhere(spec: LLMDeploymentSpec, facts: ModelFacts, compute: Compute | None) -> str:
    """The end of a sentence that names them; empty where no other runtime loads it there."""
    others = [
        name.value
        for name, table in _TABLES.items()
        if name is not spec.engine.runtime and loads(table, facts, compute)
    ]
    if not others:
        return ""
    return f", or use engine.runtime {' or '.join(others)}, with which it is served as it is"
