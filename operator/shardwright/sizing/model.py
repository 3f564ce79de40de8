"""A language model's geometry: what decides how many bytes it takes and how it may be split.

Read from a Hugging Face `config.json` by `config_json`; nothing here guesses.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class AttentionKind(StrEnum):
    """How a layer looks back: at everything, at a window, or through a state of fixed size."""

    FULL = "Full"
    SLIDING = "Sliding"
    LINEAR = "Linear"


@dataclass(frozen=True, slots=True)
class Attention:
    """One layer's attention.

    Attributes:
        kind: Full, sliding-window or linear (state-space) attention.
        heads: Query heads.
        kv_heads: Key-value heads; equal to `heads` for MHA, 1 for MQA.
        head_dim: Elements of one head (of a query-key head for MLA).
        value_dim: Elements of one value head; `head_dim` except for MLA.
        window: Tokens a sliding layer looks back at; 0 otherwise.
        kv_lora_rank: Elements of MLA's compressed cache entry; 0 without MLA.
        rope_dim: Elements that MLA's cache entry keeps uncompressed for rotary positions.
        q_lora_rank: Rank of MLA's query projection; 0 where queries are projected directly.
        bias: Whether the projections of query, key and value have biases.
        output_bias: Whether the output projection has one.
        qk_norm: Whether queries and keys are normed per head.
        state_bytes: Bytes of a linear layer's state of one sequence; 0 otherwise.
        parameters: Weights of a linear layer, which have no geometry here; 0 otherwise.
        output_gate: Whether the query projection also makes a gate as wide as the queries.
    """

    kind: AttentionKind
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int = 0
    kv_lora_rank: int = 0
    rope_dim: int = 0
    q_lora_rank: int = 0
    bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    state_bytes: int = 0
    parameters: int = 0
    output_gate: bool = False

    @property
    def latent(self) -> bool:
        """Multi-head latent attention: one compressed entry a token, the same for every rank."""
        return self.kv_lora_rank > 0


@dataclass(frozen=True, slots=True)
class FeedForward:
    """One layer's feed-forward block, dense or a mixture of experts.

    Attributes:
        width: Inner size of the dense block, or of one routed expert.
        gated: Three matrices (gate, up, down) rather than two.
        experts: Routed experts; 0 for a dense block.
        active: Routed experts a token goes through.
        shared_width: Inner size of all always-on shared experts together; 0 for none.
        bias: Whether the matrices have biases.
    """

    width: int
    gated: bool = True
    experts: int = 0
    active: int = 0
    shared_width: int = 0
    bias: bool = False


@dataclass(frozen=True, slots=True)
class Layer:
    """One transformer layer.

    Attributes:
        attention: Its attention, or the state-space mixer in its place.
        feed_forward: Its feed-forward block; width 0 where the layer has none.
        replicated: Elements of norms and other small tensors that every rank holds whole, in 16
            bits.
    """

    attention: Attention
    feed_forward: FeedForward
    replicated: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointPrecision:
    """How the checkpoint itself is quantized; method "" is a 16-bit checkpoint.

    Attributes:
        method: As the config names it, in lower case: fp8, fbgemm_fp8, gptq, awq,
            compressed-tensors, modelopt, mxfp4, …
        weight_bits: Bits of one quantized weight, scales left out.
        group_size: Weights that share one scale; 0 for one scale a channel or tensor.
        ignored: Module name patterns that stay in 16 bits, as the config lists them.
        symmetric: False when zero points are stored too.
        targets: Patterns of the only modules that are quantized; empty for all.
        integer: Whether quantized weights are whole numbers; floating point otherwise.
        activation_bits: Bits of what they are multiplied with; 16 where weights alone are
            quantized.
        block: Outputs × inputs of the blocks that share one scale (DeepSeek-V3: 128 × 128); (0, 0)
            where scales are not of blocks. A rank's part of a matrix must be whole blocks.
    """

    method: str = ""
    weight_bits: float = 16.0
    group_size: int = 0
    ignored: tuple[str, ...] = ()
    symmetric: bool = True
    targets: tuple[str, ...] = ()
    integer: bool = False
    activation_bits: int = 16
    block: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Model:
    """Everything sizing needs to know of a model.

    Attributes:
        name: What the user or the catalogue calls it.
        architecture: The first entry of `architectures`.
        layers: From the first to the last.
        hidden: Elements of the residual stream.
        vocabulary: Entries of the embedding table.
        tied: Whether embedding and output head are one table.
        max_positions: Longest sequence the model was made for, in tokens.
        dtype: `bfloat16`, `float16` or `float32`: what it was trained and stored in.
        rotary_dim: Elements of all rotary tables per position; 0 for none. A table that scaling
            makes longer than the positions counts as often.
        checkpoint: How the checkpoint is quantized.
        vision_parameters: Weights of a vision or audio tower beside the language model.
        draft_layers: Multi-token-prediction layers that the checkpoint carries.
        file_bytes: Bytes of the weights' files where a safetensors index tells; 0 when unknown.
        first_parameters: Weights of the first stage beside the embedding table, such as learned
            positions.
        last_parameters: Weights of the last stage beside the output head: its norm, a head's bias.
        notes: What the configuration leaves open, and what was taken instead.
    """

    name: str
    architecture: str
    layers: tuple[Layer, ...]
    hidden: int
    vocabulary: int
    tied: bool
    max_positions: int
    dtype: str
    rotary_dim: int = 0
    checkpoint: CheckpointPrecision = CheckpointPrecision()
    vision_parameters: int = 0
    draft_layers: int = 0
    file_bytes: int = 0
    first_parameters: int = 0
    last_parameters: int = 0
    notes: tuple[str, ...] = ()

    def __hash__(self) -> int:
        """Cheap: a model keys caches that are asked thousands of times a plan."""
        return hash((self.name, self.hidden, self.vocabulary, len(self.layers)))

    @property
    def heads(self) -> int:
        """Most query heads of a layer."""
        return max(layer.attention.heads for layer in self.layers)

    @property
    def kv_heads(self) -> int:
        """Most key-value heads of a layer."""
        return max(layer.attention.kv_heads for layer in self.layers)

    @property
    def experts(self) -> int:
        """Routed experts of a layer that has them; 0 for a dense model."""
        return max(layer.feed_forward.experts for layer in self.layers)
