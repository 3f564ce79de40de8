"""Plays an engine's rank over real MPI: rank 0 answers HTTP, no token comes without all ranks.

Started by the runner as what a rank runs; standard library and the system's libmpi only.
Each token is one broadcast (go on) and one sum over all ranks, so that a rank that is dead or
stopped holds everything up, as in a real one.

Without Open MPI's environment it is a server of one rank that sleeps where it would compute.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

# Until this file is there, no request of more than one token is answered.
GATE = os.environ.get("ENGINE_GATE", "")
TOKEN_SECONDS = float(os.environ.get("ENGINE_TOKEN_SECONDS", "0.01"))


class Mpi:
    """As much of MPI as is needed; symbols of Open MPI's C interface."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
        self.world = ctypes.addressof(ctypes.c_char.in_dll(self.lib, "ompi_mpi_comm_world"))
        self.int = ctypes.addressof(ctypes.c_char.in_dll(self.lib, "ompi_mpi_int"))
        self.sum = ctypes.addressof(ctypes.c_char.in_dll(self.lib, "ompi_mpi_op_sum"))
        self.lib.MPI_Init(None, None)

    def broadcast(self, value: int) -> int:
        cell = ctypes.c_int(value)
        pointer = ctypes.c_void_p
        self.lib.MPI_Bcast(ctypes.byref(cell), 1, pointer(self.int), 0, pointer(self.world))
        return cell.value

    def total(self, value: int) -> int:
        mine, all_ = ctypes.c_int(value), ctypes.c_int(0)
        pointer = ctypes.c_void_p
        self.lib.MPI_Allreduce(
            ctypes.byref(mine),
            ctypes.byref(all_),
            1,
            pointer(self.int),
            pointer(self.sum),
            pointer(self.world),
        )
        return all_.value


class Alone:
    """A world of one rank."""

    def broadcast(self, value: int) -> int:
        return value

    def total(self, value: int) -> int:
        return value


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 5  # as uvicorn closes idle connections
    work = queue.Queue()

    def do_GET(self) -> None:
        self.answer(200, {"status": "ok"} if self.path == "/health" else {})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        count, tokens = int(asked.get("max_tokens", 1)), []
        if GATE and count > 1:
            os.write(1, b"waits at the gate\n")
            while not Path(GATE).exists():
                time.sleep(0.02)
        for _ in range(count):
            done = queue.Queue()
            self.work.put(done)
            tokens.append(str(done.get()))
            time.sleep(TOKEN_SECONDS)
        self.answer(
            200,
            {"choices": [{"text": " ".join(tokens)}], "usage": {"completion_tokens": count}},
        )

    def answer(self, code: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True


def main(port: int) -> None:
    deaf = "ENGINE_DEAF" in os.environ
    signal.signal(signal.SIGTERM, signal.SIG_IGN if deaf else lambda *_: os._exit(143))
    mpi = Mpi() if "OMPI_COMM_WORLD_RANK" in os.environ else Alone()
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
    size = os.environ.get("OMPI_COMM_WORLD_SIZE", "1")
    sys.stdout.write(f"loaded rank {rank} of {size}\n")
    # As NCCL tells that tensor ranks reach each other directly, and stages over InfiniBand.
    sys.stdout.write("h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n")
    sys.stdout.write("h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0/GDRDMA\n")
    sys.stdout.flush()
    if rank == 0:
        server = Server(("", port), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    while True:
        if rank == 0:
            done = Handler.work.get()
            mpi.broadcast(1)
            done.put(mpi.total(rank + 1))
        elif mpi.broadcast(0):
            mpi.total(rank + 1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
