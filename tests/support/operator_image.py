"""The operator's image for tests: this package is packed anew, what lies below it is kept."""

from __future__ import annotations

from pathlib import Path

from hack import base, image

from shardwright_sandbox.cache import produce
from shardwright_sandbox.progress import Progress


def build(target: Path, progress: Progress) -> Path:
    """Build and check the image as `make image` does; its archive.

    The layers of Debian's Python and of the locked requirements come from the cache if they were
    made from the same requirements before.
    """
    kept = produce("operator-base", base.key(), base.write, progress)
    return image.build(target, kept)
