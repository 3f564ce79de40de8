"""Every runtime with every precision, split, adapters and draft: rendered, or refused by a source.

Each cell gets the best chance there is: it is tried on each GPU generation and from each kind of
checkpoint until the runtime takes it. What it answers is data for the test and for the table in
docs/support-matrix.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tests.golden import specs

from shardwright.api.spec import Backend, LLMDeploymentSpec, Runtime, WeightPrecision
from shardwright.observe.products import product_named
from shardwright.resolved import Resolved
from shardwright.runner.contract import ModelFacts
from shardwright.runtimes.base import Refusal
from shardwright.runtimes.registry import runtime

SOURCES_FILE = Path(__file__).parents[1] / "data/support_sources.yaml"
SOURCES: Mapping[str, Mapping[str, str]] = yaml.safe_load(SOURCES_FILE.read_text(encoding="utf-8"))

# In the order in which they are tried; the first is what most people have.
GPUS: Mapping[str, tuple[int, int]] = {
    "NVIDIA-H100-80GB-HBM3": (9, 0),
    "NVIDIA-B200": (10, 0),
    "NVIDIA-L40S": (8, 9),
    "NVIDIA-A100-SXM4-80GB": (8, 0),
}
SHAPES: Mapping[str, tuple[int, int]] = {"1×1": (1, 1), "TP2": (2, 1), "TP2×PP2": (2, 2)}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A kind of published checkpoint: what people call it, its uri, and what its config says."""

    name: str
    uri: str
    facts: ModelFacts


@dataclass(frozen=True, slots=True)
class Served:
    """A runtime with its backend, where it has several."""

    runtime: Runtime
    backend: Backend | None = None

    def __str__(self) -> str:
        return f"{self.runtime} ({self.backend})" if self.backend else str(self.runtime)


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination."""

    served: Served
    weights: WeightPrecision
    shape: str
    lora: bool
    draft: bool

    def __str__(self) -> str:
        more = (", LoRA" if self.lora else "") + (", draft" if self.draft else "")
        return f"{self.served}, {self.weights}, {self.shape}{more}"


@dataclass(frozen=True, slots=True)
class Taken:
    """A cell that the runtime takes: on what, from what, with which draft."""

    spec: LLMDeploymentSpec
    resolved: Resolved
    gpu: str
    checkpoint: Checkpoint
    draft: str


Answer = Taken | Refusal
