"""The alerts beside the burn rates: what stalls, dies, drifts or is lost; with the cases that hold each.

A case is just at the threshold, on either side, and at the last minute of `for` and the one before.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.monitor.rules.alert import Alert, Case
from headrace.monitor.rules.burn_rates import list_burn_alerts
from headrace.monitor.rules.parameters import RuleParameters
from headrace.monitor.rules.promql import Scope, grown


def list_alerts(parameters: RuleParameters) -> list[Alert]:
    """Return all alerts."""
    scope = Scope(parameters.job)
    parts = (list_burn_alerts(parameters), _of_queues(scope, parameters), _of_loans(scope), _of_processes(scope))
    return [alert for part in (*parts, _of_exporter(scope), _of_evidence(scope)) for alert in part]


def _of_queues(scope: Scope, parameters: RuleParameters) -> Iterator[Alert]:
    waiting = scope.select("headrace_source_jobs", state="visible")
    ended = grown(scope.select("headrace_jobs_total", outcome=("delivered", "rejected", "dead_lettered")), "10m")
    waits = scope.sample("headrace_source_jobs", state="visible")
    delivered = scope.sample("headrace_jobs_total", task="", outcome="delivered")
    yield Alert(
        name="QueueStalled",
        expr=f"max by (job) ({waiting}) > 0 unless on (job) {ended} > 0",
        minutes=5,
        severity="page",
        summary="Jobs wait and none has ended for 10 minutes",
        cases=(
            Case(name="nothing ends", series={waits: "1x40", delivered: "5x40"}, checks=((14, False), (15, True))),
            Case(name="nothing has ever ended", series={waits: "1x9"}, checks=((4, False), (5, True))),
            Case(
                name="one ends now and then",
                series={waits: "1x40", delivered: "0x9 1x9 2x9 3x9"},
                checks=((39, False),),
            ),
            Case(name="nothing waits", series={waits: "0x40", delivered: "5x40"}, checks=((40, False),)),
        ),
    )
    age, late = "headrace_source_oldest_age_seconds", parameters.late_seconds
    yield Alert(
        name="QueueLate",
        expr=f"max by (job) ({scope.select(age)}) > {late:g}",
        minutes=10,
        severity="ticket",
        summary=f"The oldest job of the queue has waited longer than {late / 60:g} minutes, for 10 minutes",
        cases=_level(scope.sample(age), late, minutes=10),
    )
    dead = scope.sample("headrace_source_jobs", state="dead")
    num_dead = scope.select("headrace_source_jobs", state="dead")
    yield Alert(
        name="DLQGrowing",
        # Not `delta`, which stretches what it has seen to the window, differently in Prometheus 2 and 3.
        expr=f"max by (job) ({num_dead} - min_over_time({num_dead}[1h])) > 10",
        minutes=5,
        severity="ticket",
        summary="More than 10 jobs came into the dead-letter queue within an hour",
        cases=(
            Case(name="11 came", series={dead: "7x60 18x60"}, checks=((65, False), (66, True))),
            Case(name="10 came", series={dead: "7x60 17x60"}, checks=((70, False),)),
            Case(name="some were redriven", series={dead: "20x60 7x60"}, checks=((70, False),)),
        ),
    )
    success, inside = "headrace_last_success_timestamp_seconds", "headrace_jobs_in_flight"
    yield Alert(
        name="NothingDelivered",
        expr=f"time() - max by (job) ({scope.select(success)}) > 900 and on (job) sum by (job) ({scope.select(inside)}) > 0",
        minutes=5,
        severity="page",
        summary="Jobs are inside and none was delivered for 15 minutes",
        cases=(
            Case(
                name="the last was long ago", series={scope.sample(success): "0x40", scope.sample(inside): "1x40"},
                checks=((20, False), (21, True)),
            ),
            Case(
                name="nothing is inside", series={scope.sample(success): "0x40", scope.sample(inside): "0x40"},
                checks=((40, False),),
            ),
            Case(
                name="delivered every 14 minutes", checks=((27, False), (41, False)),
                series={scope.sample(success): "0x13 840x13 1680x13", scope.sample(inside): "1x41"},
            ),
        ),
    )  # fmt: skip


def _of_loans(scope: Scope) -> Iterator[Alert]:
    leases, errors = "headrace_leases_total", "headrace_source_errors_total"
    yield Alert(
        name="LeaseLost",
        expr=f"{grown(scope.select(leases, event=('lost', 'late')), '15m')} > 0",
        severity="ticket",
        summary="Loans of messages ran out before their jobs were done; other workers may do them again",
        cases=_happens(scope.sample(leases, event="lost"), beside=scope.sample(leases, event="renewed")),
    )
    yield Alert(
        name="SourceUnreachable",
        expr=f"{grown(scope.select(errors), '5m')} > 0",
        minutes=5,
        severity="page",
        summary="The queue service does not answer",
        cases=(
            Case(
                name="an error a minute", series={scope.sample(errors): "0x4 1+1x20"}, checks=((9, False), (10, True))
            ),
            Case(name="one error", series={scope.sample(errors): "7x4 8x20"}, checks=((24, False),)),
            Case(name="none", series={scope.sample(errors): "7x20"}, checks=((6, False), (20, False))),
        ),
    )
    yield Alert(
        name="BreakerOpen",
        expr=f"max by (job, side) ({scope.select('headrace_breakers_open')}) > 0",
        minutes=5,
        severity="ticket",
        summary="A server of {{ $labels.side }} failed too often and is not called",
        cases=_level(
            scope.sample("headrace_breakers_open", side="delivery"), 0, minutes=5, labels={"side": "delivery"}
        ),
    )
    yield Alert(
        name="BrakeOn",
        expr=f"max by (job) ({scope.select('headrace_brake_on')}) > 0",
        minutes=2,
        severity="page",
        summary="Nothing succeeds: jobs are given back but for a few that are tried",
        cases=_level(scope.sample("headrace_brake_on"), 0, minutes=2),
    )


def _of_processes(scope: Scope) -> Iterator[Alert]:
    deaths, workers, alive = "headrace_worker_deaths_total", "headrace_workers", "headrace_workers_alive"
    died, wanted = scope.sample(deaths, cause="signal"), scope.sample(workers)
    yield Alert(
        name="RestartLoop",
        expr=f"{grown(scope.select(deaths), '10m')} / on (job) sum by (job) ({scope.select(workers)}) > 2",
        severity="page",
        summary="Workers die again and again: more than twice each within 10 minutes",
        cases=(
            Case(name="21 deaths of ten", series={died: "_x4 21x20", wanted: "10x30"}, checks=((3, False), (4, True))),
            Case(
                name="20 deaths of ten", series={died: "_x4 20x20", wanted: "10x30"}, checks=((4, False), (12, False))
            ),
            Case(name="it was long ago", series={died: "_x4 21x40", wanted: "10x50"}, checks=((13, True), (15, False))),
        ),
    )
    yield Alert(
        name="WorkersMissing",
        expr=f"sum by (job) ({scope.select(workers)}) - on (job) sum by (job) ({scope.select(alive)}) > 0",
        minutes=2,
        severity="ticket",
        summary="Fewer worker processes run than there should be",
        cases=(
            Case(
                name="one is missing", series={wanted: "2x9", scope.sample(alive): "2 2 1x9"},
                checks=((3, False), (4, True)),
            ),
            Case(name="all run", series={wanted: "2x9", scope.sample(alive): "2x9"}, checks=((9, False),)),
        ),
    )  # fmt: skip
    memory = "headrace_process_resident_memory_bytes"
    used = scope.select(memory)
    series = scope.sample(memory, worker="0")
    yield Alert(
        name="MemoryGrows",
        expr=f"max by (job, worker) ({used}) / max by (job, worker) ({used} offset 6h) > 1.5",
        minutes=60,
        case_minutes=10,
        severity="ticket",
        summary="Worker {{ $labels.worker }} needs half as much memory again as 6 hours ago",
        cases=(
            Case(
                name="1.55 times as much", series={series: "1000x35 1550x20"}, labels={"worker": "0"},
                checks=((410, False), (420, True)),
            ),
            Case(name="1.45 times as much", series={series: "1000x35 1450x20"}, checks=((420, False), (460, False))),
            Case(name="exactly so much", series={series: "1000x35 1500x20"}, checks=((420, False),)),
        ),
    )  # fmt: skip


def _of_exporter(scope: Scope) -> Iterator[Alert]:
    up, dropped = f'up{{job="{scope.job}"}}', "headrace_metrics_dropped_total"
    info = scope.sample("headrace_run_info", pipeline="jobs.py:pipeline", version="1")
    yield Alert(
        name="MetricsAbsent",
        expr=f"absent({scope.select('headrace_run_info')}) == 1",
        minutes=5,
        severity="page",
        summary="No run or service gives metrics: it does not run, or Prometheus does not find it",
        cases=(
            Case(name="it was never there", series={"up": "1x20"}, checks=((4, False), (5, True))),
            Case(name="it went away", series={info: "1x9 stale"}, checks=((9, False), (14, False), (15, True))),
            Case(name="it is there", series={info: "1x20"}, checks=((20, False),)),
        ),
    )
    one = {"instance": "one:9000"}
    yield Alert(
        name="TargetDown",
        expr=f"{up} == 0",
        minutes=5,
        severity="page",
        summary="Prometheus cannot scrape {{ $labels.instance }}",
        runbook="MetricsAbsent",
        cases=(
            Case(
                name="it fell", series={f'up{{job="{scope.job}", instance="one:9000"}}': "1 0x20"}, labels=one,
                checks=((5, False), (6, True)),
            ),
            Case(name="it is up", series={f'up{{job="{scope.job}", instance="one:9000"}}': "1x20"}, checks=((20, False),)),
        ),
    )  # fmt: skip
    yield Alert(
        name="MetricsDropped",
        expr=f"{grown(scope.select(dropped), '1h')} > 0",
        severity="ticket",
        summary="Observations are missing in the metrics, or stand under `other`",
        cases=_happens(scope.sample(dropped, reason="label"), window=60),
    )


def _of_evidence(scope: Scope) -> Iterator[Alert]:
    drift, slower, changed = "headrace_drift_alarm", "headrace_performance_drift_alarm", "headrace_environment_changed"
    yield Alert(
        name="DriftSustained",
        expr=f"max by (job, feature) ({scope.select(drift)}) > 0",
        minutes=30,
        severity="ticket",
        summary="{{ $labels.feature }} is no longer what it was in the baseline",
        cases=_level(scope.sample(drift, feature="brightness"), 0, minutes=30, labels={"feature": "brightness"}),
    )
    yield Alert(
        name="PerfDrift",
        expr=f"max by (job, stage) ({scope.select(slower)}) > 0",
        minutes=30,
        severity="ticket",
        summary="Stage {{ $labels.stage }} costs more CPU time than its baseline, at equal inputs",
        cases=_level(scope.sample(slower, stage="decode"), 0, minutes=30, labels={"stage": "decode"}),
    )
    yield Alert(
        name="EnvChanged",
        expr=f"max by (job) ({scope.select(changed)}) > 0",
        minutes=5,
        severity="ticket",
        summary="This machine differs from where the Plan was proved, in what matters",
        cases=_level(scope.sample(changed), 0, minutes=5),
    )
    state = "headrace_canary_state"
    back, running = (scope.select(state, state=name) for name in ("rolled_back", "running"))
    is_back, ran = (scope.sample(state, state=name) for name in ("rolled_back", "running"))
    yield Alert(
        name="CanaryWorse",
        expr=f"max by (job) ({back}) > 0 and on (job) max by (job) (max_over_time({running}[1h])) > 0",
        severity="ticket",
        summary="A canary was rolled back within the last hour",
        cases=(
            Case(
                name="it is back",
                series={is_back: "0x9 1x90", ran: "1x9 0x90"},
                checks=((9, False), (10, True), (68, True)),
            ),
            Case(name="long ago", series={is_back: "0x9 1x90", ran: "1x9 0x90"}, checks=((71, False),)),
            Case(name="it runs", series={is_back: "0x20", ran: "1x20"}, checks=((20, False),)),
        ),
    )
    incidents = "headrace_recorder_incidents_total"
    yield Alert(
        name="RecorderIncident",
        expr=f"{grown(scope.select(incidents), '15m', 'job, cause')} > 0",
        severity="ticket",
        summary="The flight recorder wrote an incident: {{ $labels.cause }}",
        cases=_happens(scope.sample(incidents, cause="slo"), labels={"cause": "slo"}),
    )


def _level(series: str, threshold: float, *, minutes: int, labels: dict[str, str] | None = None) -> tuple[Case, ...]:
    """Return the cases of a gauge that must be above a threshold for some minutes."""
    above = threshold * 1.05 if threshold else 1
    last = minutes + 1
    cases = [
        Case(
            name="above", series={series: f"{threshold:g} {above:g}x{last}"}, labels=labels or {},
            checks=((minutes, False), (last, True)),
        ),
        Case(name="just there", series={series: f"{threshold:g}x{last}"}, checks=((last, False),)),
        Case(
            name="not for long", checks=((minutes, False), (2 * minutes, False)),
            series={series: f"{above:g}x{minutes - 1} {threshold:g} {above:g}x{minutes - 1}"},
        ),
    ]  # fmt: skip
    return tuple(cases)


def _happens(
    series: str, *, window: int = 15, beside: str = "", labels: dict[str, str] | None = None
) -> tuple[Case, ...]:
    """Return the cases of a counter that must not grow: it is new, it grows by one, it stays."""
    others = {beside: "0+10x200"} if beside else {}
    long = window + 10
    return (
        Case(name="a new one", series={series: f"_x4 1x{long}", **others}, labels=labels or {}, checks=((3, False), (4, True))),
        Case(
            name="one more", series={series: f"7x{long} 8x{long}", **others}, labels=labels or {},
            checks=((long, False), (long + 1, True)),
        ),
        Case(name="no more", series={series: f"7x{3 * long}", **others}, checks=((2 * window + 2, False),)),
    )  # fmt: skip
