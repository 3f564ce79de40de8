"""The one kind of command line that a runner starts for another: Open MPI's daemon.

`mpirun` hands its remote shell a host and a line for a shell there. It is read here and never given
to a shell: assignments and exports of a few search paths, then `orted` (Open MPI 4) or `prted`
(Open MPI 5) and its arguments. Both forms below were seen from Open MPI 4.1.4 and 5.0.11:

    orted -mca ess "env" -mca ess_base_jobid "2139750400" …
    PATH=/opt/bin:$PATH ; export PATH ; LD_LIBRARY_PATH=… ; … ; /opt/bin/orted -mca …
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DAEMONS = frozenset({"orted", "prted"})
ASSIGNABLE = frozenset(
    {
        "PATH",
        "LD_LIBRARY_PATH",
        "DYLD_LIBRARY_PATH",
        "OPAL_PREFIX",
        "PMIX_PREFIX",
        "PRTE_PREFIX",
    }
)
ARGUMENT_LIMIT = 512
LINE_LIMIT_CHARS = 32 * 1024
_PAIR = 2

_ASSIGNMENT = re.compile(r"([A-Z_]+)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{([A-Z_]+)(?::-)?\}|([A-Z_]+))")
# What a value may hold once its variables are taken out: a list of paths.
_PATHS = re.compile(r"[A-Za-z0-9_./:+@,=-]*")
# Before and after the line where the account's shell is sh or ksh: its profile is read there. Ours
# is in the environment already.
_PROFILE = "( test ! -r ./.profile || . ./.profile;"


class LineError(ValueError):
    """The line is not one that starts an MPI daemon."""


@dataclass(frozen=True)
class DaemonCommand:
    """A daemon's argument vector, and search paths that go before it (with variables in them)."""

    argv: tuple[str, ...]
    paths: tuple[tuple[str, str], ...] = ()

    def message(self) -> dict[str, Any]:
        """As JSON."""
        return {"argv": list(self.argv), "paths": [list(item) for item in self.paths]}

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """`base` with the search paths set, in order, as a shell would."""
        found = dict(base)
        for name, value in self.paths:
            found[name] = _VARIABLE.sub(
                lambda match: found.get(match.group(1) or match.group(2), ""), value
            ).strip(":")
        return found


def read_line(words: Sequence[str]) -> DaemonCommand:
    """The daemon that a remote shell was asked to start.

    Args:
        words: The agent's arguments after the host; a remote shell would join them with blanks.

    Raises:
        LineError: The line does anything else, or is too long.
    """
    line = " ".join(words).strip()
    if len(line) > LINE_LIMIT_CHARS:
        raise LineError(f"the line has {len(line)} characters, {LINE_LIMIT_CHARS} may be")
    if line.startswith(_PROFILE) and line.endswith(")"):
        line = line[len(_PROFILE) : -1]
    *settings, last = _statements(line)
    paths = []
    for statement in settings:
        if statement[:1] == ["export"] and set(statement[1:]) <= ASSIGNABLE:
            continue
        if len(statement) != 1:
            raise LineError(f"{' '.join(statement)[:80]!r} is not part of starting an MPI daemon")
        paths.append(_assignment(statement[0]))
    return checked(DaemonCommand(tuple(last), tuple(paths)))


def checked(command: DaemonCommand) -> DaemonCommand:
    """The command, if it starts an MPI daemon and nothing else. Asked on both sides.

    Raises:
        LineError: It does not.
    """
    argv = command.argv
    if not argv or os.path.basename(argv[0]) not in DAEMONS:  # noqa: PTH119 - no path of ours
        raise LineError(f"{(argv[0] if argv else '')[:80]!r} is none of {sorted(DAEMONS)}")
    if len(argv) > ARGUMENT_LIMIT or sum(map(len, argv)) > LINE_LIMIT_CHARS:
        raise LineError(f"{len(argv)} arguments, {ARGUMENT_LIMIT} may be")
    for word in argv:
        if not word.isprintable():
            raise LineError("an argument holds control characters")
    for name, value in command.paths:
        _assignment(f"{name}={value}")
    return command


def from_message(raw: Mapping[str, Any]) -> DaemonCommand:
    """A command that came over the channel.

    Raises:
        LineError: It has another shape, or is none that starts an MPI daemon.
    """
    argv, paths = raw.get("argv"), raw.get("paths", [])
    if not _texts(argv) or not isinstance(paths, list):
        raise LineError("argv is no list of texts")
    if not all(_texts(item) and len(item) == _PAIR for item in paths):
        raise LineError("paths is no list of pairs")
    return checked(DaemonCommand(tuple(argv or ()), tuple((item[0], item[1]) for item in paths)))


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _statements(line: str) -> list[list[str]]:
    """The words of each statement; quotes group, a semicolon ends one."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    found: list[list[str]] = [[]]
    try:
        for word in lexer:
            if word == ";":
                found.append([])
            elif word and not set(word) - set(";&|()<>"):
                raise LineError(f"{word!r} is not part of starting an MPI daemon")
            else:
                found[-1].append(word)
    except ValueError as error:
        raise LineError(f"the line cannot be read: {error}") from error
    return [words for words in found if words] or [[]]


def _assignment(word: str) -> tuple[str, str]:
    match = _ASSIGNMENT.fullmatch(word)
    if not match or match.group(1) not in ASSIGNABLE:
        raise LineError(f"{word[:80]!r} sets none of {sorted(ASSIGNABLE)}")
    name, value = match.groups()
    if not _PATHS.fullmatch(_VARIABLE.sub("", value)):
        raise LineError(f"the value of {name} is no list of paths")
    return name, value
