"""What each step from a sequential run to a given Plan gives, together and alone: the document `headrace.ladder/1`.

How this works: the sequential Plan is profiled; from that profile alone every later step is predicted, and the predictions are
written to the ledger. Only then are all steps measured, in turn, over the same items; beside them the full Plan without each
single step, which tells what a step gives alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from headrace.base.errors import LedgerError, SettingsError
from headrace.base.plan import Plan
from headrace.base.settings import check
from headrace.compare.blocks import Block, Contender, SameItems, warnings_of
from headrace.compare.contenders import Blocks, Measured, Say, measure_contenders
from headrace.compare.intervals import FEWEST_PAIRS, centre, paired_interval, usual_spread
from headrace.ledger.ledger import Ledger
from headrace.pipeline.definition import Pipeline
from headrace.profiler.stage_bench.pipeline_parts import PipelineParts
from headrace.runs.formats.profile import Estimate
from headrace.runs.formats.tuning import LadderDocument, LadderStep
from headrace.runs.run_folder import headrace_version
from headrace.sources.finite import FiniteSource
from headrace.tune.agreement import num_agreeing
from headrace.tune.ladder_prediction import Frozen, freeze
from headrace.tune.ladder_steps import Step, find_steps
from headrace.tune.ladder_words import describe

#: Batch of device stages where the user gives no Plan: large enough to show what batches give, small enough for any device.
DEFAULT_BATCH = 8
#: Blocks that differ by more than this from their middle are worth a warning, as in `headrace.compare.comparison`.
_NOISY = 0.10
_MOST_ROUNDS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderSettings:
    """What is measured, and what else is told."""

    blocks: Blocks = field(default_factory=lambda: Blocks(pairs=8))
    """Rounds of a block of each step, and the length of a block."""
    price_per_hour: float | None = None
    """Of this machine, in the user's currency."""
    alone: bool = True
    """Also measure the full Plan without each single step."""
    run_folder: Path | None = None
    """Where the profile of the first step is written; None: nothing is predicted."""

    def __post_init__(self) -> None:
        """Check every value."""
        allowed = f"{FEWEST_PAIRS} to {_MOST_ROUNDS} rounds: fewer give no interval"
        check(FEWEST_PAIRS <= self.blocks.pairs <= _MOST_ROUNDS, "--blocks", self.blocks.pairs, allowed)
        price = self.price_per_hour
        check(price is None or 0 <= price <= 1e6, "--price", price, "0 to 1e+06 an hour")


def full_plan(pipeline: Pipeline, plan: Plan | None, settings: Sequence[str] = ()) -> Plan:
    """Return the resolved Plan at the top: the one given, else defaults for this machine with batches.

    Args:
        pipeline: What is run.
        plan: As the user wrote it; None for the defaults.
        settings: Replaced in it, `KEY=VALUE` each.

    Raises:
        SettingsError: If the Plan does not fit the pipeline.
    """
    if plan is None:
        devices = [stage.name for stage in pipeline.stages if stage.kind == "device"]
        plan = Plan().with_settings(f"stages.{name}.batch={DEFAULT_BATCH}" for name in devices)
    return PipelineParts.of(pipeline, plan.with_settings(settings)).plan


def climb(
    pipeline: Pipeline,
    full: Plan,
    source: FiniteSource,
    *,
    settings: LadderSettings | None = None,
    ledger: Ledger | None = None,
    say: Say = lambda line: None,
) -> LadderDocument:
    """Measure the steps from the sequential Plan to the full one.

    Args:
        pipeline: What is run; its results are dropped.
        full: Resolved; see `full_plan`.
        source: Where the items come from; read once.
        settings: What is measured.
        ledger: Where predictions are written; None: nowhere.
        say: Told about the progress, one line at a time.

    Raises:
        SettingsError: If there is no step to climb.
        HeadraceError: If a step cannot run, or gives no results to measure.
        Interrupted: If it was interrupted before anything was measured.
    """
    settings, items = settings or LadderSettings(), SameItems(source)
    steps = find_steps(pipeline, full)
    if len(steps) < 2:
        raise SettingsError(
            "the Plan is the sequential one: there is no step to climb; name a faster one with --plan, or find it with "
            "headrace tune"
        )
    frozen = Frozen()
    if settings.run_folder is not None:
        frozen = freeze(pipeline, steps, items, settings.blocks, settings.run_folder, ledger, say)
    plans, without = _plans(steps, alone=settings.alone)
    contenders = {name: Contender(name=name, pipeline=pipeline, plan=plan) for name, plan in plans.items()}
    optional = plans.keys() - {step.name for step in steps}
    began = time.time()
    measured = measure_contenders(contenders, items, settings.blocks, say, may_fail=optional, keep_results=True)
    rows = _Rows(steps, measured, without, settings.price_per_hour, frozen)
    document = LadderDocument(
        pipeline=pipeline.name,
        headrace_version=headrace_version(),
        price_per_hour=settings.price_per_hour,
        steps=tuple(rows.row(index) for index in range(len(steps))),
        num_items=measured.num_items,
        num_rounds=measured.num_whole_rounds,
        run_folder="" if settings.run_folder is None else str(settings.run_folder),
        interrupted=measured.turns.interrupted,
        record=frozen.record,
        warnings=tuple(_warnings(measured)),
        is_emulated=any(block.is_emulated for block in _list_blocks(measured)),
    )
    if ledger:
        try:
            write_measurements(document, ledger, began)
        except LedgerError as error:  # minutes were spent on measuring; that is kept
            document = msgspec.structs.replace(document, warnings=(*document.warnings, f"not in the ledger: {error}"))
    return describe(document)


def _plans(steps: Sequence[Step], *, alone: bool) -> tuple[dict[str, Plan], dict[str, str]]:
    """Return every Plan to run by name, and {step: name of the full Plan without it}."""
    plans = {step.name: step.plan for step in steps}
    without: dict[str, str] = {}
    for step in steps if alone else ():
        if step.without is None:
            continue
        same = next((name for name, plan in plans.items() if plan.plan_id == step.without.plan_id), None)
        without[step.name] = same or f"without {step.name}"
        plans.setdefault(without[step.name], step.without)
    return plans, without


@dataclass(frozen=True, slots=True)
class _Rows:
    """Makes a row of each step."""

    steps: Sequence[Step]
    measured: Measured
    without: Mapping[str, str]
    price: float | None
    frozen: Frozen

    def row(self, index: int) -> LadderStep:
        """Return what a step gave, and what was predicted of it."""
        step, first, last = self.steps[index], self.steps[0].name, self.steps[-1].name
        before = self.steps[index - 1].name if index else None
        without = self.without.get(step.name)
        rates = _rates(self.measured, step.name)
        throughput = float(np.median(rates)) if rates else None
        agreeing = num_agreeing(self.measured.results[step.name], self.measured.results[first])
        row = LadderStep(
            name=step.name,
            settings=step.settings,
            throughput=throughput,
            ratio_before=None if before is None else self._ratio(step.name, before),
            ratio_first=None if before is None else self._ratio(step.name, first),
            ratio_alone=None if without is None else self._ratio(last, without),
            cost_per_thousand=None if self.price is None or not throughput else self.price / 3600 / throughput * 1000,
            says=step.explanation,
            plan=step.plan.as_table(),
            num_agreeing=agreeing[0],
            num_checked=agreeing[1],
        )
        return row if before is None else self._beside(row)

    def _ratio(self, name: str, before: str) -> Estimate | None:
        """Return throughput over that of another Plan, from the rounds in which both ran."""
        return ratio_of((b.throughput, a.throughput) for b, a in self.measured.turns.pairs(name, before))

    def _beside(self, row: LadderStep) -> LadderStep:
        """Return a row with what was predicted beside what was measured."""
        document = self.frozen.documents.get(row.name)
        if document is None:
            return msgspec.structs.replace(row, refused=self.frozen.refused.get(row.name, ""))
        ratio, measured = document.throughput.ratio, row.ratio_first
        return msgspec.structs.replace(
            row,
            predicted=document.throughput.predicted,
            prediction_error=None if ratio is None or measured is None else ratio.mid / measured.mid - 1,
            prediction_id=document.id,
        )


def ratio_of(pairs: Iterable[tuple[float | None, float | None]]) -> Estimate | None:
    """Return the ratio of paired rates with its 95 % interval; with fewer than 6 pairs the range of the pairs instead.

    Args:
        pairs: (rate, rate before), each of one round; those that lack one are left out.

    References:
        Hodges-Lehmann estimate and signed-rank interval: see `headrace.compare.intervals`.
    """
    logs = [math.log(after / before) for after, before in pairs if after and before]
    if not logs:
        return None
    interval = paired_interval(logs)
    if interval is None:
        return Estimate(math.exp(min(logs)), math.exp(centre(logs)), math.exp(max(logs)))
    return Estimate(math.exp(interval.low), math.exp(interval.mid), math.exp(interval.high))


def write_measurements(document: LadderDocument, ledger: Ledger, began: float) -> None:
    """Write beside each prediction what was measured, unless there were too few rounds for an interval.

    Args:
        document: The ladder.
        ledger: Holds the predictions.
        began: When measuring began, Unix seconds.
    """
    if document.num_rounds < FEWEST_PAIRS:
        return
    how = f"headrace ladder, {document.num_rounds} rounds in turn of {document.num_items} items"
    for step in document.steps:
        if step.prediction_id and step.ratio_first:
            ledger.write_measurement(step.prediction_id, step.ratio_first, how, measured_at=began)


def _list_blocks(measured: Measured) -> list[Block]:
    return [block for found in measured.turns.rounds for block in found.values()]


def _rates(measured: Measured, name: str) -> list[float]:
    return [block.throughput for block in measured.turns.of(name) if block.throughput]


def _warnings(measured: Measured) -> list[str]:
    blocks = _list_blocks(measured)
    found = [f"{name} was not measured: {why}" for name, why in measured.failures.items()]
    if (rounds := measured.num_whole_rounds) < FEWEST_PAIRS:
        found.append(
            f"of {rounds} rounds no interval can be told, it takes {FEWEST_PAIRS}; the ranges are what was seen"
        )
    rates = [_rates(measured, name) for name in measured.results]
    spread = max((usual_spread(some) / float(np.median(some)) for some in rates if some), default=0.0)
    if spread > _NOISY:
        found.append(
            f"blocks of one and the same step differ by {spread:.0%}: the machine is busy with other things. Quieten it, or "
            "measure longer with --seconds and --blocks; the ratios above are as wide as that makes them"
        )
    return found + warnings_of(blocks)
