"""A registry on a real node, at its own `localhost`, that takes its time: for slow image pulls.

It holds no layers. What it gives is an image of the node with another label and name, and the node
has its layers: only manifest and config travel, as late as was asked for. As a program on the node
it is `real_registry.py PORT SECONDS`, with the manifest and then the config as lines of base64 on
its standard input; it ends with that. Standard library only.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardwright_sandbox.real.node import RealNode

PORT = 5000
# The kubelet and containerd take plain HTTP for granted there, and nowhere else.
REFERENCE = f"localhost:{PORT}/slow:1"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def digest(data: bytes) -> str:
    """What a blob is called."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@contextmanager
def registry(node: RealNode, image: str, seconds: float) -> Iterator[None]:
    """Let `node` pull `image`, which it has, as REFERENCE; each pull takes so long at least."""
    listed = node.ctr("images", "ls", f"name=={image}").splitlines()[1].split()
    manifest = json.loads(node.ctr("content", "get", listed[2]))
    config = json.loads(node.ctr("content", "get", manifest["config"]["digest"]))
    # An image of its own: while containerd renames one, pods that want its other name wait.
    config["config"]["Labels"] = {"slow": f"{seconds}"}
    data = json.dumps(config).encode()
    manifest["config"] |= {"digest": digest(data), "size": len(data)}
    command = node.machine.command(sys.executable, "-I", __file__, str(PORT), str(seconds))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        for blob in (json.dumps(manifest).encode(), data):
            server.stdin.write(base64.b64encode(blob) + b"\n")
        server.stdin.flush()
        assert server.stdout.readline() == b"ready\n"
        try:
            yield
        finally:
            server.stdin.close()
            server.wait(60)


def main() -> None:
    """Serve until standard input ends."""
    port, seconds = int(sys.argv[1]), float(sys.argv[2])
    manifest, config = (base64.b64decode(sys.stdin.readline()) for _ in range(2))
    blobs = {digest(manifest): manifest, digest(config): config}

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

        def _answer(self, *, with_body: bool) -> None:
            reference = self.path.rpartition("/")[2]
            if "/manifests/" in self.path and not reference.startswith("sha256:"):
                time.sleep(seconds)
                reference = digest(manifest)
            data = b"" if self.path == "/v2/" else blobs.get(reference)
            if data is None:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            kind = _MANIFEST if "/manifests/" in self.path else "application/octet-stream"
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Docker-Content-Digest", digest(data))
            self.end_headers()
            if with_body:
                self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
