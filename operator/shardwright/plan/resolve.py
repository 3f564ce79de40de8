"""From an accepted spec and the model's facts to a Resolved: what a revision will hold.

What the user did not change keeps the value that the previous revision resolved: a new image table,
another default level list or an upstream push makes no new revision and rolls nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from shardwright.api.asked import AskedSpec
from shardwright.api.settings import Settings
from shardwright.api.spec import CommonSpec, LLMDeploymentSpec
from shardwright.observe.world import ClaimView, Record
from shardwright.plan.drafts import draft_artifact, draft_of
from shardwright.plan.fetched import claim_of, fetch_artifact, folder_of
from shardwright.plan.gate import proof_inputs as gate_inputs
from shardwright.resolved import Artifact, Chosen, Gate, Resolved, Room
from shardwright.runner.contract import (
    SOURCE,
    STEP_ADAPTER,
    STEP_MODEL,
    STEP_PROOF,
    ModelFacts,
    artifact_key,
)
from shardwright.runtimes import evaluation
from shardwright.runtimes.base import EngineRuntime, ModelSource
from shardwright.runtimes.evaluation import Baseline
from shardwright.runtimes.tensorrt_steps import CALIBRATION_DATASETS


@dataclass(frozen=True, slots=True)
class Planned:
    """What is kept of the planner's answer; `asked` and `chosen` only where fields were open."""

    asked: AskedSpec | None = None
    chosen: Chosen | None = None
    room: Room | None = None
    reasons: tuple[str, ...] = ()
    baseline: Baseline | None = None  # where the accuracy gate measures its baseline


def model_inputs(spec: CommonSpec) -> dict[str, object]:
    """What a model artifact is keyed by: its uri as written (and, by its folder, the claim)."""
    return {"uri": spec.model.uri}


def model_key(spec: CommonSpec) -> str:
    """Key of the fetched model."""
    return artifact_key(STEP_MODEL, model_inputs(spec))


def adapter_inputs(uri: str) -> dict[str, object]:
    """What an adapter's artifact is keyed by: its uri as written, as a model's is."""
    return {"uri": uri}


def adapter_key(uri: str) -> str:
    """Key of a fetched adapter."""
    return artifact_key(STEP_ADAPTER, adapter_inputs(uri))


def source_claim(spec: CommonSpec) -> str:
    """The claim that a pvc:// model lives on, or an empty string."""
    return claim_of(spec.model.uri)


def model_folder(spec: CommonSpec) -> str:
    """Where pods find the model's files."""
    return folder_of(spec.model.uri, model_key(spec), spec.storage.claim_name, SOURCE)


def adapter_folder(uri: str, spec: CommonSpec) -> str:
    """Where pods find an adapter's files, as `model_folder` does a model's."""
    claim, key = spec.storage.claim_name, adapter_key(uri)
    return folder_of(uri, key, claim, SOURCE, step=STEP_ADAPTER)


def model_artifact(spec: CommonSpec, settings: Settings, commit: str = "") -> Artifact:
    """The fetch of the model."""
    return fetch_artifact(spec.model.uri, model_inputs(spec), settings, commit)


def adapter_artifact(uri: str, settings: Settings) -> Artifact:
    """The fetch of an adapter."""
    return fetch_artifact(uri, adapter_inputs(uri), settings, "", step=STEP_ADAPTER)


def image_of(
    spec: CommonSpec,
    runtime: EngineRuntime,
    settings: Settings,
    before: Iterable[Resolved],
) -> str:
    """The image that will run: the user's, else what was resolved before, else the known one.

    `before` are earlier revisions, the newest first: the first of this runtime and version counts.
    """
    engine = spec.engine
    if engine.image:
        return engine.image
    for resolved in before:
        old = resolved.spec.engine
        if (old.runtime, old.version, old.image) == (engine.runtime, engine.version, None):
            return resolved.image
    mirrored = settings.images.get(f"{engine.runtime}/{engine.version}")
    return mirrored or runtime.known_image(engine.version) or ""


def commit_of(spec: CommonSpec, record: Record, previous: Resolved | None) -> str:
    """The model's commit: resolved once for a uri on a claim, then kept."""
    if (
        previous is not None
        and previous.spec.model.uri == spec.model.uri
        and previous.claim_uid == record.claim_uid
    ):
        return previous.commit
    return record.commit


def resolve(
    spec: LLMDeploymentSpec,
    *,
    runtime: EngineRuntime,
    settings: Settings,
    claim: ClaimView,
    record: Record,
    facts: ModelFacts,
    restarted_at: str,
    previous: Resolved | None,
    planned: Planned = Planned(),
    drafts: Record | None = None,
    before: Iterable[Resolved] = (),
) -> Resolved:
    """Everything that is not in the spec, worked out once and then kept.

    `planned` is what the planner said of the spec, its user's own words included; `drafts` the
    record of what drafts tokens, where the spec names such a model; `before` the revisions before
    `previous`, the newest first.
    """
    last = (previous,) if previous is not None else ()
    image = image_of(spec, runtime, settings, (*last, *before))
    commit = commit_of(spec, record, previous)
    draft = draft_of(spec, drafts, previous) if drafts is not None else None
    model = ModelSource(
        key=model_key(spec), commit=commit, folder=model_folder(spec), facts=facts, draft=draft
    )
    chain = runtime.chain(spec, model, image, settings)
    fetched = model_artifact(spec, settings, commit)
    # A model may well draft for itself, in another precision: one fetch then.
    apart = draft is not None and draft.key != fetched.key
    beside = (draft_artifact(spec, settings, draft.commit),) if draft and apart else ()
    artifacts = (fetched, *beside, *chain)
    served = chain[-1] if chain else fetched
    proof = dict(runtime.proof_inputs(spec, model, image, served.key))
    same_fabric = (
        previous is not None and previous.spec.pod.fabric_profile == spec.pod.fabric_profile
    )
    same_levels = previous is not None and previous.spec.placement.levels == spec.placement.levels
    resolved = Resolved(
        spec=spec,
        claim_uid=claim.uid,
        image=image,
        commit=commit,
        facts=facts,
        artifacts=artifacts,
        serve_step=served.step,
        serve_key=served.key,
        proof_key=artifact_key(STEP_PROOF, proof),
        proof_inputs=proof,
        levels=(
            previous.levels
            if previous is not None and same_levels
            else tuple(spec.placement.levels or settings.levels)
        ),
        fabric=(
            previous.fabric
            if previous is not None and same_fabric
            else settings.fabric_profiles.get(spec.pod.fabric_profile)
        ),
        restarted_at=restarted_at,
        reasons=(*planned.reasons, *calibration_words(chain)),
        asked=planned.asked,
        chosen=planned.chosen,
        room=planned.room,
        draft=draft,
    )
    return gated(resolved, model, settings, previous, planned.baseline)


def gated(
    resolved: Resolved,
    model: ModelSource,
    settings: Settings,
    previous: Resolved | None,
    baseline: Baseline | None,
) -> Resolved:
    """The same with its accuracy gate, which is part of its proof; unchanged without one."""
    accuracy = resolved.spec.quantization.accuracy
    if accuracy is None:
        return resolved
    gate = Gate(
        score=evaluation.score_of(resolved, model, settings, previous),
        baseline=evaluation.baseline_of(resolved, model, settings, previous, baseline)
        if baseline is not None
        else None,
        loads_key=resolved.proof_key,
        loads_inputs=resolved.proof_inputs,
    )
    proof = {**resolved.proof_inputs, **gate_inputs(accuracy, gate)}
    return replace(
        resolved, gate=gate, proof_key=artifact_key(STEP_PROOF, proof), proof_inputs=proof
    )


def calibration_words(chain: tuple[Artifact, ...]) -> tuple[str, ...]:
    """A word of caution where scales come from a public data set, not from the user's own text.

    No reason to hold an acceptance back, so it is among the plan's reasons alone.
    """
    for artifact in chain:
        used = artifact.inputs.get("calibration")
        if isinstance(used, Mapping) and used.get("dataset") in CALIBRATION_DATASETS:
            said = (
                f"calibrated with {used['dataset']}, not with your own traffic, and scales fit "
                "best the text that they were taken from: put samples of your requests on the "
                "claim and name them in quantization.calibration.dataset"
            )
            return (said,)
    return ()
