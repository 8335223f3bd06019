"""What one machine can be asked to do: its full load, and the part of it at which a latency goal holds.

Full load is what `whatif` predicts, with its interval. The part of it comes from the simulator: jobs arrive at random times
(Poisson), and the largest rate is sought at which the percentile keeps to its limit. Both are rates of the same simulation, so
that what it gets wrong about the machine's speed cancels.

Random arrivals that are dealt out at random among m machines are random arrivals at each of them, so one machine with 1/m of
the rate stands for all. Machines that take from one queue wait less: the answer errs to the safe side.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from headrace.base.goals import LatencyGoal
from headrace.base.statistics import samples_needed
from headrace.diagnose.whatif import MOST_RUN_DELAY, predict
from headrace.runs.formats.prediction import Change, TrackRecord
from headrace.runs.formats.profile import Estimate
from headrace.runs.rerun_command import profile_again
from headrace.tune.largest_rate import Held, largest_share

if TYPE_CHECKING:
    from headrace.diagnose.replay import Replay
    from headrace.runs.formats.prediction import PredictionDocument

#: Jobs that are simulated for a percentile: so many times those without which it may not be quoted, and no fewer than this.
_SAMPLES, _FEWEST_JOBS = 8, 2000
#: The first tenth of the jobs meets an empty machine and counts for nothing.
_WARM_UP = 0.1
#: Arrivals so many times the throughput of the run are tried first, to keep the machine at full load; then so many times more.
_FLOOD = 8.0
#: Full load is what is done when no more than this share of the arrivals can be.
_FLOODED = 0.5
#: A machine that costs nothing in simulation has no full load.
_MOST_TRIES = 8


class UsableMachine:
    """One machine as recorded, which can be asked about changes.

    Args:
        replay: The recorded run.
        seed: Of the arrival times; the same for all rates, so that they can be compared.
    """

    def __init__(self, replay: Replay, seed: int = 0) -> None:
        self.replay = replay
        self._seed = seed

    def predict(self, change: Change, record: TrackRecord) -> PredictionDocument:
        """Return what the change does to the run as it was."""
        return predict(self.replay, change, record=record)

    @property
    def was_idle(self) -> bool:
        """Whether the run waited for jobs, so that the machine can do more than was recorded."""
        return self.replay.is_open

    def full_load(self, change: Change, predicted: Estimate) -> Estimate:
        """Return the throughput at full load, from the one predicted for the arrivals of the run.

        Args:
            change: What is done otherwise.
            predicted: Throughput of the changed run, jobs per second.
        """
        if not self.was_idle:
            return predicted
        more = self._full_rate(change) / self._rate(change)
        return Estimate(predicted.low * more, predicted.mid * more, predicted.high * more)

    def percentile_at(self, change: Change, share: float, percent: float) -> float:
        """Return a percentile of the latency, in seconds, when jobs arrive at a share of full load.

        Args:
            change: What is done otherwise.
            share: Of full load, above 0.
            percent: 0 to 100, neither included.
        """
        full = self._full_rate(change) if self.was_idle else self._rate(change)
        num_jobs = max(_FEWEST_JOBS, math.ceil(_SAMPLES * samples_needed(percent) / (1 - _WARM_UP)))
        arriving = msgspec.structs.replace(change, arrival_rate=share * full)
        latencies = self.replay.simulate(arriving, seed=self._seed, num_jobs=num_jobs).latencies
        return float(np.percentile(latencies[int(_WARM_UP * len(latencies)) :], percent))

    def usable_share(self, change: Change, goal: LatencyGoal, most: float) -> Held:
        """Return the largest share of full load, up to `most`, at which the goal holds."""
        return largest_share(lambda share: self.percentile_at(change, share, goal.percentile), goal.seconds, most)

    def explain_no_latency(self) -> str:
        """Return why latency cannot be predicted on this machine, and what to do; empty if it can."""
        share = self.replay.document.environment.run_delay_share
        if share is None or share <= MOST_RUN_DELAY:
            return ""
        return (
            f"threads waited for a core for {share:.0%} of the time of CPU work, more than {MOST_RUN_DELAY:.0%}: what else the "
            "machine did decides the latency, and that cannot be known beforehand. Record on a quiet machine, or with fewer "
            f"workers than cores: {self._record_again()}"
        )

    def _record_again(self) -> str:
        return profile_again(self.replay.document, "-o", f"{self.replay.document.run}-again")

    def _full_rate(self, change: Change) -> float:
        """Return the simulated throughput when more jobs come than can be done, however few came in the run."""
        arriving = _FLOOD * self.replay.throughput
        done = 0.0
        for _ in range(_MOST_TRIES):
            done = self._rate(msgspec.structs.replace(change, arrival_rate=arriving))
            if done <= _FLOODED * arriving:
                break
            arriving *= _FLOOD
        return done

    def _rate(self, change: Change) -> float:
        return self.replay.simulate(change, seed=self._seed).throughput
