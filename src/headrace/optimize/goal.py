"""What is asked of a search for a cheaper variant."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headrace.base.meaning import Output
from headrace.base.settings import check
from headrace.base.units import format_duration
from headrace.optimize.concurrency import Concurrency
from headrace.optimize.presets import HERE, TARGETS
from headrace.runs.formats.optimization import Attempt
from headrace.runs.formats.profile import Estimate
from headrace.validate.metrics import TOP_1, Metric
from headrace.validate.model_speed import Speed
from headrace.validate.policy import MAX_SLICE_DROP, Policy

#: Speed-up that a candidate must surely have to be worth a test on the golden set.
LEAST_SPEEDUP = 1.02
OBJECTIVES = ("throughput", "latency", "size", "cost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What is asked of the search."""

    objective: Literal["throughput", "latency", "size", "cost"] = "throughput"
    """`cost`: less CPU time for an item, by what is no slower."""
    max_drop: float = 0.005
    """Largest acceptable drop of the share of right answers, or of what `metric` says."""
    max_slice_drop: float = MAX_SLICE_DROP
    """The same within a part of the golden set, such as a class."""
    metric: Metric = TOP_1
    """How answers are scored."""
    robustness: bool = False
    """Whether spoiled golden images are asked too."""
    threads: int = 1
    batch: int = 1
    """Items of the calls that are timed."""
    budget_seconds: float | None = None
    """Since `began`; no new candidate, round of training or group is begun after it."""
    began: float = field(default_factory=time.monotonic)
    """When the command did, on the monotonic clock."""
    now: Callable[[], float] = time.monotonic
    """The clock of the budget."""
    concurrency: Concurrency | None = None
    """Workers, threads and batch of the Plan, from where better ones are searched; None if they are not searched."""
    price_per_hour: float | None = None
    """Of this machine, in the user's currency; None: attempts have no cost."""
    pipeline: str = ""
    """That decoded and preprocessed the sets; empty: none did."""
    output: Output = None
    """What the answers mean, as the module of that pipeline declares it."""
    input_sizes: tuple[int, ...] = ()
    """Of the shorter side, in pixels; smaller inputs to try."""
    also: tuple[Path, ...] = ()
    """Other model files to try, which take the same inputs."""
    target: str = HERE
    """That int8 is written for; one of `presets.TARGETS`."""
    cores: int = 1
    """That the model may use; those of a pipeline's other stages are among them."""
    again: bool = False
    """Whether what is known is judged anew; both outcomes are kept, and the newest is recalled from then on."""

    def __post_init__(self) -> None:
        """Check every value."""
        check(self.objective in OBJECTIVES, "--for", self.objective, ", ".join(OBJECTIVES))
        check(self.threads >= 1, "--threads", self.threads, "a whole number >= 1")
        check(self.budget_seconds is None or self.budget_seconds > 0, "--budget", self.budget_seconds, "more than 0")
        check(self.target in TARGETS, "--target", self.target, ", ".join(TARGETS))
        Policy(max_drop=self.max_drop, max_slice_drop=self.max_slice_drop, batch=self.batch)

    def is_over_budget(self) -> bool:
        """Return whether the time that was given is used up."""
        return self.budget_seconds is not None and self.now() - self.began > self.budget_seconds

    def is_time_to_test(self, since: float) -> bool:
        """Return whether candidates were tried for so long that the rest of the budget is better spent on the golden set.

        Args:
            since: When trying began, on the monotonic clock; half of what was left then is for trying.
        """
        if self.budget_seconds is None or self.is_over_budget():
            return False
        return self.now() - since > (self.began + self.budget_seconds - since) / 2

    @property
    def going_on(self) -> str:
        """The command that goes on where a search ended early: with --again it would begin anew."""
        return f"the same command{' without --again' if self.again else ''}"

    @property
    def budget_is_used_up(self) -> str:
        """Why nothing more is begun, in words."""
        return f"the budget of {format_duration(self.budget_seconds or 0.0)} is used up"

    def merit_of(self, attempt: Attempt) -> Estimate | None:
        """Return what is to be made better, over what is in use: speed, or for `cost` CPU time; None if not measured."""
        return attempt.cpu if self.objective == "cost" else attempt.speedup

    def rank_of(self, attempt: Attempt) -> float:
        """Return the merit as one number; 0 if not measured."""
        merit = self.merit_of(attempt)
        return merit.mid if merit else 0.0

    def is_gain(self, attempt: Attempt, *, is_smaller: bool) -> bool:
        """Return whether an attempt surely gains enough for a test on the golden set."""
        if self.objective == "size" and is_smaller:
            return True
        merit = self.merit_of(attempt)
        return merit is not None and merit.low > LEAST_SPEEDUP

    def is_no_gain(self, speedup: Estimate | None, cpu: Estimate | None, *, is_smaller: bool) -> bool:
        """Return whether a candidate is surely not better at what is asked for, and nothing else speaks for it."""
        if self.objective == "cost":
            slower = speedup is not None and speedup.high < 1.0
            return slower or (cpu is not None and cpu.high <= LEAST_SPEEDUP)
        if self.objective == "size" and is_smaller:
            return False
        return speedup is not None and speedup.high <= LEAST_SPEEDUP

    def is_settled(self, speed: Speed) -> bool:
        """Return whether rounds of timing are enough: a candidate is surely a gain, or surely none."""
        if self.objective == "cost" and speed.high < 1.0:
            return True
        found = speed.cpu if self.objective == "cost" else speed
        return found is not None and (found.low > LEAST_SPEEDUP or found.high <= LEAST_SPEEDUP)
