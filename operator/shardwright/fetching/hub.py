"""hf://: a repository of a Hugging Face hub, or of a mirror with the same interface.

huggingface_hub asks what there is: commit, sizes, checksums, and for each file where its bytes lie
now. Those lie behind redirects to signed addresses, so every try asks anew. The token goes to the
hub and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

import httpx2
import huggingface_hub
from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoSibling

# Exported when it is asked for, which a type checker does not see.
from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined]

from shardwright import __version__
from shardwright.fetching.failures import (
    ChangedError,
    FetchError,
    TransientError,
    is_transient,
    permanent,
    retry_after,
)
from shardwright.fetching.remote import Body, Digest, Listing, RemoteFile
from shardwright.fetching.uris import HubModel
from shardwright.fetching.wire import StatusError, Wire, shown
from shardwright.runner.contract import (
    REASON_ACCESS_DENIED,
    REASON_MODEL_NOT_FOUND,
    REASON_TOOL_FAILED,
)

DEFAULT_ENDPOINT = "https://huggingface.co"
_ASK_SECONDS = 30.0
_UNAUTHORIZED = 401
_FORBIDDEN = 403


class Hub:
    """One repository at one revision."""

    def __init__(self, model: HubModel, wire: Wire, env: Mapping[str, str]) -> None:
        """Name the repository; nothing is asked yet.

        Args:
            model: Repository and revision.
            wire: Streams the files.
            env: `HF_TOKEN` (or the older `HUGGING_FACE_HUB_TOKEN`), `HF_ENDPOINT`.
        """
        self.tools = {"huggingface_hub": huggingface_hub.__version__}
        self._model = model
        self._wire = wire
        self._token = env.get("HF_TOKEN") or env.get("HUGGING_FACE_HUB_TOKEN") or ""
        self._endpoint = (env.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")
        self._api = huggingface_hub.HfApi(
            endpoint=self._endpoint,
            # False: whatever else lies in a cache of this machine is not a token for this model.
            token=self._token or False,
            library_name="shardwright",
            library_version=__version__,
        )

    def survey(self) -> Listing:
        """All files at the commit that the revision points to now.

        Raises:
            FetchError: No such repository or revision, or no access.
            TransientError: Not now.
        """
        try:
            info = self._api.model_info(
                self._model.repository,
                revision=self._model.revision,
                files_metadata=True,
                timeout=_ASK_SECONDS,
            )
        except (httpx2.HTTPError, ValueError, OSError) as error:
            raise self._judged(error) from error
        if not info.sha or info.siblings is None:
            raise TransientError(f"{self._where()}: the hub names no commit or no files")
        return Listing(info.sha, tuple(self._file(one, info.sha) for one in info.siblings))

    def describe(self, file: RemoteFile) -> RemoteFile:
        """The file as it is: the listing has its checksum."""
        return file

    def open(self, file: RemoteFile, offset: int) -> Body:
        """The file's bytes from `offset` on.

        Raises:
            FetchError: No access.
            ChangedError: The commit or the file is gone.
            TransientError: Not now.
        """
        url = huggingface_hub.hf_hub_url(
            self._model.repository, file.name, revision=file.version, endpoint=self._endpoint
        )
        try:
            found = huggingface_hub.get_hf_file_metadata(
                url,
                token=self._token or False,
                timeout=_ASK_SECONDS,
                library_name="shardwright",
                library_version=__version__,
                endpoint=self._endpoint,
            )
        except (RevisionNotFoundError, RemoteEntryNotFoundError) as error:
            raise ChangedError(f"{self._where()}: {file.name} is gone at {file.version}") from error
        except (httpx2.HTTPError, ValueError, OSError) as error:
            raise self._judged(error) from error
        if found.commit_hash not in (None, file.version) or found.size not in (None, file.size):
            raise ChangedError(
                f"{self._where()}: {file.name} is {found.size} bytes at {found.commit_hash}, it "
                f"was listed with {file.size} at {file.version}"
            )
        try:
            return self._wire.open(
                found.location, self._credentials(found.location), offset, file.size
            )
        except StatusError as error:
            status, where = error.answer.status, shown(found.location)
            if self._origin(found.location) == self._origin(self._endpoint):
                raise self._refused(status, error.answer.headers) from error
            # The signed address has run out, or its store is not in order; the next try asks anew.
            raise TransientError(f"{where}: HTTP {status}") from error

    def close(self) -> None:
        """Close the hub's client."""
        huggingface_hub.close_session()

    def _file(self, sibling: RepoSibling, commit: str) -> RemoteFile:
        if sibling.size is None:
            raise permanent(
                REASON_TOOL_FAILED,
                f"{self._where()}: the hub lists {sibling.rfilename} without its size; use an "
                "endpoint that answers `?blobs=true`",
            )
        digest = None
        if sibling.lfs is not None:
            digest = Digest("sha256", sibling.lfs.sha256)
        elif sibling.blob_id:
            digest = Digest("git", sibling.blob_id)
        return RemoteFile(sibling.rfilename, sibling.size, digest, version=commit)

    def _credentials(self, url: str) -> dict[str, str]:
        own = self._token and self._origin(url) == self._origin(self._endpoint)
        return {"Authorization": f"Bearer {self._token}"} if own else {}

    @staticmethod
    def _origin(url: str) -> tuple[str, str]:
        parts = urlsplit(url)
        return parts.scheme, parts.netloc

    def _where(self) -> str:
        return f"hf://{self._model.repository}@{self._model.revision} ({self._endpoint})"

    def _judged(self, error: Exception) -> FetchError | TransientError:
        """What an error of the hub's client means."""
        if isinstance(error, HfHubHTTPError):
            return self._judged_answer(error)
        if isinstance(error, huggingface_hub.errors.HFValidationError):
            return permanent(REASON_MODEL_NOT_FOUND, f"{self._where()}: {error}")
        # The connection, or an answer that is no JSON: a proxy's page.
        return TransientError(f"{self._where()}: {type(error).__name__}: {error}")

    def _judged_answer(self, error: HfHubHTTPError) -> FetchError | TransientError:
        status, headers = error.response.status_code, error.response.headers
        if is_transient(status):
            wait = retry_after(headers)
            limit = parse_ratelimit_headers(headers)
            if wait is None and limit is not None and not limit.remaining:
                wait = float(limit.reset_in_seconds)
            return TransientError(f"{self._where()}: HTTP {status}", wait)
        if isinstance(error, GatedRepoError):
            return self._refused(status, {"X-Error-Code": "GatedRepo"})
        if isinstance(error, DisabledRepoError):
            return permanent(
                REASON_MODEL_NOT_FOUND, f"{self._where()}: the hub has disabled this repository"
            )
        if isinstance(error, RevisionNotFoundError):
            return permanent(
                REASON_MODEL_NOT_FOUND,
                f"{self._where()}: the repository has no such branch, tag or commit; correct "
                "what stands after @ in model.uri",
            )
        if isinstance(error, RepositoryNotFoundError) and status != _UNAUTHORIZED:
            seen = "the token of HF_TOKEN cannot see it" if self._token else "it is private"
            return permanent(
                REASON_MODEL_NOT_FOUND,
                f"{self._where()}: no such repository, or {seen}; correct model.uri, or "
                f"{self._advice()}",
            )
        return self._refused(status, headers)

    def _refused(self, status: int, headers: Mapping[str, str]) -> FetchError:
        if headers.get("X-Error-Code") == "GatedRepo":
            return permanent(
                REASON_ACCESS_DENIED,
                f"{self._where()} is gated: accept its terms at {self._endpoint}/"
                f"{self._model.repository} with the account of the token, then {self._advice()}",
            )
        if status in (_UNAUTHORIZED, _FORBIDDEN):
            told = headers.get("X-Error-Message", "")[:200]
            why = f" ({told})" if told else ""
            return permanent(
                REASON_ACCESS_DENIED,
                f"{self._where()}: HTTP {status}{why}: the repository is private, gated or does "
                f"not exist; correct model.uri, or {self._advice()}",
            )
        return permanent(REASON_TOOL_FAILED, f"{self._where()}: the hub answered HTTP {status}")

    def _advice(self) -> str:
        if self._token:
            return "put a token that may read it under the key HF_TOKEN of model.secretRef's Secret"
        return (
            "set model.secretRef to a Secret with a token that may read it under the key HF_TOKEN"
        )
