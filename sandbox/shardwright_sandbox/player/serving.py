"""Plays the checks that a serving pod makes before it loads anything."""

from pathlib import Path

from shardwright.runner.contract import (
    ENVIRONMENT,
    PERMANENT,
    REASON_GPU_MISMATCH,
    REASON_MANIFEST_MISMATCH,
    REASON_MANIFEST_MISSING,
    ROOT,
    STEP_MODEL,
    STORE,
    ContractError,
    Report,
    ServeRequest,
    artifact_folder,
)
from shardwright_sandbox.player.files import folder_problem, read_manifest
from shardwright_sandbox.player.view import PodView


def refusal(pod: PodView, claims: Path, product: str) -> Report | None:
    """Why this pod may not load its artifact; None when all is well.

    Args:
        pod: a leader or worker.
        claims: folder of all claims.
        product: the GPU product on the pod's node, empty if it has no label.
    """
    request = pod.request()
    if not isinstance(request, ServeRequest):
        raise ContractError(f"pod {pod.name} has a step's request under a serving role")

    def refused(outcome: str, reason: str, message: str) -> Report:
        return Report(
            outcome=outcome, reason=reason, message=message, step=request.step, key=request.key
        )

    folder = pod.folder(claims, request.artifact)
    manifest = read_manifest(folder)
    if manifest is None and request.step == STEP_MODEL and ROOT not in folder.parts:
        # a model that is served where the user has put it: its manifest is in the store
        folder = pod.folder(claims, STORE) / artifact_folder(STEP_MODEL, request.key)
        manifest = read_manifest(folder)
    if manifest is None:
        return refused(
            PERMANENT, REASON_MANIFEST_MISSING, f"{request.artifact} holds no readable manifest"
        )
    world = request.tensor * request.pipeline if request.step != STEP_MODEL else 0
    if world and not any(name.startswith("rank") for name in manifest.files):
        world = 0  # a checkpoint that is not split by ranks
    if problem := folder_problem(folder, manifest, request.step, request.key, world):
        return refused(PERMANENT, REASON_MANIFEST_MISMATCH, problem)
    built_for = manifest.gpu.get("product", "")
    if built_for and product and built_for != product:
        return refused(
            ENVIRONMENT,
            REASON_GPU_MISMATCH,
            f"the engine was built for {built_for}, this node has {product}",
        )
    return None
