"""From a configuration's keys to feed-forward blocks: dense ones and mixtures of experts."""

from __future__ import annotations

from shardwright.sizing.config_families import Experts, Family
from shardwright.sizing.config_reader import MAX_LAYERS, MAX_WIDTH, Reader
from shardwright.sizing.model import FeedForward

_HIGH_EXPERTS = 65_536
_WIDTH_FACTOR = 4


def bias_of(config: Reader, rule: tuple[str, bool]) -> bool:
    """A bias by its key, or by the family's default."""
    key, default = rule
    return config.flag(key, default=default) if key else default


def mixtures(config: Reader, family: Family, count: int) -> tuple[bool, ...]:
    """Which layers are mixtures of experts."""
    rule = family.experts
    if rule is Experts.AFTER_DENSE:
        first = config.integer("first_k_dense_replace", low=0, high=MAX_LAYERS, default=0)
        every = config.integer("moe_layer_freq", low=1, high=MAX_LAYERS, default=1)
        return tuple(number >= first and number % every == 0 for number in range(count))
    if rule is Experts.SPARSE_STEP:
        dense = set(config.integers("mlp_only_layers", low=0, high=MAX_LAYERS))
        every = config.integer("decoder_sparse_step", low=1, high=MAX_LAYERS, default=1)
        return tuple(number not in dense and (number + 1) % every == 0 for number in range(count))
    if rule is Experts.INTERLEAVED:
        listed = set(config.integers("moe_layers", low=0, high=MAX_LAYERS))
        if listed:
            return tuple(number in listed for number in range(count))
        every = config.integer("interleave_moe_layer_step", low=0, high=MAX_LAYERS, default=1)
        return tuple(bool(every) and (number + 1) % every == 0 for number in range(count))
    return (rule is Experts.ALL,) * count


def dense(config: Reader, family: Family, hidden: int) -> FeedForward:
    """The block of a layer without experts."""
    names = ["intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim"]
    if family.experts is Experts.INTERLEAVED:
        names = ["intermediate_size_mlp"]
    # The old families have a width of four times the hidden size that the file need not say.
    default = None if family.gated else _WIDTH_FACTOR * hidden
    return FeedForward(
        width=config.integer(*names, low=1, high=MAX_WIDTH, default=default),
        gated=family.gated,
        bias=bias_of(config, family.mlp_bias),
    )


def mixture(config: Reader, family: Family) -> FeedForward:
    """The block of a layer with routed, and perhaps shared, experts."""
    experts = config.integer(
        "num_experts", "num_local_experts", "n_routed_experts", low=1, high=_HIGH_EXPERTS
    )
    width = config.integer("moe_intermediate_size", "intermediate_size", low=1, high=MAX_WIDTH)
    active = config.integer(
        "num_experts_per_tok", "experts_per_token", "num_experts_per_token", low=1, high=experts
    )
    return FeedForward(
        width=width,
        gated=family.gated,
        experts=experts,
        active=active,
        shared_width=_shared_width(config, family, width),
        bias=bias_of(config, family.mlp_bias),
    )


def _shared_width(config: Reader, family: Family, width: int) -> int:
    if family.experts is Experts.INTERLEAVED:
        return width
    if not family.shared:
        return 0
    if family.experts is Experts.SPARSE_STEP:
        return config.integer("shared_expert_intermediate_size", low=0, high=MAX_WIDTH)
    count = config.integer("n_shared_experts", low=0, high=_HIGH_EXPERTS, default=0)
    return count * width
