"""A against B as the document `headrace.compare/1`: measured in turn, or as two run folders recorded them."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np

from headrace.base.errors import HeadraceError, SettingsError
from headrace.base.formatting import pluralize
from headrace.base.page_cache import State, state_of
from headrace.base.settings import check
from headrace.compare import recorded
from headrace.compare.blocks import Block, Measurable, SameItems, warnings_of
from headrace.compare.contenders import Blocks, measure_contenders
from headrace.compare.intervals import ALPHA, Interval, centre, paired_interval, unpaired_interval, usual_spread
from headrace.compare.judging import MOST_LOST, Goal, Judgement, judge, lost_share
from headrace.compare.neighbours import have_changed
from headrace.compare.plan_of_run import PlanOfRun
from headrace.compare.turns import Turns, runs_backwards
from headrace.compare.words import describe
from headrace.runs.formats.comparison import Beside, ComparisonDocument, Side
from headrace.runs.hardware import find_hardware, find_versions
from headrace.runs.reader import Run
from headrace.sources.finite import FiniteSource

MetricName = Literal["throughput", "latency_p50", "cpu_per_item"]

#: Differences below this share count as none, unless the user says otherwise or the budget is less.
MARGIN = 0.02
#: Pairs that differ by more than this from their middle are worth a warning; pyperf warns at the same share.
_NOISY = 0.10


@dataclass(frozen=True, slots=True)
class Metric:
    """What is compared."""

    name: MetricName
    unit: str
    higher_is_better: bool

    def of(self, block: Block) -> float | None:
        """Return a block's value."""
        value: float | None = getattr(block, self.name)
        return value


METRICS: Mapping[str, Metric] = {
    "throughput": Metric("throughput", "items/s", True),
    "latency": Metric("latency_p50", "s", False),
    "cpu": Metric("cpu_per_item", "s/item", False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the user wants to know."""

    metric: Metric = METRICS["throughput"]
    margin: float | None = None
    """Differences below this share count as none; None for 2 %, or for the budget if that is less."""
    budget: float | None = None
    """Largest loss that is accepted, as a share; None if nobody asked."""

    def __post_init__(self) -> None:
        """Check every value."""
        margin, budget = self.margin, self.budget
        check(margin is None or 0 <= margin < 1, "--margin", margin, "a share from 0 to below 1, such as 2%")
        check(budget is None or 0 <= budget < 1, "--budget", budget, "a share from 0 to below 1, such as 3%")
        if margin is not None and budget is not None:
            check(
                margin <= budget,
                "--margin",
                margin,
                f"at most the budget ({budget}), or a loss beyond it counts as none",
            )

    @property
    def used_margin(self) -> float:
        """The margin of paired blocks."""
        return self.margin if self.margin is not None else min(MARGIN, 1.0 if self.budget is None else self.budget)

    def goal(self, margin: float, drift: float = 0.0) -> Goal:
        """Return the question on the scale of logarithms."""
        floor = None
        if self.budget is not None:
            floor = math.log1p(-self.budget) if self.metric.higher_is_better else -math.log1p(self.budget)
        return Goal(math.log1p(margin), floor, math.log1p(drift))

    def gain(self, log_ratio: Interval | None) -> Interval | None:
        """Return an interval of log B/A turned so that more is better."""
        return log_ratio if log_ratio is None or self.metric.higher_is_better else log_ratio.negate()


def compare_pipelines(
    a: Measurable,
    b: Measurable,
    source: FiniteSource,
    *,
    question: Question | None = None,
    blocks: Blocks | None = None,
    say: Callable[[str], object] = lambda line: None,
) -> ComparisonDocument:
    """Run two pipelines in interleaved blocks over the same items and return whether B is really better.

    Args:
        a: The one before.
        b: The one after.
        source: Where the items come from; read once. Those of other processes are `SameItems` already.
        question: What is wanted.
        blocks: How much is measured.
        say: Told about the progress, one line at a time.

    Raises:
        HeadraceError: If a side cannot run, or gives no results to measure.
        Interrupted: If it was interrupted before anything was measured.
    """
    question, blocks = question or Question(), blocks or Blocks()
    items = source if isinstance(source, SameItems) else SameItems(source)

    def is_sure(turns: Turns[Block]) -> bool:
        judgement = answer(_values(turns, question.metric), question, turns.alpha)[1]
        return judgement.is_sure(question.goal(question.used_margin))

    started = time.time()
    measured = measure_contenders({"A": a, "B": b}, items, blocks, say, is_sure=is_sure)
    turns = measured.turns
    values = _values(turns, question.metric)
    if not values:
        raise HeadraceError(f"no pair of blocks measured {question.metric.name}; ask for longer blocks with --seconds")
    interval, judgement = answer(values, question, turns.alpha)
    blocks_a, blocks_b = zip(*turns.pairs("A", "B"), strict=True)
    values_a, values_b = zip(*values, strict=True)
    differences = _log_ratios(values)
    document = make_document(
        question,
        (_side(a, blocks_a, values_a), _side(b, blocks_b, values_b)),
        interval,
        judgement,
        mid=centre(differences),
        delivered=(_share_delivered(blocks_a), _share_delivered(blocks_b)),
        paired=True,
        num_pairs=len(differences),
        margin=question.used_margin,
        interrupted=turns.interrupted,
        environment={
            "started_unix_seconds": started,
            "order": "".join("BA" if runs_backwards(number) else "AB" for number in range(len(blocks_a))),
            "items_per_block": measured.num_items,
            "distinct_items": items.num_distinct,
            "ids_sha256": hashlib.sha256("\n".join(items.ids).encode()).hexdigest(),
            "block_seconds": float(np.median([block.seconds for block in (*blocks_a, *blocks_b)])),
            "deliveries": "made" if blocks.deliver else "dropped",
            "confidence": 1 - turns.alpha,
            "other_cpu_cores": _mean_taken(blocks_a + blocks_b),
            "pairs_again": turns.num_again,
            "emulated": any(block.is_emulated for block in (*blocks_a, *blocks_b)),
        },
        warnings=[
            *dict.fromkeys((*warnings_of(blocks_a, a.name), *warnings_of(blocks_b, b.name))),
            *_warn_of_neighbours(turns),
            *_noise(differences),
        ],
    )
    others = [metric for metric in METRICS.values() if metric != question.metric]
    beside = [_judge_beside(turns, Question(metric=metric)) for metric in others]
    return msgspec.structs.replace(document, beside=tuple(one for one in beside if one is not None))


def _judge_beside(turns: Turns[Block], question: Question) -> Beside | None:
    """Return what the same pairs tell of another metric; None if they did not measure it."""
    metric, values = question.metric, _values(turns, question.metric)
    if not values:
        return None
    interval, judgement = answer(values, question, turns.alpha)
    a, b = (float(np.median(side)) for side in zip(*values, strict=True))
    return Beside(
        metric=metric.name, unit=metric.unit, higher_is_better=metric.higher_is_better,
        ratio=math.exp(centre(_log_ratios(values))), ratio_low=None if interval is None else math.exp(interval.low),
        ratio_high=None if interval is None else math.exp(interval.high), a=a, b=b, verdict=judgement.verdict,
    )  # fmt: skip


def compare_runs(a: Run, b: Run, *, question: Question | None = None, seed: int = 0) -> ComparisonDocument:
    """Return whether run B was better than run A, from what their folders recorded.

    Args:
        a: The one before.
        b: The one after.
        question: What is wanted; differences below `recorded.DRIFT` count as none whatever its margin is.
        seed: Of the bootstrap.

    Raises:
        RunFolderError: If a run is too short, or did not measure this.
        SettingsError: If the input files of one run were in memory, and those of the other one were not.
    """
    question = question or Question()
    metric = question.metric
    are_arms = isinstance(a, PlanOfRun) and isinstance(b, PlanOfRun) and a.path == b.path
    if are_arms and (told := recorded.read_side_by_side(a, b, metric.name)) is not None:
        return _compare_arms((a, b), told, question)
    _refuse_cold_against_warm(a, b)
    margin = max(question.margin or 0.0, recorded.DRIFT)
    told_a, told_b = recorded.read_recording(a, metric.name), recorded.read_recording(b, metric.name)
    interval = unpaired_interval(told_a.values, told_b.values, seed=seed)
    judgement = judge(question.gain(interval), 0, question.goal(margin, recorded.DRIFT))
    return make_document(
        question,
        (_make_recorded_side(a, told_a), _make_recorded_side(b, told_b)),
        interval,
        judgement,
        mid=interval.mid,
        delivered=(_share(told_a.delivered, told_a.failed), _share(told_b.delivered, told_b.failed)),
        paired=False,
        num_pairs=0,
        margin=margin,
        interrupted=False,
        environment=_environment(told_a, told_b) | {"seed": seed},
        warnings=[*told_a.warnings, *told_b.warnings, *_warn_of_plans(a, b), *_list_differences(a, b)],
    )


def _compare_arms(
    arms: tuple[Run, Run], told: tuple[recorded.RecordedRun, recorded.RecordedRun], question: Question
) -> ComparisonDocument:
    """Return whether one Plan of a run answered better than another one at the same time."""
    a, b = told
    if question.metric.name == "throughput":
        raise SettingsError(
            f"both Plans of {arms[0].path} answered at the same time, so their rates say only how the jobs were divided; "
            "compare them with --metric latency or --metric cpu"
        )
    pairs = list(zip(a.values, b.values, strict=True))
    interval, judgement = answer(pairs, question)
    return make_document(
        question,
        (_make_recorded_side(arms[0], a), _make_recorded_side(arms[1], b)),
        interval,
        judgement,
        mid=centre(_log_ratios(pairs)),
        delivered=(_share(a.delivered, a.failed), _share(b.delivered, b.failed)),
        paired=True,
        num_pairs=len(pairs),
        margin=question.used_margin,
        interrupted=False,
        environment=_environment(a, b) | {"side_by_side": True},
        warnings=a.warnings,
    )


def _environment(a: recorded.RecordedRun, b: recorded.RecordedRun) -> dict[str, Any]:
    return {
        "stretch_seconds": [a.stretch_seconds, b.stretch_seconds],
        "warm_up_seconds": [a.warm_up_seconds, b.warm_up_seconds],
        "confidence": 1 - ALPHA,
        "emulated": a.is_emulated or b.is_emulated,
    }


def make_document(
    question: Question,
    sides: tuple[Side, Side],
    interval: Interval | None,
    judgement: Judgement,
    *,
    mid: float,
    delivered: tuple[float | None, float | None],
    paired: bool,
    num_pairs: int,
    margin: float,
    interrupted: bool,
    environment: Mapping[str, Any],
    warnings: Sequence[str],
) -> ComparisonDocument:
    """Return the document of two sides that were measured.

    Args:
        question: What was wanted.
        sides: A and B.
        interval: Of log B/A; None with too few pairs.
        judgement: What it means.
        mid: log B/A.
        delivered: The share of its jobs that each side delivered; None: not known.
        paired: Whether they took turns.
        num_pairs: Of both.
        margin: Differences below this share count as none.
        interrupted: The user stopped it.
        environment: How it was measured.
        warnings: A sentence each.
    """
    lost = lost_share(delivered)
    verdict, budget_met = judgement.verdict, judgement.budget_met
    if lost > MOST_LOST:
        # Whatever its rate: it does not do the work.
        verdict = "worse"
        budget_met = budget_met if question.budget is None or lost <= question.budget else False
    document = ComparisonDocument(
        a=sides[0],
        b=sides[1],
        metric=question.metric.name,
        unit=question.metric.unit,
        higher_is_better=question.metric.higher_is_better,
        paired=paired,
        num_pairs=num_pairs,
        ratio=math.exp(mid),
        ratio_low=None if interval is None else math.exp(interval.low),
        ratio_high=None if interval is None else math.exp(interval.high),
        margin=margin,
        budget=question.budget,
        verdict=verdict,
        is_regression=verdict == "worse" and budget_met is False,
        pairs_needed=judgement.pairs_needed if verdict == judgement.verdict else None,
        budget_met=budget_met,
        interrupted=interrupted,
        environment={
            **environment,
            "delivered_share": list(delivered),
            "hardware": msgspec.to_builtins(find_hardware()),
            "versions": find_versions(),
        },
        warnings=(*_warn_of_lost_jobs(delivered), *warnings),
    )
    return msgspec.structs.replace(document, says=describe(document))


def answer(
    pairs: Sequence[tuple[float, float]], question: Question, alpha: float = ALPHA
) -> tuple[Interval | None, Judgement]:
    """Return the interval of log B/A of paired values (a, b), None with too few, and what it means.

    Args:
        pairs: Positive values.
        question: What is wanted.
        alpha: By how much the interval may err.
    """
    interval = paired_interval(_log_ratios(pairs), alpha)
    return interval, judge(question.gain(interval), len(pairs), question.goal(question.used_margin))


def _log_ratios(pairs: Sequence[tuple[float, float]]) -> list[float]:
    return [math.log(b / a) for a, b in pairs]


def _values(turns: Turns[Block], metric: Metric) -> list[tuple[float, float]]:
    """Return the pairs of which both blocks measured the metric."""
    pairs = [(metric.of(a), metric.of(b)) for a, b in turns.pairs("A", "B")]
    return [(a, b) for a, b in pairs if a and b]


def _side(contender: Measurable, blocks: Sequence[Block], values: Sequence[float]) -> Side:
    plan = blocks[0].plan
    return Side(
        name=contender.name,
        pipeline=contender.pipeline_name,
        plan_id=plan.plan_id,
        plan=plan.as_table(),
        values=tuple(values),
        median=float(np.median(values)),
        stages=_mean_service(blocks),
        page_cache=_page_cache(blocks),
    )


def _make_recorded_side(run: Run, told: recorded.RecordedRun) -> Side:
    plan_id, plan = next(iter(run.info.plans.items()), ("", {}))
    return Side(
        name=f"{run.path}@{run.plan_id}" if isinstance(run, PlanOfRun) else str(run.path),
        pipeline=run.info.pipeline,
        plan_id=plan_id,
        plan=plan,
        other_plan_ids=tuple(run.info.plans)[1:],
        values=told.values,
        median=float(np.median(told.values)),
        stages=dict(told.stages),
        page_cache=recorded.page_cache_of(run),
    )


def _warn_of_plans(*runs: Run) -> list[str]:
    """Say whose measurements are of several Plans together."""
    return [
        f"{run.path} was answered by {len(run.info.plans)} Plans ({', '.join(run.info.plans)}): what is compared is all of "
        f"them together, not one; {run.path}@{next(iter(run.info.plans))} is one"
        for run in runs
        if len(run.info.plans) > 1
    ]


def _mean_service(blocks: Sequence[Block]) -> dict[str, float]:
    items = {name: sum(block.passages.get(name, 0) for block in blocks) for name in blocks[0].busy_seconds}
    return {
        name: sum(block.busy_seconds.get(name, 0.0) for block in blocks) / count
        for name, count in items.items()
        if count
    }


def _share_delivered(blocks: Sequence[Block]) -> float | None:
    return _share(sum(block.delivered for block in blocks), sum(block.failed for block in blocks))


def _share(delivered: int, failed: int) -> float | None:
    # A run that was killed counted nothing: its share is not known, and not 0.
    return delivered / (delivered + failed) if delivered + failed else None


def _warn_of_lost_jobs(delivered: tuple[float | None, float | None]) -> list[str]:
    unknown = " and ".join(name for name, share in zip("AB", delivered, strict=True) if share is None)
    if unknown:
        return [f"how many of its jobs failed is not known of {unknown}, which did not get to count them"]
    if abs(lost_share(delivered)) <= MOST_LOST:
        return []
    return [f"A delivered {delivered[0]:.1%} of its jobs and B {delivered[1]:.1%}: they did not do the same work"]


def _mean_taken(blocks: Sequence[Block]) -> float | None:
    """Return how many cores others had while blocks ran; None where it is not known of all."""
    known = [block.taken_cores for block in blocks if block.taken_cores is not None]
    return float(np.mean(known)) if known and len(known) == len(blocks) else None


def _page_cache(blocks: Sequence[Block]) -> State | None:
    """Return whether the input files were in memory when the blocks began: what all say, `mixed` if they differ."""
    states = {state_of(block.in_memory) for block in blocks}
    return states.pop() if len(states) == 1 else "mixed"


def _warn_of_neighbours(turns: Turns[Block]) -> list[str]:
    if not turns.num_again:
        return []
    left = sum(
        have_changed([one.taken_cores for one in measured.values()], min(one.seconds for one in measured.values()))
        for measured in turns.rounds
        if measured
    )
    rest = f", and within {left} of those that count" if left else ""
    again = pluralize(turns.num_again, "pair")
    return [f"what others took of the cores changed within {again}, measured again{rest}: quieten the machine"]


def _noise(differences: Sequence[float]) -> list[str]:
    spread = usual_spread(differences)
    if spread <= _NOISY:
        return []
    return [
        f"pairs differ by {spread:.0%} for no reason that was asked about: quieten the machine, or lengthen --seconds"
    ]


def _refuse_cold_against_warm(a: Run, b: Run) -> None:
    """Raise SettingsError if one run read its files from the disk and the other one from memory: that is what would be seen."""
    states = {run.path: recorded.page_cache_of(run) for run in (a, b)}
    if set(states.values()) == {"cold", "warm"}:
        told = ", ".join(f"of {path} {state}" for path, state in states.items())
        raise SettingsError(
            f"the page cache was, when the runs began, {told}: what differs between them may be the disk alone. Profile both "
            "with --cold, or both once more now that the files are in memory; --measure runs both in turn"
        )


def _list_differences(a: Run, b: Run) -> list[str]:
    """Return what else differs between two runs and may be the reason."""
    found = []
    of_a, of_b = recorded.page_cache_of(a), recorded.page_cache_of(b)
    if of_a != of_b and of_a and of_b:
        found.append(f"the page cache was {of_a} when A began and {of_b} when B did")
    for what, before, after in (
        ("pipeline", a.info.pipeline, b.info.pipeline),
        ("host", a.info.host, b.info.host),
        ("hardware", a.info.hardware, b.info.hardware),
        ("versions", a.info.versions, b.info.versions),
        ("data", a.info.data_fingerprint, b.info.data_fingerprint),
    ):
        if before != after:
            found.append(f"the runs differ in their {what}")
    return found
