"""The port on which runners of one incarnation talk to each other, and calls to it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable

from shardwright.runner.log import say
from shardwright.runner.serve.frames import ChannelError
from shardwright.runner.serve.handshake import Identity, Session, answer, call
from shardwright.runner.serve.secret import Token

# Callers that have not proven who they are; further ones are turned away at once. Anybody in the
# cluster may connect: one address gets a few places only, so that it cannot take all of them.
PENDING_LIMIT = 32
PENDING_LIMIT_PER_ADDRESS = 4
CONNECT_SECONDS = 5.0
# Refusals are told one by one up to so many a minute: a scanner must not fill the log.
_TOLD_PER_MINUTE = 20
_MINUTE_SECONDS = 60.0


class ChannelServer:
    """Listens on the channel's port and hands over callers who have proven who they are."""

    def __init__(
        self, port: int, token: Token, who: Identity, accepted: Callable[[Session], None]
    ) -> None:
        """Listen from now on.

        Args:
            port: TCP port, on all addresses; 0 takes any free one.
            token: Of this incarnation.
            who: This runner.
            accepted: Called in a thread of its own with each session; it may block, and the session
                is closed when it returns.

        Raises:
            OSError: The port is taken.
        """
        self._token, self._who, self._accepted = token, who, accepted
        self._pending: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._told: list[float] = []
        self._socket = listen(port)
        self.port: int = self._socket.getsockname()[1]
        self._closed = threading.Event()
        threading.Thread(target=self._serve, name="channel", daemon=True).start()

    def close(self) -> None:
        """Listen no more. Sessions go on."""
        self._closed.set()
        # Listening sockets are not connected, which it complains of; it wakes the thread on Linux.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        while not self._closed.is_set():
            try:
                stream, address = self._socket.accept()
            except OSError as error:
                if not self._closed.is_set():
                    say("the channel cannot accept", error=str(error))
                    time.sleep(1)
                continue
            caller = str(address[0])
            if why := self._crowded(caller):
                self._refused(caller, why)
                stream.close()
                continue
            threading.Thread(
                target=self._meet, args=(stream, caller), name="caller", daemon=True
            ).start()

    def _crowded(self, address: str) -> str:
        """Why a caller finds no place; it has one if there is no reason."""
        with self._lock:
            if self._pending[address] >= PENDING_LIMIT_PER_ADDRESS:
                return f"more than {PENDING_LIMIT_PER_ADDRESS} callers at once from one address"
            if sum(self._pending.values()) >= PENDING_LIMIT:
                return f"more than {PENDING_LIMIT} callers at once"
            self._pending[address] += 1
            return ""

    def _known(self, address: str) -> None:
        """Free a caller's place: it has proven who it is, or is turned away."""
        with self._lock:
            self._pending[address] -= 1
            if not self._pending[address]:
                del self._pending[address]

    def _meet(self, stream: socket.socket, address: str) -> None:
        try:
            try:
                session = answer(stream, self._token, self._who)
            finally:
                self._known(address)
        except ChannelError as error:
            self._refused(address, str(error))
            stream.close()
            return
        try:
            self._accepted(session)
        finally:
            session.close()

    def _refused(self, address: str, why: str) -> None:
        now = time.monotonic()
        self._told = [moment for moment in self._told if now - moment < _MINUTE_SECONDS]
        if len(self._told) < _TOLD_PER_MINUTE:
            self._told.append(now)
            say("a caller was turned away", address=address, why=why)


def connect(host: str, port: int, token: Token, who: Identity, stage: int, purpose: str) -> Session:
    """Call the runner of a stage.

    Raises:
        OSError: The name does not resolve, or nobody listens there.
        ChannelError: Who listens there is not that runner, or does not want us.
    """
    stream = socket.create_connection((host, port), timeout=CONNECT_SECONDS)
    try:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return call(stream, token, who, stage, purpose)
    except BaseException:
        stream.close()
        raise


def listen(port: int) -> socket.socket:
    """A listening socket on all addresses of the pod, of whichever families it has."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=dual, backlog=64)
