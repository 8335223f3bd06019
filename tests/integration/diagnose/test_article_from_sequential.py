"""The article's ladder foretold: from a profile of the sequential run alone, what threads, overlap and batches give.

Everything sleeps, so what each Plan can do at most is a closed form: one worker's service, or the device's cost curve.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.diagnose.analysis import Analysis
from headrace.diagnose.replay import CannotReplay, Replay
from headrace.profiler.profile import ProfileSettings, profile
from headrace.runs.formats.prediction import Change
from headrace.runs.reader import read_run
from headrace.sources.finite import Entry, FiniteSource

pytestmark = pytest.mark.measures

#: Ten times the article's speed: 222 ms to download and call back, 63 ms to preprocess, 13.6 ms + 34 ms for each item.
SPEED = 10.0
FETCH, PREPROCESS, LAUNCH, ITEM = 0.222 / SPEED, 0.063 / SPEED, 0.0136 / SPEED, 0.034 / SPEED

THREADED = (
    "fetch.executor=thread", "fetch.workers=10", "fetch.queue_items=300", "preprocess.executor=thread", "preprocess.workers=1",
    "preprocess.queue_items=300", "deliver.executor=thread", "deliver.workers=3",
)  # fmt: skip
OVERLAPPED = (
    *THREADED,
    "preprocess.workers=4",
    "process.executor=thread",
    "process.workers=1",
    "process.queue_items=300",
)
BATCHED = (*OVERLAPPED, "process.batch=8")

#: What each Plan can do at most, jobs per second: 9.04, 21.0 and 28.0 at the article's speed.
LIMITS = {
    THREADED: 1 / (PREPROCESS + LAUNCH + ITEM),
    OVERLAPPED: 1 / (LAUNCH + ITEM),
    BATCHED: 8 / (LAUNCH + 8 * ITEM),
}


class Device(hr.Module):
    """The emulated device, and nothing else."""

    input = hr.ArrayInput()

    def load(self, context: Any) -> None:
        """Open it."""
        self.device = context.open_model()

    def process(self, batch: Any) -> list[float]:
        """Return what it gives for each item."""
        return [float(value) for value in self.device(batch)[:, 0]]


class Numbers(FiniteSource):
    """So many jobs."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def entries(self) -> Iterator[Entry]:
        """Return them."""
        return (Entry(str(number), b"") for number in range(self.count))


#: How many times as long as what was asked for a sleep may take.
ON_TIME = 1.05
#: A machine stands still for a moment, and then goes on.
TRIES = 4


#: Seconds that each stage sleeps for an item.
ASKED = {"fetch": FETCH, "preprocess": PREPROCESS, "process": LAUNCH + ITEM}


class CallTimes:
    """An instrument that times each call by itself."""

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = {}

    def wrap(self, stage: str, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Time the calls of one stage."""
        seconds = self._seconds.setdefault(stage, [])

        def timed(*given: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*given)
            finally:
                seconds.append(time.perf_counter() - began)

        return timed

    def lateness(self, run: Replay) -> float:
        """Return how many times as long as what was asked for the stages slept, of the worst.

        By the profile, which tells sleeping from waiting for a core, and no more than calls took by the clock: a profile that
        is wrong is not to excuse itself.
        """
        blocked = {stage.name: stage.blocked or 0.0 for stage in run.document.stages}
        return max(min(blocked[name], statistics.fmean(self._seconds[name])) / asked for name, asked in ASKED.items())


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Replay, float]:
    """The run and its lateness, recorded again where sleeping took longer than what was asked for."""
    for number in range(TRIES):
        times = CallTimes()
        run = record(tmp_path_factory.mktemp("article") / f"sequential-{number}", times)
        late = times.lateness(run)
        if late <= ON_TIME:
            break
    return run, late


def record(folder: Path, times: CallTimes) -> Replay:
    """Profile 60 items on one thread, one after the other."""
    plan = hr.Plan().with_settings(
        [
            *(f"{stage}.executor=inline" for stage in ("fetch", "preprocess", "process", "deliver")),
            "model.engine=emulated",
            f"model.options.launch_seconds={LAUNCH}",
            f"model.options.item_seconds={ITEM}",
        ]
    )
    stages = [
        hr.emulated("fetch", kind="io", seconds=FETCH),
        hr.emulated("preprocess", seconds=PREPROCESS),
        *Device().stages(),
    ]
    profile(
        hr.Pipeline(Numbers(60), stages=stages),
        plan,
        output=folder,
        instruments=[times],
        settings=ProfileSettings(measure_overhead=False),
    )
    return Analysis(read_run(folder)).replay


@pytest.fixture(scope="module")
def replay(recorded: tuple[Replay, float]) -> Replay:
    """The recorded run, where sleeping took what was asked for."""
    run, late = recorded
    if late > ON_TIME:  # a machine that stands still
        pytest.skip(
            f"sleeping took {late:.2f} times as long as was asked for, {TRIES} times: closed forms do not hold on this machine"
        )
    return run


def test_the_sequential_run_is_what_the_article_says(replay: Replay) -> None:
    """3 items per second at the article's speed: the sum of all service times, one item after the other."""
    simulated = replay.simulate(Change(quiet=True)).throughput
    assert simulated == pytest.approx(1 / (FETCH + PREPROCESS + LAUNCH + ITEM), rel=0.1)
    assert replay.document.is_emulated


@pytest.mark.parametrize("settings", LIMITS, ids=["threaded", "overlapped", "batch8"])
def test_later_steps_are_foretold_within_a_tenth(replay: Replay, settings: tuple[str, ...]) -> None:
    """3, 7 and 9 times as many items, from the run at 3 a second and its warm-up; closed forms know no neighbours."""
    sequential = 1 / (FETCH + PREPROCESS + LAUNCH + ITEM)
    ratio = replay.ratio(Change(settings=settings, quiet=True), Change(quiet=True))
    assert ratio == pytest.approx(LIMITS[settings] / sequential, rel=0.1)


def test_a_batch_that_was_never_measured_is_refused(recorded: tuple[Replay, float]) -> None:
    """Of batches of 512 nothing was measured: the answer is a refusal, not a number."""
    with pytest.raises(CannotReplay, match="512"):
        recorded[0].ratio(Change(settings=(*OVERLAPPED, "process.batch=512")))
