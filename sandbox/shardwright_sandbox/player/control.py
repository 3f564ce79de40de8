"""How tests and demos tell the player what to do slowly or wrongly.

The orders are one ConfigMap, so that anything that can reach the cluster can
give them, and the player answers in it: which orders it has read, and how often
each rule has struck. Without the answer a test could create its pods before the
player knows the rule.
"""

import enum
import json
import time
import uuid
from fnmatch import fnmatchcase

from kubernetes import client
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shardwright_sandbox.errors import SandboxError
from shardwright_sandbox.rest import CONFLICT, MERGE_PATCH, NOT_FOUND, Rest, RestError

NAMESPACE = "kube-system"
NAME = "shardwright-player"
PATH = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{NAME}"
ORDERS, MARK, READ = "control.json", "mark", "read"
HITS, PROBLEM = "hits.json", "problem"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Act(enum.StrEnum):
    """What a rule makes of a pod."""

    FAIL = "fail"
    """A step ends without publishing; a serving pod ends before it is ready."""
    CRASH = "crash"
    """A serving pod ends `after_seconds` after it became ready."""
    HANG = "hang"
    """A step runs and never ends."""
    NEVER_START = "never-start"
    """The container waits for ever; `reason` is what it waits for, such as ImagePullBackOff."""
    NEVER_READY = "never-ready"
    """A serving pod runs and never becomes ready."""
    SLOW = "slow"
    """A step, or a serving pod's way to ready, takes `after_seconds` longer."""
    CORRUPT = "corrupt"
    """A step publishes and reports success, but one file is missing from the folder."""
    SCORE = "score"
    """A step that measures reports the rule's `score`."""


class Match(_Strict):
    """Which pods a rule means. Every given pattern must fit; patterns are shell globs."""

    namespace: str = "*"
    deployment: str = "*"
    pod: str = "*"
    node: str = "*"
    role: str = "*"
    step: str = "*"
    key: str = "*"
    measured: str = "*"
    """Precision of the weights that a step `score` measures: FP8, …, or None."""
    stage: str = "*"
    incarnation: str = "*"

    def fits(self, facts: dict[str, str]) -> bool:
        """Whether a pod with these facts is meant."""
        return all(
            pattern == "*" or fnmatchcase(facts.get(name, ""), pattern)
            for name, pattern in self.model_dump().items()
        )


class Rule(_Strict):
    """One order. `times` counts pods, None means all."""

    act: Act
    match: Match = Match()
    times: int | None = Field(default=1, ge=1)
    after_seconds: float = Field(default=0.0, ge=0)
    outcome: str = "Permanent"
    reason: str = "ToolFailed"
    message: str = "failed by order of the sandbox"
    log_tail: str = ""
    score: float = 0.0
    exit_code: int = Field(default=1, ge=0, le=255)
    report: bool = True
    """False: it ends without a termination message; with exit code 137 it is OOMKilled."""
    id: str = Field(default_factory=lambda: uuid.uuid4().hex[:8])


class Delays(_Strict):
    """How long things take, in seconds, when no rule says otherwise."""

    start: float = Field(default=0.0, ge=0)
    ready: float = Field(default=0.0, ge=0)
    model: float = Field(default=0.1, ge=0)
    checkpoint: float = Field(default=0.1, ge=0)
    engine: float = Field(default=0.1, ge=0)
    score: float = Field(default=0.1, ge=0)
    other: float = Field(default=0.1, ge=0)
    peer_lost: float = Field(default=0.5, ge=0)

    def of_step(self, step: str) -> float:
        """Length of a step of this name."""
        return float(getattr(self, step)) if step in _STEPS else self.other


_STEPS = frozenset({"model", "checkpoint", "engine", "score"})


class Control(_Strict):
    """All orders. The first rule that fits strikes."""

    delays: Delays = Delays()
    rules: tuple[Rule, ...] = ()


class Orders:
    """The player's side: the current orders and how often each rule has struck.

    A rule that has struck a pod stays with that pod: it would otherwise be
    spent anew each time the pod is looked at.
    """

    def __init__(self) -> None:
        self.control = Control()
        self._struck: dict[str, set[str]] = {}

    def read(self, text: str) -> str:
        """Take new orders; returns what is wrong with them, and then keeps the old ones."""
        try:
            self.control = Control.model_validate_json(text)
        except ValidationError as error:
            return str(error)
        return ""

    def rule(self, uid: str, facts: dict[str, str], *acts: Act) -> Rule | None:
        """The rule that strikes this pod with one of `acts`, now or already."""
        for rule in self.control.rules:
            if rule.act not in acts:
                continue
            struck = self._struck.setdefault(rule.id, set())
            if uid in struck:
                return rule
            if rule.match.fits(facts) and (rule.times is None or len(struck) < rule.times):
                struck.add(uid)
                return rule
        return None

    def hits(self) -> dict[str, int]:
        """Pods struck, by the rule's id."""
        return {rule.id: len(self._struck.get(rule.id, ())) for rule in self.control.rules}


class PlayerControl:
    """The test's side: gives orders and waits until the player has read them."""

    def __init__(self, api: client.ApiClient, *, wait_seconds: float = 60.0) -> None:
        self._rest = Rest(api, connections=2)
        self._wait_seconds = wait_seconds
        self._control = Control()

    def reset(self) -> None:
        """Forget every rule and delay."""
        self._give(Control())

    def delays(self, **seconds: float) -> None:
        """Set some delays: `start`, `ready`, `model`, `checkpoint`, `engine`, `score`, `other`."""
        delays = Delays.model_validate({**self._control.delays.model_dump(), **seconds})
        self._give(self._control.model_copy(update={"delays": delays}))

    def add(self, *rules: Rule) -> None:
        """Add rules behind those that are there."""
        self._give(self._control.model_copy(update={"rules": (*self._control.rules, *rules)}))

    def remove(self, *rules: Rule) -> None:
        """Take rules back. Pods that one has struck are looked at anew."""
        gone = {rule.id for rule in rules}
        kept = tuple(rule for rule in self._control.rules if rule.id not in gone)
        self._give(self._control.model_copy(update={"rules": kept}))

    def fail_step(self, step: str, *, times: int | None = 1, **more: object) -> Rule:
        """Fail the next `times` pods of a step; `more` are fields of `Rule`."""
        rule = Rule.model_validate(
            {"act": Act.FAIL, "match": {"step": step}, "times": times, **more}
        )
        self.add(rule)
        return rule

    def hits(self, rule: Rule) -> int:
        """How many pods this rule has struck."""
        data = self._rest.get(PATH).get("data") or {}
        return int(json.loads(data.get(HITS, "{}")).get(rule.id, 0))

    def _give(self, control: Control) -> None:
        text = control.model_dump_json()
        mark = uuid.uuid4().hex
        data = {ORDERS: text, MARK: mark}
        try:
            self._rest.patch(PATH, {"data": data}, MERGE_PATCH)
        except RestError as error:
            if error.status != NOT_FOUND:
                raise
            self._make(data)
        self._control = control
        deadline = time.monotonic() + self._wait_seconds
        while time.monotonic() < deadline:
            answer = self._rest.get(PATH)["data"]
            if answer.get(READ) == mark:
                if problem := answer.get(PROBLEM):
                    raise SandboxError(f"the player refuses these orders: {problem}")
                return
            time.sleep(0.02)
        raise SandboxError(
            f"the player has not read its orders within {self._wait_seconds} s; "
            "does it run? See logs/player.log"
        )

    def _make(self, data: dict[str, str]) -> None:
        path = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
        try:
            self._rest.post(path, {"metadata": {"name": NAME}, "data": data})
        except RestError as error:
            if error.status != CONFLICT:
                raise
            self._rest.patch(PATH, {"data": data}, MERGE_PATCH)
