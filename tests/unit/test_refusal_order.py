"""In which order refusals are told: the cause before what follows from it."""

from __future__ import annotations

import ast
import random
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.sizing import (
    H100,
    L40S,
    M8B,
    M70B,
    M405B,
    MIXTRAL,
    PYTORCH,
    TENSORRT,
    nodes,
    plan,
)

import shardwright.sizing
from shardwright.api.serving import KVPrecision, WeightPrecision
from shardwright.cli.rejections import grouped
from shardwright.sizing.order import RESTS_ON, Rank, ranks
from shardwright.sizing.question import Limits
from shardwright.sizing.result import Choice, Rejection
from shardwright.sizing.shape import EngineSettings, Precision, Shape


def codes(choice: Choice, limits: Limits) -> list[str]:
    assert choice.chosen is None
    return [group.code for group in grouped(choice.rejected, limits)]


def given_codes() -> set[str]:
    """Codes of the planner's own refusals, from its source."""
    folder = Path(shardwright.sizing.__path__[0])
    return {
        call.args[0].value
        for file in folder.glob("*.py")
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id in ("Refusal", "Rejection")
        and call.args
        and isinstance(call.args[0], ast.Constant)
        and isinstance(call.args[0].value, str)
    }


def test_of_every_refusal_it_is_known_what_it_rests_on() -> None:
    assert set(RESTS_ON) == given_codes()
    names = {field.name for field in fields(Limits)}
    assert set().union(*RESTS_ON.values()) <= names


def test_experts_that_the_model_has_not_are_told_and_not_what_every_tensor_lacks_besides() -> None:
    limits = Limits(expert=3)
    choice = plan(MIXTRAL, nodes(H100, 2), limits=limits, engine=PYTORCH)
    assert codes(choice, limits) == ["ExpertsNotDivisible", "PrecisionNotSupported"]
    first = grouped(choice.rejected, limits)[0].remarks
    assert [remark.message for remark in first] == [
        "expert 3: the model has 8 routed experts; use 1 or a divisor of their number"
    ]
    assert first[0].subject == "everything", "no number of ranks would help"


def test_groups_of_a_model_without_experts() -> None:
    limits = Limits(attention_data=2)
    choice = plan(M8B, nodes(H100), limits=limits, engine=PYTORCH)
    assert codes(choice, limits)[0] == "AttentionDataWithoutExperts"


def test_experts_that_no_tensor_of_a_domain_holds_come_before_tensors_nobody_asked_for() -> None:
    limits = Limits(expert=8)
    choice = plan(MIXTRAL, nodes(H100, 4, gpus=4), limits=limits, engine=PYTORCH)
    found = codes(choice, limits)
    assert found.index("GroupsNotDivisible") < found.index("TensorOutsideDomain")


def test_a_tensor_that_was_asked_for_comes_before_experts_that_nobody_asked_for() -> None:
    limits = Limits(tensor=16, product=H100)
    choice = plan(MIXTRAL, nodes(H100, 2), limits=limits, engine=PYTORCH)
    found = codes(choice, limits)
    assert found[0] == "TensorOutsideDomain"
    assert found.index("ExpertsNotDivisible") > 0


def test_what_is_too_large_comes_before_numbers_that_nobody_asked_for() -> None:
    few = nodes(L40S, 1, gpus=4, more="fabric: Ethernet")
    limits = Limits()
    choice = plan(M405B, few, limits=limits)
    assert codes(choice, limits) == ["DoesNotFit", "HeadsNotDivisible"]
    limits = Limits(pipeline=8)
    choice = plan(M405B, few, limits=limits)
    assert codes(choice, limits) == ["NotEnoughGPUs", "HeadsNotDivisible"]


def test_more_stages_than_layers_are_the_cause_whatever_the_tensor() -> None:
    limits = Limits(pipeline=90)
    choice = plan(M70B, nodes(H100, 2), limits=limits)
    assert codes(choice, limits)[0] == "MoreStagesThanLayers"


def test_a_fixed_precision_that_the_runtime_lacks_is_the_cause() -> None:
    limits = Limits(weights=WeightPrecision.INT8_SMOOTHQUANT, kv_cache=KVPrecision.NONE)
    choice = plan(M70B, nodes(H100), limits=limits, engine=PYTORCH)
    assert codes(choice, limits) == ["PrecisionNotSupported"]
    rank = ranks(choice.rejected, limits)
    assert {rank(one) for one in choice.rejected} == {Rank.CAUSE}


@pytest.mark.parametrize(
    ("code", "limits", "rank"),
    [
        ("RequestTooLong", Limits(), Rank.CAUSE),
        ("ExpertsNotDivisible", Limits(expert=2), Rank.CAUSE),
        ("ExpertsNotDivisible", Limits(tensor=2), Rank.NOT_ASKED),
        ("GroupsNotDivisible", Limits(tensor=4, expert=3), Rank.CAUSE),
        ("GroupsNotDivisible", Limits(expert=3), Rank.PARTLY_ASKED),
        ("GroupsNotDivisible", Limits(), Rank.NOT_ASKED),
        ("TensorOutsideDomain", Limits(tensor=16), Rank.CAUSE),
        ("TensorOutsideDomain", Limits(expert=3), Rank.NOT_ASKED),
        ("HeadsNotDivisible", Limits(tensor=3), Rank.PARTLY_ASKED),
        ("HeadsNotDivisible", Limits(tensor=3, expert=1), Rank.CAUSE),
        ("NotEnoughGPUs", Limits(), Rank.TOO_LARGE),
        ("NotEnoughGPUs", Limits(tensor=8, pipeline=4), Rank.CAUSE),
        ("MoreStagesThanLayers", Limits(pipeline=90), Rank.CAUSE),
        ("OfARuntime", Limits(tensor=2), Rank.PARTLY_ASKED),
        ("OfARuntime", Limits(), Rank.NOT_ASKED),
    ],
)
def test_the_rank_is_that_of_what_the_user_has_fixed(code: str, limits: Limits, rank: Rank) -> None:
    one = Rejection(code, "why", H100, Precision(), Shape(16))
    assert ranks([one], limits)(one) is rank


def test_another_product_may_lift_what_rests_on_it() -> None:
    one = Rejection("TensorOutsideDomain", "why", H100, Precision(), Shape(16))
    other = Rejection("TensorOutsideDomain", "why", L40S, Precision(), Shape(16))
    limits = Limits(tensor=16)
    assert ranks([one, other], limits)(one) is Rank.PARTLY_ASKED
    assert ranks([one, other], Limits(tensor=16, product=H100))(one) is Rank.CAUSE


ANY_LIMITS = st.builds(
    Limits,
    weights=st.sampled_from([None, WeightPrecision.NONE, WeightPrecision.FP8]),
    kv_cache=st.sampled_from([None, KVPrecision.NONE]),
    tensor=st.sampled_from([None, 1, 3, 8, 16]),
    pipeline=st.sampled_from([None, 1, 2, 90]),
    expert=st.sampled_from([None, 1, 2, 3, 16]),
    attention_data=st.sampled_from([None, 1, 2]),
    product=st.sampled_from([None, H100]),
    replicas=st.sampled_from([None, 1, 50]),
)


@settings(max_examples=40, deadline=None)
@given(
    limits=ANY_LIMITS,
    model=st.sampled_from([M8B, MIXTRAL]),
    engine=st.sampled_from([PYTORCH, TENSORRT]),
    seed=st.integers(0, 9),
)
def test_no_cause_is_told_after_what_follows_from_it(
    limits: Limits, model: str, engine: EngineSettings, seed: int
) -> None:
    choice = plan(model, nodes(H100, 1), limits=limits, engine=engine)
    rank = ranks(choice.rejected, limits)
    groups = grouped(choice.rejected, limits)
    barred = [group for group in groups if not group.possible]
    best = [min(rank(one) for one in choice.rejected if one.code == group.code) for group in barred]
    assert best == sorted(best)
    assert sum(group.count for group in groups) == len(choice.rejected)
    mixed = random.Random(seed).sample(choice.rejected, len(choice.rejected))  # noqa: S311 - no secret
    assert [group.code for group in grouped(mixed, limits)] == [group.code for group in groups]
