"""The YAML file of LlmArgs that `--extra_llm_api_options` names, merged over the command line.

In the 1.2 line the file wins over the command line, `kv_cache_config` is merged key by key, other
blocks are replaced, and unknown keys are refused (pydantic's `extra="forbid"`). Keys come from the
recorded contract llm_args-1.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from shardwright_standin import contracts

_KV_CACHE = "kv_cache_config"


class OptionsError(ValueError):
    """The file is refused, with the words of a validation error."""


def load(path: Path, backend: str) -> dict[str, Any]:
    """The file's options, each checked against the recorded keys.

    Raises:
        OptionsError: For anything but an object of known keys with values of their type.
        FileNotFoundError: When there is no such file.
    """
    return checked(yaml.safe_load(path.read_text(encoding="utf-8")), backend, path.name)


def checked(content: object, backend: str, name: str) -> dict[str, Any]:
    """Options, each checked against the recorded keys; `name` is of the file they come from.

    Raises:
        OptionsError: For anything but an object of known keys with values of their type.
    """
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise OptionsError(f"{name}: not an object of options")
    recorded = contracts.load("llm_args")
    known = dict(recorded["keys"])
    model = "TrtLlmArgs"
    if backend != "tensorrt":
        known |= recorded["pytorch_keys"]
        model = "TorchLlmArgs"
    for key, value in content.items():
        _check(model, key, value, known)
    return content


def merge(given: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the file over those of the command line."""
    merged = {**given, **options}
    if isinstance(options.get(_KV_CACHE), Mapping):
        merged[_KV_CACHE] = {**(given.get(_KV_CACHE) or {}), **options[_KV_CACHE]}
    return merged


def _check(model: str, name: str, value: object, known: Mapping[str, Any]) -> None:
    entry = known.get(name)
    if entry is None:
        raise OptionsError(_forbidden(model, name))
    if value is None:
        return
    if "choices" in entry and value not in entry["choices"]:
        allowed = ", ".join(f"'{choice}'" for choice in entry["choices"])
        raise OptionsError(f"1 validation error for {model}\n{name}\n  Input should be {allowed}")
    kinds: Mapping[str, tuple[type, ...]] = {
        "integer": (int,),
        "number": (int, float),
        "boolean": (bool,),
        "string": (str,),
        "list": (list,),
        "object": (dict,),
    }
    wanted = kinds[entry["type"]]
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        raise OptionsError(
            f"1 validation error for {model}\n{name}\n  Input should be a valid {entry['type']}"
        )
    if isinstance(value, dict) and "keys" in entry:
        for inner in value:
            if inner not in entry["keys"]:
                raise OptionsError(_forbidden(model, f"{name}.{inner}"))


def _forbidden(model: str, name: str) -> str:
    return f"1 validation error for {model}\n{name}\n  Extra inputs are not permitted"
