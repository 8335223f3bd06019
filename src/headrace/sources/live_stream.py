"""Reads one live stream without end, in a thread of its own, so that what comes late is what nobody wanted.

How this works: the thread takes what the sender sends at once, always; if it did not, the sender or its network would hold it
back, and every picture would be older than the one before, or the connection would be cut. It decodes each frame, because a
later one needs it, and offers those that are chosen. It converts none: that is done for the frames that somebody takes.

A connection that is lost, or brings nothing for some seconds, is closed, and a new one is tried at random times that grow up to
a limit. Decoding begins at a keyframe. The time of a frame is when its last packet came: the times that cameras write begin
anywhere, jump and run backwards.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.sources.frames import (
    Choice,
    Chooser,
    error_text,
    find_pictures,
    list_kinds,
    load_av,
    seconds_of,
    set_up_decoder,
)
from headrace.sources.live_addresses import PROTOCOLS

logger = logging.getLogger("headrace")

_OPEN_SECONDS = 10.0
#: A connection that brings nothing for so long is given up.
_SILENT_SECONDS = 3.0
#: Pauses between tries are drawn from 0 to this, doubled up to the limit.
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0
#: A stream that never says that a frame is a keyframe is decoded from where it is.
_NO_KEYFRAME_SECONDS = 10.0
#: A stream that is lost again is told of so often.
_TELL_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class LiveFrame:
    """One decoded frame, not converted."""

    number: int
    """Of the frame among those that were decoded in the run, from 0."""
    picture: Any
    """PyAV's."""
    arrived_ns: int
    """When its last packet came, on the host's monotonic clock."""
    arrived_at: float
    """The same, Unix seconds."""
    seconds: float | None
    """The time that the stream says, from its own zero; None: it says none."""


class LiveStream:
    """One address; `start` begins to read it.

    Args:
        name: For messages.
        address: What FFmpeg opens; its scheme is one of PROTOCOLS. It may hold a password, and is never shown.
        choice: Which frames are offered.
        options: For FFmpeg, beside and above our own.
        offer: Called in the thread with a frame and why it is not wanted (empty: it is).
        ended: Called in the thread when nothing more comes.
        stays: Whether a stream that ends is opened again.

    Attributes:
        counts: What happened to connections and packets; `opened` and `lost` among them.
        is_live: Whether frames come.
    """

    def __init__(
        self,
        name: str,
        address: str,
        choice: Choice,
        *,
        options: Mapping[str, str],
        offer: Callable[[LiveFrame, str], object],
        ended: Callable[[], object],
        stays: bool,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.is_live = False
        self._name = name
        self._address = address
        self._choice = choice
        self._options = options
        self._offer = offer
        self._ended = ended
        self._stays = stays
        self._number = 0
        self._closing = threading.Event()
        self._lost_at: float | None = None
        self._told_at = -_TELL_SECONDS
        self._thread = threading.Thread(target=self._read, name=f"video-{name}", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end after the packet that it is at; does not wait."""
        self._closing.set()

    def join(self, until: float) -> None:
        """Wait for the thread until a time (monotonic seconds)."""
        if self._thread.is_alive():
            self._thread.join(max(0.0, until - time.monotonic()))

    def _read(self) -> None:
        failures = 0
        try:
            while not self._closing.is_set():
                before = self._number
                why = self._read_connection()
                came = self._number > before
                if self._closing.is_set() or (came and not self._stays and not why):
                    return
                self._note_lost(why or "it ended")
                failures = 0 if came else failures + 1
                longest = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** min(failures, 10))
                self._closing.wait(random.uniform(0, longest))
        finally:
            self.is_live = False
            self._ended()

    def _read_connection(self) -> str:
        """Read until the stream ends; return why it broke off, empty if it came to its end."""
        av = load_av()
        protocols, containers = PROTOCOLS[self._address.partition(":")[0].lower()]
        options = {"protocol_whitelist": protocols, "format_whitelist": containers, **self._options}
        if "rtsp" in protocols:
            options.setdefault("rtsp_transport", "tcp")
        try:
            with av.open(
                self._address, options=options, timeout=(_OPEN_SECONDS, _SILENT_SECONDS), metadata_errors="replace"
            ) as container:
                stream = find_pictures(container)
                if stream is None or stream.codec_context is None:
                    return f"it holds no video that PyAV can decode, but {list_kinds(container)}"
                set_up_decoder(stream)
                self.counts["opened"] += 1
                self._read_frames(av, container, stream)
        except EOFError:
            return ""
        except (av.FFmpegError, OSError, ValueError) as error:
            return error_text(error)
        return ""

    def _read_frames(self, av: Any, container: Any, stream: Any) -> None:
        chooser = Chooser(self._choice, self.counts)
        for packet in self._decodable(container, stream):
            if self._closing.is_set():
                return
            arrived_ns, arrived_at = time.monotonic_ns(), time.time()
            self.counts["corrupt_packets"] += bool(packet.is_corrupt)
            try:
                frames = packet.decode()
            except EOFError:
                return
            except (av.FFmpegError, ValueError, MemoryError):
                self.counts["damaged_packets"] += 1
                continue
            for picture in frames:
                self._note_live()
                number, self._number = self._number, self._number + 1
                self._offer(
                    LiveFrame(number, picture, arrived_ns, arrived_at, seconds_of(picture)),
                    chooser.why_not(picture, stream, number),
                )

    def _decodable(self, container: Any, stream: Any) -> Iterator[Any]:
        """Give the packets from the first keyframe on, or all after a while."""
        begin_at = time.monotonic() + _NO_KEYFRAME_SECONDS
        has_begun = False
        for packet in container.demux(stream):
            has_begun = has_begun or packet.is_keyframe or time.monotonic() >= begin_at
            if not has_begun:
                self.counts["packets_before_keyframe"] += 1
            elif packet.is_keyframe or not self._choice.keyframes or not packet.size:
                yield packet

    def _note_live(self) -> None:
        if self.is_live:
            return
        self.is_live = True
        if self._lost_at is not None:
            logger.warning("video: %s is back after %.1f s", self._name, time.monotonic() - self._lost_at)
            self._lost_at = None

    def _note_lost(self, why: str) -> None:
        now = time.monotonic()
        self.counts["lost" if self.is_live else "not_opened"] += 1
        self.is_live = False
        if self._lost_at is None:
            self._lost_at = now
        if now >= self._told_at + _TELL_SECONDS:
            self._told_at = now
            logger.warning("video: %s does not come: %s; it is tried again until it does", self._name, why)
