"""Accumulated gradients beside those of the large batch, in PyTorch: planted mistakes are named, right code is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.full  # importing torch takes a second

from headrace.base.errors import SettingsError  # noqa: E402
from headrace.train.search.accumulation import check_accumulation  # noqa: E402
from headrace.train.search.recipe import Recipe  # noqa: E402

COUNT, SIZE = 4, 4
Accumulate = Callable[[Any, Sequence[Any]], object]
#: Where the targets of a sample end.
PAD = -100


def _layers(*more: Any) -> Any:
    return torch.nn.Sequential(torch.nn.Linear(6, 12), *more, torch.nn.Tanh(), torch.nn.Linear(12, 3))


def _loss(model: Any, batch: Any) -> Any:
    """Return the mean over targets that are there, as cross entropy does with padding."""
    inputs, targets = batch
    return torch.nn.functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten(), ignore_index=PAD)


def _recipe(model: Any, *, uneven: bool = False, accumulate: Accumulate | None = None, loss: Any = _loss) -> Recipe:
    targets = torch.randint(0, 3, (COUNT * SIZE, 5))
    if uneven:  # sample n has 1 to 5 targets, fewer at the start
        for number, row in enumerate(targets):
            row[1 + number * 4 // (COUNT * SIZE) :] = PAD
    data = torch.utils.data.TensorDataset(torch.randn(COUNT * SIZE, 5, 6), targets)
    return Recipe(
        model=model,
        loss=loss,
        data=data,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        accumulate=accumulate,
    )


def _check(recipe: Recipe, *, with_ddp: bool = False) -> dict[str, Any]:
    return check_accumulation(recipe, micro_batches=COUNT, micro_batch_size=SIZE, with_ddp=with_ddp)


def _names(recipe: Recipe, *, with_ddp: bool = False) -> list[str]:
    return [finding.name for finding in _check(recipe, with_ddp=with_ddp)["findings"]]


def _undivided(model: Any, batches: Sequence[Any]) -> None:
    for batch in batches:
        _loss(model, batch).backward()


def _without_the_last(model: Any, batches: Sequence[Any]) -> None:
    for batch in batches[:-1]:
        (_loss(model, batch) / len(batches)).backward()


def _zeroed(model: Any, batches: Sequence[Any]) -> None:
    for batch in batches:
        model.zero_grad()
        (_loss(model, batch) / len(batches)).backward()


def _clipped(model: Any, batches: Sequence[Any]) -> None:
    for batch in batches:
        (_loss(model, batch) / len(batches)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)


def _by_tokens(model: Any, batches: Sequence[Any]) -> None:
    counts = [int((targets != PAD).sum()) for _, targets in batches]
    for batch, count in zip(batches, counts, strict=True):
        (_loss(model, batch) * count / sum(counts)).backward()


class _Functional(torch.nn.Module):
    """Drops values without a module for it."""

    def forward(self, inputs: Any) -> Any:
        return torch.nn.functional.dropout(inputs, 0.3, self.training)


class _OverTokens(torch.nn.Module):
    """Batch normalisation of (samples, tokens, features)."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, inputs: Any) -> Any:
        return self.norm(inputs.transpose(1, 2)).transpose(1, 2)


def test_right_code_is_not_accused() -> None:
    """Equal parts divided by their number, and unequal ones weighed by their targets: the same gradient, to the last digits."""
    for recipe in (
        _recipe(_layers()),
        _recipe(_layers(torch.nn.LayerNorm(12))),
        _recipe(_layers(), uneven=True, accumulate=_by_tokens),
    ):
        found = _check(recipe)
        assert found["findings"] == []
        assert found["dtype"] == "float64"
        assert found["largest_difference"] < 1e-9


def test_a_mean_of_means_over_unequal_counts_is_named() -> None:
    """The common loop is wrong by it as soon as padding differs; the right weights are the shares of the targets."""
    found = _check(_recipe(_layers(), uneven=True))
    assert [finding.name for finding in found["findings"]] == ["mean of means"]
    assert found["right_weights"] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert found["given_weights"] == pytest.approx([0.25] * 4)


def test_a_missing_division_is_named() -> None:
    """The gradient is four times the right one."""
    found = _check(_recipe(_layers(), accumulate=_undivided))
    assert [finding.name for finding in found["findings"]] == ["missing division"]
    assert found["largest_difference"] == pytest.approx(3.0)


def test_a_skipped_last_micro_batch_is_named() -> None:
    """It is in no update."""
    assert _names(_recipe(_layers(), accumulate=_without_the_last)) == ["skipped micro-batch"]


def test_gradients_that_are_zeroed_within_the_window_are_named() -> None:
    """Three of four micro-batches are lost by `zero_grad()` before each backward pass."""
    assert _names(_recipe(_layers(), accumulate=_zeroed)) == ["zeroed gradients"]


def test_clipping_after_each_micro_batch_is_named() -> None:
    """It scales down what came before once more each time."""
    found = _check(_recipe(_layers(), accumulate=_clipped))
    assert [finding.name for finding in found["findings"]] == ["clipped within"]
    assert found["given_weights"] == tuple(sorted(found["given_weights"]))


def test_batch_normalisation_is_named_also_without_running_statistics() -> None:
    """Its mean and variance are those of the micro-batch."""
    for options in ({}, {"track_running_stats": False}):
        norm = torch.nn.BatchNorm1d(12, **options)
        assert _names(_recipe(_layers(_OverTokens(norm)))) == ["batch norm"]
        assert norm.training


def test_batch_normalisation_that_is_frozen_is_not_accused() -> None:
    """A user's module that keeps it in eval() uses no statistics of the batch."""

    class Frozen(_OverTokens):
        def train(self, mode: bool = True) -> Any:
            super().train(mode)
            self.norm.eval()
            return self

    assert _names(_recipe(_layers(Frozen(torch.nn.BatchNorm1d(12))))) == []


class _Attention(torch.nn.Module):  # type: ignore[misc]
    """Drops weights of its attention, within a function of PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(12, 2, dropout=0.3, batch_first=True)

    def forward(self, values: Any) -> Any:
        return self.attention(values, values, values)[0]


class _Recurrent(torch.nn.Module):  # type: ignore[misc]
    """Drops values between its layers, within a function of PyTorch."""

    def __init__(self, is_packed: bool = False) -> None:
        super().__init__()
        self.layers, self._is_packed = torch.nn.LSTM(12, 12, 2, dropout=0.3, batch_first=True), is_packed

    def forward(self, values: Any) -> Any:
        if not self._is_packed:
            return self.layers(values)[0]
        packed = torch.nn.utils.rnn.pack_padded_sequence(values, [values.shape[1]] * len(values), batch_first=True)
        return torch.nn.utils.rnn.pad_packed_sequence(self.layers(packed)[0], batch_first=True)[0]


def test_gradients_that_are_sparse_are_compared() -> None:
    """Those of an embedding that asks for it."""

    class Embedded(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(10, 3, sparse=True)

        def forward(self, values: Any) -> Any:
            return self.table(values.abs().argmax(-1))

    assert _names(_recipe(Embedded())) == []
    assert _names(_recipe(Embedded(), accumulate=_undivided)) == ["missing division"]


def test_a_gradient_that_is_not_finite_is_said() -> None:
    """There is nothing to compare, and another check says which layer it is."""
    recipe = _recipe(_layers(), loss=lambda model, batch: _loss(model, batch) * float("nan"))
    with pytest.raises(SettingsError, match=r"gradient of 0\.weight is not finite for the first 16 samples"):
        _check(recipe)


def test_dropout_is_named_as_chance_and_hides_no_mistake() -> None:
    """Modules and functions draw other numbers for parts; a missing division is seen behind them."""
    for drop in (torch.nn.Dropout(0.3), _Functional(), _Attention(), _Recurrent(), _Recurrent(True)):
        findings = _check(_recipe(_layers(drop), accumulate=_undivided))["findings"]
        assert [(finding.name, finding.is_defect) for finding in findings] == [
            ("random numbers", False),
            ("missing division", True),
        ]


def test_all_at_once_are_named() -> None:
    """Dropout, batch statistics, unequal counts and a missing division in one training."""
    model = _layers(torch.nn.Dropout(0.2), _OverTokens(torch.nn.BatchNorm1d(12)))
    names = _names(_recipe(model, uneven=True, accumulate=_undivided))
    assert names == ["random numbers", "batch norm", "mean of means", "missing division"]


def test_a_loss_that_compares_samples_is_named() -> None:
    """A contrastive loss of parts is another loss than that of the whole."""

    def contrast(model: Any, batch: Any) -> Any:
        found = model(batch[0]).mean(1)
        return torch.nn.functional.cross_entropy(found @ found.T, torch.arange(len(found)))

    assert _names(_recipe(_layers(), loss=contrast)) == ["mixed samples"]


def test_a_model_of_its_own_dtype_is_checked_in_float32() -> None:
    """Where float64 does not work, rounding is allowed for, and mistakes are named all the same."""

    class Single(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = _layers()

        def forward(self, inputs: Any) -> Any:
            return self.layers(inputs.float())

    found = _check(_recipe(Single()))
    assert (found["dtype"], found["findings"]) == ("float32", [])
    assert found["largest_difference"] < 1e-5
    assert _names(_recipe(Single(), accumulate=_undivided)) == ["missing division"]


def test_missing_no_sync_is_counted() -> None:
    """Four exchanges in place of one; with no_sync() for all but the last micro-batch, one."""

    def synced_once(model: Any, batches: Sequence[Any]) -> None:
        with model.no_sync():
            for batch in batches[:-1]:
                (_loss(model, batch) / len(batches)).backward()
        (_loss(model, batches[-1]) / len(batches)).backward()

    missing = _check(_recipe(_layers()), with_ddp=True)
    assert [finding.name for finding in missing["findings"]] == ["no_sync missing"]
    assert missing["syncs"] == 4
    right = _check(_recipe(_layers(), accumulate=synced_once), with_ddp=True)
    assert (right["syncs"], right["findings"]) == (1, [])
    assert not torch.distributed.is_initialized()
