"""Events of the log: their names, and what a line that programs read says besides its text.

Who logs gives `extra=event_fields(...)` to a logger; who has a function that takes a line for people gives it an `EventText`. A
log for people shows the text alone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from headrace.base.records import Job

#: {name: what happened}. What has another name, or none, is a `log` line.
EVENTS: Mapping[str, str] = {
    "run_begins": "a process begins to receive jobs",
    "run_ends": "it has ended; the message has the counts",
    "job_rejected": "a job ended as rejected; `code` says why",
    "job_dead_lettered": "a job was given up",
    "job_retried": "a job failed, and the source offers it again",
    "job_returned": "a job was given back, which does not count as a try",
    "lease_lost": "a job's loan ran out before it was done; another worker may have it",
    "brake_on": "nothing succeeds: jobs are given back but for a few that are tried",
    "brake_off": "jobs succeed again",
    "breaker_open": "a server failed too often and is not called for a while",
    "breaker_closed": "such a server answers again",
    "worker_started": "the supervisor started a worker in the place of one that ended",
    "worker_died": "a worker process died; `code` says of what",
    "restart_stopped": "a rolling restart asks no other worker to go, as the last one has no successor that works",
    "plan_changed": "the run takes up another model",
    "budget_step": "the run goes down a rung of its budget's ladder, or up again",
    "canary_step": "a canary was opened, got a larger share, was promoted or rolled back",
    "drift": "inputs or predictions are not what they were",
    "performance_drift": "a stage costs more than it did at equal inputs",
    "environment_changed": "this machine is not what the Plan was proved on",
    "incident": "the flight recorder wrote what it remembers; `code` says what set it off",
    "review": "something cannot be noted for review",
    "progress": "how far it is, every ten seconds",
    "notice": "what `headrace` tells people",
    "error": "why the command failed",
    "warning": "a Python warning",
    "stderr": "a line that somebody printed to stderr",
    "log_dropped": "lines were lost because nobody read them; `more` says how many",
    "log": "any other line, also of your code: `logger` says whose",
}
#: The fields of a line beyond `time`, `level`, `event` and `message`. {name: meaning}.
FIELDS: Mapping[str, str] = {
    "code": "machine-readable reason, such as `decode.bomb`",
    "job": "the job's id",
    "task": "the module that works on it",
    "stage": "where it happened",
    "attempt": "delivery of the job, from 1",
    "plan": "id of the Plan in use",
    "trace": "id of the W3C trace that the job belongs to",
    "more": "how many events like this one stand behind the line",
    "logger": "whose line it is, with `log`, `warning`",
    "traceback": "the frames of an error",
    "worker": "number of the worker process under `--supervise`",
    "process": "process id",
}


def event_fields(event: str, of: Job | None = None, **more: Any) -> dict[str, Any]:
    """Return the `extra` of a log record.

    Args:
        event: One of `EVENTS`.
        of: The job whose id, task, attempt, Plan and trace the line has; None: of none.
        more: Others of `FIELDS`; None and empty ones are left out.
    """
    found: dict[str, Any] = {"event": event}
    if of is not None:
        found.update(job=of.id, task=of.task, attempt=of.attempt, plan=of.plan_id, trace=trace_id(of.attributes))
    return {name: value for name, value in (found | more).items() if value not in (None, "")}


def trace_id(attributes: Mapping[str, Any]) -> str:
    """Return the id of the trace in a job's attribute `traceparent`; empty if it has none.

    References:
        W3C Trace Context, 3.2: `version-trace_id-parent_id-flags`, in lower-case hex.
    """
    given = attributes.get("traceparent")
    parts = given.split("-") if isinstance(given, str) and len(given) <= 512 else []
    is_one = len(parts) >= 4 and len(parts[1]) == 32 and set(parts[1]) <= set("0123456789abcdef")
    return parts[1] if is_one and set(parts[1]) != {"0"} else ""


def read_trace(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return the attributes by which a request's job belongs to its trace; none without a good header `traceparent`."""
    given = {"traceparent": headers.get("traceparent", "")}
    return given if trace_id(given) else {}


class EventText(str):
    """A line for people that also is an event: a log for programs shows its fields.

    Attributes:
        fields: As from `event_fields`.
        level: Of module `logging`.
    """

    fields: Mapping[str, Any]
    level: int

    def __new__(cls, text: str, event: str, level: int = logging.INFO, **more: Any) -> EventText:
        """Return the line of an event; see `event_fields`."""
        made = super().__new__(cls, text)
        made.fields, made.level = event_fields(event, **more), level
        return made
