"""A registry as the distribution specification has it: manifests, blobs, tokens, redirects."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web
from tests.fetching.models import Files
from tests.fetching.served import Background, Faults, answer

REPOSITORY = "models/tiny"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class RegistryServer:
    """One repository behind tokens; its large blobs lie in a store of another origin."""

    def __init__(self) -> None:
        self.manifests: dict[str, tuple[str, bytes]] = {}
        self.tags: dict[str, str] = {}
        self.blobs: dict[str, bytes] = {}
        self.login = ""
        self.basic_only = False
        self.revoke_after = 0  # requests after which all tokens so far run out; 0 never
        self.faults, self.store = Faults(), Faults()
        self.tokens: set[str] = set()
        self.granted = 0
        self._uses = 0
        self._numbers = itertools.count()
        app = web.Application()
        app.router.add_get("/token", self._token)
        app.router.add_get("/v2/{name:.+}/manifests/{reference}", self._manifest)
        app.router.add_get("/v2/{name:.+}/blobs/{digest}", self._blob)
        store = web.Application()
        store.router.add_get("/blobs/{digest}", self._stored)
        self._app, self._store = Background(app), Background(store)
        self.host = self._app.host

    def close(self) -> None:
        """End both."""
        self._app.close()
        self._store.close()

    def uri(self, reference: str) -> str:
        """The model's uri; the reference with its mark."""
        return f"oci://{self.host}/{REPOSITORY}{reference}"

    def push(self, files: Files, tag: str = "v1", layer: Mapping[str, Any] | None = None) -> str:
        """Push files as layers with titles; `layer` changes all of them."""
        layers = []
        for name, data in files.items():
            self.blobs[digest_of(data)] = data
            layers.append(
                {
                    "mediaType": "application/octet-stream",
                    "digest": digest_of(data),
                    "size": len(data),
                    "annotations": {"org.opencontainers.image.title": name},
                    **(layer or {}),
                }
            )
        return self.put({"schemaVersion": 2, "mediaType": _MANIFEST, "layers": layers}, tag)

    def put(self, manifest: dict[str, Any], tag: str) -> str:
        """Push a manifest."""
        data = json.dumps(manifest).encode()
        self.manifests[digest_of(data)] = (str(manifest["mediaType"]), data)
        self.tags[tag] = digest_of(data)
        return digest_of(data)

    def path(self, data: bytes) -> str:
        """How the path of a blob ends, at the registry and in its store."""
        return digest_of(data)

    def sent(self, data: bytes) -> int:
        """Bytes of a blob that were sent."""
        return self.store.sent[f"/blobs/{digest_of(data)}"]

    def _refusal(self, request: web.Request) -> web.Response | None:
        sent = request.headers.get("Authorization", "")
        if self.basic_only:
            if sent == self._basic():
                return None
            return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="here"'})
        token = sent.removeprefix("Bearer ")
        if token in self.tokens:
            self._uses += 1
            if self._uses == self.revoke_after:
                self.tokens.clear()
            return None
        challenge = (
            f'Bearer realm="http://{self.host}/token",service="a, registry",'
            f'scope="repository:{REPOSITORY}:pull"'
        )
        return web.Response(status=401, headers={"WWW-Authenticate": challenge})

    def _basic(self) -> str:
        return f"Basic {base64.b64encode(self.login.encode()).decode()}"

    async def _token(self, request: web.Request) -> web.StreamResponse:
        self.faults.take(request)
        assert request.query["service"] == "a, registry"
        assert request.query["scope"] == f"repository:{REPOSITORY}:pull"
        if self.login and request.headers.get("Authorization") != self._basic():
            return web.Response(status=401)
        token = f"t0ken-{next(self._numbers)}"
        self.tokens.add(token)
        self.granted += 1
        return web.json_response({"token": token, "expires_in": 60})

    async def _manifest(self, request: web.Request) -> web.StreamResponse:
        fault = self.faults.take(request)
        if fault.status:
            return web.Response(status=fault.status, headers=dict(fault.headers))
        if refusal := self._refusal(request):
            return refusal
        reference = request.match_info["reference"]
        digest = self.tags.get(reference, reference)
        if request.match_info["name"] != REPOSITORY or digest not in self.manifests:
            return web.Response(status=404, text='{"errors": [{"code": "MANIFEST_UNKNOWN"}]}')
        kind, data = self.manifests[digest]
        assert kind in request.headers["Accept"]
        headers = {"Docker-Content-Digest": digest, "Content-Type": kind}
        return web.Response(body=data, headers=headers)

    async def _blob(self, request: web.Request) -> web.StreamResponse:
        fault = self.faults.take(request)
        if fault.status:
            return web.Response(status=fault.status, headers=dict(fault.headers))
        if refusal := self._refusal(request):
            return refusal
        digest = request.match_info["digest"]
        if digest not in self.blobs:
            return web.Response(status=404)
        location = f"http://{self._store.host}/blobs/{digest}?sig=s3cr3t"
        return web.Response(status=307, headers={"Location": location})

    async def _stored(self, request: web.Request) -> web.StreamResponse:
        fault = self.store.take(request)
        # A signed address with credentials beside it is refused by real stores.
        if "Authorization" in request.headers or request.query.get("sig") != "s3cr3t":
            return web.Response(status=400)
        data = self.blobs[request.match_info["digest"]]
        return await answer(request, self.store, fault, data, {})
