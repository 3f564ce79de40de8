"""Runs inside a finished image, under any user, and fails if something is missing there.

Standard input: the locked requirements. It checks that exactly they are installed, that every
module of this package can be imported, and that TLS has authorities to trust.
"""

from __future__ import annotations

import getpass
import importlib
import os
import pkgutil
import ssl
import sys
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import shardwright


def locked(text: str) -> dict[str, str]:
    """Name and version of each requirement that counts on this platform."""
    # a line that begins with a name; hashes and comments are indented
    lines = [line.rstrip(" \\") for line in text.splitlines() if line[:1].isalnum()]
    asked = [Requirement(line) for line in lines]
    return {
        canonicalize_name(one.name): str(one.specifier).removeprefix("==")
        for one in asked
        if one.marker is None or one.marker.evaluate()
    }


def installed() -> dict[str, str]:
    """Name and version of all that is installed but this package."""
    found: dict[str, str] = {
        canonicalize_name(one.name): one.version for one in metadata.distributions()
    }
    if found.pop(shardwright.__name__, None) != shardwright.__version__:
        raise SystemExit(f"shardwright {shardwright.__version__} has no metadata of its version")
    return found


def check(requirements: str) -> None:
    """Raise or exit with what is wrong."""
    asked, found = locked(requirements), installed()
    if asked != found:
        differing = sorted(dict(asked.items() ^ found.items()))
        told = ", ".join(f"{one}: {asked.get(one)} → {found.get(one)}" for one in differing)
        raise SystemExit(f"locked and installed differ: {told}")
    for module in pkgutil.walk_packages(shardwright.__path__, "shardwright."):
        if not module.name.endswith(".__main__"):
            importlib.import_module(module.name)
    if not ssl.create_default_context().get_ca_certs():
        raise SystemExit("there are no certificate authorities")
    if "" in sys.path:
        raise SystemExit(f"modules are searched in the current folder: {sys.path}")
    # a user without a name must not be refused either
    sys.stdout.write(
        f"user {os.getuid()} as {getpass.getuser()}, Python {sys.version.split()[0]}, "
        f"{len(found)} requirements as locked\n"
    )


if __name__ == "__main__":
    check(sys.stdin.read())
