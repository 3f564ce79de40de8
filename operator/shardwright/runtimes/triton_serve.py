"""How Triton serves: command lines of its ranks, what they need, and how it is asked for a token.

With an engine, Triton runs in the backend's leader mode: Open MPI starts one server a rank, the
first serves, the others only load the engine's model and follow (README of
triton-inference-server/tensorrtllm_backend, launch_triton_server.py of TensorRT-LLM's
triton_backend). With the PyTorch backend one server starts its ranks itself, or, over several
nodes, finds them under TensorRT-LLM's own launcher (docs/llmapi.md there).
"""

from __future__ import annotations

from shardwright.api.names import PORT_HTTP
from shardwright.api.spec import Backend
from shardwright.resolved import Resolved
from shardwright.runner.contract import (
    LAUNCH_MPI,
    REPOSITORY,
    Command,
    Counters,
    Generation,
    Prepared,
)
from shardwright.runtimes.base import Serving
from shardwright.runtimes.triton_repository import ENGINE, repository
from shardwright.runtimes.triton_versions import SERVER

PORT_GRPC = 8001
PORT_METRICS = 8002
METRICS_PATH = "/metrics"
HEALTH_PATH = "/v2/health/ready"
LAUNCHER = "trtllm-llmapi-launch"

# What only grows with work: iterations of the engine's executor, and answered requests.
SERIES = (
    'nv_trt_llm_general_metrics{general_type="iteration_counter"',
    "nv_inference_request_success{",
)
# The runner has drained the server by then; it gives ten seconds from SIGTERM to SIGKILL.
EXIT_SECONDS = 5


def serve_command(resolved: Resolved) -> Command:
    """What the first rank runs, or every rank under the launcher."""
    server = _server()
    if _compiled(resolved) or resolved.pipeline == 1:
        return Command(tool="tritonserver", argv=server)
    return Command(tool=LAUNCHER, argv=(LAUNCHER, *server))


def serving(resolved: Resolved) -> Serving:
    """What a pod needs besides."""
    compiled = _compiled(resolved)
    models = repository(resolved)
    ranks = resolved.world_size
    return Serving(
        launch=LAUNCH_MPI if compiled and ranks > 1 else "",
        health_path=HEALTH_PATH,
        prepared=Prepared(
            files=models.written(),
            copies=dict(models.copies),
            followers=_followers() if compiled and ranks > 1 else (),
            generation=_generation(resolved, compiled=compiled),
            counters=Counters(PORT_METRICS, METRICS_PATH, SERIES),
        ),
    )


def _compiled(resolved: Resolved) -> bool:
    return resolved.spec.engine.backend is not Backend.PYTORCH


def _server() -> tuple[str, ...]:
    return (
        SERVER,
        f"--model-repository={REPOSITORY}",
        f"--http-port={PORT_HTTP}",
        f"--grpc-port={PORT_GRPC}",
        f"--metrics-port={PORT_METRICS}",
        f"--exit-timeout-secs={EXIT_SECONDS}",
        # What stands in the configurations is meant, and complete.
        "--disable-auto-complete-config",
        # Shared memory of the Python models, which ranks of one pod must not mix up.
        "--backend-config=python,shm-region-prefix-name=rank{rank}_",
    )


def _followers() -> tuple[str, ...]:
    return (*_server(), "--model-control-mode=explicit", f"--load-model={ENGINE}")


def _generation(resolved: Resolved, *, compiled: bool) -> Generation:
    """One token, by the generate extension and the input names of the served model."""
    budget = "max_tokens" if compiled else "sampling_param_max_tokens"
    return Generation(
        path=f"/v2/models/{resolved.spec.model.served_name}/generate",
        body={"text_input": "1", budget: 1},
        answer="text_output",
    )
