"""From before to after, step by step: variant, layout, pipeline; and what was predicted beside what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.report.charts import Chart, axis, category_axis, plot
from headrace.report.markup import Html, note, table, tag
from headrace.report.numbers import digits, rate, ratio
from headrace.report.section import Section
from headrace.runs.formats.optimization import Attempt, EndToEnd, OptimizationDocument
from headrace.runs.formats.profile import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step from before to after, held against the start of its own measurement."""

    name: str
    of: str
    """What was measured."""
    before: float | None
    """Items per second; None: not known."""
    after: float | None
    times: Estimate


def steps_section(document: OptimizationDocument) -> Section | None:
    """Return what each step brings over the start; None if nothing was found."""
    steps = steps_of(document)
    if not steps:
        return None
    rows = [
        [step.name, step.of, rate(step.before), rate(step.after), digits(step.times.mid),
         f"{digits(step.times.low)} to {digits(step.times.high)}"]
        for step in steps
    ]  # fmt: skip
    head = ["step", "measured", "before", "after", "times", "interval"]
    chart = _chart(steps, document.incumbent_mark)
    about = note(
        "Every step is held against the start, in turn, in minutes of its own: speeds of two rows may differ although nothing "
        "else does; times of one row are of the same minutes, and the middle of paired blocks, while before and "
        "after are medians."
    )
    parts: list[Html] = [about, chart.element(), table(head, rows, text_columns=2, caption="Before and after")]
    return Section(anchor="steps", title="Before and after", parts=parts, charts=[chart])


def steps_of(document: OptimizationDocument) -> list[Step]:
    """Return the steps: the variant call by call, with its layout, and the whole pipeline, as far as they were measured."""
    steps = []
    chosen = next((one for one in document.attempts if one.candidate == document.recommended), None)
    if chosen is not None and chosen.speedup is not None:
        steps.append(_of_calls(chosen))
    layout, pipeline = document.layout, document.end_to_end
    if layout is not None and layout.whole is not None and (chosen is not None or layout.verdict == "accept"):
        whole = layout.whole
        steps.append(
            Step(
                name="its own layout", of=f"the model at {whole.after}, before at {whole.before}",
                before=whole.before_per_second, after=whole.after_per_second, times=whole.ratio,
            )
        )  # fmt: skip
    if pipeline is not None and pipeline.measured is not None:
        steps.append(
            Step(
                name="the whole pipeline", of=f"{pipeline.num_pairs} pairs of blocks end to end",
                before=pipeline.before_per_second, after=pipeline.after_per_second, times=pipeline.measured,
            )
        )  # fmt: skip
    return steps


def _of_calls(chosen: Attempt) -> Step:
    assert chosen.speedup is not None
    validation = chosen.validation
    before, after = (
        validation.batch / side.call_seconds if side.call_seconds else None for side in (validation.a, validation.b)
    )
    of = f"{chosen.name}: calls of {validation.batch}, one at a time"
    return Step(name="its calls", of=of, before=before, after=after, times=chosen.speedup)


def _chart(steps: Sequence[Step], before: str) -> Chart:
    names = [before, *(step.name for step in steps)]
    times = [Estimate(1.0, 1.0, 1.0), *(step.times for step in steps)]
    bars = [
        {
            "value": one.mid, "itemStyle": {"color": "var(--before)" if place == 0 else "var(--c3)"},
            "tip": [[name, ""], ["times as fast", f"{one:.2f}"]],
        }
        for place, (name, one) in enumerate(zip(names, times, strict=True))
    ]  # fmt: skip
    whiskers = [[place, one.low, one.high] for place, one in enumerate(times) if place]
    series = [
        {"type": "bar", "data": bars, "barMaxWidth": 18},
        {"type": "custom", "renderItem": "whisker-x", "silent": True, "itemStyle": {"color": "var(--text)"},
         "encode": {"x": [1, 2], "y": 0}, "data": whiskers, "z": 5},
    ]  # fmt: skip
    return plot(
        "steps", "Times as fast as the start", "each step as a bar with its interval", series,
        x_axis=axis("times as fast as the start", low=0), y_axis=category_axis(names),
        height=48 + 30 * len(names),
    )  # fmt: skip


def end_to_end_section(found: EndToEnd | None) -> Section | None:
    """Return what was predicted for the pipeline and what was measured; None if nobody asked."""
    if found is None:
        return None
    rows: list[list[str | None]] = [
        ["predicted, before it ran", *_times(found.predicted)],
        ["measured", *_times(found.measured)],
    ]
    if found.ceiling is not None:
        rows.append(["with a model that costs nothing", digits(found.ceiling), None])
    facts: list[list[str | None]] = [
        ["items per second before", rate(found.before_per_second)],
        ["items per second after", rate(found.after_per_second)],
        ["prediction over measurement, less 1", None if found.error is None else ratio(found.error)],
        ["pairs of blocks", str(found.num_pairs)],
    ]
    refused = note(f"Nothing was predicted: {found.refused}.") if found.refused else None
    written = note(f"The prediction is {found.prediction} of the ledger.") if found.prediction else None
    parts = [
        tag("p", found.says), note(f"{found.pipeline} over {found.source}."),
        table(["", "times as fast", "interval"], rows, caption="Prediction and measurement"),
        table(["", ""], facts, caption="The measurement"), *(one for one in (refused, written) if one),
    ]  # fmt: skip
    return Section(anchor="end-to-end", title="End to end", parts=parts)


def _times(found: Estimate | None) -> list[str | None]:
    return [None, None] if found is None else [digits(found.mid), f"{digits(found.low)} to {digits(found.high)}"]
