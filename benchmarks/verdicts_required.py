"""What a correct diagnosis says about each fault that `benchmarks.faults` injects, and whether one said it.

The harness does not know these, and the diagnosis sees a run folder and nothing else; only this benchmark knows both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.runs.formats.diagnosis import DiagnosisDocument, Finding

#: What has to be worse for a fault to count as having cost something. `always`: scored whatever it costs.
Costs = Literal["throughput", "latency", "overhead", "always"]


@dataclass(frozen=True, slots=True)
class Required:
    """What is right."""

    verdicts: tuple[str, ...]
    """Any of these classes."""
    stages: tuple[str, ...] = ()
    """Stages that the finding may name, if it names one; empty: any."""
    causes: tuple[str, ...] = ()
    """Causes within the class, any of these; empty: any."""
    costs: Costs = "throughput"
    why: str = ""
    """Where more than one class is right, or the cost is not throughput: the reason."""

    def __str__(self) -> str:
        causes = f" ({'/'.join(self.causes)})" if self.causes else ""
        return "/".join(self.verdicts) + causes + (f" at {'/'.join(self.stages)}" if self.stages else "")

    def accepts(self, finding: Finding | None) -> bool:
        """Return whether a finding is right."""
        return (
            finding is not None
            and finding.verdict.value in self.verdicts
            and (not self.stages or finding.stage is None or finding.stage in self.stages)
            and (not self.causes or finding.cause in self.causes)
        )


REQUIRED: dict[str, Required] = {
    "F1": Required(("ARRIVAL_LIMITED", "HEALTHY"), costs="always", why="nothing is wrong: no more work comes"),
    "F2": Required(("BROKER",)),
    "F3": Required(("RETRY",)),
    "F4": Required(("DOWNLOAD_LATENCY",), ("fetch",)),
    "F5": Required(("BANDWIDTH",), ("fetch",)),
    "F6": Required(("DOWNLOAD_LATENCY",), ("fetch",), ("tail",)),
    "F7": Required(("DOWNLOAD_LATENCY",), ("fetch",), ("set-up",)),
    "F8": Required(("DECODE",), ("decode",)),
    "F9": Required(("PREPROCESS",)),
    "F10": Required(("GIL",)),
    "F11": Required(("CPU_SATURATION",)),
    "F12": Required(("OVERSUBSCRIPTION",)),
    "F13": Required(("NEIGHBOUR",)),
    "F14": Required(("QUOTA",)),
    "F15": Required(("BATCH_UNDERFILL",)),
    "F16": Required(("BATCH_DELAY",), costs="latency", why="the arrivals set the throughput; waiting costs latency"),
    "F17": Required(("LAUNCH",)),
    "F18": Required(("DEVICE_COMPUTE",)),
    "F19": Required(("DEVICE_MEMBW",)),
    "F20": Required(("POSTPROCESS",)),
    "F21": Required(("SERIALIZATION",)),
    "F22": Required(("CALLBACK",), ("deliver",)),
    "F23": Required(("RETRY",)),
    "F24": Required(("ORDERING",)),
    "F25": Required(("LOCK",)),
    "F26": Required(("GC",)),
    "F27": Required(("MEMORY_PRESSURE",)),
    "F28": Required(("DISK",)),
    "F29": Required(("WARMUP",)),
    "F30": Required(("THERMAL",)),
    "F31": Required(("DEVICE_COMPUTE",), causes=("anomaly",)),
    "F32": Required(("INPUT_SKEW",)),
    "F33": Required(("LOGGING",)),
    "F34": Required(("SYNC",)),
    "F39": Required(("HEALTHY", "ARRIVAL_LIMITED"), costs="always", why="nothing is wrong"),
    "F40": Required(("UNTRUSTED",), costs="overhead", why="profiling itself costs more than 5 %"),
    "F41": Required(("TIE",), costs="always", why="two bottlenecks of equal size: there is no healthier base"),
    "F43": Required(("RUNTIME",), costs="always", why="the items are tiny: there is no healthier base"),
    "F44": Required(("RATE_LIMIT",), ("fetch",)),
    "F45": Required(("LOGGING",)),
    "F46": Required(("OVERSUBSCRIPTION",)),
    "F47": Required(("DATABASE",), ("deliver",), ("slow query",)),
}
#: F39 is nothing, and what the healthy runs are; F42 is a what-if, scored by `benchmarks.whatif_error`.
NOT_INJECTED = ("F39", "F42")

#: A device that is kept fed and does all it can is as it should be.
FED_DEVICE = ("DEVICE_COMPUTE", "DEVICE_MEMBW")
#: Says nothing about what is wrong, so it is no false alarm; counted on its own.
UNDECIDED = ("INCONCLUSIVE", "UNTRUSTED")


def is_false_alarm(document: DiagnosisDocument, *, device_is_fed: bool) -> bool:
    """Return whether a diagnosis names a fault that is not there.

    Args:
        document: Of a healthy run.
        device_is_fed: Whether the run was held up by its device alone, as it was meant to.
    """
    right = REQUIRED["F39"].verdicts + UNDECIDED + (FED_DEVICE if device_is_fed else ())
    return document.first.verdict.value not in right


def in_first_two(required: Required, document: DiagnosisDocument) -> bool:
    """Return whether the verdict or the runner-up is right."""
    return required.accepts(document.first) or required.accepts(document.runner_up)
