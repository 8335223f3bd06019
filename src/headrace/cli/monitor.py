"""Look at what watches a pipeline, and make what watches it.

    headrace monitor rules -o alerts/        alert rules for Prometheus, with their tests
    headrace monitor dashboard -o alerts/    a dashboard for Grafana
    headrace monitor check alerts/           run the tests with promtool
    headrace monitor drift show watch/       what has changed in the input and the answers, and since when

`headrace monitor TOPIC --help` explains a topic.
"""

from __future__ import annotations

import argparse
import importlib

#: {topic: what it is}; the module `monitor_TOPIC` of this folder has `add_topic_arguments` and `run_topic`.
TOPICS = {
    "rules": "write alert rules for Prometheus, and their tests",
    "dashboard": "write a dashboard for Grafana",
    "check": "test written rules with promtool",
    "drift": "notice when images, or what the model makes of them, are no longer what they were",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the topics."""
    topics = parser.add_subparsers(title="topics", metavar="TOPIC", required=True)
    for name, summary in TOPICS.items():
        module = importlib.import_module(f"headrace.cli.monitor_{name}")
        topic = topics.add_parser(
            name, help=summary, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.add_topic_arguments(topic)
        topic.set_defaults(topic=module.run_topic)


def run(args: argparse.Namespace) -> int:
    """Run the topic and return its exit status."""
    status: int = args.topic(args)
    return status
