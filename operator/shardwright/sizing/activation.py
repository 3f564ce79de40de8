"""Peak memory of one forward pass, or of the sampler after it, on one GPU of a stage.

vLLM reserves what its profile run peaked at. On the last stage that is mostly the sampler's logits:
a constant times requests in flight × vocabulary, whatever the split. Stages without an output head
have the forward pass alone: tokens × (bytes per inner width of this rank + bytes per hidden width).
The buffers of routed experts stay allocated beside either.
"""

from __future__ import annotations

import functools

from shardwright.sizing.constants import EngineConstants
from shardwright.sizing.model import FeedForward, Model
from shardwright.sizing.shape import EngineSettings, Shape

_GATED_MATRICES = 3
_PLAIN_MATRICES = 2


def _width(block: FeedForward) -> float:
    """Inner elements of one token outside routed experts.

    Scaled by how many of gate, up and product are held.
    """
    width = block.shared_width if block.experts else block.width
    return width * (_GATED_MATRICES if block.gated else _PLAIN_MATRICES) / _GATED_MATRICES


@functools.lru_cache(maxsize=512)
def _blocks(model: Model) -> tuple[float, tuple[FeedForward, ...]]:
    """The widest dense block, and every kind of mixture."""
    blocks = {layer.feed_forward for layer in model.layers}
    return max(map(_width, blocks)), tuple(block for block in blocks if block.experts)


def _workspace(block: FeedForward, hidden: int, ranks: int) -> float:
    """Elements of the two buffers that hold one token in one routed expert.

    One holds gate and up, then the output; the other their product (vLLM's
    `TritonExperts.workspace_shapes`).
    """
    inner = block.width / ranks
    return max((2 if block.gated else 1) * inner, hidden) + max(inner, hidden)


def stage_activation(
    model: Model,
    shape: Shape,
    engine: EngineSettings,
    constants: EngineConstants,
    stage: int,
) -> int:
    """Bytes of the peak on one GPU of a stage, from 0."""
    width, mixtures = _blocks(model)
    tokens = engine.max_num_tokens
    peak = tokens * (
        constants.forward_width_bytes * width / (shape.tensor // shape.attention_data)
        + constants.forward_hidden_bytes * model.hidden
    )
    if stage == shape.pipeline - 1:
        sampled = min(engine.max_batch_size, tokens)
        sampler = constants.sampler_bytes + (
            constants.sampler_bytes_per_logit * sampled * model.vocabulary
        )
        peak = max(peak, sampler)
    # The kernels for MXFP4 multiply ragged batches in place and take no such buffers.
    if mixtures and model.checkpoint.method != "mxfp4":
        ranks = shape.tensor // shape.expert
        peak += max(
            tokens
            * block.active
            * constants.expert_workspace_bytes
            * _workspace(block, model.hidden, ranks)
            for block in mixtures
        )
    if stage == 0 and model.vision_parameters:
        peak += constants.tower_bytes
    return round(peak)
