"""Cuts a run folder into windows: what its items cost in each stage, for each Plan that the run used."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow.compute as pc

from headrace.base.errors import SettingsError
from headrace.monitor.history.moments import make_rows, sum_rows
from headrace.pipeline.definition import DELIVER
from headrace.runs.formats.history import HistoryWindow, StageWindow
from headrace.runs.reader import Run

#: Length of a window, seconds.
WINDOW_SECONDS = 3600.0
#: More would be a file of gigabytes.
MOST_WINDOWS = 100_000


def cut_run(run: Run, seconds: float = WINDOW_SECONDS) -> dict[str, list[HistoryWindow]]:
    """Return {plan_id: windows in order} of a run; spans without CPU time count as deliveries alone.

    Args:
        run: The run folder.
        seconds: Length of a window.

    Raises:
        SettingsError: If the run has more windows than a history takes.
    """
    table = run.spans()
    table = table.filter(pc.equal(table.column("outcome"), "ok"))
    if not len(table):
        return {}
    info = run.info
    offsets = np.array([info.clock_offsets_ns.get(host, 0) for host in table.column("host").to_pylist()])
    ended = np.asarray(table.column("ended")) + offsets
    numbers = np.maximum(0, (ended - info.started_monotonic_ns) // int(seconds * 1e9))
    until = float(ended.max() - info.started_monotonic_ns) / 1e9
    if numbers.max() >= MOST_WINDOWS:
        raise SettingsError(
            f"{run.path} lasts {until:,.0f} s, which is {numbers.max() + 1:,} windows of {seconds:g} s; expected at most "
            f"{MOST_WINDOWS:,}: ask for longer ones with --window"
        )
    parts = _split(table, numbers)
    found: dict[str, list[HistoryWindow]] = defaultdict(list)
    for plan_id, number in sorted({(plan_id, number) for plan_id, number, _ in parts}):
        own = {stage: rows for (plan, at, stage), rows in parts.items() if (plan, at) == (plan_id, number)}
        delivered = own.get(DELIVER)
        found[plan_id].append(
            HistoryWindow(
                began_unix_seconds=info.started_unix_seconds + number * seconds,
                seconds=min(seconds, until - number * seconds),
                delivered=int(np.sum(_column(delivered, "weight"))) if delivered is not None else 0,
                stages={stage: sums for stage, rows in own.items() if (sums := _sum(rows)) is not None},
            )
        )
    return dict(found)


def _split(table: Any, numbers: np.ndarray) -> dict[tuple[str, int, str], Any]:
    """Return {(plan_id, window, stage): spans}."""
    keyed = table.append_column("window", [numbers])
    groups = keyed.group_by(["plan_id", "window", "stage"]).aggregate([])
    found = {}
    for key in groups.to_pylist():
        chosen = pc.and_(
            pc.and_(pc.equal(keyed.column("plan_id"), key["plan_id"]), pc.equal(keyed.column("window"), key["window"])),
            pc.equal(keyed.column("stage"), key["stage"]),
        )
        found[str(key["plan_id"]), int(key["window"]), str(key["stage"])] = table.filter(chosen)
    return found


def _sum(rows: Any) -> StageWindow | None:
    """Return the sums over spans that have a CPU time; None if none has."""
    rows = rows.filter(pc.is_valid(rows.column("cpu")))
    if not len(rows):
        return None
    sizes = np.nan_to_num(_column(rows, "batch_size"), nan=1.0)
    made = make_rows(_column(rows, "bytes_in"), _column(rows, "bytes_out"), np.maximum(1, sizes), _column(rows, "cpu"))
    return sum_rows(made, _column(rows, "weight"))


def _column(rows: Any, name: str) -> np.ndarray:
    return np.asarray(pc.cast(rows.column(name), "float64"))
