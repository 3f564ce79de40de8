"""Checkpoints and engines: the real layout, and every refusal of a file that does not fit."""

# ruff: noqa: E402 - what is below needs numpy, which this environment may lack
from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy", reason="the stand-in's arithmetic needs numpy")

from hypothesis import given
from hypothesis import strategies as st
from shardwright_standin import contracts, gpu, identity
from shardwright_standin.model import geometry, make, tensorfile
from shardwright_standin.model.shards import Place
from shardwright_standin.tools import build
from shardwright_standin.trtllm import checkpoint, engine, options, quantization

from shardwright.runner.contract import checkpoint_files, engine_files

(H100,) = gpu.visible({gpu.VISIBLE: "3"})
(A100,) = gpu.visible({gpu.VISIBLE: "0", gpu.PRODUCT: "NVIDIA-A100-SXM4-80GB"})
(H200,) = gpu.visible({gpu.VISIBLE: "0", gpu.PRODUCT: "NVIDIA-H200"})


def build_values(**changes: Any) -> dict[str, Any]:
    """`trtllm-build` with its defaults."""
    flags = contracts.load("trtllm-build")["flags"]
    defaults = {flag.lstrip("-"): entry.get("default") for flag, entry in flags.items()}
    return {**defaults, "max_batch_size": 8, "max_seq_len": 512, **changes}


@pytest.fixture
def tp2_pp2(model: Path, tmp_path: Path) -> Path:
    """A checkpoint of two by two ranks."""
    shape = geometry.read(model)
    precision = checkpoint.Precision("bfloat16")
    checkpoint.write(tmp_path / "checkpoint", shape, make.read(model), (2, 2), precision)
    return tmp_path / "checkpoint"


@pytest.fixture
def built(tp2_pp2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An engine of it, for the H100."""
    monkeypatch.setattr(os, "environ", {**os.environ, gpu.VISIBLE: "0,1"})
    build.build(tp2_pp2, tmp_path / "engine", build_values())
    return tmp_path / "engine"


def test_a_checkpoint_has_the_files_and_keys_the_runner_looks_for(tp2_pp2: Path) -> None:
    assert {path.name for path in tp2_pp2.iterdir()} == set(checkpoint_files(4))
    config = json.loads((tp2_pp2 / "config.json").read_text())
    mapping = config["mapping"]
    assert (mapping["world_size"], mapping["tp_size"], mapping["pp_size"]) == (4, 2, 2)
    assert config["architecture"] == "LlamaForCausalLM"
    assert config["quantization"]["quant_algo"] is None
    names = set(tensorfile.read(tp2_pp2 / "rank0.safetensors"))
    assert "transformer.vocab_embedding.weight" in names
    assert "transformer.layers.1.mlp.proj.weight" in names
    assert "lm_head.weight" not in names
    last = set(tensorfile.read(tp2_pp2 / "rank3.safetensors"))
    assert "transformer.layers.0.attention.qkv.weight" in last
    assert "lm_head.weight" in last


def test_an_engine_has_the_real_layout_and_its_config_knows_no_gpu(built: Path) -> None:
    assert {path.name for path in built.iterdir()} == set(engine_files(4))
    text = (built / "config.json").read_text()
    content = json.loads(text)
    assert set(content) == {"version", "pretrained_config", "build_config"}
    assert content["version"] == "1.2.1"
    assert content["pretrained_config"]["mapping"]["world_size"] == 4
    assert content["build_config"]["max_batch_size"] == 8
    assert content["build_config"]["plugin_config"]["use_paged_context_fmha"] is True
    assert "H100" not in text
    assert "10.14" not in text


def read(folder: Path, rank: int = 0, device: gpu.GPU = H100) -> list[str]:
    """Load one rank of a TP2 × PP2 engine; its warnings."""
    return engine.read_rank(folder, Place(rank, 2, 2), device)[1]


def test_each_rank_s_engine_loads_on_the_same_product(built: Path) -> None:
    for rank in range(4):
        assert read(built, rank) == []


def test_another_product_of_the_same_compute_capability_is_a_warning(built: Path) -> None:
    (warning,) = read(built, device=H200)
    assert "across different models of devices" in warning


def test_another_compute_capability_is_refused_with_both(built: Path) -> None:
    with pytest.raises(
        engine.EngineError, match=r"expecting compute 8\.0 got compute 9\.0, please"
    ):
        read(built, device=A100)


def test_another_tensorrt_is_refused_with_both_tags(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ, identity.VERSION: "1.1.0"})
    with pytest.raises(
        engine.EngineError,
        match=r"Version tag does not match.* Version: 1013, Serialized Engine Version: 1014",
    ):
        read(built)


def test_a_missing_rank_file_is_named(built: Path) -> None:
    (built / "rank2.engine").unlink()
    with pytest.raises(engine.EngineError, match=r"Error opening engine file: .*/rank2\.engine"):
        read(built, 2)


@pytest.mark.parametrize("left", [0, 5, 12, 100, 5_000, -1])
def test_a_cut_rank_file_is_refused_wherever_it_is_cut(built: Path, left: int) -> None:
    path = built / "rank1.engine"
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(engine.EngineError, match="Failed to deserialize cuda engine"):
        read(built, 1)


def test_a_flipped_byte_is_refused(built: Path) -> None:
    path = built / "rank1.engine"
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    with pytest.raises(engine.EngineError, match="checksum"):
        read(built, 1)


def test_another_rank_s_file_under_this_name_is_refused(built: Path) -> None:
    (built / "rank0.engine").write_bytes((built / "rank2.engine").read_bytes())
    with pytest.raises(engine.EngineError, match="is of rank 2 of 4, loaded as rank 0 of 4"):
        read(built)


def test_an_engine_of_another_world_is_refused_with_both_sizes(built: Path) -> None:
    config = engine.read_config(built)
    engine.check_world(config, 4)
    with pytest.raises(engine.EngineError, match=r"MPI size 2 != TP size 2 \* PP size 2 \* CP"):
        engine.check_world(config, 2)


@pytest.mark.parametrize(("tensor", "pipeline"), [(4, 1), (2, 4), (4, 2)])
def test_asking_for_another_split_than_the_engine_s_is_refused(
    built: Path, tensor: int, pipeline: int
) -> None:
    with pytest.raises(engine.EngineMismatchError, match="is not consistent with the engine's"):
        engine.check_split(engine.read_config(built), tensor, pipeline)


def test_a_size_of_one_takes_the_engine_s_silently(built: Path) -> None:
    engine.check_split(engine.read_config(built), 1, 1)


def test_building_without_a_gpu_fails_as_the_real_builder(
    tp2_pp2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {k: v for k, v in os.environ.items() if k != gpu.VISIBLE})
    with pytest.raises(ZeroDivisionError):
        build.build(tp2_pp2, tmp_path / "engine", build_values())


def test_an_fp8_checkpoint_is_not_built_on_a_gpu_without_fp8(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = geometry.read(model)
    source = tmp_path / "fp8"
    checkpoint.write(
        source, shape, make.read(model), (1, 1), checkpoint.Precision("bfloat16", "FP8")
    )
    variables = {**os.environ, gpu.VISIBLE: "0", gpu.PRODUCT: "NVIDIA-A100-SXM4-80GB"}
    monkeypatch.setattr(os, "environ", variables)
    with pytest.raises(RuntimeError, match=r"FP8 support; NVIDIA A100.* compute capability 8\.0"):
        build.build(source, tmp_path / "engine", build_values())


def test_a_checkpoint_that_misses_a_rank_is_not_built(built: Path, tp2_pp2: Path) -> None:
    (tp2_pp2 / "rank3.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="rank3"):
        build.build(tp2_pp2, built.parent / "other", build_values())
    assert not (built.parent / "other" / "config.json").exists()


@pytest.mark.parametrize("qformat", sorted(quantization.SCHEMES))
def test_rounding_moves_weights_but_little_and_does_not_depend_on_the_cut(
    qformat: str, model: Path
) -> None:
    weights = make.read(model)
    rounded = quantization.apply(weights, qformat, 32)
    name = "model.layers.0.mlp.down_proj.weight"
    moved = float(np.abs(rounded[name] - weights[name]).max())
    if qformat == "full_prec":
        assert moved == 0
    else:
        assert 0 < moved < 0.3 * float(np.abs(weights[name]).max())
        again = quantization.apply(rounded, qformat, 32)[name]
        assert np.allclose(again, rounded[name], atol=1e-6)
    assert np.array_equal(rounded["lm_head.weight"], weights["lm_head.weight"])


def test_fp8_rounds_to_numbers_that_e4m3_has() -> None:
    """Every value over its scale is a multiple of its binade's eighth, and 448 at most."""
    weight = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)
    scale = float(np.abs(weight).max()) / 448
    rounded = quantization.SCHEMES["fp8"].round(weight, 0) / scale
    assert float(np.abs(rounded).max()) == pytest.approx(448)
    size = np.maximum(np.abs(rounded), 2.0**-6)
    steps = rounded / np.exp2(np.floor(np.log2(size * (1 + 1e-6))) - 3)
    assert np.allclose(steps, np.round(steps), atol=1e-3)


@given(st.binary(max_size=200))
def test_garbage_is_no_tensor_file(data: bytes) -> None:
    with pytest.raises(tensorfile.TensorFileError):
        tensorfile.decode(data, "garbage")


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_tensors_come_back_as_they_were_written(dtype: str) -> None:
    tensors = {"a": np.array([[0.5, -2.0], [0.0, 1.25]], np.float32), "b": np.ones(3, np.float32)}
    back = tensorfile.decode(tensorfile.encode(tensors, dtype), "memory")
    assert {name: value.tolist() for name, value in back.items()} == {
        name: value.tolist() for name, value in tensors.items()
    }


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_values_that_would_change_are_not_stored(dtype: str) -> None:
    with pytest.raises(tensorfile.TensorFileError, match=f"do not fit {dtype} without rounding"):
        tensorfile.encode({"a": np.array([0.1], np.float32)}, dtype)


def test_the_model_is_the_same_bytes_for_the_same_seed(tmp_path: Path) -> None:
    for name, seed in (("one", 0), ("two", 0), ("other", 1)):
        make.write(tmp_path / name, seed=seed)
    one, two, other = (
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two", "other")
    )
    assert one == two
    assert one != other


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"hidden_size": 8192}, "hidden_size 8192 exceeds 1024"),
        ({"num_attention_heads": 6}, "not both powers of two"),
        ({"vocab_size": 265}, "no multiples of num_attention_heads"),
        ({"num_hidden_layers": "4"}, "num_hidden_layers is '4'"),
        ({"bos_token_id": None}, "bos_token_id is None"),
    ],
)
def test_a_model_that_cannot_run_here_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(geometry.GeometryError, match=complaint):
        geometry.from_config({**make.config(), **changes})


@pytest.mark.parametrize(
    ("text", "backend", "complaint"),
    [
        ("max_batch: 3", "tensorrt", "max_batch\n  Extra inputs are not permitted"),
        ("kv_cache_config: {fraction: 1}", "tensorrt", r"kv_cache_config\.fraction\n  Extra"),
        ("attn_backend: TRTLLM", "tensorrt", "TrtLlmArgs\nattn_backend\n  Extra inputs"),
        ("max_batch_size: many", "pytorch", "max_batch_size\n  Input should be a valid integer"),
        ("max_batch_size: true", "pytorch", "Input should be a valid integer"),
        ("load_format: fast", "pytorch", "Input should be 'auto', 'dummy'"),
        ("[1]", "pytorch", "not an object of options"),
    ],
)
def test_an_option_that_is_not_recorded_is_a_validation_error(
    text: str, backend: str, complaint: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(options.OptionsError, match=complaint):
        options.load(path, backend)


def test_the_file_wins_over_the_command_line_and_the_kv_block_is_merged() -> None:
    given_words = {"max_batch_size": 1, "kv_cache_config": {"free_gpu_memory_fraction": 0.9}}
    asked = {"max_batch_size": 2, "kv_cache_config": {"enable_block_reuse": False}}
    assert options.merge(given_words, asked) == {
        "max_batch_size": 2,
        "kv_cache_config": {"free_gpu_memory_fraction": 0.9, "enable_block_reuse": False},
    }
