"""All that one run folder holds, brought together: what is exact, what was sampled, and what is missing with its reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from headrace.base.documents import decode_document
from headrace.diagnose.experimented import in_words
from headrace.diagnose.gauges import Gauges, StateSamples
from headrace.diagnose.jobs import Jobs, find_jobs
from headrace.diagnose.routes import find_routes
from headrace.diagnose.span_columns import SpanColumns, load_spans
from headrace.runs.contained_files import own_file
from headrace.runs.file_names import HOT_SPOTS_FOLDER
from headrace.runs.formats import experiment, isolation, layers, profiling
from headrace.runs.formats.experiment import ExperimentDocument
from headrace.runs.formats.isolation import IsolationDocument
from headrace.runs.formats.layers import LayersDocument
from headrace.runs.formats.profiling import ProfilingInfo
from headrace.runs.reader import Run
from headrace.runs.run_folder import RunInfo, StageInfo

#: What follows the stage in the names of its files, the most telling first.
_HOT_SPOT_FILES = (".speedscope.json", ".folded", ".pstats", ".json")

#: Share of the exact passages that must have spans for the spans to count as all there are: rounding and the moment of
#: the run's end are not holes.
_COMPLETE = 0.999

#: Work whose workers share themselves out among those they call, and how many times as many there may be then.
_WAIT_ON_OTHERS, _MOST_ADDED = ("download", "deliver"), 2

_Document = TypeVar("_Document")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFacts:
    """What is known of a stage before its spans are looked at."""

    name: str
    kind: str
    """io, cpu, device; `unknown` in run folders of schema version 1."""
    role: str
    task: str
    """The task whose model it calls; empty where it has none of its own."""
    route: str
    """The route of jobs that it lies on; empty where all jobs go through it. See `routes`."""
    executor: str
    station: str
    workers: int | None
    most_workers: int | None
    """The same with those that may have been added in the places of workers that waited for a slow call."""
    queue_capacity: int | None
    has_queue: bool
    """It is the first stage of a station with a queue."""
    items: int
    """Passages, exact where `summary` is known, else as many as the spans stand for."""
    failed: int
    summary: dict[str, Any] | None
    """Its row in `run.json`'s summary; None if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One run, ready to be analysed."""

    run: Run
    info: RunInfo
    spans: SpanColumns
    jobs: Jobs
    gauges: Gauges
    states: StateSamples | None
    profiling: ProfilingInfo | None
    layers: LayersDocument | None
    isolation: IsolationDocument | None
    experiment: ExperimentDocument | None
    stages: tuple[StageFacts, ...]
    """In the order an item meets them."""
    is_complete: bool
    """Every passage has its span: nothing was sampled, left out or lost."""
    is_sampled: bool
    """Only some jobs were recorded during some of the run."""
    elapsed_seconds: float
    """From the first arrival to the last outcome."""
    problems: tuple[str, ...] = field(default=())

    @property
    def summary(self) -> dict[str, Any]:
        """The exact counts and sums of `run.json`; empty if the run did not live to write them."""
        return self.info.summary or {}

    @property
    def largest_batch(self) -> int:
        """Jobs that may come to an end together; 1 without batches. Of a batch of children it is their parents that count."""
        spans = self.spans
        largest = int(spans.batch_size.max(initial=1))
        batched = np.flatnonzero((spans.batch_id >= 0) & spans.is_child) if largest > 1 else np.zeros(0, np.int64)
        if not len(batched):
            return largest
        whole = np.unique(np.stack([spans.process[batched], spans.batch_id[batched], spans.root[batched]]), axis=1)
        jobs = int(np.unique(whole[:2], axis=1, return_counts=True)[1].max())
        others = spans.batch_size[(spans.batch_id >= 0) & ~spans.is_child]
        return max(jobs, int(others.max(initial=1)))

    @property
    def why_no_profile(self) -> str:
        """Why there is no `profiling.json`."""
        if self.gauges or self.states is not None:
            return "the run did not live to write it; let it end, or stop it with Ctrl-C"
        return "the run was not profiled; use headrace profile"

    def stage_rows(self, stage: str) -> slice:
        """Return the rows of one stage in `spans`."""
        return self.spans.of(stage)


def collect(run: Run) -> Evidence:
    """Return all that a run folder holds; what is not there or cannot be read is empty and named in `problems`."""
    info = run.info
    problems = list(run.problems)
    profile = _read_json(run.path, profiling.FILE, ProfilingInfo, problems)
    inside = _read_json(run.path, layers.FILE, LayersDocument, problems)
    alone = _read_json(run.path, isolation.FILE, IsolationDocument, problems)
    tried = _read_json(run.path, experiment.FILE, ExperimentDocument, problems)
    spans = load_spans(run.spans(), [stage.name for stage in info.stages], info.clock_offsets_ns)
    facts = _stage_facts(info, spans)
    deliver = next((stage.name for stage in reversed(facts) if stage.role == "deliver"), None)
    origin = spans.origin_ns if len(spans) else info.started_monotonic_ns
    is_sampled = bool(len(spans)) and float(spans.weight.max()) > 1
    return Evidence(
        run=run,
        info=info,
        spans=spans,
        jobs=find_jobs(spans, deliver),
        gauges=Gauges(run.resources(), origin),
        states=StateSamples.load(run.states(), origin),
        profiling=profile,
        layers=inside,
        isolation=alone,
        experiment=tried and msgspec.structs.replace(tried, conclusion=in_words(tried)),
        stages=facts,
        is_complete=not is_sampled and _has_no_holes(spans, facts, profile),
        is_sampled=is_sampled,
        elapsed_seconds=_measure_elapsed_seconds(info, spans, profile),
        problems=tuple(problems),
    )


def hot_spots(folder: Path) -> dict[str, str]:
    """Return {stage: file in the run folder} of the sampling profiles of stages; of several, the one that says most."""
    names = sorted(file.name for file in (folder / HOT_SPOTS_FOLDER).glob("*") if file.is_file())
    found: dict[str, str] = {}
    for name in names:  # each has the first suffix that fits: STAGE.speedscope.json is no STAGE.json
        suffix = next((suffix for suffix in _HOT_SPOT_FILES if name.endswith(suffix)), None)
        stage = name.removesuffix(suffix or "")
        if suffix and (stage not in found or _HOT_SPOT_FILES.index(suffix) < _rank(found[stage])):
            found[stage] = f"{HOT_SPOTS_FOLDER}/{name}"
    return found


def _rank(name: str) -> int:
    return next(rank for rank, suffix in enumerate(_HOT_SPOT_FILES) if name.endswith(suffix))


def _read_json(folder: Path, name: str, kind: type[_Document], problems: list[str]) -> _Document | None:
    file = folder / name
    try:
        return decode_document(own_file(folder, file).read_bytes(), kind)
    except FileNotFoundError:
        return None
    except OSError as error:
        problems.append(f"{file.name} cannot be read and is left out: {error.strerror}")
    except msgspec.DecodeError as error:
        problems.append(f"{file.name} is damaged and is left out: {error}")
    return None


def _stage_facts(info: RunInfo, spans: SpanColumns) -> tuple[StageFacts, ...]:
    """Return the stages of `run.json`; where it names none (schema version 1), those of the summary and the spans."""
    rows = {str(row["name"]): row for row in (info.summary or {}).get("stages", [])}
    known = {stage.name: stage for stage in info.stages}
    names = list(known)
    if not names:
        names = sorted({*rows, *spans.stage_names}, key=lambda name: _first_start(spans, name))
    routes = find_routes({name: known[name].task if name in known else "" for name in names}, spans)
    most = {name: _most_workers(known[name], known.get(known[name].station), spans) for name in known}
    return tuple(
        _one_stage(
            name, known.get(name), rows.get(name), spans, routes[name], most.get(name), is_last=name == names[-1]
        )
        for name in names
    )


def _most_workers(stage: StageInfo, head: StageInfo | None, spans: SpanColumns) -> int:
    """Return how many workers a stage had at most; of a run that did not note it no more than could have been added."""
    if stage.most_workers is not None:
        return stage.most_workers
    waits_on_others = head is not None and head.executor in ("thread", "events") and head.work in _WAIT_ON_OTHERS
    seen = len(np.unique(spans.worker[spans.of(stage.name)])) if waits_on_others else 0
    return max(stage.workers, min(seen, _MOST_ADDED * stage.workers))


def _one_stage(
    name: str,
    stage: StageInfo | None,
    row: dict[str, Any] | None,
    spans: SpanColumns,
    route: str,
    most_workers: int | None,
    *,
    is_last: bool,
) -> StageFacts:
    own = spans.of(name)
    weights = spans.weight[own]
    is_batched = bool((spans.batch_id[own] >= 0).any())
    return StageFacts(
        name=name,
        kind=stage.kind if stage else "device" if is_batched else "unknown",
        role=stage.role if stage else "deliver" if is_last else "map",
        task=stage.task if stage else "",
        route=route,
        executor=stage.executor if stage else "unknown",
        station=stage.station if stage else name,
        workers=stage.workers if stage else (row or {}).get("workers"),
        most_workers=most_workers if stage else (row or {}).get("workers"),
        queue_capacity=stage.queue_capacity if stage else None,
        has_queue=stage is None or (stage.station == name and stage.queue_capacity is not None),
        items=int(row["items"]) if row else round(float(weights.sum())),
        failed=int(row["failed"]) if row else round(float(weights[~spans.is_ok[own]].sum())),
        summary=row,
    )


def _first_start(spans: SpanColumns, stage: str) -> int:
    started = spans.started[spans.of(stage)]
    return int(started.min()) if len(started) else 0


def _has_no_holes(spans: SpanColumns, stages: tuple[StageFacts, ...], profile: ProfilingInfo | None) -> bool:
    if all(stage.summary is not None or not stage.items for stage in stages) and stages:
        return len(spans) >= _COMPLETE * sum(stage.items for stage in stages)
    return profile is None or all(block.on for block in profile.blocks)


def _measure_elapsed_seconds(info: RunInfo, spans: SpanColumns, profile: ProfilingInfo | None) -> float:
    if info.summary is not None:
        return float(info.summary.get("elapsed_seconds") or 0.0)
    if len(spans):
        return int(spans.put.max()) / 1e9
    return (profile.elapsed_seconds if profile else None) or 0.0
