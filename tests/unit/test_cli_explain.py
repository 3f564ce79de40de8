"""`shardwright explain`: every reason, grouped, those that came closest first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from shardwright.cli.app import app
from shardwright.cli.rejections import grouped, subject, total
from shardwright.sizing.question import Limits
from shardwright.sizing.result import Estimate, Rejection, StepTime
from shardwright.sizing.shape import Precision, Shape

H100 = "NVIDIA-H100-80GB-HBM3"
ESTIMATE = Estimate(8, 20, 0.1, 0.012, 100.0, 12.5, StepTime(0.01, 0.0, 0.0, 0.0, 0.0))


def ask(tmp_path: Path, model: str, *options: str, gpus: int = 8, **spec: Any) -> Result:
    body = {
        "apiVersion": "shardwright.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": "example"},
        "spec": {"model": {"uri": f"hf://{model}@main"}, **spec},
    }
    nodes = {"nodes": [{"product": H100, "count": 2, "gpus": gpus}]}
    (tmp_path / "llmd.yaml").write_text(yaml.safe_dump(body), encoding="utf-8")
    (tmp_path / "nodes.yaml").write_text(yaml.safe_dump(nodes), encoding="utf-8")
    files = [str(tmp_path / "llmd.yaml"), "--nodes", str(tmp_path / "nodes.yaml")]
    return CliRunner().invoke(app, ["explain", *files, *options])


def test_the_answer_says_what_was_chosen_and_why_the_others_were_not(tmp_path: Path) -> None:
    result = ask(tmp_path, "meta-llama/Llama-3.1-405B")
    assert result.exit_code == 0, result.output
    text = result.stdout
    assert "Chosen: FP8 weights" in text
    possible, barred = text.index("Would run, and lost ("), text.index("Cannot run (")
    assert possible < barred
    for code in ("DoesNotFit", "TensorOutsideDomain", "HeadsNotDivisible"):
        assert text.index(f"  {code} (") > barred
    assert "tensor 16 exceeds one NVLink domain" in " ".join(text.split())
    assert "GiB a GPU" in text


def test_all_shows_every_message(tmp_path: Path) -> None:
    short = ask(tmp_path, "meta-llama/Llama-3.1-405B").stdout
    full = ask(tmp_path, "meta-llama/Llama-3.1-405B", "--all").stdout
    assert "more of this reason (--all)" in short
    assert "more of this reason" not in full
    assert len(full) > len(short)


def test_nothing_possible_is_exit_code_one_with_all_reasons(tmp_path: Path) -> None:
    result = ask(tmp_path, "meta-llama/Llama-3.1-405B", gpus=1, quantization={"weights": "None"})
    assert result.exit_code == 1
    assert "No plan is possible" in result.stdout
    assert "Cannot run (" in result.stdout


def test_bad_input_is_exit_code_two(tmp_path: Path) -> None:
    result = ask(tmp_path, "meta-llama/Llama-3.1-405B", tensor=8)
    assert result.exit_code == 2
    assert "spec.tensor" in result.stderr


def rejection(code: str, tensor: int, *, score: float | None = None, why: str = "why") -> Rejection:
    return Rejection(
        code,
        why,
        H100,
        Precision(),
        Shape(tensor),
        score=score,
        estimate=None if score is None else ESTIMATE,
    )


class TestGroups:
    """Rejections by reason."""

    def test_what_would_run_comes_first_then_what_is_nearest_to_fitting(self) -> None:
        found = grouped(
            [
                rejection("DoesNotFit", 1),
                rejection("Slower", 2, score=0.5),
                rejection("DoesNotFit", 4),
                rejection("Faster", 2, score=0.9),
            ],
            Limits(),
        )
        assert [group.code for group in found] == ["Faster", "Slower", "DoesNotFit"]
        assert [group.possible for group in found] == [True, True, False]
        assert total(found) == 4

    def test_the_closest_of_a_reason_speaks_first(self) -> None:
        (group,) = grouped(
            [rejection("DoesNotFit", n, why=f"lacks {8 - n}") for n in (1, 4, 2)], Limits()
        )
        assert [remark.message for remark in group.remarks] == ["lacks 4", "lacks 6", "lacks 7"]

    def test_one_message_is_told_once_with_its_count(self) -> None:
        (group,) = grouped([rejection("DoesNotFit", n) for n in (1, 2, 4)], Limits())
        (remark,) = group.remarks
        assert (remark.count, group.count) == (3, 3)
        assert remark.subject == "TP 4, 16-bit weights, 16-bit KV cache"

    def test_the_product_is_said_where_there_are_several(self) -> None:
        one = rejection("DoesNotFit", 1)
        other = Rejection("ProductUnknown", "no figures", "NVIDIA-X1")
        subjects = {group.remarks[0].subject for group in grouped([one, other], Limits())}
        assert subjects == {f"TP 1, 16-bit weights, 16-bit KV cache on {H100}", "NVIDIA-X1"}

    @pytest.mark.parametrize(
        ("found", "words"),
        [
            (Rejection("NoGPUs", "none"), "everything"),
            (Rejection("NoGPUs", "none", H100), H100),
            (
                Rejection("NoGPUs", "none", shape=Shape(8, 2, 8, 8)),
                "TP 8 × PP 2, EP 8, attention DP 8",
            ),
        ],
    )
    def test_a_part_that_is_left_out_stands_for_all(self, found: Rejection, words: str) -> None:
        assert subject(found) == words
