"""SGLang as an engine runtime: it loads a published checkpoint and splits it at each start.

Over several nodes every stage runs the same command with its node's rank; only the first serves
HTTP. Read in the wheel of 0.5.23.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardwright.api.spec import KVPrecision, Runtime, WeightPrecision
from shardwright.resolved import Resolved
from shardwright.runner.contract import Command
from shardwright.runtimes import (
    direct_experts,
    direct_lora,
    direct_speculative,
    sglang_serve,
)
from shardwright.runtimes.base import Refusal
from shardwright.runtimes.direct import Absent, Asked, Direct, Offer
from shardwright.runtimes.direct_runtime import DirectRuntime
from shardwright.runtimes.flag_files import owned_by
from shardwright.runtimes.sglang_loads import LOADS
from shardwright.runtimes.tensorrt_precision import AMPERE, HOPPER, TURING, Span

_BEFORE_ADA = Span(AMPERE, (8, 8))

OWNED: Mapping[str, str] = owned_by(
    *direct_experts.SGLANG_OWNED,
    *direct_lora.SGLANG_OWNED,
    *direct_speculative.SGLANG_OWNED,
    ("model.uri", ("model-path", "tokenizer-path", "revision")),
    ("model.servedName", ("served-model-name",)),
    ("model.trustRemoteCode", ("trust-remote-code",)),
    ("model.dtype", ("dtype",)),
    ("quantization.weights", ("quantization",)),
    ("quantization.kvCache", ("kv-cache-dtype",)),
    ("engine.limits.maxBatchSize", ("max-running-requests",)),
    ("engine.limits.maxNumTokens", ("chunked-prefill-size", "max-prefill-tokens")),
    ("engine.limits.maxSeqLen", ("context-length",)),
    ("engine.limits.gpuMemoryFraction", ("mem-fraction-static", "max-total-tokens")),
    ("parallelism.tensor", ("tp-size",)),
    ("parallelism.pipeline", ("pp-size",)),
    ("parallelism (a replica is tensor × pipeline ranks) and replicas", ("dp-size",)),
    (
        "nothing: the operator starts the ranks of every stage",
        (
            "nnodes",
            "node-rank",
            "dist-init-addr",
            "config",
            "device",
            "base-gpu-id",
            "gpu-id-step",
            "use-ray",
        ),
    ),
    ("nothing: the operator reads the server's metrics", ("enable-metrics",)),
    (
        "nothing: Service, probes and the runner ask the pod over plain HTTP without a key",
        (
            "host",
            "port",
            "smg-grpc-mode",
            "grpc-mode",
            "grpc-port",
            "api-key",
            "admin-api-key",
            "fastapi-root-path",
            "skip-tokenizer-init",
            "ssl-keyfile",
            "ssl-certfile",
            "ssl-ca-certs",
            "ssl-keyfile-password",
            "enable-ssl-refresh",
        ),
    ),
)

ENGINE = Direct(
    runtime=Runtime.SGLANG,
    # Tags of this form stand in the project's documents; this one was not pulled by us.
    repository="docker.io/lmsysorg/sglang",
    versions=("0.5.23",),
    # Flags come and go between patch releases.
    line="0.5.23",
    record="sglang.launch_server-0.5.23",
    owned=OWNED,
    switches_off=False,
    weights={
        WeightPrecision.FP8: Offer(
            Span(AMPERE), "sglang-fp8-online", online=True, unpacked=_BEFORE_ADA
        ),
        WeightPrecision.INT4_AWQ: Offer(Span(TURING), "sglang-awq-checkpoint"),
        WeightPrecision.INT4_GPTQ: Offer(Span(AMPERE), "sglang-gptq-checkpoint"),
        WeightPrecision.INT8_SMOOTHQUANT: Offer(Span(AMPERE, HOPPER), "sglang-int8-w8a8"),
        WeightPrecision.INT8: Offer(Span(AMPERE), "sglang-int8-w8a16"),
        WeightPrecision.NVFP4: Offer(
            Span(AMPERE), "sglang-nvfp4-checkpoint", unpacked=Span(AMPERE, (9, 9))
        ),
    },
    kv_cache={KVPrecision.FP8: Offer(Span(AMPERE), "sglang-fp8-kv", unpacked=_BEFORE_ADA)},
    no_weights={
        WeightPrecision.W4A8_AWQ: Absent(
            "ModelOpt's W4A8 AWQ is not among the algorithms that it loads", "sglang-modelopt-algos"
        ),
    },
    no_kv_cache={
        KVPrecision.INT8: Absent(
            "--kv-cache-dtype has no whole-number type", "sglang-kv-cache-dtypes"
        ),
    },
    loads=LOADS,
    loads_source="sglang-quantization-methods",
)


def pages_do_not_divide(asked: Asked) -> Refusal | None:
    """SGLang cuts prompts at whole pages of the KV cache."""
    page = asked.spec.engine.config.get("page-size")
    tokens = asked.spec.engine.limits.max_num_tokens
    if not isinstance(page, int) or page < 1 or tokens % page == 0:
        return None
    return Refusal(
        "PagesDoNotDivide",
        f"engine.limits.maxNumTokens {tokens} is no multiple of engine.config.page-size {page}: "
        f"SGLang cuts prompts at whole pages; use {max(page, tokens // page * page)}",
        "sglang-chunked-prefill",
    )


class SGLang(DirectRuntime):
    """SGLang."""

    name: str = Runtime.SGLANG.value
    engine = ENGINE
    own_checks = (pages_do_not_divide,)

    def serve_command(self, resolved: Resolved, stage: int = 0) -> Command:  # noqa: ARG002
        """`sglang.launch_server`, alike on every stage."""
        return sglang_serve.serve_command(ENGINE, resolved)
