"""A live stream whose decoder is slower than its camera: what is read late is not decoded, until the stream has caught up."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.sources import live_stream
from headrace.sources.frames import Choice
from headrace.sources.live_stream import CatchUp, LiveFrame, LiveStream

#: Of a frame at 25 a second, with a keyframe every two seconds.
GAP, GOP = 0.04, 50


class Camera:
    """Sends a frame every 40 ms of a clock that only reading and decoding move; both ends in one.

    Args:
        num: Frames.
        cost: Seconds of decoding the frame with this number.
    """

    format = SimpleNamespace(flags=0)

    def __init__(self, num: int, cost: Any) -> None:
        self.now, self._num, self._cost = 1000.0, num, cost

    def demux(self) -> Iterator[Any]:
        """Give each packet once it was sent."""
        stream = SimpleNamespace(index=0)
        for number in range(self._num):
            self.now = max(self.now + 1e-5, 1000.0 + number * GAP)
            packet = {"pts": number, "dts": number, "time_base": Fraction(1, 25), "is_keyframe": number % GOP == 0}
            yield SimpleNamespace(
                **packet, size=1, is_corrupt=False, stream=stream, decode=lambda number=number: self._decode(number)
            )

    def _decode(self, number: int) -> list[Any]:
        self.now += self._cost(number)
        return [SimpleNamespace(pts=number, time_base=Fraction(1, 25))]


def read(monkeypatch: pytest.MonkeyPatch, camera: Camera) -> tuple[list[tuple[int, float]], Counter[str]]:
    """Return of each frame that was offered its place in the stream and how old it was then, and the counts."""
    clock = SimpleNamespace(
        monotonic=lambda: camera.now, monotonic_ns=lambda: round(camera.now * 1e9), time=lambda: camera.now
    )
    monkeypatch.setattr(live_stream, "time", clock)
    found: list[tuple[int, float]] = []

    def offer(frame: LiveFrame, reason: str) -> None:
        found.append((frame.picture.pts, camera.now - (1000.0 + frame.picture.pts * GAP)))

    turns: Any = SimpleNamespace(acquire=lambda timeout: True, release=lambda: None)
    stream = LiveStream(
        "gate", "tcp://x", Choice(), options={}, offer=offer, ended=bool, stays=True, patience=3.0, device=None,
        turns=turns, freed=bool,
    )  # fmt: skip
    stream._read_frames(live_av(), camera, SimpleNamespace(index=0, average_rate=25))
    return found, stream.counts


def live_av() -> Any:
    """Return what stands for PyAV's errors."""
    error = type("Error", (Exception,), {})
    return SimpleNamespace(FFmpegError=error, error=SimpleNamespace(ExitError=type("ExitError", (Exception,), {})))


def test_frames_do_not_grow_older_and_older(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding that takes twice as long as there is leaves frames out; what is decoded is about a second old at most."""
    found, counts = read(monkeypatch, Camera(1000, lambda number: 2 * GAP))

    assert max(age for _, age in found) < 1.3
    assert counts["packets_behind"] == 1000 - len(found)
    assert 300 < len(found) < 600


def test_all_frames_come_again_once_it_is_fast_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst of four seconds leaves frames out until the next keyframe after it, and then no more."""
    found, counts = read(monkeypatch, Camera(600, lambda number: 3 * GAP if 100 <= number < 200 else GAP / 10))

    numbers = [number for number, _ in found]
    assert numbers[:100] == list(range(100))
    assert numbers[-350:] == list(range(250, 600))
    assert 0 < counts["packets_behind"] < 150


def packet(seconds: float | None, *, is_keyframe: bool = False) -> Any:
    """Return what stands for a packet with this time."""
    return SimpleNamespace(dts=seconds, pts=None, time_base=1, is_keyframe=is_keyframe)


def test_who_waits_for_a_core_has_not_caught_up() -> None:
    """Reads that take some milliseconds while the machine is full hide no lag; a pause of the camera is none."""
    packets = [packet(number * GAP, is_keyframe=number == 0) for number in range(30)]

    catch_up = CatchUp()
    late = [catch_up.passes_by(one, 0.01, 100.0 + 2 * number * GAP) for number, one in enumerate(packets)]
    assert late == [False] * 26 + [True] * 4
    catch_up = CatchUp()
    assert not any(catch_up.passes_by(one, 2.0, 100.0 + 2 * number) for number, one in enumerate(packets))


@pytest.mark.parametrize("cost", [GAP / 10, 0.99 * GAP])
def test_a_stream_that_keeps_up_loses_nothing(monkeypatch: pytest.MonkeyPatch, cost: float) -> None:
    """However little there is to spare."""
    found, counts = read(monkeypatch, Camera(1000, lambda number: cost))

    assert len(found) == 1000
    assert not counts["packets_behind"]


def test_what_has_no_keyframes_is_decoded_all_the_same() -> None:
    """Where no packet says that it is one, there is nothing to wait for."""
    catch_up = CatchUp()

    assert not catch_up.passes_by(packet(0.0), 0.1, 100.0)
    assert not catch_up.passes_by(packet(0.5), 0.0, 102.0)
    assert not catch_up.passes_by(packet(0.6, is_keyframe=True), 0.0, 102.1)
    assert catch_up.passes_by(packet(0.7), 0.0, 102.2)


def test_of_keyframes_alone_the_late_ones_are_passed_by() -> None:
    """A camera whose every picture is a keyframe, or of which keyframes alone are chosen, grows no older either."""
    decoded = play(60.0, 2 * GAP, gop=1)
    assert max(age for _, age in decoded) < 1.3
    assert 600 < len(decoded) < 900  # half of 1,500
    assert len(play(60.0, 0.9 * GAP, gop=1)) == 1500


def test_a_clock_that_jumps_is_no_lag() -> None:
    """Ahead, back, or back to its beginning, as of a clip that is sent again and again."""
    catch_up = CatchUp()

    assert not catch_up.passes_by(packet(0.0, is_keyframe=True), 0.1, 100.0)
    assert not catch_up.passes_by(packet(500.0), 0.0, 100.1)
    assert not catch_up.passes_by(packet(0.0), 0.0, 100.2)
    assert not catch_up.passes_by(packet(None), 0.0, 100.2)
    assert not catch_up.passes_by(packet(8.0), 0.1, 108.2)
    assert not catch_up.passes_by(packet(0.0), 0.0, 108.24)


def play(
    seconds: float,
    cost: float,
    *,
    gop: int,
    read: Callable[[], float] = lambda: 1e-5,
    rate: float = 1.0,
    has_clock: bool = True,
) -> list[tuple[int, float]]:
    """Return of each frame that is decoded its number, and how old it was when it was read, in seconds.

    Args:
        seconds: How much of the stream.
        cost: Seconds of decoding a frame.
        gop: Frames from one keyframe to the next.
        read: Gives the seconds of a read of what is there already.
        rate: Seconds of the sender's clock that it sends a second.
        has_clock: False: the times of its packets are made up.
    """
    now, catch_up, decoded = 1000.0, CatchUp(has_clock=has_clock), []
    for number in range(round(seconds / GAP)):
        sent, asked = 1000.0 + number * GAP / rate, now
        now = max(now + read(), sent)
        if not catch_up.passes_by(packet(number * GAP, is_keyframe=number % gop == 0), now - asked, now):
            decoded.append((number, now - sent))
            now += cost
    return decoded


@pytest.mark.parametrize("milliseconds", [0.2, 3.0, 8.0])
@pytest.mark.parametrize(("gop", "cost"), [(50, 1.2), (25, 2.0)])
def test_no_frame_is_old_where_reads_wait_for_a_core(gop: int, cost: float, milliseconds: float) -> None:
    """Each read of what is there already takes some milliseconds on a full machine; in a quarter of an hour no frame is old."""
    rng = random.Random(gop)

    decoded = play(900.0, cost * GAP, gop=gop, read=lambda: rng.expovariate(1000 / milliseconds))

    assert max(age for _, age in decoded) < 2.0
    assert len(decoded) > 900 / GAP * 0.3


@pytest.mark.parametrize("gop", [350, 700])
def test_decoding_goes_on_at_a_keyframe_however_late_that_is(gop: int) -> None:
    """A frame is decoded only after the one before or as a keyframe, however far apart keyframes are."""
    numbers = [number for number, _ in play(300.0, 2 * GAP, gop=gop)]

    assert len(numbers) < 300 / GAP
    assert all(number % gop == 0 or number == before + 1 for before, number in itertools.pairwise(numbers))


@pytest.mark.parametrize("rate", [0.5, 0.9, 1.1])
@pytest.mark.parametrize("gop", [50, 250])
def test_a_sender_with_another_pace_than_its_clock_loses_nothing(rate: float, gop: int) -> None:
    """As a transcoder that is not fast enough, or a camera whose timestamps are wrong, while there are cores to spare."""
    assert len(play(300.0, 0.4 * GAP, gop=gop, rate=rate)) == round(300.0 / GAP)


@pytest.mark.parametrize("gop", [1, 50])
def test_where_times_are_made_up_no_frame_is_old_either(gop: int) -> None:
    """A camera sends 30 frames a second, of which FFmpeg says 25: by these times none would ever be late."""
    decoded = play(300.0, 1.1 * GAP / 1.2, gop=gop, rate=1.2, has_clock=False)

    assert max(age for _, age in decoded) < 1.0
    assert len(decoded) > 300.0 / GAP * 0.4


@pytest.mark.parametrize("rate", [0.02, 0.4, 1.2])
def test_where_times_are_made_up_a_stream_that_keeps_up_loses_nothing(rate: float) -> None:
    """At a frame in two seconds, at 10 and at 30 a second."""
    assert len(play(300.0, 0.8 * GAP / rate, gop=1, rate=rate, has_clock=False)) == round(300.0 / GAP)
