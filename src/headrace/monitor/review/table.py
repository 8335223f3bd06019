"""The items of a round as CSV, for people who review with a tool of their own, and back again.

A cell that begins with =, +, - or @ would be run as a formula by a spreadsheet, and what models and senders write may begin
so: such cells get an apostrophe before them, which is taken away again.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from headrace.base.documents import encode_document
from headrace.base.errors import SettingsError
from headrace.base.given_files import read_given_file
from headrace.base.units import format_time
from headrace.monitor.review.reviewing import Review
from headrace.monitor.review.store import find_file
from headrace.runs.formats.review import Verdict, VerdictLine

COLUMNS = (
    "item", "verdict", "label", "answer", "certainty", "picture", "arm", "why", "probability", "task", "plan_id", "job",
    "source", "time", "result",
)  # fmt: skip
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")
_LARGEST_BYTES = 100 << 20


def write_table(review: Review) -> str:
    """Return the items of the round, in the order of reviewing, with what was said of them."""
    text = io.StringIO()
    rows = csv.DictWriter(text, COLUMNS)
    rows.writeheader()
    for drawn in review.round.draws:
        item = review.find_item(drawn.item)
        if item is None:
            continue
        said = review.verdict_of(drawn.item)
        picture = find_file(review.folder, drawn.item.partition("/")[0], item.file)
        cells = {
            "item": drawn.item, "verdict": said.verdict if said else "", "label": said.label if said else "",
            "answer": item.name, "certainty": "" if item.certainty is None else f"{item.certainty:.4f}",
            "picture": str(picture or ""), "arm": item.arm, "why": " ".join(item.why),
            "probability": f"{review.probability_of(drawn):.6g}", "task": item.task, "plan_id": item.plan_id,
            "job": item.job, "source": item.source, "time": format_time(item.unix_seconds),
            "result": encode_document(item.answer, or_text=True).decode(),
        }  # fmt: skip
        rows.writerow({name: f"'{cell}" if cell.startswith(_FORMULA) else cell for name, cell in cells.items()})
    return text.getvalue()


def read_table(path: Path) -> list[VerdictLine]:
    """Return the verdicts of a table: of rows that have a verdict, or a label, which makes an answer right or wrong.

    Raises:
        SettingsError: If it is no such table.
    """
    return list(_read_rows(path))


def _read_rows(path: Path) -> Iterator[VerdictLine]:
    reader = csv.DictReader(io.StringIO(_read_text(path), newline=None))
    missing = {"item", "verdict"} - set(reader.fieldnames or ())
    if missing:
        raise SettingsError(
            f"{path} has no column {', '.join(sorted(missing))}; expected the table of headrace review --export, filled in"
        )
    try:
        for row in reader:
            cells = {name: _plain(row.get(name)) for name in ("item", "verdict", "label", "answer")}
            verdict, label = cells["verdict"].strip().lower(), cells["label"].strip()
            if not verdict and not label:
                continue
            verdict = verdict or ("correct" if label == cells["answer"] else "wrong")
            if verdict not in get_args(Verdict):
                raise SettingsError(
                    f"{path}, line {reader.line_num}: the verdict {verdict!r:.60} is none of {', '.join(get_args(Verdict))}"
                )
            yield VerdictLine(item=cells["item"], verdict=verdict, label=label)  # type: ignore[arg-type]
    except csv.Error as error:
        raise SettingsError(f"{path}, line {reader.line_num}: {error}; expected CSV") from None


def _read_text(path: Path) -> str:
    try:
        content = read_given_file(path, _LARGEST_BYTES + 1)
        if len(content) > _LARGEST_BYTES:
            raise SettingsError(f"{path} has more than {_LARGEST_BYTES >> 20} MiB; expected the table of one round")
        return content.decode("utf-8-sig")  # spreadsheets begin it with a mark
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8 (byte {error.start:,}); save it as CSV in UTF-8") from None


def _plain(cell: str | None) -> str:
    text = cell or ""
    return text[1:] if text[:1] == "'" and text[1:2] in _FORMULA else text
