"""The image: a layout that tools can read, equal bytes from equal files, and one with Docker's."""

from __future__ import annotations

import fnmatch
import gzip
import hashlib
import json
import os
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hack import base, image, inside
from hack.oci import ImageError, Layer, Layout
from tests.support import chart

from shardwright.api.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")


def tree(root: Path, *, backwards: bool = False, mtime: int = 1000) -> Path:
    """A small tree with each kind of entry; written in either order."""
    files = {
        "usr/bin/python3.11": b"\x7fELF",
        "opt/app/a.py": b"a = 1\n",
        "opt/app/b.py": b"b = 2\n",
    }
    for name, content in sorted(files.items(), reverse=backwards):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (mtime, mtime))
    (root / "usr/bin/python3.11").chmod(0o755)
    (root / "usr/bin/python3").symlink_to("python3.11")
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    return root


def written(folder: Path, root: Path) -> tuple[Layout, Layer, str]:
    layout = Layout(folder)
    layer = layout.add_layer(root)
    return layout, layer, layout.finish([layer], image.config(), "example.com/operator:1").digest


def blob(layout: Layout, digest: str) -> bytes:
    content = (layout.folder / "blobs" / digest.replace(":", "/")).read_bytes()
    assert f"sha256:{hashlib.sha256(content).hexdigest()}" == digest
    return content


def document(layout: Layout, digest: str) -> dict[str, Any]:
    loaded = json.loads(blob(layout, digest))
    assert isinstance(loaded, dict)
    return loaded


def test_equal_files_give_one_digest_whenever_and_in_whatever_order_written(tmp_path: Path) -> None:
    *_, first = written(tmp_path / "1", tree(tmp_path / "a"))
    *_, second = written(tmp_path / "2", tree(tmp_path / "b", backwards=True, mtime=2000))
    assert first == second


def test_another_mode_or_byte_gives_another_digest(tmp_path: Path) -> None:
    digests = {written(tmp_path / "1", tree(tmp_path / "a"))[2]}
    (tree(tmp_path / "b") / "opt/app/a.py").write_bytes(b"a = 2\n")
    digests.add(written(tmp_path / "2", tmp_path / "b")[2])
    (tree(tmp_path / "c") / "opt/app/a.py").chmod(0o600)
    digests.add(written(tmp_path / "3", tmp_path / "c")[2])
    assert len(digests) == 3


def test_the_layout_leads_from_the_index_to_every_blob(tmp_path: Path) -> None:
    layout, layer, digest = written(tmp_path / "image", tree(tmp_path / "root"))
    assert json.loads((layout.folder / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads((layout.folder / "index.json").read_text())["manifests"]
    assert entry["digest"] == digest
    assert entry["platform"]["os"] == "linux"
    manifest = document(layout, digest)
    config = document(layout, manifest["config"]["digest"])
    (described,) = manifest["layers"]
    assert described["size"] == len(blob(layout, described["digest"])) == layer.blob.size
    unpacked = gzip.decompress(blob(layout, described["digest"]))
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(unpacked).hexdigest()}"]
    named = {digest, manifest["config"]["digest"], described["digest"]}
    present = {f"sha256:{path.name}" for path in (layout.folder / "blobs/sha256").iterdir()}
    assert present == named


def test_a_layer_holds_modes_and_links_and_nobodys_name(tmp_path: Path) -> None:
    layout, layer, _ = written(tmp_path / "image", tree(tmp_path / "root"))
    with tarfile.open(layout.folder / "blobs" / layer.blob.digest.replace(":", "/")) as tar:
        entries = {entry.name: entry for entry in tar}
    assert list(entries) == sorted(entries)
    assert entries["usr/bin/python3"].linkname == "python3.11"
    assert entries["usr/bin/python3.11"].mode == 0o755
    assert entries["tmp"].mode == 0o1777
    assert {(e.uid, e.gid, e.uname, e.gname, e.mtime) for e in entries.values()} == {
        (0, 0, "", "", 0)
    }


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tree(tmp_path / "root") / "opt/pipe")
    with pytest.raises(ImageError, match="/opt/pipe is neither file, folder nor link"):
        Layout(tmp_path / "image").add_layer(tmp_path / "root")


def test_the_archive_is_the_layout_with_what_docker_looks_for(tmp_path: Path) -> None:
    layout, layer, _ = written(tmp_path / "image", tree(tmp_path / "root"))
    layout.archive(tmp_path / "image.tar")
    with tarfile.open(tmp_path / "image.tar") as tar:
        names = set(tar.getnames())
        handle = tar.extractfile("manifest.json")
        assert handle is not None
        (entry,) = json.load(handle)
    assert {"oci-layout", "index.json", entry["Config"], *entry["Layers"]} <= names
    assert entry["RepoTags"] == ["example.com/operator:1"]
    assert entry["Layers"] == [f"blobs/{layer.blob.digest.replace(':', '/')}"]


def test_the_tag_is_where_a_puller_looks(tmp_path: Path) -> None:
    layout, *_ = written(tmp_path / "image", tree(tmp_path / "root"))
    (entry,) = json.loads((layout.folder / "index.json").read_text())["manifests"]
    assert entry["annotations"] == {
        "io.containerd.image.name": "example.com/operator:1",
        "org.opencontainers.image.ref.name": "1",
    }


# --- one image, two ways


def test_the_dockerfile_runs_the_same_as_the_same_user_in_the_same_environment() -> None:
    final = DOCKERFILE.rpartition("\nFROM ")[2]
    environment = dict(
        re.findall(r"([A-Z_]+)=(\S+)", re.findall(r"^ENV (.*)$", final, re.MULTILINE)[0])
    )
    expected = {name: value for name, value in image.ENVIRONMENT.items() if name != "PATH"}
    assert environment == expected  # PATH is the base image's own
    assert json.loads(re.findall(r"^ENTRYPOINT (.*)$", final, re.MULTILINE)[0]) == list(
        image.ENTRYPOINT
    )
    assert json.loads(re.findall(r"^CMD (.*)$", final, re.MULTILINE)[0]) == list(image.COMMAND)
    assert re.findall(r"^USER (.*)$", final, re.MULTILINE) == [image.config()["config"]["User"]]
    assert re.findall(r"^EXPOSE (.*)$", final, re.MULTILINE) == [str(image.PORT)]


def test_both_ways_install_the_locked_requirements_by_hash() -> None:
    source = (ROOT / "hack/base.py").read_text()
    for flag in ("--require-hashes", "--no-deps", "--only-binary=:all:", "--no-compile"):
        assert flag in DOCKERFILE
        assert flag in source
    assert "requirements/runtime.txt" in DOCKERFILE
    # nor is the build backend one of pip's choice
    assert "--no-build-isolation" in DOCKERFILE
    assert "--no-build-isolation" in (ROOT / "hack/image.py").read_text()


def test_the_finished_image_is_held_to_what_the_lock_asks_for_there() -> None:
    text = """\
attrs==26.1.0 \\
    --hash=sha256:aa \\
    # via aiohttp
colorama==0.4.6 ; sys_platform == 'win32' \\
    --hash=sha256:bb
Hugging_Face.hub==2.4.0 ; python_full_version >= '3.9' \\
    --hash=sha256:cc
"""
    assert inside.locked(text) == {"attrs": "26.1.0", "hugging-face-hub": "2.4.0"}
    wanted = inside.locked(base.REQUIREMENTS.read_text())
    for name in ("awscrt", "httpx2", "huggingface-hub", "kopf", "tenacity", "urllib3"):
        assert wanted[name] == inside.metadata.version(name)


def test_a_package_beyond_the_lock_or_of_another_version_fails_the_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inside, "installed", lambda: {"attrs": "26.1.0", "left-over": "1.0"})
    with pytest.raises(SystemExit, match=r"attrs: 26\.0\.0 → 26\.1\.0, left-over: None → 1\.0"):
        inside.check("attrs==26.0.0 \\\n")


def test_base_layers_are_kept_as_they_were_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        base, "make_base", lambda layout: [layout.add_layer(tree(tmp_path / "root"))]
    )
    base.write(tmp_path / "kept")
    (layer,) = base.read(tmp_path / "kept")
    layout = Layout(tmp_path / "image")
    layout.take(layer, tmp_path / "kept")
    assert (
        f"sha256:{hashlib.sha256(gzip.decompress(layout.path(layer).read_bytes())).hexdigest()}"
        == layer.diff_id
    )


def test_both_ways_use_debian_12s_python() -> None:
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert all(":" in one and not one.endswith(":latest") for one in bases)
    assert bases[0].startswith(f"python:{base.PYTHON}.")
    assert bases[0].endswith(f"-slim-{base.SUITE}")
    assert bases[-1].startswith("gcr.io/distroless/python3-debian12:")


def test_docker_sends_only_what_the_dockerfile_copies() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    admitted = [line[1:] for line in lines if line.startswith("!")]
    assert "*" in lines
    copied = [
        word
        for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE)
        for word in line.split()[:-1]
    ]
    assert sorted(copied) == sorted(admitted)
    assert not [line for line in copied if fnmatch.fnmatch(line, ".git*")]


def test_the_image_is_called_as_the_chart_and_the_settings_call_it() -> None:
    reference = image.REFERENCE
    assert Settings().operator_image == reference
    assert chart.settings(chart.objects())["operatorImage"] == reference


def test_the_user_is_the_one_the_chart_runs_as() -> None:
    pod = chart.the(chart.objects(), "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsUser"] == base.UID
    assert pod["containers"][0]["command"][: len(image.ENTRYPOINT)] == list(image.ENTRYPOINT)
