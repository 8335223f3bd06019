"""A pipeline as a step of a Ray Dataset: a row for each row, whatever becomes of it.

How this works. One run of the pipeline lasts as long as the actor, in a thread of its own, so that models are opened once and
its stages overlap within a batch. A call puts the rows of its batch into the run's source and waits until all have ended.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.errors import SettingsError
from headrace.base.plan import Plan
from headrace.base.records import Job, Outcome, OutcomeKind
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.execute import Measuring, run
from headrace.sources.finite import Entry, FiniteSource, WorkList
from headrace.stages.fetch import FetchStage

#: Where rows have several columns: those that hold what a pipeline begins with, as Ray's own readers name them.
_COLUMNS = ("bytes", "image", "data", "item", "path")
_POLL_SECONDS = 0.5


def map_batches(
    pipeline: Pipeline | str | Callable[[], Pipeline],
    *,
    plan: Plan | str | Path | None = None,
    column: str | None = None,
    result: str = "result",
    error: str = "error",
) -> type[PipelineStep]:
    """Return what a Dataset takes: `dataset.map_batches(headrace.ray.map_batches("jobs.py:pipeline"), compute=pool)`.

    Each row comes out as one row, with its other columns, the pipeline's result and, if it had none, why. Only what keeps the
    whole pipeline from running, such as a model that cannot be opened, is raised.

    Args:
        pipeline: Its source and delivery do not count. A name is looked up in each actor, a function is called there, and an
            object is pickled.
        plan: How it runs; a path is read in each actor.
        column: What the first stage gets; None: the only column, or the first of bytes, image, data, item, path. Texts of a
            column `path` are files, unless they are addresses or the pipeline has no `fetch`.
        result: Name of the column of results; None where there is none.
        error: Name of the column of reasons; "" where there is a result.
    """
    if not (isinstance(pipeline, Pipeline | str) or callable(pipeline)):
        raise SettingsError(
            f"pipeline is a {type(pipeline).__name__}; expected a Pipeline, its name or what returns one"
        )
    if result == error:
        raise SettingsError(f"result and error are both {result!r}; expected two names")

    class HeadraceStep(PipelineStep):  # made here: Ray pickles it with what it needs
        def __init__(self) -> None:
            super().__init__(pipeline, plan, column, result, error)

    return HeadraceStep


class PipelineStep:
    """A running pipeline that takes batches of columns; see `map_batches`."""

    def __init__(
        self,
        pipeline: Pipeline | str | Callable[[], Pipeline],
        plan: Plan | str | Path | None,
        column: str | None,
        result: str,
        error: str,
    ) -> None:
        self._column, self._result, self._error = column, result, error
        self._source = _Rows()
        self._delivery = _Kept()
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        found = _find(pipeline).replace_source(self._source).replace_delivery(self._delivery)
        self._reads_files = bool(found.stages) and isinstance(found.stages[0], FetchStage)
        _note_cores()
        self._thread = threading.Thread(target=self._run, args=(found, plan), name="headrace", daemon=True)
        self._thread.start()

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the batch with a result or a reason for each row.

        Raises:
            SettingsError: If it is no dictionary of columns, or has none to work on.
        """
        if not isinstance(batch, Mapping):
            raise SettingsError(
                f"a batch is a {type(batch).__module__.partition('.')[0]} {type(batch).__name__}; expected a dictionary of "
                'NumPy arrays, as `batch_format="numpy"` of Dataset.map_batches gives, which is the default'
            )
        if not batch:  # a block without rows may have no columns either
            return {self._result: np.empty(0, object), self._error: np.empty(0, object)}
        column = self._find_column(batch)
        kept = {name: values for name, values in batch.items() if name != column}
        for parameter, name in (("result", self._result), ("error", self._error)):
            if name in kept:
                raise SettingsError(
                    f"the rows have a column {name!r} already, which would be lost; expected {parameter}= another name"
                )
        payloads = [_as_payload(value) for value in batch[column]]
        if column == "path" and self._reads_files:
            payloads = [_as_file(value) for value in payloads]
        rows = self._source.put(payloads)
        while not rows.ended.wait(_POLL_SECONDS):
            if not self._thread.is_alive():
                raise self._failure or RuntimeError("the pipeline ended before its rows")
        results = np.empty(len(payloads), object)
        for index, number in enumerate(rows.numbers):
            results[index] = self._delivery.results.pop(number, None)
        return {**kept, self._result: results, self._error: np.array(rows.errors, dtype=object)}

    def close(self) -> None:
        """End the run."""
        self._source.end()
        self._thread.join()

    def _run(self, pipeline: Pipeline, plan: Plan | str | Path | None) -> None:
        try:
            # Each row waits here for its end, so none is lost where all fail: the brake would end the run instead.
            run(pipeline, plan, checkpoint=False, stop=self._stop, measuring=Measuring(brakes=False))
        except BaseException as error:
            self._failure = error

    def _find_column(self, batch: Mapping[str, Any]) -> str:
        names = list(batch)
        if self._column in names:
            return str(self._column)
        found = names if len(names) == 1 else [name for name in _COLUMNS if name in names]
        if self._column is not None or not found:
            wanted = f"a column {self._column!r}" if self._column else f"one of {', '.join(_COLUMNS)}, or column="
            raise SettingsError(f"the rows have the columns {', '.join(map(repr, names))}; expected {wanted}")
        return found[0]


class _Batch:
    """Rows that were put in together."""

    def __init__(self, numbers: list[str]) -> None:
        self.numbers = numbers
        self.errors = [""] * len(numbers)
        self.ended = threading.Event()
        self._left = len(numbers)
        if not numbers:
            self.ended.set()

    def end(self, index: int, error: str) -> None:
        """Note the end of a row."""
        self.errors[index] = error
        self._left -= 1
        if not self._left:
            self.ended.set()


class _Rows(FiniteSource):
    """Rows, as they are put in."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._waiting: deque[Entry] = deque()
        self._batches: dict[str, tuple[_Batch, int]] = {}
        self._num_put = 0
        self._is_over = False
        self.follow(WorkList((), 0, lambda item: None, self._settled, lambda: None))

    def put(self, payloads: list[Any]) -> _Batch:
        """Let rows in."""
        with self._lock:
            numbers = [str(self._num_put + index) for index in range(len(payloads))]
            self._num_put += len(payloads)
            batch = _Batch(numbers)
            self._batches.update({number: (batch, index) for index, number in enumerate(numbers)})
            self._waiting.extend(Entry(number, payload) for number, payload in zip(numbers, payloads, strict=True))
        self._notify()
        return batch

    def end(self) -> None:
        """Note that no more come."""
        self._is_over = True
        self._notify()

    def entries(self) -> Iterator[Entry]:
        """Return none: nobody knows them ahead."""
        return iter(())

    @property
    def lists_ahead(self) -> bool:
        """No."""
        return False

    def remaining(self) -> Iterator[Entry | None]:
        """Return rows as they come; None: there is none now."""
        while True:
            entry = None
            if self._waiting:
                with self._lock:
                    entry = self._waiting.popleft()
            elif self._is_over:
                return
            yield entry

    def _notify(self) -> None:
        if self._open is not None:
            self._open.notify()

    def _settled(self, item: str, outcome: Outcome) -> None:
        with self._lock:
            batch, index = self._batches.pop(item)
            batch.end(index, "" if outcome.kind is OutcomeKind.DELIVERED else outcome.reason or outcome.kind.value)


class _Kept:
    """Results by the number of the row, until its batch takes them."""

    flush_items = 1
    flush_seconds = 0.0
    default_workers = 1
    is_instant = True

    def __init__(self) -> None:
        self.results: dict[str, Any] = {}

    def open(self, context: Any) -> None:
        """Do nothing."""

    def deliver(self, job: Job, result: Any) -> bool:
        """Keep one result."""
        self.results[job.id] = result
        return True

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def _find(pipeline: Pipeline | str | Callable[[], Pipeline]) -> Pipeline:
    if isinstance(pipeline, str):
        from headrace.pipeline.loading import load_pipeline

        return load_pipeline(pipeline)
    return pipeline if isinstance(pipeline, Pipeline) else pipeline()


def _as_payload(value: Any) -> Any:
    """Return a value as stages know it: numpy has types of its own for single texts."""
    return value.item() if isinstance(value, np.generic) else value


def _as_file(value: Any) -> Any:
    """Return a text that is no address as the file that it names, below the actor's working folder; rows have no Path."""
    return Path(value).absolute() if isinstance(value, str) and "://" not in value else value


def _note_cores() -> None:
    """Let the run use as many cores as Ray gave the actor; outside of one, all."""
    from headrace.ray.cluster import assigned_cores

    cores = assigned_cores()
    if cores:
        os.environ.setdefault("HEADRACE_CORES", str(cores))
