"""Plans in words: one way of saying a split, a precision, a fleet, a time."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shardwright.picture.scene import gib
from shardwright.sizing.precisions import words as precision_words
from shardwright.sizing.question import Fleet, NodeGroup, Workload
from shardwright.sizing.result import Candidate, Estimate
from shardwright.sizing.shape import Precision, Shape, StageMemory
from shardwright.sizing.steps import StepNeed
from shardwright.words import counted

__all__ = ["counted", "gib"]

_LIST_LIMIT = 6
_FILE_WIDTH = 120


def printed(show: Callable[[Console], None]) -> None:
    """Print an answer: as wide as the terminal; in a file or a pipe of a fixed width, unpadded."""
    found = Console(highlight=False)
    if found.is_terminal:
        show(found)
    else:
        typer.echo(plain(show), nl=False)


def plain(show: Callable[[Console], None]) -> str:
    """An answer as a file has it: no colour, no blanks at the ends of lines."""
    written = io.StringIO()
    show(Console(width=_FILE_WIDTH, no_color=True, highlight=False, file=written))
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines()) + "\n"


def bullets(console: Console, items: Sequence[str], indent: int = 2) -> None:
    """Print list items, further lines below the first word."""
    if not items:
        return
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for item in items:
        grid.add_row("·", Text(item))
    console.print(Padding(grid, (0, 0, 0, indent), expand=False))


def split(shape: Shape) -> str:
    """`TP 8 × PP 2`, with expert and attention groups where there are any."""
    text = f"TP {shape.tensor}"
    if shape.pipeline > 1:
        text += f" × PP {shape.pipeline}"
    if shape.expert > 1:
        text += f", EP {shape.expert}"
    if shape.attention_data > 1:
        text += f", attention DP {shape.attention_data}"
    return text


def precision(held: Precision) -> str:
    """`FP8 weights, 16-bit KV cache`."""
    return precision_words(held)


def headline(candidate: Candidate) -> str:
    """`FP8 weights, FP8 KV cache · TP 8 × PP 2 · 2 replicas on NVIDIA-H100-80GB-HBM3 (32 GPUs)`."""
    return (
        f"{precision(candidate.precision)} · {split(candidate.shape)} · "
        f"{counted(candidate.replicas, 'replica')} on {candidate.product} "
        f"({counted(candidate.gpus, 'GPU')})"
    )


def title(name: str, candidate: Candidate) -> str:
    """Heading of a picture."""
    return (
        f"{name}: {precision(candidate.precision)}, {split(candidate.shape)}, "
        f"{counted(candidate.replicas, 'replica')}"
    )


def asked(workload: Workload) -> str:
    """The load in a sentence."""
    text = (
        f"{workload.objective}, {counted(workload.concurrency, 'request')} at once, "
        f"{workload.input_len:,} tokens in and {workload.output_len:,} out"
    )
    if workload.ttft_seconds is not None:
        text += f", first token within {milliseconds(workload.ttft_seconds)}"
    if workload.tpot_seconds is not None:
        text += f", {milliseconds(workload.tpot_seconds)} a token"
    return text


def fleet(held: Fleet) -> str:
    """The fleet in a sentence."""
    shown = "; ".join(_group(group) for group in held.groups[:_LIST_LIMIT])
    rest = len(held.groups) - _LIST_LIMIT
    more = f"; and {counted(rest, 'other kind')} of nodes" if rest > 0 else ""
    return f"{shown}{more}; {held.free_gpus:,} of {counted(held.gpus, 'GPU')} free"


def _group(group: NodeGroup) -> str:
    links = f"NVLink {group.nvlink_size}" if group.nvlink_size > 1 else "PCIe"
    free = "" if group.free_gpus == group.gpus_per_node else f", {group.free_gpus} free on each"
    return (
        f"{counted(group.nodes, 'node')} × {group.gpus_per_node} {group.product} "
        f"({gib(group.memory_bytes)} GiB each, {links}, {group.fabric.kind} between nodes{free})"
    )


def milliseconds(seconds: float) -> str:
    """Seconds as milliseconds, in as many digits as the figure is worth."""
    value = seconds * 1000
    few = 10
    return f"{value:.1f} ms" if value < few else f"{value:,.0f} ms"


def speed(found: Estimate) -> str:
    """A replica's speed in a sentence."""
    return (
        f"first token after {milliseconds(found.ttft_seconds)}, then "
        f"{milliseconds(found.tpot_seconds)} a token; {found.tokens_per_second:,.0f} tokens/s a "
        f"replica, {found.tokens_per_second_per_gpu:,.0f} a GPU, with "
        f"{counted(found.batch, 'request')} in it"
    )


def steps(candidate: Candidate) -> tuple[str, ...]:
    """What has to be done before it serves, one step an item, and what stands against it."""
    if not candidate.steps:
        return ("nothing: the checkpoint is served as it is",)
    return tuple(_step(need) for need in candidate.steps)


def _step(need: StepNeed) -> str:
    gpus = counted(need.gpus, "GPU") if need.gpus else "no GPU"
    text = (
        f"{need.step}: {need.reason}. On one node it takes {gpus}, {gib(need.host_bytes)} GiB "
        f"of host memory, and writes {gib(need.scratch_bytes)} GiB"
    )
    if not need.obstacle:
        return text
    return f"{text}. Not here: it {need.obstacle}. Instead: {need.alternative}"


def tightest(candidate: Candidate) -> StageMemory:
    """The stage whose cache holds fewest tokens: it decides."""
    return min(candidate.memory.stages, key=lambda stage: (stage.kv_tokens, stage.kv_pool))


def room(candidate: Candidate, workload: Workload, max_batch_size: int) -> str:
    """What the replicas hold beside what is asked, and what limits them."""
    found = candidate.estimate
    # With attention by data every group has a batch of its own.
    most = max_batch_size * candidate.shape.attention_data
    limit = "engine.limits.maxBatchSize" if found.capacity == most else "the KV cache"
    lacks = "" if candidate.concurrency >= workload.concurrency else ": too few, the others wait"
    return (
        f"{counted(found.capacity, 'request')} of {workload.request_len:,} tokens a replica "
        f"(limited by {limit}), {candidate.concurrency:,} in all; {workload.concurrency:,} asked"
        f"{lacks}"
    )
