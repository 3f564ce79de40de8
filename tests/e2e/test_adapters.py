"""Adapters of a deployment come and go: nothing is built, restarted or rolled for them.

Simulated nodes run no server, so that what leaders would load is told by the table that they read.
"""

from __future__ import annotations

import json

import pytest
from tests.support.kube import Json, Kube
from tests.support.operator import Operator

from shardwright_sandbox.player.control import Act, Match, PlayerControl, Rule

pytestmark = pytest.mark.e2e

LIMITS: Json = {"maxRank": 16, "targetModules": ["attn_q", "attn_v"]}
# A name's end tells the rank to whoever plays the fetch.
PATIENCE = 90.0


def lora(*names: str, **more: Json) -> Json:
    adapters = [{"name": name, "uri": f"hf://acme/{name}"} for name in names]
    return {"lora": {**LIMITS, "adapters": adapters, **more}}


def table(kube: Kube, name: str) -> set[str]:
    labels = f"shardwright.dev/adapters=true,shardwright.dev/deployment={name}"
    items = kube.core.list_namespaced_config_map(kube.namespace, label_selector=labels).items
    assert len(items) <= 1
    found = json.loads(items[0].data["adapters.json"])["adapters"] if items else []
    return {entry["name"] for entry in found}


def states(kube: Kube, name: str) -> dict[str, str]:
    listed = kube.get(name).get("status", {}).get("adapters", [])
    return {item["name"]: item["state"] for item in listed}


def until(kube: Kube, name: str, wanted: dict[str, str], served: set[str]) -> None:
    kube.wait(
        f"adapters {wanted}, of which {served} are served",
        lambda: (states(kube, name), table(kube, name)) == (wanted, served),
        PATIENCE,
    )


def uids(kube: Kube, name: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in kube.pods(name)}


def steps(kube: Kube) -> list[str]:
    items = kube.batch.list_namespaced_job(kube.namespace).items
    return sorted(item.metadata.labels["shardwright.dev/step"] for item in items)


def revisions(kube: Kube) -> list[str]:
    items = kube.apps.list_namespaced_controller_revision(kube.namespace).items
    return sorted(item.metadata.name for item in items)


def test_adapters_come_and_go_and_an_invalid_one_harms_none(
    running: Operator, h100s: list[str], kube: Kube
) -> None:
    kube.create("llama", lora("legal-r8"))
    kube.wait_ready("llama", PATIENCE)
    until(kube, "llama", {"legal-r8": "Ready"}, {"legal-r8"})
    pods, known = uids(kube, "llama"), revisions(kube)
    assert len(known) == 1

    # Three more: one too wide, one that is nowhere. The others are served all the same.
    kube.edit("llama", lora("legal-r8", "poems-r16", "wide-r64", "nowhere"))
    wanted = {
        "legal-r8": "Ready",
        "poems-r16": "Ready",
        "wide-r64": "Invalid",
        "nowhere": "Failed",
    }
    until(kube, "llama", wanted, {"legal-r8", "poems-r16"})
    status = kube.get("llama")["status"]
    messages = {item["name"]: item["message"] for item in status["adapters"]}
    assert "raise lora.maxRank to 64" in messages["wide-r64"]
    conditions = {item["type"]: item for item in status["conditions"]}
    assert conditions["Ready"]["status"] == "True"
    assert conditions["AdaptersReady"]["status"] == "False"
    assert "wide-r64" in conditions["AdaptersReady"]["message"]
    role = "shardwright.dev/role"
    leaders = [pod for pod in kube.pods("llama") if pod["metadata"]["labels"][role] == "leader"]
    assert leaders
    kube.wait(
        "each leader is told",
        lambda: all(
            "shardwright.dev/adapters" in pod["metadata"].get("annotations", {})
            for pod in kube.pods("llama")
            if pod["metadata"]["labels"][role] == "leader"
        ),
    )

    # Taken out again: nothing else has moved.
    kube.edit("llama", lora("poems-r16"))
    until(kube, "llama", {"poems-r16": "Ready"}, {"poems-r16"})
    assert uids(kube, "llama") == pods
    assert revisions(kube) == known
    assert steps(kube).count("engine") == 1

    # A raised limit builds one engine, of the checkpoint that is there, and takes the wide one.
    kube.edit("llama", lora("poems-r16", "wide-r64", maxRank=64))
    until(
        kube, "llama", dict.fromkeys(("poems-r16", "wide-r64"), "Ready"), {"poems-r16", "wide-r64"}
    )
    kube.wait("the replicas on the new engine", lambda: not uids(kube, "llama") & pods, PATIENCE)
    kube.wait_ready("llama", PATIENCE)
    assert steps(kube).count("engine") == 2
    assert steps(kube).count("checkpoint") == steps(kube).count("model") == 1


def tables(kube: Kube, name: str) -> dict[str, set[str]]:
    """Names by the revision whose leaders mount them."""
    labels = f"shardwright.dev/adapters=true,shardwright.dev/deployment={name}"
    (only,) = kube.core.list_namespaced_config_map(kube.namespace, label_selector=labels).items
    return {
        key.removesuffix(".json"): {entry["name"] for entry in json.loads(text)["adapters"]}
        for key, text in only.data.items()
        if key != "adapters.json"
    }


def revisions_of_pods(kube: Kube, name: str) -> set[str]:
    return {pod["metadata"]["labels"]["shardwright.dev/revision"] for pod in kube.pods(name)}


def test_replicas_keep_their_adapters_until_those_of_smaller_limits_serve(
    running: Operator, h100s: list[str], kube: Kube, player: PlayerControl
) -> None:
    both = {"legal-r8", "poems-r16"}
    kube.create("llama", lora(*sorted(both)))
    kube.wait_ready("llama", PATIENCE)
    until(kube, "llama", dict.fromkeys(both, "Ready"), both)
    (old,) = tables(kube, "llama")

    # The candidate is kept from serving, so that both are there.
    held = Rule(act=Act.NEVER_READY, match=Match(role="leader", incarnation="2"))
    player.add(held)
    kube.edit("llama", lora(*sorted(both), maxRank=8))
    kube.wait("a candidate beside the old one", lambda: len(revisions_of_pods(kube, "llama")) == 2)
    (new,) = revisions_of_pods(kube, "llama") - {old}
    kube.wait("a table for it", lambda: new in tables(kube, "llama"), PATIENCE)
    assert tables(kube, "llama") == {old: both, new: {"legal-r8"}}
    player.remove(held)

    def moved() -> bool:
        found = tables(kube, "llama")
        # Read after the tables: what is there now was there then.
        if old not in revisions_of_pods(kube, "llama"):
            return True
        assert found[old] == both
        return False

    kube.wait("the replicas on the new engine", moved, PATIENCE)
    wanted = {"legal-r8": "Ready", "poems-r16": "Invalid"}
    until(kube, "llama", wanted, {"legal-r8"})
    kube.wait_ready("llama", PATIENCE)
    assert tables(kube, "llama")[new] == {"legal-r8"}
