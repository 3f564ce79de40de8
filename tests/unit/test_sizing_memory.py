"""The memory model, part by part: what is split, what is repeated, what stays in 16 bits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright.api.serving import KVPrecision, WeightPrecision
from shardwright.observe.gpus import gpu_kind, gpu_of_total
from shardwright.sizing.catalogue import catalogue_model
from shardwright.sizing.constants import UnknownEngineError, constants_of, loaded_ratio
from shardwright.sizing.extras import lora_bytes
from shardwright.sizing.gpus import gpu_class, gpu_memory
from shardwright.sizing.kv_cache import Pooling, stage_caches
from shardwright.sizing.memory import plan_memory
from shardwright.sizing.memory_rules import held_words
from shardwright.sizing.model import Attention, AttentionKind, FeedForward, Layer, Model
from shardwright.sizing.partition import Remainder, layers_of_stages
from shardwright.sizing.question import GIB
from shardwright.sizing.shape import EngineSettings, GPUMemory, MemoryPlan, Precision, Shape
from shardwright.sizing.weights import bits_per_weight, stage_weights, table_bytes

H100 = GPUMemory(round(79.19 * GIB), "NVIDIA-H100-80GB-HBM3")
H200 = GPUMemory(round(139.8 * GIB), "NVIDIA-H200")
A100 = GPUMemory(round(79.15 * GIB), "NVIDIA-A100-SXM4-80GB")
VLLM = EngineSettings("VLLM", "0.19.0", max_batch_size=256)
FP8 = Precision(WeightPrecision.FP8, KVPrecision.NONE)
PLAIN = Pooling(block=16, grouped=False, ratio=1)
GROUPED = Pooling(block=16, grouped=True, ratio=1.25)
FIRST = Remainder.FIRST


def model(
    attention: Attention | None = None, block: FeedForward | None = None, layers: int = 4
) -> Model:
    """A small model whose bytes can be counted by eye."""
    layer = Layer(
        attention or Attention(AttentionKind.FULL, heads=8, kv_heads=2, head_dim=64, value_dim=64),
        block or FeedForward(width=1024),
    )
    return Model(
        "small",
        "Any",
        (layer,) * layers,
        512,
        1000,
        tied=False,
        max_positions=4096,
        dtype="bfloat16",
    )


def weights(found: Model, shape: Shape, precision: WeightPrecision = WeightPrecision.NONE) -> int:
    return stage_weights(found, precision, shape, FIRST)[0]


def token_bytes(
    found: Model, shape: Shape, kv: KVPrecision = KVPrecision.NONE, pooling: Pooling = PLAIN
) -> list[int]:
    caches = stage_caches(found, kv, shape, FIRST, pooling)
    return [cache.token_bytes for cache in caches]


def plan(
    name: str,
    shape: Shape,
    precision: Precision | None = None,
    gpu: GPUMemory = H100,
    engine: EngineSettings = VLLM,
) -> MemoryPlan:
    return plan_memory(catalogue_model(name), shape, precision or Precision(), engine, gpu)


class TestKVCache:
    def test_grouped_queries_store_their_kv_heads_alone(self) -> None:
        # 80 layers × 2 × 8 heads × 128 × 2 bytes, an eighth of what the hidden size would give.
        llama = catalogue_model("meta-llama/Llama-3.1-70B")
        assert token_bytes(llama, Shape()) == [327_680]
        assert token_bytes(llama, Shape()) == [2 * 80 * 8192 * 2 // 8]

    def test_heads_are_shared_by_ranks_and_then_repeat(self) -> None:
        llama = catalogue_model("meta-llama/Llama-3.1-70B")
        assert token_bytes(llama, Shape(tensor=8)) == [327_680 // 8]
        assert token_bytes(llama, Shape(tensor=16)) == [327_680 // 8]

    def test_heads_that_ranks_do_not_divide_are_rounded_up(self) -> None:
        phi = catalogue_model("microsoft/phi-4")
        assert token_bytes(phi, Shape(tensor=4)) == [40 * 3 * 2 * 128 * 2]

    def test_latent_attention_is_not_divided(self) -> None:
        deepseek = catalogue_model("deepseek-ai/DeepSeek-V3")
        assert token_bytes(deepseek, Shape()) == token_bytes(deepseek, Shape(tensor=8))
        assert token_bytes(deepseek, Shape()) == [61 * (512 + 64) * 2]

    def test_fp8_halves_a_token(self) -> None:
        llama = catalogue_model("meta-llama/Llama-3.1-8B")
        assert token_bytes(llama, Shape(), KVPrecision.FP8) == [65_536]

    def test_ten_full_and_fifty_two_sliding_layers_take_seventy_slots(self) -> None:
        gemma = catalogue_model("google/gemma-3-27b-it")
        assert token_bytes(gemma, Shape(), pooling=GROUPED) == [70 * 2 * 16 * 128 * 2]
        assert token_bytes(gemma, Shape()) == [62 * 2 * 16 * 128 * 2]

    def test_kinds_of_nearly_equal_number_take_the_larger_number(self) -> None:
        full = Attention(AttentionKind.FULL, heads=8, kv_heads=2, head_dim=64, value_dim=64)
        slide = replace(full, kind=AttentionKind.SLIDING, window=128)
        block = FeedForward(width=1024)
        layers = (Layer(full, block),) * 9 + (Layer(slide, block),) * 8
        mixed = replace(model(), layers=layers)
        assert token_bytes(mixed, Shape(), pooling=GROUPED) == [18 * 2 * 2 * 64 * 2]

    def test_groups_are_spread_over_stages(self) -> None:
        gemma = catalogue_model("google/gemma-3-27b-it")
        stages = token_bytes(gemma, Shape(pipeline=2), pooling=GROUPED)
        assert all(35 * 8192 <= stage <= 42 * 8192 for stage in stages)

    def test_a_window_saves_nothing_before_window_and_chunk(self) -> None:
        gemma = catalogue_model("google/gemma-3-27b-it")
        (cache,) = stage_caches(gemma, KVPrecision.NONE, Shape(), FIRST, GROUPED)
        assert cache.sequence_bytes(8192, 8192) == 8192 * cache.token_bytes
        full = 10 * 2 * 16 * 128 * 2
        kept = 6 * full * (-(-(1023 + 8192) // 16) + 1) * 16
        assert cache.sequence_bytes(131_072, 8192) == full * 131_072 + kept

    def test_a_sequence_is_rounded_up_to_blocks(self) -> None:
        (cache,) = stage_caches(model(), KVPrecision.NONE, Shape(), FIRST, PLAIN)
        assert cache.sequence_bytes(17, 8192) == 32 * cache.token_bytes
        assert cache.tokens(33 * cache.token_bytes) == 32

    def test_states_do_not_grow_with_the_sequence(self) -> None:
        qwen = catalogue_model("Qwen/Qwen3.5-35B-A3B")
        (cache,) = stage_caches(qwen, KVPrecision.NONE, Shape(), FIRST, PLAIN)
        assert cache.token_bytes == 10 * 2 * 2 * 256 * 2
        grown = cache.sequence_bytes(200_000, 8192) - cache.sequence_bytes(100_000, 8192)
        assert grown == 100_000 * cache.token_bytes
        # 30 layers of 32 states of 128 × 128 in 32 bits, and the convolution's inputs.
        assert cache.sequence_bytes(1, 8192) > 30 * 32 * 128 * 128 * 4

    def test_the_stage_with_the_least_room_decides(self) -> None:
        found = plan("meta-llama/Llama-3.1-8B", Shape(pipeline=3))
        assert [stage.layers for stage in found.stages] == [11, 11, 10]
        assert found.kv_tokens == found.stages[0].kv_tokens < found.stages[1].kv_tokens

    def test_attention_groups_hold_different_sequences(self) -> None:
        one = plan("deepseek-ai/DeepSeek-V3", Shape(8, expert=8), Precision(None), H200)
        split = plan(
            "deepseek-ai/DeepSeek-V3", Shape(8, expert=8, attention_data=8), Precision(None), H200
        )
        assert split.stages[0].weights > one.stages[0].weights
        assert split.kv_tokens > 4 * one.kv_tokens

    def test_a_given_pool_replaces_the_computed_one(self) -> None:
        llama = catalogue_model("meta-llama/Llama-3.1-8B")
        pools = [round(58.11 * GIB), round(40 * GIB)]
        shape = Shape(pipeline=2)
        found = plan_memory(llama, shape, Precision(), VLLM, H100, kv_pool=pools)
        assert [stage.kv_pool for stage in found.stages] == pools
        assert found.kv_tokens == pools[1] // 65_536 // 16 * 16
        with pytest.raises(ValueError, match="kvPool has 3 values for 2 stages"):
            plan_memory(llama, shape, Precision(), VLLM, H100, kv_pool=[1, 2, 3])


class TestWeights:
    def test_attention_and_blocks_are_divided_and_tables_are_padded(self) -> None:
        layer = (512 * 512 + 2 * 512 * 128 + 512 * 512) * 2 + 3 * 512 * 1024 * 2
        table = 1024 * 512 * 2  # 1,000 entries padded to a multiple of 64
        assert weights(model(), Shape()) == 4 * layer + 2 * table
        assert weights(model(), Shape(tensor=2)) == 2 * layer + table

    def test_key_and_value_heads_repeat_beyond_their_number(self) -> None:
        four = weights(model(), Shape(tensor=4))
        keys = 4 * 2 * 512 * 64 * 2
        divided = 4 * ((2 * 512 * 512 + 3 * 512 * 1024) * 2) // 4 + 2 * table_bytes(model(), 4)
        assert four == divided + keys

    def test_a_block_without_gate_has_two_matrices(self) -> None:
        gated = weights(model(), Shape())
        plain = weights(model(block=FeedForward(width=1024, gated=False)), Shape())
        assert gated - plain == 4 * 512 * 1024 * 2

    def test_latent_down_projections_are_whole_on_every_rank(self) -> None:
        attention = Attention(
            AttentionKind.FULL,
            heads=8,
            kv_heads=8,
            head_dim=96,
            value_dim=64,
            kv_lora_rank=128,
            rope_dim=32,
            q_lora_rank=256,
        )
        latent = model(attention, layers=1)
        whole = 512 * (256 + 128 + 32)
        split = 256 * 8 * 96 + 128 * 8 * (64 + 64) + 8 * 64 * 512 + 3 * 512 * 1024
        for tensor in (1, 2, 8):
            tables = 2 * table_bytes(latent, tensor)
            assert weights(latent, Shape(tensor=tensor)) == whole * 2 + split * 2 // tensor + tables

    def test_experts_are_divided_by_ranks_or_by_experts_and_routers_are_whole(self) -> None:
        block = FeedForward(width=256, experts=6, active=2, shared_width=512)
        mixture = model(block=block, layers=1)
        attention = (2 * 512 * 512 + 2 * 512 * 128) * 2
        router, expert, shared = 512 * 6 * 2, 3 * 512 * 256 * 2, 3 * 512 * 512 * 2

        def expected(tensor: int, experts: float) -> float:
            tables = 2 * table_bytes(mixture, tensor)
            return (attention + shared) / tensor + router + experts * expert + tables

        assert weights(mixture, Shape(2)) == expected(2, 3)
        assert weights(mixture, Shape(2, expert=2)) == expected(2, 3)
        # Four groups for six experts: one holds two of them whole.
        kv_repeats = 2 * 512 * 128 * 2 / 4
        assert weights(mixture, Shape(4, expert=4)) == expected(4, 2) + kv_repeats

    def test_attention_groups_repeat_everything_but_routed_experts(self) -> None:
        block = FeedForward(width=256, experts=8, active=2, shared_width=512)
        mixture = model(block=block, layers=1)
        experts = 8 * 3 * 512 * 256 * 2
        alone = weights(mixture, Shape())
        grouped = weights(mixture, Shape(4, expert=4, attention_data=4))
        assert grouped == alone - experts + experts // 4

    def test_first_and_last_stage_hold_the_tables(self) -> None:
        stages = stage_weights(model(layers=6), WeightPrecision.NONE, Shape(pipeline=3), FIRST)
        table = table_bytes(model(), 1)
        assert stages[0] == stages[2] == stages[1] + table

    def test_a_tied_table_stands_once_or_on_both_ends(self) -> None:
        tied = replace(model(), tied=True)
        table = table_bytes(model(), 1)
        assert weights(model(), Shape()) - weights(tied, Shape()) == table
        assert stage_weights(tied, None, Shape(pipeline=2), FIRST) == stage_weights(
            model(), None, Shape(pipeline=2), FIRST
        )

    def test_tables_norms_and_routers_stay_in_16_bits(self) -> None:
        block = FeedForward(width=256, experts=4, active=2)
        plain = replace(model(block=block, layers=1), last_parameters=512)
        plain = replace(plain, layers=(replace(plain.layers[0], replicated=1024),))
        kept = 2 * table_bytes(plain, 1) + (512 + 1024 + 512 * 4) * 2
        full = weights(plain, Shape())
        assert weights(plain, Shape(), WeightPrecision.FP8) == kept + (full - kept) // 2

    @pytest.mark.parametrize(
        ("precision", "bits"),
        [
            (WeightPrecision.NONE, 16),
            (WeightPrecision.FP8, 8),
            (WeightPrecision.INT8, 8),
            (WeightPrecision.INT4_AWQ, 4.125),
            (WeightPrecision.INT4_GPTQ, 4.15625),
            (WeightPrecision.NVFP4, 4.5),
        ],
    )
    def test_scales_are_part_of_a_weight(self, precision: WeightPrecision, bits: float) -> None:
        assert bits_per_weight(model(), precision) == bits

    def test_a_tower_stands_on_the_first_stage(self) -> None:
        seeing = replace(model(), vision_parameters=1000)
        stages = stage_weights(seeing, None, Shape(pipeline=2), FIRST)
        blind = stage_weights(model(), None, Shape(pipeline=2), FIRST)
        assert (stages[0] - blind[0], stages[1] - blind[1]) == (2000, 0)

    def test_positions_are_on_every_stage(self) -> None:
        turned = replace(model(), rotary_dim=64)
        stages = stage_weights(turned, None, Shape(pipeline=2), FIRST)
        plain = stage_weights(model(), None, Shape(pipeline=2), FIRST)
        assert {a - b for a, b in zip(stages, plain, strict=True)} == {4096 * 64 * 2}

    @pytest.mark.parametrize(
        ("layers", "stages", "vllm", "tensorrt"),
        [
            (32, 4, [8, 8, 8, 8], [8, 8, 8, 8]),
            (61, 4, [15, 15, 16, 15], [16, 15, 15, 15]),
            (61, 2, [31, 30], [31, 30]),
            (22, 4, [5, 6, 6, 5], [6, 6, 5, 5]),
        ],
    )
    def test_remainders_go_where_the_runtime_puts_them(
        self, layers: int, stages: int, vllm: list[int], tensorrt: list[int]
    ) -> None:
        before = layers_of_stages(layers, stages, Remainder.BEFORE_LAST)
        assert [len(found) for found in before] == vllm
        assert [len(found) for found in layers_of_stages(layers, stages, FIRST)] == tensorrt
        assert [number for found in before for number in found] == list(range(layers))

    def test_mxfp4_experts_grow_when_loaded_on_the_gpu_that_was_measured(self) -> None:
        hopper = plan("openai/gpt-oss-120b", Shape(), Precision(None))
        other = plan("openai/gpt-oss-120b", Shape(), Precision(None), A100)
        assert loaded_ratio("mxfp4", "Hopper") == 1.06
        assert hopper.stages[0].weights > 1.05 * other.stages[0].weights
        assert any("what the kernels' layout adds" in note for note in other.notes)
        assert not any("what the kernels' layout adds" in note for note in hopper.notes)


class TestExtras:
    def test_adapter_slots_are_taken_at_the_highest_rank(self) -> None:
        attention = (512 + 512) + 2 * (512 + 128) + (512 + 512)
        block = 2 * (512 + 1024) + (1024 + 512)
        expected = 4 * (attention + block) * 8 * 16 * 2
        assert lora_bytes(model(), Shape(), 8, 16, FIRST) == (expected,)

    def test_ranks_share_the_outer_half_of_an_adapter(self) -> None:
        (whole,) = lora_bytes(model(), Shape(), 8, 16, FIRST)
        (half,) = lora_bytes(model(), Shape(tensor=2), 8, 16, FIRST)
        assert whole / 2 < half < whole

    def test_slots_take_memory_from_the_cache(self) -> None:
        engine = replace(VLLM, lora_slots=8, lora_rank=64)
        plain = plan("meta-llama/Llama-3.1-8B", Shape())
        adapted = plan("meta-llama/Llama-3.1-8B", Shape(), engine=engine)
        assert adapted.stages[0].lora > 0
        assert plain.stages[0].kv_pool - adapted.stages[0].kv_pool == adapted.stages[0].lora

    def test_drafting_layers_count_once_they_are_loaded(self) -> None:
        deepseek = catalogue_model("deepseek-ai/DeepSeek-V3")
        assert deepseek.draft_layers == 1
        engine = replace(VLLM, own_draft=True)
        shape = Shape(8, 2, expert=8)
        plain = plan_memory(deepseek, shape, Precision(None), VLLM, H200)
        drafting = plan_memory(deepseek, shape, Precision(None), engine, H200)
        assert [stage.draft for stage in plain.stages] == [0, 0]
        assert drafting.stages[0].draft == 0
        # 11.5 billion weights of the layer over 8 ranks, plus the whole projection.
        assert 1.3 < drafting.stages[1].draft / GIB < 1.8
        more = drafting.stages[1].kv_bytes_per_token - plain.stages[1].kv_bytes_per_token
        assert more == 576 * 2

    def test_a_checkpoint_without_drafting_layers_is_refused(self) -> None:
        with pytest.raises(ValueError, match="no multi-token-prediction layers"):
            plan("meta-llama/Llama-3.1-8B", Shape(), engine=replace(VLLM, own_draft=True))

    def test_a_draft_model_takes_weights_and_cache_on_the_last_stage(self) -> None:
        big, small = catalogue_model("Llama-3.1-70B"), catalogue_model("Llama-3.2-1B")
        shape = Shape(4, 2)
        alone = plan_memory(big, shape, Precision(), VLLM, H100)
        drafted = plan_memory(big, shape, Precision(), VLLM, H100, draft=small)
        assert drafted.stages[0] == alone.stages[0]
        assert drafted.stages[1].draft == stage_weights(small, None, Shape(4), FIRST)[0]
        assert drafted.kv_tokens < alone.kv_tokens
        assert held_words(alone.stages[1]) == "weights 16.5"
        assert held_words(drafted.stages[1]) == "weights 16.5, draft 0.6"


class TestRuntimes:
    def test_the_same_model_moves_between_versions(self) -> None:
        old = plan(
            "Qwen/Qwen3-14B", Shape(), engine=replace(VLLM, version="0.16.0", max_batch_size=1024)
        )
        new = plan(
            "Qwen/Qwen3-14B", Shape(), engine=replace(VLLM, version="0.17.0", max_batch_size=1024)
        )
        assert (old.constants, new.constants) == ("vllm-0.16", "vllm-0.17-0.19")
        assert (old.stages[0].activation - new.stages[0].activation) / GIB == pytest.approx(
            3.4, abs=0.1
        )

    def test_graphs_are_inside_the_budget_since_0_21(self) -> None:
        before = plan("Llama-3.1-8B", Shape(), engine=replace(VLLM, version="0.20.1"))
        after = plan("Llama-3.1-8B", Shape(), engine=replace(VLLM, version="0.21.0"))
        assert before.stages[0].kv_pool - after.stages[0].kv_pool == GIB
        assert before.stages[0].outside - after.stages[0].outside == GIB

    def test_each_runtime_counts_its_fraction_of_something_else(self) -> None:
        sglang = plan(
            "Llama-3.1-8B", Shape(), engine=replace(VLLM, runtime="SGLang", version="0.5.2")
        )
        stage = sglang.stages[0]
        assert stage.kv_pool == int(0.9 * H100.total) - stage.weights
        engine = replace(VLLM, runtime="TensorRTLLM", version="1.2.1", backend="PyTorch")
        stage = plan("Llama-3.1-8B", Shape(), engine=engine).stages[0]
        free = H100.total - stage.weights - stage.activation - stage.runtime
        assert stage.kv_pool == int(0.9 * free)

    @pytest.mark.parametrize(
        ("runtime", "backend", "row"),
        [
            ("Triton", "", "tensorrt-llm-tensorrt"),
            ("Triton", "VLLM", "vllm-0.21"),
            ("NIM", "", "vllm-0.21"),
            ("NIM", "PyTorch", "tensorrt-llm-pytorch"),
            ("NIM", "SGLang", "sglang"),
            ("TensorRTLLM", "", "tensorrt-llm-pytorch"),
        ],
    )
    def test_fronts_take_the_row_of_their_engine(
        self, runtime: str, backend: str, row: str
    ) -> None:
        found, notes = constants_of(EngineSettings(runtime, "1.0.0", backend))
        assert found.row == row
        assert bool(notes) == (runtime in ("Triton", "NIM"))

    def test_what_is_not_measured_is_said(self) -> None:
        notes = plan(
            "Llama-3.1-70B", Shape(8), gpu=A100, engine=replace(VLLM, version="0.22.0")
        ).notes
        assert any("no run of this version is published" in note for note in notes)
        measured = plan("Llama-3.1-70B", Shape(8), gpu=A100).notes
        assert any("measured on H100-80GB, not on NVIDIA-A100" in note for note in measured)
        assert any("tensor 8" in note for note in measured)
        assert plan("Llama-3.1-70B", Shape(4)).notes == ()

    @pytest.mark.parametrize(
        ("engine", "message"),
        [
            (EngineSettings("llama.cpp", "1.0.0"), "is not one of NIM, SGLang"),
            (EngineSettings("VLLM", "latest"), "'latest' is not of the form"),
            (EngineSettings("TensorRTLLM", "1.3.0", "TensorRT"), "engines exist up to 1.2"),
        ],
    )
    def test_unknown_runtimes_are_refused(self, engine: EngineSettings, message: str) -> None:
        with pytest.raises(UnknownEngineError, match=message):
            constants_of(engine)

    def test_a_fraction_that_leaves_no_room_for_graphs_is_told(self) -> None:
        roomy = plan("Llama-3.1-8B", Shape(), engine=replace(VLLM, memory_fraction=0.95))
        tight = plan("Llama-3.1-8B", Shape(), engine=replace(VLLM, memory_fraction=0.99))
        assert roomy.stages[0].left > 0
        assert roomy.notes == ()
        assert tight.stages[0].left < 0
        assert "a memory fraction of 0.98 is safer than 0.99" in tight.notes[0]

    def test_stages_without_a_head_have_no_sampler(self) -> None:
        engine = replace(VLLM, max_batch_size=1024)
        found = plan("Llama-3.1-8B", Shape(pipeline=2), engine=engine)
        assert found.stages[0].activation < GIB < found.stages[1].activation

    def test_fewer_requests_in_flight_give_memory_back(self) -> None:
        many = plan("Llama-3.1-8B", Shape(), engine=replace(VLLM, max_batch_size=1024))
        few = plan("Llama-3.1-8B", Shape(), engine=replace(VLLM, max_batch_size=128))
        assert 0.9 * GIB < few.stages[0].kv_pool - many.stages[0].kv_pool < 1.7 * GIB

    @pytest.mark.parametrize(
        ("shape", "message"),
        [
            (Shape(pipeline=33), "pipeline 33 exceeds the 32 layers"),
            (Shape(tensor=4, expert=3), "expert 3 does not divide tensor 4"),
            (Shape(tensor=4, attention_data=8), "attentionData 8 does not divide tensor 4"),
        ],
    )
    def test_shapes_that_cannot_be_counted_are_refused(self, shape: Shape, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            plan("Llama-3.1-8B", shape)


class TestGPUs:
    @pytest.mark.parametrize(
        ("product", "gib", "architecture"),
        [
            ("NVIDIA-H100-80GB-HBM3", 79.19, "Hopper"),
            ("NVIDIA-H100-80GB-HBM3-SHARED", 79.19, "Hopper"),
            ("NVIDIA-H200", 139.8, "Hopper"),
            ("NVIDIA-B200", 178.35, "Blackwell"),
            ("NVIDIA-A100-SXM4-40GB", 39.38, "Ampere"),
            ("NVIDIA-L4", 22.03, "Ada"),
        ],
    )
    def test_a_driver_reports_less_than_the_catalogue(
        self, product: str, gib: float, architecture: str
    ) -> None:
        found, notes = gpu_memory(product)
        assert found.total == round(gib * GIB)
        assert not notes
        assert gpu_class(product) == architecture

    def test_unknown_boards_and_slices_are_said_to_be_taken_from_their_names(self) -> None:
        board, notes = gpu_memory("NVIDIA-X900-64GB")
        assert board.total < 64 * 10**9
        assert "no driver's report is known" in notes[0]
        part, notes = gpu_memory("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb")
        assert part.total < 10 * 10**9
        assert "slice" in notes[0]

    def test_a_total_names_a_board_only_where_it_is_the_only_one(self) -> None:
        kind = gpu_of_total(round(79.19 * GIB))
        assert kind is not None
        assert kind.name == "H100-80GB"
        assert gpu_of_total(round(23.58 * GIB)) is None
        assert gpu_of_total(round(60 * GIB)) is None

    def test_words_are_matched_whole(self) -> None:
        kind = gpu_kind("NVIDIA-GB200")
        assert kind is not None
        assert kind.name == "GB200"
        assert gpu_kind("NVIDIA-A1000") is None


class TestTextbook:
    """The numbers of the literature beside the exact ones."""

    @pytest.mark.parametrize(
        ("precision", "textbook_gb", "exact_gb"),
        [
            (WeightPrecision.NONE, 140, 141.1),
            (WeightPrecision.FP8, 70, 72.7),
            (WeightPrecision.INT4_AWQ, 35, 39.5),
        ],
    )
    def test_weights_of_70_billion(
        self, precision: WeightPrecision, textbook_gb: float, exact_gb: float
    ) -> None:
        """Exact is more: both tables stay in 16 bits, and 4-bit weights have scales."""
        llama = replace(catalogue_model("Llama-3.1-70B"), rotary_dim=0)
        found = weights(llama, Shape(), precision) / 1e9
        assert found == pytest.approx(exact_gb, abs=0.1)
        assert textbook_gb < found < 1.14 * textbook_gb

    def test_the_hidden_size_is_the_wrong_formula_for_grouped_queries(self) -> None:
        llama = catalogue_model("Llama-3.1-70B")
        exact = token_bytes(llama, Shape(), KVPrecision.FP8)[0]
        by_hidden_size = 2 * 80 * 8192 * 1
        assert by_hidden_size == 8 * exact

    def test_70b_in_fp8_at_256_times_8192_tokens_takes_four_h200_and_not_three_h100(self) -> None:
        """The literature's 220 GB is short: weights 72.7 GB, cache 343.6 GB in FP8."""
        tokens = 256 * 8192
        both = Precision(WeightPrecision.FP8, KVPrecision.FP8)
        cache = tokens * token_bytes(catalogue_model("Llama-3.1-70B"), Shape(), KVPrecision.FP8)[0]
        assert cache / 1e9 == pytest.approx(343.6, abs=0.1)
        assert plan("Llama-3.1-70B", Shape(2), both, H200).kv_tokens < tokens
        assert plan("Llama-3.1-70B", Shape(4), both, H200).kv_tokens >= tokens
        assert plan("Llama-3.1-70B", Shape(4), both, H100).kv_tokens < tokens
        assert plan("Llama-3.1-70B", Shape(8), both, H100).kv_tokens >= tokens

    def test_70b_in_int4_fits_one_a100(self) -> None:
        int4 = Precision(WeightPrecision.INT4_AWQ, KVPrecision.NONE)
        assert plan("Llama-3.1-70B", Shape(), int4, A100).kv_tokens > 8192
        assert not plan("Llama-3.1-70B", Shape(), FP8, A100).kv_tokens > 8192

    def test_405b_takes_two_nodes_in_16_bits_and_one_in_fp8(self) -> None:
        assert not plan("Llama-3.1-405B", Shape(8)).fits
        assert plan("Llama-3.1-405B", Shape(8, 2)).fits
        assert plan("Llama-3.1-405B", Shape(8), FP8).kv_tokens > 131_072

    def test_70b_in_fp8_fits_one_h200(self) -> None:
        assert plan("Llama-3.1-70B", Shape(), FP8, H200).kv_tokens > 64 * 2048
