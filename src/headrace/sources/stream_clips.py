"""Keeps a stretch of live streams as clips, packet by packet: nothing is decoded or encoded again, so no pixel changes."""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from headrace.base.errors import HeadraceError, SourceError
from headrace.base.threads import start_thread
from headrace.sources.frames import error_text, find_pictures, has_times, list_kinds, load_av
from headrace.sources.live_stream import open_stream

#: How long a stream may take to be had and to send its first keyframe, beside the stretch.
_FIRST_SECONDS = 20.0
_LONGEST_NAME = 100
#: Of the times of packets that have none of their own: when they came.
_ARRIVALS = Fraction(1, 90_000)
#: Between two packets of one clip.
_JUMP_SECONDS = 10.0


@dataclass(slots=True, kw_only=True)
class StreamClip:
    """What was kept of one stream."""

    stream: str
    file: Path
    packets: int = 0
    num_bytes: int = 0
    """Of the packets."""
    seconds: float = 0.0
    """That its frames cover, by the stream's own clock, or by when they came where it has none."""
    why: str = ""
    """Why it is shorter than was asked, or nothing came; empty: it is not."""
    is_written: bool = True
    """Whether the disk took all of it."""


class _NotWritten(Exception):
    """The file of a clip cannot be written on."""


def keep_clips(
    addresses: Mapping[str, str],
    folder: Path,
    seconds: float,
    *,
    options: Mapping[str, str],
    patience: float,
    stop: threading.Event,
) -> list[StreamClip]:
    """Write a clip of each stream into a folder, all at the same time; a stream that brings nothing leaves no file.

    Args:
        addresses: {name: what FFmpeg opens}.
        folder: It exists; a clip is called after its stream.
        seconds: How much of each stream, from its first keyframe on.
        options: For FFmpeg.
        patience: Seconds without a packet after which a stream is given up.
        stop: Once it is set, clips end where they are.

    Raises:
        MissingExtra: If PyAV is not installed.
        SourceError: If the file of a clip is there.
        HeadraceError: If the system gives no thread.
    """
    av = load_av()
    clips = [StreamClip(stream=name, file=folder / f"{file}.mkv") for name, file in _file_names(addresses).items()]
    taken = [clip.file for clip in clips if clip.file.exists()]
    if taken:
        raise SourceError(f"clips would overwrite {taken[0]}; name an empty folder")
    threads = [
        threading.Thread(
            target=_keep,
            args=(av, clip, addresses[clip.stream], seconds, options, patience, stop),
            name=f"video-{clip.stream}",
            daemon=True,
        )
        for clip in clips
    ]
    try:
        for thread in threads:
            start_thread(thread, "name fewer streams")
    except HeadraceError:
        stop.set()  # those that were started end their clips
        raise
    for thread in threads:
        while thread.is_alive():  # in steps, so that Ctrl-C is heard
            thread.join(0.2)
    return clips


def _keep(
    av: Any,
    clip: StreamClip,
    address: str,
    seconds: float,
    options: Mapping[str, str],
    patience: float,
    stop: threading.Event,
) -> None:
    try:
        with open_stream(av, address, options, patience) as container:
            stream = find_pictures(container)
            if stream is None:
                clip.why = f"it holds no video, but {list_kinds(container)}"
                return
            with _written(av, clip.file) as written:
                _copy(clip, container, stream, written.add_stream_from_template(stream), seconds, stop)
    except _NotWritten as error:
        clip.why, clip.is_written = f"its file cannot be written: {error}", False
        _count_what_is_there(av, clip)
    except Exception as error:  # whatever it is, it is this stream's
        clip.why = f"it broke off: {error_text(error)}"
    finally:
        if not clip.packets:
            clip.file.unlink(missing_ok=True)
            clip.why = clip.why or "no keyframe came"


@contextlib.contextmanager
def _written(av: Any, file: Path) -> Iterator[Any]:
    """Give the container of a new file; raise _NotWritten where it cannot be made or finished."""
    with _writing(av):
        container = av.open(f"file:{file}", "w", format="matroska")  # else what is before a colon would be a protocol
    try:
        yield container
    finally:
        with _writing(av):
            container.close()


@contextlib.contextmanager
def _writing(av: Any) -> Iterator[None]:
    try:
        yield
    except (av.FFmpegError, OSError) as error:
        raise _NotWritten(error_text(error)) from None


def _count_what_is_there(av: Any, clip: StreamClip) -> None:
    clip.packets, clip.num_bytes, clip.seconds = 0, 0, 0.0
    with contextlib.suppress(av.FFmpegError, OSError), av.open(f"file:{clip.file}", format="matroska") as container:
        for packet in container.demux(video=0):
            if packet.size and packet.pts is not None:
                clip.packets, clip.num_bytes = clip.packets + 1, clip.num_bytes + packet.size
                clip.seconds = max(clip.seconds, float(packet.pts * packet.time_base))


def _copy(clip: StreamClip, container: Any, stream: Any, target: Any, seconds: float, stop: threading.Event) -> None:
    """Copy packets from the first keyframe on, with times from 0, until they cover the stretch."""
    first: int | None = None
    last = -1
    until = time.monotonic() + _FIRST_SECONDS + 2 * seconds  # of a stream whose clock stands still
    av, has_clock = load_av(), has_times(container)
    for packet in container.demux():  # of all streams: else sound alone would keep this here
        if stop.is_set() or time.monotonic() >= until:
            clip.why = "it was stopped" if stop.is_set() else "its own clock stands still, or no more pictures come"
            return
        if packet.stream.index != stream.index or not packet.size or (first is None and not packet.is_keyframe):
            continue
        if not has_clock:
            packet.time_base = _ARRIVALS
            packet.pts = packet.dts = max(int(time.monotonic() / _ARRIVALS), (first or 0) + last + 1)
        time_of = packet.dts if packet.dts is not None else packet.pts
        if time_of is None:
            continue  # a clip cannot hold what has no place in time
        first = time_of if first is None else first
        if time_of - first <= last:
            clip.why = "its own clock ran back"
            return
        if last >= 0 and (time_of - first - last) * packet.time_base > _JUMP_SECONDS:
            clip.why = "its own clock jumped ahead, or nothing was sent for long"
            return
        clip.seconds = float((time_of - first) * packet.time_base)
        if clip.seconds >= seconds:
            return
        last = packet.dts = time_of - first
        packet.pts = time_of - first if packet.pts is None else packet.pts - first
        clip.packets, clip.num_bytes = clip.packets + 1, clip.num_bytes + packet.size
        packet.stream = target
        with _writing(av):
            target.container.mux(packet)
    clip.why = "it ended"


def _file_names(streams: Iterable[str]) -> dict[str, str]:
    """Return {stream: name of its file}; a number tells apart those of which nothing else would."""
    found: dict[str, str] = {}
    for stream in streams:
        name, taken = _file_name(stream), {one.lower() for one in found.values()}
        numbered = (f"{name}-{number}" for number in itertools.count(2))
        found[stream] = next(one for one in itertools.chain([name], numbered) if one.lower() not in taken)
    return found


def _file_name(stream: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", stream)[:_LONGEST_NAME].strip("._") or "stream"
