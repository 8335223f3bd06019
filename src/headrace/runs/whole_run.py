"""A run of several processes, on one machine or many: a folder of their run folders (`member_folders`), read as one run.

Each member is a run folder of its own, with the clock of its host. Here all spans are on one clock: a member's own clock and
its Unix time were read at the same moment, so members of two hosts are as far apart as their wall clocks are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from headrace.base.errors import RunFolderError
from headrace.base.formatting import pluralize
from headrace.base.records import Counters
from headrace.runs.errors_log import ErrorLine
from headrace.runs.file_names import RUN_JSON
from headrace.runs.member_folders import count_portions, find_foreign, find_members
from headrace.runs.reader import Run, read_run
from headrace.runs.run_folder import RunInfo, Status
from headrace.runs.span_files import SPAN_SCHEMA
from headrace.runs.supervision import read_supervision

_TIMES = ("arrived", "dequeued", "started", "ended", "put")
#: What a whole run is, the first that one of its members is.
_STATUSES: tuple[Status, ...] = ("failed", "interrupted", "running")


class WholeRun(Run):
    """All members of a run as one: for what adds up over processes. What simulates a process takes one member.

    Attributes:
        members: Each as a run, in the order of their numbers.
        missing: Members that are not among them, and why; and those that do not go together.
        supervision: What those who watched over them counted; None: nobody did.
    """

    def __init__(self, path: Path, members: Sequence[Run], problems: Sequence[str] = ()) -> None:
        """Put members together.

        Args:
            path: The folder that holds them.
            members: At least one.
            problems: What is missing.
        """
        super().__init__(path, _put_together([member.info for member in members]))
        self.members = tuple(members)
        self.missing = (*problems, *_find_mixed(members))
        self.supervision = read_supervision(path)

    def spans(self) -> Any:
        """Return the spans of all members, on the whole run's clock; else as `Run.spans`."""
        tables = [SPAN_SCHEMA.empty_table(), *(_move(member, self.shift_ns(member)) for member in self.members)]
        return pa.concat_tables(tables).unify_dictionaries()

    def span_tables(self) -> Iterator[Any]:
        """Yield them as one table."""
        yield self.spans()

    def errors(self) -> list[ErrorLine]:
        """Return those of all members."""
        return [line for member in self.members for line in member.errors()]

    @property
    def problems(self) -> list[str]:
        """Members that are missing, and what is missing in members."""
        return [*self.missing] + [
            f"{member.path.name}: {problem}" for member in self.members for problem in member.problems
        ]

    def shift_ns(self, member: Run) -> int:
        """Return what brings times on a member's clock onto that of the whole run, ns."""
        mine, info = self.info, member.info
        unix = round((info.started_unix_seconds - mine.started_unix_seconds) * 1e9)
        return mine.started_monotonic_ns + unix - info.started_monotonic_ns


def read_whole(path: str | Path) -> Run:
    """Return the run in a folder: `WholeRun` where it has members, else what `read_run` returns.

    Raises:
        RunFolderError: If it holds no run, or none of its members can be read.
    """
    folder = Path(path)
    members: list[Run] = []
    problems = [
        f"{name} is a link that leads out of {folder}, and is left out; copy it there" for name in find_foreign(folder)
    ]
    for member in find_members(folder):
        try:
            members.append(read_run(member))
        except RunFolderError as error:
            problems.append(f"{member.name} is left out: {error}")
    if members:
        return WholeRun(folder, members, problems)
    if problems and not (folder / RUN_JSON).exists():
        raise RunFolderError(f"{folder}: no member of the run can be read; {problems[0]}")
    return read_run(folder)


def _find_mixed(members: Sequence[Run]) -> list[str]:
    """Return why members are not the whole of one run: portions that are not here, or members of another run."""
    names = [member.path.name for member in members]
    divisions = count_portions(names)
    found = []
    if len(divisions) > 1 or (divisions and sum(divisions.values()) < len(names)):
        kinds = [f"portions of {of}" for of in sorted(divisions)]
        kinds += ["workers"] if sum(divisions.values()) < len(names) else []
        found.append(
            f"{' and '.join(kinds)} are in one folder: they are of several runs, and items may be in several of them"
        )
    for of, count in divisions.items():
        if count < of and len(divisions) == 1:
            found.append(f"{count:,} of {pluralize(of, 'portion')} {'has' if count == 1 else 'have'} a folder here")
    for what, values in (
        ("pipelines", {member.info.pipeline for member in members}),
        ("versions of headrace", {member.info.headrace_version for member in members}),
    ):
        if len(values) > 1:
            found.append(f"the members are of several {what}: {', '.join(sorted(values))}")
    return found


def _move(member: Run, shift: int) -> Any:
    """Return a member's spans with their times on the clock of the whole run."""
    table = member.spans()
    if not len(table):
        return table
    hosts = table.column("host").unify_dictionaries().combine_chunks()
    offsets = [member.info.clock_offsets_ns.get(str(host), 0) for host in hosts.dictionary.to_pylist()]
    more = shift + np.array(offsets, np.int64)[np.asarray(hosts.indices)]
    for name in _TIMES:
        place, column = table.schema.get_field_index(name), np.asarray(table.column(name))
        table = table.set_column(place, SPAN_SCHEMA.field(name), pa.array(column + more, pa.int64()))
    return table


def _put_together(infos: Sequence[RunInfo]) -> RunInfo:
    """Return what all members say together; what only one process can have stays empty."""
    first = min(infos, key=lambda info: info.started_unix_seconds)
    statuses = {info.status for info in infos}
    hosts = sorted({host for info in infos for host in (info.host, *info.clock_offsets_ns)})
    ends = [info.ended_unix_seconds for info in infos]
    ended = None if None in ends else max(end for end in ends if end is not None)
    return msgspec.structs.replace(
        first,
        status=next((status for status in _STATUSES if status in statuses), "finished"),
        host=", ".join(sorted({info.host for info in infos})),
        ended_unix_seconds=ended,
        ended_monotonic_ns=None
        if ended is None
        else first.started_monotonic_ns + round((ended - first.started_unix_seconds) * 1e9),
        plans={plan_id: plan for info in infos for plan_id, plan in info.plans.items()},
        counters=_add([info.counters for info in infos]),
        clock_offsets_ns=dict.fromkeys(hosts, 0),
        lost_spans=sum(info.lost_spans for info in infos),
        warnings=list(dict.fromkeys(warning for info in infos for warning in info.warnings)),
        data_fingerprint=None,
        receiving=None,
        tending=None,
        summary=None,
    )


def _add(counters: Sequence[Counters]) -> Counters:
    names = [one.name for one in dataclasses.fields(Counters) if one.name != "notes"]
    notes = {note for each in counters for note in each.notes}
    return Counters(
        **{name: sum(getattr(each, name) for each in counters) for name in names},
        notes={note: sum(each.notes.get(note, 0) for each in counters) for note in sorted(notes)},
    )
