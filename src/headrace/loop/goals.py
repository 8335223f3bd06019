"""Goals of a loop as people type them: `throughput=30/s`, `p99=80ms`, `cost=1.5/M`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.base.errors import SettingsError
from headrace.base.goals import LatencyGoal, parse_rate, parse_slo

_COST = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*/\s*([kM]?)")
_LATENCY = re.compile(r"\s*p[0-9]")
_ITEMS = {"": 1.0, "k": 1e3, "M": 1e6}
_EXPECTED = "expected a goal such as throughput=30/s, p99=80ms or cost=1.5/M"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goals:
    """What is asked for; None for what is not."""

    rate: float | None = None
    """Jobs per second."""
    slo: LatencyGoal | None = None
    slo_text: str = ""


def parse_goals(texts: Sequence[str], price_per_hour: float | None) -> Goals:
    """Return the goals in texts.

    Args:
        texts: As typed.
        price_per_hour: Of this machine; turns a cost per job into a rate. None: not known.

    Raises:
        SettingsError: If one is no goal, or there are two of a kind.
    """
    rates, slos = [], []
    for text in texts:
        name, _, value = text.partition("=")
        try:
            if name.strip() in ("throughput", "rate"):
                rates.append(parse_rate(value))
            elif name.strip() == "cost":
                rates.append(_rate_of_cost(value, price_per_hour))
            else:
                slos.append(text)
                parse_slo(text)
        except ValueError as error:
            is_of_a_kind = name.strip() in ("throughput", "rate", "cost") or _LATENCY.match(text)
            raise SettingsError(f"--goal {text}: {error if is_of_a_kind else _EXPECTED}") from None
    if len(rates) > 1 or len(slos) > 1:
        raise SettingsError(
            f"--goal: {', '.join(texts)} asks for two of a kind; give one rate or cost, and one latency"
        )
    return Goals(
        rate=rates[0] if rates else None,
        slo=parse_slo(slos[0]) if slos else None,
        slo_text=slos[0] if slos else "",
    )


def _rate_of_cost(text: str, price_per_hour: float | None) -> float:
    """Return the jobs per second at which a job costs so much."""
    found = _COST.fullmatch(text.strip())
    if not found or float(found[1]) <= 0:
        raise ValueError(f"{text!r} is no cost above 0 of so many jobs, such as 1.5/M for a million")
    if price_per_hour is None:
        raise ValueError("a cost needs the price of this machine, such as --price 0.75/h")
    if price_per_hour <= 0:
        raise ValueError("a cost needs a price above 0")
    return price_per_hour / 3600.0 * _ITEMS[found[2]] / float(found[1])
