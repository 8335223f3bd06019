"""`--metric`: how answers are scored."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.validate.metrics import Metric


def add_metric_argument(parser: argparse._ActionsContainer) -> None:
    """Declare it."""
    parser.add_argument(
        "--metric", default="top1", metavar="NAME",
        help="how answers are scored: top1 (default), top5, f1, roc-auc, pr-auc; map or map50 of boxes; iou of masks; or your "
        "own as MODULE:FUNCTION",
    )  # fmt: skip


def find_metric(name: str) -> Metric:
    """Return the metric that a name stands for.

    Raises:
        SettingsError: If there is none, or its module cannot be imported.
    """
    from headrace.base.errors import SettingsError
    from headrace.cli.loading import load_attribute
    from headrace.validate.metrics import metric_named, own_metric

    if ":" not in name:
        return metric_named(name)
    function = load_attribute(name)
    if not callable(function):
        raise SettingsError(f"--metric {name} is a {type(function).__name__}; expected a function (outputs, truth)")
    return own_metric(name, function)
