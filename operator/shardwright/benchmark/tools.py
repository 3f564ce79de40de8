"""Benchmarks that ask a server that serves: command lines and result files.

The runtimes' own three come from one program (vLLM's benchmark_serving), so flags and keys of their
results are nearly the same; what differs stands here. aiperf asks any server that speaks OpenAI's
API, and is in no runtime's image. All are recorded in tests/contracts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

# Requests for each request at once: enough that starts and ends hardly count.
REQUESTS_PER_SLOT = 8
_LEAST_REQUESTS = 16
# Between the seeds of two points; a prime, so that points of two runs hardly ever meet.
_STRIDE = 1_000_003
# Keys of a result: of Point by what the tools write; dots lead into objects.
RESULT_KEYS: Mapping[str, str] = {
    "tokens_per_second": "output_throughput",
    "requests_per_second": "request_throughput",
    "ttft_ms": "median_ttft_ms",
    "ttft_p99_ms": "p99_ttft_ms",
    "tpot_ms": "median_tpot_ms",
    "tpot_p99_ms": "p99_tpot_ms",
}
# aiperf's inter-token latency is of each request: its time after the first token over the tokens
# after the first. That is TPOT as the others call it.
_AIPERF_KEYS: Mapping[str, str] = {
    "tokens_per_second": "output_token_throughput.avg",
    "requests_per_second": "request_throughput.avg",
    "ttft_ms": "time_to_first_token.p50",
    "ttft_p99_ms": "time_to_first_token.p99",
    "tpot_ms": "inter_token_latency.p50",
    "tpot_p99_ms": "inter_token_latency.p99",
}
COMPLETED = "completed"
# Nothing is fetched: the tokenizer is there and prompts are made up.
_OFFLINE: Mapping[str, str] = {"HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of the server: its address, and the requests.

    Attributes:
        url: Such as `http://10.0.0.1:8000`, without a path.
        model: The served name.
        tokenizer: Folder with the model's tokenizer, as the tool sees it.
        input_len, output_len: Tokens of each prompt and answer, exactly.
        seed: Of the run. Each point draws other prompts, and so does each run: a server keeps the
            beginnings of those that it has seen.
        trust_code: Whether the user trusts code in the model's folder.
    """

    url: str
    model: str
    tokenizer: str
    input_len: int
    output_len: int
    seed: int = 0
    trust_code: bool = False

    def point_seed(self, concurrency: int) -> int:
        """The seed of one point."""
        return (self.seed + _STRIDE * concurrency) % 2**31


def requests_of(concurrency: int) -> int:
    """Requests of one point."""
    return max(_LEAST_REQUESTS, concurrency * REQUESTS_PER_SLOT)


@dataclass(frozen=True, slots=True)
class Tool:
    """One benchmark.

    Attributes:
        contract: Name of what is recorded of it.
        program: How it is started.
        flags: Its flags for a load, a concurrency, and the folder that its results go to.
        result: The file of results in that folder.
        keys: Where the numbers of a point stand in it.
        completed: Where the number of answered requests stands.
        trust_flag: Flag that lets it run code in the model's folder.
        trusts_always: Whether it would run such code without being told to.
        env: Environment that it needs.
    """

    contract: str
    program: tuple[str, ...]
    flags: Callable[[Load, int, str], tuple[str, ...]]
    result: str = "result.json"
    keys: Mapping[str, str] = field(default_factory=lambda: RESULT_KEYS)
    completed: str = COMPLETED
    trust_flag: str = ""
    trusts_always: bool = False
    env: Mapping[str, str] = field(default_factory=lambda: _OFFLINE)

    def command(self, load: Load, concurrency: int, folder: str) -> tuple[str, ...]:
        """The command line of one point.

        Args:
            load: What is asked of the server.
            concurrency: Requests at once.
            folder: Where the tool writes.
        """
        trust = (self.trust_flag,) if load.trust_code and self.trust_flag else ()
        return (*self.program, *self.flags(load, concurrency, folder), *trust)


def _shared(load: Load, concurrency: int) -> tuple[str, ...]:
    return (
        *("--base-url", load.url),
        *("--model", load.model),
        *("--served-model-name", load.model),
        *("--tokenizer", load.tokenizer),
        *("--random-input-len", str(load.input_len)),
        *("--random-output-len", str(load.output_len)),
        *("--num-prompts", str(requests_of(concurrency))),
        *("--max-concurrency", str(concurrency)),
        *("--seed", str(load.point_seed(concurrency))),
        "--disable-tqdm",
    )


def _vllm(load: Load, concurrency: int, folder: str) -> tuple[str, ...]:
    return (
        *_shared(load, concurrency),
        *("--backend", "openai"),
        *("--endpoint", "/v1/completions"),
        *("--dataset-name", "random"),
        # 0: every prompt and answer has exactly its length.
        *("--random-range-ratio", "0"),
        "--ignore-eos",
        *("--percentile-metrics", "ttft,tpot"),
        *("--metric-percentiles", "99"),
        *("--save-result", "--result-filename", f"{folder}/result.json"),
    )


def _tensorrt(load: Load, concurrency: int, folder: str) -> tuple[str, ...]:
    # Prompts of random tokens: its default draws them from a data set that it downloads.
    return (*_vllm(load, concurrency, folder), "--random-ids")


def _sglang(load: Load, concurrency: int, folder: str) -> tuple[str, ...]:
    return (
        *_shared(load, concurrency),
        *("--backend", "sglang-oai"),
        *("--dataset-name", "random-ids"),
        # 1: there it is the shortest length as a share of the longest.
        *("--random-range-ratio", "1"),
        *("--output-file", f"{folder}/result.json"),
    )


def _aiperf(load: Load, concurrency: int, folder: str) -> tuple[str, ...]:
    requests = str(requests_of(concurrency))
    return (
        *("--url", load.url),
        *("--model", load.model),
        *("--endpoint-type", "completions"),
        "--streaming",
        *("--tokenizer", load.tokenizer),
        *("--isl", str(load.input_len), "--isl-stddev", "0"),
        *("--osl", str(load.output_len), "--osl-stddev", "0"),
        # Answers of exactly that length, as the others ask for.
        *("--extra-inputs", "ignore_eos:true"),
        *("--concurrency", str(concurrency)),
        *("--request-count", requests),
        # No prompt twice.
        *("--num-dataset-entries", requests),
        *("--random-seed", str(load.point_seed(concurrency))),
        *("--output-artifact-dir", folder),
        *("--ui", "none"),
        # It counts what the server says that it made; its own count would be of decoded text.
        "--use-server-token-count",
        # It would look for the GPUs' and the server's metrics at places of its own.
        "--no-gpu-telemetry",
        "--no-server-metrics",
    )


AIPERF = Tool(
    "aiperf-profile",
    ("aiperf", "profile"),
    _aiperf,
    result="profile_export_aiperf.json",
    keys=_AIPERF_KEYS,
    completed="request_count.avg",
    trust_flag="--tokenizer-trust-remote-code",
    # Told to be offline, 0.13.0 looks for the tokenizer among what it has fetched, and takes no
    # folder (aiperf/common/tokenizer.py, _resolve_local_snapshot).
    env={},
)

# The runtimes' own, by the name that `engine.runtime` has.
TOOLS: Mapping[str, Tool] = {
    "VLLM": Tool(
        "vllm-bench-serve",
        ("vllm", "bench", "serve"),
        _vllm,
        trust_flag="--trust-remote-code",
    ),
    "TensorRTLLM": Tool(
        "trtllm-benchmark-serving",
        ("python3", "-m", "tensorrt_llm.serve.scripts.benchmark_serving"),
        _tensorrt,
        trust_flag="--trust-remote-code",
    ),
    # sglang/benchmark/utils.py (0.5.23): get_tokenizer has trust_remote_code=True written in.
    "SGLang": Tool(
        "sglang-benchmark-serving",
        ("python3", "-m", "sglang.benchmark.serving"),
        _sglang,
        trusts_always=True,
    ),
}
