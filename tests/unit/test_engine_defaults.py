"""Version and backend that a user leaves out: they go by the runtime, and stay what they were."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from shardwright.api.asked import AskedSpec
from shardwright.api.engines import DEFAULT_BACKENDS, DEFAULT_VERSIONS
from shardwright.api.schema import structural
from shardwright.api.spec import Backend, EngineSpec, Runtime
from shardwright.runtimes.registry import runtime


@pytest.mark.parametrize("name", Runtime)
def test_every_runtime_has_a_version_that_is_known(name: Runtime) -> None:
    engine = EngineSpec(runtime=name)
    assert engine.version == DEFAULT_VERSIONS[name]
    assert (engine.backend is not None) is (name in DEFAULT_BACKENDS)
    assert runtime(name).known_image(engine.version) or name == "NIM", "NIM has an image a model"


def test_what_is_given_stays() -> None:
    engine = EngineSpec.read({"version": "1.1.0", "backend": "PyTorch"})
    assert (engine.version, engine.backend) == ("1.1.0", Backend.PYTORCH)
    assert EngineSpec.read({"version": None}).version == DEFAULT_VERSIONS[Runtime.TENSORRT_LLM]


def test_the_api_server_fills_in_neither() -> None:
    engine = structural(AskedSpec)["properties"]["engine"]["properties"]
    assert "default" not in engine["version"]
    assert "default" not in engine["backend"]
    assert engine["runtime"]["default"] == "TensorRTLLM"


@pytest.mark.parametrize("version", ["", "1.2", "v1.2.1", "latest"])
def test_a_version_that_is_none_is_named(version: str) -> None:
    with pytest.raises(ValidationError, match="version"):
        EngineSpec.read({"version": version})
