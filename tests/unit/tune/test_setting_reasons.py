"""Why each setting was changed: what the prediction loses without it."""

from __future__ import annotations

import pytest
from tuning_fakes import FormulaReplay, account, defaults_of

from headrace.base.coordinate_search import Axis
from headrace.base.plan import Plan, resolve
from headrace.tune.predictor import MeasuredRun, Predictor
from headrace.tune.setting_reasons import find_reasons
from headrace.tune.space import Space

KINDS = {"fetch": "io", "work": "cpu"}


def predictor_of(settings: list[str]) -> Predictor:
    """Return a predictor of a pipeline that is as fast as its fetching; work does with one worker."""
    defaults = defaults_of(KINDS)
    plan = Plan().with_settings(settings)
    base = resolve(plan, defaults, 4)
    axes = (Axis("stages.fetch.workers", (1, 2, 4)), Axis("stages.work.workers", (1, 2)))
    values = {"stages.fetch.workers": base.stages["fetch"].workers, "stages.work.workers": base.stages["work"].workers}
    return Predictor(
        FormulaReplay(base, lambda plan: 10.0 * (plan.stages["fetch"].workers or 1), defaults),
        Space(axes=axes, base=values, cores=4),
        MeasuredRun(accounts={name: account(name) for name in KINDS}),
        lambda changed: resolve(plan.with_settings(changed), defaults, 4),
    )


def test_a_change_is_explained_by_what_is_lost_without_it() -> None:
    """A quarter of the downloads is three quarters less; one worker fewer where it idles costs nothing."""
    predictor = predictor_of(["fetch.workers=1", "work.workers=2"])
    point = {"stages.fetch.workers": 4, "stages.work.workers": 1}
    settings = predictor.space.settings(point)
    fetch, work = find_reasons(predictor, point, settings, predictor.space.base)
    assert fetch.without == pytest.approx(0.25)
    assert fetch.says == "was 1; without this change 75.0% less throughput (predicted)"
    assert work.says == "was 2; as fast, and takes less of the machine"


def test_what_a_second_look_began_with_is_named_too() -> None:
    """A setting that only the first look had changed has no axis of its own any more: it is named, without a figure."""
    predictor = predictor_of(["fetch.workers=2", "work.workers=1"])
    base = {"stages.fetch.workers": 1, "stages.work.workers": 1, "decode.scale": "full"}
    point = {"stages.fetch.workers": 4, "stages.work.workers": 1}
    settings = ['decode.scale="auto"', "stages.fetch.workers=4", "stages.work.workers=1"]
    scale, fetch = find_reasons(predictor, point, settings, base)
    assert scale.says == "was full; what it does alone is not predicted"
    assert (fetch.before, fetch.after) == (1, 4)
