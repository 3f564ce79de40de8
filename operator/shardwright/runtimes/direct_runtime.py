"""What is alike in all engine runtimes that load published checkpoints themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from shardwright.api.settings import Settings
from shardwright.api.spec import DType, KVPrecision, LLMDeploymentSpec
from shardwright.resolved import Artifact, Resolved
from shardwright.runner.contract import AdapterServing, ModelFacts
from shardwright.runtimes import direct, direct_checks, direct_lora
from shardwright.runtimes.base import ModelSource, Probe, Refusal
from shardwright.runtimes.direct import Asked, Direct, made_online
from shardwright.runtimes.tensorrt_precision import DTYPES, Compute


class DirectRuntime:
    """See `runtimes.base.EngineRuntime` for what each method answers."""

    name: str
    engine: ClassVar[Direct]
    own_checks: ClassVar[tuple[direct_checks.SpecCheck, ...]] = ()

    def known_image(self, version: str) -> str | None:
        """The project's release image, None when this version is not known."""
        return direct.known_image(self.engine, version)

    def asked(
        self, spec: LLMDeploymentSpec, compute: Compute | None, settings: Settings | None
    ) -> Asked:
        """What the checks look at; a compute capability of 0.0 is unknown."""
        known = compute if compute and compute > (0, 0) else None
        return Asked(self.engine, spec, known, settings)

    def refuse_spec(
        self,
        spec: LLMDeploymentSpec,
        compute: tuple[int, int] | None,
        settings: Settings | None = None,
    ) -> Refusal | None:
        """The first check that objects."""
        return direct_checks.refuse_spec(self.asked(spec, compute, settings), *self.own_checks)

    def refuse_model(
        self, spec: LLMDeploymentSpec, facts: ModelFacts, compute: Compute | None = None
    ) -> Refusal | None:
        """The first check that objects; a compute capability of 0.0 is unknown."""
        known = compute if compute and compute > (0, 0) else None
        return direct_checks.refuse_model(self.engine, spec, facts, known)

    def chain(
        self,
        spec: LLMDeploymentSpec,  # noqa: ARG002
        model: ModelSource,  # noqa: ARG002
        image: str,  # noqa: ARG002
        settings: Settings,  # noqa: ARG002
    ) -> tuple[Artifact, ...]:
        """Nothing is made: the checkpoint is split as it loads."""
        return ()

    def proof_inputs(
        self, spec: LLMDeploymentSpec, model: ModelSource, image: str, serve_key: str
    ) -> Mapping[str, object]:
        """Everything whose change asks for a new proof by a candidate."""
        return direct.proof_inputs(spec, model, image, serve_key)

    def serve_config(self, resolved: Resolved) -> Mapping[str, Any]:
        """The content of the file that `--config` names: the user's own flags."""
        return dict(resolved.spec.engine.config)

    def adapters(self, resolved: Resolved) -> AdapterServing | None:
        """Loaded and unloaded over HTTP."""
        return direct_lora.serving(resolved.spec)

    def readiness(self, resolved: Resolved) -> Probe:
        """The runner's readiness endpoint."""
        return direct.readiness(resolved)


def precision_flags(engine: Direct, resolved: Resolved, kv_cache: str = "fp8") -> list[str]:
    """Flags of type and precision; `kv_cache` is what the runtime calls an FP8 cache."""
    spec = resolved.spec
    flags = []
    if spec.model.dtype is not DType.AUTO:
        flags += ["--dtype", DTYPES[spec.model.dtype]]
    if made_online(engine, spec, resolved.facts):
        flags += ["--quantization", "fp8"]
    if spec.quantization.kv_cache is not KVPrecision.NONE:
        flags += ["--kv-cache-dtype", kv_cache]
    return flags
