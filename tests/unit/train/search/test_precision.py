"""The layer that breaks under autocast is named, in PyTorch on the CPU."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.full  # importing torch takes a second

from headrace.train.search.precision import check_precision  # noqa: E402
from headrace.train.search.recipe import Recipe  # noqa: E402


class Centred(torch.nn.Module):
    """Divides by a spread that is 0 in float16: 1e-5 squared is smaller than its smallest number."""

    def forward(self, inputs: Any) -> Any:  # noqa: D102
        centred = inputs * 1e-5
        return centred / (centred * centred).sum(-1, keepdim=True).sqrt()


class RootMeanSquare(torch.nn.Module):
    """Squares numbers of some hundreds: above 65,504 float16 is infinite, and what is divided by that is 0."""

    def forward(self, inputs: Any) -> Any:  # noqa: D102
        large = inputs * 1000
        return large / (large * large).mean(-1, keepdim=True).sqrt()


class Large(torch.nn.Module):
    """Gives numbers that float16 does not have."""

    def forward(self, inputs: Any) -> Any:  # noqa: D102
        return inputs * 1e6


class _Times(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, inputs: Any, factor: float) -> Any:
        context.factor = factor
        return inputs.clone()

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return gradient * context.factor, None


class Back(torch.nn.Module):
    """Gives what it is given, and multiplies the gradient on the way back."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, inputs: Any) -> Any:  # noqa: D102
        return _Times.apply(inputs, self.factor)


def _check(*layers: Any, dtype: str = "float16") -> dict[str, Any]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), *layers, torch.nn.Linear(16, 3))
    data = torch.utils.data.TensorDataset(torch.randn(16, 8), torch.randint(0, 3, (16,)))
    recipe = Recipe(
        model=model,
        loss=lambda model, batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1]),
        data=data,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    found = check_precision(recipe, dtype=dtype, batch_size=16)
    assert found["problem"] == ""
    assert not any(module._forward_hooks for module in model.modules())
    return found


def _named(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(finding.layer, finding.layer_class, finding.kind) for finding in found["findings"]]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_plain_layers_are_not_accused(dtype: str) -> None:
    """Linear layers, a normalisation and dropout are near float32 in both; some of them ran in the lower precision."""
    found = _check(torch.nn.LayerNorm(16), torch.nn.Dropout(0.5), torch.nn.ReLU(), dtype=dtype)
    assert _named(found) == []
    assert found["num_lower"] > 0
    assert found["loss"] == pytest.approx(found["exact_loss"], rel=0.05)


def test_a_normalisation_that_makes_nan_in_float16_is_named_and_not_those_behind_it() -> None:
    """0 / 0 in the second of five layers."""
    assert _named(_check(Centred(), torch.nn.ReLU(), torch.nn.LayerNorm(16))) == [("1", "Centred", "NaN")]


def test_a_square_that_overflows_unseen_is_named() -> None:
    """Every number that leaves the layer is finite, and wrong."""
    assert _named(_check(torch.nn.ReLU(), RootMeanSquare())) == [("2", "RootMeanSquare", "far from float32")]


def test_an_overflow_is_named() -> None:
    """Infinity is not NaN."""
    assert _named(_check(Large())) == [("1", "Large", "overflow")]


def test_the_same_layers_are_right_in_bfloat16() -> None:
    """It has the range of float32."""
    for layer in (Centred(), RootMeanSquare(), Large()):
        assert _named(_check(layer, dtype="bfloat16")) == []


def test_a_layer_that_breaks_on_the_way_back_is_named() -> None:
    """Its output is finite, and the gradient of its input is not."""
    assert _named(_check(Back(1e8))) == [("1", "Back", "NaN in backward")]


def test_an_inner_layer_is_named_and_not_the_one_that_holds_it() -> None:
    """`1.0` broke; `1` only contains it."""
    assert _named(_check(torch.nn.Sequential(Centred(), torch.nn.ReLU()))) == [("1.0", "Centred", "NaN")]


def test_gradients_that_vanish_are_named() -> None:
    """Divided by a million they are zeros in float16."""
    found = _named(_check(Back(1e-6)))
    assert [kind for _, _, kind in found] == ["underflow"]
    assert found[0][0].startswith("0.")
