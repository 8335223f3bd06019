"""What the recorded run had to share: cores, other programs, and what headrace itself takes for each job."""

from __future__ import annotations

import numpy as np

from headrace.base.handoff import HandoffCost
from headrace.diagnose.cpu_account import HANDING_ON
from headrace.diagnose.evidence import Evidence
from headrace.diagnose.replay.demands import Demands
from headrace.diagnose.replay.structure import MOST_TAKEN, Machine
from headrace.runs.formats.profile import ProfileDocument

#: Others' use of the machine below this is no more than the noise of the measurement.
_NOISE_CORES = 0.05
#: What the runtime takes for each job and stage, waking threads apart, measured by `python -m benchmarks.ladder`.
HOP_SECONDS = 8e-6
#: What a stage takes beside its work, over what its station takes for the queue.
PASSAGE_SHARE = 0.5
#: Workers that find nothing to do wake up now and then; what is beyond so many times the usual is not for jobs.
_MOST_OVERHEADS = 5


def find_machine(evidence: Evidence, document: ProfileDocument, demands: Demands) -> Machine:
    """Return what the run had to share; `others` is the most it can have been, before calibration."""
    hardware = evidence.info.hardware
    cores = min(float(hardware.num_cores), hardware.cpu_quota or float("inf"))
    other = document.environment.other_cpu_cores or 0.0
    # Others that got half a core while threads ran at half speed wanted a whole one.
    others = other / max(_speed(evidence), 0.1) if other > _NOISE_CORES else 0.0
    bytes_in = {stage.name: stage.bytes_in or 0.0 for stage in document.stages}
    bytes_out = {stage.name: stage.bytes_out or 0.0 for stage in document.stages}
    # Of what others used a run could have had a part, had it had work: some is left of the smallest machine.
    taken = min(other, MOST_TAKEN * cores) if others else 0.0
    return Machine(
        cores=cores,
        others=others,
        taken=taken,
        overhead=_overhead(document, demands, evidence.info.handoff),
        bytes_in=bytes_in,
        bytes_out=bytes_out,
    )


def find_other_threads(document: ProfileDocument, passages: float) -> float:
    """Return CPU seconds per job of headrace's other threads, which make spans and settle; 0 where that is not known.

    They also wake up now and then, jobs or not: what is beyond the usual for so many passages is not for jobs.
    """
    parts = {} if document.runtime is None else document.runtime.parts
    return min(sum(seconds for name, seconds in parts.items() if name not in HANDING_ON), HOP_SECONDS * passages)


def _speed(evidence: Evidence) -> float:
    """Return at which share of full speed threads ran when they wanted a core."""
    spans = evidence.spans
    metered = np.isfinite(spans.cpu) & np.isfinite(spans.run_delay)
    cpu, delay = float(spans.cpu[metered].sum()), float(spans.run_delay[metered].sum())
    return cpu / (cpu + delay) if cpu > 0 else 1.0


def _overhead(document: ProfileDocument, demands: Demands, handoff: HandoffCost | None) -> float:
    """Return CPU seconds per job that workers spend outside stages: taking, handing on, settling."""
    jobs = int(document.counters.get("delivered", 0))
    # Each child of a fan-out is taken and handed on as well.
    passages = sum(len(stage.cpu) for stage in demands.stages) / demands.num_jobs
    usual = HOP_SECONDS * passages
    if document.cpu is None or jobs < 1:
        return usual
    seconds = sum(line.seconds for line in document.cpu.lines if line.name in HANDING_ON)
    if handoff is None:
        # Then a stage's demand holds a reading of the clocks for each passage, read or not: it must not count here as well.
        seconds -= document.cpu.unread_seconds
    waking = 0.0 if handoff is None else 2 * handoff.cpu_seconds * passages
    return min(max(seconds, 0.0) / jobs, max(_MOST_OVERHEADS * usual, usual + waking))
