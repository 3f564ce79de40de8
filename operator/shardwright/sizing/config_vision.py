"""The tower beside a multimodal model's text: counted apart, from its own section."""

from __future__ import annotations

from shardwright.sizing.config_reader import Reader

_HIGH_WIDTH = 2**20
_HIGH_DEPTH = 1024
_HIGH_PIXELS = 2**16
# Towers with a gated feed-forward block and no biases.
_GATED = frozenset({"pixtral", "qwen2_5_vl", "qwen2_5_vl_vision"})
_SECTIONS = ("vision_config", "vision_tower_config", "audio_config")


def tower_parameters(config: Reader, hidden: int) -> tuple[int, tuple[str, ...]]:
    """Weights of a vision tower and its projector, and what is not certain about them.

    A transformer on patches: four projections and a feed-forward block a layer, a patch embedding,
    learned positions where the section gives their number or the picture's size; a projector of one
    matrix from the tower's width to the text's (SigLIP and Gemma 3 count exactly; others are a few
    per cent off, which the note says).
    """
    total = 0
    notes: list[str] = []
    for name in _SECTIONS:
        section = config.section(name)
        if section is None:
            continue
        if section.find("hidden_size", "embed_dim", "d_model")[1] is None:
            notes.append(f"{name} does not give a width: its weights are not counted")
            continue
        counted, exact = _tower(section, hidden)
        total += counted
        if not exact:
            notes.append(f"{name}: about {counted / 1e9:.2f} billion weights, by its widths alone")
    return total, tuple(notes)


def _tower(section: Reader, hidden: int) -> tuple[int, bool]:
    kind = section.text("model_type")
    width = section.integer("hidden_size", "embed_dim", "d_model", low=1, high=_HIGH_WIDTH)
    depth = section.integer(
        "num_hidden_layers", "depth", "encoder_layers", low=1, high=_HIGH_DEPTH, default=24
    )
    inner = section.integer(
        "intermediate_size", "encoder_ffn_dim", low=1, high=_HIGH_WIDTH, default=4 * width
    )
    gated = kind in _GATED
    layer = 4 * width * width + (3 if gated else 2) * width * inner
    # Biases of both blocks, and two norms with biases.
    layer += 2 * width if gated else (4 * width + inner + width + 4 * width)
    patch = section.integer("patch_size", low=1, high=_HIGH_PIXELS, default=14)
    channels = section.integer("num_channels", "in_channels", low=1, high=64, default=3)
    frames = section.integer("temporal_patch_size", low=1, high=64, default=1)
    embedding = width * (channels * patch * patch * frames + 1)
    _, image = section.find("image_size")
    side = image if isinstance(image, int) and 0 < image <= _HIGH_PIXELS else 0
    places = section.integer(
        "num_position_embeddings", low=0, high=2**24, default=(side // patch) ** 2
    )
    end = 2 * width
    projector = width * hidden + width
    exact = kind == "siglip_vision_model"
    return depth * layer + embedding + places * width + end + projector, exact
