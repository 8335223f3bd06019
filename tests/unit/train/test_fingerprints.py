"""Fingerprints of the batches that a loader gave."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.full  # importing torch takes a second

from headrace import train  # noqa: E402
from headrace.diagnose.training.profile import training_document  # noqa: E402
from headrace.runs.formats.training_ranks import Same  # noqa: E402
from headrace.runs.reader import read_run  # noqa: E402
from headrace.train.fingerprints import NUM_BATCHES, LoaderPrints  # noqa: E402


def _see(prints: LoaderPrints, batches: list[object], *, trains: bool = True) -> None:
    prints.begin_epoch()
    for step, batch in enumerate(batches):
        prints.see(batch, step if trains else 5)


def test_equal_batches_have_equal_prints() -> None:
    """Images and labels each have one, by their values: of two epochs, of the first batches."""
    data = [(torch.full((4, 3), float(n)), torch.tensor([n, 1, 2, 3])) for n in range(NUM_BATCHES + 3)]
    prints = LoaderPrints()
    for _ in range(3):
        _see(prints, [(images.clone(), labels.clone()) for images, labels in data])
    first, second = prints.epochs()
    assert first == second
    assert len(first) == NUM_BATCHES
    assert {len(batch) for batch in first} == {2}
    assert len({batch[0] for batch in first}) == NUM_BATCHES
    assert len({batch[1] for batch in first}) == NUM_BATCHES


def test_only_passes_that_train_are_kept() -> None:
    """A validation with the same loader is no epoch."""
    prints = LoaderPrints()
    _see(prints, [torch.ones(2, 2)] * 4, trains=False)
    _see(prints, [torch.zeros(2, 2)] * 4)
    _see(prints, [torch.ones(2, 2)] * 4, trains=False)
    assert len(prints.epochs()) == 1


def test_looking_at_the_prints_ends_nothing() -> None:
    """A process describes itself while it trains, and again at its end."""
    prints = LoaderPrints()
    prints.begin_epoch()
    seen = []
    for step in range(5):
        prints.see(torch.full((2, 2), float(step)), step)
        seen.append(sum(map(len, prints.epochs())))
    assert seen == [0, 2, 3, 4, 5]
    assert len(prints.epochs()) == 1


@pytest.mark.parametrize(
    "batch",
    [
        torch.zeros(0, 3),
        torch.zeros(2, 3, dtype=torch.bfloat16),
        torch.zeros(2, 3, dtype=torch.bool),
        torch.zeros(2, 3, dtype=torch.complex64).conj(),
        torch.zeros(2, 3, requires_grad=True),
        torch.tensor(3),
        torch.zeros(2, 3).to_sparse(),
        torch.zeros(4, 6).t(),
        {"text": ["a", "b"], "ids": [torch.ones(3), None]},
        "text",
        None,
    ],
)
def test_no_batch_ends_the_training(batch: object) -> None:
    """Whatever a loader gives, a print is taken of the tensors that have bytes in memory."""
    prints = LoaderPrints()
    _see(prints, [batch] * 3)
    assert len(prints.epochs()[0]) == 3


@pytest.mark.parametrize("is_shuffled", [False, True])
def test_a_sampler_without_its_epoch_repeats_the_order(tmp_path: Path, is_shuffled: bool) -> None:
    """`DistributedSampler` shuffles the same way in each epoch until `set_epoch` is called."""
    data = torch.utils.data.TensorDataset(torch.arange(64.0).unsqueeze(1))
    sampler = torch.utils.data.DistributedSampler(data, num_replicas=2, rank=0)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler)
    with train.profile(loader, output=tmp_path / "run") as watched:
        for epoch in range(3):
            if is_shuffled:
                sampler.set_epoch(epoch)
            for (batch,) in watched:
                model(batch).sum().backward()
                optimizer.step()
    found = training_document(read_run(tmp_path / "run")).together.same_data
    assert [(one.what, one.sampler) for one in found] == [(Same.EPOCHS, "DistributedSampler")][is_shuffled:]


def test_a_list_of_batches_is_a_loader(tmp_path: Path) -> None:
    """It cannot be referred to weakly, and is described all the same."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with train.profile([torch.full((2, 1), float(n)) for n in range(6)], output=tmp_path / "run") as batches:
        for _ in range(2):
            for batch in batches:
                model(batch).sum().backward()
                optimizer.step()
    document = training_document(read_run(tmp_path / "run"))
    about = document.ranks[0].about
    assert about is not None
    assert [one.kind for one in about.loaders] == ["builtins.list"]
    assert [one.what for one in document.together.same_data] == [Same.EPOCHS]
