"""What a config.json leaves to the code of its model family: norms, biases, gates, defaults.

One row a family, read off the configuration and modelling files of Hugging Face transformers 5.24
(`models/<family>/`). A family that has no row is refused: its layers may have parts that no key of
the file shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any


class Norm(StrEnum):
    """How queries and keys are normed."""

    NONE = "None"
    HEAD = "Head"  # one vector of a head's size for queries, one for keys
    FULL = "Full"  # over all heads together


class Windows(StrEnum):
    """Which layers look back at a window, where the file does not list them."""

    NEVER = "Never"
    ALL = "All"  # all layers, when a window is given
    ALTERNATE = "Alternate"  # every second, beginning with the first
    PATTERN = "Pattern"  # all but every n-th
    LATE = "Late"  # those from max_window_layers on, when switched on
    CHUNKED = "Chunked"  # Llama 4: all but every fourth, in chunks
    LINEAR = "Linear"  # all but every n-th are state-space layers


class Experts(StrEnum):
    """Which layers are mixtures of experts, and under which keys."""

    NONE = "None"
    ALL = "All"
    SPARSE_STEP = "SparseStep"  # Qwen: mlp_only_layers, decoder_sparse_step
    AFTER_DENSE = "AfterDense"  # DeepSeek: first_k_dense_replace, moe_layer_freq
    INTERLEAVED = "Interleaved"  # Llama 4: moe_layers, interleave_moe_layer_step


@dataclass(frozen=True, slots=True)
class Family:
    """One model family.

    Attributes:
        norms: Norms of the hidden size in a layer.
        norm_bias: Whether norms have biases (LayerNorm).
        gated: Whether the feed-forward block has a gate.
        qkv_bias: Key and default of the biases of query, key and value.
        output_bias: The same for the output projection.
        mlp_bias: The same for the feed-forward block.
        qk_norm: Norms of queries and keys.
        qk_norm_key: The key that switches them on; empty when they are always there.
        tied: Default of `tie_word_embeddings`.
        head_bias: Whether the output head has a bias.
        learned_positions: Whether positions are a table of weights.
        rotary: Share of a head that rotary positions take by default; 0 for other positions.
        rotary_tables: Tables of positions.
        windows: The rule of window layers.
        experts: The rule of mixtures.
        shared: Whether there are shared experts.
        shared_gate: Whether the shared expert has a gate of one column.
        correction: Whether the router has a correction bias of one number an expert.
        latent: Multi-head latent attention.
        sinks: Whether every head has an attention sink.
        defaults: Values of keys that real files leave out.
    """

    norms: int = 2
    norm_bias: bool = False
    gated: bool = True
    qkv_bias: tuple[str, bool] = ("attention_bias", False)
    output_bias: tuple[str, bool] = ("attention_bias", False)
    mlp_bias: tuple[str, bool] = ("mlp_bias", False)
    qk_norm: Norm = Norm.NONE
    qk_norm_key: str = ""
    tied: bool = False
    head_bias: bool = False
    learned_positions: bool = False
    rotary: float = 1.0
    rotary_tables: int = 1
    windows: Windows = Windows.NEVER
    experts: Experts = Experts.NONE
    shared: bool = False
    shared_gate: bool = False
    correction: bool = False
    latent: bool = False
    sinks: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)


_NO = ("", False)
_YES = ("", True)
_QWEN2 = Family(qkv_bias=_YES, output_bias=_NO, mlp_bias=_NO, windows=Windows.LATE)
_QWEN3 = Family(mlp_bias=_NO, qk_norm=Norm.HEAD, windows=Windows.LATE, defaults={"head_dim": 128})
_QWEN3_MOE = Family(
    mlp_bias=_NO,
    qk_norm=Norm.HEAD,
    windows=Windows.LATE,
    experts=Experts.SPARSE_STEP,
)
_GEMMA_DEFAULTS = {"head_dim": 256}
_DEEPSEEK_V3 = Family(
    mlp_bias=_NO, latent=True, experts=Experts.AFTER_DENSE, shared=True, correction=True
)
_QWEN3_NEXT = Family(
    mlp_bias=_NO,
    qk_norm=Norm.HEAD,
    windows=Windows.LINEAR,
    rotary=0.25,
    defaults={"head_dim": 256},
)
_QWEN3_NEXT_MOE = Family(
    mlp_bias=_NO,
    qk_norm=Norm.HEAD,
    windows=Windows.LINEAR,
    rotary=0.25,
    experts=Experts.SPARSE_STEP,
    shared=True,
    shared_gate=True,
    defaults={"head_dim": 256},
)
_LAYER_NORM_ALL_BIAS = Family(
    norm_bias=True,
    gated=False,
    qkv_bias=_YES,
    output_bias=_YES,
    mlp_bias=_YES,
    tied=True,
    learned_positions=True,
    rotary=0.0,
)

FAMILIES: Mapping[str, Family] = {
    "llama": Family(),
    "mistral": Family(
        qkv_bias=_NO,
        output_bias=_NO,
        mlp_bias=_NO,
        windows=Windows.ALL,
        defaults={"sliding_window": 4096},
    ),
    "ministral3": Family(qkv_bias=_NO, output_bias=_NO, mlp_bias=_NO, windows=Windows.ALL),
    "mixtral": Family(
        qkv_bias=_NO,
        output_bias=_NO,
        mlp_bias=_NO,
        windows=Windows.ALL,
        experts=Experts.ALL,
        defaults={"num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    "qwen2": _QWEN2,
    "qwen2_vl": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen2_moe": Family(
        qkv_bias=("qkv_bias", True),
        output_bias=_NO,
        mlp_bias=_NO,
        windows=Windows.LATE,
        experts=Experts.SPARSE_STEP,
        shared=True,
        shared_gate=True,
    ),
    "qwen3": _QWEN3,
    "qwen3_vl_text": _QWEN3,
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_vl_moe_text": _QWEN3_MOE,
    "qwen3_next": _QWEN3_NEXT_MOE,
    "qwen3_5_text": _QWEN3_NEXT,
    "qwen3_5_moe_text": _QWEN3_NEXT_MOE,
    "gemma": Family(mlp_bias=_NO, tied=True, defaults=_GEMMA_DEFAULTS),
    "gemma2": Family(
        norms=4,
        mlp_bias=_NO,
        tied=True,
        windows=Windows.ALTERNATE,
        defaults={**_GEMMA_DEFAULTS, "sliding_window": 4096},
    ),
    "gemma3_text": Family(
        norms=4,
        mlp_bias=_NO,
        qk_norm=Norm.HEAD,
        tied=True,
        rotary_tables=2,
        windows=Windows.PATTERN,
        defaults={
            **_GEMMA_DEFAULTS,
            "sliding_window": 4096,
            "sliding_window_pattern": 6,
            "vocab_size": 262_208,
            "max_position_embeddings": 131_072,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
        },
    ),
    "phi": Family(
        norms=1,
        norm_bias=True,
        gated=False,
        qkv_bias=_YES,
        output_bias=_YES,
        mlp_bias=_YES,
        head_bias=True,
        rotary=0.5,
    ),
    "phi3": Family(qkv_bias=_NO, output_bias=_NO, mlp_bias=_NO, windows=Windows.ALL),
    "gptj": Family(
        norms=1,
        norm_bias=True,
        gated=False,
        qkv_bias=_NO,
        output_bias=_NO,
        mlp_bias=_YES,
        head_bias=True,
        defaults={"rotary_dim": 64},
    ),
    "gpt_neox": Family(
        norm_bias=True,
        gated=False,
        qkv_bias=("attention_bias", True),
        output_bias=("attention_bias", True),
        mlp_bias=_YES,
        rotary=0.25,
    ),
    "falcon": Family(
        norms=1,
        norm_bias=True,
        gated=False,
        qkv_bias=("bias", False),
        output_bias=("bias", False),
        mlp_bias=("bias", False),
        tied=True,
        defaults={"max_position_embeddings": 2048},
    ),
    "gpt2": _LAYER_NORM_ALL_BIAS,
    "gpt_bigcode": _LAYER_NORM_ALL_BIAS,
    "starcoder2": Family(
        norm_bias=True,
        gated=False,
        qkv_bias=("use_bias", True),
        output_bias=("use_bias", True),
        mlp_bias=("use_bias", True),
        tied=True,
        windows=Windows.ALL,
    ),
    "stablelm": Family(
        norm_bias=True, qkv_bias=("use_qkv_bias", False), output_bias=_NO, mlp_bias=_NO, rotary=0.25
    ),
    "cohere": Family(
        norms=1, mlp_bias=_NO, qk_norm=Norm.FULL, qk_norm_key="use_qk_norm", tied=True
    ),
    "cohere2": Family(
        norms=1,
        mlp_bias=_NO,
        tied=True,
        windows=Windows.PATTERN,
        defaults={"sliding_window": 4096, "sliding_window_pattern": 4},
    ),
    "granite": Family(),
    "granitemoe": Family(
        mlp_bias=_NO,
        experts=Experts.ALL,
        defaults={"num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    "olmo2": Family(mlp_bias=_NO, qk_norm=Norm.FULL),
    "glm4": Family(norms=4, output_bias=_NO, mlp_bias=_NO, rotary=0.5, defaults={"head_dim": 128}),
    "glm4_moe": Family(
        output_bias=_NO,
        mlp_bias=_NO,
        qk_norm=Norm.HEAD,
        qk_norm_key="use_qk_norm",
        rotary=0.5,
        experts=Experts.AFTER_DENSE,
        shared=True,
        correction=True,
    ),
    "minimax_m2": Family(
        qkv_bias=_NO,
        output_bias=_NO,
        mlp_bias=_NO,
        qk_norm=Norm.FULL,
        experts=Experts.ALL,
        correction=True,
    ),
    "gpt_oss": Family(
        qkv_bias=("attention_bias", True),
        output_bias=("attention_bias", True),
        mlp_bias=_YES,
        windows=Windows.ALTERNATE,
        experts=Experts.ALL,
        sinks=True,
        defaults={"head_dim": 64, "sliding_window": 128},
    ),
    "deepseek_v2": replace(_DEEPSEEK_V3, correction=False),
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "llama4_text": Family(
        mlp_bias=_NO,
        windows=Windows.CHUNKED,
        experts=Experts.INTERLEAVED,
        defaults={"attention_chunk_size": 8192, "intermediate_size_mlp": 16_384},
    ),
}
