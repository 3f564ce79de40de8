"""oci://: an artifact of a registry whose layers are the model's files, named by annotations.

The distribution protocol spoken directly: a manifest, and blobs by digest (with ranges), behind a
token that the registry says where to get. The Python client of the ORAS project has neither ranges
nor types, and reads a blob whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any
from urllib.parse import urlencode
from urllib.request import parse_http_list, parse_keqv_list

from shardwright.fetching.failures import (
    ChangedError,
    FetchError,
    TransientError,
    permanent,
)
from shardwright.fetching.logins import Login, login_for
from shardwright.fetching.remote import Body, Digest, Listing, RemoteFile
from shardwright.fetching.uris import RegistryArtifact
from shardwright.fetching.wire import Answer, StatusError, Wire
from shardwright.runner.contract import (
    REASON_ACCESS_DENIED,
    REASON_MODEL_NOT_FOUND,
    REASON_TOOL_FAILED,
)

_MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
# Where a layer's file name stands: ORAS and most others; the model format of the CNCF.
_TITLES = ("org.opencontainers.image.title", "org.cncf.model.filepath")
# ORAS packs a folder into one archive and marks it so.
_UNPACK = "io.deis.oras.content.unpack"
_ARCHIVE = re.compile(r".*[.+](tar|gzip|zstd)([.+].*)?")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_OK = 200
_UNAUTHORIZED = 401
_FORBIDDEN = 403
_NOT_FOUND = 404
_DOCKER_HUB = frozenset({"docker.io", "index.docker.io"})


class Registry:
    """One artifact of one registry."""

    def __init__(self, artifact: RegistryArtifact, wire: Wire, env: Mapping[str, str]) -> None:
        """Name the artifact; nothing is asked yet.

        Args:
            artifact: Registry, repository, tag or digest.
            wire: Carries all requests.
            env: Credentials, see `logins`; `OCI_PLAIN_HTTP` set to `true` for a registry without
                TLS, which on this very host is assumed as other clients do.

        Raises:
            FetchError: The credentials cannot be read.
        """
        self.tools = {"urllib3": version("urllib3")}
        self._artifact = artifact
        self._wire = wire
        self._login = login_for(artifact.registry, env)
        self._header: dict[str, str] = {}
        self._renewal = threading.Lock()
        host = "registry-1.docker.io" if artifact.registry in _DOCKER_HUB else artifact.registry
        name = host.rpartition(":")[0] or host
        plain = env.get("OCI_PLAIN_HTTP", "").lower() == "true" or name in (
            "localhost",
            "127.0.0.1",
        )
        scheme = "http" if plain else "https"
        self._base = f"{scheme}://{host}/v2/{artifact.repository}"

    def survey(self) -> Listing:
        """The layers that are files, at the digest that the reference points to now.

        Raises:
            FetchError: No such artifact, no access, or its layers are no files.
            TransientError: Not now.
        """
        digest, manifest = self._manifest(self._artifact.reference)
        if manifest.get("mediaType") in _INDEXES or "manifests" in manifest:
            inner = manifest.get("manifests")
            if not isinstance(inner, list) or len(inner) != 1:
                raise permanent(
                    REASON_MODEL_NOT_FOUND,
                    f"{self._where()} is an index of several manifests; name the digest of one",
                )
            digest, manifest = self._manifest(str(inner[0].get("digest", "")))
        layers = manifest.get("layers")
        if not isinstance(layers, list) or not layers:
            raise permanent(REASON_MODEL_NOT_FOUND, f"{self._where()}: its manifest has no layers")
        return Listing(digest, tuple(self._file(layer) for layer in layers))

    def describe(self, file: RemoteFile) -> RemoteFile:
        """The file as it is: its digest is its address."""
        return file

    def open(self, file: RemoteFile, offset: int) -> Body:
        """The layer's bytes from `offset` on.

        Raises:
            FetchError: No access.
            ChangedError: The layer is gone.
            TransientError: Not now.
        """
        url = f"{self._base}/blobs/{file.address}"
        sent = dict(self._header)
        try:
            return self._wire.open(url, sent, offset, file.size)
        except StatusError as error:
            if error.answer.status != _UNAUTHORIZED:
                raise self._judged(error.answer, file) from error
            # A token lives for some minutes, a layer may take hours. All threads notice at once,
            # and one of them gets the new one.
            with self._renewal:
                if sent == self._header:
                    self._authenticate(error.answer)
        try:
            return self._wire.open(url, self._header, offset, file.size)
        except StatusError as error:
            raise self._judged(error.answer, file) from error

    def close(self) -> None:
        """Nothing is kept open."""

    def _file(self, layer: object) -> RemoteFile:
        """The file that a layer is."""
        if not isinstance(layer, Mapping):
            raise permanent(REASON_TOOL_FAILED, f"{self._where()}: a layer is no object")
        digest, size = str(layer.get("digest", "")), layer.get("size")
        if not _DIGEST.fullmatch(digest) or not isinstance(size, int) or size < 0:
            raise permanent(
                REASON_TOOL_FAILED,
                f"{self._where()}: a layer has the digest {digest[:80]!r} and the size "
                f"{size!r}; sha256 and a count of bytes are expected",
            )
        notes = layer.get("annotations")
        notes = notes if isinstance(notes, Mapping) else {}
        name = next((str(notes[title]) for title in _TITLES if notes.get(title)), "")
        kind = str(layer.get("mediaType", ""))
        if not name or notes.get(_UNPACK) == "true" or _ARCHIVE.fullmatch(kind):
            raise permanent(
                REASON_MODEL_NOT_FOUND,
                f"{self._where()}: the layer {digest[:19]}… ({kind}) is no plain file with a "
                f"{_TITLES[0]}; push the model's files one by one (`oras push` with file names), "
                "not a folder or an image",
            )
        return RemoteFile(
            name, size, Digest("sha256", digest.removeprefix("sha256:")), address=digest
        )

    def _manifest(self, reference: str) -> tuple[str, dict[str, Any]]:
        """A manifest and its digest."""
        url = f"{self._base}/manifests/{reference}"
        accept = {"Accept": ", ".join((*_MANIFESTS, *_INDEXES))}
        answer = self._wire.ask(url, {**accept, **self._header})
        if answer.status == _UNAUTHORIZED:
            self._authenticate(answer)
            answer = self._wire.ask(url, {**accept, **self._header})
        if answer.status != _OK:
            raise self._judged(answer, None)
        digest = f"sha256:{hashlib.sha256(answer.data).hexdigest()}"
        for told in (reference, answer.headers.get("Docker-Content-Digest", "")):
            if _DIGEST.fullmatch(told) and told != digest:
                raise TransientError(f"{self._where()}: the manifest is {digest}, not {told}")
        try:
            manifest = json.loads(answer.data)
        except (ValueError, RecursionError) as error:
            raise TransientError(f"{self._where()}: the manifest is no JSON: {error}") from error
        if not isinstance(manifest, dict):
            raise TransientError(f"{self._where()}: the manifest is no object")
        return digest, manifest

    def _authenticate(self, answer: Answer) -> None:
        """Get what the registry asks for in a 401: a token, or name and password.

        Raises:
            FetchError: The registry refuses the credentials, or there are none.
            TransientError: Not now.
        """
        scheme, _, text = answer.headers.get("WWW-Authenticate", "").partition(" ")
        if scheme.lower() == "basic" and self._login is not None:
            self._header = {"Authorization": self._login.basic}
            return
        asked = parse_keqv_list(parse_http_list(text)) if scheme.lower() == "bearer" else {}
        realm = asked.get("realm", "")
        if not realm.startswith(("https://", "http://")):
            raise self._denied(answer)
        # Credentials do not leave TLS if the registry itself is reached through it.
        if realm.startswith("http://") and self._base.startswith("https://"):
            raise permanent(
                REASON_ACCESS_DENIED,
                f"{self._where()}: the registry sends for its token to {realm}, without TLS",
            )
        scope = asked.get("scope") or f"repository:{self._artifact.repository}:pull"
        query = {"service": asked.get("service", ""), "scope": scope}
        kept = urlencode({name: value for name, value in query.items() if value})
        mark = "&" if "?" in realm else "?"
        headers = {} if self._login is None else {"Authorization": self._login.basic}
        found = self._wire.ask(f"{realm}{mark}{kept}", headers)
        token = _token(found) if found.status == _OK else ""
        if not token:
            raise self._denied(found)
        self._header = {"Authorization": f"Bearer {token}"}

    def _where(self) -> str:
        mark = "@" if self._artifact.pinned else ":"
        place = f"{self._artifact.registry}/{self._artifact.repository}"
        return f"oci://{place}{mark}{self._artifact.reference}"

    def _judged(
        self, answer: Answer, file: RemoteFile | None
    ) -> FetchError | ChangedError | TransientError:
        """What an answer that is no success means."""
        if answer.status in (_UNAUTHORIZED, _FORBIDDEN):
            return self._denied(answer)
        if file is not None and answer.status == _NOT_FOUND:
            return ChangedError(f"{self._where()}: the layer of {file.name} is gone")
        if answer.status == _NOT_FOUND:
            return permanent(
                REASON_MODEL_NOT_FOUND,
                f"{self._where()}: no such repository, tag or digest; correct model.uri",
            )
        return permanent(
            REASON_TOOL_FAILED, f"{self._where()}: the registry answered HTTP {answer.status}"
        )

    def _denied(self, answer: Answer) -> FetchError:
        advice = (
            "set model.secretRef to a Secret with OCI_USERNAME and OCI_PASSWORD, or of the type "
            "kubernetes.io/dockerconfigjson"
            if self._login is None
            else f"the login {_quoted(self._login)} may not pull it; correct model.secretRef's "
            "Secret, or the rights of that login"
        )
        return permanent(REASON_ACCESS_DENIED, f"{self._where()}: HTTP {answer.status}: {advice}")


def _token(answer: Answer) -> str:
    try:
        found = json.loads(answer.data)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(found, dict):
        return ""
    token = found.get("token") or found.get("access_token")
    return token if isinstance(token, str) and token.isprintable() else ""


def _quoted(login: Login) -> str:
    return f"{login.username!r} ({login.origin})"
