"""Check this machine: alone, or against what a Plan, a run, a lock or another machine was proved on.

    headrace doctor                                       is this machine fit for headrace?
    headrace doctor --plan plan.toml                      can it run the Plan, and is it like the one that proved it?
    headrace doctor --plan plan.toml --ledger runs/ledger.sqlite    and like the one that proved the model's variant?
    headrace doctor --run runs/first --lock requirements.lock
    headrace doctor --fingerprint development.json        on one machine, and on the other:
    headrace doctor --against development.json

Each line says what was checked, what was seen and what is expected, why it matters and what to do; what matters most comes
first. `matters` means that a run fails, or that what was proved no longer holds; `note` is worth knowing. What cannot be known
(no permission, no such file) is listed as not known, and never counts as good. Nothing is changed and nothing is sent.

Exit status: 0 nothing that matters differs; 1 something does; 2 misuse, or a file that cannot be read.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli import EXIT_DONE, EXIT_NEGATIVE
from headrace.cli.terminal import speaker, write, write_json

if TYPE_CHECKING:
    from headrace.monitor.doctor.machine import Machine
    from headrace.monitor.doctor.references import Reference

_say = speaker("doctor")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--plan", metavar="FILE", help="a Plan: what it needs, and where its comments say it was measured"
    )
    parser.add_argument(
        "--ledger", metavar="FILE", help="decisions that stand, of --plan or of every Plan, and the machines that proved them"
    )  # fmt: skip
    parser.add_argument("--run", metavar="RUN", dest="run_folder", help="the machine and the versions of a run folder")
    parser.add_argument("--lock", metavar="FILE", help="the versions of a lock file, or of the output of `pip freeze`")
    parser.add_argument("--against", metavar="FILE", help="the fingerprint of another machine, or of this one before")
    parser.add_argument("--fingerprint", metavar="FILE", help="write this machine's fingerprint, for --against")
    parser.add_argument("--force", action="store_true", help="replace FILE of --fingerprint")
    parser.add_argument("--all", action="store_true", help="also explain what is as it should be")
    parser.add_argument("--json", action="store_true", help="print JSON (schema headrace.doctor/1)")


def run(args: argparse.Namespace) -> int:
    """Examine the machine and print what was found."""
    from headrace.base.documents import encode_document
    from headrace.cli.doctor_text import as_text
    from headrace.cli.output_file import check_output, write_output
    from headrace.monitor.doctor.examination import examine
    from headrace.monitor.doctor.machine import Machine

    check_output(args.fingerprint, force=args.force, option="--fingerprint")
    machine = Machine()
    references = _list_references(args, machine)
    machine = Machine(packages=sorted({name for one in references for name in one.packages}))
    document = examine(machine, references)
    if args.fingerprint:
        text = encode_document(document.fingerprint, indent=True).decode() + "\n"
        write_output(Path(args.fingerprint), text, option="--fingerprint")
        _say(
            f"written: {args.fingerprint}; compare another machine with `headrace doctor --against {args.fingerprint}`"
        )
    if args.json:
        write_json(document, indented=True)
    else:
        write(as_text(document, explain_all=args.all), end="")
    return EXIT_DONE if document.is_fit else EXIT_NEGATIVE


def _list_references(args: argparse.Namespace, machine: Machine) -> list[Reference]:
    from headrace.base.plan import Plan
    from headrace.monitor.doctor import plan_needs, references

    found: list[Reference | None] = []
    if args.plan:
        plan = Plan.load(args.plan)
        found += [plan_needs.list_needs(plan, args.plan, machine), references.of_plan(Path(args.plan))]
        if found[-1] is None and not args.ledger:
            _say(f"{args.plan} does not say where it was measured; `headrace tune` writes that into the Plans it makes")
    if args.ledger:
        decided = references.of_ledger(Path(args.ledger), Path(args.plan) if args.plan else None, machine)
        if not decided:
            _say(f"no decision of {args.ledger} stands{f' about {args.plan}' if args.plan else ''}")
        found += decided
    found += [references.of_run(Path(args.run_folder))] if args.run_folder else []
    found += [references.of_lock(Path(args.lock))] if args.lock else []
    found += [references.of_fingerprint(Path(args.against))] if args.against else []
    return [one for one in found if one is not None]
