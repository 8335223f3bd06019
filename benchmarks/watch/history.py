"""Whether performance drift is found, and nothing else: simulated weeks of a pipeline on a machine that drifts by a quarter.

A week is 264 windows of an hour: 96 of the baseline and 168 that are compared. Items differ in size, from day to day as well
and with the hour; batches are smaller at night; the service restarts every day, and each run is a little faster or slower than
others. The machine's speed wanders by a quarter within minutes, neighbours come and go and slow some stages more than others.
CPU times of items have heavy tails, and grow with size not quite in proportion. Each week is another processor: its stages
have other costs and suffer from neighbours to another degree, and so has the yardstick, the piece of work beside the run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from headrace.monitor.history.baseline import FEWEST_WINDOWS, Window
from headrace.monitor.history.evidence import WEEK
from headrace.monitor.history.judging import MOST_WINDOWS, judge_windows
from headrace.monitor.history.moments import make_rows, sum_rows
from headrace.runs.formats.history import ALL_STAGES, StageWindow

WEEKS, QUICK_WEEKS = 200, 1
SLOWDOWN, WITHIN = 0.10, 3
MOST_FALSE, LEAST_FOUND = 0.05, 0.90
#: Items of an hour that are counted: one in 8 of 2,400 or so.
ITEMS = 2400
#: Times that the yardstick is measured in an hour.
YARDSTICKS = 1800
_SEED = 20261123
_HOURS_OF_RUN = 24
_STEPS = 60  # of the machine's speed in an hour


@dataclass
class Machine:
    """How fast a processor is, minute by minute, as the logarithm of the time that work takes: float64, (hours, minutes)."""

    random: np.random.Generator
    hours: int
    common: np.ndarray = field(init=False)
    neighbour: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        """Draw the week: a wandering speed, a slow drift, and neighbours."""
        random, minutes = self.random, self.hours * _STEPS
        memory = np.exp(-1 / random.uniform(5, 45))
        kicks = random.normal(0, 0.08 * np.sqrt(1 - memory**2), minutes)
        wander = np.empty(minutes)
        last = random.normal(0, 0.08)
        for minute, kick in enumerate(kicks):
            last = wander[minute] = memory * last + kick
        drift = 0.02 * np.sin(2 * np.pi * (np.arange(minutes) / (24 * _STEPS) + random.uniform()))
        neighbour = np.zeros(minutes)
        for start in np.flatnonzero(random.uniform(size=minutes) < 1 / (6 * _STEPS)):
            neighbour[start : start + random.integers(10, 90)] += random.uniform(0.05, 0.20)
        self.common = (wander + drift).reshape(self.hours, _STEPS)
        self.neighbour = neighbour.reshape(self.hours, _STEPS)


@dataclass
class Week:
    """A pipeline of five stages over some hours."""

    seed: int
    hours: int = MOST_WINDOWS + WEEK
    slow_stages: tuple[str, ...] = ()
    """Stages that get slower; empty: none."""
    slow_from: int = 0
    """Window from which on."""

    STAGES = ("fetch", "decode", "resize", "process", "deliver")

    def windows(self) -> list[Window]:
        """Return the week's windows."""
        random = np.random.default_rng((_SEED, self.seed))
        machine = Machine(random, self.hours)
        yardstick = Yardstick(np.random.default_rng((_SEED, self.seed, 2)), machine)
        speed = dict(zip(self.STAGES, random.uniform(0.7, 1.4, 5), strict=True))
        follows = dict(zip(self.STAGES, random.uniform(0.85, 1.15, 5), strict=True))
        suffers = dict(zip(self.STAGES, random.uniform(0.6, 1.4, 5), strict=True))
        phase = random.uniform(0, 24)
        day_sizes = np.exp(random.normal(0, 0.25, self.hours // 24 + 2))
        found = []
        run_effect = dict.fromkeys(self.STAGES, 0.0)
        for hour in range(self.hours):
            if hour % _HOURS_OF_RUN == 0:
                shared = random.normal(0, 0.015)
                run_effect = {stage: shared + random.normal(0, 0.008) for stage in self.STAGES}
            of_day = np.sin(2 * np.pi * (hour + phase) / 24)
            pixels = 2e6 * day_sizes[hour // 24] * np.exp(0.15 * of_day + random.normal(0, 0.5, ITEMS))
            packed = pixels * np.exp(random.normal(np.log(0.25), 0.3, ITEMS))
            batches = np.clip(random.poisson(3.5 + 2.5 * of_day, ITEMS), 1, 8)
            minute = random.integers(0, _STEPS, ITEMS)
            stages = {}
            for stage, (bytes_in, bytes_out, sizes, cpu) in _costs(pixels, packed, batches).items():
                noise = random.normal(0, 0.25, ITEMS) + np.log(3) * (random.uniform(size=ITEMS) < 0.01)
                slowness = (
                    follows[stage] * machine.common[hour, minute]
                    + suffers[stage] * machine.neighbour[hour, minute]
                    + run_effect[stage]
                    + noise
                )
                if stage in self.slow_stages and hour >= self.slow_from:
                    slowness = slowness + np.log1p(SLOWDOWN)
                rows = make_rows(bytes_in, bytes_out, sizes, cpu * 1e6 * sizes * speed[stage] * np.exp(slowness))
                stages[stage] = sum_rows(rows, np.full(ITEMS, 8.0))
            found.append(Window(hour * 3600.0, f"run {hour // _HOURS_OF_RUN}", stages, yardstick.measure(hour)))
        return found


@dataclass
class Yardstick:
    """The piece of work that is done beside a run, on a machine; it follows it, and suffers from neighbours, in its own way."""

    random: np.random.Generator
    machine: Machine
    of_run: float = 0.0

    def __post_init__(self) -> None:
        """Draw the processor."""
        self.follows, self.suffers = self.random.uniform(0.85, 1.15), self.random.uniform(0.6, 1.4)

    def measure(self, hour: int) -> StageWindow:
        """Return what it took in an hour; each run is a little faster or slower than others."""
        if hour % _HOURS_OF_RUN == 0:
            self.of_run = self.random.normal(0, 0.015)
        minute = self.random.integers(0, _STEPS, YARDSTICKS)
        slowness = (
            self.follows * self.machine.common[hour, minute] + self.suffers * self.machine.neighbour[hour, minute]
        )
        noise = self.random.normal(0, 0.15, YARDSTICKS) + np.log(3) * (self.random.uniform(size=YARDSTICKS) < 0.02)
        nothing, one = np.zeros(YARDSTICKS), np.ones(YARDSTICKS)
        return sum_rows(make_rows(nothing, nothing, one, 0.5e6 * np.exp(slowness + self.of_run + noise)), one)


def _costs(pixels: np.ndarray, packed: np.ndarray, batches: np.ndarray) -> dict[str, tuple[np.ndarray, ...]]:
    """Return {stage: (bytes in, bytes out, batch sizes, CPU ms of an item)}; decoding grows a little less than its pixels."""
    one, small = np.ones(len(pixels)), np.full(len(pixels), 150_528.0)
    return {
        "fetch": (np.zeros(len(pixels)), packed, one, 0.4 + packed / 4e6),
        "decode": (packed, 3 * pixels, one, 1.0 + 4 * (pixels / 1e6) ** 0.9 + 3 * packed / 1e6),
        "resize": (3 * pixels, small, one, 0.5 + 0.6 * pixels / 1e6),
        "process": (small, np.full(len(pixels), 4000.0), batches.astype(float), 5 / batches + 8),
        "deliver": (np.full(len(pixels), 4000.0), np.zeros(len(pixels)), one, 0.25 * one),
    }


def measure(quick: bool) -> dict[str, Any]:
    """Return the benchmark's key `history`."""
    weeks = QUICK_WEEKS if quick else WEEKS
    false, new, found, everything, blind, wrong = [], [], [], [], [], []
    for seed in range(weeks):
        windows = Week(seed).windows()
        false.append(bool(judge_windows(windows).alarms))
        new.append(any(_alarms_while_growing(windows[:WEEK])))
        where = np.random.default_rng((_SEED, seed, 1))
        start = MOST_WINDOWS + int(where.integers(0, WEEK - WITHIN))
        stage = Week.STAGES[int(where.integers(0, 5))]
        named = _slower(Week(seed, start + WITHIN, (stage,), start).windows())
        found.append(stage in named)
        wrong.append(bool(named - {stage, ALL_STAGES}))
        slower = Week(seed, start + WITHIN, Week.STAGES, start).windows()
        everything.append(ALL_STAGES in _slower(slower))
        blind.append(ALL_STAGES in _slower([replace(one, yardstick=None) for one in slower]))
        if sys.stderr.isatty():
            print(f"\rhistory: week {seed + 1} of {weeks}", end="", file=sys.stderr, flush=True)
    return {
        "history": {
            "weeks": weeks,
            "false_alarm_share": float(np.mean(false)),
            "false_alarm_share_new_pipeline": float(np.mean(new)),
            "found_share": float(np.mean(found)),
            "wrong_stage_share": float(np.mean(wrong)),
            "found_share_all_stages_slower": float(np.mean(everything)),
            "found_share_all_stages_slower_without_yardstick": float(np.mean(blind)),
        }
    }


def _slower(windows: list[Window]) -> set[str]:
    return {stage.stage for stage in judge_windows(windows).stages if stage.verdict == "slower"}


def _alarms_while_growing(windows: list[Window]) -> Iterator[bool]:
    """Yield whether there is an alarm, each time before the baseline grows and at the end."""
    for size in (2 * FEWEST_WINDOWS, 4 * FEWEST_WINDOWS, 8 * FEWEST_WINDOWS, len(windows)):
        yield bool(judge_windows(windows[:size]).alarms)


def as_text(result: dict[str, Any]) -> str:
    """Return the part of the page for readers."""
    told = result["history"]
    return "\n".join(
        [
            "## Performance drift",
            "",
            f"{told['weeks']} simulated weeks of 168 windows, each on another processor, after a baseline of 96 windows.",
            "",
            "| | share of weeks |",
            "|---|---|",
            f"| a false alarm, in any stage | {told['false_alarm_share']:.1%} |",
            f"| the same in the first week of a new pipeline | {told['false_alarm_share_new_pipeline']:.1%} |",
            f"| one stage 10 % slower: named within {WITHIN} windows | {told['found_share']:.1%} |",
            f"| another stage named by mistake | {told['wrong_stage_share']:.1%} |",
            f"| all stages 10 % slower: found within {WITHIN} windows | {told['found_share_all_stages_slower']:.1%} |",
            f"| the same where no yardstick was measured | {told['found_share_all_stages_slower_without_yardstick']:.1%} |",
        ]
    )


def missed_goals(result: dict[str, Any]) -> list[str]:
    """Return a line for each goal that was missed."""
    told = result["history"]
    missed = []
    if told["false_alarm_share"] > MOST_FALSE:
        missed.append(f"false alarms in {told['false_alarm_share']:.1%} of quiet weeks, goal {MOST_FALSE:.0%}")
    if told["found_share"] < LEAST_FOUND:
        missed.append(f"10 % slower found in {told['found_share']:.1%} of weeks, goal {LEAST_FOUND:.0%}")
    return missed
