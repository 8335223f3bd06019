"""What `headrace train check` found, as text."""

from __future__ import annotations

from headrace.base.formatting import pluralize, wrap_lines
from headrace.base.units import format_duration, format_number, format_size
from headrace.runs.formats.train_check import (
    AccumulationCheck,
    CheckpointCheck,
    CheckpointChoice,
    PrecisionCheck,
    TrainCheckDocument,
)

#: Predictions of checkpointing are said to hold within these.
PEAK_ERROR, TIME_ERROR = 0.05, 0.10
#: Parts that are listed, those that keep most.
MOST_UNITS = 8
#: Above this share of waiting for a core the reader is warned.
BUSY = 0.05


def as_text(document: TrainCheckDocument) -> str:
    """Return the document as text, a part for each check."""
    lines = [] if document.accumulation is None else _accumulation(document.accumulation)
    for check in document.precision:
        lines += [*([""] if lines else []), *_precision(check)]
    if document.checkpointing is not None:
        lines += [*([""] if lines else []), *_checkpointing(document.checkpointing)]
    return "\n".join(wrap_lines(lines)) + "\n"


def _accumulation(check: AccumulationCheck) -> list[str]:
    code = "`accumulate` of the recipe" if check.own_code else "each loss divided by the number of micro-batches"
    whole = check.micro_batches * check.micro_batch_size
    compared = f"{check.parameter}; {pluralize(check.num_parameters, 'parameter')} compared"
    lines = [
        "Accumulation",
        f"  {check.micro_batches} x {check.micro_batch_size} samples ({code}) and 1 x {whole}, the same, in {check.dtype}",
        f"  largest relative difference of a gradient: {check.largest_difference:.2g} ({compared})",
    ]
    if check.syncs is not None:
        lines.append(f"  exchanges of gradients an update under DistributedDataParallel: {check.syncs:.3g}")
    for finding in check.findings:
        mark = "WRONG" if finding.is_defect else "note"
        lines += [f"  {mark}: {finding.name}: {finding.what}", f"    what to do: {finding.advice}"]
    if not check.findings:
        lines.append("  the accumulated gradient is that of the large batch")
    return lines


def _precision(check: PrecisionCheck) -> list[str]:
    lines = [f"Autocast, {check.dtype} on {check.device}"]
    if check.problem:
        return [*lines, f"  cannot be computed: {check.problem}"]
    lines.append(
        f"  loss {format_number(check.loss)}, in float32 {format_number(check.exact_loss)}; {check.num_lower} of "
        f"{pluralize(check.num_layers, 'layer')} give {check.dtype}"
    )
    for finding in check.findings:
        lines += [
            f"  WRONG: {finding.layer} ({finding.layer_class}): {finding.kind}: {finding.what}",
            f"    what to do: {finding.advice}",
        ]
    if not check.findings:
        lines.append("  no layer makes NaN, overflows, or is far from float32")
    return lines


def _checkpointing(check: CheckpointCheck) -> list[str]:
    lines = [f"Checkpointing, batch of {check.batch_size}"]
    lines.append(
        f"  kept for the backward pass: {format_size(check.activation_bytes)}; step {format_duration(check.step_seconds)}, "
        f"peak {format_size(check.peak_bytes)}"
    )
    most = sorted(check.units, key=lambda unit: -unit.saved_bytes)[:MOST_UNITS]
    lines += [
        f"    {unit.name} ({unit.unit_class}): keeps {format_size(unit.saved_bytes)}, "
        f"forward {format_duration(unit.forward_seconds)}"
        for unit in most
    ]
    for choice in check.choices:
        lines += _choice(check, choice)
    lines.append("  run with MALLOC_MMAP_THRESHOLD_=1048576; without it the C library may keep what checkpoints free")
    if check.proposed:
        lines.append(f"  proposed: torch.utils.checkpoint for {', '.join(check.proposed)}")
    else:
        lines.append("  no choice frees half of what is kept for at most a third more time")
    return lines


def _choice(check: CheckpointCheck, choice: CheckpointChoice) -> list[str]:
    kept = 1 - choice.activation_bytes / check.activation_bytes if check.activation_bytes else 0.0
    lines = [f"  checkpoint {', '.join(choice.units)}: {kept:.0%} less kept"]
    if choice.step_seconds is None or choice.peak_bytes is None:
        return [*lines, "    was not measured: the process did not finish"]
    peak = _verdict(choice.predicted_peak_bytes / choice.peak_bytes - 1, PEAK_ERROR)
    time = _verdict(choice.predicted_step_seconds / choice.step_seconds - 1, TIME_ERROR)
    sizes = format_size(choice.peak_bytes), format_size(choice.predicted_peak_bytes)
    times = format_duration(choice.step_seconds), format_duration(choice.predicted_step_seconds)
    lines.append(f"    peak {sizes[0]}, predicted {sizes[1]} ({peak})")
    lines.append(f"    step {times[0]}, predicted {times[1]} ({time})")
    if (choice.core_wait or 0.0) > BUSY:
        lines.append(f"    the training thread waited for a core {choice.core_wait:.0%} of the time: times are rough")
    return lines


def _verdict(error: float, allowed: float) -> str:
    return f"{error:+z.1%}: {'within' if abs(error) <= allowed else 'NOT within'} {allowed:.0%}"
