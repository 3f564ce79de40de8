"""How two runners of one incarnation make sure of each other, and what they say afterwards.

    caller → host   hello      who calls, for what, which incarnation, a nonce
    host → caller   challenge  who answers, a nonce; or a refusal in one word
    host → caller   proof      HMAC over both, under the token
    caller → host   proof      HMAC over both, under the token

Both nonces are fresh, so a recorded conversation is worth nothing; deployment, replica,
incarnation, stages and purpose are in what is proven, so a token of one incarnation opens no door
of another. Afterwards each message is a JSON object under a MAC of its own, keyed by this
conversation and direction and counting up: what is replayed, reordered, cut out or put in between
is refused. Nothing is encrypted: what is said is no secret, who says it matters.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any

from shardwright.runner.contract import ServeRequest, canonical
from shardwright.runner.serve.frames import (
    FRAME_LIMIT_BYTES,
    ChannelError,
    read_frame,
    write_frame,
)
from shardwright.runner.serve.secret import PROOF_BYTES, Token, same

PROTOCOL = 1
HELLO_LIMIT_BYTES = 1024
HANDSHAKE_SECONDS = 10.0
SEND_SECONDS = 10.0
# A worker's standing connection to the leader; one start of an MPI daemon.
PURPOSE_LINK = "link"
PURPOSE_LAUNCH = "launch"
PURPOSES = (PURPOSE_LINK, PURPOSE_LAUNCH)

_NONCE_BYTES = 32
_HELLO = {"v": int, "group": str, "incarnation": int, "from": int, "to": int, "purpose": str}
_CHALLENGE = {"v": int, "group": str, "incarnation": int, "from": int}


class RefusedError(ChannelError):
    """The other side is not who it should be, or did not want us."""


@dataclass(frozen=True)
class Identity:
    """Who a runner is: of which group (deployment and replica), incarnation and stage."""

    group: str
    incarnation: int
    stage: int
    stages: int

    @classmethod
    def of(cls, request: ServeRequest) -> Identity:
        """The identity of a serving pod. Peers' names bear a hash of the owner's UID."""
        group = canonical([request.deployment, request.replica, list(request.peers)])
        return cls(group, request.incarnation, request.stage, request.pipeline)


class Session:
    """A conversation after both sides are sure of each other. One thread reads, any may send."""

    def __init__(
        self, stream: socket.socket, peer: int, purpose: str, keys: tuple[Token, Token]
    ) -> None:
        """Go on over `stream` with stage `peer`; `keys` are for sending and for receiving."""
        self.peer = peer
        self.purpose = purpose
        self._stream = stream
        # A socket has one timeout, and one thread reads while others send.
        self._out = stream.dup()
        self._send_key, self._receive_key = keys
        self._sent = 0
        self._received = 0
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        """The other side's address, for log lines."""
        try:
            return str(self._stream.getpeername()[0]).replace("::ffff:", "", 1)
        except OSError:
            return "?"

    def send(self, message: dict[str, Any]) -> None:
        """Send one message.

        Raises:
            ChannelError: It is too long, or the connection is of no use any more.
        """
        payload = canonical(message).encode()
        with self._lock:
            proof = self._send_key.proof("message", self._sent.to_bytes(8, "big"), payload)
            deadline = time.monotonic() + SEND_SECONDS
            write_frame(self._out, proof + payload, FRAME_LIMIT_BYTES, deadline)
            self._sent += 1

    def receive(self, timeout_seconds: float) -> dict[str, Any]:
        """The next message.

        Raises:
            ChannelError: There is none in time, the connection ended, or it is not what the other
                side sent next.
        """
        deadline = time.monotonic() + timeout_seconds
        frame = read_frame(self._stream, FRAME_LIMIT_BYTES, deadline)
        proof, payload = frame[:PROOF_BYTES], frame[PROOF_BYTES:]
        wanted = self._receive_key.proof("message", self._received.to_bytes(8, "big"), payload)
        if not same(proof, wanted):
            raise RefusedError(f"message {self._received} of stage {self.peer} is not authentic")
        self._received += 1
        return _object(payload, f"message of stage {self.peer}")

    def close(self) -> None:
        """End the conversation; a thread that reads gets an error."""
        # Closed already is all that is asked for.
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        self._stream.close()
        self._out.close()


def call(stream: socket.socket, token: Token, who: Identity, stage: int, purpose: str) -> Session:
    """Make sure of the runner of `stage` at the other end of a fresh connection.

    Raises:
        RefusedError: It is not that runner, or does not take us for who we are.
        ChannelError: It closed the connection, said nothing in time, or something else.
    """
    deadline = time.monotonic() + HANDSHAKE_SECONDS
    nonce = secrets.token_hex(_NONCE_BYTES)
    hello = canonical(
        {
            "v": PROTOCOL,
            "group": _group(who),
            "incarnation": who.incarnation,
            "from": who.stage,
            "to": stage,
            "purpose": purpose,
            "nonce": nonce,
        }
    ).encode()
    write_frame(stream, hello, HELLO_LIMIT_BYTES, deadline)
    challenge = read_frame(stream, HELLO_LIMIT_BYTES, deadline)
    told = _fields(challenge, _CHALLENGE, "challenge")
    if _group(who) != told["group"] or told["from"] != stage:
        raise RefusedError(f"another group or stage answers where stage {stage} should")
    if told["incarnation"] != who.incarnation:
        raise RefusedError(
            f"incarnation {told['incarnation']} answers where {who.incarnation} should"
        )
    proof = read_frame(stream, HELLO_LIMIT_BYTES, deadline)
    if not same(proof, token.proof("host", hello, challenge)):
        raise RefusedError(f"stage {stage} does not know this incarnation's token")
    write_frame(stream, token.proof("caller", hello, challenge), HELLO_LIMIT_BYTES, deadline)
    to_host, to_caller = _keys(token, hello, challenge)
    return Session(stream, stage, purpose, (to_host, to_caller))


def answer(stream: socket.socket, token: Token, who: Identity) -> Session:
    """Make sure of whoever has connected.

    Raises:
        RefusedError: It is none of this incarnation, or does not know the token.
        ChannelError: It closed the connection, said nothing in time, or something else.
    """
    deadline = time.monotonic() + HANDSHAKE_SECONDS
    hello = read_frame(stream, HELLO_LIMIT_BYTES, deadline)
    told = _fields(hello, _HELLO, "hello")
    refusal = _refusal(told, who)
    if refusal:
        write_frame(stream, canonical({"refused": refusal}).encode(), HELLO_LIMIT_BYTES, deadline)
        raise RefusedError(f"a caller was refused: {refusal} does not fit")
    challenge = canonical(
        {
            "v": PROTOCOL,
            "group": _group(who),
            "incarnation": who.incarnation,
            "from": who.stage,
            "nonce": secrets.token_hex(_NONCE_BYTES),
        }
    ).encode()
    write_frame(stream, challenge, HELLO_LIMIT_BYTES, deadline)
    write_frame(stream, token.proof("host", hello, challenge), HELLO_LIMIT_BYTES, deadline)
    proof = read_frame(stream, HELLO_LIMIT_BYTES, deadline)
    if not same(proof, token.proof("caller", hello, challenge)):
        raise RefusedError("a caller does not know this incarnation's token")
    to_host, to_caller = _keys(token, hello, challenge)
    return Session(stream, int(told["from"]), str(told["purpose"]), (to_caller, to_host))


def _keys(token: Token, hello: bytes, challenge: bytes) -> tuple[Token, Token]:
    """Keys for messages to the host and to the caller, good for this conversation only."""
    return (
        token.derived("to-host", hello, challenge),
        token.derived("to-caller", hello, challenge),
    )


def _group(who: Identity) -> str:
    """What tells groups apart in a hello: a hash, so that a hello stays short."""
    return hashlib.sha256(who.group.encode()).hexdigest()[:32]


def _refusal(told: dict[str, Any], who: Identity) -> str:
    """The first field of a hello that does not fit, or nothing."""
    checks = (
        ("v", told["v"] == PROTOCOL),
        ("group", told["group"] == _group(who)),
        ("incarnation", told["incarnation"] == who.incarnation),
        ("to", told["to"] == who.stage),
        ("from", 0 <= told["from"] < who.stages and told["from"] != who.stage),
        ("purpose", told["purpose"] in PURPOSES),
    )
    return next((name for name, fits in checks if not fits), "")


def _fields(payload: bytes, wanted: dict[str, type], what: str) -> dict[str, Any]:
    """A hello or challenge whose fields have the right names and types, nonce included."""
    found = _object(payload, what)
    if set(found) == {"refused"}:
        raise RefusedError(f"the other side refused us: its {str(found['refused'])[:40]} differs")
    if set(found) != {*wanted, "nonce"}:
        raise ChannelError(f"a {what} with other fields than it should have")
    for name, kind in wanted.items():
        if type(found[name]) is not kind:
            raise ChannelError(f"a {what} whose {name} is no {kind.__name__}")
    nonce = found["nonce"]
    if not isinstance(nonce, str) or len(nonce) != 2 * _NONCE_BYTES:
        raise ChannelError(f"a {what} whose nonce has the wrong length")
    return found


def _object(payload: bytes, what: str) -> dict[str, Any]:
    try:
        found = json.loads(payload.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ChannelError(f"a {what} that is no JSON") from error
    if not isinstance(found, dict):
        raise ChannelError(f"a {what} that is no JSON object")
    return found
