"""However the model is cut, it computes the same numbers to the last bit."""

# ruff: noqa: E402 - what is below needs numpy, which this environment may lack
from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

np = pytest.importorskip("numpy", reason="the stand-in's arithmetic needs numpy")

from hypothesis import given
from hypothesis import strategies as st
from shardwright_standin.model import geometry, make, network, order, shards, tokenizer
from shardwright_standin.ranks.transport import InProcess, Tag, Wired, pack, unpack
from tests.standin.running import PROMPTS

SPLITS = ((1, 2), (1, 3), (2, 1), (2, 2), (4, 1), (4, 2), (8, 1), (8, 4))
TOKENS = 8


@pytest.fixture(scope="module")
def whole(model: Path) -> tuple[geometry.Geometry, shards.Weights]:
    return geometry.read(model), make.read(model)


def ranks(
    shape: geometry.Geometry, weights: shards.Weights, tensor: int, pipeline: int
) -> list[network.Shard]:
    places = [shards.Place(rank, tensor, pipeline) for rank in range(tensor * pipeline)]
    return [network.Shard.load(shape, place, shards.cut(weights, shape, place)) for place in places]


def decode(
    group: Sequence[network.Shard], prompts: Sequence[Sequence[int]]
) -> tuple[list[list[int]], list[np.ndarray]]:
    """Decode all prompts in one batch: tokens of each, and the logits of each step."""
    wires = InProcess.group(len(group))
    tokens: list[list[int]] = [[] for _ in prompts]
    seen: list[np.ndarray] = []
    source = len(group) - group[0].place.tensor

    def run(shard: network.Shard) -> None:
        near = Wired(wires[shard.place.rank], shard.place)
        feeds = [network.Feed(i, tuple(prompt), 0) for i, prompt in enumerate(prompts)]
        for _ in range(TOKENS):
            logits = shard.step(feeds, near)
            if shard.place.rank == source:
                assert logits is not None
                chosen = bytes(str(network.greedy(logits)), "ascii")
                for rank in range(len(group)):
                    wires[source].send(rank, Tag.TOKENS, chosen)
                seen.append(logits)
            raw = wires[shard.place.rank].receive(source, Tag.TOKENS)
            new = [int(word) for word in raw.decode().strip("[]").split(",")]
            if shard.place.rank == source:
                for one, token in zip(tokens, new, strict=True):
                    one.append(token)
            feeds = [
                network.Feed(feed.sequence, (token,), feed.position + len(feed.tokens))
                for feed, token in zip(feeds, new, strict=True)
            ]

    threads = [threading.Thread(target=run, args=(shard,), daemon=True) for shard in group]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a rank waits for ever"
    return tokens, seen


def prompts() -> list[list[int]]:
    return [tokenizer.encode(text) for text in PROMPTS]


@pytest.fixture(scope="module")
def expected(
    whole: tuple[geometry.Geometry, shards.Weights],
) -> tuple[list[list[int]], list[np.ndarray]]:
    return decode(ranks(*whole, 1, 1), prompts())


@pytest.mark.parametrize(("tensor", "pipeline"), SPLITS)
def test_tokens_and_logits_of_twenty_prompts_equal_the_whole_model_s(
    tensor: int,
    pipeline: int,
    whole: tuple[geometry.Geometry, shards.Weights],
    expected: tuple[list[list[int]], list[np.ndarray]],
) -> None:
    tokens, logits = decode(ranks(*whole, tensor, pipeline), prompts())
    assert tokens == expected[0]
    for own, right in zip(logits, expected[1], strict=True):
        assert np.array_equal(own, right)


def test_the_batch_a_prompt_is_in_changes_nothing(
    whole: tuple[geometry.Geometry, shards.Weights],
    expected: tuple[list[list[int]], list[np.ndarray]],
) -> None:
    (one,) = ranks(*whole, 1, 1)
    for prompt, tokens in zip(prompts(), expected[0], strict=True):
        alone = network.generate(one, prompt, TOKENS)
        assert alone == tokens[: len(alone)]
        assert len(alone) == TOKENS or alone[-1] == one.shape.eos


def test_a_rank_with_another_s_weights_is_noticed(
    whole: tuple[geometry.Geometry, shards.Weights],
    expected: tuple[list[list[int]], list[np.ndarray]],
) -> None:
    """The comparison above can fail (whole ranks may change places: a sum does not mind)."""
    group = ranks(*whole, 2, 1)
    group[1].layers[0] = group[0].layers[0]
    assert decode(group, prompts())[0] != expected[0]
    group = ranks(*whole, 1, 2)
    group[0].layers, group[1].layers = group[1].layers, group[0].layers
    assert decode(group, prompts())[0] != expected[0]


@given(
    rows=st.integers(1, 5),
    inner=st.integers(1, 70),
    columns=st.integers(2, 40),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_an_element_of_a_product_depends_on_its_row_and_column_only(
    rows: int, inner: int, columns: int, seed: int, data: st.DataObject
) -> None:
    chance = np.random.default_rng(seed)
    left = chance.normal(size=(rows, inner))
    right = chance.normal(size=(inner, columns))
    product = order.project(left, right)
    row = data.draw(st.integers(0, rows - 1))
    start = data.draw(st.integers(0, columns - 2))
    stop = data.draw(st.integers(start + 2, columns))
    part = order.project(left[row : row + 1], np.ascontiguousarray(right[:, start:stop]))
    assert np.array_equal(part[0], product[row, start:stop])


def test_a_single_column_would_be_summed_in_another_order_and_is_refused() -> None:
    with pytest.raises(ValueError, match="1 column"):
        order.project(np.ones((2, 3)), np.ones((3, 1)))


@given(st.integers(0, 6), st.integers(0, 1000))
def test_a_tree_s_subtrees_may_be_summed_elsewhere(depth: int, seed: int) -> None:
    parts = list(np.random.default_rng(seed).normal(size=(2**depth, 3)))
    for size in (2**level for level in range(depth + 1)):
        inner = [order.tree_sum(parts[i : i + size]) for i in range(0, len(parts), size)]
        assert np.array_equal(order.tree_sum(inner), order.tree_sum(parts))


@pytest.mark.parametrize("count", [0, 3, 6, 12])
def test_a_tree_needs_a_power_of_two(count: int) -> None:
    with pytest.raises(ValueError, match=f"{count} parts do not fill"):
        order.tree_sum([np.ones(1)] * count)


@given(st.integers(1, 130), st.data())
def test_layers_are_cut_without_gap_and_the_first_stages_get_one_more(
    layers: int, data: st.DataObject
) -> None:
    pipeline = data.draw(st.integers(1, layers))
    stages = [shards.stage_layers(layers, pipeline, stage) for stage in range(pipeline)]
    assert [layer for stage in stages for layer in stage] == list(range(layers))
    sizes = [len(stage) for stage in stages]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


def test_ranks_beyond_the_kv_heads_hold_the_same_one(
    whole: tuple[geometry.Geometry, shards.Weights],
) -> None:
    shape, weights = whole
    own = [list(shards.own_kv_heads(shape, shards.Place(rank, 8, 1))) for rank in range(8)]
    assert own == [[0], [0], [1], [1], [2], [2], [3], [3]]
    name = "transformer.layers.0.attention.qkv.weight"
    parts = [shards.cut(weights, shape, shards.Place(rank, 8, 1))[name] for rank in (0, 1)]
    assert np.array_equal(parts[0][shape.head_dim :], parts[1][shape.head_dim :])
    assert not np.array_equal(parts[0], parts[1])


@pytest.mark.parametrize(
    ("tensor", "pipeline", "complaint"),
    [
        (3, 1, "Number of attention heads 8 must be divisible by tp_size 3"),
        (16, 1, "Number of attention heads 8 must be divisible by tp_size 16"),
        (1, 5, "pp_size 5 exceeds the number of layers 4"),
        (0, 1, "tp_size 0 and pp_size 1 must be at least 1"),
    ],
)
def test_a_split_that_does_not_fit_is_refused_with_both_numbers(
    tensor: int, pipeline: int, complaint: str, whole: tuple[geometry.Geometry, shards.Weights]
) -> None:
    with pytest.raises(shards.ShardError, match=complaint):
        shards.check(whole[0], tensor, pipeline)


def test_a_tensor_that_is_missing_or_of_another_shape_is_named(
    whole: tuple[geometry.Geometry, shards.Weights],
) -> None:
    shape, weights = whole
    place = shards.Place(0, 1, 1)
    with pytest.raises(shards.ShardError, match=r"no tensor lm_head\.weight"):
        shards.cut({k: v for k, v in weights.items() if k != "lm_head.weight"}, shape, place)
    with pytest.raises(
        shards.ShardError, match=r"has shape \(264, 64\), config.json says \(264, 32"
    ):
        shards.cut(weights, replace(shape, hidden=32), place)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 99))
def test_rows_survive_the_wire(count: int, width: int, seed: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(count, width))
    assert np.array_equal(unpack(pack(rows)), rows)
