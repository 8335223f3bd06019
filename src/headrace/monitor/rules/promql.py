"""Pieces of PromQL, and the series of `promtool` tests."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.monitor.metrics.table import SERIES, sample_names


@dataclass(frozen=True, slots=True)
class Scope:
    """Makes selectors of the series of one scrape job.

    Attributes:
        job: Its name.
    """

    job: str

    def select(self, name: str, **labels: str | tuple[str, ...]) -> str:
        """Return the selector of a series of the table, with a value for each label, or several regular expressions.

        Raises:
            KeyError: If the table has no such series.
        """
        if name not in SERIES and not any(name in sample_names(series) for series in SERIES.values()):
            raise KeyError(name)
        matchers = [_pair("job", "=", self.job)]
        for label, value in labels.items():
            pair = _pair(label, "=", value) if isinstance(value, str) else _pair(label, "=~", "|".join(value))
            matchers.append(pair)
        return f"{name}{{{', '.join(matchers)}}}"

    def sample(self, name: str, **labels: str) -> str:
        """Return a series as a test gives it."""
        every = {"job": self.job, "instance": "one:9000", **labels}
        pairs = ", ".join(_pair(label, "=", value) for label, value in every.items())
        return f"{name}{{{pairs}}}"


def _pair(label: str, operator: str, value: str) -> str:
    escaped = value.replace("\\", r"\\").replace('"', r"\"")
    return f'{label}{operator}"{escaped}"'


def grown(selector: str, window: str, by: str = "job") -> str:
    """Return by how much counters grew in a window, which for one that is new is all that it has.

    `increase` alone misses the first event of a counter that begins with it: it has seen no lower value.
    """
    return f"sum by ({by}) (({selector} unless {selector} offset {window}) or increase({selector}[{window}]))"
