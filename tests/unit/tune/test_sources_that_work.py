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
from headrace.profiler.experiment.running import RoundAndRound
from headrace.runs.reader import read_run
from headrace.sources.finite import Entry, FiniteSource
from headrace.tune.ladder_prediction import freeze
from headrace.tune.ladder_steps import Step
from headrace.tune.tuning_runs import TuningRuns


class Working(FiniteSource):
    """A source that works for each of its items.

    Attributes:
        num_made: Items that it made so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.num_made = 0

    @property
    def work(self) -> SourceWork:
        """What it does."""
        return SourceWork(does="makes numbers")

    def entries(self) -> Iterator[Entry]:
        """Make them."""
        for number in range(80):
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


def test_every_round_of_an_experiment_works_for_its_items() -> None:
    """Items that come again are made again: what they take may be the limit that is looked for."""
    source = Working()
    around = iter(RoundAndRound(source).entries())
    ids = [next(around).id for _ in range(200)]

    assert (source.num_made, ids[0], ids[80], ids[199]) == (200, "item-0", "item-0#2", "item-39#3")
