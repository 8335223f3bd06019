"""The ledger for a terminal: predicted beside measured."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.base.words import aligned, counted, wrapped
from headrace.cli.whatif_text import Shown, number, proof, ratio_text, what_was_said

if TYPE_CHECKING:
    from headrace.runs.formats.ledger import PredictionEntry
    from headrace.runs.formats.prediction import TrackRecord

_COLUMNS = ("id", "when", "predicted", "measured", "error", "change")


def listed(entries: Sequence[PredictionEntry], record: TrackRecord) -> str:
    """Return predictions as a table, and how good the measured ones were."""
    if not entries:
        return "no prediction\n"
    rows = [_COLUMNS, *(_row(entry) for entry in entries)]
    return "\n".join([*_table(rows), "", *wrapped([record.says])]) + "\n"


def shown(entry: PredictionEntry, ledger_option: str | None) -> str:
    """Return one prediction with all that was said, and what came of it or how to find out.

    Args:
        entry: With its document.
        ledger_option: The ledger's file as the user gave it, for the commands to type.
    """
    assert entry.document is not None
    head = f"{entry.id}, written {_when(entry.created_unix_seconds)} by headrace {entry.headrace_version}"
    below = wrapped([_came_of(entry)])
    if entry.measured is None:
        # The ledger knows the run's name, not where it is.
        commands = proof(entry.document, Shown(run_folder="RUN", ledger=None, ledger_option=ledger_option))
        below += ["prove it:", *(f"  {line}" for line in commands)]
    return "\n".join([head, "", what_was_said(entry.document), "", *below]) + "\n"


def outcome(entry: PredictionEntry, record: TrackRecord) -> str:
    """Return what came of a prediction, and what that makes of the record."""
    return (
        "\n".join(wrapped([f"{entry.id}: {entry.says}", _came_of(entry), f"record of this tool: {record.says}"])) + "\n"
    )


def recorded(entries: Sequence[PredictionEntry], record: TrackRecord, num_waiting: int) -> str:
    """Return how good predictions were: the numbers, and the measured ones from the worst on.

    Args:
        entries: Those that were measured.
        record: Of these.
        num_waiting: Predictions that nobody has measured: they are in no number here.
    """
    lines = [record.says]
    if num_waiting:
        lines.append(f"not measured, and so not judged: {counted(num_waiting, 'prediction')}")
    if not entries:
        return "\n".join(lines) + "\n"
    lines.append(f"measured within the predicted interval: {record.num_inside} of {record.num}")
    if record.num_with_sign:
        lines.append(
            f"faster or slower told rightly: {record.num_sign_right} of {record.num_with_sign} that changed by more than 5 %"
        )
    worst = sorted(entries, key=lambda entry: -abs(entry.error or 0.0))
    rows = [_COLUMNS, *(_row(entry) for entry in worst)]
    return "\n".join([*wrapped(lines), "", *_table(rows)]) + "\n"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    # The change, which may be long, stands last and to the left.
    before = aligned([row[:-1] for row in rows], num_left=2)
    width = max(map(len, before))
    return [f"{line:<{width}}  {row[-1]}" for line, row in zip(before, rows, strict=True)]


def _row(entry: PredictionEntry) -> tuple[str, ...]:
    measured = entry.measured
    return (
        entry.id,
        _when(entry.created_unix_seconds),
        ratio_text(entry.predicted),
        "-" if measured is None else f"x{number(measured.ratio.mid)}",
        "-" if entry.error is None else f"{100 * entry.error:+.1f} %",
        entry.says,
    )


def _came_of(entry: PredictionEntry) -> str:
    if entry.measured is None or entry.error is None:
        return "not measured yet"
    inside = entry.predicted.low <= entry.measured.ratio.mid <= entry.predicted.high
    place = "inside" if inside else "outside"
    when = _when(entry.measured.measured_unix_seconds)
    return (
        f"measured {ratio_text(entry.measured.ratio)}, predicted {ratio_text(entry.predicted)}: "
        f"error {100 * entry.error:+.1f} %, {place} the interval ({entry.measured.how}, {when})"
    )


def _when(unix_seconds: float) -> str:
    return datetime.datetime.fromtimestamp(unix_seconds).astimezone().strftime("%Y-%m-%d %H:%M")
