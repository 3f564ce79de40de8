"""What the use of serving replicas suggests: with which numbers, when, and how rarely."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.golden import specs
from tests.support.passes import NOW, SERVING, acting, pod, situation

from shardwright.api.spec import LLMDeploymentSpec
from shardwright.api.status import AdviceStatus, LLMDeploymentStatus
from shardwright.plan.advice import advice, telling
from shardwright.plan.conditions import Outcome
from shardwright.plan.report import report
from shardwright.plan.revisions import Revision
from shardwright.plan.situation import Situation
from shardwright.plan.times import stamp
from shardwright.resolved import Resolved, Room, StageRoom
from shardwright.runner.contract import Usage

NAME = SERVING.name


def used(**changes: Any) -> Usage:
    base = Usage(NAME, 1440.0, kv_cache=0.65, kv_high=0.0, running=12.0)
    return replace(base, **changes)


def resolved(**changes: Any) -> Resolved:
    limits = {"maxBatchSize": 64, "maxNumTokens": 8192, **changes.pop("limits", {})}
    engine = {"runtime": "VLLM", "version": "0.33.0", "limits": limits}
    asked = specs.spec(**{"engine": {**engine, **changes.pop("engine", {})}, **changes})
    return replace(specs.resolved(specs.spec()), spec=asked)


PLAIN = resolved()


def told(
    *usages: Usage,
    of: Resolved = PLAIN,
    old: Sequence[AdviceStatus] = (),
    adapters: Sequence[str] | None = (),
    now: float = NOW,
) -> list[AdviceStatus]:
    return advice(NAME, of, usages, old, adapters=adapters, now=now)


def only(found: Sequence[AdviceStatus]) -> AdviceStatus:
    (one,) = found
    return one


def test_a_cache_that_is_nearly_full_for_long_is_told_with_values_to_try() -> None:
    one = only(told(used(kv_cache=0.91, kv_high=0.97, running=37.0)))
    assert one.reason == "KVCacheNearlyFull"
    assert one.message == (
        "the KV cache was 91 % full on average, with 37.0 requests at once in 24 of 30 minutes, "
        "over 80 %: requests are preempted or wait. Raise the token budget "
        "(engine.limits.gpuMemoryFraction from 0.9 to 0.93, quantization.kvCache FP8 where the GPU "
        "has it, more GPUs), or lower engine.limits.maxBatchSize from 64 to 30"
    )
    assert (one.revision, one.figure, one.about) == (NAME, 0.91, "")
    assert (one.since, one.until) == (stamp(NOW - 1800), stamp(NOW))


def test_a_fraction_that_is_at_its_end_and_a_cache_in_8_bits_are_not_suggested() -> None:
    of = resolved(limits={"gpuMemoryFraction": 0.93}, quantization={"kvCache": "FP8"})
    assert only(told(used(kv_cache=0.85, running=80.0), of=of)).message.endswith(
        "Raise the token budget (more GPUs), or lower engine.limits.maxBatchSize below 64"
    )


def test_a_cache_that_is_half_empty_is_given_back_for_larger_batches() -> None:
    of = resolved(limits={"maxBatchSize": 16})
    one = only(told(used(kv_cache=0.30, running=11.0), of=of))
    assert one.reason == "KVCacheHalfEmpty"
    assert one.message == (
        "the KV cache was 30 % full on average, with 11.0 requests at once in 24 of 30 minutes, "
        "under 50 %: give its memory back for larger batches: raise engine.limits.maxBatchSize "
        "from 16 to 24; or take fewer GPUs"
    )
    # Batches are far from their limit: what the cache gives back goes to longer passes.
    assert "raise engine.limits.maxNumTokens from 8192 to 16384; or" in (
        only(told(used(kv_cache=0.05, running=1.0))).message
    )


def test_a_batch_limit_counts_for_each_attention_group() -> None:
    of = resolved(
        parallelism={"tensor": 8, "pipeline": 1, "expert": 8, "attentionData": 4},
        limits={"maxBatchSize": 16},
    )
    one = only(told(used(kv_cache=0.9, running=60.0), of=of))
    assert one.message.endswith("lower engine.limits.maxBatchSize from 16 to 12")


@pytest.mark.parametrize(
    "usage",
    [
        used(kv_cache=0.5),
        used(kv_cache=0.799),
        used(kv_cache=0.3, kv_high=0.05),  # it needs its room now and then
        used(kv_cache=0.0, busy_seconds=0.0, running=0.0),  # idle: empty says nothing
        used(kv_cache=0.1, busy_seconds=540.0),  # too short
        used(kv_cache=0.95, busy_seconds=540.0),
        used(kv_cache=None),
    ],
)
def test_nothing_is_said_between_the_marks_and_of_idle_replicas(usage: Usage) -> None:
    assert told(usage) == []


def test_leaders_count_by_the_time_in_which_they_had_requests() -> None:
    busy, short = used(kv_cache=0.9, running=40.0), used(kv_cache=0.6, busy_seconds=720.0)
    one = only(told(busy, short, used(kv_cache=0.0, busy_seconds=60.0)))
    assert one.figure == pytest.approx((0.9 * 2 + 0.6) / 3, abs=1e-4)
    assert "in 18 of 30 minutes" in one.message


def test_an_advice_stands_until_the_use_is_well_below_its_mark() -> None:
    first = told(used(kv_cache=0.82))
    later = NOW + 300
    assert told(used(kv_cache=0.76), old=first, now=later) == first
    assert told(used(kv_cache=0.89), old=first, now=later) == first
    moved = only(told(used(kv_cache=0.93), old=first, now=later))
    assert (moved.figure, moved.until) == (0.93, stamp(later))
    assert told(used(kv_cache=0.74), old=first, now=later) == []
    low = told(used(kv_cache=0.46))
    assert told(used(kv_cache=0.54), old=low, now=later) == low
    assert told(used(kv_cache=0.56), old=low, now=later) == []
    assert told(used(kv_cache=0.76)) == []


def test_where_nothing_new_is_known_it_stays_as_it_is() -> None:
    """An operator that has just started, a deployment at zero, a leader that does not answer."""
    first = told(used(kv_cache=0.82))
    for nothing in ((), (used(kv_cache=None),), (used(busy_seconds=0.0),)):
        assert told(*nothing, old=first, now=NOW + 86_400) == first


def test_another_revision_starts_without_advice() -> None:
    old = [
        replaced.model_copy(update={"revision": "llama-old"})
        for replaced in told(used(kv_cache=0.9))
    ]
    assert told(old=old) == []
    assert told(used(kv_cache=0.65), old=old) == []


@given(
    st.lists(
        st.builds(
            used,
            kv_cache=st.none() | st.floats(0, 1),
            kv_high=st.floats(0, 1),
            running=st.floats(0, 500),
            busy_seconds=st.floats(0, 1800),
        ),
        max_size=40,
    ),
    st.sampled_from([1, 8, 64, 1024]),
)
def test_whatever_is_suggested_is_a_valid_spec_and_repeating_it_writes_nothing(
    seen: list[Usage], batch: int
) -> None:
    of = resolved(limits={"maxBatchSize": batch})
    old: list[AdviceStatus] = []
    for usage in seen:
        found = told(usage, of=of, old=old)
        assert told(usage, of=of, old=found, now=NOW + 300) == found
        assert len({one.reason for one in found}) == len(found) <= 1
        for one in found:
            for field, _, wanted in _suggested(one.message):
                limits = of.spec.engine.limits.model_dump(by_alias=True)
                raw = of.spec.model_dump(by_alias=True, mode="json", exclude_none=True)
                raw["engine"]["limits"] = {
                    **limits,
                    field: float(wanted) if "." in wanted else int(wanted),
                }
                LLMDeploymentSpec.model_validate(raw)
        old = found


def _suggested(message: str) -> list[tuple[str, str, str]]:
    words = message.replace(",", " ").replace(";", " ").replace(")", " ").replace("(", " ").split()
    return [
        (word.removeprefix("engine.limits."), words[at + 2], words[at + 4])
        for at, word in enumerate(words)
        if word.startswith("engine.limits.") and words[at + 1 : at + 2] == ["from"]
    ]


DRAFTS = {
    "method": "DraftModel",
    "model": {"uri": "hf://meta-llama/Llama-3.2-1B@main"},
    "maxDraftLen": 4,
}


def drafting(method: dict[str, Any] | None = None, draft: int = 2) -> Resolved:
    stage = StageRoom(0, 32, 16, 0, 0, 10, 1000, draft=draft)
    return replace(resolved(speculative=method or DRAFTS), room=Room((stage,), "row"))


def test_drafts_that_cost_more_than_they_save_are_told() -> None:
    """Leviathan et al.: a = 0.2 gives 1.2496 tokens a pass, which costs 4 × 2/16 + 1 passes."""
    seen = used(drafted=1000.0, accepted=62.4, running=1.0)
    one = only(told(seen, of=drafting()))
    assert one.reason == "SpeculationCostsMore"
    assert one.figure == pytest.approx(1.2496 / 1.5, abs=2e-3)
    assert one.message == (
        "speculation costs more than it saves: with 1 requests at once a pass gave 1.25 tokens "
        "with speculative.maxDraftLen 4, in 24 of 30 minutes; by weights read and FLOPs alone that "
        "is 0.83 times the speed without drafts. Set speculative.maxDraftLen to 1: 1.07 times"
    )
    worse = only(told(replace(seen, accepted=10.0), of=drafting()))
    assert worse.message.endswith(
        "Leave speculative out, or measure once without it and compare the runs"
    )


def test_drafts_that_pay_those_of_unknown_cost_and_silent_engines_are_not_told_of() -> None:
    assert told(used(drafted=1000.0, accepted=700.0), of=drafting()) == []
    poor = used(drafted=1000.0, accepted=10.0)
    assert told(poor, of=drafting(draft=0)) == []
    assert told(poor, of=replace(drafting(), room=None)) == []
    assert told(used(), of=drafting()) == []
    assert told(poor) == []


def test_a_large_batch_pays_for_drafts_that_cost_nothing_to_make() -> None:
    words = {"method": "NGram", "maxDraftLen": 4}
    poor = used(drafted=1000.0, accepted=100.0, running=4.0)
    assert told(poor, of=drafting(words, draft=0)) == []
    one = only(told(replace(poor, running=256.0), of=drafting(words, draft=0)))
    assert one.reason == "SpeculationCostsMore"


def test_an_engine_that_tells_the_mean_length_alone_is_believed() -> None:
    one = only(told(used(acceptance=1.1, running=1.0), of=drafting()))
    assert "a pass gave 1.10 tokens" in one.message
    assert told(used(acceptance=7.0, running=1.0), of=drafting()) == []  # more than 4 + 1


def test_speculation_advice_does_not_flap() -> None:
    def at(accepted: float, old: Sequence[AdviceStatus] = ()) -> list[AdviceStatus]:
        seen = used(drafted=1000.0, accepted=accepted, running=1.0)
        return told(seen, of=drafting(), old=old, now=NOW + len(old))

    first = at(110.0)
    assert only(first).figure < 1
    assert at(130.0) == []
    assert at(130.0, first) == first
    assert at(250.0, first) == []


def test_an_adapter_beside_which_the_others_get_nothing_is_told() -> None:
    seen = used(alone={"legal": 0.95, "poems": 0.02})
    one = only(told(seen, adapters=("legal", "poems")))
    assert (one.reason, one.about, one.figure) == ("OneAdapterDominates", "legal", 0.95)
    assert one.message == (
        "adapter legal was the only one with requests in 95 % of the time in which there were any, "
        "24 of 30 minutes: merged into its base and deployed whole it costs no slots and no "
        "arithmetic of its own. The engine does not tell of requests to the base model beside it: "
        "keep the base if it is asked for too"
    )
    kept = [one]
    assert told(used(alone={"legal": 0.86}), adapters=("legal", "poems"), old=kept) == kept
    assert told(used(alone={"legal": 0.78}), adapters=("legal", "poems"), old=kept) == []
    assert told(used(alone={"poems": 0.85}), adapters=("legal", "poems"), old=kept) == []
    assert told(used(alone={}), adapters=("legal", "poems"), old=kept) == []
    other = only(told(used(alone={"poems": 0.95}), adapters=("legal", "poems"), old=kept))
    assert other.about == "poems"
    # The engine of another runtime would not tell: nothing is known, nothing changes.
    assert told(used(), adapters=("legal", "poems"), old=kept) == kept


@pytest.mark.parametrize("adapters", [(), ("legal",), ("poems", "code")])
def test_an_adapter_that_is_the_only_one_or_taken_out_is_not_told_of(
    adapters: tuple[str, ...],
) -> None:
    """One alone is told of by the plan's reasons."""
    first = told(used(alone={"legal": 0.95}), adapters=("legal", "poems"))
    assert told(used(alone={"legal": 0.95}), adapters=adapters) == []
    assert told(old=first, adapters=adapters) == []
    assert told(old=first, adapters=None) == first


# In passes.


def serving(usage: Usage | None = None, **changes: Any) -> Situation:
    found = replace(situation(pod(0, 3), pod(1, 3)), **changes)
    return found if usage is None else replace(found, usage={"uid-0-3-0": usage})


def reported(found: Situation) -> LLMDeploymentStatus:
    return report(found, acting(found), Outcome())


def test_the_leader_of_what_serves_is_asked_and_a_pass_writes_the_advice_once() -> None:
    quiet = serving()
    assert [one.uid for one in telling(quiet, acting(quiet).findings)] == ["uid-0-3-0"]
    before = reported(quiet)
    assert before.advice == []
    full = serving(used(kv_cache=0.9), status=before)
    status = reported(full)
    assert only(status.advice).reason == "KVCacheNearlyFull"
    for share in (0.88, 0.93, 0.85, 0.81):
        later = serving(used(kv_cache=share), status=status, now=NOW + 300)
        assert reported(later) == status


def test_a_hundred_looks_around_a_mark_write_status_twice_at_most() -> None:
    status, writes = reported(serving()), 0
    for at in range(100):
        share = 0.8 + 0.045 * math.sin(at)
        now = serving(used(kv_cache=share), status=status, now=NOW + 300 * at)
        found = reported(now)
        writes += found != status
        status = found
    assert 1 <= writes <= 2
    assert len(status.advice) == 1


def test_usage_of_another_revision_and_of_who_does_not_serve_is_not_believed() -> None:
    other = serving(used(kv_cache=0.9, revision="llama-other"))
    assert reported(other).advice == []
    stranger = replace(serving(), usage={"uid-of-another": used(kv_cache=0.9)})
    assert reported(stranger).advice == []
    asked = serving(settings=serving().settings.model_copy(update={"read_links": False}))
    assert telling(asked, acting(asked).findings) == ()


def test_a_pass_that_cannot_read_a_revision_leaves_the_advice() -> None:
    status = reported(serving(used(kv_cache=0.9)))
    frozen = serving(status=status, unreadable=("llama-new: no",))
    assert reported(frozen).advice == status.advice


def test_advice_is_no_part_of_what_a_spec_hashes_to() -> None:
    found = serving(used(kv_cache=0.9))
    decision = acting(found)
    assert decision.findings.target == Revision(NAME, "uid-abc", 1, SERVING.resolved)
    assert decision.intents == acting(serving()).intents
