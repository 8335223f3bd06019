"""What the incumbent answered is asked once, and no verdict depends on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace.base.plan import ModelPlan
from headrace.base.protocols import Model
from headrace.validate import measuring
from headrace.validate.answer_cache import AnswerCache
from headrace.validate.golden import Golden
from headrace.validate.golden_gate import MOST_WORST
from headrace.validate.metrics import TOP_1, metric_named, own_metric
from headrace.validate.policy import Policy
from headrace.validate.variant_spec import VariantSpec
from headrace.validate.variants import validate_variants

ITEMS, BATCH, SIDE, CLASSES = 200, 16, 8, 4
GATES: Any = ("static", "parity", "accuracy", "robustness")


@pytest.fixture(autouse=True)
def few_draws() -> Iterator[None]:
    """Enough to see whether they are the same."""
    with measuring.using(max_draws=100):
        yield


@dataclass(frozen=True)
class Counting(VariantSpec):
    """A variant that tells of each call how many items it had."""

    called: list[int]

    def open(self, calls: int = 1) -> Model:
        """Open it as any other."""
        return _Counted(VariantSpec.open(self, calls), self.called)


class _Counted:
    def __init__(self, model: Model, called: list[int]) -> None:
        self._model, self._called = model, called

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, batch: np.ndarray) -> Any:
        self._called.append(len(batch))
        return self._model(batch)


def save(path: Path, weights: np.ndarray, pixels: bool = False) -> Path:
    """Write a network that scores an image by the means of its channels, or each of its pixels."""
    nodes = [helper.make_node("Conv", ["image", "w"], ["scored" if not pixels else "scores"])]
    if not pixels:
        nodes += [
            helper.make_node("GlobalAveragePool", ["scored"], ["pooled"]),
            helper.make_node("Flatten", ["pooled"], ["scores"]),
        ]
    shape = ["batch", CLASSES, SIDE, SIDE] if pixels else ["batch", CLASSES]
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(weights[:, :, None, None], "w")],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


WEIGHTS = np.random.default_rng(0).standard_normal((CLASSES, 3)).astype(np.float32)
OTHERS = WEIGHTS + 0.3 * np.random.default_rng(1).standard_normal((2, CLASSES, 3)).astype(np.float32)


def golden() -> Golden:
    """Return images with clear colours, the class that the incumbent gives nine in ten of them, and its masks."""
    random = np.random.default_rng(2)
    inputs = random.standard_normal((ITEMS, 3, 1, 1)) + 0.3 * random.standard_normal((ITEMS, 3, SIDE, SIDE))
    pixels = np.einsum("kc,nchw->nkhw", WEIGHTS, inputs)
    labels = pixels.mean(axis=(2, 3)).argmax(axis=1)
    wrong = random.random(ITEMS) < 0.1
    return Golden(
        name="set", inputs=inputs.astype(np.float32), labels=np.where(wrong, (labels + 1) % CLASSES, labels),
        sha256="ab", truth={"mask": pixels.argmax(axis=1)},
    )  # fmt: skip


def own_score(outputs: Any, truth: Any) -> np.ndarray:
    """Score the right class by its rank."""
    order = np.argsort(np.argsort(outputs, axis=1), axis=1)
    return np.asarray(np.take_along_axis(order, truth["labels"][:, None], axis=1)[:, 0] / (CLASSES - 1), float)


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., tuple[list[Any], list[int]]]:
    """Holds two candidates, one after the other, against one incumbent."""

    def asked(kept: AnswerCache | None, policy: Policy, given: Golden | None = None) -> tuple[list[Any], list[int]]:
        masks = policy.metric.name == "iou"
        a, *others = (str(save(tmp_path / f"{n}.onnx", one, masks)) for n, one in enumerate((WEIGHTS, *OTHERS)))
        spec = Counting(a, ModelPlan(artifact=a), [])
        documents = [
            validate_variants(
                spec, VariantSpec(b, ModelPlan(artifact=b)), given or golden(), policy, gates=GATES, kept=kept
            )
            for b in others
        ]
        return [(one.verdict, one.gates, one.worst, one.warnings) for one in documents], spec.called

    return asked


METRICS = [TOP_1, metric_named("top5"), metric_named("f1"), metric_named("iou"), own_metric("tests:own", own_score)]


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_verdicts_are_the_same_and_the_incumbent_is_asked_once(ask: Any, metric: Any) -> None:
    """Whatever a metric reads: every number of every gate, with and without; of A the second time only whether it runs."""
    policy = Policy(batch=BATCH, metric=metric, max_drop=0.05, robustness=True)
    anew, before = ask(None, policy)
    kept, after = ask(AnswerCache(), policy)
    assert kept == anew
    assert {gate.name for gate in kept[0][1]} >= {"parity", "accuracy"}
    assert before[: len(before) // 2] == before[len(before) // 2 :]
    drawn = [MOST_WORST] if metric.name == "iou" else []  # masks are not kept: those that are drawn are asked for again
    assert after == [*before[: len(before) // 2], *before[:2], *drawn]


def test_what_is_too_large_is_asked_anew(ask: Any) -> None:
    """The bound holds for each answer: 64 items of 4 scores are not kept in 1,000 bytes, a class of 200 items neither."""
    policy = Policy(batch=BATCH, max_drop=0.05)
    anew, before = ask(None, policy)
    small = AnswerCache(1000)
    assert ask(small, policy) == (anew, before)
    assert small.kept == {}


def test_another_question_is_asked_anew(ask: Any) -> None:
    """Other items, other batches, another metric; what has no fingerprint cannot be told from others."""
    kept, policy = AnswerCache(), Policy(batch=BATCH, max_drop=0.05)
    _, first = ask(kept, policy)
    _, same = ask(kept, policy)
    assert sum(same) < sum(first) / 2
    others = [
        (Policy(batch=8, max_drop=0.05), golden()),
        (Policy(batch=BATCH, max_drop=0.05, metric=metric_named("f1")), golden()),
        (policy, replace(golden(), sha256="cd")),
        (policy, replace(golden(), inputs=golden().inputs[: ITEMS // 2], labels=golden().labels[: ITEMS // 2])),
        (policy, replace(golden(), sha256="")),
    ]
    for other, given in others:
        _, called = ask(kept, other, given)
        assert sum(called) > len(given)


def test_an_interrupted_answer_is_not_kept() -> None:
    """None is asked again."""
    kept, given = AnswerCache().narrow("a"), iter([None, np.ones(3)])
    assert kept.once("parity", lambda: next(given)) is None
    assert kept.once("parity", lambda: next(given)) is not None
    assert kept.once("parity", lambda: pytest.fail("it is known")) is not None
