"""The accuracy gate on real nodes: what is measured is what the engines really answer."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import pytest
from shardwright_standin.tools.mmlu import SUBJECTS, read_questions
from tests.real.live import SECONDS, SURGE, Live, failed
from tests.standin.running import PROMPTS
from tests.support import standin_model
from tests.support.kube import Json

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

DATA = "mmlu"
GATE: Json = {"task": "mmlu", "samples": len(SUBJECTS), "dataset": DATA, "maxDrop": 1.0}
# As the evaluation asks: so many tokens of an answer; there are no examples to show.
TOKENS = 2
TASK = {"num_samples": None, "num_fewshot": 0, "random_seed": 0}


def write_questions(folder: Path, answers: Mapping[str, str]) -> list[str]:
    """One question of each subject in MMLU's layout, right answered so; the prompts in order."""
    for part in ("dev", "test"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for subject in SUBJECTS:
        (folder / "dev" / f"{subject}_dev.csv").write_text("")
        with (folder / "test" / f"{subject}_test.csv").open("w", newline="") as file:
            right = answers.get(subject, "")
            csv.writer(file).writerow([f"What, {subject}?", "one", "two", "three", "four", right])
    return [question.prompt for question in read_questions(folder, TASK)]


def test_an_engine_made_worse_never_serves_and_the_old_one_goes_on(
    live: Live, model: Path, tmp_path: Path
) -> None:
    """Right is what the 16-bit model answers; rounded to FP8 it answers some otherwise."""
    name, site = "gated", live.site
    prompts = write_questions(site.claim / DATA, {})

    def says(qformat: str) -> list[str]:
        told = standin_model.unsharded(
            model, prompts, TOKENS, chat=False, qformat=qformat, distinct=False
        )
        return [told[prompt].strip() for prompt in prompts]

    whole, rounded = says("full_prec"), says("fp8")
    write_questions(site.claim / DATA, dict(zip(SUBJECTS, whole, strict=True)))
    hits = sum(text.startswith(right) for text, right in zip(rounded, whole, strict=True))
    worse = 100 * hits / len(SUBJECTS)
    assert 0 < worse < 98

    live.create(
        name,
        {"parallelism": {"pipeline": 1}, "quantization": {"accuracy": GATE}, **SURGE},
    )
    live.settled(name, 1)
    served = site.kube.get(name)["status"]["engine"]["serving"]
    judged = {"task": "mmlu", "samples": len(SUBJECTS), "limit": "maxDrop 1", "baseline": 100.0}
    good = {**judged, "score": 100.0, "passed": True}
    assert good.items() <= served["accuracy"].items()
    before, inside = live.uids(name), live.containers(name)
    leader, mark = live.leader(name), live.watcher.mark()

    with site.clients(name, tmp_path, pause=0.3) as asked:
        site.kube.edit(name, {"quantization": {"weights": "FP8"}})
        stalled = site.kube.wait_reason(name, "Stalled", "AccuracyTooLow", SECONDS)
        live.watcher.wait_quiet(2.0, SECONDS)
    assert stalled["status"] == "True"
    assert (
        f"mmlu {worse:.2f} over {len(SUBJECTS)} samples, baseline 100.00, maxDrop 1, fails by "
        f"{99 - worse:.2f} (99.00 would pass)"
    ) in stalled["message"]
    assert "try quantization.weights INT8SmoothQuant" in stalled["message"]
    engine = site.kube.get(name)["status"]["engine"]
    assert engine["serving"] == served
    bad = engine["next"]["accuracy"]
    assert (bad["passed"], bad["baseline"]) == (False, 100.0)
    assert bad["score"] == pytest.approx(worse, abs=0.01)

    # No pod of it ever was, and nothing of the old one moved.
    assert live.cost(mark, name) == {"checkpoint": 1, "engine": 1, "score": 1, "revisions": 1}
    assert live.uids(name) == before
    assert live.containers(name) == inside
    assert failed(asked) == []
    assert site.wrong_answers(leader) == []
    assert site.kube.condition(name, "Available")["status"] == "True"


# Short passages: the tiny model is asked with many.
LIMITS: Json = {"maxInputLen": 256, "maxSeqLen": 512}


def surprising(model: Path, texts: list[str]) -> str:
    """Of these texts the one that surprises the model more once it is rounded to FP8, by most."""
    whole, rounded = (
        standin_model.unsharded_log_probabilities(model, texts, qformat)
        for qformat in ("full_prec", "fp8")
    )
    lost = [
        sum(one) / len(one) - sum(other) / len(other)
        for one, other in zip(whole, rounded, strict=True)
    ]
    return texts[lost.index(max(lost))]


def test_a_server_s_baseline_is_measured_beside_the_tool_and_a_worse_precision_never_serves(
    live: Live, model: Path, tmp_path: Path
) -> None:
    """A text that surprises the model more once it is rounded to FP8."""
    name, site = "asked", live.site
    text = surprising(model, PROMPTS)
    (site.claim / "text.txt").write_text(text, encoding="utf-8")
    whole, rounded = (
        standin_model.unsharded_perplexity(model, text, LIMITS["maxInputLen"] - 1, qformat=qformat)
        for qformat in ("full_prec", "fp8")
    )
    limit = round((rounded - whole) / 2, 3)
    assert 0.01 < limit < rounded - whole
    gate = {"task": "perplexity", "dataset": "text.txt", "maxRise": limit}

    mark = live.create(
        name,
        {
            "engine": {"runtime": "VLLM", "backend": None, "version": None, "limits": LIMITS},
            "quantization": {"weights": "None", "accuracy": gate},
            **SURGE,
        },
    )
    live.settled(name)
    # The 16-bit model by its own server, and what two stages on two nodes answer.
    assert live.cost(mark, name)["score"] == 2
    served = site.kube.get(name)["status"]["engine"]["serving"]["accuracy"]
    assert served["passed"] is True
    assert served["score"] == pytest.approx(whole)
    assert served["baseline"] == pytest.approx(whole)
    before, mark = live.uids(name), live.watcher.mark()

    with site.clients(name, tmp_path, pause=0.3) as asked:
        site.kube.edit(name, {"quantization": {"weights": "FP8"}})
        stalled = site.kube.wait_reason(name, "Stalled", "AccuracyTooLow", SECONDS)
        live.watcher.wait_quiet(2.0, SECONDS)
    assert stalled["status"] == "True"
    assert f"baseline {whole:.2f}, maxRise {limit:g}" in stalled["message"]
    bad = site.kube.get(name)["status"]["engine"]["next"]["accuracy"]
    assert (bad["passed"], bad["baseline"]) == (False, pytest.approx(whole))
    assert bad["score"] == pytest.approx(rounded)
    # The baseline was kept: only the candidate was asked, and nothing of the old replica moved.
    assert live.cost(mark, name)["score"] == 1
    site.kube.wait("the candidate is gone", lambda: live.uids(name) == before, SECONDS)
    assert failed(asked) == []
    assert site.wrong_answers(live.leader(name)) == []
