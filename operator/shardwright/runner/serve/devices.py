"""What to call the pod's GPUs, and what links them: more questions to `nvidia-smi`.

None of the answers decides anything, so a missing one is no failure.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

from shardwright.runner.log import say
from shardwright.runner.serve.topo import Topology, TopologyError, read_topology

_SECONDS = 60
# As set by NVIDIA's container runtime and by device plugins; words that name no device.
ENV_DEVICES = "NVIDIA_VISIBLE_DEVICES"
_NO_DEVICE = ("", "all", "none", "void")


def names(environment: Mapping[str, str]) -> tuple[str, ...]:
    """UUIDs of the pod's GPUs by local index, else what its environment names; may be empty."""
    text = _ask("--query-gpu=uuid", "--format=csv,noheader")
    if text:
        return tuple(line.strip() for line in text.splitlines() if line.strip())
    told = environment.get(ENV_DEVICES, "")
    return () if told in _NO_DEVICE else tuple(part.strip() for part in told.split(","))


def topology() -> Topology | None:
    """Links between the pod's GPUs; None where they cannot be told."""
    text = _ask("topo", "-m")
    if not text:
        return None
    try:
        return read_topology(text)
    except TopologyError as error:
        say("the GPUs' links cannot be read", error=str(error))
        return None


def _ask(*arguments: str) -> str:
    """What `nvidia-smi` answers, empty if it does not."""
    try:
        answer = subprocess.run(  # noqa: S603 - a fixed question to a fixed program
            ["nvidia-smi", *arguments],  # noqa: S607 - wherever the container runtime put it
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        return ""
    except (OSError, subprocess.TimeoutExpired) as error:
        say("nvidia-smi does not answer", asked=arguments, error=str(error))
        return ""
    if answer.returncode:
        told = (answer.stderr or answer.stdout).strip()[-300:]
        say("nvidia-smi does not answer", asked=arguments, error=told)
        return ""
    return answer.stdout
