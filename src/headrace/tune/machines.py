"""Whether to scale out, from the profile of one machine: what more machines bring, what they share, and what is still cheaper.

The rate of one machine comes from `capacity`'s own prediction of full load. So many of them are simulated behind what they
share (`diagnose.simulator.fleet`) for an hour, with their starts and interruptions, and each number is set beside one machine
of the same simulation. First stands what the diagnosis still finds on one machine: that costs a change of the Plan alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from headrace.base.errors import HeadraceError, SettingsError
from headrace.base.settings import check
from headrace.diagnose.diagnosis import diagnosis_document
from headrace.diagnose.replay import CannotReplay
from headrace.diagnose.simulator.fleet import Fleet, FleetTrace, Shared, simulate_fleet
from headrace.diagnose.steady_state import completions
from headrace.runs.formats.machines import Left, MachinesDocument, MachinesRow, SharedLimit
from headrace.runs.formats.prediction import Change, TrackRecord
from headrace.tune.improvements import plan_changes, remedies
from headrace.tune.machines_words import describe
from headrace.tune.shared_limits import check_names, seen_limits
from headrace.tune.usable_rate import UsableMachine

if TYPE_CHECKING:
    from headrace.diagnose.analysis import Analysis
    from headrace.diagnose.evidence import Evidence
    from headrace.diagnose.replay import Replay
    from headrace.runs.formats.profile import Estimate

SIMULATED_SECONDS = 3600.0
MOST_MACHINES = 1000
#: What is left on one machine is worth a line from this ratio on.
LEAST_LEFT = 1.05
#: Machines that wait for less than this share of their time are not held up by what they share.
LEAST_HELD = 0.02
#: A model that takes longer to open than this was interrupted by something else.
_MOST_START_SECONDS = 3600.0
_FEWEST_BINS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is asked for."""

    machines: tuple[int, ...]
    change: Change = field(default_factory=Change)
    """What each machine does otherwise than the recorded one."""
    boot_seconds: float = 0.0
    """From wanting a machine until the program starts; what the program then takes is read from the run."""
    interruptions_per_hour: float = 0.0
    """Of one machine."""
    price_per_hour: float | None = None
    """Of one machine."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every value."""
        check(bool(self.machines), "--machines", self.machines, "at least one number")
        for number in reversed(self.machines):  # the largest is one that was typed
            check(1 <= number <= MOST_MACHINES, "--machines", number, f"1 to {MOST_MACHINES}")
        check(0 <= self.boot_seconds < SIMULATED_SECONDS, "--start", self.boot_seconds, "0 to an hour")
        check(0 <= self.interruptions_per_hour <= 60, "--interruptions", self.interruptions_per_hour, "0 to 60 an hour")


def parse_machines(text: str) -> tuple[int, ...]:
    """Return the numbers of machines in `1,2,4,100`; one number alone stands for 1, 2, 4 and so on up to it.

    Raises:
        SettingsError: If these are no numbers of machines.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and 1 <= len(part) <= 6 for part in parts):
        raise SettingsError(f"--machines: expected numbers such as 100 or 1,2,4,100; got {text!r}")
    numbers = sorted({int(part) for part in parts})
    if len(numbers) == 1:
        last = numbers[0]
        numbers = [*(2**power for power in range(last.bit_length()) if 2**power < last), last]
    return tuple(numbers)


def machines_document(analysis: Analysis, wish: Wish, limits: Sequence[SharedLimit] = ()) -> MachinesDocument:
    """Return what more machines bring.

    Args:
        analysis: Of one machine's run.
        wish: What is asked for.
        limits: What all machines share, as far as the user says; what the run itself ran into is added.

    Raises:
        CannotReplay: If the rate of one machine cannot be told.
    """
    replay, profile = analysis.replay, analysis.profile
    one = _one_machine(replay, wish)
    limits = (*limits, *(seen for seen in seen_limits(diagnosis_document(analysis), profile) if _is_new(seen, limits)))
    check_names(limits)
    start = wish.boot_seconds + _load_seconds(analysis.evidence, profile.window.warm_up_seconds)
    in_flight = one.mid * (profile.latency.mean or 0.0)
    spread = _spread(analysis.evidence, profile.window.from_seconds, profile.window.to_seconds)

    fleet = Fleet(
        machines=1,
        jobs_per_second=one.mid,
        in_flight=max(1.0, in_flight),
        spread=spread,
        seconds=SIMULATED_SECONDS,
        start_seconds=start,
        interruptions_per_second=wish.interruptions_per_hour / 3600,
        lost_jobs=in_flight,
        shared=[Shared(name=limit.name, jobs_per_second=limit.jobs_per_second) for limit in limits],
        seed=wish.seed,
    )
    alone = simulate_fleet(replace(fleet, interruptions_per_second=0.0, spread=0.0))
    rows = tuple(
        _row(number, simulate_fleet(replace(fleet, machines=number)), alone, wish.price_per_hour)
        for number in wish.machines
    )
    smallest = min((limit.jobs_per_second for limit in limits), default=None)
    document = MachinesDocument(
        run=profile.run,
        headrace_version=profile.headrace_version,
        pipeline=profile.pipeline,
        plan_id=profile.plan_id,
        one=one,
        in_flight=in_flight,
        spread=spread,
        start_seconds=start,
        interruptions_per_hour=wish.interruptions_per_hour,
        price_per_hour=wish.price_per_hour,
        seconds=SIMULATED_SECONDS,
        limits=limits,
        rows=rows,
        linear_up_to=None if smallest is None else smallest / one.mid,
        left=tuple(_find_left(analysis)) if wish.change.is_nothing else (),
        says=(),
        warnings=tuple(_warnings(analysis, limits)),
        is_emulated=profile.is_emulated,
    )
    return describe(document, wish.boot_seconds)


def _one_machine(replay: Replay, wish: Wish) -> Estimate:
    machine = UsableMachine(replay, wish.seed)
    metric = machine.predict(wish.change, TrackRecord(num=0)).throughput
    if metric.predicted is None:
        raise CannotReplay(metric.refused)
    full = machine.full_load(wish.change, metric.predicted)
    if not full.mid > 0:
        raise CannotReplay(
            "one machine does nothing in simulation, and more of them do no more; profile a run that delivers"
        )
    return full


def _is_new(seen: SharedLimit, limits: Sequence[SharedLimit]) -> bool:
    return all(seen.name != limit.name for limit in limits)


def _load_seconds(evidence: Evidence, warm_up_seconds: float) -> float:
    """Return what the run took until it was warm: opening its models, and warming up."""
    if not len(evidence.spans):
        return 0.0
    seconds = (evidence.spans.origin_ns - evidence.info.started_monotonic_ns) / 1e9 + warm_up_seconds
    return seconds if 0 <= seconds <= _MOST_START_SECONDS else 0.0


def _spread(evidence: Evidence, first: float, last: float) -> float:
    """Return the standard deviation of the jobs done in a second, over their mean; 0 where the run is too short to tell."""
    bin_seconds = min(1.0, (last - first) / 10)
    num_bins = int((last - first) / bin_seconds) if bin_seconds > 0 else 0
    if num_bins < _FEWEST_BINS:
        return 0.0
    done = np.diff(completions(evidence, delivered=True).at(np.linspace(first, last, num_bins + 1)))
    mean = float(done.mean())
    return float(done.std()) / mean * bin_seconds**0.5 if mean > 0 else 0.0


def _row(machines: int, trace: FleetTrace, alone: FleetTrace, price: float | None) -> MachinesRow:
    time = machines * SIMULATED_SECONDS
    done = max(0.0, trace.done)
    held = trace.held_seconds / time
    busiest = max(trace.busy, key=lambda name: trace.busy[name], default="")
    return MachinesRow(
        machines=machines,
        jobs_per_second=done / SIMULATED_SECONDS,
        efficiency=min(1.0, done / (machines * alone.done)) if alone.done > 0 else 0.0,
        limited_by=busiest if held > LEAST_HELD else "",
        busy=dict(trace.busy),
        held_share=held,
        starting_share=trace.starting_seconds / time,
        again_share=trace.again / done if done else 0.0,
        interruptions=trace.interruptions,
        cost_per_million=machines * price * SIMULATED_SECONDS / 3600 / done * 1e6
        if price is not None and done
        else None,
    )


def _find_left(analysis: Analysis) -> list[Left]:
    """Return what the diagnosis advises and what settings give in simulation, the most first."""
    found: dict[tuple[str, ...], Left] = {}
    for wanted in (*remedies(analysis), *plan_changes(analysis.replay)):
        try:
            ratio = analysis.replay.ratio(wanted.change)
        except (HeadraceError, ValueError):
            continue  # it cannot be predicted, so nothing is claimed of it
        if ratio >= LEAST_LEFT:
            found.setdefault(tuple(wanted.change.settings), Left(name=wanted.name, change=wanted.change, ratio=ratio))
    return sorted(found.values(), key=lambda left: -left.ratio)


def _warnings(analysis: Analysis, limits: Sequence[SharedLimit]) -> list[str]:
    replay, found = analysis.replay, []
    if not limits:
        found.append(
            "nothing is known that the machines share, so more of them are predicted to bring as many times as much; name the "
            "limits of queue, store, network and receivers, as in --limit receiver=500/s --limit store=1GB/s"
        )
    notes = analysis.evidence.summary.get("counters", {}).get("notes", {})
    if notes.get("video.decoded") and analysis.evidence.info.source_work is None:
        found.append(
            "the run was of live streams, which machines do not take from one another: each has its own, and --cameras, "
            "such as --cameras 25/s, says how many"
        )
    if replay.is_open:
        found.append("the run waited for jobs: the full load of one machine is extrapolated by simulation")
    if any("sqlite:" in option for option in analysis.profile.options):
        found.append(
            "the run's queue is a file of one machine; several machines need one that has a service: sqs:, redis:"
        )
    return found
