"""What an experiment measured outranks what was inferred from the recording."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from headrace.base.documents import encode_document
from headrace.diagnose.analysis import Analysis
from headrace.diagnose.diagnosis import diagnosis_document
from headrace.diagnose.gil_holders import GilHolders
from headrace.diagnose.verdict import facts
from headrace.runs.formats.diagnosis import DiagnosisDocument, VerdictClass
from headrace.runs.formats.experiment import FILE, ExperimentDocument, Interval, Kind, Perturbation, StationState
from headrace.runs.formats.profile import Estimate
from headrace.runs.reader import Run

MakeRun = Callable[[Any], Run]


def asked(kind: Kind, sensitivity: float) -> Perturbation:
    """Return a perturbation of the stage `enrich`, or of what all share, with this sensitivity."""
    station = "enrich" if kind in ("delay", "fewer") else None
    ratio = 1 / (1 + 0.5 * sensitivity)
    return Perturbation(
        name=f"{kind}:{station}" if station else kind, kind=kind, station=station, says=f"{kind} it", amount=0.5,
        num_pairs=4, ratio=Interval(low=ratio, mid=ratio, high=ratio),
        sensitivity=Interval(low=sensitivity, mid=sensitivity, high=sensitivity), latency=None, service=0.67, decided=True,
    )  # fmt: skip


@pytest.fixture
def waiting(make_run: MakeRun, made: Any, pipe: Any) -> Run:
    """A stage whose 8 workers wait 80 ms for each item: by the recording, more of them would do more."""
    stages = [made(name="enrich", kind="io", cpu=0.0001, wait=0.08, workers=8), made(name="rest", cpu=0.0005)]
    return make_run(pipe(stages=stages, num_jobs=600))


def diagnose(run: Run, *made: Perturbation) -> DiagnosisDocument:
    """Return the diagnosis of a run whose folder has an experiment."""
    state = StationState(
        name="enrich", stages=("enrich",), num_workers=8, utilization=0.99, service_seconds=0.08
    )  # fmt: skip
    document = ExperimentDocument(
        headrace_version="0", pipeline="p", plan_id="1", delivered=True, budget_seconds=60, seconds=30, ended="decided",
        throughput=100.0, cost=0.0, stations=(state,), perturbations=made, stretches=(),
    )  # fmt: skip
    (run.path / FILE).write_bytes(encode_document(document))
    return diagnosis_document(Analysis(run))


def test_a_stage_that_was_measured_to_have_room_falls(waiting: Run) -> None:
    """A service that gives so much however many ask: no remedy promises more workers, and no candidate gains by them."""
    before = diagnosis_document(Analysis(waiting))
    assert before.first.verdict is VerdictClass.DOWNLOAD_LATENCY
    found = diagnose(waiting, *(asked(kind, 0.0) for kind in ("delay", "fewer", "gil", "cores")))
    assert found.first.verdict is not VerdictClass.DOWNLOAD_LATENCY
    assert found.first.stage == "enrich"
    assert "however many ask" in found.first.says
    assert found.runner_up is None
    assert not any("enrich.workers" in setting for one in found.first.remedies for setting in one.settings)
    named = {one.name: one.gain for one in found.candidates}
    assert named["stage:enrich"] == 1.0
    assert named["workers:enrich"] == 1.0


def test_a_log_that_is_read_slowly_is_what_gives_so_much(make_run: MakeRun, made: Any, pipe: Any) -> None:
    """It was seen that writing waits; that more workers bring nothing says no more than that, and no service is to blame."""
    stages = [made(name="enrich", cpu=0.001, wait=0.02, state="output", workers=2), made(name="rest", cpu=0.0005)]
    run = make_run(pipe(stages=stages, num_jobs=600))
    assert diagnosis_document(Analysis(run)).first.verdict is VerdictClass.LOGGING
    found = diagnose(run, *(asked(kind, 0.0) for kind in ("delay", "fewer", "gil", "cores")))
    assert (found.first.verdict, found.first.stage) == (VerdictClass.LOGGING, "enrich")


def test_what_one_thread_for_each_call_gave_stands_with_its_remedy(waiting: Run) -> None:
    """It was measured, so nobody has to try it to know what it buys."""
    gained = Interval(low=1.3, mid=1.5, high=1.7)
    tried = msgspec.structs.replace(asked("native_threads", 0.0), sensitivity=None, ratio=gained)
    found = diagnose(waiting, tried, *(asked(kind, 0.0) for kind in ("delay", "fewer", "gil", "cores")))
    assert found.first.verdict is VerdictClass.OVERSUBSCRIPTION
    assert found.first.remedies[0].ratio == Estimate(low=1.3, mid=1.5, high=1.7)


def test_an_experiment_that_agrees_makes_sure(waiting: Run) -> None:
    """The verdict is as before, with high confidence, and the measured facts come first."""
    found = diagnose(waiting, asked("delay", 1.0))
    assert found.first.verdict is VerdictClass.DOWNLOAD_LATENCY
    assert found.first.confidence == "high"
    assert found.first.evidence[0].name == "experiment.delay:enrich"
    assert found.first.evidence[0].supports is True


def test_the_cores_outrank_a_stage(waiting: Run) -> None:
    """Where scarcer cores cost throughput and a delayed stage none, the verdict is one of the cores."""
    found = diagnose(waiting, asked("delay", 0.0), asked("gil", 1.0), asked("cores", 1.0))
    assert found.first.stage is None or found.first.verdict is not VerdictClass.DOWNLOAD_LATENCY
    assert "the cores are the limit" in found.first.says


def test_what_was_next_by_the_recording_says_nothing_of_a_first_that_fell(
    make_run: MakeRun, made: Any, pipe: Any
) -> None:
    """By the recording the GIL limits behind decoding; by experiment it limits, with decoding in the way as it is."""
    stages = [
        made(name="decode", work="decode", cpu=0.02),
        made(name="look", cpu=0.002, wait=0.006, state="gil", meanwhile="parse"),
        made(name="parse", cpu=0.01, releases_gil=False),
    ]
    run = make_run(pipe(stages=stages))
    before = diagnosis_document(Analysis(run))
    assert before.next_bottleneck is not None
    assert [before.first.verdict, before.next_bottleneck.verdict] == [VerdictClass.DECODE, VerdictClass.GIL]
    found = diagnose(run, asked("gil", 1.0), asked("cores", 0.0))
    assert found.first.verdict is VerdictClass.GIL
    assert "out of the way" not in found.first.says
    assert any("executor=process" in setting for one in found.first.remedies for setting in one.settings)


@pytest.mark.parametrize(
    ("shares", "says"),
    [
        ({"parse": 0.6, "look": 0.1}, "left that open, and the recording did not: parse held it 60% (56% to 64%)"),
        ({"parse": 0.6, "look": 0.58}, "tell parse from look"),
    ],
    ids=["told", "too few looks"],
)
def test_what_the_recording_answers_is_not_left_open(
    make_run: MakeRun, made: Any, pipe: Any, monkeypatch: pytest.MonkeyPatch, shares: dict[str, float], says: str
) -> None:
    """Delays in stages that share the GIL tell nothing; who has it was seen, or more looks are what decides."""
    stages = [
        made(name="look", cpu=0.002, wait=0.006, state="gil", meanwhile="parse"),
        made(name="parse", cpu=0.01, releases_gil=False),
    ]
    holders = GilHolders(400, shares, dict.fromkeys(shares, 0.02))
    monkeypatch.setattr(facts, "find_gil_holders", lambda *_: holders)
    found = diagnose(make_run(pipe(stages=stages)), msgspec.structs.replace(asked("gil", 0.5), decided=False))
    assert (found.first.verdict, found.first.stage) == (VerdictClass.GIL, "parse")
    assert says in found.first.says
    longer = [one for one in found.first.remedies if "holds it longer" in one.says]
    assert bool(longer) == ("tell parse" in says)
    assert all("headrace profile" in one.command for one in longer)


def test_an_open_experiment_changes_no_verdict(waiting: Run) -> None:
    """What was measured is told as facts that say nothing."""
    found = diagnose(waiting, asked("gil", 0.0))
    assert found.first.verdict is VerdictClass.DOWNLOAD_LATENCY
    assert found.first.evidence[-1].supports is None


@pytest.mark.parametrize(
    ("receiving", "verdict"), [(1.0, VerdictClass.SOURCE), (0.0, VerdictClass.STARVED)], ids=["slow", "no more jobs"]
)
def test_an_experiment_tells_a_slow_source_from_one_without_jobs(
    make_run: MakeRun, made: Any, pipe: Any, receiving: float, verdict: VerdictClass
) -> None:
    """The recording names both; afterwards one is left, which does not ask for the experiment again."""
    received = {
        "calls": 80, "empty_calls": 0, "jobs": 400, "asked": 800, "full_calls": 0, "call_seconds": 8.0,
        "empty_call_seconds": 0.0, "blocked_seconds": 0.05,
    }  # fmt: skip
    run = make_run(pipe(stages=[made(name="enrich", cpu=0.002)], arrivals=np.arange(400) * 0.02, receiving=received))
    before = diagnosis_document(Analysis(run))
    assert before.runner_up is not None
    assert [before.first.verdict, before.runner_up.verdict] == [VerdictClass.STARVED, VerdictClass.SOURCE]
    others = () if receiving else (asked("gil", 0.0), asked("cores", 0.0))
    found = diagnose(run, asked("receiving", receiving), *others)
    assert (found.first.verdict, found.first.confidence) == (verdict, "high")
    assert found.runner_up is None
    assert "not measured" not in found.first.says
    assert found.first.remedies
    assert not any("--experiment" in one.command for one in found.first.remedies)
