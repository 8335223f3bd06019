"""Predictions for a terminal of 80 columns: the answer first, then what it rests on, then how to prove it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.base.formatting import align_columns, quote_arg, wrap_lines
from headrace.base.units import format_duration, format_number, format_rate, format_size
from headrace.runs.formats.profile import EMULATED
from headrace.runs.rerun_command import pipeline_address

if TYPE_CHECKING:
    from headrace.runs.formats.prediction import Change, PredictedMetric, PredictionDocument
    from headrace.runs.formats.profile import Estimate

#: A simulation of the recorded run that is off by more is worth a word of its own.
_FAR_OFF = 0.10
#: Two ratios this close say the same.
_ALIKE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the commands to type next are made of."""

    run_folder: str
    """As the user named it."""
    ledger: str | None
    """Its file; None if nothing was written down."""
    ledger_option: str | None = None
    """As the user gave it; the next commands then need it too."""
    recording: str = ""
    """The command that records the run again, into the folder with `-changed` behind its name; empty where it is not known."""
    program: tuple[str, ...] = ()
    """The script of a training and its arguments; empty where they are not known."""


def as_text(document: PredictionDocument, shown: Shown) -> str:
    """Return one prediction and what to do about it as plain text."""
    return f"{what_was_said(document)}\n\n" + "\n".join(_next(document, shown)) + "\n"


def what_was_said(document: PredictionDocument) -> str:
    """Return one prediction as plain text, without the last line's end."""
    parts = [_head(document), _metrics(document), _grounds(document)]
    notes = [f"warning: {warning}" for warning in document.warnings]
    return "\n\n".join("\n".join(part) for part in (*parts, wrap_lines(notes)) if part)


def as_table(documents: Sequence[PredictionDocument], refused: Mapping[str, str], shown: Shown) -> str:
    """Return several predictions of one run as plain text, in the order asked for."""
    lines: list[str] = []
    if documents:
        lines += wrap_lines([_origin(documents[0]), *([EMULATED] if documents[0].is_emulated else [])])
        typical = "p50" if documents[0].step is None else "step, mean"
        rows: list[tuple[str, ...]] = [("id", "change", "throughput", "ratio", "9 in 10 within", typical)]
        rows += [_row(document) for document in documents]
        lines += ["", *align_columns(rows, num_left=2), "", *_best(documents)]
    lines += wrap_lines(f"not predicted: {change}: {why}" for change, why in (*_refusals(documents), *refused.items()))
    warnings = dict.fromkeys(warning for document in documents for warning in document.warnings)
    lines += wrap_lines(f"warning: {warning}" for warning in warnings)
    if documents:
        lines += wrap_lines([f"record of this tool: {documents[0].record.says}"])
    lines += wrap_lines([_ledger_line("", shown)])
    return "\n".join(lines).lstrip("\n") + "\n"


def ratio_text(ratio: Estimate | None) -> str:
    """Return a ratio with its interval: `x1.46 (1.38 to 1.52)`."""
    return (
        "-"
        if ratio is None
        else f"x{format_number(ratio.mid)} ({format_number(ratio.low)} to {format_number(ratio.high)})"
    )


def _origin(document: PredictionDocument) -> str:
    base = document.throughput.base
    measured = "" if base is None else f": {format_rate(base)} measured"
    if document.unit == "step":
        return f"{document.pipeline or 'a training'}, run {document.run}{measured.replace('/s', ' samples/s')}"
    return f"{document.pipeline or 'a pipeline'}, run {document.run}, plan {document.plan_id[:12]}{measured}"


def _head(document: PredictionDocument) -> list[str]:
    lines = [_origin(document), f"what if {document.says}"]
    throughput = document.throughput
    if throughput.ratio is None or throughput.predicted is None:
        lines.append(f"NOT PREDICTED: {throughput.refused}")
    else:
        lines.append(
            f"predicted: {format_rate(throughput.predicted.mid)}, {ratio_text(throughput.ratio)} of the run as recorded"
        )
    if document.is_emulated:
        lines.append(EMULATED)
    return wrap_lines(lines)


def _metrics(document: PredictionDocument) -> list[str]:
    is_training = document.unit == "step"
    known: Sequence[tuple[str, PredictedMetric, Callable[[float], str]]] = (
        ("throughput, /s", document.throughput, format_number),
        *_latencies(document),
        *((("in time, /s", document.goodput, format_number),) if document.goodput is not None else ()),
        ("CPU per sample" if is_training else "CPU per item", document.cpu_per_item, format_duration),
        *((("memory, peak", document.memory, format_size),) if document.memory is not None else ()),
    )
    rows: list[tuple[str, ...]] = [("", "recorded", "predicted", "9 in 10 within", "ratio")]
    refused = []
    for name, metric, form in known:
        rows.append((name, "-" if metric.base is None else form(metric.base), *_predicted(metric, form)))
        if metric.predicted is None and metric is not document.throughput:
            refused.append((name, metric.refused or "it was not measured"))
    reasons = {why: " and ".join(name for name, same in refused if same == why) for _, why in refused}
    return [*align_columns(rows), *wrap_lines(f"not predicted: {names}: {why}" for why, names in reasons.items())]


def _latencies(document: PredictionDocument) -> list[tuple[str, PredictedMetric, Callable[[float], str]]]:
    """Return the mean step of a training, or the latency of a pipeline's jobs."""
    if document.step is not None:
        return [("step, mean", document.step, format_duration)]
    if document.unit == "step":
        return [("step, median", document.latency_p50, format_duration)]
    return [
        ("latency p50", document.latency_p50, format_duration),
        ("latency p99", document.latency_p99, format_duration),
    ]


def _predicted(metric: PredictedMetric, form: Callable[[float], str]) -> tuple[str, str, str]:
    if metric.predicted is None:
        return "refused", "-", "-"
    told = metric.predicted
    ratio = "-" if metric.ratio is None else f"x{format_number(metric.ratio.mid)}"
    # Without a spread nobody has said how sure it is.
    interval = f"{form(told.low)} to {form(told.high)}" if told.low < told.high else "-"
    return form(told.mid), interval, ratio


def _grounds(document: PredictionDocument) -> list[str]:
    """Return what speaks for and against the prediction, as far as it is known."""
    lines = []
    if document.limit_after:
        lines.append(f"then limits: {document.limit_after}")
    if document.bound_ratio is not None:
        lines.append(f"by hand: bounds on the CPU demand say x{format_number(document.bound_ratio)}")
    lines += _naive(document)
    lines += _check(document)
    if document.assumes:
        lines.append(f"takes for granted: {'; '.join(document.assumes)}")
    lines.append(f"record of this tool: {document.record.says}{_widened(document)}")
    return wrap_lines(lines)


def _widened(document: PredictionDocument) -> str:
    """Return what the record did to the interval, if it is worth a word."""
    if abs(document.widened - 1) < _ALIKE:
        return ""
    kinds = ", ".join(kind for kind in document.change.kinds if kind in document.record.by_kind)
    return f"; for its errors in changes of this kind ({kinds}) the interval is {document.widened:.2g} times as wide as usual"


def _naive(document: PredictionDocument) -> list[str]:
    """Return what timers around the stages would promise, where that is something else."""
    naive, ratio = document.naive_ratio, document.throughput.ratio
    if naive is None or (ratio and abs(naive / ratio.mid - 1) <= _ALIKE):
        return []
    if document.unit == "step":
        says = f"the slower of loader and step, each timed alone, would say x{format_number(naive)}"
        return [f"not to go by: {says}; they share the cores, and wait for one another"]
    return [f"not to go by: timers of the stages would say x{format_number(naive)}; they count waiting as work"]


def _check(document: PredictionDocument) -> list[str]:
    simulated, base = document.simulated_base, document.throughput.base
    if simulated is None or not base:
        return []
    off = simulated / base - 1
    doubt = ": this run is not well understood" if abs(off) > _FAR_OFF else ""
    return [
        f"check: the run as recorded is simulated at {format_rate(simulated)}, {100 * off:+z.1f} % of what was measured{doubt}"
    ]


def _next(document: PredictionDocument, shown: Shown) -> list[str]:
    if document.throughput.ratio is None:
        return ["nothing was written to the ledger: there is nothing to score"]
    lines = wrap_lines([_ledger_line(document.id, shown)])
    if shown.ledger is None:
        return lines
    return [*lines, *how_to_prove(document, shown)]


def how_to_prove(document: PredictionDocument, shown: Shown) -> list[str]:
    """Return what to do first, if anything, and then the commands to type."""
    change = document.change
    where = " where the change holds" if _is_elsewhere(change) else ""
    is_in_code = _is_in_code(change) or document.unit == "step"
    made = " once the change is made in the code" if is_in_code and not where else ""
    return [f"prove it{where}{made}:", *(f"  {line}" for line in proof(document, shown))]


def _is_elsewhere(change: Change) -> bool:
    """Return whether a change is one of the machine or of what comes in, and of no Plan or code."""
    return change.cores is not None or change.devices is not None or change.arrival_rate is not None or change.quiet


def _is_in_code(change: Change) -> bool:
    return bool(
        change.speedups or change.drop or change.cache_hits or change.every or change.on_device or change.cost_curves
    )


def _ledger_line(id_: str, shown: Shown) -> str:
    if shown.ledger is None:
        return "not written to a ledger; without --no-ledger it would be, to be held against what is measured"
    return f"written to {shown.ledger}{f' as {id_}' if id_ else ''}, before it is measured"


def proof(document: PredictionDocument, shown: Shown) -> list[str]:
    """Return the commands that measure a prediction and write down what came of it."""
    change, run = document.change, quote_arg(shown.run_folder)
    if document.unit == "step":
        return _proof_of_training(document, shown)
    pipeline = quote_arg(pipeline_address(document.pipeline))
    option = f" --ledger {quote_arg(shown.ledger_option)}" if shown.ledger_option else ""
    if _is_elsewhere(change):
        changed = quote_arg(f"{shown.run_folder}-changed")
        return [
            shown.recording or f"headrace profile {pipeline} -o {changed}",
            f"headrace ledger measured {document.id} {run} {changed}{option}",
        ]
    if _is_in_code(change):
        compare = f"headrace compare {run} {pipeline}@changed.toml -o compare.json"
    else:
        compare = f"headrace compare {run} changed.toml --pipeline {pipeline} -o compare.json"
    return [
        f"headrace ledger show {document.id} --plan{option} > changed.toml",
        compare,
        f"headrace ledger measured {document.id} compare.json{option}",
    ]


def _proof_of_training(document: PredictionDocument, shown: Shown) -> list[str]:
    option = f" --ledger {quote_arg(shown.ledger_option)}" if shown.ledger_option else ""
    run, changed = quote_arg(shown.run_folder), quote_arg(f"{shown.run_folder}-changed")
    recorded = [
        f"record the training again, into {changed}, as {run} was recorded",
        f"headrace ledger measured {document.id} {run} {changed}{option}",
    ]
    if not document.pipeline.endswith(".py") or shown.program[:1] != (document.pipeline,):
        return recorded
    # `train compare` takes a script and its arguments as one word.
    before, after = (
        quote_arg(" ".join(map(quote_arg, (one, *shown.program[1:])))) for one in (document.pipeline, "CHANGED.py")
    )
    return [
        *recorded,
        f"or, so that drift of the machine is in neither: headrace train compare {before} {after} -o compare.json",
        f"headrace ledger measured {document.id} compare.json{option}",
    ]


def _typical(document: PredictionDocument) -> PredictedMetric:
    """Return what stands for one job in a table: the mean step of a training, the median latency of a pipeline."""
    return document.latency_p50 if document.step is None else document.step


def _row(document: PredictionDocument) -> tuple[str, ...]:
    told, ratio, typical = document.throughput.predicted, document.throughput.ratio, _typical(document).predicted
    change = document.says
    if told is None or ratio is None:
        return "-", change, "refused", "-", "-", "-"
    return (
        document.id or "-",
        change,
        format_rate(told.mid),
        f"x{format_number(ratio.mid)}",
        f"{format_number(ratio.low)} to {format_number(ratio.high)}",
        "-" if typical is None else format_duration(typical.mid),
    )


def _refusals(documents: Sequence[PredictionDocument]) -> list[tuple[str, str]]:
    found = [
        (document.says, document.throughput.refused) for document in documents if document.throughput.ratio is None
    ]
    latency = next((one.refused for one in map(_typical, documents) if one.predicted is None), "")
    return [*found, *([("latency", latency)] if latency else [])]


def _best(documents: Sequence[PredictionDocument]) -> list[str]:
    """Return which is best, and which cannot be told from it."""
    known = [(document.throughput.ratio, document) for document in documents if document.throughput.ratio]
    if not known:
        return []
    ratio, best = max(known, key=lambda pair: pair[0].mid)
    alike = [document.says for other, document in known if document is not best and other.mid >= ratio.low]
    lines = [f"best: {best.says}, x{format_number(ratio.mid)}; then limits: {best.limit_after or 'not known'}"]
    if alike:
        lines.append(f"within its interval as well, and so not surely worse: {'; '.join(alike)}")
    return wrap_lines(lines)
