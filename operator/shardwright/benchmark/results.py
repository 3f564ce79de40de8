"""A benchmark's results as plain data: one point a concurrency, and what was measured."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

MOST_POINTS = 16
# Files of runs are also written by hand, or by tools of users: whatever is plotted and compared is
# a number, and a finite one.
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**53)]
Positive = Annotated[int, Field(ge=1, lt=2**53)]


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

    concurrency: Positive
    tokens_per_second: Amount
    requests_per_second: Amount
    ttft_ms: Amount
    ttft_p99_ms: Amount
    tpot_ms: Amount
    tpot_p99_ms: Amount
    failed: Count = 0
    kv_cache: Amount | None = None
    acceptance: Amount | None = None


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
    input_len: Count
    output_len: Count
    runtime: str
    weights: str
    product: str
    tensor: Positive
    pipeline: Positive
    points: tuple[Point, ...]
    max_batch_size: Count = 0
    draft_len: Count = 0
    draft_cost: Amount | None = None
    attention_groups: Positive = 1
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
        run = _RUN.validate_json(text, strict=True)
    except ValidationError as error:
        raise ResultsError(f"not the results of a run: {_first(error)}") from error
    order = [point.concurrency for point in run.points]
    if not 0 < len(order) <= MOST_POINTS or order != sorted(set(order)):
        raise ResultsError(
            f"points must be 1 to {MOST_POINTS} by rising concurrency, these are {order}"
        )
    return run


def read_point(raw: object) -> Point:
    """A point from its decoded fields.

    Raises:
        ResultsError: One is missing, or is no number that it can be.
    """
    try:
        # From JSON, where lists and objects are what a dataclass may be made of strictly.
        return _POINT.validate_json(json.dumps(raw), strict=True)
    except ValidationError as error:
        raise ResultsError(f"not a point of a run: {_first(error)}") from error


def _first(error: ValidationError) -> str:
    """The first of what is wrong, in one line, with the field that it is about."""
    found = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, found["loc"]))
    return f"{where}: {found['msg']}" if where else found["msg"]


_POINT = TypeAdapter(Point)
_RUN = TypeAdapter(Run)
