"""Steps to test the runner with: real processes for tools, folders for volumes.

The tool is one Python script with the layout of the real ones' results and a few ways to fail. It
is started by its path, so no name of a real tool has to be found.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardwright.runner.contract import (
    ENV_POD_UID,
    ENV_REQUEST,
    MANIFEST,
    SOURCE,
    STEP_CHECKPOINT,
    STEP_ENGINE,
    STORE,
    Command,
    Manifest,
    Report,
    StepRequest,
    artifact_folder,
    artifact_key,
    checkpoint_files,
    decode,
    encode,
    engine_files,
)
from shardwright.runner.steps.request import Places
from shardwright.runner.steps.step import Step

PRODUCT = "NVIDIA-H100-80GB-HBM3"
VERSION = "1.2.1"

TOOL = textwrap.dedent("""\
    import argparse, json, os, signal, struct, sys, time

    parser = argparse.ArgumentParser(prog="tool")
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--tp_size", type=int, default=1)
    parser.add_argument("--pp_size", type=int, default=1)
    parser.add_argument("--kind", choices=["checkpoint", "engine"], required=True)
    parser.add_argument("--version", default="1.2.1")
    parser.add_argument("--bytes", type=int, default=1000)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--skip_rank", type=int, default=-1)
    parser.add_argument("--cut_rank", type=int, default=-1)
    parser.add_argument("--say", default="")
    parser.add_argument("--exit", type=int, default=0)
    parser.add_argument("--signal", type=int, default=0)
    parser.add_argument("--mark", default="")
    arguments = parser.parse_args()

    if arguments.mark:
        with open(arguments.mark, "a") as mark:
            mark.write(f"{os.getpid()}\\n")
    print("building", os.getcwd(), flush=True)
    world = arguments.tp_size * arguments.pp_size
    mapping = {
        "world_size": world, "tp_size": arguments.tp_size, "pp_size": arguments.pp_size,
    }
    os.makedirs(arguments.output_dir, exist_ok=True)
    if arguments.kind == "checkpoint":
        config = {"architecture": "LlamaForCausalLM", "dtype": "bfloat16", "mapping": mapping}
    else:
        config = {
            "version": arguments.version,
            "pretrained_config": {"mapping": mapping},
            "build_config": {},
        }
    with open(os.path.join(arguments.output_dir, "config.json"), "w") as file:
        json.dump(config, file)
    for rank in range(world):
        time.sleep(arguments.pause / world)
        if rank == arguments.skip_rank:
            continue
        data = bytes([rank]) * arguments.bytes
        if arguments.kind == "checkpoint":
            entry = {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}
            header = json.dumps({"w": entry}).encode()
            data = struct.pack("<Q", len(header)) + header + data
        suffix = "safetensors" if arguments.kind == "checkpoint" else "engine"
        if rank == arguments.cut_rank:
            data = data[:-10]
        with open(os.path.join(arguments.output_dir, f"rank{rank}.{suffix}"), "wb") as file:
            file.write(data)
    if arguments.say:
        print(arguments.say.replace("|", "\\n"), file=sys.stderr, flush=True)
    if arguments.signal:
        os.kill(os.getpid(), arguments.signal)
    sys.exit(arguments.exit)
    """)


@dataclass(frozen=True)
class Volumes:
    """A pod's volumes below one folder, and the tool."""

    root: Path

    @classmethod
    def make(cls, root: Path) -> Volumes:
        """New and empty, with a model on a claim of the user's own."""
        for name in ("store", "source/llama", "scratch"):
            (root / name).mkdir(parents=True)
        (root / "tool.py").write_text(TOOL)
        (root / "source/llama/config.json").write_text("{}")
        return cls(root)

    @property
    def places(self) -> Places:
        """As the runner is told."""
        return Places(self.root / "store", self.root / "source", self.root / "scratch")

    def folder(self, request: StepRequest) -> Path:
        """Where the artifact is published."""
        return self.places.store / artifact_folder(request.step, request.key)

    def manifest(self, request: StepRequest) -> Manifest:
        """The published manifest."""
        return decode(Manifest, (self.folder(request) / MANIFEST).read_text())

    def temporary(self) -> list[str]:
        """Names of temporary folders, of living and of crashed pods."""
        return [path.name for path in (self.places.store / "shardwright").rglob(".*")]

    def command(self, kind: str, *more: str, tensor: int = 2, pipeline: int = 2) -> Command:
        """A call of the tool; `more` are its further arguments."""
        argv = (
            *(sys.executable, str(self.root / "tool.py")),
            *("--kind", kind, "--output_dir", "{out}"),
            *("--tp_size", str(tensor), "--pp_size", str(pipeline)),
        )
        return Command(tool=f"{kind}-tool", argv=(*argv, *more))

    def checkpoint(self, *more: str, tensor: int = 2, pipeline: int = 2) -> StepRequest:
        """A request for a checkpoint of the model."""
        inputs = {"model": "0" * 16, "tensor": tensor, "pipeline": pipeline}
        return StepRequest(
            step=STEP_CHECKPOINT,
            key=artifact_key(STEP_CHECKPOINT, inputs),
            inputs=inputs,
            commands=(self.command(STEP_CHECKPOINT, *more, tensor=tensor, pipeline=pipeline),),
            expected_files=checkpoint_files(tensor * pipeline),
            source=f"{SOURCE}/llama",
        )

    def engine(
        self, *more: str, tensor: int = 2, pipeline: int = 2, made: tuple[int, int] | None = None
    ) -> StepRequest:
        """A request for an engine of that checkpoint; `made` is what the tool makes instead."""
        source = self.checkpoint(tensor=tensor, pipeline=pipeline)
        inputs = {"checkpoint": source.key, "version": VERSION, "product": PRODUCT}
        tp, pp = made or (tensor, pipeline)
        return StepRequest(
            step=STEP_ENGINE,
            key=artifact_key(STEP_ENGINE, inputs),
            inputs=inputs,
            commands=(self.command(STEP_ENGINE, *more, tensor=tp, pipeline=pp),),
            expected_files=engine_files(tensor * pipeline),
            source=f"{STORE}/{artifact_folder(STEP_CHECKPOINT, source.key)}",
        )

    def run(self, request: StepRequest, uid: str = "pod-1", **more: Any) -> Report:
        """Do the step in this process."""
        return Step(request, uid, self.places, **more).run()

    def with_checkpoint(self) -> Volumes:
        """The same volumes, with the checkpoint of `engine` made."""
        report = self.run(self.checkpoint())
        if report.outcome != "Done":
            raise AssertionError(report)
        return self

    def process(
        self, request: StepRequest, uid: str, log: Path, *before: str
    ) -> subprocess.Popen[bytes]:
        """Do the step in a process of its own; `before` is a command that starts it."""
        program = (
            "import sys; from pathlib import Path;"
            "from shardwright.runner.contract import *;"
            "from shardwright.runner.steps.main import step_main;"
            "from shardwright.runner.steps.request import Places;"
            "import os;"
            "places = Places(*map(Path, sys.argv[1:4]));"
            f"request = decode(StepRequest, os.environ[{ENV_REQUEST!r}]);"
            "sys.exit(step_main(request, places, Path(sys.argv[4])))"
        )
        places = self.places
        volumes = [str(places.store), str(places.source), str(places.scratch)]
        return subprocess.Popen(
            [*before, sys.executable, "-c", program, *volumes, str(log)],
            env={**os.environ, ENV_REQUEST: encode(request), ENV_POD_UID: uid},
            stdout=subprocess.DEVNULL,
        )


def with_command(request: StepRequest, *argv: str, env: Mapping[str, str] | None = None) -> Any:
    """The same request with another command line."""
    return replace(request, commands=(Command("other-tool", argv, dict(env or {})),))


def report_of(log: Path) -> Report:
    """The report in a termination message."""
    return decode(Report, log.read_text())


def tree(root: Path) -> dict[str, bytes | str | None]:
    """Everything below a folder: contents of files, targets of links, None for folders."""
    return dict(_entries(root))


def _entries(root: Path) -> Iterator[tuple[str, bytes | str | None]]:
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            yield name, str(path.readlink())
        else:
            yield name, path.read_bytes() if path.is_file() else None


def json_of(path: Path) -> Any:
    """A JSON file's content."""
    return json.loads(path.read_text())
