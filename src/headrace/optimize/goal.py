"""What is asked of a search for a cheaper variant."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headrace.base.meaning import Output
from headrace.base.settings import check
from headrace.base.units import format_duration
from headrace.optimize.layout import Shares
from headrace.optimize.presets import HERE, TARGETS
from headrace.validate.metrics import TOP_1, Metric
from headrace.validate.policy import MAX_SLICE_DROP, Policy

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
    layout: Shares | None = None
    """Workers, threads and batch that the Plan has now, from where better ones are looked for; None: they are not."""
    price_per_hour: float | None = None
    """Of this machine, in the user's currency; None: what attempts cost is not told."""
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
        return self.budget_seconds is not None and time.monotonic() - self.began > self.budget_seconds

    def is_time_to_ask(self, since: float) -> bool:
        """Return whether candidates were tried for so long that the rest of the budget is better spent on the golden set.

        Args:
            since: When trying began, on the monotonic clock; half of what was left then is for trying.
        """
        if self.budget_seconds is None or self.is_over_budget():
            return False
        return time.monotonic() - since > (self.began + self.budget_seconds - since) / 2

    @property
    def going_on(self) -> str:
        """The command that goes on where a search ended early: with --again it would begin anew."""
        return f"the same command{' without --again' if self.again else ''}"

    @property
    def budget_is_used_up(self) -> str:
        """Why nothing more is begun, in words."""
        return f"the budget of {format_duration(self.budget_seconds or 0.0)} is used up"
