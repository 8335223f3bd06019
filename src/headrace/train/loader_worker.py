"""Runs at the start of a loader's worker: its batches are timed from then on.

How this works: a worker calls its `worker_init_fn` and then asks `_DatasetKind.create_fetcher` for the object that makes
batches. `WorkerStart` stands in the place of the `worker_init_fn`, calls the user's, and has that one function give a
`WatchedFetcher`, in this process only. A worker process ends with its loader, so nothing is put back.
"""

# ruff: noqa: SLF001 -- PyTorch has no public place between a worker and what makes its batches.
from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from torch.utils.data import _DatasetKind
from torch.utils.data._utils import worker as torch_worker

from headrace.train.loader_clock import BatchClock, WatchedFetcher
from headrace.train.loader_record import BatchRecord, SharedRecords
from headrace.train.worker_lines import sample_lines


class WorkerStart:
    """A `worker_init_fn` that has batches timed, and then calls the user's; as easily pickled as that one is.

    Args:
        user_function: The user's, or None.
        records: Where what batches cost is left.
    """

    def __init__(self, user_function: Callable[[int], None] | None, records: SharedRecords) -> None:
        self._user_function, self._records = user_function, records

    def __call__(self, worker: int) -> None:
        """Begin in a worker."""
        # Whatever fails here, the training goes on: its batches then have no records.
        with contextlib.suppress(Exception):
            _watch_fetchers(worker, self._records)
        if self._user_function is not None:
            self._user_function(worker)


def _watch_fetchers(worker: int, records: SharedRecords) -> None:
    original: Callable[..., Any] = _DatasetKind.create_fetcher
    epoch = -1

    @functools.wraps(original)
    def create_fetcher(*args: Any, **kwargs: Any) -> Any:
        nonlocal epoch
        fetcher = original(*args, **kwargs)
        # A data set may use a loader of its own, in this process: that one is not watched.
        if sys._getframe(1).f_code is not torch_worker._worker_loop.__code__:
            return fetcher
        epoch += 1  # persistent workers ask for a new one at each epoch
        if epoch == 0:
            sample_lines(worker, records)
        current = epoch

        def keep(record: BatchRecord) -> None:
            records.write(worker, current, record)

        return WatchedFetcher(fetcher, BatchClock(keep, os.getpid(), is_alone=True), lambda: records.is_over)

    _DatasetKind.create_fetcher = staticmethod(create_fetcher)
