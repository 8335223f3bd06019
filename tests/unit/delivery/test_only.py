"""Some results alone, and the pictures that they are of."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest

import headrace as hr
from headrace.base.errors import DeliveryFailed, DeliveryRejected, SettingsError
from headrace.base.protocols import Addressed
from headrace.base.records import Job
from headrace.delivery.only import only


def grey(number: int) -> np.ndarray:
    """Return a picture of one grey."""
    return np.full((40, 60, 3), number, np.uint8)


def frame(number: int, value: int = 100) -> Job:
    """Return the job of a frame."""
    return Job(f"gate#2026-11-24T13:05:01.123Z/{number}", grey(value), stream="gate", sequence=number)


def names(folder: Path) -> list[str]:
    """Return the names of what is in a folder."""
    return sorted(entry.name for entry in folder.iterdir())


def test_a_run_tells_events_alone(tmp_path: Path) -> None:
    """Each result that holds is one line; the others are delivered as well, to nobody, and counted."""
    kept = hr.collect()
    pipeline = hr.Pipeline(
        hr.items(list(range(10))),
        stages=[hr.stage("see", lambda number: {"event": "began" if number in (3, 7) else None, "number": number})],
        delivery=hr.only(kept, lambda result: result["event"] is not None),
    )
    result = hr.run(pipeline)
    assert sorted(value["number"] for _, value in kept.results) == [3, 7]
    assert result.counters.delivered == 10
    assert result.counters.notes["deliver.left_out"] == 8


def test_pictures_of_what_is_told(tmp_path: Path) -> None:
    """The picture stands under the name in the result, before the result is told; what is drawn is drawn into a copy."""
    kept = hr.collect()
    delivery = only(
        kept, lambda result: result["event"], pictures=tmp_path / "seen", draw=lambda image, result: image.fill(200)
    )
    delivery.open(None)
    job = frame(12)
    assert delivery.deliver(frame(11), {"event": None})
    assert delivery.deliver(job, {"event": "began"})
    ((_, result),) = kept.results
    assert names(tmp_path / "seen") == [result["picture"]]
    assert result["picture"].startswith("gate_2026-11-24T13_05_01.123Z_12.")
    assert abs(int(cv2.imread(str(tmp_path / "seen" / result["picture"])).mean()) - 200) <= 2
    assert (job.payload == 100).all()


def test_colours_are_kept(tmp_path: Path) -> None:
    """Red is red."""
    delivery = only(hr.collect(), bool, pictures=tmp_path)
    delivery.open(None)
    image = grey(0)
    image[..., 0] = 220
    delivery.deliver(Job("a", image), 1)
    blue, _, red = cv2.imread(str(next(tmp_path.iterdir()))).reshape(-1, 3).mean(axis=0)
    assert red > 200 > 20 > blue


def test_the_oldest_pictures_go(tmp_path: Path) -> None:
    """Also those of an earlier run; files of other names stay, and a result that is tried again has one picture."""
    (tmp_path / "mine.jpg").write_bytes(b"mine")
    for first in (0, 3):
        delivery = only(hr.collect(), bool, pictures=tmp_path, most_pictures=3)
        delivery.open(None)
        for number in range(first, first + 3):
            delivery.deliver(frame(number), 1)
            delivery.deliver(frame(number), 1)
        delivery.close()
    assert "mine.jpg" in names(tmp_path)
    assert len(names(tmp_path)) == 1 + 3
    assert [name.split(".")[1].removeprefix("123Z_") for name in names(tmp_path)[:3]] == ["3", "4", "5"]


def test_names_do_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    """Whatever a sender calls its stream; two ids that read alike are two files."""
    folder = tmp_path / "seen"
    delivery = only(hr.collect(), bool, pictures=folder)
    delivery.open(None)
    for name in ("../../etc/x", "a/b", "a_b", "é" * 300, ".hidden", "\udce9"):
        delivery.deliver(Job(name, grey(1)), 1)
    assert len(names(folder)) == 6
    assert names(tmp_path) == ["seen"]
    assert not any(name.startswith(".") for name in names(folder))


def test_what_fails_is_the_items(tmp_path: Path) -> None:
    """A condition or a drawing that raises, and a payload that is no picture, reject that result; a disk is tried again."""
    delivery = only(hr.collect(), lambda result: result["event"], pictures=tmp_path / "seen")
    delivery.open(None)
    with pytest.raises(DeliveryRejected, match=r"only\.when: .*KeyError"):
        delivery.deliver(frame(1), {})
    with pytest.raises(DeliveryRejected, match=r"only\.picture: the payload of a is no image, but bytes"):
        delivery.deliver(Job("a", b""), {"event": 1})
    drawing = only(hr.collect(), bool, pictures=tmp_path / "drawn", draw=lambda image, result: 1 / 0)
    drawing.open(None)
    with pytest.raises(DeliveryRejected, match=r"only\.draw: .*ZeroDivisionError"):
        drawing.deliver(frame(1), 1)
    (tmp_path / "seen").rmdir()
    with pytest.raises(DeliveryFailed, match="cannot be written"):
        delivery.deliver(frame(1), {"event": 1})


def test_a_delivery_to_many_receivers_stays_one() -> None:
    """So that a receiver that hangs delays its own results alone."""
    assert isinstance(only(hr.callback("http://127.0.0.1:1/"), bool), Addressed)
    assert not isinstance(only(hr.collect(), bool), Addressed)


@pytest.mark.parametrize(("arguments", "options", "said"), [
    ((hr.collect, bool), {}, "a delivery such as"), (("out.jsonl", bool), {}, "a delivery such as"),
    ((None, 3), {}, "when"), ((None, lambda: True), {}, "when of only"),
    ((None, bool), {"draw": lambda image, result: None}, "without pictures"),
    ((None, bool), {"pictures": "x", "most_pictures": 0}, "most_pictures"),
])  # fmt: skip
def test_settings_are_checked(arguments: Any, options: dict[str, Any], said: str) -> None:
    """When the pipeline is made."""
    delivery, when = arguments
    with pytest.raises(SettingsError, match=said):
        hr.only(hr.collect() if delivery is None else delivery, when, **options)


def test_a_picture_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk the beginnings of pictures would have what room is left."""

    def write(path: Path, data: bytes) -> None:
        path.open("wb").close()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", write)
    delivery = only(hr.collect(), lambda result: True, pictures=tmp_path / "seen")
    delivery.open(None)
    with pytest.raises(DeliveryFailed, match="No space left"):
        delivery.deliver(frame(1), {})
    assert names(tmp_path / "seen") == []


def moments(*seconds: float, stream: str = "gate") -> list[Job]:
    """Return frames of these moments, each brighter than the one before, of a stream that arrives."""
    return [
        Job(f"{stream}#{at}", grey(20 + 10 * number), stream=stream, attributes={"arrived": 1000.0 + at})
        for number, at in enumerate(seconds)
    ]


def watched(folder: Path, **options: Any) -> tuple[Any, Any]:
    """Return what events were told, and a delivery that keeps clips of half a second before and after them."""
    pytest.importorskip("av")
    kept = hr.collect()
    delivery = only(kept, lambda result: result["event"], pictures=folder, clip=0.5, **options)
    delivery.open(None)
    return kept, delivery


def shades(file: Path) -> list[tuple[float, int]]:
    """Return the time and the grey of each frame of a clip."""
    import av

    with av.open(str(file)) as container:
        return [
            (round(frame.time, 2), round(float(frame.to_ndarray(format="rgb24").mean()) / 10) * 10)
            for frame in container.decode(video=0)
        ]


@pytest.mark.full
def test_a_clip_of_what_was_before_and_after(tmp_path: Path) -> None:
    """Half a second on both sides of the event, in time; what is drawn is in each frame, and no payload is changed."""
    kept, delivery = watched(tmp_path, draw=lambda image, result: image.__setitem__(slice(None, 4), result["number"]))
    jobs = moments(0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4)
    for number, job in enumerate(jobs):
        delivery.deliver(job, {"event": number == 3, "number": 0})
        if number == 5:  # its time is over with the frame after
            assert not list(tmp_path.glob("*.webm"))
    ((_, result),) = kept.results
    assert result["clip"].removesuffix("webm") == result["picture"].removesuffix("jpg")
    found = shades(tmp_path / result["clip"])
    assert [at for at, _ in found] == [0.0, 0.2, 0.4, 0.6, 0.8]
    assert [shade for _, shade in found] == sorted(shade for _, shade in found)
    assert all(np.ptp(np.asarray(job.payload)) == 0 for job in jobs)
    assert names(tmp_path) == sorted([result["picture"], result["clip"]])


@pytest.mark.full
def test_clips_of_streams_and_of_events_that_follow(tmp_path: Path) -> None:
    """Streams have clips of their own, events of one moment share one, and the end of a run writes what is open."""
    kept, delivery = watched(tmp_path)
    for one, other in zip(moments(0, 0.2, 0.4), moments(0, 0.2, 0.4, stream="yard"), strict=True):
        delivery.deliver(one, {"event": True})
        delivery.deliver(one, {"event": True})  # tried again: one frame all the same
        delivery.deliver(other, {"event": other.id == "yard#0.4"})
    delivery.close()
    clips = {result["clip"] for _, result in kept.results}
    assert {file.name for file in tmp_path.glob("*.webm")} == clips
    assert sorted(len(shades(tmp_path / name)) for name in clips) == [3, 3]
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.full
def test_an_event_that_is_tried_again_later_keeps_its_clip(tmp_path: Path) -> None:
    """Its frame comes again once others came, and once the clip is written: no frame is twice in it, and none is lost."""
    kept, delivery = watched(tmp_path)
    jobs = moments(0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
    for job in (*jobs[:2], jobs[0], *jobs[2:4], jobs[1], *jobs[4:], jobs[1]):
        delivery.deliver(job, {"event": job is jobs[1]})
    delivery.close()
    (clip,) = {result["clip"] for _, result in kept.results}
    assert [at for at, _ in shades(tmp_path / clip)] == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    assert len(list(tmp_path.glob("*.webm"))) == 1


@pytest.mark.full
def test_of_more_streams_than_are_kept_no_clip_is_lost(tmp_path: Path) -> None:
    """The stream that has to make room for another one has its clip written as far as it goes."""
    kept, delivery = watched(tmp_path)
    for number in range(102):
        delivery.deliver(moments(0.1 * number, stream=f"camera-{number}")[0], {"event": number == 0})
    ((_, result),) = kept.results
    assert len(shades(tmp_path / result["clip"])) == 1


@pytest.mark.full
def test_no_more_than_a_clip_needs_is_kept(tmp_path: Path) -> None:
    """Of 250 frames of a stream those of the last half second; a hundred cameras would fill the memory with the others."""
    _, delivery = watched(tmp_path)
    for number in range(250):
        delivery.deliver(moments(0.02 * number)[0], {"event": False})
    (stream,) = delivery._clips._streams.values()
    assert len(stream.last) <= 27


@pytest.mark.full
def test_clips_go_with_their_pictures_and_sizes_may_change(tmp_path: Path) -> None:
    """No more are kept than pictures; a frame of another size is scaled, and one of odd sides is cut by a pixel."""
    _, delivery = watched(tmp_path, most_pictures=2)
    for at in range(4):
        jobs = moments(10 * at, 10 * at + 0.1)
        jobs[1].payload = np.zeros((41, 61, 3), np.uint8)
        for job in reversed(jobs) if at % 2 else jobs:
            delivery.deliver(job, {"event": job is jobs[0]})
    delivery.close()
    assert len(list(tmp_path.glob("*.only.jpg"))) == len(list(tmp_path.glob("*.only.webm"))) == 2


@pytest.mark.full
def test_a_clip_that_cannot_be_written_costs_no_event(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What draws may fail for a frame that nobody asked about: the events are told, and the log says why there is no clip."""
    kept, delivery = watched(tmp_path, draw=lambda image, result: result["box"])
    counted: list[str] = []
    delivery.open(SimpleNamespace(count=counted.append))
    first, second, third = moments(0, 0.1, 1.0)
    delivery.deliver(first, {"event": True, "box": 1})
    delivery.deliver(second, {"event": False})
    delivery.deliver(third, {"event": False})
    assert len(kept.results) == 1
    assert "cannot be written: KeyError: 'box'" in caplog.text
    assert counted.count("deliver.clips_failed") == 1


@pytest.mark.full
def test_a_folder_with_a_colon_in_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is before the colon is no protocol of FFmpeg."""
    monkeypatch.chdir(tmp_path)
    kept, delivery = watched(Path("tcp:a"))
    for number, job in enumerate(moments(0, 0.1)):
        delivery.deliver(job, {"event": number == 1})
    delivery.close()
    ((_, result),) = kept.results
    assert names(tmp_path / "tcp:a") == sorted([result["picture"], result["clip"]])


def test_pictures_that_another_run_deletes(tmp_path: Path) -> None:
    """A name behind which there is nothing any more is passed by."""
    (tmp_path / "gone.only.jpg").symlink_to("nowhere")
    delivery = only(hr.collect(), bool, pictures=tmp_path, most_pictures=1)
    delivery.open(None)
    assert delivery.deliver(frame(1), True)
    assert len(list(tmp_path.glob("gate*.only.jpg"))) == 1


@pytest.mark.full
@pytest.mark.parametrize("clip", [0, -1, 61, "2", True])
def test_clips_that_are_none(tmp_path: Path, clip: Any) -> None:
    """A time that is none, or too long; and a clip without pictures."""
    with pytest.raises(SettingsError, match="clip"):
        only(hr.collect(), bool, pictures=tmp_path, clip=clip)
    with pytest.raises(SettingsError, match="clip"):
        only(hr.collect(), bool, clip=1.0)
