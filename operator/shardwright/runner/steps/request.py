"""A step's request made ready to run: checked, and with its placeholders filled in."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright.runner.contract import (
    ENV_REQUEST,
    SCRATCH,
    SOURCE,
    STEP_CHECKPOINT,
    STEP_ENGINE,
    STEP_SCORE,
    STORE,
    TOOL_LM_EVAL,
    TOOL_PERPLEXITY,
    TOOL_TRTLLM_EVAL,
    Command,
    ContractError,
    StepRequest,
    artifact_key,
    ranks_of,
)
from shardwright.runner.steps.result import Shape
from shardwright.runner.verify import Wanted, inside

_KEY = re.compile(r"[0-9a-f]{16}")
_SCORED = (TOOL_TRTLLM_EVAL, TOOL_LM_EVAL, TOOL_PERPLEXITY)


@dataclass(frozen=True)
class Places:
    """Where the pod's volumes are; tests put them elsewhere."""

    store: Path = Path(STORE)
    source: Path = Path(SOURCE)
    scratch: Path = Path(SCRATCH)


def check(request: StepRequest) -> None:
    """Do nothing if the request can be carried out as it stands.

    Raises:
        ContractError: It names a step that is not made by tools, a key that its inputs do not hash
            to, files outside of its folder, or nothing to do.
    """
    if request.step not in (STEP_CHECKPOINT, STEP_ENGINE):
        raise ContractError(
            f"step {request.step!r} is not made by tools; expected {STEP_CHECKPOINT} or "
            f"{STEP_ENGINE}"
        )
    _check_key(request)
    if not request.expected_files:
        raise ContractError("the request expects no files: nothing would prove its result")
    outside = [name for name in request.expected_files if not inside(name)]
    if outside:
        raise ContractError(f"expected file {outside[0]!r} is outside of the artifact's folder")


def check_score(request: StepRequest) -> None:
    """As `check`, for the step that measures.

    Raises:
        ContractError: It is another step, its key is not that of its inputs, it has no tool whose
            score can be read, or a data set outside of the claim.
    """
    if request.step != STEP_SCORE:
        raise ContractError(f"step {request.step!r} measures nothing; expected {STEP_SCORE}")
    _check_key(request)
    tool = request.commands[0].tool
    if len(request.commands) != 1 or tool not in _SCORED:
        raise ContractError(
            f"{tool!r} tells no score that is known; known are {', '.join(_SCORED)}"
        )
    dataset = request.inputs.get("dataset")
    if dataset is not None and not (isinstance(dataset, str) and inside(dataset)):
        raise ContractError(f"dataset {dataset!r} is outside of the claim")


def _check_key(request: StepRequest) -> None:
    if not _KEY.fullmatch(request.key):
        raise ContractError(f"key {request.key!r} is not 16 hexadecimal digits")
    if artifact_key(request.step, request.inputs) != request.key:
        raise ContractError(
            f"the inputs hash to {artifact_key(request.step, request.inputs)}, the request says "
            f"{request.key}: operator and runner disagree on what the key is made of"
        )
    if not request.commands or not all(command.argv for command in request.commands):
        raise ContractError("the request holds no command, or an empty one")


def wanted(request: StepRequest) -> Wanted:
    """What the manifest of the artifact must say."""
    world = len(ranks_of(list(request.expected_files)))
    return Wanted(request.step, request.key, world, request.inputs)


def asked_shape(request: StepRequest, source_inputs: Mapping[str, Any]) -> Shape | None:
    """Tensor × pipeline of the result; None when it is not split by ranks.

    A checkpoint's inputs say it. An engine's name only the checkpoint, whose inputs stand in its
    manifest.

    Raises:
        ContractError: The inputs do not say it, or not the number of rank files that are expected.
    """
    world = len(ranks_of(list(request.expected_files)))
    if not world:
        return None
    inputs = request.inputs if request.step == STEP_CHECKPOINT else source_inputs
    tensor, pipeline = inputs.get("tensor"), inputs.get("pipeline")
    if not isinstance(tensor, int) or not isinstance(pipeline, int) or tensor * pipeline != world:
        raise ContractError(
            f"inputs say tensor {tensor!r} × pipeline {pipeline!r}, {world} rank files are expected"
        )
    return Shape(tensor, pipeline)


def source_folder(request: StepRequest, places: Places) -> Path | None:
    """Folder of what the step works on, or None when the request names none.

    Raises:
        ContractError: It is on neither of the pod's claims.
    """
    if not request.source:
        return None
    for mount, place in ((STORE, places.store), (SOURCE, places.source)):
        if request.source == mount or request.source.startswith(f"{mount}/"):
            rest = request.source[len(mount) :].strip("/")
            if rest and not inside(rest):
                break
            return place / rest
    raise ContractError(f"source {request.source!r} is neither below {STORE} nor below {SOURCE}")


def command_line(command: Command, places: Places, out: Path) -> list[str]:
    """The arguments with `{out}` and `{scratch}` filled in; other braces are the tool's own."""
    return [_filled(word, places, out) for word in command.argv]


def environment(command: Command, places: Places, out: Path) -> dict[str, str]:
    """The tool's environment: the pod's own, then the command's. Its log comes unbuffered."""
    own = {name: value for name, value in os.environ.items() if name != ENV_REQUEST}
    given = {name: _filled(value, places, out) for name, value in command.env.items()}
    return {**own, "PYTHONUNBUFFERED": "1", **given}


def _filled(text: str, places: Places, out: Path) -> str:
    return text.replace("{out}", str(out)).replace("{scratch}", str(places.scratch))
