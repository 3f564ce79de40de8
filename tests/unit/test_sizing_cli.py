"""`shardwright memory`: one shape, as text and for machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from shardwright.cli.app import app
from shardwright.sizing.catalogue import catalogue_config


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["memory", *arguments])


def answer(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def config(tmp_path: Path) -> str:
    file = tmp_path / "Llama-3.1-8B" / "config.json"
    file.parent.mkdir()
    file.write_text(json.dumps(dict(catalogue_config("meta-llama/Llama-3.1-8B"))))
    return str(file)


WHOLE = (
    *("--runtime", "VLLM", "--version", "0.19.0", "--gpu-memory-gib", "79.19"),
    *("--memory-fraction", "0.95", "--tensor", "1", "--weights", "BF16", "--kv-cache", "BF16"),
    *("--max-seq-len", "8192", "--max-num-tokens", "8192", "--max-batch-size", "1024"),
)


def test_the_whole_command_line(config: str) -> None:
    found = answer("--model-config", config, *WHOLE, "--pipeline", "1")
    assert found["model"] == "Llama-3.1-8B"
    assert found["constants"] == "vllm-0.17-0.19"
    (stage,) = found["stages"]
    assert stage["stage"] == 0
    assert stage["weightsGiB"] == pytest.approx(14.99, rel=0.01)
    assert stage["activationGiB"] == pytest.approx(1.89, abs=0.05)
    assert stage["runtimeGiB"] == 0.25
    assert stage["kvPoolGiB"] == pytest.approx(58.11, rel=0.01)
    assert found["kvTokens"] == stage["kvTokens"] == pytest.approx(476_016, rel=0.005)
    assert found["fits"] is True


def test_the_least_stage_decides(config: str) -> None:
    found = answer("--model-config", config, *WHOLE, "--pipeline", "2")
    tokens = [stage["kvTokens"] for stage in found["stages"]]
    assert len(tokens) == 2
    assert found["kvTokens"] == min(tokens)


@pytest.mark.parametrize("pools", [("66.54,65.63",), ("66.54", "65.63")])
def test_a_pool_for_each_stage(config: str, pools: tuple[str, ...]) -> None:
    given = [part for pool in pools for part in ("--kv-pool-gib", pool)]
    found = answer("--model-config", config, *WHOLE, "--pipeline", "2", *given)
    assert [stage["kvPoolGiB"] for stage in found["stages"]] == [66.54, 65.63]
    assert found["kvTokens"] == pytest.approx(1_075_312, rel=0.001)


def test_without_weights_the_checkpoints_own_precision_counts() -> None:
    gpu = ("--gpu-product", "NVIDIA-H100-80GB-HBM3")
    own = answer("--model", "gpt-oss-120b", *gpu)
    wide = answer("--model", "gpt-oss-120b", *gpu, "--weights", "BF16")
    assert own["stages"][0]["weightsGiB"] == pytest.approx(64.38, rel=0.06)
    assert wide["stages"][0]["weightsGiB"] > 200
    assert not wide["fits"]
    assert any("another precision needs the model's 16-bit" in note for note in wide["notes"])


def test_modelopts_own_file_is_read(config: str, tmp_path: Path) -> None:
    file = tmp_path / "hf_quant_config.json"
    file.write_text(
        json.dumps({"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}})
    )
    gpu = ("--gpu-memory-gib", "79.19")
    found = answer("--model-config", config, "--quant-config", str(file), *gpu)
    assert found["stages"][0]["weightsGiB"] == pytest.approx(8.49, rel=0.01)


def test_a_gpu_is_known_by_what_its_driver_reports(config: str) -> None:
    found = answer("--model-config", config, "--gpu-memory-gib", "79.19")
    assert any("H100-80GB reports" in note for note in found["notes"])
    other = answer("--model-config", config, "--gpu-memory-gib", "60")
    assert any("not on this GPU" in note for note in other["notes"])


def test_text_names_tokens_requests_and_constants() -> None:
    result = run("--model", "llama-3.1-70b", "--gpu-product", "NVIDIA-H200", "--tensor", "2")
    assert result.exit_code == 0
    assert "requests of 8,192 tokens" in result.stdout
    assert "Constants: vllm-0.17-0.19" in result.stdout


def test_text_says_by_how_much_it_does_not_fit() -> None:
    result = run("--model", "llama-3.1-405b", "--gpu-product", "NVIDIA-H200", "--tensor", "2")
    assert result.exit_code == 0
    assert "Does not fit: stage 0 is short of" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--gpu-memory-gib", "80"), "give either --model-config FILE or --model NAME"),
        (("--model", "llama-3.1-8b"), "give --gpu-memory-gib or --gpu-product"),
        (("--model", "llama-9", "--gpu-memory-gib", "80"), "llama-9 is not in the catalogue"),
        (
            ("--model", "llama-3.1-8b", "--gpu-memory-gib", "80", "--weights", "FP6"),
            "--weights FP6 is not one of BF16, FP8",
        ),
        (
            ("--model", "llama-3.1-8b", "--gpu-memory-gib", "80", "--kv-cache", "INT2"),
            "--kv-cache INT2 is not one of",
        ),
        (
            ("--model", "llama-3.1-8b", "--gpu-memory-gib", "80", "--memory-fraction", "1.5"),
            "--memory-fraction 1.5",
        ),
        (
            ("--model", "llama-3.1-8b", "--gpu-memory-gib", "80", "--kv-pool-gib", "a"),
            "--kv-pool-gib a",
        ),
        (
            ("--model", "llama-3.1-8b", "--gpu-memory-gib", "80", "--runtime", "ollama"),
            "runtime 'ollama' is not one of",
        ),
        (
            ("--model", "llama-3.1-8b", "--gpu-memory-gib", "-1"),
            "--gpu-memory-gib -1.0",
        ),
        (("--model-config", "missing.json", "--gpu-memory-gib", "80"), "missing.json"),
    ],
)
def test_a_wrong_option_is_told_with_what_to_write(arguments: tuple[str, ...], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.output
