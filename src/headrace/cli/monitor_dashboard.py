"""Write a dashboard for Grafana.

    headrace monitor dashboard -o alerts/

DIR gets `dashboard.json`. Import it (Dashboards, New, Import), or provision the folder: the data source is a variable of the
dashboard, and the file has no id of an installation. It has a panel for every series that people look at. `rules.yml` of
`headrace monitor rules` records the burn rates that its first panel shows.
"""

from __future__ import annotations

import argparse

from headrace.cli.monitor_rules import add_folder_arguments, write_files


def add_topic_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_folder_arguments(parser)


def run_topic(args: argparse.Namespace) -> int:
    """Write the dashboard."""
    import json

    from headrace.cli import EXIT_DONE
    from headrace.monitor.rules.dashboard import FILE, make_dashboard
    from headrace.monitor.rules.parameters import RuleParameters

    dashboard = make_dashboard(RuleParameters(job=args.job).job)
    num_panels = sum(panel["type"] != "row" for panel in dashboard["panels"])
    write_files(
        args, {FILE: json.dumps(dashboard, indent=1) + "\n"}, [], f"{num_panels} panels; import it into Grafana"
    )
    return EXIT_DONE
