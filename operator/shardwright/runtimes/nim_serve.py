"""How NIM serves: its command line and environment.

Arguments after `nim-serve` are forwarded to vLLM and win over every other source: environment, the
tuning that the image has for a checkpoint, the profile's tags (reference/advanced-configuration in
the documents of 2.1). So the split and all limits stand there, whatever profile is chosen. The port
is the proxy's and the model's place decides the manifest: both are told in the environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.api.names import PORT_HTTP
from shardwright.resolved import Resolved
from shardwright.runner.contract import Command, served_model
from shardwright.runtimes import direct_speculative
from shardwright.runtimes.direct import Direct
from shardwright.runtimes.direct_runtime import precision_flags

HEALTH_PATH = "/v1/health/ready"
TOOL = "nim-serve"


def serve_command(engine: Direct, resolved: Resolved) -> Command:
    """`nim-serve` with the model in a folder: neither a registry's nor a hub's key is needed."""
    spec, limits = resolved.spec, resolved.spec.engine.limits
    argv = [
        TOOL,
        *("--served-model-name", spec.model.served_name),
        *("--tensor-parallel-size", str(resolved.tensor)),
        *("--max-num-seqs", str(limits.max_batch_size)),
        *("--max-num-batched-tokens", str(limits.max_num_tokens)),
        *("--max-model-len", str(limits.max_seq_len)),
        *("--gpu-memory-utilization", str(limits.gpu_memory_fraction)),
    ]
    argv += precision_flags(engine, resolved)
    argv += direct_speculative.vllm_flags(spec, resolved.draft)
    if spec.model.trust_remote_code:
        argv.append("--trust-remote-code")
    argv += _switches(spec.engine.config)
    environment = {
        "NIM_MODEL_PATH": served_model(spec.model.served_name),
        "NIM_SERVER_PORT": str(PORT_HTTP),
        # Holds what is written at the start, and is there already: the pod's scratch volume.
        "NIM_CACHE_PATH": "{scratch}",
        # Models come from the claim alone, and nothing is told to anybody.
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    return Command(tool=TOOL, argv=tuple(argv), env=environment)


def _switches(config: Mapping[str, Any]) -> list[str]:
    """The user's own flags, which are switches all of them (`nim_checks.config_not_recorded`)."""
    return [f"--{name}" if on else f"--no-{name}" for name, on in config.items()]
