"""Reads traces of one training into a run folder, one file after the other, so that `headrace diagnose` and others can read it.

How this works: each file is one stretch of one process. Its rank is what the file says (`distributedInfo`), or its name, or the
order of the files. Several files of a rank are several stretches of it. Times are those of the file's clock; clocks of several
hosts are aligned later, by the exchanges, as for recorded runs. Of the exchanges of a step one is kept for each rank, the same
on all: the one that most was waited in while nothing was computed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headrace.base.clock import SystemClock
from headrace.base.documents import encode_document
from headrace.base.errors import RunFolderError
from headrace.base.formatting import encodable, pluralize
from headrace.base.records import Span
from headrace.runs.formats.training import LoaderInfo, TrainingProcess, process_file
from headrace.runs.formats.training_trace import TRACE, TraceRecord
from headrace.runs.hardware import Hardware
from headrace.runs.run_folder import RunFolder, replace_file
from headrace.runs.span_files import SpanWriter
from headrace.runs.training_phases import DEVICE, Phase, Stretch
from headrace.train.recorder import StretchSpans
from headrace.train.trace.calls import find_syncs, top_kernels, top_operators
from headrace.train.trace.columns import Columns, Sort, unix_zero_ns
from headrace.train.trace.cutting import CannotCut, Cut, cut_trace
from headrace.train.trace.device import Collective, DeviceUse, describe_devices
from headrace.train.trace.events import TraceFile
from headrace.train.trace.merging import merge_records

_SUFFIXES = (".json", ".json.gz")
_RANK = re.compile(r"rank[-_. ]?(\d{1,6})", re.IGNORECASE)
#: `HOST_PID.TIME.pt.trace.json`, as `tensorboard_trace_handler` names files.
_HOST = re.compile(r"(.+)_\d+\.\d+\.pt\.trace\.json(\.gz)?$")
_NEVER = {
    "CPU time, and waiting for a core": "a trace has wall times only",
    "what loading costs in the workers": "torch.profiler sees the process that trains; `headrace train SCRIPT.py` "
    "measures workers",
    "samples": "a trace does not say how many are in a batch, so rates are steps per second",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OneTrace:
    """What one file holds."""

    file: str
    rank: int | None
    """None: the file does not say."""
    world_size: int
    host: str
    """Empty: not known."""
    process: int
    cut: Cut
    use: DeviceUse
    record: TraceRecord
    device: str
    zero: int
    """What to add to its times for ns since the epoch."""
    torch_version: str
    has_subgroups: bool
    """It exchanges within groups that are not all ranks."""


def read_traces(paths: Sequence[Path], output: Path, *, force: bool = False) -> Path:
    """Make a run folder of traces; return it.

    Args:
        paths: Files, or folders of files.
        output: The folder to write.
        force: Replace an earlier run there.

    Raises:
        RunFolderError: If a file is no trace, none of them has a step, two are of one rank at one time, or the folder cannot
            be written.
    """
    traces, refused = [], []
    for file in find_files(paths):
        try:
            traces.append(read_trace(file))
        except CannotCut as error:
            refused.append(f"{file}: {error}")
    if not any(one.cut.steps for one in traces):
        why = "; ".join(refused) or "no backward pass and no optimizer lies within what prof.step() marked"
        why = "; ".join([why, *(text for one in traces for text in one.record.problems)])
        raise RunFolderError(
            f"no training step is in {pluralize(len(traces) + len(refused), 'trace')}: {why}. Record the loop itself, with "
            "prof.step() at its end, and CPU activities on"
        )
    ranked = _rank(traces)
    _refuse_overlaps(ranked)
    folder = RunFolder.create(
        output, pipeline=traces[0].file, options=[str(path) for path in paths], unit="step", force=force
    )
    try:
        _write(folder, ranked, refused)
    except BaseException:
        folder.discard()
        raise
    return folder.path


def find_files(paths: Iterable[Path]) -> list[Path]:
    """Return the files that paths name; of a folder those whose names end as traces' do.

    Raises:
        RunFolderError: If one does not exist, or a folder has none.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(one for one in path.iterdir() if one.name.endswith(_SUFFIXES) and one.is_file())
            if not inside:
                raise RunFolderError(f"folder {path} has no trace; expected files that end in {' or '.join(_SUFFIXES)}")
            found += inside
        elif not path.exists():
            raise RunFolderError(f"trace {path} does not exist; the working folder is {Path.cwd()}")
        else:
            found.append(path)
    return found


def read_trace(path: Path) -> OneTrace:
    """Return what one file holds.

    Raises:
        CannotCut: If it has nothing that steps could be made of.
        RunFolderError: If it cannot be read, or is no trace.
    """
    columns = Columns(TraceFile(path))
    try:
        cut = cut_trace(columns)
    except CannotCut as error:
        raise CannotCut("; ".join([str(error), *columns.problems])) from error
    use = describe_devices(columns, cut)
    about, group = columns.about, _table(columns.about.get("distributedInfo"))
    named = _RANK.search(path.name)
    rank = group.get("rank") if type(group.get("rank")) is int else int(named[1]) if named is not None else None
    record = TraceRecord(
        files=(path.name,),
        num_events=len(columns),
        num_bytes=columns.num_bytes,
        steps=len(cut.steps),
        devices=use.times,
        kernels=top_kernels(columns, cut),
        operators=top_operators(columns, cut),
        syncs=find_syncs(columns, cut, use),
        has_stacks=bool((columns.sort == Sort.PYTHON).any() or columns.stacks),
        problems=tuple(columns.problems),
    )
    return OneTrace(
        file=path.name,
        rank=rank,
        world_size=_whole(group.get("world_size"), 1),
        host=_host(about, path),
        process=_whole(cut.process, 0),
        cut=cut,
        use=use,
        record=record,
        device=_device(about, use),
        zero=unix_zero_ns(about),
        torch_version="",
        has_subgroups=_has_subgroups(group),
    )


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(value: Any, otherwise: int) -> int:
    """Return a number that fits a column of spans."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return otherwise
    return number if 0 <= number < 1 << 31 else otherwise


def _host(about: dict[str, Any], path: Path) -> str:
    named = _HOST.match(path.name)
    host = about.get("host_name")
    found = host if isinstance(host, str) and host else named[1] if named is not None else ""
    return encodable(re.sub(r"[^\w.-]", "-", found))[:60]


def _device(about: dict[str, Any], use: DeviceUse) -> str:
    if not use.times:
        return "cpu"
    properties = about.get("deviceProperties")
    names = {_table(one).get("name") for one in properties} if isinstance(properties, list) else set()
    known = sorted(name for name in names if isinstance(name, str))
    return f"cuda: {known[0][:60]}" if known else "cuda"


def _has_subgroups(group: dict[str, Any]) -> bool:
    world, groups = group.get("world_size"), group.get("pg_config")
    if not isinstance(groups, list) or len(groups) < 2:
        return False
    return any(_table(one).get("pg_size") not in (None, world) for one in groups)


def _rank(traces: list[OneTrace]) -> list[tuple[int, OneTrace]]:
    """Return each trace with its rank: as the file says, else one for each process, in the order of the files."""
    taken = {one.rank for one in traces if one.rank is not None}
    given: dict[tuple[str, int], int] = {}
    ranked = []
    for one in traces:
        rank = one.rank
        if rank is None:
            who = one.host, one.process
            if who not in given:
                given[who] = next(number for number in range(len(traces) + len(taken)) if number not in taken)
                taken.add(given[who])
            rank = given[who]
        ranked.append((_whole(rank, 0), one))
    return sorted(ranked, key=lambda pair: (pair[0], pair[1].zero + pair[1].cut.stretches[0].start))


def _refuse_overlaps(ranked: list[tuple[int, OneTrace]]) -> None:
    """Refuse files of one rank that are of the same time.

    Raises:
        RunFolderError: If there are two: their steps would be counted as one rank's, one within the other.
    """
    last: dict[int, tuple[int, str]] = {}
    for rank, one in ranked:
        ended, file = last.get(rank, (0, ""))
        if one.zero + one.cut.stretches[0].start < ended:
            raise RunFolderError(
                f"{file} and {one.file} are both of rank {rank}, and overlap in time: one file was given twice, or ranks of "
                "several machines have the same number; give each file once, each rank with a number of its own "
                "(`distributedInfo` in the file, or else `rank8` in its name)"
            )
        last[rank] = one.zero + one.cut.stretches[-1].end, one.file


# The run folder.


def _write(folder: RunFolder, ranked: list[tuple[int, OneTrace]], refused: list[str]) -> None:
    starts = [one.zero + one.cut.stretches[0].start for _, one in ranked]
    ends = [one.zero + one.cut.stretches[-1].end for _, one in ranked]
    writer = SpanWriter(folder.spans)
    processes: dict[int, list[OneTrace]] = defaultdict(list)
    for rank, one in ranked:
        processes[rank].append(one)
        for spans in _spans(rank, one):
            writer.stage_finished(spans)
        writer.flush()
    exchanges = [] if any(one.has_subgroups for _, one in ranked) else _find_exchanges(ranked)
    writer.stage_finished([_exchange_span(rank, one, each) for rank, one, each in exchanges])
    writer.close()
    for rank, several in processes.items():
        file = process_file(folder.path, _host_of(rank, several[0]), several[0].process)
        file.parent.mkdir(exist_ok=True)
        about = _describe(rank, several, len(processes))
        replace_file(file, encode_document(about, indent=True) + b"\n")
    first = min(starts)
    problems = [text for _, one in ranked for text in one.record.problems]
    folder.finish(
        "finished",
        host=_host_of(*ranked[0]),
        clock=_At(max(ends)),
        started_unix_seconds=first / 1e9,
        started_monotonic_ns=first,
        clock_offsets_ns={_host_of(rank, one): 0 for rank, one in ranked},
        versions={},
        hardware=Hardware(),
        handoff=None,
        lost_spans=writer.lost_spans,
        window=f"steps in {pluralize(len(ranked), 'trace')} of torch.profiler",
        warnings=[*problems, *(f"left out: {text}" for text in refused)],
    )


class _At(SystemClock):
    """A clock that stands at a time, ns since the epoch: when what a trace holds ended."""

    def __init__(self, nanoseconds: int) -> None:
        self._nanoseconds = nanoseconds

    def now_ns(self) -> int:
        """Return that time."""
        return self._nanoseconds

    def unix_seconds(self) -> float:
        """Return that time."""
        return self._nanoseconds / 1e9


def _host_of(rank: int, trace: OneTrace) -> str:
    """Return the host of a trace; who does not say is not taken for the host of another."""
    return trace.host or f"rank-{rank}"


def _spans(rank: int, trace: OneTrace) -> Iterable[StretchSpans]:
    of = _host_of(rank, trace), trace.process
    for one in trace.cut.stretches:
        marks = [(phase, microbatch, (trace.zero + at, None, None)) for phase, microbatch, at in one.marks]
        yield StretchSpans(one.stretch, one.number, marks, rank=rank, kind=one.kind, of=of)


def _find_exchanges(ranked: list[tuple[int, OneTrace]]) -> list[tuple[int, OneTrace, Collective]]:
    """Return one exchange of each step and rank: of those that all ranks have, the one that is exposed most."""
    if not any(one.use.collectives for _, one in ranked):
        return []
    of_step: dict[int, list[tuple[int, OneTrace, list[Collective]]]] = defaultdict(list)
    for rank, one in ranked:
        grouped: dict[int, list[Collective]] = defaultdict(list)
        for each in sorted(one.use.collectives, key=lambda each: each.start):
            grouped[each.step].append(each)
        for step, found in grouped.items():
            of_step[step].append((rank, one, found))
    exposed: dict[tuple[int, int], int] = defaultdict(int)
    for rows in of_step.values():
        if len({len(found) for _, _, found in rows}) == 1:
            for _, _, found in rows:
                for place, each in enumerate(found):
                    exposed[len(found), place] += each.exposed
    chosen: dict[int, int] = {}
    for (count, place), value in exposed.items():
        if count not in chosen or value > exposed[count, chosen[count]]:
            chosen[count] = place
    return [
        (rank, one, found[chosen[len(found)]])
        for rows in of_step.values()
        if len({len(found) for _, _, found in rows}) == 1
        for rank, one, found in rows
    ]


def _exchange_span(rank: int, trace: OneTrace, exchange: Collective) -> Span:
    whole = StretchSpans(
        Stretch.STEP,
        exchange.step,
        [(Phase.EXCHANGE, 0, (trace.zero + at, None, None)) for at in (exchange.start, exchange.end)],
        rank=rank,
        of=(_host_of(rank, trace), trace.process),
    )
    return msgspec.structs.replace(list(whole)[1], unit=DEVICE, thread="device")


def _describe(rank: int, traces: list[OneTrace], num_ranks: int) -> TrainingProcess:
    first = traces[0]
    record = merge_records([one.record for one in traces])
    not_measured = dict(_NEVER)
    for one in traces:
        not_measured |= one.cut.not_measured
    if not record.has_stacks:
        not_measured["the program's own lines"] = "the trace has no stacks (with_stack=True records them)"
    if any(one.has_subgroups for one in traces):
        not_measured["exchange"] = (
            "the ranks exchange within several process groups, which a trace of each does not tell apart"
        )
    return TrainingProcess(
        host=_host_of(rank, first),
        process=first.process,
        rank=rank,
        world_size=max(num_ranks, 1),
        script=first.file,
        framework="torch.profiler",
        torch_version=first.torch_version,
        threads=0,
        device=first.device,
        modules=(),
        num_parameters=0,
        parameter_bytes=0,
        optimizers=first.cut.optimizers,
        loaders=_loaders(traces),
        steps=sum(len(one.cut.steps) for one in traces),
        not_measured=not_measured | _ranks_missing(num_ranks, traces),
        details={TRACE: msgspec.to_builtins(record)},
    )


def _ranks_missing(num_ranks: int, traces: list[OneTrace]) -> dict[str, str]:
    world = max(one.world_size for one in traces)
    if world <= num_ranks:
        return {}
    return {
        "who waits for whom": f"{pluralize(num_ranks, 'rank')} of {world} left a trace here: waiting for others and the "
        "transfer "
        "itself are not told apart; give the traces of all ranks"
    }


def _loaders(traces: list[OneTrace]) -> tuple[LoaderInfo, ...]:
    """Return the loader, where the training thread itself loads; the number of workers is in no trace."""
    if not any(one.cut.has_workers is False for one in traces):
        return ()
    return (
        LoaderInfo(
            kind="torch.utils.data.dataloader.DataLoader", dataset="", num_items=None, workers=0, prefetch_factor=None,
            batch_size=None, in_order=True, persistent_workers=False, pin_memory=False,
        ),
    )  # fmt: skip
