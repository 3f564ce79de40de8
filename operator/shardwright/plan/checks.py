"""What a spec must pass before anything is made for it: from the spec and the inventory alone.

`CHECKS` is the documentation: each check looks at one thing and either has nothing to say or
refuses with a stable reason, the field, the value, the limit and a way out. The first refusal
speaks. A check of a field that is open has nothing to say: the plan that fills it must pass the
same checks. What needs the model's facts is checked after the fetch, by the runtime; what only
needs room is no refusal at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardwright.api.asked import AskedSpec
from shardwright.api.settings import Settings
from shardwright.api.spec import StagePlacement
from shardwright.observe.nodes import node_pools
from shardwright.observe.world import ClaimView, NodePool, NodeView, Sharing
from shardwright.plan.drafts import draft_claim, draft_uri
from shardwright.plan.inventory import (
    Product,
    explain_unknown_product,
    products,
    split_that_fits,
)
from shardwright.plan.resolve import image_of, source_claim
from shardwright.plan.revisions import wish_of
from shardwright.plan.situation import Situation
from shardwright.resolved import Resolved
from shardwright.runtimes import evaluation_ways
from shardwright.runtimes.base import Refusal
from shardwright.runtimes.registry import runtime
from shardwright.words import counted


@dataclass(frozen=True, slots=True)
class Asked:
    """A spec beside what the cluster has."""

    situation: Situation
    spec: AskedSpec
    nodes: tuple[NodeView, ...]
    pools: tuple[NodePool, ...]
    product: Product | None

    @property
    def claim(self) -> ClaimView | None:
        """The storage claim."""
        return self.situation.claims.get(self.spec.storage.claim_name)


Check = Callable[[Asked], Refusal | None]


def accept(situation: Situation, spec: AskedSpec) -> Refusal | None:
    """The first refusal, or None when nothing stands against the spec."""
    return _first(CHECKS, situation, spec)


def possible(situation: Situation, spec: AskedSpec) -> Refusal | None:
    """Why no cluster such as this can run a plan any more, or None."""
    return _first(HARDWARE_CHECKS, situation, spec)


def _first(checks: tuple[Check, ...], situation: Situation, spec: AskedSpec) -> Refusal | None:
    nodes = tuple(situation.nodes.values())
    pools = node_pools(situation.settings)
    known = situation.products if situation.products is not None else products(nodes, pools)
    asked = Asked(situation, spec, nodes, pools, known.get(spec.product or ""))
    for check in checks:
        refusal = check(asked)
        if refusal is not None:
            return refusal
    return None


def name_fits(asked: Asked) -> Refusal | None:
    """Derived names (pods, Services) need room; the CRD refuses this too."""
    name = asked.situation.deployment.name
    if len(name) <= NAME_LIMIT:
        return None
    return Refusal(
        "NameTooLong",
        f"metadata.name {name} has {len(name)} characters, at most {NAME_LIMIT} are possible: "
        "names of pods and Services are made from it; choose a shorter name",
    )


NAME_LIMIT = 40


def _image(asked: Asked) -> str:
    """The image that would run: an image that was resolved before stays known."""
    return image_of(
        asked.spec,
        runtime(asked.spec.engine.runtime),
        asked.situation.settings,
        [one.resolved for one in reversed(asked.situation.revisions)],
    )


def image_known(asked: Asked) -> Refusal | None:
    """There must be an image to run."""
    spec = asked.spec
    if _image(asked):
        return None
    return Refusal(
        "ImageUnknown",
        f"spec.engine.version {spec.engine.version}: no image is known for "
        f"{spec.engine.runtime} {spec.engine.version}; set spec.engine.image, or images in the "
        "operator's settings",
    )


def engine_fits(asked: Asked) -> Refusal | None:
    """Backend, version, precision, options: what the runtime says of spec and GPU together.

    A version whose image was resolved before is known, whatever the image tables say since.
    """
    compute = asked.product.compute if asked.product is not None else None
    engine, settings = asked.spec.engine, asked.situation.settings
    if image := _image(asked):
        images = {**settings.images, f"{engine.runtime}/{engine.version}": image}
        settings = settings.model_copy(update={"images": images})
    return engine_refuses(asked.spec, compute, settings)


def engine_refuses(
    spec: AskedSpec, compute: tuple[int, int] | None, settings: Settings
) -> Refusal | None:
    """What a runtime says of a spec on a GPU; a compute capability of None is not known."""
    # Values to which no runtime objects stand in for what is open.
    whole = spec.filled(product="open", tensor=spec.most_tensor, pipeline=1)
    return runtime(spec.engine.runtime).refuse_spec(whole, compute, settings)


def gate_has_tool(asked: Asked) -> Refusal | None:
    """A tool for the accuracy gate's task; of an open shape, for one stage or for several.

    A gate that was resolved before keeps the tool's image that it had.
    """
    situation = asked.situation
    revisions = situation.revisions
    wish = wish_of(
        situation.spec_digest,
        situation.deployment.restarted_at,
        asked.claim.uid if asked.claim is not None else "",
    )
    before = next(
        (one for one in revisions if one.means(wish)), revisions[-1] if revisions else None
    )
    resolved = before.resolved if before is not None else None
    return gate_refuses(asked.spec, situation.settings, resolved)


def gate_refuses(
    spec: AskedSpec, settings: Settings, before: Resolved | None = None
) -> Refusal | None:
    """Why no tool measures the gate of a spec; `before` is what was resolved of it already."""
    refused = [
        evaluation_ways.refuse(
            # An open product and tensor decide nothing here.
            spec.filled(product="open", tensor=spec.most_tensor, pipeline=stages),
            settings,
            before,
        )
        for stages in ((spec.pipeline,) if spec.pipeline else (1, 2))
    ]
    return refused[0] if all(refused) else None


def claim_exists(asked: Asked) -> Refusal | None:
    """Models and engines need a place to live."""
    name = asked.spec.storage.claim_name
    claim = asked.claim
    if claim is None:
        return Refusal(
            "ClaimNotFound",
            f"spec.storage.claimName {name}: there is no PersistentVolumeClaim of this name in "
            f"namespace {asked.situation.deployment.namespace}; create it (ReadWriteMany)",
        )
    if claim.deleting:
        return Refusal(
            "ClaimNotFound",
            f"spec.storage.claimName {name}: the PersistentVolumeClaim is being deleted; create "
            "it anew or name another one",
        )
    return None


def source_exists(asked: Asked) -> Refusal | None:
    """The claims of a pvc:// model, and of a pvc:// draft."""
    spec = asked.spec
    named = (
        ("model.uri", spec.model.uri, source_claim(spec)),
        ("speculative.model.uri", draft_uri(spec), draft_claim(spec)),
    )
    for field, uri, name in named:
        if name and name not in asked.situation.claims:
            return Refusal(
                "ClaimNotFound",
                f"spec.{field} {uri}: there is no PersistentVolumeClaim {name} in namespace "
                f"{asked.situation.deployment.namespace}",
            )
    return None


def storage_shared(asked: Asked) -> Refusal | None:
    """Every node that works on the files must be able to; before any download."""
    claim, spec = asked.claim, asked.spec
    tensor, pipeline = spec.tensor, spec.pipeline
    if claim is None or claim.shared or tensor is None or pipeline is None:
        return None
    modes = ", ".join(claim.access_modes) or "none"
    gpus = tensor * pipeline * max(1, spec.replicas)
    largest = asked.product.largest_domain if asked.product is not None else 0
    apart = pipeline > 1 and (spec.placement.pipeline_stages is not StagePlacement.PACK)
    if not apart and gpus <= largest and "ReadWriteOncePod" not in claim.access_modes:
        return None
    why = (
        f"the {pipeline} pipeline stages go to different nodes"
        if apart
        else f"it takes {counted(gpus, 'GPU')} and one node has {largest}"
    )
    return Refusal(
        "StorageNotShared",
        f"spec.storage.claimName {claim.name}: its access modes are {modes}, but {why}; use a "
        "ReadWriteMany claim, or fit all pods on one node (placement.pipelineStages: Pack)",
    )


def secrets_exist(asked: Asked) -> Refusal | None:
    """Secrets that pods mount or pull with."""
    missing = asked.situation.missing_secrets
    if not missing:
        return None
    spec = asked.spec
    drafts = spec.speculative.model if spec.speculative is not None else None
    field = "spec.pod.imagePullSecrets"
    if spec.model.secret_ref is not None and spec.model.secret_ref.name == missing[0]:
        field = "spec.model.secretRef"
    elif drafts and drafts.secret_ref is not None and drafts.secret_ref.name == missing[0]:
        field = "spec.speculative.model.secretRef"
    return Refusal(
        "SecretNotFound",
        f"{field}: there is no Secret {missing[0]} in namespace "
        f"{asked.situation.deployment.namespace}; create it, or take the reference out",
    )


def fabric_known(asked: Asked) -> Refusal | None:
    """The named fabric profile must be in the operator's settings."""
    name = asked.spec.pod.fabric_profile
    profiles = asked.situation.settings.fabric_profiles
    if not name or name in profiles:
        return None
    known = ", ".join(sorted(profiles)) or "none"
    return Refusal(
        "FabricProfileNotFound",
        f"spec.pod.fabricProfile {name}: the operator's settings have {known}; name one of them "
        "or add it to fabricProfiles in the chart's values",
    )


def product_exists(asked: Asked) -> Refusal | None:
    """Some node has the product, or some pool may bring it."""
    product = asked.spec.product
    if product is None or asked.product is not None:
        return None
    return Refusal("GPUProductNotFound", explain_unknown_product(asked.nodes, asked.pools, product))


def gpus_whole(asked: Asked) -> Refusal | None:
    """MIG slices and shared GPUs cannot talk to each other: no tensor parallelism on them."""
    product, tensor = asked.product, asked.spec.tensor
    if product is None or tensor is None or product.sharing is Sharing.EXCLUSIVE:
        return None
    if product.sharing is not Sharing.INVALID and tensor == 1:
        return None
    return Refusal(
        "GPUNotExclusive",
        f"spec.parallelism.tensor {tensor}: {product.describe()} has no whole GPUs, and slices or "
        "shares have no peer-to-peer link between them; use nodes with whole GPUs, or tensor 1",
    )


def tensor_in_domain(asked: Asked) -> Refusal | None:
    """Tensor-parallel ranks all-reduce at every layer: they stay in one NVLink domain."""
    spec, product = asked.spec, asked.product
    tensor, pipeline = spec.tensor, spec.pipeline
    if product is None or tensor is None:
        return None
    domain = product.largest_domain
    if product.sharing is not Sharing.EXCLUSIVE or tensor <= domain:
        return None
    world = tensor * (pipeline or 1)
    split = split_that_fits(world, domain)
    offer = (
        f"use tensor: {split[0]}, pipeline: {split[1]} (TP={split[0]} × PP={split[1]}, the same "
        f"{world} GPUs, stages on {split[1]} nodes)"
        if split is not None
        else f"use tensor: {domain} or less and more pipeline stages"
    )
    return Refusal(
        "TensorParallelExceedsNVLinkDomain",
        f"spec.parallelism.tensor {tensor} (pipeline {pipeline or 'open'}): the largest NVLink "
        f"domain of {product.name} on a node of this cluster has {counted(domain, 'GPU')}, and "
        f"tensor-parallel ranks all-reduce at every layer; {offer}",
    )


HARDWARE_CHECKS: tuple[Check, ...] = (
    product_exists,
    gpus_whole,
    tensor_in_domain,
)
CHECKS: tuple[Check, ...] = (
    name_fits,
    *HARDWARE_CHECKS,
    engine_fits,
    image_known,
    gate_has_tool,
    fabric_known,
    claim_exists,
    source_exists,
    storage_shared,
    secrets_exist,
)
