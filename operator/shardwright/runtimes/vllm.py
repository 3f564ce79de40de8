"""vLLM as an engine runtime: it loads a published checkpoint and splits it at each start.

Over several nodes every stage runs `vllm serve` with its node's rank; ranks find each other through
torch.distributed on the first stage, and only that one serves HTTP. Read in the wheel of 0.33.0.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardwright.api.spec import KVPrecision, LLMDeploymentSpec, Runtime, WeightPrecision
from shardwright.resolved import Resolved
from shardwright.runner.contract import Command, ModelFacts
from shardwright.runtimes import (
    direct_experts,
    direct_lora,
    direct_speculative,
    vllm_serve,
)
from shardwright.runtimes.base import Refusal
from shardwright.runtimes.direct import Absent, Asked, Direct, Offer
from shardwright.runtimes.direct_runtime import DirectRuntime
from shardwright.runtimes.flag_files import owned_by
from shardwright.runtimes.published import method
from shardwright.runtimes.tensorrt_precision import AMPERE, HOPPER, TURING, Compute, Span
from shardwright.runtimes.vllm_loads import LOADS

_BEFORE_ADA = Span(TURING, (8, 8))
_NOTHING = "nothing: the operator starts the ranks of every stage"
_HTTP = "nothing: Service, probes and the runner ask the pod over plain HTTP without a key"

OWNED: Mapping[str, str] = owned_by(
    *direct_experts.VLLM_OWNED,
    *direct_lora.VLLM_OWNED,
    *direct_speculative.VLLM_OWNED,
    ("model.uri", ("model", "tokenizer", "revision", "code-revision", "tokenizer-revision")),
    # A token here would stand in the spec and in every revision of it, for all to read.
    ("model.secretRef", ("hf-token",)),
    ("model.servedName", ("served-model-name",)),
    ("model.trustRemoteCode", ("trust-remote-code",)),
    ("model.dtype", ("dtype",)),
    ("quantization.weights", ("quantization", "quantization-config")),
    ("quantization.kvCache", ("kv-cache-dtype",)),
    ("engine.limits.maxBatchSize", ("max-num-seqs",)),
    ("engine.limits.maxNumTokens", ("max-num-batched-tokens",)),
    ("engine.limits.maxSeqLen", ("max-model-len",)),
    (
        "engine.limits.gpuMemoryFraction",
        ("gpu-memory-utilization", "kv-cache-memory-bytes", "num-gpu-blocks-override"),
    ),
    ("parallelism.tensor", ("tensor-parallel-size",)),
    ("parallelism.pipeline", ("pipeline-parallel-size",)),
    (
        "parallelism (a replica is tensor × pipeline ranks) and replicas",
        (
            "prefill-context-parallel-size",
            "data-parallel-rank",
            "data-parallel-start-rank",
            "data-parallel-size-local",
            "data-parallel-address",
            "data-parallel-rpc-port",
            "data-parallel-backend",
            "data-parallel-hybrid-lb",
            "data-parallel-external-lb",
            "data-parallel-multi-port-external-lb",
            "data-parallel-supervisor-port",
        ),
    ),
    (
        _NOTHING,
        (
            "nnodes",
            "node-rank",
            "master-addr",
            "master-port",
            "headless",
            "distributed-executor-backend",
            "api-server-count",
            "config",
        ),
    ),
    (
        _HTTP,
        (
            "host",
            "port",
            "uds",
            "grpc",
            "grpc-port",
            "api-key",
            "root-path",
            "ssl-keyfile",
            "ssl-certfile",
            "ssl-ca-certs",
            "ssl-cert-reqs",
            "ssl-ciphers",
            "enable-ssl-refresh",
        ),
    ),
)

ENGINE = Direct(
    runtime=Runtime.VLLM,
    # Tags of this form stand in the project's documents; this one was not pulled by us.
    repository="docker.io/vllm/vllm-openai",
    versions=("0.33.0",),
    line="0.33.",
    record="vllm-serve-0.33.0",
    owned=OWNED,
    switches_off=True,
    weights={
        WeightPrecision.FP8: Offer(
            Span(TURING), "vllm-fp8-online", online=True, unpacked=_BEFORE_ADA
        ),
        WeightPrecision.INT4_AWQ: Offer(Span(TURING), "vllm-awq-checkpoint"),
        WeightPrecision.INT4_GPTQ: Offer(Span(TURING), "vllm-gptq-checkpoint"),
        WeightPrecision.INT8_SMOOTHQUANT: Offer(Span(TURING, HOPPER), "vllm-int8-w8a8"),
        WeightPrecision.INT8: Offer(Span(TURING), "vllm-int8-w8a16"),
        WeightPrecision.NVFP4: Offer(
            Span(TURING), "vllm-nvfp4-checkpoint", unpacked=Span(TURING, (9, 9))
        ),
    },
    kv_cache={KVPrecision.FP8: Offer(Span(AMPERE), "vllm-fp8-kv", unpacked=Span(AMPERE, (8, 8)))},
    no_weights={
        WeightPrecision.W4A8_AWQ: Absent(
            "ModelOpt's W4A8 AWQ is not among the algorithms that it loads", "vllm-modelopt-algos"
        ),
    },
    no_kv_cache={
        KVPrecision.INT8: Absent(
            "its INT8 cache has a scale for every token and head, in one attention backend only",
            "vllm-kv-cache-dtypes",
        ),
    },
    loads=LOADS,
    loads_source="vllm-quantization-methods",
)
# Refused by vLLM itself unless it is told to take them.
_DEPRECATED = frozenset({"fbgemm-fp8", "fp-quant"})
_ALLOW = "allow-deprecated-quantization"


def whole_prompts_too_long(asked: Asked) -> Refusal | None:
    """Without chunked prefill a forward pass must hold the longest prompt."""
    limits = asked.spec.engine.limits
    if asked.spec.engine.config.get("enable-chunked-prefill") is not False:
        return None
    if limits.max_num_tokens >= limits.max_seq_len:
        return None
    return Refusal(
        "PromptDoesNotFitPass",
        f"engine.limits.maxNumTokens {limits.max_num_tokens} is below maxSeqLen "
        f"{limits.max_seq_len}, and engine.config.enable-chunked-prefill is false: a prompt is "
        "then computed in one pass; raise maxNumTokens, lower maxSeqLen, or leave chunked "
        "prefill on",
        "vllm-scheduler-config",
    )


def deprecated_method(spec: LLMDeploymentSpec, facts: ModelFacts) -> Refusal | None:
    """A checkpoint of a quantizer that vLLM loads only when it is told to."""
    if method(facts) not in _DEPRECATED or spec.engine.config.get(_ALLOW) is True:
        return None
    return Refusal(
        "CheckpointNotSupported",
        f"model.uri {spec.model.uri}: the checkpoint is quantized by {facts.quantization}, which "
        f"vLLM {spec.engine.version} calls deprecated and refuses; set engine.config.{_ALLOW} to "
        "true, or name another checkpoint",
        "vllm-deprecated-methods",
    )


class VLLM(DirectRuntime):
    """vLLM."""

    name: str = Runtime.VLLM.value
    engine = ENGINE
    own_checks = (whole_prompts_too_long,)

    def refuse_model(
        self, spec: LLMDeploymentSpec, facts: ModelFacts, compute: Compute | None = None
    ) -> Refusal | None:
        """The first check that objects."""
        return super().refuse_model(spec, facts, compute) or deprecated_method(spec, facts)

    def serve_command(self, resolved: Resolved, stage: int = 0) -> Command:
        """`vllm serve`, without an HTTP side on all stages but the first."""
        return vllm_serve.serve_command(ENGINE, resolved, stage)
