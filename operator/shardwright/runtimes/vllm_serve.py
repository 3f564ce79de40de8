"""How vLLM serves: its command line for each pipeline stage."""

from __future__ import annotations

from shardwright.api.names import PORT_HTTP
from shardwright.resolved import Resolved
from shardwright.runner.contract import SERVE_CONFIG, Command, served_model
from shardwright.runtimes import direct_experts, direct_lora, direct_speculative
from shardwright.runtimes.direct import Direct
from shardwright.runtimes.direct_runtime import precision_flags

# Where the ranks of all stages meet (--master-port's default, written out so that it is seen).
MASTER_PORT = 29501
# Models come from the claim alone, and nothing is told to anybody.
ENV = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


def serve_command(engine: Direct, resolved: Resolved, stage: int) -> Command:
    """`vllm serve` for one stage.

    A stage is a node here: with `--nnodes` equal to the pipeline's stages, node r takes the ranks
    r × tensor … r × tensor + tensor − 1, which are those of pipeline stage r. Every node but the
    first runs headless.
    """
    spec, limits = resolved.spec, resolved.spec.engine.limits
    argv = [
        *("vllm", "serve", served_model(spec.model.served_name)),
        *("--served-model-name", spec.model.served_name),
        *("--host", "0.0.0.0"),  # noqa: S104 - the pod's own address, for Service and probes
        *("--port", str(PORT_HTTP)),
        *("--tensor-parallel-size", str(direct_experts.vllm_tensor(spec))),
        *("--pipeline-parallel-size", str(resolved.pipeline)),
        *("--max-num-seqs", str(limits.max_batch_size)),
        *("--max-num-batched-tokens", str(limits.max_num_tokens)),
        *("--max-model-len", str(limits.max_seq_len)),
        *("--gpu-memory-utilization", str(limits.gpu_memory_fraction)),
    ]
    argv += precision_flags(engine, resolved)
    argv += direct_experts.vllm_flags(spec)
    argv += direct_speculative.vllm_flags(spec, resolved.draft)
    argv += direct_lora.vllm_flags(spec)
    if spec.model.trust_remote_code:
        argv.append("--trust-remote-code")
    if spec.engine.config:
        argv += ["--config", SERVE_CONFIG]
    if resolved.pipeline > 1:
        argv += ["--nnodes", "{stages}", "--node-rank", "{stage}"]
        argv += ["--master-addr", "{leader}", "--master-port", str(MASTER_PORT)]
        argv += ["--distributed-executor-backend", "mp"]
    if stage > 0:
        argv.append("--headless")
    return Command(tool="vllm-serve", argv=tuple(argv), env={**ENV, **direct_lora.vllm_env(spec)})
