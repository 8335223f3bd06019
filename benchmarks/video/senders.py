"""Cameras in a process of their own: each sends a clip over TCP at its pace, again and again, for little CPU.

How this works: one thread sends to all; a heap says who is next. What a camera sends for a frame is cut out of the clip once. A
receiver that takes nothing is not waited for: its camera leaves frames out, as one does whose network is full.
"""

from __future__ import annotations

import heapq
import itertools
import multiprocessing
import random
import select
import socket
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
def cameras(clip: Path, count: int) -> Iterator[tuple[list[str], Order]]:
    """Give the addresses of so many cameras that send a clip (`.ts`), and what orders them about."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(clip, count, theirs), daemon=True)
    process.start()
    try:
        yield ours.recv(), lambda what, camera, number: ours.send((what, camera, number))
    finally:
        process.kill()
        process.join()


def _serve(clip: Path, count: int, orders: Any) -> None:
    frames = _cut(clip)
    speed = [1.0]
    all_of_them = [_Camera(frames) for _ in range(count)]
    orders.send([f"tcp://127.0.0.1:{camera.port}" for camera in all_of_them])
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
        if (wait := at - time.monotonic()) > 0:
            time.sleep(wait)
        all_of_them[number].send()
        heapq.heappush(due, (at + 1 / FPS / speed[0], number))


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

    def send(self) -> None:
        """Send the next frame to who is there, and look who comes."""
        does = self._does if time.monotonic() < self._until else ""
        if does == "freeze":
            return
        while select.select([self._listener], [], [], 0)[0]:
            peer, _ = self._listener.accept()
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
            peer.setblocking(False)
            self._peers.append(peer)
        if does == "away":
            self._hang_up()
            return
        frame = self._frames[self._next % len(self._frames)]
        self._next += 1
        if does == "damage":
            frame = damage(frame, self._chance)
        for peer in list(self._peers):
            try:
                if peer.send(frame) < len(frame):  # half a frame is garbage for the decoder, as on a full network
                    continue
            except BlockingIOError:
                continue
            except OSError:
                self._peers.remove(peer)
                peer.close()

    def _hang_up(self) -> None:
        while self._peers:
            self._peers.pop().close()


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
