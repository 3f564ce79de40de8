"""Completions that repeat their prompt: for every split with the whole model's probabilities."""

# ruff: noqa: E402 - what is below needs numpy, which this environment may lack
from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy", reason="the stand-in's arithmetic needs numpy")

from shardwright_standin.front import openai
from shardwright_standin.front.engine import Limits
from shardwright_standin.front.logprobs import FORMS
from shardwright_standin.model import geometry, likelihood, make, network, shards, tokenizer
from shardwright_standin.ports import reserved
from tests.standin.running import PROMPTS, Machine, ask
from tests.standin.test_ranks import gpus as gpus  # noqa: PLC0414 - a fixture of this module too
from tests.standin.test_ranks import group, load
from tests.standin.test_servers import find_sglang, nodes, vllm
from tests.support.standin_model import unsharded_log_probabilities, unsharded_perplexity

from shardwright.runner.steps import perplexity

TEXT = " ".join(PROMPTS)
PASSAGE_BYTES = 150


@pytest.fixture(scope="module")
def whole(model: Path) -> network.Shard:
    shape, place = geometry.read(model), shards.Place(0, 1, 1)
    return network.Shard.load(shape, place, shards.cut(make.read(model), shape, place))


def asked(prompt: object, **more: Any) -> dict[str, Any]:
    """lm-evaluation-harness' request."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 1, "temperature": 0}
    return {**body, "logprobs": 1, "echo": True, **more}


def complete(url: str, prompt: object, **more: Any) -> dict[str, Any]:
    status, content = ask(f"{url}/v1/completions", asked(prompt, **more))
    assert status == 200, content
    found: dict[str, Any] = content
    return found


def of_prompt(answer: dict[str, Any]) -> list[float]:
    """The prompt's log probabilities but the first token's, which has none."""
    first, *rest = answer["choices"][0]["logprobs"]["token_logprobs"]
    assert first is None
    assert len(rest) == answer["usage"]["prompt_tokens"] - 1 + answer["usage"]["completion_tokens"]
    own: list[float] = rest[: answer["usage"]["prompt_tokens"] - 1]
    return own


# --- the network and its ranks ---


def test_a_distribution_adds_up_to_one_and_its_likeliest_is_the_greedy_token() -> None:
    logits = np.random.default_rng(0).normal(scale=30, size=(5, 264))
    logits[0, 7] = logits[0, 3] = 200.0
    found = likelihood.log_softmax(logits)
    assert np.exp(found).sum(axis=1) == pytest.approx(np.ones(5), abs=1e-12)
    assert found[1, 4] == pytest.approx(logits[1, 4] - np.logaddexp.reduce(logits[1]), abs=1e-12)
    scores = likelihood.scores(logits, [9] * 5, 2)
    assert [top[0][0] for _, top in scores] == network.greedy(logits)
    assert [token for token, _ in scores[0][1]] == [3, 7], "of equals the lower comes first"
    assert [value for value, _ in scores] == [float(row[9]) for row in found]


@pytest.mark.parametrize("size", [1, 5, 64, 1000])
def test_a_prompt_in_pieces_has_the_logits_of_the_prompt_at_once(
    size: int, whole: network.Shard
) -> None:
    tokens = tuple(tokenizer.encode(TEXT[:200]))
    pieces = [
        whole.step((network.Feed(0, tokens[at : at + size], at, every=True),), network.Alone())
        for at in range(0, len(tokens), size)
    ]
    whole.forget(0)
    last = whole.step((network.Feed(0, tokens, 0),), network.Alone())
    whole.forget(0)
    logits = np.concatenate(pieces)
    assert len(logits) == len(tokens)
    assert np.array_equal(logits[-1:], last)
    found = [value for value, _ in likelihood.scores(logits[:-1], tokens[1:], 0)]
    assert found == likelihood.log_probabilities(whole, tokens)


@pytest.mark.parametrize(("tensor", "pipeline"), [(1, 1), (2, 1), (2, 2)])
def test_ranks_score_prompts_and_answers_among_requests_that_ask_for_no_scores(
    tensor: int, pipeline: int, model: Path, whole: network.Shard
) -> None:
    pipe, _ = group(tensor * pipeline)
    load(pipe, model, tensor, pipeline, max_batch_size=6, max_num_tokens=200)
    prompts = [tokenizer.encode(text) for text in PROMPTS]
    tokens = {n: network.generate(whole, prompt, 3) for n, prompt in enumerate(prompts)}
    # By turns: none, of the answer, of the answer and the prompt.
    kinds: tuple[dict[str, Any], ...] = ({}, {"top": 1}, {"top": 1, "echo": True})
    for number, prompt in enumerate(prompts):
        more = kinds[number % 3]
        pipe.say(do="submit", number=number, prompt=prompt, budget=3, stop=257, **more)
    got: dict[int, list[int]] = {number: [] for number in tokens}
    scores: dict[int, list[Any]] = {number: [] for number in tokens}
    ended = 0
    while ended < len(prompts):
        message = pipe.hear()
        for number, token, why in message["tokens"]:
            got[number].append(token)
            ended += bool(why)
        for number, found in message["scores"]:
            scores[number] += found
    pipe.say(do="stop")
    assert got == tokens
    for number, prompt in enumerate(prompts):
        right = likelihood.log_probabilities(whole, prompt + tokens[number])
        wanted = {0: [], 1: right[len(prompt) - 1 :], 2: right}[number % 3]
        assert [value for value, _ in scores[number]] == wanted
        produced = scores[number][len(prompt) - 1 if number % 3 == 2 else 0 :]
        assert [top for _, top in produced] == [
            [[token, value]] for (value, _), token in zip(produced, tokens[number], strict=False)
        ], "what is produced is the likeliest"


# --- servers ---


@contextlib.contextmanager
def served(
    tool: str, machine: Machine, model: Path, *more: str, split: tuple[int, int] = (1, 1)
) -> Iterator[str]:
    """A server's address; a split over stages has a node for each."""
    port, (tensor, pipeline) = reserved(), split
    common = ["--tensor-parallel-size", str(tensor), *more]
    words = {
        "vllm": [*vllm(model, *common), "--port", str(port)],
        "nim-serve": ["nim-serve", "--served-model-name", "tiny", *common],
        "sglang": [
            *("python3", "-m", "sglang.launch_server", "--model-path", str(model)),
            *("--served-model-name", "tiny", "--tp-size", str(tensor), *more),
            *("--port", str(port)),
        ],
    }[tool]
    environment = {
        "NIM_MODEL_PATH": str(model),
        "NIM_SERVER_PORT": str(port),
        "NIM_CACHE_PATH": str(machine.folder),
    }
    find_sglang(machine)
    url = f"http://127.0.0.1:{port}"
    with contextlib.ExitStack() as stack:
        if pipeline == 1:
            server = stack.enter_context(machine.started(*words, **environment))
        else:
            assert tool == "vllm"
            over = ["--pipeline-parallel-size", str(pipeline), "--nnodes", str(pipeline)]
            over += ["--master-port", str(reserved())]
            lines = [[*words, *over, "--node-rank", "0"]]
            lines += [
                [*vllm(model, *common, *over), "--node-rank", str(node), "--headless"]
                for node in range(1, pipeline)
            ]
            server = nodes(machine, stack, *lines)[0]
        server.until(f"{url}{'/v1/health/ready' if tool == 'nim-serve' else '/health'}")
        yield url


def measured(url: str, file: Path) -> float:
    """What the runner measures."""
    wanted = perplexity.Asked(url, "tiny", file, PASSAGE_BYTES)
    return perplexity.measure(wanted, lambda: None).value


def check(url: str, model: Path, folder: Path, qformat: str) -> None:
    """All prompts' log probabilities and the runner's perplexity are the whole model's."""
    right = unsharded_log_probabilities(model, PROMPTS, qformat)
    assert [of_prompt(complete(url, prompt)) for prompt in PROMPTS] == right
    text = folder / "text"
    text.write_text(TEXT, encoding="utf-8")
    assert measured(url, text) == unsharded_perplexity(model, TEXT, PASSAGE_BYTES, qformat=qformat)


@pytest.mark.parametrize("split", [(1, 1), (2, 1), (2, 2)], ids=["TP1", "TP2", "TP2xPP2"])
@pytest.mark.parametrize("qformat", ["full_prec", "fp8"])
def test_vllm_tells_the_whole_model_s_log_probabilities(
    qformat: str, split: tuple[int, int], machine: Machine, model: Path
) -> None:
    more = ("--quantization", "fp8") if qformat == "fp8" else ()
    with served("vllm", machine, model, *more, split=split) as url:
        check(url, model, machine.folder, qformat)


@pytest.mark.parametrize("tool", ["nim-serve", "sglang"])
def test_so_do_nim_and_sglang(tool: str, machine: Machine, model: Path) -> None:
    with served(tool, machine, model, split=(2, 1)) as url:
        check(url, model, machine.folder, "full_prec")


def test_sglang_rounds_to_fp8_too(machine: Machine, model: Path) -> None:
    with served("sglang", machine, model, "--quantization", "fp8", split=(2, 1)) as url:
        check(url, model, machine.folder, "fp8")


def test_the_rounded_model_has_another_perplexity(model: Path) -> None:
    kept = unsharded_log_probabilities(model, [TEXT])[0]
    rounded = unsharded_log_probabilities(model, [TEXT], "fp8")[0]
    assert len(kept) == len(rounded) == len(TEXT.encode())
    assert all(one != other for one, other in zip(kept, rounded, strict=True))
    assert unsharded_perplexity(model, TEXT, len(TEXT.encode())) == math.exp(-sum(kept) / len(kept))
    assert unsharded_perplexity(model, TEXT, PASSAGE_BYTES) != unsharded_perplexity(
        model, TEXT, PASSAGE_BYTES, qformat="fp8"
    )
    assert unsharded_perplexity(model, TEXT, PASSAGE_BYTES, 1) == unsharded_perplexity(
        model, next(perplexity.passages(TEXT, PASSAGE_BYTES)), PASSAGE_BYTES
    )


# --- shapes ---


@pytest.fixture(scope="module")
def servers(
    installed: Path, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """A vLLM and an SGLang."""
    from tests.standin import running  # noqa: PLC0415 - beside the fixtures that need it

    python = running.interpreter(*running.MODULES)
    if not python:
        pytest.skip(f"no Python has all of {', '.join(running.MODULES)}")
    machine = Machine(installed, python, tmp_path_factory.mktemp("echo"))
    with served("vllm", machine, model) as one, served("sglang", machine, model) as other:
        yield {"vllm": one, "sglang": other}


def next_tokens(whole: network.Shard, prompt: Sequence[int]) -> list[Any]:
    """The whole model's scores of a prompt, three likeliest each."""
    feed = network.Feed(0, tuple(prompt), 0, every=True)
    logits = whole.step((feed,), network.Alone())
    whole.forget(0)
    assert logits is not None
    return likelihood.scores(logits, [*prompt[1:], network.greedy(logits[-1:])[0]], 3)


@pytest.mark.parametrize("tool", ["vllm", "sglang"])
def test_the_answer_has_the_server_s_own_shape(
    tool: str, servers: dict[str, str], whole: network.Shard
) -> None:
    prompt = tokenizer.encode("Hé")
    scores = next_tokens(whole, prompt)
    (token, _), *_ = scores[-1][1]
    said = tokenizer.decode([token])
    answer = complete(servers[tool], "Hé", logprobs=2)
    (choice,) = answer["choices"]
    assert choice["text"] == "Hé" + ("" if token == tokenizer.EOS else said)
    tops = []
    for text, (value, likeliest) in zip(["H", "Ã", "©", said], scores, strict=True):
        entry = {text: value} if tool == "vllm" else {}
        tops.append(entry | {tokenizer.decode([one]): told for one, told in likeliest[:2]})
    assert choice["logprobs"] == {
        "tokens": ["<|bos|>", "H", "Ã", "©", said],
        "token_logprobs": [None, *(value for value, _ in scores)],
        "top_logprobs": [None, *tops],
        "text_offset": [0, 7, 8, 9, 10] if tool == "vllm" else [-1] * 5,
    }
    assert answer["usage"] == {"prompt_tokens": 4, "completion_tokens": 1, "total_tokens": 5}


def test_vllm_hides_what_it_produces_when_no_token_is_asked_for(servers: dict[str, str]) -> None:
    full, none = (complete(servers["vllm"], "Hello", max_tokens=count) for count in (1, 0))
    assert none["choices"][0]["text"] == "Hello"
    assert none["choices"][0]["logprobs"] == {
        name: values[:6] for name, values in full["choices"][0]["logprobs"].items()
    }
    assert none["usage"] == {"prompt_tokens": 6, "completion_tokens": 1, "total_tokens": 7}


def test_servers_differ_in_what_is_told_without_likeliest_tokens(servers: dict[str, str]) -> None:
    answers = {tool: complete(url, "Hello", logprobs=0) for tool, url in servers.items()}
    told = {tool: answer["choices"][0]["logprobs"] for tool, answer in answers.items()}
    assert len(told["vllm"]["tokens"]) == 7
    assert told["vllm"]["top_logprobs"][1:] == [
        {token: value}
        for token, value in zip(
            told["vllm"]["tokens"][1:], told["vllm"]["token_logprobs"][1:], strict=True
        )
    ]
    assert told["sglang"] == {
        "tokens": told["vllm"]["tokens"][-1:],
        "token_logprobs": told["vllm"]["token_logprobs"][-1:],
        "top_logprobs": [],
        "text_offset": [-1],
    }


@pytest.mark.parametrize(("tool", "repeated"), [("vllm", "<|bos|>Hi"), ("sglang", "Hi")])
def test_a_prompt_of_token_ids_is_repeated_as_text(
    tool: str, repeated: str, servers: dict[str, str]
) -> None:
    same = complete(servers[tool], "Hi")["choices"][0]
    other = complete(servers[tool], [256, *b"Hi"])["choices"][0]
    assert other == {**same, "text": repeated + same["text"].removeprefix("Hi")}


def test_either_is_had_without_the_other(servers: dict[str, str]) -> None:
    url = servers["vllm"]
    both, plain = complete(url, "Hello"), complete(url, "Hello", echo=False, logprobs=None)
    repeated = complete(url, "Hello", logprobs=None)["choices"][0]
    assert repeated["text"] == "Hello" + plain["choices"][0]["text"] == both["choices"][0]["text"]
    assert repeated["logprobs"] is None
    told = complete(url, "Hello", echo=False)["choices"][0]
    assert told["text"] == plain["choices"][0]["text"]
    assert told["logprobs"] == {
        **{name: values[-1:] for name, values in both["choices"][0]["logprobs"].items()},
        "text_offset": [0],
    }


LIMITS = Limits(max_batch_size=1, max_num_tokens=64, max_seq_len=64, max_input_len=64)


@pytest.mark.parametrize(
    ("flavour", "more", "said"),
    [
        ("vllm", {"logprobs": 21}, "logprobs of 21, which is greater than max allowed: 20"),
        ("vllm", {"logprobs": -1}, "logprobs -1 is no number of at least 0"),
        ("vllm", {"logprobs": True}, "logprobs True is no number of at least 0"),
        ("vllm", {"echo": "yes"}, "echo 'yes' is neither true nor false"),
        ("vllm", {"stream": True}, "plays echo and logprobs in whole answers only"),
        ("vllm", {"echo": False, "max_tokens": 0}, "max_tokens 0 is no number of at least 1"),
        ("vllm", {"max_tokens": False}, "max_tokens False is no number of at least 1"),
        ("sglang", {"max_tokens": 0}, "max_tokens 0 is no number of at least 1"),
        ("trtllm", {"logprobs": None}, "echo True: the stand-in does not play it for this server"),
        ("trtllm", {"echo": False}, "logprobs 1: the stand-in does not play it for this server"),
    ],
)
def test_what_a_server_does_not_do_or_is_not_played_is_refused(
    flavour: str, more: dict[str, Any], said: str
) -> None:
    with pytest.raises(openai.RequestError, match=said):
        openai.parse(asked("x", **more), chat=False, limits=LIMITS, form=FORMS.get(flavour))


def test_a_chat_knows_neither() -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "echo": True}
    with pytest.raises(openai.RequestError, match="echo: Extra inputs are not permitted"):
        openai.parse(body, chat=True, limits=LIMITS, form=FORMS["vllm"])
