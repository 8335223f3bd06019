"""Makes windows of what is on disk: a folder of images, a run folder, or the folder of a drift monitor."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from headrace.base.errors import DecodeRejected, SettingsError
from headrace.base.plan import DecodePlan
from headrace.base.records import Job
from headrace.monitor.drift.collector import Collector
from headrace.monitor.drift.folder import WINDOWS_FOLDER, DriftFolder
from headrace.monitor.drift.learning import LEAST_WINDOWS
from headrace.monitor.drift.slower import product_of
from headrace.monitor.drift.statistics import SECONDS
from headrace.monitor.drift.sums import Adder
from headrace.runs.file_names import RUN_JSON
from headrace.runs.formats.drift import DriftWindow
from headrace.runs.reader import Run, read_run
from headrace.stages.decode import decode

#: Shorter side to which images are decoded before they are looked at.
SHORT_SIDE = 256
#: Items of a window, at least: of fewer, means say little.
LEAST_ITEMS = 10
_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"})


def read_windows(
    path: Path,
    *,
    key: str = "",
    window_items: int | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> list[DriftWindow]:
    """Return the windows of a folder.

    Args:
        path: Of a drift monitor, a run, or images.
        key: `folder`: each folder of images is a stratum.
        window_items: Items of a window; None: as many as give the windows that a baseline takes.
        progress: Called with how many images were read, of how many.

    Raises:
        SettingsError: If there is nothing to read, or too little.
    """
    if not path.is_dir():
        raise SettingsError(f"{path} is not a folder; expected one of --drift, a run folder, or a folder of images")
    if (path / WINDOWS_FOLDER).is_dir():
        windows, _ = DriftFolder(path).windows()
        return windows
    if (path / RUN_JSON).is_file():
        return _windows_of_run(read_run(path), window_items)
    return _windows_of_images(path, key, window_items, progress)


def _windows_of_images(
    path: Path, key: str, window_items: int | None, progress: Callable[[int, int], None]
) -> list[DriftWindow]:
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in _SUFFIXES and file.is_file())
    if not files:
        raise SettingsError(
            f"{path} holds no image ({', '.join(sorted(_SUFFIXES))}), is no run folder and none of --drift"
        )
    files = _spread(files, path) if key else sorted(files, key=lambda file: (file.stat().st_mtime_ns, file))
    size = window_items or _items_of_windows(len(files), str(path))
    windows = []
    for start in range(0, len(files) - size + 1, size):
        part = files[start : start + size]
        moment = part[0].stat().st_mtime
        collector = Collector(key, window_items=10 * size, now=lambda moment=moment: moment)  # type: ignore[misc]
        collector.step = 1
        for file in part:
            _read_image(collector, path, file)
        progress(start + len(part), len(files))
        windows += collector.take(rest=True)
    return windows


def _spread(files: Sequence[Path], path: Path) -> list[Path]:
    """Return files so that each window has its share of every folder."""
    by_folder: dict[Path, list[Path]] = {}
    for file in files:
        by_folder.setdefault(file.parent, []).append(file)
    places = [
        ((index + 0.5) / len(group), str(folder), file)
        for folder, group in by_folder.items()
        for index, file in enumerate(group)
    ]
    return [file for _, _, file in sorted(places)]


def _read_image(collector: Collector, folder: Path, file: Path) -> None:
    job = Job(os.fspath(file.relative_to(folder)), file)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise SettingsError(f"{file} cannot be read: {error.strerror}") from error
    try:
        image = decode(data, short_side=SHORT_SIDE, plan=DecodePlan())
    except DecodeRejected as error:
        collector.enter(job, data, "decode", None, error, 0)
        return
    collector.enter(job, data, "decode", image, None, 1)
    collector.look(job, image)


def _windows_of_run(run: Run, window_items: int | None) -> list[DriftWindow]:
    """Return what the spans of a run tell: sizes of files, CPU time, refusals."""
    spans = run.spans()
    decodes = [stage.name for stage in run.info.stages if stage.work == "decode"]
    if not decodes:
        raise SettingsError(f"{run.path} is a run without a stage that decodes: there is nothing in it to compare")
    import pyarrow.compute as pc

    table = spans.filter(pc.equal(spans.column("stage").cast("string"), decodes[0])).sort_by("started")
    size = window_items or _items_of_windows(len(table), str(run.path))
    began_unix = run.info.started_unix_seconds
    first = table.column("started")[0].as_py() if len(table) else 0
    windows = []
    for start in range(0, len(table) - size + 1, size):
        part = table.slice(start, size)
        adder = Adder()
        stratum = adder.stratum("")
        for outcome, bytes_in, cpu, began, ended in zip(
            *(part.column(name).to_pylist() for name in ("outcome", "bytes_in", "cpu", "started", "ended")), strict=True
        ):
            adder.count(stratum, "items", *(() if outcome == "ok" else ("refused",)))
            if outcome == "ok" and bytes_in > 0:
                seconds = float(np.log10(max(1, cpu or ended - began) * 1e-9))
                num_bytes = float(np.log10(bytes_in))
                names = ("bytes", SECONDS + "decode", product_of(SECONDS + "decode", "bytes"))
                adder.add(stratum, names, (num_bytes, seconds, num_bytes * seconds))
        adder.items = adder.sampled = len(part)
        times = [began_unix + (part.column("started")[at].as_py() - first) * 1e-9 for at in (0, len(part) - 1)]
        windows.append(adder.window(times[0], times[1]))
    return windows


def _items_of_windows(items: int, what: str) -> int:
    size = items // LEAST_WINDOWS
    if size < LEAST_ITEMS:
        raise SettingsError(
            f"{what} holds {items} items; {LEAST_WINDOWS * LEAST_ITEMS} are needed, because a baseline takes {LEAST_WINDOWS} "
            f"windows of {LEAST_ITEMS} items at least"
        )
    return size
