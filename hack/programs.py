"""Runs the programs that an image is made with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hack.oci import ImageError


def run(*command: object, env: Mapping[str, str] | None = None, stdin: str | None = None) -> str:
    """Run a program to its end; what it printed.

    Raises:
        ImageError: If it fails, with the end of its words.
    """
    words = [str(word) for word in command]
    done = subprocess.run(  # noqa: S603 - programs of the callers
        words, capture_output=True, text=True, check=False, env=env, input=stdin
    )
    if done.returncode != 0:
        raise ImageError(
            f"`{' '.join(words)[:300]}` failed (exit {done.returncode}):\n"
            f"{(done.stdout + done.stderr)[-3000:]}"
        )
    return done.stdout


def pip(*arguments: object) -> str:
    """Run this interpreter's pip."""
    return run(sys.executable, "-m", "pip", *arguments)


def chroot(folder: Path, *options: str) -> tuple[str, ...]:
    """The start of a command line that runs a program inside `folder`.

    Raises:
        ImageError: If this machine has no chroot.
    """
    found = shutil.which("chroot", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None:
        raise ImageError("there is no chroot here (Debian: coreutils); use the Dockerfile")
    unprivileged = () if os.geteuid() == 0 else ("unshare", "--map-root-user")
    return (*unprivileged, found, *options, str(folder))


@contextmanager
def plain_modes() -> Iterator[None]:
    """Files are made readable by all: their modes reach the image, this machine's habits not."""
    before = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(before)


def say(text: str) -> None:
    """Tell what happens."""
    sys.stderr.write(f"image: {text}\n")
