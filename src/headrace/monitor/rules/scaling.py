"""How many workers a fleet needs, as PromQL: what an autoscaler asks for, and the recording rule of the same.

Each scrape says what its own workers want of all that waits (`headrace_wanted_workers`), which is right for one supervisor. Of
several on one queue everyone sees the whole backlog and only its own arrivals; so neither their sum nor their largest is what
the fleet wants. It is worked out of the parts: what all of them do, what waits once, and what one worker can do.
"""

from __future__ import annotations

from headrace.monitor.metrics.exporter import DRAIN_SECONDS, WANTED_UTILIZATION
from headrace.monitor.rules.burn_rates import Recording
from headrace.monitor.rules.parameters import RuleParameters
from headrace.monitor.rules.promql import Scope

NAME = "headrace:wanted_workers"


def wanted_workers_query(job: str) -> str:
    """Return what says how many worker processes all targets of a scrape job want together; nothing while nobody can tell."""
    select = Scope(job).select
    capacity = select("headrace_capacity_jobs_per_second")
    throughput = f"sum by (job) ({select('headrace_throughput_jobs_per_second')})"
    waiting = f"max by (job) ({select('headrace_source_jobs', state='visible')})"
    # A worker that did nothing lately says no capacity, and may not lower the others' mean.
    workers = f"sum by (job) ({select('headrace_workers_alive')} and on (job, instance) {capacity})"
    of_one = f"{WANTED_UTILIZATION:g} * sum by (job) ({capacity}) / {workers}"
    return f"ceil(({throughput} + {waiting} / {DRAIN_SECONDS:g}) / ({of_one}))"


def list_scaling(parameters: RuleParameters) -> list[Recording]:
    """Return the rule that records it."""
    return [Recording(NAME, wanted_workers_query(parameters.job), {})]
