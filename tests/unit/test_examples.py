"""Every example is a manifest that would be served as its comment says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.golden import specs

from shardwright.api import names
from shardwright.api.asked import AskedSpec
from shardwright.api.resource import LLMDeployment
from shardwright.api.spec import Backend, LLMDeploymentSpec, Runtime, WeightPrecision
from shardwright.plan.warned import told
from shardwright.runner.contract import ModelFacts
from shardwright.runtimes import registry
from shardwright_sandbox.player import models

FOLDER = Path(__file__).resolve().parents[2] / "examples"
CLAIM = FOLDER / "storage.yaml"
PLANNED = FOLDER / "llama-70b-planned.yaml"
FILES = sorted(path for path in FOLDER.glob("*.yaml") if path not in (CLAIM, PLANNED))
README = (FOLDER / "README.md").read_text()

# Compute capability, and memory of one GPU in GiB as its driver shows it.
GPUS = {
    "NVIDIA-H100-80GB-HBM3": ((9, 0), 79.2),
    "NVIDIA-H200": ((9, 0), 140.0),
    "NVIDIA-A100-SXM4-80GB": ((8, 0), 79.2),
}


@dataclass(frozen=True)
class Known:
    """A model as it is published; `parameters` in all, of which `embeddings` stay 16 bit.

    `attention` is given where a file splits attention by data, which keeps it whole on each group.
    """

    parameters: float
    embeddings: float
    facts: ModelFacts
    attention: float = 0.0


def _llama(layers: int, hidden: int, heads: int, size: int, quantization: str = "") -> ModelFacts:
    return ModelFacts(
        architecture="LlamaForCausalLM",
        model_type="llama",
        layers=layers,
        hidden_size=hidden,
        heads=heads,
        kv_heads=8,
        head_dim=128,
        vocab_size=128256,
        max_positions=131072,
        dtype="bfloat16",
        quantization=quantization,
        bytes=size,
    )


_70B = Known(70.554e9, 2.101e9, _llama(80, 8192, 64, 141 * 10**9))
MODELS = {
    "meta-llama/Llama-3.1-8B-Instruct": Known(8.030e9, 1.051e9, _llama(32, 4096, 32, 16 * 10**9)),
    "meta-llama/Llama-3.3-70B-Instruct": _70B,
    "nvidia/Llama-3.3-70B-Instruct-FP8": Known(
        70.554e9, 2.101e9, _llama(80, 8192, 64, 73 * 10**9, "modelopt")
    ),
    "hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4": Known(
        70.554e9, 2.101e9, _llama(80, 8192, 64, 40 * 10**9, "awq")
    ),
    "meta-llama/Llama-3.1-405B-Instruct": Known(
        405.853e9, 4.203e9, _llama(126, 16384, 128, 812 * 10**9)
    ),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": Known(
        46.703e9,
        0.262e9,
        ModelFacts(
            architecture="MixtralForCausalLM",
            model_type="mixtral",
            layers=32,
            hidden_size=4096,
            heads=32,
            kv_heads=8,
            head_dim=128,
            vocab_size=32000,
            max_positions=32768,
            dtype="bfloat16",
            experts=8,
            bytes=93 * 10**9,
        ),
        attention=1.342e9,
    ),
}
# Publishers that ask for a login.
GATED = ("hf://meta-llama/", "hf://mistralai/")
# Bytes of one quantized weight; INT4 carries a 16-bit scale for every 128.
WEIGHT_BYTES = {
    WeightPrecision.NONE: 2.0,
    WeightPrecision.FP8: 1.0,
    WeightPrecision.INT4_AWQ: 0.5 + 2 / 128,
}


# The same of a checkpoint that comes quantized; AWQ has 4-bit zero points beside the scales.
OWN_BYTES = {"modelopt": 1.0, "awq": 0.5 + 2.5 / 128}


def document(path: Path) -> dict[str, Any]:
    loaded = yaml.safe_load(path.read_text())
    assert isinstance(loaded, dict)
    return loaded


def spec_of(path: Path) -> LLMDeploymentSpec:
    asked = AskedSpec.read(document(path)["spec"])
    assert not asked.open, f"{path.name} leaves {asked.open} open: what it says is not what runs"
    return asked.filled()


def known(spec: LLMDeploymentSpec) -> Known:
    return MODELS[spec.model.uri.removeprefix("hf://").partition("@")[0]]


def weights_gib(spec: LLMDeploymentSpec) -> float:
    """Weights that one GPU holds, in GiB."""
    model = known(spec)
    own = OWN_BYTES.get(model.facts.quantization)
    one = own or WEIGHT_BYTES[spec.quantization.weights]
    whole = (model.parameters - model.embeddings) * one + model.embeddings * 2
    split = spec.parallelism
    copies = (model.attention * one + model.embeddings * 2) * (split.attention_groups - 1)
    assert not copies or model.attention, "attention by data needs to know how large it is"
    return (whole + copies) / spec.world_size / 2**30


def gib(quantity: str) -> int:
    found = re.fullmatch(r"([0-9]+)Gi", quantity)
    assert found, quantity
    return int(found[1])


each = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
of_all = pytest.mark.parametrize("path", [*FILES, PLANNED], ids=lambda path: path.stem)


@of_all
def test_it_is_an_llmdeployment_that_the_api_accepts(path: Path) -> None:
    LLMDeployment.model_validate(document(path))


@of_all
def test_it_begins_by_saying_when_to_use_it(path: Path) -> None:
    comment = re.match(r"(#.*\n)+", path.read_text())
    assert comment, path.name
    assert re.search(r"\buse (this|it)\b", comment[0], re.IGNORECASE)


@of_all
def test_it_is_called_like_its_file(path: Path) -> None:
    """So names are unique, and a file can be guessed from what runs."""
    assert document(path)["metadata"]["name"] == path.stem


@of_all
def test_it_may_go_to_any_namespace(path: Path) -> None:
    assert set(document(path)["metadata"]) == {"name"}


@each
def test_the_runtime_refuses_neither_spec_nor_model(path: Path) -> None:
    spec = spec_of(path)
    runtime = registry.runtime(spec.engine.runtime)
    compute, _ = GPUS[spec.gpu.product]
    assert runtime.refuse_spec(spec, compute) is None
    assert runtime.refuse_model(spec, known(spec).facts) is None


@each
def test_weights_leave_room_for_a_kv_cache(path: Path) -> None:
    spec = spec_of(path)
    _, memory = GPUS[spec.gpu.product]
    assert weights_gib(spec) < 0.7 * memory


@each
def test_the_readme_and_the_comment_state_the_weights_of_a_gpu(path: Path) -> None:
    shown = f"{weights_gib(spec_of(path)):.0f} GiB"
    (row,) = (line for line in README.splitlines() if line.startswith(f"| [{path.name}]"))
    assert row.endswith(f"| {shown} |")
    if path.stem != "llama-70b-pp2":  # its comment speaks of other things
        assert shown in path.read_text()


@each
def test_a_stage_can_be_loaded_through_host_memory(path: Path) -> None:
    """A rank reads its file into host memory first, and /dev/shm counts in the limit."""
    spec = spec_of(path)
    needed = weights_gib(spec) * spec.parallelism.tensor + gib(spec.pod.shm_size)
    assert gib(spec.pod.resources.memory) >= needed


@each
def test_gated_models_name_a_secret_and_all_share_one_claim(path: Path) -> None:
    spec = spec_of(path)
    assert spec.storage.claim_name == document(CLAIM)["metadata"]["name"]
    gated = spec.model.uri.startswith(GATED)
    assert (spec.model.secret_ref is not None) == gated
    if spec.model.secret_ref is not None:
        assert spec.model.secret_ref.name == "hf-token"


def test_one_leaves_everything_to_the_planner_that_can_be_left_to_it() -> None:
    asked = AskedSpec.read(document(PLANNED)["spec"])
    assert asked.open == (
        "gpu.product",
        "parallelism.tensor",
        "parallelism.pipeline",
        "quantization.weights",
        "quantization.kvCache",
    )
    assert asked.workload is not None


def test_the_claim_can_be_used_from_every_node() -> None:
    claim = document(CLAIM)
    assert claim["kind"] == "PersistentVolumeClaim"
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert CLAIM.read_text().startswith("# Use this first")


def test_the_readme_lists_every_file() -> None:
    assert set(re.findall(r"\]\(([\w.-]+\.yaml)\)", README)) == {
        path.name for path in FOLDER.glob("*.yaml")
    }


def test_the_kinds_of_use_that_people_ask_for_are_all_there() -> None:
    shapes = {
        (
            path.stem,
            spec.parallelism.tensor,
            spec.parallelism.pipeline,
            spec.quantization.weights.value,
            spec.engine.backend or spec.engine.runtime,
        )
        for path in FILES
        for spec in (spec_of(path),)
    }
    assert shapes == {
        ("llama-405b", 8, 2, "None", Backend.TENSORRT),
        ("llama-405b-fp8", 8, 1, "FP8", Backend.TENSORRT),
        ("llama-70b-fp8", 2, 1, "FP8", Backend.TENSORRT),
        ("llama-70b-fp8-gated", 2, 1, "FP8", Backend.TENSORRT),
        ("llama-70b-pp2", 8, 2, "None", Backend.TENSORRT),
        ("llama-70b-awq", 1, 1, "INT4AWQ", Backend.TENSORRT),
        ("llama-8b", 1, 1, "None", Backend.TENSORRT),
        ("llama-8b-lora", 1, 1, "None", Backend.TENSORRT),
        ("llama-70b-triton", 2, 1, "FP8", Backend.TENSORRT),
        ("mixtral-8x7b", 2, 1, "None", Backend.TENSORRT),
        ("llama-70b-pytorch", 4, 1, "None", Backend.PYTORCH),
        ("llama-70b-speculative", 4, 1, "None", Backend.PYTORCH),
        ("mixtral-8x7b-experts", 4, 1, "None", Backend.PYTORCH),
        ("llama-70b-vllm-awq", 4, 1, "INT4AWQ", Runtime.VLLM),
        ("llama-405b-vllm", 8, 2, "None", Runtime.VLLM),
        ("llama-70b-sglang", 2, 1, "FP8", Runtime.SGLANG),
        ("llama-8b-nim", 1, 1, "None", Runtime.NIM),
    }


def test_manifests_in_the_documentation_of_the_chart_name_files_that_exist() -> None:
    notes = (FOLDER.parent / "charts/shardwright/templates/NOTES.txt").read_text()
    for named in re.findall(r"examples/([\w.-]+\.yaml)", notes):
        assert (FOLDER / named).exists(), named
    assert names.API_VERSION in FILES[0].read_text()


def test_one_is_as_textbooks_give_it_and_is_warned_about() -> None:
    (path,) = (path for path in FILES if path.stem == "llama-70b-vllm-awq")
    spec = spec_of(path)
    resolved = specs.resolved(spec, known(spec).facts)
    argv = registry.runtime(spec.engine.runtime).serve_command(resolved).argv
    for flag, value in (("--tensor-parallel-size", "4"), ("--gpu-memory-utilization", "0.9")):
        assert argv[argv.index(flag) + 1] == value
    assert "--trust-remote-code" in argv
    # The checkpoint says itself that it is AWQ.
    assert "--quantization" not in argv
    (warning,) = told(resolved)
    assert warning.startswith("warning: model.trustRemoteCode true executes Python")


def test_the_sandbox_can_fetch_every_example() -> None:
    for path in (*FILES, PLANNED):
        spec = yaml.safe_load(path.read_text())["spec"]
        drafts = spec.get("speculative", {}).get("model")
        for model in (spec["model"], *([drafts] if drafts else [])):
            found = models.find(model["uri"])
            assert found is not None, f"{path.name}: {model['uri']} is not in sandbox/models"
            published = MODELS.get(model["uri"].removeprefix("hf://").partition("@")[0])
            if published is not None:
                assert found.bytes == pytest.approx(published.facts.bytes, rel=0.02)
                assert bool(models.facts(found).quantization) is bool(published.facts.quantization)
