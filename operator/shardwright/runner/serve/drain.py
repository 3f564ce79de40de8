"""When a drained leader may end, and when a group that makes no progress hangs. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.runner.serve.probe import Answer

# An empty port must stay empty for so long: a request may be between two connections.
SETTLED_SECONDS = 1.0

WAIT, DONE, CUT = "Wait", "Done", "Cut"


@dataclass(frozen=True)
class Draining:
    """A drain under way: since when, and since when the port has been empty (None: it is not)."""

    since: float
    empty_since: float | None = None
    most: int = 0

    def seen(self, in_flight: int | None, now: float) -> Draining:
        """The drain after a look at the port; None means that it cannot be looked at."""
        if in_flight == 0:
            empty = now if self.empty_since is None else self.empty_since
            return Draining(self.since, empty, self.most)
        return Draining(self.since, None, max(self.most, in_flight or 0))


def drain_verdict(draining: Draining, now: float, *, timeout: float, lame_duck: float) -> str:
    """Wait, Done (all requests have finished) or Cut (the time for it is over).

    For `lame_duck` seconds the leader goes on serving even if nothing runs: routers learn only by
    and by that it takes no traffic, and what they still send must be answered. Where the port
    cannot be looked at, the whole timeout is waited.
    """
    passed = now - draining.since
    if passed >= timeout:
        return CUT
    empty = draining.empty_since
    settled = empty is not None and now - empty >= SETTLED_SECONDS
    return DONE if settled and passed >= min(lame_duck, timeout) else WAIT


def hang(answer: Answer, started: float, now: float, hang_seconds: float) -> str:
    """Why a group that has served counts as hung, empty if it does not.

    Neither a generated token nor a counter of the engine that moved in all that time.
    """
    if answer.generated_at is None:
        return ""
    sign = max(started, answer.generated_at, answer.moved_at or 0.0)
    if now - sign < hang_seconds:
        return ""
    told = f" ({answer.last_error})" if answer.last_error else ""
    return f"no token was generated and no counter moved for {now - sign:.0f} s{told}"


def stall(last_sign: float, now: float, stall_seconds: float) -> str:
    """Why a group that loads counts as hung: neither a line of a log nor bytes read, so long."""
    if now - last_sign < stall_seconds:
        return ""
    return f"nothing was printed and nothing was read for {now - last_sign:.0f} s while loading"
