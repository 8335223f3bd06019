"""Try another Plan's model on a growing share of a running pipeline's jobs, and take it back by itself where it is worse.

    headrace run jobs:pipeline --plan plan.toml --canary canary
    headrace canary start candidate.toml
    headrace canary status
    headrace canary status --wait 2h
    headrace canary promote --why "tried elsewhere"
    headrace canary rollback --why "users complain"

`start` gives the pipeline that runs with `--canary DIR` the [model] and [models] tables of a Plan, and the batch that it names
for a stage (process.batch). Its models are opened beside the present ones and answer first as a shadow, then 1 %, 10 % and 50 %
of the jobs, then all. A job's arm is a hash of its id, so that a job that comes again falls to the same one. Each step waits
until it is known that the canary is no worse: by failures, by changed answers, by the time of calls on the same batch, and by
what users say of answers. A canary that is worse, that answers with a NaN, kills a worker or fails jobs in a row is rolled back
by itself; the stable model answers its jobs.

`status` says what is known, what is missing, and when it would be known; with `--wait TIME` it waits for the end. `promote`
gives it all jobs, and `rollback` none, whatever is known. A promoted canary stays beside the other model until the run is
started again with its Plan, so that `rollback` works at once.

Exit status of `status`: 0 promoted or still running; 1 rolled back; 4 it was waited for in vain.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from headrace.base.formatting import wrap_lines
from headrace.base.units import format_duration
from headrace.cli import EXIT_DONE, EXIT_NEGATIVE
from headrace.cli.canary_place import find_ledger, record_step
from headrace.cli.pipeline_arguments import points, seconds
from headrace.cli.terminal import speaker, write, write_json

if TYPE_CHECKING:
    from headrace.base.plan import Plan
    from headrace.runs.canary_folder import CanaryFolder
    from headrace.runs.formats.canary import CanaryState

_say = speaker("canary")
#: Nobody can tell yet.
EXIT_INCONCLUSIVE = 4
_POLL_SECONDS = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="{start,status,promote,rollback}")
    start = actions.add_parser("start", help="let the models of another Plan answer some of the jobs")
    status = actions.add_parser("status", help="what is known of the canary, and what is missing")
    promote = actions.add_parser("promote", help="give it all jobs now")
    rollback = actions.add_parser("rollback", help="take it back now")
    start.add_argument(
        "plan", metavar="PLAN", help="the Plan's file; its [model] and [models] tables and its batches count"
    )
    start.add_argument(
        "--steps", type=_steps, default=None, metavar="SHARES",
        help="shares of the jobs, from step to step; 0 is a shadow (default: 0,1%%,10%%,50%%,100%%)",
    )  # fmt: skip
    start.add_argument(
        "--key", metavar="ATTRIBUTE",
        help="draw what jobs have as this attribute, such as camera, for five minutes, instead of each job by its id: "
        "a key sees one model, and a bad canary is found later (a run of one process)",
    )  # fmt: skip
    for option, what in (
        ("--max-more-failures", "by how much more of its jobs may fail: 0.5%% (default) or 0.005"),
        ("--max-disagreement", "share of answers that it may change: 1%% (default) or 0.01"),
        ("--max-slowdown", "by how much its calls may take longer: 25%% (default) or 0.25"),
        ("--alpha", "probability of rolling back an identical one, at most: 2.5%% (default)"),
    ):
        start.add_argument(option, type=points, metavar="SHARE", help=what)
    status.add_argument("--wait", type=seconds, metavar="TIME", help="wait for its end, this long at most: 90s, 2h")
    for action in (start, promote, rollback):
        action.add_argument("--why", default="", metavar="TEXT", help="the reason, to be written down")
        action.add_argument(
            "--ledger", metavar="FILE", help="the ledger that keeps it (default: $HEADRACE_LEDGER, else none)"
        )
    for action in (start, status, promote, rollback):
        action.add_argument(
            "--at", default="canary", metavar="DIR", help="the folder that the run has as --canary (default: canary)"
        )
        action.add_argument("--json", action="store_true", help="print the state as JSON (schema headrace.canary/1)")


def run(args: argparse.Namespace) -> int:
    """Carry out the action and print what came of it."""
    from headrace.runs.canary_folder import CanaryFolder

    folder = CanaryFolder(Path(args.at), must_exist=True)
    if args.action == "start":
        state = _start(folder, args)
    elif args.action == "status":
        state = _wait(folder, args.wait) if args.wait else _read(folder)
    else:
        state = _change(folder, args, "promoted" if args.action == "promote" else "rolled back")
    if args.action == "rollback":  # written last, as no ledger may keep it from happening
        record_step(find_ledger(args), state)
    if args.json:
        write_json(state, indented=True)
    else:
        write("\n".join(_describe(state)))
    if args.action != "status":
        return EXIT_DONE
    return EXIT_NEGATIVE if state.status == "rolled back" else EXIT_INCONCLUSIVE if _in_vain(args, state) else EXIT_DONE


def _in_vain(args: argparse.Namespace, state: CanaryState) -> bool:
    return bool(args.wait) and state.status == "running"


def _start(folder: CanaryFolder, args: argparse.Namespace) -> CanaryState:
    from headrace.base.plan import Plan
    from headrace.base.policies.canary import CanaryPolicy

    given = {
        "shares": args.steps, "max_more_failures": args.max_more_failures, "max_disagreement": args.max_disagreement,
        "max_slowdown": args.max_slowdown, "alpha": args.alpha, "key": args.key,
    }  # fmt: skip
    policy = CanaryPolicy(**{key: value for key, value in given.items() if value is not None})
    plan = Plan.load(args.plan)
    if _has_more(plan):
        _say(f"only [model], [models] and batches of {args.plan} count; the rest stays as the run has it")
    return folder.start(plan, policy, why=args.why, record=partial(record_step, find_ledger(args)))


def _has_more(plan: Plan) -> bool:
    """Return whether a Plan says what a canary cannot change."""
    from headrace.base.plan import Plan, StagePlan

    stages = any(dataclasses.replace(stage, batch=None) != StagePlan() for stage in plan.stages.values())
    return stages or dataclasses.replace(plan, model=Plan().model, models={}, stages={}) != Plan()


def _read(folder: CanaryFolder) -> CanaryState:
    from headrace.base.errors import SettingsError

    state = folder.read()
    if state is None:
        raise SettingsError(f"no canary was started in {folder.path}; start one with: headrace canary start PLAN")
    return state


def _wait(folder: CanaryFolder, seconds: float) -> CanaryState:
    ends = time.monotonic() + seconds
    while (state := _read(folder)).status == "running" and time.monotonic() < ends:
        time.sleep(_POLL_SECONDS)
    return state


def _change(folder: CanaryFolder, args: argparse.Namespace, act: Literal["promoted", "rolled back"]) -> CanaryState:
    from headrace.base.errors import RunFolderError, SettingsError

    why = args.why
    with folder.locked():
        try:
            state = _read(folder)
        except RunFolderError:
            if act == "promoted":
                raise
            return folder.replace_damaged(why or "by hand; its state was damaged")
        if state.status in ("rolled back", act):
            raise SettingsError(f"canary {state.id} is {state.status} already: {state.reason}")
        if act == "promoted" and not state.plan_id:
            raise SettingsError(
                f"canary {state.id} was opened by no run yet, so that nobody could promote it; is a run with --canary "
                f"{folder.path} at work?"
            )
        after = state.done(act, time.time(), why or "by hand", "user")
        if act == "promoted":  # written first, as a run may take it back at once
            record_step(find_ledger(args), after)
        folder.write(after)
    return after


def _describe(state: CanaryState) -> list[str]:
    age = format_duration(max(0.0, time.time() - state.since_unix_seconds))
    plans = f"Plan {state.plan_id} beside {state.stable_plan_id}" if state.plan_id else "not opened by a run yet"
    how = f"{_share(state.share)} for {age}" if state.status == "running" else f"{age} ago"
    lines = [f"canary {state.id}: {state.status}, {how}; {plans}"]
    said = [found.says for found in state.findings]
    if state.status != "running" and state.reason not in (*said, "; ".join(said)):
        lines.append(f"  {state.reason}")
    lines += [f"  {says}" for says in said]
    began = state.steps[0].at_unix_seconds
    for step in state.steps:
        share = "" if step.act == "rolled back" else f", {_share(step.share)}"
        lines.append(f"  {step.at_unix_seconds - began:6.1f} s  {step.act} by {step.by}{share}")
    return wrap_lines(lines)


def _share(share: float) -> str:
    return f"{share:.0%} of the jobs" if share else "as a shadow"


def _steps(text: str) -> tuple[float, ...]:
    return tuple(points(part.strip()) for part in text.split(","))
