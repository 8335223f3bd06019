"""Drift: false alarms of clustered windows in which nothing moves, and windows until a shift is found.

Windows are simulated (`clustered`); each baseline is learnt from 40 of them, and others follow. The false alarms of the goal
are those of the first world: 20 cameras, intra-class correlation 0.3, of which a quarter wanders from window to window. The
other worlds are harder; their figures stand beside it.
"""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from benchmarks.watch.clustered import Cameras, World
from headrace.monitor.drift.judging import Judge
from headrace.monitor.drift.learning import LEAST_WINDOWS, learn
from headrace.runs.formats.drift import DriftBaseline

WORLDS = {
    "20 cameras, correlation 0.3": World(),
    "half of it wanders": World(wandering=0.5),
    "wandering with a memory of 0.5": World(memory=0.5),
    "a third of the wandering is common": World(together=0.33),
    "silent cameras and bursts": World(silent=0.1, bursts=0.05),
    "heavy tails": World(heavy_tails=True),
    "one camera": World(cameras=1, correlation=0.02),
}
GOAL = next(iter(WORLDS))
SHIFTS: dict[str, dict[str, Any]] = {
    "0p2sd": {"shift": 0.2},
    "0p5sd": {"shift": 0.5},
    "0p2sd_in_one_statistic": {"shift": 0.2, "statistics": 1},
    "2sd_at_one_camera": {"camera_shift": 2.0},
}
#: A window is 500 items that are looked at closely; verdicts are counted of all.
SERVICE, EVERY = "one item in 8 looked at", "every item looked at"
REFUSED = {
    SERVICE: World(items_per_image=8),
    EVERY: World(),
    f"{EVERY}, in clusters": World(refused_clustering=0.005),
}
_MOST_WINDOWS = 60
_GOAL_WINDOWS, _GOAL_REFUSED = 8, 2


def measure(quick: bool) -> dict[str, Any]:
    """Return the key `drift`."""
    random = np.random.default_rng(18)
    clean = {}
    for name, world in {GOAL: WORLDS[GOAL]}.items() if quick else WORLDS.items():
        baselines = 1 if quick else 50 if name == GOAL else 10
        clean[name] = _count_alarms(world, random, baselines, windows=200)
    # Learning takes most of the time: the short way learns once for each world.
    repeats, baselines = (3, 1) if quick else (60, 60)
    found = {name: _windows_to_find(WORLDS[GOAL], random, repeats, baselines, how) for name, how in SHIFTS.items()}
    refused = {
        name: _windows_to_find(world, random, repeats, baselines, {"refused": 0.03}) for name, world in REFUSED.items()
    }
    return {
        "drift": {
            "false_alarms": clean[GOAL]["false_alarms"],
            "windows": clean[GOAL]["windows"],
            "windows_to_0p2sd": found["0p2sd"]["median"],
            "windows_to_refused_3_percent": refused[SERVICE]["median"],
            "worlds": clean,
            "shifts": found,
            "refused": refused,
        }
    }


def _baseline(cameras: Cameras) -> DriftBaseline:
    return learn(list(cameras.windows(LEAST_WINDOWS)), key="camera", simulate=False)


def _count_alarms(world: World, random: np.random.Generator, baselines: int, windows: int) -> dict[str, int]:
    """Return in how many windows an alarm began, over baselines of their own."""
    alarms = 0
    for _ in range(baselines):
        cameras = Cameras(world, random)
        judge, before = Judge(_baseline(cameras)), False
        for window in cameras.windows(windows):
            judge.add(window)
            is_alarm = judge.is_alarm()
            alarms += is_alarm and not before
            before = is_alarm
    return {"false_alarms": alarms, "windows": baselines * windows, "baselines": baselines}


def _windows_to_find(
    world: World, random: np.random.Generator, repeats: int, baselines: int, how: dict[str, Any]
) -> dict[str, Any]:
    """Return after how many windows a change is found; repeats share so many baselines."""
    numbers = []
    learnt = [(cameras := Cameras(world, random), _baseline(cameras)) for _ in range(baselines)]
    for index in range(repeats):
        cameras, baseline = learnt[index % baselines]
        judge = Judge(baseline)
        number, windows = 0, cameras.windows(_MOST_WINDOWS, **how)
        while not judge.is_alarm() and (window := next(windows, None)) is not None:
            judge.add(window)
            number += 1
        numbers.append(number if judge.is_alarm() else _MOST_WINDOWS + 1)
    return {
        "median": statistics.median(numbers),
        "p90": sorted(numbers)[int(0.9 * (len(numbers) - 1) + 0.999)],
        "found_within_2": sum(number <= 2 for number in numbers) / repeats,
        "found": sum(number <= _MOST_WINDOWS for number in numbers) / repeats,
        "repeats": repeats,
    }


def as_text(result: dict[str, Any]) -> str:
    """Return the part of the page for readers."""
    drift = result["drift"]
    worlds = [
        f"| {name} | {one['false_alarms']} | {one['windows']:,} | {one['baselines']} |"
        for name, one in drift["worlds"].items()
    ]
    refused = {f"refused 1 to 3 %, {name}": one for name, one in drift["refused"].items()}
    changes = [
        f"| {name} | {one['median']:g} | {one['p90']} | {one['found_within_2']:.0%} | {one['found']:.0%} |"
        for name, one in {**drift["shifts"], **refused}.items()
    ]
    return "\n".join(
        [
            "## Drift", "", "| windows in which nothing moves | false alarms | windows | baselines |", "|---|---|---|---|",
            *worlds,
            "", "| what changes | windows to find it: median | p90 | found within 2 | within 60 |", "|---|---|---|---|---|",
            *changes,
        ]
    )  # fmt: skip


def missed_goals(result: dict[str, Any]) -> list[str]:
    """Return a line for each goal that was missed."""
    drift = result["drift"]
    checks = [
        (drift["false_alarms"], 0, "false alarms"),
        (drift["windows_to_0p2sd"], _GOAL_WINDOWS, "windows to find 0.2 sd"),
        (drift["windows_to_refused_3_percent"], _GOAL_REFUSED, "windows to find 1 to 3 % of files not decoded"),
    ]
    return [f"drift: {value:g} {what}; the goal is {goal:g}" for value, goal, what in checks if value > goal]
