"""What a fault is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.faults.case import Case

Inject = Callable[[Case, float], Case]
Fix = Callable[[Case], Case]

#: How strong faults are injected by default: hardly, clearly, and strongly.
DOSES = (1.2, 2.0, 5.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that can be wrong with a pipeline or what is around it."""

    id: str
    """`F1` to `F43`, as in the catalogue."""
    title: str
    """What is done, in a line."""
    dose: str
    """What the dose scales, and from where, in a line."""
    applies_to: tuple[str, ...]
    """Names of the shapes that it can be injected into."""
    inject: Inject | None
    """Returns a case with the fault; None where `needs` says why it cannot be had."""
    fix: Fix | None = None
    """Returns a faulty case as a correct remedy would leave it; None where there is none but taking the cause away."""
    needs: str = ""
    """What it takes that a plain machine has not, such as a GPU; empty if it runs anywhere."""

    def applied(self, case: Case, dose: float) -> Case:
        """Return a case with this fault.

        Args:
            case: Healthy, of a shape that this applies to.
            dose: How strong, >= 1.

        Raises:
            ValueError: If it cannot be injected into this case.
        """
        if self.inject is None:
            raise ValueError(f"{self.id} ({self.title}) is not run here: it needs {self.needs}")
        if case.shape not in self.applies_to:
            raise ValueError(f"{self.id} does not apply to shape {case.shape}; it does to {', '.join(self.applies_to)}")
        if not dose >= 1:
            raise ValueError(f"dose is {dose}; expected 1 or more, such as {', '.join(f'{one:g}' for one in DOSES)}")
        return self.inject(case, dose)
