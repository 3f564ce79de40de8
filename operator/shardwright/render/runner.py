"""The runner as one file in an immutable ConfigMap, named by its content.

Vendor images stay as they are: the pod mounts this file and starts it. The archive is the same,
byte for byte, wherever it is built from the same sources.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from functools import lru_cache
from pathlib import Path

import shardwright
from shardwright.api.names import LABEL_RUNNER
from shardwright.render.common import Manifest, labels
from shardwright.render.names import runner_name
from shardwright.runner.contract import RUNNER_FILE

_MAIN = """\
import runpy

runpy.run_module("shardwright.runner", run_name="__main__", alter_sys=True)
"""
# The earliest time that the format can hold; the files' own would change the name at every install.
_EPOCH = (1980, 1, 1, 0, 0, 0)


@lru_cache(maxsize=1)
def runner_archive() -> bytes:
    """The runner's sources as a zip file that `python3` can run.

    Stored, not deflated: compressors differ between machines, and the runner is small.
    """
    root = Path(shardwright.__file__).parent
    files = {"__main__.py": _MAIN.encode(), "shardwright/__init__.py": b""}
    for path in (root / "runner").rglob("*.py"):
        files[f"shardwright/{path.relative_to(root).as_posix()}"] = path.read_bytes()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o644 << 16
            entry.create_system = 3
            archive.writestr(entry, files[name])
    return buffer.getvalue()


def runner_config_map_name() -> str:
    """Name of the ConfigMap that holds this operator's runner."""
    return runner_name(runner_archive())


def runner_config_map(namespace: str) -> Manifest:
    """The ConfigMap that pods of a namespace mount; it never changes, a new runner is a new one."""
    archive = runner_archive()
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": runner_name(archive),
            "namespace": namespace,
            "labels": labels({LABEL_RUNNER: hashlib.sha256(archive).hexdigest()[:10]}),
        },
        "immutable": True,
        "binaryData": {RUNNER_FILE: base64.b64encode(archive).decode()},
    }
