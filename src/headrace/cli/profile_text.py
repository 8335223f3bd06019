"""A profile for a terminal of 80 columns: what the report shows, in the order in which one asks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headrace.base.documents import decode_document
from headrace.base.formatting import align_columns, pluralize, wrap_lines
from headrace.base.units import format_duration, format_size
from headrace.cli.streams_text import streams_text
from headrace.runs.formats.profile import EMULATED

if TYPE_CHECKING:
    from headrace.runs.formats.profile import BlockedSplit, ProfileDocument, StageAccount
    from headrace.runs.run_folder import RunInfo

_TIMES = ("stage", "wait", "service", "= cpu", "+ run delay", "+ blocked", "on", "next full")
_WORK = ("stage", "workers", "items", "failed", "rate", "busy", "p50", "p90", "p99")
#: A cause is named when it is at least this share of the blocked time.
_NAMED_SHARE = 0.15
_CAUSES = {
    "gil": "GIL",
    **{name: name for name in ("lock", "network", "disk", "sleep", "process", "output", "other")},
}

_PAGE_CACHE = {
    "warm": "warm (the input files were in memory when the run began)",
    "mixed": "mixed (some of the input files were in memory when the run began)",
    "cold": "cold (the input files were not in memory; the disk's own or a host's may still have held them)",
}


def as_text(document: ProfileDocument) -> str:
    """Return the document as plain text."""
    parts = [wrap_lines(_head(document))]
    if document.stages:
        parts += [_times(document.stages, document.unit), _work(document.stages)]
    if document.streams:
        parts.append(streams_text(document.streams))
    below = (
        document.fused,
        _caches(document),
        _cpu(document),
        _runtime(document),
        _overhead(document),
        _checks(document),
        _missing(document),
    )
    parts += [wrap_lines(part) for part in below if part]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def failures_text(info: RunInfo) -> str:
    """Return what failed in a run, as its folder's summary says; empty if nothing did."""
    from headrace.pipeline.reasons import show_reasons

    summary = info.summary or {}
    lines = show_reasons(summary.get("reasons", []))
    if not lines:
        return ""
    in_vain = (
        [] if summary["counters"]["delivered"] else ["Nothing was delivered: the figures below are of work in vain."]
    )
    return "\n".join([*in_vain, "what failed:", *lines]) + "\n"


def hot_spots_text(record: Path, *, limit: int = 12) -> str:
    """Return the most costly Python lines of one stage.

    Args:
        record: The stage's speedscope file; the table is in the JSON file beside it.
        limit: Lines of the table.
    """
    from headrace.profiler.hot_spots import HotSpots
    from headrace.runs.contained_files import own_file

    stem = record.name.removesuffix(".speedscope.json")
    try:
        file = own_file(record.parent.parent, record.with_name(f"{stem}.json"))
        found = decode_document(file.read_bytes(), HotSpots)
    except (OSError, msgspec.DecodeError) as error:
        return f"hot spots of {stem} cannot be read: {error}\n"
    rows = [
        (f"{spot.self_share:4.0%}  {spot.total_share:5.0%}", spot.function, f"{spot.file}:{spot.line}")
        for spot in found.top[:limit]
    ]
    measured = (
        pluralize(found.num_calls or 0, "call") if found.num_samples is None else pluralize(found.num_samples, "sample")
    )
    lines = [
        f"Python lines of {found.stage} ({found.method}, {measured}):",
        *align_columns([("self  total", "function", "where"), *rows], num_left=3),
        *wrap_lines(f"note: {note}" for note in found.notes),
        f"flame graph: open {record} in https://www.speedscope.app",
    ]
    return "\n".join(lines) + "\n"


def _plans(document: ProfileDocument) -> str:
    if not document.plan_shares:
        return document.plan_id[:12]
    return " and ".join(f"{plan_id[:12]} ({share:.0%})" for plan_id, share in document.plan_shares.items())


def _head(document: ProfileDocument) -> list[str]:
    latency = ", ".join(
        f"p{one.percent:g} {format_duration(one.value)}" + (f" (needs {one.num_needed})" if one.value is None else "")
        for one in document.latency.percentiles
    )
    lines = [
        f"{document.pipeline or document.run}  plan {_plans(document)}  {document.status}",
        f"throughput {_rate(document.throughput)}   latency {latency or '-'}   in {format_duration(document.elapsed_seconds)}",
        _jobs(document),
    ]
    if document.is_emulated:
        lines.append(EMULATED)
    grade = document.environment.grade
    machine = f"machine: grade {grade}" if grade else "machine: grade not measured"
    if document.environment.reasons:
        machine += f" ({'; '.join(document.environment.reasons)})"
    lines.append(document.window.says)
    lines.append(machine)
    if document.environment.page_cache:
        lines.append(f"page cache: {_PAGE_CACHE[document.environment.page_cache]}")
    lines.append(f"{document.trust}: {document.checks_in_words}")
    lines += [f"  - {doubt}" for doubt in document.doubts]
    return [line for line in lines if line]


def _jobs(document: ProfileDocument) -> str:
    """Return what became of the jobs."""
    counts = {name: number for name, number in document.counters.items() if isinstance(number, int)}
    always = ("received", "delivered")
    shown = [f"{number:,} {name.replace('_', ' ')}" for name, number in counts.items() if number or name in always]
    return f"{'frames' if document.unit == 'frame' else 'jobs'}: {', '.join(shown)}" if shown else ""


def _times(stages: Sequence[StageAccount], unit: str) -> list[str]:
    rows = [
        (
            stage.name,
            format_duration(stage.queue_wait.mean),
            format_duration(stage.service.mean),
            format_duration(stage.cpu),
            format_duration(stage.run_delay),
            format_duration(stage.blocked),
            _causes(stage.blocked_split),
            format_duration(stage.blocked_put),
        )
        for stage in stages
    ]
    return [
        f"Where {'an' if unit == 'item' else 'a'} {unit}'s time goes (means; a batch's service counts for each {unit}):",
        *align_columns([_TIMES, *rows]),
    ]


def _work(stages: Sequence[StageAccount]) -> list[str]:
    rows = [
        (
            stage.name,
            "-" if stage.workers is None else str(stage.workers),
            f"{stage.items:,}",
            f"{stage.failed:,}",
            _rate(stage.throughput),
            _share(stage.utilization),
            *(format_duration(stage.service.percentile(percent)) for percent in (50, 90, 99)),
        )
        for stage in stages
    ]
    return ["What the stages did (percentiles of service):", *align_columns([_WORK, *rows])]


def _causes(split: BlockedSplit | None) -> str:
    """Return what the blocked time was spent on, the largest share first."""
    if split is None:
        return "-"
    shares = msgspec.structs.asdict(split)
    total = sum(value for name, value in shares.items() if name != "num_samples")
    if total <= 0:
        return "-"
    named = sorted(((shares[name] / total, text) for name, text in _CAUSES.items()), reverse=True)
    return ", ".join(f"{text} {share:.0%}" for share, text in named if share >= _NAMED_SHARE) or "unknown"


def _caches(document: ProfileDocument) -> list[str]:
    """Return what caches did, or, without one, which results would be worth keeping."""
    lines = [f"cache of {stage.name}: {stage.cache.says}" for stage in document.stages if stage.cache]
    if lines or not document.keepable:
        return lines
    rows = [
        (
            one.stage,
            format_duration(one.saved_seconds),
            format_size(one.item_bytes),
            format_size(one.total_bytes),
            format_duration(one.seconds_per_gigabyte),
        )
        for one in document.keepable
    ]
    return [
        "If the same items come again, keeping results saves (headrace whatif RUN --set",
        "STAGE.cache=memory:2GB):",
        *align_columns([("stage", "an item", "takes", "all items", "a GB"), *rows]),
    ]


def _cpu(document: ProfileDocument) -> list[str]:
    if document.cpu is None:
        return []
    cpu = document.cpu
    lines = sorted(cpu.lines, key=lambda line: -line.seconds)
    used = cpu.total_seconds / cpu.elapsed_seconds if cpu.elapsed_seconds else 0.0
    of = f"{used:.2f} of {cpu.num_cores:g} cores, {cpu.explained_share:.0%} explained"
    return [
        f"CPU of all processes: {cpu.total_seconds:.1f} s, {of}:",
        "  " + ", ".join(f"{line.name} {line.share:.0%}" for line in lines if abs(line.share) >= 0.005),
    ]


def _runtime(document: ProfileDocument) -> list[str]:
    return [f"runtime: {document.runtime.says}"] if document.runtime is not None else []


def _overhead(document: ProfileDocument) -> list[str]:
    return [f"profiling: {document.overhead.says}"] if document.overhead is not None else []


def _checks(document: ProfileDocument) -> list[str]:
    not_made = [check.name for check in document.checks if check.status == "not_measured"]
    lines = [
        f"  {check.status}: {check.name}: {check.says}"
        for check in document.checks
        if check.status in ("failed", "warning")
    ]
    if not_made:
        lines.append(f"  not measured: {', '.join(not_made)}")
    return ["checks:", *lines] if lines else []


def _missing(document: ProfileDocument) -> list[str]:
    lines = [f"  {what}: {why}" for what, why in document.not_measured.items()]
    notes = [f"warning: {text}" for text in (*document.warnings, *document.problems)]
    return (["not measured:", *lines] if lines else []) + notes


def _rate(per_second: float | None) -> str:
    return "-" if per_second is None else f"{per_second:,.0f}/s" if per_second >= 1000 else f"{per_second:.4g}/s"


def _share(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.0%}"
