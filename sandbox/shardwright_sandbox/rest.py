"""Plain JSON requests to the API server.

The official client builds and checks a model object for every answer: ten
times the work of the request itself, which would make the sandbox, not the
operator, the limit of what is measured. Here bodies stay dictionaries.
"""

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from weakref import WeakKeyDictionary

import urllib3
from kubernetes import client
from kubernetes.config import new_client_from_config

Json = dict[str, Any]

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"

CONFLICT = 409
NOT_FOUND = 404
GONE = 410
_FIRST_ERROR = 400


class RestError(Exception):
    """The server's refusal, with its own words."""

    def __init__(self, method: str, path: str, status: int, message: str) -> None:
        super().__init__(f"{method} {path}: HTTP {status}: {message}")
        self.status = status
        self.message = message


class Rest:
    """A small client over the connections and credentials of an `ApiClient`. Thread-safe."""

    def __init__(self, api: client.ApiClient, *, connections: int = 16) -> None:
        settings = api.configuration
        self._host: str = settings.host
        self._pool = urllib3.PoolManager(
            maxsize=connections,
            block=True,
            ca_certs=settings.ssl_ca_cert,
            cert_file=settings.cert_file,
            key_file=settings.key_file,
            cert_reqs="CERT_REQUIRED" if settings.verify_ssl else "CERT_NONE",
        )
        # what the official client would send: a static token, or one of a login plugin
        self._auth = {
            str(one["key"]): str(one["value"])
            for one in settings.auth_settings().values()
            if one["in"] == "header" and one["value"]
        }

    def close(self) -> None:
        """Close all connections."""
        self._pool.clear()

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | list[Any] | None = None,
        *,
        content_type: str = "application/json",
    ) -> Json:
        """One request; the decoded answer.

        Raises:
            RestError: On any HTTP error.
        """
        content = json.dumps(body).encode() if body is not None else None
        decoded: Json = json.loads(self._send(method, path, content, content_type))
        return decoded

    def _send(self, method: str, path: str, content: bytes | None, content_type: str) -> bytes:
        response = self._pool.request(
            method,
            self._host + path,
            body=content,
            headers=self._headers(content_type),
            timeout=urllib3.Timeout(connect=5, read=60),
            # a write that was cut off may have happened: the caller decides
            retries=urllib3.Retry(0, redirect=0, raise_on_status=False),
        )
        if response.status >= _FIRST_ERROR:
            raise RestError(method, path, response.status, _words(response.data))
        return response.data

    def text(self, path: str) -> str:
        """GET of a page that is not JSON (health, metrics, logs)."""
        return self._send("GET", path, None, "application/json").decode()

    def get(self, path: str, **query: str) -> Json:
        """GET."""
        return self.call("GET", path + ("?" + urlencode(query) if query else ""))

    def post(self, path: str, body: Mapping[str, Any]) -> Json:
        """POST."""
        return self.call("POST", path, body)

    def patch(self, path: str, body: Mapping[str, Any] | list[Any], kind: str) -> Json:
        """PATCH."""
        return self.call("PATCH", path, body, content_type=kind)

    def delete(self, path: str) -> Json:
        """DELETE."""
        return self.call("DELETE", path)

    def watch(self, path: str, stop: threading.Event, **query: str) -> Iterator[Json]:
        """The events of one watch, until the server ends it or `stop` is set.

        Bookmarks come through, so that the caller sees `stop` at least once a minute.
        """
        query = {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": "300", **query}
        url = f"{self._host}{path}?{urlencode(query)}"
        response = self._pool.request(
            "GET",
            url,
            headers=self._headers("application/json"),
            preload_content=False,
            timeout=urllib3.Timeout(connect=5, read=None),
            retries=False,
        )
        try:
            if response.status >= _FIRST_ERROR:
                raise RestError("WATCH", path, response.status, _words(response.read()))
            rest = b""
            for chunk in response.stream(1 << 16):
                if stop.is_set():
                    return
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield json.loads(line)
        finally:
            response.close()
            response.release_conn()

    def _headers(self, content_type: str) -> dict[str, str]:
        return {"Content-Type": content_type, "Accept": "application/json", **self._auth}


def _words(data: bytes) -> str:
    try:
        return str(json.loads(data)["message"])
    except (ValueError, KeyError, TypeError):
        return data[:300].decode(errors="replace")


def api_client(kubeconfig: Path) -> client.ApiClient:
    """The official client for a kubeconfig's current context."""
    api: client.ApiClient = new_client_from_config(  # type: ignore[no-untyped-call]
        config_file=str(kubeconfig)
    )
    return api


_OF: WeakKeyDictionary[client.ApiClient, Rest] = WeakKeyDictionary()


def rest_of(api: client.ApiClient) -> Rest:
    """The `Rest` of a client, made once: each has connections of its own."""
    if (found := _OF.get(api)) is None:
        found = _OF[api] = Rest(api)
    return found
