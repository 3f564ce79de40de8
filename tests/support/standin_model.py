"""The stand-ins' tiny model, and what it says unsharded: the reference for every split of it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.standin import running

STANDIN = running.REPOSITORY / "sandbox" / "standin"
ANSWER_TOKENS = 12

_REFERENCE = """\
import json, sys
from pathlib import Path
from shardwright_standin.model import geometry, make, network, shards, tokenizer

folder, prompts, budget = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
shape, place = geometry.read(folder), shards.Place(0, 1, 1)
whole = network.Shard.load(shape, place, shards.cut(make.read(folder), shape, place))


def answer(prompt):
    turns = [{"role": "user", "content": prompt}]
    asked = tokenizer.encode_chat(turns) if sys.argv[4] == "chat" else tokenizer.encode(prompt)
    tokens = network.generate(whole, asked, budget)
    return tokenizer.decode(token for token in tokens if token != tokenizer.EOS)


print(json.dumps({prompt: answer(prompt) for prompt in prompts}))
"""


def make_model(folder: Path) -> Path:
    """Write the tiny model into a folder, which is made; the test is skipped without numpy."""
    _run("-m", "shardwright_standin.model.make", str(folder))
    return folder


def unsharded(
    folder: Path, prompts: Sequence[str], tokens: int = ANSWER_TOKENS, *, chat: bool = True
) -> dict[str, str]:
    """What the whole model answers to each prompt, greedily; equal texts are equal tokens.

    Prompts are turns of a chat, or texts to be gone on with.
    """
    form = "chat" if chat else "text"
    told = _run("-c", _REFERENCE, str(folder), json.dumps(list(prompts)), str(tokens), form)
    answers: dict[str, str] = json.loads(told)
    # Equal answers would not tell a rank's fault.
    assert len(set(answers.values())) == len(prompts)
    return answers


def _run(*words: str) -> str:
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
    )
    return done.stdout
