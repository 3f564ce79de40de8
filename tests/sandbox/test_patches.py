"""What is mended in others' sources, and when that stops the build."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright_sandbox.errors import SandboxError
from shardwright_sandbox.patches import Patch, patched

PATCH = Patch("example.com/queue", "heap/heap.go", "old line\n", "new line\n")


class Toolchain:
    """A `go` that knows one module; what it is told to edit stands in its log."""

    def __init__(self, folder: Path) -> None:
        self.module = folder / "module"
        self.path = folder / "go"
        self._log = folder / "log"
        (self.module / "heap").mkdir(parents=True)
        self.path.write_text(
            "#!/bin/sh\n"
            'case "$2" in\n'
            f"""  download) echo '{{"Dir": "{self.module}"}}' ;;\n"""
            f'  edit) echo "$@" >> {self._log} ;;\n'
            "esac\n"
        )
        self.path.chmod(0o755)

    def source(self, text: str) -> Path:
        """The module's file."""
        file = self.module / PATCH.file
        file.write_text(text)
        return file

    def edits(self) -> str:
        """Every `go mod edit`."""
        return self._log.read_text()


@pytest.fixture
def toolchain(tmp_path: Path) -> Toolchain:
    return Toolchain(tmp_path)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "go.mod").write_text("module example.com/ours\n")
    (folder / "go.sum").write_text("sums\n")
    return folder


def test_the_copy_is_changed_and_used_and_nothing_else(
    toolchain: Toolchain, sources: Path, tmp_path: Path
) -> None:
    original = toolchain.source("first\nold line\nlast\n")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    flags = patched(toolchain.path, sources, scratch, [PATCH])
    assert (scratch / "0" / PATCH.file).read_text() == "first\nnew line\nlast\n"
    assert flags == (f"-modfile={scratch / 'go.mod'}",)
    assert f"-replace=example.com/queue={scratch / '0'} {scratch / 'go.mod'}" in toolchain.edits()
    assert (scratch / "go.sum").read_text() == "sums\n"
    assert original.read_text() == "first\nold line\nlast\n"
    assert (sources / "go.mod").read_text() == "module example.com/ours\n"


@pytest.mark.parametrize(("text", "count"), [("first\n", 0), ("old line\nold line\n", 2)])
def test_sources_that_look_different_stop_the_build(
    toolchain: Toolchain, sources: Path, tmp_path: Path, text: str, count: int
) -> None:
    toolchain.source(text)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises(SandboxError, match=f"heap/heap.go, and it is there {count} times"):
        patched(toolchain.path, sources, scratch, [PATCH])


def test_a_module_that_cannot_be_had_says_so(sources: Path, tmp_path: Path) -> None:
    go = tmp_path / "go"
    go.write_text("#!/bin/sh\necho no such host >&2\nexit 1\n")
    go.chmod(0o755)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises(SandboxError, match=r"mod download[^$]*Go module proxy[^$]*no such host"):
        patched(go, sources, scratch, [PATCH])
