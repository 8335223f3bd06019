"""Run a pipeline until its source has no more (folder, list of URLs) or until Ctrl-C or SIGTERM (queue).

    headrace run jobs:pipeline --plan plan.toml
    headrace run jobs.py:pipeline --set process.batch=8 --set fetch.workers=32 -o runs/first
    headrace run jobs:pipeline --source photos/ --limit 100
    headrace run jobs:pipeline --resume
    headrace run jobs:pipeline --source photos/ --results results.jsonl --shard 2/8
    headrace run jobs:pipeline --plan plan.toml --follow
    headrace run jobs:pipeline --shadow scenes_int8.onnx@openvino
    headrace run jobs:pipeline --source sqlite:///jobs.db --supervise 2
    headrace run jobs:pipeline --source photos/ --results results.jsonl --on ray --workers 8

The first Ctrl-C finishes the received jobs within the Plan's run.grace_seconds and gives the rest back to the source; a second
one gives everything back at once. The exit status is then 130. It is 0 if SIGTERM ended a worker of a queue and all received
jobs were finished. It is 1 if jobs were received and none was delivered, or more failed than --max-failed.

--resume continues an unfinished run over a folder or a list of URLs: items that are in its results are not done again.

With --shard I/N the run does one of N portions of a folder, clips, list or bucket: the tasks of an array job, each with
results, checkpoint and run folder of its own, do every item once and need know nothing of one another.

With --follow the running pipeline changes its model whenever the Plan's file changes: after `headrace optimize -o` or
`headrace ledger rollback`. The new model is opened, warmed up and compared with the old one on recent items before it takes
over.

With --shadow a candidate, MODEL[@ENGINE[,KEY=VALUE]...], also answers some of the batches, at the lowest priority and for a
tenth of the time; its answers are compared and thrown away. At its end the run prints how many answers changed, how long calls
took, and whether to promote the candidate, keep the present model or roll back, with the next command.

With --canary DIR, `headrace canary start` may try the model of another Plan on a growing share of the jobs. A canary that is
worse is taken back by itself.

With --metrics PORT, Prometheus can scrape http://127.0.0.1:PORT/metrics as long as the run lasts; with --supervise that is one
address for all workers.

With --supervise N, N worker processes run the pipeline and share its queue and this machine's cores. A worker that dies is
started again; the job that killed it is run alone, and dead-lettered if it kills again. See the guide on supervising.

With --on ray, N workers run on the nodes of a Ray cluster; what a worker that died had begun goes on with another one.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import signal
from typing import TYPE_CHECKING, Any

from headrace.cli.budget_steps import record_budget_steps
from headrace.cli.canary_place import add_canary_argument, make_canary_place
from headrace.cli.companions import add_companion_arguments, companion_options
from headrace.cli.following_argument import add_follow_argument, make_following, read_followed
from headrace.cli.on_ray import add_ray_arguments, check_no_cluster, run_on_ray
from headrace.cli.pipeline_arguments import (
    add_pipeline_arguments,
    live_view,
    open_pipeline,
    points,
    positive,
    stdout_kept,
)
from headrace.cli.portions import add_shard_argument, checkpoint_of_portion, give_portion_its_own, portion_of
from headrace.cli.profiled import add_profile_argument, check_profile, profile_options
from headrace.cli.refused_text import say_never_let_in, where_refused
from headrace.cli.terminal import open_console, speaker, write_json

if TYPE_CHECKING:
    from headrace.base.worker_slot import Ended, WorkerSlot
    from headrace.pipeline.execute import Result
    from headrace.pipeline.watching import Watch
    from headrace.runs.formats.shadow import ShadowDocument

_say = speaker("run")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_pipeline_arguments(parser)
    add_shard_argument(parser)
    parser.add_argument("-o", "--output", metavar="RUN", help="write a run folder: spans, errors, plan, environment")
    add_profile_argument(parser)
    parser.add_argument(
        "--resume", action="store_true", help="continue an unfinished run over a folder or list of URLs"
    )
    parser.add_argument(
        "--checkpoint", metavar="DIR",
        help="folder for the state that --resume needs; default: beside the results, if they can be read back",
    )  # fmt: skip
    add_follow_argument(parser)
    parser.add_argument(
        "--shadow", metavar="VARIANT", help="run this variant beside the model, and compare the answers"
    )
    parser.add_argument(
        "--max-disagreement", type=points, default=0.01, metavar="SHARE",
        help="with --shadow: acceptable share of changed answers: 1%% (default) or 0.01",
    )  # fmt: skip
    parser.add_argument(
        "--ledger", metavar="FILE",
        help="with --shadow, --canary or a [budget]: the ledger that keeps the result (default: $HEADRACE_LEDGER, else none)",
    )  # fmt: skip
    add_canary_argument(parser)
    parser.add_argument(
        "--supervise", type=positive, metavar="N", help="run N worker processes, and restart those that die"
    )
    parser.add_argument(
        "--dry-run", type=positive, metavar="N",
        help="try N jobs: do everything except deliver and ack, print the outcome that each would have, and give them back",
    )  # fmt: skip
    parser.add_argument(
        "--max-failed", metavar="N|SHARE%",
        help="end the run with exit status 1 once more jobs than this were rejected or dead-lettered: 5, or 5%%",
    )  # fmt: skip
    add_ray_arguments(parser)
    add_companion_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON (schema headrace.run/1)")


def run(args: argparse.Namespace) -> int:
    """Run the pipeline and print its table of stages."""
    from headrace.cli.supervising import supervise

    check_profile(args)
    if args.on is not None:
        return run_on_ray(args)
    check_no_cluster(args)
    if (portion := portion_of(args)) is not None:
        give_portion_its_own(args, portion)
    if args.dry_run:
        from headrace.cli.dry_run import try_out

        return try_out(args)
    if args.supervise:
        return supervise(args, _run_worker)
    with stdout_kept(args.json):
        result, beside = _execute(args, functools.partial(live_view, args.limit))
    print_result(args, result, beside)
    return status_of(result)


def status_of(result: Result) -> int:
    """Return 130 for what a signal cut short, 1 where nothing came of the work, 0 for a service that was asked to stop."""
    from headrace.cli import EXIT_DONE, EXIT_INTERRUPTED, EXIT_NEGATIVE

    if result.interrupted and result.drained_by not in (signal.SIGTERM, signal.SIGHUP):
        return EXIT_INTERRUPTED
    return EXIT_NEGATIVE if result.ended_early or result.is_in_vain else EXIT_DONE


def run_once(args: argparse.Namespace) -> Result:
    """Run the pipeline in this process, with no view of it."""
    return _execute(args, None)[0]


def _run_worker(args: argparse.Namespace, slot: WorkerSlot) -> Ended:
    """Run the pipeline in a worker process and return what came of it, the result as JSON."""
    result, _ = _execute(args, None, slot)
    return say_how_it_ended(result, args.queue or "")


def say_how_it_ended(result: Result, queue: str) -> Ended:
    """Return what a worker process says of its run, at its end.

    Args:
        result: Of the run.
        queue: The address of its queue; empty: it has none.
    """
    from headrace.base.documents import encode_document
    from headrace.base.worker_slot import Ended
    from headrace.cli import EXIT_DONE, EXIT_INTERRUPTED

    return Ended(
        queue=queue,
        status=EXIT_INTERRUPTED if result.interrupted else EXIT_DONE,
        document=encode_document(as_dict(result)),
        is_drained=result.drained_by is not None,
    )


def _execute(
    args: argparse.Namespace, watch: Watch | None, slot: WorkerSlot | None = None
) -> tuple[Result, ShadowDocument | None]:
    """Run the pipeline that the arguments name."""
    from headrace.base.plan import model_key
    from headrace.cli.shadowing import open_candidate
    from headrace.pipeline.execute import run as execute

    followed = read_followed(args)
    pipeline, plan = open_pipeline(args)
    following = make_following(args, followed, _say)
    candidate = open_candidate(args, plan)
    canary = make_canary_place(args, _say, has_budget=plan.budget is not None)
    options = profile_options(args, pipeline, plan, watch)
    options.update(
        companion_options(
            *(args, pipeline, plan), slot=slot, watch=options["watch"], instruments=options.get("instruments", ())
        )
    )
    result = execute(
        pipeline,
        plan,
        output=args.output,
        limit=args.limit,
        force=args.force,
        beside=following or canary or (candidate.shadow if candidate else None),
        slot=slot,
        resume=args.resume,
        checkpoint=checkpoint_of_portion(args, pipeline.delivery, portion_of(args)) or True,
        max_failed=args.max_failed,
        **options,
    )
    record_budget_steps(args, result, _say)
    args.queue = pipeline.source.shown_address
    task = next((model_key(stage.task, stage.name) for stage in pipeline.stages if stage.kind == "device"), "")
    return result, candidate.document(args, result, task) if candidate else None


def print_result(args: argparse.Namespace, result: Any, beside: ShadowDocument | None = None) -> None:
    """Print what a run came to: its table of stages, or JSON where that was asked for."""
    if args.json:
        _print_json(result, beside)
    else:
        _print_table(args, result, beside)


def _print_json(result: Any, beside: ShadowDocument | None) -> None:
    said = as_dict(result) if beside is None else {**as_dict(result), "shadow": beside}
    write_json(said)


def as_dict(result: Any) -> dict[str, Any]:
    """Return a Result as `headrace run --json` prints it (schema `headrace.run/1`)."""
    return {
        **result.summary.as_dict(),
        "plan_id": result.plan_id,
        "plan": result.plan.as_table(),
        "plans": {plan_id: plan.as_table() for plan_id, plan in result.plans.items()},
        "notes": result.counters.notes,
        "cost_curves": {stage: {str(n): s for n, s in curve.items()} for stage, curve in result.cost_curves.items()},
        "variants": list(result.variants),
        "emulated": result.is_emulated,
        "warnings": list(result.warnings),
        "interrupted": result.interrupted,
        "ended_early": result.ended_early,
        **({} if result.budget is None else {"budget": result.budget.as_dict()}),
        "run_folder": None if result.run_folder is None else str(result.run_folder),
        "before": None if result.before is None else dataclasses.asdict(result.before),
    }


def _describe_before(result: Any) -> str:
    """Return how far the run was before, and is now."""
    before, counters = result.before, result.counters
    ends = {"delivered": before.delivered, "rejected": before.rejected, "given up": before.given_up}
    kinds = ", ".join(f"{number:,} {name}" for name, number in ends.items() if number)
    of_all = "" if before.total is None else f" of {before.total:,}"
    said = f"{before.done:,}{of_all} were done before{f' ({kinds})' if kinds else ''}"
    for item, reason in before.given_up_now.items():
        said += f"\n{item} is given up: {reason}"
    if before.left == 0:
        return f"{said}; nothing is left to do"
    now = counters.delivered + counters.rejected + counters.dead_lettered
    if before.left is None:
        return f"{said}, {now:,} now"
    return f"{said}, {now:,} now, {before.left - now:,} are left"


def _explain_fused(result: Any) -> list[str]:
    """Return why stages share a worker because headrace chose so; resize and preprocess of a module always do."""
    from headrace.base.handoff import handoff_cost
    from headrace.runs.fused import explain_stages

    stages = [stage for stage in result.stages if stage.fused == "gil"]
    return explain_stages(stages, result.summary.as_dict(), handoff_cost()) if stages else []


def _print_table(args: argparse.Namespace, result: Any, beside: ShadowDocument | None) -> None:
    from headrace.runs.formats.profile import EMULATED

    console = open_console()
    if result.before is not None:
        console.print(_describe_before(result))
        if result.before.left == 0:
            return
    console.print(result.summary.as_table())
    if result.is_emulated:
        console.print(EMULATED)
    warnings = [f"warning: {warning}" for warning in result.warnings]
    for line in (*_explain_fused(result), *warnings, *say_never_let_in([result.counters.notes])):
        console.print(line)
    if beside is not None:
        console.print(f"shadow {beside.candidate}: {beside.advice}: {beside.says}")
        console.print(f"next: {beside.next_command}", soft_wrap=True)
        if beside.attempt:
            console.print(f"written to the ledger as {beside.attempt}")
    if result.ended_early:
        console.print(f"ended early: {result.ended_early}", soft_wrap=True)
    elif result.is_in_vain:
        console.print("nothing was delivered (exit status 1)")
    if result.counters.rejected or result.counters.dead_lettered:
        folder = result.run_folder
        for line in where_refused(args.queue, f"{folder}/errors.jsonl" if folder else None):
            console.print(line, soft_wrap=True)
    if result.run_folder is not None:
        console.print(f"run folder: {result.run_folder}")
