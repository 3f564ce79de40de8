"""`shardwright doctor`: from symptoms and facts to causes and remedies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from shardwright.cli.app import app
from shardwright.diagnose.doctor import RULES, diagnose
from shardwright.diagnose.finding import Finding, Fit
from shardwright.diagnose.live import observed_of
from shardwright.diagnose.observed import MEANINGS, Observed, Symptom
from shardwright.observe.projections import deployment_view
from shardwright.observe.world import GPUInventory, NodeView, Resources

H100 = "NVIDIA-H100-80GB-HBM3"
VERSION_TAG = (
    "[TRT] [E] IRuntime::deserializeCudaEngine: Error Code 1: Serialization (Serialization "
    "assertion stdVersionRead == kSERIALIZATION_VERSION failed.Version tag does not match.)"
)


def seen(*symptoms: str, **facts: Any) -> Observed:
    return Observed.read({"symptoms": list(symptoms), "facts": facts})


def findings(observed: Observed) -> dict[str, Finding]:
    return {finding.rule: finding for finding in diagnose(observed).findings}


# What is seen and known → the cause that must come first, and words of its remedies.
CASES: dict[str, tuple[Observed, str, tuple[str, ...]]] = {
    "latency does not fall with more TP: beyond the NVLink domain": (
        seen("LatencyFlatWithTensor", tensor=16, nvlinkDomain=8, heads=64),
        "TensorBeyondNVLinkDomain",
        ("tensor 8, pipeline 2", "replicas"),
    ),
    "latency does not fall with more TP: no NVLink at all": (
        seen("LatencyFlatWithTensor", tensor=4, nvlinkDomain=0),
        "TensorBeyondNVLinkDomain",
        ("tensor 1, pipeline 4", "replicas"),
    ),
    "latency does not fall with more TP: more ranks than KV heads": (
        seen("LatencyFlatWithTensor", tensor=8, nvlinkDomain=8, kvHeads=4),
        "TensorFinerThanWork",
        ("Halve tensor",),
    ),
    "a single request is slow with PP: the bubble, tensor first": (
        seen("SlowSingleRequest", tensor=2, pipeline=4, nvlinkDomain=8),
        "PipelineBubble",
        ("tensor before pipeline", "use tensor 8, pipeline 1", "In-flight batching"),
    ),
    "a single request is slow with PP over nodes": (
        seen("SlowSingleRequest", tensor=8, pipeline=2, nvlinkDomain=8),
        "PipelineBubble",
        ("FP8 weights", "In-flight batching keeps 2 stages busy"),
    ),
    "few requests leave stages idle": (
        seen("LowThroughput", pipeline=4, concurrency=3),
        "PipelineBubble",
        ("In-flight batching keeps 4 stages busy from about 8 requests",),
    ),
    "INT4 gains little at a large batch on Hopper": (
        seen("LittleGainFromINT4", weights="INT4AWQ", concurrency=128, compute="9.0"),
        "INT4AtLargeBatch",
        ("quantization.weights FP8",),
    ),
    "INT4 gains little at a large batch on Ampere": (
        seen("LittleGainFromINT4", weights="INT4AWQ", concurrency=128, compute="8.0"),
        "INT4AtLargeBatch",
        ("INT8SmoothQuant", "GPUs without FP8"),
    ),
    "INT8 accuracy collapses on Hopper": (
        seen("AccuracyCollapse", weights="INT8", compute="9.0"),
        "INT8Outliers",
        ("quantization.weights FP8", "INT8SmoothQuant", "0.87 %", "2.75 %"),
    ),
    "INT8 accuracy collapses on Ampere": (
        seen("AccuracyCollapse", weights="INT8", compute="8.0"),
        "INT8Outliers",
        ("INT8SmoothQuant", "INT4AWQ"),
    ),
    "BF16 model in FP16": (
        seen("AccuracyCollapse", dtype="FP16", modelDtype="BF16", weights="None"),
        "RangeOfFP16",
        ("model.dtype BF16",),
    ),
    "engine of another split": (
        seen("EngineFailsToLoad", tensor=4, pipeline=2, builtForTensor=8, builtForPipeline=1),
        "EngineShape",
        ("built again", "tensor 8, pipeline 1"),
    ),
    "engine of another split, by its message": (
        seen(
            "EngineFailsToLoad", message="Assertion failed: mpiSize == tp_size * pp_size (8 != 4)"
        ),
        "EngineShape",
        ("built again",),
    ),
    "engine of another GPU": (
        seen("EngineFailsToLoad", gpuProduct=H100, builtForProduct="NVIDIA-L40S"),
        "EngineGPU",
        ("built again", "gpu.product"),
    ),
    "engine of another GPU, by its message": (
        seen("EngineFailsToLoad", message="expecting compute 8.0 got compute 8.9, please rebuild"),
        "EngineGPU",
        ("built again",),
    ),
    "engine of another version": (
        seen("EngineFailsToLoad", version="1.2.1", builtForVersion="1.1.0"),
        "EngineVersion",
        ("built again", "same image"),
    ),
    "engine of another version, by its message": (
        seen("EngineFailsToLoad", version="1.2.1", builtForVersion="1.2.1", message=VERSION_TAG),
        "EngineVersion",
        ("by digest",),
    ),
    "a rank's file is missing": (
        seen("EngineFailsToLoad", message="No such file or directory: /engine/rank3.engine"),
        "EngineIncomplete",
        ("trash",),
    ),
    "GPU memory": (
        seen("OutOfMemory", message="Executor creation failed due to insufficient GPU memory"),
        "OutOfGPUMemory",
        ("maxNumTokens", "gpuMemoryFraction", "shardwright plan"),
    ),
    "host memory": (seen("OutOfMemory", reasons=["OOMKilled"]), "HostMemoryShort", ("memory",)),
    "ranks without NVLink hang": (
        seen("HangsAtStart", tensor=2, nvlinkDomain=0),
        "RanksCannotMeet",
        ("NCCL_P2P_DISABLE=1", "shmSize"),
    ),
    "stages hang": (
        seen("HangsAtStart", tensor=8, pipeline=2, nvlinkDomain=8),
        "RanksCannotMeet",
        ("NCCL_SOCKET_IFNAME", "fabricProfile"),
    ),
    "no GPUs": (
        seen("WaitsForGPUs", reasons=["InsufficientGPUs"]),
        "GPUsTaken",
        ("shardwright map", "Borrow"),
    ),
    "the KV cache is full": (
        seen("RequestsQueue", kvTokens=100_000, concurrency=64, requestTokens=2560, kvCache="None"),
        "KVCacheFull",
        ("kvCache FP8", "More replicas"),
    ),
    "the batch limit": (
        seen("RequestsQueue", maxBatchSize=64, concurrency=256, kvTokens=10**7, requestTokens=10),
        "BatchLimitReached",
        ("maxBatchSize to 256",),
    ),
    "the first token is late": (
        seen("SlowFirstToken", weights="None", compute="9.0", tensor=2, nvlinkDomain=8),
        "FirstTokenCompute",
        ("FP8", "up to 8"),
    ),
    "experts cut thin": (
        seen("LowThroughput", experts=256, tensor=8, pipeline=1),
        "ExpertsSplitForLatency",
        ("data-parallel attention",),
    ),
}


@pytest.mark.parametrize(("observed", "rule", "words"), CASES.values(), ids=CASES)
def test_symptoms_lead_to_their_cause_and_its_remedies(
    observed: Observed, rule: str, words: tuple[str, ...]
) -> None:
    (first, *_) = diagnose(observed).causes
    assert first.rule == rule
    assert first.evidence
    for word in words:
        assert word in " ".join(first.remedies)


# What is seen, with facts that speak against the usual cause.
RULED_OUT: dict[str, tuple[Observed, str]] = {
    "within the domain": (
        seen("LatencyFlatWithTensor", tensor=8, nvlinkDomain=8),
        "TensorBeyondNVLinkDomain",
    ),
    "one stage": (seen("SlowSingleRequest", pipeline=1), "PipelineBubble"),
    "a full pipeline": (seen("LowThroughput", pipeline=2, concurrency=64), "PipelineBubble"),
    "INT4 at a small batch": (
        seen("LittleGainFromINT4", weights="INT4AWQ", concurrency=2),
        "INT4AtLargeBatch",
    ),
    "room in the cache": (
        seen("RequestsQueue", kvTokens=10**6, concurrency=4, requestTokens=2560),
        "KVCacheFull",
    ),
    "the same split": (
        seen("EngineFailsToLoad", tensor=8, pipeline=1, builtForTensor=8, builtForPipeline=1),
        "EngineShape",
    ),
    "the same GPU": (
        seen("EngineFailsToLoad", gpuProduct=H100, builtForProduct=H100),
        "EngineGPU",
    ),
    "the same version": (
        seen("EngineFailsToLoad", version="1.2.1", builtForVersion="1.2.1"),
        "EngineVersion",
    ),
    "batches within the limit": (
        seen("RequestsQueue", maxBatchSize=64, concurrency=32),
        "BatchLimitReached",
    ),
}


@pytest.mark.parametrize(("observed", "rule"), RULED_OUT.values(), ids=RULED_OUT)
def test_facts_against_a_cause_rule_it_out_and_say_so(observed: Observed, rule: str) -> None:
    found = findings(observed)[rule]
    assert found.fit is Fit.RULED_OUT
    assert found.evidence
    assert found.remedies == ()


@pytest.mark.parametrize("symptom", Symptom)
def test_a_symptom_alone_names_a_possible_cause_and_what_to_look_at(symptom: Symptom) -> None:
    causes = diagnose(Observed(symptoms=[symptom])).causes
    assert causes
    for cause in causes:
        assert cause.remedies
        assert cause.fit is Fit.POSSIBLE, "nothing is known, so nothing is shown"


def test_every_symptom_is_described() -> None:
    assert set(MEANINGS) == set(Symptom)


def test_every_rule_has_a_name_of_its_own_and_answers_in_some_case() -> None:
    everything = [observed for observed, _, _ in CASES.values()]
    everything += [Observed(symptoms=[symptom]) for symptom in Symptom]
    everything.append(seen("AccuracyCollapse", weights="INT4AWQ", kvCache="INT8"))
    for rule in RULES:
        names = {found.rule for one in everything if (found := rule(one)) is not None}
        assert len(names) == 1, rule.__name__


def test_a_healthy_deployment_has_no_causes() -> None:
    healthy = seen(tensor=8, pipeline=2, nvlinkDomain=8, weights="FP8", kvCache="FP8", replicas=2)
    assert diagnose(healthy).findings == ()


def test_what_facts_show_is_named_without_a_complaint() -> None:
    (cause,) = diagnose(seen(tensor=16, nvlinkDomain=8)).causes
    assert cause.rule == "TensorBeyondNVLinkDomain"


def test_a_shown_reason_for_not_loading_silences_the_merely_possible_ones() -> None:
    found = findings(seen("EngineFailsToLoad", message=VERSION_TAG))
    assert found["EngineVersion"].fit is Fit.SHOWN
    assert set(found) == {"EngineVersion"}


def test_the_surest_come_first() -> None:
    fits = [
        finding.fit
        for finding in diagnose(
            seen(
                "SlowSingleRequest", "AccuracyCollapse", "LowThroughput", pipeline=4, kvCache="FP8"
            )
        ).findings
    ]
    order = [Fit.SHOWN, Fit.POSSIBLE, Fit.RULED_OUT]
    assert fits == sorted(fits, key=order.index)


def deployment(**status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "shardwright.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {
            "name": "llama",
            "namespace": "llm",
            "uid": "u",
            "generation": 1,
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {
            "model": {"uri": "hf://meta-llama/Llama-3.1-70B@main"},
            "gpu": {"product": H100},
            "parallelism": {"tensor": 16, "pipeline": 1},
            "quantization": {"weights": "FP8"},
            "storage": {"claimName": "models"},
        },
        "status": {"observedGeneration": 1, **status},
    }


def node(nvlink: int = 8) -> NodeView:
    gpu = GPUInventory(product=H100, count=8, capacity=8, compute=(9, 0), nvlink_size=nvlink)
    return NodeView("gpu-0", "u", gpu, Resources(gpus=8))


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


class TestLive:
    """A live object as a description."""

    def test_spec_and_nodes_are_facts(self) -> None:
        facts = observed_of(deployment_view(deployment()), [node()]).facts
        assert (facts.tensor, facts.pipeline, facts.gpu_product) == (16, 1, H100)
        assert (facts.nvlink_domain, facts.gpus_per_node, facts.compute) == (8, 8, "9.0")
        assert facts.weights == "FP8"

    def test_the_resolved_plan_goes_before_the_spec(self) -> None:
        body = deployment(plan={"tensor": 8, "pipeline": 2, "gpuProduct": H100})
        facts = observed_of(deployment_view(body), [node()]).facts
        assert (facts.tensor, facts.pipeline) == (8, 2)

    def test_without_nodes_nothing_is_known_of_them(self) -> None:
        facts = observed_of(deployment_view(deployment()), []).facts
        assert (facts.nvlink_domain, facts.gpus_per_node, facts.compute) == (None, None, None)

    @pytest.mark.parametrize(
        ("status", "symptom", "rule"),
        [
            (
                {"conditions": [condition("Stalled", "True", "ProofFailed", VERSION_TAG)]},
                Symptom.ENGINE_FAILS_TO_LOAD,
                "EngineVersion",
            ),
            (
                {
                    "groups": [
                        {"index": 0, "revision": "r", "state": "Broken", "reason": "OOMKilled"}
                    ]
                },
                Symptom.OUT_OF_MEMORY,
                "HostMemoryShort",
            ),
            (
                {"conditions": [condition("Placed", "False", "InsufficientGPUs", "4 free")]},
                Symptom.WAITS_FOR_GPUS,
                "GPUsTaken",
            ),
            (
                {
                    "steps": [
                        {
                            "step": "engine",
                            "key": "k",
                            "reason": "OutOfMemory",
                            "cause": "CUDA out of memory",
                        }
                    ]
                },
                Symptom.OUT_OF_MEMORY,
                "OutOfGPUMemory",
            ),
        ],
    )
    def test_reasons_of_status_are_symptoms(
        self, status: dict[str, Any], symptom: Symptom, rule: str
    ) -> None:
        observed = observed_of(deployment_view(deployment(**status)), [node(16)])
        assert symptom in observed.symptoms
        assert diagnose(observed).causes[0].rule == rule

    def test_conditions_that_are_well_are_no_symptoms(self) -> None:
        body = deployment(
            conditions=[
                condition("Ready", "True", "AllReplicasReady"),
                condition("Stalled", "False", "ProofFailed"),
                condition("Reconciling", "False", "AllReplicasReady"),
            ],
            groups=[{"index": 0, "revision": "r", "state": "Ready", "reason": "OOMKilled"}],
        )
        observed = observed_of(deployment_view(body), [node(16)])
        assert observed.symptoms == []
        assert observed.facts.reasons == []

    def test_what_the_user_tells_comes_first(self) -> None:
        told = [Symptom.LATENCY_FLAT_WITH_TENSOR]
        observed = observed_of(deployment_view(deployment()), [node()], told)
        assert observed.symptoms == told
        assert diagnose(observed).causes[0].rule == "TensorBeyondNVLinkDomain"


def ask(tmp_path: Path, body: object, *options: str) -> Result:
    file = tmp_path / "seen.yaml"
    file.write_text(body if isinstance(body, str) else yaml.safe_dump(body), encoding="utf-8")
    return CliRunner().invoke(app, ["doctor", "--describe", str(file), *options])


class TestCommand:
    """What is printed, and exit codes."""

    def test_causes_facts_and_remedies_are_printed(self, tmp_path: Path) -> None:
        body = {
            "symptoms": ["LatencyFlatWithTensor"],
            "facts": {"tensor": 16, "nvlinkDomain": 8, "heads": 64},
        }
        result = ask(tmp_path, body)
        assert result.exit_code == 0, result.output
        text = " ".join(result.stdout.split())
        assert "Seen: LatencyFlatWithTensor, latency does not fall when `tensor` grows." in text
        assert "1. TensorBeyondNVLinkDomain The facts show it" in text
        assert "Fact: tensor is 16, 8 GPUs share NVLink" in text
        assert "→ Set parallelism to tensor 8, pipeline 2" in text
        assert "Source: " in text

    def test_json_has_the_same(self, tmp_path: Path) -> None:
        result = ask(
            tmp_path,
            {"facts": {"tensor": 16, "nvlinkDomain": 8}},
            "-o",
            "json",
            "-s",
            "LowThroughput",
        )
        data = json.loads(result.stdout)
        assert data["symptoms"] == ["LowThroughput"]
        assert data["findings"][0]["rule"] == "TensorBeyondNVLinkDomain"
        assert data["findings"][0]["fit"] == "Shown"

    def test_nothing_seen_lists_what_can_be_said(self, tmp_path: Path) -> None:
        result = ask(tmp_path, {})
        assert result.exit_code == 0
        for symptom in Symptom:
            assert symptom.value in result.stdout

    def test_no_known_cause_is_exit_code_one(self, tmp_path: Path) -> None:
        body = {
            "symptoms": ["LittleGainFromINT4"],
            "facts": {"weights": "INT4AWQ", "concurrency": 2},
        }
        result = ask(tmp_path, body)
        assert result.exit_code == 1
        assert "No rule knows a cause" in result.stdout
        assert "ruled out" in result.stdout

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            ("[", ("no YAML",)),
            ([], ("symptoms and facts",)),
            (
                {"symptoms": ["Slow"]},
                ('symptoms[0]: "Slow" is not known: write ', "SlowSingleRequest"),
            ),
            ({"facts": {"tp": 8}}, ("facts.tp: is no field: known here are tensor, ",)),
            (
                {"facts": {"tensor": 0}},
                ("facts.tensor: 0 is less than 1: write a whole number of at least 1",),
            ),
            (
                {"facts": {"compute": 9.0}},
                ('facts.compute: 9.0 is a number, not a text: write it in quotes, "9.0"',),
            ),
        ],
    )
    def test_a_wrong_description_is_exit_code_two_and_names_the_field(
        self, tmp_path: Path, body: object, words: tuple[str, ...]
    ) -> None:
        result = ask(tmp_path, body)
        assert result.exit_code == 2
        assert "seen.yaml" in result.stderr
        for word in words:
            assert word in result.stderr

    @pytest.mark.parametrize("arguments", [[], ["llama", "--describe", "seen.yaml"]])
    def test_a_name_or_a_file_and_not_both(self, arguments: list[str]) -> None:
        result = CliRunner().invoke(app, ["doctor", *arguments])
        assert result.exit_code == 2
        assert "either the NAME" in result.stderr
