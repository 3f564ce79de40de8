"""A benchmark's results as plain data: one point a concurrency, and what was measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

MOST_POINTS = 16


class ResultsError(ValueError):
    """A file holds no results of a run."""


@dataclass(frozen=True, slots=True)
class Point:
    """What one number of requests at once gave.

    Attributes:
        concurrency: Requests at once, of one replica.
        tokens_per_second: Output tokens a second of the replica.
        requests_per_second: Requests that ended a second.
        ttft_ms, ttft_p99_ms: Time to first token, median and 99th percentile, milliseconds.
        tpot_ms, tpot_p99_ms: Time per output token after the first, likewise.
        failed: Requests that failed.
        kv_cache: Mean share of the KV cache in use meanwhile, 0 to 1; None where nobody told.
        acceptance: Tokens that a pass of the model gave a request, with speculative decoding;
            None where there is none, or nobody told.
    """

    concurrency: int
    tokens_per_second: float
    requests_per_second: float
    ttft_ms: float
    ttft_p99_ms: float
    tpot_ms: float
    tpot_p99_ms: float
    failed: int = 0
    kv_cache: float | None = None
    acceptance: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """A sweep over concurrencies, its points by rising concurrency.

    Attributes:
        name: What was measured, as its owner calls it: the deployment.
        revision: Its revision; results of another one say nothing of this.
        date: When, in ISO 8601, UTC.
        tool: What measured, with its version.
        input_len, output_len: Tokens of each prompt and each answer.
        runtime, weights, product: As the spec says them.
        tensor, pipeline: The split of the replica.
        max_batch_size: `engine.limits.maxBatchSize`; 0 where it is not known.
        draft_len: `speculative.maxDraftLen`; 0 without speculative decoding.
        draft_cost: What a drafted token costs, as a share of a pass of the model; None where that
            is not known.
        attention_groups: Groups of the replica that run attention each for requests of their own;
            each takes `max_batch_size` requests.
        remarks: What limits these figures, in words: points that failed, a replica that went away.
        points: What was measured.
    """

    name: str
    revision: str
    date: str
    tool: str
    input_len: int
    output_len: int
    runtime: str
    weights: str
    product: str
    tensor: int
    pipeline: int
    points: tuple[Point, ...]
    max_batch_size: int = 0
    draft_len: int = 0
    draft_cost: float | None = None
    attention_groups: int = 1
    remarks: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """GPUs of the replica."""
        return self.tensor * self.pipeline

    def dump(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"


def read_run(text: str) -> Run:
    """A run from what `Run.dump` wrote; what a later version added is passed over.

    Raises:
        ResultsError: It is no such text, or its points are none, too many or out of order.
    """
    try:
        raw = json.loads(text)
        points = tuple(Point(**_known(Point, one)) for one in raw["points"])
        remarks = tuple(map(str, raw.get("remarks", ())))
        run = Run(**{**_known(Run, raw), "points": points, "remarks": remarks})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ResultsError(f"not the results of a run: {error}") from error
    order = [point.concurrency for point in run.points]
    numbers = [*order, run.tensor, run.pipeline, run.attention_groups]
    if not all(isinstance(number, int) and number >= 1 for number in numbers):
        raise ResultsError(
            "concurrency, tensor, pipeline and attention_groups must be whole numbers from 1, "
            f"these are {numbers}"
        )
    if not 0 < len(order) <= MOST_POINTS or order != sorted(set(order)) or order[0] < 1:
        raise ResultsError(
            f"points must be 1 to {MOST_POINTS} by rising concurrency, these are {order}"
        )
    return run


def _known(kind: type[Any], raw: Mapping[str, Any]) -> dict[str, Any]:
    names = {item.name for item in fields(kind)}
    return {name: value for name, value in raw.items() if name in names}
