"""Grades of the machine's quiet."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.diagnose import profile_document
from headrace.runs.formats.profile import Environment
from headrace.runs.hardware import Hardware

AT = np.arange(1000) * 0.01
TICKS = np.arange(0.0, 10.0, 0.5)


def environment(builder: Any, *, run_delay: float = 0.0, **gauges: float) -> Environment:
    """Return the environment of ten seconds on four cores, with 2 ms CPU and some delay per item."""
    builder.stage("work").stage("deliver")
    builder.spans("work", arrived=AT, ended=AT + 0.008, cpu=AT * 0 + 0.002, run_delay=AT * 0 + run_delay)
    builder.spans("deliver", arrived=AT + 0.008, ended=AT + 0.008)
    for name, value in gauges.items():
        builder.gauge("processes" if name == "cpu_cores" else "machine", name, TICKS, value)
    return profile_document(builder.finish(hardware=Hardware(num_cores=4))).environment


@pytest.mark.parametrize(
    ("name", "value", "grade"),
    [
        ("other_cpu_cores", 0.1, "A"),
        ("other_cpu_cores", 0.5, "B"),
        ("other_cpu_cores", 1.0, "C"),
        ("cpu_steal_ratio", 0.005, "A"),
        ("cpu_steal_ratio", 0.03, "B"),
        ("cpu_steal_ratio", 0.1, "C"),
        ("throttled_ratio", 0.0, "A"),
        ("throttled_ratio", 0.02, "B"),
        ("throttled_ratio", 0.2, "C"),
    ],
)
def test_each_sign_has_its_limits(builder: Any, name: str, value: float, grade: str) -> None:
    """Others' cores, stolen time and throttled periods, each by itself."""
    assert environment(builder, **{name: value}).grade == grade


@pytest.mark.parametrize(("share", "grade"), [(0.01, "A"), (0.05, "B"), (0.3, "C")])
def test_clocks_that_fall_are_noise(builder: Any, share: float, grade: str) -> None:
    """The cores run slower in the second half, as they do when they get hot."""
    builder.gauge("machine", "cpu_frequency_hertz", TICKS, 3e9 * (1 - share * (TICKS >= 5.0)))
    found = environment(builder, other_cpu_cores=0.0)
    assert found.grade == grade
    assert (f"fell by {share:.0%}" in found.reasons[0]) == (grade != "A")


def test_the_worst_sign_decides_and_comes_first(builder: Any) -> None:
    """A quiet machine under a quota that bites is a C."""
    found = environment(builder, other_cpu_cores=0.0, throttled_ratio=0.5)
    assert found.grade == "C"
    assert "quota" in found.reasons[0]
    assert (found.other_cpu_cores, found.throttled_share, found.steal_share) == (0.0, 0.5, None)


def test_waiting_for_cores_that_the_run_does_not_use_is_somebody_else(builder: Any) -> None:
    """A third of the CPU work was spent waiting, on a machine that the run left half empty."""
    found = environment(builder, run_delay=0.001, cpu_cores=2.0, other_cpu_cores=0.7)
    assert found.run_delay_share == pytest.approx(1 / 3)
    assert found.grade == "C"
    assert found.reasons[0].startswith("threads with work waited for a core 33%")


def test_waiting_that_nobody_knows_the_cause_of_is_held_against_the_machine(builder: Any) -> None:
    """Where the use of others was not sampled, they may be the cause."""
    assert environment(builder, run_delay=0.001, cpu_cores=2.0).grade == "C"


def test_bursts_of_the_runs_own_threads_are_not_noise(builder: Any) -> None:
    """A third of the time was spent waiting, and nobody else was there: the run's own threads came all at once."""
    found = environment(builder, run_delay=0.001, cpu_cores=2.0, other_cpu_cores=0.01)
    assert found.run_delay_share == pytest.approx(1 / 3)
    assert found.grade == "A"


def test_reasons_of_a_noisy_machine_are_those_that_make_it_noisy(builder: Any) -> None:
    """A quota that never bit is no reason."""
    found = environment(builder, other_cpu_cores=1.0, throttled_ratio=0.0, cpu_steal_ratio=0.0)
    assert found.reasons == ("others used 1.00 of 4 cores",)


def test_waiting_for_cores_that_the_run_fills_itself_is_no_noise(builder: Any) -> None:
    """The same waiting where the run used all cores is its own doing."""
    assert environment(builder, run_delay=0.001, cpu_cores=3.9, other_cpu_cores=0.0).grade == "A"


def test_nothing_sampled_gives_no_grade(builder: Any) -> None:
    """No grade, and not the best one."""
    found = environment(builder)
    assert found.grade is None
    assert "not profiled" in found.reasons[0]
    assert (found.other_cpu_cores, found.cpu_pressure) == (None, None)


def test_a_profile_without_samples_is_not_told_to_profile(builder: Any) -> None:
    """A profile that ended before the first sample is told so, and not to use `headrace profile`."""
    found = environment(builder.profiling())
    assert found.grade is None
    assert "too short" in found.reasons[0]


@pytest.mark.parametrize(("share", "word"), [(1.0, "warm"), (0.5, "mixed"), (0.0, "cold"), (None, None)])
def test_the_page_cache_is_named(builder: Any, share: float | None, word: str | None) -> None:
    """Warm, mixed, cold, or unknown where the source is not files."""
    builder.profiling(page_cache_share=share)
    assert environment(builder).page_cache == word
