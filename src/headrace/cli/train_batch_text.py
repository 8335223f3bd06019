"""What `headrace train batch` found, as text."""

from __future__ import annotations

from headrace.base.formatting import align_columns, pluralize, with_bars, wrap_lines
from headrace.base.units import format_duration, format_number, format_rate, format_size
from headrace.runs.formats.batch_search import BatchSearchDocument, LossComparison, SizeTrial

#: Above this share of waiting for a core the reader is warned.
BUSY = 0.05


def trial_line(trial: SizeTrial) -> str:
    """Return one size in a line, for progress."""
    if trial.outcome != "measured":
        return f"batch of {trial.batch_size}: does not fit ({trial.why})"
    return f"batch of {trial.batch_size}: {format_rate(trial.samples_per_second)}, peak {format_size(trial.peak_bytes)}"


def loss_line(loss: LossComparison) -> str:
    """Return how the validation loss of a size compares with that of the present one."""
    if loss.increase_low is None or loss.increase_high is None or loss.increase is None:
        return f"batch of {loss.batch_size}: {loss.outcome}: {loss.why}"
    verdict = {"kept": "kept: validation loss", "worse": "refused: validation loss"}.get(
        loss.outcome, "refused, cannot tell: validation loss"
    )
    interval = f"{loss.increase:+z.1%} ({loss.increase_low:+z.1%} to {loss.increase_high:+z.1%})"
    return f"batch of {loss.batch_size}: {verdict} {interval} at equal samples, margin {loss.margin:.1%}"


def as_text(document: BatchSearchDocument) -> str:
    """Return the search as text: the answer first, then each size, and what the figures mean."""
    lines = [
        *wrap_lines([_answer(document)]),
        "",
        *_table(document),
        *_losses(document),
        "",
        *wrap_lines(_remarks(document)),
    ]
    return "\n".join(lines) + "\n"


def _answer(document: BatchSearchDocument) -> str:
    if document.batch_size is None:
        return (
            f"No batch size fits into {format_size(document.limit_bytes)} ({document.limit_from}) with "
            f"{document.headroom:.0%} of it free. Look at `headrace train check` for checkpointing, or give more with --memory."
        )
    chosen = _trial(document, document.batch_size)
    assert chosen is not None
    text = (
        f"Batch size {document.batch_size}: {format_rate(chosen.samples_per_second)} samples, "
        f"{format_size(chosen.peak_bytes)} of {format_size(document.limit_bytes)}."
    )
    present = _trial(document, document.present_batch_size)
    if present is not None and present.samples_per_second and present is not chosen:
        assert chosen.samples_per_second is not None
        ratio = chosen.samples_per_second / present.samples_per_second
        text += f" That is {ratio:.2f} x the throughput of the present {document.present_batch_size}."
    return text


def _trial(document: BatchSearchDocument, batch_size: int) -> SizeTrial | None:
    ran = (trial for trial in document.trials if trial.outcome == "measured")
    return next((trial for trial in ran if trial.batch_size == batch_size), None)


def _table(document: BatchSearchDocument) -> list[str]:
    trials = sorted(document.trials, key=lambda trial: trial.batch_size)
    rows: list[tuple[str | None, ...]] = [("batch", "samples", "step", "+-", "peak", "predicted")]
    rows += [
        (
            f"{trial.batch_size}{' *' if trial.batch_size == document.batch_size else '  '}",
            format_rate(trial.samples_per_second) if trial.outcome == "measured" else "no room",
            format_duration(trial.step_seconds),
            None if trial.spread is None else f"{trial.spread:.0%}",
            format_size(trial.peak_bytes),
            format_size(trial.predicted_peak_bytes),
        )
        for trial in trials
    ]
    lines = align_columns(rows, num_left=0)
    throughput = with_bars(lines, [trial.samples_per_second for trial in trials])
    memory_rows = [("batch", "peak"), *((row[0] or "", row[4] or "") for row in rows[1:])]
    memory = with_bars(align_columns(memory_rows, num_left=0), [trial.peak_bytes for trial in trials])
    return ["Throughput", *throughput, "", "Memory", *memory]


def _losses(document: BatchSearchDocument) -> list[str]:
    if not document.losses:
        return []
    rule = {"linear": "grows with the batch", "sqrt": "grows with the batch's square root", "none": "stays"}
    lines = [f"batch of {document.present_batch_size}: present, loss {format_number(document.losses[0].present_loss)}"]
    for loss in document.losses:
        lines.append(loss_line(loss))
        if loss.increase_at_equal_time is not None:
            lines.append(f"  at equal time {loss.increase_at_equal_time:+z.1%}")
        if loss.seconds_ratio is not None:
            lines.append(f"  time to the same samples: {loss.seconds_ratio:.2f} x the present one's")
    how = f"{document.losses[0].num_seeds} seeds, {document.loss_samples:,} samples each; the learning rate "
    return ["", "Validation loss", *wrap_lines([*lines, how + rule[document.rate_rule or "none"] + "."])]


def _remarks(document: BatchSearchDocument) -> list[str]:
    notes = [
        f"No larger size: {document.stopped}."
        if document.stopped != "interrupted"
        else "Interrupted: sizes are missing."
    ]
    if document.fastest is not None and document.fastest > document.present_batch_size and not document.losses:
        notes.append(
            "Whether the larger batch trains as well was not looked at: give the recipe `validation` data to compare losses."
        )
    failed = [trial for trial in document.trials if trial.outcome != "measured"]
    notes += [f"Batch of {trial.batch_size} does not fit: {trial.why}" for trial in failed]
    memory = document.memory
    if memory is not None:
        error = "" if memory.error is None else f"; largest error of what it predicted {memory.error:.1%}"
        notes.append(
            f"Memory: {format_size(memory.fixed_bytes)} + {format_size(memory.bytes_per_sample)} a sample{error}."
        )
    waits = [trial.core_wait for trial in document.trials if trial.core_wait is not None]
    if max(waits, default=0.0) > BUSY:
        notes.append(
            f"The machine was busy: the training thread waited for a core up to {max(waits):.0%} of the time. That is left "
            "out of the figures, but measure again on a quiet machine if sizes lie close together."
        )
    notes.append(
        f"Limit: {format_size(document.limit_bytes)}, from {document.limit_from}. Steps on {document.device} with "
        f"{pluralize(document.threads, 'thread')} and the batch loaded already: `headrace train` says what loading adds. "
        "A batch of the first samples is used; samples that differ in length may need more memory."
    )
    return notes
