"""The stand-ins' adapters: each server's own endpoints and refusals, and tokens of W + s B A."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from shardwright_standin.ports import reserved
from tests.standin.running import Machine, ask
from tests.support.adapters import adapter, peft_config, write

pytest.importorskip("numpy")

PROMPT = "The capital of France is"
SIZES = {"q_proj": (64, 64), "v_proj": (64, 32), "up_proj": (64, 128)}
MODULES = tuple(SIZES)


def expected(model: Path, folder: Path | None, prompt: str = PROMPT, tokens: int = 12) -> str:
    """What the whole model says with an adapter's update, greedily."""
    from shardwright_standin.model import (  # noqa: PLC0415 - after the path is set
        adapter as updates,
    )
    from shardwright_standin.model import geometry, make, network, shards, tokenizer  # noqa: PLC0415

    shape, place = geometry.read(model), shards.Place(0, 1, 1)
    weights: Mapping[str, Any] = shards.cut(make.read(model), shape, place)
    if folder is not None:
        weights = updates.adapted(weights, folder, shape, place, MODULES)
    whole = network.Shard.load(shape, place, weights)
    found = network.generate(whole, tokenizer.encode(prompt), tokens)
    return tokenizer.decode(token for token in found if token != tokenizer.EOS)


def put(folder: Path, seed: int = 1, **changes: Any) -> Path:
    return write(folder, {**adapter(SIZES, layers=4, seed=seed), **changes})


def say(url: str, name: str, **more: Any) -> tuple[int, str]:
    body = {"model": name, "prompt": PROMPT, "max_tokens": 12, **more}
    status, content = ask(f"{url}/v1/completions", body)
    return status, content["choices"][0]["text"] if status == 200 else str(content)


@contextmanager
def serving(machine: Machine, words: list[str], **env: str) -> Iterator[str]:
    url = f"http://127.0.0.1:{words[words.index('--port') + 1]}"
    with machine.started(*words, **env) as program:
        program.until(f"{url}/health")
        yield url


def vllm(model: Path, *words: str) -> list[str]:
    port = str(reserved())
    return ["vllm", "serve", str(model), "--served-model-name", "tiny", "--port", port, *words]


LORA = ("--enable-lora", "--max-lora-rank", "16", "--lora-target-modules", *MODULES)
UPDATING = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}


def test_vllm_serves_each_adapter_under_its_name_over_two_stages(
    machine: Machine, model: Path, tmp_path: Path
) -> None:
    a, b = put(tmp_path / "a", 1), put(tmp_path / "b", 2)
    words = vllm(model, *LORA, "-tp", "2", "-pp", "2")
    with serving(machine, words, **UPDATING) as url:
        for name, folder in (("a", a), ("b", b)):
            body = {"lora_name": name, "lora_path": str(folder)}
            assert ask(f"{url}/v1/load_lora_adapter", body)[0] == 200
        answers = {name: say(url, name)[1] for name in ("tiny", "a", "b")}
        assert answers == {
            "tiny": expected(model, None),
            "a": expected(model, a),
            "b": expected(model, b),
        }
        assert len(set(answers.values())) == 3
        cards = ask(f"{url}/v1/models")[1]["data"]
        assert {card["id"]: card["root"] for card in cards if card["parent"]} == {
            "a": str(a),
            "b": str(b),
        }


def test_vllm_refuses_in_its_own_words(machine: Machine, model: Path, tmp_path: Path) -> None:
    good, wide = put(tmp_path / "good"), put(tmp_path / "wide")
    write(wide, {"adapter_config.json": peft_config(64, MODULES)})
    other = write(tmp_path / "other", adapter({"q_proj": (128, 128)}, layers=1))
    with serving(machine, vllm(model, *LORA), **UPDATING) as url:

        def load(name: str, folder: Path | str) -> tuple[int, str]:
            body = {"lora_name": name, "lora_path": str(folder)}
            status, content = ask(f"{url}/v1/load_lora_adapter", body)
            return status, content if status == 200 else content["error"]["message"]

        assert load("good", good)[0] == 200
        assert load("good", good)[0] == 400
        assert load("tiny", good) == (
            400,
            "The lora adapter 'tiny' conflicts with a served base model.",
        )
        assert load("wide", wide) == (500, "LoRA rank 64 is greater than max_lora_rank 16.")
        assert load("other", other)[0] == 500
        assert load("none", tmp_path / "none")[0] == 404
        assert say(url, "wide")[0] == 404
        unload = f"{url}/v1/unload_lora_adapter"
        assert ask(unload, {"lora_name": "good"})[0] == 200
        assert ask(unload, {"lora_name": "good"})[0] == 404
        assert say(url, "tiny") == (200, expected(model, None))


def test_vllm_without_the_variable_has_no_such_endpoint(machine: Machine, model: Path) -> None:
    with serving(machine, vllm(model, *LORA)) as url:
        assert ask(f"{url}/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/a"})[0] == 404


def sglang(model: Path, *words: str) -> list[str]:
    program = ["python3", "-m", "sglang.launch_server", "--model-path", str(model)]
    return [*program, "--served-model-name", "tiny", "--port", str(reserved()), *words]


def with_standin(machine: Machine) -> dict[str, str]:
    path = str(machine.root / "usr/local/lib/shardwright-standin")
    kept = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": f"{path}:{kept}" if kept else path}


def test_sglang_takes_adapters_behind_a_colon_and_refuses_in_its_own_words(
    machine: Machine, model: Path, tmp_path: Path
) -> None:
    a, wide = put(tmp_path / "a"), put(tmp_path / "wide")
    write(wide, {"adapter_config.json": peft_config(64, MODULES)})
    with serving(machine, sglang(model, *LORA), **with_standin(machine)) as url:

        def load(name: str, folder: Path) -> tuple[int, Any]:
            return ask(f"{url}/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})

        status, content = load("a", a)
        assert (status, content["loaded_adapters"]) == (200, {"a": str(a)})
        assert say(url, "tiny:a") == (200, expected(model, a))
        assert say(url, "tiny", lora_path="a") == (200, expected(model, a))
        assert say(url, "tiny") == (200, expected(model, None))
        status, content = load("wide", wide)
        assert status == 400
        assert "incompatible with the current LoRA memory pool" in content["error_message"]
        assert "already loaded" in load("a", a)[1]["error_message"]
        assert ask(f"{url}/unload_lora_adapter", {"lora_name": "a"})[0] == 200
        status, text = say(url, "tiny:a")
        assert status == 400
        assert "not loaded" in text
        assert ask(f"{url}/unload_lora_adapter", {"lora_name": "a"})[0] == 400


def test_sglang_needs_rank_and_modules_when_no_adapter_is_given(
    machine: Machine, model: Path
) -> None:
    done = machine.run(*sglang(model, "--enable-lora"), **with_standin(machine))
    assert done.returncode != 0
    assert "you need to specify both --max-lora-rank" in done.stderr


def test_an_engine_takes_what_it_was_built_for_by_the_folder_of_a_request(
    mpi_machine: Machine, model: Path, tmp_path: Path
) -> None:
    machine = mpi_machine
    a, wide = put(tmp_path / "a"), put(tmp_path / "wide")
    write(wide, {"adapter_config.json": peft_config(64, MODULES)})
    checkpoint, built = tmp_path / "checkpoint", tmp_path / "tiny"
    machine.good(
        *("python3", "/app/tensorrt_llm/examples/models/core/llama/convert_checkpoint.py"),
        *("--model_dir", str(model), "--output_dir", str(checkpoint), "--tp_size", "2"),
    )
    machine.good(
        *("trtllm-build", "--checkpoint_dir", str(checkpoint), "--output_dir", str(built)),
        *("--lora_plugin", "auto", "--max_lora_rank", "16"),
        *("--lora_target_modules", "attn_q", "attn_v", "mlp_gate"),
    )
    config = json.loads((built / "config.json").read_text())["build_config"]
    assert config["lora_config"]["max_lora_rank"] == 16
    port = str(reserved())
    words = ["trtllm-serve", str(built), "--backend", "tensorrt", "--tokenizer", str(model)]
    with serving(machine, [*words, "--tp_size", "2", "--port", port]) as url:

        def named(folder: Path, number: int) -> dict[str, Any]:
            lora = {"lora_name": "x", "lora_int_id": number, "lora_path": str(folder)}
            return {"lora_request": lora}

        assert say(url, "tiny", **named(a, 1)) == (200, expected(model, a))
        assert say(url, "tiny") == (200, expected(model, None))
        status, text = say(url, "tiny", **named(wide, 2))
        assert status == 400
        assert "exceeds mMaxLowRank 16" in text
        assert say(url, "tiny", **named(tmp_path / "none", 3))[0] == 400
