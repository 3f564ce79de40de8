"""`make demo`: a 70B model is split, built, proven, placed, reshaped, moved and refused.

It starts a sandbox of its own, never touches another cluster, and checks everything that it says:
the exit code is 0 only if all of it happened.
"""

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
import yaml
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shardwright.api.settings import Settings
from shardwright.cli.fleetmap import draw
from shardwright.observe.nodes import node_view
from shardwright.observe.projections import pod_view
from shardwright_sandbox.cli import FLEETS
from shardwright_sandbox.cluster import Sandbox
from shardwright_sandbox.config import SandboxConfig
from shardwright_sandbox.crds import apply_crds
from shardwright_sandbox.demo_follow import (
    NAMESPACE,
    Chapter,
    DemoError,
    Follower,
    Sample,
    Screen,
    Subject,
    expect,
    spread,
    tail,
)
from shardwright_sandbox.errors import SandboxError
from shardwright_sandbox.fleet import load_fleet
from shardwright_sandbox.namespaces import make_namespace
from shardwright_sandbox.nodes import make_nodes
from shardwright_sandbox.player.control import PlayerControl
from shardwright_sandbox.progress import Progress
from shardwright_sandbox.rest import Json, rest_of
from shardwright_sandbox.storage import make_claim

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "llama-70b-pp2.yaml"
STATE = Path(".sandbox/demo")
H200, A100 = "NVIDIA-H200", "NVIDIA-A100-SXM4-80GB"
# The demo's operator beside whatever else runs here: a port of its own.
OPERATOR_SECONDS = 60
# Nobody answers at the addresses of simulated pods.
OPERATOR = {
    "namespace": "kube-system",
    "httpPort": 0,
    "logFormat": "console",
    "readLinks": False,
}


def demo(
    keep: Annotated[bool, typer.Option(help="leave the sandbox running afterwards")] = False,  # noqa: FBT002 - a flag
    pace: Annotated[
        float, typer.Option(help="seconds that each step takes, so that it can be followed", min=0)
    ] = 1.2,
    limit: Annotated[float, typer.Option(help="seconds after which one change has failed")] = 120,
    state: Annotated[
        Path | None, typer.Option(help="folder of the sandbox; else a temporary one")
    ] = None,
) -> None:
    """Show a 70B model being split, built, proven, placed, reshaped, moved and refused."""
    console = Console()
    began = time.monotonic()
    try:
        with _sandbox(state, keep=keep) as sandbox:
            _prepare(sandbox, pace)
            chapters = _Story(console, sandbox, limit).tell()
            _summary(console, chapters, time.monotonic() - began)
            if keep and sandbox.layout is not None:
                console.print(f"\nIt goes on running: export KUBECONFIG={sandbox.kubeconfig}")
                console.print(f"Stop it: make sandbox-down STATE={sandbox.layout.root}")
    except (DemoError, SandboxError) as error:
        console.print(Text(f"\nThe demo failed: {error}", style="red"))
        raise typer.Exit(1) from error


@contextlib.contextmanager
def _sandbox(state: Path | None, *, keep: bool) -> Iterator[Sandbox]:
    """A sandbox of the demo's own, gone afterwards unless `keep`."""
    if os.environ.pop("KUBECONFIG", None):
        Progress().say("KUBECONFIG is set and not used: the demo has a cluster of its own")
    with contextlib.ExitStack() as stack:
        if state is None and not keep:
            state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shardwright-")))
        sandbox = Sandbox.start(
            state or STATE, SandboxConfig(die_with_parent=not keep), progress=Progress()
        )
        if not sandbox.started_here:
            raise SandboxError(
                f"a sandbox already runs in {state or STATE}, maybe of an earlier demo; stop it "
                f"first: make sandbox-down STATE={state or STATE}"
            )
        done = False
        try:
            yield sandbox
            done = True
        except DemoError as error:
            log = sandbox.layout.logs / "operator.log" if sandbox.layout is not None else Path()
            raise DemoError(f"{error}\nend of the operator's log:\n{tail(log)}") from error
        finally:
            if not (keep and done):
                sandbox.stop()


def _prepare(sandbox: Sandbox, pace: float) -> None:
    """Nodes, CRD, operator, and what a user must bring: a namespace, a claim, a Secret."""
    progress = Progress()
    api = sandbox.api
    made = make_nodes(api, load_fleet(FLEETS / "demo.yaml"))
    apply_crds(api)
    progress.say(f"{len(made)} nodes of 8 GPUs and the CRD are there")
    assert sandbox.layout is not None  # noqa: S101 - a sandbox that was started here has one
    config = sandbox.layout.config / "operator.yaml"
    config.write_text(yaml.safe_dump(OPERATOR), encoding="utf-8")
    sandbox.start_operator("--config", str(config))
    PlayerControl(api).delays(
        start=pace / 4, ready=pace, model=pace, checkpoint=pace * 1.25, engine=pace * 1.5
    )
    make_namespace(api, NAMESPACE)
    make_claim(api, sandbox.claims, NAMESPACE, "models")
    secret = {"metadata": {"name": "hf-token"}, "stringData": {"HF_TOKEN": "of-the-demo"}}
    rest_of(api).post(f"/api/v1/namespaces/{NAMESPACE}/secrets", secret)
    progress.say(f"namespace {NAMESPACE}, claim models and Secret hf-token are there")
    log = sandbox.layout.logs / "operator.log"
    ends = time.monotonic() + OPERATOR_SECONDS
    while "store filled" not in log.read_text(encoding="utf-8"):
        sandbox.check()
        if time.monotonic() > ends:
            raise SandboxError(f"the operator is not up after {OPERATOR_SECONDS} s\n{tail(log)}")
        time.sleep(0.1)
    progress.say("the operator runs and has read the cluster")


class _Story:
    """The chapters in order. Each ends with checks of what it has shown."""

    def __init__(self, console: Console, sandbox: Sandbox, limit: float) -> None:
        self.console = console
        self.screen = Screen(console)
        self.sandbox = sandbox
        self.limit = limit
        self.manifest: Json = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
        self.subject = Subject(sandbox.api, self.manifest["metadata"]["name"])
        self.follower = Follower(self.screen, self.subject)

    def tell(self) -> list[Chapter]:
        """All of it."""
        first = self.create()
        self.map()
        reshaped = self.change(
            2,
            "TP4 × PP4 on H100",
            {"parallelism": {"tensor": 4, "pipeline": 4}},
            says=["parallelism.tensor 8 → 4", "parallelism.pipeline 2 → 4"],
            built={"checkpoint": 1, "engine": 1},
            pipeline=4,
            why="TP and PP are cut into checkpoint and engine; the model need not come again",
        )
        moved = self.change(
            3,
            "TP4 × PP4 on H200",
            {"gpu": {"product": H200}},
            says=[f"gpu.product {self.manifest['spec']['gpu']['product']} → {H200}"],
            built={"engine": 1},
            pipeline=4,
            why="an engine is compiled for one GPU product; the checkpoint is reused",
        )
        refused = self.refuse()
        back = self.revert()
        self.map()
        return [first, reshaped, moved, refused, back]

    def create(self) -> Chapter:
        """From nothing to Ready."""
        chapter = Chapter("TP8 × PP2 on H100")
        self.screen.title("1  a 70B model as TP8 × PP2 on H100: nothing is there yet")
        self.screen.line("apply", f"{EXAMPLE.parent.name}/{EXAMPLE.name} (maxSurge 1)")
        sample = self.follower.follow(
            chapter,
            lambda found: found.is_true("Ready"),
            limit=self.limit,
            act=lambda: self.subject.create(self.manifest),
        )
        self.phases(chapter, ["fetch", "checkpoint", "build", "prove", "place", "proven"])
        self.built(chapter, {"model": 1, "checkpoint": 1, "engine": 1})
        expect(chapter.candidates == 1, f"one proof was expected, not {chapter.candidates}")
        spread(sample, 2)
        return chapter

    def change(
        self,
        number: int,
        what: str,
        spec: Json,
        *,
        says: list[str],
        built: Json,
        pipeline: int,
        why: str,
    ) -> Chapter:
        """An edit that needs a new engine: the old one serves until the new one is proven."""
        chapter = Chapter(what)
        self.screen.title(f"{number}  changed to {what}: build beside, prove, then switch")
        old = self.subject.sample().serving_key
        self.screen.line("edit", f"spec: {yaml.safe_dump(spec, default_flow_style=True).strip()}")
        sample = self.follower.follow(
            chapter,
            lambda found: found.is_true("Ready") and self.alone(found, pipeline),
            limit=self.limit,
            old=old,
            act=lambda: self.subject.edit(spec),
            # once is enough: the old replica serves, the candidate loads, each on GPUs of its own
            placed=self.map if number == 2 else None,  # noqa: PLR2004 - the chapter
        )
        self.phases(chapter, ["build", "prove", "place", "proven"])
        self.built(chapter, built)
        for words in says:
            expect(words in chapter.reason, f"the reason {chapter.reason!r} lacks {words!r}")
        expect(chapter.candidates == 1, f"one proof was expected, not {chapter.candidates}")
        expect(chapter.key not in ("", old), f"the key should be a new one, it is {chapter.key}")
        self.never_down(chapter)
        spread(sample, pipeline)
        self.screen.line(
            "so",
            f"{old} served until {chapter.key} was proven (looked at {chapter.looks} times, never "
            f"fewer than {chapter.least_ready} ready); {why}",
        )
        return chapter

    def refuse(self) -> Chapter:
        """An edit that cannot be: nothing that runs is touched."""
        chapter = Chapter("FP8 on A100")
        self.screen.title("4  FP8 on A100: refused, and nothing that runs is touched")
        before = self.subject.sample()
        spec = {"gpu": {"product": A100}, "quantization": {"weights": "FP8"}}
        self.screen.line("edit", f"spec: {yaml.safe_dump(spec, default_flow_style=True).strip()}")
        self.follower.follow(
            chapter,
            lambda found: found.is_true("Stalled"),
            limit=self.limit,
            old=before.serving_key,
            act=lambda: self.subject.edit(spec),
        )
        expect(
            chapter.refusal == "PrecisionNotSupported",
            f"FP8 on A100 should be refused with PrecisionNotSupported, not {chapter.refusal!r}",
        )
        self.untouched(before)
        self.built(chapter, {})
        self.never_down(chapter)
        self.screen.line("so", f"no Job, no pod; {before.serving_key} goes on serving")
        return chapter

    def revert(self) -> Chapter:
        """Back to what was proven: no build, no proof, no restart."""
        chapter = Chapter("back to H200")
        self.screen.title("5  the edit taken back: an old wish finds its proven engine")
        before = self.subject.sample()
        spec = {"gpu": {"product": H200}, "quantization": {"weights": "None"}}
        self.screen.line("edit", f"spec: {yaml.safe_dump(spec, default_flow_style=True).strip()}")
        self.follower.follow(
            chapter,
            lambda found: found.is_true("Ready"),
            limit=self.limit,
            old=before.serving_key,
            act=lambda: self.subject.edit(spec),
        )
        self.untouched(before)
        self.built(chapter, {})
        self.never_down(chapter)
        marks = [
            name
            for name in ("finalizers", "annotations", "labels", "ownerReferences")
            if self.subject.metadata().get(name)
        ]
        expect(not marks, f"the operator left {marks} on the user's object")
        self.screen.line("so", "nothing was built, no pod was replaced, the object has no mark")
        return chapter

    def map(self) -> None:
        """Nodes × GPUs, as `shardwright map` draws them."""
        rest = rest_of(self.sandbox.api)
        self.console.print()
        draw(
            self.console,
            [node_view(body, Settings()) for body in rest.get("/api/v1/nodes")["items"]],
            [pod_view(body) for body in rest.get("/api/v1/pods")["items"]],
        )

    def alone(self, sample: Sample, pipeline: int) -> bool:
        """Whether the old replica's pods are gone, not only going."""
        return len(sample.pods) == pipeline

    def untouched(self, before: Sample) -> None:
        """The same pods as before, by uid."""
        old = {pod["metadata"]["uid"] for pod in before.pods}
        now = {pod["metadata"]["uid"] for pod in self.subject.sample().pods}
        expect(old == now, f"pods were replaced: {len(old - now)} went, {len(now - old)} came")

    def never_down(self, chapter: Chapter) -> None:
        """At least one ready replica in every sample."""
        expect(
            (chapter.least_ready or 0) >= 1,
            f"{chapter.what}: only {chapter.least_ready} replicas were ready for a moment",
        )

    def phases(self, chapter: Chapter, wanted: list[str]) -> None:
        """Every phase was seen, in this order."""
        seen = [phase for phase in dict.fromkeys(chapter.phases) if phase in wanted]
        expect(seen == wanted, f"{chapter.what}: expected {wanted}, saw {chapter.phases}")

    def built(self, chapter: Chapter, wanted: dict[str, int]) -> None:
        """Exactly these step Jobs were made."""
        expect(
            dict(chapter.built) == wanted,
            f"{chapter.what}: expected the Jobs {wanted}, made were {dict(chapter.built)}",
        )


def _summary(console: Console, chapters: list[Chapter], seconds: float) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("change", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("made", overflow="fold")
    table.add_column("engine serving", no_wrap=True)
    table.add_column("least\nready", justify="right", no_wrap=True)
    for chapter in chapters:
        table.add_row(
            chapter.what,
            f"{chapter.seconds:.1f} s",
            "nothing: refused" if chapter.refusal else chapter.made,
            chapter.key,
            "–" if chapter.least_ready is None else str(chapter.least_ready),
        )
    console.print()
    console.print(table)
    console.print(f"All of it was checked. {seconds:.0f} s, the cluster's start included.")


def _interrupted(number: int, _: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


def main() -> None:
    """The command. SIGTERM cleans up as Ctrl-C does."""
    signal.signal(signal.SIGTERM, _interrupted)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(demo)
    app()


if __name__ == "__main__":
    main()
