"""Which changes a capacity plan looks at by itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.plan import Plan
from headrace.diagnose.replay import CannotReplay
from headrace.runs.formats.prediction import Change
from headrace.tune.improvements import plan_changes


def stage(name: str, kind: str = "cpu", executor: str = "thread", **others: Any) -> SimpleNamespace:
    """Return what run.json says of a stage."""
    return SimpleNamespace(
        name=name, kind=kind, executor=executor, **{"role": "map", "work": "", "keeps_streams": False, **others}
    )


class Recorded:
    """A run whose changes gain what the test says.

    Args:
        stages: Its stages.
        plan: Settings of its Plan.
        gains: {setting: factor}; those of one change multiply. Others give nothing, None cannot be predicted.
    """

    def __init__(self, stages: list[SimpleNamespace], plan: list[str], gains: dict[str, float | None]) -> None:
        self.plan = Plan().with_settings(plan)
        self.run = SimpleNamespace(
            info=SimpleNamespace(stages=stages, cost_curves={"model": {1: [0.1], 4: [0.2], 8: [0.3]}})
        )
        self._gains = gains

    def ratio(self, change: Change) -> float:
        """Return the gain of a change."""
        gain = 1.0
        for setting in change.settings:
            factor = self._gains.get(setting, 1.0)
            if factor is None:
                raise CannotReplay("beyond what was measured")
            gain *= factor
        return gain


def settings_of(recorded: Recorded) -> list[tuple[str, ...]]:
    """Return the settings of each change, in order."""
    return [one.change.settings for one in plan_changes(recorded)]  # type: ignore[arg-type]


STAGES = [stage("fetch", "io"), stage("decode", work="decode"), stage("model", "device")]
PLAN = ["fetch.workers=4", "stages.decode.workers=2", "model.batch=4", "decode.scale=full"]


def test_what_gains_is_shown_and_put_together() -> None:
    """The best three stand alone, and first all that go together; what gives under 2 % is not shown."""
    gains = {"fetch.workers=8": 1.2, "decode.scale=auto": 1.5, "model.batch=8": 1.1, "decode.workers=4": 1.01}
    assert settings_of(Recorded(STAGES, PLAN, gains)) == [  # type: ignore[arg-type]
        ("decode.scale=auto", "fetch.workers=8", "model.batch=8"),
        ("decode.scale=auto",),
        ("fetch.workers=8",),
        ("model.batch=8",),
    ]


def test_only_batches_that_were_measured_are_tried() -> None:
    """The warm-up knew 8: 16 is not guessed, and smaller ones than the Plan's are no improvement."""
    gains: dict[str, float | None] = {f"model.batch={size}": 1.5 for size in (1, 2, 8, 16)}
    assert settings_of(Recorded(STAGES, PLAN, gains)) == [("model.batch=8",)]


def test_one_setting_has_one_value() -> None:
    """Of two batches that both gain, only the better one goes into what is put together."""
    plan = [*PLAN, "model.batch=1"]
    gains: dict[str, float | None] = {"model.batch=4": 1.3, "model.batch=8": 1.4}
    assert settings_of(Recorded(STAGES, plan, gains)) == [("model.batch=8",), ("model.batch=4",)]


def test_what_cannot_be_predicted_is_left_out() -> None:
    """A refusal of one change does not stop the others."""
    gains: dict[str, float | None] = {"decode.scale=auto": None, "fetch.workers=8": 1.2}
    assert settings_of(Recorded(STAGES, PLAN, gains)) == [("fetch.workers=8",)]


@pytest.mark.parametrize("ordered", ["false", "true"])
def test_a_sequential_run_is_offered_workers_of_their_own(ordered: str) -> None:
    """Where a download shares its thread with the rest, threads at the seams between waiting, computing and the device."""
    stages = [
        stage("fetch", "io", "inline"),
        stage("decode", "cpu", "inline"),
        stage("resize", "cpu", "inline"),
        stage("model", "device", "inline"),
        stage("deliver", "io", "inline", role="deliver"),
    ]
    gains: dict[str, float | None] = {"fetch.executor=thread": 3.0}
    plan = [f"stages.{one.name}.executor=inline" for one in stages] + [f"run.ordered={ordered}"]
    (settings,) = settings_of(Recorded(stages, plan, gains))
    assert [one for one in settings if "executor" in one] == [
        f"{name}.executor=thread" for name in ("fetch", "decode", "model", "deliver")
    ]
    assert "fetch.workers=16" in settings
    assert ("deliver.workers=16" in settings) is (ordered == "false")
