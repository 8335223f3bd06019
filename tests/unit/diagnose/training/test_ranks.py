"""Ranks that train together, from constructed steps: who is named, and who is not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from headrace.diagnose.training.rank_costs import waiting_for_ranks
from headrace.diagnose.training.ranks import Exchanges, Meetings, join_exchanges
from headrace.diagnose.training.steps import Array, LoadedBatches, RankSteps, Stretches, Times
from headrace.diagnose.training.stragglers import judge_ranks
from headrace.runs.formats.training_ranks import Finding, RanksJudged, Reason
from headrace.runs.training_phases import Kind, Phase, Stretch

_WORK = {
    Phase.WAIT: 0.010,
    Phase.FORWARD: 0.030,
    Phase.BACKWARD: 0.050,
    Phase.OPTIMIZER: 0.008,
    Phase.AFTER: 0.002,
}
_BEFORE = (Phase.WAIT, Phase.FORWARD, Phase.BACKWARD)

#: Seconds that a rank (first argument) takes longer in each step: (ranks, phase, NumPy's generator, steps) -> (steps,).
Delay = Callable[[int, Phase, np.random.Generator, int], Array]


def _no_delay(_: int, __: Phase, ___: np.random.Generator, steps: int) -> Array:
    return np.zeros(steps)


def _late(rank: int, phase: Phase, seconds: float) -> Delay:
    return lambda one, where, _, steps: np.full(steps, seconds if (one, where) == (rank, phase) else 0.0)


def _train(
    delay: Delay = _no_delay,
    *,
    ranks: int = 2,
    steps: int = 40,
    transfer: float = 0.003,
    noise: float = 0.0005,
    offset: float = 0.0,
    hosts: int = 1,
    computes: bool = False,
    seed: int = 1,
    refused: float = 0.0,
) -> tuple[list[RankSteps], dict[int, Exchanges]]:
    """Play ranks that meet once a step: each works, waits for the last one, and transfers.

    Args:
        delay: What a rank takes longer.
        ranks: How many.
        steps: How many.
        transfer: Seconds of an exchange after all have come.
        noise: Standard deviation of each phase, in seconds.
        offset: Seconds by which the clock of each rank is ahead of that of the rank before it.
        hosts: On which they are.
        computes: A delay is CPU time; else it is slept.
        seed: Of the noise.
        refused: Mean seconds for which a rank has no core in its forward pass.
    """
    random = np.random.default_rng(seed)
    late = {(rank, phase): delay(rank, phase, random, steps) for rank in range(ranks) for phase in _WORK}
    wall = {
        (rank, phase): np.maximum(_WORK[phase] + random.normal(0, noise, steps), 0.0001) + late[rank, phase]
        for rank in range(ranks)
        for phase in _WORK
    }
    delay_of = {rank: random.exponential(refused, steps) if refused else np.zeros(steps) for rank in range(ranks)}
    for rank in range(ranks):
        wall[rank, Phase.FORWARD] = wall[rank, Phase.FORWARD] + delay_of[rank]
    now = np.zeros(ranks)
    started, began, ended = (np.zeros((steps, ranks)) for _ in range(3))
    for step in range(steps):
        started[step] = now
        began[step] = now + [sum(wall[rank, phase][step] for phase in _BEFORE) for rank in range(ranks)]
        ended[step] = began[step].max() + transfer
        now = ended[step] + [wall[rank, Phase.OPTIMIZER][step] + wall[rank, Phase.AFTER][step] for rank in range(ranks)]
    clock = np.arange(ranks) * offset
    finished = np.concatenate([started[1:], now[None]])
    found = [
        _steps_of(
            rank,
            f"host{rank % hosts}",
            started[:, rank] + clock[rank],
            finished[:, rank] - started[:, rank],
            {
                phase: _times(
                    wall[rank, phase], late[rank, phase], computes, delay_of[rank] if phase is Phase.FORWARD else 0.0
                )
                for phase in _WORK
            }
            | {Phase.EXCHANGE: _times(ended[:, rank] - began[:, rank], ended[:, rank] - began[:, rank], False)},
        )
        for rank in range(ranks)
    ]
    exchanges = {
        rank: Exchanges(
            host=f"host{rank % hosts}",
            step=np.arange(steps),
            began=began[:, rank] + clock[rank],
            ended=ended[:, rank] + clock[rank],
        )
        for rank in range(ranks)
    }
    return found, exchanges


def _times(wall: Array, late: Array, computes: bool, refused: Array | float = 0.0) -> Times:
    run_delay = np.zeros(len(wall)) + refused
    return Times(wall=wall, cpu=wall - run_delay - (0 if computes else late), run_delay=run_delay)


def _steps_of(rank: int, host: str, started: Array, wall: Array, phases: dict[Phase, Times]) -> RankSteps:
    count = len(started)
    steps = Stretches(
        unit=Stretch.STEP,
        number=np.arange(count),
        started=started,
        wall=wall,
        samples=np.full(count, 8),
        kinds=(Kind.EPOCH_START, *[Kind.PLAIN] * (count - 1)),
        is_failed=np.zeros(count, bool),
        microbatches=np.ones(count, np.int64),
        phases=phases,
    )
    batches = LoadedBatches(step=np.zeros(0, np.int64), process=np.zeros(0, np.int64), work={})
    return RankSteps(rank=rank, host=host, process=rank, steps=steps, validation=steps, between=steps, batches=batches)


def _judge(found: tuple[list[RankSteps], dict[int, Exchanges]]) -> RanksJudged:
    meetings = join_exchanges(found[1])
    assert meetings is not None
    judged = judge_ranks(found[0], meetings)
    assert judged is not None
    return judged


def test_a_meeting_is_cut_into_work_waiting_and_transfer() -> None:
    """The three parts are those that were played, and add up to the time between two exchanges."""
    _, exchanges = _train(_late(1, Phase.BACKWARD, 0.02), noise=0.0, steps=5)
    meetings = join_exchanges(exchanges)
    assert isinstance(meetings, Meetings)
    assert np.allclose(meetings.own[1:], [0.1, 0.12])
    assert np.allclose(meetings.wait, [0.02, 0.0])
    assert np.allclose(meetings.rest, 0.003)
    assert np.all(np.isnan(meetings.own[0]))
    between = np.diff(exchanges[0].ended)
    assert np.allclose((meetings.own + meetings.wait + meetings.rest)[1:, 0], between)


@pytest.mark.parametrize("computes", [False, True])
@pytest.mark.parametrize("phase", list(_WORK))
def test_a_rank_that_is_late_in_any_phase_is_named(phase: Phase, computes: bool) -> None:
    """Six percent of the step, in backward too (traceml #252), is named with its phase and with what the rank does there."""
    straggler = _judge(_train(_late(1, phase, 0.006), ranks=4, computes=computes)).straggler
    assert straggler is not None
    assert (straggler.rank, straggler.phase) == (1, phase)
    assert straggler.reason is (Reason.COMPUTES if computes else Reason.BLOCKED)
    assert straggler.phase_seconds == pytest.approx(0.006, abs=0.001)
    assert straggler.share_last > 0.9


def test_twenty_steps_are_enough() -> None:
    """A delay of a twentieth of the step is named within twenty plain steps."""
    judged = _judge(_train(_late(0, Phase.FORWARD, 0.005), steps=21))
    assert judged.straggler is not None
    assert judged.straggler.rank == 0
    assert judged.num_steps == 20


@pytest.mark.parametrize("ranks", [2, 4])
def test_balanced_ranks_are_not_accused(ranks: int) -> None:
    """Fifty runs with noise of a tenth of each phase name nobody."""
    for seed in range(50):
        assert _judge(_train(ranks=ranks, noise=0.004, seed=seed)).straggler is None


@pytest.mark.parametrize("phase", list(_WORK))
def test_a_busy_machine_does_not_hide_a_late_rank(phase: Phase) -> None:
    """Ranks are refused a core for longer than one of them is late, and that one is named, for what it does itself."""
    straggler = _judge(_train(_late(1, phase, 0.01), refused=0.03)).straggler
    assert straggler is not None
    assert (straggler.rank, straggler.phase, straggler.reason) == (1, phase, Reason.BLOCKED)
    assert straggler.had_cores


def test_a_busy_machine_makes_nobody_a_straggler() -> None:
    """Fifty runs in which balanced ranks are refused a core at random."""
    for seed in range(50):
        assert _judge(_train(refused=0.03, noise=0.002, seed=seed)).straggler is None


@pytest.mark.parametrize(("steps", "hosts", "finding"), [
    (40, 1, Finding.NOT_TOLD_APART), (250, 1, Finding.STRAGGLER), (40, 2, Finding.STRAGGLER),
])  # fmt: skip
@pytest.mark.parametrize("core", ["refused", "slow"])
def test_a_rank_with_a_worse_core_is_named_if_that_lasts(core: str, steps: int, hosts: int, finding: Finding) -> None:
    """Its machine is to blame, and the text says that; of ranks of one host chance decides for seconds whose core it is."""
    ranks, exchanges = _train(_worse_core, steps=steps, hosts=hosts, computes=core == "slow")
    for phase, times in ranks[1].steps.phases.items():
        if core == "refused" and phase is not Phase.EXCHANGE:
            ranks[1].steps.phases[phase] = Times(wall=times.wall, cpu=times.cpu, run_delay=times.wall - times.cpu)
    judged = _judge((ranks, exchanges))
    assert judged.finding is finding
    if judged.straggler is not None:
        reason = Reason.REFUSED_CORE if core == "refused" else Reason.COMPUTES
        assert (judged.straggler.rank, judged.straggler.reason, judged.straggler.had_cores) == (1, reason, False)


def _worse_core(rank: int, phase: Phase, _: np.random.Generator, steps: int) -> Array:
    return np.full(steps, 0.15 * _WORK[phase] if rank == 1 else 0.0)


def test_a_slow_core_does_not_hide_a_late_rank() -> None:
    """Rank 0 computes for 15 % longer in all phases, and rank 1, which sleeps in one, would be the last on equal cores."""

    def late(rank: int, phase: Phase, random: np.random.Generator, steps: int) -> Array:
        return _worse_core(1 - rank, phase, random, steps)

    ranks, exchanges = _train(late, computes=True)
    times = ranks[1].steps.phases[Phase.WAIT]
    ranks[1].steps.phases[Phase.WAIT] = Times(wall=times.wall + 0.006, cpu=times.cpu, run_delay=times.run_delay)
    exchanges[1] = dataclasses.replace(exchanges[1], began=exchanges[1].began + 0.006)
    straggler = _judge((ranks, exchanges)).straggler
    assert straggler is not None
    assert (straggler.rank, straggler.phase, straggler.reason) == (1, Phase.WAIT, Reason.BLOCKED)


def test_a_rank_with_larger_batches_is_named() -> None:
    """It takes longer in all phases, as with a slow core; but its batches have more samples."""
    ranks, exchanges = _train(_worse_core, computes=True)
    steps = dataclasses.replace(ranks[1].steps, samples=ranks[1].steps.samples + 1)
    straggler = _judge(([ranks[0], dataclasses.replace(ranks[1], steps=steps)], exchanges)).straggler
    assert straggler is not None
    assert straggler.rank == 1


def test_a_small_lead_is_not_worth_a_name() -> None:
    """A rank that is always last, by one percent of the step, is not named."""
    judged = _judge(_train(_late(1, Phase.WAIT, 0.001), noise=0.0))
    assert judged.finding is Finding.BALANCED
    assert judged.rows[1].share_last == 1.0


def test_a_lead_that_comes_in_spells_is_not_accused() -> None:
    """Always last, and in the middle by 2.5 % of the step; but by 1 % in six steps, and 4 % in the next: it may be chance."""

    def spells(rank: int, phase: Phase, _: np.random.Generator, steps: int) -> Array:
        late = np.where(np.arange(steps) // 6 % 2, 0.0045, 0.001)
        return late if (rank, phase) == (1, Phase.WAIT) else np.zeros(steps)

    judged = _judge(_train(spells, noise=0.0001))
    assert judged.straggler is None
    assert judged.rows[1].share_last == 1.0


def test_a_rank_that_comes_and_leaves_later_is_not_accused() -> None:
    """Exchanges that end for each rank at another time: both do the same work, one always 10 ms after the other."""
    ranks, exchanges = _train()
    one = exchanges[1]
    exchanges[1] = dataclasses.replace(one, began=one.began + 0.010, ended=one.ended + 0.010)
    first = exchanges[0]
    # The other one stays in the exchange until this one has come, so that clocks do not contradict each other.
    exchanges[0] = dataclasses.replace(first, ended=first.ended + 0.010)
    judged = _judge((ranks, exchanges))
    assert judged.rows[1].share_last == 1.0
    assert judged.straggler is None


def test_few_steps_are_not_told_apart() -> None:
    """Five of five may be chance."""
    judged = _judge(_train(_late(1, Phase.WAIT, 0.02), steps=6))
    assert (judged.finding, judged.straggler) == (Finding.NOT_TOLD_APART, None)


def test_whoever_loads_slowest_is_no_straggler() -> None:
    """The last one changes, and is late in loading: that is said instead of a rank."""

    def slow_batches(_: int, phase: Phase, random: np.random.Generator, steps: int) -> Array:
        return random.exponential(0.04, steps) if phase is Phase.WAIT else np.zeros(steps)

    judged = _judge(_train(slow_batches, ranks=4, steps=60))
    assert (judged.finding, judged.moving_phase) == (Finding.MOVING, Phase.WAIT)
    assert not judged.moves_with_cores


def test_ranks_that_are_refused_a_core_by_turns_lack_cores() -> None:
    """The last one changes, and it is not the batches."""
    judged = _judge(_train(refused=0.05))
    assert (judged.finding, judged.moves_with_cores) == (Finding.MOVING, True)
    cost = waiting_for_ranks(judged)
    assert cost is not None
    assert cost.says.endswith("mostly because that one had no core")
    assert "batches" not in cost.remedies[0].says


def test_late_after_the_update_shows_in_the_next_exchange() -> None:
    """The phase of a changing last rank is found in the step before, where it lies."""

    def slow_logging(rank: int, phase: Phase, _: np.random.Generator, steps: int) -> Array:
        late = np.where(np.arange(steps) % 2 == rank, 0.05, 0.0)
        return late if phase is Phase.AFTER else np.zeros(steps)

    judged = _judge(_train(slow_logging))
    assert (judged.finding, judged.moving_phase) == (Finding.MOVING, Phase.AFTER)


def test_a_slow_exchange_is_communication() -> None:
    """Everyone comes at once and the transfer is a third of the step."""
    judged = _judge(_train(transfer=0.05))
    assert judged.finding is Finding.COMMUNICATION
    assert judged.rest_share == pytest.approx(1 / 3, abs=0.03)


def test_fewer_exchanges_are_fewer_than_now() -> None:
    """Of a training that accumulates four batches: once for each update, if `no_sync` is missing, or for four updates."""
    cost = waiting_for_ranks(_judge(_train(transfer=0.05)), 4)
    assert cost is not None
    assert [one.settings for one in cost.remedies[:2]] == [("accumulate=4",), ("accumulate=16",)]
    cost = waiting_for_ranks(_judge(_train(transfer=0.05)))
    assert cost is not None
    assert cost.remedies[0].settings == ("accumulate=4",)


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("offset", [-0.005, 0.005, 30.0])
def test_a_clock_that_is_off_accuses_nobody(offset: float, hosts: int) -> None:
    """Balanced ranks whose clocks differ, on two hosts or on one whose name two machines share."""
    judged = _judge(_train(offset=offset, hosts=hosts))
    assert judged.straggler is None
    assert judged.uncertainty_seconds > 0


@pytest.mark.parametrize("offset", [-0.005, 0.005, 30.0])
def test_a_straggler_is_named_whatever_the_clocks_say(offset: float) -> None:
    """The ends of the exchanges align the clocks, and a lead above the transfer is named with the right rank."""
    judged = _judge(_train(_late(1, Phase.BACKWARD, 0.02), offset=offset, hosts=2))
    assert judged.straggler is not None
    assert (judged.straggler.rank, judged.straggler.phase) == (1, Phase.BACKWARD)


def test_a_lead_below_the_uncertainty_is_not_told_apart() -> None:
    """On two hosts a lead that is smaller than the transfer may be the clock's."""
    judged = _judge(_train(_late(1, Phase.BACKWARD, 0.02), transfer=0.03, hosts=2))
    assert (judged.finding, judged.straggler) == (Finding.NOT_TOLD_APART, None)


def test_several_exchanges_of_a_step_count_together() -> None:
    """A rank that is late before the first of two meetings is the step's last, whoever is last at the second."""
    random = np.random.default_rng(3)
    found, halves = _train(_late(1, Phase.WAIT, 0.02), steps=30)
    second = {
        rank: Exchanges(
            host=one.host,
            step=np.repeat(one.step, 2),
            began=np.stack([one.began, one.ended + 0.001 + random.uniform(0, 0.001, 30)], axis=1).ravel(),
            ended=np.stack([one.ended, halves[0].ended + 0.003], axis=1).ravel(),
        )
        for rank, one in halves.items()
    }
    straggler = _judge((found, second)).straggler
    assert straggler is not None
    assert (straggler.rank, straggler.phase) == (1, Phase.WAIT)


def test_ranks_without_a_common_step_are_not_joined() -> None:
    """One rank, or two that never met in the same step, give nothing."""
    _, exchanges = _train(steps=4)
    assert join_exchanges({0: exchanges[0]}) is None
    later = Exchanges(host="host0", step=exchanges[1].step + 10, began=exchanges[1].began, ended=exchanges[1].ended)
    assert join_exchanges({0: exchanges[0], 1: later}) is None
