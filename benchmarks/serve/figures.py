"""What is said about answers: percentiles from the intended send, goodput, ratios with an interval."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: Of Student's distribution, two-sided 95 %, by degrees of freedom.
_T95 = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 11: 2.201}
_T95_MORE = 2.2


#: The status of a request that was never sent: its client had no connection for it.
UNSENT = -1


@dataclass(frozen=True, slots=True)
class Sent:
    """One request; times in seconds of one clock."""

    intended: float
    """When it was meant to be sent."""
    sent: float
    """When it was; later where the client was late or had no free connection."""
    ended: float
    status: int
    """Of the answer; 0: there was none, the connection ended; UNSENT: nor was there a request."""

    @property
    def latency(self) -> float:
        """From the intended send, so that a client that waits for a slow server hides nothing."""
        return self.ended - self.intended


def percentile(values: Iterable[float], percent: float) -> float | None:
    """Return the smallest value that `percent` of all do not exceed; None of none."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def in_milliseconds(values: Sequence[float]) -> dict[str, float | None]:
    """Return p50, p90, p99 and the largest of some seconds."""
    found = {f"p{percent}": percentile(values, percent) for percent in (50, 90, 99)} | {"max": percentile(values, 100)}
    return {f"{name}_ms": None if value is None else value * 1e3 for name, value in found.items()}


def summarize(requests: Sequence[Sent], seconds: float, deadline_seconds: float | None = None) -> dict[str, object]:
    """Return the figures of a window.

    Args:
        requests: Those whose intended send lay within it.
        seconds: Its length.
        deadline_seconds: Answers later than this after the intended send are no goodput; None: all good ones count.
    """
    good = [one.latency for one in requests if one.status == 200]
    limit = math.inf if deadline_seconds is None else deadline_seconds
    statuses: dict[str, int] = {}
    sent = [one for one in requests if one.status != UNSENT]
    for one in sent:
        statuses[str(one.status)] = statuses.get(str(one.status), 0) + 1
    return {
        "rate": len(good) / seconds,
        "goodput": sum(latency <= limit for latency in good) / seconds,
        "offered": len(requests) / seconds,
        "sent_rate": len(sent) / seconds,
        "requests": len(requests),
        "statuses": statuses,
        **in_milliseconds(good),
        "refused": in_milliseconds([one.ended - one.sent for one in requests if one.status in (429, 503)]),
        "sent_late": in_milliseconds([one.sent - one.intended for one in sent]),
    }


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two contestants over rounds that both ran in."""

    value: float
    """The geometric mean."""
    low: float
    high: float
    """95 % interval of it; equal to the value with one round, which has none."""

    def __str__(self) -> str:
        return f"x{self.value:.2f} [{self.low:.2f}-{self.high:.2f}]"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Return ours / theirs, round by round.

    Raises:
        ValueError: If the two did not run in the same rounds, or one has no positive figure.
    """
    if len(ours) != len(theirs) or not ours or min(*ours, *theirs) <= 0:
        raise ValueError(f"expected as many positive figures of both, got {list(ours)} and {list(theirs)}")
    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    mean, half = statistics.fmean(logs), 0.0
    if len(logs) > 1:
        half = _T95.get(len(logs) - 1, _T95_MORE) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half))
