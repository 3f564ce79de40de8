"""`shardwright crd`: print, write or compare the CustomResourceDefinition."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated

import typer

from shardwright.api.crd import crd_yaml

DEFAULT_FILE = Path("crds/llmdeployments.yaml")
_SHOWN_LINES = 40


def crd(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write this file instead of printing.")
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Compare with the file and fail when it differs."),
    ] = False,
) -> None:
    """Print the CustomResourceDefinition that the models describe, or compare it with its file."""
    text = crd_yaml()
    if check:
        _compare(text, output or DEFAULT_FILE)
    elif output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")
        typer.echo(f"wrote {output}", err=True)
    else:
        typer.echo(text, nl=False)


def _compare(text: str, file: Path) -> None:
    if not file.is_file():
        typer.echo(f"{file} does not exist; `shardwright crd --output {file}` writes it", err=True)
        raise typer.Exit(1)
    found = file.read_text(encoding="utf-8")
    if found == text:
        typer.echo(f"{file} agrees with the models", err=True)
        return
    difference = list(
        difflib.unified_diff(
            found.splitlines(), text.splitlines(), str(file), "models", lineterm="", n=1
        )
    )
    for line in difference[:_SHOWN_LINES]:
        typer.echo(line)
    if len(difference) > _SHOWN_LINES:
        typer.echo(f"… {len(difference) - _SHOWN_LINES} more lines")
    typer.echo(
        f"{file} differs from the models; `shardwright crd --output {file}` writes it anew",
        err=True,
    )
    raise typer.Exit(1)
