"""The part of a model's `config.json` that its size is worked out from, small enough for a report.

The operator reads it with the parser that `shardwright plan` uses for whole files, so the keys
stand here by the parser's names (`shardwright.sizing.config_json`, held together by a test). The
values are a stranger's; they are copied as data and judged by that parser. Standard library only.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Mapping
from typing import Any

# A report of 4,096 bytes holds the other facts and a cause beside it.
LIMIT_BYTES = 2400
# Short ones stay readable for people who look at the record.
_PLAIN_BYTES = 1400
_PACKED = "zlib:"
# What a packed config may unpack to: records are ConfigMaps, which others may write too.
UNPACKED_LIMIT_BYTES = 256 * 1024

TEXT_SECTIONS = ("text_config", "llm_config", "language_config")
TOWER_SECTIONS = ("vision_config", "vision_tower_config", "audio_config")
QUANTIZATION_SECTIONS = ("quantization_config", "quantization", "compression_config")

# Keys of the language model, at the top of the file or in its text section.
TEXT_KEYS = frozenset(
    {
        "alibi",
        "architectures",
        "attention_bias",
        "attention_chunk_size",
        "attn_output_gate",
        "bias",
        "d_model",
        "decoder_sparse_step",
        "dtype",
        "experts_per_token",
        "ffn_dim",
        "ffn_hidden_size",
        "first_k_dense_replace",
        "full_attention_interval",
        "head_dim",
        "hidden_size",
        "interleave_moe_layer_step",
        "intermediate_size",
        "intermediate_size_mlp",
        "kv_lora_rank",
        "layer_types",
        "linear_conv_kernel_dim",
        "linear_key_head_dim",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_value_head_dim",
        "max_position_embeddings",
        "max_seq_len",
        "max_window_layers",
        "mlp_bias",
        "mlp_only_layers",
        "model_type",
        "moe_intermediate_size",
        "moe_layer_freq",
        "moe_layers",
        "mtp_num_hidden_layers",
        "multi_query",
        "n_ctx",
        "n_embd",
        "n_head",
        "n_heads",
        "n_inner",
        "n_layer",
        "n_layers",
        "n_positions",
        "n_routed_experts",
        "n_shared_experts",
        "new_decoder_architecture",
        "no_rope_layer_interval",
        "num_attention_heads",
        "num_experts",
        "num_experts_per_tok",
        "num_experts_per_token",
        "num_hidden_layers",
        "num_key_value_heads",
        "num_kv_heads",
        "num_layers",
        "num_ln_in_parallel_attn",
        "num_local_experts",
        "num_nextn_predict_layers",
        "parallel_attn",
        "partial_rotary_factor",
        "q_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "qkv_bias",
        "rope_parameters",
        "rope_scaling",
        "rotary_dim",
        "rotary_pct",
        "seq_length",
        "shared_expert_intermediate_size",
        "sliding_window",
        "sliding_window_pattern",
        "tie_word_embeddings",
        "torch_dtype",
        "use_bias",
        "use_parallel_residual",
        "use_qk_norm",
        "use_qkv_bias",
        "use_sliding_window",
        "v_head_dim",
        "vocab_size",
    }
)
_ROPE_KEYS = frozenset(
    {
        "factor",
        "full_attention",
        "original_max_position_embeddings",
        "partial_rotary_factor",
        "rope_type",
        "type",
    }
)
TOWER_KEYS = frozenset(
    {
        "d_model",
        "depth",
        "embed_dim",
        "encoder_ffn_dim",
        "encoder_layers",
        "hidden_size",
        "image_size",
        "in_channels",
        "intermediate_size",
        "model_type",
        "num_channels",
        "num_hidden_layers",
        "num_position_embeddings",
        "patch_size",
        "temporal_patch_size",
    }
)
_ROPE_SECTIONS = frozenset({"rope_scaling", "rope_parameters"})


def kept_config(config: Mapping[str, Any], modelopt: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a config.json that decide a model's size, sections kept as sections.

    Args:
        config: The whole file.
        modelopt: Content of `hf_quant_config.json`; it stands in for a section on quantization
            where the file has none.
    """
    kept = _text(config)
    for name in TEXT_SECTIONS:
        if isinstance(config.get(name), Mapping):
            kept[name] = _text(config[name])
    for name in TOWER_SECTIONS:
        if isinstance(config.get(name), Mapping):
            kept[name] = _chosen(config[name], TOWER_KEYS)
    found = [name for name in QUANTIZATION_SECTIONS if config.get(name) is not None]
    for name in found:
        kept[name] = config[name]
    if not found and isinstance(modelopt.get("quantization"), Mapping):
        kept["quantization_config"] = dict(modelopt["quantization"])
    return kept


def _text(section: Mapping[str, Any]) -> dict[str, Any]:
    kept = _chosen(section, TEXT_KEYS)
    for name in _ROPE_SECTIONS & set(kept):
        if isinstance(kept[name], Mapping):
            kept[name] = _rope(kept[name])
    if section.get("quantization_config") is not None:
        kept["quantization_config"] = section["quantization_config"]
    return kept


def _rope(section: Mapping[str, Any]) -> dict[str, Any]:
    """Factors of rotary tables; long lists of per-dimension factors decide no size."""
    kept = _chosen(section, _ROPE_KEYS)
    if isinstance(kept.get("full_attention"), Mapping):
        kept["full_attention"] = _chosen(kept["full_attention"], _ROPE_KEYS)
    return kept


def _chosen(section: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    # A null is an answer of its own to the parser: it is kept.
    return {name: value for name, value in section.items() if name in names}


def pack_config(config: Mapping[str, Any]) -> str:
    """A kept config as text of at most LIMIT_BYTES: JSON, packed where it is long.

    Returns:
        Empty when even packed it is too long. Lists of many thousand modules do that.
    """
    text = json.dumps(config, sort_keys=True, separators=(",", ":"))
    if len(text) <= _PLAIN_BYTES:
        return text
    if len(text) > UNPACKED_LIMIT_BYTES:
        return ""
    packed = _PACKED + base64.b64encode(zlib.compress(text.encode(), 9)).decode()
    return packed if len(packed) <= LIMIT_BYTES else ""


def unpack_config(text: str) -> str:
    """The JSON of a packed config, bounded in size.

    Raises:
        ValueError: It is not what `pack_config` makes.
    """
    if not text.startswith(_PACKED):
        return text
    try:
        raw = base64.b64decode(text[len(_PACKED) :], validate=True)
        reader = zlib.decompressobj()
        found = reader.decompress(raw, UNPACKED_LIMIT_BYTES)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"config of the model's facts cannot be unpacked: {error}") from error
    if reader.unconsumed_tail or not reader.eof:
        raise ValueError(
            f"config of the model's facts unpacks to more than {UNPACKED_LIMIT_BYTES} bytes"
        )
    return found.decode("utf-8", "replace")
