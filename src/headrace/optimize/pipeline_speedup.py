"""What the expected speed-up of a model would make of a recorded pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.base.errors import HeadraceError
from headrace.diagnose.analysis import Analysis
from headrace.diagnose.replay import Replay
from headrace.optimize.expected_speedup import ExpectedSpeedup
from headrace.runs.formats.optimization import Expected
from headrace.runs.formats.prediction import Change


@dataclass(slots=True)
class PipelineSpeedup:
    """Simulates a recorded run with a faster model."""

    replay: Replay
    stage: str
    """That runs the model."""
    run: str
    """The run's folder."""
    _known: dict[float, float | None] = field(default_factory=dict)

    @classmethod
    def of(cls, analysis: Analysis) -> PipelineSpeedup | None:
        """Return it for a run; None if the run cannot be simulated or no stage of it runs a model."""
        try:
            replay = analysis.replay
            replay.check_understood()
        except (HeadraceError, ValueError):
            return None
        stage = next((stage.name for stage in replay.document.stages if stage.kind == "device"), None)
        return None if stage is None else cls(replay, stage, str(analysis.run.path))

    def ratio(self, speedup: float) -> float | None:
        """Return throughput after over before with a model that is `speedup` times as fast; None if unknown."""
        if speedup not in self._known:
            try:
                self._known[speedup] = self.replay.ratio(Change(speedups={self.stage: speedup}))
            except (HeadraceError, ValueError):
                self._known[speedup] = None
        return self._known[speedup]


def predict_speedup(expected: ExpectedSpeedup | None, pipeline: PipelineSpeedup | None) -> Expected | None:
    """Return what is expected of a technique, end to end too where a run is known; None if nothing is."""
    if expected is None:
        return None
    low, high = (pipeline.ratio(end) if pipeline else None for end in (expected.low, expected.high))
    return Expected(
        low=expected.low, high=expected.high, source=expected.source, whole_low=low, whole_high=high,
        run=pipeline.run if pipeline else "",
    )  # fmt: skip
