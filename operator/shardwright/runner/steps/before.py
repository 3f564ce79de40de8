"""What is looked at before a tool runs: the artifact it works on, and the GPU it builds for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shardwright.runner.contract import (
    CALIBRATION_FLAG,
    ENVIRONMENT,
    PERMANENT,
    REASON_DATASET_NOT_FOUND,
    REASON_GPU_MISMATCH,
    REASON_MANIFEST_MISSING,
    STEP_CHECKPOINT,
    STEP_ENGINE,
    STEP_MODEL,
    STORE,
    StepRequest,
    artifact_folder,
)
from shardwright.runner.gpus import GPUError, manifest_entry, same_product, visible_gpus
from shardwright.runner.steps import request as requests
from shardwright.runner.steps.classify import Cause
from shardwright.runner.steps.failure import StepFailedError
from shardwright.runner.steps.request import Places
from shardwright.runner.verify import ArtifactError, Wanted, check, inside


def source_inputs(
    request: StepRequest, places: Places, between: Callable[[], None]
) -> Mapping[str, Any]:
    """Inputs of the artifact that this one is made from; it must be there, and whole.

    A model on the user's own claim is used in place and has no manifest beside it: of it only
    `config.json` must be there, and the inputs are empty.

    Raises:
        StepFailedError: It is not there, or is another one.
        ContractError: The request names a source outside of the claims.
        OSError: The storage failed.
    """
    folder = requests.source_folder(request, places)
    if folder is None:
        return {}
    model = str(request.inputs.get("model"))
    if request.step == STEP_ENGINE:
        world = requests.wanted(request).world_size
        wanted = Wanted(STEP_CHECKPOINT, str(request.inputs.get("checkpoint")), world)
    elif folder == places.store / artifact_folder(STEP_MODEL, model):
        wanted = Wanted(STEP_MODEL, model)
    elif (folder / "config.json").is_file():
        return {}
    else:
        raise _bad_source(request, REASON_MANIFEST_MISSING, "it holds no config.json")
    try:
        return check(folder, wanted, between=between).inputs
    except ArtifactError as error:
        raise _bad_source(request, error.reason, str(error)) from error


def beside_there(request: StepRequest, places: Places, between: Callable[[], None]) -> None:
    """Do nothing if all that the step reads beside its source is there, and whole.

    Raises:
        StepFailedError: One of them is not; the cause names its key.
        OSError: The storage failed.
    """
    for one in request.also:
        folder = places.store / artifact_folder(one.step, one.key)
        try:
            check(folder, Wanted(one.step, one.key, 0, one.inputs), between=between)
        except ArtifactError as error:
            said = (
                f"{one.step} {one.key}, which this {request.step} reads, is not what it was: "
                f"{error}; it is made anew, a few times at most"
            )
            cause = Cause(ENVIRONMENT, error.reason, said, key=one.key)
            raise StepFailedError(cause) from error


def data_there(request: StepRequest, places: Places) -> None:
    """Do nothing if the calibration data that a command names are on the claim, or are a name.

    A path that is not there is taken for the name of a data set by the tool, which then fails in
    search of it on the network.

    Raises:
        StepFailedError: They are not there. That is mended under the same key.
    """
    for command in request.commands:
        for flag, value in zip(command.argv, command.argv[1:]):  # noqa: B905 - Python 3.9
            path = value[len(STORE) + 1 :]
            on_claim = flag == CALIBRATION_FLAG and value.startswith(f"{STORE}/")
            if on_claim and not (inside(path) and (places.store / path).exists()):
                said = (
                    f"quantization.calibration.dataset {path} is not on the claim; put it there, "
                    "then edit the spec or set the annotation shardwright.dev/restartedAt"
                )
                raise StepFailedError(Cause(PERMANENT, REASON_DATASET_NOT_FOUND, said))


def gpu_entry(request: StepRequest) -> dict[str, str]:
    """What the manifest says of the GPU; checked against the one the step was placed for.

    Raises:
        StepFailedError: The node's GPU is another one, none is there, or it does not answer.
    """
    if request.step != STEP_ENGINE:
        return {}
    label = str(request.inputs.get("product") or "")
    try:
        gpus = visible_gpus()
    except GPUError as error:
        raise _mismatch(str(error)) from error
    if gpus is not None and not gpus:
        raise _mismatch("this pod sees no GPU; look at the device plugin of the node")
    for gpu in gpus or ():
        if label and not same_product(label, gpu):
            raise _mismatch(
                f"the engine is for {label}, GPU {gpu.index} of this node is {gpu.product}; "
                "correct the node's product label"
            )
    return manifest_entry(gpus, label)


def _mismatch(message: str) -> StepFailedError:
    return StepFailedError(Cause(ENVIRONMENT, REASON_GPU_MISMATCH, message))


def _bad_source(request: StepRequest, reason: str, why: str) -> StepFailedError:
    before = STEP_CHECKPOINT if request.step == STEP_ENGINE else STEP_MODEL
    return StepFailedError(
        Cause(
            ENVIRONMENT,
            reason,
            f"{request.source} is not the {before} that this {request.step} is made from: {why}; "
            "it is made anew, a few times at most",
        )
    )
