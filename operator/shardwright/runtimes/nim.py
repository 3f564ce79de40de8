"""NVIDIA NIM for large language models as an engine runtime: its model-free container with vLLM.

The container is pointed at the folder that the operator fetched, makes a manifest of it when it
starts, and runs the vLLM inside behind a proxy of its own. Read in NVIDIA's documents of 2.1
(docs.nvidia.com/nim/large-language-models); neither container nor program was run by us.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.api.settings import Settings
from shardwright.api.spec import KVPrecision, LLMDeploymentSpec, Runtime, WeightPrecision
from shardwright.resolved import Resolved
from shardwright.runner.contract import AdapterServing, Command, ModelFacts
from shardwright.runtimes import direct_checks, nim_checks, nim_serve, vllm
from shardwright.runtimes.base import Refusal, Serving
from shardwright.runtimes.direct import Absent, Direct, Offer
from shardwright.runtimes.direct_runtime import DirectRuntime
from shardwright.runtimes.loads import Loads
from shardwright.runtimes.published import published_as
from shardwright.runtimes.tensorrt_precision import AMPERE, Compute, Span

_BEFORE_ADA = Span(AMPERE, (8, 8))
_BEFORE_BLACKWELL = Span(AMPERE, (9, 9))
_NO_PROFILE = Absent(
    "its profiles are of 16 bits, FP8, NVFP4 or MXFP4 weights; runtime VLLM loads others",
    "nim-precisions",
)

# What the vLLM inside loads, of precisions that have profiles, on GPUs that are verified.
_LOADS = {
    kind: Loads(Span(AMPERE), "nim-precisions")
    for kind in vllm.ENGINE.loads
    if kind in ("mxfp4", "gpt-oss-mxfp4")
    or (kind != "fbgemm-fp8" and published_as(kind) & {WeightPrecision.FP8, WeightPrecision.NVFP4})
}

ENGINE = Direct(
    runtime=Runtime.NIM,
    # The documents show the repository in examples and leave the tag to a catalog with a login.
    repository="",
    versions=("2.1.5",),
    line="2.1.",
    record=nim_checks.RECORD,
    owned=vllm.OWNED,
    switches_off=True,
    weights={
        WeightPrecision.FP8: Offer(
            Span(AMPERE), "nim-forwards-to-vllm", online=True, unpacked=_BEFORE_ADA
        ),
        WeightPrecision.NVFP4: Offer(Span(AMPERE), "nim-precisions", unpacked=_BEFORE_BLACKWELL),
    },
    kv_cache={KVPrecision.FP8: Offer(Span(AMPERE), "nim-forwards-to-vllm", unpacked=_BEFORE_ADA)},
    no_weights={
        WeightPrecision.INT4_AWQ: _NO_PROFILE,
        WeightPrecision.INT4_GPTQ: _NO_PROFILE,
        WeightPrecision.INT8_SMOOTHQUANT: _NO_PROFILE,
        WeightPrecision.INT8: _NO_PROFILE,
        WeightPrecision.W4A8_AWQ: Absent(
            "ModelOpt's W4A8 AWQ is not among the algorithms that vLLM loads", "vllm-modelopt-algos"
        ),
    },
    no_kv_cache={
        KVPrecision.INT8: Absent(
            "vLLM's INT8 cache has a scale for every token and head, in one attention backend only",
            "vllm-kv-cache-dtypes",
        ),
    },
    loads=_LOADS,
    loads_source="nim-precisions",
)


class NIM(DirectRuntime):
    """NIM."""

    name: str = Runtime.NIM.value
    engine = ENGINE

    def refuse_spec(
        self,
        spec: LLMDeploymentSpec,
        compute: tuple[int, int] | None,
        settings: Settings | None = None,
    ) -> Refusal | None:
        """The first check that objects."""
        asked = self.asked(spec, compute, settings)
        # What is NIM's own comes before what a flag takes or which precision fits: other values of
        # those would not help.
        checks = (direct_checks.unknown_version, *nim_checks.SPEC_CHECKS)
        own = next((found for check in checks if (found := check(asked))), None)
        return own or direct_checks.refuse_spec(asked)

    def refuse_model(
        self, spec: LLMDeploymentSpec, facts: ModelFacts, compute: Compute | None = None
    ) -> Refusal | None:
        """The first check that objects; of a planner's shapes, only this one is asked."""
        return nim_checks.several_stages(spec) or super().refuse_model(spec, facts, compute)

    def serve_command(self, resolved: Resolved, stage: int = 0) -> Command:  # noqa: ARG002
        """`nim-serve`: there is one stage."""
        return nim_serve.serve_command(ENGINE, resolved)

    def serve_config(self, resolved: Resolved) -> Mapping[str, Any]:  # noqa: ARG002
        """Nothing: the user's own flags stand on the command line, which wins over all else."""
        return {}

    def serving(self, resolved: Resolved) -> Serving:  # noqa: ARG002
        """The proxy's page of health."""
        return Serving(health_path=nim_serve.HEALTH_PATH)

    def adapters(self, resolved: Resolved) -> AdapterServing | None:  # noqa: ARG002
        """None: adapters are refused."""
        return None
