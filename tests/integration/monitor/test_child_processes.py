"""Stages in child processes are seen as those in threads are: by drift and by what is kept for review."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.base.protocols import Instrument
from headrace.monitor.drift.collector import Collector
from headrace.monitor.drift.instrument import DriftInstrument, parts_of
from headrace.monitor.review.catching import Places, ReviewCatcher, ReviewSettings
from headrace.monitor.review.pictures import PictureSettings
from headrace.monitor.review.reading import ResultReader
from headrace.monitor.review.store import open_folder, read_samples
from headrace.runs.formats.review import ReviewSample
from headrace.samples.catalogue import PHOTOGRAPHS

_WANTED = hr.ImageInput(short_side=64, crop=48)


def _pipeline() -> hr.Pipeline:
    files = [one.path.read_bytes() for one in PHOTOGRAPHS[:10]]
    torn = [one[: len(one) // 3] for one in files[:2]]
    stages = [hr.decode("decode", _WANTED), hr.resize("resize", _WANTED), hr.stage("answer", len)]
    return hr.Pipeline(hr.items([*files, *torn]), stages=stages, delivery=hr.collect())


def _plan(executor: str) -> hr.Plan:
    settings = [f"decode.executor={executor}", "resize.executor=inline", "answer.executor=inline"]
    return hr.Plan().with_settings(settings)


def _count_drift(executor: str) -> dict[str, Any]:
    """Return what a run counted and measured, without the times that its stages took."""
    collector = Collector(budget_ratio=1.0)
    pipeline = _pipeline()
    instruments: list[Instrument] = [DriftInstrument(collector, parts_of(pipeline))]
    hr.run(pipeline, _plan(executor), instruments=instruments)
    (window,) = collector.take(rest=True)
    (sums,) = window.strata.values()
    means = {name: one for name, one in sums.means.items() if "seconds" not in name}
    return {"counts": sums.counts, "means": means, "items": window.items, "looked at": window.sampled, "lost": window.lost,
            "times": sorted(name for name in sums.means if "seconds" in name)}  # fmt: skip


@pytest.mark.smoke
def test_drift_counts_what_children_see() -> None:
    """The same counts and values as in threads: of files, of pixels, of what cannot be decoded, of answers."""
    inside, outside = _count_drift("thread"), _count_drift("process")
    means = inside.pop("means"), outside.pop("means")
    assert inside == outside
    assert (inside["items"], inside["looked at"], inside["lost"]) == (12, 12, 0)
    assert inside["counts"]["refused"] == 2
    assert {"brightness", "pixels"} <= means[0].keys()
    assert means[0].keys() == means[1].keys()
    for name, sums in means[0].items():
        assert means[1][name].n == sums.n, name
        assert means[1][name].total == pytest.approx(sums.total), name


def _keep(folder: Path, executor: str, *, original: bool) -> ReviewSample:
    places = Places(pictures=frozenset({"decode" if original else "resize"}), answers={"answer": ResultReader()})
    settings = ReviewSettings(
        folder=open_folder(folder), max_bytes=1 << 30, max_days=30, pictures=PictureSettings(original=original)
    )
    catcher = ReviewCatcher(settings, places)
    hr.run(_pipeline(), _plan(executor), observers=[catcher], instruments=[catcher], watch=catcher.watch)
    (sample,), problems = read_samples(folder)
    assert problems == []
    return sample


@pytest.mark.full
@pytest.mark.parametrize("original", [False, True])
def test_pictures_of_children_are_kept(tmp_path: Path, original: bool) -> None:
    """Each answer with its picture, which is that of its job; the files that came, where those are asked for."""
    inside = _keep(tmp_path / "thread", "thread", original=original)
    outside = _keep(tmp_path / "process", "process", original=original)
    assert [(one.name, one.num_answers) for one in outside.cells] == [("48", 10)]
    assert outside.num_missed == 0

    def files_of(folder: Path, sample: ReviewSample) -> dict[str, bytes]:
        return {one.job: (folder / "samples" / sample.id / one.file).read_bytes() for one in sample.items}

    kept = files_of(tmp_path / "process", outside)
    assert len(kept) == 10
    assert kept == files_of(tmp_path / "thread", inside)
