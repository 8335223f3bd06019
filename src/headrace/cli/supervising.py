"""`--supervise N` of `headrace run` and `serve`: the same run in N worker processes that are started again when they die."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.base.records import OutcomeKind
from headrace.cli.companions import beside_workers
from headrace.cli.terminal import say, speaker, write, write_json

if TYPE_CHECKING:
    from headrace.base.worker_slot import Ended, WorkerSlot
    from headrace.pipeline.supervisor import Supervised
    from headrace.runs.held_folder import HeldFolder


#: More are a slip of the hand: each is a process with threads, queues and a model of its own.
MOST_WORKERS = 256


def supervise(
    args: argparse.Namespace,
    run_worker: Callable[[argparse.Namespace, WorkerSlot], Ended],
    *,
    command: str = "run",
    has_queue: bool = True,
    begun: Callable[[], object] = lambda: None,
    stopping: Callable[[], object] = lambda: None,
) -> int:
    """Run the command's workers and return the exit status.

    Args:
        args: As parsed.
        run_worker: Runs the pipeline in a worker.
        command: That was given, for what is said.
        has_queue: Whether what workers have in flight comes back, and can be told apart, after the supervisor's own death; if
            not, SIGHUP restarts the workers one after the other.
        begun: Called once the first worker has begun.
        stopping: Called when the workers are asked to stop.
    """
    import msgspec

    import headrace.pipeline.execute  # noqa: F401 - once, here: every worker is forked with it
    from headrace.base.crash_recovery import RecoveryFolder
    from headrace.base.worker_slot import Ended
    from headrace.cli import EXIT_DONE, EXIT_NEGATIVE, run_reporting
    from headrace.cli.pipeline_arguments import open_plan, stdout_kept
    from headrace.pipeline.supervisor import Supervisor
    from headrace.pipeline.thread_budget import limit_library_threads

    held = _check(args)
    plan = open_plan(args)
    limit_library_threads()

    def work(slot: WorkerSlot) -> int:
        worker_args = argparse.Namespace(**vars(args))
        if args.output:
            worker_args.output = str(Path(args.output) / f"worker-{slot.number}-{slot.generation}")
        ended = Ended()

        def run() -> int:
            nonlocal ended
            ended = run_worker(worker_args, slot)
            return ended.status or 0

        try:
            status = run_reporting(run)
        except BaseException:  # such as a second Ctrl-C while the first is reported
            slot.finish(Ended())
            raise
        slot.finish(msgspec.structs.replace(ended, status=status))
        return status

    with stdout_kept(args.json), beside_workers(args) as beside:
        supervisor = Supervisor(
            args.supervise,
            work,
            say=speaker(command, is_news=True),
            progress=speaker(command, event="progress"),
            grace_seconds=plan.run.grace_seconds,
            silent_seconds=plan.run.silent_seconds,
            note=functools.partial(_write, args),
            note_death=beside.note_death,
            note_child_end=beside.note_child_end,
            recovery=RecoveryFolder.create() if has_queue else None,
            renews=not has_queue,
            begun=begun,
            stopping=stopping,
        )
        result = supervisor.run()
        if held is not None:
            held.close()
    if result.reason:
        say(f"headrace {command}: {result.reason}")
    _write(args, result)
    _tell(args, result)
    return result.status or (EXIT_NEGATIVE if _is_in_vain(result) else EXIT_DONE)


def _is_in_vain(result: Supervised) -> bool:
    """Return whether jobs failed and none was ever delivered."""
    return not result.outcomes[OutcomeKind.DELIVERED] and any(
        result.outcomes[kind] for kind in (OutcomeKind.REJECTED, OutcomeKind.DEAD_LETTERED, OutcomeKind.RETRY)
    )


def _check(args: argparse.Namespace) -> HeldFolder | None:
    """Refuse what does not go together, and take the folder."""
    from headrace.base.errors import SettingsError
    from headrace.runs.earlier_run import take_folder

    if args.supervise > MOST_WORKERS:
        raise SettingsError(
            f"--supervise {args.supervise}: at most {MOST_WORKERS} workers, each a process; one or two for each core are usual"
        )
    for option in ("limit", "shadow", "ledger", "max_failed"):
        if getattr(args, option, None) and not (option == "ledger" and args.canary):
            raise SettingsError(f"--{option.replace('_', '-')} is for one worker; leave it or --supervise out")
    return take_folder(Path(args.output), force=args.force) if args.output else None


def _tell(args: argparse.Namespace, result: Supervised) -> None:
    if args.json:
        write_json(as_dict(args.supervise, result))
        return
    write(as_text(args.supervise, result, args.output))
    if args.output:
        write(f"run folders: {args.output}/worker-*")


def as_text(num_workers: int, result: Supervised, folder: str | None = None) -> str:
    """Return what came of it for people: outcomes, and why jobs of workers that ended orderly were refused.

    Args:
        num_workers: As asked for.
        result: What came of it.
        folder: That holds the workers' run folders; None: there is none.
    """
    import json

    from headrace.cli.refused_text import say_never_let_in, where_refused
    from headrace.pipeline.reasons import merge_reasons, show_reasons
    from headrace.pipeline.supervisor import outcomes_in_words

    outcomes = outcomes_in_words(result.outcomes) or "no job"
    lines = [f"{num_workers} workers: {outcomes}; {result.num_deaths} deaths, {result.restarts} restarts"]
    documents = [json.loads(document) for document in result.documents]
    lines += say_never_let_in(document.get("notes", {}) for document in documents)
    reasons = merge_reasons(document["reasons"] for document in documents)
    if reasons:
        lines += ["what failed:", *show_reasons(reasons)]
    if result.outcomes[OutcomeKind.REJECTED] or result.outcomes[OutcomeKind.DEAD_LETTERED]:
        lines += where_refused(result.queue, f"{folder}/worker-*/errors.jsonl" if folder else None)
    return "\n".join(lines)


def _write(args: argparse.Namespace, result: Supervised) -> None:
    """Write what came of it so far, for whoever looks at the folder."""
    from headrace.base.documents import encode_document
    from headrace.runs.file_names import SUPERVISED_FILE
    from headrace.runs.run_folder import replace_file

    if args.output:
        content = encode_document(as_dict(args.supervise, result), indent=True)
        try:
            replace_file(Path(args.output) / SUPERVISED_FILE, content + b"\n")
        except OSError as error:
            say(f"headrace run: {args.output}/{SUPERVISED_FILE} cannot be written: {error.strerror}")


def as_dict(num_workers: int, result: Supervised) -> dict[str, Any]:
    """Return what `--json` prints (schema `headrace.supervised/1`)."""
    import msgspec

    return {
        "schema": "headrace.supervised/1",
        "workers": num_workers,
        "status": result.status,
        "reason": result.reason,
        "deaths": result.num_deaths,
        "restarts": result.restarts,
        "last_deaths": result.deaths,
        "outcomes": {kind.value: number for kind, number in result.outcomes.items()},
        "runs": [msgspec.Raw(document) for document in result.documents],
    }
