"""Who may talk to whom between the pods of one incarnation."""

from __future__ import annotations

import json
import pickle
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardwright.runner.contract import canonical
from shardwright.runner.serve import handshake
from shardwright.runner.serve.channel import PENDING_LIMIT, ChannelServer, connect
from shardwright.runner.serve.frames import (
    FRAME_LIMIT_BYTES,
    ChannelError,
    ClosedError,
    SilentError,
    read_frame,
    write_frame,
)
from shardwright.runner.serve.handshake import Identity, RefusedError, Session, answer, call
from shardwright.runner.serve.secret import Token, TokenError, read_token

SECRET = "0123456789abcdef0123456789abcdef-the-secret"  # noqa: S105 - of this test
TOKEN = Token(SECRET.encode())
LEADER = Identity("group", 4, 0, 3)
WORKER = Identity("group", 4, 1, 3)


def soon(seconds: float = 60) -> float:
    return time.monotonic() + seconds


class Host(threading.Thread):
    """Answers one caller on one end of a pair of sockets."""

    def __init__(self, token: Token = TOKEN, who: Identity = LEADER) -> None:
        super().__init__(daemon=True)
        self.near, self.far = socket.socketpair()
        self._token, self._who = token, who
        self.session: Session | None = None
        self.error: ChannelError | None = None
        self.start()

    def run(self) -> None:
        try:
            self.session = answer(self.far, self._token, self._who)
        except ChannelError as error:
            self.error = error
            self.far.close()

    def done(self) -> None:
        self.join(60)
        assert not self.is_alive()


@contextmanager
def host(token: Token = TOKEN, who: Identity = LEADER) -> Iterator[Host]:
    made = Host(token, who)
    try:
        yield made
    finally:
        made.near.close()
        made.join(20)
        made.far.close()
        if made.session is not None:
            made.session.close()


@contextmanager
def pair() -> Iterator[tuple[Session, Session]]:
    with host() as far:
        near = call(far.near, TOKEN, WORKER, 0, "link")
        far.done()
        assert far.session is not None
        with closing(near):
            yield near, far.session


def test_two_runners_of_one_incarnation_understand_each_other() -> None:
    with pair() as (near, far):
        assert (near.peer, near.purpose) == (0, "link")
        assert (far.peer, far.purpose) == (1, "link")
        for number in range(3):
            near.send({"number": number})
            far.send({"back": number})
        assert [far.receive(60) for _ in range(3)] == [{"number": n} for n in range(3)]
        assert [near.receive(60) for _ in range(3)] == [{"back": n} for n in range(3)]


@pytest.mark.parametrize(
    ("token", "who", "stage", "purpose"),
    [
        (Token(b"another token of thirty-two characters"), WORKER, 0, "link"),
        (TOKEN, replace(WORKER, incarnation=3), 0, "link"),
        (TOKEN, replace(WORKER, group="other"), 0, "link"),
        (TOKEN, replace(WORKER, stage=3), 0, "link"),
        (TOKEN, replace(WORKER, stage=0), 0, "link"),
        (TOKEN, WORKER, 2, "link"),
        (TOKEN, WORKER, 0, "shell"),
    ],
    ids=["token", "incarnation", "group", "unknown-stage", "own-stage", "wrong-host", "purpose"],
)
def test_a_stranger_is_refused_on_both_sides(
    token: Token, who: Identity, stage: int, purpose: str
) -> None:
    with host() as far:
        with pytest.raises(ChannelError):
            call(far.near, token, who, stage, purpose)
        far.near.close()
        far.done()
        assert far.session is None
        assert far.error is not None
        assert SECRET not in str(far.error)


def test_a_host_that_does_not_know_the_token_is_refused_before_it_gets_a_proof() -> None:
    with host(Token(b"w" * 40)) as far:
        with pytest.raises(RefusedError, match="does not know this incarnation's token"):
            call(far.near, TOKEN, WORKER, 0, "link")
        far.near.close()
        far.done()
        assert isinstance(far.error, ClosedError)


def test_the_refused_caller_is_told_which_field_differs() -> None:
    with (
        host() as far,
        pytest.raises(RefusedError, match="its incarnation differs"),
    ):
        call(far.near, TOKEN, replace(WORKER, incarnation=9), 0, "link")


class Tape:
    """Passes on bytes between two sockets and keeps what the caller has sent."""

    def __init__(self, caller: socket.socket, far: socket.socket) -> None:
        self.sent = bytearray()
        self._threads = [
            threading.Thread(target=self._copy, args=(caller, far, self.sent), daemon=True),
            threading.Thread(target=self._copy, args=(far, caller, bytearray()), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _copy(self, one: socket.socket, other: socket.socket, kept: bytearray) -> None:
        try:
            while data := one.recv(4096):
                kept.extend(data)
                other.sendall(data)
        except OSError:
            pass


def test_a_recorded_conversation_is_worth_nothing() -> None:
    with host() as far:
        near, tapped = socket.socketpair()
        tape = Tape(tapped, far.near)
        session = call(near, TOKEN, WORKER, 0, "link")
        session.send({"drain": True})
        far.done()
        assert far.session is not None
        assert far.session.receive(60) == {"drain": True}
        session.close()
        tapped.close()
    with host() as far:
        far.near.sendall(bytes(tape.sent))
        far.done()
        assert far.session is None
        assert isinstance(far.error, RefusedError)


def test_a_message_that_is_sent_twice_is_refused() -> None:
    with pair() as (near, far):
        frames: list[bytes] = []
        original = handshake.write_frame

        def kept(stream: socket.socket, payload: bytes, limit: int, deadline: float) -> None:
            frames.append(payload)
            original(stream, payload, limit, deadline)

        handshake.write_frame = kept
        try:
            near.send({"cause": "first"})
        finally:
            handshake.write_frame = original
        assert far.receive(60) == {"cause": "first"}
        write_frame(near._out, frames[0], FRAME_LIMIT_BYTES, soon())
        with pytest.raises(RefusedError, match="message 1 of stage 1 is not authentic"):
            far.receive(60)


def test_a_message_of_the_other_direction_is_refused() -> None:
    with pair() as (near, far):
        payload = canonical({"end": None}).encode()
        proof = near._receive_key.proof("message", (0).to_bytes(8, "big"), payload)
        write_frame(near._out, proof + payload, FRAME_LIMIT_BYTES, soon())
        with pytest.raises(RefusedError):
            far.receive(60)


@pytest.mark.parametrize("position", [0, 31, 32, -1])
def test_a_changed_byte_is_noticed(position: int) -> None:
    with pair() as (near, far):
        payload = canonical({"state": 1}).encode()
        proof = near._send_key.proof("message", (0).to_bytes(8, "big"), payload)
        frame = bytearray(proof + payload)
        frame[position] ^= 1
        write_frame(near._out, bytes(frame), FRAME_LIMIT_BYTES, soon())
        with pytest.raises(ChannelError):
            far.receive(60)


def test_a_frame_that_is_too_long_is_refused_before_it_is_read() -> None:
    near, far = socket.socketpair()
    with closing(near), closing(far):
        near.sendall(struct.pack(">I", FRAME_LIMIT_BYTES + 1))
        with pytest.raises(ChannelError, match="65537 bytes was announced, 1 to 65536 may be"):
            read_frame(far, FRAME_LIMIT_BYTES, soon())
        with pytest.raises(ChannelError, match="65537 bytes, 1 to 65536"):
            write_frame(near, b"x" * (FRAME_LIMIT_BYTES + 1), FRAME_LIMIT_BYTES, soon())


def test_an_empty_frame_is_refused() -> None:
    near, far = socket.socketpair()
    with closing(near), closing(far):
        near.sendall(struct.pack(">I", 0))
        with pytest.raises(ChannelError, match="0 bytes was announced"):
            read_frame(far, 10, soon())


def test_a_peer_that_dawdles_is_not_waited_for() -> None:
    near, far = socket.socketpair()
    with closing(near), closing(far):
        stop = threading.Event()

        def drip() -> None:
            near.sendall(struct.pack(">I", 1000))
            while not stop.wait(0.05):
                near.sendall(b"x")

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        # The frame would be whole after most of a minute, and each byte of it comes soon.
        with pytest.raises(SilentError):
            read_frame(far, 1000, soon(0.4))
        stop.set()
        thread.join(60)


def test_a_connection_that_closes_inside_a_frame_is_told_from_silence() -> None:
    near, far = socket.socketpair()
    with closing(far):
        near.sendall(struct.pack(">I", 100) + b"x")
        near.close()
        with pytest.raises(ClosedError):
            read_frame(far, 1000, soon())


def hello(**changes: Any) -> bytes:
    fields = {
        "v": 1,
        "group": handshake._group(LEADER),
        "incarnation": 4,
        "from": 1,
        "to": 0,
        "purpose": "link",
        "nonce": "0" * 64,
    }
    return canonical({**fields, **changes}).encode()


def garbage(source: random.Random) -> bytes:
    """What a port may get that anybody can reach: noise, other protocols, near misses."""
    kind = source.randrange(8)
    if kind == 0:
        return source.randbytes(source.randrange(0, 200))
    if kind == 1:
        return struct.pack(">I", source.getrandbits(32)) + source.randbytes(source.randrange(64))
    if kind == 2:
        return b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + source.randbytes(source.randrange(20))
    if kind == 3:
        body = bytearray(hello())
        for _ in range(source.randrange(1, 6)):
            body[source.randrange(len(body))] = source.randrange(256)
        return struct.pack(">I", len(body)) + bytes(body)
    if kind == 4:
        name = source.choice(["v", "group", "incarnation", "from", "to", "purpose", "nonce"])
        value = source.choice([None, True, -1, 2**70, 1.5, [], {}, "", "x" * 400, [[]] * 50])
        body = hello(**{name: value})
        return struct.pack(">I", len(body)) + body
    if kind == 5:
        body = b"[" * source.randrange(1, 1000)
        return struct.pack(">I", len(body)) + body
    if kind == 6:  # a good hello, and a proof that is none
        body, proof = hello(), source.randbytes(source.choice([0, 1, 31, 32, 33]))
        return b"".join(struct.pack(">I", len(part)) + part for part in (body, proof))
    body = json.dumps({"nonce": source.randrange(9)}).encode()[: source.randrange(1, 14)]
    return struct.pack(">I", len(body)) + body


def fuzz(count: int, seed: int) -> None:
    """Nothing that comes without the token makes a session, or anything but a ChannelError."""
    source = random.Random(seed)  # noqa: S311 - inputs of a test
    for number in range(count):
        near, far = socket.socketpair()
        with closing(near), closing(far):
            data = garbage(source)
            near.sendall(data)
            near.shutdown(socket.SHUT_WR)
            with pytest.raises(ChannelError) as caught:
                answer(far, TOKEN, LEADER)
            assert SECRET not in str(caught.value), (number, data)


def test_five_thousand_strange_inputs_are_refused() -> None:
    fuzz(5_000, seed=20261129)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_hundred_thousand_strange_inputs_are_refused() -> None:
    fuzz(100_000, seed=7)


def test_strange_messages_after_the_handshake_end_the_session() -> None:
    source = random.Random(3)  # noqa: S311 - inputs of a test
    for _ in range(200):
        with pair() as (near, far):
            near._out.sendall(garbage(source) or b"\0")
            near._stream.shutdown(socket.SHUT_WR)
            with pytest.raises(ChannelError):
                far.receive(60)


class Accepted:
    """Sessions that a server has handed over, held until the test lets go."""

    def __init__(self) -> None:
        self.found: list[Session] = []
        self.come = threading.Semaphore(0)
        self.go = threading.Event()

    def __call__(self, session: Session) -> None:
        self.found.append(session)
        self.come.release()
        self.go.wait(300)


@contextmanager
def server() -> Iterator[tuple[ChannelServer, Accepted]]:
    accepted = Accepted()
    made = ChannelServer(0, TOKEN, LEADER, accepted)
    try:
        yield made, accepted
    finally:
        accepted.go.set()
        made.close()


def test_the_server_hands_over_who_has_proven_it_and_tells_of_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with server() as (made, accepted):
        with pytest.raises(ChannelError):
            connect("127.0.0.1", made.port, Token(b"x" * 32), WORKER, 0, "link")
        session = connect("127.0.0.1", made.port, TOKEN, WORKER, 0, "link")
        with closing(session):
            assert accepted.come.acquire(timeout=60)
            assert accepted.found[0].peer == 1
            assert session.address == "127.0.0.1"
        # The refused caller is told of by a thread of its own.
        told, deadline = "", soon()
        while "turned away" not in told and time.monotonic() < deadline:
            told += capsys.readouterr().out
            time.sleep(0.01)
    told += capsys.readouterr().out
    assert "a caller does not know this incarnation's token" in told or "closed" in told
    assert SECRET not in told


def test_callers_that_say_nothing_do_not_keep_others_out_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The places are free again because callers leave, and not because this takes long.
    monkeypatch.setattr(handshake, "HANDSHAKE_SECONDS", 300.0)
    with server() as (made, accepted):
        silent = [
            socket.create_connection(("127.0.0.1", made.port), 5, (f"127.0.1.{number}", 0))
            for number in range(PENDING_LIMIT)
        ]
        try:
            # Callers are met in the order in which they come, so there is nothing to wait for.
            with pytest.raises(ChannelError):
                connect("127.0.0.1", made.port, TOKEN, WORKER, 0, "link")
            for stream in silent[:4]:
                stream.close()
            deadline = soon()
            while True:
                try:
                    session = connect("127.0.0.1", made.port, TOKEN, WORKER, 0, "link")
                    break
                except ChannelError:
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
            session.close()
            assert accepted.come.acquire(timeout=60)
        finally:
            for stream in silent:
                stream.close()


def test_one_address_cannot_keep_others_out() -> None:
    """Any pod of the cluster may connect; the peers of a group come from other addresses."""
    with server() as (made, accepted), ExitStack() as stack:
        for _ in range(PENDING_LIMIT + 8):
            silent = socket.create_connection(("127.0.0.1", made.port))
            stack.enter_context(closing(silent))
        peer = socket.create_connection(("127.0.0.1", made.port), 5, ("127.0.0.2", 0))
        stack.enter_context(closing(peer))
        stack.enter_context(closing(call(peer, TOKEN, WORKER, 0, "link")))
        assert accepted.come.acquire(timeout=60)


def test_a_token_shows_nothing_of_itself(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{SECRET}\n")
    token = read_token(path)
    assert SECRET not in f"{token} {token!r}"
    assert token.proof("a") == TOKEN.proof("a")
    with pytest.raises(TypeError, match="never written out"):
        pickle.dumps(token)


def test_a_token_that_is_missing_or_short_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TokenError, match="its Secret must be mounted there"):
        read_token(tmp_path / "token")
    (tmp_path / "token").write_text("short")
    with pytest.raises(TokenError, match="has 5 characters, at least 32 are needed"):
        read_token(tmp_path / "token")


def test_parts_of_a_proof_cannot_be_shifted() -> None:
    assert TOKEN.proof("a", b"bc", b"d") != TOKEN.proof("a", b"b", b"cd")
    assert TOKEN.proof("a", b"b") != TOKEN.proof("ab", b"")
