"""The stand-ins' tiny model, and what it says unsharded: the reference for every split of it."""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.standin import running

from shardwright.runner.steps import perplexity

STANDIN = running.REPOSITORY / "sandbox" / "standin"
ANSWER_TOKENS = 12

_REFERENCE = """\
import json, sys
from pathlib import Path
from shardwright_standin.model import adapter, geometry, make, network, shards, tokenizer
from shardwright_standin.trtllm import quantization

folder, prompts, budget = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
shape, place = geometry.read(folder), shards.Place(0, 1, 1)
asked = json.loads(sys.argv[5])
weights = quantization.apply(make.read(folder), asked["qformat"], 128)
part = shards.cut(weights, shape, place)
if asked["adapter"]:
    update = Path(asked["adapter"])
    modules = tuple(adapter.read_config(update)["target_modules"])
    part = adapter.adapted(part, update, shape, place, modules)
whole = network.Shard.load(shape, place, part)


def answer(prompt):
    turns = [{"role": "user", "content": prompt}]
    asked = tokenizer.encode_chat(turns) if sys.argv[4] == "chat" else tokenizer.encode(prompt)
    tokens = network.generate(whole, asked, budget)
    return tokenizer.decode(token for token in tokens if token != tokenizer.EOS)


print(json.dumps({prompt: answer(prompt) for prompt in prompts}))
"""

_LIKELIHOOD = """\
import json, sys
from pathlib import Path
from shardwright_standin.model import geometry, likelihood, make, network, shards, tokenizer
from shardwright_standin.trtllm import quantization

folder, qformat, texts = Path(sys.argv[1]), sys.argv[2], json.load(sys.stdin)
shape, place = geometry.read(folder), shards.Place(0, 1, 1)
weights = quantization.apply(make.read(folder), qformat, 128)
whole = network.Shard.load(shape, place, shards.cut(weights, shape, place))
print(json.dumps([likelihood.log_probabilities(whole, tokenizer.encode(text)) for text in texts]))
"""

# AutoAWQ's form as Llama 3.1 70B is published in it
# (huggingface.co/hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4, config.json), but for the
# group, which must fit a rank of the tiny model. As in the stand-ins' own checkpoints the rounded
# weights are stored as they are, not packed.
_AWQ = """\
import json, sys
from pathlib import Path
from shardwright_standin.model import make, tensorfile
from shardwright_standin.trtllm import quantization

folder, group = Path(sys.argv[1]), int(sys.argv[2])
weights = quantization.apply(make.read(folder), "int4_awq", group)
(folder / "model.safetensors").write_bytes(tensorfile.encode(weights, "F32"))
path = folder / "config.json"
config = json.loads(path.read_text())
config["quantization_config"] = {
    "bits": 4,
    "group_size": group,
    "modules_to_not_convert": None,
    "quant_method": "awq",
    "version": "gemm",
    "zero_point": True,
}
config["torch_dtype"] = "float16"
path.write_text(json.dumps(config))
"""

# As Model Optimizer leaves a checkpoint
# (huggingface.co/nvidia/Llama-3.3-70B-Instruct-FP8, hf_quant_config.json).
_FP8 = """\
import json, sys
from pathlib import Path
from shardwright_standin.model import make, tensorfile
from shardwright_standin.trtllm import quantization

folder = Path(sys.argv[1])
weights = quantization.apply(make.read(folder), "fp8", 0)
(folder / "model.safetensors").write_bytes(tensorfile.encode(weights, "F32"))
told = {
    "producer": {"name": "modelopt", "version": "0.23.0"},
    "quantization": {
        "quant_algo": "FP8",
        "kv_cache_quant_algo": "FP8",
        "exclude_modules": ["lm_head"],
    },
}
(folder / "hf_quant_config.json").write_text(json.dumps(told))
"""

# As many tokens as Llama 3.1 and 3.3 take: the limits of the examples fit into it.
POSITIONS = 131072


def make_model(folder: Path, *, seed: int = 0, layers: int = 4) -> Path:
    """Write the tiny model into a folder, which is made; the test is skipped without numpy."""
    size = ("--seed", str(seed), "--layers", str(layers))
    _run("-m", "shardwright_standin.model.make", str(folder), *size)
    return folder


def make_long_model(folder: Path) -> Path:
    """The tiny model, for texts of `POSITIONS` tokens; what it says is the same."""
    path = make_model(folder) / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, "max_position_embeddings": POSITIONS}), encoding="utf-8")
    return folder


def make_awq_model(folder: Path, group: int = 16) -> Path:
    """The tiny model in four bits, for long texts; `group` weights share a scale."""
    make_long_model(folder)
    _run("-c", _AWQ, str(folder), str(group))
    return folder


def make_fp8_model(folder: Path) -> Path:
    """The tiny model in FP8, for long texts."""
    make_long_model(folder)
    _run("-c", _FP8, str(folder))
    return folder


def unsharded(
    folder: Path,
    prompts: Sequence[str],
    tokens: int = ANSWER_TOKENS,
    *,
    chat: bool = True,
    qformat: str = "full_prec",
    adapter: Path | None = None,
    distinct: bool = True,
) -> dict[str, str]:
    """What the whole model answers to each prompt, greedily; equal texts are equal tokens.

    Prompts are turns of a chat, or texts to be gone on with. The model is rounded first as
    `quantize.py --qformat` rounds it, and an adapter's update is added to it. Answers that are too
    short to differ are asked for with `distinct` false.
    """
    form = "chat" if chat else "text"
    asked = json.dumps({"qformat": qformat, "adapter": str(adapter or "")})
    told = _run("-c", _REFERENCE, str(folder), json.dumps(list(prompts)), str(tokens), form, asked)
    answers: dict[str, str] = json.loads(told)
    # Equal answers would not tell a rank's fault.
    assert not distinct or len(set(answers.values())) == len(prompts)
    return answers


def unsharded_log_probabilities(
    folder: Path, texts: Sequence[str], qformat: str = "full_prec"
) -> list[list[float]]:
    """Of each text, the log probability of each token but the first, by the whole model.

    It is given one token at a time, so nothing of how a server takes a prompt in is in it. The
    model is rounded first as `quantize.py --qformat` rounds it.
    """
    told = _run("-c", _LIKELIHOOD, str(folder), qformat, given=json.dumps(list(texts)))
    found: list[list[float]] = json.loads(told)
    return found


def unsharded_perplexity(
    folder: Path,
    text: str,
    passage_bytes: int,
    passages: int = 0,
    qformat: str = "full_prec",
) -> float:
    """What the runner's perplexity of a text is with the whole model, to the last bit.

    Args:
        folder: The model's.
        text: What is measured.
        passage_bytes: Of a passage at most.
        passages: Of the text's beginning at most; 0 for all of it.
        qformat: As of `quantize.py`.
    """
    cut = list(perplexity.passages(text, passage_bytes))[: passages or None]
    found = unsharded_log_probabilities(folder, cut, qformat)
    return math.exp(sum(-sum(own) for own in found) / sum(map(len, found)))


def _run(*words: str, given: str = "") -> str:
    python = running.interpreter("numpy")
    if not python:
        pytest.skip("no Python has numpy")
    path = os.pathsep.join(part for part in (str(STANDIN), os.environ.get("PYTHONPATH")) if part)
    done = subprocess.run(
        [python, *words],
        env={**os.environ, "PYTHONPATH": path},
        check=True,
        capture_output=True,
        text=True,
        input=given,
    )
    return done.stdout
