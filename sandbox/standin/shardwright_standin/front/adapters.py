"""Adapters behind each server's own endpoints: what it loads, refuses, lists, and how requests ask.

vLLM: vllm/entrypoints/openai/models/serving.py and lora/peft_helper.py (0.33.0). SGLang:
srt/managers/tokenizer_control_mixin.py and lora/lora_manager.py (0.5.23). TensorRT-LLM: the request
itself names the folder (features/lora.md of its documents).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from shardwright_standin.front.engine import AdaptError, Engine
from shardwright_standin.front.openai import RequestError
from shardwright_standin.model import adapter
from shardwright_standin.model.adapter import Limits

Answer = tuple[HTTPStatus, object]
# PEFT's features that vLLM reads only to refuse them.
_UNSUPPORTED = {
    "use_dora": "vLLM does not yet support DoRA.",
    "lora_bias": "vLLM does not support LoRA bias (lora_bias).",
    "layer_replication": "vLLM does not support layer_replication.",
}


@dataclass(frozen=True, slots=True)
class Loaded:
    """One adapter; `key` is what the ranks know it by."""

    name: str
    path: str
    key: str


class Adapters:
    """What a server has loaded; `limits` None takes none."""

    paths: Mapping[str, str] = {}  # of the endpoints, to load and to unload
    request_keys: frozenset[str] = frozenset()

    def __init__(self, engine: Engine, base: str, limits: Limits | None) -> None:
        self.engine, self.base, self.limits = engine, base, limits
        self.loaded: dict[str, Loaded] = {}
        self._numbers = itertools.count(1)
        self._running: dict[str, int] = {}
        self._changed = threading.Condition()

    def cards(self) -> list[dict[str, Any]]:
        """Of the list of models."""
        return [
            {"id": one.name, "object": "model", "root": one.path, "parent": self.base}
            for one in list(self.loaded.values())
        ]

    def load(self, body: Mapping[str, Any]) -> Answer:
        """Answer the endpoint that loads."""
        raise NotImplementedError

    def unload(self, body: Mapping[str, Any]) -> Answer:
        """Answer the endpoint that unloads."""
        raise NotImplementedError

    def choose(self, model: str, body: Mapping[str, Any]) -> str:  # noqa: ARG002
        """The key of the adapter that a request names; empty for the base model.

        Raises:
            RequestError: There is none of that name.
        """
        return ""

    def begin(self, model: str, body: Mapping[str, Any]) -> str:
        """A request runs from here on; the key of its adapter.

        Raises:
            RequestError: There is none of the name that it asks for.
        """
        with self._changed:
            key = self.choose(model, body)
            self._running[key] = self._running.get(key, 0) + 1
            return key

    def end(self, key: str) -> None:
        """It is done."""
        with self._changed:
            self._running[key] -= 1
            self._changed.notify_all()

    def idle(self, key: str) -> None:
        """Wait until no request of this adapter runs."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running.get(key))

    def put(self, name: str, path: str, limits: Limits) -> Loaded:
        """Have the ranks load it.

        Raises:
            AdaptError: One cannot.
        """
        made = Loaded(name, path, f"{name}#{next(self._numbers)}")
        self.engine.adapt(made.key, path, limits.modules)
        return made


class VLLM(Adapters):
    """Adapters are models of their own names; unloading takes the name away and nothing else."""

    def __init__(self, engine: Engine, base: str, limits: Limits | None, *, updating: bool) -> None:
        super().__init__(engine, base, limits)
        self._lock = threading.Lock()
        if updating:
            self.paths = {
                "/v1/load_lora_adapter": "load",
                "/v1/unload_lora_adapter": "unload",
            }

    def load(self, body: Mapping[str, Any]) -> Answer:
        """Answer the endpoint that loads."""
        name, path = body.get("lora_name"), body.get("lora_path")
        if not name or not path:
            return _vllm(400, "Both 'lora_name' and 'lora_path' must be provided.")
        with self._lock:
            if name == self.base:
                return _vllm(400, f"The lora adapter '{name}' conflicts with a served base model.")
            if name in self.loaded and not body.get("load_inplace"):
                return _vllm(
                    400,
                    f"The lora adapter '{name}' has already been loaded. If you want to load the "
                    "adapter in place, set 'load_inplace' to True.",
                )
            if self.limits is None:
                return _vllm(500, "LoRA is not enabled")
            try:
                wrong = _vllm_refuses(adapter.read_config(Path(path)), self.limits)
                if wrong:
                    return _vllm(500, wrong)
                self.loaded[name] = self.put(name, path, self.limits)
            except FileNotFoundError:
                return _vllm(404, f"Loading lora {name} failed: No adapter found for {path}")
            except (AdaptError, ValueError) as error:
                return _vllm(500, str(error))
        return HTTPStatus.OK, f"Success: LoRA adapter '{name}' added successfully."

    def unload(self, body: Mapping[str, Any]) -> Answer:
        """Answer the endpoint that unloads."""
        name = body.get("lora_name")
        if not name:
            return _vllm(400, "'lora_name' needs to be provided to unload a LoRA adapter.")
        with self._lock:
            if self.loaded.pop(name, None) is None:
                return _vllm(404, f"The lora adapter '{name}' cannot be found.")
        return HTTPStatus.OK, f"Success: LoRA adapter '{name}' removed successfully."

    def choose(self, model: str, body: Mapping[str, Any]) -> str:  # noqa: ARG002
        """As the base class has it."""
        if model in ("", self.base):
            return ""
        found = self.loaded.get(model)
        if found is None:
            raise RequestError(f"The model `{model}` does not exist.", 404)
        return found.key


class SGLang(Adapters):
    """Requests name `base:adapter` or `lora_path`; unloading waits for those that run."""

    paths: Mapping[str, str] = {"/load_lora_adapter": "load", "/unload_lora_adapter": "unload"}
    request_keys = frozenset({"lora_path"})

    def __init__(
        self, engine: Engine, base: str, limits: Limits | None, *, most: int | None
    ) -> None:
        super().__init__(engine, base, limits)
        self._most = most
        self._lock = threading.Lock()

    def load(self, body: Mapping[str, Any]) -> Answer:
        """Answer the endpoint that loads."""
        name, path = str(body.get("lora_name")), str(body.get("lora_path"))
        with self._lock:
            wrong = self._wrong(name, path)
            if wrong:
                return self._answer(wrong)
            while self._most is not None and len(self.loaded) > self._most:
                # the one that was asked for least recently, as --max-loaded-loras says
                self._take_out(next(iter(self.loaded)))
        return self._answer("")

    def unload(self, body: Mapping[str, Any]) -> Answer:
        """Answer the endpoint that unloads."""
        name = str(body.get("lora_name"))
        with self._lock:
            if self.limits is None:
                return self._answer(_SGLANG_OFF)
            if name not in self.loaded:
                return self._answer(
                    f"LoRA with name {name} does not exist. Loaded LoRAs: {list(self.loaded)}"
                )
            self._take_out(name)
        return self._answer("")

    def choose(self, model: str, body: Mapping[str, Any]) -> str:
        """As the base class has it."""
        _, _, named = model.partition(":")
        name = named or body.get("lora_path")
        if not name:
            return ""
        found = self.loaded.pop(str(name), None)
        if found is None:
            raise RequestError(
                f"The following requested LoRA adapters are not loaded: {{{name!r}}}\n"
                f"Loaded adapters: {list(self.loaded)}."
            )
        self.loaded[found.name] = found
        return found.key

    def _wrong(self, name: str, path: str) -> str:
        if self.limits is None:
            return _SGLANG_OFF
        if name in self.loaded:
            return f"Failed to load LoRA adapter {name} because it is already loaded"
        try:
            config = adapter.read_config(Path(path))
            if config.get("use_dora"):
                return (
                    f"Failed to load {name} because LoRA serving currently doesn't support DoRA "
                    "adapters"
                )
            outside = set(config["target_modules"]) - set(self.limits.modules)
            if config["r"] > self.limits.rank or outside:
                return (
                    f"LoRA adapter {name} with rank {config['r']} is incompatible with the current "
                    "LoRA memory pool configuration. Please ensure that the LoRA adapter's rank is "
                    "within the configured `--max-lora-rank` and that the target modules are "
                    "included in `--lora-target-modules`."
                )
            self.loaded[name] = self.put(name, path, self.limits)
        except (AdaptError, OSError, ValueError) as error:
            return str(error)
        return ""

    def _take_out(self, name: str) -> None:
        with self._changed:
            taken = self.loaded.pop(name)
        self.idle(taken.key)

    def _answer(self, wrong: str) -> Answer:
        status = HTTPStatus.BAD_REQUEST if wrong else HTTPStatus.OK
        loaded = {one.name: one.path for one in list(self.loaded.values())}
        return status, {"success": not wrong, "error_message": wrong, "loaded_adapters": loaded}


class TensorRTLLM(Adapters):
    """A request brings name, number and folder; the number decides whether it is known."""

    request_keys = frozenset({"lora_request"})

    def cards(self) -> list[dict[str, Any]]:
        """It lists its base model only."""
        return []

    def choose(self, model: str, body: Mapping[str, Any]) -> str:  # noqa: ARG002
        """As the base class has it."""
        asked = body.get("lora_request")
        if asked is None:
            return ""
        if not isinstance(asked, dict) or set(asked) != {"lora_name", "lora_int_id", "lora_path"}:
            raise RequestError("lora_request needs lora_name, lora_int_id and lora_path")
        if self.limits is None:
            raise RequestError("LoRA is not enabled: the engine was built without the lora plugin")
        number, path = asked["lora_int_id"], Path(str(asked["lora_path"]))
        if isinstance(number, bool) or not isinstance(number, int):
            raise RequestError("lora_int_id is no number")
        if not path.exists():
            raise RequestError(f"lora_path ({path}) does not exist.")
        known = self.loaded.get(str(number))
        if known is None:
            try:
                config = adapter.read_config(path)
                outside = sorted(set(config["target_modules"]) - set(self.limits.modules))
                if config["r"] > self.limits.rank:
                    raise RequestError(
                        f"low rank {config['r']} exceeds mMaxLowRank {self.limits.rank}"
                    )
                if outside:
                    raise RequestError(f"lora modules {outside} are not among those built in")
                known = self.put(str(number), str(path), self.limits)
            except (AdaptError, OSError, adapter.AdapterError) as error:
                raise RequestError(str(error)) from error
            self.loaded[str(number)] = known
        return known.key


_SGLANG_OFF = "LoRA is not enabled. Please set `--enable-lora` to enable LoRA."


def _vllm(status: int, message: str) -> Answer:
    found = HTTPStatus(status)
    kind = {400: "InvalidUserInput", 404: "NotFoundError", 500: "InternalServerError"}[status]
    return found, {"error": {"message": message, "type": kind, "param": None, "code": found.value}}


def _vllm_refuses(config: Mapping[str, Any], limits: Limits) -> str:
    """PEFTHelper.validate_legal."""
    wrong = [words for name, words in _UNSUPPORTED.items() if config.get(name)]
    rank = max([config["r"], *(config.get("rank_pattern") or {}).values()])
    if rank > limits.rank:
        wrong.append(f"LoRA rank {rank} is greater than max_lora_rank {limits.rank}.")
    if config.get("bias", "none") != "none":
        wrong.append("Adapter bias is not supported.")
    return " ".join(wrong)
