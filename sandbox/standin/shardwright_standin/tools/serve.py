"""`trtllm-serve`: the OpenAI-style server over an engine or a checkpoint."""

from __future__ import annotations

import sys
from pathlib import Path

from shardwright_standin import commandline, identity
from shardwright_standin.faults import Faults
from shardwright_standin.front.adapters import TensorRTLLM
from shardwright_standin.front.metrics import Metrics
from shardwright_standin.front.server import App, Flavour, serve
from shardwright_standin.tools import llm
from shardwright_standin.tools.played import refuse_others

_PLAYED = {
    "tokenizer",
    "host",
    "port",
    "backend",
    "max_batch_size",
    "max_num_tokens",
    "max_seq_len",
    "tp_size",
    "pp_size",
    "gpus_per_node",
    "extra_llm_api_options",
    # Of no meaning here: no GPU memory, no code in the model's folder, no prefill in parts.
    "log_level",
    "free_gpu_memory_fraction",
    "trust_remote_code",
    "enable_chunked_prefill",
}


def main() -> int:
    """The program.

    Returns:
        The exit status; after SIGTERM it ends by that signal instead.
    """
    words = sys.argv[1:]
    # The real program is a group whose default command is `serve`.
    asked = commandline.parse("trtllm-serve", words[1:] if words[:1] == ["serve"] else words)
    values, model = asked.values, Path(asked.positional["model"])
    Faults(program="trtllm-serve").reach("start")
    refuse_others("trtllm-serve", values, _PLAYED)
    backend = str(values["backend"])
    arguments = llm.arguments(values, values["extra_llm_api_options"], backend)
    tokenizer = Path(values["tokenizer"] or model)
    if not (tokenizer / "tokenizer_config.json").exists():
        raise OSError(f"Can't load tokenizer for '{tokenizer}': no tokenizer_config.json in it")
    loaded = llm.start(model, backend, arguments, "trtllm-serve")
    served = model.name
    measured = bool(arguments.get("return_perf_metrics"))
    app = App(
        Flavour(
            "trtllm",
            metrics_path="/prometheus/metrics",
            version=identity.version(),
            iteration_stats=backend == llm.TENSORRT
            or bool(arguments.get("enable_iter_perf_stats")),
        ),
        loaded.engine,
        served,
        Metrics("trtllm", served, loaded.engine) if measured else None,
        TensorRTLLM(loaded.engine, served, loaded.adapters),
    )
    return serve((str(values["host"]), int(values["port"])), app, loaded.end)


if __name__ == "__main__":
    sys.exit(main())
