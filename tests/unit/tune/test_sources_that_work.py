"""What a source does for each item is in the profiles that Plans are predicted from, as in the blocks that prove them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace as hr
from headrace.base.plan import Plan
from headrace.base.records import SourceWork
from headrace.compare.blocks import SameItems
from headrace.compare.contenders import Blocks
from headrace.runs.reader import read_run
from headrace.sources.finite import Entry, FiniteSource
from headrace.tune.ladder_prediction import freeze
from headrace.tune.ladder_steps import Step
from headrace.tune.tuning_runs import TuningRuns


class Working(FiniteSource):
    """A source that works for each of its items.

    Args:
        num: Of them.

    Attributes:
        num_made: Items that it made so far.
    """

    def __init__(self, num: int = 80) -> None:
        super().__init__()
        self.num = num
        self.num_made = 0

    @property
    def work(self) -> SourceWork:
        """What it does."""
        return SourceWork(does="makes numbers")

    def entries(self) -> Iterator[Entry]:
        """Make them."""
        for number in range(self.num):
            self.num_made += 1
            yield Entry(f"item-{number}", str(number))


def pipeline(source: FiniteSource) -> hr.Pipeline:
    """Return one that does next to nothing."""
    return hr.Pipeline(source, stages=[hr.stage("length", len)], delivery=hr.collect())


@pytest.mark.full
def test_tune_and_ladder_profile_the_source_with_its_work(tmp_path: Path) -> None:
    """The profile takes items from the source itself, and says that it works for them."""
    source = Working()
    bench = TuningRuns(pipeline(source), Plan(), source, tmp_path / "runs", deliver=False, say=lambda text: None)
    run = bench.profile((), rate=10_000.0, seconds=0.001)
    assert source.num_made >= 60
    assert run.info.source_work is not None

    plan = bench.resolve()
    steps = [Step(name="sequential", explanation="", plan=plan, without=None, settings=())]
    freeze(pipeline(source), steps, SameItems(source), Blocks(items=40), tmp_path / "first", None, lambda text: None)
    assert read_run(tmp_path / "first").info.source_work is not None


def fail_first(text: str) -> int:
    """Raise for the first item."""
    if text == "0":
        raise ValueError("it is the first")
    return len(text)


@pytest.mark.full
def test_profiles_try_each_job_once_and_go_around_in_a_short_source(tmp_path: Path) -> None:
    """As the blocks that are predicted: no job comes again because it failed, and a profile has the items that it should."""
    source = Working(25)
    failing = hr.Pipeline(source, stages=[hr.stage("fail", fail_first)], delivery=hr.collect())
    bench = TuningRuns(failing, Plan(), source, tmp_path / "runs", deliver=False, say=lambda text: None)
    runs = [bench.profile((), rate=10_000.0, seconds=0.001)]

    steps = [Step(name="sequential", explanation="", plan=bench.resolve(), without=None, settings=())]
    freeze(failing, steps, SameItems(source), Blocks(items=60), tmp_path / "first", None, lambda text: None)
    runs.append(read_run(tmp_path / "first"))

    assert [(run.info.counters.retried, run.info.counters.received) for run in runs] == [(0, 60)] * 2
    assert all(run.info.counters.dead_lettered == 3 for run in runs)  # the first item in each of three turns
    assert source.max_receives == 3
    assert len(list(source.remaining())) == 25
