"""What a lack of memory costs a training: steps that wait for pages which the kernel took away."""

from __future__ import annotations

from headrace.base.units import format_duration, format_size
from headrace.diagnose.training.cost import WORTH_WORK, Cost, View, fact
from headrace.runs.formats.diagnosis import Remedy, VerdictClass
from headrace.runs.formats.training_memory import MemoryProfile
from headrace.runs.training_phases import Phase

#: Pages a second that this process reads back from a disk from which memory may be what is short: libraries that are loaded
#: late, and data sets that are mapped, cause some too.
_FAULTS = 10.0
#: Phases that compute: a training thread has no other reason to be blocked for long in them, but threads that it waits for.
_COMPUTING = (Phase.PREPARE, Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.OPTIMIZER)


def memory_pressure(view: View) -> Cost | None:
    """Return what waiting for pages costs: at most the stalls that the kernel counted, and the time blocked while computing."""
    memory = view.profile.memory
    if memory is None or memory.stalled_share is None or not view.step_seconds:
        return None
    blocked = sum((found.blocked_seconds or 0.0) for phase in _COMPUTING if (found := view.phase(phase)) is not None)
    seconds = min(blocked, memory.stalled_share * view.step_seconds)
    is_short = memory.major_faults_per_second >= _FAULTS
    return Cost(
        verdict=VerdictClass.MEMORY_PRESSURE,
        stage=None,
        cause="swapping" if memory.swapped_bytes else "",
        says=f"memory is short: {format_duration(seconds)} of a step of {format_duration(view.step_seconds)} wait for pages "
        "that the kernel put out and must read again",
        rule=f"the process reads at least {_FAULTS:.0f} pages a second back from a disk, and the smaller of two takes "
        f"{WORTH_WORK:.0%} of the training's time: stalls for memory that the kernel counts (PSI), and time blocked in phases "
        "that compute",
        share=view.share_of(seconds) if is_short else 0.0,
        evidence=(
            fact(
                "major_faults",
                f"pages read back from a disk: {memory.major_faults_per_second:,.1f} a second (from {_FAULTS:.0f})",
                memory.major_faults_per_second,
                _FAULTS,
            ),
            fact(
                "stalled",
                f"share of the time that something waited for memory (PSI): {memory.stalled_share:.0%}",
                memory.stalled_share,
            ),
            fact("blocked", f"blocked while computing: {format_duration(blocked)} of a step", blocked),
            fact("swapped", f"most of this process in swap: {format_size(memory.swapped_bytes)}", memory.swapped_bytes),
            fact("peak", _peak(memory), memory.peak_bytes),
        ),
        remedies=(
            Remedy(says="a smaller batch, and gradients accumulated: `headrace train batch` finds the size that fits"),
            Remedy(says="activation checkpointing: `headrace train check` says what it frees and costs"),
            Remedy(says="fewer loader workers, or a smaller prefetch_factor: each holds batches"),
            Remedy(says="more memory, or a higher limit of the container"),
        ),
    )


def note_of_growth(view: View) -> str | None:
    """Return a sentence on memory that grows with the steps; None where it does not."""
    memory = view.profile.memory
    if memory is None or memory.growth_bytes_per_step is None:
        return None
    slope, limit = memory.growth_bytes_per_step, memory.limit_bytes
    left = "" if limit is None else _steps_left(limit - memory.peak_bytes, slope)
    lines = _kept_lines(view)
    made = f"; what each step keeps is made in {' and '.join(lines)}" if lines else ""
    return (
        f"memory grows by {format_size(slope)} a step{left}{made}; what is kept of each step (a list of losses with their "
        "graph?) has to be let go: total += loss.detach()"
    )


def _kept_lines(view: View) -> list[str]:
    rows = [] if view.profile.about is None else view.profile.about.details.get("kept_lines", [])
    try:
        return [str(line) for line, _ in rows]
    except (TypeError, ValueError):  # a file that another program wrote
        return []


def _steps_left(free: float, slope: float) -> str:
    return f": {int(free / slope):,} more steps, and the limit is reached" if free > 0 else ": it is at its limit"


def _peak(memory: MemoryProfile) -> str:
    text = f"largest resident memory of this process: {format_size(memory.peak_bytes)}"
    return text if memory.limit_bytes is None else f"{text} of {format_size(memory.limit_bytes)}"
