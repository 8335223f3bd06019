"""What `headrace whatif --set STAGE.cache=...` says of small pipelines, and what the cache does then.

Each pipeline is profiled once without a cache. From that run folder alone all of its caches are predicted, and the predictions
are in a ledger before the first of them is tried. Then each cache is filled by a run, and the next run is measured in turn with
one that keeps nothing. Measured is the ratio of the two rates: the median of the pairs, with the least and the greatest.

`photos` reads JPEGs of 384 pixels in the page cache, decodes, blurs and sums them up. `link` waits 8 ms for 100 kB in eight
threads, as for a server, and hashes them. `busy` waits 2 ms for 30 kB, and then computes for longer than that.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

import headrace as hr
from headrace.diagnose.analysis import Analysis
from headrace.diagnose.document import profile_document
from headrace.diagnose.whatif import predict
from headrace.ledger.ledger import Ledger
from headrace.profiler.profile import profile
from headrace.runs.formats.prediction import Change, PredictionDocument
from headrace.runs.formats.profile import Estimate
from headrace.runs.reader import read_run

_SIDE = 384
#: {pipeline: what is kept: (stage, where, for which share of the results there is room)}.
CACHES: Mapping[str, Sequence[tuple[str, str, float]]] = {
    "photos": (("decode", "memory", 2.0), ("blur", "memory", 2.0), ("blur", "disk", 2.0), ("decode", "memory", 0.5)),
    "link": (("load", "memory", 2.0), ("load", "disk", 2.0), ("load", "memory", 0.5)),
    "busy": (("load", "memory", 2.0),),
}
_LOADS = {"stages": {"load": {"workers": 8, "executor": "thread"}}}
_PLANS: Mapping[str, dict[str, Any]] = {"link": _LOADS, "busy": _LOADS}
_RESULT_BYTES = {"photos": _SIDE * _SIDE * 3, "link": 100_000, "busy": 30_000}


def _blur(image: np.ndarray) -> np.ndarray:
    return cv2.GaussianBlur(image, (0, 0), 3.0)


def _sum_up(image: np.ndarray) -> float:
    return float(cv2.resize(cv2.Laplacian(image, cv2.CV_16S), (32, 32)).mean())


def _load_far(name: bytes) -> bytes:
    time.sleep(0.008)
    return hashlib.sha256(name).digest() * 3_125


def _load_near(name: bytes) -> bytes:
    time.sleep(0.002)
    return hashlib.sha256(name).digest() * 937


def _digest_once(data: bytes) -> str:
    return hashlib.blake2b(data).hexdigest()


def _digest_often(data: bytes) -> str:
    return [hashlib.sha256(data).hexdigest() for _ in range(40)][-1]


def make_pipelines(folder: Path, *, quick: bool) -> dict[str, hr.Pipeline]:
    """Return the pipelines; each keeps the machine busy for some seconds."""
    photos, loads = (300, 1_500) if quick else (1_200, 4_000)
    make_photos(folder, photos)
    read = [hr.fetch("fetch"), hr.decode("decode", hr.ImageInput())]
    blur = hr.stage("blur", _blur, releases_gil=True, deterministic=True)
    names = [b"%d" % number for number in range(loads)]
    return {
        "photos": hr.Pipeline(
            hr.folder(folder),
            stages=[*read, blur, hr.stage("sum_up", _sum_up, releases_gil=True)],
            delivery=hr.collect(),
        ),
        "link": _make_loading(names, _load_far, _digest_once),
        "busy": _make_loading(names[: loads // 2], _load_near, _digest_often),
    }


def make_photos(folder: Path, number: int) -> None:
    """Fill a folder with JPEGs of about 40 kB, changed last an hour ago: of files that changed just now nothing is kept."""
    draw = np.random.default_rng(1)
    folder.mkdir(parents=True)
    an_hour_ago = time.time() - 3_600
    for index in range(number):
        noise = draw.integers(0, 255, (_SIDE, _SIDE, 3), dtype=np.uint8)
        path = folder / f"{index:05d}.jpg"
        cv2.imwrite(str(path), cv2.GaussianBlur(noise, (0, 0), 2.0))
        os.utime(path, (an_hour_ago, an_hour_ago))


def _make_loading(names: list[bytes], load: Callable[[bytes], bytes], work: Callable[[bytes], str]) -> hr.Pipeline:
    stages = [
        hr.stage("load", load, kind="io", deterministic=True),
        hr.stage("work", work, releases_gil=True),
    ]
    return hr.Pipeline(hr.items(names), stages=stages, delivery=hr.collect())


def run(*, quick: bool) -> dict[str, Any]:
    """Return for each cache what was predicted, and what was measured then: ratios of rates with the cache and without."""
    chosen = {name: caches[:1] for name, caches in CACHES.items()} if quick else CACHES
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pipelines = make_pipelines(folder / "files", quick=quick)
        with Ledger.open(folder / "ledger.sqlite") as ledger:
            for case, caches in chosen.items():
                rows += _run_case(case, pipelines[case], caches, folder, ledger, rounds=2 if quick else 3)
            record = ledger.track_record().says
    errors = [abs(row["error"]) for row in rows]
    return {
        "caches": rows, "mean_error": statistics.mean(errors), "max_error": max(errors),
        "inside": sum(row["low"] <= row["measured"] <= row["high"] for row in rows), "record": record,
    }  # fmt: skip


def _run_case(
    case: str,
    pipeline: hr.Pipeline,
    caches: Sequence[tuple[str, str, float]],
    folder: Path,
    ledger: Ledger,
    rounds: int,
) -> list[dict[str, Any]]:
    """Profile a pipeline, freeze what its caches are said to do, and measure them."""
    bare = hr.Plan.from_table(_PLANS.get(case, {}))
    _rate(pipeline, bare, folder / "warm")
    _rate(pipeline, bare, folder / case)
    replay = Analysis(read_run(folder / case)).replay
    jobs = int(replay.document.counters["delivered"])
    settings = [
        _setting(one, jobs * _RESULT_BYTES[case], folder / f"kept-{case}-{number}") for number, one in enumerate(caches)
    ]
    frozen = [predict(replay, Change(settings=(setting,))) for setting in settings]
    ids = [ledger.write_prediction(document, hardware=replay.evidence.info.hardware) for document in frozen]
    plans = [bare.with_settings([setting]) for setting in settings]
    for plan in plans:
        _rate(pipeline, plan, folder / "filled")
    began = time.time()
    turns = [[_rate(pipeline, plan, folder / "again") for plan in (bare, *plans)] for _ in range(rounds)]
    rows = []
    for number, (one, id_, document) in enumerate(zip(caches, ids, frozen, strict=True), start=1):
        ratios = sorted(turn[number] / turn[0] for turn in turns)
        measured = Estimate(ratios[0], statistics.median(ratios), ratios[-1])
        ledger.write_measurement(id_, measured, f"{rounds} pairs in turn", measured_at=began)
        rows.append(_row(case, one, document, measured))
    return rows


def _setting(cache: tuple[str, str, float], num_bytes: int, folder: Path) -> str:
    stage, where, share = cache
    place = "memory" if where == "memory" else f"disk:{folder.absolute()}"
    return f'{stage}.cache="{place}:{share * num_bytes / 1e6:.0f}MB"'


def _rate(pipeline: hr.Pipeline, plan: hr.Plan, folder: Path) -> float:
    """Return items per second of a run, which is profiled, as the run that it is compared with was."""
    profile(pipeline, plan, output=folder, force=True)
    rate = profile_document(read_run(folder)).throughput
    assert rate is not None
    return rate


def _row(case: str, cache: tuple[str, str, float], document: PredictionDocument, measured: Estimate) -> dict[str, Any]:
    told = document.throughput.ratio
    if told is None:
        raise RuntimeError(f"{case}: nothing was predicted: {document.throughput.refused}")
    stage, where, share = cache
    return {
        "pipeline": case, "cache": f"{stage} in {where}" + (f", room for {share:.0%}" if share < 1 else ""),
        "predicted": told.mid, "low": told.low, "high": told.high,
        "measured": measured.mid, "least": measured.low, "most": measured.high, "error": told.mid / measured.mid - 1,
    }  # fmt: skip


def as_text(found: dict[str, Any]) -> str:
    """Return a table."""
    rows = found["caches"]
    table = "\n".join(
        f"| `{row['pipeline']}` | {row['cache']} | x{row['predicted']:.2f} | {row['low']:.2f} to {row['high']:.2f} | "
        f"x{row['measured']:.2f} | {row['least']:.2f} to {row['most']:.2f} | {row['error']:+.0%} |"
        for row in rows
    )
    return (
        "## What `headrace whatif` says of caches, and what they do\n\n"
        "Rate with the cache, of a run that finds what one before it kept, over the rate without, on the same items.\n\n"
        "| pipeline | what is kept | predicted | interval | measured | least to most | error |\n|---|---|---|---|---|---|---|\n"
        f"{table}\n\n"
        f"Mean error {found['mean_error']:.0%}, largest {found['max_error']:.0%}; {found['inside']} of {len(rows)} lie in "
        "their interval (nine in ten should)."
    )
