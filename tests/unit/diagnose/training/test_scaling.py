"""What takes the efficiency of several ranks, from run folders of which every duration is known."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.diagnose.replay.demands import CannotReplay
from headrace.diagnose.training import scaling, scaling_predicted
from headrace.diagnose.training.scaling import ShortTraining, describe_rungs, find_doubts, read_short_training
from headrace.runs.formats.profile import Estimate
from headrace.runs.formats.scaling import Part, Proposal
from headrace.runs.formats.training_ranks import Same, SameData
from headrace.runs.reader import read_run
from headrace.runs.training_phases import Kind, Phase
from tests.unit.diagnose.training.made_runs import MadeRun


def _alone(path: Path, delay_share: float = 0.0) -> ShortTraining:
    made = MadeRun(path)
    for number in range(12):
        made.stretch(
            {Phase.WAIT: 2, Phase.FORWARD: 4, Phase.BACKWARD: 8, Phase.OPTIMIZER: 5, Phase.AFTER: 1},
            kind=Kind.EPOCH_START if not number else Kind.PLAIN,
            cpu_share=1 - delay_share,
            delay_share=delay_share,
        )
    made.finish()
    return read_short_training(read_run(path), 1)


def _together(path: Path) -> ShortTraining:
    """Return two ranks that have no core for a tenth of the time; the second is 6 ms late, the exchange then takes 10 ms."""
    made = MadeRun(path)
    for number, rank in itertools.product(range(12), range(2)):
        made.stretch(
            {
                Phase.WAIT: 2,
                Phase.FORWARD: 4 + 6 * rank,
                Phase.BACKWARD: 8,
                Phase.EXCHANGE: 16 - 6 * rank,
                Phase.OPTIMIZER: 5,
                Phase.AFTER: 1,
            },
            rank=rank,
            kind=Kind.EPOCH_START if not number else Kind.PLAIN,
            cpu_share=0.9,
            delay_share=0.1,
        )
    made.finish()
    return read_short_training(read_run(path), 2)


def test_parts_add_up_to_the_step(tmp_path: Path) -> None:
    """Of each training: own work without waiting for a core, that, waiting for the last rank, and the transfer."""
    together = _together(tmp_path / "two")
    assert together.step_seconds == pytest.approx(0.036)
    assert sum(together.parts.values()) == pytest.approx(together.step_seconds)
    assert together.parts[Part.WAITING] == pytest.approx(0.003)
    assert together.parts[Part.TRANSFER] == pytest.approx(0.010)
    assert together.parts[Part.NO_CORE] == pytest.approx(0.1 * (0.020 + 0.026) / 2)
    assert together.parts[Part.OPTIMIZER] == pytest.approx(0.9 * 0.005)
    assert together.samples == 16
    assert together.num_steps == 9  # without the first three


def test_what_is_lost_adds_up(tmp_path: Path) -> None:
    """The losses by part are 1 - efficiency, which is the ratio of throughputs over the ranks."""
    alone, together = _alone(tmp_path / "one"), _together(tmp_path / "two")
    first, second = describe_rungs({1: [alone], 2: [together]})
    assert first.efficiency.mid == 1.0
    assert set(first.losses.values()) == {0.0}
    assert second.efficiency.mid == pytest.approx(second.samples_per_second / first.samples_per_second / 2)
    assert second.efficiency.mid == pytest.approx(20 / 36)
    assert sum(second.losses.values()) == pytest.approx(1 - second.efficiency.mid)
    assert second.losses[Part.TRANSFER] == pytest.approx(10 / 36)


def test_what_makes_efficiencies_doubtful_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank that had no core for a fifth of its step, and ranks that were given the same batches."""
    two = {2: [_together(tmp_path / "two")]}
    run = read_run(tmp_path / "two")
    assert find_doubts(describe_rungs({1: [_alone(tmp_path / "quiet")], **two}), run) == []
    crowded = describe_rungs({1: [_alone(tmp_path / "crowded", delay_share=0.2)], **two})
    assert find_doubts(crowded, run)[0].startswith(
        "the training on one rank could go on and had no core for 20% of its step"
    )
    same = SameData(what=Same.RANKS, loader=0, ranks=(0, 1), num_batches=8, sampler="")
    document = SimpleNamespace(together=SimpleNamespace(same_data=(same,)))
    monkeypatch.setattr(scaling, "training_document", lambda _: document)
    assert find_doubts(crowded, run)[1].startswith(
        "ranks 0, 1 were given the same batches: 2 ranks do the work of one; give"
    )


def test_a_batch_that_is_shared_out_is_seen_as_such(tmp_path: Path) -> None:
    """Half the batch on each of two ranks, in half the time, is full efficiency."""
    alone = _alone(tmp_path / "one")
    half = ShortTraining(
        ranks=2,
        num_steps=9,
        step_seconds=alone.step_seconds / 2,
        samples=alone.samples,
        parts={part: seconds / 2 for part, seconds in alone.parts.items()},
        noise=0.01,
    )
    assert describe_rungs({1: [alone], 2: [half]})[1].efficiency.mid == pytest.approx(1.0)


def test_rounds_that_differ_make_the_interval_wide(tmp_path: Path) -> None:
    """It comes from how pairs of neighbours differ, and holds the middle."""
    alone, together = _alone(tmp_path / "one"), _together(tmp_path / "two")
    slower = ShortTraining(
        ranks=2,
        num_steps=9,
        step_seconds=together.step_seconds * 1.2,
        samples=together.samples,
        parts={part: seconds * 1.2 for part, seconds in together.parts.items()},
        noise=0.0,
    )
    alike = describe_rungs({1: [alone] * 3, 2: [together] * 3})[1].efficiency
    differing = describe_rungs({1: [alone] * 3, 2: [together, slower, together]})[1].efficiency
    assert differing.high / differing.low > alike.high / alike.low
    assert differing.low < differing.mid < differing.high


@pytest.mark.parametrize(
    ("ratio", "is_made"),
    [(Estimate(0.96, 1.04, 1.12), False), (Estimate(1.00, 1.20, 1.40), False), (Estimate(1.05, 1.20, 1.40), True)],
)
def test_what_may_bring_nothing_is_not_proposed(
    ratio: Estimate, is_made: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The low end of the interval has to pay."""
    made = Proposal(says="exchange once for 2 batches", setting="accumulate=2", ratio=ratio)
    monkeypatch.setattr(scaling_predicted, "_settings", lambda replay, rung: [(made.says, made.setting)])
    monkeypatch.setattr(scaling_predicted, "_try_setting", lambda replay, says, setting: made)
    monkeypatch.setattr(scaling_predicted, "_faster_link", lambda replay: None)
    rung = describe_rungs({1: [_alone(tmp_path / "one")], 2: [_together(tmp_path / "two")]})[1]
    found = scaling_predicted.propose(SimpleNamespace(), rung, num_cores=4, threads=1)  # type: ignore[arg-type]
    assert found == [made] * is_made


def test_ranks_that_train_alone_are_told_how(tmp_path: Path) -> None:
    """Two processes that both call themselves rank 0 are no two ranks."""
    made = MadeRun(tmp_path / "run")
    for _ in range(12):
        made.stretch({Phase.FORWARD: 4, Phase.BACKWARD: 8})
    made.finish()
    with pytest.raises(CannotReplay, match=r"did not train as 2 ranks.*init_process_group"):
        read_short_training(read_run(tmp_path / "run"), 2)


def test_ranks_without_an_exchange_are_told_which_is_missing(tmp_path: Path) -> None:
    """A model outside of DistributedDataParallel."""
    made = MadeRun(tmp_path / "run")
    for _, rank in itertools.product(range(12), range(2)):
        made.stretch({Phase.FORWARD: 4, Phase.BACKWARD: 8}, rank=rank)
    made.finish()
    with pytest.raises(CannotReplay, match="DistributedDataParallel"):
        read_short_training(read_run(tmp_path / "run"), 2)


def test_too_few_steps_are_no_measurement(tmp_path: Path) -> None:
    """The first three do not count."""
    made = MadeRun(tmp_path / "run")
    for _ in range(6):
        made.stretch({Phase.FORWARD: 4, Phase.BACKWARD: 8})
    made.finish()
    with pytest.raises(CannotReplay, match="3 plain steps"):
        read_short_training(read_run(tmp_path / "run"), 1)
