"""What a uri means: the claim it lies on, where pods find it, what its fetch makes."""

from __future__ import annotations

from shardwright.api.settings import Settings
from shardwright.observe.quantity import to_millis, to_whole
from shardwright.observe.world import Resources
from shardwright.resolved import Artifact
from shardwright.runner.contract import STEP_MODEL, STORE, artifact_folder, artifact_key

PVC = "pvc://"


def claim_of(uri: str) -> str:
    """The claim that a pvc:// uri names, or an empty string."""
    return uri[len(PVC) :].split("/", 1)[0] if uri.startswith(PVC) else ""


def folder_of(
    uri: str, key: str, store_claim: str, elsewhere: str, *, step: str = STEP_MODEL
) -> str:
    """Where pods find the files.

    What lies on a claim is used in place; everything else was fetched into the store.

    Args:
        uri: As written in the spec.
        key: Key of the fetched artifact.
        store_claim: Claim of the store.
        elsewhere: Where another claim than that one is mounted.
        step: Which kind of artifact it is.
    """
    claim = claim_of(uri)
    if not claim:
        return f"{STORE}/{artifact_folder(step, key)}"
    path = uri[len(PVC) :].split("/", 1)[1].strip("/")
    return f"{STORE if claim == store_claim else elsewhere}/{path}"


def pinned_uri(uri: str, commit: str) -> str:
    """The uri with its moving name replaced by the commit that was resolved once."""
    if commit and uri.startswith("hf://"):
        return f"{uri.split('@', 1)[0]}@{commit}"
    if commit.startswith("sha256:") and uri.startswith("oci://"):
        # a colon before the last slash belongs to the registry's port
        registry, _, name = uri.partition("@")[0].rpartition("/")
        return f"{registry}/{name.split(':', 1)[0]}@{commit}"
    return uri


def fetch_artifact(
    uri: str,
    inputs: dict[str, object],
    settings: Settings,
    commit: str,
    *,
    step: str = STEP_MODEL,
) -> Artifact:
    """A fetch; it runs in the operator's own image and takes no GPU."""
    return Artifact(
        step=step,
        key=artifact_key(step, inputs),
        inputs=inputs,
        source_key=pinned_uri(uri, commit),
        image=settings.operator_image,
        commands=(),
        expected_files=(),
        gpus=0,
        product="",
        resources=Resources(
            cpu_millis=to_millis(settings.fetch_resources.cpu),
            memory_bytes=to_whole(settings.fetch_resources.memory),
            ephemeral_bytes=to_whole(settings.fetch_resources.ephemeral_storage),
            pods=1,
        ),
    )
