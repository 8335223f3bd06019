"""What is asked of a candidate."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.base.meaning import Output
from headrace.base.settings import check
from headrace.validate.metrics import TOP_1, Metric

#: Within a part, which has fewer items: ten times the usual margin.
MAX_SLICE_DROP = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What is asked of the candidate."""

    max_drop: float = 0.005
    """Largest acceptable drop of the share of right answers, or of what `metric` says."""
    max_slice_drop: float = MAX_SLICE_DROP
    """Largest acceptable drop within a part of the golden set, such as a class."""
    min_speedup: float | None = None
    """The least speed-up that makes it worth while; None: it need not be faster."""
    batch: int = 1
    """Items of the batch that is timed."""
    alpha: float = 0.05
    """Probability of accepting a B that drops by more, at most; who tries several shares it among them."""
    retrained: bool = False
    """Whether B was retrained: then its numbers are its own, and parity compares only shapes and whole numbers."""
    metric: Metric = TOP_1
    """How answers are scored."""

    output: Output = None
    """What the answers mean, as the module of the pipeline declares it; None: found from the file and the answers."""
    robustness: bool = False
    """Whether spoiled images are asked too; a drop within a kind of them counts as one within a part of the set."""

    def __post_init__(self) -> None:
        """Check every value."""
        check(0 < self.max_drop < 1, "--max-drop", self.max_drop, "more than 0 and less than 100 points")
        check(
            0 < self.max_slice_drop < 1, "--max-slice-drop", self.max_slice_drop, "more than 0 and less than 100 points"
        )
        check(self.min_speedup is None or self.min_speedup > 0, "--min-speedup", self.min_speedup, "more than 0")
        check(1 <= self.batch <= 4096, "--batch", self.batch, "1 to 4096")
