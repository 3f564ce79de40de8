"""A second opinion from NVIDIA's aiconfigurator, where it is installed: evidence, no decision.

It is asked in a process of its own, in the environment it is installed in, with a deadline; answers
are kept by question. Nothing of the operator asks it: a call takes seconds, and the tool brings
half a gigabyte of measured tables. The interface is that of `aiconfigurator.cli.api.cli_estimate`
(PyPI aiconfigurator 0.12.0, the last release under this name; its successor aisimulate is not
understood).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess  # runs a tool that the user installed
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from shardwright.api.serving import KVPrecision, WeightPrecision
from shardwright.sizing.model import Model
from shardwright.sizing.question import Workload
from shardwright.sizing.result import Candidate
from shardwright.sizing.shape import EngineSettings

TIMEOUT_SECONDS: Final = 120.0
_FORMAT: Final = 1
_TOOL: Final = "aiconfigurator"
_SUCCESSOR: Final = "aisimulate"
_TAIL: Final = 400

# Systems with measured tables in 0.12.0, by parts of a product's name; others it would only guess.
_SYSTEMS: Final = (
    (("GB300",), "gb300"),
    (("GB200",), "gb200"),
    (("B300",), "b300_sxm"),
    (("B200",), "b200_sxm"),
    (("H200",), "h200_sxm"),
    (("H100", "HBM3"), "h100_sxm"),
    (("A100", "SXM4"), "a100_sxm"),
    (("L40S",), "l40s"),
)
_NOT_THESE: Final = ("NVL", "PCIE")
_BACKENDS: Final = {"TensorRTLLM": "trtllm", "VLLM": "vllm", "SGLang": "sglang"}
_GEMM: Final = {
    None: None,
    WeightPrecision.NONE: "bfloat16",
    WeightPrecision.FP8: "fp8",
    WeightPrecision.INT4_AWQ: "int4_wo",
    WeightPrecision.INT8: "int8_wo",
    WeightPrecision.NVFP4: "nvfp4",
}
_KV: Final = {KVPrecision.NONE: "bfloat16", KVPrecision.FP8: "fp8", KVPrecision.INT8: "int8"}

# Runs in the tool's environment. Whatever the tool prints goes to stderr; the answer is one line.
_CHILD: Final = """
import contextlib, json, pathlib, sys, tempfile
asked = json.load(sys.stdin)
with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as folder:
    from importlib.metadata import version
    from aiconfigurator.cli.api import cli_estimate
    pathlib.Path(folder, "config.json").write_text(json.dumps(asked.pop("config")))
    found = cli_estimate(folder, asked.pop("system_name"), **asked)
    raw = found.raw if isinstance(found.raw, dict) else {}
    answer = {
        "tool": "aiconfigurator " + version("aiconfigurator"),
        "ttft_ms": float(found.ttft),
        "tpot_ms": float(found.tpot),
        "tokens_per_second_per_gpu": float(raw["tokens/s/gpu"]) if "tokens/s/gpu" in raw else None,
        "warning": str(getattr(found, "kv_cache_warning", "") or ""),
    }
print("ANSWER " + json.dumps(answer))
"""


@dataclass(frozen=True, slots=True)
class Opinion:
    """What the tool answered for one candidate.

    Attributes:
        tool: Name and version.
        ttft_ms: Time to the first token in milliseconds.
        tpot_ms: Time between two tokens in milliseconds.
        tokens_per_second_per_gpu: Output tokens; None where it did not say.
        warning: What it warned of.
        why_not: Why there is no answer; empty when there is one.
    """

    tool: str = ""
    ttft_ms: float = 0.0
    tpot_ms: float = 0.0
    tokens_per_second_per_gpu: float | None = None
    warning: str = ""
    why_not: str = ""


class NotCoveredError(ValueError):
    """The tool has no tables for this question; the message says for what."""


def system_of(product: str) -> str | None:
    """The tool's name of a GPU product, None where it has no measurements of it."""
    name = product.upper()
    if any(part in name for part in _NOT_THESE):
        return None
    return next((system for parts, system in _SYSTEMS if all(part in name for part in parts)), None)


def question_of(
    config: Mapping[str, Any],
    model: Model,
    candidate: Candidate,
    workload: Workload,
    engine: EngineSettings,
) -> dict[str, Any]:
    """The arguments of `cli_estimate` for a candidate, and the model's config beside them.

    Args:
        config: The model's config.json: it is handed over, so that nothing is downloaded.
        model: The same, read; for whether it has experts.
        candidate: What is asked about.
        workload: Lengths of prompt and answer.
        engine: The runtime.

    Raises:
        NotCoveredError: GPU, runtime or precision are unknown to the tool.
    """
    system = system_of(candidate.product)
    if system is None:
        raise NotCoveredError(f"it has no measurements of {candidate.product}")
    backend = _BACKENDS.get(engine.runtime)
    if backend is None:
        raise NotCoveredError(f"it does not know the runtime {engine.runtime}")
    if candidate.precision.weights not in _GEMM:
        raise NotCoveredError(f"it does not know weights in {candidate.precision.weights}")
    shape = candidate.shape
    asked: dict[str, Any] = {
        "config": dict(config),
        "system_name": system,
        "mode": "agg",
        "backend_name": backend,
        "isl": workload.input_len,
        "osl": workload.output_len,
        "batch_size": -(-candidate.estimate.batch // shape.attention_data),
        "tp_size": shape.tensor // shape.attention_data,
        "pp_size": shape.pipeline,
        "attention_dp_size": shape.attention_data,
        "kvcache_quant_mode": _KV[candidate.precision.kv_cache],
    }
    if (gemm := _GEMM[candidate.precision.weights]) is not None:
        asked["gemm_quant_mode"] = gemm
    if model.experts:
        asked["moe_ep_size"] = shape.expert
        asked["moe_tp_size"] = shape.tensor // shape.expert
    return asked


def interpreter() -> str | None:
    """The Python that the tool is installed in: that of its command, else our own, else None."""
    if command := shutil.which(_TOOL):
        # an entry point stands beside its interpreter; pipx links to it from elsewhere
        folder = Path(command).resolve().parent
        for name in ("python3", "python"):
            if (folder / name).is_file():
                return str(folder / name)
    return sys.executable if find_spec(_TOOL) else None


def ask(
    question: Mapping[str, Any],
    *,
    timeout: float = TIMEOUT_SECONDS,
    cache: Path | None = None,
) -> Opinion:
    """Put one question; a failure is an answer too, with its reason, and is not kept.

    Args:
        question: As `question_of` made it.
        timeout: Seconds until it is given up.
        cache: Folder in which answers are kept; None keeps none.
    """
    kept = cache / f"{_key(question)}.json" if cache is not None else None
    if kept is not None and (found := _kept(kept)) is not None:
        return found
    python = interpreter()
    if python is None:
        return Opinion(why_not=_not_installed())
    try:
        done = subprocess.run(  # noqa: S603 - the interpreter that the tool is installed in
            [python, "-c", _CHILD],
            input=json.dumps(question),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Opinion(
            why_not=f"{_TOOL} did not answer within {timeout:g} s; raise --second-opinion-timeout"
        )
    except OSError as error:
        return Opinion(why_not=f"{_TOOL} could not be started: {error}")
    opinion = _answer(done)
    if kept is not None and not opinion.why_not:
        _keep(kept, opinion)
    return opinion


def _not_installed() -> str:
    if find_spec(_SUCCESSOR) or shutil.which(_SUCCESSOR):
        return f"{_SUCCESSOR} is installed, and only {_TOOL} (0.12.0) is understood"
    return (
        f"{_TOOL} is not installed: `pipx install {_TOOL}==0.12.0` puts it beside (0.9 GB); "
        "nothing else needs it"
    )


def _answer(done: subprocess.CompletedProcess[str]) -> Opinion:
    line = next(
        (line for line in reversed(done.stdout.splitlines()) if line.startswith("ANSWER ")), None
    )
    if line is None:
        words = " ".join(done.stderr.split())
        tail = words if len(words) <= _TAIL else f"…{words[-_TAIL:]}"
        return Opinion(why_not=f"{_TOOL} failed with exit code {done.returncode}: {tail}")
    try:
        return Opinion(**json.loads(line.removeprefix("ANSWER ")))
    except (ValueError, TypeError) as error:
        return Opinion(why_not=f"{_TOOL} answered what cannot be read: {error}")


def _key(question: Mapping[str, Any]) -> str:
    text = json.dumps([_FORMAT, dict(question)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _kept(path: Path) -> Opinion | None:
    """An answer that was kept; None without one, or when the file is no answer."""
    try:
        return Opinion(**json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _keep(path: Path, opinion: Opinion) -> None:
    """Write by rename, so that another process never reads half an answer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, suffix=".part", delete=False
    ) as file:
        json.dump(asdict(opinion), file)
    Path(file.name).replace(path)


def cache_folder() -> Path:
    """Where answers are kept: `$XDG_CACHE_HOME/shardwright/second-opinion`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "shardwright" / "second-opinion"


def opinions(questions: Sequence[Mapping[str, Any]], timeout: float) -> list[Opinion]:
    """Answers to several questions, one after the other, kept in the user's cache."""
    return [ask(question, timeout=timeout, cache=cache_folder()) for question in questions]
