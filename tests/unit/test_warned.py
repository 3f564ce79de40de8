"""What a user is told of a spec that is accepted and yet deserves a word."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.golden import specs

from shardwright.plan.warned import told
from shardwright.resolved import Room, StageRoom

L40S = "NVIDIA-L40S"


def warnings(**fields: Any) -> tuple[str, ...]:
    return told(specs.resolved(specs.spec(**fields)))


def test_a_plain_spec_deserves_none_and_keeps_the_planners_words() -> None:
    resolved = specs.resolved(specs.spec())
    assert told(resolved) == ()
    assert told(replace(resolved, reasons=("because",))) == ("because",)


@pytest.mark.parametrize("runtime", ["TensorRTLLM", "VLLM", "SGLang", "NIM"])
def test_trusted_code_is_warned_about_whatever_the_runtime(runtime: str) -> None:
    model = {"uri": "hf://org/model@main", "trustRemoteCode": True}
    (found,) = warnings(engine={"runtime": runtime}, model=model)
    assert found.startswith("warning: model.trustRemoteCode true executes Python")
    assert "hf://org/model@main" in found


@pytest.mark.parametrize("runtime", ["VLLM", "SGLang"])
def test_fp8_on_ampere_saves_memory_alone(runtime: str) -> None:
    engine = {"runtime": runtime}
    asked = {"weights": "FP8", "kvCache": "FP8"}
    found = warnings(engine=engine, quantization=asked, gpu={"product": specs.A100})
    assert len(found) == 2
    for what, line in zip(("weights FP8", "kvCache FP8"), found, strict=True):
        assert line.startswith(f"warning: quantization.{what} is unpacked to 16 bits")
        assert "8.0" in line
    for product in (L40S, specs.H100):
        assert warnings(engine=engine, quantization=asked, gpu={"product": product}) == ()


@pytest.mark.parametrize(
    ("drafts", "said"), [(159, ()), (160, ("1.0 times",)), (1440, ("9.0 times",)), (0, ())]
)
def test_a_draft_model_as_large_as_its_model_saves_nothing(
    drafts: int, said: tuple[str, ...]
) -> None:
    wish = {"method": "DraftModel", "model": {"uri": "hf://org/draft@main"}}
    spec = specs.spec(engine={"runtime": "VLLM"}, speculative=wish)
    stage = StageRoom(0, 32, 160, 0, 0, 10, 1000, draft=drafts)
    found = told(replace(specs.resolved(spec), room=Room((stage,), "row")))
    assert len(found) == len(said)
    for line, part in zip(found, said, strict=True):
        assert line.startswith(
            f"warning: speculative.model.uri hf://org/draft@main is {part} as large as the model"
        )
    assert told(replace(specs.resolved(spec), room=None)) == ()


def test_an_unknown_product_is_not_judged() -> None:
    asked = {"engine": {"runtime": "VLLM"}, "quantization": {"weights": "FP8"}}
    assert warnings(**asked, gpu={"product": "ACME-1"}) == ()


@pytest.mark.parametrize(
    ("engine", "weights"), [({"runtime": "VLLM"}, "FP8"), ({"backend": "TensorRT"}, "None")]
)
def test_calibration_data_that_nothing_takes_scales_from_are_told(
    engine: dict[str, Any], weights: str
) -> None:
    asked = {"weights": weights, "calibration": {"samples": 64, "dataset": "calib/own"}}
    (found,) = warnings(engine=engine, quantization=asked)
    assert found.startswith(
        "warning: quantization.calibration (dataset calib/own, samples 64) has no effect with "
        f"weights {weights} on {engine.get('runtime', 'TensorRTLLM')}"
    )
    assert warnings(engine=engine, quantization={"weights": weights}) == ()


@pytest.mark.parametrize("backend", ["TensorRT", "PyTorch"])
def test_calibration_data_that_are_used_deserve_no_word(backend: str) -> None:
    asked = {"weights": "FP8", "calibration": {"samples": 64, "dataset": "calib/own"}}
    assert warnings(engine={"backend": backend}, quantization=asked) == ()
