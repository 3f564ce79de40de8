"""Causes of being slow that lie in the load: precision, a full KV cache, limits, long prompts."""

from __future__ import annotations

from shardwright.api.serving import WeightPrecision
from shardwright.diagnose.finding import Finding, Fit
from shardwright.diagnose.observed import Observed, Symptom
from shardwright.words import counted

_INT4 = (WeightPrecision.INT4_AWQ, WeightPrecision.INT4_GPTQ)
_ADA = (8, 9)
_SMALL_BATCH, _LARGE_BATCH = 4, 16
_QUANTIZATION_BLOG = (
    "NVIDIA, TensorRT-LLM, docs/source/blogs/quantization-in-TRT-LLM.md (gain of INT4 weights: "
    "high at batch 4 and below, low from batch 16)"
)


def int4_at_large_batch(observed: Observed) -> Finding | None:
    """INT4 weights save reading; with many requests computing rules, and is still 16-bit."""
    facts = observed.facts
    if not observed.shows(Symptom.LITTLE_GAIN_FROM_INT4, Symptom.LOW_THROUGHPUT):
        return None
    if facts.weights is not None and facts.weights not in _INT4:
        return None
    cause = (
        "INT4 weights are unpacked to 16 bits before they are multiplied. They save memory "
        "traffic, which rules at small batches; at large ones computing rules, and got no faster."
    )
    asked = observed.shows(Symptom.LITTLE_GAIN_FROM_INT4)
    if facts.weights is None and not asked:
        return None
    batch = facts.concurrency
    if batch is None:
        fit, evidence = Fit.POSSIBLE, "facts.concurrency (requests at once, a replica) is not known"
    elif batch <= _SMALL_BATCH:
        evidence = f"{counted(batch, 'request')} at once is where INT4 gains most"
        return Finding(
            "INT4AtLargeBatch", Fit.RULED_OUT, cause, (evidence,), (), _QUANTIZATION_BLOG
        )
    elif batch < _LARGE_BATCH:
        fit, evidence = Fit.POSSIBLE, f"{batch} requests at once is between small and large"
    else:
        fit, evidence = Fit.SHOWN, f"{batch} requests at once is a large batch"
    return Finding(
        "INT4AtLargeBatch", fit, cause, (evidence,), _instead_of_int4(observed), _QUANTIZATION_BLOG
    )


def _instead_of_int4(observed: Observed) -> tuple[str, ...]:
    capability = observed.facts.capability
    fp8 = (
        "quantization.weights FP8: computes in 8 bits, gains at every batch size, and loses less "
        "accuracy."
    )
    older = (
        "quantization.weights INT8SmoothQuant computes in 8 bits on GPUs without FP8 (A100); check "
        "its accuracy. Or keep INT4 and serve smaller batches on more replicas."
    )
    if capability is None:
        return (f"On compute capability 8.9 or higher (L40S, H100, later): {fp8}", older)
    return (fp8,) if capability >= _ADA else (older,)


def kv_cache_full(observed: Observed) -> Finding | None:
    """The pool holds fewer requests than are sent; the rest queue or are computed twice."""
    facts = observed.facts
    if not observed.shows(Symptom.REQUESTS_QUEUE, Symptom.LOW_THROUGHPUT):
        return None
    cause = "The KV cache is full: requests wait for room, or are preempted and computed again."
    known = (facts.kv_tokens, facts.concurrency, facts.request_tokens)
    if None in known:
        fit = Fit.POSSIBLE
        evidence = "facts.kvTokens, concurrency or requestTokens is not known; status.plan tells"
    else:
        room = (facts.kv_tokens or 0) // (facts.request_tokens or 1)
        evidence = (
            f"{facts.kv_tokens:,} tokens hold {counted(room, 'request')} of "
            f"{facts.request_tokens:,}; sent at once: {facts.concurrency:,}"
        )
        if room >= (facts.concurrency or 0):
            return Finding("KVCacheFull", Fit.RULED_OUT, cause, (evidence,))
        fit = Fit.SHOWN
    remedies = [
        "More replicas: each brings its own KV cache.",
        "More tensor ranks, or weights in fewer bits: what weights leave is KV cache.",
        "A smaller engine.limits.maxSeqLen, if requests are shorter than it allows.",
    ]
    if facts.kv_cache is None or facts.kv_cache.value == "None":
        remedies.insert(0, "quantization.kvCache FP8: twice the tokens in the same memory.")
    return Finding(
        "KVCacheFull",
        fit,
        cause,
        (evidence,),
        tuple(remedies),
        "vLLM 0.19.0 on H100, Llama-3.1-8B: 476,016 tokens in BF16, 952,032 in FP8, same pool",
    )


def batch_limit_reached(observed: Observed) -> Finding | None:
    """The engine takes no more requests at once, whatever memory there is."""
    facts = observed.facts
    if not observed.shows(Symptom.REQUESTS_QUEUE, Symptom.LOW_THROUGHPUT):
        return None
    if facts.max_batch_size is None or facts.concurrency is None:
        return None
    cause = "engine.limits.maxBatchSize is reached: further requests wait, whatever memory is left."
    evidence = (
        f"maxBatchSize {facts.max_batch_size}, {counted(facts.concurrency, 'request')} at once"
    )
    if facts.concurrency <= facts.max_batch_size:
        return Finding("BatchLimitReached", Fit.RULED_OUT, cause, (evidence,))
    return Finding(
        "BatchLimitReached",
        Fit.SHOWN,
        cause,
        (evidence,),
        (
            (
                f"Raise engine.limits.maxBatchSize to {facts.concurrency} (this builds an engine), "
                "or add replicas."
            ),
        ),
    )


def first_token_compute(observed: Observed) -> Finding | None:
    """Reading the prompt is computing: few ranks, 16 bits and long prompts make it long."""
    facts = observed.facts
    if not observed.shows(Symptom.SLOW_FIRST_TOKEN):
        return None
    evidence, remedies = [], []
    if facts.weights in (WeightPrecision.NONE, *_INT4):
        evidence.append(f"prompts are computed in 16 bits (quantization.weights {facts.weights})")
        if facts.capability is None or facts.capability >= _ADA:
            remedies.append("quantization.weights FP8: twice the FLOPs for prompts.")
    domain = facts.nvlink_domain
    if facts.tensor is not None and domain is not None and facts.tensor < domain:
        evidence.append(
            f"tensor {facts.tensor} leaves GPUs of the NVLink domain of {domain} unused"
        )
        remedies.append(f"More tensor ranks, up to {domain}: a prompt is shared among them.")
    long = facts.input_tokens is not None and facts.max_num_tokens is not None
    if long and (facts.input_tokens or 0) > (facts.max_num_tokens or 0):
        evidence.append(
            f"prompts of {facts.input_tokens:,} tokens take several passes of "
            f"{facts.max_num_tokens:,}"
        )
        remedies.append("Raise engine.limits.maxNumTokens, if memory allows.")
    fit = Fit.SHOWN if evidence else Fit.POSSIBLE
    if not evidence:
        evidence.append("facts.weights, tensor, nvlinkDomain or inputTokens is not known")
    remedies.append("If requests wait before they start: more replicas, see RequestsQueue.")
    return Finding(
        "FirstTokenCompute",
        fit,
        "The time to the first token is computing the prompt, and waiting for it to begin.",
        tuple(evidence),
        tuple(remedies),
        "TensorRT-LLM 0.6 performance.md, LLaMA-70B, 2,048 tokens, TP 4: 109 ms in FP8 on H100, "
        "377 ms in FP16 on A100",
    )


def experts_split_for_latency(observed: Observed) -> Finding | None:
    """A mixture of experts under load wants its attention in copies, its experts whole."""
    facts = observed.facts
    if not observed.shows(Symptom.LOW_THROUGHPUT) or not facts.experts:
        return None
    if facts.tensor is None or facts.tensor == 1:
        return None
    return Finding(
        "ExpertsSplitForLatency",
        Fit.POSSIBLE,
        "Tensor parallelism cuts every expert thin and keeps the KV cache of each request on all "
        "ranks: good for one request, not for many.",
        (f"{counted(facts.experts, 'expert')}, tensor {facts.tensor}",),
        (
            (
                "For throughput: data-parallel attention with expert parallelism, where the "
                "runtime offers it; otherwise smaller tensor and more replicas."
            ),
        ),
        "NVIDIA, TensorRT-LLM, DeepSeek-R1 on H200: 20 tokens a second and GPU with TP 8 at one "
        "request, 1,436 with attention-DP 8 and EP 8 at 1,024",
    )
