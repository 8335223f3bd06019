"""The pipeline with its files in memory, and with files that have to come from the disk."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path

from headrace.base.page_cache import evict, evict_all, file_of, residency, warm
from headrace.base.records import Job
from headrace.profiler.stage_bench.inputs import available_bytes
from headrace.profiler.stage_bench.variation_runs import NotPossible, Scenario

#: Files count as cold or warm up to this share of their pages.
_NEARLY = 0.02
#: In the midst of a run, a file that is being read may keep its pages.
_NEARLY_IN_A_RUN = 0.1
#: Every eighth file is looked at again when it is evicted during a run.
_RECHECK_EVERY = 8


def warm_files(as_is: Scenario) -> Scenario:
    """Return a pipeline with files that all lie in the page cache."""
    jobs, paths = _files(as_is.jobs)

    def prepare() -> None:
        warm(paths)
        found = residency(paths)
        if found.share is not None and found.share < 1 - _NEARLY:
            raise NotPossible(f"not possible here: just read, only {found.share:.0%} of the files' pages are in memory")

    return dataclasses.replace(
        as_is,
        name="warm_files",
        jobs=jobs,
        says=f"{len(paths)} files, all in the page cache",
        prepare=prepare,
    )


def cold_files(as_is: Scenario) -> Scenario:
    """Return a pipeline with files that have to come from the disk each time."""
    jobs, paths = _files(as_is.jobs)
    evictor = _Evictor()

    def prepare() -> None:
        evictor.begin()
        evict_all(paths)
        found = residency(paths, len(paths))
        if found.share is None:
            raise NotPossible(f"not possible here: whether files are in memory cannot be told: {found.reason}")
        if found.share > _NEARLY:
            raise NotPossible(
                f"not possible here: after the kernel was asked to let go of the files, {found.share:.0%} of their pages are "
                "still in memory (a file system in memory, or another process that uses them)"
            )

    return dataclasses.replace(
        as_is,
        name="cold_files",
        jobs=jobs,
        says=f"{len(paths)} files, none in this kernel's page cache; the host's or the disk's own may still hold them",
        prepare=prepare,
        before=evictor.evict,
        check=evictor.check,
    )


class _Evictor:
    """Evicts each file again before it is given out, and looks now and then whether that worked."""

    def __init__(self) -> None:
        self._shares: list[float] = []
        self._numbers = itertools.count()

    def begin(self) -> None:
        """Forget the run before."""
        self._shares = []

    def evict(self, job: Job) -> None:
        """Evict a job's file."""
        path = file_of(job.payload)
        if path is None:
            return
        with contextlib.suppress(OSError):
            evict(path)
            if next(self._numbers) % _RECHECK_EVERY == 0:
                share = residency([path]).share
                if share is not None:
                    self._shares.append(share)

    def check(self) -> None:
        """Raise NotPossible if files were in memory after all."""
        share = statistics.fmean(self._shares) if self._shares else 0.0
        if share > _NEARLY_IN_A_RUN:
            raise NotPossible(
                f"not possible here: in the midst of the run {share:.0%} of the files' pages stayed in memory; use more files"
            )


def _files(every: Sequence[Job]) -> tuple[list[Job], list[Path]]:
    """Return the jobs that are files, as many as fit into a quarter of the memory that is free."""
    room = available_bytes() // 4
    jobs: list[Job] = []
    paths: list[Path] = []
    for job in every:
        path = file_of(job.payload)
        if path is None:
            raise NotPossible("not possible: the source's items are not files")
        with contextlib.suppress(OSError):
            room -= path.stat().st_size
        if room < 0 and jobs:
            break
        jobs.append(job)
        paths.append(path)
    return jobs, paths
