"""The frames of live streams as jobs: always the newest ones, from all streams alike, and every frame that is dropped counted.

How this works: each stream has a thread that reads and decodes whatever the pipeline does (`live_stream`), and a slot for one
frame: a newer frame takes the place of one that nobody took. `receive` empties the slots, first those of streams of which the
least is in flight, and only then are frames converted. What is in flight is bounded by the number of streams and by what the
workers can have in their hands, because a frame that waits in a queue grows old as well.

    decoded = given + skipped (every, fps, still) + dropped (newer, late, end) + at most one in the slot of each stream
"""

from __future__ import annotations

import copy
import functools
import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headrace.base.errors import SettingsError, SourceError
from headrace.base.freed_memory import SometimesTrim
from headrace.base.plan import SourcePlan
from headrace.base.protocols import Source
from headrace.base.records import Job, Outcome, OutcomeKind, Payload
from headrace.base.settings import check, unknown_key
from headrace.base.stream_tally import StreamTally
from headrace.base.units import parse_seconds
from headrace.runs.hardware import usable_cores
from headrace.sources.frames import (
    Converter,
    check_device,
    choose,
    error_text,
    parse_region,
    parse_size,
    parse_yes,
    require_device,
)
from headrace.sources.live_addresses import read_streams, show_address
from headrace.sources.live_stream import LiveFrame, LiveStream
from headrace.sources.stream_clips import StreamClip, keep_clips

logger = logging.getLogger("headrace")

#: How long `close` waits for the threads of all streams; one that hangs is a daemon.
_PATIENCE_SECONDS = 1.5
#: What decoders of lost connections had is given back so often: else pieces of it add up where cameras break off all the time.
_TRIM_SECONDS = 5.0
#: Frames of urgent streams that are taken at most before one of another is, while any waits; as in the pipeline's queues.
_MOST_IN_A_ROW = 7
#: A stream of which a frame is in the pipeline for so long gets no more places, and takes none of the others'.
_STUCK_SECONDS = 5.0
#: In flight at the least, so that one frame is received while another is worked on.
_LEAST_IN_FLIGHT = 2


class LiveVideo(Source):
    """One job per frame of live streams: the payload is the image, uint8 (height, width, 3), RGB, upright.

    Streams are read as fast as they come. Where the pipeline is slower, it gets the newest frame of each, from all streams
    alike, and the others are dropped and counted. A stream that breaks off is opened again until it comes. Jobs have
    `job.stream`, `job.sequence`, and the attributes `stream`, `frame`, `seconds` (the stream's own time, or `arrived` where it
    has none) and `arrived` (Unix seconds). A frame that fails is not tried again: a newer one comes. Takes the extra `video`.

    Args:
        streams: {name: address}, a list of addresses, or one; `rtsp://`, `rtsps://`, `http://`, `https://`, `tcp://`, `udp://`,
            or `v4l2:///dev/video0` for a camera of this machine. Without a name, it is the address without user, password and
            parameters.
        max_age: Seconds after which a frame is of no use: it reaches no further stage. None: none is too old.
        every: Take each so many-th decoded frame.
        fps: Take at most so many frames in a second of the stream's time, or of this machine's where it has none.
        keyframes: Decode keyframes alone, which costs a tenth.
        references: Decode no frames that no other frame needs.
        size: (width, height), or one number for a square, to which frames are scaled while they are converted.
        region: The part that is given: (left, top, right, bottom) as shares of the picture, such as (0, 0.5, 1, 1).
        motion: Give frames alone in which so large a share of the picture moves, such as 0.005, those of the second after, and
            one every two seconds.
        patience: Seconds without a packet after which a connection is given up and opened anew; longer for a camera that sends
            less than one frame in so long.
        ends: Whether a stream that ends, or cannot be had in five tries, is over; False: it is opened again.
        device: "cuda": an NVIDIA GPU decodes what it can. Not tried on one yet.
        options: For FFmpeg, such as {"rtsp_transport": "udp"}.
        urgent: Names of the streams that go before the others, which have an eighth of the pipeline while these bring enough.
    """

    is_remote = False
    unit = "frame"

    def __init__(
        self,
        streams: str | Sequence[str] | Mapping[str, str],
        *,
        max_age: float | None = None,
        every: int = 1,
        fps: float | None = None,
        keyframes: bool = False,
        references: bool = False,
        size: tuple[int, int] | int | None = None,
        region: Sequence[float] | None = None,
        motion: float | None = None,
        patience: float = 3.0,
        ends: bool = False,
        device: str | None = None,
        options: Mapping[str, str] | None = None,
        urgent: Sequence[str] = (),
    ) -> None:
        self._addresses = read_streams(streams)
        self._urgent = _read_urgent(urgent, self._addresses)
        is_age = max_age is None or (
            isinstance(max_age, int | float) and not isinstance(max_age, bool) and 0 < max_age < 1e6
        )
        check(is_age, "max_age", max_age, "seconds > 0, or None")
        self._max_age = max_age
        self._choice = choose(
            every=every,
            fps=fps,
            keyframes=keyframes,
            references=references,
            size=size,
            region=region,
            motion=motion,
        )
        is_patient = isinstance(patience, int | float) and not isinstance(patience, bool) and 0 < patience < 1e6
        check(is_patient, "patience", patience, "seconds > 0")
        self._patience = patience
        check(isinstance(ends, bool), "ends", ends, "True or False")
        self._ends = ends
        check_device(device)
        self._device = device
        self._options = dict(options or {}) if isinstance(options, Mapping | None) else {"": ""}
        are_texts = all(isinstance(one, str) and one for pair in self._options.items() for one in pair)
        if not are_texts:  # not shown: they may hold a secret
            raise SettingsError(
                'options: expected texts by the names of FFmpeg\'s options, such as {"rtsp_transport": "udp"}'
            )
        self._changed = threading.Condition()
        self._most_in_flight: int | None = None
        self._begin()

    @property
    def where(self) -> str:
        """The streams, without secrets, and what chooses the frames."""
        shown = ", ".join(show_address(address) for address in self._addresses.values())
        return f"the frames of {shown}{self._choice}"

    @property
    def is_endless(self) -> bool:
        """Whether only a signal or a limit ends it."""
        return not self._ends

    def replace_end(self) -> LiveVideo:
        """Return the same source, which ends when all of its streams have ended."""
        other = copy.copy(self)
        other.__dict__["_ends"] = True
        return other

    @property
    def is_exhausted(self) -> bool:
        """Whether all streams are over, and every frame was given out."""
        with self._changed:
            return self._is_over()

    def open(self, settings: SourcePlan) -> None:
        """Begin to read all streams.

        Raises:
            MissingExtra: If PyAV is not installed.
        """
        require_device(self._device)
        self._begin()
        self._most_in_flight = settings.max_in_flight
        self._every = settings.every or 1
        self._limit = settings.max_in_flight or max(len(self._addresses), _LEAST_IN_FLIGHT)
        turns = threading.Semaphore(max(1, usable_cores() // 2))
        freed = SometimesTrim(_TRIM_SECONDS)
        for name, address in self._addresses.items():
            camera = _Camera(name, Converter(self._choice), is_urgent=name in self._urgent)
            camera.stream = LiveStream(
                name,
                address,
                self._choice,
                options=self._options,
                offer=functools.partial(self._offer, camera),
                ended=functools.partial(self._end, camera),
                stays=not self._ends,
                patience=self._patience,
                device=self._device,
                turns=turns,
                freed=freed,
            )
            self._cameras.append(camera)
        try:
            for camera in self._cameras:
                camera.stream.start()
        except BaseException:
            self.stop()
            raise

    def receive(self, limit: int, wait_seconds: float) -> list[Job] | None:
        """Return the newest frames of up to limit streams; None once all streams are over.

        Raises:
            SourceError: If all are, and none ever brought a frame; says why.
        """
        until = time.monotonic() + wait_seconds
        with self._changed:
            while not (taken := self._take(limit)):
                left = until - time.monotonic()
                if self._is_over() and not any(camera.num_inside for camera in self._cameras):
                    self._refuse_nothing()
                    return None
                if left <= 0 or self._is_stopped:
                    return []
                self._changed.wait(left)
        return [self._job(camera, frame) for camera, frame in taken]

    def in_flight_limit(self, throughput: float | None, at_least: int) -> int | None:
        """Return what keeps the workers busy, and is worked on within half of `max_age` at twice this rate."""
        limit = max(at_least, len(self._addresses))
        if self._max_age is not None and throughput is not None:
            limit = min(limit, int(throughput * self._max_age))
        with self._changed:
            self._limit = self._most_in_flight or max(limit, _LEAST_IN_FLIGHT)
            self._changed.notify_all()
            return self._limit + sum(camera.num_inside for camera in self._cameras if camera.is_stuck())

    def thin(self, every: int) -> None:
        """Give each so many-th alone of the frames that are chosen of each stream, from now on."""
        with self._changed:
            self._every = every

    def notes(self) -> dict[str, int]:
        """Return what was decoded, given, skipped, dropped and lost so far, of all streams: `video.*`."""
        totals: Counter[str] = Counter()
        with self._changed:
            for camera in self._cameras:
                totals.update(camera.tally.counts())
                totals.update(dict(camera.stream.counts))  # copied at once: its thread adds to it
        return {"video.streams": len(self._addresses), **{f"video.{name}": num for name, num in totals.items() if num}}

    def tallies(self) -> list[StreamTally]:
        """Return what is counted of each stream, and why nothing comes of one."""
        for camera in self._cameras:
            camera.tally.problem = "" if camera.stream.is_live else camera.stream.last_error
        return [camera.tally for camera in self._cameras]

    def counts(self) -> dict[str, dict[str, int]]:
        """Return {stream: {what: frames}}: `decoded`, `given`, `skipped_*`, `dropped_*`."""
        return {tally.name: tally.counts() for tally in self.tallies()}

    def keep_clips(self, folder: Path, seconds: float, stop: threading.Event) -> list[StreamClip]:
        """Write a clip of each stream into a folder; see `stream_clips.keep_clips`. The source is not open meanwhile."""
        return keep_clips(self._addresses, folder, seconds, options=self._options, patience=self._patience, stop=stop)

    @property
    def clip_parameters(self) -> str:
        """What lets `video://` choose the same frames of clips, such as `?fps=5&size=320x180`; empty: all."""
        return self._choice.parameters()

    def may_stop(self) -> bool:
        """Return True: what is on its way here waits for nobody."""
        return True

    def stop(self) -> None:
        """Read no more; what waits in the slots is dropped, and counted."""
        with self._changed:
            self._is_stopped = True
            for camera in self._cameras:
                camera.stream.stop()
                self._drop(camera, "end")
                camera.tally.close(time.monotonic())
            self._changed.notify_all()

    def close(self) -> None:
        """Stop, and wait a little for the threads."""
        self.stop()
        until = time.monotonic() + _PATIENCE_SECONDS
        for camera in self._cameras:
            camera.stream.join(until)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the state of a run behind when pickled."""
        state = {key: value for key, value in self.__dict__.items() if key != "_changed"}
        return {**state, "_cameras": []}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Take it over, ready to be opened."""
        self.__dict__.update(state)
        self._changed = threading.Condition()
        self._begin()

    def _begin(self) -> None:
        self._cameras: list[_Camera] = []
        self._is_stopped = False
        self._num_in_a_row = 0
        self._most_in_flight = None
        self._every = 1
        self._limit = _LEAST_IN_FLIGHT
        self._run = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    # --- from the threads of the streams

    def _offer(self, camera: _Camera, frame: LiveFrame, reason: str) -> None:
        with self._changed:
            if self._is_stopped:
                return  # the accounts are closed, and may have been written
            tally = camera.tally
            tally.count("decoded")
            if reason != "opening":
                tally.arrived(
                    frame.arrived_ns / 1e9, frame.seconds if frame.has_clock else None, camera.stream.counts["opened"]
                )
            if reason:
                tally.count(f"skipped_{reason}")
                return
            camera.num_wanted += 1
            if (camera.num_wanted - 1) % self._every:
                tally.count("skipped_plan")
                return
            self._drop(camera, "newer")
            camera.slot = frame
            self._changed.notify_all()

    def _end(self, camera: _Camera) -> None:
        with self._changed:
            camera.is_over = True
            self._changed.notify_all()

    # --- with the lock held

    def _refuse_nothing(self) -> None:
        if not self._is_stopped and not any("decoded" in camera.tally.counts() for camera in self._cameras):
            why = "; ".join(f"{camera.name}: {camera.stream.last_error}" for camera in self._cameras)
            raise SourceError(f"no stream brought a frame: {why}")

    def _is_over(self) -> bool:
        return self._is_stopped or all(camera.is_over and camera.slot is None for camera in self._cameras)

    def _drop(self, camera: _Camera, reason: str) -> None:
        if camera.slot is not None:
            camera.slot = None
            camera.tally.count(f"dropped_{reason}")

    def _take(self, limit: int) -> list[tuple[_Camera, LiveFrame]]:
        """Return frames, one of a stream, of those streams first of which the least is in flight, and then the longest ago."""
        self._drop_late()
        cameras = [camera for camera in self._cameras if not camera.is_stuck()]
        busy = sum(camera.slot is not None or camera.num_inside > 0 for camera in cameras)
        each = math.ceil(self._limit / max(1, busy))
        room = min(limit, self._limit - sum(camera.num_inside for camera in cameras))
        ready = [camera for camera in cameras if camera.slot is not None and camera.num_inside < each]
        ready.sort(key=lambda camera: (camera.num_inside, camera.given_ns))
        taken = []
        for camera in self._in_turn(ready, max(0, room)):
            assert camera.slot is not None
            taken.append((camera, camera.slot))
            camera.slot = None
            camera.num_inside += 1
            camera.given_ns = camera.inside[taken[-1][1].number] = time.monotonic_ns()
            camera.tally.count("given")
        return taken

    def _in_turn(self, ready: Sequence[_Camera], most: int) -> list[_Camera]:
        """Return cameras with the urgent ones first; while they bring enough, one of eight that are taken is another."""
        urgent = deque(camera for camera in ready if camera.is_urgent)
        others = deque(camera for camera in ready if not camera.is_urgent)
        taken: list[_Camera] = []
        while (urgent or others) and len(taken) < most:
            is_contended = bool(urgent and others)
            is_others_turn = is_contended and self._num_in_a_row >= _MOST_IN_A_ROW
            taken.append(others.popleft() if is_others_turn or not urgent else urgent.popleft())
            self._num_in_a_row = self._num_in_a_row + 1 if is_contended and not is_others_turn else 0
        return taken

    def _drop_late(self) -> None:
        if self._max_age is None:
            return
        before = time.monotonic_ns() - int(self._max_age * 1e9)
        for camera in self._cameras:
            if camera.slot is not None and camera.slot.arrived_ns < before:
                self._drop(camera, "late")

    # --- without it

    def _job(self, camera: _Camera, frame: LiveFrame) -> Job:
        def settle(job: Job, outcome: Outcome) -> None:
            now_ns = time.monotonic_ns()
            camera.tally.ended(now_ns / 1e9, (now_ns - frame.arrived_ns) / 1e9, outcome)
            with self._changed:
                camera.num_inside -= 1
                camera.inside.pop(frame.number, None)
                self._changed.notify_all()

        attributes = {
            "stream": camera.name,
            "frame": frame.number,
            "seconds": frame.seconds,
            "arrived": frame.arrived_at,
        }
        verdict = None
        image: Payload = b""
        try:
            with camera.converting:
                image = camera.convert(frame.picture)
        except Exception as error:  # whatever it is, it is this frame's
            size = f"{frame.picture.width} x {frame.picture.height} {frame.picture.format.name}"
            verdict = Outcome(OutcomeKind.REJECTED, f"video.convert: a frame of {size}: {error_text(error)}")
        if frame.picture.is_corrupt:
            attributes["corrupt"] = True
        job = Job(
            f"{camera.name}#{self._run}/{frame.number}",
            image,
            attributes=attributes,
            stream=camera.name,
            sequence=frame.number,
            deadline_ns=None if self._max_age is None else frame.arrived_ns + int(self._max_age * 1e9),
            max_attempts=1,
            settle=settle,
        )
        job.sent_at = frame.arrived_at
        job.priority = 0 if camera.is_urgent else 1
        job.verdict = verdict
        return job


def _read_urgent(urgent: Sequence[str], addresses: Mapping[str, str]) -> frozenset[str]:
    """Return the names of the urgent streams; raise SettingsError where one is of none."""
    are_names = isinstance(urgent, Sequence | frozenset | set) and not isinstance(urgent, str)
    check(are_names and all(isinstance(name, str) for name in urgent), "urgent", urgent, 'names such as ["gate"]')
    for name in urgent:
        if name not in addresses:
            raise unknown_key(name, "urgent: the streams", addresses)
    return frozenset(urgent)


class _Camera:
    """What the source knows of one stream."""

    stream: LiveStream

    def __init__(self, name: str, convert: Converter, *, is_urgent: bool = False) -> None:
        self.name = name
        self.convert = convert
        self.converting = threading.Lock()
        self.tally = StreamTally(name, time.monotonic(), is_urgent=is_urgent)
        self.slot: LiveFrame | None = None
        self.is_urgent = is_urgent
        self.num_wanted = 0
        """Frames that were chosen."""
        self.num_inside = 0
        """Frames that were given out and are not settled."""
        self.given_ns = 0
        """When the last one was given out."""
        self.inside: dict[int, int] = {}
        """{number of a frame that is not settled: when it was given out}, in this order."""
        self.is_over = False
        self._told: int | None = None

    def is_stuck(self) -> bool:
        """Return whether a frame hangs in the pipeline; says so once for each."""
        number, given_ns = next(iter(self.inside.items()), (0, math.inf))
        if time.monotonic_ns() - given_ns < _STUCK_SECONDS * 1e9:
            return False
        if self._told != number:
            self._told = number
            logger.warning(
                "video: %s: frame %d has been in the pipeline for %g s; its stream waits for it, and the others go on",
                *(self.name, number, _STUCK_SECONDS),
            )
        return True


def open_address(address: str, *, drain: bool = False) -> LiveVideo:
    """Return the source at `rtsp://HOST/PATH#fps=5&size=320x180&max_age=500ms`; what is behind # is for headrace alone.

    Args:
        address: Of one stream; `live+http://` and the like where the scheme alone means something else to `--source`.
        drain: Whether a stream that ends is over.

    Raises:
        SettingsError: If a parameter cannot be understood.
    """
    place, _, fragment = address.rpartition("#") if "#" in address else (address, "", "")
    expected = "every=5, fps=2.5, keyframes=yes, size=224x224, region=0,0.5,1,1, motion=0.005 or max_age=500ms"
    options: dict[str, Any] = {}
    for part in filter(None, fragment.split("&")):
        key, sign, value = part.partition("=")
        if not sign:  # not shown: it may be the rest of a password
            raise SettingsError(
                f"what stands behind # of the address is not understood; expected {expected}, or %23 for the sign"
            )
        if key not in _READERS:
            raise unknown_key(key, f"the address {show_address(place)}", _READERS)
        try:
            options[key] = _READERS[key](value)
        except (ValueError, KeyError):
            raise SettingsError(f"the address {show_address(place)} has {key}={value}; expected {expected}") from None
    scheme, sign, rest = place.partition("://")
    return LiveVideo(f"{scheme.lower().removeprefix('live+')}{sign}{rest}", ends=drain, **options)


#: {parameter of an address: what reads its value}.
_READERS: dict[str, Any] = {
    "every": int,
    "fps": float,
    "keyframes": parse_yes,
    "references": parse_yes,
    "size": parse_size,
    "region": parse_region,
    "motion": float,
    "max_age": parse_seconds,
    "patience": parse_seconds,
    "device": str,
}
