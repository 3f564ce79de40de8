"""Positions of a model, and the tables that runtimes hold for rotary ones.

vLLM's `RotaryEmbedding` keeps cosine and sine of every position; linear and dynamic scaling make
the table longer by their factor, YaRN as long as original positions × factor
(model_executor/layers/rotary_embedding). Layers of another base frequency have their own table.
"""

from __future__ import annotations

import math

from shardwright.sizing.config_families import Family
from shardwright.sizing.config_reader import MAX_WIDTH, Reader

_HIGH_POSITIONS = 2**31
_HIGH_FACTOR = 1024
_DEFAULT_POSITIONS = 2048
_STRETCHED = frozenset({"linear", "dynamic"})


def positions(text: Reader, family: Family) -> int:
    """The longest sequence, in tokens; models with other than rotary positions may leave it out."""
    return text.integer(
        "max_position_embeddings",
        "n_positions",
        "n_ctx",
        "max_seq_len",
        "seq_length",
        low=1,
        high=_HIGH_POSITIONS,
        default=None if family.rotary else _DEFAULT_POSITIONS,
    )


def rotary_elements(text: Reader, family: Family, head_dim: int) -> int:
    """Elements of all rotary tables per position; 0 without rotary positions."""
    size = _rotary_dim(text, family, head_dim)
    if not size:
        return 0
    scaled = math.ceil(size * _stretch(text, positions(text, family)))
    # The further tables are those of window layers, which are never scaled.
    return scaled + (family.rotary_tables - 1) * size


def _rotary_dim(text: Reader, family: Family, head_dim: int) -> int:
    if family.latent:
        return text.integer("qk_rope_head_dim", low=1, high=MAX_WIDTH)
    if not family.rotary or text.flag("alibi", default=False):
        return 0
    given = text.integer("rotary_dim", low=0, high=MAX_WIDTH, default=0)
    if given:
        return given
    share = text.number("partial_rotary_factor", "rotary_pct", low=0, high=1, default=-1)
    section = text.section("rope_parameters")
    if share < 0 and section:
        share = section.number("partial_rotary_factor", low=0, high=1, default=-1)
    return int(head_dim * (share if share >= 0 else family.rotary))


def _stretch(text: Reader, longest: int) -> float:
    """How much longer than the positions the table is."""
    section = text.section("rope_scaling", "rope_parameters")
    if section and section.find("full_attention")[1] is not None:
        section = section.section("full_attention")
    if section is None:
        return 1.0
    kind = section.text("rope_type", "type").lower()
    factor = section.number("factor", low=0, high=_HIGH_FACTOR, default=1)
    if kind in _STRETCHED:
        return max(1.0, factor)
    if kind == "yarn":
        original = section.integer(
            "original_max_position_embeddings", low=1, high=_HIGH_POSITIONS, default=longest
        )
        return max(1.0, original * factor / longest)
    return 1.0
