"""An adapter's facts from its own files: `adapter_config.json`, and the header of its weights.

As with a model's files everything here was written by strangers: read as data, bounded, checked,
never executed. Names are PEFT's (`peft/tuners/lora/config.py`): a weight is called
`base_model.model.<path of the module>.lora_A.weight` and has the shape (rank, inputs); `lora_B` has
(outputs, rank).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwright.runner.contract import AdapterFacts, beginning
from shardwright.runner.jsonfile import JsonFileError, read_object
from shardwright.runner.steps.result import safetensors_problem

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
CONFIG_LIMIT_BYTES = 2**20
HEADER_LIMIT_BYTES = 16 * 2**20
_MOST_RANK = 65_536
_MOST_ALPHA = 1e9
# No projection has so many inputs or outputs; a size goes into a termination message.
_MOST_SIZE = 2**31
# Of modules and features so many are told, and of names so many bytes: they go into a termination
# message. There are seven projections, so that of more names some are none of them.
_MOST_MODULES = 16
_MOST_FEATURES = 8
_NAME_BYTES = 60
_BASE_BYTES = 200
_LENGTH_BYTES = 8
_DIMENSIONS = 2
_WEIGHT = re.compile(
    r"(?:base_model\.model\.)?(.+)\.lora_(A|B|embedding_A|embedding_B)(?:\.weight)?"
)
_LAYER = re.compile(r"\.(?:layers|h|blocks)\.(\d{1,6})\.")
# Bytes of a number, of the types that matrices of an adapter are saved in.
_WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1}
# PEFT's features that change what an adapter means, and that no runtime here computes with.
_FEATURES = ("use_dora", "lora_bias", "use_qalora", "use_bdlora", "alora_invocation_tokens")
_FEATURES_BY_VALUE = ("layer_replication", "modules_to_save", "trainable_token_indices")


class AdapterFactsError(ValueError):
    """A folder does not tell an adapter's facts; the message names the field and what to do."""


def adapter_facts(folder: Path) -> AdapterFacts:
    """What an adapter's folder says of it.

    Args:
        folder: Holds `adapter_config.json` and `adapter_model.safetensors`.

    Raises:
        AdapterFactsError: A file or field is missing, cut off, or makes no sense.
        OSError: The storage failed.
    """
    config = config_of(folder)
    path = folder / ADAPTER_WEIGHTS
    if not path.is_file():
        raise AdapterFactsError(f"{ADAPTER_WEIGHTS} is not there; export the adapter with PEFT")
    if problem := safetensors_problem(path):
        raise AdapterFactsError(f"{problem}; upload or copy that file again")
    return facts_of(config, header_of(path), path.stat().st_size)


def config_of(folder: Path) -> dict[str, Any]:
    """The content of `adapter_config.json`.

    Raises:
        AdapterFactsError: It is not there, or no JSON object.
        OSError: The storage failed.
    """
    try:
        return read_object(folder / ADAPTER_CONFIG, CONFIG_LIMIT_BYTES)
    except JsonFileError as error:
        raise AdapterFactsError(
            f"{error}; the uri must name a folder in PEFT's form with {ADAPTER_CONFIG}"
        ) from error


def header_of(path: Path) -> dict[str, Any]:
    """The header of a safetensors file: names, types and shapes; its data are not read.

    Raises:
        AdapterFactsError: It is too long, or no JSON object.
        OSError: The storage failed.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if length > HEADER_LIMIT_BYTES:
            raise AdapterFactsError(
                f"{path.name}: a header of {length} bytes, the limit is {HEADER_LIMIT_BYTES}"
            )
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError) as error:
            raise AdapterFactsError(f"{path.name}: its header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise AdapterFactsError(f"{path.name}: its header is no object")
    header.pop("__metadata__", None)
    return header


def facts_of(
    config: Mapping[str, Any], header: Mapping[str, Any], total_bytes: int
) -> AdapterFacts:
    """Facts from the content of both files.

    The rank is the highest of any module, as the weights have it: `rank_pattern` may give single
    modules another one than `r`, and the slots of a runtime are made for the highest.

    Raises:
        AdapterFactsError: A field is missing or makes no sense.
    """
    if config.get("peft_type", "LORA") != "LORA":
        raise AdapterFactsError(
            f"{ADAPTER_CONFIG}: peft_type is {_shown(config['peft_type'])}, only LORA is served"
        )
    rank = _rank(config)
    alpha = config.get("lora_alpha", rank)
    if (
        isinstance(alpha, bool)
        or not isinstance(alpha, (int, float))
        or not 0 < alpha < _MOST_ALPHA
    ):
        raise AdapterFactsError(f"{ADAPTER_CONFIG}: lora_alpha is {_shown(alpha)}, not a number")
    base = config.get("base_model_name_or_path") or ""
    if not isinstance(base, str):
        raise AdapterFactsError(f"{ADAPTER_CONFIG}: base_model_name_or_path is no text")
    weights = _Weights()
    for name, entry in header.items():
        weights.take(name, entry)
    if not weights.sizes:
        raise AdapterFactsError(f"{ADAPTER_WEIGHTS} holds no lora_A and lora_B weights")
    weights.check_pairs()
    return AdapterFacts(
        rank=max(rank, *weights.ranks),
        alpha=float(alpha),
        modules=tuple(sorted(weights.sizes))[:_MOST_MODULES],
        base=beginning(base, _BASE_BYTES),
        dtype=weights.dtype,
        layers=weights.layers,
        sizes=weights.told(),
        features=_features(config, weights),
        bytes=total_bytes,
        scales=_scales(config, weights),
    )


class _Weights:
    """What the header says: sizes by module, ranks, the highest layer, the type."""

    def __init__(self) -> None:
        self.sizes: dict[str, set[tuple[int, int]]] = {}
        self.ranks: set[int] = set()
        self.layers = 0
        self.dtype = ""
        self.others: set[str] = set()
        # Shapes of both halves by the path of the module.
        self._downs: dict[str, tuple[int, int]] = {}
        self._ups: dict[str, tuple[int, int]] = {}

    def take(self, name: str, entry: object) -> None:
        """One tensor."""
        found = _WEIGHT.fullmatch(name)
        if found is None:
            self.others.add(_last(name.removesuffix(".weight")))
            return
        path, half = found.groups()
        shape, dtype = _tensor(name, entry)
        module = _last(path)
        self.dtype = self.dtype or dtype
        if layer := _LAYER.search(f".{path}."):
            self.layers = max(self.layers, int(layer.group(1)) + 1)
        (self._downs if half.endswith("A") else self._ups)[path] = shape
        self.sizes.setdefault(module, set())
        if path in self._downs and path in self._ups:
            self.ranks.add(self._downs[path][0])
            self.sizes[module].add((self._downs[path][1], self._ups[path][0]))

    def check_pairs(self) -> None:
        """Each lora_A has its lora_B, of the same rank.

        Raises:
            AdapterFactsError: One has not.
        """
        for path in self._downs.keys() ^ self._ups.keys():
            has, lacks = ("lora_A", "lora_B") if path in self._downs else ("lora_B", "lora_A")
            raise AdapterFactsError(
                f"{ADAPTER_WEIGHTS}: {path[:_BASE_BYTES]} has a {has} and no {lacks}; export the "
                "adapter again"
            )
        for path, (rank, _) in self._downs.items():
            if self._ups[path][1] != rank:
                raise AdapterFactsError(
                    f"{ADAPTER_WEIGHTS}: {path[:_BASE_BYTES]} has a lora_A of rank {rank} and a "
                    f"lora_B of rank {self._ups[path][1]}; export the adapter again"
                )

    def told(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of each module, where they are the same in all layers."""
        alike = {name: next(iter(found)) for name, found in self.sizes.items() if len(found) == 1}
        return dict(sorted(alike.items())[:_MOST_MODULES])


def _tensor(name: str, entry: object) -> tuple[tuple[int, int], str]:
    shape = entry.get("shape") if isinstance(entry, Mapping) else None
    dtype = entry.get("dtype") if isinstance(entry, Mapping) else None
    counts = isinstance(shape, list) and all(
        isinstance(size, int) and not isinstance(size, bool) and 0 < size < _MOST_SIZE
        for size in shape
    )
    if not counts or not isinstance(shape, list) or len(shape) != _DIMENSIONS:
        raise AdapterFactsError(
            f"{ADAPTER_WEIGHTS}: {name[:_BASE_BYTES]} has shape {_shown(shape)}, expected two sizes"
        )
    if not isinstance(dtype, str) or dtype not in _WIDTHS:
        raise AdapterFactsError(
            f"{ADAPTER_WEIGHTS}: {name[:_BASE_BYTES]} has type {_shown(dtype)}, expected one of "
            f"{', '.join(_WIDTHS)}"
        )
    offsets = entry.get("data_offsets") if isinstance(entry, Mapping) else None
    takes = shape[0] * shape[1] * _WIDTHS[dtype]
    there = isinstance(offsets, list) and all(type(offset) is int for offset in offsets)
    if not there or not isinstance(offsets, list) or offsets[-1] - offsets[0] != takes:
        raise AdapterFactsError(
            f"{ADAPTER_WEIGHTS}: {name[:_BASE_BYTES]} lies at bytes {_shown(offsets)}, and {shape} "
            f"of {dtype} take {takes}; export the adapter again"
        )
    return (shape[0], shape[1]), dtype


def _rank(config: Mapping[str, Any]) -> int:
    patterns = config.get("rank_pattern") or {}
    if not isinstance(patterns, Mapping):
        raise AdapterFactsError(f"{ADAPTER_CONFIG}: rank_pattern is no object")
    highest = 0
    for name, rank in (("r", config.get("r")), *patterns.items()):
        if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= _MOST_RANK:
            raise AdapterFactsError(
                f"{ADAPTER_CONFIG}: rank {str(name)[:_NAME_BYTES]} is {_shown(rank)}, expected a "
                f"whole number from 1 to {_MOST_RANK}"
            )
        highest = max(highest, rank)
    return highest


def _features(config: Mapping[str, Any], weights: _Weights) -> tuple[str, ...]:
    """What the adapter has beyond low-rank matrices of projections."""
    found = [name for name in (*_FEATURES, *_FEATURES_BY_VALUE) if config.get(name)]
    if config.get("bias", "none") != "none":
        found.append("bias")
    found += sorted(beginning(name, _NAME_BYTES) for name in weights.others)
    return tuple(dict.fromkeys(found))[:_MOST_FEATURES]


def _scales(config: Mapping[str, Any], weights: _Weights) -> tuple[str, ...]:
    """How PEFT would scale some module by another factor than lora_alpha / r.

    peft/tuners/lora/layer.py: lora_alpha / rank of each module, or by the root of its rank.
    """
    alphas = config.get("alpha_pattern") or {}
    if not isinstance(alphas, Mapping):
        raise AdapterFactsError(f"{ADAPTER_CONFIG}: alpha_pattern is no object")
    differs = {
        "use_rslora": bool(config.get("use_rslora")),
        "rank_pattern": weights.ranks != {config["r"]},
        "alpha_pattern": any(alpha != config.get("lora_alpha") for alpha in alphas.values()),
    }
    return tuple(name for name, found in differs.items() if found)


def _last(path: str) -> str:
    return beginning(path.rsplit(".", 1)[-1], _NAME_BYTES)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _NAME_BYTES else f"{text[:_NAME_BYTES]}…"
