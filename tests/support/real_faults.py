"""Orders for the stand-ins on real nodes: which rank is slow, dies, or hangs, and when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from shardwright_sandbox.cluster import Sandbox
from shardwright_sandbox.real.programs import FAULTS


@contextmanager
def faults(sandbox: Sandbox, *rules: Mapping[str, Any]) -> Iterator[Path]:
    """Have these rules carried out; the folder where those with `times` leave what they did.

    Rules are as in `sandbox/standin/README.md`; each needs an `id`.
    """
    assert sandbox.layout is not None
    file = sandbox.layout.in_gpu_pods / Path(FAULTS).name
    struck = file.with_name(f"{file.name}.struck")
    # Ranks under any user keep their counts here.
    struck.mkdir(exist_ok=True)
    struck.chmod(0o777)
    _write(file, rules)
    try:
        yield struck
    finally:
        _write(file, ())
        for path in struck.iterdir():
            path.unlink()


def _write(file: Path, rules: tuple[Mapping[str, Any], ...]) -> None:
    """By rename: ranks read it at any moment."""
    scratch = file.with_suffix(".new")
    scratch.write_text(yaml.safe_dump({"rules": [dict(rule) for rule in rules]}))
    scratch.rename(file)
