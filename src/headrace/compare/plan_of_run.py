"""What one of several Plans did in a run: an arm of a canary, or what came before or after `--follow` took up another model.

Arms of one run answered side by side, so what the machine did at a time is in both: each stretch of time is a pair.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.compute as pc

from headrace.base.errors import RunFolderError
from headrace.base.records import Counters
from headrace.pipeline.definition import DELIVER
from headrace.runs.reader import Run
from headrace.runs.whole_run import read_whole


class PlanOfRun(Run):
    """The spans of one Plan of a run, and the counts that follow from them.

    Args:
        whole: The run.
        beginning: Of the Plan's id, and of no other one of the run.

    Raises:
        RunFolderError: If the run has no such Plan, or several.
    """

    def __init__(self, whole: Run, beginning: str) -> None:
        plans = whole.info.plans
        found = [plan_id for plan_id in plans if beginning and plan_id.startswith(beginning)]
        if len(found) != 1:
            raise RunFolderError(
                f"{whole.path}@{beginning}: expected the beginning of the id of one Plan of this run, which has "
                f"{', '.join(plans) or 'none'}"
            )
        super().__init__(whole.path, msgspec.structs.replace(whole.info, plans={found[0]: plans[found[0]]}))
        self._whole = whole
        self.plan_id = found[0]
        self.info.counters = self._count()

    def spans(self) -> Any:
        """Return the spans of this Plan; see `Run.spans`."""
        return self._own_spans

    def span_tables(self) -> Iterator[Any]:
        """Yield them as one table."""
        yield self.spans()

    @property
    def problems(self) -> list[str]:
        """Those of the whole run."""
        return self._whole.problems

    @cached_property
    def _own_spans(self) -> Any:
        table = self._whole.spans()
        return table.filter(pc.equal(table.column("plan_id"), self.plan_id))

    def _count(self) -> Counters:
        """Count jobs by their spans: `run.json` counts all Plans together."""
        table = self.spans()
        is_good = pc.equal(table.column("outcome"), "ok")
        delivered = table.filter(pc.and_(is_good, pc.equal(table.column("stage"), DELIVER)))
        bad = table.filter(pc.invert(is_good))
        left = bad.filter(pc.invert(pc.is_in(bad.column("unit_id"), delivered.column("unit_id").unique())))
        return Counters(delivered=_sum(delivered), rejected=_sum(left))


def read_side(text: str) -> Run | None:
    """Return the run folder, or the RUN@PLAN, that a text names; None: neither.

    Raises:
        RunFolderError: If it cannot be read, or has no such Plan.
    """
    if Path(text).is_dir():
        return read_whole(text)
    folder, at, beginning = text.rpartition("@")
    is_plan_file = beginning.endswith(".toml")
    return PlanOfRun(read_whole(folder), beginning) if at and not is_plan_file and Path(folder).is_dir() else None


def _sum(table: Any) -> int:
    return int(pc.sum(table.column("weight")).as_py() or 0)
