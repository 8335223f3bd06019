"""Trains from a seed with one batch size and takes the validation loss. Runs in a child process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headrace.train.search.own_time import read_clocks
from headrace.train.search.recipe import Recipe, make_recipe

#: The learning rate of a batch k times as large is multiplied by this.
RATE_RULES: dict[str, Callable[[float], float]] = {
    "linear": lambda ratio: ratio,
    "sqrt": lambda ratio: ratio**0.5,
    "none": lambda _ratio: 1.0,
}


def train_for_losses(
    maker: Callable[[], Any],
    *,
    batch_size: int,
    rule: str,
    samples: int,
    seeds: Sequence[int],
    seconds: Sequence[float | None],
) -> Iterator[dict[str, Any]]:
    """Train once for each seed; yield `seed`, `loss`, `seconds` and `loss_at_time`.

    Args:
        maker: Of the recipe; weights and data are made anew for each seed.
        batch_size: Samples in a batch.
        rule: How the learning rate follows the batch size, of `RATE_RULES`.
        samples: Seen before `loss` is taken; the last batch is smaller where they do not divide.
        seeds: Of weights, order and dropout: with the same seed, another batch size begins alike and sees the same order.
        seconds: One for each seed: training goes on so long, and `loss_at_time` is taken then; None: it does not go on.
    """
    for seed, until in zip(seeds, seconds, strict=True):
        recipe = make_recipe(maker, seed)
        training = _Training(recipe, batch_size, rule, seed)
        training.run(lambda training: training.samples >= samples, at_most=samples)
        found = {"seed": seed, "loss": validation_loss(recipe), "seconds": training.seconds, "loss_at_time": None}
        if until is not None and training.seconds <= until:
            training.run(lambda training, until=until: training.seconds >= until)  # type: ignore[misc]
            found["loss_at_time"] = validation_loss(recipe)
        yield found


class _Training:
    """A training that can be continued."""

    def __init__(self, recipe: Recipe, batch_size: int, rule: str, seed: int) -> None:
        import torch

        self._recipe, self._batch_size = recipe, batch_size
        self._optimizer = recipe.optimizer(recipe.model.parameters())
        for group in self._optimizer.param_groups:
            group["lr"] *= RATE_RULES[rule](batch_size / recipe.batch_size)
        self._random = torch.Generator().manual_seed(seed)
        self._order: list[int] = []
        self.samples = 0
        """Seen so far."""
        self.seconds = 0.0
        """Of training, without waiting for a core and without validation."""

    def run(self, is_done: Callable[[_Training], bool], at_most: int | None = None) -> None:
        """Train until it is done, and on no more samples than `at_most` in all."""
        self._recipe.model.train()
        while not is_done(self):
            room = self._batch_size if at_most is None else min(self._batch_size, at_most - self.samples)
            batch = self._recipe.make_batch(self._draw(room))
            begun, waited = read_clocks()
            self._optimizer.zero_grad()
            self._recipe.loss(self._recipe.model, batch).backward()
            self._optimizer.step()
            ended, waited_after = read_clocks()
            self.seconds += max(0.0, (ended - begun) - (waited_after - waited))
            self.samples += room

    def _draw(self, number: int) -> list[int]:
        """Return the next samples of a shuffled order that begins again where it ends."""
        import torch

        while len(self._order) < number:
            self._order += torch.randperm(len(self._recipe.data), generator=self._random).tolist()
        drawn, self._order = self._order[:number], self._order[number:]
        return drawn


def validation_loss(recipe: Recipe) -> float:
    """Return the mean loss over the validation data, each batch weighted by its samples."""
    import torch

    total, number = 0.0, len(recipe.validation)
    recipe.model.eval()
    with torch.no_grad():
        for begin in range(0, number, recipe.batch_size):
            indices = range(begin, min(begin + recipe.batch_size, number))
            loss = recipe.loss(recipe.model, recipe.make_batch(indices, of_validation=True))
            total += float(loss) * len(indices)
    return total / number
