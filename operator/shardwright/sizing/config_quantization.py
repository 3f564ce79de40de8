"""How a checkpoint is quantized, by the section its tool wrote into config.json.

Read after the documents of Hugging Face transformers (quantization configs), compressed-tensors,
TensorRT Model Optimizer and AutoAWQ. One precision a checkpoint: files that give single layers a
precision of their own are refused, with what to say instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from shardwright.sizing.config_reader import MAX_LIST, MAX_TEXT, ConfigError, Reader, shown
from shardwright.sizing.ignored import MOST_OF_LAYERS, MOST_PATTERNS, general, globs_of
from shardwright.sizing.model import CheckpointPrecision

_HIGH_GROUP = 2**20
_NO_BLOCK = (0, 0)
# Model Optimizer's FP8_PB_WO has no size in the file: it is always this (its FP8_2D_BLOCKWISE
# configuration, NVIDIA/Model-Optimizer modelopt/torch/quantization/config.py).
_FP8_BLOCK = (128, 128)
_MX_GROUP = 32
_NV_GROUP = 16
# bitsandbytes: a 32-bit scale for 64 weights, itself in 8 bits a 64 when quantized doubly.
_BNB_SCALE = 32 / 64
_BNB_DOUBLE_SCALE = 8 / 64 + 32 / (64 * 256)


@dataclass(frozen=True, slots=True)
class _Algorithm:
    """One of Model Optimizer's: bits of a weight, weights a scale, kind of number, activations."""

    bits: float
    group: int = 0
    integer: bool = False
    activation_bits: int = 8


# modelopt/torch/quantization and TensorRT-LLM's QuantAlgo: W is the weights', A the activations'.
_MODELOPT: Mapping[str, _Algorithm] = {
    "FP8": _Algorithm(8),
    "FP8_PER_CHANNEL_PER_TOKEN": _Algorithm(8),
    "FP8_PB_WO": _Algorithm(8),
    "W8A8_SQ_PER_CHANNEL": _Algorithm(8, integer=True),
    "W8A16": _Algorithm(8, integer=True, activation_bits=16),
    "NVFP4": _Algorithm(4, _NV_GROUP, activation_bits=4),
    "NVFP4_AWQ": _Algorithm(4, _NV_GROUP, activation_bits=4),
    "W4A16_NVFP4": _Algorithm(4, _NV_GROUP, activation_bits=16),
    "W4A16_AWQ": _Algorithm(4, 128, integer=True, activation_bits=16),
    "W4A8_AWQ": _Algorithm(4, 128, integer=True),
}
_MIXED = (
    "allowed is one precision for all quantized weights",
    "give --weights the precision that most weights have, or take a checkpoint of one precision",
)


def checkpoint_precision(config: Reader, text: Reader) -> CheckpointPrecision:
    """What the checkpoint is stored in; 16 bits where nothing is said.

    Args:
        config: The whole file.
        text: The language model's section, which may carry it instead.

    Raises:
        ConfigError: The method is not known, or its section says something that cannot be.
    """
    section = config.section(
        "quantization_config", "quantization", "compression_config"
    ) or text.section("quantization_config")
    if section is None:
        return CheckpointPrecision()
    # Model Optimizer's own file, hf_quant_config.json, has it one level down.
    section = section.section("quantization") or section
    method = section.text("quant_method").lower().replace("_", "-")
    if not method and section.find("quant_algo")[1] is not None:
        method = "modelopt"
    read = _METHODS.get(method)
    if read is None:
        raise section.wrong(
            "quant_method", section.find("quant_method")[1], " or ".join(sorted(_METHODS))
        )
    return read(section, method)


def _patterns(section: Reader, *names: str) -> tuple[str, ...]:
    entries = section.texts(*names)
    return _checked(section, section.find(*names)[0], entries)


def _checked(section: Reader, name: str, patterns: tuple[str, ...]) -> tuple[str, ...]:
    """The patterns, all of which can be matched.

    Raises:
        ConfigError: One is outside the subset, or there are too many that any layer may match.
    """
    for pattern in patterns:
        try:
            globs_of(pattern)
        except ValueError as error:
            raise ConfigError(
                section.path(name),
                f"holds {shown(pattern)}",
                str(error),
                "name the modules, or use .* and groups of alternatives alone",
            ) from error
    everywhere, of_layers = general(patterns)
    for count, what, most in (
        (everywhere, "for all layers", MOST_PATTERNS),
        (of_layers, "with wildcards for single layers", MOST_OF_LAYERS),
    ):
        if count > most:
            raise ConfigError(
                section.path(name),
                f"has {count} patterns {what}",
                f"at most {most} are matched",
                "name the modules of every layer without wildcards",
            )
    return patterns


def _float8(section: Reader, method: str) -> CheckpointPrecision:
    return CheckpointPrecision(
        method=method.replace("-", "_"),
        weight_bits=8,
        ignored=_patterns(section, "modules_to_not_convert", "ignored_layers"),
        activation_bits=8,
        block=_block(section, "weight_block_size"),
    )


def _block(section: Reader, name: str) -> tuple[int, int]:
    """Outputs × inputs of a block; (0, 0) where the file names none.

    Raises:
        ConfigError: It is not two whole numbers above 0.
    """
    found = section.integers(name, low=1, high=_HIGH_GROUP)
    if not found:
        return _NO_BLOCK
    if len(found) != len(_NO_BLOCK):
        raise section.wrong(name, list(found), "two whole numbers, outputs × inputs of a block")
    return found[0], found[1]


def _gptq(section: Reader, method: str) -> CheckpointPrecision:
    ignored = [*_patterns(section, "modules_to_not_convert"), *_left_out(section)]
    return CheckpointPrecision(
        method=method,
        weight_bits=section.integer("bits", low=2, high=8),
        group_size=_group(section, "group_size"),
        ignored=_checked(section, "dynamic", tuple(ignored)),
        symmetric=section.flag("sym", default=True),
        integer=True,
    )


def _left_out(section: Reader) -> Iterator[str]:
    """Modules that GPTQModel's `dynamic` leaves in 16 bits, as patterns."""
    rules = section.section("dynamic")
    names = rules.items() if rules else {}
    if len(names) > MAX_LIST:
        raise section.wrong("dynamic", names, f"an object of at most {MAX_LIST} rules")
    for name in names:
        if not isinstance(name, str) or not name.startswith("-:"):
            raise ConfigError(section.path("dynamic"), "gives layers their own bits", *_MIXED)
        if len(name) > MAX_TEXT:
            raise section.wrong("dynamic", name, f"rules of at most {MAX_TEXT} characters")
        yield f"re:{name.removeprefix('-:')}"


def _awq(section: Reader, method: str) -> CheckpointPrecision:
    return CheckpointPrecision(
        method=method,
        weight_bits=section.integer("bits", "w_bit", low=2, high=8),
        group_size=_group(section, "group_size", "q_group_size"),
        ignored=_patterns(section, "modules_to_not_convert"),
        symmetric=not section.flag("zero_point", default=True),
        integer=True,
    )


def _group(section: Reader, *names: str) -> int:
    """Weights a scale; −1 is one scale a channel."""
    return max(0, section.integer(*names, low=-1, high=_HIGH_GROUP, default=128))


def _mxfp4(section: Reader, method: str) -> CheckpointPrecision:
    return CheckpointPrecision(
        method=method,
        weight_bits=4,
        group_size=_MX_GROUP,
        ignored=_patterns(section, "modules_to_not_convert"),
    )


def _modelopt(section: Reader, method: str) -> CheckpointPrecision:
    algorithm = section.text("quant_algo").upper()
    if algorithm == "MIXED_PRECISION" or section.find("quantized_layers")[1] is not None:
        raise ConfigError(section.path("quant_algo"), "is MIXED_PRECISION", *_MIXED)
    if algorithm not in _MODELOPT:
        raise section.wrong(
            "quant_algo", section.find("quant_algo")[1], " or ".join(sorted(_MODELOPT))
        )
    known = _MODELOPT[algorithm]
    blocks = algorithm == "FP8_PB_WO"
    size = section.integer("group_size", low=0, high=_HIGH_GROUP, default=known.group)
    return CheckpointPrecision(
        method=method,
        weight_bits=known.bits,
        # The file repeats a block's side as the size of a group.
        group_size=0 if blocks else size,
        ignored=_patterns(section, "ignore", "exclude_modules"),
        integer=known.integer,
        activation_bits=known.activation_bits,
        block=_FP8_BLOCK if blocks else _NO_BLOCK,
    )


def _compressed(section: Reader, method: str) -> CheckpointPrecision:
    groups = section.section("config_groups")
    if groups is None:
        raise section.missing("config_groups")
    found: set[tuple[int, int, bool, bool, int, tuple[int, int]]] = set()
    targets: set[str] = set()
    for name in groups.items():
        group = groups.section(name) if isinstance(name, str) else None
        weights = group.section("weights") if group else None
        if group is None or weights is None:
            raise ConfigError(
                section.path("config_groups"),
                "has a group without weights",
                "a group says weights: {num_bits, group_size}",
                "take config.json from the model's repository unchanged",
            )
        found.add(
            (
                weights.integer("num_bits", low=1, high=16),
                max(0, weights.integer("group_size", low=-1, high=_HIGH_GROUP, default=0)),
                weights.flag("symmetric", default=True),
                _integer(weights),
                _activation_bits(group),
                _block(weights, "block_structure"),
            )
        )
        targets.update(_patterns(group, "targets"))
    if len(found) != 1:
        raise ConfigError(section.path("config_groups"), "has several precisions", *_MIXED)
    bits, size, symmetric, integer, activation_bits, block = found.pop()
    micro = size == _MX_GROUP and "mxfp4" in section.text("format")
    return CheckpointPrecision(
        method="mxfp4" if micro else method,
        weight_bits=bits,
        group_size=size,
        ignored=_patterns(section, "ignore"),
        symmetric=symmetric,
        # "Linear" is a class, and every matrix counted here is of it.
        targets=tuple(sorted(targets - {"Linear"})) if "Linear" not in targets else (),
        integer=integer,
        activation_bits=activation_bits,
        block=block,
    )


def _integer(weights: Reader) -> bool:
    """Whether a group's weights are whole numbers, which is compressed-tensors' default."""
    kind = weights.text("type", default="int")
    if kind not in ("int", "float"):
        raise weights.wrong("type", kind, "int or float")
    return kind == "int"


def _activation_bits(group: Reader) -> int:
    """Bits that a group's inputs are quantized to; 16 where they are left alone."""
    inputs = group.section("input_activations")
    return 16 if inputs is None else inputs.integer("num_bits", low=1, high=16)


def _bitsandbytes(section: Reader, method: str) -> CheckpointPrecision:
    ignored = _patterns(section, "llm_int8_skip_modules")
    if section.flag("load_in_8bit", "_load_in_8bit", default=False):
        return CheckpointPrecision(
            method=method, weight_bits=8, ignored=ignored, integer=True, activation_bits=8
        )
    double = section.flag("bnb_4bit_use_double_quant", default=False)
    scale = _BNB_DOUBLE_SCALE if double else _BNB_SCALE
    return CheckpointPrecision(method=method, weight_bits=4 + scale, ignored=ignored)


_METHODS: Mapping[str, Callable[[Reader, str], CheckpointPrecision]] = {
    "fp8": _float8,
    "fbgemm-fp8": _float8,
    "gptq": _gptq,
    "awq": _awq,
    "auto-round": _gptq,
    "mxfp4": _mxfp4,
    "modelopt": _modelopt,
    "modelopt-fp4": _modelopt,
    "compressed-tensors": _compressed,
    "bitsandbytes": _bitsandbytes,
}
