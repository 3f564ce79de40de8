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
from shardwright.runner.contract import (
    PERMANENT,
    REASON_TOOL_FAILED,
    RUNNER_FILE,
    Report,
    encode_report,
)
from shardwright.runner.termination import TERMINATION_LOG

# The oldest Python that the runner's code is written for.
OLDEST_PYTHON = (3, 9)
# Read by whatever `python3` an image has: one that is too old could not even parse the runner,
# and would leave a pod that says nothing.
_MAIN = """\
import sys

if sys.version_info < {oldest!r}:
    with open({log!r}, "w") as log:
        log.write({report!r})
    sys.exit(1)

import runpy

runpy.run_module("shardwright.runner", run_name="__main__", alter_sys=True)
"""
# A ConfigMap holds one MiB in all, and as base64 the file is a third longer
# (kubernetes.io/docs/concepts/configuration/configmap).
LIMIT_BYTES = 700_000
# The earliest time that the format can hold; the files' own would change the name at every install.
_EPOCH = (1980, 1, 1, 0, 0, 0)


@lru_cache(maxsize=1)
def runner_archive() -> bytes:
    """The runner's sources as a zip file that `python3` can run.

    Stored, not deflated: compressors differ between machines, and the runner is small. Packed once
    a process.

    Raises:
        ValueError: It has outgrown a ConfigMap.
    """
    root = Path(shardwright.__file__).parent
    files = {"__main__.py": _main(), "shardwright/__init__.py": b""}
    for path in (root / "runner").rglob("*.py"):
        files[f"shardwright/{path.relative_to(root).as_posix()}"] = path.read_bytes()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o644 << 16
            entry.create_system = 3
            archive.writestr(entry, files[name])
    archive_bytes = buffer.getvalue()
    if len(archive_bytes) > LIMIT_BYTES:
        raise ValueError(
            f"the packed runner has {len(archive_bytes)} bytes, a ConfigMap takes {LIMIT_BYTES}: "
            "make it smaller"
        )
    return archive_bytes


def _main() -> bytes:
    """What `python3` runs first: the runner, or a report that it cannot run here."""
    wanted = ".".join(map(str, OLDEST_PYTHON))
    report = Report(
        outcome=PERMANENT,
        reason=REASON_TOOL_FAILED,
        message=f"the image's python3 is older than {wanted}, which the runner needs; choose "
        "another engine.image or engine.version",
    )
    text = _MAIN.format(
        oldest=OLDEST_PYTHON, log=str(TERMINATION_LOG), report=encode_report(report)
    )
    return text.encode()


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
