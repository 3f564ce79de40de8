"""One manifest, asked by the command line and by the operator: the same question and answer.

For every example and for odd specs. `replicas` left out is the one difference: an API server fills
in 1, the command line plans their number too, and says what a cluster would make of it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from shardwright.api.asked import AskedSpec
from shardwright.api.problems import problems
from shardwright.cli.asking import model_of as cli_model
from shardwright.cli.manifest import Manifest, read_manifest
from shardwright.cli.reading import BadInputError
from shardwright.observe.gpus import DriverMemory
from shardwright.plan import question
from shardwright.plan.choice import plan_for
from shardwright.plan.fleets import Fleets
from shardwright.plan.given import given_room
from shardwright.plan.resolve import Planned
from shardwright.plan.room import room_of
from shardwright.runner.contract import ModelFacts
from shardwright.runtimes.base import Refusal
from shardwright.sizing.catalogue import catalogue_config
from shardwright.sizing.choose import choose
from shardwright.sizing.fleet import fleet_of_yaml
from shardwright_sandbox.player import models

ROOT = Path(__file__).resolve().parents[2]
H100 = "NVIDIA-H100-80GB-HBM3"
FLEET = fleet_of_yaml(
    """
    nodes:
      - {product: NVIDIA-H100-80GB-HBM3, count: 2, gpus: 8, fabric: RDMA}
      - {product: NVIDIA-H200, count: 1, gpus: 8}
      - {product: NVIDIA-A100-SXM4-80GB, count: 2, gpus: 8}
      - {product: NVIDIA-L40S, count: 4, gpus: 4}
    """
)
LLAMA = {"model": {"uri": "hf://meta-llama/Llama-3.3-70B-Instruct@main"}}
EXAMPLES = {
    path.name: next(
        body["spec"]
        for body in yaml.safe_load_all(path.read_text(encoding="utf-8"))
        if body["kind"] == "LLMDeployment"
    )
    for path in sorted((ROOT / "examples").glob("*.yaml"))
    if "kind: LLMDeployment" in path.read_text(encoding="utf-8")
}
ODD: dict[str, dict[str, Any]] = {
    "nothing": {},
    "one replica": {"replicas": 1},
    "many replicas": {"replicas": 9},
    "scaled to zero": {"replicas": 0},
    "empty sections": {"parallelism": {}, "quantization": {}, "workload": {}, "engine": {}},
    "nulls": {"gpu": None, "parallelism": {"tensor": None}, "workload": None, "replicas": 1},
    "a tensor": {"parallelism": {"tensor": 4}, "replicas": 1},
    "a pipeline": {"parallelism": {"pipeline": 2}, "replicas": 1},
    "a shape, no precision": {"parallelism": {"tensor": 8, "pipeline": 1}, "replicas": 1},
    "a shape, half a precision": {
        "parallelism": {"tensor": 8, "pipeline": 1},
        "quantization": {"weights": "FP8"},
        "replicas": 1,
    },
    "a shape, Auto": {
        "parallelism": {"tensor": 8, "pipeline": 1},
        "quantization": {"weights": "Auto", "kvCache": "Auto"},
        "replicas": 1,
    },
    "a product": {"gpu": {"product": "NVIDIA-A100-SXM4-80GB"}, "replicas": 1},
    "a cache": {"quantization": {"kvCache": "FP8"}, "replicas": 1},
    "all of it": {
        "gpu": {"product": H100},
        "parallelism": {"tensor": 8, "pipeline": 1},
        "quantization": {"weights": "None", "kvCache": "None"},
        "replicas": 1,
    },
    "spread": {
        "placement": {"pipelineStages": "Spread"},
        "parallelism": {"pipeline": 2},
        "replicas": 1,
    },
    "pack": {"placement": {"pipelineStages": "Pack"}, "replicas": 1},
    "short sequences": {
        "engine": {"limits": {"maxSeqLen": 1024, "maxInputLen": 1024}},
        "replicas": 1,
    },
    "a prompt alone": {"workload": {"inputLen": 4000}, "replicas": 1},
    "an answer alone": {"workload": {"outputLen": 8000}, "replicas": 1},
    "latency": {"workload": {"objective": "Latency", "concurrency": 1}, "replicas": 1},
    "offline": {
        "workload": {"objective": "Offline", "concurrency": 5000, "inputLen": 1, "outputLen": 1},
        "replicas": 3,
    },
    "another backend": {"engine": {"backend": "PyTorch"}, "replicas": 1},
    "a batch": {"engine": {"limits": {"maxBatchSize": 1, "gpuMemoryFraction": 0.5}}, "replicas": 1},
    "more workers": {
        "engine": {"build": {"workers": 4}},
        "parallelism": {"tensor": 8, "pipeline": 1},
        "replicas": 1,
    },
}
SPECS = {**EXAMPLES, **{name: {**LLAMA, **spec} for name, spec in ODD.items()}}
WRONG: dict[str, dict[str, Any]] = {
    "unknown field": {"tensor": 8},
    "uneven experts": {"parallelism": {"tensor": 8, "expert": 3}},
    "uneven attention": {"parallelism": {"tensor": 8, "attentionData": 5}},
    "a target": {"workload": {"ttftSeconds": 1}},
    "no tensor": {"parallelism": {"tensor": 0}},
    "a word": {"parallelism": {"tensor": "all"}},
    "an empty GPU": {"gpu": {}},
    "another precision": {"quantization": {"weights": "FP7"}},
    "too long": {"workload": {"inputLen": 4000, "outputLen": 5000}},
    "a longer prompt": {"workload": {"inputLen": 5000}},
    "negative replicas": {"replicas": -1},
    "more in flight than tokens": {"engine": {"limits": {"maxBatchSize": 9000}}},
}


def from_cli(spec: dict[str, Any]) -> Manifest:
    body = {
        "apiVersion": "shardwright.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": "one"},
        "spec": spec,
    }
    return read_manifest(yaml.safe_dump(body), "one.yaml")


def from_operator(spec: dict[str, Any]) -> AskedSpec:
    stored = {"storage": {"claimName": "models"}, **spec}
    return AskedSpec.read({name: value for name, value in stored.items() if value is not None})


def facts_of(uri: str) -> ModelFacts:
    """What a fetch reports, with the very sizes that the catalogue knows the model by."""
    name = cli_model(uri, None).name
    known = models.find(uri) or models.find(f"hf://{name}")
    assert known is not None, uri
    return replace(models.facts(known), config=json.dumps(catalogue_config(name)), bytes=0)


def in_catalogue(spec: dict[str, Any]) -> bool:
    try:
        cli_model(spec["model"]["uri"], None)
    except BadInputError:
        return False
    return True


def test_the_table_has_every_example() -> None:
    assert len(EXAMPLES) >= 9
    assert sum(in_catalogue(spec) for spec in EXAMPLES.values()) >= 5


@pytest.mark.parametrize("name", SPECS)
def test_the_question_is_the_same(name: str) -> None:
    here, there = from_cli(SPECS[name]), from_operator(SPECS[name])
    assert here.uri == there.model.uri
    assert here.workload == question.workload_of(there)
    assert here.engine == question.engine_settings(there.engine, there.lora, there.speculative)
    replicas = max(1, there.replicas)
    assert replace(here.limits, replicas=replicas) == question.limits_of(there, replicas)
    left_out = SPECS[name].get("replicas") is None
    assert here.replicas_left_out == left_out
    assert here.limits.replicas == (None if left_out else replicas)


@pytest.mark.parametrize("name", [name for name in SPECS if in_catalogue(SPECS[name])])
def test_the_answer_is_the_same(name: str) -> None:
    spec = {"replicas": 1, **SPECS[name]}
    here, there = from_cli(spec), from_operator(spec)
    facts = facts_of(here.uri)
    choice = choose(cli_model(here.uri, None), FLEET, here.workload, here.engine, here.limits)
    if not there.open:
        product = here.limits.product
        memory = next((g.memory_bytes for g in FLEET.groups if g.product == product), 0)
        found = given_room(there, there.filled(), facts, DriverMemory(memory), domain=8)
        assert isinstance(found, Planned), found
        if choice.chosen is not None:
            assert found.room == room_of(choice.chosen.memory)
        return
    plan = plan_for(there, facts, Fleets(FLEET, FLEET, FLEET))
    if choice.chosen is None:
        # With these replicas there is none; the operator then plans for one that waits for room.
        assert isinstance(plan, Refusal) or there.replicas > 1
        return
    assert not isinstance(plan, Refusal), plan
    assert question.headline_of(plan.spec) == question.headline(choice.chosen)
    assert plan.room == room_of(choice.chosen.memory)
    assert plan.reasons[: len(choice.chosen.reasons)] == choice.chosen.reasons


@pytest.mark.parametrize("name", WRONG)
def test_what_one_refuses_the_other_refuses_in_the_same_words(name: str) -> None:
    spec = {**LLAMA, **WRONG[name]}
    with pytest.raises(ValidationError) as there:
        from_operator(spec)
    with pytest.raises(BadInputError) as here:
        from_cli(spec)
    told = [line.partition(": ")[2] for line in str(here.value).splitlines()]
    assert told == list(problems(there.value, AskedSpec, "spec"))


def test_a_precision_left_out_beside_a_given_shape_is_16_bit_and_said() -> None:
    found = from_cli(SPECS["a shape, no precision"])
    assert (found.limits.weights, found.limits.kv_cache) == ("None", "None")
    assert "weights and kvCache None; write Auto" in found.notes[0]
    half = from_cli(SPECS["a shape, half a precision"])
    assert (half.limits.weights, half.limits.kv_cache) == ("FP8", "None")
    assert "kvCache None; write Auto" in half.notes[0]
    assert from_cli(SPECS["a shape, Auto"]).notes == ()
    assert from_cli(SPECS["a tensor"]).limits.weights is None
