"""Every runtime with every precision, split, adapters and draft: rendered, or refused by a source.

Each cell gets the best chance there is: it is tried on each GPU generation, from each kind of
checkpoint and with each kind of draft, until the runtime takes it. What it answers is data for the
test and for the table in docs/support-matrix.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from tests.golden import specs

from shardwright.api.engines import DEFAULT_BACKENDS
from shardwright.api.spec import Backend, LLMDeploymentSpec, Runtime, WeightPrecision
from shardwright.plan.draft_checks import refuse_draft
from shardwright.resolved import Resolved
from shardwright.runner.contract import STEP_MODEL, ModelFacts
from shardwright.runtimes import sglang_loads, tensorrt_loads, vllm_loads
from shardwright.runtimes.base import Refusal
from shardwright.runtimes.loads import Table
from shardwright.runtimes.nim import ENGINE as NIM
from shardwright.runtimes.registry import runtime

SOURCES_FILE = Path(__file__).parents[1] / "data/support_sources.yaml"
SOURCES: Mapping[str, Mapping[str, str]] = yaml.safe_load(SOURCES_FILE.read_text(encoding="utf-8"))

# Of runtimes without a published one.
IMAGES: Mapping[Runtime, str] = {Runtime.NIM: "registry.example.com/nim:2.1"}
# In the order in which they are tried; the first is what most people have.
GPUS: Mapping[str, tuple[int, int]] = {
    "NVIDIA-H100-80GB-HBM3": (9, 0),
    "NVIDIA-B200": (10, 0),
    "NVIDIA-L40S": (8, 9),
    "NVIDIA-A100-SXM4-80GB": (8, 0),
}
SHAPES: Mapping[str, tuple[int, int]] = {"1×1": (1, 1), "TP2": (2, 1), "TP2×PP2": (2, 2)}


@dataclass(frozen=True, slots=True)
class Served:
    """A runtime with its backend, where it has several."""

    runtime: Runtime
    backend: Backend | None = None

    def __str__(self) -> str:
        return f"{self.runtime} {self.backend}" if self.backend else str(self.runtime)


SERVED = tuple(
    Served(name, backend)
    for name in Runtime
    for backend in (Backend if name in DEFAULT_BACKENDS else (None,))
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A kind of published checkpoint: its uri, and what its config says."""

    uri: str
    facts: ModelFacts

    @property
    def method(self) -> str:
        """Its quantizer; empty for 16 bits."""
        return self.facts.quantization


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination."""

    served: Served
    weights: WeightPrecision
    shape: str
    lora: bool
    draft: bool

    def __str__(self) -> str:
        more = (" LoRA" if self.lora else "") + (" draft" if self.draft else "")
        return f"{self.served} {self.weights} {self.shape}{more}"


@dataclass(frozen=True, slots=True)
class Taken:
    """What a runtime took: the spec, on which GPU, from which checkpoint, with which draft."""

    resolved: Resolved
    gpu: str
    checkpoint: Checkpoint
    draft: str

    @property
    def spec(self) -> LLMDeploymentSpec:
        """The spec."""
        return self.resolved.spec

    @property
    def steps(self) -> tuple[str, ...]:
        """What is made, in order."""
        return tuple(artifact.step for artifact in self.resolved.artifacts)


Answer = Taken | Refusal


def cells() -> Iterator[Cell]:
    """All of them."""
    for served, weights, shape, lora, draft in product(
        SERVED, WeightPrecision, SHAPES, (False, True), (False, True)
    ):
        yield Cell(served, weights, shape, lora, draft)


# What people publish, in the order in which it is tried; facts as the fetch reads them.
CHECKPOINTS: Mapping[str, Checkpoint] = {
    "16 bits": Checkpoint("hf://org/model", specs.LLAMA_8B),
    "AWQ": Checkpoint("hf://org/model-awq", specs.facts(quantization="awq")),
    "GPTQ": Checkpoint("hf://org/model-gptq", specs.facts(quantization="gptq")),
    "compressed-tensors": Checkpoint(
        "hf://org/model-w8a8", specs.facts(quantization="compressed-tensors")
    ),
    "ModelOpt": Checkpoint("hf://org/model-nvfp4", specs.facts(quantization="modelopt")),
}
# What drafts, in the order in which it is tried: methods with files of their own.
DRAFTS: Mapping[str, Mapping[str, Any]] = {
    method: {"method": method, "model": {"uri": f"hf://org/{method.lower()}"}}
    for method in ("DraftModel", "Eagle3", "Eagle", "Medusa")
}
DRAFT_FACTS = specs.facts(layers=1, bytes=1_000_000_000)


def wish(
    cell: Cell, gpu: str, checkpoint: Checkpoint, draft: Mapping[str, Any] | None
) -> LLMDeploymentSpec:
    """A spec for a cell."""
    tensor, pipeline = SHAPES[cell.shape]
    name = cell.served.runtime
    engine = {"runtime": name, "backend": cell.served.backend, "image": IMAGES.get(name)}
    return specs.spec(
        model={"uri": checkpoint.uri},
        engine={name: value for name, value in engine.items() if value is not None},
        gpu={"product": gpu},
        parallelism={"tensor": tensor, "pipeline": pipeline},
        quantization={"weights": cell.weights},
        **({"lora": {}} if cell.lora else {}),
        **({"speculative": dict(draft)} if draft is not None else {}),
    )


def answer(cell: Cell) -> Answer:
    """What the runtime makes of a cell: of all that was tried the first it takes.

    Nothing it takes leaves the refusal that stood most often, whatever else was chosen.
    """
    engine = runtime(cell.served.runtime)
    refused: list[Refusal] = []
    drafts: Mapping[str, Mapping[str, Any] | None] = DRAFTS if cell.draft else {"": None}
    for (gpu, compute), (name, draft), checkpoint in product(
        GPUS.items(), drafts.items(), CHECKPOINTS.values()
    ):
        spec = wish(cell, gpu, checkpoint, draft)
        facts, drafts_facts = checkpoint.facts, DRAFT_FACTS if draft is not None else None
        refusal = (
            engine.refuse_spec(spec, compute)
            or refuse_draft(spec, facts, drafts_facts)
            or engine.refuse_model(spec, facts)
        )
        if refusal is None:
            return Taken(specs.resolved(spec, facts, draft=drafts_facts), gpu, checkpoint, name)
        refused.append(refusal)
    kinds = Counter((one.reason, one.source) for one in refused)
    (kind, _), *_ = kinds.most_common(1)
    return next(one for one in refused if (one.reason, one.source) == kind)


# Of a checkpoint's kind, by runtime; what a table leaves out is refused by its name.
TABLES: Mapping[str, Table] = {
    "VLLM": vllm_loads.LOADS,
    "SGLang": sglang_loads.LOADS,
    "NIM": NIM.loads,
    "TensorRTLLM and Triton, PyTorch": tensorrt_loads.LOADS,
    "the same from 1.3": {**tensorrt_loads.LOADS, **tensorrt_loads.SINCE_1_3},
    "TensorRTLLM and Triton, TensorRT": tensorrt_loads.CONVERTED,
}
_CHECKPOINTS = """## Published checkpoints

Which kinds of quantized checkpoints are loaded as they come, with the compute capabilities on which
they run; `-` is refused by name. A checkpoint's own precision is held against the GPU also where
`quantization.weights` is None. The rows are the operator's own tables (`runtimes/*_loads.py`), each
with a source; a quantizer that has no row is refused everywhere.
"""


def checkpoints() -> str:
    """The table of published checkpoints."""
    kinds = sorted({kind for table in TABLES.values() for kind in table})
    rows = [
        f"| {kind} | "
        + " | ".join(str(table[kind].span) if kind in table else "-" for table in TABLES.values())
        + " |"
        for kind in kinds
    ]
    head = f"| checkpoint | {' | '.join(TABLES)} |\n|{' --- |' * (len(TABLES) + 1)}\n"
    return _CHECKPOINTS + "\n" + head + "\n".join(rows) + "\n"


_HEAD = """# Support matrix

Every runtime with every precision of the weights, in three splits, with and without adapters (LoRA)
and a draft that speculates. Written by a test that asks the operator for each of {count}
combinations: what is taken renders commands that the recorded contracts accept, and what is refused
is refused before anything starts, for a reason that somebody has written down.

Each combination is given the best chance: it is tried on {gpus},
and from each kind of published checkpoint. **From**, **GPU** and **made** tell of the first that is
taken without adapters and draft. In the cells stand four answers: **plain · LoRA · draft · both**;
`+` is taken, a number is the reason below. Drafts are tried in the order {drafts}; where it is not
the first, its name stands there.
"""


def page(answers: Mapping[Cell, Answer]) -> str:
    """The table as a page of the documents."""
    notes: dict[tuple[str, str], int] = {}
    sections = [
        _HEAD.format(count=len(answers), gpus=", ".join(GPUS), drafts=", ".join(DRAFTS) or "(none)")
    ]
    for served in SERVED:
        rows = [
            f"| {weights} | {_from(served, weights, answers)} | "
            + " | ".join(_marks(served, weights, shape, answers, notes) for shape in SHAPES)
            + " |"
            for weights in WeightPrecision
        ]
        shapes = " | ".join(SHAPES)
        sections.append(
            f"## {served}\n\n| weights | from | GPU | made | {shapes} |\n"
            f"| --- | --- | --- | --- |{' --- |' * len(SHAPES)}\n" + "\n".join(rows) + "\n"
        )
    reasons = [
        f"{number}. `{reason}`: {SOURCES[source]['says'].strip()} Source: "
        f"{SOURCES[source]['where'].strip()}."
        for (reason, source), number in notes.items()
    ]
    return "\n".join([*sections, checkpoints(), "## Reasons\n", *reasons, ""])


def _from(served: Served, weights: WeightPrecision, answers: Mapping[Cell, Answer]) -> str:
    for shape in SHAPES:
        found = answers[Cell(served, weights, shape, lora=False, draft=False)]
        if isinstance(found, Taken):
            name = next(name for name, one in CHECKPOINTS.items() if one == found.checkpoint)
            made = ", ".join(step for step in found.steps if step != STEP_MODEL) or "nothing"
            return f"{name} | {found.gpu.split('-')[1]} | {made}"
    return "- | - | -"


def _marks(
    served: Served,
    weights: WeightPrecision,
    shape: str,
    answers: Mapping[Cell, Answer],
    notes: dict[tuple[str, str], int],
) -> str:
    marks = []
    for draft, lora in product((False, True), repeat=2):
        found = answers[Cell(served, weights, shape, lora=lora, draft=draft)]
        if isinstance(found, Taken):
            usual = not draft or found.draft == next(iter(DRAFTS))
            marks.append("+" if usual else found.draft)
        else:
            number = notes.setdefault((found.reason, found.source), len(notes) + 1)
            marks.append(str(number))
    return " · ".join(marks)
