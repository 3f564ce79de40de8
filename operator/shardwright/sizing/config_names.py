"""Names of families: by architecture, inside wrappers, and those that are refused, with why."""

from __future__ import annotations

from collections.abc import Mapping

# Files without a model_type, by their architecture.
ARCHITECTURES: Mapping[str, str] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Qwen3NextForCausalLM": "qwen3_next",
    "GemmaForCausalLM": "gemma",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "Gemma3ForConditionalGeneration": "gemma3_text",
    "PhiForCausalLM": "phi",
    "Phi3ForCausalLM": "phi3",
    "GPTJForCausalLM": "gptj",
    "GPTNeoXForCausalLM": "gpt_neox",
    "FalconForCausalLM": "falcon",
    "GPT2LMHeadModel": "gpt2",
    "GPTBigCodeForCausalLM": "gpt_bigcode",
    "Starcoder2ForCausalLM": "starcoder2",
    "StableLmForCausalLM": "stablelm",
    "CohereForCausalLM": "cohere",
    "Cohere2ForCausalLM": "cohere2",
    "GraniteForCausalLM": "granite",
    "GraniteMoeForCausalLM": "granitemoe",
    "Olmo2ForCausalLM": "olmo2",
    "Glm4ForCausalLM": "glm4",
    "Glm4MoeForCausalLM": "glm4_moe",
    "MiniMaxM2ForCausalLM": "minimax_m2",
    "GptOssForCausalLM": "gpt_oss",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "Llama4ForCausalLM": "llama4_text",
    "Llama4ForConditionalGeneration": "llama4_text",
}
# Wrappers whose text section says the same under another name.
TEXT_OF: Mapping[str, str] = {"gemma3": "gemma3_text", "llama4": "llama4_text"}

# Families known to have parts that this model of memory has no place for.
UNCOUNTED: Mapping[str, str] = {
    "deepseek_v32": "the indexer of its sparse attention, with a key cache of its own",
    "deepseek_v4": "compressed attention with hash-routed experts",
    "glm_moe_dsa": "the indexer of its sparse attention, with a key cache of its own",
    "gemma3n": "per-layer embeddings and shared caches",
    "gemma4": "per-layer embeddings, shared caches and two head sizes",
    "gemma4_text": "per-layer embeddings, shared caches and two head sizes",
    "kimi_linear": "delta attention beside latent attention",
    "mllama": "cross-attention layers beside the text layers",
    "nemotron_h": "Mamba-2 layers in a pattern of single blocks",
    "nemotron-nas": "layers of different shapes, some without attention",
    "minimax_m1": "lightning attention",
    "jamba": "Mamba layers",
    "mamba": "a state-space model without a KV cache",
    "mamba2": "a state-space model without a KV cache",
    "t5": "an encoder beside the decoder",
    "bart": "an encoder beside the decoder",
    "whisper": "an audio encoder beside the decoder",
}
