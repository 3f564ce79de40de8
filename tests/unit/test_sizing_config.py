"""From config.json to a model: families, mixtures, windows, quantized checkpoints, towers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from shardwright.api.serving import WeightPrecision
from shardwright.sizing.catalogue import (
    UnknownModelError,
    catalogue_model,
    catalogue_names,
    catalogue_source,
)
from shardwright.sizing.config_json import ConfigError, load_json, model_from_config
from shardwright.sizing.ignored import globs_of, ignoring
from shardwright.sizing.model import AttentionKind, Model
from shardwright.sizing.precisions import checkpoint_weights
from shardwright.sizing.weights import as_stored, checkpoint_bits, checkpoint_bytes, parameters

LLAMA: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def read(**changes: Any) -> Model:
    config = {**LLAMA, **changes}
    return model_from_config({k: v for k, v in config.items() if v is not ...}, name="model")


def kinds(model: Model) -> str:
    return "".join(layer.attention.kind.value[0] for layer in model.layers)


def quantized(**section: Any) -> Model:
    return read(quantization_config=section)


def compressed(kind: str, bits: int, activation_bits: int = 0) -> dict[str, Any]:
    """A compressed-tensors section of one group; no bits of activations leave them alone."""
    inputs = {"num_bits": activation_bits, "type": kind} if activation_bits else None
    group_size = 16 if (kind, bits) == ("float", 4) else 128 if bits == 4 else None
    weights = {"num_bits": bits, "type": kind, "group_size": group_size}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}


class TestGeometry:
    def test_a_plain_model(self) -> None:
        model = read()
        attention = model.layers[0].attention
        assert (model.architecture, len(model.layers), model.hidden) == (
            "LlamaForCausalLM",
            32,
            4096,
        )
        assert (attention.heads, attention.kv_heads, attention.head_dim) == (32, 8, 128)
        assert (model.vocabulary, model.tied, model.dtype) == (128256, False, "bfloat16")
        assert model.rotary_dim == 128
        assert model.notes == ()

    def test_heads_may_be_wider_than_their_share_of_the_hidden_size(self) -> None:
        assert read(head_dim=256).layers[0].attention.head_dim == 256

    def test_without_kv_heads_every_head_has_its_own(self) -> None:
        assert read(num_key_value_heads=...).layers[0].attention.kv_heads == 32

    def test_biases_are_the_familys_own(self) -> None:
        assert not read().layers[0].attention.bias
        assert read(attention_bias=True).layers[0].attention.output_bias
        qwen = read(model_type="qwen2", architectures=["Qwen2ForCausalLM"])
        assert (qwen.layers[0].attention.bias, qwen.layers[0].attention.output_bias) == (
            True,
            False,
        )

    @pytest.mark.parametrize("family", ["phi", "gptj", "falcon", "gpt_neox", "starcoder2"])
    def test_old_families_have_no_gate(self, family: str) -> None:
        assert not read(model_type=family).layers[0].feed_forward.gated

    def test_falcon_has_one_kv_head_unless_its_layout_is_the_newer(self) -> None:
        assert read(model_type="falcon").layers[0].attention.kv_heads == 1
        newer = read(model_type="falcon", new_decoder_architecture=True, num_kv_heads=8)
        assert newer.layers[0].attention.kv_heads == 8

    def test_an_architecture_stands_in_for_a_missing_model_type(self) -> None:
        assert parameters(read(model_type=...)) == parameters(read())

    def test_ties_are_read_from_the_index_where_the_file_is_silent(self) -> None:
        config = {key: value for key, value in LLAMA.items() if key != "tie_word_embeddings"}
        names = {"model.embed_tokens.weight": "1", "model.norm.weight": "1"}
        tied = model_from_config(config, name="m", index={"weight_map": names})
        headed = {"weight_map": {**names, "lm_head.weight": "2"}}
        assert tied.tied
        assert not model_from_config(config, name="m", index=headed).tied

    def test_files_that_the_layers_do_not_explain_are_told(self) -> None:
        total = checkpoint_bytes(read(), None)
        fitting = {"metadata": {"total_size": total + 10_000}}
        assert model_from_config(LLAMA, name="m", index=fitting).notes == ()
        strange = {"metadata": {"total_size": total * 2}}
        found = model_from_config(LLAMA, name="m", index=strange)
        assert found.file_bytes == total * 2
        assert "29.92 GiB of weights, the layers explain 14.96 GiB (+100.0%)" in found.notes[0]

    def test_32_bit_files_are_counted_in_16(self) -> None:
        assert "runtimes load it in 16" in read(torch_dtype="float32").notes[0]


class TestPositions:
    @pytest.mark.parametrize(
        ("changes", "elements"),
        [
            ({}, 128),
            ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 128),
            ({"rope_scaling": {"type": "linear", "factor": 4}}, 4 * 128),
            ({"rope_scaling": {"type": "dynamic", "factor": 2}}, 2 * 128),
            (
                {
                    "max_position_embeddings": 32768,
                    "rope_scaling": {
                        "type": "yarn",
                        "factor": 4,
                        "original_max_position_embeddings": 32768,
                    },
                },
                4 * 128,
            ),
            ({"rope_parameters": {"partial_rotary_factor": 0.5, "rope_type": "default"}}, 64),
            ({"partial_rotary_factor": 0.25}, 32),
        ],
    )
    def test_tables_are_as_long_as_scaling_makes_them(
        self, changes: dict[str, Any], elements: int
    ) -> None:
        assert read(**changes).rotary_dim == elements

    def test_other_positions_have_no_table(self) -> None:
        assert read(model_type="gpt2").rotary_dim == 0
        assert read(model_type="gpt2").first_parameters == 131072 * 4096
        assert read(model_type="falcon", alibi=True).rotary_dim == 0

    def test_latent_attention_turns_its_rotary_part_alone(self) -> None:
        assert catalogue_model("deepseek-ai/DeepSeek-V3").rotary_dim == 64


class TestWindows:
    def test_listed_layers(self) -> None:
        types = ["sliding_attention", "full_attention"] * 16
        model = read(
            model_type="gpt_oss",
            layer_types=types,
            sliding_window=128,
            num_local_experts=4,
            num_experts_per_tok=2,
        )
        assert kinds(model) == "SF" * 16
        assert model.layers[0].attention.window == 128

    def test_every_sixth_layer_of_gemma_3_sees_everything(self) -> None:
        gemma = catalogue_model("google/gemma-3-27b-it")
        assert kinds(gemma) == "SSSSSF" * 10 + "SS"
        # The table of full layers is eight times as long as that of window layers.
        assert gemma.rotary_dim == (8 + 1) * 128

    def test_gemma_2_alternates(self) -> None:
        assert kinds(catalogue_model("google/gemma-2-9b-it")) == "SF" * 21

    def test_mistral_slides_by_default_and_not_when_the_window_is_null(self) -> None:
        mistral = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
        assert kinds(read(**mistral, sliding_window=4096)) == "S" * 32
        assert kinds(read(**mistral)) == "S" * 32
        assert kinds(read(**mistral, sliding_window=None)) == "F" * 32

    def test_qwen_slides_late_and_only_when_switched_on(self) -> None:
        window = {"model_type": "qwen2", "sliding_window": 4096, "max_window_layers": 30}
        assert kinds(read(**window)) == "F" * 32
        assert kinds(read(**window, use_sliding_window=True)) == "F" * 30 + "SS"

    def test_llama_4_looks_back_in_chunks_in_three_of_four_layers(self) -> None:
        scout = catalogue_model("meta-llama/Llama-4-Scout-17B-16E-Instruct")
        assert kinds(scout) == "SSSF" * 12
        assert scout.layers[0].attention.window == 8192

    def test_state_space_layers_beside_full_ones(self) -> None:
        qwen = catalogue_model("Qwen/Qwen3.5-27B")
        assert kinds(qwen) == "LLLF" * 16
        assert qwen.layers[0].attention.state_bytes > 0
        assert qwen.layers[3].attention.output_gate
        assert qwen.layers[3].attention.kind is AttentionKind.FULL

    @pytest.mark.parametrize(
        ("types", "said"),
        [(["full_attention"] * 31, "one entry for each of the 32"), (["ring"] * 32, '"ring"')],
    )
    def test_lists_that_do_not_fit_are_refused(self, types: list[str], said: str) -> None:
        with pytest.raises(ConfigError, match=said) as found:
            read(layer_types=types)
        assert found.value.key == "layer_types"


class TestMixtures:
    def test_mixtral_stores_its_experts_width_as_the_dense_one(self) -> None:
        block = catalogue_model("mistralai/Mixtral-8x7B").layers[0].feed_forward
        assert (block.width, block.experts, block.active, block.shared_width) == (14336, 8, 2, 0)

    def test_deepseek_has_shared_experts_and_dense_first_layers(self) -> None:
        model = catalogue_model("deepseek-ai/DeepSeek-V3")
        assert [layer.feed_forward.experts for layer in model.layers] == [0] * 3 + [256] * 58
        assert (model.layers[0].feed_forward.width, model.layers[3].feed_forward.width) == (
            18432,
            2048,
        )
        assert model.layers[3].feed_forward.shared_width == 2048
        lite = catalogue_model("deepseek-ai/DeepSeek-V2-Lite")
        assert lite.layers[1].feed_forward.shared_width == 2 * 1408
        assert lite.layers[1].attention.q_lora_rank == 0

    def test_qwen_mixes_but_for_listed_layers(self) -> None:
        mixture = {
            "model_type": "qwen3_moe",
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 768,
            "mlp_only_layers": [0, 5],
        }
        model = read(**mixture)
        assert [n for n, layer in enumerate(model.layers) if not layer.feed_forward.experts] == [
            0,
            5,
        ]
        every_second = read(**{**mixture, "mlp_only_layers": [], "decoder_sparse_step": 2})
        assert [layer.feed_forward.experts for layer in every_second.layers] == [0, 8] * 16

    def test_maverick_mixes_every_second_layer(self) -> None:
        model = catalogue_model("meta-llama/Llama-4-Maverick-17B-128E-Instruct")
        assert [layer.feed_forward.experts for layer in model.layers[:4]] == [0, 128, 0, 128]
        assert model.layers[0].feed_forward.width == 16384
        assert model.layers[1].feed_forward.shared_width == 8192

    def test_gpt_oss_has_biases_everywhere_and_sinks(self) -> None:
        layer = catalogue_model("openai/gpt-oss-120b").layers[0]
        assert layer.feed_forward.bias
        assert layer.attention.output_bias
        assert layer.replicated == 2 * 2880 + 64


class TestCheckpoints:
    @pytest.mark.parametrize(
        ("section", "bits"),
        [
            ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8 + 32 / 128**2),
            ({"quant_method": "fp8"}, 8),
            ({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, 8 + 32 / 128**2),
            ({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]}, 8),
            ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}, 4 + 20 / 128),
            ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8),
            ({"quant_method": "awq", "bits": 4, "group_size": 64}, 4 + 20 / 64),
            ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": False}, 4.125),
            ({"quant_method": "mxfp4"}, 4.25),
            ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5),
            ({"quant_method": "modelopt", "quant_algo": "FP8"}, 8),
            ({"quantization": {"quant_algo": "W4A16_AWQ", "exclude_modules": ["lm_head"]}}, 4.125),
            ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5),
            ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8),
        ],
    )
    def test_bits_of_a_weight(self, section: dict[str, Any], bits: float) -> None:
        assert checkpoint_bits(quantized(**section).checkpoint) == bits

    @pytest.mark.parametrize(
        ("section", "block"),
        [
            ({"quant_method": "fp8"}, (0, 0)),
            ({"quant_method": "fp8", "weight_block_size": None}, (0, 0)),
            ({"quant_method": "fp8", "weight_block_size": [128, 128]}, (128, 128)),
            ({"quant_method": "fp8", "weight_block_size": [1, 32]}, (1, 32)),
            ({"quant_method": "modelopt", "quant_algo": "FP8"}, (0, 0)),
            (
                {"quantization": {"quant_algo": "FP8_PB_WO", "group_size": 128}},
                (128, 128),
            ),
            (
                {
                    "quant_method": "compressed-tensors",
                    "config_groups": {
                        "group_0": {
                            "targets": ["Linear"],
                            "weights": {
                                "num_bits": 8,
                                "strategy": "block",
                                "block_structure": [128, 128],
                            },
                        }
                    },
                },
                (128, 128),
            ),
        ],
    )
    def test_blocks_that_share_a_scale(
        self, section: dict[str, Any], block: tuple[int, int]
    ) -> None:
        found = quantized(**section).checkpoint
        assert found.block == block
        assert found.group_size == 0

    @pytest.mark.parametrize("size", [[128], [128, 128, 128], [0, 128], ["a", 1], 128, [True, 1]])
    def test_a_block_that_cannot_be_is_named(self, size: object) -> None:
        with pytest.raises(ConfigError) as found:
            quantized(quant_method="fp8", weight_block_size=size)
        assert found.value.key == "quantization_config.weight_block_size"

    def test_compressed_tensors(self) -> None:
        weights = {"num_bits": 4, "group_size": 128, "symmetric": True, "type": "int"}
        section = {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
            "ignore": ["lm_head", "re:.*self_attn.*"],
        }
        model = quantized(**section)
        assert checkpoint_bits(model.checkpoint) == 4.125
        # 24 bits fewer a weight of the blocks alone, attention stays as it was.
        blocks = 32 * 3 * 4096 * 14336
        saved = checkpoint_bytes(read(), None) - checkpoint_bytes(model, None)
        assert saved == blocks * (16 - 4.125) / 8

    def test_targets_name_the_only_modules_that_are_quantized(self) -> None:
        weights = {"num_bits": 8, "type": "float"}
        group = {"targets": ["re:.*mlp.*"], "weights": weights}
        model = quantized(quant_method="compressed-tensors", config_groups={"group_0": group})
        saved = checkpoint_bytes(read(), None) - checkpoint_bytes(model, None)
        assert saved == 32 * 3 * 4096 * 14336

    def test_fbgemm_keeps_what_it_lists(self) -> None:
        listed = [f"model.layers.{n}.self_attn.{p}_proj" for n in range(32) for p in "qkvo"]
        listed += [
            f"model.layers.{n}.mlp.{p}_proj" for n in (0, 31) for p in ("gate", "up", "down")
        ]
        model = quantized(quant_method="fbgemm_fp8", modules_to_not_convert=listed)
        saved = checkpoint_bytes(read(), None) - checkpoint_bytes(model, None)
        assert saved == 30 * 3 * 4096 * 14336

    def test_mixed_precisions_are_refused_with_what_to_do(self) -> None:
        with pytest.raises(ConfigError, match="MIXED_PRECISION; allowed is one precision"):
            quantized(quant_method="modelopt", quant_algo="MIXED_PRECISION")
        groups = {
            name: {"targets": ["Linear"], "weights": {"num_bits": bits}}
            for name, bits in (("group_0", 8), ("group_1", 4))
        }
        with pytest.raises(ConfigError, match="several precisions"):
            quantized(quant_method="compressed-tensors", config_groups=groups)

    @pytest.mark.parametrize(
        ("section", "named"),
        [
            # nvidia/…-FP8, -AWQ and -NVFP4 checkpoints, and SmoothQuant ones.
            ({"quant_algo": "FP8"}, WeightPrecision.FP8),
            ({"quant_algo": "W4A16_AWQ"}, WeightPrecision.INT4_AWQ),
            ({"quant_algo": "W4A8_AWQ"}, WeightPrecision.W4A8_AWQ),
            ({"quant_algo": "W8A8_SQ_PER_CHANNEL"}, WeightPrecision.INT8_SMOOTHQUANT),
            ({"quant_algo": "W8A16"}, WeightPrecision.INT8),
            ({"quant_algo": "NVFP4"}, WeightPrecision.NVFP4),
            # RedHatAI/…-FP8-dynamic, -quantized.w8a8, -quantized.w4a16, -quantized.w8a16, -NVFP4.
            (compressed("float", 8, 8), WeightPrecision.FP8),
            (compressed("int", 8, 8), WeightPrecision.INT8_SMOOTHQUANT),
            (compressed("int", 4), WeightPrecision.INT4_AWQ),
            (compressed("int", 8), WeightPrecision.INT8),
            (compressed("float", 4, 4), WeightPrecision.NVFP4),
            # FP8 weights that are unpacked to 16 bits: nothing of the API is the same.
            (compressed("float", 8), None),
            ({"quant_method": "awq", "bits": 4}, WeightPrecision.INT4_AWQ),
            ({"quant_method": "gptq", "bits": 4}, WeightPrecision.INT4_GPTQ),
            ({"quant_method": "gptq", "bits": 8}, None),
        ],
    )
    def test_whole_numbers_are_told_from_floating_point(
        self, section: dict[str, Any], named: WeightPrecision | None
    ) -> None:
        """What the GPU must be able to multiply hangs on it: INT8 from Turing, FP8 from Ada on."""
        assert checkpoint_weights(quantized(**{"quant_method": "modelopt", **section})) is named

    def test_a_kind_of_number_that_is_not_known_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r'type is "posit"; allowed is int or float'):
            quantized(**compressed("posit", 8, 8))

    def test_an_unknown_method_is_refused_with_those_that_are_known(self) -> None:
        with pytest.raises(ConfigError, match=r'"aqlm"; allowed is auto-round or awq') as found:
            quantized(quant_method="aqlm")
        assert found.value.key == "quantization_config.quant_method"

    def test_asking_for_the_checkpoints_own_precision_keeps_its_ignore_list(self) -> None:
        model = quantized(quant_method="fp8", modules_to_not_convert=["self_attn"])
        assert as_stored(model, None)
        assert as_stored(model, WeightPrecision.FP8)
        assert not as_stored(model, WeightPrecision.INT4_AWQ)
        assert not as_stored(model, WeightPrecision.NONE)


class TestIgnoreLists:
    @pytest.mark.parametrize(
        ("pattern", "path", "ignored"),
        [
            ("lm_head", "layers.0.mlp.gate_proj", False),
            ("model.layers.3.self_attn.q_proj", "layers.3.self_attn.q_proj", True),
            ("model.layers.3.self_attn.q_proj", "layers.31.self_attn.q_proj", False),
            ("model.layers.3.self_attn.qkv_proj", "layers.3.self_attn.v_proj", True),
            ("model.layers.3.mlp", "layers.3.mlp.down_proj", True),
            ("model.layers.*.self_attn", "layers.17.self_attn.o_proj", True),
            ("model.layers.*.mlp.router", "layers.17.mlp.experts.0.up_proj", False),
            ("model.layers.1.*", "layers.1.mlp.up_proj", True),
            ("model.layers.1.*", "layers.11.mlp.up_proj", False),
            ("language_model.model.layers.0*", "layers.0.mlp.up_proj", True),
            ("model.layers.10.mlp.shared_experts*", "layers.10.mlp.shared_experts.up_proj", True),
            (
                "model.layers.0.block_sparse_moe.experts.0.w2",
                "layers.0.mlp.experts.0.down_proj",
                True,
            ),
            (
                "model.layers.0.block_sparse_moe.experts.0.w2",
                "layers.0.mlp.experts.0.up_proj",
                False,
            ),
            ("self_attn", "layers.5.self_attn.k_proj", True),
            ("re:.*self_attn.*", "layers.5.self_attn.k_proj", True),
            ("re:.*mlp.(gate|up|gate_up|down)_proj.*", "layers.5.mlp.up_proj", True),
            ("re:.*mlp.(gate|up|gate_up|down)_proj.*", "layers.5.mlp.experts.0.up_proj", False),
            (r"re:model\.layers\.\d+\.mlp\.gate$", "layers.5.mlp.gate_proj", False),
            (r"re:^model\.layers\.[0-9]+\.self_attn", "layers.5.self_attn.k_proj", True),
            ("re:.*lm_head", "layers.5.mlp.up_proj", False),
        ],
    )
    def test_an_entry_names_modules(self, pattern: str, path: str, *, ignored: bool) -> None:
        assert ignoring((pattern,))(path) is ignored

    @pytest.mark.parametrize(
        "pattern", ["re:(a+)+b", "re:(?=x).*", "re:a{1,9}", "re:" + "(a|b)" * 9]
    )
    def test_expressions_that_no_tool_writes_are_refused(self, pattern: str) -> None:
        with pytest.raises(ValueError, match=r"alternatives|quantization tools"):
            globs_of(pattern)


class TestTowers:
    def test_a_tower_is_counted_apart(self) -> None:
        gemma = catalogue_model("google/gemma-3-27b-it")
        assert gemma.vision_parameters == pytest.approx(0.42e9, rel=0.01)
        assert parameters(gemma) == 27_009_346_304
        assert not gemma.notes

    def test_another_tower_is_counted_by_its_widths_and_said_so(self) -> None:
        qwen = catalogue_model("Qwen/Qwen3-VL-8B-Instruct")
        assert qwen.vision_parameters > 0.3e9
        assert "by its widths alone" in qwen.notes[0]

    def test_text_may_stand_in_a_section_or_at_the_top(self) -> None:
        vision = {"hidden_size": 1024, "num_hidden_layers": 24, "model_type": "clip_vision_model"}
        text = model_from_config(
            {"model_type": "llava", "text_config": dict(LLAMA), "vision_config": vision}, name="m"
        )
        flat = model_from_config({**LLAMA, "vision_config": vision}, name="m")
        assert parameters(text) == parameters(flat) == parameters(read())
        assert text.vision_parameters == flat.vision_parameters > 0

    def test_a_tower_without_a_width_is_told(self) -> None:
        config = {**LLAMA, "vision_config": {"vt_hidden_size": 1152}}
        assert "not counted" in model_from_config(config, name="m").notes[0]


class TestRefusals:
    @pytest.mark.parametrize(
        ("family", "missing"),
        [
            ("deepseek_v32", "indexer"),
            ("gemma4", "per-layer embeddings"),
            ("mamba", "state-space"),
            ("brand_new", "what its layers hold beside the usual parts"),
        ],
    )
    def test_an_unknown_family_is_told_what_is_missing(self, family: str, missing: str) -> None:
        with pytest.raises(ConfigError, match=missing) as found:
            read(model_type=family, architectures=["Brand"])
        assert found.value.key == "model_type"
        assert "known families are" in str(found.value)

    @pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "vocab_size"])
    def test_a_missing_size_is_named(self, key: str) -> None:
        with pytest.raises(ConfigError, match=f"{key} is missing") as found:
            read(**{key: ...})
        assert found.value.key == key

    @pytest.mark.parametrize(
        ("key", "value", "said"),
        [
            ("num_hidden_layers", 10**30, "is 1000"),
            pytest.param("num_hidden_layers", 10**5000, "is of 16610 bits", id="huge"),
            ("hidden_size", -1, "is -1"),
            ("hidden_size", True, "is true"),
            ("hidden_size", "4096", 'is "4096"'),
            ("hidden_size", float("nan"), "is nan"),
            ("hidden_size", [4096], "is a list of 1 entries"),
            ("num_key_value_heads", 5, "a divisor of num_attention_heads 32"),
            ("num_attention_heads", 33, "a divisor of hidden_size 4096"),
            ("torch_dtype", "int3", "bfloat16 or float16 or float32"),
            ("tie_word_embeddings", "yes", "true or false"),
            ("quantization_config", 7, "allowed is an object"),
            ("architectures", [1], "a list of texts"),
        ],
    )
    def test_a_wrong_value_is_named_with_what_is_allowed(
        self, key: str, value: Any, said: str
    ) -> None:
        with pytest.raises(ConfigError) as found:
            read(**{key: value})
        assert found.value.key == key
        assert said in str(found.value)

    def test_keys_in_a_section_are_named_whole(self) -> None:
        with pytest.raises(ConfigError) as found:
            model_from_config({"text_config": {**LLAMA, "hidden_size": None}}, name="m")
        assert found.value.key == "text_config.hidden_size"

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (b"{", "is no JSON"),
            (b"[1]", "is a list of 1 entries"),
            (b"[" * 200_000, "nested too deep|no JSON"),
            (b'{"a": NaN}', "NaN is no number"),
            (b"\xff\xfe", "no JSON"),
            (b'{"a": ' + b"9" * 5000 + b"}", "no JSON"),
            (b" " * (5 * 2**20), "at most 4194304 are read"),
        ],
    )
    def test_a_file_that_is_no_object_is_refused(self, text: bytes, said: str) -> None:
        with pytest.raises(ConfigError, match=said):
            load_json(text)


class TestCatalogue:
    @pytest.mark.parametrize("name", catalogue_names())
    def test_every_entry_is_a_model_with_a_source(self, name: str) -> None:
        model = catalogue_model(name)
        assert model.name == name
        assert catalogue_source(name)
        assert parameters(model) > 4e8

    @pytest.mark.parametrize(
        ("name", "entry"),
        [
            ("llama-3.1-70b-instruct", "meta-llama/Llama-3.1-70B"),
            ("Meta-Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
            ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mistralai/Mixtral-8x7B-v0.1"),
            ("deepseek-ai/DeepSeek-V3-0324", "deepseek-ai/DeepSeek-V3"),
            ("GPT-OSS-120B", "openai/gpt-oss-120b"),
        ],
    )
    def test_names_people_use(self, name: str, entry: str) -> None:
        assert catalogue_model(name).name == entry

    def test_an_unknown_name_is_answered_with_near_ones(self) -> None:
        with pytest.raises(UnknownModelError, match=r"did you mean .*gpt-oss-20b"):
            catalogue_model("gpt-oss")
        with pytest.raises(UnknownModelError, match="may be"):
            catalogue_model("mistral-7b")
