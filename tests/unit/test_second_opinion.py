"""The second opinion: asked in a process of its own, by the interface of aiconfigurator 0.12.0.

The tool is faked: an environment with its command, its package and its metadata. `cli_estimate` of
the fake takes the parameters of the real one (ai-dynamo/aiconfigurator,
src/aiconfigurator/cli/api.py) and answers a result with ttft, tpot and the raw row.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from shardwright.api.serving import KVPrecision, WeightPrecision
from shardwright.cli import second_opinion
from shardwright.cli.app import app
from shardwright.cli.second_opinion import (
    NotCoveredError,
    Opinion,
    ask,
    interpreter,
    question_of,
    system_of,
)
from shardwright.sizing.catalogue import catalogue_model
from shardwright.sizing.question import Workload
from shardwright.sizing.result import Candidate, Estimate, StepTime
from shardwright.sizing.shape import EngineSettings, MemoryPlan, Precision, Shape

H100 = "NVIDIA-H100-80GB-HBM3"
ENGINE = EngineSettings("TensorRTLLM", "1.2.1", "PyTorch")
LOAD = Workload(input_len=1000, output_len=200)
DENSE, EXPERTS = catalogue_model("Llama-3.1-70B"), catalogue_model("Mixtral-8x7B-v0.1")

FAKE = """
import json, os, pathlib, time
from types import SimpleNamespace

def cli_estimate(model_path, system_name, *, mode="agg", backend_name="trtllm",
                 backend_version=None, database_mode="SILICON", isl=1024, osl=1024, batch_size=128,
                 ctx_tokens=None, tp_size=1, pp_size=1, attention_dp_size=1, moe_tp_size=None,
                 moe_ep_size=None, gemm_quant_mode=None, kvcache_quant_mode=None,
                 fmha_quant_mode=None, moe_quant_mode=None, comm_quant_mode=None):
    print("a banner on standard output")
    asked = {name: value for name, value in locals().items() if name != "model_path"}
    asked["config"] = json.loads(pathlib.Path(model_path, "config.json").read_text())
    with open(os.environ["FAKE_ASKED"], "a") as log:
        log.write(json.dumps(asked) + "\\n")
    behaviour = os.environ.get("FAKE_BEHAVIOUR", "")
    if behaviour == "slow":
        time.sleep(60)
    if behaviour == "oom":
        raise RuntimeError("OOM: the model does not fit for any parallel config")
    raw = {} if behaviour == "bare" else {"tokens/s/gpu": 1133.5, "tokens/s": 2267.0}
    return SimpleNamespace(ttft=376.4, tpot=28.04, power_w=0.0, mode=mode, raw=raw,
                           kv_cache_warning="batch exceeds KV cache" if batch_size > 500 else None)
"""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake installation on PATH; returns the file in which it notes what it was asked."""
    packages = tmp_path / "packages"
    (packages / "aiconfigurator/cli").mkdir(parents=True)
    (packages / "aiconfigurator/__init__.py").touch()
    (packages / "aiconfigurator/cli/__init__.py").touch()
    (packages / "aiconfigurator/cli/api.py").write_text(FAKE, encoding="utf-8")
    (packages / "aiconfigurator-0.12.0.dist-info").mkdir()
    (packages / "aiconfigurator-0.12.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: aiconfigurator\nVersion: 0.12.0\n", encoding="utf-8"
    )
    environment = tmp_path / "environment/bin"
    environment.mkdir(parents=True)
    for name, text in {
        "aiconfigurator": "#!/bin/sh\nexit 99\n",
        "python3": f"#!/bin/sh\nPYTHONPATH={shlex.quote(str(packages))} "
        f'exec {shlex.quote(sys.executable)} "$@"\n',
    }.items():
        (environment / name).write_text(text, encoding="utf-8")
        (environment / name).chmod(0o755)
    links = tmp_path / "links"
    links.mkdir()
    (links / "aiconfigurator").symlink_to(environment / "aiconfigurator")
    log = tmp_path / "asked.jsonl"
    monkeypatch.setenv("PATH", f"{links}:/usr/bin:/bin")
    monkeypatch.setenv("FAKE_ASKED", str(log))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return log


def candidate(shape: Shape | None = None, **changes: Any) -> Candidate:
    precision = Precision(WeightPrecision.FP8, KVPrecision.FP8)
    step = StepTime(0.01, 0.0, 0.0, 0.0, 0.0)
    fields: dict[str, Any] = {
        "product": H100,
        "precision": precision,
        "shape": shape or Shape(2),
        "replicas": 1,
        "replicas_needed": 1,
        "stage_nodes": (0,),
        "node_groups": (),
        "memory": MemoryPlan((), "test"),
        "estimate": Estimate(64, 64, 0.1, 0.01, 100.0, 50.0, step),
        "score": 1.0,
    }
    return Candidate(**{**fields, **changes})


def question(**changes: Any) -> dict[str, Any]:
    return {**question_of({"model_type": "llama"}, DENSE, candidate(), LOAD, ENGINE), **changes}


class TestQuestion:
    """A candidate in the tool's words."""

    def test_a_dense_model(self) -> None:
        assert question() == {
            "config": {"model_type": "llama"},
            "system_name": "h100_sxm",
            "mode": "agg",
            "backend_name": "trtllm",
            "isl": 1000,
            "osl": 200,
            "batch_size": 64,
            "tp_size": 2,
            "pp_size": 1,
            "attention_dp_size": 1,
            "kvcache_quant_mode": "fp8",
            "gemm_quant_mode": "fp8",
        }

    def test_attention_groups_share_batch_and_ranks(self) -> None:
        shape = Shape(8, 2, expert=8, attention_data=8)
        found = question_of({}, EXPERTS, candidate(shape), LOAD, ENGINE)
        ranks = ("tp_size", "pp_size", "attention_dp_size", "moe_ep_size", "moe_tp_size")
        assert [found[name] for name in ranks] == [1, 2, 8, 8, 1]
        assert found["batch_size"] == 8

    def test_a_checkpoints_own_precision_is_left_to_the_tool(self) -> None:
        own = candidate(precision=Precision(None, KVPrecision.NONE))
        assert "gemm_quant_mode" not in question_of({}, DENSE, own, LOAD, ENGINE)

    @pytest.mark.parametrize(
        ("changes", "engine", "words"),
        [
            ({"product": "NVIDIA-H100-PCIe"}, ENGINE, "NVIDIA-H100-PCIe"),
            ({"precision": Precision(WeightPrecision.W4A8_AWQ)}, ENGINE, "W4A8AWQ"),
            ({}, EngineSettings("NIM", "1"), "NIM"),
        ],
    )
    def test_what_it_has_no_tables_for_is_not_asked(
        self, changes: dict[str, Any], engine: EngineSettings, words: str
    ) -> None:
        with pytest.raises(NotCoveredError, match=words):
            question_of({}, DENSE, candidate(**changes), LOAD, engine)

    @pytest.mark.parametrize(
        ("product", "system"),
        [
            (H100, "h100_sxm"),
            ("NVIDIA-H200", "h200_sxm"),
            ("NVIDIA-H200-NVL", None),
            ("NVIDIA-A100-SXM4-80GB", "a100_sxm"),
            ("NVIDIA-A100-80GB-PCIe", None),
            ("NVIDIA-GB200", "gb200"),
            ("NVIDIA-B200", "b200_sxm"),
            ("NVIDIA-L40S", "l40s"),
            ("NVIDIA-L4", None),
        ],
    )
    def test_products_it_has_measured(self, product: str, system: str | None) -> None:
        assert system_of(product) == system


class TestAnswer:
    """A process of its own, with a deadline and a memory."""

    def test_the_command_leads_to_its_interpreter_through_links(self, asked: Path) -> None:
        assert interpreter() == str(asked.parent / "environment/bin/python3")

    def test_figures_and_version(self, asked: Path) -> None:
        assert ask(question()) == Opinion(
            tool="aiconfigurator 0.12.0",
            ttft_ms=376.4,
            tpot_ms=28.04,
            tokens_per_second_per_gpu=1133.5,
        )
        told = json.loads(asked.read_text(encoding="utf-8"))
        assert told["config"] == {"model_type": "llama"}
        assert (told["system_name"], told["tp_size"], told["isl"]) == ("h100_sxm", 2, 1000)

    @pytest.mark.usefixtures("asked")
    def test_a_warning_is_passed_on(self) -> None:
        assert ask(question(batch_size=600)).warning == "batch exceeds KV cache"

    @pytest.mark.usefixtures("asked")
    def test_a_missing_figure_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FAKE_BEHAVIOUR", "bare")
        assert ask(question()).tokens_per_second_per_gpu is None

    @pytest.mark.usefixtures("asked")
    def test_its_own_error_is_the_reason(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FAKE_BEHAVIOUR", "oom")
        why = ask(question()).why_not
        assert "failed with exit code 1" in why
        assert "does not fit for any parallel config" in why

    @pytest.mark.usefixtures("asked")
    def test_a_parameter_that_it_does_not_take_is_an_error_of_its_own(self) -> None:
        assert "unexpected keyword argument" in ask(question(colour="red")).why_not

    @pytest.mark.usefixtures("asked")
    def test_a_deadline_ends_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FAKE_BEHAVIOUR", "slow")
        assert "did not answer within 0.5 s" in ask(question(), timeout=0.5).why_not

    def test_the_same_question_is_asked_once(self, asked: Path, tmp_path: Path) -> None:
        first = ask(question(), cache=tmp_path / "kept")
        assert ask(question(), cache=tmp_path / "kept") == first
        assert len(asked.read_text(encoding="utf-8").splitlines()) == 1
        ask(question(batch_size=1), cache=tmp_path / "kept")
        assert len(asked.read_text(encoding="utf-8").splitlines()) == 2

    @pytest.mark.usefixtures("asked")
    def test_a_failure_is_not_kept(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FAKE_BEHAVIOUR", "oom")
        assert ask(question(), cache=tmp_path / "kept").why_not
        monkeypatch.delenv("FAKE_BEHAVIOUR")
        assert not ask(question(), cache=tmp_path / "kept").why_not

    @pytest.mark.usefixtures("asked")
    def test_a_kept_file_that_is_no_answer_is_asked_anew(self, tmp_path: Path) -> None:
        kept = tmp_path / "kept"
        ask(question(), cache=kept)
        (file,) = kept.iterdir()
        file.write_text("{", encoding="utf-8")
        assert ask(question(), cache=kept).tpot_ms == 28.04
        assert json.loads(file.read_text(encoding="utf-8"))["tpot_ms"] == 28.04

    def test_without_the_tool_it_says_how_to_get_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        assert "pipx install aiconfigurator==0.12.0" in ask(question()).why_not

    def test_its_successor_alone_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "aisimulate").write_text("#!/bin/sh\n", encoding="utf-8")
        (tmp_path / "aisimulate").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        assert "aisimulate is installed" in ask(question()).why_not


class TestPlan:
    """Beside our own numbers, and only when it is asked for."""

    @pytest.fixture
    def arguments(self, tmp_path: Path) -> list[str]:
        body = {
            "apiVersion": "shardwright.dev/v1alpha1",
            "kind": "LLMDeployment",
            "metadata": {"name": "example"},
            "spec": {"model": {"uri": "hf://meta-llama/Llama-3.1-8B@main"}},
        }
        nodes = {"nodes": [{"product": H100, "count": 1, "gpus": 8}]}
        (tmp_path / "llmd.yaml").write_text(yaml.safe_dump(body), encoding="utf-8")
        (tmp_path / "nodes.yaml").write_text(yaml.safe_dump(nodes), encoding="utf-8")
        return ["plan", str(tmp_path / "llmd.yaml"), "--nodes", str(tmp_path / "nodes.yaml")]

    def test_it_stands_beside_our_numbers_for_choice_and_runner_up(
        self, asked: Path, arguments: list[str]
    ) -> None:
        result = CliRunner().invoke(app, [*arguments, "--second-opinion"])
        assert result.exit_code == 0, result.output
        text = " ".join(result.stdout.split())
        assert "Second opinion (evidence, it decides nothing)" in text
        for about in ("chosen", "runner-up"):
            assert f"{about}: aiconfigurator 0.12.0 says first token after 376 ms, 28.0 ms" in text
        assert "(ours: " in text
        told = [json.loads(line) for line in asked.read_text(encoding="utf-8").splitlines()]
        assert [one["config"]["model_type"] for one in told] == ["llama", "llama"]

    @pytest.mark.usefixtures("asked")
    def test_it_changes_nothing_of_the_choice(self, arguments: list[str]) -> None:
        plain = json.loads(CliRunner().invoke(app, [*arguments, "-o", "json"]).stdout)
        heard = json.loads(
            CliRunner().invoke(app, [*arguments, "-o", "json", "--second-opinion"]).stdout
        )
        opinions = heard.pop("secondOpinion")
        assert heard == plain
        assert [one["about"] for one in opinions] == ["chosen", "runner-up"]

    def test_without_the_tool_the_plan_stands(
        self, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        result = CliRunner().invoke(app, [*arguments, "--second-opinion"])
        assert result.exit_code == 0
        assert "Chosen:" in result.stdout
        assert "aiconfigurator is not installed" in " ".join(result.stdout.split())

    def test_nobody_asks_without_the_option(self, asked: Path, arguments: list[str]) -> None:
        assert CliRunner().invoke(app, arguments).exit_code == 0
        assert not asked.exists()


def test_nothing_of_the_operator_can_ask() -> None:
    """Only the command line imports it: it takes seconds, and a reconcile has none."""
    package = Path(second_opinion.__file__).parents[1]
    users = [
        path.relative_to(package)
        for path in package.rglob("*.py")
        if "second_opinion" in path.read_text(encoding="utf-8")
    ]
    assert {path.parts[0] for path in users} == {"cli"}
