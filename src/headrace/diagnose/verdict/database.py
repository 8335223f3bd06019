"""A database that takes results slowly, or has no connection left for them: what `delivery.sql` counted."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.base.units import format_duration
from headrace.diagnose.verdict.facts import Facts
from headrace.diagnose.verdict.proposal import Advice, Proposal, at_least, line
from headrace.runs.formats.diagnosis import VerdictClass
from headrace.runs.rerun_command import profile_again

#: Share of the run in which it was written to, or waited for. One transaction is under way at a time, so from here on jobs
#: wait for it; below, it is asked once a second and nobody waits.
_BUSY = 0.7
#: As candidates are simulated.
_FIFTH_MORE = 1.2
#: Rows of a transaction are made so many times as many; and what they are without an option.
_MORE, _PLAIN_ROWS, _PLAIN_SECONDS = 10, 500, 1.0


def rules(facts: Facts) -> Iterator[Proposal]:
    """Propose where results go to a database."""
    writes, elapsed = facts.note("deliver.database_writes"), facts.evidence.elapsed_seconds
    view = facts.stage("deliver")
    if not writes or view is None or elapsed <= 0:
        return
    written, connected, full = (
        (facts.note(f"deliver.database_{name}_microseconds") or 0) / 1e6 for name in ("write", "connect", "full")
    )
    waited = connected + full
    share = min(1.0, (written + waited) / elapsed)
    if share < _BUSY:
        return
    is_full = waited > written
    says = (
        f"results wait for a connection to the database {format_duration(waited)} of the {format_duration(elapsed)} of the "
        "run: all that it allows are in use"
        if is_full
        else f"the database takes {format_duration(written / writes)} for each transaction of results, and is at it "
        f"{written / elapsed:.0%} of the run; the jobs before it wait"
    )
    yield Proposal(
        verdict=VerdictClass.DATABASE,
        stage=view.name,
        cause="connections" if is_full else "slow query",
        says=says,
        rule=f"results go to a database, and are written, or wait for a connection, at least {_BUSY:.0%} of the run",
        resources=view.resources,
        share=share,
        measured_gain=1 / (1 - share * (1 - 1 / _FIFTH_MORE)),
        evidence=(
            at_least("database", "share of the run in which the database was waited for", share, _BUSY),
            line(
                "writing",
                f"writing: {format_duration(written)} in {writes:,} transactions",
                written,
                None,
                (not is_full) or None,
            ),
            line("connecting", f"waiting for a connection: {format_duration(waited)}", waited, None, is_full or None),
        ),
        advice=_advise_connections() if is_full else _advise_writing(facts, writes),
        is_seen=True,
        sets_pace=True,
    )


def _advise_writing(facts: Facts, writes: int) -> tuple[Advice, ...]:
    stage = facts.plan.stages.get("deliver")
    options = stage.options if stage else {}
    rows, seconds = options.get("rows_per_flush", _PLAIN_ROWS), options.get("seconds_per_flush", _PLAIN_SECONDS)
    is_by_rows = facts.info.counters.delivered / writes >= rows / 2  # else the time was up before there were as many
    more = f"rows_per_flush={_MORE * rows}" if is_by_rows else f"seconds_per_flush={_MORE * seconds:g}"
    return (
        Advice(
            says=f"write {_MORE} times as many rows in a transaction: it helps where the commit or the way there is dear",
            command=profile_again(facts.info, "--set", f"deliver.options.{more}"),
        ),
        Advice(
            says="ask the database what a row costs it (EXPLAIN ANALYZE of the upsert, pg_stat_statements): each index, "
            "trigger and foreign key of the table is paid for each row"
        ),
        Advice(
            says="write to a file and load it at the end, if nobody reads the table meanwhile",
            command=profile_again(facts.info, "--results", "results.jsonl"),
        ),
    )


def _advise_connections() -> tuple[Advice, ...]:
    return (
        Advice(
            says="see who has the connections (PostgreSQL)",
            command='psql -c "SELECT application_name, state, count(*) FROM pg_stat_activity GROUP BY 1, 2"',
        ),
        Advice(
            says="let others give theirs back, put a pooler before the database (PgBouncer), or raise max_connections"
        ),
        Advice(says="a run needs one connection for each of its processes: fewer (--supervise) need fewer"),
    )
