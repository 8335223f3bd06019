"""What the running pipeline did when it was perturbed."""

from __future__ import annotations

import math

from headrace.report.charts import Chart, axis, category_axis, plot, vertical_marks
from headrace.report.markup import DASH, Html, note, table, tag
from headrace.report.numbers import count, digits, rate
from headrace.report.section import Section
from headrace.runs.formats.experiment import ExperimentDocument, Interval, Perturbation
from headrace.runs.formats.profile import ProfileDocument

_THRESHOLD = 0.5
#: What the picture shows of the sensitivities at least: else three that are all but 0 fill it with their scatter.
_LOW, _HIGH = -0.5, 1.5


def experiment(document: ProfileDocument) -> Section | None:
    """Return the sensitivity to each resource with its interval, and the throughput of each stretch."""
    told = document.experiment
    if told is None:
        return None
    known = [one for one in told.perturbations if one.sensitivity is not None]
    charts = [*([_sensitivities(known)] if known else []), *([_over_time(told)] if told.stretches else [])]
    return Section(
        anchor="experiment",
        title="Experiment",
        parts=[
            tag("p", tag("strong", told.conclusion)),
            note(
                "One resource at a time was made scarcer for short stretches of a run. The sensitivity is 1 where that "
                "resource is the limit, and 0 where it has room."
            ),
            table(
                ["", "measured"],
                [
                    ("with nothing changed", rate(told.throughput)),
                    ("cost of all perturbations, share of the throughput", f"{told.cost:.1%}"),
                ],
            ),
            *(chart.element() for chart in charts),
            _table(told),
        ],
        charts=charts,
    )


def _sensitivities(known: list[Perturbation]) -> Chart:
    points = {
        "type": "scatter", "symbolSize": 11, "itemStyle": {"color": "var(--service)"},
        "data": [{"value": [one.sensitivity.mid if one.sensitivity else None, row], "tip": _tip(one)}
                 for row, one in enumerate(known)],
        "markLine": vertical_marks([(_THRESHOLD, "limit from here on")], is_inverse=True),
    }  # fmt: skip
    spread = {
        "type": "custom", "renderItem": "whisker-x", "silent": True, "itemStyle": {"color": "var(--text)"},
        "encode": {"x": [1, 2], "y": 0},
        "data": [[row, one.sensitivity.low, one.sensitivity.high] for row, one in enumerate(known) if one.sensitivity],
    }  # fmt: skip
    ends = [end for one in known if one.sensitivity for end in (one.sensitivity.low, one.sensitivity.high)]
    low, high = min(_LOW, math.floor(2 * min(ends)) / 2), max(_HIGH, math.ceil(2 * max(ends)) / 2)
    return plot(
        "sensitivities",
        "Which resource limits the pipeline",
        "sensitivity of the throughput to each resource, with its interval",
        [points, spread],
        x_axis=axis("sensitivity", low=low, high=high),
        y_axis=category_axis([one.name for one in known]),
        height=72 + 34 * len(known),
    )


def _tip(one: Perturbation) -> list[list[str]]:
    return [["changed", one.says], ["sensitivity", _words(one.sensitivity)], ["throughput", _words(one.ratio, "x")]]


def _over_time(told: ExperimentDocument) -> Chart:
    def line(name: str, color: str, is_changed: bool) -> dict[str, object]:
        return {
            "type": "scatter", "name": name, "symbolSize": 7, "itemStyle": {"color": color},
            "data": [
                {"value": [round(one.began + one.seconds / 2, 3), one.throughput],
                 "tip": [["changed", one.name or "nothing"], ["throughput", f"{digits(one.throughput)}/s"]]}
                for one in told.stretches if one.throughput is not None and bool(one.name) == is_changed
            ],
        }  # fmt: skip

    colors = {"nothing changed": "var(--muted)", "perturbed": "var(--c1)"}
    return plot(
        "stretches",
        "Throughput of each stretch",
        "items per second of each stretch of the experiment, in turn perturbed and not",
        [line("nothing changed", colors["nothing changed"], False), line("perturbed", colors["perturbed"], True)],
        x_axis=axis("seconds", low=0),
        y_axis=axis(low=0),
        upright="items/s",
        height=220,
        legend=colors,
    )


def _table(told: ExperimentDocument) -> Html:
    rows = [
        [
            tag("code", one.name),
            one.says,
            _words(one.ratio, "x"),
            _words(one.sensitivity),
            _words(one.latency, "x"),
            count(one.num_pairs),
            "yes" if one.decided else one.left_out or ("no" if one.num_pairs else "not asked"),
        ]
        for one in told.perturbations
    ]
    head = ["perturbation", "changed", "throughput", "sensitivity", "latency", "pairs", "decided"]
    return table(head, rows, text_columns=2)


def _words(found: Interval | None, sign: str = "") -> str:
    return DASH if found is None else f"{sign}{found}"
