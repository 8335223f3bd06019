"""Say what limits a recorded run, why, how sure that is, and what fixing it would buy.

    headrace profile jobs:pipeline --source photos/ -o runs/first
    headrace diagnose runs/first
    headrace diagnose runs/first --slo p99=200ms --rate 100/s     is it good enough already?
    headrace diagnose runs/first --decide                        perturb its pipeline, which decides
    headrace diagnose runs/first --json
    headrace diagnose runs/training                              of `headrace train`: what a step waits for
    headrace diagnose runs/many                                  of `--supervise`, `--shard` or `--on ray`: all processes

The verdict comes first, in words; then the evidence for and against it, the remedies and their predicted gain, the runner-up,
the next bottleneck once the first is fixed, and upper bounds that can be checked by hand. Every class of verdict has a page in
the documentation. If the run does not answer a question, it says why, and names the command that would.

--decide runs the recorded pipeline once more, as the run's own command says, perturbs it for short stretches, and writes what
that cost into RUN. What was measured outranks what was inferred. It takes further jobs of a queue, and goes around a folder.

Of an incident (`headrace snapshot`) it says first what had changed. Of a run of several processes it shows each, and what
differs between them; a simulation is of one, so the rest is about the one in the middle: `headrace diagnose RUN/worker-1-1` is
about another.

Exit status: 0 done; 1 a given goal is missed; 2 misuse; 4 inconclusive.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.experimenting import add_experiment_arguments
from headrace.cli.pipeline_arguments import seconds
from headrace.cli.terminal import write, write_json

if TYPE_CHECKING:
    from headrace.diagnose.diagnosis import Goal
    from headrace.runs.formats.diagnosis import DiagnosisDocument
    from headrace.runs.reader import Run
    from headrace.runs.whole_run import WholeRun

EXIT_INCONCLUSIVE = 4
#: `run.json`'s unit where a model was trained.
STEP = "step"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("run_folder", metavar="RUN", help="a run folder of `headrace profile` or `headrace train`")
    parser.add_argument(
        "--slo",
        action="append",
        default=[],
        metavar="GOAL",
        help="a latency that must be kept, such as p99=200ms; p50, p90 or p99",
    )
    parser.add_argument("--rate", metavar="RATE", help="jobs that must be done, such as 100/s or 3M/h")
    parser.add_argument(
        "--budget-seconds",
        type=seconds,
        metavar="N",
        help="seconds of a core to simulate for (default 10); what is left out then is listed",
    )
    add_experiment_arguments(
        parser, "--decide", "run the recorded pipeline again and perturb it: what limits it is measured", "--budget"
    )
    parser.add_argument("--json", action="store_true", help="print JSON (schema headrace.diagnosis/1)")


def run(args: argparse.Namespace) -> int:
    """Diagnose the run and print what was found."""
    from headrace.base.errors import SettingsError
    from headrace.base.formatting import quote_arg
    from headrace.cli.diagnosis_text import as_text
    from headrace.cli.patience import patience
    from headrace.diagnose.analysis import Analysis
    from headrace.diagnose.budget import Budget
    from headrace.diagnose.diagnosis import diagnosis_document
    from headrace.runs.incident_file import read_incident
    from headrace.runs.reader import read_run
    from headrace.runs.whole_run import WholeRun, read_whole

    goals = find_goals(args)
    if args.run_folder.endswith((".json", ".json.gz")) and Path(args.run_folder).is_file():
        raise SettingsError(
            f"{args.run_folder} is a file; `headrace train read {quote_arg(args.run_folder)}` says what limits the "
            "training in a "
            "trace of torch.profiler, and makes a run folder of it"
        )
    found = read_whole(args.run_folder)
    if isinstance(found, WholeRun):
        return _diagnose_whole(args, found)
    if found.info.unit == STEP:
        return _diagnose_training(args, found)
    if args.decide:
        from headrace.cli.experimenting import experiment_again

        experiment_again(args.run_folder, budget_seconds=args.budget, deliver=args.deliver, for_document=args.json)
    budget = Budget(args.budget_seconds) if args.budget_seconds else None
    with patience("diagnose", "simulating the run, as it was and with each resource 20 % larger"):
        document = diagnosis_document(Analysis(read_run(args.run_folder)), goals, budget)
    if args.json:
        write_json(document)
    else:
        if incident := read_incident(args.run_folder):
            write(f"incident {incident.id}: {incident.says}\n")
        write(as_text(document), end="")
    return status_of(document)


def _diagnose_training(args: argparse.Namespace, found: Run) -> int:
    """Diagnose a run whose unit is a training step."""
    from headrace.base.errors import SettingsError
    from headrace.cli.training_text import analysis_text
    from headrace.diagnose.training.verdicts import TrainingAnalysis, diagnose_training

    if refused := _given(args, "slo", "rate", "decide", "budget_seconds"):
        raise SettingsError(
            f"{args.run_folder} is the run of a training, and {refused} is about pipelines; leave it out. "
            "`headrace whatif RUN --set loader.workers=4` predicts changes of a training"
        )
    analysis = TrainingAnalysis(found)
    document = diagnose_training(analysis)
    if args.json:
        write_json(document)
    else:
        write(analysis_text(analysis, document), end="")
    return status_of(document)


def _diagnose_whole(args: argparse.Namespace, found: WholeRun) -> int:
    """Diagnose a run of several processes."""
    from headrace.base.errors import SettingsError
    from headrace.cli.patience import patience
    from headrace.cli.whole_text import as_text
    from headrace.diagnose.whole import whole_document

    if refused := _given(args, "slo", "rate", "decide"):
        raise SettingsError(
            f"{args.run_folder} is a run of {len(found.members)} processes, and {refused} is about one; name its folder: "
            f"{found.members[0].path}"
        )
    with patience("diagnose", f"simulating some of {len(found.members)} processes"):
        document = whole_document(found, args.budget_seconds)
    if args.json:
        write_json(document)
    else:
        write(as_text(document), end="")
    return status_of(document.diagnosis)


def _given(args: argparse.Namespace, *names: str) -> str:
    """Return those of these options that were given."""
    return ", ".join(f"--{name.replace('_', '-')}" for name in names if getattr(args, name))


def status_of(document: DiagnosisDocument) -> int:
    """Return the exit status that a diagnosis means."""
    from headrace.cli import EXIT_DONE, EXIT_NEGATIVE
    from headrace.runs.formats.diagnosis import VerdictClass

    if document.good_enough is False:
        return EXIT_NEGATIVE
    if document.good_enough:
        return EXIT_DONE
    if document.first.verdict is VerdictClass.INCONCLUSIVE or (document.goals and document.good_enough is None):
        return EXIT_INCONCLUSIVE
    return EXIT_DONE


def find_goals(args: argparse.Namespace) -> list[Goal]:
    """Return the goals that `--slo` and `--rate` name; SettingsError if one is none."""
    from headrace.base.errors import SettingsError
    from headrace.base.goals import parse_rate, parse_slo
    from headrace.diagnose.diagnosis import RateGoal

    goals: list[Goal] = []
    try:
        goals += [parse_slo(text) for text in args.slo]
        if args.rate is not None:
            goals.append(RateGoal(parse_rate(args.rate)))
    except ValueError as error:
        raise SettingsError(str(error)) from None
    return goals
