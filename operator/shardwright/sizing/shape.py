"""The words of a sizing question and of its answer: shape, precision, load, memory."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.api.serving import KVPrecision, WeightPrecision
from shardwright.sizing.model import Model


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """How one replica is split: world size = tensor × pipeline.

    Attributes:
        tensor: Tensor-parallel ranks of a stage.
        pipeline: Pipeline stages.
        expert: Expert-parallel ranks of a stage (a divisor of `tensor`); 1 splits every expert.
        attention_data: Data-parallel attention groups of a stage; 1 splits attention by heads.
    """

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    attention_data: int = 1

    @property
    def world_size(self) -> int:
        """GPUs of one replica."""
        return self.tensor * self.pipeline


@dataclass(frozen=True, slots=True)
class Precision:
    """What weights and KV cache are served in.

    `weights` None takes the checkpoint's own precision.
    """

    weights: WeightPrecision | None = WeightPrecision.NONE
    kv_cache: KVPrecision = KVPrecision.NONE


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The limits and options of the runtime that decide memory.

    Attributes:
        runtime: `TensorRTLLM`, `VLLM`, `SGLang`, … as the resource names it.
        version: The runtime's version.
        backend: `TensorRT` or `PyTorch`; empty where the runtime has one only.
        memory_fraction: As this runtime counts it: of the whole GPU, or of what is free.
        max_seq_len: Tokens of one request, prompt and output.
        max_num_tokens: Tokens of one forward pass.
        max_batch_size: Requests in flight.
        lora_slots: Adapters held at once.
        lora_rank: Highest rank of an adapter.
        lora_modules: Projections that adapters may change, by transformers' names; empty is all.
        own_draft: Whether the multi-token-prediction layers that the checkpoint brings are loaded
            to draft tokens.
        draft: A model of its own that drafts tokens, on the GPUs of the last stage.
        build_workers: Ranks that an engine's build works on at the same time, each on a GPU.
    """

    runtime: str
    version: str
    backend: str = ""
    memory_fraction: float = 0.9
    max_seq_len: int = 8192
    max_num_tokens: int = 8192
    max_batch_size: int = 64
    lora_slots: int = 0
    lora_rank: int = 0
    lora_modules: tuple[str, ...] = ()
    own_draft: bool = False
    draft: Model | None = None
    build_workers: int = 1


@dataclass(frozen=True, slots=True)
class GPUMemory:
    """One GPU as the driver reports it.

    Attributes:
        total: Bytes that a process can see in all: less than the catalogue's figure.
        product: As GPU Feature Discovery labels it; empty when unknown.
    """

    total: int
    product: str = ""


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes of one GPU of a pipeline stage.

    Attributes:
        stage: Number of the stage.
        layers: Layers it holds.
        weights: Weights resident on the GPU.
        activation: Peak of a forward pass or of the sampler.
        runtime: What the runtime's budget loses to context, communication buffers and graphs.
        lora: Adapter slots.
        draft: A draft model's weights.
        kv_pool: What is left for the KV cache; negative when it does not fit.
        kv_bytes_per_token: Bytes that one token takes on this GPU while every layer keeps it.
        kv_tokens: Tokens that the pool holds at this rate (what vLLM logs as the cache's size), the
            pools of all attention groups together. Window layers drop old tokens, so that more long
            sequences fit than this number says: see `MemoryPlan.concurrency`.
        total: Memory of the GPU as the driver reports it.
        kv_bytes_per_sequence: Bytes that one sequence of the longest length takes on this GPU,
            windows and states counted as the runtime does.
        kv_sequences: Such sequences that the pools of all attention groups hold.
        outside: What lies outside the runtime's budget and must find room beside it: the context,
            and what is taken after the KV cache was sized.
    """

    stage: int
    layers: int
    weights: int
    activation: int
    runtime: int
    lora: int
    draft: int
    kv_pool: int
    kv_bytes_per_token: int
    kv_tokens: int
    total: int
    kv_bytes_per_sequence: int = 0
    kv_sequences: float = 0.0
    outside: int = 0

    @property
    def before_cache(self) -> int:
        """Bytes that the runtime's budget loses before any KV cache."""
        return self.weights + self.lora + self.draft + self.activation + self.runtime

    @property
    def left(self) -> int:
        """Bytes that nothing takes; negative when the GPU is promised more than it has."""
        return self.total - self.before_cache - max(0, self.kv_pool) - self.outside


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What every stage's GPUs hold; the smallest `kv_tokens` of the stages decides.

    `constants` names the row of the constants' table that was used, `sources` where its values come
    from, and `notes` says what is not covered by a measurement.
    """

    stages: tuple[StageMemory, ...]
    constants: str
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def kv_tokens(self) -> int:
        """Tokens that the whole replica can hold in its KV cache."""
        return min(stage.kv_tokens for stage in self.stages)

    @property
    def concurrency(self) -> float:
        """Sequences of the longest length that the whole replica can hold."""
        return min(stage.kv_sequences for stage in self.stages)

    @property
    def fits(self) -> bool:
        """Whether anything is left for a KV cache on every GPU."""
        return all(stage.kv_pool > 0 for stage in self.stages)
