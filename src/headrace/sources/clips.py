"""Reads the frames of one video file.

A file of a stranger can be anything. So only containers of video are opened (a playlist would name other files), over nothing
but the file system; a decoder may make no picture larger than a Plan's default; and what is damaged is counted, while the
decoder goes on at the next packet.
"""

from __future__ import annotations

import logging
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.patient_open import open_patiently
from headrace.sources.frames import (
    MOST_PIXELS,
    Choice,
    Chooser,
    Converter,
    Times,
    accelerator,
    error_text,
    find_pictures,
    list_kinds,
    load_av,
    pixel_limit,
    seconds_of,
    set_up_decoder,
)

logger = logging.getLogger("headrace")

#: Containers of video; those that name other files (hls, dash, concat, image2) are none of them.
_CONTAINERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,m4v,flv,asf,ogg,h264,hevc,av1,obu,ivf,gif,mjpeg,"
    "apng,yuv4mpegpipe,dv,mxf,wav,mp3,flac"  # sound, to say that there is no picture
)
_OTHER_CONTAINER = (
    "it is in none of the containers of video that are opened: not a picture or an animated WebP, a playlist, or sound in a "
    "form of its own"
)
#: Reads in a row that fail before the rest of a file is given up.
_MOST_FAILURES = 20
#: A clip may end this much before the time that its header says: where there is sound, it may last longer than the pictures.
_SHORT_SECONDS = 1.0
_SHORT_SECONDS_ALONE = 0.2


@dataclass(frozen=True, slots=True)
class Frame:
    """One picture of a clip, or why none comes."""

    number: int
    """Of the frame among those that were decoded, from 0; of the next one, if this is a refusal."""
    image: np.ndarray | None = None
    """uint8 (height, width, 3), RGB, upright; None: a refusal."""
    seconds: float | None = None
    """The time that the file says, from its own zero; None: it says none."""
    is_corrupt: bool = False
    """The decoder says that parts of it are made up."""
    refused: str = ""


class Clip:
    """One file of video.

    Args:
        path: The file.
        name: For messages.
        choice: Which frames are given out.
        counts: Counted in; `decoded` is the sum of `given` and all that begin with `skipped`.
        threads: That decode it.
        device: On which it is decoded where that can; None: the processor.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        choice: Choice,
        counts: Counter[str],
        threads: int = 1,
        device: str | None = None,
    ) -> None:
        self._path = path
        self._device = device
        self._threads = threads
        self._name = name
        self._choice = choice
        self._counts = counts
        self._number = 0
        self._chooser = Chooser(choice, counts)
        self._size: tuple[int, int] | None = None
        self._last_error = ""

    def frames(self, is_wanted: Callable[[int], bool]) -> Iterator[Frame]:
        """Decode the clip from its start, and give the frames that are chosen and wanted by number.

        Raises:
            MissingExtra: If PyAV is not installed.
        """
        av = load_av()
        self._counts["clips"] += 1
        try:
            container = self._open(av)
        except av.error.ArgumentError:  # what FFmpeg says where it knows the container and may not open it
            yield self._refuse("open", _OTHER_CONTAINER)
            return
        except (av.FFmpegError, OSError, ValueError) as error:
            yield self._refuse("open", f"it cannot be read as video: {error_text(error)}")
            return
        if container is None:
            yield self._refuse("open", "it is a pipe, a device or a socket, and only files are opened")
            return
        with container:
            try:
                yield from self._of_container(av, container, is_wanted)
            except Exception as error:  # whatever it is, it is this clip's, and the others are to be read
                logger.exception("video: %s: an error that was not foreseen", self._name)
                yield self._refuse("read", f"it cannot be read on after {self._number:,} frames: {error_text(error)}")

    def _open(self, av: Any) -> Any:
        """Return the open container, None for what is no file."""

        def opening() -> Any:
            if not stat.S_ISREG(self._path.stat().st_mode):  # to open a pipe is to wait for who writes into it
                return None
            with self._path.open("rb") as file:
                file.read(1)  # FFmpeg says EIO of damaged clips too, and the kernel does not
            return av.open(
                f"file:{self._path}",
                options={"format_whitelist": _CONTAINERS, "protocol_whitelist": "file", **pixel_limit()},
                metadata_errors="replace",
                hwaccel=accelerator(self._device),
            )

        return open_patiently(opening, f"video: {self._name}", (av.FFmpegError,))

    def _of_container(self, av: Any, container: Any, is_wanted: Callable[[int], bool]) -> Iterator[Frame]:
        stream = find_pictures(container)
        if stream is None:
            yield self._refuse("no_stream", f"it holds no video stream, but {list_kinds(container)}")
            return
        if stream.codec_context is None:
            yield self._refuse("codec", "its video is of a codec that PyAV cannot decode")
            return
        set_up_decoder(stream, self._choice, self._threads)
        self._counts["not_on_device"] += self._device is not None and not stream.codec_context.is_hwaccel
        convert, times = Converter(self._choice), Times()
        for frame in self._decode(av, container, stream):
            times.correct(frame)
            number = self._number
            reason = self._chooser.why_not(frame, stream, number) or ("" if is_wanted(number) else "resumed")
            self._number += 1
            self._counts["decoded"] += 1
            if reason:
                self._counts[f"skipped_{reason}"] += 1
                continue
            self._counts["given"] += 1
            yield self._convert(frame, number, convert)
        yield from self._end(container, stream)

    def _decode(self, av: Any, container: Any, stream: Any) -> Iterator[Any]:
        """Give what the decoder makes of all packets, and count those that it makes nothing of."""
        for packet in self._packets(av, container, stream):
            # Not by `skip_frame` of the decoder: many take no notice of it, and some then give nothing.
            if self._choice.keyframes and packet.size and not packet.is_keyframe:
                continue
            try:
                frames = packet.decode()
            except EOFError:
                return
            except Exception as error:  # whatever it is, it is this packet's
                self._counts["damaged_packets"] += 1
                self._last_error = f"; the decoder of {packet.stream.codec_context.name} says {error_text(error)!r}"
                continue
            yield from frames

    def _packets(self, av: Any, container: Any, stream: Any) -> Iterator[Any]:
        """Give the packets; go on behind what cannot be read, up to a limit."""
        failures = 0
        while failures < _MOST_FAILURES:
            try:
                for packet in container.demux(stream):
                    failures = 0
                    self._counts["corrupt_packets"] += bool(packet.is_corrupt)
                    yield packet
                return
            except (EOFError, IndexError):  # IndexError: how PyAV ends a clip in which a stream appeared on the way
                break
            except Exception as error:  # whatever it is, it is this read's
                failures += 1
                self._counts["failed_reads"] += 1
                logger.debug("%s: a read failed: %s", self._name, error_text(error))
        last = av.Packet()  # an empty one: give what you still hold
        last.stream = stream
        yield last

    def _convert(self, frame: Any, number: int, convert: Converter) -> Frame:
        seconds = seconds_of(frame)
        size = (frame.width, frame.height)
        self._counts["size_changes"] += self._size not in (None, size)
        self._size = size
        self._counts["corrupt_frames"] += bool(frame.is_corrupt)
        try:
            image = convert(frame)
        except Exception as error:  # whatever it is, it is this frame's
            reason = f"video.convert: a frame of {size[0]} x {size[1]} {frame.format.name}: {error_text(error)}"
            return Frame(number, seconds=seconds, refused=f"{reason}; check what the sender stored")
        return Frame(number, image, seconds, bool(frame.is_corrupt))

    def _end(self, container: Any, stream: Any) -> Iterator[Frame]:
        """Say what did not come."""
        size = int(container.size)  # of the open file: its name may be gone, or be another's by now
        if missing := _behind_the_end(stream, size):
            reason = f"{missing:,} packets of its index lie behind the end of the file at byte {size:,}"
            yield self._refuse("cut_short", f"{reason}, after {self._number:,} frames")
        elif not self._number:
            most = f"pictures of more than {MOST_PIXELS:,} pixels are not decoded"
            keys = ", and of this clip only packets that its file marks as keyframes" if self._choice.keyframes else ""
            yield self._refuse("no_frame", f"no frame could be decoded ({most}{keys}){self._last_error}")
        elif self._chooser.time is not None and container.duration is not None and not self._choice.keyframes:
            self._note_short(container, self._chooser.time)

    def _note_short(self, container: Any, last: Fraction) -> None:
        """Say that a clip ends before the time of its header."""
        begins = 0 if "matroska" in container.format.name else container.start_time or 0  # from where its header counts
        seconds = float(last) - begins / 1e6
        said = container.duration / 1e6
        if seconds < said - (_SHORT_SECONDS_ALONE if len(container.streams) == 1 else _SHORT_SECONDS):
            self._counts["short_clips"] += 1
            logger.warning("%s: its header says %.2f s, and its last frame is at %.2f s", self._name, said, seconds)

    def _refuse(self, code: str, why: str) -> Frame:
        self._counts[f"refused_{code}"] += 1
        return Frame(self._number, refused=f"video.{code}: {why}; check what the sender stored")


def _behind_the_end(stream: Any, size: int) -> int:
    """Return how many packets the index of a stream says lie behind the end of its file; a size below 0 is not known."""
    entries = stream.index_entries
    if size < 0 or not len(entries):
        return 0
    if entries[-1].pos + entries[-1].size <= size:
        return 0
    return sum(entry.pos + entry.size > size for entry in entries)
