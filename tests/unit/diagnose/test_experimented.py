"""What an experiment comes to: one case for each limit, and none where it is not decided."""

from __future__ import annotations

import pytest

from headrace.diagnose.experimented import conclude, in_words
from headrace.runs.formats.experiment import ExperimentDocument, Interval, Kind, Perturbation, StationState

NONE, FULL = 0.0, 1.0


def perturbation(
    kind: Kind, sensitivity: float | None, *, decided: bool = True, ratio: float | None = None
) -> Perturbation:
    """Return one whose sensitivity is known within 0.1."""
    station = "work" if kind in ("delay", "fewer", "more", "batch") else None
    middle = ratio if ratio is not None else 1 / (1 + 0.5 * (sensitivity or 0.0))
    return Perturbation(
        name=f"{kind}:{station}" if station else kind, kind=kind, station=station, says=f"{kind} it",
        amount=None if sensitivity is None else 0.5, num_pairs=5,
        ratio=Interval(low=middle * 0.98, mid=middle, high=middle * 1.02),
        sensitivity=None if sensitivity is None else Interval(low=sensitivity - 0.1, mid=sensitivity, high=sensitivity + 0.1),
        latency=None, service=0.67, decided=decided,
    )  # fmt: skip


def experiment(*perturbations: Perturbation, utilization: float = 0.97) -> ExperimentDocument:
    """Return the experiment on one station."""
    state = StationState(
        name="work", stages=("work", "after"), num_workers=8, utilization=utilization, service_seconds=0.1
    )
    return ExperimentDocument(
        headrace_version="0", pipeline="p", plan_id="1", delivered=True, budget_seconds=60, seconds=30, ended="decided",
        throughput=60.0, cost=0.01, stations=(state,), perturbations=perturbations, stretches=(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("made", "limit"),
    [
        ([perturbation("delay", FULL)], "workers"),
        ([perturbation("fewer", FULL)], "workers"),
        ([perturbation("delay", FULL), perturbation("native_threads", None, ratio=1.5)], "native_threads"),
        ([perturbation("delay", NONE), perturbation("gil", FULL), perturbation("cores", NONE)], "gil"),
        ([perturbation("delay", NONE), perturbation("gil", FULL), perturbation("cores", FULL)], "cores"),
        (
            [perturbation("delay", NONE), perturbation("fewer", NONE), perturbation("gil", NONE), perturbation("cores", NONE)],
            "beyond",
        ),
    ],
)  # fmt: skip
def test_the_limit_is_what_costs_throughput(made: list[Perturbation], limit: str) -> None:
    """Each set of answers leaves one limit."""
    found = conclude(experiment(*made))
    assert found is not None
    assert found.limit == limit


@pytest.mark.parametrize(("receiving", "limit"), [(FULL, "receiving"), (NONE, "arrivals")])
def test_an_idle_pipeline_is_asked_at_its_source(receiving: float, limit: str) -> None:
    """If slower receivers cost throughput the source is slow; if not, jobs do not come faster."""
    made = [perturbation("gil", NONE), perturbation("cores", NONE), perturbation("receiving", receiving)]
    found = conclude(experiment(*made, utilization=0.1))
    assert found is not None
    assert found.limit == limit


def test_a_delay_of_the_receivers_alone_shows_that_the_source_is_slow() -> None:
    """Sleeping receivers take no GIL and no core: what they cost is the source's; what they do not cost says less."""
    found = conclude(experiment(perturbation("receiving", FULL), utilization=0.1))
    assert found is not None
    assert found.limit == "receiving"
    assert conclude(experiment(perturbation("receiving", NONE), utilization=0.1)) is None


def test_what_is_not_decided_is_no_conclusion() -> None:
    """An open answer rules nothing out."""
    open_delay = perturbation("delay", 0.5, decided=False)
    assert conclude(experiment(open_delay)) is None
    assert conclude(experiment(perturbation("gil", NONE), perturbation("cores", 0.5, decided=False))) is None


def test_a_limit_beyond_the_stage_promises_nothing_from_workers() -> None:
    """The sentence says how much the service gives, and that calls get shorter when fewer ask."""
    made = [perturbation(kind, NONE) for kind in ("delay", "fewer", "gil", "cores")]
    found = conclude(experiment(*made))
    assert found is not None
    assert "60/s, however many ask" in found.says
    assert "x0.67 as long" in found.says


def test_more_workers_at_the_limit_are_quoted() -> None:
    """What more of them gave stands in the sentence."""
    found = conclude(experiment(perturbation("delay", FULL), perturbation("more", FULL, ratio=1.4)))
    assert found is not None
    assert "x1.40 [1.37, 1.43]" in found.says


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        ([perturbation("delay", FULL), perturbation("more", FULL, ratio=1.4)],
         "The experiment shows that the 8 workers of work are the limit."),
        ([perturbation("gil", FULL), perturbation("cores", NONE)],
         "The experiment shows that the GIL is the limit, and the cores are not."),
        ([perturbation(kind, NONE) for kind in ("delay", "fewer", "gil", "cores")],
         "The experiment shows that what work calls gives 60/s, however many ask: more workers would only wait longer."),
        ([perturbation("delay", NONE), perturbation("gil", NONE), perturbation("cores", 0.5, decided=False)],
         "The experiment does not show what limits this pipeline; it rules out the workers of work and the GIL."),
        ([perturbation("delay", 0.5, decided=False)], "The experiment does not show what limits this pipeline."),
    ],
)  # fmt: skip
def test_the_conclusion_is_a_sentence(made: list[Perturbation], sentence: str) -> None:
    """It says what was shown, or what was ruled out, without figures."""
    assert in_words(experiment(*made)) == sentence


def test_a_figure_has_no_minus_before_zero() -> None:
    """A sensitivity of -0.001 is none."""
    assert str(Interval(low=-0.004, mid=-0.001, high=0.012)) == "0.00 [0.00, 0.01]"
