"""Tensors of the models in Triton's repository: those of text generation, as the backend has them.

Each line is a tensor: type, dimensions, and what else its configuration says. Recorded with their
sources, and with the tensors of multimodal and encoder-decoder models that are left out here, in
tests/contracts/triton-models-1.2.yaml; a test compares them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from shardwright.runtimes.triton_model_config import DataType, Tensor

_LINE = re.compile(r"(\w+) \[([^\]]*)\]((?: scalar| ragged| optional)*)")

PREPROCESSING_INPUTS: Mapping[str, str] = {
    "QUERY": "STRING [1]",
    "DECODER_QUERY": "STRING [1] optional",
    "REQUEST_OUTPUT_LEN": "INT32 [1]",
    "BAD_WORDS_DICT": "STRING [-1] optional",
    "STOP_WORDS_DICT": "STRING [-1] optional",
    "EMBEDDING_BIAS_WORDS": "STRING [-1] optional",
    "EMBEDDING_BIAS_WEIGHTS": "FP32 [-1] optional",
    "END_ID": "INT32 [1] optional",
    "PAD_ID": "INT32 [1] optional",
    "PROMPT_TABLE_EXTRA_ID": "UINT64 [1] optional",
}
# Its model.py looks up the types of all these when it starts, the pictures' too.
PREPROCESSING_OUTPUTS: Mapping[str, str] = {
    "INPUT_ID": "INT32 [-1]",
    "REQUEST_INPUT_LEN": "INT32 [1]",
    "DECODER_INPUT_ID": "INT32 [-1]",
    "REQUEST_DECODER_INPUT_LEN": "INT32 [1]",
    "BAD_WORDS_IDS": "INT32 [2, -1]",
    "STOP_WORDS_IDS": "INT32 [2, -1]",
    "EMBEDDING_BIAS": "FP32 [-1]",
    "REQUEST_OUTPUT_LEN": "INT32 [-1]",
    "OUT_END_ID": "INT32 [1]",
    "OUT_PAD_ID": "INT32 [1]",
    "OUT_PROMPT_TABLE_EXTRA_IDS": "UINT64 [-1]",
    "PIXEL_VALUES": "FP16 [-1, -1, -1, -1]",
    "IMAGE_SIZES": "INT64 [-1, 2]",
}
POSTPROCESSING_INPUTS: Mapping[str, str] = {
    "TOKENS_BATCH": "INT32 [-1, -1]",
    "SEQUENCE_LENGTH": "INT32 [-1]",
}
POSTPROCESSING_OUTPUTS: Mapping[str, str] = {"OUTPUT": "STRING [-1]"}

_SAMPLING = "[1] scalar optional"
ENGINE_INPUTS: Mapping[str, str] = {
    "input_ids": "INT32 [-1] ragged optional",
    "input_lengths": "INT32 [1] scalar",
    "request_output_len": "INT32 [1] scalar",
    "num_return_sequences": f"INT32 {_SAMPLING}",
    "draft_input_ids": "INT32 [-1] ragged optional",
    "draft_logits": "FP32 [-1, -1] ragged optional",
    "draft_acceptance_threshold": f"FP32 {_SAMPLING}",
    "end_id": f"INT32 {_SAMPLING}",
    "pad_id": f"INT32 {_SAMPLING}",
    "stop_words_list": "INT32 [2, -1] ragged optional",
    "bad_words_list": "INT32 [2, -1] ragged optional",
    "embedding_bias": "FP32 [-1] ragged optional",
    "beam_width": f"INT32 {_SAMPLING}",
    "temperature": f"FP32 {_SAMPLING}",
    "runtime_top_k": f"INT32 {_SAMPLING}",
    "runtime_top_p": f"FP32 {_SAMPLING}",
    "len_penalty": f"FP32 {_SAMPLING}",
    "repetition_penalty": f"FP32 {_SAMPLING}",
    "min_tokens": f"INT32 {_SAMPLING}",
    "presence_penalty": f"FP32 {_SAMPLING}",
    "frequency_penalty": f"FP32 {_SAMPLING}",
    "seed": f"UINT64 {_SAMPLING}",
    "return_log_probs": f"BOOL {_SAMPLING}",
    "exclude_input_in_output": f"BOOL {_SAMPLING}",
    "stop": f"BOOL {_SAMPLING}",
    "streaming": f"BOOL {_SAMPLING}",
    "lora_task_id": f"UINT64 {_SAMPLING}",
    "lora_weights": "FP16 [-1, -1] ragged optional",
    "lora_config": "INT32 [-1, 3] ragged optional",
    "guided_decoding_guide_type": "STRING [1] ragged optional",
    "guided_decoding_guide": "STRING [1] ragged optional",
}
# The backend takes the logits' type from here, whoever asks for them.
ENGINE_OUTPUTS: Mapping[str, str] = {
    "output_ids": "INT32 [-1, -1]",
    "sequence_length": "INT32 [-1]",
    "cum_log_probs": "FP32 [-1]",
    "output_log_probs": "FP32 [-1, -1]",
    "context_logits": "FP32 [-1, -1]",
    "generation_logits": "FP32 [-1, -1, -1]",
    "batch_index": "INT32 [1]",
    "sequence_index": "INT32 [1]",
}
ENSEMBLE_INPUTS: Mapping[str, str] = {
    "text_input": "STRING [1]",
    "max_tokens": "INT32 [1]",
    "num_return_sequences": "INT32 [1] optional",
    "bad_words": "STRING [-1] optional",
    "stop_words": "STRING [-1] optional",
    "exclude_input_in_output": "BOOL [1] optional",
    "end_id": "INT32 [1] optional",
    "pad_id": "INT32 [1] optional",
    "top_k": "INT32 [1] optional",
    "top_p": "FP32 [1] optional",
    "temperature": "FP32 [1] optional",
    "length_penalty": "FP32 [1] optional",
    "repetition_penalty": "FP32 [1] optional",
    "min_tokens": "INT32 [1] optional",
    "presence_penalty": "FP32 [1] optional",
    "frequency_penalty": "FP32 [1] optional",
    "seed": "UINT64 [1] optional",
    "return_log_probs": "BOOL [1] optional",
    "beam_width": "INT32 [1] optional",
    "stream": "BOOL [1] optional",
    "embedding_bias_words": "STRING [-1] optional",
    "embedding_bias_weights": "FP32 [-1] optional",
    "lora_task_id": "UINT64 [1] optional",
    "lora_weights": "FP16 [-1, -1] ragged optional",
    "lora_config": "INT32 [-1, 3] ragged optional",
    "guided_decoding_guide_type": "STRING [1] ragged optional",
    "guided_decoding_guide": "STRING [1] ragged optional",
}
ENSEMBLE_OUTPUTS: Mapping[str, str] = {
    "text_output": "STRING [-1]",
    "cum_log_probs": "FP32 [-1]",
    "output_log_probs": "FP32 [-1, -1]",
    "batch_index": "INT32 [1]",
    "sequence_index": "INT32 [1]",
}
# What each step of the ensemble takes and gives, by its own names.
TO_PREPROCESSING: Mapping[str, str] = {
    "QUERY": "text_input",
    "REQUEST_OUTPUT_LEN": "max_tokens",
    "BAD_WORDS_DICT": "bad_words",
    "STOP_WORDS_DICT": "stop_words",
    "EMBEDDING_BIAS_WORDS": "embedding_bias_words",
    "EMBEDDING_BIAS_WEIGHTS": "embedding_bias_weights",
    "END_ID": "end_id",
    "PAD_ID": "pad_id",
}
FROM_PREPROCESSING: Mapping[str, str] = {
    "INPUT_ID": "_INPUT_ID",
    "REQUEST_INPUT_LEN": "_REQUEST_INPUT_LEN",
    "REQUEST_OUTPUT_LEN": "_REQUEST_OUTPUT_LEN",
    "BAD_WORDS_IDS": "_BAD_WORDS_IDS",
    "STOP_WORDS_IDS": "_STOP_WORDS_IDS",
    "EMBEDDING_BIAS": "_EMBEDDING_BIAS",
    "OUT_END_ID": "_PREPROCESSOR_END_ID",
    "OUT_PAD_ID": "_PREPROCESSOR_PAD_ID",
}
TO_ENGINE: Mapping[str, str] = {
    "input_ids": "_INPUT_ID",
    "input_lengths": "_REQUEST_INPUT_LEN",
    "request_output_len": "_REQUEST_OUTPUT_LEN",
    "bad_words_list": "_BAD_WORDS_IDS",
    "stop_words_list": "_STOP_WORDS_IDS",
    "embedding_bias": "_EMBEDDING_BIAS",
    "end_id": "_PREPROCESSOR_END_ID",
    "pad_id": "_PREPROCESSOR_PAD_ID",
    "num_return_sequences": "num_return_sequences",
    "exclude_input_in_output": "exclude_input_in_output",
    "runtime_top_k": "top_k",
    "runtime_top_p": "top_p",
    "temperature": "temperature",
    "len_penalty": "length_penalty",
    "repetition_penalty": "repetition_penalty",
    "min_tokens": "min_tokens",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
    "return_log_probs": "return_log_probs",
    "beam_width": "beam_width",
    "streaming": "stream",
    "lora_task_id": "lora_task_id",
    "lora_weights": "lora_weights",
    "lora_config": "lora_config",
    "guided_decoding_guide_type": "guided_decoding_guide_type",
    "guided_decoding_guide": "guided_decoding_guide",
}
FROM_ENGINE: Mapping[str, str] = {
    "output_ids": "_TOKENS_BATCH",
    "sequence_length": "_SEQUENCE_LENGTH",
    "cum_log_probs": "cum_log_probs",
    "output_log_probs": "output_log_probs",
    "batch_index": "batch_index",
    "sequence_index": "sequence_index",
}
TO_POSTPROCESSING: Mapping[str, str] = {
    "TOKENS_BATCH": "_TOKENS_BATCH",
    "SEQUENCE_LENGTH": "_SEQUENCE_LENGTH",
}
FROM_POSTPROCESSING: Mapping[str, str] = {"OUTPUT": "text_output"}

# The one model of the LLM API.
LLMAPI_INPUTS: Mapping[str, str] = {
    "text_input": "STRING [-1]",
    "streaming": "BOOL [1] optional",
    "sampling_param_best_of": "INT32 [1] optional",
    "sampling_param_temperature": "FP32 [1] optional",
    "sampling_param_top_k": "INT32 [1] optional",
    "sampling_param_top_p": "FP32 [1] optional",
    "sampling_param_frequency_penalty": "FP32 [1] optional",
    "sampling_param_presence_penalty": "FP32 [1] optional",
    "sampling_param_max_tokens": "INT32 [1] optional",
    "sampling_param_stop": "STRING [-1] optional",
    "sampling_param_seed": "UINT64 [1] optional",
    "sampling_param_exclude_input_from_output": "BOOL [1] optional",
    "sampling_param_return_perf_metrics": "BOOL [1] optional",
    "return_finish_reason": "BOOL [1] optional",
    "return_stop_reason": "BOOL [1] optional",
    "return_cumulative_logprob": "BOOL [1] optional",
    "stop": "BOOL [1] optional",
}
LLMAPI_OUTPUTS: Mapping[str, str] = {
    "text_output": "STRING [-1]",
    "finish_reason": "STRING [-1]",
    "stop_reason": "STRING [-1]",
    "cumulative_logprob": "FP32 [-1]",
    "kv_cache_reused_block": "INT32 [-1]",
    "kv_cache_missed_block": "INT32 [-1]",
    "kv_cache_alloc_new_blocks": "INT32 [-1]",
    "kv_cache_alloc_total_blocks": "INT32 [-1]",
    "kv_cache_hit_rate": "FP32 [-1]",
    "arrival_time_ns": "INT64 [1]",
    "first_scheduled_time_ns": "INT64 [1]",
    "first_token_time_ns": "INT64 [1]",
    "last_token_time_ns": "INT64 [1]",
    "acceptance_rate": "FP32 [1]",
    "total_accepted_draft_tokens": "INT32 [1]",
    "total_draft_tokens": "INT32 [1]",
}


def tensors(table: Mapping[str, str]) -> tuple[Tensor, ...]:
    """The tensors of a table.

    Raises:
        ValueError: A line of it is malformed.
    """
    return tuple(_tensor(name, line) for name, line in table.items())


def _tensor(name: str, line: str) -> Tensor:
    found = _LINE.fullmatch(line)
    if found is None:
        raise ValueError(f"tensor {name}: {line!r} is not of the form 'TYPE [dims] …'")
    said = found[3].split()
    return Tensor(
        name,
        DataType[found[1]],
        tuple(int(size) for size in found[2].split(",")),
        optional="optional" in said,
        ragged="ragged" in said,
        scalar="scalar" in said,
    )
