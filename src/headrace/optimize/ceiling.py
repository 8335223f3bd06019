"""How much a pipeline could gain if its model cost nothing, so that nobody spends a week on a tenth.

References:
    G. Amdahl, "Validity of the single processor approach to achieving large scale computing capabilities", AFIPS 1967; the
    figure here is a simulation of the recorded run, in which other stages go on to use the cores that the model leaves.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.base.errors import SettingsError
from headrace.diagnose.diagnosis import diagnosis_document
from headrace.diagnose.replay import Replay
from headrace.runs.formats.prediction import Change
from headrace.runs.reader import Run

#: Below this ceiling the model is not what to work on.
LEAST_CEILING = 1.25
_FREE = 1000.0


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What a free model would buy."""

    ratio: float
    """Throughput of the pipeline over that of the recorded run."""
    stage: str
    instead: str
    """What the diagnosis says of the run."""

    @property
    def is_low(self) -> bool:
        """Whether something else should be worked on."""
        return self.ratio < LEAST_CEILING

    @property
    def says(self) -> str:
        """The ceiling in words."""
        gain = f"if {self.stage} cost nothing at all, the pipeline would be {self.ratio:.2f} times as fast"
        return f"{gain}. What limits it: {self.instead}" if self.is_low else gain


def find_ceiling(run: Run) -> Ceiling:
    """Return what a model that costs nothing would make of a recorded run.

    Raises:
        CannotReplay: If the run cannot be simulated.
        SettingsError: If no stage of it runs a model.
    """
    return ceiling_of(Replay.of(run))


def ceiling_of(replay: Replay) -> Ceiling:
    """Return the same of a run that is ready to be simulated; raises what `find_ceiling` raises."""
    run = replay.run
    stage = next((stage.name for stage in replay.document.stages if stage.kind == "device"), None)
    if stage is None:
        raise SettingsError(f"{run.path}: no stage runs a model; expected a run of a pipeline with one")
    ratio = replay.ratio(Change(speedups={stage: _FREE}))
    return Ceiling(ratio, stage, diagnosis_document(run).first.says)
