"""Items an hour, for money, and right answers: from what was measured, the whole pipeline before the model alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace.optimize.cost_summary import with_cost_summary
from headrace.runs.formats.optimization import Artifact, Attempt, EndToEnd, OptimizationDocument, Whole
from headrace.runs.formats.profile import Estimate
from headrace.runs.formats.variants import Gate, ValidationDocument, VariantSide

FILE = Artifact(sha256="0" * 64, file="net.onnx", num_bytes=1)


def attempt(technique: str = "int8", **fields: Any) -> Attempt:
    """Return an accepted attempt: twice as fast, 0.9 right before and 0.891 after, 8 items in 0.1 s before."""
    side = VariantSide(name="a", variant={}, open_seconds=0.0, call_seconds=0.1)
    gate = Gate(name="accuracy", outcome="passed", says="", values={"a": 0.9, "b": 0.891})
    known: dict[str, Any] = {
        "model": FILE.sha256, "technique": technique, "kind": "lossy", "hypothesis": "", "candidate": technique, "says": "",
        "artifact": FILE, "verdict": "accept", "seconds": 0.0, "speedup": Estimate(1.9, 2.0, 2.1),
        "drop": Estimate(-0.009, 0.009, 0.018),
        "validation": ValidationDocument(
            a=side, b=side, verdict="accept", says="", gates=(gate,), batch=8, golden="", num_items=1
        ),
    }  # fmt: skip
    return Attempt(**{**known, **fields})


def document(**fields: Any) -> OptimizationDocument:
    """Return a search."""
    side = VariantSide(name="a", variant={}, open_seconds=0.0)
    known: dict[str, Any] = {
        "baseline": side, "model": FILE, "objective": "throughput", "max_drop": 0.02, "batch": 8, "golden": "g",
        "attempts": (attempt(),), "recommended": "int8", "says": "",
    }  # fmt: skip
    return OptimizationDocument(**{**known, **fields})


def test_a_variant_by_its_calls() -> None:
    """80 a second are 288,000 an hour; twice that; of 90 right answers one in a hundred is lost, with the interval."""
    found = with_cost_summary(document(), 0.75).business
    assert found is not None
    assert (found.of, found.before_per_hour) == ("model", pytest.approx(288_000))
    assert found.after_per_hour.mid == pytest.approx(576_000)
    assert found.fewer_right is not None
    assert found.fewer_right.mid == pytest.approx(0.01)
    assert found.before_per_money == pytest.approx(384_000)
    assert (
        "100 % more (90 to 110) images an hour of the model alone for 1 % fewer (-1 to 2) right answers" in found.says
    )
    assert "768,000 after" in found.says


@pytest.mark.parametrize("verdict", ["accept", "reject"])
def test_variant_and_layout_together_count_before_that(verdict: str) -> None:
    """As they were measured together, be it in the Plan's own layout; without a price nothing is said of money."""
    whole = Whole(
        ratio=Estimate(2.4, 2.5, 2.6), before_per_second=10.0, after_per_second=25.0, before="1 x 1", after="2 x 1"
    )  # fmt: skip
    found = with_cost_summary(document(layout=attempt("layout", verdict=verdict, whole=whole)), None).business
    assert found is not None
    assert found.before_per_hour == pytest.approx(36_000)
    assert found.more.mid == pytest.approx(1.5)
    assert found.before_per_money is None
    assert "money" not in found.says


def test_the_pipeline_counts_before_all() -> None:
    """What it does is less than what its model does."""
    whole = EndToEnd(
        pipeline="p", source="", predicted=None, measured=Estimate(1.1, 1.2, 1.3), error=None, before_per_second=5.0,
        after_per_second=6.0, num_pairs=8, verdict="better", ceiling=None, run="", says="",
    )  # fmt: skip
    found = with_cost_summary(document(end_to_end=whole), None).business
    assert found is not None
    assert (found.of, found.before_per_hour) == ("pipeline", pytest.approx(18_000))
    assert found.says.startswith("20 % more (10 to 30) images an hour for 1 % fewer")


def test_nothing_is_said_of_nothing() -> None:
    """Where nothing was found, and where answers are the same nothing is said of them."""
    assert with_cost_summary(document(recommended=None), 1.0).business is None
    layout = attempt("layout", drop=None, whole=None)
    assert with_cost_summary(document(recommended=None, layout=layout), 1.0).business is None


def test_of_detections_the_share_of_the_right_ones_counts() -> None:
    """Mean average precision is no share of anything that people count."""
    values = {"a": 0.41, "b": 0.40, "fewer_found_low": -0.001, "fewer_found": 0.02, "fewer_found_high": 0.041}
    gate = Gate(name="accuracy", outcome="passed", says="", values=values)
    validation = msgspec.structs.replace(attempt().validation, gates=(gate,), metric="map")
    found = with_cost_summary(document(attempts=(attempt(validation=validation),)), None).business
    assert found is not None
    assert found.fewer_right is None
    assert "for 2 % fewer (-0.1 to 4.1) right detections" in found.says


def test_of_cost_money_is_told_by_cpu_time_alone() -> None:
    """The price of a machine that serves one caller is another figure; of a whole pipeline it is the figure."""
    assert "money" not in _said(document(objective="cost"))
    whole = EndToEnd(
        pipeline="p", source="", predicted=None, measured=Estimate(1.1, 1.2, 1.3), error=None, before_per_second=5.0,
        after_per_second=6.0, num_pairs=8, verdict="better", ceiling=None, run="", says="",
    )  # fmt: skip
    assert "money" in _said(document(objective="cost", end_to_end=whole))


def test_right_answers_are_those_of_the_model_as_given() -> None:
    """Also where the Plan uses another variant, which speed is over."""
    assert "fewer (-1 to 2) right answers than the model as given" in _said(document(in_use=attempt("in-use")))


def _said(search: OptimizationDocument) -> str:
    found = with_cost_summary(search, 0.75).business
    assert found is not None
    return found.says
