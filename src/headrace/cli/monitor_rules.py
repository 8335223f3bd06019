"""Write alert rules for Prometheus, and the tests that hold them.

    headrace monitor rules -o alerts/
    headrace monitor rules -o alerts/ --objective 99.9% --latency 500ms --job scenes --force

DIR gets `rules.yml`, for `rule_files` in prometheus.yml, and `tests_*.yml`, which `promtool test rules` runs: for each alert
series at which it fires, and series just beside them at which it stays quiet. `headrace monitor check DIR` runs them.

Alerts: the error budgets of jobs, requests and their latency burn too fast (pages within an hour or six, tickets within a day
or three); queues stall, are late or give jobs up; loans are lost; servers or everything fails; workers die; metrics are
absent; inputs, speed, environment or a canary are not what they should be. Each names its runbook.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from headrace.cli.terminal import write, write_json


def add_topic_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_folder_arguments(parser)
    parser.add_argument(
        "--objective", metavar="SHARE", default="99.5%",
        help="share of jobs and requests that must succeed (default 99.5%%)",
    )  # fmt: skip
    parser.add_argument(
        "--latency", metavar="TIME", default="2.2s", help="time within which they should be done (default 2.2s)"
    )
    parser.add_argument("--latency-objective", metavar="SHARE", default="99%", help="share that must be (default 99%%)")
    parser.add_argument(
        "--late",
        metavar="TIME",
        default="15m",
        help="waiting time from which a queue's oldest job is late (default 15m)",
    )
    parser.add_argument(
        "--runbooks",
        metavar="PREFIX",
        default="docs/runbooks/",
        help="stands before the names of runbooks: a folder, a URL",
    )


def add_folder_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where files are written, and of which job."""
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="folder for the files; made if need be")
    parser.add_argument("--job", default="headrace", help="job_name of the scrape in prometheus.yml (default headrace)")
    parser.add_argument("--force", action="store_true", help="replace files that are there")
    parser.add_argument("--json", action="store_true", help="print what was written as JSON (schema headrace.rules/1)")


def run_topic(args: argparse.Namespace) -> int:
    """Write the rules."""
    from headrace.cli import EXIT_DONE
    from headrace.monitor.rules.alerts import list_alerts
    from headrace.monitor.rules.files import make_files
    from headrace.monitor.rules.parameters import RuleParameters

    parameters = RuleParameters(
        objective=_share(args.objective, "--objective"),
        latency_objective=_share(args.latency_objective, "--latency-objective"),
        latency_seconds=_seconds(args.latency, "--latency"),
        late_seconds=_seconds(args.late, "--late"),
        job=args.job,
        runbooks=args.runbooks,
    )
    alerts = [f"Headrace{alert.name}" for alert in list_alerts(parameters)]
    bound = f"{parameters.latency_bucket:g} s"
    write_files(
        args, make_files(parameters), alerts,
        f"{len(alerts)} alerts; slow is what takes longer than {bound}, a bucket of the histograms\n"
        f"test them:  headrace monitor check {args.output}",
    )  # fmt: skip
    return EXIT_DONE


def write_files(args: argparse.Namespace, files: dict[str, str], alerts: list[str], text: str) -> None:
    """Write files into the folder, all or none where one exists, and print what was written.

    Raises:
        SettingsError: If that is not possible.
    """
    from headrace.base.errors import SettingsError
    from headrace.runs.formats.rules import RulesDocument
    from headrace.runs.run_folder import replace_file

    folder = Path(args.output)
    there = [name for name in files if (folder / name).exists()]
    if there and not args.force:
        raise SettingsError(f"{folder / there[0]} exists; name another folder, or replace it with --force")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            replace_file(folder / name, content.encode())
    except OSError as error:
        raise SettingsError(f"-o {folder} cannot be written: {error.strerror or error}") from error
    if args.json:
        write_json(RulesDocument(folder=str(folder), files=list(files), alerts=alerts))
    else:
        write("\n".join([*(f"written: {folder / name}" for name in files), text]))


def _share(text: str, option: str) -> float:
    from headrace.base.errors import SettingsError

    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise SettingsError(f"{option} {text!r} is no share; write 99.5% or 0.995") from None


def _seconds(text: str, option: str) -> float:
    from headrace.base.errors import SettingsError
    from headrace.base.units import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise SettingsError(f"{option}: {error}") from None
