"""Where a model comes from: the four forms of `spec.model.uri`, read into plain data."""

from __future__ import annotations

import re
from dataclasses import dataclass

from shardwright.fetching.failures import permanent
from shardwright.runner.contract import REASON_MODEL_NOT_FOUND

_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_FORMS = (
    "write hf://org/name@revision, pvc://claim/path, s3://bucket/prefix or "
    "oci://registry/repository:tag"
)


@dataclass(frozen=True, slots=True)
class HubModel:
    """A repository of a Hugging Face hub at a revision: a branch, a tag or a commit."""

    repository: str
    revision: str

    @property
    def pinned(self) -> bool:
        """Whether the revision cannot move."""
        return _COMMIT.fullmatch(self.revision) is not None


@dataclass(frozen=True, slots=True)
class ClaimFolder:
    """A folder on a claim, used where it lies."""

    claim: str
    path: str


@dataclass(frozen=True, slots=True)
class BucketFolder:
    """All objects below a prefix of an S3 bucket; the prefix has no slash at its end."""

    bucket: str
    prefix: str


@dataclass(frozen=True, slots=True)
class RegistryArtifact:
    """An artifact of an OCI registry; the reference is a tag or `sha256:…`."""

    registry: str
    repository: str
    reference: str

    @property
    def pinned(self) -> bool:
        """Whether the reference cannot move."""
        return _DIGEST.fullmatch(self.reference) is not None


Location = HubModel | ClaimFolder | BucketFolder | RegistryArtifact

_HUB = re.compile(r"hf://(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?", re.ASCII)
_CLAIM = re.compile(r"pvc://(?P<claim>[a-z0-9.-]+)/(?P<path>[\w./-]+)", re.ASCII)
_BUCKET = re.compile(r"s3://(?P<bucket>[a-z0-9.-]+)/(?P<prefix>[\w./-]+)", re.ASCII)
_REGISTRY = re.compile(
    r"oci://(?P<registry>[A-Za-z0-9.:-]+)/(?P<repository>[A-Za-z0-9._/-]+)"
    r"(?P<mark>[:@])?(?P<reference>(?<=[:@])[\w.:-]+)?",
    re.ASCII,
)


def parse(uri: str) -> Location:
    """Read a model's uri.

    Raises:
        FetchError: It has none of the four forms, or leads out of its repository.
    """
    if ".." in uri:
        raise permanent(
            REASON_MODEL_NOT_FOUND,
            f"model.uri {uri} must not contain '..': a path stays inside its claim, bucket or "
            "repository",
        )
    if match := _HUB.fullmatch(uri):
        return HubModel(match["repository"], match["revision"] or "main")
    if match := _CLAIM.fullmatch(uri):
        return ClaimFolder(match["claim"], match["path"].strip("/"))
    if match := _BUCKET.fullmatch(uri):
        return BucketFolder(match["bucket"], match["prefix"].strip("/"))
    if match := _REGISTRY.fullmatch(uri):
        reference = match["reference"] or "latest"
        by_digest = match["mark"] == "@"
        if bool(match["mark"]) == bool(match["reference"]) and by_digest == bool(
            _DIGEST.fullmatch(reference)
        ):
            return RegistryArtifact(match["registry"], match["repository"], reference)
    raise permanent(REASON_MODEL_NOT_FOUND, f"model.uri {uri} cannot be read: {_FORMS}")
