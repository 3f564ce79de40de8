"""What each edit of a live object costs, counted: Jobs, candidates and pods.

`ROWS` is the specification: one line an edit, with the artifacts that are made anew, whether a
candidate has to prove the result, and whether the serving pods are replaced. Anything beyond is a
failure: another Job, another revision, another deployment's pod.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from kubernetes import client
from tests.support import costs
from tests.support.kube import GROUP, H100, H200, PLURAL, VERSION, Json, Kube, merged
from tests.support.operator import Operator
from tests.support.watcher import Mark, Watcher, watching

from shardwright_sandbox.cluster import Sandbox
from shardwright_sandbox.namespaces import make_namespace, remove_namespace
from shardwright_sandbox.player.control import Act, Match, PlayerControl, Rule
from shardwright_sandbox.pytest_plugin import FleetMaker
from shardwright_sandbox.storage import make_claim, remove_claims

pytestmark = pytest.mark.e2e

REPLICAS, STAGES = 2, 2
PATIENCE = 120.0
_SHAPE: Json = {"parallelism": {"tensor": 2, "pipeline": STAGES}, "replicas": REPLICAS}
# Each on a claim of its own, so that no artifact of one is found by another.
BASES: dict[str, Json] = {
    "TensorRT": {**_SHAPE, "storage": {"claimName": "compiled"}},
    "TensorRT FP8": {
        **_SHAPE,
        "quantization": {"weights": "FP8"},
        "storage": {"claimName": "compiled-fp8"},
    },
    "PyTorch": {
        **_SHAPE,
        "engine": {"backend": "PyTorch"},
        "storage": {"claimName": "eager"},
    },
    # Its executor does not draft over pipeline stages.
    "PyTorch drafted": {
        **_SHAPE,
        "parallelism": {"tensor": 2, "pipeline": 1},
        "engine": {"backend": "PyTorch"},
        "speculative": {
            "method": "DraftModel",
            "model": {"uri": "hf://meta-llama/Llama-3.1-8B@main"},
        },
        "storage": {"claimName": "drafted"},
    },
    "PyTorch FP8": {
        **_SHAPE,
        "engine": {"backend": "PyTorch"},
        "quantization": {"weights": "FP8"},
        "storage": {"claimName": "eager-fp8"},
    },
    "vLLM": {
        **_SHAPE,
        "engine": {"runtime": "VLLM", "backend": None},
        "storage": {"claimName": "direct"},
    },
    # Of two stages: the candidate is asked.
    "TensorRT gated": {
        **_SHAPE,
        "quantization": {"weights": "FP8", "accuracy": {"task": "gsm8k", "minScore": 60.0}},
        "storage": {"claimName": "gated"},
    },
}


@dataclass(frozen=True)
class Row:
    """One line of the table: an edit of a base, and what it may cost.

    No two rows of a base may ask for the same artifact: the second would find it there.
    """

    base: str
    edit: str
    change: Json
    fetch: int = 0
    checkpoint: int = 0
    engine: int = 0
    candidate: int = 0
    roll: bool = True
    score: int = 0
    revision: bool = True  # looked at where nothing rolls

    def __str__(self) -> str:
        return f"{self.base}: {self.edit}".replace(" ", "-")


def _stages(spec: Json) -> int:
    """Pipeline stages, each of them a pod of a replica."""
    return int(spec["parallelism"]["pipeline"])


def _another_drain(spec: Json) -> int:
    """Another drain timeout than the spec's: an edit that costs nothing."""
    return int(spec["rollout"]["drainTimeoutSeconds"]) + 1


def _shape(tensor: int, pipeline: int) -> Json:
    return {"parallelism": {"tensor": tensor, "pipeline": pipeline}}


_FP16: Json = {"model": {"dtype": "FP16"}}
_H200: Json = {"gpu": {"product": H200}}
_OTHER_MODEL: Json = {"model": {"uri": "hf://Qwen/Qwen3-8B@main"}}


def _drafted(method: str, uri: str) -> Json:
    return {"speculative": {"method": method, "model": {"uri": uri}}}


# Of the served model's family, as the sandbox knows no smaller one; each uri is one artifact.
_DRAFT = _drafted("DraftModel", "hf://meta-llama/Llama-3.1-8B@main")
_OTHER_DRAFT = _drafted("DraftModel", "hf://meta-llama/Llama-3.1-8B@v2")
_HEADS = _drafted("Medusa", "hf://meta-llama/Llama-3.1-8B@heads")


def _claim(name: str) -> Json:
    return {"storage": {"claimName": name}}


def _runtime(name: str) -> Json:
    """Another runtime; the backend is TensorRT-LLM's alone, and goes."""
    return {"engine": {"runtime": name, "backend": None}}


_VERSION: Json = {"engine": {"version": "1.2.0"}}
_IMAGE: Json = {"engine": {"image": "mirror.example.com/tensorrt-llm:1.2.1-patched"}}
_BATCH: Json = {"engine": {"limits": {"maxBatchSize": 32}}}
_CONFIG: Json = {"engine": {"config": {"enable_chunked_prefill": True}}}
_FRACTION: Json = {"engine": {"limits": {"gpuMemoryFraction": 0.8}}}
_SAMPLES: Json = {"quantization": {"calibration": {"samples": 64}}}

_BUILD = {"checkpoint": 1, "engine": 1, "candidate": 1}
_ENGINE = {"engine": 1, "candidate": 1}
_PROOF = {"candidate": 1}
_NOTHING = {"roll": False, "revision": False}

ROWS = [
    # With engines: the checkpoint is split for TP and PP, the engine compiled for one GPU.
    Row("TensorRT", "tensor", _shape(4, 2), **_BUILD),
    Row("TensorRT", "pipeline", _shape(2, 4), **_BUILD),
    Row("TensorRT", "tensor and pipeline", _shape(4, 1), **_BUILD),
    Row("TensorRT", "GPU product", _H200, **_ENGINE),
    Row("TensorRT", "version", _VERSION, **_BUILD),
    Row("TensorRT", "image", _IMAGE, **_BUILD),
    Row("TensorRT", "backend to PyTorch", {"engine": {"backend": "PyTorch"}}, **_PROOF),
    Row("TensorRT", "weights", {"quantization": {"weights": "INT4AWQ"}}, **_BUILD),
    Row("TensorRT", "dtype", _FP16, **_BUILD),
    Row("TensorRT", "KV cache", {"quantization": {"kvCache": "FP8"}}, **_BUILD),
    Row("TensorRT", "limits", _BATCH, **_ENGINE),
    Row("TensorRT", "build workers", {"engine": {"build": {"workers": 2}}}, **_ENGINE),
    Row("TensorRT", "plugins", {"engine": {"build": {"plugins": {"gemm": "disable"}}}}, **_ENGINE),
    Row("TensorRT", "model uri", _OTHER_MODEL, fetch=1, **_BUILD),
    Row("TensorRT", "storage claim", _claim("compiled-2"), fetch=1, **_BUILD),
    # Heads are compiled together with the model.
    Row("TensorRT", "heads", _HEADS, fetch=1, **_BUILD),
    Row("TensorRT", "engine config", _CONFIG),
    Row("TensorRT", "GPU memory fraction", _FRACTION),
    Row("TensorRT", "served name", {"model": {"servedName": "renamed"}}),
    Row("TensorRT", "trust remote code", {"model": {"trustRemoteCode": True}}),
    Row("TensorRT", "pod environment", {"pod": {"env": [{"name": "NCCL_DEBUG", "value": "INFO"}]}}),
    Row("TensorRT", "pod resources", {"pod": {"resources": {"cpu": "6"}}}),
    Row("TensorRT", "pod annotations", {"pod": {"annotations": {"example.com/scrape": "yes"}}}),
    Row("TensorRT", "placement", {"placement": {"pipelineStages": "Spread"}}),
    Row(
        "TensorRT",
        "tolerations",
        {"placement": {"tolerations": [{"key": "example.com/llm", "operator": "Exists"}]}},
    ),
    Row("TensorRT", "rollout", {"rollout": {"maxSurge": 1, "drainTimeoutSeconds": 90}}, **_NOTHING),
    Row("TensorRT", "build on", {"rollout": {"buildOn": "Borrow"}}, **_NOTHING),
    Row("TensorRT", "secret", {"model": {"secretRef": {"name": "hf-token"}}}, **_NOTHING),
    # Several changes at once cost what the heaviest one costs, once.
    Row(
        "TensorRT",
        "limits, weights and served name",
        {
            "engine": {"limits": {"maxBatchSize": 16}},
            "quantization": {"weights": "INT8SmoothQuant"},
            "model": {"servedName": "all"},
        },
        **_BUILD,
    ),
    # Another runtime loads the model itself; what was built stays for the way back.
    Row("TensorRT", "runtime to vLLM", _runtime("VLLM"), **_PROOF),
    Row("TensorRT", "runtime to SGLang", _runtime("SGLang"), **_PROOF),
    # Quantized from data: the data are part of the checkpoint, the GPU that it was made on is not.
    Row("TensorRT FP8", "calibration samples", _SAMPLES, **_BUILD),
    Row("TensorRT FP8", "GPU product", _H200, **_ENGINE),
    Row("TensorRT FP8", "weights", {"quantization": {"weights": "None"}}, **_BUILD),
    Row("TensorRT FP8", "KV cache", {"quantization": {"kvCache": "FP8"}}, **_BUILD),
    # Without engines: what is loaded is the model itself, split when it is loaded.
    Row("PyTorch", "tensor", _shape(4, 2), **_PROOF),
    Row("PyTorch", "pipeline", _shape(2, 1), **_PROOF),
    Row("PyTorch", "GPU product", _H200, **_PROOF),
    Row("PyTorch", "version", _VERSION, **_PROOF),
    Row("PyTorch", "image", _IMAGE, **_PROOF),
    Row("PyTorch", "backend to TensorRT", {"engine": {"backend": "TensorRT"}}, **_BUILD),
    Row("PyTorch", "weights", {"quantization": {"weights": "FP8"}}, checkpoint=1, candidate=1),
    Row("PyTorch", "dtype", _FP16, **_PROOF),
    Row("PyTorch", "KV cache", {"quantization": {"kvCache": "FP8"}}, **_PROOF),
    Row("PyTorch", "limits", _BATCH, **_PROOF),
    Row("PyTorch", "model uri", _OTHER_MODEL, fetch=1, candidate=1),
    Row("PyTorch", "storage claim", _claim("eager-2"), fetch=1, candidate=1),
    Row("PyTorch", "engine config", _CONFIG),
    Row("PyTorch", "GPU memory fraction", _FRACTION),
    # What drafts is one fetch beside the model; a base of these rows drafts with nothing.
    Row("PyTorch", "a draft model", {**_shape(4, 1), **_DRAFT}, fetch=1, candidate=1),
    Row("PyTorch", "n-grams", {**_shape(4, 1), "speculative": {"method": "NGram"}}, **_PROOF),
    Row("PyTorch drafted", "another draft model", _OTHER_DRAFT, fetch=1, candidate=1),
    Row("PyTorch drafted", "draft length", {"speculative": {"maxDraftLen": 5}}, **_PROOF),
    Row("PyTorch drafted", "no draft", {"speculative": None}, **_PROOF),
    Row("PyTorch", "served name", {"model": {"servedName": "renamed"}}),
    Row("PyTorch", "secret", {"model": {"secretRef": {"name": "hf-token"}}}, **_NOTHING),
    # Quantized without an engine: one checkpoint for every shape and GPU.
    Row("PyTorch FP8", "tensor and pipeline", _shape(4, 1), **_PROOF),
    Row("PyTorch FP8", "GPU product", _H200, **_PROOF),
    Row("PyTorch FP8", "KV cache", {"quantization": {"kvCache": "FP8"}}, **_PROOF),
    Row("PyTorch FP8", "calibration samples", _SAMPLES, checkpoint=1, candidate=1),
    Row("PyTorch FP8", "dtype", _FP16, checkpoint=1, candidate=1),
    # A checkpoint is keyed by the image that quantizes it.
    Row("PyTorch FP8", "image", _IMAGE, checkpoint=1, candidate=1),
    Row("PyTorch FP8", "model uri", _OTHER_MODEL, fetch=1, checkpoint=1, candidate=1),
    # vLLM and SGLang make nothing, whatever the precision: weights are quantized as they load.
    Row("vLLM", "tensor and pipeline", _shape(4, 1), **_PROOF),
    Row("vLLM", "GPU product", _H200, **_PROOF),
    Row("vLLM", "runtime to SGLang", _runtime("SGLang"), **_PROOF),
    Row("vLLM", "runtime to TensorRT-LLM", _runtime("TensorRTLLM"), **_BUILD),
    Row("vLLM", "weights", {"quantization": {"weights": "FP8"}}, **_PROOF),
    Row("vLLM", "KV cache", {"quantization": {"kvCache": "FP8"}}, **_PROOF),
    Row("vLLM", "limits", _BATCH, **_PROOF),
    Row("vLLM", "model uri", _OTHER_MODEL, fetch=1, candidate=1),
    Row("vLLM", "engine config", {"engine": {"config": {"enable-prefix-caching": False}}}),
    Row("vLLM", "GPU memory fraction", _FRACTION),
    Row("vLLM", "trust remote code", {"model": {"trustRemoteCode": True}}),
    # What is measured with is in the score; what is only demanded is not.
    Row("TensorRT gated", "engine config", _CONFIG, score=1, candidate=1),
    Row("TensorRT gated", "GPU memory fraction", _FRACTION),
    Row("TensorRT gated", "limits", _BATCH, engine=1, score=1, candidate=1),
    Row(
        "TensorRT gated",
        "another limit",
        {"quantization": {"accuracy": {"minScore": 50.0}}},
        roll=False,
    ),
    Row(
        "TensorRT gated",
        "no gate",
        {"quantization": {"accuracy": None}},
        roll=False,
    ),
]


class World:
    """One namespace with a live object a base; a row leaves its object edited."""

    def __init__(self, kube: Kube, watcher: Watcher, player: PlayerControl) -> None:
        self.kube = kube
        self.watcher = watcher
        self.player = player
        self._live: dict[str, tuple[str, Json]] = {}  # base: name, spec as it was stored

    @contextmanager
    def at(self, base: str) -> Iterator[str]:
        """The live and quiet object of a base. A test that fails leaves none to the next."""
        try:
            yield self._settle(base)
        except BaseException:
            name, _ = self._live.pop(base, ("", {}))
            if name:
                self.kube.delete(name)
                self.kube.wait("its pods gone", lambda: not self.kube.pods(name, live=False), 60)
            raise

    def _settle(self, base: str) -> str:
        if base not in self._live:
            name = f"{base.lower().replace(' ', '-')}-{uuid.uuid4().hex[:4]}"
            made = self.kube.create(name, BASES[base])
            self._live[base] = (name, made["spec"])
        name, spec = self._live[base]
        found = self.kube.get(name)
        if found["spec"] != spec or found["metadata"].get("annotations"):
            self._put_back(name, found, spec)
        self.settled(name, REPLICAS, _stages(spec))
        return name

    def _put_back(self, name: str, found: Json, spec: Json) -> None:
        """Write the spec as it was, without annotations; whatever status is written meanwhile."""
        if found["spec"] == spec:
            # An annotation moves no generation, by which Ready is known to be an answer to it.
            spec = merged(spec, {"rollout": {"drainTimeoutSeconds": _another_drain(spec)}})
        patch = [
            {"op": "replace", "path": "/spec", "value": spec},
            {"op": "add", "path": "/metadata/annotations", "value": {}},
        ]
        self.kube.custom.patch_namespaced_custom_object(
            GROUP,
            VERSION,
            self.kube.namespace,
            PLURAL,
            name,
            patch,
            _content_type="application/json-patch+json",
        )

    def settled(self, name: str, replicas: int, stages: int) -> None:
        """Wait until the object is Ready, of one revision, and nothing moves any more."""
        costs.settle(self.kube, self.watcher, name, replicas * stages, PATIENCE)

    def uids(self, name: str) -> set[str]:
        """UIDs of a deployment's serving pods."""
        return {pod["metadata"]["uid"] for pod in self.kube.pods(name)}

    def bystanders(self, name: str) -> set[str]:
        """UIDs of every other deployment's serving pods."""
        return {
            pod["metadata"]["uid"]
            for pod in self.kube.pods()
            if pod["metadata"]["labels"]["shardwright.dev/deployment"] != name
        }

    def builds_that_run(self) -> list[str]:
        """Names of the engine step's Jobs that have a pod."""
        return [
            job["metadata"]["name"]
            for job in self.kube.jobs()
            if job["metadata"]["labels"].get("shardwright.dev/step") == "engine"
            and job["status"].get("active")
        ]

    def touch(self, name: str) -> None:
        """An edit that costs nothing, answered: the operator has seen what came before it."""
        drain = _another_drain(self.kube.get(name)["spec"])
        self.kube.edit(name, {"rollout": {"drainTimeoutSeconds": drain}})

    def counted(self, name: str, mark: Mark) -> dict[str, int]:
        """What has happened since, by what the table counts; zeros left out."""
        return costs.counted(self.watcher, mark, name)


@pytest.fixture(scope="module")
def world(
    sandbox: Sandbox, running: Operator, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """A namespace with a claim a base, GPUs for all of them and their candidates."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    make_namespace(sandbox.api, name)
    specs = [*BASES.values(), *(row.change for row in ROWS)]
    claims = {spec["storage"]["claimName"] for spec in specs if "storage" in spec}
    for claim in sorted(claims):
        make_claim(sandbox.api, sandbox.claims, name, claim)
    kube = Kube(sandbox.api, name)
    kube.core.create_namespaced_secret(
        name, client.V1Secret(metadata=client.V1ObjectMeta(name="hf-token"), string_data={"a": "b"})
    )
    player = PlayerControl(sandbox.api)
    player.reset()
    player.delays(model=0.0, checkpoint=0.0, engine=0.0)
    fleet = FleetMaker(sandbox.api)
    fleet(
        [
            {"name": "table-h100", "count": 12, "gpu": {"product": H100, "count": 8}},
            {"name": "table-h200", "count": 4, "gpu": {"product": H200, "count": 8}},
        ]
    )
    with watching(sandbox.api, name) as watcher:
        yield World(kube, watcher, player)
    kube.clear()
    fleet.remove()
    player.reset()
    remove_claims(sandbox.api, sandbox.claims, name)
    remove_namespace(sandbox.api, name)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_an_edit_costs_what_the_table_says_and_nothing_else(world: World, row: Row) -> None:
    with world.at(row.base) as name:
        before, others = world.uids(name), world.bystanders(name)
        mark = world.watcher.mark()
        edited = world.kube.edit(name, row.change)
        stages = _stages(edited["spec"])
        world.settled(name, REPLICAS, stages)

        expected = {
            "fetch": row.fetch,
            "checkpoint": row.checkpoint,
            "engine": row.engine,
            "candidates": row.candidate,
            "pods taken down": REPLICAS * _stages(BASES[row.base]) if row.roll else 0,
            "pods made": REPLICAS * stages if row.roll else 0,
            "score": row.score,
            "revisions": 1 if row.revision else 0,
        }
        assert world.counted(name, mark) == {what: n for what, n in expected.items() if n}
        kept = before & world.uids(name)
        assert kept == (set() if row.roll else before)
        assert world.bystanders(name) == others


def test_setting_restarted_at_replaces_each_pod_once_and_makes_nothing(world: World) -> None:
    with world.at("TensorRT") as name:
        mark = world.watcher.mark()
        world.kube.annotate(name, **{"shardwright.dev/restartedAt": "2026-01-01T00:00:00Z"})
        world.kube.wait(
            "every pod replaced",
            lambda: len(world.watcher.left_since(mark, name)) == REPLICAS * STAGES,
            PATIENCE,
        )
        world.settled(name, REPLICAS, STAGES)
        assert world.counted(name, mark) == {
            "pods taken down": REPLICAS * STAGES,
            "pods made": REPLICAS * STAGES,
            "revisions": 1,
        }


def test_labels_and_annotations_of_the_object_cost_nothing(world: World) -> None:
    with world.at("TensorRT") as name:
        before = world.uids(name)
        mark = world.watcher.mark()
        world.kube.annotate(name, **{"example.com/note": "read me"})
        world.kube.custom.patch_namespaced_custom_object(
            GROUP,
            VERSION,
            world.kube.namespace,
            PLURAL,
            name,
            {"metadata": {"labels": {"example.com/team": "search"}}},
        )
        world.touch(name)
        world.settled(name, REPLICAS, STAGES)
        assert world.counted(name, mark) == {}
        assert world.uids(name) == before


def test_more_replicas_are_added_from_the_proven_revision_and_fewer_are_taken_down(
    world: World,
) -> None:
    with world.at("TensorRT") as name:
        before = world.uids(name)
        mark = world.watcher.mark()
        world.kube.edit(name, {"replicas": REPLICAS + 1})
        world.settled(name, REPLICAS + 1, STAGES)
        assert world.counted(name, mark) == {"pods made": STAGES}
        assert before <= world.uids(name)

        more = world.uids(name)
        mark = world.watcher.mark()
        world.kube.edit(name, {"replicas": 1})
        world.settled(name, 1, STAGES)
        assert world.counted(name, mark) == {"pods taken down": 2 * STAGES}
        assert world.uids(name) <= more


def test_scaling_to_zero_and_back_builds_and_proves_nothing(world: World) -> None:
    with world.at("TensorRT") as name:
        mark = world.watcher.mark()
        world.kube.edit(name, {"replicas": 0})
        world.kube.wait_reason(name, "Ready", "ScaledToZero", PATIENCE)
        world.kube.wait("no pod", lambda: not world.kube.pods(name, live=False), PATIENCE)
        world.kube.edit(name, {"replicas": REPLICAS})
        world.settled(name, REPLICAS, STAGES)
        assert world.counted(name, mark) == {
            "pods taken down": REPLICAS * STAGES,
            "pods made": REPLICAS * STAGES,
        }


def test_reverting_to_a_proven_spec_rolls_back_at_once_without_job_or_candidate(
    world: World,
) -> None:
    with world.at("TensorRT") as name:
        first = world.kube.get(name)["status"]["engine"]["serving"]["key"]
        old = world.kube.get(name)["spec"]["engine"]["limits"]["maxNumTokens"]
        world.kube.edit(name, {"engine": {"limits": {"maxNumTokens": old // 2}}})
        world.settled(name, REPLICAS, STAGES)
        assert world.kube.get(name)["status"]["engine"]["serving"]["key"] != first

        mark = world.watcher.mark()
        world.kube.edit(name, {"engine": {"limits": {"maxNumTokens": old}}})
        world.settled(name, REPLICAS, STAGES)
        assert world.counted(name, mark) == {
            "pods taken down": REPLICAS * STAGES,
            "pods made": REPLICAS * STAGES,
        }
        assert world.kube.get(name)["status"]["engine"]["serving"]["key"] == first


def test_a_second_deployment_on_the_same_claim_uses_what_is_there(world: World) -> None:
    """Model, checkpoint, engine and proof are the namespace's: the twin only starts its pods."""
    with world.at("TensorRT") as name:
        others = world.uids(name)
        mark = world.watcher.mark()
        world.kube.create("twin", BASES["TensorRT"])
        try:
            world.settled("twin", REPLICAS, STAGES)
            assert world.counted("twin", mark) == {
                "pods made": REPLICAS * STAGES,
                "revisions": 1,
            }
            assert world.uids(name) == others
        finally:
            world.kube.delete("twin")
            world.kube.wait("the twin gone", lambda: not world.kube.pods("twin", live=False), 60)


def test_an_operator_restart_costs_nothing(world: World, running: Operator) -> None:
    with world.at("TensorRT") as name, world.at("PyTorch") as other:
        before, others = world.uids(name), world.bystanders(name)
        mark = world.watcher.mark()
        assert running.stop() == 0
        running.start().wait()
        world.touch(name)
        world.touch(other)
        world.settled(name, REPLICAS, STAGES)
        world.settled(other, REPLICAS, STAGES)
        assert world.counted(name, mark) == {}
        assert world.counted(other, mark) == {}
        assert world.uids(name) == before
        assert world.bystanders(name) == others


def test_an_operator_upgrade_with_other_images_and_levels_costs_nothing(
    world: World, running: Operator, sandbox: Sandbox, tmp_path: Path
) -> None:
    """And an edit under it costs what it did: what the user did not change stays resolved."""
    with world.at("TensorRT") as name:
        before, others = world.uids(name), world.bystanders(name)
        mark = world.watcher.mark()
        assert running.stop() == 0
        upgraded = Operator(
            sandbox.kubeconfig_for("sandbox-operator"),
            tmp_path,
            operatorImage="mirror.example.com/operator:next",
            images={"TensorRTLLM/1.2.1": "mirror.example.com/tensorrt-llm:1.2.1"},
            levels=["topology.kubernetes.io/zone"],
        )
        try:
            upgraded.start().wait()
            world.touch(name)
            world.settled(name, REPLICAS, STAGES)
            assert world.counted(name, mark) == {}
            assert world.uids(name) == before
            assert world.bystanders(name) == others

            mark = world.watcher.mark()
            world.kube.edit(name, {"model": {"servedName": "under-the-next-one"}})
            world.settled(name, REPLICAS, STAGES)
            assert world.counted(name, mark) == {
                "pods taken down": REPLICAS * STAGES,
                "pods made": REPLICAS * STAGES,
                "revisions": 1,
            }
            assert upgraded.stop() == 0
            assert upgraded.errors() == []
        finally:
            if upgraded.alive:
                upgraded.kill()
            running.start().wait()


def test_an_edit_taken_back_during_its_build_gives_the_build_up_and_touches_no_pod(
    world: World,
) -> None:
    with world.at("TensorRT") as name:
        before = world.uids(name)
        hang = Rule(act=Act.HANG, match=Match(step="engine"), times=None)
        world.player.add(hang)
        mark = world.watcher.mark()
        world.kube.edit(name, {"engine": {"limits": {"maxBatchSize": 24}}})
        try:
            world.kube.wait("the build begun", world.builds_that_run, PATIENCE)
            world.kube.edit(name, {"engine": {"limits": {"maxBatchSize": 64}}})
            world.settled(name, REPLICAS, STAGES)
            world.kube.wait("no build running", lambda: not world.builds_that_run(), PATIENCE)
        finally:
            world.player.remove(hang)
        assert world.counted(name, mark) == {"engine": 1, "revisions": 1}
        assert world.uids(name) == before
