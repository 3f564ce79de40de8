"""What is mended in other people's sources while they are built; each line of it says why.

None of it is kept here: the pinned module is copied, changed in one place, and built instead of the
original. A version in which that place looks different stops the build, so that no patch
outlives its reason unseen.
"""

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwright_sandbox.errors import SandboxError
from shardwright_sandbox.golang import go_environment


@dataclass(frozen=True, slots=True)
class Patch:
    """One place in one file of a Go module: `old` becomes `new`."""

    module: str
    file: str
    old: str
    new: str


_PUSH = "\tentry := &waitEntry[K, T]{key: key, data: data}\n"
PATCHES = (
    # KWOK 0.8.0 renews leases from a queue of node names. A node that goes while its lease is being
    # renewed, and comes back before the renewal after that, stands in it twice. The heap below
    # knows one entry a name: the other can never be taken out, stays in front, and no other node's
    # lease is renewed again, while this one's is without a pause. Every node made afterwards turns
    # unreachable after its grace period, again and again.
    Patch("sigs.k8s.io/kwok", "pkg/utils/heap/heap.go", _PUSH, "\th.Remove(data)\n" + _PUSH),
)


def patched(
    go: Path, sources: Path, folder: Path, patches: Sequence[Patch] = PATCHES
) -> tuple[str, ...]:
    """Write the modules with their changes below `folder`; the flags of `go build` to use them.

    Args:
        go: the toolchain.
        sources: folder of the go.mod that pins the modules; it stays as it is.
        folder: where to write; must last until the build has ended.
        patches: no two of one module.

    Raises:
        SandboxError: If a module cannot be had, or does not look as its patch expects.
    """
    listing = folder / "go.mod"
    for name in ("go.mod", "go.sum"):
        shutil.copyfile(sources / name, folder / name)
    for number, patch in enumerate(patches):
        copy = folder / str(number)
        # file by file with our own modes: the module cache is read-only
        shutil.copytree(_module(go, sources, patch.module), copy, copy_function=shutil.copyfile)
        file = copy / patch.file
        text = file.read_text(encoding="utf-8")
        if (count := text.count(patch.old)) != 1:
            raise SandboxError(
                f"the patch of {patch.module} expects its line once in {patch.file}, and it is "
                f"there {count} times: see whether the module's new version still needs the patch, "
                "and change or remove it in patches.py"
            )
        file.write_text(text.replace(patch.old, patch.new), encoding="utf-8")
        _go(go, folder, "mod", "edit", f"-replace={patch.module}={copy}", str(listing))
    return (f"-modfile={listing}",)


def _module(go: Path, sources: Path, module: str) -> Path:
    """Folder of a module's sources in the version that go.mod pins; downloaded if need be."""
    return Path(json.loads(_go(go, sources, "mod", "download", "-json", module))["Dir"])


def _go(go: Path, folder: Path, *arguments: str) -> str:
    """Run the toolchain; what it prints."""
    done = subprocess.run(
        [go, *arguments],
        cwd=folder,
        env=go_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SandboxError(
            f"`go {' '.join(arguments)}` failed (exit {done.returncode}); is a Go module proxy "
            f"reachable?\n{(done.stdout + done.stderr).strip()[-800:]}"
        )
    return done.stdout
