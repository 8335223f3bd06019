"""The ledger: what was predicted, written before it was measured, and what came of it; what was tried and decided.

One SQLite file.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from headrace.base.clock import Clock, SystemClock
from headrace.base.documents import decode_document, encode_document
from headrace.base.errors import LedgerError
from headrace.ledger import database
from headrace.ledger.attempts import Attempts
from headrace.ledger.track_record import Outcome, judge_record
from headrace.runs.formats.ledger import MeasuredRatio, PredictionEntry
from headrace.runs.formats.prediction import Change, PredictionDocument, TrackRecord
from headrace.runs.formats.profile import Estimate
from headrace.runs.hardware import Hardware, whole_gib
from headrace.runs.run_folder import headrace_version

#: Where the ledger is unless the variable or an option names another file.
DEFAULT_FILE = Path("runs/ledger.sqlite")
VARIABLE = "HEADRACE_LEDGER"

_ENTRIES = """
SELECT p.number, p.created, p.headrace_version, p.run, p.pipeline, p.plan_id, p.hardware, p.change, p.says,
    p.low, p.mid, p.high, m.low, m.mid, m.high, m.measured_at, m.how
FROM predictions p LEFT JOIN measurements m ON m.prediction = p.number
"""


def ledger_path(given: str | Path | None = None) -> Path:
    """Return the ledger's file: the one given, else that of HEADRACE_LEDGER, else `runs/ledger.sqlite`."""
    return Path(given or os.environ.get(VARIABLE) or DEFAULT_FILE)


def hardware_fingerprint(hardware: Hardware) -> str:
    """Return twelve hexadecimal digits that stand for a machine as a process may use it.

    Kernel and Python do not count, and memory in whole GiB only. Ledgers of early 2026-11 have digits of another rule, which
    match none of these: what was tried then counts as tried on another machine.
    """
    machine = msgspec.structs.replace(
        hardware, kernel="", python="", memory_bytes=hardware.memory_bytes and whole_gib(hardware.memory_bytes)
    )
    return hashlib.sha256(msgspec.json.encode(machine, order="sorted")).hexdigest()[:12]


class Ledger:
    """Predictions and their measurements. Thread-safe; any number of processes may use one file.

    Args:
        path: The file; made when it is missing.
        must_exist: Raise instead of making it.
        clock: For tests.

    Raises:
        LedgerError: If the file cannot be used; every method raises it for the same reasons.
    """

    def __init__(self, path: str | Path, *, must_exist: bool = False, clock: Clock | None = None) -> None:
        self.path = Path(path)
        self._clock: Clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._closed = False
        self._connection = database.connect(self.path, must_exist=must_exist)
        self.attempts = Attempts(self._connection, self._use_connection, self._clock, self.path)
        self.events = self.attempts.events

    @classmethod
    def open(cls, path: str | Path | None = None, *, must_exist: bool = False) -> Ledger:
        """Return the ledger in this file, or in the one that `ledger_path` finds."""
        return cls(ledger_path(path), must_exist=must_exist)

    def write_prediction(self, document: PredictionDocument, *, hardware: Hardware | None = None) -> str:
        """Write a prediction down, for good, and return its id such as `p12`.

        Args:
            document: What was predicted; its `id` is given here, whatever it holds.
            hardware: The machine of the run that it was made from.

        Raises:
            LedgerError: If no ratio of throughput was predicted.
        """
        ratio = document.throughput.ratio
        if ratio is None:
            raise LedgerError(
                f"nothing to write down: no throughput was predicted for {document.says!r} ({document.throughput.refused})"
            )
        _check_ratio(ratio)
        values = (
            document.run,
            document.pipeline,
            document.plan_id,
            hardware_fingerprint(hardware) if hardware else "",
            _encode(document.change),
            document.says,
            *_numbers(ratio),
            document.headrace_version,
            _encode(document),
        )
        with self._use_connection(), database.transaction(self._connection):
            # The moment is taken after waiting for other writers.
            cursor = self._connection.execute(
                "INSERT INTO predictions (created, run, pipeline, plan_id, hardware, change, says, low, mid, high,"
                " headrace_version, document) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (self._clock.unix_seconds(), *values),
            )
            return f"p{cursor.lastrowid}"

    def write_measurement(
        self, prediction_id: str, ratio: Estimate, how: str, *, measured_at: float | None = None
    ) -> None:
        """Write down what a change did, once; the same ratio again changes nothing.

        Args:
            prediction_id: As `write_prediction` returned it.
            ratio: Measured throughput over that of the base.
            how: How it was measured, in words.
            measured_at: When measuring began, Unix seconds; None for now.

        Raises:
            LedgerError: If there is no such prediction, another ratio was written before, or it was measured before it was
                predicted.
        """
        _check_ratio(ratio)
        number = _number(prediction_id)
        with self._use_connection(), database.transaction(self._connection):
            entry = self._entry(number)
            moment = self._clock.unix_seconds() if measured_at is None else measured_at
            if entry.measured is not None:
                _check_same(entry, ratio)
                return
            if moment < entry.created_unix_seconds:
                raise LedgerError(
                    f"{prediction_id} was written {entry.created_unix_seconds - moment:,.0f} s after this measurement began: "
                    "what is known already is no prediction. Measure the change again, now"
                )
            self._connection.execute(
                "INSERT INTO measurements (prediction, measured_at, low, mid, high, how, headrace_version)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (number, moment, *_numbers(ratio), how, headrace_version()),
            )

    def predictions(
        self, *, last: int | None = None, pipeline: str | None = None, measured: bool | None = None
    ) -> list[PredictionEntry]:
        """Return predictions without their documents, the newest first.

        Args:
            last: At most so many; None for all.
            pipeline: Only of this pipeline.
            measured: Only those that were measured (True), or were not (False).
        """
        conditions = ["1"]
        if pipeline is not None:
            conditions.append("p.pipeline = :pipeline")
        if measured is not None:
            conditions.append(f"m.prediction IS {'NOT ' if measured else ''}NULL")
        return self._read(
            f"{_ENTRIES} WHERE {' AND '.join(conditions)} ORDER BY p.number DESC LIMIT :most",
            {"pipeline": pipeline, "most": -1 if last is None else last},
        )

    def prediction(self, prediction_id: str) -> PredictionEntry:
        """Return one prediction with all that was said.

        Raises:
            LedgerError: If there is no such prediction.
        """
        number = _number(prediction_id)
        with self._use_connection():
            entry = self._entry(number)
            (document,) = self._connection.execute(
                "SELECT document FROM predictions WHERE number = ?", (number,)
            ).fetchone()
        told = self._decode(document, PredictionDocument)
        return msgspec.structs.replace(entry, document=msgspec.structs.replace(told, id=entry.id))

    def track_record(self, last: int = 40, *, pipeline: str | None = None) -> TrackRecord:
        """Return how well the newest predictions did, of those that were measured.

        Args:
            last: At most so many.
            pipeline: Only of this pipeline.
        """
        entries = self.predictions(last=last, pipeline=pipeline, measured=True)
        outcomes = [
            Outcome(entry.predicted, entry.measured.ratio.mid, entry.change.kinds, self._read_widened(entry.id))
            for entry in entries
            if entry.measured
        ]
        return judge_record(outcomes)

    def _read_widened(self, prediction_id: str) -> float:
        """Return how many times as wide the record had made a prediction's interval; 1 in entries of before 2026-11-23."""
        document = self.prediction(prediction_id).document
        return 1.0 if document is None else document.widened

    def close(self) -> None:
        """Release the file. Repeating it does nothing."""
        with self._lock:
            self._closed = True
            self._connection.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def _use_connection(self) -> Iterator[None]:
        with self._lock, database.translate_errors(self.path):
            if self._closed:
                raise LedgerError(f"the ledger {self.path} was closed; open it again")
            yield

    def _read(self, statement: str, values: dict[str, Any]) -> list[PredictionEntry]:
        with self._use_connection():
            return [self._read_entry(row) for row in self._connection.execute(statement, values)]

    def _entry(self, number: int) -> PredictionEntry:
        row = self._connection.execute(f"{_ENTRIES} WHERE p.number = ?", (number,)).fetchone()
        if row is None:
            (most,) = self._connection.execute("SELECT max(number) FROM predictions").fetchone()
            held = f"it holds p1 to p{most}" if most else "it holds none yet"
            raise LedgerError(
                f"the ledger {self.path} has no prediction p{number}; {held}: look with `headrace ledger list`"
            )
        return self._read_entry(row)

    def _read_entry(self, row: Sequence[Any]) -> PredictionEntry:
        number, created, version, run, pipeline, plan_id, hardware, change, says = row[:9]
        predicted = Estimate(*row[9:12])
        measured = None
        if row[13] is not None:
            measured = MeasuredRatio(ratio=Estimate(*row[12:15]), measured_unix_seconds=row[15], how=row[16])
        return PredictionEntry(
            id=f"p{number}",
            created_unix_seconds=created,
            headrace_version=version,
            run=run,
            pipeline=pipeline,
            plan_id=plan_id,
            hardware=hardware,
            change=self._decode(change, Change),
            says=says,
            predicted=predicted,
            measured=measured,
            error=None if measured is None else predicted.mid / measured.ratio.mid - 1,
        )

    def _decode(self, text: str, kind: Any) -> Any:
        try:
            return decode_document(text, kind)
        except msgspec.DecodeError as error:
            raise LedgerError(f"the ledger {self.path} holds an entry that cannot be read: {error}") from error


def _number(prediction_id: str) -> int:
    text = prediction_id.strip().removeprefix("p")
    # 18 digits: what SQLite's integers hold.
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise LedgerError(
            f"{prediction_id!r} is no id of a prediction; expected one such as p12, see `headrace ledger list`"
        )
    return int(text)


def _check_ratio(ratio: Estimate) -> None:
    if not (0 < ratio.low <= ratio.mid <= ratio.high and math.isfinite(ratio.high)):
        raise ValueError(f"a ratio needs 0 < low <= mid <= high, got {ratio.low}, {ratio.mid}, {ratio.high}")


def _check_same(entry: PredictionEntry, ratio: Estimate) -> None:
    assert entry.measured is not None
    before = entry.measured.ratio
    if before != ratio:
        raise LedgerError(
            f"{entry.id} was measured before: {before:.4g}, {entry.measured.how}. "
            f"A measurement stands; for {ratio.mid:.4g} make a new prediction with `headrace whatif`, then measure"
        )


def _numbers(ratio: Estimate) -> tuple[float, float, float]:
    return ratio.low, ratio.mid, ratio.high


def _encode(record: msgspec.Struct) -> str:
    """Return JSON of a record; what could not be read back must not be written."""
    content = encode_document(record)
    try:
        decode_document(content, type(record))
    except msgspec.DecodeError as error:
        raise ValueError(f"the prediction holds what cannot be written down: {error}") from error
    return content.decode()
