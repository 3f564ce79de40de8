"""An S3 server (moto, a process of its own), and a wire before it that breaks connections.

moto checks signatures with botocore's own code once `enforce` is called, so that what signs here is
held against what AWS ships.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree as ET

import urllib3
from shardwright_standin.ports import reserved

BUCKET = "models"
ROOT = Path(__file__).resolve().parents[2]
_HEAD_END = b"\r\n\r\n"
_PAGE = 3


def interpreter() -> str:
    """The Python that has moto; empty if there is none.

    botocore and the client of Kubernetes ask for different versions of python-dateutil, so moto
    lives in an environment of its own, which `make install` makes.
    """
    beside = ROOT / ".venv-moto/bin/python"
    if beside.exists():
        return str(beside)
    return sys.executable if find_spec("moto") else ""


class S3Server:
    """moto with one bucket; listings come in pages of three."""

    def __init__(self) -> None:
        self.port = reserved()
        self.url = f"http://127.0.0.1:{self.port}"
        self._http = urllib3.PoolManager(retries=False)
        self._process = subprocess.Popen(
            [interpreter(), "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
            env={
                **os.environ,
                "MOTO_S3_DEFAULT_MAX_KEYS": str(_PAGE),
                "INITIAL_NO_AUTH_ACTION_COUNT": "1000000",
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 120
        while True:
            try:
                self._call("GET", "/moto-api/data.json")
                break
            except urllib3.exceptions.HTTPError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        self._call("PUT", f"/{BUCKET}")

    def close(self) -> None:
        """End it."""
        self._http.clear()
        self._process.terminate()
        self._process.wait(60)

    def put(self, key: str, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        """An object uploaded at once."""
        self._call("PUT", f"/{BUCKET}/{key}", data, headers)

    def put_parts(self, key: str, data: bytes, part_bytes: int, algorithm: str = "") -> None:
        """An object uploaded in parts."""
        path = f"/{BUCKET}/{key}"
        wish = {"x-amz-checksum-algorithm": algorithm} if algorithm else {}
        started = _xml(self._call("POST", f"{path}?uploads", headers=wish).data)
        upload = started.findtext("{*}UploadId")
        entries = []
        for number, at in enumerate(range(0, len(data), part_bytes), 1):
            done = self._call(
                "PUT",
                f"{path}?partNumber={number}&uploadId={upload}",
                data[at : at + part_bytes],
                {"x-amz-sdk-checksum-algorithm": algorithm} if algorithm else {},
            )
            told = done.headers.get("x-amz-checksum-sha256", "")
            extra = f"<ChecksumSHA256>{told}</ChecksumSHA256>" if told else ""
            entries.append(
                f"<Part><PartNumber>{number}</PartNumber><ETag>{done.headers['ETag']}</ETag>"
                f"{extra}</Part>"
            )
        text = f"<CompleteMultipartUpload>{''.join(entries)}</CompleteMultipartUpload>"
        self._call("POST", f"{path}?uploadId={upload}", text.encode())

    def enforce(self) -> tuple[str, str]:
        """Keys of a user who may read the bucket; from now on everybody needs some."""
        self._iam("CreateUser", UserName="reader")
        allow = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [allow]})
        self._iam("PutUserPolicy", UserName="reader", PolicyName="read", PolicyDocument=policy)
        found = _xml(self._iam("CreateAccessKey", UserName="reader"))
        self._call("POST", "/moto-api/reset-auth", b"0")
        key_id, secret = found.find(".//{*}AccessKeyId"), found.find(".//{*}SecretAccessKey")
        assert key_id is not None
        assert secret is not None
        return str(key_id.text), str(secret.text)

    def relax(self) -> None:
        """Nobody needs keys any more."""
        self._call("POST", "/moto-api/reset-auth", b"1000000")

    def _iam(self, action: str, **fields: str) -> bytes:
        # moto finds the service by what a signature would be for.
        answer = self._http.request(
            "POST",
            f"{self.url}/",
            fields={"Action": action, "Version": "2010-05-08", **fields},
            encode_multipart=False,
            headers={"Authorization": _signature("iam")},
        )
        assert answer.status == 200, answer.data
        return answer.data

    def _call(
        self,
        method: str,
        path: str,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> urllib3.BaseHTTPResponse:
        # Unless it enforces keys, moto looks only whether there is a signature.
        signed = {"Authorization": _signature("s3"), **(headers or {})}
        answer = self._http.request(method, self.url + path, body=data, headers=signed)
        assert answer.status < 300, (method, path, answer.status, answer.data)
        return answer


class BreakingWire:
    """Passes connections on, and breaks answers to GET requests for a path at a given length."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._cuts: dict[str, list[int]] = {}
        self.requests: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, suffix: str, *sizes: int) -> None:
        """Break the next answers for this path after so many bytes of their body."""
        self._cuts.setdefault(suffix, []).extend(sizes)

    def ranges(self, suffix: str) -> list[str]:
        """The ranges of GET requests for a path that ends so."""
        found = []
        for head in self.requests:
            if head.startswith("GET") and head.split(" ")[1].endswith(suffix):
                match = re.search(r"(?im)^range: (.*?)\r?$", head)
                found.append(match[1] if match else "")
        return found

    def close(self) -> None:
        """End it."""
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._pass, args=(connection,), daemon=True).start()

    def _pass(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._upstream)) as server:
            while True:
                head = _head(client)
                if not head:
                    return
                text = head.decode("latin-1")
                self.requests.append(text)
                server.sendall(head)
                path = text.split(" ")[1]
                limit = next(
                    (
                        sizes.pop(0)
                        for suffix, sizes in self._cuts.items()
                        if sizes and text.startswith("GET") and path.endswith(suffix)
                    ),
                    -1,
                )
                answer = _head(server)
                client.sendall(answer)
                match = re.search(rb"(?i)content-length: (\d+)", answer)
                left = int(match[1]) if match and not text.startswith("HEAD") else 0
                left = min(left, limit) if limit >= 0 else left
                while left and (piece := server.recv(min(left, 65536))):
                    client.sendall(piece)
                    left -= len(piece)
                if limit >= 0 or re.search(rb"(?i)connection: close", answer):
                    return


def _xml(data: bytes) -> ET.Element:
    return ET.fromstring(data)  # noqa: S314 - from our own server


def _signature(service: str) -> str:
    claim = f"AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/{service}/aws4_request"
    return f"{claim}, SignedHeaders=host, Signature=none"


def _head(connection: socket.socket) -> bytes:
    found = b""
    while not found.endswith(_HEAD_END):
        piece = connection.recv(1)
        if not piece:
            return b""
        found += piece
    return found
