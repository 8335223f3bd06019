"""What one run of the accuracy benchmark gave, and what all of them come to."""

from __future__ import annotations

import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from benchmarks.verdicts_required import REQUIRED, UNDECIDED, in_first_two, is_false_alarm
from headrace.diagnose.analysis import Analysis
from headrace.diagnose.diagnosis import diagnosis_document
from headrace.diagnose.document import profile_document
from headrace.runs.formats.diagnosis import DiagnosisDocument, Finding
from headrace.runs.reader import read_run

#: A fault that costs less than this share is not scored: there is nothing to find.
WORTH_FINDING = 0.10
#: Profiling that costs more than this is to be called untrusted.
HEAVY_PROFILING = 0.05
#: Above this dose a fault is scored; below it belongs to the detection curve.
SCORED_FROM = 2.0

#: Cores that other programs use on average from which on they are a fault of their own; such a run is not scored.
DISTURBING_CORES = 0.25

RunKind = Literal["base", "fault", "fixed", "healthy"]


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """One run, as a line of the index of kept run folders."""

    number: int
    """In the order in which they ran."""
    kind: RunKind
    fault: str
    """Empty for the base."""
    shape: str
    dose: float
    folder: str
    """Its name says nothing."""
    seconds: float
    """How long it took, opening and closing included."""
    foreign_cores: float
    """That programs used meanwhile which the benchmark has not started."""
    settings: tuple[str, ...] = ()
    """Of a healthy run: where its Plan differs from that of the base."""
    device_is_fed: bool = False
    """A healthy run that its device alone holds up."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One run and its diagnosis."""

    kept: Kept
    verdict: str
    """Empty if there is no diagnosis; `problem` says why."""
    stage: str | None = None
    cause: str = ""
    confidence: str = ""
    gain: float | None = None
    says: str = ""
    runner_up: str = ""
    runner_up_stage: str | None = None
    right: bool = False
    right_second: bool = False
    """Right in the first two."""
    throughput: float | None = None
    latency_p50: float | None = None
    overhead: float | None = None
    """CPU time per item with profiling over that without."""
    problem: str = ""
    diagnosis_seconds: float = 0.0

    @property
    def name(self) -> str:
        """`F8@decode_heavy x2`."""
        return " ".join(
            (f"{self.kept.fault or self.kept.kind}@{self.kept.shape} x{self.kept.dose:g}", *self.kept.settings)
        )

    @property
    def is_disturbed(self) -> bool:
        """Whether other programs took so much that there were two things wrong, or one in a healthy run."""
        return self.kept.foreign_cores >= DISTURBING_CORES


class Scored(msgspec.Struct, frozen=True, kw_only=True):
    """A faulty run with its cost."""

    row: Row
    cost: float | None
    """Share of the throughput (or latency, or overhead) that the fault takes; None: not known."""
    counts: bool
    """Enough to be scored, or not known to be less."""


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Everything measured so far."""

    rows: tuple[Row, ...]
    skipped: dict[str, str]
    """{fault: why it was not run here}."""
    interrupted: bool = False
    quick: bool = False


def diagnose(kept: Kept, folder: Path) -> Row:
    """Return the diagnosis of one kept run; never raises for what the diagnosis does."""
    row = Row(kept=kept, verdict="")
    try:
        run = read_run(folder / kept.folder)
        profile = profile_document(run)
        row = msgspec.structs.replace(
            row,
            throughput=profile.throughput,
            latency_p50=profile.latency.percentile(50),
            overhead=profile.overhead.mid if profile.overhead else None,
        )
        began = time.perf_counter()
        document = diagnosis_document(Analysis(run))
        seconds = time.perf_counter() - began
    except Exception as error:  # a diagnosis that fails is a miss with a reason, and the next run is to be diagnosed
        return msgspec.structs.replace(row, problem=f"{type(error).__name__}: {error}")
    return msgspec.structs.replace(
        row,
        diagnosis_seconds=seconds,
        **_first(document.first),
        **_second(document.runner_up),
        **_judge(kept, document),
    )


def _first(finding: Finding) -> dict[str, Any]:
    return {
        "verdict": finding.verdict.value,
        "stage": finding.stage,
        "cause": finding.cause,
        "confidence": finding.confidence,
        "gain": finding.gain,
        "says": finding.says,
    }


def _second(finding: Finding | None) -> dict[str, Any]:
    return {} if finding is None else {"runner_up": finding.verdict.value, "runner_up_stage": finding.stage}


def _judge(kept: Kept, document: DiagnosisDocument) -> dict[str, Any]:
    if kept.kind == "healthy":
        right = not is_false_alarm(document, device_is_fed=kept.device_is_fed)
        return {"right": right, "right_second": right}
    required = REQUIRED.get(kept.fault)
    if required is None or kept.kind != "fault":
        return {}
    return {"right": required.accepts(document.first), "right_second": in_first_two(required, document)}


# --- Costs -----------------------------------------------------------------------------------------------------------


def scored(rows: Sequence[Row]) -> list[Scored]:
    """Return the faulty runs with their costs, in the order in which they ran."""
    bases: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.kept.kind == "base":
            bases[row.kept.shape].append(row)
    fixed = {(row.kept.fault, row.kept.shape, row.kept.dose): row for row in rows if row.kept.kind == "fixed"}
    faulty = [row for row in rows if row.kept.kind == "fault" and row.kept.fault in REQUIRED]
    return [
        _scored(row, bases[row.kept.shape], fixed.get((row.kept.fault, row.kept.shape, row.kept.dose)))
        for row in faulty
    ]


def _scored(row: Row, bases: Sequence[Row], fixed: Row | None) -> Scored:
    enough: float | None = WORTH_FINDING
    match REQUIRED[row.kept.fault].costs:
        case "latency":
            cost = None if fixed is None else _less(fixed.latency_p50, row.latency_p50)
        case "overhead":
            cost, enough = None if row.overhead is None else row.overhead - 1, HEAVY_PROFILING
        case "always":
            cost, enough = _throughput_cost(row, bases), None
        case _:
            cost = _throughput_cost(row, bases)
    # What is not known to be cheap counts: a fault that leaves no rate, or a run that could not be diagnosed, is no excuse.
    counts = enough is None or cost is None or cost >= enough
    return Scored(row=row, cost=cost, counts=counts and not row.is_disturbed)


def _throughput_cost(row: Row, bases: Sequence[Row]) -> float | None:
    """Return the share of the throughput that is gone: against the base before and the one after."""
    before = [base for base in bases if base.kept.number < row.kept.number and base.throughput][-1:]
    after = [base for base in bases if base.kept.number > row.kept.number and base.throughput][:1]
    rates = [base.throughput for base in (*before, *after) if base.throughput]
    return _less(row.throughput, statistics.mean(rates)) if rates else None


def _less(value: float | None, reference: float | None) -> float | None:
    return None if value is None or not reference else 1 - value / reference


# --- Results ---------------------------------------------------------------------------------------------------------


def summarize(score: Score) -> dict[str, Any]:
    """Return the benchmark's object."""
    all_scored = scored(score.rows)
    strong = [one for one in all_scored if one.row.kept.dose >= SCORED_FROM]
    counted = [one for one in strong if one.counts]
    every_healthy = [row for row in score.rows if row.kept.kind == "healthy"]
    healthy = [row for row in every_healthy if not row.is_disturbed]
    return {
        "n": len(counted),
        "top1": _share(one.row.right for one in counted),
        "top2": _share(one.row.right_second for one in counted),
        "healthy_n": len(healthy),
        "false_alarms": sum(not row.right for row in healthy),
        "confusions": {one.row.name: f"said {_said(one.row)}" for one in counted if not one.row.right},
        "healthy_undecided": sum(row.verdict in UNDECIDED for row in healthy),
        "alarms": [f"{row.name}: said {_said(row)}" for row in healthy if not row.right],
        "detection": _detection(all_scored),
        "too_cheap": [one.row.name for one in strong if not one.counts and not one.row.is_disturbed],
        "disturbed": [row.name for row in (*(one.row for one in strong), *every_healthy) if row.is_disturbed],
        "not_run": score.skipped,
        "interrupted": score.interrupted,
        "quick": score.quick,
        "rows": [_row_table(row) for row in score.rows],
        "costs": {one.row.kept.folder: one.cost for one in all_scored},
    }


def _share(values: Iterable[bool]) -> float | None:
    flags = list(values)
    return sum(flags) / len(flags) if flags else None


def _said(row: Row) -> str:
    if not row.verdict:
        return row.problem
    return " ".join(filter(None, (row.verdict, row.stage and f"at {row.stage}", row.cause and f"({row.cause})")))


def _detection(all_scored: Sequence[Scored]) -> dict[str, dict[str, Any]]:
    """Return, for each dose, how often the right verdict came first, of all runs and of those that cost something."""
    doses: Mapping[float, list[Scored]] = defaultdict(list)
    for one in all_scored:
        if REQUIRED[one.row.kept.fault].costs != "always":
            doses[one.row.kept.dose].append(one)
    return {
        f"{dose:g}": {
            "n": len(runs),
            "top1": _share(one.row.right for one in runs),
            "n_costly": sum(one.counts for one in runs),
            "top1_costly": _share(one.row.right for one in runs if one.counts),
            "median_cost": _median(one.cost for one in runs),
        }
        for dose, runs in sorted(doses.items())
    }


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _row_table(row: Row) -> dict[str, Any]:
    table: dict[str, Any] = msgspec.to_builtins(row)
    return table


# --- Text ------------------------------------------------------------------------------------------------------------


def lines_of(rows: Sequence[Row]) -> list[str]:
    """Return one line for each run that was diagnosed, for a terminal."""
    costs = {one.row.kept.folder: one for one in scored(rows)}
    return [line_of(row, costs.get(row.kept.folder)) for row in rows if row.kept.kind != "fixed"]


def line_of(row: Row, one: Scored | None) -> str:
    """Return fault, shape, dose, cost, what is required, what was said, and whether it is right."""
    kept = row.kept
    required = "-" if kept.kind == "base" else str(REQUIRED["F39" if kept.kind == "healthy" else kept.fault])
    cost = "      " if one is None or one.cost is None else f"{one.cost:6.1%}"
    second = f"2nd {row.runner_up}" if row.runner_up else ""
    return (
        f"{kept.fault or kept.kind:7} {kept.shape:17} x{kept.dose:<4g}{cost}  {_mark(row, one):6} {required:34} "
        f"{_said(row)}{_how_sure(row)}  {second}  [{kept.folder}, {_rate(row)}]"
    )


def _rate(row: Row) -> str:
    rate = "no rate" if row.throughput is None else f"{row.throughput:.4g}/s"
    return f"{rate}, {row.kept.foreign_cores:.1f} cores foreign"


def _mark(row: Row, one: Scored | None) -> str:
    if row.kept.kind == "base":
        return ""
    mark = "ok" if row.right else "2nd" if row.right_second else "MISS"
    if row.is_disturbed:
        return f"({mark})"  # not scored
    return "cheap" if one is not None and not one.counts else mark


def _how_sure(row: Row) -> str:
    if not row.verdict:
        return ""
    return f" ({row.confidence}" + ("" if row.gain is None else f", x{row.gain:.2f}") + ")"


def as_text(result: Mapping[str, Any]) -> str:
    """Return the result for readers, from `summarize`'s object."""
    rows = [msgspec.convert(table, Row) for table in result["rows"]]
    lines = [
        "# Whether `headrace diagnose` names the right bottleneck",
        "",
        *([f"**Interrupted: a part of the runs only ({len(rows)}).**", ""] if result["interrupted"] else []),
        (
            f"{result['n']} runs with a fault that costs at least {WORTH_FINDING:.0%}: right verdict first "
            f"{_percent(result['top1'])}, in the first two {_percent(result['top2'])}. {result['healthy_n']} healthy runs: "
            f"{result['false_alarms']} false alarms{_at_most(result)}, {result['healthy_undecided']} undecided."
        ),
        "",
        "## Detection by dose",
        "",
        "| times as strong | runs | right first | that cost enough | of those right first | median cost |",
        "|---|---|---|---|---|---|",
    ]
    for dose, one in result["detection"].items():
        lines.append(
            f"| {dose} | {one['n']} | {_percent(one['top1'])} | {one['n_costly']} | {_percent(one['top1_costly'])} | "
            f"{_percent(one['median_cost'])} |"
        )
    lines += [
        "",
        "## Faults",
        "",
        "| case | cost | right | said | sure | gain | runner-up |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        _table_line(row, result["costs"]) for row in rows if row.kept.kind == "fault" and row.kept.fault in REQUIRED
    ]
    lines += ["", "Costs are shares of the throughput, against the healthy base before and after, except:", ""]
    lines += [f"* {fault}: {one.costs}; {one.why}." for fault, one in REQUIRED.items() if one.costs != "throughput"]
    lines += ["", *_healthy_lines(rows, result), *_not_run_lines(result)]
    return "\n".join(lines)


def _at_most(result: Mapping[str, Any]) -> str:
    """Return what so many healthy runs without a false alarm show."""
    decided = result["healthy_n"] - result["healthy_undecided"]
    if result["false_alarms"] or not decided:
        return ""
    return f" (at most {1 - 0.05 ** (1 / decided):.1%} are, at 95 %, by the {decided} that were decided)"


def _table_line(row: Row, costs: Mapping[str, float | None]) -> str:
    right = "yes" if row.right else "second" if row.right_second else f"no: {REQUIRED[row.kept.fault]}"
    gain = "" if row.gain is None else f"x{row.gain:.2f}"
    return (
        f"| {row.name} | {_percent(costs.get(row.kept.folder))} | {right} | {_said(row)} | {row.confidence} | {gain} | "
        f"{row.runner_up} |"
    )


def _healthy_lines(rows: Sequence[Row], result: Mapping[str, Any]) -> list[str]:
    healthy = [row for row in rows if row.kept.kind == "healthy"]
    if not healthy:
        return []
    said = Counter(
        (row.kept.shape, " ".join(row.kept.settings), row.kept.dose, row.verdict or "no diagnosis") for row in healthy
    )
    lines = ["## Healthy runs", "", "| shape | settings | load | said | runs |", "|---|---|---|---|---|"]
    lines += [f"| {' | '.join(map(str, key))} | {count} |" for key, count in sorted(said.items())]
    return [*lines, "", *(f"* {alarm}" for alarm in result["alarms"]), ""]


def _not_run_lines(result: Mapping[str, Any]) -> list[str]:
    lines = [f"* {fault}: {why}" for fault, why in result["not_run"].items()]
    lines += [f"* {name} costs too little to be scored" for name in result["too_cheap"]]
    if disturbed := Counter(result["disturbed"]):
        lines.append(
            f"* {sum(disturbed.values())} runs during which other programs used {DISTURBING_CORES:g} cores or more, which is a "
            "fault of its own: "
            + ", ".join(f"{name} ({count})" if count > 1 else name for name, count in disturbed.items())
        )
    return ["## Not scored", "", *lines] if lines else []


def _percent(value: float | None) -> str:
    return "not known" if value is None else f"{value:.1%}"
