"""How fast error budgets are used up: recording rules for each objective and window, and the alerts on them.

A burn rate of 1 uses up exactly the budget of 30 days. An alert needs a long window, so that one bad minute is no alarm, and a
short one, so that it ends soon after its cause.

References:
    Beyer et al., "The Site Reliability Workbook", chapter 5: 2 % of the budget in 1 h and 5 % in 6 h page somebody; 10 % in a
    day, and 10 % in 3 days, make a ticket.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.monitor.rules.alert import Alert, Case
from headrace.monitor.rules.parameters import RuleParameters
from headrace.monitor.rules.promql import Scope

WINDOWS = {"5m": 5, "30m": 30, "1h": 60, "2h": 120, "6h": 360, "1d": 1440, "3d": 4320}
#: Outcomes after which a job does not come again.
_FINAL = ("delivered", "dead_lettered")
#: A request that ended otherwise was its client's fault, or its client's server's.
_BAD = ("429", "500", "503", "504")
_OURS = ("200", "202", *_BAD)


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording rule."""

    record: str
    expr: str
    labels: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Burn:
    """A row of the table of alerts."""

    name: str
    long: str
    short: str
    rate: float
    """Of burning, above which it fires."""
    severity: str
    budget: str
    """Share of 30 days' budget that is gone by then."""
    step: int
    """Minutes between two samples of its cases: days in steps of a minute would take promtool minutes."""


BURNS = (
    _Burn("BudgetBurn1h", "1h", "5m", 14.4, "page", "2 %", 1),
    _Burn("BudgetBurn6h", "6h", "30m", 6.0, "page", "5 %", 10),
    _Burn("BudgetBurn1d", "1d", "2h", 3.0, "ticket", "10 %", 30),
    _Burn("BudgetBurn3d", "3d", "6h", 1.0, "ticket", "10 %", 30),
)


def list_recordings(parameters: RuleParameters) -> Iterator[Recording]:
    """Give the rules that record `headrace:burn_rate:WINDOW`, with the label `slo`."""
    for window in WINDOWS:
        for slo, (bad, all_, objective) in _objectives(parameters, window).items():
            ratio = f"(({bad}) or 0 * ({all_})) / ({all_}) / {1 - objective:.4g}"
            yield Recording(f"headrace:burn_rate:{window}", ratio, {"slo": slo})


def _objectives(parameters: RuleParameters, window: str) -> dict[str, tuple[str, str, float]]:
    """Return {slo: (rate of what is bad, rate of all, share that must be good)}."""
    scope = Scope(parameters.job)

    def rate(name: str, **labels: str | tuple[str, ...]) -> str:
        return f"sum by (job) (rate({scope.select(name, **labels)}[{window}]))"

    def slow(histogram: str) -> tuple[str, str, float]:
        # Prometheus 2 keeps bounds as they are scraped, 3 writes whole ones with `.0`.
        bucket = parameters.latency_bucket
        bound = f"{bucket:g}".replace(".", r"\.") + ("" if bucket % 1 else r"(\.0)?")
        count, fast = rate(f"{histogram}_count"), rate(f"{histogram}_bucket", le=(bound,))
        return f"{count} - {fast}", count, parameters.latency_objective

    jobs, requests = "headrace_jobs_total", "headrace_requests_total"
    return {
        "jobs": (rate(jobs, outcome="dead_lettered"), rate(jobs, outcome=_FINAL), parameters.objective),
        "requests": (rate(requests, status=_BAD), rate(requests, status=_OURS), parameters.objective),
        "job latency": slow("headrace_job_latency_seconds"),
        "request latency": slow("headrace_request_latency_seconds"),
    }


def list_burn_alerts(parameters: RuleParameters) -> Iterator[Alert]:
    """Give the alerts, each with series just above its threshold, and just below in either window."""
    for burn in BURNS:
        long, short = (f'headrace:burn_rate:{window}{{job="{parameters.job}"}}' for window in (burn.long, burn.short))
        yield Alert(
            name=burn.name,
            expr=f"{long} > {burn.rate:g} and {short} > {burn.rate:g}",
            severity=burn.severity,
            summary="The error budget of {{ $labels.slo }} burns "
            f"{burn.rate:g} times too fast: {burn.budget} of a month's in {burn.long}",
            runbook="BudgetBurn",
            cases=tuple(_cases(burn, parameters)),
            case_minutes=burn.step,
        )


def _cases(burn: _Burn, parameters: RuleParameters) -> Iterator[Case]:
    """Give cases for the first objective; the others' rules differ in their series alone, which `_other_cases` holds."""
    scope = Scope(parameters.job)
    long, short = WINDOWS[burn.long], WINDOWS[burn.short]
    threshold = burn.rate * (1 - parameters.objective)
    for name, in_long, in_short in (("steady", 1.05, 1.05), ("quiet before", 0.95, 2.0), ("over by now", 2.0, 0.95)):
        before = (in_long * long - in_short * short) / (long - short)
        bad = _joined([(before * threshold, long - short), (in_short * threshold, short)], burn.step)
        good = _joined([(1 - before * threshold, long - short), (1 - in_short * threshold, short)], burn.step)
        fires = in_long > 1 and in_short > 1
        yield Case(
            name=name,
            series={
                scope.sample("headrace_jobs_total", task="", outcome="dead_lettered"): bad,
                scope.sample("headrace_jobs_total", task="", outcome="delivered"): good,
            },
            checks=((0, False), (burn.step, True), (long, True)) if name == "steady" else ((long, fires),),
            labels={"slo": "jobs"},
        )
    if burn is BURNS[0]:
        yield from _other_cases(burn, parameters)


def _other_cases(burn: _Burn, parameters: RuleParameters) -> Iterator[Case]:
    scope, bucket = Scope(parameters.job), f"{parameters.latency_bucket:g}"
    threshold = burn.rate * (1 - parameters.objective)
    slow = burn.rate * (1 - parameters.latency_objective)
    for factor in (1.05, 0.95):
        steady = ((60, factor > 1),)
        shares = {"503": factor * threshold, "200": 1 - factor * threshold, "404": 1.0}
        yield Case(
            name=f"requests {factor}",
            series={
                scope.sample("headrace_requests_total", status=status): _joined([(share, 60)], 1)
                for status, share in shares.items()
            },
            checks=steady,
            labels={"slo": "requests"},
        )
        for slo, histogram in (
            ("job latency", "headrace_job_latency"),
            ("request latency", "headrace_request_latency"),
        ):
            if factor * slow < 1:
                yield Case(
                    name=f"{slo} {factor}",
                    series={
                        scope.sample(f"{histogram}_seconds_bucket", le=bucket): _joined([(1 - factor * slow, 60)], 1),
                        scope.sample(f"{histogram}_seconds_count"): _joined([(1.0, 60)], 1),
                    },
                    checks=steady,
                    labels={"slo": slo},
                )


def _joined(parts: list[tuple[float, int]], step: int) -> str:
    """Return a counter in the notation of promtool.

    Args:
        parts: (share of a million events per minute, minutes), one after the other.
        step: Minutes between two samples.
    """
    text, total = "0", 0
    for share, minutes in parts:
        each, times = round(share * 1e6) * step, minutes // step
        text += f" {total + each}+{each}x{times - 1}"
        total += each * times
    return text
