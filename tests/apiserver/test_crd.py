"""The CustomResourceDefinition on a real API server: what it takes, fills in, refuses and shows."""

from __future__ import annotations

import copy
import json
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, event, given, settings
from kubernetes import client
from pydantic import ValidationError
from tests.support.specs import MINIMAL_SPEC, manifest, put, specs

from shardwright.api import names
from shardwright.api.asked import AskedSpec
from shardwright.api.crd import CRD_NAME, crd
from shardwright.api.engines import with_defaults
from shardwright.api.resource import LLMDeployment
from shardwright.api.spec import Runtime
from shardwright.api.status import (
    BenchmarkPoint,
    BenchmarkStatus,
    Condition,
    GroupStatus,
    LLMDeploymentStatus,
)
from shardwright.plan.report import applied
from shardwright_sandbox.clients import kubectl as find_kubectl
from shardwright_sandbox.cluster import Sandbox
from shardwright_sandbox.namespaces import make_namespace, remove_namespace
from shardwright_sandbox.progress import Progress

pytestmark = pytest.mark.apiserver

CRD_FILE = Path(__file__).resolve().parents[2] / "crds" / "llmdeployments.yaml"
_DEADLINE = 120.0


class Cluster:
    """LLMDeployments in one namespace of the sandbox."""

    def __init__(self, sandbox: Sandbox, namespace: str, plural: str = names.PLURAL) -> None:
        self.namespace = namespace
        self._sandbox = sandbox
        self._where = {
            "group": names.GROUP,
            "version": names.VERSION,
            "namespace": namespace,
            "plural": plural,
        }
        self._objects = client.CustomObjectsApi(sandbox.api)
        self._kubectl = find_kubectl(Progress(quiet=True))

    def create(self, body: Any, *, dry: bool = True) -> dict[str, Any]:
        made: dict[str, Any] = self._objects.create_namespaced_custom_object(
            **self._where,
            body=body,
            field_validation="Strict",
            **({"dry_run": "All"} if dry else {}),
        )
        return made

    def refusal(self, body: Any) -> str:
        with pytest.raises(client.ApiException) as caught:
            self.create(body)
        assert caught.value.status in {400, 422}
        return str(json.loads(caught.value.body)["message"])

    def get(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self._objects.get_namespaced_custom_object(**self._where, name=name)
        return found

    def patch(self, name: str, body: Any, part: str = "") -> dict[str, Any]:
        """A merge patch of the object, or of its `status` or `scale`."""
        call = getattr(self._objects, f"patch_namespaced_custom_object{'_' if part else ''}{part}")
        made: dict[str, Any] = call(
            **self._where, name=name, body=body, _content_type="application/merge-patch+json"
        )
        return made

    def scale(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self._objects.get_namespaced_custom_object_scale(
            **self._where, name=name
        )
        return found

    def kubectl(self, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                str(self._kubectl),
                f"--kubeconfig={self._sandbox.kubeconfig}",
                f"--namespace={self.namespace}",
                *arguments,
            ],
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )


def _until(what: str, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _DEADLINE
    while not done():
        assert time.monotonic() < deadline, f"{what} took longer than {_DEADLINE:.0f} s"
        time.sleep(0.05)


def _install(sandbox: Sandbox, body: Mapping[str, Any]) -> None:
    """Create or replace a CustomResourceDefinition, and wait until it is served."""
    api = client.ApiextensionsV1Api(sandbox.api)
    name = body["metadata"]["name"]
    applied = api.patch_custom_resource_definition(
        name,
        body,
        field_manager="test",
        force=True,
        _content_type="application/apply-patch+yaml",
    )

    def served() -> bool:
        found = api.read_custom_resource_definition(name)
        held = {entry.type: entry.status for entry in found.status.conditions or ()}
        return held.get("Established") == "True" and held.get("NamesAccepted") == "True"

    assert applied.metadata.name == name
    _until(f"{name} being established", served)


@pytest.fixture(scope="module")
def cluster(sandbox: Sandbox) -> Iterator[Cluster]:
    namespace = f"crd-{uuid.uuid4().hex[:8]}"
    make_namespace(sandbox.api, namespace)
    found = Cluster(sandbox, namespace)

    def listed() -> bool:
        return found.kubectl("get", "llmd").returncode == 0

    _until("the resource being served", listed)
    yield found
    remove_namespace(sandbox.api, namespace)


# The definition


def test_definition_is_taken_by_a_dry_run_of_the_server(cluster: Cluster) -> None:
    done = cluster.kubectl("apply", "--server-side", "--dry-run=server", "-f", str(CRD_FILE))
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "the server warns"
    assert CRD_NAME in done.stdout


def test_definition_as_applied_is_the_files_and_structural(
    cluster: Cluster, sandbox: Sandbox
) -> None:
    done = cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRD_FILE))
    assert done.returncode == 0, done.stderr
    found = client.ApiextensionsV1Api(sandbox.api).read_custom_resource_definition(CRD_NAME)
    held = {entry.type: entry.status for entry in found.status.conditions}
    assert "NonStructuralSchema" not in held
    assert found.status.stored_versions == [names.VERSION]


# Defaults


def test_server_fills_in_exactly_the_defaults_of_the_models(cluster: Cluster) -> None:
    made = cluster.create(manifest(MINIMAL_SPEC, "defaults"), dry=False)
    read = AskedSpec.read(MINIMAL_SPEC)
    assert made["spec"] == read.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert made["status"] == {"observedGeneration": -1}, "nobody may call it ready yet"
    assert made["metadata"]["generation"] == 1


def test_a_status_that_comes_with_the_object_is_not_taken(cluster: Cluster) -> None:
    body = {**manifest(MINIMAL_SPEC), "status": {"observedGeneration": 1, "readyReplicas": 3}}
    assert cluster.create(body)["status"] == {"observedGeneration": -1}


@pytest.mark.parametrize("form", [8, "8", "500m"])
def test_server_keeps_the_form_of_a_quantity(cluster: Cluster, form: int | str) -> None:
    made = cluster.create(manifest(put(MINIMAL_SPEC, "pod.resources.cpu", form)))
    assert made["spec"]["pod"]["resources"]["cpu"] == form


def test_runtime_configuration_is_stored_as_written(cluster: Cluster) -> None:
    config = {"kv_cache_config": {"free_gpu_memory_fraction": 0.8, "host": None}, "x": [1, {}]}
    made = cluster.create(manifest(put(MINIMAL_SPEC, "engine.config", config)))
    assert made["spec"]["engine"]["config"] == config


# Refusals

REFUSED = [
    ("parallelism.tensor", 0, ["spec.parallelism.tensor: Invalid value: 0", "equal to 1"]),
    ("parallelism.tensor", 1025, ["spec.parallelism.tensor: Invalid value: 1025", "equal to 1024"]),
    ("parallelism.pipeline", "2", ["spec.parallelism.pipeline", "must be of type integer"]),
    ("replicas", -1, ["spec.replicas: Invalid value: -1", "greater than or equal to 0"]),
    ("engine.backend", "CPU", ['Unsupported value: "CPU"', '"TensorRT"', '"PyTorch"']),
    ("engine.version", "latest", ['spec.engine.version: Invalid value: "latest"']),
    (
        "engine.limits.maxInputLen",
        9000,
        ["spec.engine.limits.maxInputLen", "maxInputLen 9000 exceeds maxSeqLen 8192", "raise"],
    ),
    (
        "engine.limits.maxBatchSize",
        9000,
        ["spec.engine.limits.maxBatchSize", "maxBatchSize 9000 exceeds maxNumTokens 8192"],
    ),
    (
        "workload.inputLen",
        5000,
        ["spec.workload", "workload.inputLen exceeds engine.limits.maxInputLen 4096"],
    ),
    (
        "workload",
        {"inputLen": 4000, "outputLen": 5000},
        ["spec.workload", "exceed engine.limits.maxSeqLen 8192", "shorten the workload"],
    ),
    ("workload.objective", "Fast", ['Unsupported value: "Fast"', '"Offline"']),
    ("engine.limits.gpuMemoryFraction", 1, ["gpuMemoryFraction: Invalid value: 1", "less than 1"]),
    (
        "rollout.maxUnavailable",
        0,
        ["spec.rollout.maxUnavailable", "maxSurge and maxUnavailable cannot both be 0"],
    ),
    ("model.uri", "ftp://x/y", ["spec.model.uri", "uri ftp://x/y: write hf://org/name@revision"]),
    ("model.uri", "pvc://a/../b", ["spec.model.uri", "must not contain '..'"]),
    ("model.unheardOf", 1, ['unknown field "spec.model.unheardOf"']),
    (
        "speculative",
        {"method": "DraftModel"},
        ["spec.speculative.model: Required value", "need speculative.model"],
    ),
    ("unheardOf", {"method": "DraftModel"}, ['unknown field "spec.unheardOf"']),
    (
        "quantization.accuracy",
        {"task": "mmlu", "minScore": 60, "baseline": "68.2"},
        ["spec.quantization.accuracy.baseline", "maxDrop and maxRise alone"],
    ),
    (
        "quantization.accuracy",
        {"task": "mmlu", "minScore": 60, "baseline": 68},
        ["spec.quantization.accuracy.baseline", "maxDrop and maxRise alone"],
    ),
    (
        "quantization.accuracy",
        {"task": "mmlu", "maxDrop": 1, "baseline": 1000},
        [
            "spec.quantization.accuracy.baseline",
            "baseline 1000 is no score of task mmlu, which is per cent: give 0 to 100",
        ],
    ),
    (
        "quantization.accuracy",
        {"task": "gsm8k", "maxDrop": 0.5, "baseline": "100.01"},
        [
            "spec.quantization.accuracy.baseline",
            "baseline 100.01 is no score of task gsm8k, which is per cent: give 0 to 100",
        ],
    ),
    (
        "quantization.accuracy",
        {"task": "mmlu", "maxDrop": 1, "baseline": "0.682"},
        [
            "spec.quantization.accuracy.maxDrop",
            "maxDrop 1 is not less than baseline 0.682, so that a score of 0 would pass",
            "lower maxDrop, or give the baseline in per cent",
        ],
    ),
    (
        "quantization.accuracy",
        {"task": "perplexity", "dataset": "a.txt", "maxRise": 0.5, "baseline": "0.9"},
        [
            "spec.quantization.accuracy.baseline",
            "baseline 0.9 is no perplexity, which is 1 or more",
        ],
    ),
    ("model.secretRef", {}, ["spec.model.secretRef.name: Required value"]),
    ("storage", {}, ["spec.storage.claimName: Required value"]),
    ("pod.resources.cpu", 0, ["spec.pod.resources.cpu", "0 must be greater than 0"]),
    ("pod.resources.memory", "0Gi", ["spec.pod.resources.memory", "0Gi must be greater than 0"]),
    ("pod.resources.memory", "64GB", ['spec.pod.resources.memory: Invalid value: "64GB"']),
    ("pod.shmSize", True, ["spec.pod.shmSize", "must be of type integer,string"]),
    ("pod.env", [{"name": "SHARDWRIGHT_A"}], ["spec.pod.env[0].name", "env SHARDWRIGHT_A"]),
    ("pod.env", [{"name": "A"}, {"name": "A"}], ["spec.pod.env[1]: Duplicate value", '"A"']),
    (
        "pod.env",
        [{"name": f"A{number}"} for number in range(65)],
        ["spec.pod.env: Too many: 65", "at most 64"],
    ),
    (
        "pod.annotations",
        {"-bad": "x", "good": "y"},
        ["spec.pod.annotations", '"-bad"', "must be a label key such as pool or example.com/pool"],
    ),
    ("placement.nodeSelector", {"pool": "a b"}, ["spec.placement.nodeSelector.pool", '"a b"']),
    (
        "placement.tolerations",
        [{"operator": "Exists", "value": "x"}],
        ["spec.placement.tolerations[0].value", "value x is not looked at"],
    ),
    (
        "placement.tolerations",
        [{"value": "x"}],
        ["spec.placement.tolerations[0].operator", "must be Exists when key is empty"],
    ),
    (
        "placement.tolerations",
        [{"key": "gpu", "effect": "NoSchedule", "tolerationSeconds": 5}],
        ["spec.placement.tolerations[0].tolerationSeconds", "needs effect NoExecute"],
    ),
]


@pytest.mark.parametrize(("path", "value", "said"), REFUSED)
def test_refusal_names_field_value_and_limit(
    cluster: Cluster, path: str, value: Any, said: list[str]
) -> None:
    message = cluster.refusal(manifest(put(MINIMAL_SPEC, path, value)))
    for words in said:
        assert words in message


@pytest.mark.parametrize(
    "gate",
    [
        {"task": "mmlu", "maxDrop": 1, "baseline": 100},
        {"task": "cnn_dailymail", "maxDrop": 1.5, "baseline": "100.0"},
        {"task": "gsm8k", "maxDrop": 100, "baseline": "Measure"},
        {"task": "mmlu", "minScore": 100},
        {"task": "perplexity", "dataset": "a.txt", "maxRise": 1, "baseline": 1},
        {"task": "perplexity", "dataset": "a.txt", "maxRise": 1, "baseline": "999999.999999"},
        {"task": "perplexity", "dataset": "a.txt", "maxPerplexity": 9},
    ],
)
def test_what_the_unit_of_a_task_can_have_is_taken(cluster: Cluster, gate: dict[str, Any]) -> None:
    made = cluster.create(manifest(put(MINIMAL_SPEC, "quantization.accuracy", gate)))
    assert made["spec"]["quantization"]["accuracy"] == {"baseline": "Measure", **gate}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("x" * 41, "metadata.name has 41 characters, the limit is 40"),
        ("4llama", "metadata.name 4llama must start with a letter"),
        ("llama.405b", "hold only a-z, 0-9 and '-'"),
    ],
)
def test_a_name_that_pods_could_not_carry_is_refused(
    cluster: Cluster, name: str, said: str
) -> None:
    message = cluster.refusal(manifest(MINIMAL_SPEC, name))
    assert "metadata.name: Invalid value: metadata.name" in message
    assert said in message


def test_the_longest_name_is_taken(cluster: Cluster) -> None:
    assert cluster.create(manifest(MINIMAL_SPEC, "x" * 40))


def test_kubectl_apply_shows_the_refusal(cluster: Cluster) -> None:
    body = manifest(put(MINIMAL_SPEC, "engine.limits.maxInputLen", 9000), "contradiction")
    done = cluster.kubectl("apply", "--server-side", "-f", "-", given=yaml.safe_dump(body))
    assert done.returncode != 0
    assert "maxInputLen 9000 exceeds maxSeqLen 8192" in done.stderr


# Agreement


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
        HealthCheck.function_scoped_fixture,
    ],
)
@given(spec=specs())
def test_server_and_models_take_and_refuse_the_same_specs(
    cluster: Cluster, spec: dict[str, Any]
) -> None:
    body = manifest(spec)
    try:
        read = LLMDeployment.read(body).spec
    except ValidationError as error:
        event("refused")
        try:
            cluster.create(body)
        except client.ApiException as refusal:
            assert refusal.status in {400, 422}  # noqa: PT017 - any other would be a fault of ours
        else:
            pytest.fail(f"only the models refuse it: {error}")
    else:
        event("taken")
        made = cluster.create(body)
        # The runtime decides these two where they are left out, and the server leaves them so.
        made["spec"]["engine"] = with_defaults(made["spec"]["engine"], Runtime.TENSORRT_LLM)
        assert made["spec"] == read.model_dump(mode="json", by_alias=True, exclude_none=True)


# Subresources


def test_scale_moves_replicas_and_generation_and_shows_the_selector(cluster: Cluster) -> None:
    cluster.create(manifest(MINIMAL_SPEC, "scaled"), dry=False)
    scale = cluster.scale("scaled")
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (1, 0)
    cluster.patch("scaled", {"spec": {"replicas": 3}}, "scale")
    found = cluster.get("scaled")
    assert (found["spec"]["replicas"], found["metadata"]["generation"]) == (3, 2)
    cluster.patch("scaled", {"status": {"replicas": 2, "selector": "a=b"}}, "status")
    scale = cluster.scale("scaled")
    assert scale["status"] == {"replicas": 2, "selector": "a=b"}
    assert cluster.get("scaled")["metadata"]["generation"] == 2


def test_scale_below_zero_is_refused(cluster: Cluster) -> None:
    cluster.create(manifest(MINIMAL_SPEC, "negative"), dry=False)
    done = cluster.kubectl("scale", "llmd/negative", "--replicas=-1")
    assert done.returncode != 0
    assert "replicas" in done.stderr
    done = cluster.kubectl("scale", "llmd/negative", "--replicas=0")
    assert done.returncode == 0, done.stderr
    assert cluster.get("negative")["spec"]["replicas"] == 0


def _status() -> LLMDeploymentStatus:
    ready = Condition(
        type="Ready",
        status="False",
        observed_generation=1,
        last_transition_time="2026-01-01T00:00:00Z",
        reason="FetchingModel",
        message="fetching 12 of 30 files",
    )
    group = GroupStatus(index=0, revision="abc", nodes=["node-1"], avoid_nodes=["node-2"])
    return LLMDeploymentStatus(
        observed_generation=1, conditions=[ready], groups=[group], replicas=1, selector="a=b"
    )


def test_status_is_stored_whole_and_moves_no_generation(cluster: Cluster) -> None:
    cluster.create(manifest(MINIMAL_SPEC, "reported"), dry=False)
    status = _status().model_dump(mode="json", by_alias=True, exclude_none=True)
    made = cluster.patch("reported", {"status": status}, "status")
    assert made["status"] == status, "what is missing was pruned: not in the schema"
    assert made["metadata"]["generation"] == 1
    assert LLMDeploymentStatus.read(made["status"]) == _status()


def test_a_measured_run_in_status_outlives_what_the_operator_writes(cluster: Cluster) -> None:
    cluster.create(manifest(MINIMAL_SPEC, "measured"), dry=False)
    point = {name: 1.5 for name in BenchmarkPoint.model_fields if name != "concurrency"}
    run = BenchmarkStatus(
        revision="abc",
        date="2026-01-01T00:00:00Z",
        tool="t",
        input_len=2048,
        output_len=512,
        points=[BenchmarkPoint.model_validate({**point, "concurrency": 1, "failed": 0})],
        knee=1,
        advice=["as it is"],
    )
    told = run.model_dump(mode="json", by_alias=True, exclude_none=True)

    def write(manager: str, status: Mapping[str, Any]) -> None:
        head = {"apiVersion": names.API_VERSION, "kind": names.KIND}
        body = {**head, "metadata": {"name": "measured"}, "status": status}
        options = ("--server-side", "--subresource=status", f"--field-manager={manager}", "-f-")
        done = cluster.kubectl("apply", *options, given=json.dumps(body))
        assert done.returncode == 0, done.stderr

    write(names.MANAGER_BENCHMARK, {"benchmark": told})
    write(names.MANAGER_STATUS, applied(_status().model_copy(update={"benchmark": run})))
    assert cluster.get("measured")["status"]["benchmark"] == told
    write(names.MANAGER_STATUS, applied(_status()))
    found = cluster.get("measured")["status"]
    assert found["benchmark"] == told
    assert LLMDeploymentStatus.read(found).benchmark == run
    assert found["replicas"] == 1


def test_two_conditions_of_one_type_are_refused(cluster: Cluster) -> None:
    cluster.create(manifest(MINIMAL_SPEC, "twice"), dry=False)
    (ready,) = _status().model_dump(mode="json", by_alias=True)["conditions"]
    with pytest.raises(client.ApiException, match="Duplicate value"):
        cluster.patch("twice", {"status": {"conditions": [ready, ready]}}, "status")


# What people see


def test_kubectl_shows_the_columns_by_short_name_and_by_category(cluster: Cluster) -> None:
    # The shape is that of the plan: the spec may leave it open.
    cluster.create(manifest(MINIMAL_SPEC, "shown"), dry=False)
    status = _status().model_dump(mode="json", by_alias=True, exclude_none=True)
    serving = {"serving": {"key": "0123456789abcdef"}}
    plan = {"tensor": 8, "pipeline": 2, "gpuProduct": "NVIDIA-H100-80GB-HBM3"}
    more = {"engine": serving, "plan": plan, "readyReplicas": 0}
    cluster.patch("shown", {"status": {**status, **more}}, "status")
    done = cluster.kubectl("get", "llmd", "shown")
    head, row = done.stdout.splitlines()
    assert head.split() == [
        *("NAME", "READY", "REASON", "REPLICAS", "TP", "PP", "GPU", "ENGINE", "AGE"),
    ]
    assert row.split()[:8] == [
        *("shown", "False", "FetchingModel", "0", "8", "2"),
        *("NVIDIA-H100-80GB-HBM3", "0123456789abcdef"),
    ]
    wide = cluster.kubectl("get", "llm", "-o", "wide").stdout
    assert wide.splitlines()[0].split()[-2:] == ["DESIRED", "MESSAGE"]
    assert "fetching 12 of 30 files" in wide


def test_kubectl_explains_a_field(cluster: Cluster) -> None:
    done = cluster.kubectl("explain", "llmdeployment.spec.parallelism.tensor")
    assert "Tensor-parallel ranks: GPUs of one NVLink domain." in done.stdout


def test_an_applied_file_shows_no_difference_afterwards(cluster: Cluster) -> None:
    text = yaml.safe_dump(manifest(put(MINIMAL_SPEC, "pod.resources.cpu", 8), "applied"))
    done = cluster.kubectl("apply", "--server-side", "-f", "-", given=text)
    assert done.returncode == 0, done.stderr
    difference = cluster.kubectl("diff", "--server-side", "-f", "-", given=text)
    assert (difference.returncode, difference.stdout) == (0, "")


# Ratcheting


def _looser(plural: str, most: int) -> dict[str, Any]:
    """The definition under another name, with another bound of the tensor size."""
    made = copy.deepcopy(crd())
    made["metadata"]["name"] = f"{plural}.{names.GROUP}"
    kind = plural.capitalize()
    made["spec"]["names"] = {"kind": kind, "listKind": f"{kind}List", "plural": plural}
    root = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    root["properties"]["spec"]["properties"]["parallelism"]["properties"]["tensor"]["maximum"] = (
        most
    )
    return made


def test_an_old_value_beyond_a_new_bound_stays_until_it_is_touched(
    cluster: Cluster, sandbox: Sandbox
) -> None:
    plural = f"ratchets{uuid.uuid4().hex[:6]}"
    _install(sandbox, _looser(plural, 4096))
    api = client.ApiextensionsV1Api(sandbox.api)
    try:
        old = Cluster(sandbox, cluster.namespace, plural)
        body = {
            **manifest(put(MINIMAL_SPEC, "parallelism.tensor", 2048), "old"),
            "kind": plural.capitalize(),
        }

        def created() -> bool:
            try:
                old.create(body, dry=False)
            except client.ApiException as error:
                if error.status == 404:  # the server has not begun to serve it
                    return False
                raise
            return True

        _until("the old object being created", created)
        _install(sandbox, _looser(plural, 1024))
        new = {**body, "metadata": {"name": "new"}}

        def tightened() -> bool:
            try:
                old.create(new)
            except client.ApiException as error:
                return "should be less than or equal to 1024" in str(error.body)
            return False

        _until("the new bound holding", tightened)
        assert old.patch("old", {"spec": {"replicas": 2}})["spec"]["replicas"] == 2
        with pytest.raises(client.ApiException, match="less than or equal to 1024"):
            old.patch("old", {"spec": {"parallelism": {"tensor": 2049}}})
        fixed = old.patch("old", {"spec": {"parallelism": {"tensor": 8}}})
        assert fixed["spec"]["parallelism"]["tensor"] == 8
    finally:
        api.delete_custom_resource_definition(f"{plural}.{names.GROUP}")
