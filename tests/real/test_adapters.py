"""Adapters on real nodes come and go under requests, and are there again after a leader's death."""

from __future__ import annotations

import json
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from tests.real.live import SECONDS, Live, failed
from tests.real.site import MODEL, Site
from tests.standin.running import PROMPTS
from tests.support import standin_model
from tests.support.adapters import adapter, write
from tests.support.kube import Json, ready
from tests.support.real_processes import lasting, processes

from shardwright.api import names
from shardwright.runner.contract import ADAPTERS_FILE

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ENGINES: dict[str, Json] = {
    "vllm": {"runtime": "VLLM", "backend": None},
    "sglang": {"runtime": "SGLang", "backend": None},
    "pytorch": {"runtime": "TensorRTLLM", "backend": "PyTorch"},
}
ADAPTERS = ("legal", "poems")
# Prompts that each adapter is asked after each change.
FEW = 4
# Projections of the tiny model: inputs and outputs.
SIZES = {"q_proj": (64, 64), "v_proj": (64, 32)}
Says = dict[str, dict[str, str]]


def wish(name: str, *wanted: str) -> Json:
    """Adapters of a deployment's own, so that it fetches each itself."""
    listed = [{"name": one, "uri": f"pvc://models/lora/{name}/{one}"} for one in wanted]
    modules = ["attn_q", "attn_v"]
    return {"lora": {"maxRank": 16, "targetModules": modules, "adapters": listed}}


@pytest.fixture(scope="module")
def adapted(live: Live) -> Live:
    """A deployment of each runtime; no adapter is loaded yet."""
    for name, engine in ENGINES.items():
        for seed, one in enumerate(ADAPTERS, 1):
            write(live.site.claim / "lora" / name / one, adapter(SIZES, layers=4, seed=seed))
        live.create(name, {"engine": engine, **wish(name)})
    return live


@pytest.fixture(scope="module")
def says(adapted: Live, model: Path) -> Says:
    """What the unsharded model says with each adapter; each answer tells whose it is."""
    folder, reference = adapted.site.claim / "lora" / "vllm", adapted.site.reference
    found = {
        one: standin_model.unsharded(model, PROMPTS[:FEW], adapter=folder / one) for one in ADAPTERS
    }
    assert all(text != reference[prompt] for one in found.values() for prompt, text in one.items())
    return found


def table(site: Site, name: str) -> dict[str, Json]:
    """The ConfigMap that users look an adapter's number and folder up in, by adapter."""
    labels = f"{names.LABEL_ADAPTERS}=true,{names.LABEL_DEPLOYMENT}={name}"
    (found,) = site.kube.raw(
        f"/api/v1/namespaces/{site.kube.namespace}/configmaps", labelSelector=labels
    )["items"]
    listed = json.loads(found["data"][ADAPTERS_FILE])["adapters"]
    return {str(one["name"]): one for one in listed}


def form(site: Site, name: str, one: str) -> tuple[str, Json]:
    """The model that a request for an adapter names, and what else it says (docs/lora.md)."""
    if name == "vllm":
        return one, {}
    if name == "sglang":
        return f"{MODEL}:{one}", {}
    told = table(site, name)[one]
    return MODEL, {
        "lora_request": {
            "lora_name": one,
            "lora_int_id": told["number"],
            "lora_path": told["folder"],
        }
    }


def answers(site: Site, name: str, leader: Json, says: Says, *wanted: str) -> None:
    """Each adapter answers as the unsharded model with it does, and the model as itself."""
    for one in wanted:
        asked_for, more = form(site, name, one)
        assert site.wrong_answers(leader, says[one], asked_for, more) == []
    assert site.wrong_answers(leader, {PROMPTS[0]: site.reference[PROMPTS[0]]}) == []


def taken_out(site: Site, name: str, leader: Json, one: str) -> bool:
    """Whether the server refuses it; where none can unload, whether users find it no more."""
    if name == "pytorch":
        return one not in table(site, name)
    asked_for, _ = form(site, name, one)
    (said,) = site.wrong_answers(leader, {PROMPTS[0]: ""}, asked_for)
    told = {
        "vllm": ("HTTP 404", f"The model `{one}` does not exist."),
        "sglang": ("HTTP 400", "The following requested LoRA adapters are not loaded"),
    }
    return all(words in said for words in told[name])


def test_adapters_come_and_go_and_no_pod_engine_or_request_notices(
    adapted: Live, says: Says, tmp_path: Path
) -> None:
    """On all runtimes at the same time: each waits most of the time."""
    live, site = adapted, adapted.site
    for name in ENGINES:
        live.settled(name)
    leaders = {name: live.leader(name) for name in ENGINES}
    before = {name: live.uids(name) for name in ENGINES}
    inside = {name: live.containers(name) for name in ENGINES}
    working = {name: lasting(before[name]) for name in ENGINES}
    assert all(working.values())

    def change(*wanted: str) -> dict[str, dict[str, int]]:
        """Of Jobs and revisions, those of all deployments."""
        mark = live.watcher.mark()
        for name in ENGINES:
            site.kube.edit(name, wish(name, *wanted))
        for name in ENGINES:
            site.kube.wait_reason(name, "AdaptersReady", "AdaptersLoaded", SECONDS)
        for name in ENGINES:
            live.settled(name)
            told = site.kube.get(name)["status"].get("adapters", [])
            assert {one["name"]: one["loadedOn"] for one in told} == dict.fromkeys(wanted, "1 of 1")
            answers(site, name, leaders[name], says, *wanted)
        return {name: live.cost(mark, name) for name in ENGINES}

    nothing: dict[str, dict[str, int]] = {name: {} for name in ENGINES}
    # Meanwhile clients ask for the model itself, and must get its answers.
    with ExitStack() as stack:
        asked = {}
        for name in ENGINES:
            folder = tmp_path / name
            folder.mkdir()
            asked[name] = stack.enter_context(site.clients(name, folder, pause=0.3))
        for cost in change("legal", "poems").values():
            assert cost == {"adapter": 2 * len(ENGINES)}
        assert change("poems") == nothing
        # AdaptersLoaded is said of those that are asked for.
        for name, leader in leaders.items():
            site.kube.wait("it is out", partial(taken_out, site, name, leader, "legal"), SECONDS)
        # It is on the claim and was looked at: nothing is fetched for it again.
        assert change("poems", "legal") == nothing
    for name in ENGINES:
        assert failed(asked[name]) == []
        assert live.uids(name) == before[name]
        assert live.containers(name) == inside[name]
        assert working[name] <= lasting(before[name])

    # What takes a leader's place is ready only with both of them.
    for one in processes({leader["metadata"]["uid"] for leader in leaders.values()}):
        # The kernel ends the others with it.
        if one.part == "runner":
            one.kill()
    for name, leader in leaders.items():
        leaders[name] = site.kube.wait(
            "another leader", partial(other, live, name, leader), SECONDS
        )
        answers(site, name, leaders[name], says, "legal", "poems")
    for name in ENGINES:
        live.settled(name)
        assert not before[name] & live.uids(name), "a pod of the old group is left"
    assert change() == nothing
    site.kube.wait(
        "none is left",
        lambda: all(
            taken_out(site, name, leader, one)
            for name, leader in leaders.items()
            for one in ADAPTERS
        ),
        SECONDS,
    )


def other(live: Live, name: str, old: Json) -> Json | None:
    """A leader that is ready and is not the old one."""
    uid = old["metadata"]["uid"]
    return next(
        (pod for pod in live.site.leaders(name) if ready(pod) and pod["metadata"]["uid"] != uid),
        None,
    )
