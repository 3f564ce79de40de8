"""A model repository by Triton's rules (triton-model-config-1.yaml): layout, types, ensembles."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright_standin.triton.pbtxt import TextError, parse

CONFIG = "config.pbtxt"
_VERSION = re.compile(r"[1-9][0-9]*")
# What backends want in a version's folder; the others want no file there.
_NEEDED: Mapping[str, str] = {"python": "model.py"}

Config = Mapping[str, Any]


class RepositoryError(ValueError):
    """The repository breaks a rule; the words name model and rule."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model: its configuration, and the folder of the version that is served, the highest."""

    name: str
    config: Config
    version: Path

    @property
    def parameters(self) -> dict[str, str]:
        """Parameters by name."""
        return {key: value["string_value"] for key, value in self.config["parameters"].items()}


def load(folder: Path) -> dict[str, Model]:
    """All models of a repository.

    Raises:
        RepositoryError: It breaks one of the rules.
    """
    if not folder.is_dir():
        raise RepositoryError(f"failed to stat file {folder}: no such repository")
    models = {path.name: _model(path) for path in sorted(folder.iterdir()) if path.is_dir()}
    stray = [path.name for path in folder.iterdir() if not path.is_dir()]
    if stray:
        raise RepositoryError(f"{stray[0]} is in the repository and is no model's folder")
    for model in models.values():
        _check_ensemble(model, models)
    return models


def _model(folder: Path) -> Model:
    path = folder / CONFIG
    if not path.is_file():
        raise RepositoryError(f"model {folder.name} has no {CONFIG}")
    try:
        config = parse(path.read_text(encoding="utf-8"))
    except TextError as error:
        raise RepositoryError(f"model {folder.name}: {CONFIG}: {error}") from error
    _check(folder.name, config)
    versions = [one for one in folder.iterdir() if one.is_dir() and _VERSION.fullmatch(one.name)]
    if not versions:
        raise RepositoryError(f"at least one version must be available for model '{folder.name}'")
    served = max(versions, key=lambda one: int(one.name))
    needed = _NEEDED.get(config.get("backend", ""))
    if needed and not (served / needed).is_file():
        raise RepositoryError(f"model {folder.name}: version {served.name} has no {needed}")
    return Model(folder.name, {"parameters": {}, **config}, served)


def _check(name: str, config: Config) -> None:
    def refuse(why: str) -> None:
        raise RepositoryError(f"model {name}: {why}")

    if config.get("name", name) != name:
        refuse(f"its configuration is named {config['name']!r}, unlike its folder")
    if bool(config.get("backend")) == bool(config.get("platform")):
        refuse("must specify either 'platform' or 'backend'")
    if "max_batch_size" not in config or config["max_batch_size"] < 0:
        refuse("must specify 'max_batch_size' value >= 0")
    for kind in ("input", "output"):
        if not config.get(kind):
            refuse(f"must specify {kind}s")
        _check_tensors(name, kind, config[kind])
    batching = config.get("dynamic_batching")
    if batching is not None:
        sizes = batching.get("preferred_batch_size", [])
        if not all(1 <= size <= config["max_batch_size"] for size in sizes):
            refuse("dynamic batching preferred size must be <= max batch size, and positive")
    for group in config.get("instance_group", ()):
        if group.get("kind") != "KIND_CPU" or group.get("gpus"):
            refuse("instances are on the CPU and name no GPUs: backends of engines ask themselves")
        if group.get("count", 0) < 1:
            refuse("instance group has no instances")
    if not all(set(value) == {"string_value"} for value in config.get("parameters", {}).values()):
        refuse("a parameter has no value")


def _check_tensors(model: str, kind: str, tensors: Sequence[Config]) -> None:
    names = [tensor.get("name", "") for tensor in tensors]
    if len(set(names)) != len(names) or not all(names):
        raise RepositoryError(f"model {model}: {kind}s need names, each once: {names}")
    for tensor in tensors:
        told = f"model {model}: {kind} {tensor['name']}"
        if tensor.get("data_type", "TYPE_INVALID") == "TYPE_INVALID":
            raise RepositoryError(f"{told} must specify 'data_type'")
        dims = tensor.get("dims", [])
        if not dims or not all(size == -1 or size > 0 for size in dims):
            raise RepositoryError(f"{told} must specify 'dims', each -1 or positive")
        shape = tensor.get("reshape", {}).get("shape", dims)
        if -1 not in dims and _count(shape) != _count(dims):
            raise RepositoryError(f"{told} has different size for dims and reshape")


def _count(dims: Sequence[int]) -> int:
    product = 1
    for size in dims:
        product *= size
    return product


def _check_ensemble(model: Model, models: Mapping[str, Model]) -> None:
    config = model.config
    is_ensemble = config.get("platform") == "ensemble"
    if is_ensemble != ("ensemble_scheduling" in config):
        raise RepositoryError(f"model {model.name}: platform and scheduling of an ensemble differ")
    if not is_ensemble:
        return
    if config.get("instance_group"):
        raise RepositoryError(f"model {model.name}: an ensemble has no instances")
    # By the ensemble's own names: what each tensor is.
    known = {tensor["name"]: _kind(tensor) for tensor in config["input"]}
    steps = config["ensemble_scheduling"].get("step", [])
    parts = [_part(model, step, models) for step in steps]
    used: set[str] = set()
    for step, part in zip(steps, parts, strict=True):
        own = {tensor["name"]: _kind(tensor) for tensor in part.config["output"]}
        for inner, outer in step.get("output_map", {}).items():
            if inner not in own:
                raise RepositoryError(f"ensemble {model.name}: {part.name} has no output {inner}")
            if outer in known:
                raise RepositoryError(f"ensemble {model.name}: {outer} is produced twice")
            known[outer] = own[inner]
    for step, part in zip(steps, parts, strict=True):
        used |= _check_step(model, step, part, known)
    unread = {tensor["name"] for tensor in config["input"]} - used
    if unread:
        raise RepositoryError(f"ensemble {model.name}: nothing reads its input {min(unread)}")
    for tensor in config["output"]:
        if known.get(tensor["name"]) != _kind(tensor):
            raise RepositoryError(
                f"ensemble {model.name}: output {tensor['name']} is {_kind(tensor)}, and its steps "
                f"give {known.get(tensor['name'])}"
            )


def _part(model: Model, step: Config, models: Mapping[str, Model]) -> Model:
    part = models.get(step.get("model_name", ""))
    if part is None or part is model:
        raise RepositoryError(
            f"ensemble {model.name} contains {step.get('model_name')!r}, no model"
        )
    if step.get("model_version", -1) not in (-1, int(part.version.name)):
        raise RepositoryError(f"ensemble {model.name}: {part.name} has no such version")
    if part.config["max_batch_size"] < model.config["max_batch_size"]:
        raise RepositoryError(
            f"ensemble {model.name} allows batches of {model.config['max_batch_size']}, but "
            f"it contains model {part.name}, which allows {part.config['max_batch_size']}"
        )
    return part


def _check_step(
    model: Model, step: Config, part: Model, known: Mapping[str, tuple[str, tuple[int, ...]]]
) -> set[str]:
    """Inputs of one step; returns the ensemble's tensors that it reads."""
    given = step.get("input_map", {})
    own = {tensor["name"]: tensor for tensor in part.config["input"]}
    for inner, outer in given.items():
        told = f"ensemble {model.name}: {part.name}'s input {inner}"
        if inner not in own:
            raise RepositoryError(f"{told} does not exist")
        if outer not in known:
            raise RepositoryError(f"{told} takes {outer}, which nothing gives")
        if not _fit(_kind(own[inner]), known[outer]):
            raise RepositoryError(f"{told} is {_kind(own[inner])}, and {outer} is {known[outer]}")
    lacking = [
        name for name, tensor in own.items() if name not in given and not tensor.get("optional")
    ]
    if lacking:
        raise RepositoryError(f"ensemble {model.name}: {part.name} needs its input {lacking[0]}")
    return set(given.values())


def _kind(tensor: Config) -> tuple[str, tuple[int, ...]]:
    return tensor["data_type"], tuple(tensor["dims"])


def _fit(wanted: tuple[str, tuple[int, ...]], given: tuple[str, tuple[int, ...]]) -> bool:
    """The same type and rank; −1 takes any length."""
    same = wanted[0] == given[0] and len(wanted[1]) == len(given[1])
    return same and all(-1 in (a, b) or a == b for a, b in zip(wanted[1], given[1], strict=True))
