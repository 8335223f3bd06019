"""What answers mean: by declaration, by the model's file, by their shape; and what two variants must share by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.base.errors import SettingsError
from headrace.base.meaning import Declared
from headrace.base.plan import ModelPlan
from headrace.validate.meaning_choice import class_names, meaning_of
from headrace.validate.shadow import ShadowRecord
from headrace.validate.switching import explain_no_switch

NEW = ModelPlan(artifact="new.onnx", engine="onnx")
NUM_CLASSES, ANCHORS = 6, 200
Array = np.ndarray
Change = Callable[[Array], Array]


def head(seed: int, layout: str = "yolov8", items: int = 4) -> Array:
    """Return a raw head: two objects in each item, of classes that come in turn; everything else is unsure."""
    random = np.random.default_rng(seed)
    rows = np.zeros((items, ANCHORS, 4 + NUM_CLASSES), np.float32)
    rows[..., :2] = random.uniform(0, 320, (items, ANCHORS, 2))
    rows[..., 2:4] = random.uniform(10, 60, (items, ANCHORS, 2))
    rows[..., 4:] = random.uniform(0, 0.01, (items, ANCHORS, NUM_CLASSES))
    for item in range(items):
        for number, anchor in enumerate((3, 90)):
            rows[item, anchor, :4] = (80 + 150 * number, 100 + 20 * item, 90, 60)
            rows[item, anchor, 4 + (item + 3 * number + seed) % NUM_CLASSES] = random.uniform(0.7, 0.95)
    if layout == "yolov8":
        return rows.swapaxes(1, 2)
    return np.concatenate([rows[..., :4], np.ones_like(rows[..., :1]), rows[..., 4:]], axis=2)


def line(seed: int, items: int = 4, steps: int = 40, characters: int = 30) -> Array:
    """Return probabilities of characters: ten of them, each for two steps, blanks between."""
    random = np.random.default_rng(seed)
    best = np.zeros((items, steps), int)
    for item in range(items):
        for place in range(10):
            best[item, 4 * place : 4 * place + 2] = random.integers(1, characters)
    scores = np.full((items, steps, characters), 0.1 / (characters - 1), np.float32)
    np.put_along_axis(scores, best[..., None], 0.9, axis=2)
    return scores


def one_character_wrong(scores: Array) -> Array:
    """Return the same with the sixth character of each line read as the next one."""
    other = scores.copy()
    for item in other:
        best = int(item[20].argmax())
        wrong = best % (item.shape[1] - 1) + 1
        item[20:22, [best, wrong]] = item[20:22, [wrong, best]]
    return other


def mask(seed: int, items: int = 4) -> Array:
    """Return scores of three classes and the background: blocks."""
    random = np.random.default_rng(seed)
    scores = np.zeros((items, 4, 48, 48), np.float32)
    scores[:, 0] = 1
    for item in range(items):
        top, left = random.integers(4, 20, 2)
        scores[item, 1 + item % 3, top : top + 20, left : left + 20] = 4
    return scores


def embedding(seed: int) -> Array:
    """Return directions of 64 numbers."""
    rows = np.random.default_rng(seed).standard_normal((8, 64)).astype(np.float32)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def of_scores(first: int, change: Change) -> Change:
    """Return what changes the rows of a head from one on."""
    return lambda outputs: np.concatenate([outputs[:, :first], change(outputs[:, first:])], axis=1)


def noisy(size: float) -> Change:
    """Return what adds noise of a share of each number."""
    return lambda outputs: (outputs * (1 + size * np.random.default_rng(1).standard_normal(outputs.shape))).astype(
        outputs.dtype
    )


@pytest.mark.parametrize(
    ("answers", "metadata", "name"),
    [
        (head(0), {}, "detections"),
        (head(0, "yolov5"), {}, "detections"),
        ({"boxes": head(0)[:, :4].swapaxes(1, 2), "logits": 20 * head(0)[:, 4:].swapaxes(1, 2) - 10}, {}, "detections"),
        (line(0), {}, "text"),
        (np.log(line(0)), {}, "text"),
        (mask(0), {}, "masks"),
        (embedding(0), {}, "embeddings"),
        (np.random.default_rng(0).standard_normal((4, 10)).astype(np.float32), {}, "classes"),
        ({"scores": np.eye(4, dtype=np.float32), "label": np.arange(4)}, {}, "several outputs"),
        (np.random.default_rng(0).standard_normal((4, 3, 48, 48)).astype(np.float32), {}, "numbers"),
        (np.random.default_rng(0).standard_normal((4, 20, 64)).astype(np.float32), {}, "numbers"),
        (head(0), {"task": "pose", "names": "{0: 'person'}"}, "numbers"),
        (np.ones((4, 1), np.float32), {}, "numbers"),
    ],
)  # fmt: skip
def test_what_answers_mean_is_seen_from_them(answers: Any, metadata: dict[str, str], name: str) -> None:
    """By shape and numbers; what is like nothing that is known stays unknown."""
    found = meaning_of([answers], Declared(metadata=metadata))
    assert found.name == name
    assert found.is_known is (name != "numbers")


def test_what_is_declared_goes_before_what_it_looks_like() -> None:
    """Scores of two axes may be an embedding, and several outputs are declared by their names."""
    rows = np.random.default_rng(0).standard_normal((4, 10)).astype(np.float32)
    assert meaning_of([rows], Declared(hr.Embedding())).name == "embeddings"
    both = meaning_of([{"a": rows, "b": rows}], Declared({"a": hr.Embedding(), "b": hr.Numbers()}))
    assert both.is_known
    with pytest.raises(ValueError, match="declared that there is not: c"):
        meaning_of([{"a": rows}], Declared({"c": hr.Embedding()}))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('["cat", "dog"]', ["cat", "dog"]),
        ("{0: 'cat', 1: 'dog'}", ["cat", "dog"]),
        ('{"1": "dog", "0": "cat"}', ["cat", "dog"]),
        ("{0: 'cat', 7: 'dog'}", None),
        ("__import__('os').getcwd()", None),
        ("[" * 100_000, None),
        ("", None),
    ],
)
def test_names_of_classes_are_read_and_never_executed(text: str, names: list[str] | None) -> None:
    """JSON, and the Python dict that Ultralytics writes; anything else is no list of names."""
    assert class_names({"names": text}) == names


def swapped(outputs: Array) -> Array:
    """Return a head with classes 1 and 4 exchanged."""
    order = [*range(4), 4, 8, 6, 7, 5, 9]
    return outputs[:, order]


CASES: Sequence[tuple[str, Callable[[int], Array], Change]] = [
    ("finds nothing", head, of_scores(4, np.zeros_like)),
    ("classes exchanged", head, swapped),
    ("a class forgotten", head, of_scores(4, lambda scores: scores * (np.arange(NUM_CLASSES) != 2)[:, None])),
    ("boxes 30 px off", head, lambda outputs: np.concatenate([outputs[:, :1] + 30, outputs[:, 1:]], axis=1)),
    ("scores too low", head, of_scores(4, lambda scores: 0.5 * scores)),
    ("one wrong character", line, one_character_wrong),
    ("a character never read", line, lambda scores: np.roll(scores, 1, axis=2)),
    ("a mask moved", mask, lambda scores: np.roll(scores, 6, axis=3)),
    ("a class of pixels lost", mask, lambda scores: scores * (np.arange(4) != 2)[:, None, None]),
    ("numbers in another order", embedding, lambda rows: rows[:, ::-1]),
    ("a quarter of the numbers is 0", embedding, lambda rows: rows * (np.arange(64) >= 16)),
    ("half as long", embedding, lambda rows: rows / 2),
]


@pytest.mark.parametrize(("make", "change"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_another_meaning_neither_takes_over_nor_is_promoted(make: Callable[[int], Array], change: Change) -> None:
    """Though some of them are next to nothing in a norm over the whole output."""
    answers = [make(seed) for seed in range(8)]
    wrong = [np.ascontiguousarray(change(one)).astype(np.float32) for one in answers]
    assert explain_no_switch(answers, wrong, NEW) is not None
    record = ShadowRecord("candidate", 0.02)
    for _ in range(30):
        for before, after in zip(answers, wrong, strict=True):
            record.add(before, after, 0.02, 0.01)
    assert record.document().advice == "roll back"


@pytest.mark.parametrize("make", [head, line, mask, embedding])
def test_rounding_changes_no_meaning(make: Callable[[int], Array]) -> None:
    """Noise as large as that of bfloat16, in every number."""
    answers = [make(seed) for seed in range(8)]
    rounded = [noisy(0.01)(one) for one in answers]
    assert explain_no_switch(answers, rounded, NEW) is None
    record = ShadowRecord("candidate", 0.02)
    for turn in range(60):
        for before, after in zip(answers, rounded, strict=True):
            record.add(before, after, 0.02 + 0.001 * (turn % 3), 0.01)
    assert record.document().advice == "promote"


def test_what_nobody_can_interpret_is_neither_switched_nor_promoted_and_says_what_to_declare() -> None:
    """Unless the numbers are the same but for rounding; a declaration opens the way."""
    answers = [np.random.default_rng(seed).standard_normal((4, 7, 33)).astype(np.float32) for seed in range(8)]
    other = [noisy(0.02)(one) for one in answers]
    refusal = explain_no_switch(answers, other, NEW)
    assert refusal is not None
    assert "output = hr.Detections()" in refusal
    assert explain_no_switch(answers, [noisy(1e-6)(one) for one in answers], NEW) is None
    assert explain_no_switch(answers, other, NEW, Declared(hr.Numbers())) is None
    for declared, advice in ((Declared(), "keep"), (Declared(hr.Numbers()), "promote")):
        record = ShadowRecord("candidate", 0.02)
        for turn in range(480):
            record.add(answers[turn % 8], other[turn % 8], 0.02 + 0.001 * (turn % 3), 0.01, declared)
        document = record.document()
        assert document.advice == advice
        assert ("output = hr.Detections()" in document.says) is (advice == "keep")


def test_a_channel_of_small_numbers_counts_as_much_as_one_of_large_ones() -> None:
    """Each is held against its own spread: the second of two units is lost, and a norm over both would not see it."""
    random = np.random.default_rng(0)
    answers = [np.stack([300 * random.random((4, 50)), random.random((4, 50))], axis=1) for _ in range(4)]
    lost = [one * np.array([1, 0])[:, None] for one in answers]
    assert np.linalg.norm(lost[0] - answers[0]) < 0.01 * np.linalg.norm(answers[0])
    assert explain_no_switch(answers, lost, NEW, Declared(hr.Numbers())) is not None


def test_a_meaning_of_ones_own_decides() -> None:
    """Two methods are enough."""

    class Even(hr.Meaning):
        def read(self, outputs: Any) -> Sequence[Any]:
            return [int(value) for value in outputs[:, 0]]

        def same(self, a: Any, b: Any) -> float:
            return float(a % 2 == b % 2)

    answers = [np.arange(8, dtype=np.float32)[:, None]]
    assert explain_no_switch(answers, [answers[0] + 2], NEW, Declared(Even())) is None
    assert explain_no_switch(answers, [answers[0] + 1], NEW, Declared(Even())) is not None


def test_a_module_says_what_is_no_meaning() -> None:
    """Before anything runs."""

    class Wrong(hr.Module):
        output = "boxes"  # type: ignore[assignment]

        def process(self, batch: Any) -> Any:
            return batch

    with pytest.raises(SettingsError, match=r"Wrong.output is 'boxes'; expected hr.Classes"):
        Wrong().stages()


def test_a_rare_kind_is_not_called_lost_by_chance() -> None:
    """Among a thousand classes some rare one is always named otherwise a few times; a common one that is gone is a defect."""
    kinds = np.concatenate([np.zeros(1400, int), np.repeat(np.arange(1, 101), 6)])
    first = (20 * np.eye(200, dtype=np.float32))[kinds]

    def renamed(places: Any) -> np.ndarray:
        other = first.copy()
        other[places] = np.roll(other[places], 1, axis=1)
        return other

    assert (
        explain_no_switch([first], [renamed(slice(1400, 1406))], NEW) is None
    )  # six of six of one in a hundred classes
    assert explain_no_switch([first], [renamed(slice(0, 300))], NEW) is None  # some of a common class
    kinds[1406:1466] = 1
    first = (20 * np.eye(200, dtype=np.float32))[kinds]
    refusal = explain_no_switch([first], [renamed(kinds == 1)], NEW)
    assert refusal is not None
    assert "1 (66 of 66)" in refusal


def test_answers_with_a_state_are_compared_call_by_call() -> None:
    """Whose first axis is not that of the items: declared numbers may take over, undeclared ones may not."""
    random = np.random.default_rng(0)
    answers = [{"speech": random.random((4, 1)), "state": random.standard_normal((2, 4, 16))} for _ in range(6)]
    other = [{name: 1.01 * array for name, array in one.items()} for one in answers]
    assert explain_no_switch(answers, other, NEW, Declared(hr.Numbers())) is None
    assert explain_no_switch(answers, other, NEW) is not None
    record = ShadowRecord("candidate", 0.02)
    for before, after in zip(answers, other, strict=True):
        record.add(before, after, 0.02, 0.01)
    assert (record.document().num_items, record.document().advice) == (6, "keep")


def test_a_wrong_declaration_is_no_failure_of_a_shadow() -> None:
    """It is said, and the model in use stays."""
    record = ShadowRecord("candidate", 0.02)
    scores = np.random.default_rng(0).standard_normal((4, 10)).astype(np.float32)
    for _ in range(100):
        record.add(scores, 1.01 * scores, 0.02, 0.01, Declared(hr.Text()))
    found = record.document()
    assert (found.advice, found.num_failed) == ("keep", 0)
    assert "not what the module's output declares: text" in found.says
    refusal = explain_no_switch([scores], [1.01 * scores], NEW, Declared(hr.Detections()))
    assert refusal is not None
    assert "no boxes can be read" in refusal
