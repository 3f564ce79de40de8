"""`shardwright run`: the operator itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import structlog
import typer

import shardwright
from shardwright.apply.errors import ClusterError
from shardwright.control import logs
from shardwright.control.crd import CRDError
from shardwright.control.reconcile import Reconciler
from shardwright.control.settings import CONFIG_VARIABLE, SettingsError, load_settings
from shardwright.main import operate

_log = structlog.get_logger(__name__)


def run(
    config: Annotated[
        Path | None,
        typer.Option("--config", envvar=CONFIG_VARIABLE, help="Settings as YAML; none: defaults."),
    ] = None,
    kubeconfig: Annotated[
        str,
        typer.Option(
            "--kubeconfig",
            envvar="KUBECONFIG",
            help="Which cluster; none: the one this pod runs in.",
        ),
    ] = "",
) -> None:
    """Run the operator until SIGTERM. Exit code 0 then, 2 for bad settings, else 1."""
    try:
        settings = load_settings(config)
    except SettingsError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error
    logs.configure(settings.log_level, settings.log_format)
    _log.info("starting", version=shardwright.__version__, namespace=settings.namespace)
    try:
        asyncio.run(operate(settings, Reconciler, kubeconfig=kubeconfig))
    except (CRDError, ClusterError) as error:
        _log.error("operator ended", error=str(error))
        raise typer.Exit(1) from error
    except Exception as error:
        _log.exception("operator ended")
        raise typer.Exit(1) from error
    _log.info("stopped")
