"""Reads one live stream without end, in a thread of its own, so that what comes late is what nobody wanted.

How this works: the thread takes what the sender sends at once, always; if it did not, the sender or its network would hold it
back, and every picture would be older than the one before, or the connection would be cut. It decodes each frame, because a
later one needs it, and offers those that are chosen. It converts none: that is done for the frames that somebody takes.

Cameras send at the same times. Threads of many that decode side by side leave no core to the few that work on the frames, and
most frames are decoded in vain. So streams take turns: half of the cores decode at a time, while that is enough.

Where all cores are not enough, what a camera sent waits unread, and every picture is older than the one before. A stream that
lags by a second of its own time passes by what is not a keyframe, until it has caught up and the next keyframe comes.

A connection that is lost, or brings nothing for some seconds, is closed, and a new one is tried at random times that grow up to
a limit. Decoding begins at a keyframe. The time of a frame is when its last packet came: the times that cameras write begin
anywhere, jump and run backwards.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from headrace.base.error_origin import text_of
from headrace.base.threads import start_thread
from headrace.sources.frames import (
    Choice,
    Chooser,
    accelerator,
    error_text,
    find_pictures,
    has_times,
    list_kinds,
    load_av,
    pixel_limit,
    seconds_of,
    set_up_decoder,
)
from headrace.sources.live_addresses import DEVICE, PROTOCOLS

logger = logging.getLogger("headrace")

_OPEN_SECONDS = 10.0
#: Pauses between tries are drawn from 0 to this, doubled up to the limit where a stream breaks off soon after each try.
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0
#: A camera that refuses a password may lock the account after some tries.
_REFUSED_PAUSE_SECONDS = 30.0
#: After a connection that lasted so long the next pause is short again.
_WELL_SECONDS = 10.0
#: A stream that never says that a frame is a keyframe is decoded from where it is.
_NO_KEYFRAME_SECONDS = 10.0
#: A connection that brings packets and no picture for so long, or `patience`, is given up.
_NO_PICTURE_SECONDS = 15.0
#: A read that takes so long, and this share of the time between two frames, waited for the sender; what comes sooner had come
#: while the stream was opened, which is all given out after this time.
_WAITED_SECONDS, _WAITED_SHARE = 0.002, 0.2
_LONGEST_OPENING_SECONDS = 2.0
#: A stream that is lost again is told of so often, and each time that it had come for `_WELL_SECONDS`.
_TELL_SECONDS = 60.0
#: A stream waits so long for its turn to decode, and not at all once no read has waited for the sender for so long: it is
#: behind then, and what is not drained grows old.
_TURN_SECONDS = 0.05
_BEHIND_SECONDS = 0.2
#: A stream that lags by so much, by its own clock, decodes keyframes alone until it has caught up.
_LAG_SECONDS = 1.0
#: Reads that take so long, for so much of the stream's clock, waited for the sender: to wait for a core takes some milliseconds
#: for each packet.
_UNREAD_SECONDS, _UNREAD_SPAN = 0.5, 1.0
#: The same of a stream without a clock: one that is behind is known by nothing but its reads.
_UNREAD_SECONDS_ALONE = 0.1
#: By how much clocks may differ, as a share.
_DRIFT = 0.001
#: Where streams may end: tries in a row that bring nothing, or break off soon, after which one is given up.
_MOST_TRIES = 5


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
    """The time that the stream says, from its own zero; None: it says none. Of a stream without a clock, `arrived_at`."""
    has_clock: bool = True
    """Whether the stream has one."""


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
        patience: Seconds without a packet after which a connection is given up.
        device: On which frames are decoded where that can; None: the processor.
        turns: Of all streams: how many may decode at a time.
        freed: Called in the thread when what belonged to a connection, megabytes of a decoder, was freed.

    Attributes:
        counts: What happened to connections and packets; `opened` and `lost` among them.
        is_live: Whether frames come.
        last_error: Why the last connection broke off or could not be had; empty: none did.
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
        patience: float,
        device: str | None,
        turns: threading.Semaphore,
        freed: Callable[[], object],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.is_live = False
        self.last_error = ""
        self._name = name
        self._address = address
        self._choice = choice
        self._options = options
        self._offer = offer
        self._ended = ended
        self._stays = stays
        self._patience = patience
        self._device = device
        self._turns = turns
        self._freed = freed
        self._number = 0
        self._closing = threading.Event()
        self._lost_at: float | None = None
        self._came_at = math.inf
        self._told_at = -math.inf
        self._is_told = self._is_silent = False
        self._last_picture = 0.0
        self._thread = threading.Thread(target=self._read, name=f"video-{name}", daemon=True)

    def start(self) -> None:
        """Begin to read.

        Raises:
            HeadraceError: If the system gives no thread.
        """
        start_thread(self._thread, "name fewer streams")

    def stop(self) -> None:
        """Let the thread end after the packet that it is at; does not wait."""
        self._closing.set()

    def join(self, until: float) -> None:
        """Wait for the thread until a time (monotonic seconds)."""
        if self._thread.is_alive():
            self._thread.join(max(0.0, until - time.monotonic()))

    def _read(self) -> None:
        failures = flaps = 0
        try:
            while not self._closing.is_set():
                before, began = self._number, time.monotonic()
                pause, why = self._try_connection()
                self._freed()
                came = self._number > before
                if self._closing.is_set() or (came and not self._stays and not why):
                    return
                lasted = came and time.monotonic() - began >= _WELL_SECONDS
                failures = 0 if lasted else failures + 1
                flaps = 0 if lasted else flaps + came
                self._note_lost(why or "it ended")
                if not self._stays and failures >= _MOST_TRIES:
                    logger.warning("video: %s is given up after %d tries", self._name, failures)
                    return
                longest = self._longest_pause(flaps if self._stays else failures)
                self._closing.wait(max(pause, random.uniform(0, longest)))
        finally:
            self.is_live = False
            self._ended()

    def _longest_pause(self, failures: int) -> float:
        """Return the most seconds until the next try: more after each failure, and at most a quarter of the absence so far.

        So one that was away for a moment is soon back, and one that is away for long is asked seldom.
        """
        away = 0.0 if self._lost_at is None or not self._stays else time.monotonic() - self._lost_at
        return min(_LONGEST_PAUSE_SECONDS, max(_FIRST_PAUSE_SECONDS * 2.0 ** min(failures, 10), away / 4))

    def _try_connection(self) -> tuple[float, str]:
        """Read until the stream ends; return seconds to wait, and why it broke off, empty if it came to its end."""
        av, began, num_opened = load_av(), time.monotonic(), self.counts["opened"]
        try:
            return 0.0, self._read_connection(av)
        except (EOFError, IndexError):  # IndexError: how PyAV ends what a stream was added to on the way
            return 0.0, ""
        except av.error.ExitError:
            return 0.0, self._silence()
        except (av.error.HTTPUnauthorizedError, av.error.HTTPForbiddenError) as error:
            return _REFUSED_PAUSE_SECONDS, f"{error_text(error)}: check user and password"
        except (av.error.ArgumentError, av.error.InvalidDataError) as error:
            waited = max(_OPEN_SECONDS, self._patience)
            if self.counts["opened"] == num_opened and time.monotonic() - began >= waited:
                return 0.0, f"nothing came for {waited:g} s"  # what RTSP makes of a read that was given up
            return 0.0, (
                f"{error_text(error)}; this may be a playlist, a single picture, a redirect to another protocol or a missing "
                "port, which are refused"
            )
        except (av.FFmpegError, OSError, ValueError) as error:
            return 0.0, "" if self._is_end(error) else error_text(error)
        except Exception as error:  # a stream that ends for good because of one packet would be missed by nobody
            logger.exception("video: %s: an error that was not foreseen", self._name)
            return 0.0, text_of(error)

    def _is_end(self, error: BaseException) -> bool:
        """Return whether a stream that may end has ended: where HTTP gives no length, closing is all that tells it.

        To open it again would be to begin a clip again, also where it was in truth cut off.
        """
        return not self._stays and self._address.startswith("http") and getattr(error, "errno", None) == errno.EIO

    def _read_connection(self, av: Any) -> str:
        with open_stream(av, self._address, self._options, self._patience, self._device) as container:
            stream = find_pictures(container)
            if stream is None or stream.codec_context is None:
                return f"it holds no video that PyAV can decode, but {list_kinds(container)}"
            set_up_decoder(stream, self._choice)
            self.counts["opened"] += 1
            self.counts["not_on_device"] += self._device is not None and not stream.codec_context.is_hwaccel
            return self._read_frames(av, container, stream)

    def _read_frames(self, av: Any, container: Any, stream: Any) -> str:
        """Offer the frames, of those that came while the stream was opened the newest alone; return why no more come."""
        chooser = Chooser(self._choice, self.counts)
        kept: tuple[LiveFrame, str] | None = None
        is_new, before, self._is_silent = False, None, False
        self._last_picture = began = asked = time.monotonic()
        has_clock = has_times(container)
        patience, catch_up = TurnPatience(began), CatchUp(has_clock=has_clock)
        try:
            for packet in self._decodable(av, container, stream):
                arrived_ns, arrived_at = time.monotonic_ns(), time.time()
                now = arrived_ns / 1e9
                turn_seconds = patience.after_read(now - asked, now)
                is_new = is_new or _has_waited(packet, before, now - asked) or now >= began + _LONGEST_OPENING_SECONDS
                before = packet
                if kept is not None and is_new:
                    self._offer(*kept)
                    kept = None
                if catch_up.passes_by(packet, now - asked, now):
                    self.counts["packets_behind"] += 1
                    asked = time.monotonic()
                    continue
                for picture in self._decode(av, packet, turn_seconds):
                    self._note_live()
                    number, self._number = self._number, self._number + 1
                    seconds = seconds_of(picture) if has_clock else arrived_at
                    frame = LiveFrame(number, picture, arrived_ns, arrived_at, seconds, has_clock)
                    reason = chooser.why_not(
                        picture, stream, number, None if has_clock else Fraction(arrived_ns, 10**9)
                    )
                    if is_new:
                        self._offer(frame, reason)
                        continue
                    if kept is not None:
                        reason = reason and kept[1]  # the newest takes the place of one that was chosen
                        self._offer(kept[0], kept[1] or "opening")
                    kept = (frame, reason)
                asked = time.monotonic()
        finally:  # also where the connection breaks off: it was decoded
            if kept is not None:
                self._offer(*kept)
        if self._is_silent:
            return self._silence()
        silent = time.monotonic() - self._last_picture
        if not self._closing.is_set() and silent >= max(_NO_PICTURE_SECONDS, self._patience):
            return f"packets came for {silent:.0f} s, and no picture"
        return ""

    def _decode(self, av: Any, packet: Any, turn_seconds: float) -> Sequence[Any]:
        """Return the pictures of a packet, decoded in a turn of this stream if there is one in so long."""
        self.counts["corrupt_packets"] += bool(packet.is_corrupt)
        has_turn = self._turns.acquire(timeout=turn_seconds)
        try:
            frames: Sequence[Any] = packet.decode()
        except EOFError:
            return ()
        except (av.FFmpegError, ValueError, MemoryError):
            self.counts["damaged_packets"] += 1
            return ()
        finally:
            if has_turn:
                self._turns.release()
        if frames:
            self._last_picture = time.monotonic()
        return frames

    def _decodable(self, av: Any, container: Any, stream: Any) -> Iterator[Any]:
        """Give the packets from the first keyframe on, or all after a while; end where no picture comes for long."""
        began = time.monotonic()
        has_begun = False
        for packet in self._heard(av, container.demux()):  # of all streams: else sound alone would keep this here
            now = time.monotonic()
            if self._closing.is_set() or now - self._last_picture >= max(_NO_PICTURE_SECONDS, self._patience):
                return
            if packet.stream.index != stream.index:
                continue
            has_begun = has_begun or packet.is_keyframe or now >= began + _NO_KEYFRAME_SECONDS
            if not has_begun:
                self.counts["packets_before_keyframe"] += 1
            elif packet.is_keyframe or not self._choice.keyframes or not packet.size:
                yield packet

    def _heard(self, av: Any, packets: Iterator[Any]) -> Iterator[Any]:
        """Give the packets; end where a read takes longer than `patience`.

        FFmpeg gives up such a read. But where it kept a frame back until the next one begins, as by RTSP, it gives that one
        then, and the next read would be as long again.
        """
        with contextlib.suppress(av.error.ExitError):
            asked = time.monotonic()
            for packet in packets:
                if time.monotonic() - asked >= self._patience:
                    break
                yield packet
                asked = time.monotonic()
            else:
                return
        self._is_silent = True

    def _silence(self) -> str:
        return f"nothing came for {self._patience:g} s"

    def _note_live(self) -> None:
        if not self.is_live:
            self.is_live, self._came_at = True, time.monotonic()
        if self._lost_at is not None:
            if self._is_told:
                logger.warning("video: %s is back after %.1f s", self._name, time.monotonic() - self._lost_at)
            self._lost_at, self._is_told = None, False

    def _note_lost(self, why: str) -> None:
        now = time.monotonic()
        self.counts["lost" if self.is_live else "not_opened"] += 1
        self.is_live = False
        self.last_error = why
        is_new = self._lost_at is None and now >= self._came_at + _WELL_SECONDS
        self._lost_at = self._lost_at or now
        if is_new or now >= self._told_at + _TELL_SECONDS:
            self._told_at, self._is_told = now, True
            logger.warning("video: %s does not come: %s; it is tried again", self._name, why)


def open_stream(av: Any, address: str, options: Mapping[str, str], patience: float, device: str | None = None) -> Any:
    """Return the open container at an address, to be closed by the caller; arguments as of `LiveStream`.

    Raises:
        av.FFmpegError: If it cannot be had.
    """
    scheme, _, path = address.partition("://")
    protocols, containers = PROTOCOLS[scheme]
    place, form = (path, DEVICE) if scheme == DEVICE else (address, None)
    return av.open(
        place,
        format=form,
        options={
            "protocol_whitelist": protocols,
            "format_whitelist": containers,
            "fpsprobesize": "0",  # the rate is of no use, and to find it FFmpeg keeps 20 frames back
            "max_ts_probe": "0",  # nor are times that RTSP does not send, for which it keeps 7 frames back
            **pixel_limit(),
            **({"rtsp_transport": "tcp"} if "rtsp" in protocols else {}),
            **options,
        },
        timeout=(max(_OPEN_SECONDS, patience), patience),
        metadata_errors="replace",
        hwaccel=accelerator(device),
    )


class TurnPatience:
    """Says how long a stream may wait for its turn to decode without falling behind its sender.

    Args:
        now: Seconds of a steady clock.
    """

    def __init__(self, now: float) -> None:
        self._caught_up = now

    def after_read(self, waited: float, now: float) -> float:
        """Return seconds to wait at most, after a read that waited so long."""
        if waited >= _WAITED_SECONDS:
            self._caught_up = now
        return _TURN_SECONDS if now - self._caught_up < _BEHIND_SECONDS else 0.0


class CatchUp:
    """Says which packets of one connection are not worth decoding, because the stream lags behind its sender.

    It lags by the time that went by, less what the stream's own clock says, since it was least behind, or since reads last
    waited for the sender: then nothing was unread, however slow the sender is. One read that waited tells little where threads
    wait for cores.

    Args:
        has_clock: Whether the stream says times; else it lags by the time since reads waited for the sender.
    """

    def __init__(self, *, has_clock: bool = True) -> None:
        self._has_clock = has_clock
        self._unread_seconds = _UNREAD_SECONDS if has_clock else _UNREAD_SECONDS_ALONE
        self._caught_up: tuple[float, float] | None = None
        """When it was least behind, and what the stream's clock said then; None: nothing to compare with."""
        self._last = -math.inf
        """What that clock said last."""
        self._reads = (0.0, 0.0)
        """What that clock said when reads began to be added up, and the seconds that they took since."""
        self._has_keyframe = self._has_others = self._is_behind = False

    def passes_by(self, packet: Any, waited: float, now: float) -> bool:
        """Return whether not to decode a packet; never before a keyframe, for a stream may have none.

        Of keyframes alone, as cameras send that give a picture each, those that are late are passed by.


        Args:
            packet: PyAV's; what tells no time, as the last one, is always decoded.
            waited: Seconds that its read took.
            now: Seconds of a steady clock.
        """
        own = packet.dts if packet.dts is not None else packet.pts
        if (own is None or not packet.time_base) and (self._has_clock or not packet.size):
            return False
        seconds = float(own * packet.time_base) if self._has_clock else 0.0
        self._has_keyframe = self._has_keyframe or packet.is_keyframe
        self._has_others = self._has_others or not packet.is_keyframe
        lag = self._lag(seconds, waited, now)
        if self._is_behind:
            self._is_behind = not (packet.is_keyframe and lag < _BEHIND_SECONDS)
        else:
            self._is_behind = self._has_keyframe and lag >= _LAG_SECONDS
        return self._is_behind and not (packet.is_keyframe and self._has_others)

    def _lag(self, seconds: float, waited: float, now: float) -> float:
        has_begun_anew = seconds < self._last - _LAG_SECONDS / 2  # farther back than frames are reordered
        self._last = seconds
        began, reading = self._reads[0], self._reads[1] + waited
        is_read = reading >= self._unread_seconds
        is_over = is_read or has_begun_anew or seconds >= began + _UNREAD_SPAN
        self._reads = (seconds, 0.0) if is_over else (began, reading)
        if self._caught_up is not None and not is_read and not has_begun_anew:
            lag = (1 - _DRIFT) * (now - self._caught_up[0]) - (seconds - self._caught_up[1])
            if lag >= 0.0:
                return lag
        self._caught_up = now, seconds
        return 0.0


def _has_waited(packet: Any, before: Any, seconds: float) -> bool:
    """Return whether a read that took so long waited for the sender to send what comes after the packet before."""
    if before is None:
        return False
    gap = 0.0
    if None not in (packet.pts, before.pts) and packet.time_base:
        gap = float((packet.pts - before.pts) * packet.time_base)
    return seconds >= max(_WAITED_SECONDS, _WAITED_SHARE * min(max(gap, 0.0), 1.0))
