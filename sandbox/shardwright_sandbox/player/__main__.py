"""`python -m shardwright_sandbox.player`: the player as a process."""

import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Annotated

import structlog
import typer

from shardwright_sandbox import guard
from shardwright_sandbox.config import Layout
from shardwright_sandbox.player.play import Player
from shardwright_sandbox.rest import Rest, api_client


def main(
    kubeconfig: Annotated[Path, typer.Option(help="of the cluster to play in")],
    state: Annotated[Path, typer.Option(help="the sandbox's folder: claims and publishes")],
) -> None:
    """Play the containers of shardwright's pods on simulated nodes."""
    structlog.configure(
        processors=[
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stdout),
    )
    guard.check(kubeconfig)
    # Containers of real nodes work in the same folders, as other users.
    os.umask(0)
    stop = threading.Event()

    def end(_: int, __: FrameType | None) -> None:
        stop.set()
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    Player(Rest(api_client(kubeconfig)), Layout(state)).run(stop)


if __name__ == "__main__":
    typer.run(main)
