"""What a run suggests to change. It is told, never done: advice changes no spec."""

from __future__ import annotations

import math

from shardwright.benchmark.knee import Curve, bend
from shardwright.benchmark.results import Point, Run
from shardwright.sizing.speculation import (
    Drafting,
    alpha_of,
    best_length,
    ridge_of,
    speedup,
)

# The batch limit stands 20 to 30 % above the knee: room for bursts, and not for queues that only
# make everybody slower.
_ABOVE_LEAST, _ABOVE, _ABOVE_MOST = 1.2, 1.25, 1.3
# Batches of multiples of 8 fill matrix units; one in the range is taken.
_MULTIPLE = 8

# Another draft length is suggested where it gives at least so much more.
_WORTH = 1.05

KV_HIGH = 0.8
KV_LOW = 0.5


def knee_of(run: Run) -> Point | None:
    """The point after which more requests at once hardly give more tokens; None: none is seen."""
    return curve_of(run)[1]


def curve_of(run: Run) -> tuple[Curve, Point | None]:
    """What the run's throughput shows, and its knee if it is bent."""
    curve, found = bend(
        [point.concurrency for point in run.points],
        [point.tokens_per_second for point in run.points],
    )
    return curve, None if found is None else run.points[found]


def batch_above(concurrency: int) -> int:
    """The batch limit for a knee at this concurrency: 20 to 30 % above it, at least one more."""
    least = math.ceil(concurrency * _ABOVE_LEAST)
    most = max(least, math.floor(concurrency * _ABOVE_MOST))
    rounded = -(-least // _MULTIPLE) * _MULTIPLE
    if rounded <= most:
        return rounded
    return min(most, max(least, round(concurrency * _ABOVE)))


def advice(run: Run) -> list[str]:
    """Suggestions in words, the most important first; empty when nothing is to be said."""
    told = list(run.remarks)
    curve, found = curve_of(run)
    last = run.points[-1]
    told.append(_batch(run, found) if found is not None else _no_knee(run, curve))
    told += kv_advice((found or last).kv_cache)
    told += speculation_advice(run, found or last)
    failed = sum(point.failed for point in run.points)
    if failed:
        told.append(f"{failed} requests failed while it was measured: these figures flatter")
    return told


def _no_knee(run: Run, curve: Curve) -> str:
    first, last = run.points[0], run.points[-1]
    if curve is Curve.TOO_FEW:
        return (
            f"too few points to see a knee: {len(run.points)} measured, 3 are the least; measure "
            "more numbers of requests at once"
        )
    if curve is Curve.RISING:
        return (
            f"throughput still rises at {last.concurrency} requests at once: measure further, the "
            "knee is not reached"
        )
    said = (
        f"throughput is flat from {first.concurrency} to {last.concurrency} requests at once "
        f"({first.tokens_per_second:.0f} and {last.tokens_per_second:.0f} output tokens a second): "
        "no knee is among these points; "
    )
    if first.concurrency > 1:
        return said + "measure fewer at once"
    return said + "requests seem to be served one after the other: look at what the server logs"


def _batch(run: Run, found: Point) -> str:
    # Requests are dealt out to attention groups, and each has the limit for itself.
    each = math.ceil(found.concurrency / run.attention_groups)
    wanted = batch_above(each)
    said = (
        f"the knee is at {found.concurrency} requests at once "
        f"({found.tokens_per_second:.0f} output tokens a second)"
    )
    if run.attention_groups > 1:
        said += f", {each} in each of {run.attention_groups} attention groups"
    said += ": "
    now = run.max_batch_size
    if not now:
        return said + f"set engine.limits.maxBatchSize to {wanted}, 20 to 30 % above it"
    least = math.ceil(each * _ABOVE_LEAST)
    most = max(least, math.floor(each * _ABOVE_MOST))
    if least <= now <= most:
        return said + f"engine.limits.maxBatchSize {now} suits it"
    if each >= now:
        return (
            said + f"it is the limit engine.limits.maxBatchSize {now} itself that bends the curve; "
            f"raise it to {wanted} and measure again"
        )
    return said + f"set engine.limits.maxBatchSize from {now} to {wanted}, 20 to 30 % above it"


def kv_advice(utilization: float | None) -> list[str]:
    """What the use of the KV cache, held over a long time, suggests.

    Args:
        utilization: Share in use, 0 to 1; None where it is not known.
    """
    if utilization is None or KV_LOW <= utilization <= KV_HIGH:
        return []
    percent = f"{utilization:.0%}".replace("%", " %")
    if utilization > KV_HIGH:
        said = (
            f"the KV cache is {percent} full, over {KV_HIGH * 100:.0f} %: requests will be "
            "preempted. Raise the token budget (engine.limits.gpuMemoryFraction, an FP8 KV cache, "
            "more GPUs) or lower engine.limits.maxBatchSize"
        )
    else:
        said = (
            f"the KV cache is {percent} full, under {KV_LOW * 100:.0f} %: give its memory back for "
            "larger batches (raise engine.limits.maxBatchSize and maxNumTokens), or take fewer GPUs"
        )
    return [said]


def speculation_advice(run: Run, at: Point) -> list[str]:
    """What the tokens that were accepted at a point suggest: speculation that pays is left alone.

    Args:
        run: What was measured.
        at: The point that counts.
    """
    if not run.draft_len or run.draft_cost is None or at.acceptance is None:
        return []
    drafting = Drafting(run.draft_len, run.draft_cost, ridge_of(run.product, run.weights))
    alpha = alpha_of(at.acceptance, run.draft_len)
    gain = speedup(alpha, drafting, at.concurrency)
    best = best_length(alpha, drafting, at.concurrency)
    said = (
        f"at {at.concurrency} requests at once a pass gives {at.acceptance:.2f} tokens with "
        f"speculative.maxDraftLen {run.draft_len}; by weights read and FLOPs alone that is "
        f"{gain:.2f} times the speed without drafts"
    )
    if not best:
        words = f"speculation costs more than it saves: {said}. Leave speculative out"
        return [f"{words}, or measure once without it and compare the runs"]
    better = speedup(alpha, Drafting(best, drafting.cost, drafting.ridge), at.concurrency)
    if better < gain * _WORTH:
        return []
    costs = "speculation costs more than it saves: " if gain < 1 else ""
    return [f"{costs}{said}. Set speculative.maxDraftLen to {best}: {better:.2f} times"]
