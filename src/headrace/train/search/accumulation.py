"""Whether accumulated gradients are those of the large batch, and why not. Runs in a child process.

How this works: let G be the gradient of one batch of k b samples, g1 ... gk those of its k parts, A what the training adds up.
With dropout off and the statistics of batch normalisation fixed, G = sum of w_i g_i and A = sum of v_i g_i, and least squares
give both kinds of weights. Every mistake in adding up is a difference between v and w. What makes G no such sum is found by
switching it off: random numbers, then batch statistics; what is left mixes samples.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from headrace.base.errors import SettingsError
from headrace.runs.formats.train_check import CheckFinding
from headrace.train.search.gradients import fit_weights, largest_difference, take_gradients
from headrace.train.search.recipe import Recipe, move
from headrace.train.search.weight_findings import judge_weights
from headrace.train.search.without_chance import batch_norms, dropouts, fixed_statistics, no_dropout

#: Relative differences that rounding explains.
TOLERANCES = {"float64": 1e-5, "float32": 2e-3}


def check_accumulation(recipe: Recipe, *, micro_batches: int, micro_batch_size: int, with_ddp: bool) -> dict[str, Any]:
    """Return the fields of an `AccumulationCheck`.

    Args:
        recipe: What trains.
        micro_batches: Parts of the large batch, 2 or more.
        micro_batch_size: Samples in each.
        with_ddp: Whether to count exchanges under DistributedDataParallel, in a group of one process.
    """
    check = _Check(recipe, micro_batches, micro_batch_size)
    findings = [*check.find_chance(), *check.find_batch_norm()]
    given, right, more = check.find_weights()
    findings += more
    syncs = None
    if with_ddp:
        from headrace.train.search.exchanges import count_exchanges, judge_exchanges

        syncs = count_exchanges(recipe.model, check.accumulate, check.backward_of_one)
        findings += judge_exchanges(syncs, micro_batches)
    difference, parameter = check.difference
    return {
        "micro_batches": micro_batches,
        "micro_batch_size": micro_batch_size,
        "own_code": recipe.accumulate is not None,
        "dtype": check.dtype,
        "largest_difference": difference,
        "parameter": parameter,
        "num_parameters": check.num_parameters,
        "given_weights": given,
        "right_weights": right,
        "syncs": syncs,
        "findings": findings,
    }


class _Check:
    """Gradients of one model on one large batch."""

    def __init__(self, recipe: Recipe, count: int, size: int) -> None:
        self._recipe, self._model = recipe, recipe.model
        self._model.train()
        if not hasattr(self._model, "no_sync"):  # the training's code calls it on DistributedDataParallel
            self._model.no_sync = contextlib.nullcontext
        parts = [range(number * size, (number + 1) * size) for number in range(count)]
        self._micro = [recipe.make_batch(part) for part in parts]
        self._large = recipe.make_batch(range(count * size))
        self.dtype = self._widen()
        self._tolerance = TOLERANCES[self.dtype]
        expected = self._of(self._large)
        for name, gradient in expected.items():
            if not gradient.isfinite().all():
                raise SettingsError(
                    f"the gradient of {name} is not finite for the first {count * size} samples, so nothing can be compared; "
                    "`headrace train check --only precision` names the layer that makes NaN"
                )
        self.difference = largest_difference(self._accumulated(), expected)
        self.num_parameters = len(expected)
        self._is_random = False

    def _widen(self) -> str:
        """Compute in float64 if the model can; return the name of the dtype."""
        import torch

        wide = [move(batch, self._recipe.device, torch.float64) for batch in (*self._micro, self._large)]
        self._model.double()
        try:
            take_gradients(self._model, lambda: self._recipe.loss(self._model, wide[-1]).backward(), 0)
        except Exception:  # whatever a model with a dtype of its own says to that
            self._model.float()
            return "float32"
        *self._micro, self._large = wide
        return "float64"

    def accumulate(self, model: Any) -> None:
        """Do what the training does for one update, up to the optimizer."""
        if self._recipe.accumulate is not None:
            self._recipe.accumulate(model, list(self._micro))
            return
        for batch in self._micro:
            (self._recipe.loss(model, batch) / len(self._micro)).backward()

    def backward_of_one(self, model: Any) -> None:
        """Call `backward()` once."""
        self._recipe.loss(model, self._micro[0]).backward()

    def _of(self, batch: Any, seed: int = 0) -> dict[str, Any]:
        return take_gradients(self._model, lambda: self._recipe.loss(self._model, batch).backward(), seed)

    def _accumulated(self) -> dict[str, Any]:
        return take_gradients(self._model, lambda: self.accumulate(self._model), 0)

    def _differs(self, one: dict[str, Any], other: dict[str, Any]) -> bool:
        return largest_difference(one, other)[0] > self._tolerance

    def find_chance(self) -> list[CheckFinding]:
        """Say whether random numbers are drawn, which differ between one large batch and its parts."""
        first, second = self._of(self._large, 1), self._of(self._large, 2)
        if not self._differs(first, second):
            return []
        with no_dropout():
            self._is_random = self._differs(self._of(self._large, 1), self._of(self._large, 2))
        names = dropouts(self._model)
        where = f"dropout in {', '.join(names[:3])}" if names else "dropout" if not self._is_random else "something"
        return [
            CheckFinding(
                name="random numbers",
                what=f"{where} draws other random numbers for parts than for the whole; two runs of the same batch differ by "
                f"{largest_difference(second, first)[0]:.2g}",
                advice="nothing to correct: equal on average; compare trainings over several seeds",
                is_defect=False,
            )
        ]

    def find_batch_norm(self) -> list[CheckFinding]:
        """Say whether statistics of the batch make the large batch another function than its parts."""
        norms = batch_norms(self._model)
        if not norms or self._is_random:
            return []
        with no_dropout():
            _, left = fit_weights(self._of(self._large), [self._of(batch) for batch in self._micro])
            with fixed_statistics(self._model):
                _, left_fixed = fit_weights(self._of(self._large), [self._of(batch) for batch in self._micro])
        if left <= max(self._tolerance, 10 * left_fixed):
            return []
        names = list(norms)
        return [
            CheckFinding(
                name="batch norm",
                what=f"{', '.join(names[:3])}{' and others' if len(names) > 3 else ''}: mean and variance are those of "
                f"{_size(self._micro[0])} samples in place of the large batch's; {left:.1%} of the gradient is another one",
                advice="use GroupNorm or LayerNorm, freeze the statistics (eval()), or accept statistics of few samples",
                is_defect=True,
            )
        ]

    def find_weights(self) -> tuple[Sequence[float], Sequence[float], list[CheckFinding]]:
        """Return the weights that the training gives to parts, the right ones, and what is wrong with them."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(no_dropout())
            stack.enter_context(fixed_statistics(self._model))
            parts = [self._of(batch) for batch in self._micro]
            right, left_right = fit_weights(self._of(self._large), parts)
            given, left_given = fit_weights(self._accumulated(), parts)
        if self._is_random:
            return given, right, [_unexplained("random numbers that are not dropout's hide the rest", is_defect=False)]
        if left_right > self._tolerance:
            return given, right, [_mixed(left_right)]
        if left_given > self._tolerance:
            what = f"{left_given:.1%} of what is accumulated is no sum of the micro-batches' gradients"
            return given, right, [_unexplained(what, is_defect=True)]
        return given, right, judge_weights(given, right, 10 * self._tolerance)


def _size(batch: Any) -> int | str:
    """Return the samples in a batch: the length of its first tensor."""
    while not hasattr(batch, "shape") and isinstance(batch, list | tuple | dict) and len(batch):
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    return len(batch) if hasattr(batch, "shape") else "the micro-batch's"


def _mixed(share: float) -> CheckFinding:
    return CheckFinding(
        name="mixed samples",
        what=f"{share:.1%} of the large batch's gradient is in none of its parts: the loss or a layer looks across samples",
        advice="accumulation cannot give this gradient (contrastive losses do so): gather the inputs of the loss first",
        is_defect=True,
    )


def _unexplained(what: str, *, is_defect: bool) -> CheckFinding:
    return CheckFinding(
        name="unexplained", what=what, advice="look at what `accumulate` does besides backward()", is_defect=is_defect
    )
