"""Cameras in a process of their own: each sends a clip at its pace, again and again, for little CPU, over TCP or by RTSP.

How this works: one thread sends to all; a heap says who is next. What a camera sends for a frame is cut out of the clip once. A
receiver that takes nothing is not waited for: its camera leaves frames out, as one does whose network is full. By RTSP, a
camera answers what its receivers ask, and sends RTP within the same connection.
"""

from __future__ import annotations

import heapq
import itertools
import multiprocessing
import random
import re
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import av

from benchmarks.video.clips import FPS

#: Bytes that wait in the kernel for one receiver; a tenth of a second of a rich stream would do.
_BUFFER = 1 << 20

Order = Callable[[str, int, float], None]
"""(what, camera, number): `away` cuts a camera off for so many seconds, `freeze` lets it send nothing, `damage` lets it send
damaged bytes, `speed` is of all."""


@contextmanager
def cameras(clip: Path, count: int, scheme: str = "tcp") -> Iterator[tuple[list[str], Order]]:
    """Give the addresses, `tcp://` or `rtsp://`, of so many cameras that send a clip (`.ts`), and what orders them about."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_serve, args=(clip, count, scheme, theirs), daemon=True
    )
    process.start()
    try:
        yield ours.recv(), lambda what, camera, number: ours.send((what, camera, number))
    finally:
        process.kill()
        process.join()


def _serve(clip: Path, count: int, scheme: str, orders: Any) -> None:
    frames = _cut(clip) if scheme == "tcp" else _units(clip)
    kind = _Camera if scheme == "tcp" else _RtspCamera
    speed = [1.0]
    all_of_them = [kind(frames) for _ in range(count)]
    orders.send([f"{scheme}://127.0.0.1:{camera.port}" for camera in all_of_them])
    now = time.monotonic()
    # Cameras that were switched on one after the other send at different moments.
    due = [(now + number / count / FPS, number) for number in range(count)]
    heapq.heapify(due)
    while True:
        while orders.poll():
            what, camera, number = orders.recv()
            if what == "speed":
                speed[0] = number
            else:
                all_of_them[camera].stay(what, time.monotonic() + number)
        at, number = heapq.heappop(due)
        _wait(all_of_them, at)
        all_of_them[number].send()
        heapq.heappush(due, (at + 1 / FPS / speed[0], number))


def _wait(all_of_them: Sequence[_Camera], until: float) -> None:
    """Let time pass until a moment; who asks a camera something meanwhile is answered at once, as cameras do."""
    while (left := until - time.monotonic()) > 0:
        asked = {one: camera for camera in all_of_them for one in camera.listens_to()}
        for one in select.select(list(asked), [], [], left)[0]:
            asked[one].answer()


class _Camera:
    def __init__(self, frames: Sequence[bytes]) -> None:
        self._frames = frames
        self._next = 0
        self._until, self._does = 0.0, ""
        self._chance = random.Random(len(frames))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self._peers: list[socket.socket] = []
        self.port = self._listener.getsockname()[1]

    def stay(self, what: str, until: float) -> None:
        """Be `away`, connections cut, `freeze`, or `damage` what is sent, until then."""
        self._until, self._does = until, what
        if what == "away":
            self._hang_up()

    def close(self) -> None:
        """Go for good."""
        self._listener.close()
        self._hang_up()

    def send(self) -> None:
        """Send the next frame to who is there, and look who comes."""
        does = self._doing()
        if does == "freeze":
            return
        self._accept()
        if does == "away":
            self._hang_up()
            return
        frame = self._frames[self._next % len(self._frames)]
        self._next += 1
        frame = self._wrap(damage(frame, self._chance) if does == "damage" else frame)
        for peer in list(self._peers):
            try:
                if self._is_ready(peer):
                    peer.send(frame)  # half a frame is garbage for the decoder, as on a full network
            except BlockingIOError:
                continue
            except OSError:
                self._forget(peer)

    def _forget(self, peer: socket.socket) -> None:
        self._peers.remove(peer)
        peer.close()

    def listens_to(self) -> Sequence[socket.socket]:
        """Return where somebody may ask something that is not answered with the next frame."""
        return ()

    def answer(self) -> None:
        """Answer what was asked there."""

    def _doing(self) -> str:
        return self._does if time.monotonic() < self._until else ""

    def _accept(self) -> None:
        while select.select([self._listener], [], [], 0)[0]:
            peer, _ = self._listener.accept()
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
            peer.setblocking(False)
            self._peers.append(peer)

    def _is_ready(self, peer: socket.socket) -> bool:
        """Return whether a receiver wants frames; raises OSError if it is gone."""
        return True

    def _wrap(self, frame: bytes) -> bytes:
        """Return what is sent for a frame."""
        return frame

    def _hang_up(self) -> None:
        while self._peers:
            self._peers.pop().close()


class _RtspCamera(_Camera):
    """Sends frames, each the units of H.264 one behind the other, as RTP within the connection (RFC 2326, 3550, 6184)."""

    def __init__(self, frames: Sequence[bytes]) -> None:
        super().__init__(frames)
        self._playing: set[socket.socket] = set()
        self._number = 0

    def listens_to(self) -> Sequence[socket.socket]:
        """Return where receivers come and ask, unless the camera is away or frozen."""
        return () if self._doing() in ("away", "freeze") else (self._listener, *self._peers)

    def answer(self) -> None:
        """Answer all of them."""
        self._accept()
        for peer in list(self._peers):
            try:
                self._is_ready(peer)
            except OSError:
                self._forget(peer)

    def _is_ready(self, peer: socket.socket) -> bool:
        """Answer what a receiver asks; it wants frames from PLAY on."""
        while select.select([peer], [], [], 0)[0]:
            asked = peer.recv(4096)
            if not asked:
                raise ConnectionResetError
            for request in re.finditer(rb"([A-Z_]+) \S+ RTSP/1.0\r\n(?:.+\r\n)*?CSeq: *(\d+)", asked):
                method, number = request[1].decode(), request[2].decode()
                more, body = _ANSWERS.get(method, ""), _DESCRIPTION if method == "DESCRIBE" else ""
                told = f"RTSP/1.0 200 OK\r\nCSeq: {number}\r\n{more}Content-Length: {len(body)}\r\n\r\n{body}"
                peer.sendall(told.encode())
                if method == "PLAY":
                    self._playing.add(peer)
        return peer in self._playing

    def _wrap(self, frame: bytes) -> bytes:
        pieces = list(rtp_pieces(frame))
        stamp = round(self._next * _RTP_CLOCK / FPS) & 0xFFFFFFFF
        packets = b""
        for place, piece in enumerate(pieces, 1):
            is_last = place == len(pieces)
            head = struct.pack(
                ">BBHII", 0x80, _RTP_TYPE | is_last << 7, self._number & 0xFFFF, stamp, id(self) & 0xFFFFFFFF
            )
            self._number += 1
            packets += struct.pack(">cBH", b"$", 0, len(head) + len(piece)) + head + piece
        return packets

    def _hang_up(self) -> None:
        super()._hang_up()
        self._playing.clear()


_RTP_CLOCK, _RTP_TYPE, _RTP_BYTES = 90_000, 96, 1400
_DESCRIPTION = (
    "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=camera\r\nc=IN IP4 0.0.0.0\r\nt=0 0\r\n"
    f"m=video 0 RTP/AVP {_RTP_TYPE}\r\na=rtpmap:{_RTP_TYPE} H264/{_RTP_CLOCK}\r\n"
    f"a=fmtp:{_RTP_TYPE} packetization-mode=1\r\na=control:track\r\n"
)
_ANSWERS = {
    "OPTIONS": "Public: OPTIONS, DESCRIBE, SETUP, PLAY, TEARDOWN, GET_PARAMETER\r\n",
    "DESCRIBE": "Content-Type: application/sdp\r\n",
    "SETUP": "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\nSession: 1;timeout=60\r\n",
    "PLAY": "Session: 1\r\n",
}


def rtp_pieces(frame: bytes) -> Iterator[bytes]:
    """Give what each packet of RTP carries of a frame: a whole unit, or a part of one."""
    for unit in re.split(rb"\x00*\x00\x00\x01", frame):
        if len(unit) <= _RTP_BYTES:
            if unit:
                yield unit
            continue
        indicator, kind = unit[0] & 0xE0 | 28, unit[0] & 0x1F
        for first in range(1, len(unit), _RTP_BYTES):
            ends = first + _RTP_BYTES >= len(unit)
            yield bytes((indicator, kind | (first == 1) << 7 | ends << 6)) + unit[first : first + _RTP_BYTES]


def _units(clip: Path) -> list[bytes]:
    """Return the units of H.264 of each frame, as a stream of bytes."""
    with av.open(str(clip)) as container:
        return [bytes(packet) for packet in container.demux(container.streams.video[0]) if packet.size]


def _cut(clip: Path) -> list[bytes]:
    """Return what is sent for each frame: whole packets of the transport stream, so that frames come evenly."""
    data = clip.read_bytes()
    with av.open(str(clip)) as container:
        packets = container.demux(container.streams.video[0])
        begins = sorted(packet.pos for packet in packets if packet.size and packet.pos is not None)
    return [data[first:last] for first, last in itertools.pairwise([0, *begins[1:], len(data)])]


def damage(data: bytes, chance: random.Random) -> bytes:
    """Return bytes with one to twenty places changed, cut out or doubled, or the end cut off."""
    damaged = bytearray(data)
    for _ in range(chance.randint(1, 20)):
        at, length = chance.randrange(len(damaged)), chance.choice((1, 4, 188, 1000))
        match chance.choice(("change", "change", "cut", "double", "end")):
            case "change":
                damaged[at : at + length] = chance.randbytes(len(damaged[at : at + length]))
            case "cut":
                del damaged[at : at + length]
            case "double":
                damaged[at:at] = damaged[at : at + length]
            case "end" if chance.random() < 0.1:
                del damaged[at:]
        if not damaged:
            break
    return bytes(damaged)
