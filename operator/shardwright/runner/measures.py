"""One set of metric names over all engines, and where each engine shows them.

An engine runtime says, as plain data that travels in a ServeRequest, which of its pages to read and
which of their series is which of ours; the runner in a leader's pod reads them and shows ours. It
knows no engine by name. Standard library only, as the contract.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# On the runner's own port.
METRICS_PATH = "/metrics"

COUNTER = "counter"
GAUGE = "gauge"
HISTOGRAM = "histogram"

# How a page is written. Prometheus: its text format. Iterations: a JSON list of objects, one an
# iteration of the engine since the last look; looking empties it, so there must be one reader.
PROMETHEUS = "prometheus"
ITERATIONS = "iterations"
FORMS = (PROMETHEUS, ITERATIONS)

# How the series of several ranks or models of one engine become one.
SUM = "sum"
MAX = "max"


@dataclass(frozen=True)
class Family:
    """A metric of ours: its kind, what it says in words, and whether it is 0 without requests."""

    kind: str
    help: str
    rests: bool = False


# What an engine can tell. Units are base units: seconds, bytes, ratios from 0 to 1.
FAMILIES: Mapping[str, Family] = {
    "shardwright_requests_running": Family(GAUGE, "Requests that the engine works on.", rests=True),
    "shardwright_requests_waiting": Family(
        GAUGE, "Requests that wait in the engine's queue.", rests=True
    ),
    "shardwright_kv_cache_utilization": Family(
        GAUGE, "Share of the KV cache that requests hold, from 0 to 1.", rests=True
    ),
    "shardwright_prompt_tokens_total": Family(COUNTER, "Prompt tokens taken in."),
    "shardwright_generation_tokens_total": Family(COUNTER, "Tokens generated."),
    "shardwright_requests_total": Family(COUNTER, "Requests that ended."),
    "shardwright_preemptions_total": Family(
        COUNTER, "Requests that lost their place in the KV cache to others and began anew."
    ),
    "shardwright_draft_tokens_total": Family(COUNTER, "Tokens that speculative decoding proposed."),
    "shardwright_accepted_tokens_total": Family(
        COUNTER, "Proposed tokens that the model accepted."
    ),
    "shardwright_acceptance_length": Family(
        GAUGE, "Tokens that one step of the model gives a request, with speculative decoding."
    ),
    "shardwright_time_to_first_token_seconds": Family(
        HISTOGRAM, "From a request's arrival to its first token."
    ),
    "shardwright_time_per_output_token_seconds": Family(
        HISTOGRAM, "Of each finished request: the mean time between tokens after the first."
    ),
    "shardwright_request_duration_seconds": Family(
        HISTOGRAM, "From a request's arrival to its last token."
    ),
    "shardwright_queue_time_seconds": Family(
        HISTOGRAM, "Time that a request waited before it was first worked on."
    ),
}

# What the runner knows by itself.
OWN_FAMILIES: Mapping[str, Family] = {
    "shardwright_engine_up": Family(
        GAUGE, "1 while the engine serves and this page of it was read, else 0."
    ),
    "shardwright_scrape_errors_total": Family(
        COUNTER, "Looks at a page of the engine, or at the GPUs, that failed while it served."
    ),
    "shardwright_requests_in_flight": Family(
        GAUGE, "Connections of the engine's port that carry a request, counted from the kernel."
    ),
    "shardwright_gpu_utilization": Family(
        GAUGE, "Share of the last sample period in which a kernel ran on the GPU, from 0 to 1."
    ),
    "shardwright_gpu_memory_used_bytes": Family(GAUGE, "Memory of the GPU that is in use."),
    "shardwright_gpu_memory_total_bytes": Family(GAUGE, "Memory of the GPU."),
}


@dataclass(frozen=True)
class Source:
    """Where the values of one of our families are on a page.

    Attributes:
        family: A key of FAMILIES.
        names: Prometheus: name of a sample (a histogram's without its suffix). Iterations: paths
            of numbers in an iteration, such as `kvCacheStats.usedNumBlocks`. Several are added up.
        labels: Samples that have one of these labels with another value are passed over.
        per: Iterations: path of what the sum is divided by.
        scale: What values, and limits of buckets, are multiplied by to be in our unit.
        merge: SUM or MAX, of samples with different labels.
    """

    family: str
    names: tuple[str, ...]
    labels: dict[str, str] = field(default_factory=dict)
    per: str = ""
    scale: float = 1.0
    merge: str = SUM


@dataclass(frozen=True)
class Names:
    """A series of Prometheus whose labels list, by comma, the adapters that have requests.

    There may be one for each list that there ever was; the one with the highest value is of now.
    """

    series: str
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Page:
    """A page of the engine that is read; of two pages with the same family the first has it.

    `port` 0 is the port that requests go to. An `optional` page that is not there (404) is no
    failure: some versions, or options of the user, have it not. `adapters` is None where the page
    does not tell whose requests the engine works on.
    """

    path: str
    sources: tuple[Source, ...]
    form: str = PROMETHEUS
    port: int = 0
    optional: bool = False
    adapters: Names | None = None

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Page:
        """A page as another version of the other side wrote it.

        Raises:
            KeyError, TypeError, AttributeError: It is none.
        """
        sources = tuple(
            Source(
                family=str(one["family"]),
                names=tuple(map(str, one["names"])),
                labels={str(name): str(value) for name, value in one.get("labels", {}).items()},
                per=str(one.get("per", "")),
                scale=float(one.get("scale", 1.0)),
                merge=str(one.get("merge", SUM)),
            )
            for one in raw["sources"]
        )
        names = raw.get("adapters")
        return cls(
            path=str(raw["path"]),
            sources=sources,
            form=str(raw.get("form", PROMETHEUS)),
            port=int(raw.get("port", 0)),
            optional=bool(raw.get("optional", False)),
            adapters=Names(str(names["series"]), tuple(map(str, names["labels"])))
            if names
            else None,
        )
