"""Test written rules with promtool, which comes with Prometheus.

    headrace monitor check alerts/

Runs `promtool check rules` and `promtool test rules` on the files of `headrace monitor rules`. The exit status is 1 if
something is wrong, such as a threshold that somebody changed by hand, and 3 if there is no promtool.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from headrace.cli.terminal import speaker, write, write_json

_say = speaker("monitor check")


def add_topic_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("folder", metavar="DIR", help="the folder of `headrace monitor rules`")
    parser.add_argument(
        "--json", action="store_true", help="print what promtool said as JSON (schema headrace.rules/1)"
    )


def run_topic(args: argparse.Namespace) -> int:
    """Run promtool."""
    from headrace.base.errors import SettingsError
    from headrace.cli import EXIT_DONE, EXIT_NEGATIVE
    from headrace.monitor.rules.files import RULES
    from headrace.monitor.rules.promtool import find_promtool, promtool_version, run_promtool
    from headrace.runs.formats.rules import RulesDocument

    folder = Path(args.folder)
    tests = sorted(file.name for file in folder.glob("tests_*.yml"))
    if not (folder / RULES).is_file() or not tests:
        raise SettingsError(
            f"{folder} has no {RULES} or no tests_*.yml; expected a folder that `headrace monitor rules -o` wrote"
        )
    promtool = find_promtool()
    version = promtool_version(promtool)
    _say(f"promtool {version} tests {RULES}; that takes some seconds")
    checked = run_promtool(promtool, ["check", "rules", RULES], folder)
    if checked.is_good:
        checked = run_promtool(promtool, ["test", "rules", *tests], folder)
    if args.json:
        write_json(
            RulesDocument(
                folder=str(folder), files=[RULES, *tests], is_good=checked.is_good, promtool=version, says=checked.said
            )
        )
    else:
        write(
            f"{RULES} does what its tests say"
            if checked.is_good
            else f"{checked.said}\n{RULES} fails its tests, see above"
        )
    return EXIT_DONE if checked.is_good else EXIT_NEGATIVE
