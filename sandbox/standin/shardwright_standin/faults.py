"""Faults that tests ask for: a rank that exits, hangs, runs out of memory, is slow.

Rules come from the file that `SHARDWRIGHT_STANDIN_FAULTS` names, read anew at every point so that
a test can change it while ranks run:

    rules:
      - id: first-death          # any name; counts under `times` are kept by it
        at: step                 # start load loaded step (see POINTS)
        act: exit                # exit hang hold oom gpu_oom disk_full slow
        where: {program: trtllm-serve, rank: 3, stage: 1, node: "real-*", pod: "*-1"}
        after: 2                 # how often this process passes the point before it strikes
        code: 7                  # exit: the status
        seconds: 15              # slow: how long
        times: 1                 # over all processes that read this file; without it, always

`hold` is a `hang` that ends when the file has no such rule any more.

A rule that names something a process does not have (a rank before it has one) does not fit it.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

CONTROL = "SHARDWRIGHT_STANDIN_FAULTS"
POINTS = ("start", "load", "loaded", "step")
ACTS = ("exit", "hang", "hold", "oom", "gpu_oom", "disk_full", "slow")
_LOOK_SECONDS = 0.02
_KEYS = {"id", "at", "act", "where", "after", "code", "seconds", "times"}
_WHERE = {"program", "rank", "stage", "tensor_rank", "node", "pod"}


class FaultRuleError(ValueError):
    """The control file asks for something unknown; it would otherwise be ignored."""


class OutOfMemoryError(RuntimeError):
    """What torch raises when a GPU's memory is full."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of the control file, checked."""

    name: str
    at: str
    act: str
    where: Mapping[str, Any]
    after: int
    code: int
    seconds: float
    times: int | None


class Faults:
    """The faults that may strike this process; `facts` say what it is."""

    def __init__(self, **facts: object) -> None:
        self._path = Path(os.environ.get(CONTROL, ""))
        self._facts: dict[str, object] = {
            "node": os.environ.get("SHARDWRIGHT_NODE_NAME", ""),
            "pod": os.environ.get("SHARDWRIGHT_POD_NAME") or os.environ.get("HOSTNAME", ""),
            **facts,
        }
        self._passed: dict[str, int] = {}

    def learn(self, **facts: object) -> None:
        """Add what the process has become, such as its rank."""
        self._facts.update(facts)

    def reach(self, point: str) -> None:
        """Pass a point of POINTS; whatever is asked for here happens now.

        Raises:
            FaultRuleError: When the control file cannot be read.
            OutOfMemoryError: By `gpu_oom`.
            OSError: By `disk_full`.
        """
        for rule in self._rules():
            if rule.at != point or not self._fits(rule):
                continue
            passed = self._passed.get(rule.name, 0) + 1
            self._passed[rule.name] = passed
            if passed > rule.after and self._claim(rule):
                strike(rule)
                while rule.act == "hold" and rule.name in {one.name for one in self._rules()}:
                    time.sleep(_LOOK_SECONDS)

    def _rules(self) -> tuple[Rule, ...]:
        if not self._path.name:
            return ()
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return ()
        return parse(text)

    def _fits(self, rule: Rule) -> bool:
        return all(
            name in self._facts and fnmatchcase(str(self._facts[name]), str(wanted))
            for name, wanted in rule.where.items()
        )

    def _claim(self, rule: Rule) -> bool:
        """Take one of the rule's times; the files are shared by all processes."""
        if rule.times is None:
            return True
        folder = self._path.with_name(f"{self._path.name}.struck")
        folder.mkdir(exist_ok=True)
        for number in range(rule.times):
            try:
                (folder / f"{rule.name}.{number}").touch(exist_ok=False)
            except FileExistsError:
                continue
            return True
        return False


def parse(text: str) -> tuple[Rule, ...]:
    """The rules of a control file.

    Raises:
        FaultRuleError: For an unknown key, point or act.
    """
    content = yaml.safe_load(text) or {}
    rules = content.get("rules") if isinstance(content, dict) else None
    if not isinstance(rules, list):
        raise FaultRuleError("the control file has no list under 'rules'")
    return tuple(_rule(raw, number) for number, raw in enumerate(rules))


def strike(rule: Rule) -> None:
    """Do what the rule says to this process; of `hold`, only say it."""
    sys.stderr.write(f"[standin] fault {rule.name}: {rule.act} at {rule.at}\n")
    sys.stderr.flush()
    if rule.act == "exit":
        os._exit(rule.code)
    if rule.act == "hang":
        while True:
            time.sleep(3600)
    if rule.act == "oom":
        # The kernel's own way: the shell, or the container, shows exit code 137.
        os.kill(os.getpid(), signal.SIGKILL)
    if rule.act == "gpu_oom":
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    if rule.act == "disk_full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if rule.act == "slow":
        time.sleep(rule.seconds)


def _rule(raw: object, number: int) -> Rule:
    if not isinstance(raw, dict):
        raise FaultRuleError(f"rules[{number}] is no object")
    where = raw.get("where") or {}
    if unknown := sorted(set(raw) - _KEYS) or sorted(set(where) - _WHERE):
        raise FaultRuleError(f"rules[{number}] has unknown key {unknown[0]}")
    if raw.get("at") not in POINTS or raw.get("act") not in ACTS:
        raise FaultRuleError(
            f"rules[{number}]: at {raw.get('at')!r} must be one of {POINTS}, act "
            f"{raw.get('act')!r} one of {ACTS}"
        )
    return Rule(
        name=str(raw.get("id", f"rule-{number}")),
        at=raw["at"],
        act=raw["act"],
        where=where,
        after=int(raw.get("after", 0)),
        code=int(raw.get("code", 1)),
        seconds=float(raw.get("seconds", 0)),
        times=None if raw.get("times") is None else int(raw["times"]),
    )
