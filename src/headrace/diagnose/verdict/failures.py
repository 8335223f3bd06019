"""Runs whose deliveries failed: the errors come before any question of speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from headrace.base.formatting import pluralize
from headrace.diagnose.verdict.proposal import Advice, Proposal, at_least, line
from headrace.diagnose.verdict.rate_limit import propose_refused, refused_share
from headrace.runs.formats.diagnosis import VerdictClass
from headrace.runs.reader import Run

#: Share of the deliveries that failed, from which on the failures are the verdict; and from which on they are said beside one.
_VERDICT, _WORTH_A_WORD = 0.50, 0.01
_MOST_REASONS = 3
_FAILED = ("rejected", "dead_lettered", "retried")
#: Why jobs wait in the queue service instead of here: what they go to is slow, and nothing failed.
_PUT_ASIDE = "share.full"


def failures(run: Run) -> Proposal | None:
    """Return the verdict FAILURES with the errors, their number and their place; None if most deliveries succeeded.

    Where most of them are refusals for asking too often, it is RATE_LIMIT: nothing is to be mended here.
    """
    share = compute_failed_share(run)
    if share < _VERDICT:
        return None
    reasons = _reasons(run)
    stage = next((one.name for one in run.info.stages if reasons and one.name == reasons[0]["code"]), None)
    refused = refused_share(run)
    if refused >= _VERDICT * share:
        return propose_refused(run, _failing_stage(run), refused)
    said = "; ".join(_in_words(row) for row in reasons[:_MOST_REASONS]) or "no reason was recorded"
    return Proposal(
        verdict=VerdictClass.FAILURES,
        stage=stage,
        says=f"{_outcomes(run)}: {said}",
        rule=f"at least {_VERDICT:.0%} of the deliveries were rejected, dead-lettered or given back to be tried again",
        resources=(),
        share=0.0,
        evidence=(
            at_least("failed", "share of the deliveries that failed", share, _VERDICT),
            *(line("reason", _in_words(row), _number(row), None, True) for row in reasons[:_MOST_REASONS]),
        ),
        advice=(Advice(says=f"mend what fails first: each of them stands in {run.path}/errors.jsonl"),),
    )


def _failing_stage(run: Run) -> str | None:
    """Return the stage with the most failures; None without any."""
    rows = (run.info.summary or {}).get("stages") or []
    worst = max(rows, key=lambda row: int(row.get("failed") or 0), default=None)
    return str(worst["name"]) if worst is not None and worst.get("failed") else None


def compute_failed_share(run: Run) -> float:
    """Return the share of the deliveries that failed; 0 if there were none."""
    counters = run.info.counters
    put_aside = sum(_number(row) for row in _all_reasons(run) if row["code"] == _PUT_ASIDE)
    failed = max(0, sum(getattr(counters, name) for name in _FAILED) - put_aside)
    return failed / (failed + counters.delivered) if failed else 0.0


def note_of_failures(run: Run) -> str:
    """Return what is said beside a verdict of another class; empty where hardly anything failed."""
    if compute_failed_share(run) < _WORTH_A_WORD:
        return ""
    reasons = _reasons(run)
    return _outcomes(run) + (f"; mostly {_in_words(reasons[0])}" if reasons else "")


def _outcomes(run: Run) -> str:
    counters = run.info.counters
    parts = [f"{counters.delivered:,} delivered"]
    parts += [f"{getattr(counters, name):,} {name.replace('_', '-')}" for name in _FAILED if getattr(counters, name)]
    return f"of {pluralize(counters.received, 'job')} received, {', '.join(parts)}"


def _reasons(run: Run) -> list[Mapping[str, Any]]:
    """Return why deliveries failed, the most frequent first."""
    return [row for row in _all_reasons(run) if row["code"] != _PUT_ASIDE]


def _all_reasons(run: Run) -> list[Mapping[str, Any]]:
    """Return why jobs were not delivered at once: by the exact counts, else by the lines of `errors.jsonl`."""
    rows: list[Mapping[str, Any]] = (run.info.summary or {}).get("reasons") or []
    if rows:
        return rows
    found = Counter((one.reason.replace(one.job_id, "..."), one.origin and one.origin.place) for one in run.errors())
    return [
        {"code": "", "count": number, "example": text, "place": place} for (text, place), number in found.most_common()
    ]


def _in_words(row: Mapping[str, Any]) -> str:
    code, example, origin = row["code"], str(row["example"]), row.get("origin") or {}
    place = row.get("place") or (f"{origin['file']}:{origin['line']}" if origin else "")
    what = f"{code}: {example}" if code else example
    at = f" at {place}" if place and place not in what else ""
    return f"{_number(row):,} x {what if what.isprintable() else ascii(what)}{at}"


def _number(row: Mapping[str, Any]) -> int:
    return int(row["count"]) + int(row.get("retried", 0)) + int(row.get("returned", 0))
