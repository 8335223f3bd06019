"""How answers are scored: by hand-counted values, by scores of items, and of whole sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import SettingsError
from headrace.runs.formats.variants import ValidationDocument
from headrace.validate.accuracy import judge_accuracy
from headrace.validate.golden import Golden, read_golden
from headrace.validate.metrics import Metric, metric_named, own_metric, score_outputs
from headrace.validate.policy import Policy
from headrace.validate.set_noninferiority import judge_set

SCORES = np.array([[0.9, 0.1, 0.0], [0.2, 0.5, 0.3], [0.4, 0.35, 0.25], [0.1, 0.2, 0.7]], np.float32)
LABELS = np.array([0, 2, 1, 2])


def value(name: str, scores: np.ndarray = SCORES, labels: np.ndarray = LABELS) -> Any:
    """Score the answers."""
    return score_outputs(metric_named(name), scores, {"labels": labels}, len(scores))


def test_the_right_class_among_the_first() -> None:
    """First answers 0, 1, 0, 2; among two also the second and third item."""
    assert value("top1").tolist() == [1, 0, 0, 1]
    assert value("top2").tolist() == [1, 1, 1, 1]
    assert value("top1", labels=np.array([0, 1, 0, 7])).tolist() == [1, 1, 1, 0]


def test_equals_are_taken_as_argmax_takes_them() -> None:
    """The first class of two equal ones is the first answer, and only it."""
    equal = np.zeros((2, 3), np.float32)
    assert value("top1", equal, np.array([0, 1])).tolist() == [1, 0]


def test_mean_f1_of_the_classes() -> None:
    """Class 0: 1 of 2 answers and 1 of 1 items, 2/3; class 1: 0; class 2: 1 of 1 and 1 of 2, 2/3."""
    assert value("f1") == pytest.approx((2 / 3 + 0 + 2 / 3) / 3)


def test_areas_below_curves_of_two_classes() -> None:
    """Of scores .1 .4 .35 .8 for labels 0 0 1 1: 3 of 4 pairs are in order; precision 1 at half, 2/3 at all."""
    second = np.array([0.1, 0.4, 0.35, 0.8])
    scores, labels = np.stack([1 - second, second], axis=1), np.array([0, 0, 1, 1])
    assert value("roc-auc", scores, labels) == pytest.approx(0.75)
    of_second = 0.5 * 1 + 0.5 * 2 / 3
    of_first = 0.5 * 1 + 0.5 * 2 / 3
    assert value("pr-auc", scores, labels) == pytest.approx((of_second + of_first) / 2)


def test_ties_count_a_half() -> None:
    """Scores that tell nothing have an area of a half, and the precision of the class."""
    scores = np.full((4, 2), 0.5)
    assert value("roc-auc", scores, np.array([0, 0, 0, 1])) == pytest.approx(0.5)
    assert value("pr-auc", scores, np.array([0, 0, 0, 1])) == pytest.approx((0.75 + 0.25) / 2)


@pytest.mark.parametrize("name", ["top0", "accuracy", ""])
def test_an_unknown_metric_is_told_with_those_there_are(name: str) -> None:
    """And how to give one's own."""
    with pytest.raises(SettingsError, match="MODULE:FUNCTION"):
        metric_named(name)


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda outputs, truth: np.zeros(3), "expected"),
        (lambda outputs, truth: 7.0, "from 0 to 1"),
        (lambda outputs, truth: float("nan"), "from 0 to 1"),
        (lambda outputs, truth: truth["boxes"], "KeyError"),
    ],
)
def test_a_metric_of_ones_own_that_goes_wrong_is_named(function: Any, told: str) -> None:
    """With what it returned or raised."""
    with pytest.raises(SettingsError, match=told):
        score_outputs(own_metric("mine:metric", function), SCORES, {"labels": LABELS}, 4)


def judged(metric: Metric, a: np.ndarray, b: np.ndarray, *, max_drop: float = 0.02, **changes: Any) -> Any:
    """Judge answers of two variants."""
    golden = Golden(name="set", inputs=np.zeros((len(a), 1)), sha256="", **{"labels": None, **changes})

    def calls(answers: np.ndarray) -> Any:
        return lambda: iter(np.array_split(answers, 5))

    policy = Policy(max_drop=max_drop, metric=metric)
    return judge_accuracy(calls(a), calls(b), golden, policy, names=["cat", "dog"], is_interrupted=lambda: False)


def answers(num_items: int, share_right: float, labels: np.ndarray) -> np.ndarray:
    """Return scores of two classes that are right for this share of the items, evenly."""
    right = (np.arange(num_items) * share_right % 1) < share_right - 1e-9
    first = np.where(right, labels, 1 - labels)
    return np.stack([first == 0, first == 1], axis=1).astype(np.float32)


@pytest.mark.full
@pytest.mark.parametrize("name", ["f1", "roc-auc"])
def test_a_value_of_the_set_is_judged_by_drawing_again(name: str) -> None:
    """An equal one passes, one that is wrong far oftener is rejected, and with few items nothing is accepted."""
    labels = np.arange(600) % 2
    good, bad = answers(600, 0.95, labels), answers(600, 0.7, labels)
    metric = metric_named(name)
    assert judged(metric, good, good, labels=labels).gate.outcome == "passed"
    worse = judged(metric, good, bad, labels=labels)
    assert worse.gate.outcome == "rejected"
    assert name in worse.gate.says
    assert worse.gate.values["drop"] > 0.2
    few = judged(metric, good[:60], good[:60], labels=labels[:60])
    assert few.gate.outcome == "inconclusive"


def test_ones_own_scores_of_items_are_tested_item_by_item() -> None:
    """Closeness to a number that stands in the golden file under a name of its own."""
    random = np.random.default_rng(0)
    wanted = random.random(800).astype(np.float32)
    metric = own_metric("mine", lambda outputs, truth: 1 - np.abs(outputs[:, 0] - truth["length"]))
    near = wanted[:, None]
    off = (wanted + np.where(wanted < 0.5, 0.3, -0.3))[:, None].astype(np.float32)
    assert judged(metric, near, near, truth={"length": wanted}).gate.outcome == "passed"
    found = judged(metric, near, off, truth={"length": wanted})
    assert found.gate.outcome == "rejected"
    assert found.gate.values["b"] == pytest.approx(0.7, abs=0.01)
    assert len(found.worst) == 12


def test_what_lost_most_is_listed_with_both_answers() -> None:
    """By the names of the classes, with the file where there is one."""
    labels = np.zeros(700, int)
    a = answers(700, 1.0, labels)
    b = a.copy()
    b[41] = b[41][::-1]
    found = judged(metric_named("top1"), a, b, labels=labels, files=[f"{n}.jpg" for n in range(700)])
    (worst,) = found.worst
    assert (worst.item, worst.file, worst.label, worst.a, worst.b, worst.loss) == (
        41,
        "41.jpg",
        "cat",
        "cat",
        "dog",
        1.0,
    )


def test_parts_too_small_to_tell_are_warned_of() -> None:
    """Three items in the dark show no drop, even if all three are lost."""
    labels, light = np.arange(700) % 2, np.array(["dark"] * 3 + ["bright"] * 697)
    right = answers(700, 1.0, labels)
    found = judged(metric_named("top1"), right, right, labels=labels, slices={"light": light})
    assert found.gate.outcome == "passed"
    assert "light dark (3)" in found.warnings[0]


def test_a_drop_that_hangs_on_sources_is_drawn_by_source() -> None:
    """Ten sources of which one is lost: by items it would be a sure drop of 10 points, by sources nothing is sure."""
    sources = np.repeat([f"photo {n}" for n in range(10)], 100)
    lost = (sources == "photo 3").astype(float)

    def value_of(places: np.ndarray) -> tuple[float, float]:
        return 1.0, 1.0 - float(lost[places].mean())

    assert judge_set(value_of, 1000, None, 0.05, 0.05).outcome == "rejected"
    assert judge_set(value_of, 1000, sources, 0.05, 0.05).outcome == "inconclusive"


def test_nothing_is_decided_by_a_few_draws() -> None:
    """A metric that takes too long leaves it open, and says so."""
    found = judge_set(lambda places: (1.0, 1.0), 1000, None, 0.05, 0.05, seconds=0.0)
    assert found.outcome == "inconclusive"
    assert "faster metric" in found.why


def test_a_golden_file_holds_what_else_is_true(tmp_path: Path) -> None:
    """Arrays named truth_NAME, of as many items; others of another length are refused."""
    np.savez(tmp_path / "set.npz", inputs=np.zeros((4, 2)), truth_boxes=np.ones((4, 3, 4)))
    golden = read_golden(tmp_path / "set.npz")
    assert golden.truth["boxes"].shape == (4, 3, 4)
    np.savez(tmp_path / "bad.npz", inputs=np.zeros((4, 2)), truth_boxes=np.ones((3, 4)))
    with pytest.raises(SettingsError, match="truth_boxes"):
        read_golden(tmp_path / "bad.npz")


def test_the_interval_says_of_which_sides_it_is() -> None:
    """The printed interval is of both sides together; the decision of one."""
    labels = np.zeros(700, int)
    found = judged(metric_named("top1"), answers(700, 1.0, labels), answers(700, 1.0, labels), labels=labels)
    assert "95 % on both sides together" in found.gate.says
    assert "5 % on its side" in found.gate.says


def test_documents_of_before_are_still_read() -> None:
    """Without a metric it was the share of right answers."""
    import msgspec

    side = {"name": "x", "variant": {}, "open_seconds": 0.0}
    old = {"a": side, "b": side, "verdict": "accept", "says": "", "gates": [], "batch": 1, "golden": "", "num_items": 1}
    assert msgspec.convert(old, ValidationDocument).metric == "top1"
