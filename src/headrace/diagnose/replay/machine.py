"""What the recorded run had to share: cores, other programs, and what headrace itself takes for each job."""

from __future__ import annotations

import numpy as np

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.replay.needs import Needs
from headrace.diagnose.replay.structure import Machine
from headrace.runs.formats.profile import ProfileDocument

#: CPU that is spent because of the profile, or once; it is not the pipeline's own.
_NOT_PER_JOB = ("warming up models", "profiling", "writing spans", "progress view", "main thread")
#: Without an account of CPU time: what the runtime takes for each job and stage, measured by `python -m benchmarks.ladder`.
_OVERHEAD_SECONDS = 8e-6


def find_machine(evidence: Evidence, document: ProfileDocument, needs: Needs) -> Machine:
    """Return what the run had to share."""
    hardware = evidence.info.hardware
    cores = min(float(hardware.num_cores), hardware.cpu_quota or float("inf"))
    other = document.environment.other_cpu_cores or 0.0
    # Others that got half a core while threads ran at half speed wanted a whole one.
    others = other / max(_speed(evidence), 0.1) if other > 0.05 else 0.0
    sizes = {stage.name: (stage.bytes_in or 0.0) + (stage.bytes_out or 0.0) for stage in document.stages}
    return Machine(cores=cores, others=others, overhead=_overhead(document, needs), bytes_per_item=sizes)


def _speed(evidence: Evidence) -> float:
    """Return at which share of full speed threads ran when they wanted a core."""
    spans = evidence.spans
    metered = np.isfinite(spans.cpu) & np.isfinite(spans.run_delay)
    cpu, delay = float(spans.cpu[metered].sum()), float(spans.run_delay[metered].sum())
    return cpu / (cpu + delay) if cpu > 0 else 1.0


def _overhead(document: ProfileDocument, needs: Needs) -> float:
    """Return CPU seconds per job outside stages."""
    jobs = int(document.counters.get("delivered", 0))
    guess = _OVERHEAD_SECONDS * len(needs.stages)
    if document.cpu is None or jobs < 1:
        return guess
    seconds = sum(
        line.seconds for line in document.cpu.lines if line.kind == "headrace" and line.name not in _NOT_PER_JOB
    )
    # A long run's idle threads wake up now and then; what is beyond reason is not for jobs.
    return min(max(seconds, 0.0) / jobs, 20 * guess)
