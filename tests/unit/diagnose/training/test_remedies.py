"""Which remedies of a training are proposed, by what they are predicted to buy."""

from __future__ import annotations

import pytest

from headrace.diagnose.training import remedies
from headrace.runs.formats.diagnosis import Finding, Remedy, VerdictClass
from headrace.runs.formats.profile import Estimate


class _Replay:
    """Predicts what it was made with."""

    def __init__(self, ratio: Estimate) -> None:
        self.ratio = ratio

    def predict(self, _change: object) -> _Replay:
        return self

    @property
    def throughput(self) -> _Replay:
        return self


@pytest.mark.parametrize(
    ("ratio", "is_proposed"),
    [
        (Estimate(0.87, 1.02, 1.20), False),
        (Estimate(1.01, 1.03, 1.05), True),
        (Estimate(0.98, 1.30, 1.70), True),
        (Estimate(1.00, 1.01, 1.02), False),
    ],
)
def test_a_small_gain_that_may_be_a_loss_is_not_proposed(
    ratio: Estimate, is_proposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers for which no core is free, predicted at x1.02 (0.87 to 1.20), are no advice."""
    monkeypatch.setattr(remedies, "TrainingReplay", lambda run: _Replay(ratio))
    finding = Finding(
        verdict=VerdictClass.LOADING,
        stage=None,
        cause="work",
        says="",
        rule="",
        confidence="high",
        gain=None,
        evidence=(),
        remedies=(Remedy(says="decode less"), Remedy(says="more workers", settings=("loader.workers=3",))),
    )
    found = remedies.predict_remedies(None, finding)  # type: ignore[arg-type]
    assert [one.says for one in found.remedies] == ["decode less", "more workers"][: 1 + is_proposed]
