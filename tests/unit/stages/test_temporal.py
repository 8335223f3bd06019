"""What is known of a stream: in order, apart from other streams, by time and not by frames."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.base.errors import SettingsError
from headrace.pipeline.execute import run as execute
from headrace.stages.temporal import Average, Events, Smooth, Tracks, Window, per_stream
from headrace.testing import ListSource

Frame = tuple[str, int]


class Frames(ListSource):
    """Gives out (stream, number) as frames at ten a second."""

    def receive(self, limit: int, wait_seconds: float) -> list[hr.Job] | None:
        """Return the next ones."""
        jobs = super().receive(limit, wait_seconds)
        for job in jobs or ():
            job.stream, job.sequence = job.payload
            job.attributes = {"seconds": job.payload[1] / 10}
            job.priority = random.Random(job.id).randrange(2)
        return jobs


def record(seen: dict[str, list[int]]) -> Callable[[], Callable[[Frame, float], Frame]]:
    """Return what makes a state that notes the frames it gets, and refuses those of another stream."""

    def make() -> Callable[[Frame, float], Frame]:
        own: list[str] = []

        def update(value: Frame, seconds: float) -> Frame:
            own.append(value[0])
            assert set(own) == {value[0]}
            seen.setdefault(value[0], []).append(value[1])
            return value

        return update

    return make


def run_frames(frames: Sequence[Frame], stages: Sequence[hr.Stage], plan: dict[str, Any] | None = None) -> list[Any]:
    """Return the results in the order of delivery."""
    delivery = hr.collect()
    table = {"source": {"wait_seconds": 0.05}, "run": {"brake_after": 0}, **(plan or {})}
    execute(hr.Pipeline(Frames(frames), stages=stages, delivery=delivery), hr.Plan.from_table(table))
    return [result for _, result in delivery.results]


def dawdle(value: Frame) -> Frame:
    """Take longer for some frames than for others, and fail for some."""
    time.sleep(random.Random(str(value)).choice((0.0, 0.001, 0.008)))
    if value[1] % 7 == 3:
        raise ValueError("this one")
    return value


def test_frames_of_a_stream_come_in_order_and_streams_never_meet() -> None:
    """Eight workers before it overtake one another, frames fail, priorities differ; each stream is in order all the same."""
    frames = [(f"camera-{number % 3}", number // 3) for number in range(150)]
    seen: dict[str, list[int]] = {}
    stages = [hr.stage("slow", dawdle, kind="io"), per_stream("keep", record(seen))]
    results = run_frames(frames, stages, {"stages": {"slow": {"workers": 8, "attempts": 1}}})
    expected = [number for number in range(50) if number % 7 != 3]
    assert seen == {f"camera-{number}": expected for number in range(3)}
    assert len(results) == 3 * len(expected)


def test_a_stream_does_not_wait_for_another() -> None:
    """While the first frame of one stream is held up until all frames of the other came through, those go on."""
    done: list[int] = []

    def slow(value: Frame) -> Frame:
        until = time.monotonic() + 20
        while value[0] == "slow" and len(done) < 20 and time.monotonic() < until:
            time.sleep(0.002)
        return value

    def note() -> Callable[[Frame, float], Frame]:
        def update(value: Frame, seconds: float) -> Frame:
            if value[0] == "fast":
                done.append(value[1])
            return value

        return update

    frames = [("slow", 0), *[("fast", number) for number in range(20)]]
    results = run_frames(frames, [hr.stage("slow", slow, kind="io"), per_stream("keep", note)])
    assert results[-1] == ("slow", 0)
    assert done == list(range(20))


def test_ordered_runs_stay_in_order_whatever_the_priority() -> None:
    """`run.ordered` holds for urgent jobs too."""
    frames = [("a", number) for number in range(60)]
    plan = {"run": {"ordered": True}, "stages": {"slow": {"workers": 8}}}
    results = run_frames(frames, [hr.stage("slow", lambda value: value, kind="io")], plan)
    assert [number for _, number in results] == list(range(60))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workers": 2}, r"stages\.keep\.workers = 2 is not possible"),
        ({"executor": "inline"}, r"stages\.keep\.executor = 'inline' is not possible"),
        ({"executor": "process"}, r"stages\.keep\.executor = 'process' is not possible"),
    ],
)
def test_it_has_one_worker_of_its_own(settings: dict[str, Any], message: str) -> None:
    """A Plan that would let frames overtake one another is refused."""
    stages = [hr.stage("first", lambda value: value), per_stream("keep", record({}))]
    with pytest.raises(SettingsError, match=message):
        run_frames([("a", 0)], stages, {"stages": {"keep": settings}})


def test_nothing_is_fused_behind_it() -> None:
    """Another try of what stands behind would show it a frame twice; nor may several receivers mix up the order."""
    stages = [per_stream("keep", record({})), hr.stage("after", lambda value: value)]
    with pytest.raises(SettingsError, match=r"stages\.after\.executor = 'inline' is not possible behind keep"):
        run_frames([("a", 0)], stages, {"stages": {"after": {"executor": "inline"}}})
    with pytest.raises(SettingsError, match=r"source\.receivers = 3 is not possible with keep"):
        run_frames([("a", 0)], stages, {"source": {"receivers": 3}})


def test_it_does_not_stand_inside_a_fan_out() -> None:
    """Children have no order of their own."""
    stages = [
        hr.fan_out("cut", lambda value: hr.stages.stage.Fan([value])),
        per_stream("keep", record({})),
        hr.join("glue", lambda joined: joined.results),
    ]
    with pytest.raises(SettingsError, match="put it behind the join"):
        run_frames([("a", 0)], stages)


def test_what_is_no_callable_is_refused() -> None:
    """An instance where a class is wanted would share one state among all streams."""
    with pytest.raises(SettingsError, match="expected a callable"):
        per_stream("keep", lambda: 3)  # type: ignore[arg-type, return-value]
    with pytest.raises(SettingsError, match="reset_after"):
        per_stream("keep", Smooth, reset_after=0)


def test_a_gap_begins_anew_and_a_step_back_stands_still() -> None:
    """Behind a gap nothing of before is known; time never goes back for what is made."""
    moments = {0: 10.0, 1: 10.1, 2: 10.05, 3: 99.0, 4: 99.1, 5: 3.0}
    seen: list[tuple[int, float, int]] = []
    made = iter(range(10))

    def make() -> Callable[[Frame, float], Frame]:
        which = next(made)

        def update(value: Frame, seconds: float) -> Frame:
            seen.append((value[1], seconds, which))
            return value

        return update

    stage = per_stream("keep", make, seconds=lambda job: moments[job.payload[1]])
    run_frames([("a", number) for number in moments], [stage])
    first = seen[0][2]
    assert [(number, seconds, which - first) for number, seconds, which in seen] == [
        *[(0, 10.0, 0), (1, 10.1, 0), (2, 10.1, 0)],
        *[(3, 99.0, 1), (4, 99.1, 1), (5, 3.0, 2)],
    ]


def test_streams_beyond_the_bound_are_forgotten() -> None:
    """The one that was silent for longest goes."""
    made: list[str] = []

    def make() -> Callable[[Frame, float], Frame]:
        made.append("x")
        return lambda value, seconds: value

    stage = per_stream("keep", make, most_streams=2)
    before = len(made)
    run_frames([("a", 0), ("b", 1), ("c", 2), ("b", 3), ("a", 4)], [stage])
    assert len(made) - before == 4  # a, b, c, and a again


def test_a_frame_without_a_time_is_rejected() -> None:
    """The reason says what to do."""
    source = ListSource(["x"])
    pipeline = hr.Pipeline(source, stages=[per_stream("keep", Smooth)])
    execute(pipeline, hr.Plan.from_table({"source": {"wait_seconds": 0.05}, "run": {"brake_after": 0}}))
    assert "temporal.no_time: 0 has no time" in source.outcomes["0"][-1].reason


# --- labels


def scores_of(label: int, sure: float = 0.8) -> np.ndarray:
    """Return scores of three labels, of which one has most."""
    scores = np.full(3, (1 - sure) / 2)
    scores[label] = sure
    return scores


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=60))
def test_interleaved_streams_give_what_each_gives_alone(frames: list[tuple[int, int]]) -> None:
    """Nothing of one stream is seen in another."""
    together = {stream: Smooth(enter=0.5) for stream in range(3)}
    alone = {stream: Smooth(enter=0.5) for stream in range(3)}
    mixed = [(stream, together[stream](scores_of(label), at / 10)) for at, (stream, label) in enumerate(frames)]
    for wanted in range(3):
        own = [
            alone[wanted](scores_of(label), at / 10) for at, (stream, label) in enumerate(frames) if stream == wanted
        ]
        assert own == [result for stream, result in mixed if stream == wanted]


@pytest.mark.parametrize("rate", [5, 25, 100])
def test_a_change_is_told_after_about_a_half_life_at_any_rate(rate: int) -> None:
    """The delay is one of time, not of frames."""
    smooth = Smooth(0.4, enter=0.34, leave=0.1)
    frames = [(number / rate, 0 if number < 4 * rate else 1) for number in range(6 * rate)]
    told = [at for at, label in frames if smooth(scores_of(label), at)["label"] == 1]
    assert 4.4 - 1.5 / rate <= told[0] <= 4.4 + 2 / rate


def test_one_wrong_frame_changes_nothing() -> None:
    """However sure the model is of it."""
    smooth = Smooth(0.25)
    labels = [smooth(np.eye(3)[1 if number == 20 else 0], number / 25) for number in range(40)]
    assert {one["label"] for one in labels} == {0}
    assert labels[20]["raw_label"] == 1


def test_dwell_and_leave() -> None:
    """A label stands for its time, unless hardly anything speaks for it."""
    slow, quick = Smooth(0.01, enter=0.5, leave=0.0, dwell=1.0), Smooth(0.01, enter=0.5, leave=0.25, dwell=1.0)
    slow(scores_of(0), 0.0), quick(scores_of(0), 0.0)
    assert slow(scores_of(1), 0.5)["label"] == 0
    assert quick(scores_of(1), 0.5)["label"] == 1
    assert slow(scores_of(1), 1.1)["label"] == 1


@pytest.mark.parametrize("dwell", [0.0, 0.5])
def test_labels_that_nothing_speaks_for_change_nothing(dwell: float) -> None:
    """A model of a thousand classes is smoothed as one of the two that compete; its score is the share that it says."""
    few, many = (Smooth(0.1, enter=0.55, dwell=dwell) for _ in range(2))
    draw = np.random.default_rng(1)
    for number in range(200):
        sure = 0.9 if draw.random() < 0.8 else 0.3
        scores = np.array([sure, 1 - sure] if number % 100 < 50 else [1 - sure, sure])
        one = few(scores, number / 10)
        assert many(np.concatenate([scores, np.zeros(998)]), number / 10) == one
    spread = np.full(1000, 0.1 / 999)
    spread[7] = 0.9
    assert Smooth()(spread, 0.0)["score"] == 1.0
    assert Smooth()(np.full(1000, 0.001), 0.0)["score"] == 0.001


def test_names_and_what_stands_beside() -> None:
    """Labels have the names given, and the rest of a mapping stays."""
    smooth = Smooth(labels=["red", "green", "blue"], key="p")
    result = smooth({"p": scores_of(2), "box": 7}, 0.0)
    assert (result["label"], result["raw_label"], result["box"]) == ("blue", "blue", 7)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("text", "got str"),
        ({"other": 1}, "has no 'scores', but 'other'"),
        ([[0.1, 0.9]], "shape"),
        ([-1.0, 2.0], ">= 0"),
        ([0.0, 0.0], "not all of them 0"),
        ([float("nan"), 1.0], "finite"),
    ],
)
def test_scores_that_are_none_are_rejected(value: Any, message: str) -> None:
    """With what was got."""
    with pytest.raises(hr.ItemRejected, match=message):
        Smooth()(value, 0.0)


def test_settings_are_checked() -> None:
    """With the value seen and what is expected."""
    with pytest.raises(SettingsError, match="leave"):
        Smooth(enter=0.5, leave=0.6)
    with pytest.raises(SettingsError, match="half_life"):
        Average(0)


def test_average_of_numbers() -> None:
    """An average by age; a mapping keeps the rest."""
    average = Average(1.0)
    assert average(10, 0.0) == 10
    assert average(20, 1.0) == pytest.approx((10 * 0.5 + 20) / 1.5)
    assert Average(key="n")({"n": 3, "x": 1}, 0.0) == {"n": 3.0, "x": 1}


# --- events


def test_events_are_told_once_and_bounces_are_not() -> None:
    """On after half a second of it; a short break ends nothing."""
    events = Events(lambda value: value == "x", on_after=0.5, off_after=0.5)
    line = "." * 5 + "x." + "." * 3 + "x" * 10 + "." * 2 + "x" * 5 + "." * 10
    results = [events(letter, number / 10) for number, letter in enumerate(line)]
    told = [(number, one["event"], one["since"]) for number, one in enumerate(results) if one["event"]]
    assert told == [(15, "began", 1.0), (32, "ended", 2.7)]
    assert results[20] == {"value": ".", "on": True, "event": None, "since": 1.0}


@pytest.mark.parametrize("fails", ["stage", "delivery"])
def test_a_frame_that_fails_behind_it_and_comes_again_is_the_same_frame(fails: str) -> None:
    """An event is told also where its delivery or a stage behind failed at first; and no frame counts twice."""
    failed, seen = set(), []

    def fail_once(frame: dict[str, Any]) -> dict[str, Any]:
        if frame["event"] and frame["value"][1] not in failed:
            failed.add(frame["value"][1])
            raise RuntimeError("not now")
        return frame

    def note(value: Frame, seconds: float) -> Frame:
        seen.append(value[1])
        return value

    class Told(hr.collect):  # type: ignore[misc, valid-type]
        """Refuses each event once."""

        def deliver(self, job: hr.Job, result: Any) -> bool:
            """Take a result, or fail."""
            if fails == "delivery":
                fail_once(result)
            return bool(super().deliver(job, result))

    told = Told()
    stages = [
        per_stream("note", lambda: note),
        per_stream("events", lambda: Events(lambda value: 4 <= value[1] < 8, on_after=0.0, off_after=0.0)),
        *([hr.stage("later", fail_once)] if fails == "stage" else []),
    ]
    source = Frames([("a", number) for number in range(12)], max_receives=3)
    plan = hr.Plan.from_table(
        {"source": {"wait_seconds": 0.05}, "run": {"brake_after": 0}, "stages": {"deliver": {"attempts": 1}}}
    )
    execute(hr.Pipeline(source, stages=stages, delivery=told), plan)
    assert failed == {4, 8}
    assert {frame["value"][1]: frame["event"] for _, frame in told.results if frame["event"]} == {
        4: "began",
        8: "ended",
    }
    assert seen == list(range(12))


def test_a_frame_that_is_given_back_is_the_same_frame_also_where_it_has_one_try() -> None:
    """While nothing succeeds what fails is given back, which is no try."""
    seen, failed = [], []

    def note(value: Frame, seconds: float) -> Frame:
        seen.append(value[1])
        return value

    def fail_at_first(value: Frame) -> Frame:
        if len(failed) < 15:
            failed.append(value[1])
            raise RuntimeError("not now")
        return value

    told = hr.collect()
    stages = [per_stream("note", lambda: note), hr.stage("later", fail_at_first)]
    source = Frames([("a", number) for number in range(30)], max_receives=1)
    plan = {"source": {"wait_seconds": 0.05}, "run": {"brake_after": 5}, "stages": {"later": {"attempts": 1}}}
    execute(hr.Pipeline(source, stages=stages, delivery=told), hr.Plan.from_table(plan))
    assert len(told.results) > 15  # some of those that failed came again
    assert seen == list(range(30))


@pytest.mark.parametrize("room", [1 << 28, 1 << 20])
def test_a_window_of_images_that_comes_again_is_delivered(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """With the frames that it had, as far as there is room to keep them; never is it lost."""
    monkeypatch.setattr(sys.modules[per_stream.__module__], "_MOST_KEPT_BYTES", room)
    tried: list[tuple[int, ...]] = []

    def fail_at_first(window: np.ndarray) -> tuple[int, ...]:
        tried.append(tuple(window[:, 0]))
        if len(tried) <= 8:
            raise RuntimeError("not now")
        return tried[-1]

    stages = [
        hr.stage("image", lambda value: np.full(40_000, value[1])),
        per_stream("window", lambda: Window(2, stack=True)),
        hr.stage("later", fail_at_first),
    ]
    told, source = hr.collect(), Frames([("a", number) for number in range(10)], max_receives=3)
    plan = {"source": {"wait_seconds": 0.05}, "run": {"brake_after": 0}, "stages": {"later": {"attempts": 1}}}
    execute(hr.Pipeline(source, stages=stages, delivery=told), hr.Plan.from_table(plan))
    assert len(told.results) == 10
    if room > 1 << 20:  # a window is 640 kB
        assert sorted(result for _, result in told.results) == [(0, 0), *((number, number + 1) for number in range(9))]


# --- tracks


def boxes_at(*centres: tuple[float, float]) -> dict[str, Any]:
    """Return boxes of 20 x 20 pixels."""
    return {"boxes": [[x - 10, y - 10, x + 10, y + 10] for x, y in centres]}


def test_objects_keep_their_numbers() -> None:
    """Two that move, of which one is not seen for a while, in changing order."""
    tracks = Tracks(min_hits=1)
    for number in range(10):
        at = number / 10
        first, second = (100 + 8 * number, 50.0), (300 - 8 * number, 200.0)
        found = [second, first] if number % 2 else [first, second]
        if number in (5, 6):
            found.remove(second)
        result = tracks(boxes_at(*found), at)
        known = dict(zip(found, result["tracks"], strict=True))
        assert known[first] == 1
        assert known.get(second, 2) == 2


def test_objects_are_numbered_once_they_were_seen_often_enough() -> None:
    """One frame makes no object; one that comes back late is another."""
    tracks = Tracks(min_hits=2, lost_after=1.0)
    assert tracks(boxes_at((50, 50)), 0.0)["tracks"] == [None]
    assert tracks(boxes_at((51, 50)), 0.1)["tracks"] == [1]
    assert tracks({"boxes": []}, 0.2)["tracks"] == []
    assert tracks(boxes_at((52, 50)), 2.0)["tracks"] == [None]
    assert tracks(boxes_at((52, 50)), 2.1)["tracks"] == [2]


def test_classes_are_not_mixed() -> None:
    """A dog where a cat was is another object."""
    tracks = Tracks(min_hits=1)
    assert tracks({**boxes_at((50, 50)), "classes": ["cat"]}, 0.0)["tracks"] == [1]
    assert tracks({**boxes_at((50, 50)), "classes": ["dog"]}, 0.1)["tracks"] == [2]
    with pytest.raises(hr.ItemRejected, match="1 boxes, but 2 'classes'"):
        tracks({**boxes_at((50, 50)), "classes": ["dog", "cat"]}, 0.2)
    with pytest.raises(hr.ItemRejected, match=r"expected \(n, 4\)"):
        tracks({"boxes": [[1, 2, 3]]}, 0.2)


# --- windows


def test_windows() -> None:
    """The last ones, the newest last, copied; a camera that changes its size begins anew."""
    window = Window(3, stack=True)
    frame = np.zeros((2, 2), np.uint8)
    for number in range(4):
        frame[:] = number
        last = window(frame, number)
    assert last[:, 0, 0].tolist() == [1, 2, 3]
    assert window(np.full((1, 1), 9), 4).tolist() == [[[9]]] * 3
    assert Window(2)("a", 0) == ["a", "a"]
