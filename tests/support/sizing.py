"""Questions for tests of sizing, filled with what a test does not care about."""

from __future__ import annotations

from shardwright.sizing.catalogue import catalogue_model
from shardwright.sizing.choose import choose
from shardwright.sizing.fleet import fleet_of_yaml
from shardwright.sizing.question import Fleet, Limits, Objective, Workload
from shardwright.sizing.result import Candidate, Choice
from shardwright.sizing.shape import EngineSettings

H100 = "NVIDIA-H100-80GB-HBM3"
H200 = "NVIDIA-H200"
A100 = "NVIDIA-A100-SXM4-80GB"
L40S = "NVIDIA-L40S"
B200 = "NVIDIA-B200"

M8B = "meta-llama/Llama-3.1-8B"
M70B = "meta-llama/Llama-3.3-70B-Instruct"
M405B = "meta-llama/Llama-3.1-405B"
R1 = "deepseek-ai/DeepSeek-R1"
MIXTRAL = "mistralai/Mixtral-8x7B-v0.1"

VLLM = EngineSettings("VLLM", "0.19.0", max_seq_len=8192, max_batch_size=256)
PYTORCH = EngineSettings("TensorRTLLM", "1.2.1", "PyTorch", max_seq_len=8192, max_batch_size=256)
TENSORRT = EngineSettings("TensorRTLLM", "1.2.1", "TensorRT", max_seq_len=8192, max_batch_size=256)


def fleet(*entries: str) -> Fleet:
    """A fleet of a nodes file's entries, each in YAML's flow form without braces."""
    return fleet_of_yaml("nodes:\n" + "".join(f"  - {{{entry}}}\n" for entry in entries))


def nodes(product: str, count: int = 1, gpus: int = 8, more: str = "fabric: RDMA") -> Fleet:
    """A fleet of equal nodes."""
    return fleet(f"product: {product}, count: {count}, gpus: {gpus}, {more}")


def plan(
    model: str,
    where: Fleet,
    objective: Objective = Objective.THROUGHPUT,
    concurrency: int = 64,
    *,
    limits: Limits | None = None,
    engine: EngineSettings = VLLM,
    input_len: int = 2048,
    output_len: int = 512,
    ttft: float | None = None,
    tpot: float | None = None,
) -> Choice:
    """Choose for a model of the catalogue."""
    load = Workload(objective, concurrency, input_len, output_len, ttft, tpot)
    return choose(catalogue_model(model), where, load, engine, limits)


def chosen(choice: Choice) -> Candidate:
    """The chosen plan, which there must be."""
    assert choice.chosen is not None, [f"{one.code}: {one.message}" for one in choice.rejected]
    return choice.chosen
