"""Clients of gRPC servers that share a port: they are let in by one, let go by another, and lose no call."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.serve.http.listening import listen
from headrace.serve.oip.grpc_relay import GOAWAY, Frames, GrpcRelay, _ServerSide, _Side
from headrace.serve.oip.inference import Inference
from tests.unit.serve.http.test_front import certificate
from tests.unit.serve.oip.answering import Ready, answering
from tests.unit.serve.oip.sums import Sums

SETTINGS = bytes([0, 0, 6, 4, 0, 0, 0, 0, 0]) + b"\0\4\0\1\0\0"
ACK = bytes([0, 0, 0, 4, 1, 0, 0, 0, 0])
DATA = bytes([0, 1, 44, 0, 1, 0, 0, 0, 1]) + bytes(300)
OWN_GOAWAY = bytes([0, 0, 8, 7, 0, 0, 0, 0, 0]) + bytes(8)


@pytest.mark.parametrize("cut", [1, 2, 8, 9, 10, 17, 10_000])
def test_the_ends_of_frames_are_known_wherever_the_network_cuts(cut: int) -> None:
    """The same places, byte by byte or all at once."""
    whole = SETTINGS + ACK + DATA + ACK
    ends = {len(SETTINGS), len(SETTINGS + ACK), len(SETTINGS + ACK + DATA), len(whole)}
    frames = Frames()
    assert not frames.is_between, "nothing may come before the first frame, which is SETTINGS"
    for place in range(0, len(whole), cut):
        piece = whole[place : place + cut]
        first = frames.take(piece)
        within = [end - place for end in sorted(ends) if place < end <= place + len(piece)]
        assert first == (within[0] if within else None)
        assert frames.is_between == (place + len(piece) in ends)
    assert not frames.said_goaway


class Short:
    """A listening socket for whose clients there is no descriptor at first, and which is ready all the while."""

    def __init__(self, listening: socket.socket, failing: int) -> None:
        self.listening, self.failing, self.num_tried = listening, failing, 0
        self.fileno, self.setblocking, self.close = listening.fileno, listening.setblocking, listening.close

    def accept(self) -> tuple[socket.socket, Any]:
        """Fail, or accept."""
        self.num_tried += 1
        if self.num_tried <= self.failing:
            raise OSError(errno.EMFILE, "Too many open files")
        return self.listening.accept()


@pytest.mark.parametrize(("failing", "most"), [(2, 10), (0, 1)])
def test_where_there_is_no_room_the_relay_waits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failing: int, most: int
) -> None:
    """Without spinning; said once. Who cannot come in waits until somebody has gone."""
    monkeypatch.setattr("headrace.serve.oip.grpc_relay._PAUSE_SECONDS", 0.05)

    async def say_hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        await reader.read()  # until its client has gone
        writer.close()
        await writer.wait_closed()
        gone.append(writer)

    gone: list[asyncio.StreamWriter] = []

    async def meet() -> int:
        listening = listen("127.0.0.1", 0, reuse_port=False)
        short = Short(listening, failing)
        relay = GrpcRelay(short, most=most)  # type: ignore[arg-type]
        server = await asyncio.start_unix_server(say_hello, relay.place[5:])
        relay.start()
        clients = [await asyncio.open_connection(*listening.getsockname()) for _ in range(2)]
        first = await clients[0][0].read(5)
        clients[0][1].close()
        second = await clients[1][0].read(5)
        assert (first, second) == (b"hello", b"hello")
        clients[1][1].close()
        while len(gone) < len(clients):
            await asyncio.sleep(0.01)
        await relay.close()
        server.close()
        return short.num_tried

    assert asyncio.run(meet()) < 20 + failing
    assert len([one for one in caplog.messages if one.startswith("grpc.accept")]) == min(failing, 1)


class Kept(_Side):
    """A client that keeps what is written to it."""

    def __init__(self) -> None:
        self.written = b""
        self.transport = self  # type: ignore[assignment]

    def write(self, data: bytes) -> None:
        """Keep it."""
        self.written += data


def told(*pieces: bytes | None) -> bytes:
    """Return what a client gets; None: it is asked to go."""
    server, client = _ServerSide(), Kept()
    server.other = client
    for piece in pieces:
        if piece is None:
            server.let_go()
        else:
            server.data_received(piece)
    return client.written


def test_a_client_is_told_between_two_frames_and_once() -> None:
    """At once where that is between two, else behind the one that has begun; before the first, nothing may come."""
    assert told(SETTINGS, None, DATA) == SETTINGS + GOAWAY + DATA
    assert told(SETTINGS, DATA[:20], None, DATA[20:] + ACK) == SETTINGS + DATA + GOAWAY + ACK
    assert told(None, SETTINGS[:4], SETTINGS[4:], ACK, DATA) == SETTINGS + GOAWAY + ACK + DATA


def test_a_server_that_said_so_itself_is_not_contradicted() -> None:
    """A second one must not name a higher number."""
    assert told(SETTINGS, OWN_GOAWAY, None, DATA) == SETTINGS + OWN_GOAWAY + DATA
    assert told(None, SETTINGS[:5], SETTINGS[5:] + OWN_GOAWAY).count(GOAWAY) <= 1
    assert told(SETTINGS, OWN_GOAWAY[:12], None, OWN_GOAWAY[12:] + DATA) == SETTINGS + OWN_GOAWAY + DATA


@pytest.fixture
def port(tmp_path: Path) -> Iterator[Any]:
    """Return a function that starts another server on one port, encrypted or not, and the port."""
    pytest.importorskip("grpc")
    from headrace.serve.oip.grpc_front import GrpcFront

    listening, fronts = listen("127.0.0.1", 0, reuse_port=False), []
    with answering(Sums.add_up) as door:

        def start(tls: tuple[str, str] | None = None) -> Any:
            pipeline = hr.Pipeline(hr.items([]), module=Sums(), name="sums")
            fronts.append(GrpcFront(Inference(pipeline, door), Ready(), listening=listening.dup(), tls=tls))
            fronts[-1].start()
            return fronts[-1]

        try:
            yield start
        finally:
            for front in fronts:
                front.close()
            listening.close()


def test_what_is_encrypted_is_relayed_as_well(port: Any, tmp_path: Path) -> None:
    """By the relay's own TLS, which speaks HTTP/2; and a drain ends although its client stays connected until it is told."""
    import grpc

    files = certificate(tmp_path)
    front = port(files)
    assert front.url.startswith("grpcs://")
    credentials = grpc.ssl_channel_credentials(Path(files[0]).read_bytes())
    with grpc.secure_channel("{}:{}".format(*front.address), credentials) as channel:
        assert channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", timeout=30)
        front.drain(30)
    front.close()


def test_an_idle_client_is_told_to_go(port: Any) -> None:
    """Else a drain would last as long as it may."""
    import grpc

    front = port()
    with grpc.insecure_channel("{}:{}".format(*front.address)) as channel:
        assert channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", timeout=30)
        relay = front._relay
        assert len(relay.clients) == 1
        front.drain(600)
        assert relay.clients == set()


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of its socket, once it is old; one that is closed leaves none."""
    make = "import socket; from headrace.serve.oip.grpc_relay import GrpcRelay; relay = GrpcRelay(socket.socket())"
    killed = subprocess.run(
        [sys.executable, "-c", f"{make}; import os; print(relay.place, flush=True); os.kill(os.getpid(), 9)"],
        env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    left = Path(killed.stdout.strip().removeprefix("unix:")).parent
    assert left.is_relative_to(tmp_path)
    os.utime(left, (0, 0))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    relay = GrpcRelay(socket.socket())
    folder = Path(relay.place.removeprefix("unix:")).parent
    assert (left.exists(), folder.exists()) == (False, True)
    asyncio.run(relay.close())
    assert not folder.exists()
