"""Which files of a model are fetched: weights in safetensors, and the texts around them.

Weights in pickle form are never fetched: unpickling executes what is in them. A model that comes in
no other form is refused. Weights that come twice are fetched once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from shardwright.fetching.failures import REASON_UNSAFE_WEIGHTS, FetchError, permanent
from shardwright.fetching.remote import RemoteFile
from shardwright.runner.contract import REASON_MODEL_NOT_FOUND

WEIGHTS = ".safetensors"
CONFIG = "config.json"
PICKLES = frozenset({".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth"})
_OTHER_WEIGHTS = frozenset({".gguf", ".h5", ".msgpack", ".onnx", ".ot", ".tflite"})
# Configuration, tokenizers (SentencePiece, tiktoken, merges), chat templates, and the modules that
# `model.trustRemoteCode` speaks of. Nothing of it is executed here.
_TEXTS = frozenset({".jinja", ".json", ".model", ".py", ".tiktoken", ".txt", ".yaml", ".yml"})
_PICKLE_INDEX = re.compile(r".*\.(bin|pt|pth|ckpt)\.index\.json")
# A licence goes with every copy.
LICENCES = ("LICENSE", "LICENCE", "NOTICE", "COPYING", "USE_POLICY")
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
_ADAPTER = "adapter_config.json"


def choose(files: Sequence[RemoteFile], where: str) -> tuple[RemoteFile, ...]:
    """The files that are needed, texts first, weights by name.

    Args:
        files: All files of the source.
        where: The uri, for messages.

    Raises:
        FetchError: There is no config.json, or no safetensors.
    """
    names = {file.name for file in files}
    if CONFIG not in names:
        raise permanent(
            REASON_MODEL_NOT_FOUND,
            f"{where} holds no {CONFIG} ({len(files)} files): model.uri must name a folder in "
            "Hugging Face form",
        )
    weights = [file for file in files if is_weight(file.name) and _is_wanted(file.name, names)]
    if not any("/" not in file.name for file in weights):
        raise _no_weights(files, where)
    texts = [file for file in files if _is_text(file.name)]
    by_name = sorted(texts, key=lambda file: file.name)
    return (*by_name, *sorted(weights, key=lambda file: file.name))


def is_weight(name: str) -> bool:
    """Whether a file holds weights; the rest is read before any of them is fetched."""
    return name.endswith(WEIGHTS)


def _is_wanted(name: str, names: set[str]) -> bool:
    """Whether a weight file is loaded by runtimes: once, and not an original form in a subfolder.

    Mistral's repositories hold the same weights a second time as `consolidated*.safetensors`,
    others as one file beside its shards. An adapter's folder is known by its configuration.
    """
    path = PurePosixPath(name)
    if len(path.parts) > 1:
        return f"{path.parent}/{_ADAPTER}" in names
    if name.startswith("consolidated"):
        return not any(
            other.startswith("model") and is_weight(other) and "/" not in other for other in names
        )
    if name == f"model{WEIGHTS}":
        return not any(_SHARD.fullmatch(other) for other in names)
    return True


def _is_text(name: str) -> bool:
    base = PurePosixPath(name).name
    if _PICKLE_INDEX.fullmatch(base):
        return False
    suffix = PurePosixPath(base).suffix.lower()
    if suffix in _TEXTS:
        return True
    # tokenizer.model.v3 and the like
    if base.startswith("tokenizer"):
        return suffix not in PICKLES | _OTHER_WEIGHTS
    return base.upper().startswith(LICENCES)


def _no_weights(files: Sequence[RemoteFile], where: str) -> FetchError:
    # The model's own folder first: that is the file that its reader knows.
    names = sorted((file.name for file in files), key=lambda name: (name.count("/"), name))
    pickles = [name for name in names if PurePosixPath(name).suffix.lower() in PICKLES]
    if pickles:
        return permanent(
            REASON_UNSAFE_WEIGHTS,
            f"{where} has its weights as pickles only ({len(pickles)} files, first {pickles[0]}), "
            "and loading a pickle executes what is in it; name a repository or revision with "
            "*.safetensors, or convert it",
        )
    others = [name for name in names if PurePosixPath(name).suffix.lower() in _OTHER_WEIGHTS]
    found = f"; it has {others[0]}, which is not served" if others else ""
    return permanent(
        REASON_MODEL_NOT_FOUND, f"{where} has no *.safetensors beside its {CONFIG}{found}"
    )
