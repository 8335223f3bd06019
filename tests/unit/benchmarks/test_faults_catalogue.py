"""The catalogue of faults: each can be applied where it says, and leaves no name of its own behind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.faults import DOSES, FAULTS, SHAPES, Fault, source_faults, throughput
from benchmarks.faults.__main__ import main
from benchmarks.faults.case import Case
from headrace.base.errors import HeadraceError
from headrace.base.plan import StageDefaults, resolve

RUN_HERE = [fault for fault in FAULTS.values() if fault.inject is not None]
DELIVER = StageDefaults(name="deliver", kind="io")


@pytest.fixture(autouse=True)
def _known_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_faults, "measure_capacity", lambda shape: 100.0)


def cases(fault: Fault) -> Iterator[Case]:
    """Return the faulty cases of every shape and dose, and what mends them."""
    for shape in fault.applies_to:
        for dose in DOSES:
            case = fault.applied(SHAPES[shape](), dose)
            yield case
            if fault.fix is not None:
                yield fault.fix(case)


def test_ids_and_keys_agree_and_are_in_order() -> None:
    """F1 before F2 before F10, each once."""
    assert list(FAULTS) == [fault.id for fault in FAULTS.values()]
    assert [int(id_[1:]) for id_ in FAULTS] == sorted({int(id_[1:]) for id_ in FAULTS})


@pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda fault: fault.id)
def test_a_fault_can_be_injected_or_says_what_it_needs(fault: Fault) -> None:
    """One or the other; and its shapes exist."""
    assert (fault.inject is None) == bool(fault.needs)
    assert set(fault.applies_to) <= set(SHAPES)


@pytest.mark.parametrize("fault", RUN_HERE, ids=lambda fault: fault.id)
def test_the_plan_of_a_faulty_case_fits_its_pipeline(fault: Fault) -> None:
    """At every dose, also after the remedy: no stage that is not there, no impossible value."""
    for case in cases(fault):
        with_deliver = [*(stage.defaults() for stage in case.stages), DELIVER]
        resolved = resolve(case.plan, with_deliver, cores=2)
        assert list(resolved.stages) == [stage.name for stage in with_deliver]


@pytest.mark.parametrize("fault", RUN_HERE, ids=lambda fault: fault.id)
def test_a_case_does_not_bear_the_name_of_its_fault(fault: Fault) -> None:
    """Neither Plan nor stages hold the id: a diagnosis is to see what happened and nothing else."""
    for case in cases(fault):
        seen = f"{case.plan.as_toml()} {' '.join(stage.name for stage in case.stages)}"
        assert fault.id not in seen.split()


def test_a_shape_that_a_fault_does_not_apply_to_is_refused() -> None:
    """The message says to which it does."""
    with pytest.raises(ValueError, match="does not apply to shape python_preprocess; it does to download_heavy"):
        FAULTS["F4"].applied(SHAPES["python_preprocess"](), 2)


@pytest.mark.parametrize("dose", [0.5, -1.0, float("nan")])
def test_a_dose_below_one_is_refused(dose: float) -> None:
    """So is one that is no number."""
    with pytest.raises(ValueError, match="expected 1 or more"):
        FAULTS["F39"].applied(SHAPES["decode_heavy"](), dose)


def test_what_cannot_be_had_here_says_what_it_needs() -> None:
    """Applying it is refused with that."""
    missing = Fault(id="F99", title="t", dose="d", applies_to=(), inject=None, needs="a GPU")
    with pytest.raises(ValueError, match="it needs a GPU"):
        missing.applied(SHAPES["decode_heavy"](), 2)


def test_the_doses_do_what_they_say() -> None:
    """Some that are read off the case: arrivals, latency, bandwidth, threads, quota of batches."""
    download, device = SHAPES["download_heavy"](), SHAPES["device_heavy"]()
    fed = FAULTS["F1"].applied(download, 3).broker
    assert fed is not None
    assert fed.rate_per_second == pytest.approx(25.0)
    slow, slower = (FAULTS["F4"].applied(download, dose).server for dose in (1, 5))
    assert slow is not None
    assert slower is not None
    assert slower.latency_seconds == pytest.approx(5 * slow.latency_seconds)
    wide, narrow = (FAULTS["F5"].applied(download, dose).server for dose in (1, 2))
    assert wide is not None
    assert narrow is not None
    assert wide.bytes_per_second == pytest.approx(2 * (narrow.bytes_per_second or 0))
    assert FAULTS["F12"].applied(download, 2).plan.model.threads == 8
    assert FAULTS["F15"].applied(device, 2).plan.source.max_in_flight == 2
    assert FAULTS["F17"].applied(device, 2).plan.stages["process"].batch == 1


def test_nothing_is_nothing() -> None:
    """The control without a fault returns the very case."""
    case = SHAPES["decode_heavy"]()
    assert FAULTS["F39"].applied(case, 5) is case


def test_the_command_lists_every_fault(capsys: pytest.CaptureFixture[str]) -> None:
    """With its dose, or with what it needs."""
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert all(f"{fault.id} " in printed and fault.title in printed for fault in FAULTS.values())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["F0", "-o", "run"], "there is no fault 'F0'"),
        (["F8"], "there is nothing to do"),
        (["F8", "--dose", "0", "-o", "run"], "expected 1 or more"),
        (["F39", "--fixed", "-o", "run"], "has no remedy"),
        (["F8", "--cost", "--pairs", "0"], "expected more than 0"),
    ],
)
def test_the_command_says_what_is_wrong(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """On stderr, with status 2."""
    assert main(arguments) == 2
    assert expected in capsys.readouterr().err


def test_too_few_results_are_no_rate() -> None:
    """A case that ends at once is told, not divided by zero."""
    with pytest.raises(HeadraceError, match="too few for a rate"):
        throughput(replace(SHAPES["python_preprocess"](), seconds=0.0))
