"""The messages of advice: what was seen in numbers, what to set to which value, and the other way.

A value named here fits the rules of the spec. Requests fill a KV cache in proportion to their
number, as far as prompts and answers stay what they were.
"""

from __future__ import annotations

import math

from shardwright.api.spec import Limits
from shardwright.plan.used import Drafted, Used
from shardwright.resolved import Resolved
from shardwright.runner.contract import USAGE_SECONDS
from shardwright.sizing.speculation import Drafting, best_length, speedup

# Where a batch limit is to bring the cache: between the two marks, with room for bursts.
_FILLED = 0.75
# A larger share leaves too little for what is allocated beside it.
_MOST_FRACTION, _MORE_FRACTION = 0.95, 0.03
# Larger steps than this are not suggested at once: longer prompts would come as a surprise.
_MOST_GROWTH = 2
_MULTIPLE = 8
# Of a cache that is emptier than this nobody can tell how many requests fill it.
_LEAST_SHARE = 0.01
_WINDOW_MINUTES = USAGE_SECONDS // 60


def cache_full(resolved: Resolved, used: Used, share: float) -> str:
    """Of a cache that is over 80 % full."""
    limits = resolved.spec.engine.limits
    ways = []
    more = round(limits.gpu_memory_fraction + _MORE_FRACTION, 2)
    if more <= _MOST_FRACTION:
        ways.append(f"engine.limits.gpuMemoryFraction from {limits.gpu_memory_fraction} to {more}")
    if resolved.spec.quantization.kv_cache == "None":
        ways.append("quantization.kvCache FP8 where the GPU has it")
    ways.append("more GPUs")
    fewer = _fitting(resolved, used, share)
    lower = (
        f"from {limits.max_batch_size} to {fewer}"
        if used.running >= 1 and fewer < limits.max_batch_size
        else f"below {limits.max_batch_size}"
    )
    return (
        f"{_seen(used, share)}, over 80 %: requests are preempted or wait. Raise the token budget "
        f"({', '.join(ways)}), or lower engine.limits.maxBatchSize {lower}"
    )


def cache_idle(resolved: Resolved, used: Used, share: float) -> str:
    """Of a cache that is under 50 % full."""
    limits = resolved.spec.engine.limits
    return (
        f"{_seen(used, share)}, under 50 %: give its memory back for larger batches: raise "
        f"{_larger(limits, _fitting(resolved, used, share))}; or take fewer GPUs"
    )


def _larger(limits: Limits, fitting: int) -> str:
    wanted = min(fitting, limits.max_batch_size * _MOST_GROWTH, limits.max_num_tokens)
    wanted = wanted // _MULTIPLE * _MULTIPLE
    if wanted > limits.max_batch_size:
        return f"engine.limits.maxBatchSize from {limits.max_batch_size} to {wanted}"
    # As many requests as there were never reach the limit: what is left is longer passes.
    tokens = limits.max_num_tokens
    return f"engine.limits.maxNumTokens from {tokens} to {tokens * _MOST_GROWTH}"


def _fitting(resolved: Resolved, used: Used, share: float) -> int:
    """The batch limit with which such requests fill the cache to what it should be."""
    groups = resolved.spec.parallelism.attention_data or 1
    return max(1, math.floor(used.running * _FILLED / max(share, _LEAST_SHARE) / groups))


def _seen(used: Used, share: float) -> str:
    return (
        f"the KV cache was {_percent(share)} full on average, with "
        f"{used.running:.1f} requests at once in {used.minutes} of {_WINDOW_MINUTES} minutes"
    )


def costs_more(found: Drafted, used: Used, gain: float) -> str:
    """Of drafts that are not worth their time."""
    now, at_once = found.way, used.at_once
    best = best_length(found.alpha, now, at_once)
    way = "Leave speculative out, or measure once without it and compare the runs"
    if best:
        better = speedup(found.alpha, Drafting(best, now.cost, now.ridge), at_once)
        way = f"Set speculative.maxDraftLen to {best}: {better:.2f} times"
    return (
        f"speculation costs more than it saves: with {at_once} requests at once a pass gave "
        f"{found.accepted:.2f} tokens with speculative.maxDraftLen {now.length}, in {used.minutes} "
        f"of {_WINDOW_MINUTES} minutes; by weights read and FLOPs alone that is {gain:.2f} times "
        f"the speed without drafts. {way}"
    )


def dominates(used: Used, name: str, share: float) -> str:
    """Of an adapter beside which the others hardly get requests."""
    return (
        f"adapter {name} was the only one with requests in {_percent(share)} of the time in which "
        f"there were any, {used.minutes} of {_WINDOW_MINUTES} minutes: merged into its base and "
        "deployed whole it costs no slots and no arithmetic of its own. The engine does not tell "
        "of requests to the base model beside it: keep the base if it is asked for too"
    )


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"
