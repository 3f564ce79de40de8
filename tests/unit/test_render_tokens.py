"""Each incarnation of several stages has its own token, there before any of its pods starts."""

from __future__ import annotations

import base64
import json
from typing import Any

import kubernetes_validate
import pytest
from tests.golden import specs

from shardwright.api import names
from shardwright.api.settings import Settings
from shardwright.apply.writes import Create, Patch, Together
from shardwright.control.carry import Carrier
from shardwright.observe.world import DeploymentView, PodView
from shardwright.plan.groups import Group, State
from shardwright.plan.placed import Placed
from shardwright.plan.situation import FinishPlacement
from shardwright.render.pods import group_pods
from shardwright.render.tokens import draw_token, token_secret
from shardwright.runner.contract import TOKEN_DIR, TOKEN_FILE, TOKEN_MIN_CHARS, ServeRequest, decode
from shardwright.runner.serve.secret import Token

TWO_STAGES = {"tensor": 8, "pipeline": 2}
PLACED = Placed(("node-a", "node-b"), 1.0)


def pods(pipeline: int, **identity: Any) -> list[dict[str, Any]]:
    asked = specs.spec(parallelism={"tensor": 8, "pipeline": pipeline})
    return list(group_pods(specs.resolved(asked), specs.identity(**identity), "runner"))


def member(stage: int, *, gated: bool = True) -> PodView:
    labels = {names.LABEL_STAGE: str(stage)}
    return PodView("llm", f"llama-{stage}", f"uid-{stage}", labels=labels, gated=gated)


def group(pipeline: int, *members: PodView) -> Group:
    return Group(3, 7, "llama-4f1c2b3a5d", pipeline, members, State.GATED, placement=PLACED)


def carrier(*drawn: str) -> Carrier:
    view = DeploymentView("llm", "llama", "uid-llama", generation=1, resource_version=7)
    remaining = iter(drawn)
    return Carrier(
        view,
        Settings(),
        spread=lambda _: None,
        children=frozenset(),
        hostname=lambda node: node,
        draw_token=lambda: next(remaining),
    )


def test_every_pod_of_a_group_of_several_stages_mounts_the_very_secret_that_is_created() -> None:
    identity = specs.identity(replica=3, incarnation=7)
    secret = token_secret(identity, "llama-0", "uid-0", draw_token())
    for pod in pods(2, replica=3, incarnation=7):
        (volume,) = [one for one in pod["spec"]["volumes"] if "secret" in one]
        assert volume["secret"]["secretName"] == secret["metadata"]["name"]
        assert pod["metadata"]["namespace"] == secret["metadata"]["namespace"]
        (container,) = pod["spec"]["containers"]
        (mount,) = [one for one in container["volumeMounts"] if one["name"] == volume["name"]]
        assert mount == {"name": volume["name"], "mountPath": TOKEN_DIR, "readOnly": True}
        assert TOKEN_FILE in secret["stringData"]


def test_the_file_can_be_read_by_the_pods_group_and_by_nobody_else() -> None:
    for pod in pods(2):
        (volume,) = [one for one in pod["spec"]["volumes"] if "secret" in one]
        assert volume["secret"]["defaultMode"] == 0o440
        assert pod["spec"]["securityContext"]["fsGroup"] == 1000


def test_a_single_stage_has_nobody_to_talk_to_and_so_no_token_and_no_channel() -> None:
    (pod,) = pods(1)
    assert not [one for one in pod["spec"]["volumes"] if "secret" in one]
    (container,) = pod["spec"]["containers"]
    assert "channel" not in [port["name"] for port in container["ports"]]


def test_the_port_of_the_channel_is_the_one_that_the_runner_is_told() -> None:
    for pod in pods(2):
        (container,) = pod["spec"]["containers"]
        told = {one["name"]: one.get("value", "") for one in container["env"]}
        request = decode(ServeRequest, told["SHARDWRIGHT_REQUEST"])
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert ports["channel"] == request.channel_port == names.PORT_CHANNEL


def test_the_secret_goes_with_its_leader_and_never_changes() -> None:
    secret = token_secret(specs.identity(), "llama-0", "uid-0", draw_token())
    (owner,) = secret["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Pod", "llama-0", "uid-0")
    assert owner["blockOwnerDeletion"] is False
    assert secret["immutable"] is True
    stored = {
        **{name: value for name, value in secret.items() if name != "stringData"},
        "data": {
            name: base64.b64encode(value.encode()).decode()
            for name, value in secret["stringData"].items()
        },
    }
    kubernetes_validate.validate(stored, "1.37", strict=True)


def test_incarnations_and_replicas_have_secrets_of_their_own() -> None:
    made = {
        token_secret(specs.identity(replica=replica, incarnation=incarnation), "l", "u", "t")[
            "metadata"
        ]["name"]
        for replica in (0, 1)
        for incarnation in (1, 2)
    }
    assert len(made) == 4


def test_a_drawn_token_is_one_that_the_runner_takes_and_no_two_are_alike() -> None:
    drawn = {draw_token() for _ in range(100)}
    assert len(drawn) == 100
    for token in drawn:
        assert len(token) >= TOKEN_MIN_CHARS
        Token(token.encode())


def test_the_token_is_there_before_the_first_gate_is_lifted() -> None:
    secret, lifted = carrier("t" * 64).placements(group(2, member(0), member(1)), PLACED)
    assert isinstance(secret, Create)
    assert secret.kind == "Secret"
    assert secret.expect_owner_uid == "uid-0"
    assert secret.body["stringData"] == {TOKEN_FILE: "t" * 64}
    assert isinstance(lifted, Together)
    assert {write.uid for write in lifted.writes if isinstance(write, Patch)} == {"uid-0", "uid-1"}


@pytest.mark.parametrize("left", [0, 1])
def test_a_placement_that_another_life_began_is_finished_with_its_token(left: int) -> None:
    members = [member(stage, gated=stage == left) for stage in (0, 1)]
    found = carrier("t" * 64).writes([FinishPlacement(group(2, *members))])
    secret, lifted = found
    assert isinstance(secret, Create)
    assert secret.expect_owner_uid == "uid-0"
    assert isinstance(lifted, Together)
    assert [write.uid for write in lifted.writes if isinstance(write, Patch)] == [f"uid-{left}"]


def test_a_single_stage_is_placed_without_a_token() -> None:
    (lifted,) = carrier().placements(group(1, member(0)), Placed(("node-a",), 1.0))
    assert isinstance(lifted, Together)


def test_the_token_is_in_no_pod() -> None:
    token = draw_token()
    token_secret(specs.identity(), "llama-0", "uid-0", token)
    assert token not in json.dumps(pods(2))
