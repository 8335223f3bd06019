"""A recorded run, ready to be run again under another Plan, in simulation.

    replay = Analysis(read_run("runs/first")).replay
    replay.ratio(Change(settings=("fetch.workers=32",)))      # throughput over that of the recorded run

A prediction is the measured throughput times the ratio of two simulations, of the changed run and of the run as recorded: what
the simulator gets wrong in both cancels. Both replay the same jobs in the same order.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping

from headrace.base.formatting import pluralize
from headrace.base.plan import Plan
from headrace.diagnose.evidence import Evidence
from headrace.diagnose.replay.calibration import calibrate, read_run_delay, simulate_delay
from headrace.diagnose.replay.costs import batch_cost
from headrace.diagnose.replay.demands import CannotReplay, StageDemands, find_demands
from headrace.diagnose.replay.machine import find_machine
from headrace.diagnose.replay.simulations import Simulations
from headrace.diagnose.steady_state import completions
from headrace.diagnose.trust import FEWEST_JOBS
from headrace.runs.emulation import emulated_engines
from headrace.runs.formats.profile import ProfileDocument

#: Share of the waiting for a core that is the run's own doing where other programs have little part in it.
_EXPLAINED = 0.5
#: Of a run's simulated and measured throughput: beyond it the run is not understood, and nothing can be predicted from it.
UNDERSTOOD = 0.40


class Replay(Simulations):
    """One recorded run that comes out in simulation as it was, as far as that can be had; see `Simulations`."""

    @classmethod
    def of(cls, evidence: Evidence, document: ProfileDocument) -> Replay:
        """Return a run ready to be simulated; `diagnose.analysis.Analysis` makes one of a run folder.

        Args:
            evidence: What the folder holds.
            document: Its analysis.

        Raises:
            CannotReplay: If it does not hold what is needed; the message says what, and the next command.
        """
        demands = find_demands(evidence, document)
        if document.throughput is None:
            raise CannotReplay("the run delivered too few jobs for a rate; profile more items")
        if document.latency.num_samples < FEWEST_JOBS:
            raise CannotReplay(
                f"{pluralize(document.latency.num_samples, 'job')} were delivered while the run was steady, and a verdict or a "
                f"prediction needs {FEWEST_JOBS}: profile more items"
            )
        plan = Plan.from_record(document.plan)
        if missing := [stage.name for stage in demands.stages if stage.name not in plan.stages]:
            raise CannotReplay(
                f"the run folder does not say how the Plan sets {', '.join(missing)}: it was killed as Plan "
                f"{document.plan_id or 'without a name'} came into force; profile again"
            )
        machine = find_machine(evidence, document, demands)
        costs = {}
        for stage in demands.stages:
            if stage.info.kind == "device":
                model = plan.model_of(stage.info.task, stage.name)
                # What is known to do something else, as augmenting in batches, has times of its own.
                runs_model = stage.info.work in ("", "model")
                stage.is_emulated = runs_model and model.engine in emulated_engines(evidence.info.variants)
                stage.has_own_device = stage.info.is_emulated and not runs_model
                stage.is_exclusive = stage.is_emulated or _is_accelerator(evidence, stage)
                costs[stage.name] = batch_cost(evidence, stage, model)
        replay = cls(evidence, document, plan, demands, machine, costs)
        calibrate(replay)
        return replay

    def check_understood(self) -> None:
        """Raise CannotReplay where the simulation misses the run as it was by so much that it can predict nothing."""
        if abs(self.misfit) > UNDERSTOOD:
            raise CannotReplay(
                f"as recorded the simulator gives {self.simulate().throughput:.4g}/s and {self.throughput:.4g}/s were measured "
                f"({self.misfit:+z.0%}, at most {UNDERSTOOD:.0%} is allowed): it does not understand this run, and predicts "
                "nothing of it. headrace diagnose says what may be missing; a longer run on a quiet machine may do"
            )

    @property
    def throughput_error(self) -> float:
        """Standard error of the measured throughput, as a share of it; 0 where the run is too short to tell."""
        window = self.document.window
        return completions(self.evidence, delivered=True).relative_error(window.from_seconds, window.to_seconds)

    def with_gil_shares(self, shares: Mapping[str, float]) -> Replay:
        """Return the same run with other shares of the GIL, {stage: 0 to 1}; all else stays as it was calibrated."""
        other = copy.copy(self)
        other.holds_gil = self.holds_gil | dict(shares)
        return other

    def without_turns(self, stage: str) -> Replay:
        """Return the same run with a stage whose calls take as long as they took, however many are under way."""
        other = copy.copy(self)
        stages = tuple(
            dataclasses.replace(one, turns=None) if one.name == stage else one for one in self.demands.stages
        )
        other.demands = dataclasses.replace(self.demands, stages=stages)
        return other

    def compute_added_workers(self, station: str) -> float:
        """Return how many times as many workers a station had at most, with those added while some waited for slow calls."""
        found = next((one for one in self.evidence.stages if one.name == station), None)
        return (found.most_workers or found.workers) / found.workers if found and found.workers else 1.0

    @property
    def explains_delay(self) -> bool:
        """Whether the run's own threads, as simulated, account for most of the time that they waited for a core."""
        measured = read_run_delay(self.document)
        return measured is not None and simulate_delay(self) >= _EXPLAINED * measured


def _is_accelerator(evidence: Evidence, stage: StageDemands) -> bool:
    """Return whether a device works beside this machine's cores, one call at a time."""
    busy = float((stage.wait + stage.cpu).sum())
    return (
        busy > 0
        and float(stage.cpu.sum()) / busy < 0.3
        and any(
            "cuda" in str(variant).lower() or "tensorrt" in str(variant).lower() for variant in evidence.info.variants
        )
    )
