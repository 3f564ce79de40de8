"""Every runtime with every precision, split, adapters and draft: rendered, or refused by a source.

Each cell gets the best chance there is: it is tried on each GPU generation, from each kind of
checkpoint and with each kind of draft, until the runtime takes it. What it answers is data for the
test and for the table in docs/support-matrix.md.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, slots=True)
class Refused:
    """What stands against a cell in its plain form, and what else where other things do.

    Plain is what a reader thinks of first: the GPU that the row runs on without adapters and draft
    (the first of GPUS where it runs nowhere), the checkpoint that the precision needs, and the
    first of DRAFTS. `others` stand against it with other drafts, or on other GPUs.
    """

    cause: Refusal
    others: tuple[Refusal, ...]


Answer = Taken | Refused


def cells() -> Iterator[Cell]:
    """All of them."""
    for served, weights, shape, lora, draft in product(
        SERVED, WeightPrecision, SHAPES, (False, True), (False, True)
    ):
        yield Cell(served, weights, shape, lora, draft)


def _quantized(method: str, **section: Any) -> Checkpoint:
    config = {"quantization_config": {"quant_method": method, **section}}
    facts = specs.facts(quantization=method, config=json.dumps(config))
    return Checkpoint(f"hf://org/model-{method}", facts)


def _compressed(bits: int, kind: str, inputs: int | None) -> Checkpoint:
    activations = {"num_bits": inputs, "type": kind} if inputs else None
    group = {"weights": {"num_bits": bits, "type": kind}, "input_activations": activations}
    return _quantized("compressed-tensors", config_groups={"group_0": group})


# What people publish, in the order in which it is tried; facts as the fetch reads them.
CHECKPOINTS: Mapping[str, Checkpoint] = {
    "16 bits": Checkpoint("hf://org/model", specs.LLAMA_8B),
    "AWQ": _quantized("awq", bits=4),
    "GPTQ": _quantized("gptq", bits=4),
    "ModelOpt NVFP4": _quantized("modelopt", quant_algo="NVFP4"),
    "ModelOpt W4A8 AWQ": _quantized("modelopt", quant_algo="W4A8_AWQ"),
    "compressed-tensors W8A8 INT8": _compressed(8, "int", 8),
    "compressed-tensors W8A16 INT8": _compressed(8, "int", None),
    "compressed-tensors W4A16 INT4": _compressed(4, "int", None),
    "compressed-tensors W4A4 NVFP4": _compressed(4, "float", 4),
}
# The checkpoint that a precision needs, where a runtime does not make it of 16 bits.
_NEEDED: Mapping[WeightPrecision, str] = {
    WeightPrecision.INT4_AWQ: "AWQ",
    WeightPrecision.INT4_GPTQ: "GPTQ",
    WeightPrecision.INT8_SMOOTHQUANT: "compressed-tensors W8A8 INT8",
    WeightPrecision.INT8: "compressed-tensors W8A16 INT8",
    WeightPrecision.W4A8_AWQ: "ModelOpt W4A8 AWQ",
    WeightPrecision.NVFP4: "ModelOpt NVFP4",
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


def plain_checkpoint(cell: Cell) -> Checkpoint:
    """16 bits where the runtime makes the precision of them, else the one that brings it."""
    makes = cell.served.backend is not None and cell.weights is not WeightPrecision.INT4_GPTQ
    return CHECKPOINTS["16 bits" if makes else _NEEDED.get(cell.weights, "16 bits")]


def tried(cell: Cell, gpu: str, checkpoint: Checkpoint, method: str) -> Taken | Refusal:
    """What the runtime makes of a cell on this GPU, from this checkpoint, with this draft."""
    engine, draft = runtime(cell.served.runtime), DRAFTS.get(method)
    spec, facts = wish(cell, gpu, checkpoint, draft), checkpoint.facts
    drafts_facts = DRAFT_FACTS if draft is not None else None
    refusal = (
        engine.refuse_spec(spec, GPUS[gpu])
        or refuse_draft(spec, facts, drafts_facts)
        or engine.refuse_model(spec, facts, GPUS[gpu])
    )
    if refusal is not None:
        return refusal
    return Taken(specs.resolved(spec, facts, draft=drafts_facts), gpu, checkpoint, method)


@functools.cache
def answer(cell: Cell) -> Answer:
    """What the runtime makes of a cell: of all that was tried the first it takes."""
    methods = tuple(DRAFTS) if cell.draft else ("",)
    for gpu, method, checkpoint in product(GPUS, methods, CHECKPOINTS.values()):
        found = tried(cell, gpu, checkpoint, method)
        if isinstance(found, Taken):
            return found
    bare = replace(cell, lora=False, draft=False)
    row = answer(bare) if bare != cell else None
    # That other GPUs lack a precision is told of the row.
    gpus = (row.gpu,) if isinstance(row, Taken) else tuple(GPUS)
    checkpoint = plain_checkpoint(cell)
    refused: dict[tuple[str, str], Refusal] = {}
    for gpu, method in product(gpus, methods):
        found = tried(cell, gpu, checkpoint, method)
        assert isinstance(found, Refusal)
        refused.setdefault((found.reason, found.source), found)
    cause, *others = refused.values()
    return Refused(cause, tuple(others))


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

A refused combination tells the cause in its plain form: on the GPU of its row ({first}
where the row runs nowhere), from the checkpoint that the precision needs (16 bits where the runtime
makes it), with {draft} as the draft. Numbers in brackets are what else stands against it with other
drafts, or on other GPUs where the row runs on none.
"""


def page(answers: Mapping[Cell, Answer]) -> str:
    """The table as a page of the documents."""
    notes: dict[tuple[str, str], int] = {}
    sections = [
        _HEAD.format(
            count=len(answers),
            gpus=", ".join(GPUS),
            drafts=", ".join(DRAFTS),
            first=next(iter(GPUS)),
            draft=next(iter(DRAFTS)),
        )
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
            causes = (found.cause, *found.others)
            cause, *others = (
                str(notes.setdefault((one.reason, one.source), len(notes) + 1)) for one in causes
            )
            marks.append(f"{cause} ({', '.join(others)})" if others else cause)
    return " · ".join(marks)
