"""From a configuration's keys to layers: attention, windows, mixtures of experts."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.sizing.config_experts import bias_of, dense, mixture, mixtures
from shardwright.sizing.config_families import Family, Norm, Windows
from shardwright.sizing.config_reader import MAX_LAYERS, MAX_WIDTH, Reader
from shardwright.sizing.model import Attention, AttentionKind, Layer

_HIGH_HEADS = 65_536
_HIGH_POSITIONS = 2**31
_LAYER_TYPES = {
    "full_attention": AttentionKind.FULL,
    "attention": AttentionKind.FULL,
    "sliding_attention": AttentionKind.SLIDING,
    "chunked_attention": AttentionKind.SLIDING,
    "linear_attention": AttentionKind.LINEAR,
}
# Chunked layers are those with rotary positions: three of four (no_rope_layer_interval).
_NO_ROPE_INTERVAL = 4


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes that every layer of a model shares.

    Attributes:
        layers: Their number.
        hidden: Elements of the residual stream.
        heads: Query heads.
        kv_heads: Key-value heads.
        head_dim: Elements of a head.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int


def sizes(config: Reader, model_type: str) -> Sizes:
    """Read them, with the names that the families give them."""
    layers = config.integer(
        "num_hidden_layers", "n_layer", "n_layers", "num_layers", low=1, high=MAX_LAYERS
    )
    hidden = config.integer("hidden_size", "n_embd", "d_model", low=1, high=MAX_WIDTH)
    heads = config.integer("num_attention_heads", "n_head", "n_heads", low=1, high=_HIGH_HEADS)
    kv_heads = config.integer(
        "num_key_value_heads", "num_kv_heads", low=1, high=_HIGH_HEADS, default=heads
    )
    if model_type in ("falcon", "gpt_bigcode"):
        kv_heads = _multi_query(config, model_type, heads, kv_heads)
    name, value = config.find("head_dim")
    if value is None and hidden % heads:
        raise config.wrong(
            "num_attention_heads",
            heads,
            f"a divisor of hidden_size {hidden} where {name} is left out",
        )
    head_dim = config.integer("head_dim", low=1, high=MAX_WIDTH, default=hidden // heads)
    if heads % kv_heads:
        raise config.wrong(
            "num_key_value_heads", kv_heads, f"a divisor of num_attention_heads {heads}"
        )
    return Sizes(layers, hidden, heads, kv_heads, head_dim)


def _multi_query(config: Reader, model_type: str, heads: int, kv_heads: int) -> int:
    """Falcon and StarCoder have one KV head by a flag, Falcon's new layout as many as it says."""
    if model_type == "falcon" and config.flag("new_decoder_architecture", default=False):
        return kv_heads
    return 1 if config.flag("multi_query", default=True) else heads


def layers(config: Reader, family: Family, model_type: str, shared: Sizes) -> tuple[Layer, ...]:
    """All layers, first to last; equal ones are the same object."""
    kinds = _kinds(config, family, shared.layers)
    mixed = mixtures(config, family, shared.layers)
    window = _window(config, family) if AttentionKind.SLIDING in kinds else 0
    plain = dense(config, family, shared.hidden) if not all(mixed) else None
    routed = mixture(config, family) if any(mixed) else None
    norms = _norms(config, family, model_type, shared)
    known: dict[tuple[AttentionKind, bool], Layer] = {}
    every: list[Layer] = []
    for kind, is_mixture in zip(kinds, mixed, strict=True):
        if (kind, is_mixture) not in known:
            block = routed if is_mixture else plain
            if block is None:
                raise AssertionError("a layer without a block")  # the two lists above agree
            attention = _attention(config, family, shared, kind, window)
            extra = norms
            if kind is not AttentionKind.LINEAR:
                extra += _attention_norms(config, family, shared)
            if is_mixture and family.correction:
                extra += block.experts
            if is_mixture and family.shared_gate:
                extra += shared.hidden
            known[kind, is_mixture] = Layer(attention, block, extra)
        every.append(known[kind, is_mixture])
    return tuple(every)


def _kinds(config: Reader, family: Family, count: int) -> tuple[AttentionKind, ...]:
    listed = config.texts("layer_types", limit=MAX_LAYERS)
    if listed:
        if len(listed) != count:
            raise config.wrong("layer_types", listed, f"one entry for each of the {count} layers")
        for entry in listed:
            if entry not in _LAYER_TYPES:
                raise config.wrong("layer_types", entry, " or ".join(sorted(_LAYER_TYPES)))
        kinds = tuple(_LAYER_TYPES[entry] for entry in listed)
        if family.windows is Windows.LATE and not config.flag("use_sliding_window", default=True):
            return tuple(
                AttentionKind.FULL if kind is AttentionKind.SLIDING else kind for kind in kinds
            )
        return kinds
    return tuple(_kind(config, family.windows, number) for number in range(count))


def _kind(config: Reader, rule: Windows, number: int) -> AttentionKind:
    """What a layer is by its family's rule."""
    sliding = False
    if rule is Windows.LINEAR:
        every = config.integer("full_attention_interval", low=1, high=MAX_LAYERS, default=4)
        return AttentionKind.LINEAR if (number + 1) % every else AttentionKind.FULL
    if rule is Windows.CHUNKED:
        every = config.integer(
            "no_rope_layer_interval", low=1, high=MAX_LAYERS, default=_NO_ROPE_INTERVAL
        )
        sliding = bool((number + 1) % every) and bool(config.find("attention_chunk_size")[1])
    elif rule is Windows.LATE:
        late = config.integer("max_window_layers", low=0, high=MAX_LAYERS, default=28)
        on = config.flag("use_sliding_window", default=False)
        sliding = on and number >= late and bool(config.find("sliding_window")[1])
    elif rule is not Windows.NEVER and config.find("sliding_window")[1]:
        every = config.integer("sliding_window_pattern", low=1, high=MAX_LAYERS, default=2)
        sliding = rule is Windows.ALL or bool((number + 1) % every)
    return AttentionKind.SLIDING if sliding else AttentionKind.FULL


def _window(config: Reader, family: Family) -> int:
    if family.windows is Windows.CHUNKED:
        return config.integer("attention_chunk_size", low=1, high=_HIGH_POSITIONS)
    return config.integer("sliding_window", low=1, high=_HIGH_POSITIONS)


def _attention(
    config: Reader, family: Family, shared: Sizes, kind: AttentionKind, window: int
) -> Attention:
    if kind is AttentionKind.LINEAR:
        return _delta_net(config, shared)
    if family.latent:
        return _latent(config, shared)
    return Attention(
        kind=kind,
        heads=shared.heads,
        kv_heads=shared.kv_heads,
        head_dim=shared.head_dim,
        value_dim=shared.head_dim,
        window=window if kind is AttentionKind.SLIDING else 0,
        bias=bias_of(config, family.qkv_bias),
        output_bias=bias_of(config, family.output_bias),
        qk_norm=_norms_queries(config, family) is not Norm.NONE,
        output_gate=family.windows is Windows.LINEAR
        and config.flag("attn_output_gate", default=True),
    )


def _latent(config: Reader, shared: Sizes) -> Attention:
    rope = config.integer("qk_rope_head_dim", low=1, high=MAX_WIDTH)
    nope = config.integer("qk_nope_head_dim", low=1, high=MAX_WIDTH)
    return Attention(
        kind=AttentionKind.FULL,
        heads=shared.heads,
        kv_heads=shared.heads,
        head_dim=nope + rope,
        value_dim=config.integer("v_head_dim", low=1, high=MAX_WIDTH),
        kv_lora_rank=config.integer("kv_lora_rank", low=1, high=MAX_WIDTH),
        rope_dim=rope,
        q_lora_rank=config.integer("q_lora_rank", low=0, high=MAX_WIDTH, default=0),
        bias=False,
    )


def _delta_net(config: Reader, shared: Sizes) -> Attention:
    """Gated delta net of Qwen3-Next: projections, a short convolution, a state per value head.

    Projections: queries, keys, values, gate; two numbers a value head; output (modeling_qwen3_next,
    `Qwen3NextGatedDeltaNet`). State: convolution of 16-bit inputs and one matrix a head in 32 bits.
    """
    key_heads = config.integer("linear_num_key_heads", low=1, high=_HIGH_HEADS)
    value_heads = config.integer("linear_num_value_heads", low=1, high=_HIGH_HEADS)
    key_dim = config.integer("linear_key_head_dim", low=1, high=MAX_WIDTH)
    value_dim = config.integer("linear_value_head_dim", low=1, high=MAX_WIDTH)
    kernel = config.integer("linear_conv_kernel_dim", low=1, high=MAX_WIDTH, default=4)
    keys, values = key_heads * key_dim, value_heads * value_dim
    mixed = 2 * keys + values
    projections = shared.hidden * (mixed + values + 2 * value_heads) + values * shared.hidden
    small = mixed * kernel + 2 * value_heads + value_dim
    return Attention(
        kind=AttentionKind.LINEAR,
        heads=value_heads,
        kv_heads=0,
        head_dim=value_dim,
        value_dim=value_dim,
        state_bytes=mixed * (kernel - 1) * 2 + value_heads * key_dim * value_dim * 4,
        parameters=projections + small,
    )


def _norms_queries(config: Reader, family: Family) -> Norm:
    if family.qk_norm_key and not config.flag(family.qk_norm_key, default=False):
        return Norm.NONE
    return family.qk_norm


def _norms(config: Reader, family: Family, model_type: str, shared: Sizes) -> int:
    """Elements of the hidden-size norms of a layer."""
    count = family.norms
    if model_type == "falcon":
        newer = config.flag("new_decoder_architecture", default=False)
        parallel = config.flag("parallel_attn", default=True)
        norms = config.integer("num_ln_in_parallel_attn", low=1, high=2, default=2 if newer else 1)
        count = norms if newer or parallel else 2
    elif model_type == "stablelm" and config.flag("use_parallel_residual", default=False):
        count = 1
    elif model_type == "gpt_neox":
        count = 2
    return count * shared.hidden * (2 if family.norm_bias else 1)


def _attention_norms(config: Reader, family: Family, shared: Sizes) -> int:
    """Elements of norms of queries and keys, of MLA's latents, and of sinks."""
    norm = _norms_queries(config, family)
    total = shared.heads if family.sinks else 0
    if norm is Norm.HEAD:
        total += 2 * shared.head_dim
    elif norm is Norm.FULL:
        total += (shared.heads + shared.kv_heads) * shared.head_dim
    if family.latent:
        total += config.integer("kv_lora_rank", low=1, high=MAX_WIDTH)
        total += config.integer("q_lora_rank", low=0, high=MAX_WIDTH, default=0)
    return total
