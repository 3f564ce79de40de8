"""From a Hugging Face config.json to a `Model`, or a clear answer of what is missing.

Nothing is executed and nothing is fetched: the file is data, the family's row says what the file
leaves to code, and a family without a row is refused rather than guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardwright.sizing.config_families import FAMILIES, Family
from shardwright.sizing.config_layers import Sizes, layers, sizes
from shardwright.sizing.config_names import ARCHITECTURES, TEXT_OF, UNCOUNTED
from shardwright.sizing.config_positions import positions, rotary_elements
from shardwright.sizing.config_quantization import checkpoint_precision
from shardwright.sizing.config_reader import (
    MAX_CONFIG_BYTES,
    MAX_INDEX_BYTES,
    ConfigError,
    Reader,
    load_json,
    shown,
)
from shardwright.sizing.config_vision import tower_parameters
from shardwright.sizing.model import Model
from shardwright.sizing.weights import checkpoint_bytes

__all__ = [
    "MAX_CONFIG_BYTES",
    "MAX_INDEX_BYTES",
    "ConfigError",
    "load_json",
    "model_from_config",
]

_HIGH_VOCABULARY = 2**26
_HIGH_BYTES = 2**50
_MAX_TENSORS = 2_000_000
_DTYPES = ("bfloat16", "float16", "float32")
_TEXT_SECTIONS = ("text_config", "llm_config", "language_config")
# A file that is larger than the layers explain by less than this is explained well enough.
_EXPLAINED = 0.02


def model_from_config(
    config: Mapping[str, Any], *, name: str, index: Mapping[str, Any] | None = None
) -> Model:
    """The model that a config.json describes.

    Args:
        config: The decoded file (see `load_json`).
        name: What the user calls the model.
        index: The decoded model.safetensors.index.json, where there is one.

    Raises:
        ConfigError: A key is missing, wrong or out of bounds, or the family is not known.
    """
    if not isinstance(config, Mapping):
        raise ConfigError("(file)", f"is {shown(config)}", "one object", "decode config.json first")
    if index is not None and not isinstance(index, Mapping):
        raise ConfigError("(index)", f"is {shown(index)}", "one object", "decode it first")
    whole = Reader(config)
    text = whole.section(*_TEXT_SECTIONS) or whole
    architecture, model_type, family = _family(whole, text)
    text = text.with_defaults(family.defaults)
    shared = sizes(text, model_type)
    tower, notes = tower_parameters(whole, shared.hidden)
    dtype, dtype_notes = _dtype(whole, text)
    model = Model(
        name=name,
        architecture=architecture,
        layers=layers(text, family, model_type, shared),
        hidden=shared.hidden,
        vocabulary=text.integer("vocab_size", low=1, high=_HIGH_VOCABULARY),
        tied=_tied(whole, text, family, index),
        max_positions=positions(text, family),
        dtype=dtype,
        rotary_dim=rotary_elements(text, family, shared.head_dim),
        checkpoint=checkpoint_precision(whole, text),
        vision_parameters=tower,
        draft_layers=text.integer(
            "num_nextn_predict_layers", "mtp_num_hidden_layers", low=0, high=64, default=0
        ),
        file_bytes=_file_bytes(index),
        first_parameters=_learned(text, family, shared),
        last_parameters=shared.hidden * (2 if family.norm_bias else 1),
        notes=notes + dtype_notes,
    )
    if family.head_bias:
        model = replace(model, last_parameters=model.last_parameters + model.vocabulary)
    return _compared(model)


def _family(whole: Reader, text: Reader) -> tuple[str, str, Family]:
    architectures = whole.texts("architectures", limit=64) or text.texts("architectures", limit=64)
    architecture = architectures[0] if architectures else ""
    model_type = text.text("model_type") or ARCHITECTURES.get(architecture, "")
    model_type = TEXT_OF.get(model_type, model_type)
    family = FAMILIES.get(model_type)
    if family:
        return architecture, model_type, family
    if not model_type and not architecture:
        raise text.missing("model_type", "architectures")
    known = ARCHITECTURES.get(architecture)
    missing = UNCOUNTED.get(model_type, "what its layers hold beside the usual parts")
    said = shown(model_type) if model_type else f"left out, architecture {shown(architecture)}"
    hint = f" (its architecture is that of {known})" if known else ""
    raise ConfigError(
        text.path("model_type"),
        f"is {said}{hint}",
        f"not known of it is {missing}",
        f"known families are {', '.join(sorted(FAMILIES))}; or measure: start it once and give "
        "the memory its log shows",
    )


def _dtype(whole: Reader, text: Reader) -> tuple[str, tuple[str, ...]]:
    for reader in (text, whole):
        said = reader.text("torch_dtype", "dtype")
        if said:
            dtype = said.removeprefix("torch.")
            if dtype not in _DTYPES:
                raise reader.wrong("torch_dtype", said, " or ".join(_DTYPES))
            if dtype == "float32":
                return dtype, ("stored in 32 bits; runtimes load it in 16, and so it is counted",)
            return dtype, ()
    return "bfloat16", ("the file does not name a dtype; weights are counted in 16 bits",)


def _tied(whole: Reader, text: Reader, family: Family, index: Mapping[str, Any] | None) -> bool:
    for reader in (text, whole):
        if reader.find("tie_word_embeddings")[1] is not None:
            return reader.flag("tie_word_embeddings", default=family.tied)
    names = _weight_map(index)
    if names:
        return not any(str(tensor).endswith("lm_head.weight") for tensor in names)
    return family.tied


def _learned(text: Reader, family: Family, shared: Sizes) -> int:
    return positions(text, family) * shared.hidden if family.learned_positions else 0


def _weight_map(index: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if index is None:
        return {}
    names = index.get("weight_map", {})
    if not isinstance(names, Mapping) or len(names) > _MAX_TENSORS:
        raise ConfigError(
            "weight_map (of the index)",
            f"is {shown(names)}",
            f"allowed is an object of at most {_MAX_TENSORS} names",
            "take model.safetensors.index.json from the model's repository unchanged",
        )
    return names


def _file_bytes(index: Mapping[str, Any] | None) -> int:
    if index is None:
        return 0
    metadata = Reader(index, "index.").section("metadata")
    if metadata is None:
        return 0
    return metadata.integer("total_size", low=0, high=_HIGH_BYTES, default=0)


def _compared(model: Model) -> Model:
    """Say it when the files are larger or smaller than what was counted."""
    if not model.file_bytes or model.dtype == "float32":
        return model
    counted = checkpoint_bytes(model, None)
    differs = model.file_bytes / counted - 1
    if abs(differs) <= _EXPLAINED or (differs > 0 and model.draft_layers):
        return model
    note = (
        f"the index gives {model.file_bytes / 2**30:.2f} GiB of weights, the layers explain "
        f"{counted / 2**30:.2f} GiB ({differs:+.1%})"
    )
    return replace(model, notes=(*model.notes, note))
