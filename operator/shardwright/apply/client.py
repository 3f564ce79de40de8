"""The one door to the API server: JSON over REST paths from a table, errors as typed exceptions.

It stands on the REST layer of `kubernetes.aio` (TLS, proxies, kubeconfigs with exec plugins, token
files that are read again), without its models and without discovery, so that a call is one HTTP
request and bodies stay plain dicts.

Every call has a deadline. With a `fence` (the Lease's remaining seconds) no write outlives the time
for which the Lease is certainly ours. Reads are tried again, briefly, where waiting helps; writes
never are: whoever asked for one must look at the cluster first.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import load_kube_config
from kubernetes.aio.config.incluster_config import load_incluster_config

from shardwright.api.names import MANAGER_CHILDREN
from shardwright.apply.errors import (
    ClusterError,
    Gone,
    LeaseLost,
    NotFound,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    from_response,
)
from shardwright.apply.kinds import JOB, REVISION, kind_of, meta

Body = dict[str, Any]
RequestHook = Callable[[int, str, str, float], None]

CALL_SECONDS: Final = 8.0
PAGE: Final = 500
_CONNECTIONS: Final = 64
_PROXY_VARIABLES: Final = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY")
_READ_ATTEMPTS: Final = 4
_READ_BACKOFF: Final = 0.25
_JSON: Final = "application/json"
_YAML: Final = "application/yaml"
_APPLY: Final = "application/apply-patch+yaml"
_JSON_PATCH: Final = "application/json-patch+json"
_METADATA: Final = "application/json;as={form};g=meta.k8s.io;v=v1"
_STRICT: Final = ("fieldValidation", "Strict")


@dataclass(frozen=True, slots=True)
class Listing:
    """All objects of a list, and the resourceVersion at which it is true."""

    items: list[Body]
    resource_version: int


async def load_configuration(kubeconfig: str = "", *, context: str = "") -> Configuration:
    """Where the API server is and who we are there.

    Args:
        kubeconfig: A path; empty means `KUBECONFIG`, else the pod's own service account.
        context: A context of the kubeconfig; empty takes its current one. A name means that a
            person asks, so that without a path `~/.kube/config` is read, never the pod's account.

    Raises:
        kubernetes.aio.config.ConfigException: If neither can be read, or there is no such context.
    """
    # the class hands out copies of a process-wide default; type.__call__ makes a fresh one
    configuration: Configuration = type.__call__(Configuration)
    path = kubeconfig or os.environ.get("KUBECONFIG", "")
    if path or context:
        await load_kube_config(  # type: ignore[no-untyped-call]
            config_file=path or None,
            context=context or None,
            client_configuration=configuration,
            persist_config=False,
        )
    else:
        load_incluster_config(configuration)  # type: ignore[no-untyped-call]
    configuration.connection_pool_maxsize = _CONNECTIONS
    configuration.retries = None
    # with trust_env aiohttp looks for proxies and a netrc in a thread for each request, which
    # halves what one core can send; a kubeconfig's own proxy-url works without
    proxied = any(os.environ.get(name) for name in _PROXY_VARIABLES)
    configuration.client_session_kwargs = {"trust_env": proxied}
    return configuration


class Cluster:
    """The API server. Made by `connect`, or around an `ApiClient` of a test."""

    def __init__(
        self,
        api: ApiClient,
        *,
        fence: Callable[[], float] | None = None,
        on_request: RequestHook | None = None,
        call_seconds: float = CALL_SECONDS,
        reload: Callable[[], Awaitable[Configuration]] | None = None,
    ) -> None:
        self._api = api
        self._fence = fence
        self._on_request = on_request
        self._call_seconds = call_seconds
        self._reload = reload
        self._host = urlsplit(str(api.configuration.host)).netloc

    @property
    def configuration(self) -> Configuration:
        """The connection's configuration, for other clients such as kopf."""
        found: Configuration = self._api.configuration
        return found

    def fenced(self, remaining: Callable[[], float]) -> Cluster:
        """The same connection, with writes allowed only for `remaining()` seconds."""
        return Cluster(
            self._api,
            fence=remaining,
            on_request=self._on_request,
            call_seconds=self._call_seconds,
            reload=self._reload,
        )

    async def get(self, kind: str, namespace: str, name: str) -> Body:
        """One object.

        Raises:
            NotFound: If it does not exist.
        """
        entry = kind_of(kind)
        form = "PartialObjectMetadata" if entry.metadata_only else ""
        return await self._read(f"get {kind} {namespace}/{name}", entry.path(namespace, name), form)

    async def exists(self, kind: str, namespace: str, name: str) -> bool:
        """Whether an object is there."""
        try:
            await self.get(kind, namespace, name)
        except NotFound:
            return False
        return True

    async def list(
        self,
        kind: str,
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        limit: int | None = None,
    ) -> Listing:
        """All objects of a kind, page by page; the resourceVersion holds for all pages.

        Args:
            kind: One of the table.
            namespace: Empty for the whole cluster.
            labels: Label selector.
            fields: Field selector.
            limit: Stop after the first page of so many.

        Raises:
            NotFound: If the server does not serve this kind.
        """
        try:
            return await self._list(kind, namespace, labels, fields, limit)
        except Gone:
            # the continue token grew too old between two pages: once more from the start
            return await self._list(kind, namespace, labels, fields, limit)

    async def _list(
        self, kind: str, namespace: str, labels: str, fields: str, limit: int | None
    ) -> Listing:
        entry = kind_of(kind)
        form = "PartialObjectMetadataList" if entry.metadata_only else ""
        items: list[Body] = []
        query = {"limit": str(limit or PAGE)}
        query |= {"labelSelector": labels} if labels else {}
        query |= {"fieldSelector": fields} if fields else {}
        while True:
            path = f"{entry.path(namespace)}?{urlencode(query)}"
            page = await self._read(f"list {kind}", path, form)
            items += page.get("items") or ()
            found = meta(page)
            query["continue"] = found.get("continue") or ""
            if not query["continue"] or limit is not None:
                return Listing(items, int(found.get("resourceVersion") or 0))

    async def log(self, namespace: str, pod: str) -> str:
        """What a pod's only container has printed so far.

        Raises:
            ClusterError: It may not be read, or there is none yet.
        """
        path = f"{kind_of('Pod').path(namespace, pod)}/log"
        headers = {"Accept": "*/*"}
        call = f"log of Pod {namespace}/{pod}"
        content = await self._send(call, "GET", path, None, headers, self._call_seconds)
        return content.decode("utf-8", "replace")

    async def create(self, kind: str, body: Body) -> Body:
        """Create; unknown fields are refused by the server.

        Raises:
            AlreadyExists: If the name is taken.
            Forbidden: With `quota` set when a ResourceQuota refuses it.
            Invalid: If the server refuses the content.
        """
        namespace, name = _names(body)
        query = urlencode([_STRICT, ("fieldManager", MANAGER_CHILDREN)])
        return await self._write(
            f"create {kind} {namespace}/{name}",
            "POST",
            f"{kind_of(kind).path(namespace)}?{query}",
            # A revision's data are kept byte for byte as they were sent, and must be the same bytes
            # in every later update, which the server writes in a form of its own. Of YAML (JSON is
            # some) it makes that form at once.
            json.dumps(body) if kind == REVISION else body,
            _YAML if kind == REVISION else _JSON,
            form="PartialObjectMetadata" if kind_of(kind).metadata_only else "",
        )

    async def apply(
        self, kind: str, body: Body, *, manager: str, force: bool = True, subresource: str = ""
    ) -> Body:
        """Server-side apply as `manager`; `force` takes over fields that others wrote.

        Raises:
            Conflict: If `body` names another uid or resourceVersion than the object has, or,
                without `force`, a field is somebody else's.
            Invalid: If the server refuses the content, also for unknown fields.
        """
        namespace, name = _names(body)
        pairs = [_STRICT, ("fieldManager", manager), ("force", "true" if force else "false")]
        return await self._write(
            f"apply {kind} {namespace}/{name} {subresource}".rstrip(),
            "PATCH",
            f"{kind_of(kind).path(namespace, name, subresource)}?{urlencode(pairs)}",
            body,
            _APPLY,
        )

    async def apply_status(self, kind: str, body: Body, *, manager: str) -> Body:
        """Server-side apply of `/status`, only if nobody wrote the object since it was read.

        Raises:
            ValueError: If `body` has no metadata.resourceVersion. A uid would not be checked on
                a subresource, so that a deleted and recreated object would get an old status.
            Conflict: If the object has moved on.
        """
        if not meta(body).get("resourceVersion"):
            raise ValueError(f"status of {kind} {_names(body)} without metadata.resourceVersion")
        return await self.apply(kind, body, manager=manager, subresource="status")

    async def json_patch(
        self, kind: str, namespace: str, name: str, ops: Sequence[Mapping[str, Any]]
    ) -> Body:
        """RFC 6902 operations, all or none.

        Raises:
            PatchRejected: If a `test` operation does not hold, or a path is gone.
            NotFound: If the object is gone.
        """
        query = urlencode([_STRICT, ("fieldManager", MANAGER_CHILDREN)])
        return await self._write(
            f"patch {kind} {namespace}/{name}",
            "PATCH",
            f"{kind_of(kind).path(namespace, name)}?{query}",
            list(ops),
            _JSON_PATCH,
        )

    async def delete(
        self, kind: str, namespace: str, name: str, *, uid: str, grace_seconds: int | None = None
    ) -> Body:
        """Delete exactly the object with `uid`; what it owns goes in the background.

        A Job stays until its pod is gone, so that the next attempt can wait for it.

        Returns:
            The object as it is while it ends, or a `Status` if it is gone at once.

        Raises:
            Conflict: If the name now belongs to another uid.
            NotFound: If it is gone already.
        """
        options: Body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Foreground" if kind == JOB else "Background",
        }
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        return await self._write(
            f"delete {kind} {namespace}/{name}",
            "DELETE",
            kind_of(kind).path(namespace, name),
            options,
            _JSON,
        )

    async def replace(self, kind: str, body: Body) -> Body:
        """PUT: the whole object, only if its resourceVersion is still the one in `body`.

        Raises:
            Conflict: If it is not.
        """
        namespace, name = _names(body)
        return await self._write(
            f"replace {kind} {namespace}/{name}",
            "PUT",
            kind_of(kind).path(namespace, name),
            body,
            _JSON,
        )

    async def _read(self, call: str, path: str, form: str) -> Body:
        """GET, with a few more tries for what passes by itself, all within one deadline."""
        ends = asyncio.get_running_loop().time() + self._call_seconds
        for attempt in range(1, _READ_ATTEMPTS + 1):
            left = ends - asyncio.get_running_loop().time()
            try:
                return await self._call(call, "GET", path, None, {"Accept": _accept(form)}, left)
            except (TooManyRequests, Unavailable, Unauthorized) as error:
                wait = _READ_BACKOFF * 2 ** (attempt - 1)
                if isinstance(error, TooManyRequests):
                    wait = max(wait, error.retry_after)
                now = asyncio.get_running_loop().time()
                if attempt == _READ_ATTEMPTS or now + wait >= ends:
                    raise
                if isinstance(error, Unauthorized) and not await self._renew_credentials():
                    raise
                await asyncio.sleep(wait)
        raise AssertionError("the loop returns or raises")  # pragma: no cover

    async def _renew_credentials(self) -> bool:
        """Read kubeconfig or token again; whether there was anything to read."""
        if self._reload is None:
            return False
        fresh = await self._reload()
        self._api.configuration.api_key = fresh.api_key
        self._api.configuration.refresh_api_key_hook = fresh.refresh_api_key_hook
        return True

    async def _write(
        self,
        call: str,
        method: str,
        path: str,
        body: object,
        content_type: str,
        *,
        form: str = "",
    ) -> Body:
        seconds = self._call_seconds
        if self._fence is not None:
            seconds = min(seconds, self._fence())
            if seconds <= 0:
                raise LeaseLost(call, 0, "LeaseLost", "the Lease is not ours; nothing was written")
        headers = {"Accept": _accept(form), "Content-Type": content_type}
        return await self._call(call, method, path, body, headers, seconds)

    async def _call(
        self,
        call: str,
        method: str,
        path: str,
        body: object,
        headers: dict[str, str],
        seconds: float,
    ) -> Body:
        content = await self._send(call, method, path, body, headers, seconds)
        try:
            decoded = json.loads(content)
        except ValueError as error:
            raise Unavailable(call, 200, "BadAnswer", f"not JSON: {content[:200]!r}") from error
        if not isinstance(decoded, dict):
            raise Unavailable(call, 200, "BadAnswer", f"not an object: {content[:200]!r}")
        return decoded

    async def _send(
        self,
        call: str,
        method: str,
        path: str,
        body: object,
        headers: dict[str, str],
        seconds: float,
    ) -> bytes:
        loop = asyncio.get_running_loop()
        began = loop.time()
        code = 0
        try:
            await self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
            response = await self._api.rest_client.request(  # type: ignore[no-untyped-call]
                method,
                self._api.configuration.host + path,
                headers=headers,
                body=body,
                _request_timeout=aiohttp.ClientTimeout(total=max(0.05, seconds)),
            )
            code = response.status
            content = await response.read()
        except TimeoutError as error:
            raise Unavailable(call, 0, "Timeout", f"no answer within {seconds:.1f} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(call, 0, "Unreachable", f"{type(error).__name__}: {error}") from error
        finally:
            if self._on_request is not None:
                self._on_request(code, method, self._host, loop.time() - began)
        if not 200 <= code < 300:  # noqa: PLR2004 - HTTP success
            raise from_response(call, code, content, response.headers)
        return bytes(content)


def _accept(form: str) -> str:
    """What is asked for: the object as JSON, or only what `form` has of it."""
    return _METADATA.format(form=form) if form else _JSON


def _names(body: Mapping[str, Any]) -> tuple[str, str]:
    found = body.get("metadata") or {}
    return str(found.get("namespace", "")), str(found.get("name", ""))


@asynccontextmanager
async def connect(
    kubeconfig: str = "",
    *,
    on_request: RequestHook | None = None,
    call_seconds: float = CALL_SECONDS,
) -> AsyncIterator[Cluster]:
    """A `Cluster` for as long as the block runs.

    Args:
        kubeconfig: As for `load_configuration`.
        on_request: Called after each request with status (0: no answer), method, host, seconds.
        call_seconds: Deadline of one call; must stay below the Lease's renew deadline.
    """
    configuration = await load_configuration(kubeconfig)

    async def reload() -> Configuration:
        return await load_configuration(kubeconfig)

    async with ApiClient(configuration) as api:
        yield Cluster(api, on_request=on_request, call_seconds=call_seconds, reload=reload)


__all__ = ["Body", "Cluster", "ClusterError", "Listing", "connect", "load_configuration"]
