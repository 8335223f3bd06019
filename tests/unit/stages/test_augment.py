"""Augmentation: what is drawn depends on the item alone, and the pixels hardly on where they are computed."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import msgspec
import numpy as np
import pytest

import headrace as hr
from headrace.base.errors import SettingsError
from headrace.stages.augment import Augmentation, Drawn, _devices
from headrace.stages.augment_dali import open_dali

WANTED = Augmentation(side=24, brightness=0.4, contrast=0.3, seed=3)
EMULATED = {"where": "emulated", "launch_seconds": 0.01, "item_seconds": 0.001}


def make_images(number: int, seed: int = 0) -> list[np.ndarray]:
    """Return images of many sizes."""
    numbers = np.random.default_rng(seed)
    sizes = numbers.integers(30, 60, (number, 2)).tolist()
    return [numbers.integers(0, 256, (height, width, 3), np.uint8) for height, width in sizes]


def run(images: list[np.ndarray], options: dict[str, Any], output: Path | None = None, **stage: Any) -> dict[str, Any]:
    """Return {id: what comes out of a pipeline} whose Plan has these options."""
    results = hr.collect()
    pipeline = hr.Pipeline(hr.items(images), stages=hr.augment("augment", WANTED), delivery=results)
    plan = hr.Plan.from_table({"stages": {"augment": {"options": options, **stage}}})
    hr.run(pipeline, plan, output=output)
    return dict(results.results)


def test_a_draw_is_the_items_own() -> None:
    """The same whenever it is asked for, another one for each id, epoch and seed, and always inside of the image."""
    draws = [WANTED.draw(str(number), 40, 50) for number in range(300)]
    assert draws == [WANTED.draw(str(number), 40, 50) for number in range(300)]
    assert len(set(draws)) == 300
    assert all(min(one.top, one.left) >= 0 for one in draws)
    assert all(one.top + one.height <= 40 and one.left + one.width <= 50 for one in draws)
    assert 100 < sum(one.mirrored for one in draws) < 200
    assert WANTED.draw("1", 40, 50, epoch=1) != draws[1]
    assert Augmentation(side=24, seed=4).draw("1", 40, 50) != draws[1]


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (500, 1), (3, 2)])
def test_images_that_no_crop_fits(size: tuple[int, int]) -> None:
    """The largest part in the middle is taken."""
    image = np.full((*size, 3), 128, np.uint8)
    draw = WANTED.draw("a", *size)
    assert draw.height >= 1 <= draw.width
    assert WANTED.cut(image, draw).shape == (24, 24, 3)


@pytest.mark.full
def test_the_worker_and_the_batch_draw_the_same() -> None:
    """Pixels differ by one grey level at most, whatever the sizes in a batch, and so do those that are normalised."""
    pytest.importorskip("torch")
    drawn = [Drawn(image, WANTED.draw(str(n), *image.shape[:2])) for n, image in enumerate(make_images(40))]
    crops = np.stack([WANTED.cut(one.image, one.draw) for one in drawn]).astype(int)
    assert abs(crops - WANTED.cut_batch(drawn)).max() <= 1
    ones = np.stack([WANTED.one(one.image, one.draw) for one in drawn])
    batch = WANTED.batch(drawn)
    assert batch.shape == ones.shape == (40, 3, 24, 24)
    assert batch.dtype == ones.dtype == np.float32
    level = 1.4 * 1.3 / 255 / min(WANTED.std)  # the largest factors of a draw
    assert abs(ones - batch).max() <= 1.01 * level
    alone = np.concatenate([WANTED.batch([one]) for one in drawn])
    assert abs(alone - batch).max() <= 1.01 * level  # a float's last bit may round to the other level


def test_nothing_random_is_nothing_but_a_resize() -> None:
    """The whole image, as OpenCV resizes it and `normalize` normalises it."""
    plain = Augmentation(side=24, area=(1, 1), ratio=(1, 1), mirror=0)
    (image,) = make_images(1)
    image = image[:30, :30]
    expected = hr.images.normalize(cv2.resize(image, (24, 24)))
    assert np.allclose(plain.one(image, plain.draw("a", 30, 30)), expected, atol=1e-5)


@pytest.mark.full
def test_where_the_plan_says(tmp_path: Path) -> None:
    """In the worker and in batches the same comes out; an emulated device gives zeros, and the run folder says so."""
    pytest.importorskip("torch")
    images = make_images(20)
    by_worker = run(images, {}, tmp_path / "worker")
    in_batches = run(images, {"where": "cpu"}, batch=8)
    level = 1.4 * 1.3 / 255 / min(WANTED.std)
    assert by_worker.keys() == in_batches.keys() == {str(number) for number in range(20)}
    assert all(abs(by_worker[key] - in_batches[key]).max() <= 1.01 * level for key in by_worker)
    emulated = run(images, EMULATED, tmp_path / "emulated", batch=8)
    assert not any(value.any() for value in emulated.values())
    for name, says in (("worker", [False, False]), ("emulated", [False, True])):
        stages = msgspec.json.decode((tmp_path / name / "run.json").read_bytes())["stages"]
        assert [stage["is_emulated"] for stage in stages if stage["name"].startswith("augment")] == says


def test_workers_share_the_emulated_device(make_context: Any) -> None:
    """It takes one batch at a time, as a device does, however many workers ask."""
    plan = hr.Plan.from_table({"stages": {"augment": {"options": {"where": "emulated", "launch_seconds": 0.1}}}})
    (image,) = make_images(1)
    batch = [Drawn(image, WANTED.draw("a", *image.shape[:2]))]
    context = dataclasses.replace(make_context(), plan=plan)
    workers = [hr.augment("augment", WANTED)[1].open(context) for _ in range(3)]
    began = time.monotonic()
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda worker: worker(batch), workers))
    assert time.monotonic() - began >= 3 * 0.1


def test_a_fork_does_not_wait_for_the_device_of_its_parent(make_context: Any) -> None:
    """The thread that used it is not in the child, which would wait for ever."""
    plan = hr.Plan.from_table({"stages": {"augment": {"options": {"where": "emulated", "launch_seconds": 0.5}}}})
    worker = hr.augment("augment", WANTED)[1].open(dataclasses.replace(make_context(), plan=plan))
    user = threading.Thread(target=worker, args=([None],))
    user.start()
    while not _devices["augment"].locked():
        time.sleep(0.001)
    child = os.fork()
    if not child:
        os._exit(0 if _devices["augment"].acquire(blocking=False) else 1)
    assert os.waitpid(child, 0)[1] == 0
    user.join()


def test_what_the_worker_augmented_is_not_copied() -> None:
    """It goes as it is through the stage that would augment batches, which does not stack it."""
    results = hr.collect()
    images = [np.zeros((3, 24, 24), np.float32) for _ in range(4)]
    pipeline = hr.Pipeline(hr.items(images), stages=hr.augment("augment", WANTED)[1:], delivery=results)
    hr.run(pipeline, hr.Plan.from_table({"stages": {"augment": {"batch": 4}}}))
    found = dict(results.results)
    assert all(found[str(number)] is image for number, image in enumerate(images))


def test_the_order_of_the_items_is_nothing_to_it() -> None:
    """Many workers give what one gives."""
    images = make_images(30)
    few, many = (run(images, {}) for _ in range(2))
    assert all((few[key] == many[key]).all() for key in few)


@pytest.mark.full
def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the reason, before the first job."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SettingsError, match='where = "cuda" cannot be used: '):
        run(make_images(1), {"where": "cuda"})
    monkeypatch.setattr("headrace.stages.augment_dali.has_driver", lambda: False)
    with pytest.raises(SettingsError, match="this machine has no NVIDIA driver"):
        run(make_images(1), {"where": "dali"})
    monkeypatch.setattr("headrace.stages.augment_dali.has_driver", lambda: True)
    with pytest.raises(SettingsError, match="DALI is not installed"):
        open_dali(WANTED, 8)


@pytest.mark.parametrize("options", [{"where": "gpu"}, {"wher": "cpu"}, {"where": "emulated", "item_seconds": -1.0}])
def test_options_that_mean_nothing(options: dict[str, Any]) -> None:
    """They are refused before the first job."""
    with pytest.raises(SettingsError):
        run(make_images(1), options)


def test_what_is_no_image_is_rejected() -> None:
    """And the others are not."""
    results = run([*make_images(2), np.zeros((3, 4)), "text", np.zeros((0, 4, 3), np.uint8)], {})  # type: ignore[list-item]
    assert results.keys() == {"0", "1"}


@pytest.mark.parametrize(
    "values",
    [{"side": 0}, {"area": (0.5, 0.1)}, {"ratio": (0, 1)}, {"mirror": 2}, {"contrast": 1.0}, {"std": (0, 1, 1)}],
)
def test_settings_that_mean_nothing(values: dict[str, Any]) -> None:
    """They are refused where they are written."""
    with pytest.raises(SettingsError):
        Augmentation(**values)


@pytest.mark.parametrize(("torch", "places"), [(None, []), (False, ["cpu"]), (True, ["cpu", "cuda"])])
def test_where_it_could_be_done(monkeypatch: pytest.MonkeyPatch, torch: bool | None, places: list[str]) -> None:
    """Where this machine can; emulated only by times that the Plan has; never by DALI, which nobody has run."""
    module = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: torch))
    monkeypatch.setitem(sys.modules, "torch", None if torch is None else module)
    _, stage = hr.augment("augment", WANTED)

    def found(**options: Any) -> tuple[str, ...]:
        plan = hr.Plan.from_table({"stages": {"augment": {"options": options}}})
        return stage.elsewhere(plan)["stages.augment.options.where"]

    assert found() == ("worker", *places)
    assert found(where="dali") == ("dali", "worker", *places)
    assert found(launch_seconds=0.01) == ("worker", *places, "emulated")
    assert found(**EMULATED) == ("emulated", "worker", *places)
