"""Some results alone, and the pictures that they are of."""

from __future__ import annotations

from pathlib import Path
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
