"""A fault of the operator's own is told in status, once it comes again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.passes import acting, pod, situation

from shardwright.api.status import LLMDeploymentStatus
from shardwright.control import reconcile
from shardwright.control.queue import Key
from shardwright.plan.conditions import Outcome
from shardwright.plan.report import defect, report
from shardwright.plan.situation import Situation

ERROR = ValueError("expert 3 does not divide tensor 1024")


def serving() -> Situation:
    """One whole replica, and the status that a good pass wrote of it."""
    found = situation(pod(0, 3), pod(1, 3))
    status = report(found, acting(found), Outcome())
    return situation_with(found, status)


def situation_with(found: Situation, status: LLMDeploymentStatus) -> Situation:
    return replace(found, status=status)


def test_it_is_told_as_stalled_and_everything_else_is_kept() -> None:
    before = serving()
    status = defect(before, ERROR)
    told = {one.type: one for one in status.conditions}
    assert (told["Ready"].status, told["Ready"].reason) == ("False", "OperatorFailed")
    assert (told["Stalled"].status, told["Stalled"].reason) == ("True", "OperatorFailed")
    assert told["Reconciling"].status == "False"
    assert "ValueError: expert 3 does not divide tensor 1024" in told["Stalled"].message
    assert len({one.type for one in status.conditions}) == len(status.conditions)
    old = {one.type: one for one in before.status.conditions}
    assert told["Available"] == old["Available"]
    assert status.groups == before.status.groups
    assert status.observed_generation == before.deployment.generation
    # Said again it is the same: nothing more is written.
    assert defect(situation_with(before, status), ERROR) == status


class Parts(SimpleNamespace):
    """Stands for whatever a pass asks before it decides."""

    async def asked(self, _: object) -> Situation:
        return serving()


def test_the_second_failure_in_a_row_writes_status_and_a_good_pass_forgets_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key, written = Key("deployment", "llm", "llama"), list[LLMDeploymentStatus]()
    view = serving().deployment
    parts = Parts(deployment=lambda *_: view, want=None)
    tried = reconcile.Reconciler.__new__(reconcile.Reconciler)
    vars(tried).update(store=parts, placer=None, _failing=set())
    vars(tried).update(situator=SimpleNamespace(situation=parts.asked), links=parts)

    async def status(*found: Any) -> bool:
        written.append(found[-1])
        return True

    class GoodEnoughError(Exception):
        """Ends a pass that has decided, where this test has seen enough."""

    def fails(*_: object, **__: object) -> None:
        raise ERROR

    def ends(*_: object) -> None:
        raise GoodEnoughError

    home = SimpleNamespace(move_possible=lambda: False)
    monkeypatch.setattr(tried, "_status", status)
    monkeypatch.setattr(reconcile, "Homes", lambda *_: home)
    monkeypatch.setattr(reconcile, "unheard", ends)

    def one_pass(decide: object, error: type[Exception]) -> None:
        monkeypatch.setattr(reconcile, "decide", decide)
        with pytest.raises(error):
            asyncio.run(tried(key))

    one_pass(fails, ValueError)
    assert written == []
    one_pass(fails, ValueError)
    (told,) = written
    assert told == defect(serving(), ERROR)
    # Decided: the next fault is the first again.
    one_pass(lambda *_, **__: SimpleNamespace(findings=None), GoodEnoughError)
    one_pass(fails, ValueError)
    assert written == [told]
