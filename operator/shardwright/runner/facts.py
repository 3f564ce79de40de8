"""A model's facts from its own files: `config.json`, and the sizes of its weights.

Everything here was written by strangers. It is read as data, bounded and checked; no module of the
folder is imported, no template rendered, and what is not plainly a count is refused with the name
of the field.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardwright.runner.config_keys import kept_config, pack_config
from shardwright.runner.contract import ModelFacts
from shardwright.runner.jsonfile import JsonFileError, read_object
from shardwright.runner.verify import inside

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
# A real config.json has some kilobytes; those with quantization tables some hundred.
CONFIG_LIMIT_BYTES = 4 * 2**20
# The larger ones list thousands of added tokens.
TOKENIZER_LIMIT_BYTES = 16 * 2**20
INDEX_LIMIT_BYTES = 64 * 2**20
# ModelOpt's note beside a checkpoint that it has quantized.
_MODELOPT = "hf_quant_config.json"
_TOKENIZER = "tokenizer_config.json"
# A multimodal model's own numbers are those of its vision tower and its text model in turn; only
# the text model is split and cached. Names as in transformers' model classes.
_TEXT_CONFIGS = ("text_config", "llm_config", "language_config", "thinker_config")
_WEIGHTS = (re.compile(r".+\.safetensors"), re.compile(r"pytorch_model.*\.bin"))
# Mistral's repositories hold the same weights twice, once under this name.
_TWICE = re.compile(r"consolidated.*\.safetensors")
_SHOWN = 80
_WORD = re.compile(r"[\w.+-]{1,120}")

# Field by field: what transformers' families call it.
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_MOST = {
    "layers": 10_000,
    "hidden": 10_000_000,
    "heads": 100_000,
    "vocabulary": 100_000_000,
    "positions": 10_000_000_000,
    "experts": 1_000_000,
}


class ModelFactsError(ValueError):
    """A folder does not tell a model's facts; the message names the field and what to do."""


def model_facts(folder: Path) -> ModelFacts:
    """What a model's folder says of it.

    Args:
        folder: Holds `config.json` and the weights, in Hugging Face form.

    Raises:
        ModelFactsError: A file or field is missing, or makes no sense.
        OSError: The storage failed.
    """
    config = _read(folder / CONFIG, CONFIG_LIMIT_BYTES)
    modelopt = folder / _MODELOPT
    quantized = _read(modelopt, CONFIG_LIMIT_BYTES) if modelopt.exists() else {}
    facts = facts_of(config, quantized, weight_bytes(folder))
    tokenizer = folder / _TOKENIZER
    # Tools that trust a model's code take its tokenizer's with it.
    if tokenizer.exists() and _read(tokenizer, TOKENIZER_LIMIT_BYTES).get("auto_map"):
        return replace(facts, remote_code=True)
    return facts


def facts_of(
    config: Mapping[str, Any], modelopt: Mapping[str, Any], total_bytes: int
) -> ModelFacts:
    """Facts from the content of `config.json`.

    Args:
        config: The whole of it.
        modelopt: Content of `hf_quant_config.json`; empty if there is none.
        total_bytes: Size of the weights on disk.

    Raises:
        ModelFactsError: A field is missing or makes no sense.
    """
    text = _text_config(config)
    heads = _count(text, _HEADS, _MOST["heads"])
    hidden = _count(text, _HIDDEN, _MOST["hidden"])
    kv_heads = _kv_heads(text, heads)
    return ModelFacts(
        architecture=_architecture(config),
        model_type=_word(text, "model_type") or _word(config, "model_type"),
        layers=_count(text, _LAYERS, _MOST["layers"]),
        hidden_size=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_count(text, ("head_dim",), _MOST["hidden"], default=_head_dim(hidden, heads)),
        vocab_size=_count(text, ("vocab_size",), _MOST["vocabulary"]),
        max_positions=_count(text, _POSITIONS, _MOST["positions"]),
        dtype=_dtype(text) or _dtype(config) or "float32",
        quantization=_quantization(config, text, modelopt),
        experts=_count(text, _EXPERTS, _MOST["experts"], default=0),
        bytes=total_bytes,
        remote_code=bool(config.get("auto_map") or text.get("auto_map")),
        config=pack_config(kept_config(config, modelopt)),
    )


def weight_bytes(folder: Path) -> int:
    """Bytes of a model's weights on disk: what its index names, else all weight files once.

    Raises:
        ModelFactsError: The index cannot be read, or names a file that is not there.
        OSError: The storage failed.
    """
    index = folder / INDEX
    if index.exists():
        table = _read(index, INDEX_LIMIT_BYTES).get("weight_map")
        if not isinstance(table, Mapping) or not all(
            isinstance(name, str) and inside(name) for name in table.values()
        ):
            raise ModelFactsError(f"{index}: weight_map is no table of files of this folder")
        names = sorted(set(table.values()))
    else:
        names = _weight_files([path.name for path in folder.iterdir()])
    try:
        return sum((folder / name).stat().st_size for name in names)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP):
            raise
        if Path(error.filename).is_symlink():
            raise ModelFactsError(
                f"{error.filename} is a link that leads nowhere here, where only its own volume is "
                "mounted; make it a relative link, or copy the file"
            ) from error
        raise ModelFactsError(
            f"{index} names a file that is not there: {error.filename}; fetch the model again"
        ) from error


def _weight_files(names: Sequence[str]) -> list[str]:
    """The weight files of one form: safetensors before anything older, nothing counted twice."""
    for form in _WEIGHTS:
        found = sorted(name for name in names if form.fullmatch(name))
        once = [name for name in found if not _TWICE.fullmatch(name)]
        if found:
            return once or found
    return []


def _read(path: Path, limit_bytes: int) -> dict[str, Any]:
    try:
        return read_object(path, limit_bytes)
    except JsonFileError as error:
        raise ModelFactsError(
            f"{error}; model.uri must name a folder in Hugging Face form"
        ) from error


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part that describes the text model: all of it, or a section of a multimodal model's."""
    for name in _TEXT_CONFIGS:
        section = config.get(name)
        if isinstance(section, Mapping):
            # A section may hold only what differs from its family's defaults; and a thinker's
            # section has a text section of its own.
            inner = _text_config(section)
            if any(field in inner for field in _LAYERS):
                return inner
    return config


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    first = names[0] if isinstance(names, list) and names else None
    if not isinstance(first, str) or not _WORD.fullmatch(first):
        raise ModelFactsError(
            f"config.json: architectures is {_shown(names)}, expected a list with a class name"
        )
    return first


def _count(
    config: Mapping[str, Any], names: Sequence[str], most: int, default: int | None = None
) -> int:
    """A whole number from 1 to `most` under the first of these names that has one.

    With a default, what is absent, null or 0 is the default.
    """
    for name in names:
        value = config.get(name)
        if value is None or (value == 0 and default is not None):
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise ModelFactsError(
                f"config.json: {name} is {_shown(value)}, expected a whole number from 1 to {most}"
            )
        return value
    if default is None:
        raise ModelFactsError(f"config.json has none of {', '.join(names)}")
    return default


def _kv_heads(text: Mapping[str, Any], heads: int) -> int:
    if text.get("multi_query") is True and not any(text.get(name) for name in _KV_HEADS):
        return 1
    found = _count(text, _KV_HEADS, _MOST["heads"], default=heads)
    if found > heads:
        raise ModelFactsError(
            f"config.json: {found} key-value heads are more than {heads} attention heads"
        )
    return found


def _head_dim(hidden: int, heads: int) -> int:
    return max(1, hidden // heads)


def _dtype(config: Mapping[str, Any]) -> str:
    """The weights' type; newer files call it `dtype`, older ones `torch_dtype`."""
    for name in ("dtype", "torch_dtype"):
        value = config.get(name)
        if isinstance(value, str):
            bare = value.removeprefix("torch.")
            if not _WORD.fullmatch(bare):
                raise ModelFactsError(f"config.json: {name} is {_shown(value)}, expected a type")
            return bare
    return ""


def _quantization(
    config: Mapping[str, Any], text: Mapping[str, Any], modelopt: Mapping[str, Any]
) -> str:
    """The method that the weights are quantized by already, in lower case; empty if by none."""
    for holder in (config, text):
        section = holder.get("quantization_config")
        if isinstance(section, Mapping):
            method = section.get("quant_method") or section.get("quant_algo")
            if not isinstance(method, str) or not _WORD.fullmatch(method):
                raise ModelFactsError(
                    "config.json: quantization_config.quant_method is "
                    f"{_shown(method)}, expected a name such as gptq"
                )
            return method.lower()
    section = modelopt.get("quantization")
    algorithm = section.get("quant_algo") if isinstance(section, Mapping) else None
    return algorithm.lower() if isinstance(algorithm, str) and _WORD.fullmatch(algorithm) else ""


def _word(config: Mapping[str, Any], name: str) -> str:
    value = config.get(name, "")
    if not isinstance(value, str) or (value and not _WORD.fullmatch(value)):
        raise ModelFactsError(f"config.json: {name} is {_shown(value)}, expected a name")
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
