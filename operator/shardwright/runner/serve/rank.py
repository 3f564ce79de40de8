"""What Open MPI starts as each rank: it asks the pod's runner what to run, and stays its parent.

So a rank's end is known with its exit status and the end of its log before Open MPI tears the rest
down, each pod's log has its own ranks, and the engine's command line and environment come from the
pod's own request.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.runner.children import DRAIN_SECONDS, pump
from shardwright.runner.lines import Lines
from shardwright.runner.processes import all_processes, below, die_with_parent, kill_process
from shardwright.runner.serve.frames import FRAME_LIMIT_BYTES, ChannelError, read_frame, write_frame
from shardwright.runner.serve.mpi import MPIError, rank_of
from shardwright.runner.serve.places import Places

FAILED = 1
NOT_FOUND = 127
# The runner takes lines as fast as the pod's log does, and answers an end within moments.
SEND_SECONDS = 60.0
SEEN_SECONDS = 5.0
TAIL_CHARS = 6 * 1024


def main(argv: Sequence[str], places: str, environment: Mapping[str, str] = os.environ) -> int:
    """Run this rank's command to its end.

    Returns:
        The command's exit status, 128 and the signal's number when a signal ended it.
    """
    if argv:
        sys.stderr.write(f"shardwright: a rank takes no arguments, got {list(argv)}\n")
        return FAILED
    try:
        return _Rank(Places.load(places), environment).run()
    except (OSError, ValueError, ChannelError, MPIError) as error:
        sys.stderr.write(f"shardwright: this rank cannot be started: {error}\n")
        return FAILED


class _Rank:
    def __init__(self, places: Places, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._runner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._runner.connect(str(places.socket))
        # A socket has one timeout, and one thread listens while another sends.
        self._out = self._runner.dup()
        self._seen = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._terminated = False

    def run(self) -> int:
        rank, local, size = rank_of(self._environment)
        self._send({"rank": rank, "local": local, "size": size, "pid": os.getpid()})
        deadline = time.monotonic() + SEND_SECONDS
        order = json.loads(read_frame(self._runner, FRAME_LIMIT_BYTES, deadline))
        if "refused" in order:
            raise ChannelError(str(order["refused"]))
        signal.signal(signal.SIGTERM, self._terminate)
        lines = Lines(self._line)
        code = self._work(order, lines)
        self._send({"exit": code, "tail": "\n".join(lines.tail())[-TAIL_CHARS:]})
        # Open MPI ends the others when this process has ended: not before the runner knows.
        self._seen.wait(SEEN_SECONDS)
        return code if code >= 0 else 128 - code

    def _work(self, order: Mapping[str, Any], lines: Lines) -> int:
        argv = [str(word) for word in order["argv"]]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the request's command line
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**self._environment, **order["env"]},
                preexec_fn=die_with_parent,  # noqa: PLW1509 - no threads yet
            )
        except OSError as error:
            lines.feed(f"{argv[0]} cannot be started: {error}\n".encode())
            threading.Thread(target=self._listen, daemon=True).start()
            return NOT_FOUND
        threading.Thread(target=self._listen, daemon=True).start()
        reader = threading.Thread(target=_follow, args=(self._process, lines), daemon=True)
        reader.start()
        if self._terminated:
            self._terminate()
        code = self._process.wait()
        # What the command has started may hold its output open; its own lines are all there.
        reader.join(DRAIN_SECONDS)
        return code

    def _listen(self) -> None:
        """Hear that the runner has seen the end, or that it is gone, which ends the rank."""
        try:
            while True:
                read_frame(self._runner, FRAME_LIMIT_BYTES, time.monotonic() + 365 * 86400)
                self._seen.set()
        except ChannelError:
            if self._process is not None and not self._seen.is_set():
                self._process.kill()
        self._seen.set()

    def _line(self, line: bytes) -> None:
        self._send({"line": line.decode("utf-8", "replace")})

    def _send(self, message: Mapping[str, Any]) -> None:
        payload = json.dumps(message).encode()
        write_frame(self._out, payload, FRAME_LIMIT_BYTES, time.monotonic() + SEND_SECONDS)

    def _terminate(self, *_: object) -> None:
        """Tell all that runs below: launchers that are shells pass no signal on.

        `trtllm-llmapi-launch` ends alone and leaves its ranks, which then hold the GPU until the
        runner kills them.
        """
        self._terminated = True
        for process in below(os.getpid(), all_processes()):
            kill_process(process.pid, signal.SIGTERM)


def _follow(process: subprocess.Popen[bytes], lines: Lines) -> None:
    if process.stdout is None:
        raise ValueError("the command was started without a pipe for its output")
    try:
        pump(process.stdout, lines)
    except ChannelError:
        process.kill()  # the runner is gone, and with it whoever this rank was for
