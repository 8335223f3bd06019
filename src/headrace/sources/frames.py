"""What video files and live streams share: PyAV, which frames are taken, and how one becomes an array.

PyAV is the extra `video`: its wheel holds x264 and x265, which are GPL; see docs/decisions/0067-video-by-pyav.md. It is
imported through here alone, and where `delivery.event_clips` writes.
"""

from __future__ import annotations

import contextlib
import importlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from headrace.base.errors import MissingExtra, SourceError
from headrace.base.plan import DecodePlan
from headrace.base.redaction import hide_secrets_in_text
from headrace.base.settings import check
from headrace.sources.motion import MotionGate
from headrace.sources.region import Cropper, Region, turns_of

#: The largest picture that is decoded: as large as a Plan allows one file where it says nothing.
MOST_PIXELS = DecodePlan().max_pixels
#: A step of time between two frames that is no pause of the camera.
_JUMP_SECONDS = 10.0
#: Frames a second of a stream that says nothing of times.
_USUAL_RATE = 25
#: By so much of the time between two frames that are taken, one may come early where arrival is all that is known of its time.
_EARLY_SHARE = Fraction(1, 4)
#: Of a container's form, AVFMT_NOTIMESTAMPS: it holds no times, and FFmpeg makes up 25 frames a second.
_NO_TIMES = 128
#: What decodes instead of the processor: an NVIDIA GPU. Frames come back from it into memory.
_DEVICES = ("cuda",)


def load_av() -> Any:
    """Return PyAV; raises MissingExtra if it is not installed."""
    try:
        return importlib.import_module("av")
    except ImportError:
        raise MissingExtra("reading video", "video") from None


def check_device(device: object) -> None:
    """Raise SettingsError where it is nothing that frames can be decoded on."""
    check(device in (None, *_DEVICES), "device", device, "'cuda', or None for the processor")


def require_device(device: str | None) -> None:
    """Raise MissingExtra without PyAV, and SourceError where frames cannot be decoded on it here; says why."""
    av = load_av()
    if device is None:
        return
    try:
        accelerator(device).create(av.Codec("h264", "r"))
    except (av.FFmpegError, OSError, RuntimeError) as error:  # RuntimeError: of a PyAV that was built without it
        raise SourceError(
            f"decoding on {device} is not available here, because FFmpeg finds no NVIDIA GPU with a decoder, or no driver for "
            f"it: {error_text(error)}; without device the processor decodes"
        ) from None


def accelerator(device: str | None) -> Any:
    """Return what `av.open` takes as `hwaccel`; what the device cannot decode, the processor does."""
    return device and importlib.import_module("av.codec.hwaccel").HWAccel(device)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which frames are given out, and how large."""

    every: int = 1
    fps: Fraction | None = None
    keyframes: bool = False
    references: bool = False
    """Frames that no other needs are not decoded."""
    size: tuple[int, int] | None = None
    """(width, height); None: as decoded."""
    region: Region | None = None
    """The part that is kept; None: all."""
    motion: float | None = None
    """Share of the picture that must change; None: frames come also where nothing moves."""

    def __str__(self) -> str:
        """Return it for people, with a comma in front of each part; empty where all is taken."""
        chosen = [f"every {self.every}"] if self.every > 1 else []
        chosen += [f"{float(self.fps):g} per second"] if self.fps else []
        chosen += ["keyframes alone"] if self.keyframes else []
        chosen += ["those that others need alone"] if self.references else []
        chosen += [f"where {self.motion:.3g} of the picture moves"] if self.motion else []
        chosen += [f"the part {', '.join(f'{side:g}' for side in self.region)}"] if self.region else []
        chosen += [f"at {self.size[0]} x {self.size[1]}"] if self.size else []
        return "".join(f", {one}" for one in chosen)

    def parameters(self) -> str:
        """Return it as the parameters of an address of `video://`; empty where all is taken."""
        chosen = [f"every={self.every}"] if self.every > 1 else []
        chosen += [f"fps={float(self.fps):g}"] if self.fps else []
        chosen += ["keyframes=yes"] if self.keyframes else []
        chosen += ["references=yes"] if self.references else []
        chosen += [f"size={self.size[0]}x{self.size[1]}"] if self.size else []
        chosen += [f"region={','.join(f'{side:g}' for side in self.region)}"] if self.region else []
        chosen += [f"motion={self.motion:g}"] if self.motion else []
        return f"?{'&'.join(chosen)}" if chosen else ""

    def cheaper(self) -> tuple[str, ...]:
        """Return what would cost less than this choice, for people: the pixels first, then the frames."""
        ways = []
        if self.size is None:
            ways.append("convert frames to the size that the model takes while they are decoded: size=(width, height)")
        if self.every == 1 and self.fps is None and not self.keyframes:
            ways.append("take fewer frames, which spares their conversion and all that follows: fps=5, or every=3")
        if not self.keyframes:
            ways.append("decode keyframes alone, where one every second or two is enough: keyframes=True")
        return tuple(ways)


def choose(
    *,
    every: int,
    fps: float | None,
    keyframes: bool,
    references: bool = False,
    size: tuple[int, int] | int | None,
    region: Sequence[float] | None,
    motion: float | None,
) -> Choice:
    """Return what a user asked for.

    Raises:
        SettingsError: If it makes no sense.
    """
    check(_is_whole(every) and every >= 1, "every", every, "a whole number >= 1")
    check(fps is None or _is_rate(fps), "fps", fps, "a number of frames per second > 0, or None")
    check(isinstance(keyframes, bool), "keyframes", keyframes, "True or False")
    check(isinstance(references, bool), "references", references, "True or False")
    check(every == 1 or fps is None, "fps", fps, "None beside every: one of them chooses the frames")
    rate = None if fps is None else Fraction(fps).limit_denominator(1000)
    check(rate is None or rate > 0, "fps", fps, "at least one frame in 1,000 seconds")
    is_share = motion is None or (_is_number(motion) and 0 < motion <= 1)
    check(is_share, "motion", motion, "the share of the picture that must change, above 0 to 1, or None")
    return Choice(every, rate, keyframes, references, _read_size(size), _read_region(region), motion)


class Chooser:
    """Says of each decoded frame of one stream whether it is taken, by its number and its time.

    Args:
        choice: Which ones are.
        counts: Counted in: what is odd about times.

    Attributes:
        time: Of the last frame, seconds on the stream's own clock; None: not known.
    """

    def __init__(self, choice: Choice, counts: Counter[str]) -> None:
        self.time: Fraction | None = None
        self._choice = choice
        self._counts = counts
        self._bucket: int | None = None
        self._first: Fraction | None = None
        self._due: Fraction | None = None
        self._gate = None if choice.motion is None else MotionGate(choice.motion, choice.region)

    def why_not(self, frame: Any, stream: Any, number: int, arrived: Fraction | None = None) -> str:
        """Return why a frame is left out; empty: it is not.

        Args:
            frame: PyAV's.
            stream: PyAV's.
            number: Of the frame.
            arrived: When it came, seconds, where the stream has no clock of its own; None: it has.
        """
        if arrived is None:
            self._note_time(frame, stream, number)
        else:
            self._counts["times_missing"] += 1
            self.time = arrived
        if number % self._choice.every:
            return "every"
        if self._choice.fps is not None and self.time is not None:
            is_due = self._is_due if arrived is not None else self._is_first
            if not is_due(self.time, 1 / self._choice.fps):
                return "fps"
        if self._gate is not None:
            seconds = Fraction(number, _USUAL_RATE) if self.time is None else self.time
            return "" if self._gate.lets_through(frame, seconds) else "still"
        return ""

    def _is_first(self, time: Fraction, gap: Fraction) -> bool:
        """Return whether no frame came before in its part of the stream's own time; parts are as long as a gap."""
        self._first = time if self._first is None else self._first
        before, self._bucket = self._bucket, math.floor((time - self._first) / gap)
        return self._bucket != before

    def _is_due(self, time: Fraction, gap: Fraction) -> bool:
        """Return whether a frame is taken that came at a time: parts of time would lose those that come a little early."""
        due = time if self._due is None or time > self._due + gap else self._due
        if time < due - _EARLY_SHARE * gap:
            return False
        self._due = due + gap
        return True

    def _note_time(self, frame: Any, stream: Any, number: int) -> None:
        before = self.time
        if frame.pts is None or not frame.time_base:
            self._counts["times_missing"] += 1
            self.time = number / stream.average_rate if stream.average_rate else None
            return
        self.time = frame.pts * frame.time_base
        if before is not None:
            self._counts["times_backwards"] += self.time < before
            self._counts["times_jumped"] += self.time > before + _JUMP_SECONDS


class Times:
    """Says when frames are shown that come in that order: old AVI files give those with B-frames each other's times.

    References:
        guess_correct_pts in FFmpeg's libavcodec/decode.c.
    """

    def __init__(self) -> None:
        self._last: list[int | None] = [None, None]
        self._num_faults = [0, 0]

    def correct(self, frame: Any) -> None:
        """Give a frame the time of its packet where its own ran back more often than those."""
        times = (frame.pts, frame.dts)
        for which, (time, last) in enumerate(zip(times, self._last, strict=True)):
            if time is not None:
                self._num_faults[which] += last is not None and time <= last
                self._last[which] = time
        if None not in times and self._num_faults[0] > self._num_faults[1]:
            frame.pts = frame.dts


class Converter:
    """Makes RGB arrays of frames with one context, which costs a fifth of one for each frame."""

    def __init__(self, choice: Choice) -> None:
        self._reformatter = importlib.import_module("av.video.reformatter").VideoReformatter()
        self._size = choice.size
        self._crop = Cropper(choice.region)

    def __call__(self, frame: Any) -> np.ndarray:
        """Return uint8 (height, width, 3), upright."""
        turns = turns_of(frame)
        part = self._crop(frame)
        width, height = self._size or ((part.width, part.height) if turns % 2 == 0 else (part.height, part.width))
        if turns % 2:
            width, height = height, width
        is_smaller = width * height < part.width * part.height
        made = self._reformatter.reformat(
            part, width, height, "rgb24", interpolation="AREA" if is_smaller else "BILINEAR", threads=1
        )
        image: np.ndarray = made.to_ndarray()
        return np.ascontiguousarray(np.rot90(image, turns)) if turns else image


def seconds_of(frame: Any) -> float | None:
    """Return the time that a stream says of a frame, from its own zero; None: it says none."""
    return None if frame.pts is None or not frame.time_base else float(frame.pts * frame.time_base)


def has_times(container: Any) -> bool:
    """Return whether a container's form has room for times; else those of its packets are made up, as of raw H.264."""
    return not container.format.flags & _NO_TIMES


def find_pictures(container: Any) -> Any:
    """Return the first stream of moving pictures in a container; None if there is none."""
    found = [one for one in container.streams.video if "attached_pic" not in str(one.disposition)]
    return found[0] if found else None


def list_kinds(container: Any) -> str:
    """Return what streams a container holds, for people."""
    kinds = Counter(str(one.type) for one in container.streams)
    return ", ".join(f"{number} of {kind}" for kind, number in kinds.items()) or "no stream at all"


def pixel_limit() -> dict[str, str]:
    """Return the option for `av.open` too: FFmpeg decodes with decoders of its own while it looks what a container holds."""
    return {"max_pixels": str(MOST_PIXELS)}


def set_up_decoder(stream: Any, choice: Choice, threads: int = 1) -> None:
    """Let a stream be decoded by so many threads, one where streams run side by side, and no picture be too large."""
    if choice.references:
        stream.codec_context.skip_frame = "NONREF"
    stream.codec_context.thread_count = threads
    if threads > 1:
        stream.codec_context.thread_type = "AUTO"
    stream.codec_context.options = pixel_limit()


def error_text(error: BaseException) -> str:
    """Return what FFmpeg says, without the path or address, which may hold a secret and stands elsewhere."""
    with contextlib.suppress(AttributeError):
        return hide_secrets_in_text(str(error.strerror or error))  # type: ignore[attr-defined]
    return hide_secrets_in_text(str(error))


def parse_size(text: str) -> tuple[int, int] | int:
    """Return what `224x224` or `224` says; raises ValueError if it says neither."""
    width, sign, height = text.partition("x")
    return (int(width), int(height)) if sign else int(width)


def parse_yes(text: str) -> bool:
    """Return what `yes` or `no`, `true` or `false`, `1` or `0` says; raises KeyError if it says none of them."""
    return {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}[text.lower()]


def parse_region(text: str) -> tuple[float, ...]:
    """Return what `0,0.5,1,1` says; raises ValueError if a part is no number."""
    return tuple(float(side) for side in text.split(","))


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_rate(value: object) -> bool:
    return isinstance(value, int | float | Fraction) and not isinstance(value, bool) and 0 < value < 100_000


def _read_region(region: object) -> Region | None:
    if region is None:
        return None
    sides = tuple(region) if isinstance(region, Sequence) else ()
    is_part = len(sides) == 4 and all(_is_number(side) and 0 <= side <= 1 for side in sides)
    is_part = is_part and sides[0] < sides[2] and sides[1] < sides[3]
    check(
        is_part,
        "region",
        region,
        "(left, top, right, bottom) as shares of the picture, such as (0, 0.5, 1, 1), or None",
    )
    return sides


def _read_size(size: tuple[int, int] | int | None) -> tuple[int, int] | None:
    if size is None:
        return None
    pair = (size, size) if isinstance(size, int) else tuple(size) if isinstance(size, Sequence) else ()
    is_pair = len(pair) == 2 and all(_is_whole(side) and 1 <= side <= 16_384 for side in pair)
    check(is_pair, "size", size, "(width, height) in pixels from 1 to 16,384, one number for a square, or None")
    return pair[0], pair[1]
