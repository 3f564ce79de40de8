"""How SGLang serves: its command line, alike for every pipeline stage."""

from __future__ import annotations

from shardwright.api.names import PORT_HTTP
from shardwright.resolved import Resolved
from shardwright.runner.contract import SERVE_CONFIG, Command, served_model
from shardwright.runtimes import direct_experts, direct_lora, direct_speculative
from shardwright.runtimes.direct import Direct
from shardwright.runtimes.direct_runtime import precision_flags

# Where the ranks of all stages meet, as in the project's own examples.
DIST_PORT = 20000
ENV = {
    # Models come from the claim alone.
    "HF_HUB_OFFLINE": "1",
    # Its health page would generate a token at every look: the runner does that once a minute.
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
}


def serve_command(engine: Direct, resolved: Resolved) -> Command:
    """`sglang.launch_server` for any stage.

    A stage is a node here: sizes are those of the whole group, and with as many nodes as pipeline
    stages each node takes one stage (`_calculate_rank_ranges`). Both limits on prompts are set: one
    is for a chunk of a prompt, the other for all prompts of a pass.
    """
    spec, limits = resolved.spec, resolved.spec.engine.limits
    # Both are divided by the number of attention groups (parallel_hook.py, pool_configurator.py).
    groups = spec.parallelism.attention_groups
    argv = [
        *("python3", "-m", "sglang.launch_server"),
        *("--model-path", served_model(spec.model.served_name)),
        *("--served-model-name", spec.model.served_name),
        # Its default is the loopback.
        *("--host", "0.0.0.0"),  # noqa: S104
        *("--port", str(PORT_HTTP)),
        *("--tp-size", str(resolved.tensor)),
        *("--pp-size", str(resolved.pipeline)),
        *("--max-running-requests", str(limits.max_batch_size * groups)),
        *("--chunked-prefill-size", str(limits.max_num_tokens * groups)),
        *("--max-prefill-tokens", str(limits.max_num_tokens)),
        *("--context-length", str(limits.max_seq_len)),
        *("--mem-fraction-static", str(limits.gpu_memory_fraction)),
        "--enable-metrics",
    ]
    argv += precision_flags(engine, resolved, "fp8_e4m3")
    argv += direct_experts.sglang_flags(spec)
    argv += direct_speculative.sglang_flags(spec, resolved.draft)
    argv += direct_lora.sglang_flags(spec)
    if spec.model.trust_remote_code:
        argv.append("--trust-remote-code")
    if spec.engine.config:
        argv += ["--config", SERVE_CONFIG]
    if resolved.pipeline > 1:
        argv += ["--nnodes", "{stages}", "--node-rank", "{stage}"]
        argv += ["--dist-init-addr", f"{{leader}}:{DIST_PORT}"]
    return Command(tool="sglang.launch_server", argv=tuple(argv), env=dict(ENV))
