"""`headrace pack --try` with smaller images: what they take, how long they are decoded, and how far their pixels change."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Mapping

import msgspec
import numpy as np

from headrace.base.errors import ItemRejected, SettingsError
from headrace.base.plan import Plan
from headrace.delivery.collect import Collect
from headrace.pipeline.execute import run
from headrace.pipeline.loading import load_pipeline
from headrace.sources.items import Items
from headrace.stages.decode import decode
from headrace.stages.encode import encode
from headrace.stages.images import fit
from headrace.stages.inputs import ImageInput
from headrace.store.manifest import Encoding
from headrace.tune.agreement import is_same


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """What a pipeline says of the images before and after."""

    pipeline: str
    same: int
    """Results alike in structure, numbers within a thousandth; an image that only one of them was answered for is none."""
    looked_at: int
    changed: list[str]
    """Some of the others."""


class Smaller(msgspec.Struct, frozen=True, kw_only=True):
    """What making images smaller does to some of them."""

    encoding: Encoding
    images: int
    """That became something else; the others pass unchanged."""
    unreadable: int
    mean_bytes_before: float
    mean_bytes_after: float
    decode_us_before: float
    """Median of decoding one at the scale that covers the short side, and resizing it to that; single-threaded."""
    decode_us_after: float
    mean_difference: float
    """Between the pixels before and after at that size: mean of their absolute differences, of 255."""
    largest_difference: float
    """The same, of the image that differs most."""
    worst: str
    """That image."""
    answers: Answers | None = None
    """Null: no pipeline was named."""


def make_smaller(
    contents: Mapping[str, bytes], encoding: Encoding, pipeline: str | None = None
) -> tuple[dict[str, bytes], Smaller | None]:
    """Return the items as they would be packed, and what that does to images.

    Args:
        contents: {item: bytes}.
        encoding: What images become.
        pipeline: MODULE:ATTRIBUTE of one that answers for the images before and after.

    Raises:
        SettingsError: If none can be read.
    """
    made: dict[str, bytes] = {}
    for name, data in contents.items():
        with contextlib.suppress(ItemRejected):
            made[name] = encode(data, encoding)
    if not made:
        raise SettingsError("none of the images that --try chose can be decoded")
    changed = {name: (contents[name], data) for name, data in made.items() if data is not contents[name]}
    if not changed:
        return made, None
    smaller = _compare(changed, encoding, len(contents) - len(made))
    return made, smaller if pipeline is None else msgspec.structs.replace(smaller, answers=_ask(pipeline, changed))


def _ask(text: str, changed: Mapping[str, tuple[bytes, bytes]]) -> Answers:
    """Run a pipeline over the images before and after.

    Raises:
        SettingsError: If it has no answer for any of them as they are.
    """
    pipeline, found = load_pipeline(text), []
    for files in zip(*changed.values(), strict=True):
        kept = Collect()
        run(pipeline.replace_source(Items(list(files))).replace_delivery(kept), Plan())
        found.append(dict(kept.results))
    before, after = found
    if not before:
        raise SettingsError(
            f"{text} answers for none of the images as they are; try it on them: headrace run {text} --source PHOTOS"
        )
    names, ids = list(changed), sorted(before.keys() | after.keys(), key=int)
    both = before.keys() & after.keys()  # a result may be None
    differing = [names[int(one)] for one in ids if one not in both or not is_same(before[one], after[one])]
    return Answers(pipeline=text, same=len(ids) - len(differing), looked_at=len(ids), changed=differing[:10])


def _compare(changed: Mapping[str, tuple[bytes, bytes]], encoding: Encoding, unreadable: int) -> Smaller:
    times: tuple[list[float], list[float]] = ([], [])
    differences = {}
    for name, pair in changed.items():
        before, after = (_view(data, encoding.short_side, times[number]) for number, data in enumerate(pair))
        differences[name] = float(np.abs(before.astype(np.int16) - after).mean())
    worst = max(differences, key=differences.__getitem__)
    return Smaller(
        encoding=encoding,
        images=len(changed),
        unreadable=unreadable,
        mean_bytes_before=statistics.mean(len(before) for before, _ in changed.values()),
        mean_bytes_after=statistics.mean(len(after) for _, after in changed.values()),
        decode_us_before=statistics.median(times[0]),
        decode_us_after=statistics.median(times[1]),
        mean_difference=statistics.mean(differences.values()),
        largest_difference=differences[worst],
        worst=worst,
    )


def _view(data: bytes, short_side: int | None, times: list[float]) -> np.ndarray:
    """Return what a module would be given; the time that takes is added, in us."""
    began = time.perf_counter()
    image = decode(data, short_side=short_side)
    if short_side is not None and min(image.shape[:2]) > short_side:
        image = fit(image, ImageInput(short_side=short_side))
    times.append((time.perf_counter() - began) * 1e6)
    return image


def describe_smaller(smaller: Smaller) -> list[str]:
    """Return the lines that `--try` prints."""
    before, after = smaller.mean_bytes_before, smaller.mean_bytes_after
    mean, most = smaller.mean_difference, smaller.largest_difference
    slow, fast = smaller.decode_us_before, smaller.decode_us_after
    unreadable = f"; {smaller.unreadable:,} cannot be decoded, and would not be packed" if smaller.unreadable else ""
    return [
        f"{smaller.images:,} images with {smaller.encoding.describe()}{unreadable}:",
        f"  size    {before / 1e3:,.1f} -> {after / 1e3:,.1f} kB on average (x{after / before:.2f})",
        f"  decode  {slow:,.0f} -> {fast:,.0f} us, resizing included (x{slow / fast:.2f} as fast)",
        f"  pixels  differ by {mean:.2f} of 255 on average, most in {smaller.worst}: by {most:.2f}",
        _describe_answers(smaller.answers),
    ]


def _describe_answers(answers: Answers | None) -> str:
    if answers is None:
        return "  whether answers stay the same only your pipeline can tell: add --pipeline MODULE:ATTRIBUTE"
    others = f"; others: {', '.join(answers.changed[:3])}" if answers.changed else ""
    share = answers.same / answers.looked_at
    return (
        f"  answers {answers.same:,} of {answers.looked_at:,} stay the same ({share:.1%}) by {answers.pipeline}{others}"
    )
