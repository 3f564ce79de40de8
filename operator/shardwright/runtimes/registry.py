"""The runtimes there are: adding one adds a module and a line here."""

from __future__ import annotations

from collections.abc import Mapping

from shardwright.api.spec import Runtime
from shardwright.runtimes import nim, sglang, vllm
from shardwright.runtimes.base import EngineRuntime
from shardwright.runtimes.direct import Direct
from shardwright.runtimes.nim import NIM
from shardwright.runtimes.sglang import SGLang
from shardwright.runtimes.tensorrt_llm import TensorRTLLM
from shardwright.runtimes.triton import Triton
from shardwright.runtimes.vllm import VLLM

RUNTIMES: Mapping[Runtime, EngineRuntime] = {
    Runtime.TENSORRT_LLM: TensorRTLLM(),
    Runtime.TRITON: Triton(),
    Runtime.VLLM: VLLM(),
    Runtime.SGLANG: SGLang(),
    Runtime.NIM: NIM(),
}

# Those that load published checkpoints themselves: what each offers.
DIRECT: Mapping[Runtime, Direct] = {
    Runtime.VLLM: vllm.ENGINE,
    Runtime.SGLANG: sglang.ENGINE,
    Runtime.NIM: nim.ENGINE,
}


def runtime(name: Runtime) -> EngineRuntime:
    """The runtime of this name; every member of the enumeration has one (a test sees to it)."""
    return RUNTIMES[name]
