"""A Plan's `[budget]`: what a device has for a run, and the ladder that the run goes down where that does not suffice.

[budget]
memory = "512MB"
watts = 5
temperature = 80
ladder = ["process.batch=4", "source.max_in_flight=8", "process.batch=1", "decode.workers=1"]
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.base.settings import check
from headrace.base.units import parse_size

_LEAST_MEMORY = 32 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetPlan:
    """What a device has for a run; None: as much as it likes."""

    memory: int | str | None = None
    """Bytes of all processes of the run together, as a number or with a unit; workers of `--supervise` have equal parts."""
    watts: float | None = None
    """Of the machine, as its own sensors tell."""
    temperature: float | None = None
    """Degrees Celsius of the hottest sensor."""
    ladder: tuple[str, ...] = ()
    """Settings that hold from each rung on, `KEY=VALUE`, each asking for less; empty: jobs in flight and batches are halved
    until one is left."""

    def __post_init__(self) -> None:
        """Check every value; `memory` becomes a number of bytes."""
        if self.memory is not None:
            check(not isinstance(self.memory, bool), "memory", self.memory, "a size such as '512MB'")
            try:
                num_bytes = parse_size(self.memory)
            except ValueError as error:
                check(False, "memory", self.memory, str(error))
            allowed = f"at least {_LEAST_MEMORY:,} bytes: libraries need some for themselves"
            check(_LEAST_MEMORY <= num_bytes < 2**63, "memory", self.memory, allowed)
            object.__setattr__(self, "memory", num_bytes)
        check(self.watts is None or 0 < self.watts < 1e6, "watts", self.watts, "more than 0")
        is_possible = self.temperature is None or 0 < self.temperature <= 150
        check(is_possible, "temperature", self.temperature, "degrees Celsius, up to 150")
        object.__setattr__(self, "ladder", tuple(self.ladder))  # a file gives a list
        for rung in self.ladder:
            is_setting = "=" in rung and not rung.strip().startswith("budget.")
            check(is_setting, "ladder", rung, "settings such as 'process.batch=1'")
        beside = "memory, watts or temperature beside it: nothing else says when to go down"
        check(not (self.ladder and self.is_open), "ladder", list(self.ladder), beside)

    @property
    def memory_bytes(self) -> int | None:
        """The same as a number."""
        return None if self.memory is None else int(self.memory)

    @property
    def is_open(self) -> bool:
        """Whether it bounds nothing."""
        return self.memory is None and self.watts is None and self.temperature is None
