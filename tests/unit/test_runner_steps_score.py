"""The step that measures: scores read out of logs and files, or asked of a server."""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.steps import Volumes

from shardwright.runner.contract import (
    DONE,
    SERVE_CONFIG,
    STEP_SCORE,
    STORE,
    Also,
    Command,
    ContractError,
    Report,
    StepRequest,
    artifact_folder,
    artifact_key,
    decode,
    encode,
    encode_report,
)
from shardwright.runner.steps.perplexity import Asked, passages, perplexity_of
from shardwright.runner.steps.score import ScoreStep
from shardwright.runner.steps.scores import LoggedScore, NoScoreError, Score, saved_score

_MMLU = """\
[TRT-LLM] [I] Average accuracy 31.00 (100) - anatomy
[TRT-LLM] [I] MMLU weighted average accuracy: 67.93 (14042)"""
_ROUGE = """\
[TRT-LLM] [I] Beam 0 rouge scores:
[TRT-LLM] [I] \trouge1: 24.567
[TRT-LLM] [I] \trouge2: 7.1"""
LOGS = {
    "mmlu": (_MMLU, Score(67.93, 14042)),
    "gsm8k": ("[TRT-LLM] [I] lm-eval gsm8k average accuracy: 84.72", Score(84.72)),
    "cnn_dailymail": (_ROUGE, Score(24.567)),
}


@pytest.fixture
def volumes(tmp_path: Path) -> Volumes:
    return Volumes.make(tmp_path)


def request(tool: str, task: str, *argv: str, **more: Any) -> StepRequest:
    inputs = {"task": task, "tool": tool, **more.pop("inputs", {})}
    return StepRequest(
        step=STEP_SCORE,
        key=artifact_key(STEP_SCORE, inputs),
        inputs=inputs,
        commands=(Command(tool=tool, argv=argv),),
        expected_files=(),
        **more,
    )


def says(text: str, status: int = 0) -> tuple[str, ...]:
    program = f"import sys; print({text!r}); sys.exit({status})"
    return (sys.executable, "-c", program)


def run(volumes: Volumes, asked: StepRequest) -> Report:
    # As a pod gets it: through JSON.
    return ScoreStep(decode(StepRequest, encode(asked)), "pod-1", volumes.places).run()


@pytest.mark.parametrize("task", LOGS)
def test_the_score_that_a_tool_logs_is_reported(volumes: Volumes, task: str) -> None:
    text, score = LOGS[task]
    report = run(volumes, request("trtllm-eval", task, *says(text), config={"max_batch_size": 8}))
    assert (report.outcome, report.score, report.samples) == ("Done", score.value, score.samples)
    assert (report.step, report.key) == (STEP_SCORE, request("trtllm-eval", task).key)
    assert decode(Report, encode_report(report)) == report
    written = Path(SERVE_CONFIG.replace("{scratch}", str(volumes.places.scratch)))
    assert json.loads(written.read_text()) == {"max_batch_size": 8}


def test_the_score_is_found_however_much_is_logged_after_it(volumes: Volumes) -> None:
    text = LOGS["mmlu"][0] + "\nshutting down" * 5000
    assert run(volumes, request("trtllm-eval", "mmlu", *says(text))).score == 67.93


@pytest.mark.parametrize("task", LOGS)
def test_a_tool_that_tells_no_score_has_failed_for_good(volumes: Volumes, task: str) -> None:
    report = run(volumes, request("trtllm-eval", task, *says("all is well")))
    assert (report.outcome, report.reason, report.score) == ("Permanent", "NoScore", None)
    assert "all is well" in report.log_tail


def test_a_tool_that_fails_is_judged_as_in_any_step(volumes: Volumes) -> None:
    text = "torch.OutOfMemoryError: CUDA out of memory"
    report = run(volumes, request("trtllm-eval", "mmlu", *says(text, 1)))
    assert (report.outcome, report.reason) == ("Permanent", "OutOfMemory")


RESULTS = {
    "gsm8k": {"exact_match,strict-match": 0.8472, "exact_match,flexible-extract": 0.9},
    "mmlu": {"acc,none": 0.6793, "acc_stderr,none": 0.003},
    "mmlu_generative": {"exact_match,get_response": 0.6512},
}


@pytest.mark.parametrize("task", RESULTS)
def test_the_score_that_lm_eval_saves_is_reported(volumes: Volumes, task: str) -> None:
    content = {
        "results": {task: RESULTS[task], "other": {"acc,none": 0.1}},
        "n-samples": {
            "a": {"original": 100, "effective": 10},
            "b": {"original": 90, "effective": 9},
        },
    }
    program = (
        "import pathlib, sys; out = pathlib.Path(sys.argv[2]) / 'my-model'; out.mkdir();"
        f"(out / 'results_2026-01-01T00-00-00.json').write_text({json.dumps(content)!r})"
    )
    argv = (sys.executable, "-c", program, "--output_path", "{out}", "--tasks", task)
    report = run(volumes, request("lm_eval", task.removesuffix("_generative"), *argv))
    assert report.outcome == "Done", report
    assert report.score == pytest.approx(100 * next(iter(RESULTS[task].values())))
    assert report.samples == 19


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "no results_"),
        ({"results_1.json": "{"}, "no JSON"),
        ({"results_1.json": '{"results": {"mmlu": {"acc,none": 0.5}}}'}, "of gsm8k"),
        ({"results_1.json": '{"results": {"gsm8k": {"exact_match,strict-match": null}}}'}, "gsm8k"),
    ],
)
def test_results_that_do_not_tell_it_are_none(
    tmp_path: Path, files: dict[str, str], said: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(NoScoreError, match=said):
        saved_score(tmp_path, "gsm8k")


def test_a_data_set_that_is_not_there_is_told_before_anything_is_loaded(volumes: Volumes) -> None:
    mark = volumes.root / "ran"
    program = f"import pathlib; pathlib.Path({str(mark)!r}).touch()"
    asked = request(
        "trtllm-eval", "mmlu", sys.executable, "-c", program, inputs={"dataset": "data/mmlu"}
    )
    report = run(volumes, asked)
    assert (report.outcome, report.reason) == ("Permanent", "DatasetNotFound")
    assert not mark.exists()
    (volumes.places.store / "data/mmlu").mkdir(parents=True)
    assert run(volumes, asked).reason == "NoScore"
    assert mark.exists()


@pytest.mark.parametrize("dataset", ["../secret", "/etc", 7])
def test_a_data_set_outside_of_the_claim_is_no_request(volumes: Volumes, dataset: object) -> None:
    asked = request("trtllm-eval", "mmlu", "true", inputs={"dataset": dataset})
    assert run(volumes, asked).reason == "ToolFailed"


def test_an_artifact_that_is_not_what_it_was_is_not_measured(volumes: Volumes) -> None:
    made = volumes.checkpoint()
    volumes.run(made)
    folder = artifact_folder(made.step, made.key)
    text = LOGS["mmlu"][0]
    asked = request("trtllm-eval", "mmlu", *says(text), source=f"{STORE}/{folder}")
    assert run(volumes, asked).score == 67.93
    (volumes.folder(made) / "rank1.safetensors").unlink()
    report = run(volumes, asked)
    assert (report.outcome, report.reason) == ("Environment", "ManifestMismatch")
    assert "rank1.safetensors is missing" in report.message


def test_what_is_read_beside_the_engine_is_looked_at_and_named(volumes: Volumes) -> None:
    made = volumes.checkpoint()
    volumes.run(made)
    beside = Also(made.step, made.key, "read from the claim")
    asked = request("trtllm-eval", "mmlu", *says(LOGS["mmlu"][0]), also=(beside,))
    assert run(volumes, asked).score == 67.93
    rank = volumes.folder(made) / "rank1.safetensors"
    rank.write_bytes(rank.read_bytes()[:10])
    report = run(volumes, asked)
    assert (report.outcome, report.reason) == ("Environment", "ManifestMismatch")
    assert report.key == made.key, "the report names what is bad"
    assert "rank1.safetensors is truncated: 10 bytes" in report.message
    assert f"{made.step} {made.key}, which this score reads" in report.message


def test_an_unknown_tool_or_a_foreign_key_is_no_request(volumes: Volumes) -> None:
    assert "tells no score" in run(volumes, request("trtllm-bench", "mmlu", "true")).message
    foreign = replace(request("trtllm-eval", "mmlu", "true"), key="0" * 16)
    assert "hash to" in run(volumes, foreign).message


def test_a_log_of_another_task_tells_nothing() -> None:
    reader = LoggedScore("gsm8k")
    reader(LOGS["mmlu"][0].encode())
    with pytest.raises(NoScoreError):
        reader.score()


# Perplexity


@given(st.text(max_size=400), st.integers(1, 60))
def test_passages_hold_the_whole_text_and_are_no_longer_than_asked(text: str, size: int) -> None:
    cut = list(passages(text, size))
    assert all(len(passage.encode()) <= max(size, 4) for passage in cut)
    assert "".join("".join(cut).split()) == "".join(text.split())


class Server(BaseHTTPRequestHandler):
    """Answers as an OpenAI-style server: a token a word, each with the same probability."""

    probability: ClassVar[float] = 0.25
    asked: ClassVar[list[dict[str, Any]]] = []
    broken: ClassVar[str] = ""

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        body = json.loads(self.rfile.read(length))
        self.asked.append({"path": self.path, **body})
        words = body["prompt"].split()
        logprobs = [None, *[math.log(self.probability)] * (len(words) - 1), math.log(0.9)]
        answer: dict[str, Any] = {
            "choices": [{"index": 0, "logprobs": {"token_logprobs": logprobs}}],
            "usage": {"prompt_tokens": len(words), "completion_tokens": 1},
        }
        if self.broken == "no echo":
            answer["choices"][0]["logprobs"]["token_logprobs"] = [math.log(0.9)]
        status = 500 if self.broken == "status" else 200
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Server, "asked", [])
    monkeypatch.setattr(Server, "broken", "")
    made = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield f"127.0.0.1:{made.server_address[1]}"
    made.shutdown()
    thread.join()
    made.server_close()


def perplexity(server: str, **more: Any) -> StepRequest:
    host, _, port = server.partition(":")
    argv = (
        "perplexity",
        *("--url", f"http://{{leader}}:{port}", "--model", "llama"),
        *("--text", f"{STORE}/text.txt", "--passage_bytes", "20"),
        *more.pop("argv", ()),
    )
    return request("perplexity", "perplexity", *argv, leader=host, **more)


def test_the_perplexity_of_equally_likely_tokens_is_one_over_their_probability(
    volumes: Volumes, server: str
) -> None:
    (volumes.places.store / "text.txt").write_text("one two three four " * 30)
    report = run(volumes, perplexity(server))
    assert report.outcome == "Done", report
    assert report.score == pytest.approx(4.0)
    assert report.samples == len(Server.asked) > 10
    first = Server.asked[0]
    assert first["path"] == "/v1/completions"
    assert (first["echo"], first["logprobs"], first["max_tokens"]) == (True, 1, 1)
    assert (first["model"], first["temperature"]) == ("llama", 0)


def test_no_more_passages_are_asked_than_samples(volumes: Volumes, server: str) -> None:
    (volumes.places.store / "text.txt").write_text("one two three four " * 30)
    report = run(volumes, perplexity(server, argv=("--passages", "3")))
    assert (report.samples, len(Server.asked)) == (3, 3)


@pytest.mark.parametrize(("broken", "said"), [("no echo", "log probabilities"), ("status", "500")])
def test_a_server_that_does_not_answer_as_asked_is_of_the_surroundings(
    volumes: Volumes, server: str, broken: str, said: str
) -> None:
    (volumes.places.store / "text.txt").write_text("one two three four " * 3)
    Server.broken = broken
    report = run(volumes, perplexity(server))
    assert (report.outcome, report.reason) == ("Environment", "LeaderGone")
    assert said in report.message


def test_a_replica_that_is_gone_is_of_the_surroundings(volumes: Volumes) -> None:
    (volumes.places.store / "text.txt").write_text("one two three four")
    report = run(volumes, perplexity("127.0.0.1:1"))
    assert (report.outcome, report.reason) == ("Environment", "LeaderGone")


@pytest.mark.parametrize("text", [b"", b"one", b"\xff\xfe"])
def test_a_text_that_tells_nothing_is_said_to(volumes: Volumes, server: str, text: bytes) -> None:
    (volumes.places.store / "text.txt").write_bytes(text)
    assert run(volumes, perplexity(server)).reason == "NoScore"


@pytest.mark.parametrize(
    "argv",
    [
        ("--url", "u", "--model", "m", "--text", "t"),
        ("--url", "u", "--model", "m", "--text", "t", "--passage_bytes"),
        ("--url", "u", "--model", "m", "--text", "t", "--passage_bytes", "1", "--top_p", "1"),
        ("--url", "u", "--model", "m", "--text", "t", "--passage_bytes", "many"),
    ],
)
def test_words_that_are_missing_unknown_or_no_numbers_are_refused(argv: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"perplexity takes|invalid literal"):
        Asked.parse(argv)


@pytest.mark.parametrize("mean", [math.nan, math.inf, 709.5, 9999.0])
def test_a_text_without_probability_has_no_perplexity(mean: float) -> None:
    with pytest.raises(NoScoreError, match="no perplexity"):
        perplexity_of(mean)
    assert perplexity_of(0.0) == 1.0


@pytest.mark.parametrize("score", ["NaN", "Infinity", '"high"', "[1]", "true"])
def test_a_report_s_score_is_a_number_or_none(score: str) -> None:
    text = encode(Report(DONE, step="score", key="k", score=1.5, samples=2))
    assert decode(Report, text).score == 1.5
    with pytest.raises(ContractError, match="score"):
        decode(Report, text.replace("1.5", score))


@pytest.mark.parametrize(
    "told", ["NaN", "1e999", "-0.1", "1.7", "17", '"0.7"', "true", "9" * 60, "null", "[]"]
)
def test_what_cannot_be_a_share_of_right_answers_opens_no_gate(tmp_path: Path, told: str) -> None:
    text = f'{{"results": {{"gsm8k": {{"exact_match,strict-match": {told}}}}}}}'
    (tmp_path / "results_1.json").write_text(text)
    with pytest.raises(NoScoreError, match=r"the score of gsm8k is told as .*, which none can be"):
        saved_score(tmp_path, "gsm8k")


@pytest.mark.parametrize("told", ["1e999", "NaN", "-5", '"9"', "true", "{}"])
def test_samples_that_are_no_count_are_not_counted(tmp_path: Path, told: str) -> None:
    counted = f'{{"a": {{"effective": {told}}}, "b": {{"effective": 4}}}}'
    found = '{"gsm8k": {"exact_match,strict-match": 0.7}}'
    text = f'{{"results": {found}, "n-samples": {counted}}}'
    (tmp_path / "results_1.json").write_text(text)
    assert saved_score(tmp_path, "gsm8k") == Score(70.0, 4)


@pytest.mark.parametrize("told", ["171.2", "1.2.3", "...", "9" * 5000])
def test_a_logged_score_that_none_can_be_is_refused(told: str) -> None:
    reader = LoggedScore("gsm8k")
    reader(f"lm-eval gsm8k average accuracy: {told}".encode())
    with pytest.raises(NoScoreError, match="which none can be"):
        reader.score()


def test_a_logged_score_may_end_its_sentence() -> None:
    reader = LoggedScore("gsm8k")
    reader(b"lm-eval gsm8k average accuracy: 84.72.")
    assert reader.score() == Score(84.72)


def test_probabilities_above_one_are_no_perplexity() -> None:
    with pytest.raises(NoScoreError, match=r"mean of 2\.0: above 0 there is none"):
        perplexity_of(-2.0)
    assert perplexity_of(-1e-7) == 1.0
