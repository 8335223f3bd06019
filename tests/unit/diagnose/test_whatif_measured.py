"""What-ifs that an experiment has answered."""

from __future__ import annotations

import pytest

from headrace.diagnose.whatif_measured import measured_ratio
from headrace.runs.formats.experiment import ExperimentDocument, Interval, Kind, Perturbation, StationState
from headrace.runs.formats.prediction import Change


def made(kind: Kind, amount: float, low: float, mid: float, high: float) -> Perturbation:
    """Return a decided perturbation of `enrich` with this ratio."""
    ends = sorted((1 / ratio - 1) / amount for ratio in (low, high))
    return Perturbation(
        name=f"{kind}:enrich", kind=kind, station="enrich", says=f"{kind} it", amount=amount, num_pairs=4,
        ratio=Interval(low=low, mid=mid, high=high),
        sensitivity=Interval(low=ends[0], mid=(1 / mid - 1) / amount, high=ends[1]), latency=None, service=1.0, decided=True,
    )  # fmt: skip


def experiment(*perturbations: Perturbation) -> ExperimentDocument:
    """Return the experiment on a pipeline whose `enrich` has 8 workers and runs `clean`, too."""
    state = StationState(
        name="enrich", stages=("enrich", "clean"), num_workers=8, utilization=1.0, service_seconds=0.1
    )  # fmt: skip
    return ExperimentDocument(
        headrace_version="0", pipeline="p", plan_id="1", delivered=True, budget_seconds=60, seconds=30, ended="decided",
        throughput=60.0, cost=0.0, stations=(state,), perturbations=perturbations, stretches=(),
    )  # fmt: skip


NO_LIMIT = experiment(made("delay", 0.5, 0.97, 1.0, 1.02))
LIMIT = experiment(made("delay", 0.5, 0.64, 0.67, 0.70), made("more", -1 / 3, 1.3, 1.42, 1.55))


@pytest.mark.parametrize(
    "change",
    [Change(settings=("enrich.workers=32",)), Change(speedups={"enrich": 2.0}), Change(speedups={"clean": 2.0})],
)
def test_more_of_what_is_no_limit_gives_nothing(change: Change) -> None:
    """More workers, or faster ones: the throughput stays within what was measured."""
    found = measured_ratio(NO_LIMIT, change)
    assert found is not None
    assert found[0].mid == 1.0
    assert found[0].low <= 0.98
    assert found[0].high < 1.05


def test_the_very_number_that_was_tried_is_the_answer() -> None:
    """12 workers in the place of 8 were measured."""
    found = measured_ratio(LIMIT, Change(settings=("enrich.workers=12",)))
    assert found is not None
    assert (found[0].low, found[0].mid, found[0].high) == (1.3, 1.42, 1.55)


@pytest.mark.parametrize(
    ("document", "change"),
    [
        (None, Change(settings=("enrich.workers=12",))),
        (LIMIT, Change(settings=("enrich.workers=32",))),
        (NO_LIMIT, Change(settings=("enrich.workers=2",))),
        (NO_LIMIT, Change(settings=("other.workers=4",))),
        (NO_LIMIT, Change(settings=("enrich.workers=16", "deliver.workers=2"))),
        (NO_LIMIT, Change(settings=("enrich.executor=process",))),
        (NO_LIMIT, Change(settings=("enrich.workers=16",), cores=8)),
        (NO_LIMIT, Change(speedups={"enrich": 0.5})),
        (NO_LIMIT, Change()),
    ],
)
def test_anything_else_is_simulated(document: ExperimentDocument | None, change: Change) -> None:
    """What was not tried, or changes more than one thing, has no measured answer."""
    assert measured_ratio(document, change) is None
