"""Well-known models by name, so that a plan needs no network: data/models.json, with sources."""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

from shardwright.sizing.config_json import model_from_config
from shardwright.sizing.model import Model

# Tunings of a base model that change no size.
_TUNINGS = re.compile(r"-(instruct|chat|it|hf|base|thinking|v0\.\d|\d{4})(?=-|$)")
_SUGGESTED = 4


class UnknownModelError(ValueError):
    """A name is not in the catalogue, or may mean several models."""


@functools.cache
def _entries() -> Mapping[str, Mapping[str, Any]]:
    text = resources.files(__package__).joinpath("data/models.json").read_text("utf-8")
    entries: Mapping[str, Mapping[str, Any]] = json.loads(text)["models"]
    return entries


def catalogue_names() -> tuple[str, ...]:
    """Every name, in the order of the file."""
    return tuple(_entries())


def catalogue_config(name: str) -> Mapping[str, Any]:
    """The part of a catalogue model's config.json that sizes are read from.

    Raises:
        UnknownModelError: No entry, or several, answer to the name.
    """
    config: Mapping[str, Any] = _entries()[_resolve(name)]["config"]
    return config


def catalogue_source(name: str) -> str:
    """Where a catalogue model's sizes come from."""
    return str(_entries()[_resolve(name)]["source"])


@functools.lru_cache(maxsize=256)
def catalogue_model(name: str) -> Model:
    """A model by its name: whole (`meta-llama/Llama-3.1-8B`) or without its publisher.

    A tuned version counts as its base model where the catalogue has that alone.

    Raises:
        UnknownModelError: No entry, or several, answer to the name.
    """
    return model_from_config(catalogue_config(name), name=_resolve(name))


def _resolve(name: str) -> str:
    for key in (_whole, _short, _base):
        wanted = key(name)
        found = [entry for entry in _entries() if wanted in map(key, _names(entry))]
        if len(found) == 1:
            return found[0]
        if found:
            raise UnknownModelError(f"{name} may be {' or '.join(found)}: write the whole name")
    short = {_short(entry): entry for entry in _entries()}
    near = [short[key] for key in difflib.get_close_matches(_short(name), short, _SUGGESTED)]
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise UnknownModelError(
        f"{name} is not in the catalogue; {hint}Give its config.json with --model-config instead"
    )


def _names(entry: str) -> tuple[str, ...]:
    return (entry, *_entries()[entry].get("aliases", ()))


def _whole(name: str) -> str:
    return name.lower()


def _short(name: str) -> str:
    return name.lower().rpartition("/")[2].removeprefix("meta-")


def _base(name: str) -> str:
    return _TUNINGS.sub("", _short(name))
