"""Plays a step: writes into the claim's folder what the real tool would leave.

Small files instead of large ones, everything else as it is: a temporary
folder of the pod's own, the manifest last, one rename that publishes, and a
valid artifact that is there already is reported and not made again.
"""

import hashlib
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright.runner.contract import (
    DONE,
    ENVIRONMENT,
    MANIFEST,
    PERMANENT,
    REASON_MANIFEST_MISSING,
    REASON_MODEL_NOT_FOUND,
    REASON_TOOL_FAILED,
    STEP_ADAPTER,
    STEP_CHECKPOINT,
    STEP_ENGINE,
    STEP_MODEL,
    STEP_SCORE,
    STORE,
    AdapterFacts,
    ContractError,
    Manifest,
    ModelFacts,
    Report,
    StepRequest,
    artifact_folder,
    encode,
    ranks_of,
    temporary_folder,
)
from shardwright_sandbox.player import models
from shardwright_sandbox.player.files import (
    entries,
    folder_problem,
    read_manifest,
    tool_flags,
    write_json,
    write_small,
    write_weights,
)
from shardwright_sandbox.player.view import PodView

_TOOLS = {
    STEP_MODEL: {"huggingface_hub": "sandbox"},
    STEP_ADAPTER: {"huggingface_hub": "sandbox"},
    STEP_CHECKPOINT: {"tensorrt_llm": "sandbox", "modelopt": "sandbox"},
    STEP_ENGINE: {"tensorrt_llm": "sandbox", "tensorrt": "sandbox"},
}
_PVC = "pvc://"
SCORE, SAMPLES = 68.0, 14042  # what a step that measures reports, without an order


@dataclass(frozen=True)
class Played:
    """How a step ended; `published` is the folder that it published, if it did."""

    report: Report
    published: Path | None = None


class StepFailedError(Exception):
    """The tool cannot do what it was asked; carries what the pod reports."""

    def __init__(self, outcome: str, reason: str, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.reason = reason


def play_step(
    pod: PodView,
    claims: Path,
    gpu: dict[str, str],
    *,
    corrupt: bool = False,
    score: float | None = None,
) -> Played:
    """Do the step of this pod in its claim's folder.

    Args:
        pod: the step's pod.
        claims: folder of all claims.
        gpu: what the pod's node has, for the manifest.
        corrupt: lose a file after the manifest is written.
        score: what a step that measures reports; None is the usual score.
    """
    request = pod.request()
    if not isinstance(request, StepRequest):
        raise ContractError(f"pod {pod.name} has a serving request under a step's role")
    if request.step == STEP_SCORE:
        return Played(_measured(request, SCORE if score is None else score))
    try:
        return _play(pod, request, claims, gpu, corrupt=corrupt)
    except StepFailedError as error:
        return Played(
            Report(
                outcome=error.outcome,
                reason=error.reason,
                message=str(error),
                step=request.step,
                key=request.key,
            )
        )


def _measured(request: StepRequest, score: float) -> Report:
    """Nothing is loaded here: the score is what it is said to be."""
    asked = request.inputs.get("samples")
    return Report(
        outcome=DONE,
        step=request.step,
        key=request.key,
        tools={"lm_eval": "sandbox"},
        score=score,
        samples=asked if isinstance(asked, int) else SAMPLES,
    )


def _play(
    pod: PodView, request: StepRequest, claims: Path, gpu: dict[str, str], *, corrupt: bool
) -> Played:
    if request.step not in _TOOLS:
        raise StepFailedError(
            PERMANENT, REASON_TOOL_FAILED, f"the sandbox cannot play the step {request.step!r}"
        )
    root = pod.folder(claims, STORE)
    if not root.is_dir():
        raise StepFailedError(
            ENVIRONMENT, REASON_TOOL_FAILED, f"the claim {pod.claim_name()} has no folder"
        )
    final = root / artifact_folder(request.step, request.key)
    world = len(ranks_of(list(request.expected_files)))
    present = read_manifest(final)
    if present is not None and not folder_problem(final, present, request.step, request.key, world):
        return Played(_report(present, reused=True))

    work = root / temporary_folder(request.step, request.key, pod.uid)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    adapter = _write_adapter(request, work) if request.step == STEP_ADAPTER else None
    facts, commit = (None, "") if adapter else _write_artifact(pod, request, claims, work)
    manifest = Manifest(
        step=request.step,
        key=request.key,
        inputs=request.inputs,
        files=entries(work),
        tools=_TOOLS[request.step],
        gpu=gpu if request.step == STEP_ENGINE else {},
        facts=facts,
        commit=commit,
        adapter=adapter,
    )
    if corrupt:
        next(path for path in sorted(work.iterdir()) if path.name != "config.json").unlink()
    (work / MANIFEST).write_text(encode(manifest))
    if final.exists():
        # without a valid manifest it is a ruin, and a rename does not replace a full folder
        shutil.rmtree(final)
    work.rename(final)
    return Played(_report(manifest, reused=False), published=final)


def _report(manifest: Manifest, *, reused: bool) -> Report:
    return Report(
        outcome=DONE,
        step=manifest.step,
        key=manifest.key,
        commit=manifest.commit,
        facts=manifest.facts,
        adapter=manifest.adapter,
        tools=manifest.tools,
        # the real size of a model decides what fits; the small files here do not
        total_bytes=manifest.facts.bytes if manifest.facts else manifest.total_bytes,
        reused=reused,
    )


def _write_artifact(
    pod: PodView, request: StepRequest, claims: Path, work: Path
) -> tuple[ModelFacts | None, str]:
    if request.step == STEP_MODEL:
        return _write_model(pod, request, claims, work)
    flags = tool_flags(request)
    if request.step == STEP_CHECKPOINT:
        source = _source_folder(pod, request, claims)
        if source is not None and not (source / "config.json").exists():
            raise StepFailedError(
                ENVIRONMENT, REASON_MANIFEST_MISSING, f"{request.source} holds no config.json"
            )
        write_json(work / "config.json", _checkpoint_config(request, flags))
    else:
        source = _source_folder(pod, request, claims)
        if source is None or read_manifest(source) is None:
            raise StepFailedError(
                ENVIRONMENT, REASON_MANIFEST_MISSING, f"{request.source} holds no manifest"
            )
        pretrained = json.loads((source / "config.json").read_text())
        build = {name: _value(text) for name, text in flags.items()}
        write_json(
            work / "config.json",
            {"version": "sandbox", "pretrained_config": pretrained, "build_config": build},
        )
    for name in request.expected_files:
        if name != "config.json":
            write_small(work / name, request.key)
    if not ranks_of(list(request.expected_files)):
        write_weights(work, request.key)
    return None, ""


def _source_folder(pod: PodView, request: StepRequest, claims: Path) -> Path | None:
    """Folder of what the step works on: named by the request, or by the tool's own flag."""
    flags = tool_flags(request)
    named = request.source or flags.get("model_dir", "") or flags.get("checkpoint_dir", "")
    if not named:
        return None
    folder = pod.folder(claims, named)
    if not folder.is_dir():
        # a bare key, as revisions write it
        before = {STEP_CHECKPOINT: STEP_MODEL, STEP_ENGINE: STEP_CHECKPOINT}[request.step]
        folder = pod.folder(claims, artifact_folder(before, named))
    return folder


def _write_model(
    pod: PodView, request: StepRequest, claims: Path, work: Path
) -> tuple[ModelFacts, str]:
    if request.source.startswith(_PVC):
        return _facts_in_place(pod, request.source, claims), ""
    model = models.find(request.source)
    if model is None:
        raise StepFailedError(
            PERMANENT,
            REASON_MODEL_NOT_FOUND,
            f"{request.source}: no such model in the sandbox's table (sandbox/models/*.json)",
        )
    write_json(work / "config.json", model.config)
    if model.modelopt:
        write_json(work / "hf_quant_config.json", model.modelopt)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        write_json(work / name, {"sandbox": request.key})
    write_weights(work, request.key)
    revision = request.source.partition("@")[2]
    pinned = re.fullmatch(r"[0-9a-f]{40}", revision)
    # what a hub would resolve a moving name to: always the same here
    commit = revision if pinned else hashlib.sha1(request.source.encode()).hexdigest()  # noqa: S324
    return models.facts(model), commit


def _write_adapter(request: StepRequest, work: Path) -> AdapterFacts:
    """An adapter whose name ends with its rank, as in `hf://acme/legal-r16`; it fits any model."""
    rank = re.search(r"-r(\d{1,4})(?:@.*)?$", request.source)
    if rank is None:
        raise StepFailedError(
            PERMANENT,
            REASON_MODEL_NOT_FOUND,
            f"{request.source}: simulated nodes read "
            "an adapter's rank from the end of its name, as in hf://acme/legal-r16; this has none",
        )
    write_json(work / "adapter_config.json", {"r": int(rank[1])})
    write_small(work / "adapter_model.safetensors", request.key)
    return AdapterFacts(int(rank[1]), 2.0 * int(rank[1]), ("q_proj", "v_proj"))


def _facts_in_place(pod: PodView, uri: str, claims: Path) -> ModelFacts:
    """Facts of a model that the user has put on a claim; nothing is copied."""
    claim, _, path = uri[len(_PVC) :].partition("/")
    folder = claims / pod.namespace / claim / path.strip("/")
    config = folder / "config.json"
    if not config.is_file():
        raise StepFailedError(
            PERMANENT, REASON_MODEL_NOT_FOUND, f"{uri}: the claim holds no {path}/config.json"
        )
    size = sum(one.stat().st_size for one in folder.rglob("*.safetensors"))
    known = models.find(folder.name)
    return models.facts(
        models.Model(json.loads(config.read_text()), known.bytes if known else size)
    )


def put_model(folder: Path, name: str) -> None:
    """Put a model of the table into a folder, as a user would who has it on a claim already.

    Raises:
        KeyError: If the table has no such model.
    """
    model = models.find(name)
    if model is None:
        raise KeyError(name)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", model.config)
    write_json(folder / "tokenizer.json", {"sandbox": name})
    write_weights(folder, name)


def _checkpoint_config(request: StepRequest, flags: dict[str, str]) -> dict[str, Any]:
    tensor, pipeline = int(flags.get("tp_size", 1)), int(flags.get("pp_size", 1))
    return {
        "dtype": flags.get("dtype", "bfloat16"),
        "mapping": {"world_size": tensor * pipeline, "tp_size": tensor, "pp_size": pipeline},
        "quantization": {
            "quant_algo": request.inputs.get("weights"),
            "kv_cache_quant_algo": request.inputs.get("kvCache"),
        },
    }


def _value(text: str) -> int | str:
    return int(text) if text.isdigit() else text
