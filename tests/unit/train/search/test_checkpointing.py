"""What parts of a model keep for the backward pass, counted in PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.full  # importing torch takes a second

from headrace.train.search.checkpoint_choices import Unit, weigh  # noqa: E402
from headrace.train.search.gradients import largest_difference, take_gradients  # noqa: E402
from headrace.train.search.recipe import Recipe  # noqa: E402
from headrace.train.search.saved_bytes import checkpoint_units, list_units, measure_units  # noqa: E402

SAMPLES, WIDTH = 32, 64
#: One activation of the model below.
ONE = SAMPLES * WIDTH * 4


def _recipe() -> Recipe:
    torch.manual_seed(0)
    blocks = [
        torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Dropout(0.2)) for _ in range(3)
    ]
    model = torch.nn.Sequential(*blocks, torch.nn.Linear(WIDTH, 1))
    data = torch.utils.data.TensorDataset(torch.randn(SAMPLES, WIDTH))
    return Recipe(
        model=model,
        loss=lambda model, batch: model(batch[0]).square().mean(),
        data=data,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )


def test_each_storage_is_counted_once_and_parameters_and_batch_are_not() -> None:
    """A block keeps the output of its Tanh, the mask of its Dropout, and its input; that of the first is the batch."""
    units, rest, sizes = measure_units(_recipe(), SAMPLES)
    kept = [sum(sizes[key] for key in unit.saved) for unit in units]
    assert kept == [2 * ONE, 3 * ONE, 3 * ONE, ONE]
    assert [sum(sizes[key] for key in unit.taken) for unit in units] == [0, ONE, ONE, ONE]
    assert sum(sizes[key] for key in rest) == SAMPLES * 4  # what the square of the outputs keeps
    assert all(unit.forward_seconds > 0 for unit in units)


def test_checkpointing_every_block_keeps_the_inputs_and_one_inside() -> None:
    """Nine activations become the inputs of three blocks and what one block computes again."""
    found, rest, sizes = measure_units(_recipe(), SAMPLES)
    units = [Unit(unit.name, frozenset(unit.saved), frozenset(unit.taken), 1.0) for unit in found]
    nothing = weigh(units, frozenset(), sizes, ())
    blocks = weigh(units, frozenset(), sizes, ("0", "1", "2"))
    assert nothing.activation_bytes == 9 * ONE  # inputs of three parts, and two more in each block
    assert blocks.activation_bytes == (2 + 1 + 1) * ONE  # at the last block: inputs of 1 and 2, and its own two
    assert rest


def test_gradients_with_checkpoints_are_the_same_also_with_dropout() -> None:
    """What is computed again draws the same random numbers."""

    def gradients(names: list[str]) -> dict[str, Any]:
        recipe = _recipe()
        checkpoint_units(recipe.model, names)
        batch = recipe.make_batch(range(SAMPLES))
        return take_gradients(recipe.model, lambda: recipe.loss(recipe.model, batch).backward(), 1)

    assert largest_difference(gradients(["0", "1", "2"]), gradients([]))[0] == 0.0


def test_lists_of_blocks_are_opened_and_blocks_are_not() -> None:
    """A wrapper of one child is opened too; a flat model consists of its layers."""
    blocks = torch.nn.ModuleList([torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()) for _ in range(2)])
    model = torch.nn.ModuleDict({"embed": torch.nn.Linear(2, 2), "blocks": blocks, "head": torch.nn.Linear(2, 2)})
    assert list(list_units(model)) == ["embed", "blocks.0", "blocks.1", "head"]
    assert list(list_units(torch.nn.Sequential(model))) == ["0.embed", "0.blocks.0", "0.blocks.1", "0.head"]
    assert list(list_units(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()))) == ["0", "1"]
