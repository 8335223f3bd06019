"""What all parts of one run share: its Plan, its clock, who watches it, and what it counts."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.base.clock import Clock, SystemClock
from headrace.base.metering import Metering
from headrace.base.observer import Observers
from headrace.base.plan import Plan
from headrace.base.records import Counters
from headrace.pipeline.arms import Arms
from headrace.pipeline.levers import Levers
from headrace.pipeline.memory_forecast import MemoryForecast
from headrace.pipeline.resources import Resources
from headrace.pipeline.warm_up import CostCurve
from headrace.pipeline.work_notes import WorkNote


@dataclass(slots=True)
class RunContext:
    """Made before the run, and read by all of its threads."""

    plan: Plan
    """Resolved."""
    clock: Clock = field(default_factory=SystemClock)
    """Stamps everything."""
    observers: Observers = field(default_factory=Observers)
    """Who is notified; may be replaced until the run begins."""
    read_notes: Callable[[Sequence[WorkNote]], object] = lambda notes: None
    """Counts what workers did, before spans are made of it; may be replaced until the run begins."""
    counters: Counters = field(default_factory=Counters)
    metering: Metering = field(default_factory=Metering)
    """Whether workers read what passages cost, and for which jobs; whoever profiles changes it during the run."""
    cost_curves: list[CostCurve] = field(default_factory=list)
    """What was measured at warm-up; grows while the run begins."""
    plan_id: str = field(init=False)
    """Of the Plan in force, which spans carry: another one may come into force during the run."""
    fused: Mapping[str, str] = field(default_factory=dict)
    """{stage that runs in the workers of the one before: why}, as `StageInfo.fused` has it."""
    resources: Resources = field(init=False)
    """What its models share."""
    arms: Arms | None = None
    """Whose model answers which job; None: the run can have no canary."""
    levers: Levers = field(default_factory=Levers)
    """What an experiment may change while the run goes on."""
    counts: dict[str, int] = field(default_factory=dict)
    """What parts beside the items counted, for the run's notes."""
    forecast: MemoryForecast | None = None
    """Whether batches fit into the Plan's budget; None: it has none for memory."""
    unit: str = "item"
    """What spans call a job; what is cut from one is an item."""
    random: Callable[[], float] = random.random
    """Returns uniform random numbers, 0 <= number < 1."""

    def __post_init__(self) -> None:
        """Begin with the run's own Plan."""
        self.plan_id = self.plan.plan_id
        self.resources = Resources(self.plan.resources)

    def seconds(self) -> float:
        """Return the time of the run's clock."""
        return self.clock.now_ns() / 1e9
