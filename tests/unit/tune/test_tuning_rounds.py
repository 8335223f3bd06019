"""Rounds of blocks: what is measured of whom, who is given up, and what an interrupt leaves."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace

import pytest
from tuning_fakes import Numbers

import headrace as hr
from headrace.base.errors import HeadraceError
from headrace.base.plan import Plan, resolve
from headrace.compare.blocks import Contender, SameItems, measure_block
from headrace.compare.comparison import Question
from headrace.pipeline.definition import Pipeline
from headrace.tune.decision import decide
from headrace.tune.objective import Objective
from headrace.tune.rounds import Effort, Entrant, JobTimes, Rounds, comes_in_a_burst

#: Blocks so short may come in a burst where others take the cores, and then tell no rate; what is counted here is rounds.
SHORT = Effort(most_longer=0, rounds=8, most_rounds=8, block_seconds=0.05)


def contender(pipeline: Pipeline, name: str, *settings: str) -> Contender:
    """Return a Plan of a pipeline, resolved."""
    stages = [stage.defaults() for stage in pipeline.stages]
    return Contender(name=name, pipeline=pipeline, plan=resolve(Plan().with_settings(settings), stages, 2))


def sleeping(seconds: float = 0.002) -> Pipeline:
    """Return a pipeline of one stage that sleeps."""
    return hr.Pipeline(Numbers(), stages=[hr.emulated("work", seconds=seconds)])


def never(_: Entrant) -> bool:
    """Never be sure."""
    return False


def measure(effort: Effort = SHORT, **plans: str) -> Rounds:
    """Measure Plans {name: setting} against one worker."""
    pipeline = sleeping()
    rounds = Rounds(contender(pipeline, "base", "work.workers=1"), SameItems(Numbers()), effort, str)
    rounds.measure(
        [contender(pipeline, name, setting) for name, setting in plans.items()], [500.0] * (1 + len(plans)), never
    )
    return rounds


@pytest.mark.measures
def test_latency_is_that_of_the_jobs_in_flight() -> None:
    """Every job but the first of a block is timed, and one at a time waits for nobody: less than all at once."""
    pipeline, items, alone, together = sleeping(), SameItems(Numbers()), JobTimes(), JobTimes()
    for name, most, times in (("one", 1, alone), ("all", 30, together)):
        plan = contender(pipeline, name, "work.workers=1", f"source.max_in_flight={most}")
        measure_block(plan, items, 30, observers=[times])
    assert len(alone.latencies) == len(together.latencies) == 29
    assert min(alone.latencies) >= 0.002
    assert sorted(alone.latencies)[14] < sorted(together.latencies)[14]


@pytest.mark.measures
@pytest.mark.slow
def test_four_workers_that_sleep_are_better_than_one() -> None:
    """The whole interval lies above 1, and each round gave one pair."""
    rounds = measure(four="work.workers=4")
    judged = rounds.judged(rounds.entrants[0], Question())
    assert judged is not None
    assert judged.interval is not None
    assert judged.interval.low > 1
    assert len(rounds.entrants[0].ratios(rounds.base)) == 8
    assert decide(rounds, rounds.entrants[0], Objective(), 2.0).verdict == "better"


@pytest.mark.measures
@pytest.mark.slow
def test_a_plan_is_not_better_than_itself() -> None:
    """The same Plan under another name is no better one."""
    rounds = measure(same="work.workers=1")
    assert decide(rounds, rounds.entrants[0], Objective(), 1.0).verdict != "better"


@pytest.mark.measures
@pytest.mark.slow
def test_the_slower_half_is_given_up_early() -> None:
    """Of one and eight workers, one runs three rounds only."""
    rounds = measure(eight="work.workers=8", two="work.workers=2")
    assert [len(one.blocks) for one in rounds.entrants] == [8, 3]
    decision = decide(rounds, rounds.entrants[1], Objective(), 1.5)
    assert (decision.verdict, rounds.entrants[1].was_outrun) == ("worse", True)


@pytest.mark.measures
@pytest.mark.slow
def test_for_other_goals_nobody_is_given_up_for_being_slow() -> None:
    """What is slower may have the lower latency."""
    effort = Effort(most_longer=0, rounds=4, most_rounds=4, block_seconds=0.05, halves=False)
    rounds = measure(effort, eight="work.workers=8", two="work.workers=2")
    assert [len(one.blocks) for one in rounds.entrants] == [4, 4]


def test_intervals_allow_for_all_that_were_tried() -> None:
    """Three Plans and one look: 5 % / 3 / 2 for each."""
    effort = Effort(most_longer=0, rounds=2, most_rounds=2, block_seconds=0.02, halves=False)
    rounds = measure(effort, a="work.workers=2", b="work.workers=3", c="work.workers=4")
    assert rounds.alpha(rounds.entrants[0]) == pytest.approx(0.05 / 3 / 2)


@pytest.mark.measures
@pytest.mark.slow
def test_who_runs_again_is_looked_at_again() -> None:
    """The best so far, beside a fourth Plan: 5 % / 4 / 4, for it had a look before; the new one 5 % / 4 / 2."""
    effort = Effort(most_longer=0, rounds=2, most_rounds=2, block_seconds=0.02, halves=False)
    rounds = measure(effort, a="work.workers=2", b="work.workers=3", c="work.workers=4")
    best = rounds.entrants[2]
    (new,) = rounds.measure([contender(sleeping(), "d", "work.workers=5")], [500.0, 2500.0], never, beside=[best])
    assert rounds.alpha(best) == pytest.approx(0.05 / 4 / 4)
    assert rounds.alpha(new) == pytest.approx(0.05 / 4 / 2)


def test_a_plan_that_cannot_run_is_out_and_the_others_go_on() -> None:
    """A local function in a process fails; the reason is kept."""
    pipeline = hr.Pipeline(Numbers(), stages=[hr.stage("work", lambda value: value)])
    rounds = Rounds(
        contender(pipeline, "base"),
        SameItems(Numbers()),
        Effort(most_longer=0, rounds=2, most_rounds=2, block_seconds=0.01),
        str,
    )
    plans = [contender(pipeline, "process", 'work.executor="process"'), contender(pipeline, "fine", "work.workers=3")]
    broken, fine = rounds.measure(plans, [1000.0] * 3, never)
    assert broken.failed
    assert decide(rounds, broken, Objective(), 1.0).verdict == "failed"
    assert len(fine.blocks) == 2


def test_what_failed_for_lack_of_memory_does_not_fit() -> None:
    """The verdict names the cause that matters for what to try next."""
    rounds = Rounds(contender(sleeping(), "base"), SameItems(Numbers()), SHORT, str)
    entrant = Entrant(contender(sleeping(), "large"), failed="std::bad_alloc", is_out_of_memory=True)
    assert decide(rounds, entrant, Objective(), 1.0).verdict == "does not fit"


def failing_if(is_bad: Callable[[object], bool], error: Exception) -> Pipeline:
    """Return a pipeline whose device refuses some batches."""

    def work(batch: list[object]) -> list[int]:
        if is_bad(batch):
            raise error
        return [0] * len(batch)

    return hr.Pipeline(Numbers(), stages=[hr.emulated("wait", seconds=0.001), hr.stage("d", work, kind="device")])


def test_a_base_whose_jobs_fail_ends_it() -> None:
    """There is nothing to compare with."""
    pipeline = failing_if(lambda _: os.environ.get("TUNING_TEST_FAILS") == "1", MemoryError("no room"))
    rounds = Rounds(
        contender(pipeline, "base"),
        SameItems(Numbers()),
        Effort(most_longer=0, rounds=2, most_rounds=2, block_seconds=0.01),
        str,
    )
    rounds.base.blocks[0] = measure_block(rounds.base.contender, SameItems(Numbers()), 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNING_TEST_FAILS", "1")
        with pytest.raises(HeadraceError, match="can be tuned only where its jobs succeed"):
            rounds.measure([contender(pipeline, "same", "wait.workers=2")], [100.0, 100.0], never)


def test_an_interrupt_keeps_the_rounds_before() -> None:
    """Ctrl-C in the third round: two are kept, and it is said."""
    count = 0

    def say(line: str) -> None:
        nonlocal count
        count += line.startswith("round")
        if count == 2:
            count = -100
            os.kill(os.getpid(), signal.SIGINT)

    pipeline = sleeping()
    rounds = Rounds(contender(pipeline, "base"), SameItems(Numbers()), SHORT, say)
    (entrant,) = rounds.measure([contender(pipeline, "two", "work.workers=4")], [500.0, 500.0], never)
    assert rounds.interrupted
    assert len(entrant.blocks) == 2


def test_no_round_begins_after_the_time() -> None:
    """The first round is always run; the budget ends the rest."""
    pipeline = sleeping()
    rounds = Rounds(contender(pipeline, "base"), SameItems(Numbers()), SHORT, str, may_go_on=lambda: False)
    (entrant,) = rounds.measure([contender(pipeline, "two", "work.workers=4")], [500.0, 500.0], never)
    assert len(entrant.blocks) == 1
    assert not rounds.interrupted


def test_results_that_come_at_the_end_tell_no_rate() -> None:
    """A few results in the first second and the rest within a tenth: 10,000/s in the middle, 95/s over all."""
    settled = [number / 10 for number in range(10)] + [1.0 + number / 10_000 for number in range(90)]
    assert comes_in_a_burst(10_000.0, settled)
    assert not comes_in_a_burst(100.0, settled)
    assert not comes_in_a_burst(100.0, [number / 100 for number in range(100)])


def test_a_slow_base_has_shorter_blocks() -> None:
    """At most four times as long as asked: a base at a hundredth of the rate does not hold up the others."""
    pipeline = sleeping()
    rounds = Rounds(contender(pipeline, "base", "work.workers=1"), SameItems(Numbers()), SHORT, str)
    fast = Entrant(contender(pipeline, "fast", "work.workers=2"))
    lengths = rounds._lengths([rounds.base, fast], [100.0, 10_000.0])
    assert lengths[id(fast)] == 500
    assert lengths[id(rounds.base)] == 20


def test_a_block_is_longer_than_what_the_queues_hold() -> None:
    """Two queues of 16 are filled and emptied twice, though a block of that rate would do with fewer."""
    pipeline = sleeping()
    rounds = Rounds(contender(pipeline, "base", "work.workers=1"), SameItems(Numbers()), SHORT, str)
    assert rounds._lengths([rounds.base], [500.0])[id(rounds.base)] == 64


def test_what_rounds_will_take_is_known_before_them() -> None:
    """Three rounds of two blocks of 0.05 s, each opened in 0.1 s; of half the length, less."""
    pipeline = sleeping()
    rounds = Rounds(contender(pipeline, "base"), SameItems(Numbers()), replace(SHORT, rounds=3), str)
    two = [contender(pipeline, "two", "work.workers=4")]
    rates = [10_000.0, 10_000.0]
    expected = rounds.expect_seconds(two, rates, 0.1)
    assert expected == pytest.approx(3 * 2 * (SHORT.block_seconds + 0.1))
    rounds.halve_blocks()
    assert rounds.expect_seconds(two, rates, 0.1) == pytest.approx(3 * 2 * (SHORT.block_seconds / 2 + 0.1))
