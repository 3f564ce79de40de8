"""Which modules of a pre-quantized checkpoint stay in 16 bits, by the names its config lists.

Every tool writes the list its own way: plain module names (fp8, fbgemm_fp8, GPTQ), shell patterns
(ModelOpt, MXFP4) or regular expressions after `re:` (compressed-tensors). A config.json comes from
anyone, so no expression of it is ever run: the subset that the tools write is turned into shell
patterns, and the rest is refused by name.
"""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Callable, Iterator

# What model families call the same module; the right side is what `modules` calls it.
_SYNONYMS = {
    "h": "layers",
    "blocks": "layers",
    "attention": "self_attn",
    "attn": "self_attn",
    "self_attention": "self_attn",
    "block_sparse_moe": "mlp",
    "feed_forward": "mlp",
    "moe": "mlp",
    "shared_expert": "shared_experts",
    "router": "gate",
    "w1": "gate_proj",
    "w2": "down_proj",
    "w3": "up_proj",
    "fc1": "up_proj",
    "fc2": "down_proj",
    "dense_h_to_4h": "up_proj",
    "dense_4h_to_h": "down_proj",
    "dense": "o_proj",
    "kv_a_proj": "kv_a_proj_with_mqa",
}
# One module in the file, several here.
_FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "query_key_value": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
_ROOTS = ("model.", "language_model.", "transformer.", "backbone.", "text_model.", "decoder.")
_GLOB = frozenset("*?[")
_ALTERNATIVES = re.compile(r"\((?:\?:)?([\w.|]+)\)")
_DIGITS = re.compile(r"\\d\+|\[0-9\]\+|\\d|\[0-9\]")
_LITERAL = re.compile(r"[\w.*?\-]*")
_MOST_ALTERNATIVES = 64
# Patterns that every module of every layer is held against, and those of all layers together: each
# is compiled. Real lists name a few a layer.
MOST_PATTERNS = 256
MOST_OF_LAYERS = 4096
_OF_LAYER = re.compile(r"layers\.(\d+)\.")


def globs_of(pattern: str) -> tuple[str, ...]:
    """The shell patterns that mean the same as an entry of an ignore list.

    Raises:
        ValueError: A regular expression outside the subset of literals, dots, digits, `.*`, `^`,
            `$` and groups of alternatives.
    """
    if not pattern.startswith("re:"):
        return tuple(_canonical(pattern))
    expression = pattern.removeprefix("re:")
    return tuple(name for text in _alternatives(expression) for name in _canonical(_glob(text)))


def _alternatives(expression: str) -> list[str]:
    texts = [expression]
    while any(_ALTERNATIVES.search(text) for text in texts):
        texts = [
            text[: found.start()] + choice + text[found.end() :]
            for text in texts
            if (found := _ALTERNATIVES.search(text))
            for choice in found.group(1).split("|")
        ]
        if len(texts) > _MOST_ALTERNATIVES:
            raise ValueError(f"more than {_MOST_ALTERNATIVES} alternatives")
    return texts


def _glob(expression: str) -> str:
    """One regular expression without groups as a shell pattern; matching starts at the beginning.

    A run of digits becomes `*`: it may match more than digits, never less.
    """
    open_end = not expression.endswith("$")
    text = _DIGITS.sub(".*", expression.removeprefix("^").removesuffix("$"))
    text = text.replace(".*", "\0").replace(r"\.", "\1").replace(r"\-", "-")
    text = text.replace(".", "?").replace("\0", "*").replace("\1", ".")
    if not _LITERAL.fullmatch(text):
        raise ValueError("not one of the expressions that quantization tools write")
    return text + "*" if open_end and not text.endswith("*") else text


def _canonical(pattern: str) -> Iterator[str]:
    text = pattern
    while found := next((root for root in _ROOTS if text.startswith(root)), None):
        text = text.removeprefix(found)
    parts = [_SYNONYMS.get(part, part) for part in text.removesuffix(".weight").split(".")]
    for index, part in enumerate(parts):
        if part in _FUSED:
            for name in _FUSED[part]:
                yield ".".join([*parts[:index], name, *parts[index + 1 :]])
            return
    yield ".".join(parts)


def general(patterns: tuple[str, ...]) -> tuple[int, int]:
    """How many of the patterns have wildcards: those of no layer of their own, and the rest."""
    wild = [
        bool(_OF_LAYER.match(name))
        for pattern in patterns
        for name in globs_of(pattern)
        if _GLOB & set(name)
    ]
    return len(wild) - sum(wild), sum(wild)


@functools.lru_cache(maxsize=256)
def ignoring(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    """A test of whether a module's path, such as `layers.3.self_attn.q_proj`, is in the list.

    An entry names a module, everything below it, or by its last parts a kind of module.
    """
    names = [name for pattern in patterns for name in globs_of(pattern)]
    plain = frozenset(name for name in names if not _GLOB & set(name))
    wild: dict[str, list[Callable[[str], object]]] = {}
    for name in sorted(set(names) - plain):
        found = _OF_LAYER.match(name)
        match = re.compile(fnmatch.translate(f"*.{name}.*")).match
        wild.setdefault(found[1] if found else "", []).append(match)

    def ignored(path: str) -> bool:
        parts = path.split(".")
        spans = (
            ".".join(parts[start:end])
            for start in range(len(parts))
            for end in range(start + 1, len(parts) + 1)
        )
        if any(span in plain for span in spans):
            return True
        layer = _OF_LAYER.match(path)
        matches = (*wild.get("", ()), *(wild.get(layer[1], ()) if layer else ()))
        return any(match(f".{path}.") for match in matches)

    return ignored
