"""The 16-bit baseline of what only a server can be asked: its server runs in the step's own pod."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from shardwright_standin import commandline
from tests.golden import specs
from tests.unit.test_gate import IMAGE, SETTINGS, job_of, resolved, spec

from shardwright.api.names import LABEL_KEY, LABEL_STEP
from shardwright.api.settings import Settings
from shardwright.observe.projections import job_view
from shardwright.observe.quantity import resources_of
from shardwright.observe.requests import pod_requests
from shardwright.observe.world import JobView, PodView, Record, RecordState
from shardwright.plan.attempts import Chain, Next, Shop
from shardwright.plan.chain import judge
from shardwright.plan.revisions import dump, load
from shardwright.plan.stepfaults import Blame, at_least, floors, memory_raised, step_fault
from shardwright.render.jobs import SERVER
from shardwright.resolved import Resolved, Score, ServerBeside
from shardwright.runner.contract import ENV_REQUEST, StepRequest, decode
from shardwright.runtimes.evaluation_ways import refuse

GSM8K: dict[str, Any] = {"task": "gsm8k", "maxDrop": 1.0, "samples": 200}
TEXT: dict[str, Any] = {"task": "perplexity", "maxRise": 0.1, "dataset": "t.txt"}
STAGES: dict[str, Any] = {"parallelism": {"tensor": 4, "pipeline": 2}}
VLLM: dict[str, Any] = {"engine": {"runtime": "VLLM"}}
SGLANG: dict[str, Any] = {"engine": {"runtime": "SGLang"}}
# What is measured, and the tool and the words of the server that serve it.
WAYS = [
    (GSM8K, STAGES, "lm_eval", "trtllm-serve"),
    (GSM8K, VLLM, "lm_eval", "vllm-serve"),
    (TEXT, VLLM | STAGES, "perplexity", "vllm-serve"),
    (GSM8K, SGLANG, "lm_eval", "sglang.launch_server"),
    (TEXT, SGLANG | STAGES, "perplexity", "sglang.launch_server"),
]


def baseline(accuracy: dict[str, Any], tensor: int = 2, **changes: Any) -> tuple[Resolved, Score]:
    found = resolved(accuracy, tensor=tensor, **changes)
    assert found.gate is not None
    assert found.gate.baseline is not None
    return found, found.gate.baseline


def server_of(one: Score) -> ServerBeside:
    assert one.beside is not None
    return one.beside


@pytest.mark.parametrize(("accuracy", "changes", "tool", "server"), WAYS)
def test_the_plain_model_is_served_on_one_node_and_asked_by_the_candidates_tool(
    accuracy: dict[str, Any], changes: dict[str, Any], tool: str, server: str
) -> None:
    found, one = baseline(accuracy, **changes)
    assert found.gate is not None
    assert [command.tool for command in one.commands] == [tool]
    own, theirs = one.commands[0].argv, found.gate.score.commands[0].argv
    assert own == theirs, "both are asked the same"
    beside = server_of(one)
    assert beside.image == found.image
    assert one.image == (IMAGE if tool == "lm_eval" else SETTINGS.operator_image)
    assert (one.gpus, one.product, one.asks_leader) == (2, specs.H100, False)
    assert (beside.resources.gpus, one.resources.gpus) == (2, 2)
    assert one.resources.memory_bytes > beside.resources.memory_bytes
    assert beside.command.tool == server
    words = " ".join(beside.command.argv)
    for quantized in ("--quantization", "fp8", "FP8"):
        assert quantized not in words
        assert quantized not in str(beside.config)
    assert one.loads.endswith(f"model/{found.model_key}")


def test_the_servers_words_are_of_the_tools_own_contract() -> None:
    _, one = baseline(GSM8K, **STAGES)
    argv = server_of(one).command.argv
    parsed = commandline.parse("trtllm-serve", argv[1:])
    assert (parsed.values["tp_size"], parsed.values["pp_size"]) == (2, 1)
    assert parsed.values["backend"] == "pytorch"
    _, one = baseline(GSM8K, **VLLM)
    parsed = commandline.parse("vllm-serve", server_of(one).command.argv[2:])
    assert parsed.values["tensor_parallel_size"] == 2
    assert parsed.values["quantization"] is None
    _, one = baseline(GSM8K, **SGLANG)
    parsed = commandline.parse("sglang.launch_server", server_of(one).command.argv[3:])
    assert (parsed.values["tp_size"], parsed.values["pp_size"]) == (2, 1)
    assert parsed.values["quantization"] is None


@pytest.mark.parametrize(("accuracy", "changes", "tool", "server"), WAYS)
def test_a_revision_keeps_the_server(
    accuracy: dict[str, Any], changes: dict[str, Any], tool: str, server: str
) -> None:
    found, one = baseline(accuracy, **changes)
    kept = load(dump(found))
    assert kept.gate == found.gate
    assert server_of(one).command.tool == server
    assert one.commands[0].tool == tool


def test_the_key_is_of_the_model_and_the_measurement_not_of_precision_or_split() -> None:
    _, one = baseline(GSM8K, **VLLM)
    assert one.inputs["of"] == {
        "model": one.source_key,
        "commit": specs.COMMIT,
        "image": server_of(one).image,
        "runtime": "VLLM",
        "version": one.inputs["of"]["version"],  # type: ignore[index]
        "dtype": "bfloat16",
    }
    same: list[dict[str, Any]] = [
        {"quantization": {"weights": "None", "kvCache": "FP8"}},
        {"parallelism": {"tensor": 4, "pipeline": 2}},
        {"replicas": 3},
    ]
    for change in same:
        assert baseline(GSM8K, **VLLM, **change)[1].key == one.key
    assert baseline(GSM8K, tensor=4, **VLLM)[1].key == one.key, "on more GPUs it is the same model"
    others: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({**GSM8K, "samples": 100}, VLLM),
        (GSM8K, SGLANG),
        (GSM8K, {"engine": {"runtime": "VLLM", "limits": {"maxSeqLen": 6000}}}),
    ]
    for accuracy, change in others:
        assert baseline(accuracy, **change)[1].key != one.key


def test_how_a_text_is_cut_is_part_of_its_key_and_longer_engines_cut_alike() -> None:
    keys = {
        limit: baseline(
            TEXT, engine={"runtime": "VLLM", "limits": {"maxInputLen": limit, "maxSeqLen": 8192}}
        )[1].key
        for limit in (1000, 5000, 6000)
    }
    assert keys[1000] != keys[5000] == keys[6000]


def test_options_of_the_candidate_are_none_of_the_baselines() -> None:
    engine = {"runtime": "VLLM", "config": {"enforce-eager": True}}
    assert baseline(GSM8K, engine=engine)[1] == baseline(GSM8K, **VLLM)[1]
    drafted = {"speculative": {"method": "NGram", "maxDraftLen": 3}}
    assert baseline(GSM8K, **VLLM, **drafted)[1] == baseline(GSM8K, **VLLM)[1]


def pod_of(found: Resolved, one: Score) -> dict[str, Any]:
    pod: dict[str, Any] = job_of(found, one)["spec"]["template"]["spec"]
    return pod


def test_the_server_is_a_sidecar_that_has_the_gpus() -> None:
    own = {"name": "NCCL_P2P_DISABLE", "value": "1"}
    found, one = baseline(GSM8K, **VLLM, pod={"env": [own]})
    pod = pod_of(found, one)
    (tool,), (server,) = pod["containers"], pod["initContainers"]
    assert (server["name"], server["restartPolicy"]) == (SERVER, "Always")
    assert server["command"][-1] == "beside"
    assert "startupProbe" not in server, "the tool's container begins with it, and waits itself"
    assert server["image"] == found.image
    assert tool["image"] == IMAGE
    assert server["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert "nvidia.com/gpu" not in tool["resources"]["limits"]
    shown = {entry["name"]: entry.get("value") for entry in tool["env"]}
    assert shown["NVIDIA_VISIBLE_DEVICES"] == "none"
    assert "NVIDIA_VISIBLE_DEVICES" not in {entry["name"] for entry in server["env"]}
    assert own in server["env"]
    assert own not in tool["env"]
    # What the scheduler will count is what the place was sought for.
    whole = pod_requests({"spec": pod})
    assert whole == one.resources
    mounted = {mount["name"]: mount.get("readOnly", False) for mount in server["volumeMounts"]}
    assert mounted["store"] is True
    assert not mounted["scratch"]
    requests = {
        entry["value"]
        for container in (tool, server)
        for entry in container["env"]
        if entry["name"] == ENV_REQUEST
    }
    (text,) = requests
    asked = decode(StepRequest, text)
    assert asked.leader == "127.0.0.1"
    assert asked.beside is not None
    assert asked.beside.command == server_of(one).command
    assert asked.beside.config == server_of(one).config
    assert (asked.beside.port, asked.beside.health_path) == (8000, "/health")
    assert asked.source == one.loads


def test_other_scores_have_no_server() -> None:
    found = resolved({"task": "mmlu", "samples": 570, "maxDrop": 1.0})
    assert found.gate is not None
    for one in (found.gate.score, found.gate.baseline):
        assert one is not None
        assert one.beside is None
        assert "initContainers" not in pod_of(found, one)
    assert "beside" not in dump(found)["gate"]["score"]


def test_nims_container_serves_no_plain_model_beside() -> None:
    found = refuse(spec(GSM8K, engine={"runtime": "NIM"}), SETTINGS)
    assert found is not None
    assert found.reason == "BaselineUnavailable"
    assert "chooses a profile by the checkpoint" in found.message
    assert 'baseline: "68.2"' in found.message
    for changes in (STAGES, VLLM, SGLANG):
        assert refuse(spec(GSM8K, **changes), SETTINGS) is None


def raised(**memory: str) -> Settings:
    """Settings of an administrator who has given more memory since, by field."""
    given = {field: {"memory": amount} for field, amount in memory.items()}
    return SETTINGS.model_validate({**SETTINGS.model_dump(by_alias=True), **given})


@pytest.mark.parametrize(
    ("memory", "server", "tool"),
    [
        ({"stepResources": "65Gi"}, 65, 0),
        ({"stepResources": "200Gi"}, 200, 0),
        ({"fetchResources": "50Gi"}, 0, 50),
    ],
)
def test_memory_that_was_raised_since_goes_to_the_container_that_it_is_named_for(
    memory: dict[str, str], server: int, tool: int
) -> None:
    found, one = baseline(GSM8K, **VLLM)
    last = JobView("llm", "j", "u", requests=one.resources)
    more = at_least(one, floors(raised(**memory)))
    assert isinstance(more, Score)
    assert memory_raised(more, last)
    pod = pod_of(found, more)
    (tools,), (servers,) = pod["containers"], pod["initContainers"]
    had = {"server": server_of(one).resources, "tool": one.resources - server_of(one).resources}
    wanted = {
        "server": server * 2**30 or had["server"].memory_bytes,
        "tool": tool * 2**30 or had["tool"].memory_bytes,
    }
    for name, container in (("server", servers), ("tool", tools)):
        limit = container["resources"]["limits"]["memory"]
        assert resources_of({"memory": limit}).memory_bytes == wanted[name], name
    assert pod_requests({"spec": pod}) == more.resources


def test_the_same_settings_change_nothing_of_a_server_and_its_tool() -> None:
    _, one = baseline(GSM8K, **VLLM)
    assert at_least(one, floors(SETTINGS)) == one


def test_a_tool_out_of_memory_beside_its_server_names_its_own_limit() -> None:
    found, one = baseline(GSM8K, **VLLM)
    seen = job_view(
        {
            "metadata": {
                "namespace": "llm",
                "name": "j",
                "uid": "u",
                "labels": {LABEL_STEP: one.step, LABEL_KEY: one.key},
            },
            "spec": {"template": {"spec": pod_of(found, one)}},
        }
    )
    killed = PodView("llm", "p", "p", node="n1", exit_reason="OOMKilled", exit_code=137)
    fault = step_fault(seen, killed, None)
    assert fault.blame is Blame.MEMORY
    own = one.resources - server_of(one).resources
    assert f"its limit of {own.memory_bytes / 2**30:.1f} GiB" in fault.cause
    assert "raise fetchResources.memory" in fault.cause


# More of each GPU for the same server: it is in no key.
ROOMY: dict[str, Any] = {"engine": {"runtime": "VLLM", "limits": {"gpuMemoryFraction": 0.95}}}


def asks(found: Resolved, *failed: Record) -> Chain:
    """What the chain of a revision asks for when its model is there, and a score failed."""
    there = [
        Record(one.step, one.key, found.claim_uid, RecordState.READY) for one in found.artifacts
    ]
    records = {(one.claim_uid, one.step, one.key): one for one in (*there, *failed)}
    return judge(
        found,
        Shop(
            records=records,
            jobs=(),
            job_pods={},
            tries={},
            nodes={},
            edit="2",
            now=0.0,
            jitter=0.0,
            timeouts=SETTINGS.timeouts,
        ),
    )


def test_a_measurement_that_failed_for_good_is_tried_again_under_a_wish_that_may_be_the_cure() -> (
    None
):
    """Its key holds what decides the score, not all that decides whether the server starts."""
    found, one = baseline(GSM8K, **VLLM)
    cured, same = baseline(GSM8K, **ROOMY)
    assert same.key == one.key
    first = asks(found)
    assert (first.next, first.artifact) == (Next.CREATE, one)
    assert first.wish
    failed = Record(
        one.step,
        one.key,
        found.claim_uid,
        RecordState.FAILED,
        reason="ToolFailed",
        attempt=1,
        tried=(first.wish,),
    )
    assert asks(found, failed).next is Next.STALLED
    other_limit = baseline({**GSM8K, "maxDrop": 5.0}, **VLLM)[0]
    assert asks(other_limit, failed).next is Next.STALLED, "what is demanded cures nothing"
    again = asks(cured, failed)
    assert (again.next, again.attempt) == (Next.CREATE, 2)
    both = replace(failed, attempt=2, tried=(first.wish, again.wish))
    assert asks(cured, both).next is asks(found, both).next is Next.STALLED
    # One that an earlier operator wrote says nothing of wishes.
    assert asks(cured, replace(failed, tried=())).next is Next.STALLED
