"""The accuracy gate on real nodes: what is measured is what the engines really answer."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import pytest
from shardwright_standin.tools.mmlu import SUBJECTS, read_questions
from tests.real.live import SECONDS, SURGE, Live, failed
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
