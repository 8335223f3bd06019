"""What a gain that a technique is expected to have would make of a recorded pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.base.errors import HeadraceError
from headrace.diagnose.analysis import Analysis
from headrace.diagnose.replay import Replay
from headrace.optimize.expects import Expects
from headrace.runs.formats.optimization import Expected
from headrace.runs.formats.prediction import Change


@dataclass(slots=True)
class Forecast:
    """Says what a faster model would make of a recorded run, by simulating it."""

    replay: Replay
    stage: str
    """That runs the model."""
    run: str
    """The run's folder."""
    _known: dict[float, float | None] = field(default_factory=dict)

    @classmethod
    def of(cls, analysis: Analysis) -> Forecast | None:
        """Return it for a run; None if the run cannot be simulated or no stage of it runs a model."""
        try:
            replay = analysis.replay
            replay.check_understood()
        except (HeadraceError, ValueError):
            return None
        stage = next((stage.name for stage in replay.document.stages if stage.kind == "device"), None)
        return None if stage is None else cls(replay, stage, str(analysis.run.path))

    def ratio(self, speedup: float) -> float | None:
        """Return throughput after over before with a model so many times as fast; None if it cannot be told."""
        if speedup not in self._known:
            try:
                self._known[speedup] = self.replay.ratio(Change(speedups={self.stage: speedup}))
            except (HeadraceError, ValueError):
                self._known[speedup] = None
        return self._known[speedup]


def expected(expects: Expects | None, forecast: Forecast | None) -> Expected | None:
    """Return what is expected of a technique, end to end too where a run is known; None: nothing is."""
    if expects is None:
        return None
    low, high = (forecast.ratio(end) if forecast else None for end in (expects.low, expects.high))
    return Expected(
        low=expects.low, high=expects.high, source=expects.source, whole_low=low, whole_high=high,
        run=forecast.run if forecast else "",
    )  # fmt: skip
