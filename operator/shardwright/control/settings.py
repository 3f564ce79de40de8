"""Reads the operator's configuration file; every error names field, value and limit.

The file is YAML with the fields of `api.settings.Settings` in camelCase. A few environment
variables come on top, for what differs between pods of one chart.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from shardwright.api.problems import problems
from shardwright.api.settings import Settings
from shardwright.api.yamltext import load

CONFIG_VARIABLE: Final = "SHARDWRIGHT_CONFIG"
OVERRIDES: Final[Mapping[str, str]] = {
    "SHARDWRIGHT_NAMESPACE": "namespace",
    "SHARDWRIGHT_LOG_LEVEL": "logLevel",
    "SHARDWRIGHT_LOG_FORMAT": "logFormat",
    "SHARDWRIGHT_HTTP_PORT": "httpPort",
}


class SettingsError(ValueError):
    """The configuration cannot be used; the message lists every problem."""


def load_settings(
    path: str | Path | None = None, environ: Mapping[str, str] | None = None
) -> Settings:
    """The settings.

    Args:
        path: The file; None takes `SHARDWRIGHT_CONFIG`, and defaults if that is not set either.
        environ: The environment; None takes the process's own.

    Raises:
        SettingsError: If the file cannot be read or a value is not allowed.
    """
    environ = os.environ if environ is None else environ
    path = path or environ.get(CONFIG_VARIABLE) or None
    content = _read(Path(path)) if path else {}
    origin = {field: name for name, field in OVERRIDES.items() if environ.get(name)}
    for field, name in origin.items():
        content[field] = environ[name]
    try:
        settings = Settings.model_validate(content)
    except ValidationError as error:
        where = str(path) if path else "settings"
        raise SettingsError("\n".join(_problems(error, where, origin))) from error
    _agree(settings, str(path) if path else "settings")
    return settings


def _read(path: Path) -> dict[str, Any]:
    try:
        content = load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"{path} must hold a mapping of settings, not {type(content).__name__}")
    return content


def _problems(error: ValidationError, where: str, origin: Mapping[str, str]) -> list[str]:
    """What is wrong; of a value that a variable gave, with the variable for the file."""
    found = []
    for said in problems(error, Settings):
        source = next((name for field, name in origin.items() if said.startswith(f"{field}:")), "")
        found.append(f"{source or where}: {said}")
    return found


def _agree(settings: Settings, where: str) -> None:
    """What no single field can say."""
    lease, timeouts = settings.lease, settings.timeouts
    if not lease.retry_seconds < lease.renew_seconds < lease.duration_seconds:
        raise SettingsError(
            f"{where}: lease.retrySeconds {lease.retry_seconds:g} < lease.renewSeconds "
            f"{lease.renew_seconds:g} < lease.durationSeconds {lease.duration_seconds:g} must "
            "hold; the usual is 2, 10, 15"
        )
    if timeouts.restart_backoff_seconds > timeouts.restart_backoff_max_seconds:
        raise SettingsError(
            f"{where}: timeouts.restartBackoffSeconds {timeouts.restart_backoff_seconds:g} exceeds "
            f"timeouts.restartBackoffMaxSeconds {timeouts.restart_backoff_max_seconds:g}; lower "
            "the first or raise the second"
        )
