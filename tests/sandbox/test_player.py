"""The player's parts that need no cluster: orders, steps, checks, timer."""

import json
import shutil
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from shardwright.runner.contract import (
    DONE,
    ENV_REQUEST,
    MANIFEST,
    REASON_GPU_MISMATCH,
    REASON_MANIFEST_MISMATCH,
    REASON_MANIFEST_MISSING,
    REASON_MODEL_NOT_FOUND,
    STORE,
    Command,
    ServeRequest,
    StepRequest,
    artifact_folder,
    artifact_key,
    checkpoint_files,
    encode,
    engine_files,
)
from shardwright_sandbox import audit
from shardwright_sandbox.player.control import Act, Control, Match, Orders, Rule
from shardwright_sandbox.player.files import read_manifest
from shardwright_sandbox.player.serving import refusal
from shardwright_sandbox.player.steps import Played, play_step, put_model
from shardwright_sandbox.player.timer import Timer
from shardwright_sandbox.player.view import PodView

H100 = {"product": "NVIDIA-H100-80GB-HBM3"}
URI = "hf://meta-llama/Llama-3.1-70B-Instruct@main"


def pod(request: StepRequest | ServeRequest, role: str, uid: str = "u1") -> PodView:
    return PodView(
        {
            "metadata": {
                "uid": uid,
                "name": "p",
                "namespace": "ns",
                "resourceVersion": "1",
                "labels": {"shardwright.dev/role": role},
            },
            "spec": {
                "nodeName": "n",
                "containers": [
                    {
                        "name": "main",
                        "env": [{"name": ENV_REQUEST, "value": encode(request)}],
                        "volumeMounts": [{"name": "store", "mountPath": STORE}],
                    }
                ],
                "volumes": [{"name": "store", "persistentVolumeClaim": {"claimName": "models"}}],
            },
            "status": {"phase": "Running"},
        }
    )


def step(
    name: str,
    inputs: dict[str, Any],
    *,
    argv: Iterable[str] = (),
    files: Iterable[str] = (),
    source: str = "",
) -> StepRequest:
    return StepRequest(
        step=name,
        key=artifact_key(name, inputs),
        inputs=inputs,
        commands=(Command("tool", tuple(argv)),) if argv else (),
        expected_files=tuple(files),
        source=source,
    )


MODEL = step("model", {"uri": URI}, source=URI)
CHECKPOINT = step(
    "checkpoint",
    {"model": MODEL.key, "tensor": 2, "pipeline": 2},
    argv=["python3", "convert_checkpoint.py", "--tp_size", "2", "--pp_size", "2"],
    files=checkpoint_files(4),
    source=artifact_folder("model", MODEL.key),
)
ENGINE = step(
    "engine",
    {"checkpoint": CHECKPOINT.key, "product": H100["product"]},
    argv=["trtllm-build", "--max_batch_size", "64", "--gemm_plugin", "auto"],
    files=engine_files(4),
    source=f"{STORE}/{artifact_folder('checkpoint', CHECKPOINT.key)}",
)


@pytest.fixture
def claims(tmp_path: Path) -> Path:
    (tmp_path / "ns" / "models").mkdir(parents=True)
    return tmp_path


def build(claims: Path, upto: StepRequest = ENGINE) -> Played | None:
    for request in (MODEL, CHECKPOINT, ENGINE):
        played = play_step(pod(request, request.step), claims, H100)
        assert played.report.outcome == DONE, played.report
        if request is upto:
            return played
    return None


def folder(claims: Path, request: StepRequest | ServeRequest) -> Path:
    return claims / "ns" / "models" / artifact_folder(request.step, request.key)


def serve(**more: Any) -> PodView:
    values = {
        "deployment": "d",
        "replica": 0,
        "incarnation": 1,
        "stage": 0,
        "tensor": 2,
        "pipeline": 2,
        "step": "engine",
        "key": ENGINE.key,
        "artifact": f"{STORE}/{artifact_folder('engine', ENGINE.key)}",
        "model_folder": "",
        "served_name": "x",
        "product": H100["product"],
        "command": Command("trtllm-serve", ("trtllm-serve",)),
        "config": {},
        "peers": (),
    }
    return pod(ServeRequest(**{**values, **more}), "leader")


def test_the_chain_leaves_what_the_real_tools_leave(claims: Path) -> None:
    played = build(claims)
    assert played.published == folder(claims, ENGINE)
    config = json.loads((played.published / "config.json").read_text())
    assert config["pretrained_config"]["mapping"] == {
        "world_size": 4,
        "tp_size": 2,
        "pp_size": 2,
    }
    assert config["build_config"]["max_batch_size"] == 64
    assert sorted(read_manifest(played.published).files) == sorted(engine_files(4))
    assert read_manifest(played.published).gpu == H100


def test_a_fetch_reports_facts_commit_and_the_real_size(claims: Path) -> None:
    report = build(claims, upto=MODEL).report
    assert (report.facts.layers, report.facts.heads, report.facts.kv_heads) == (80, 64, 8)
    assert len(report.commit) == 40
    assert report.total_bytes > 100e9


def test_a_second_run_reports_and_makes_nothing(claims: Path) -> None:
    build(claims)
    again = play_step(pod(ENGINE, "engine", uid="u2"), claims, H100)
    assert again.published is None
    assert again.report.reused is True


def test_a_ruin_is_replaced(claims: Path) -> None:
    build(claims)
    (folder(claims, ENGINE) / "rank3.engine").unlink()
    again = play_step(pod(ENGINE, "engine", uid="u2"), claims, H100)
    assert again.published == folder(claims, ENGINE)
    assert (folder(claims, ENGINE) / "rank3.engine").exists()


def test_nothing_temporary_is_left(claims: Path) -> None:
    build(claims)
    assert not list(claims.rglob(".tmp-*"))


def test_an_unknown_model_is_a_failure_for_good(claims: Path) -> None:
    request = step("model", {"uri": "hf://example/none"}, source="hf://example/none")
    report = play_step(pod(request, "model"), claims, {}).report
    assert (report.outcome, report.reason) == ("Permanent", REASON_MODEL_NOT_FOUND)


def test_a_model_on_a_claim_is_used_in_place(claims: Path) -> None:
    put_model(claims / "ns" / "mine" / "llama", "meta-llama/Llama-3.1-8B")
    request = step("model", {"uri": "pvc://mine/llama"}, source="pvc://mine/llama")
    played = play_step(pod(request, "model"), claims, {})
    assert played.report.facts.layers == 32
    assert list(read_manifest(played.published).files) == []


def test_a_good_engine_may_be_loaded(claims: Path) -> None:
    build(claims)
    assert refusal(serve(), claims, H100["product"]) is None


def test_engines_that_may_not_be_loaded(claims: Path) -> None:
    assert refusal(serve(), claims, "").reason == REASON_MANIFEST_MISSING
    build(claims)
    assert refusal(serve(), claims, "NVIDIA-H200").reason == REASON_GPU_MISMATCH
    assert refusal(serve(key="0" * 16), claims, "").reason == REASON_MANIFEST_MISMATCH
    assert refusal(serve(tensor=4), claims, "").reason == REASON_MANIFEST_MISMATCH
    (folder(claims, ENGINE) / "rank0.engine").write_bytes(b"cut")
    assert "bytes" in refusal(serve(), claims, "").message
    (folder(claims, ENGINE) / MANIFEST).write_text("{")
    assert refusal(serve(), claims, "").reason == REASON_MANIFEST_MISSING


def test_a_corrupted_artifact_is_reported_as_done_and_refused_later(claims: Path) -> None:
    build(claims)
    shutil.rmtree(folder(claims, ENGINE))
    assert play_step(pod(ENGINE, "engine"), claims, H100, corrupt=True).report.outcome == DONE
    assert refusal(serve(), claims, "").reason == REASON_MANIFEST_MISMATCH


def orders(*rules: Rule) -> Orders:
    made = Orders()
    assert made.read(Control(rules=rules).model_dump_json()) == ""
    return made


def test_a_rule_strikes_so_many_pods_and_stays_with_them() -> None:
    rule = Rule(act=Act.FAIL, match=Match(step="engine"), times=1)
    made = orders(rule)
    assert made.rule("a", {"step": "checkpoint"}, Act.FAIL) is None
    assert made.rule("a", {"step": "engine"}, Act.HANG) is None
    assert made.rule("a", {"step": "engine"}, Act.FAIL) == rule
    assert made.rule("a", {"step": "engine"}, Act.FAIL) == rule
    assert made.rule("b", {"step": "engine"}, Act.FAIL) is None
    assert made.hits() == {rule.id: 1}


def test_wrong_orders_leave_the_old_ones() -> None:
    rule = Rule(act=Act.HANG, times=None)
    made = orders(rule)
    assert "times" in made.read('{"rules": [{"act": "fail", "times": 0}]}')
    assert made.control.rules == (rule,)


def test_a_position_in_the_middle_of_a_line_leaves_that_line_out(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    log.write_text('{"verb": "get"}\n{"verb": "li')
    begun = audit.position(log)
    with log.open("a") as more:
        more.write('st"}\n{"verb": "watch"}\n{"verb": "pa')
    assert [entry["verb"] for entry in audit.entries(log, offset=begun)] == ["watch"]
    whole = log.read_bytes().index(b'{"verb": "watch"}')
    assert [entry["verb"] for entry in audit.entries(log, offset=whole)] == ["watch"]
    assert [entry["verb"] for entry in audit.entries(log)] == ["get", "list", "watch"]


def test_the_timer_runs_at_the_time_and_never_one_key_twice_at_once() -> None:
    seen, busy, overlap = [], set(), []
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def run(key: str) -> None:
        overlap.extend(busy & {key})
        busy.add(key)
        begun.set()
        go_on.wait(60)
        seen.append((key, time.monotonic()))
        busy.discard(key)
        if len(seen) == 3:
            done.set()

    timer = Timer(run)
    timer.set("soon", time.monotonic())
    assert begun.wait(60)
    timer.set("soon", time.monotonic())
    late = time.monotonic() + 0.3
    timer.set("late", late)
    timer.set("late", late + 3600)
    time.sleep(0.2)
    go_on.set()
    assert done.wait(60)
    assert sorted(key for key, _ in seen) == ["late", "soon", "soon"]
    assert dict(seen)["late"] >= late
    assert overlap == []
