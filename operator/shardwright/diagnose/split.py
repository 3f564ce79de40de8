"""Causes of being slow that lie in the split: links, too fine a share, the pipeline's bubble."""

from __future__ import annotations

from shardwright.diagnose.finding import Finding, Fit
from shardwright.diagnose.observed import Observed, Symptom
from shardwright.plan.inventory import split_that_fits
from shardwright.words import counted

_PP_BLOG = (
    "vLLM blog, 2024-07-23, Llama 3.1 405B on 16 H100: TP 8 × PP 2 6.6 times as fast as TP 16 "
    "without InfiniBand"
)


def tensor_beyond_nvlink_domain(observed: Observed) -> Finding | None:
    """Every layer's all-reduce leaves NVLink, so more ranks wait for a slower link."""
    facts = observed.facts
    seen = observed.shows(Symptom.LATENCY_FLAT_WITH_TENSOR, Symptom.SLOW_SINGLE_REQUEST)
    rule = "TensorBeyondNVLinkDomain"
    cause = (
        "Tensor-parallel ranks lie beyond one NVLink domain: the all-reduce of every layer crosses "
        "a slower link, and what more ranks save in computing is lost in waiting."
    )
    if facts.tensor is None or facts.nvlink_domain is None:
        if not observed.shows(Symptom.LATENCY_FLAT_WITH_TENSOR):
            return None
        missing = "tensor" if facts.tensor is None else "nvlinkDomain"
        evidence = (
            f"facts.{missing} is not known: `nvidia-smi topo -m` on a node tells which GPUs share "
            "NVLink"
        )
        remedy = "Keep tensor within the GPUs that share NVLink; use stages or replicas beyond."
        return Finding(rule, Fit.POSSIBLE, cause, (evidence,), (remedy,), _PP_BLOG)
    domain = max(1, facts.nvlink_domain)
    if facts.tensor <= domain:
        if not seen:
            return None
        evidence = f"tensor {facts.tensor} is within the NVLink domain of {facts.nvlink_domain}"
        return Finding(rule, Fit.RULED_OUT, cause, (evidence,))
    if not (seen or facts.nvlink_domain):
        return None  # on PCIe alone nobody complains without a reason
    several = facts.nvlink_domain > 1
    links = f"{facts.nvlink_domain} GPUs share NVLink" if several else "no GPUs share NVLink"
    return Finding(
        rule,
        Fit.SHOWN,
        cause,
        (f"tensor is {facts.tensor}, {links} on {facts.gpu_product or 'these nodes'}",),
        _splits(observed, domain),
        _PP_BLOG,
    )


def _splits(observed: Observed, domain: int) -> tuple[str, ...]:
    facts = observed.facts
    world = (facts.tensor or 1) * (facts.pipeline or 1)
    remedies = []
    split = split_that_fits(world, domain, heads=facts.heads or 0)
    if split is not None and split != (facts.tensor, facts.pipeline or 1):
        tensor, stages = split
        remedies.append(
            f"Set parallelism to tensor {tensor}, pipeline {stages}: as many GPUs, all-reduce "
            "inside NVLink, only activations between stages."
        )
    remedies.append(
        f"Or keep tensor at {domain} or less and use the other GPUs for more replicas, where one "
        "replica holds the model (FP8 halves what it needs)."
    )
    return tuple(remedies)


def tensor_finer_than_work(observed: Observed) -> Finding | None:
    """Inside NVLink too, each rank's share becomes so small that fixed costs rule."""
    facts = observed.facts
    if not observed.shows(Symptom.LATENCY_FLAT_WITH_TENSOR):
        return None
    if facts.tensor is not None and facts.nvlink_domain is not None:
        if facts.tensor > max(1, facts.nvlink_domain):
            return None  # the rule above has the cause
        if facts.tensor == 1:
            return None
    evidence, fit = [], Fit.POSSIBLE
    if facts.kv_heads is not None and facts.tensor is not None:
        if facts.tensor > facts.kv_heads:
            fit = Fit.SHOWN
            evidence.append(
                f"tensor {facts.tensor} exceeds the model's "
                f"{counted(facts.kv_heads, 'key-value head')}: each is kept on several ranks, so "
                "reading the KV cache gets no faster"
            )
        else:
            evidence.append(
                f"tensor {facts.tensor} does not exceed the "
                f"{counted(facts.kv_heads, 'key-value head')}"
            )
    else:
        evidence.append("facts.kvHeads or facts.tensor is not known")
    return Finding(
        "TensorFinerThanWork",
        fit,
        "Each rank's share of a layer is so small that all-reduce and kernel starts take the time.",
        tuple(evidence),
        (
            "Halve tensor, and use the GPUs for twice the replicas: throughput rises.",
            (
                "To lower latency further, read fewer bytes a token: FP8 or, for few requests at a "
                "time, INT4AWQ weights."
            ),
        ),
        "NVIDIA, TensorRT-LLM performance overview: tokens a second from TP 1 to 8",
    )


def pipeline_bubble(observed: Observed) -> Finding | None:
    """One request passes the stages one after the other: all but one of them wait."""
    facts = observed.facts
    if not observed.shows(Symptom.SLOW_SINGLE_REQUEST, Symptom.LOW_THROUGHPUT):
        return None
    cause = (
        "The pipeline's bubble: a request passes the stages one after the other, so stages never "
        "shorten one request, and with few requests in flight most of them wait."
    )
    if facts.pipeline is None:
        return Finding(
            "PipelineBubble",
            Fit.POSSIBLE,
            cause,
            ("facts.pipeline is not known",),
            ("If there are several stages: is one enough, with FP8 weights?",),
            _PP_BLOG,
        )
    if facts.pipeline == 1:
        return Finding("PipelineBubble", Fit.RULED_OUT, cause, ("there is one stage",))
    busy = facts.concurrency
    if (
        busy is not None
        and busy >= 2 * facts.pipeline
        and not observed.shows(Symptom.SLOW_SINGLE_REQUEST)
    ):
        evidence = f"{busy} requests in flight keep {facts.pipeline} stages busy"
        return Finding("PipelineBubble", Fit.RULED_OUT, cause, (evidence,))
    evidence = f"pipeline is {facts.pipeline}"
    if busy is not None:
        evidence += f", {counted(busy, 'request')} in flight"
    return Finding(
        "PipelineBubble",
        Fit.SHOWN,
        cause,
        (evidence,),
        _against_bubble(observed),
        "NVIDIA blog, Llama 3.1 405B on 8 H200: at minimum latency TP 8 5.6 times PP 8, at maximum "
        "throughput PP 8 1.5 times TP 8",
    )


def _against_bubble(observed: Observed) -> tuple[str, ...]:
    facts = observed.facts
    stages, tensor, domain = facts.pipeline or 1, facts.tensor or 1, facts.nvlink_domain or 0
    fill = (
        f"For throughput: fill it. In-flight batching keeps {stages} stages busy from about "
        f"{2 * stages} requests at a time."
    )
    if tensor < domain:
        wider = min(domain, tensor * stages)
        return (
            (
                f"For latency: tensor before pipeline. The NVLink domain has {domain} GPUs: use "
                f"tensor {wider}, pipeline {-(-tensor * stages // wider)}."
            ),
            fill,
        )
    return (
        "For latency: fewer bytes, fewer stages. With FP8 weights the model may fit one node.",
        fill,
    )
