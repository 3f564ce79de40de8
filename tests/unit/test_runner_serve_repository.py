"""What a server's folder of models is made of, and what is not put into it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.serving import REQUEST

from shardwright.runner.contract import (
    COPIES_LIMIT_BYTES,
    FILES_LIMIT_BYTES,
    REPOSITORY,
    Command,
    Counters,
    Generation,
    Prepared,
    ServeRequest,
    decode,
    encode,
    inside,
)
from shardwright.runner.serve.places import Places
from shardwright.runner.serve.prepare import order, order_of, write_files
from shardwright.runner.serve.repository import write_repository

WHOLE = Prepared(
    files={"m/config.pbtxt": 'name: "m" { }', "m/1/.keep": ""},
    copies={"m": "/app/m"},
    followers=("server", "--rank={rank}"),
    generation=Generation("/generate", {"text_input": "1", "max_tokens": 1}, "text_output"),
    counters=Counters(8002, "/metrics", ("a{",)),
)


def test_it_goes_and_comes_back() -> None:
    asked = replace(REQUEST, prepared=WHOLE)
    assert decode(ServeRequest, encode(asked)) == asked


def test_a_request_without_it_reads_as_before_there_was_any() -> None:
    assert "prepared" not in encode(REQUEST)
    assert decode(ServeRequest, encode(REQUEST)).prepared is None


@pytest.mark.parametrize("path", ["a", "a/b.c", "a/1/.keep", "A_b-c/x"])
def test_paths_inside(path: str) -> None:
    assert inside(path)


@pytest.mark.parametrize(
    "path", ["", "/a", "a/", "../a", "a/../b", "a//b", ".", "a/./b", "a b", "a\0", "ä", "x" * 257]
)
def test_paths_that_lead_elsewhere(path: str, tmp_path: Path) -> None:
    assert not inside(path)
    for prepared in (Prepared(files={path: ""}), Prepared(copies={path: str(tmp_path)})):
        with pytest.raises(ValueError, match="no path inside the model repository"):
            write_repository(prepared, tmp_path / "out", {})
    assert not (tmp_path / "out").exists()


def image(folder: Path) -> Path:
    """A folder of an image: a template and code."""
    (folder / "1" / "lib").mkdir(parents=True)
    (folder / "config.pbtxt").write_text("template")
    (folder / "1" / "model.py").write_text("code")
    (folder / "1" / "lib" / "helper.py").write_text("helper")
    return folder


def tree(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_files_come_over_copies_and_nothing_of_an_earlier_start_is_left(tmp_path: Path) -> None:
    source, root = image(tmp_path / "image"), tmp_path / "out"
    (root / "old").mkdir(parents=True)
    (root / "old" / "config.pbtxt").write_text("x")
    prepared = Prepared(
        files={"m/config.pbtxt": "engine: {artifact}", "e/1/.keep": ""}, copies={"m": str(source)}
    )
    write_repository(prepared, root, {"{artifact}": "/store/engine"})
    assert tree(root) == {
        "e/1/.keep": "",
        "m/1/lib/helper.py": "helper",
        "m/1/model.py": "code",
        "m/config.pbtxt": "engine: /store/engine",
    }
    assert tree(source)["config.pbtxt"] == "template"


def test_a_link_in_its_place_is_replaced_and_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "x").write_text("x")
    (tmp_path / "out").symlink_to(kept)
    write_repository(Prepared(files={"a": "1"}), tmp_path / "out", {})
    assert tree(kept) == {"x": "x"}
    assert tree(tmp_path / "out") == {"a": "1"}


def test_an_image_without_the_folder_is_named_with_the_way_out(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere"
    with pytest.raises(ValueError, match=rf"no folder {missing}.*set engine.image"):
        write_repository(Prepared(copies={"m": str(missing)}), tmp_path / "out", {})


def test_linked_folders_and_pipes_are_not_copied(tmp_path: Path) -> None:
    source = image(tmp_path / "image")
    (source / "1" / "away").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="away is neither a file nor a folder of its own"):
        write_repository(Prepared(copies={"m": str(source)}), tmp_path / "out", {})
    (source / "1" / "away").unlink()
    os.mkfifo(source / "1" / "pipe")
    with pytest.raises(ValueError, match="pipe is neither"):
        write_repository(Prepared(copies={"m": str(source)}), tmp_path / "out", {})


def test_sizes_are_bounded(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"over {FILES_LIMIT_BYTES}"):
        write_repository(Prepared(files={"a": "x" * (FILES_LIMIT_BYTES + 1)}), tmp_path / "o", {})
    source = image(tmp_path / "image")
    with (source / "1" / "weights").open("wb") as large:
        large.truncate(COPIES_LIMIT_BYTES)
    with pytest.raises(ValueError, match=f"larger than {COPIES_LIMIT_BYTES} bytes"):
        write_repository(Prepared(copies={"m": str(source)}), tmp_path / "o", {})


def places(tmp_path: Path) -> Places:
    return Places(store=str(tmp_path / "store"), scratch=str(tmp_path / "scratch"))


def test_it_is_made_where_the_command_looks_for_it(tmp_path: Path) -> None:
    prepared = Prepared(files={"m/config.pbtxt": "{model} {artifact}"})
    command = Command("tritonserver", ("server", f"--model-repository={REPOSITORY}"))
    asked = replace(REQUEST, prepared=prepared, command=command)
    write_files(asked, places(tmp_path))
    (root,) = (
        word.partition("=")[2] for word in order(asked, places(tmp_path), {})["argv"] if "=" in word
    )
    assert tree(Path(root)) == {"m/config.pbtxt": f"{asked.model_folder} {asked.artifact}"}


def ordered(tmp_path: Path, **changes: Any) -> list[list[str]]:
    """The command line of each of four ranks."""
    asked = replace(REQUEST, command=Command("t", ("lead", "--id={rank}"), {"ID": "{rank}"}))
    whole = order(replace(asked, **changes), places(tmp_path), {})
    assert [order_of(whole, rank)["env"]["ID"] for rank in range(4)] == ["0", "1", "2", "3"]
    return [order_of(whole, rank)["argv"] for rank in range(4)]


def test_each_rank_is_told_its_number(tmp_path: Path) -> None:
    assert ordered(tmp_path) == [["lead", f"--id={rank}"] for rank in range(4)]


def test_followers_run_their_own_command(tmp_path: Path) -> None:
    found = ordered(tmp_path, prepared=Prepared(followers=("follow", "{scratch}/{rank}")))
    scratch = tmp_path / "scratch"
    assert found == [["lead", "--id=0"], *(["follow", f"{scratch}/{rank}"] for rank in (1, 2, 3))]
