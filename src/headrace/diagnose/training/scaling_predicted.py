"""More ranks than were measured, the bandwidth at which they stop to pay, and what would help: from one profile and a link."""

from __future__ import annotations

from headrace.base.errors import SettingsError
from headrace.base.units import format_size
from headrace.diagnose.replay.demands import CannotReplay
from headrace.diagnose.training.simulation_exchange import ExchangeModel, Link, bisect_logarithm, fill_buckets
from headrace.diagnose.training.simulation_ranks import recorded_bandwidth
from headrace.diagnose.training.simulation_whatif import TrainingReplay
from headrace.runs.formats.prediction import Change
from headrace.runs.formats.profile import Estimate
from headrace.runs.formats.scaling import MeasuredLink, Part, PredictedRanks, Proposal, Rung
from headrace.runs.training_phases import Phase

#: Bytes per second between which a turn is looked for: a modem, and more than any link.
_SLOWEST, _FASTEST = 1e3, 1e13
#: Efficiency that is good enough.
_GOOD = 0.9
#: A proposal whose interval begins below this is not made: it may bring nothing, or cost time.
_PAYS = 1.03
#: A loss of efficiency that is worth a proposal.
_WORTH = 0.05


def link_settings(link: MeasuredLink) -> tuple[str, ...]:
    """Return a link as `headrace whatif --set` takes it."""
    return (
        f"link.bandwidth={link.bytes_per_second:.0f}",
        f"link.latency={link.latency_seconds * 1e6:.3f}us",
        f"link.cpu={link.byte_cpu_seconds * 1e9:.6f}s",
        f"link.message_cpu={link.message_cpu_seconds * 1e6:.3f}us",
    )


def predict_rate(replay: TrainingReplay, ranks: int, link: MeasuredLink, *, apart: bool = False) -> Estimate:
    """Return samples per second with that many ranks.

    Args:
        replay: Of the training of one rank.
        ranks: How many.
        link: Between them.
        apart: Each has a machine like the recorded one.

    Raises:
        CannotReplay: If that cannot be simulated.
    """
    change = Change(
        settings=(f"ranks={ranks}", *(link_settings(link) if ranks > 1 else ())),
        cores=replay.recorded.cores * ranks if apart else None,
        quiet=apart and bool(replay.others),
    )
    predicted = replay.predict(change).throughput.predicted
    assert predicted is not None  # the simulator refuses by raising
    return predicted


def predict_ranks(replay: TrainingReplay, ranks: int, link: MeasuredLink) -> PredictedRanks:
    """Return what that many ranks would bring, here and with a machine each."""
    return PredictedRanks(
        ranks=ranks,
        here=predict_rate(replay, ranks, link),
        apart=predict_rate(replay, ranks, link, apart=True),
        slower_below=turning_bandwidth(replay, ranks, link, 1 / ranks),
        good_above=turning_bandwidth(replay, ranks, link, _GOOD),
    )


def turning_bandwidth(replay: TrainingReplay, ranks: int, link: MeasuredLink, efficiency: float) -> float | None:
    """Return the bytes per second below which ranks on machines of their own have less than an efficiency; None: no such one.

    With an efficiency of 1 / ranks they are as fast as one rank. Waiting for one another is left out.

    Args:
        replay: Of the training of one rank.
        ranks: How many.
        link: Whose latency and cost of a core are kept.
        efficiency: Above 0, below 1.
    """
    recorded = replay.recorded
    sizes = recorded.exchange.gradients
    if not sizes:
        return None
    buckets = fill_buckets(sizes, recorded.exchange.bucket, recorded.exchange.first_bucket)
    allowed = recorded.step_seconds * (1 / efficiency - 1)
    needs = recorded.phases.get(Phase.BACKWARD)
    backward = 0.0 if needs is None else float((needs.total / recorded.microbatches).mean())

    def is_slower(bandwidth: float) -> bool:
        own = Link(latency=link.latency_seconds, bandwidth=bandwidth)
        return ExchangeModel(buckets=buckets, link=own).exposed(backward, ranks) > allowed

    if is_slower(_FASTEST) or not is_slower(_SLOWEST):
        return None
    return bisect_logarithm(is_slower, _SLOWEST, _FASTEST)


def propose(replay: TrainingReplay, rung: Rung, *, num_cores: float, threads: int) -> list[Proposal]:
    """Return what would make the measured ranks faster, the best first.

    Args:
        replay: Of those ranks.
        rung: What was measured of them.
        num_cores: Of the machine.
        threads: Of each rank.
    """
    found = [_try_setting(replay, says, setting) for says, setting in _settings(replay, rung)]
    found.append(_faster_link(replay) if len(found) else None)
    useful = [one for one in found if one is not None and one.ratio is not None and one.ratio.low >= _PAYS]
    useful.sort(key=lambda one: -one.ratio.mid if one.ratio else 0.0)
    if rung.losses[Part.NO_CORE] + rung.losses[Part.COMPUTING] > _WORTH and rung.ranks * threads > num_cores:
        useful.insert(0, _more_cores(rung, num_cores, threads))
    return useful


def _more_cores(rung: Rung, num_cores: float, threads: int) -> Proposal:
    lost = rung.losses[Part.NO_CORE] + rung.losses[Part.COMPUTING]
    return Proposal(
        says=f"{rung.ranks} ranks of {threads} thread(s) want {rung.ranks * threads} cores, and there are {num_cores:g}: that "
        f"takes {lost:.0%} of the efficiency, and nothing in the script gives it back; more cores or more machines do",
        setting="",
    )


#: What helps where gradients are accumulated, and exchanged all the same.
_ONCE = "exchange once for each update: accumulate under model.no_sync()"


def _settings(replay: TrainingReplay, rung: Rung) -> list[tuple[str, str]]:
    """Return what to try: (in words, as `--set` takes it)."""
    if rung.losses[Part.TRANSFER] + rung.losses[Part.WAITING] < _WORTH:
        return []
    held = round(float(replay.recorded.microbatches.mean()))
    whole = round(sum(replay.recorded.exchange.gradients))
    return [
        *(
            (
                f"exchange once for {times} batches: accumulate gradients under model.no_sync() (the batch of an update grows)",
                f"accumulate={held * times}",
            )
            for times in (2, 4, 8)
        ),
        *([] if held == 1 else [(f"{_ONCE} (of an update's {held} batches)", f"accumulate={held}")]),
        (
            # not bf16_compress_hook, which PyTorch refuses with gloo
            "exchange gradients in two bytes: model.register_comm_hook(None, ddp_comm_hooks.default_hooks.fp16_compress_hook)",
            "gradients=float16",
        ),
        (f"one bucket: DistributedDataParallel(model, bucket_cap_mb={whole / 2**20:.0f})", f"bucket={whole}B"),
        (
            "smaller buckets, which are sent earlier: DistributedDataParallel(model, bucket_cap_mb=2)",
            f"bucket={2 * 2**20}B",
        ),
    ]


def _try_setting(replay: TrainingReplay, says: str, setting: str) -> Proposal | None:
    try:
        ratio = replay.predict(Change(settings=(setting,))).throughput.ratio
    except (CannotReplay, SettingsError):
        return None
    return Proposal(says=says, setting=setting, ratio=ratio)


def _faster_link(replay: TrainingReplay, times: float = 10.0) -> Proposal | None:
    """Return what a faster link would bring to recorded ranks; None where the recorded one has no limit."""
    bandwidth = recorded_bandwidth(replay.recorded)
    if bandwidth is None or not bandwidth < _FASTEST:
        return None
    says = (
        f"a faster link: {format_size(bandwidth * times)}/s where {format_size(bandwidth)}/s explain what was measured"
    )
    return _try_setting(replay, says, f"link.bandwidth={bandwidth * times:.0f}")
