"""`headrace run --dry-run N`: what would become of the next jobs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from headrace.base.records import OutcomeKind
from headrace.cli.terminal import write, write_json

if TYPE_CHECKING:
    from headrace.pipeline.dry_run import Trial

_IN_WORDS = {
    OutcomeKind.DELIVERED: "would be delivered",
    OutcomeKind.REJECTED: "would be rejected",
    OutcomeKind.DEAD_LETTERED: "would be given up",
    OutcomeKind.RETRY: "would be tried again",
    OutcomeKind.RETURNED: "not tried to the end",
}


def try_out(args: argparse.Namespace) -> int:
    """Try the jobs, print what came of it and return the exit status."""
    from headrace.base.errors import SettingsError
    from headrace.cli import EXIT_DONE, EXIT_NEGATIVE
    from headrace.cli.pipeline_arguments import open_pipeline, stdout_kept
    from headrace.pipeline.dry_run import dry_run

    for option in ("supervise", "follow", "shadow", "resume", "output", "limit", "max_failed", "metrics", "otlp"):
        if getattr(args, option):
            raise SettingsError(
                f"--{option.replace('_', '-')} does not go with --dry-run, which tries and keeps nothing"
            )
    with stdout_kept(args.json):
        pipeline, plan = open_pipeline(args)
        trials = dry_run(pipeline, plan, args.dry_run)
    if args.json:
        write_json({"schema": "headrace.dry-run/1", "trials": trials})
    else:
        write("\n".join(_lines(trials, type(pipeline.delivery).__name__)))
    num_good = sum(trial.outcome is OutcomeKind.DELIVERED for trial in trials)
    return EXIT_DONE if num_good or not trials else EXIT_NEGATIVE


def _lines(trials: list[Trial], delivery: str) -> list[str]:
    lines = [f"{trial.job_id}: {_IN_WORDS[trial.outcome]}: {trial.says}" for trial in trials]
    num_good = sum(trial.outcome is OutcomeKind.DELIVERED for trial in trials)
    end = f"{len(trials):,} tried, {num_good:,} would be delivered by {delivery}; nothing was delivered, all were given back"
    return [*lines, end if trials else "there was no job to try"]
