"""Other numbers of ranks, links and buckets, predicted from run folders of which every duration is known."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest

from headrace.base.errors import SettingsError
from headrace.diagnose.replay.demands import CannotReplay
from headrace.diagnose.training.change_settings import parse_change
from headrace.diagnose.training.simulation_changes import build_model
from headrace.diagnose.training.simulation_measured import loader_settings, missing_settings, training_ratio
from headrace.diagnose.training.simulation_ranks import recorded_bandwidth
from headrace.diagnose.training.simulation_recorded import read_training
from headrace.diagnose.training.simulation_whatif import TrainingReplay
from headrace.runs.formats.prediction import Change
from headrace.runs.formats.training_ranks import GradientsInfo
from headrace.runs.reader import Run, read_run
from headrace.runs.training_phases import Kind, Phase
from tests.unit.diagnose.training.made_runs import MadeRun

#: Of 10 MB, in one bucket of DistributedDataParallel's usual size after a small first one.
SIZES = (9_000_000, 1_100_000)
STEPS = 24


def _run(path: Path, *, ranks: int = 1, exchange: float = 0.0, computes: bool = False) -> Run:
    """Return steps of 40 ms, 20 of them backward, without loading; ranks then exchange for some milliseconds.

    Unless it computes, a step waits for a device, and it does not matter how many cores this machine has.
    """
    made = MadeRun(path)
    for number, rank in itertools.product(range(STEPS), range(ranks)):
        phases = {Phase.FORWARD: 15.0, Phase.BACKWARD: 20.0}
        if exchange:
            phases[Phase.EXCHANGE] = exchange
        phases[Phase.OPTIMIZER] = 5.0
        made.stretch(
            phases,
            rank=rank,
            kind=Kind.PLAIN if number else Kind.EPOCH_START,
            asleep=(Phase.EXCHANGE,) if computes else phases,
        )
    made.finish(gradients=GradientsInfo(sizes=SIZES))
    return read_run(path)


def _predict(run: Run, *settings: str, cores: float | None = 64.0) -> float:
    """Return the predicted ratio of throughputs, with cores enough."""
    predicted = TrainingReplay(run).predict(Change(settings=settings, cores=cores)).throughput.ratio
    assert predicted is not None
    return predicted.mid


def test_two_ranks_cost_what_their_link_does(tmp_path: Path) -> None:
    """A second bucket of 9 MB that nothing hides, at 1 GB/s: 9 ms more than the 40."""
    run = _run(tmp_path / "run")
    settings = ("ranks=2", "link.bandwidth=1GB/s", "link.latency=0s")
    assert _predict(run, *settings) == pytest.approx(2 * 40 / 49, rel=0.02)


def test_a_slow_link_makes_more_ranks_slower_than_one(tmp_path: Path) -> None:
    """And accumulating makes them faster than one again."""
    run = _run(tmp_path / "run")
    settings = ("ranks=4", "link.bandwidth=50MB/s", "link.latency=50us")
    slow = _predict(run, *settings)
    assert slow < 1
    assert _predict(run, *settings, "accumulate=8") > 1.5
    assert slow < _predict(run, *settings, "gradients=bfloat16") < 2 * slow


def test_what_messages_compute_is_taken_from_the_ranks(tmp_path: Path) -> None:
    """With a core each it is part of the latency; four ranks on one core compute their messages one after the other."""
    run = _run(tmp_path / "run", computes=True)
    settings = ("ranks=4", "link.bandwidth=100GB/s", "link.latency=1ms")
    free, computed = (
        [_predict(run, *settings, *more, cores=cores) for more in ((), ("link.message_cpu=1ms",))]
        for cores in (64.0, 1.0)
    )
    assert free[1] == pytest.approx(free[0], rel=0.01)
    assert computed[1] < 0.9 * computed[0]


def test_ranks_without_a_core_each_are_no_faster(tmp_path: Path) -> None:
    """Four ranks that compute on two cores bring what two bring."""
    run = _run(tmp_path / "run", computes=True)
    settings = ("link.bandwidth=100GB/s", "link.latency=0s")
    four, two = (_predict(run, f"ranks={ranks}", *settings, cores=2.0) for ranks in (4, 2))
    assert four == pytest.approx(two, rel=0.02)


def test_recorded_ranks_are_replayed(tmp_path: Path) -> None:
    """Their own exchange gives the bandwidth of their link, and with it their rate comes out again."""
    run = _run(tmp_path / "run", ranks=2, exchange=18.0)
    replay = TrainingReplay(run)
    assert replay.recorded.exchange.exposed == pytest.approx(0.018)
    assert [one.exchange for one in replay.recorded.peers] == [replay.recorded.exchange]  # they meet as often
    assert recorded_bandwidth(replay.recorded) == pytest.approx(9e6 / 0.018, rel=0.02)
    assert replay.misfit == pytest.approx(0.0, abs=0.02)
    assert _predict(run, "link.bandwidth=100GB/s", "link.latency=0s") == pytest.approx(58 / 40, rel=0.03)
    assert _predict(run, "ranks=1") == pytest.approx(58 / 40 / 2, rel=0.03)
    assert _predict(run, "accumulate=3") == pytest.approx(3 * 58 / (3 * 35 + 18 + 5), rel=0.03)


@pytest.mark.parametrize("per_step", [3.0, 1.0])
def test_accumulating_as_before_exchanges_once(tmp_path: Path, per_step: float) -> None:
    """Three batches a step, of which each was exchanged: the same under `no_sync` is a change. With it already, it is none."""
    recorded = read_training(_run(tmp_path / "run", ranks=2, exchange=18.0))
    held = {"microbatches": np.full(len(recorded), 3), "loading": {}}
    held["exchange"] = dataclasses.replace(recorded.exchange, per_step=per_step)
    peers = tuple(dataclasses.replace(one, **held) for one in recorded.peers)
    recorded = dataclasses.replace(recorded, peers=peers, **held)
    before, changed = (build_model(recorded, Change(settings=one)) for one in ((), ("accumulate=3",)))
    assert [one.exchanges for one in changed.epochs[0][0].microbatches] == [False, False, True]
    assert (before == changed) == (per_step == 1.0)


def test_buckets_that_are_sent_earlier_expose_less(tmp_path: Path) -> None:
    """A bucket for each parameter: the first is sent while the backward pass goes on. All in one: nothing is."""
    run = _run(tmp_path / "run", ranks=2, exchange=18.0)
    assert _predict(run, "bucket=100MB") == pytest.approx(58 / 60.2, rel=0.02)
    assert _predict(run, "bucket=25MB") <= _predict(run, "bucket=500kB")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (("ranks=2",), r"link\.bandwidth=1GB/s"),
        (("link.bandwidth=1GB/s",), "add --set ranks=N"),
        (("bucket=1MB",), "add --set ranks=N"),
    ],
)
def test_what_one_rank_cannot_tell_is_refused(tmp_path: Path, settings: tuple[str, ...], says: str) -> None:
    """With what to say instead."""
    with pytest.raises(CannotReplay, match=says):
        _predict(_run(tmp_path / "run"), *settings)


@pytest.mark.parametrize(
    "setting",
    [
        "ranks=0",
        "ranks=two",
        "link.bandwidth=0",
        "link.bandwidth=fast",
        "link.latency=-1",
        "bucket=0",
        "gradients=int8",
    ],
)
def test_impossible_values_are_settings_errors(setting: str) -> None:
    """They name the setting."""
    with pytest.raises(SettingsError, match=setting.partition("=")[0]):
        parse_change(Change(settings=(setting,)))


def test_bandwidths_are_read_as_people_write_them() -> None:
    """In bytes and in bits."""
    for text, value in (("1GB/s", 1e9), ("10Gbit/s", 1.25e9), ("100mbit", 1.25e7), ("2500", 2500.0)):
        assert parse_change(Change(settings=(f"link.bandwidth={text}",))).bandwidth == value


def test_what_is_taken_for_granted_is_said(tmp_path: Path) -> None:
    """Batches of the same size, shared cores, even gradients, a ring."""
    run = _run(tmp_path / "run")
    said = " ".join(TrainingReplay(run).predict(Change(settings=("ranks=2", "link.bandwidth=1GB/s"))).assumes)
    assert "batches as large as those recorded" in said
    assert "share the" in said
    assert "ring" in said


def test_ranks_that_were_predicted_are_looked_for(tmp_path: Path) -> None:
    """A run of another number of ranks is no proof; one of that number is compared by all of their samples."""
    one, two = _run(tmp_path / "one"), _run(tmp_path / "two", ranks=2, exchange=10.0)
    assert missing_settings(loader_settings(one), Change(settings=("ranks=2",))) == ["ranks=1"]
    assert missing_settings(loader_settings(two), Change(settings=("ranks=2",))) == []
    assert training_ratio(one, two).mid == pytest.approx(2 * 40 / 50)
