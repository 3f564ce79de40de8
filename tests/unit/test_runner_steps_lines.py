"""A tool's log is passed on line by line, and of its end a bounded part is kept."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from shardwright.runner.lines import LINE_BYTES, PROGRESS_SECONDS, TAIL_CHARACTERS, Lines
from shardwright.runner.steps.tool import run_tool


def cut(*chunks: bytes, clock: list[float] | None = None) -> tuple[list[bytes], list[str]]:
    """What is passed on, and what is kept."""
    passed: list[bytes] = []
    times = iter(clock or [0.0] * 100_000)
    lines = Lines(passed.append, lambda: next(times))
    for chunk in chunks:
        lines.feed(chunk)
    lines.end()
    return passed, lines.tail()


def test_lines_are_passed_on_whole_wherever_the_reads_end() -> None:
    assert cut(b"on", b"e\ntw", b"o\n", b"three") == (
        [b"one\n", b"two\n", b"three\n"],
        ["one", "two", "three"],
    )


def test_an_end_of_line_of_two_characters_is_one() -> None:
    assert cut(b"one\r", b"\ntwo\r\n")[1] == ["one", "two"]


def test_a_progress_bar_is_one_line_of_what_is_kept() -> None:
    bar = b"".join(b"\r%d%%" % percent for percent in range(100))
    passed, kept = cut(b"loading\n" + bar + b"\rdone\n", b"Traceback\n")
    assert kept == ["loading", "done", "Traceback"]
    assert passed[0] == b"loading\n"
    assert passed[-2:] == [b"done\n", b"Traceback\n"]


def test_a_progress_bar_is_passed_on_once_a_second() -> None:
    clock = [number * PROGRESS_SECONDS / 4 for number in range(9)]
    passed, _ = cut(b"0\r1\r2\r3\r4\r5\r6\r7\r8", clock=clock)
    assert passed == [b"0\n", b"4\n", b"8\n"]


def test_an_endless_line_is_passed_on_in_pieces() -> None:
    passed, kept = cut(*[b"x" * 1000] * 100)
    assert b"".join(passed).replace(b"\n", b"") == b"x" * 100_000
    assert max(map(len, passed)) <= LINE_BYTES + 1
    assert "".join(kept) == "x" * 100_000


def test_what_is_kept_is_bounded_and_is_the_end() -> None:
    _, kept = cut(*[b"%06d %s\n" % (number, b"y" * 90) for number in range(5000)])
    assert sum(map(len, kept)) <= TAIL_CHARACTERS
    assert kept[-1].startswith("004999")
    assert len(kept) > 1000


def test_bytes_that_are_no_text_are_shown_as_such() -> None:
    assert cut(b"a\xff\xfeb\n")[1] == ["a\ufffd\ufffdb"]


@given(st.lists(st.binary(max_size=300), max_size=30))
def test_no_byte_is_lost_between_ends_of_lines(chunks: list[bytes]) -> None:
    data = b"".join(chunks).replace(b"\r", b"")
    passed, _ = cut(*[chunk.replace(b"\r", b"") for chunk in chunks])
    joined = b"".join(passed)
    assert joined == (data if data.endswith(b"\n") or not data else data + b"\n")


def test_a_tool_with_much_to_say_is_read_to_its_end(tmp_path: Path) -> None:
    program = "import sys\nfor i in range(200000): print('line', i)\nsys.exit(5)"
    passed: list[bytes] = []
    ending = run_tool(
        [sys.executable, "-c", program],
        env={},
        cwd=tmp_path,
        why_stop=lambda: "",
        echo=passed.append,
    )
    assert ending.code == 5
    assert len(passed) == 200_000
    assert ending.tail[-1] == "line 199999"
