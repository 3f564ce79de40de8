"""The runtimes' own benchmarks, run against a server that serves: command lines and result files.

All three come from one program (vLLM's benchmark_serving), so flags and keys of their results are
nearly the same; what differs stands here. Recorded in tests/contracts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Requests for each request at once: enough that starts and ends hardly count.
REQUESTS_PER_SLOT = 8
# Between the seeds of two points; a prime, so that points of two runs hardly ever meet.
_STRIDE = 1_000_003
# Keys of a result: of Point by what the tools write.
RESULT_KEYS: Mapping[str, str] = {
    "tokens_per_second": "output_throughput",
    "requests_per_second": "request_throughput",
    "ttft_ms": "median_ttft_ms",
    "ttft_p99_ms": "p99_ttft_ms",
    "tpot_ms": "median_tpot_ms",
    "tpot_p99_ms": "p99_tpot_ms",
}
COMPLETED = "completed"


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
    """

    url: str
    model: str
    tokenizer: str
    input_len: int
    output_len: int
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Tool:
    """One benchmark: the contract's name, how it is started, and flags that are its own."""

    contract: str
    program: tuple[str, ...]
    own: tuple[str, ...]
    file_flag: tuple[str, ...]

    def command(self, load: Load, concurrency: int, result: str) -> tuple[str, ...]:
        """The command line of one point.

        Args:
            load: What is asked of the server.
            concurrency: Requests at once.
            result: Path of the file that the tool writes.
        """
        return (
            *self.program,
            *("--base-url", load.url),
            *("--model", load.model),
            *("--served-model-name", load.model),
            *("--tokenizer", load.tokenizer),
            *("--random-input-len", str(load.input_len)),
            *("--random-output-len", str(load.output_len)),
            *("--num-prompts", str(max(16, concurrency * REQUESTS_PER_SLOT))),
            *("--max-concurrency", str(concurrency)),
            *("--seed", str((load.seed + _STRIDE * concurrency) % 2**31)),
            "--disable-tqdm",
            *self.own,
            *(word.replace("{result}", result) for word in self.file_flag),
        )


_VLLM_LIKE = (
    *("--endpoint", "/v1/completions"),
    *("--dataset-name", "random"),
    # 0: every prompt and answer has exactly its length.
    *("--random-range-ratio", "0"),
    "--ignore-eos",
    *("--percentile-metrics", "ttft,tpot"),
    *("--metric-percentiles", "99"),
)
_SAVE = ("--save-result", "--result-filename", "{result}")

TOOLS: Mapping[str, Tool] = {
    "VLLM": Tool(
        "vllm-bench-serve",
        ("vllm", "bench", "serve"),
        ("--backend", "openai", *_VLLM_LIKE),
        _SAVE,
    ),
    "TensorRTLLM": Tool(
        "trtllm-benchmark-serving",
        ("python3", "-m", "tensorrt_llm.serve.scripts.benchmark_serving"),
        # Prompts of random tokens: its default draws them from a data set that it downloads.
        ("--backend", "openai", *_VLLM_LIKE, "--random-ids"),
        _SAVE,
    ),
    "SGLang": Tool(
        "sglang-benchmark-serving",
        ("python3", "-m", "sglang.benchmark.serving"),
        (
            *("--backend", "sglang-oai"),
            *("--dataset-name", "random-ids"),
            # 1: there it is the shortest length as a share of the longest.
            *("--random-range-ratio", "1"),
        ),
        ("--output-file", "{result}"),
    ),
}
