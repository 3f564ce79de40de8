"""`tritonserver`: a model repository with an engine, or with the LLM API's model.

As the real one with TensorRT-LLM's backend in leader mode: under MPI every rank is a server; the
first loads all models and serves, the others load the engine's model alone and follow until the
first lets them go.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from shardwright_standin import commandline, contracts
from shardwright_standin.faults import Faults
from shardwright_standin.front.engine import EngineFailedError, Limits, connect
from shardwright_standin.front.group import ipc_environment
from shardwright_standin.front.triton import Names, Served, serve
from shardwright_standin.ranks import loading
from shardwright_standin.ranks import main as rank_process
from shardwright_standin.tools import llm
from shardwright_standin.tools.played import NotPlayedError, refuse_others
from shardwright_standin.triton import repository
from shardwright_standin.triton.repository import Model, RepositoryError
from shardwright_standin.trtllm import engine, options

PROGRAM = "tritonserver"
ENGINE_BACKEND = "tensorrtllm"
LLM_CONFIG = "model.yaml"
_RANK, _SIZE = "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"
_REFUSED = 2
_PLAYED = {
    "model_repository",
    "http_port",
    "metrics_port",
    "exit_timeout_secs",
    "disable_auto_complete_config",
    "model_control_mode",
    "load_model",
    # Nothing listens there, no Python backend shares memory, nothing is logged at other levels.
    "grpc_port",
    "backend_config",
    "log_verbose",
    "log_info",
}
_GPUS_ASSUMED = 8
_ENGINE_NAMES = ("max_tokens", "stream", "exclude_input_in_output", "")
_LLM_NAMES = (
    "sampling_param_max_tokens",
    "streaming",
    "sampling_param_exclude_input_from_output",
    "sampling_param_",
)


def main() -> int:
    """The program.

    Returns:
        The exit status.
    """
    try:
        values = commandline.parse(PROGRAM, sys.argv[1:]).values
    except SystemExit as ended:
        # Its own parser prints the usage as well, and ends with 1.
        return 1 if ended.code == _REFUSED else int(ended.code or 0)
    rank, size = int(os.environ.get(_RANK, "0")), int(os.environ.get(_SIZE, "1"))
    Faults(program=PROGRAM, rank=rank).reach("start")
    refuse_others(PROGRAM, values, _PLAYED)
    try:
        models = _wanted(values)
        return _run(values, models, rank, size)
    except (RepositoryError, EngineFailedError, engine.EngineError, options.OptionsError) as error:
        print(f"error: creating server: Internal - failed to load all models: {error}", flush=True)
        sys.stderr.flush()
        # MPI, where it runs, is not left in order, so that the job ends.
        os._exit(1)


def _wanted(values: Mapping[str, Any]) -> dict[str, Model]:
    """The models that are loaded at the start."""
    folders = values["model_repository"] or []
    if len(folders) != 1:
        raise NotPlayedError(f"{PROGRAM}: the stand-in plays one --model-repository, not {folders}")
    if not values["disable_auto_complete_config"]:
        raise NotPlayedError(f"{PROGRAM}: the stand-in completes no configuration by itself")
    models = repository.load(Path(folders[0]))
    named = values["load_model"] or []
    if (values["model_control_mode"] == "explicit") != bool(named):
        raise NotPlayedError(f"{PROGRAM}: --load-model goes with --model-control-mode=explicit")
    missing = sorted(set(named) - set(models))
    if missing:
        raise RepositoryError(f"failed to load '{missing[0]}', no version is available")
    return {name: models[name] for name in named} if named else models


def _run(values: Mapping[str, Any], models: dict[str, Model], rank: int, size: int) -> int:
    engines = [model for model in models.values() if model.config.get("backend") == ENGINE_BACKEND]
    if not engines:
        if size > 1:
            raise NotPlayedError(f"{PROGRAM}: the LLM API's model runs under trtllm-llmapi-launch")
        return _serve_llm(values, models)
    (model,) = engines
    if rank:
        if set(models) != {model.name}:
            raise NotPlayedError(f"{PROGRAM}: rank {rank} has to load {model.name} alone")
        rank_process.run_mpi(PROGRAM, once=True)
        return 0
    return _serve_engine(values, models, model, size)


def _serve_engine(
    values: Mapping[str, Any], models: Mapping[str, Model], model: Model, size: int
) -> int:
    ensemble = _one(models, lambda one: one.config.get("platform") == "ensemble", "ensemble")
    for one in models.values():
        if "tokenizer_dir" in one.parameters:
            _tokenizer(one)
    order, limits, stop = _plan(model, size)
    os.environ.update(ipc_environment())
    ended = threading.Event()

    def ranks() -> None:
        try:
            rank_process.run_mpi(PROGRAM, once=True)
        finally:
            ended.set()

    # The first rank is this very process, as in the real one.
    thread = threading.Thread(target=ranks, name="rank 0", daemon=True)
    thread.start()
    loaded = connect(
        rank_process.address(),
        rank_process.key(),
        order,
        limits,
        stop,
        lambda: not ended.is_set(),
    )

    def end() -> None:
        loaded.stop()
        thread.join(float(values["exit_timeout_secs"]))

    bare = model.parameters.get("exclude_input_in_output", "false").lower() in ("true", "1")
    decoupled = model.config.get("model_transaction_policy", {}).get("decoupled", False)
    names = Names(*_ENGINE_NAMES, answer_only=bare, budget_needed=True)
    others = {one.name: one.config for one in models.values() if one is not ensemble}
    served = Served(ensemble.name, ensemble.config, names, decoupled, loaded, others)
    return _serve(values, served, end)


def _plan(model: Model, size: int) -> tuple[loading.LoadOrder, Limits, int]:
    """What the ranks load: checks in the words of the executor and of the backend."""
    given = model.parameters
    for name in contracts.load("triton-models")["models"]["tensorrt_llm"]["required"]:
        if name not in given:
            raise RepositoryError(f"Cannot find parameter with name: {name}")
    if given["gpt_model_type"] not in ("inflight_fused_batching", "inflight_batching"):
        raise NotPlayedError(f"the stand-in does not play gpt_model_type {given['gpt_model_type']}")
    folder = Path(given.get("gpt_model_path", ""))
    if not folder.is_dir():
        raise RepositoryError(f"Decoder (GPT) model path at {folder} does not exist.")
    config = engine.read_config(folder)
    world = config.tensor * config.pipeline
    if size != world:
        raise RepositoryError(
            "With communicationMode kLEADER, MPI worldSize is expected to be equal to tp*pp*cp "
            f"when participantIds are not specified: {size} ranks, {world} in the engine"
        )
    devices = [int(word) for word in given.get("gpu_device_ids", "").split(",") if word]
    nodes = int(given.get("num_nodes", "1"))
    if devices and len(devices) * nodes != world:
        raise RepositoryError(
            f"When specifying deviceIds, deviceIds ({len(devices)}) * numNodes ({nodes}) must be "
            f"equal to tp*pp*cp (tp is {config.tensor}, pp is {config.pipeline}, cp is 1)"
        )
    _check_choices(given, config.build["max_draft_len"])
    asked = {
        "max_batch_size": config.build["max_batch_size"],
        "max_num_tokens": config.build["max_num_tokens"],
        "max_seq_len": None,
        "max_input_len": config.build["max_input_len"],
    }
    per_node = len(devices) or _GPUS_ASSUMED
    order = loading.LoadOrder(
        loading.ENGINE, str(folder.resolve()), config.tensor, config.pipeline, per_node
    )
    limits = llm.engine_limits(config, asked)
    return order, limits, int(config.pretrained["eos_token_id"])


def _check_choices(given: Mapping[str, str], longest: int) -> None:
    """Hold the tree of heads' tokens against what the engine was built for.

    Greedy speculation changes no token, so it is not played. What the backend cannot read it
    leaves out with a warning, and takes a tree that is larger than ours; both end here.

    Raises:
        RepositoryError: When it does not fit.
    """
    mode = given.get("decoding_mode", "")
    if mode not in ("medusa", "eagle"):
        return
    text = given.get(f"{mode}_choices", "")
    paths = re.findall(r"\{([0-9, ]+)\}", text)
    if not paths or ", ".join(f"{{{path}}}" for path in paths) != text:
        raise RepositoryError(f"{mode}_choices {text!r} cannot be read; the default does not fit")
    if len(paths) > longest:
        raise RepositoryError(
            f"{mode}_choices has {len(paths)} tokens, and the engine is built for {longest}"
        )


def _serve_llm(values: Mapping[str, Any], models: Mapping[str, Model]) -> int:
    model = _one(models, lambda one: (one.version / LLM_CONFIG).is_file(), LLM_CONFIG)
    arguments, policy = _llm_arguments(model)
    decoupled = model.config.get("model_transaction_policy", {}).get("decoupled", False)
    agreed = (policy["decoupled"], policy["max_batch_size"])
    if agreed != (decoupled, model.config["max_batch_size"]):
        raise RepositoryError(f"model {model.name}: {LLM_CONFIG} and its configuration disagree")
    folder = Path(arguments.pop("model"))
    backend = str(arguments.pop("backend"))
    loaded = llm.start(folder, backend, _with_defaults(arguments), PROGRAM)
    names = Names(*_LLM_NAMES, answer_only=False, budget_needed=False)
    served = Served(model.name, model.config, names, decoupled, loaded.engine)
    return _serve(values, served, loaded.end)


def _llm_arguments(model: Model) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """The LLM API's arguments of model.yaml, and its part for Triton, by the recorded keys."""
    recorded = contracts.load("triton-models")["models"]["llmapi"]
    content = yaml.safe_load((model.version / LLM_CONFIG).read_text(encoding="utf-8"))
    policy = content.pop("triton_config")
    unknown = sorted(set(policy) - set(recorded["triton_config"]))
    if unknown:
        raise RepositoryError(f"model {model.name}: triton_config has no {unknown[0]}")
    own = {name: content.pop(name) for name in recorded["arguments"] if name in content}
    own.pop("trust_remote_code", None)
    tokenizer = Path(own.pop("tokenizer", own["model"]))
    if not (tokenizer / "tokenizer_config.json").exists():
        raise RepositoryError(f"Can't load tokenizer for '{tokenizer}'")
    return {**options.checked(content, own["backend"], LLM_CONFIG), **own}, policy


def _with_defaults(arguments: Mapping[str, Any]) -> dict[str, Any]:
    defaults = {
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "gpus_per_node": None,
        "max_batch_size": 2048,
        "max_num_tokens": 8192,
        "max_seq_len": None,
        "max_input_len": 1024,
    }
    return {**defaults, **arguments}


def _tokenizer(model: Model) -> None:
    folder = Path(model.parameters["tokenizer_dir"])
    if not (folder / "tokenizer_config.json").exists():
        raise RepositoryError(f"model {model.name}: Can't load tokenizer for '{folder}'")


def _one(models: Mapping[str, Model], fits: Callable[[Model], bool], what: str) -> Model:
    found = [model for model in models.values() if fits(model)]
    if len(found) != 1:
        raise NotPlayedError(f"{PROGRAM}: the stand-in plays one {what}, not {len(found)}")
    return found[0]


def _serve(values: Mapping[str, Any], served: Served, end: Callable[[], None]) -> int:
    ports = (int(values["http_port"]), int(values["metrics_port"]))
    return serve(ports, served, int(values["exit_timeout_secs"]), end)


if __name__ == "__main__":
    sys.exit(main())
