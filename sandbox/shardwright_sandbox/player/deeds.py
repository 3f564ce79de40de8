"""What the player does to a pod: each deed ends in one write of the pod's status."""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import structlog

from shardwright.runner.contract import (
    DONE,
    ENVIRONMENT,
    REASON_PEER_LOST,
    REASON_TOOL_FAILED,
    ContractError,
    Report,
    encode_report,
)
from shardwright_sandbox.config import Layout
from shardwright_sandbox.player import status
from shardwright_sandbox.player.control import Act, Rule
from shardwright_sandbox.player.serving import refusal
from shardwright_sandbox.player.steps import Played, play_step
from shardwright_sandbox.player.store import Store
from shardwright_sandbox.player.sweep import play_sweep
from shardwright_sandbox.player.view import PodView
from shardwright_sandbox.rest import CONFLICT, NOT_FOUND, STRATEGIC_PATCH, Json, Rest, RestError

_log = structlog.get_logger()
KILLED = 137  # 128 + SIGKILL: without a report, the kernel's kill of a whole container


class Deeds:
    """The deeds; `rule` says which order strikes a pod."""

    def __init__(
        self, rest: Rest, layout: Layout, store: Store, rule: Callable[..., Rule | None]
    ) -> None:
        self._rest = rest
        self._layout = layout
        self._store = store
        self._rule = rule
        self._publishing = threading.Lock()

    def start(self, pod: PodView) -> None:
        """The containers start, unless the artifact may not be loaded."""
        if not pod.serving:
            self._patch(pod, status.running(pod, ready=True))
            return
        report = self._refusal(pod)
        if (rule := self._rule(pod, Act.FAIL)) is not None:
            self.fail(pod, rule)
        elif report is not None:
            self._end(pod, report)
        else:
            quick = not pod.leader and self._rule(pod, Act.NEVER_READY, Act.SLOW) is None
            self._patch(pod, status.running(pod, ready=quick))

    def _refusal(self, pod: PodView) -> Report | None:
        try:
            return refusal(pod, self._layout.claims, self._store.product(pod.node))
        except ContractError as error:
            return Report(outcome=ENVIRONMENT, reason=REASON_TOOL_FAILED, message=str(error))

    def become_ready(self, pod: PodView) -> None:
        """The readiness probe succeeds."""
        self._patch(pod, status.became_ready(pod))

    def wait_for(self, pod: PodView, rule: Rule) -> None:
        """The containers cannot start."""
        self._patch(pod, status.waiting(pod, rule.reason))

    def work(self, pod: PodView) -> None:
        """A step does its work, publishes and reports."""
        if (rule := self._rule(pod, Act.FAIL)) is not None:
            self.fail(pod, rule)
            return
        began = time.monotonic()
        corrupt = self._rule(pod, Act.CORRUPT) is not None
        scored = self._rule(pod, Act.SCORE)
        product = self._store.product(pod.node)
        try:
            played = play_sweep(pod, self._layout.claims) or play_step(
                pod,
                self._layout.claims,
                {"product": product} if product else {},
                corrupt=corrupt,
                score=scored.score if scored is not None else None,
            )
        except ContractError as error:
            played = Played(
                Report(outcome=ENVIRONMENT, reason=REASON_TOOL_FAILED, message=str(error))
            )
        if played.published is not None:
            self._note_publish(pod, played)
        self._end(pod, replace(played.report, seconds=round(time.monotonic() - began, 3)))

    def _note_publish(self, pod: PodView, played: Played) -> None:
        line = {
            "time": status.now(),
            "namespace": pod.namespace,
            "claim": pod.claim_name(),
            "step": played.report.step,
            "key": played.report.key,
            "pod": pod.name,
            "uid": pod.uid,
            "node": pod.node,
        }
        with self._publishing, self._layout.publishes.open("a") as log:
            log.write(json.dumps(line) + "\n")

    def lose(self, pod: PodView) -> None:
        """The pod ends because its group has lost a member."""
        self._end(
            pod,
            Report(
                outcome=ENVIRONMENT,
                reason=REASON_PEER_LOST,
                message="another pod of this group has ended",
            ),
        )

    def fail(self, pod: PodView, rule: Rule) -> None:
        """The pod ends as a rule orders."""
        report = Report(
            outcome=rule.outcome,
            reason=rule.reason,
            message=rule.message,
            step=pod.label("step"),
            key=pod.label("key"),
            log_tail=rule.log_tail,
        )
        message = encode_report(report) if rule.report else ""
        code = rule.exit_code or 1
        reason = "OOMKilled" if not rule.report and code == KILLED else ""
        self._patch(pod, status.ended(pod, exit_code=code, message=message, reason=reason))

    def _end(self, pod: PodView, report: Report) -> None:
        code = 0 if report.outcome == DONE else 1
        self._patch(pod, status.ended(pod, exit_code=code, message=encode_report(report)))
        _log.info("ended", pod=pod.name, outcome=report.outcome, reason=report.reason)

    def _patch(self, pod: PodView, new_status: Json) -> None:
        """Write a pod's status, if it is still that pod and nobody changed it meanwhile.

        After a conflict the newer object comes through the watch, and the pod is
        looked at again.
        """
        body = {
            "metadata": {"uid": pod.uid, "resourceVersion": pod.version},
            "status": new_status,
        }
        try:
            answer = self._rest.patch(f"{pod.path}/status", body, STRATEGIC_PATCH)
        except RestError as error:
            if error.status not in (CONFLICT, NOT_FOUND):
                raise
            _log.info("pod changed meanwhile", pod=pod.name, status=error.status)
            return
        self._store.put_pod(PodView(answer))
