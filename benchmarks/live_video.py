"""Live streams that bring twice what the pipeline can do: how old answers are, how fairly streams share, what a break costs.

Senders in a process of their own send clips of a moving photograph over TCP, frame by frame as a camera would. The model is a
stage that sleeps, so that the limit is known. One sender breaks off again and again for a second while the others go on.

    python -m benchmarks.live_video [--quick] [--json] [--write]
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import socket
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cv2
import numpy as np

import headrace as hr
from benchmarks import measure
from headrace.samples.catalogue import photograph

FPS = 25
SIZE = (320, 180)
MAX_AGE_SECONDS = 0.5
_BREAK_SECONDS = 1.0


@dataclass
class Seen:
    """Keeps when each answer came, and how old its frame was."""

    flush_items = 1
    flush_seconds = 1.0
    default_workers = 1
    is_instant = True
    answers: list[tuple[float, str, float]] = field(default_factory=list)
    """(monotonic seconds, stream, age in seconds)"""

    def open(self, context: Any) -> None:
        """Do nothing."""

    def deliver(self, job: hr.Job, result: Any) -> bool:
        """Note one answer."""
        self.answers.append((time.monotonic(), str(job.stream), time.time() - job.attributes["arrived"]))
        return True

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def run(quick: bool) -> dict[str, Any]:
    """Return ages, shares, balance and recoveries of one run.

    Args:
        quick: A smoke run: 8 streams for 12 s instead of 16 for 40 s.
    """
    streams, seconds = (8, 12.0) if quick else (16, 40.0)
    with tempfile.TemporaryDirectory() as folder:
        data = make_clip(Path(folder) / "clip.ts", int(FPS * 10))
        ours, theirs = multiprocessing.Pipe()
        sender = multiprocessing.get_context("spawn").Process(
            target=_send_all, args=(data, streams, theirs), daemon=True
        )
        sender.start()
        addresses: list[str] = ours.recv()
        try:
            return {**_watch(addresses, seconds, ours), "quick": quick}
        finally:
            sender.kill()
            sender.join()


def _watch(addresses: Sequence[str], seconds: float, senders: Connection) -> dict[str, Any]:
    names = [f"camera-{number}" for number in range(len(addresses))]
    source = hr.live_video(dict(zip(names, addresses, strict=True)), max_age=MAX_AGE_SECONDS)
    seen = Seen()
    capacity = len(addresses) * FPS / 2
    limit = int(capacity * seconds)
    breaks: list[float] = []
    ended = threading.Event()
    breaking = threading.Thread(target=_break_first, args=(senders, breaks, ended), daemon=True)
    breaking.start()
    cpu, began = measure.tree_cpu_seconds(), time.monotonic()
    result = hr.run(
        hr.Pipeline(source, stages=[hr.emulated("model", seconds=1 / capacity)], delivery=seen),
        hr.Plan().with_settings(["model.workers=1"]),
        limit=limit,
    )
    wall, cpu = time.monotonic() - began, measure.tree_cpu_seconds() - cpu
    ended.set()
    breaking.join()
    counts = source.counts()
    ages = sorted(age for _, _, age in seen.answers)
    answering = seen.answers[-1][0] - seen.answers[0][0]
    shares = Counter(name for _, name, _ in seen.answers)
    steady = [shares[name] for name in names[1:]]  # the first one is away for some of the time
    return {
        "streams": len(addresses),
        "seconds": answering,
        "start_seconds": wall - answering,
        "capacity": capacity,
        "rate": (len(ages) - 1) / answering,
        "age_p50_seconds": statistics.median(ages),
        "age_p99_seconds": ages[math.ceil(0.99 * len(ages)) - 1],
        "age_p99_share": ages[math.ceil(0.99 * len(ages)) - 1] / MAX_AGE_SECONDS,
        "late": result.counters.rejected,
        "jain": sum(steady) ** 2 / (len(steady) * sum(number**2 for number in steady)),
        "unbalanced": sum(
            counts[name]["decoded"] - sum(number for what, number in counts[name].items() if what != "decoded")
            for name in names
        ),
        "decoded": sum(counts[name]["decoded"] for name in names),
        "cpu_ms_per_decoded_frame": 1e3 * cpu / sum(counts[name]["decoded"] for name in names),
        "recovery_seconds": _recoveries(breaks, [at for at, name, _ in seen.answers if name == names[0]]),
    }


def _break_first(senders: Connection, breaks: list[float], ended: threading.Event) -> None:
    """Let the first sender break off every five seconds; note when it was there again."""
    while not ended.wait(4.0):
        senders.send("break")
        senders.recv()
        breaks.append(time.monotonic())


def _recoveries(breaks: Sequence[float], answers: Sequence[float]) -> list[float]:
    firsts = [next((at for at in answers if at >= back), None) for back in breaks]
    return [first - back for first, back in zip(firsts, breaks, strict=True) if first is not None]


def make_clip(path: Path, count: int) -> bytes:
    """Return an MPEG transport stream of a photograph that moves, a keyframe at each second."""
    import av

    picture = cv2.cvtColor(cv2.imread(str(photograph("chelsea").path)), cv2.COLOR_BGR2RGB)
    picture = cv2.resize(picture, (SIZE[0] + 100, SIZE[1] + 100))
    with av.open(str(path), "w", format="mpegts") as container:
        stream: Any = container.add_stream("libx264", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
        stream.codec_context.gop_size, stream.codec_context.max_b_frames = FPS, 0
        stream.options = {"preset": "veryfast", "tune": "zerolatency"}
        for number in range(count):
            x = round(50 + 50 * math.sin(number / 20))
            image = np.ascontiguousarray(picture[x : x + SIZE[1], x : x + SIZE[0]])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))
    return path.read_bytes()


def _send_all(data: bytes, streams: int, orders: Connection) -> None:
    """Send the clip on as many ports, again and again; on `break`, let the first be away for a second."""
    servers = [_Camera(data) for _ in range(streams)]
    orders.send([f"tcp://127.0.0.1:{server.port}" for server in servers])
    while orders.recv():
        servers[0].go_away()
        time.sleep(_BREAK_SECONDS)
        servers[0].come_back()
        orders.send("back")


class _Camera:
    """Sends a clip at its pace to each who connects."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._away = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def go_away(self) -> None:
        """Cut all connections, and close each new one at once."""
        self._away.set()

    def come_back(self) -> None:
        """Send to who connects from now on."""
        self._away.clear()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._send, args=(connection,), daemon=True).start()

    def _send(self, connection: socket.socket) -> None:
        packets = len(self._data) // 188
        per_second = packets / 10  # the clip lasts ten seconds
        began = time.monotonic()
        with connection, suppress(OSError):
            for step in itertools.count():
                if self._away.is_set():
                    return
                first, last = (int(at * per_second / FPS) for at in (step, step + 1))
                connection.sendall(b"".join(self._packet(number % packets) for number in range(first, last)))
                time.sleep(max(0.0, began + (step + 1) / FPS - time.monotonic()))

    def _packet(self, number: int) -> bytes:
        return self._data[number * 188 : (number + 1) * 188]


def as_text(result: dict[str, Any]) -> str:
    """Return the result for readers."""
    recoveries = result["recovery_seconds"]
    away = (
        f"{statistics.median(recoveries):.2f} s after it was back, {max(recoveries):.2f} s at most"
        if recoveries
        else "-"
    )
    return f"""# Live streams that bring twice what the pipeline can do

- {result["streams"]} streams of {FPS} frames a second and {SIZE[0]} x {SIZE[1]} for {result["seconds"]:.0f} s; the model does
  {result["capacity"]:.0f} a second: {result["rate"]:.0f} answers a second
- age of an answer: median {result["age_p50_seconds"] * 1e3:.0f} ms, p99 {result["age_p99_seconds"] * 1e3:.0f} ms, which is
  {result["age_p99_share"]:.2f} of `max_age`; {result["late"]} frames were given out and were too old for the model
- fairness (Jain's index) over the streams that did not break off: {result["jain"]:.4f}
- {result["decoded"]:,} frames were decoded; of {result["unbalanced"]} it is not known what became of them
- {result["cpu_ms_per_decoded_frame"]:.2f} ms of CPU for each decoded frame, everything included
- one stream broke off {len(recoveries)} times for a second; its next answer came {away}
"""


if __name__ == "__main__":
    measure.run_benchmark("live_video", "Live streams beyond what the pipeline can do.", run, as_text)
