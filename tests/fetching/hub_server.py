"""A hub as the real one answers: listing, redirects to a store with signed addresses, refusals.

Recorded by the shapes of huggingface.co's answers: large files are a 302 to another host with
`X-Linked-Size`, `X-Linked-ETag` and `X-Repo-Commit`; small ones a 307 within the hub; errors carry
`X-Error-Code`. The store is another origin and gets no token.
"""

from __future__ import annotations

import hashlib
import itertools

from aiohttp import web
from tests.fetching.models import Files
from tests.fetching.served import Background, Faults, answer

REPOSITORY = "acme/tiny"


def git_oid(data: bytes) -> str:
    """Git's id of a blob."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


class HubServer:
    """One repository with commits and branches, and the store that holds its large files."""

    def __init__(self) -> None:
        self.commits: dict[str, Files] = {}
        self.branches: dict[str, str] = {}
        self.token = ""
        self.gated = False
        self.hub, self.store = Faults(), Faults()
        self.wrong_sha256: dict[str, str] = {}
        self._nonces = itertools.count()
        self._spent: set[str] = set()
        self.expire_next = 0
        hub = web.Application()
        hub.router.add_get("/api/models/{org}/{name}/revision/{revision:.+}", self._info)
        hub.router.add_get("/api/resolve-cache/models/{commit}/{file:.+}", self._small)
        hub.router.add_get("/{org}/{name}/resolve/{revision}/{file:.+}", self._resolve)
        store = web.Application()
        store.router.add_get("/repos/{sha256}", self._large)
        self._hub, self._store = Background(hub), Background(store)
        self.url = self._hub.url

    def close(self) -> None:
        """End both."""
        self._hub.close()
        self._store.close()

    def push(self, files: Files, branch: str = "main") -> str:
        """A new commit on a branch."""
        names = "".join(f"{name}{hashlib.sha256(data).hexdigest()}" for name, data in files.items())
        commit = hashlib.sha1(names.encode(), usedforsecurity=False).hexdigest()
        self.commits[commit] = files
        self.branches[branch] = commit
        return commit

    def sent(self, data: bytes) -> int:
        """Bytes of a large file that the store has sent."""
        return self.store.sent[f"/repos/{hashlib.sha256(data).hexdigest()}"]

    def ranges(self, data: bytes) -> list[str]:
        """The ranges that were asked of a large file."""
        return self.store.asked_ranges(hashlib.sha256(data).hexdigest())

    def path(self, data: bytes) -> str:
        """How the path of a large file in the store ends."""
        return hashlib.sha256(data).hexdigest()

    def _refusal(self, request: web.Request, *, metadata: bool) -> web.Response | None:
        sent = request.headers.get("Authorization", "")
        name = f"{request.match_info['org']}/{request.match_info['name']}"
        if self.token and sent != f"Bearer {self.token}":
            # Also for what is not there: nobody learns which private repositories exist.
            return _error(401, "RepoNotFound", "Repository not found")
        if name != REPOSITORY:
            return _error(404 if sent else 401, "RepoNotFound", "Repository not found")
        if self.gated and not metadata:
            return _error(403 if sent else 401, "GatedRepo", "Access to this model is restricted")
        return None

    def _commit(self, revision: str) -> str:
        return self.branches.get(revision, revision)

    async def _info(self, request: web.Request) -> web.StreamResponse:
        fault = self.hub.take(request)
        if fault.status:
            return web.Response(status=fault.status, headers=dict(fault.headers))
        if refusal := self._refusal(request, metadata=True):
            return refusal
        commit = self._commit(request.match_info["revision"])
        if commit not in self.commits:
            return _error(404, "RevisionNotFound", "Invalid rev id")
        assert request.query.get("blobs") in ("True", "true", "1")
        siblings = []
        for name, data in self.commits[commit].items():
            entry: dict[str, object] = {
                "rfilename": name,
                "size": len(data),
                "blobId": git_oid(data),
            }
            if _is_large(name):
                sha256 = self.wrong_sha256.get(name, hashlib.sha256(data).hexdigest())
                entry["lfs"] = {"sha256": sha256, "size": len(data), "pointerSize": 133}
            siblings.append(entry)
        return web.json_response({"id": REPOSITORY, "sha": commit, "siblings": siblings})

    async def _resolve(self, request: web.Request) -> web.StreamResponse:
        fault = self.hub.take(request)
        if fault.status:
            return web.Response(status=fault.status, headers=dict(fault.headers))
        if refusal := self._refusal(request, metadata=False):
            return refusal
        commit, name = self._commit(request.match_info["revision"]), request.match_info["file"]
        if commit not in self.commits:
            return _error(404, "RevisionNotFound", "Invalid rev id")
        if name not in self.commits[commit]:
            return _error(404, "EntryNotFound", "Entry not found")
        data = self.commits[commit][name]
        headers = {"X-Repo-Commit": commit, "X-Linked-Size": str(len(data))}
        if not _is_large(name):
            headers["Location"] = f"/api/resolve-cache/models/{commit}/{name}"
            return web.Response(status=307, headers=headers)
        sha256 = hashlib.sha256(data).hexdigest()
        nonce = str(next(self._nonces))
        if self.expire_next:
            self.expire_next -= 1
            self._spent.add(nonce)
        headers["X-Linked-ETag"] = f'"{sha256}"'
        headers["Location"] = f"{self._store.url}/repos/{sha256}?Signature=s3cr3t-{nonce}"
        return web.Response(status=302, headers=headers)

    async def _small(self, request: web.Request) -> web.StreamResponse:
        fault = self.hub.take(request)
        commit, name = request.match_info["commit"], request.match_info["file"]
        data = self.commits[commit][name]
        headers = {"X-Repo-Commit": commit, "ETag": f'"{git_oid(data)}"'}
        return await answer(request, self.hub, fault, data, headers)

    async def _large(self, request: web.Request) -> web.StreamResponse:
        fault = self.store.take(request)
        assert "Authorization" not in request.headers
        nonce = request.query.get("Signature", "").removeprefix("s3cr3t-")
        if not nonce or nonce in self._spent:
            return web.Response(status=403, text="<Error><Code>AccessDenied</Code></Error>")
        by_sha256 = {
            hashlib.sha256(data).hexdigest(): data
            for files in self.commits.values()
            for data in files.values()
        }
        data = by_sha256[request.match_info["sha256"]]
        return await answer(request, self.store, fault, data, {"ETag": '"of-the-store"'})


def _is_large(name: str) -> bool:
    return name.endswith((".safetensors", ".bin", ".pth"))


def _error(status: int, code: str, message: str) -> web.Response:
    return web.Response(
        status=status,
        headers={"X-Error-Code": code, "X-Error-Message": message},
        text=message,
    )
