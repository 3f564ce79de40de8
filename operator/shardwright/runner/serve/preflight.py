"""What a pod makes sure of before it loads anything: artifact, GPUs, driver, tools, world.

Engines refuse much of this themselves, minutes later and in words of their own; some of it they do
not notice. Each difference is told with both values. What is wrong with the artifact has it made
again; what is wrong with the node has another one chosen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shardwright.runner.contract import (
    ENVIRONMENT,
    PERMANENT,
    REASON_GPU_MISMATCH,
    REASON_MANIFEST_MISMATCH,
    REASON_WORLD_MISMATCH,
    STEP_CHECKPOINT,
    STEP_ENGINE,
    STEP_MODEL,
    Manifest,
    ServeRequest,
    artifact_folder,
)
from shardwright.runner.gpus import GPU, same_product
from shardwright.runner.verify import ArtifactError, Wanted, check, read_manifest
from shardwright.runner.versions import tool_versions

CONFIG_LIMIT_BYTES = 16 * 2**20
# An engine is a program for these two; what else was there when it was built does not matter.
ENGINE_TOOLS = ("tensorrt_llm", "tensorrt")


@dataclass(frozen=True)
class Problem:
    """Why this pod may not load its artifact."""

    outcome: str
    reason: str
    message: str
    step: str = ""  # of the artifact that is bad, where it is not the served one
    key: str = ""


def artifact_problem(request: ServeRequest, store: Path) -> Problem | None:
    """Whether the folder holds what the key promises, for this world.

    Raises:
        OSError: The storage failed; that says nothing about the artifact.
    """
    folder = Path(request.artifact)
    manifest_folder = folder
    try:
        if request.step == STEP_MODEL:
            manifest_folder = _model_manifest(request, folder, store)
        manifest = read_manifest(manifest_folder)
        world = request.world_size if _split(request.step, manifest) else 0
        if manifest_folder == folder:
            check(folder, Wanted(request.step, request.key, world, request.inputs))
    except ArtifactError as error:
        return Problem(PERMANENT, error.reason, f"{error}{_shape_too(request, folder)}")
    beside = _beside_problem(request, store)
    if beside is not None:
        return beside
    if request.step == STEP_ENGINE:
        return (
            _config_problem(request, folder)
            or _product_problem(request, manifest)
            or tools_problem(manifest.tools, tool_versions())
        )
    return None


def _beside_problem(request: ServeRequest, store: Path) -> Problem | None:
    """Whether what is loaded beside the served artifact is what its key promises."""
    for one in request.also:
        folder = Path(one.artifact)
        try:
            at = _manifest_folder(one.step, one.key, folder, store)
            wanted = Wanted(one.step, one.key, 0, one.inputs)
            if at == folder:
                check(folder, wanted)
            else:
                read_manifest(at)
        except ArtifactError as error:
            return Problem(PERMANENT, error.reason, str(error), one.step, one.key)
    return None


def _shape_too(request: ServeRequest, folder: Path) -> str:
    """Of a wrong engine also the shape: its inputs name a checkpoint's key, which tells nobody."""
    if request.step != STEP_ENGINE or not (folder / "config.json").is_file():
        return ""
    found = _config_problem(request, folder)
    return "" if found is None else f"; {found.message}"


def _product_problem(request: ServeRequest, manifest: Manifest) -> Problem | None:
    """Whether the engine was built on the GPU that its key promises: the node is not to blame."""
    product = manifest.gpu.get("product", "")
    built_on = GPU(0, product, manifest.gpu.get("compute", ""), manifest.gpu.get("driver", ""))
    if not product or not request.product or same_product(request.product, built_on):
        return None
    return _artifact(f"the engine was built for {product}, spec.gpu.product is {request.product}")


def node_problem(
    request: ServeRequest, built_for: Mapping[str, str], gpus: tuple[GPU, ...] | None
) -> Problem | None:
    """Whether this pod's GPUs are those that are asked for and that the artifact was built for.

    Args:
        request: What the pod is asked to do.
        built_for: `gpu` of the manifest: product, compute, driver, as far as it was recorded.
        gpus: The pod's GPUs; None where there is no `nvidia-smi`, and nothing can be told.
    """
    if gpus is None:
        return None
    if len(gpus) != request.tensor:
        return _node(
            REASON_WORLD_MISMATCH,
            f"the pod sees {len(gpus)} GPUs, its stage has {request.tensor} tensor ranks",
        )
    for gpu in gpus:
        found = _gpu_difference(request, built_for, gpu)
        if found:
            return _node(REASON_GPU_MISMATCH, found)
    return None


def _gpu_difference(request: ServeRequest, built_for: Mapping[str, str], gpu: GPU) -> str:
    if request.product and not same_product(request.product, gpu):
        return f"GPU {gpu.index} is an {gpu.name}, spec.gpu.product is {request.product}"
    product = built_for.get("product", "")
    if product and not same_product(product, gpu):
        return f"the engine was built for {product}, GPU {gpu.index} is an {gpu.name}"
    compute = built_for.get("compute", "")
    if compute and gpu.compute != compute:
        return (
            f"the engine was built for compute capability {compute}, GPU {gpu.index} "
            f"({gpu.name}) has {gpu.compute}"
        )
    driver = built_for.get("driver", "")
    if driver and _branch(gpu.driver) < _branch(driver):
        return f"the engine was built under driver {driver}, this node's is {gpu.driver}, older"
    return ""


def tools_problem(built: Mapping[str, str], here: Mapping[str, str]) -> Problem | None:
    """Whether the engine was made by the versions that will load it.

    An engine names no version of TensorRT and loads under that very one only. Tools that are not
    in this image, or are not in the manifest, tell nothing.
    """
    for name in ENGINE_TOOLS:
        if built.get(name) and here.get(name) and built[name] != here[name]:
            return _artifact(
                f"the engine was made by {name} {built[name]}, this image has {here[name]}"
            )
    return None


def manifest_of(request: ServeRequest, store: Path) -> Manifest:
    """The manifest of what is served.

    Raises:
        ArtifactError: There is none.
        OSError: The storage failed.
    """
    folder = Path(request.artifact)
    if request.step == STEP_MODEL:
        folder = _model_manifest(request, folder, store)
    return read_manifest(folder)


def _model_manifest(request: ServeRequest, folder: Path, store: Path) -> Path:
    """A model that is served where its user has put it has its manifest in the store."""
    return _manifest_folder(STEP_MODEL, request.key, folder, store)


def _manifest_folder(step: str, key: str, folder: Path, store: Path) -> Path:
    """Where the manifest of a folder is: in it, or in the store for what lies elsewhere."""
    try:
        read_manifest(folder)
    except ArtifactError:
        return store / artifact_folder(step, key)
    return folder


def _split(step: str, manifest: Manifest) -> bool:
    """Whether the artifact is one file a rank: engines are, unified checkpoints are not."""
    if step == STEP_ENGINE:
        return True
    return step == STEP_CHECKPOINT and any(name.startswith("rank") for name in manifest.files)


def _config_problem(request: ServeRequest, folder: Path) -> Problem | None:
    """Whether the engine's own config names the asked shape."""
    path = folder / "config.json"
    if path.stat().st_size > CONFIG_LIMIT_BYTES:
        return _artifact(f"{path} is larger than {CONFIG_LIMIT_BYTES} bytes")
    try:
        mapping = json.loads(path.read_text(encoding="utf-8"))["pretrained_config"]["mapping"]
        found = {name: int(mapping[name]) for name in ("world_size", "tp_size", "pp_size")}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return _artifact(f"{path} names no pretrained_config.mapping: {error!r}")
    wanted = {
        "world_size": request.world_size,
        "tp_size": request.tensor,
        "pp_size": request.pipeline,
    }
    for name, value in wanted.items():
        if found[name] != value:
            return _artifact(f"the engine's {name} is {found[name]}, the group's is {value}")
    return None


def _branch(driver: str) -> int:
    """The release branch of a driver's version, 0 if it cannot be read."""
    match = re.match(r"(\d+)", driver)
    return int(match.group(1)) if match else 0


def _artifact(message: str) -> Problem:
    return Problem(PERMANENT, REASON_MANIFEST_MISMATCH, message)


def _node(reason: str, message: str) -> Problem:
    return Problem(ENVIRONMENT, reason, message)
