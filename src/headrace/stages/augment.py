"""Random crops, flips and colours, drawn in the worker that has the image and computed wherever the Plan says.

How this works: what is random is drawn by one stage from the seed, the epoch and the item's id alone, so that it depends
neither on the order of the items nor on where the rest runs. A second stage, which takes batches, cuts, resizes, mirrors and
normalises what was drawn: with PyTorch on the CPU or on a GPU, or not at all on an emulated device. Where the Plan leaves it to
the worker, the first stage does it image by image with OpenCV, and nothing comes to the second.

The pixels of a crop, resized and not yet normalised, differ by at most one grey level between the ways: OpenCV interpolates
with whole numbers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import cv2
import numpy as np

from headrace.base.current_job import hands
from headrace.base.errors import DecodeRejected, MissingExtra, SettingsError
from headrace.base.plan import Plan
from headrace.base.settings import build, check
from headrace.stages.images import IMAGENET_MEAN, IMAGENET_STD
from headrace.stages.stage import Stage, StageContext

Place = Literal["worker", "cpu", "cuda", "dali", "emulated"]

_TRIES = 10
#: Images that PyTorch computes at once on the CPU: 32 of 256 pixels are 25 MB as floats, more than its caches hold.
_PART = 8


@dataclass(frozen=True, slots=True)
class Draw:
    """What was drawn for one image."""

    top: int
    left: int
    height: int
    width: int
    """The crop, in pixels of the image."""
    mirrored: bool
    brightness: float
    """Factor."""
    contrast: float
    """Factor, around the mean of the crop."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """An image that is to be augmented."""

    image: np.ndarray
    """uint8 (height, width, 3)."""
    draw: Draw


@dataclass(frozen=True, slots=True, kw_only=True)
class Augmentation:
    """What is done to an image at random: a crop resized to a square, mirrored or not, brightness and contrast.

    Args:
        side: Of the square, in pixels.
        area: Share of the image that a crop takes, least and most.
        ratio: Width over height of a crop, least and most.
        mirror: Probability of left and right being exchanged.
        brightness: The factor is from 1 - this to 1 + this.
        contrast: Likewise.
        mean: Of the pixels, one per channel, on the scale 0-1; subtracted at the end.
        std: Standard deviation of the pixels likewise; what is left is divided by it.
        seed: Of everything that is drawn.
    """

    side: int = 224
    area: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    mirror: float = 0.5
    brightness: float = 0.0
    contrast: float = 0.0
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every value."""
        for name, value in dataclasses.asdict(self).items():
            numbers = value if isinstance(value, tuple | list) else (value,)
            check(all(isinstance(one, int | float) for one in numbers), name, value, "numbers")
        check(isinstance(self.side, int) and self.side >= 1, "side", self.side, "whole pixels, at least 1")
        check(
            0 < self.area[0] <= self.area[1] <= 1, "area", self.area, "two shares above 0, the smaller first, up to 1"
        )
        check(0 < self.ratio[0] <= self.ratio[1], "ratio", self.ratio, "two numbers above 0, the smaller first")
        check(0 <= self.mirror <= 1, "mirror", self.mirror, "a probability")
        for name in ("brightness", "contrast"):
            check(0 <= getattr(self, name) < 1, name, getattr(self, name), "at least 0 and below 1")
        check(all(one > 0 for one in self.std), "std", self.std, "numbers above 0")

    def draw(self, key: str, height: int, width: int, epoch: int = 0) -> Draw:
        """Return what is drawn for an image: the same for one seed, epoch, key and size, whoever asks.

        Args:
            key: Of the image, such as its id.
            height: Of the image, in pixels.
            width: Likewise.
            epoch: Another one draws anew.
        """
        text = f"{self.seed} {epoch} {key}".encode("utf-8", "surrogatepass")
        numbers = np.random.Generator(np.random.Philox(int.from_bytes(hashlib.sha256(text).digest()[:16], "little")))
        top, left, rows, columns = self._crop(numbers, height, width)
        mirrored = bool(numbers.random() < self.mirror)
        brightness, contrast = (1 + one * numbers.uniform(-1, 1) for one in (self.brightness, self.contrast))
        return Draw(top, left, rows, columns, mirrored, float(brightness), float(contrast))

    def _crop(self, numbers: np.random.Generator, height: int, width: int) -> tuple[int, int, int, int]:
        """Return (top, left, height, width): the first of some drawn that fits, else the largest in the middle."""
        for _ in range(_TRIES):
            area = height * width * numbers.uniform(*self.area)
            ratio = math.exp(numbers.uniform(math.log(self.ratio[0]), math.log(self.ratio[1])))
            columns, rows = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            top, left = numbers.random(2)
            if 0 < columns <= width and 0 < rows <= height:
                return int(top * (height - rows + 1)), int(left * (width - columns + 1)), rows, columns
        columns = max(1, min(width, round(height * self.ratio[1])))
        rows = max(1, min(height, round(width / self.ratio[0])))
        return (height - rows) // 2, (width - columns) // 2, rows, columns

    def one(self, image: np.ndarray, draw: Draw) -> np.ndarray:
        """Return an image augmented as drawn, float32 (3, side, side), by OpenCV and NumPy."""
        (factor, of_mean), std = self.factor_of(draw), np.asarray(self.std, np.float32)
        crop = self.cut(image, draw)
        added = of_mean * np.float32(crop.mean()) if of_mean else np.float32(0)
        out = np.empty((3, self.side, self.side), np.float32)
        for channel, plane in enumerate(out):
            np.multiply(crop[:, :, channel], factor / (255 * std[channel]), out=plane, casting="unsafe")
            plane += (added / 255 - np.float32(self.mean[channel])) / std[channel]
        return out

    def cut(self, image: np.ndarray, draw: Draw) -> np.ndarray:
        """Return the crop alone, resized and mirrored: uint8 (side, side, 3)."""
        part = image[draw.top : draw.top + draw.height, draw.left : draw.left + draw.width]
        resized = cv2.resize(part, (self.side, self.side), interpolation=cv2.INTER_LINEAR)
        return np.asarray(resized[:, ::-1] if draw.mirrored else resized)

    def factor_of(self, draw: Draw) -> np.ndarray:
        """Return by what a crop's pixels are multiplied, and which multiple of their mean is added: float32 (2,)."""
        return np.array([draw.brightness * draw.contrast, draw.brightness * (1 - draw.contrast)], np.float32)

    def batch(self, drawn: Sequence[Drawn], on: str = "cpu") -> np.ndarray:
        """Return images augmented as drawn, float32 (images, 3, side, side), by PyTorch in one go.

        Args:
            drawn: The images; each may have a size of its own.
            on: `cpu`, `cuda`, ...
        """
        if on == "cpu" and len(drawn) > _PART:
            return np.concatenate([self.batch(drawn[at : at + _PART]) for at in range(0, len(drawn), _PART)])
        return self._colour(*self._cut_batch(drawn, on), drawn)

    def cut_batch(self, drawn: Sequence[Drawn], on: str = "cpu") -> np.ndarray:
        """Return the crops alone, as `cut` does: uint8 (images, side, side, 3)."""
        crops, _ = self._cut_batch(drawn, on)
        found: np.ndarray = crops.permute(0, 2, 3, 1).to("cpu").numpy().astype(np.uint8)
        return found

    def _cut_batch(self, drawn: Sequence[Drawn], on: str) -> tuple[Any, Any]:
        """Return the crops, rounded: float32 (images, 3, side, side) on the device; and the module torch."""
        torch = _import_torch()
        rows, columns = (max(one.image.shape[axis] for one in drawn) for axis in (0, 1))
        if all(one.image.shape[:2] == (rows, columns) for one in drawn):
            images = np.stack([one.image for one in drawn])
        else:  # what fills up lies outside of every crop
            images = np.zeros((len(drawn), rows, columns, 3), np.uint8)
            for place, one in enumerate(drawn):
                images[place, : one.image.shape[0], : one.image.shape[1]] = one.image
        pixels = torch.from_numpy(images).to(on).permute(0, 3, 1, 2).float()
        draws = [one.draw for one in drawn]
        down = self._places([(one.top, one.height, False) for one in draws], rows)
        along = self._places([(one.left, one.width, one.mirrored) for one in draws], columns)
        grid = np.empty((len(drawn), self.side, self.side, 2), np.float32)
        grid[..., 0], grid[..., 1] = along[:, None, :], down[:, :, None]
        found = torch.nn.functional.grid_sample(
            pixels, torch.from_numpy(grid).to(on), mode="bilinear", padding_mode="border", align_corners=False
        )
        return found.add_(0.5).floor_(), torch

    def _places(self, crops: Sequence[tuple[int, int, bool]], length: int) -> np.ndarray:
        """Return where the pixels of crops lie along one axis of the image, from -1 to 1: (crops, side)."""
        first, size = (np.array([crop[part] for crop in crops], np.float64)[:, None] for part in (0, 1))
        inside = (np.arange(self.side) + 0.5) * size / self.side - 0.5
        places = first + inside.clip(0, size - 1)  # what is beside the crop has no part in it
        mirrored = np.array([crop[2] for crop in crops])
        places[mirrored] = places[mirrored, ::-1]
        found: np.ndarray = (2 * places + 1) / length - 1
        return found

    def _colour(self, crops: Any, torch: Any, drawn: Sequence[Drawn]) -> np.ndarray:
        factors = torch.from_numpy(np.stack([self.factor_of(one.draw) for one in drawn])).to(crops.device)
        mean, std = (torch.tensor(one, device=crops.device)[None, :, None, None] for one in (self.mean, self.std))
        factor, of_mean = factors[:, 0, None, None, None], factors[:, 1, None, None, None]
        shift = -mean / std
        if any(one.draw.contrast != 1 for one in drawn):
            shift = shift + of_mean * crops.mean(dim=(1, 2, 3), keepdim=True) / (255 * std)
        found: np.ndarray = crops.mul_(factor / (255 * std)).add_(shift).to("cpu").numpy()
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class AugmentOptions:
    """The Plan's `[stages.NAME.options]` of the stage that `hr.augment` names."""

    where: Place = "worker"
    """`worker`: image by image where it was drawn; `cpu`, `cuda`: a batch at a time with PyTorch (extra `torch`); `dali`:
    with NVIDIA's DALI; `emulated`: takes the time that follows, on one device, and gives zeros."""
    launch_seconds: float = 0.0
    """Emulated: what a batch costs whatever its size."""
    item_seconds: float = 0.0
    """Emulated: what each image of the batch adds."""
    epoch: int = 0
    """Another one draws anew."""

    def __post_init__(self) -> None:
        """Check every value."""
        check(self.where in get_args(Place), "where", self.where, ", ".join(get_args(Place)))
        check(min(self.launch_seconds, self.item_seconds) >= 0, "launch_seconds and item_seconds",
              (self.launch_seconds, self.item_seconds), "at least 0")  # fmt: skip


def augment(name: str, augmentation: Augmentation) -> list[Stage]:
    """Return the two stages that augment images: one that draws, NAME_draw, and one that computes where the Plan says, NAME.

    They take decoded images, uint8 (height, width, 3), and give float32 (3, side, side).

    Args:
        name: Of the stage whose `[stages.NAME.options] where` decides; see `AugmentOptions`.
        augmentation: What is drawn.
    """
    return [_DrawStage(name, augmentation), _AugmentStage(name, augmentation)]


class _DrawStage(Stage):
    """Draws what is random; where the worker computes, it does so at once."""

    releases_gil = True
    work = "preprocess"

    def __init__(self, name: str, augmentation: Augmentation) -> None:
        super().__init__(f"{name}_draw")
        self.follows = name
        self.augmentation = augmentation

    def open(self, context: StageContext) -> Callable[[np.ndarray], Drawn | np.ndarray]:
        """Return what draws for an image, by the id of its job."""
        check(not context.options, f"[stages.{self.name}.options]", dict(context.options), f"those of {self.follows}")
        options = _options(context.plan, self.follows)
        augmentation = self.augmentation

        def draw(image: np.ndarray) -> Drawn | np.ndarray:
            _check_image(image)
            if not hands.items:
                raise SettingsError(
                    f"stages.{self.name} needs its items' ids, which a process does not get: use threads"
                )
            found = augmentation.draw(hands.items[0].id, image.shape[0], image.shape[1], options.epoch)
            return augmentation.one(image, found) if options.where == "worker" else Drawn(image, found)

        return draw


class _AugmentStage(Stage):
    """Computes a batch of what was drawn."""

    kind = "device"
    releases_gil = True
    work = "preprocess"

    def __init__(self, name: str, augmentation: Augmentation) -> None:
        super().__init__(name)
        self.augmentation = augmentation

    def passes(self, value: Any) -> bool:
        """Return whether the worker has done it already."""
        return not isinstance(value, Drawn)

    def is_emulated(self, plan: Plan) -> bool:
        """Return whether the Plan has it only take time."""
        return _options(plan, self.name).where == "emulated"

    def elsewhere(self, plan: Plan) -> Mapping[str, tuple[str, ...]]:
        """Return where it could be done: not by DALI, which was never run, and emulated only where the Plan says how fast."""
        options = _options(plan, self.name)
        places = ["worker", *_torch_places()]
        places += ["emulated"] if options.launch_seconds or options.item_seconds else []
        others = [place for place in places if place != options.where]
        return {f"stages.{self.name}.options.where": (options.where, *others)}

    def open(self, context: StageContext) -> Callable[[Sequence[Drawn]], Sequence[np.ndarray]]:
        """Return what augments a batch.

        Raises:
            SettingsError: If this machine has no such device.
            MissingExtra: If a package is missing.
        """
        options = _options(context.plan, self.name)
        if options.where == "emulated":
            return _Emulated(self.augmentation.side, options, _devices[self.name])
        if options.where == "dali":
            from headrace.stages.augment_dali import open_dali

            return open_dali(self.augmentation, context.plan.stages[self.name].batch or 1)
        if options.where != "worker":
            _check_device(_import_torch(), options.where, self.name)
        augmentation, on = self.augmentation, options.where
        return lambda drawn: list(augmentation.batch(drawn, on)) if on != "worker" else list(drawn)  # type: ignore[arg-type]


#: Held during a batch; {name of the stage: of its device}. More workers of a stage are no more devices.
_devices: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
os.register_at_fork(after_in_child=_devices.clear)  # the threads that hold them are not in the child


class _Emulated:
    """A device that takes a + b*n seconds, without CPU time, a batch at a time."""

    def __init__(self, side: int, options: AugmentOptions, busy: threading.Lock) -> None:
        self._zeros = np.zeros((3, side, side), np.float32)
        self._options = options
        self._busy = busy

    def __call__(self, drawn: Sequence[Drawn]) -> list[np.ndarray]:
        with self._busy:
            time.sleep(self._options.launch_seconds + self._options.item_seconds * len(drawn))
        return [self._zeros] * len(drawn)


def _options(plan: Plan, name: str) -> AugmentOptions:
    stage = plan.stages.get(name)
    given: Mapping[str, Any] = stage.options if stage else {}
    return build(AugmentOptions, given, f"[stages.{name}.options]")


def _check_image(image: Any) -> None:
    if (
        not isinstance(image, np.ndarray)
        or image.ndim != 3
        or image.shape[2] != 3
        or image.dtype != np.uint8
        or not image.size
    ):
        shown = f"{image.dtype} {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
        raise DecodeRejected(f"augment.image: {shown} is no image; expected uint8 (height, width, 3)")


def _import_torch() -> Any:
    try:
        import torch
    except ImportError:
        raise MissingExtra("augmentation in batches", "torch") from None
    return torch


def _torch_places() -> list[str]:
    try:
        torch = _import_torch()
    except MissingExtra:
        return []
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def _check_device(torch: Any, on: str, name: str) -> None:
    if on == "cuda" and not torch.cuda.is_available():
        why = "this PyTorch is built without CUDA" if torch.version.cuda is None else "PyTorch finds no NVIDIA GPU here"
        raise SettingsError(f'[stages.{name}.options] where = "cuda" cannot be used: {why}; expected worker or cpu')
