"""Decoding, augmenting and tokenising are told apart inside the items of a batch, and nothing of that stays."""

from __future__ import annotations

import functools
import io
import sys
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.full  # importing torch takes a second

import cv2  # noqa: E402
import simplejpeg  # noqa: E402
from PIL import Image, ImageFile  # noqa: E402
from torch.utils.data import DataLoader, Dataset, Subset  # noqa: E402

from headrace import train  # noqa: E402
from headrace.diagnose.training.profile import training_document  # noqa: E402
from headrace.diagnose.training.simulation_recorded import read_training  # noqa: E402
from headrace.diagnose.training.steps import LoadedBatches, read_steps  # noqa: E402
from headrace.runs.reader import read_run  # noqa: E402
from headrace.runs.training_phases import LoaderWork  # noqa: E402
from headrace.train import recorder  # noqa: E402

_CPU_SECONDS = 0.002
_PIXELS = np.random.default_rng(1).integers(0, 256, (64, 64, 3), np.uint8)


def _compute(value: Any) -> Any:
    end = time.thread_time() + _CPU_SECONDS
    while time.thread_time() < end:
        pass
    return value


def _encoded(kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(_PIXELS).save(file, kind)
    return file.getvalue()


_FILES = {kind: _encoded(kind) for kind in ("JPEG", "PNG", "WEBP")}

DECODERS = {
    "pillow, jpeg": lambda: np.asarray(Image.open(io.BytesIO(_FILES["JPEG"]))),
    "pillow, png": lambda: np.asarray(Image.open(io.BytesIO(_FILES["PNG"])).convert("RGB")),
    "pillow, webp": lambda: np.asarray(Image.open(io.BytesIO(_FILES["WEBP"])).resize((8, 8))),
    "opencv": lambda: cv2.imdecode(np.frombuffer(_FILES["JPEG"], np.uint8), cv2.IMREAD_COLOR),
    "simplejpeg": lambda: simplejpeg.decode_jpeg(_FILES["JPEG"]),
}


class Decoded(Dataset[Any]):
    """Images that one library decodes."""

    def __init__(self, decoder: str) -> None:
        self.decoder = decoder

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(np.array(DECODERS[self.decoder]()))


class Compose:
    """Transforms, one after the other, as libraries have them."""

    def __init__(self, *steps: Any) -> None:
        self.steps = steps

    def __call__(self, value: Any) -> Any:
        """Apply them."""
        for step in self.steps:
            value = step(value)
        return value


class Layer(torch.nn.Module):
    """A transform that is a module."""

    def forward(self, value: Any) -> Any:
        """Apply it."""
        return _compute(value)


class Augmented(Dataset[Any]):
    """Numbers that go through a transform, which is what the program gave."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform
        self.kind = type(transform)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        if self.kind is Compose:
            assert type(self.transform) is Compose
            assert self.transform.steps[0] is _compute
        return self.transform(torch.tensor([index]))


class WithMethod(Augmented):
    """Its transform is a method."""

    def __init__(self, _: Any) -> None:
        self.kind = None

    def transform(self, value: Any) -> Any:
        """Apply it."""
        return _compute(value)


TRANSFORMS = {
    "function": lambda: Augmented(_compute),
    "partial": lambda: Augmented(functools.partial(_compute)),
    "object": lambda: Augmented(Compose(_compute)),
    "nested": lambda: Augmented(Compose(_compute, Compose(_compute))),
    "module": lambda: Augmented(Layer()),
    "method": lambda: WithMethod(None),
    "subset": lambda: Subset(Augmented(_compute), list(range(8))),
}


def _train(loader: Any) -> list[Any]:
    weight = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(weight.parameters(), lr=0.1)
    batches = []
    for batch in loader:
        batches.append(batch.tolist())
        weight(torch.ones(1, 1)).sum().backward()
        optimizer.step()
    return batches


def _record(loader: Any, path: Path) -> LoadedBatches:
    bare = _train(loader)
    with train.profile(loader, output=path) as same:
        assert _train(same) == bare
    (rank,) = read_steps(read_run(path))
    return rank.batches


def _patched() -> list[Any]:
    return [ImageFile.ImageFile.load, Image.open, cv2.imread, cv2.imdecode, simplejpeg.decode_jpeg, Compose.__call__]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("decoder", DECODERS)
def test_decoding_is_told_apart(decoder: str, workers: int, tmp_path: Path) -> None:
    """It is a part of the items, in each batch; pixels are the same, and the libraries are as they were."""
    before = _patched()
    work = _record(DataLoader(Decoded(decoder), 4, num_workers=workers), tmp_path / "run").work
    assert _patched() == before
    decode, items = work[LoaderWork.DECODE], work[LoaderWork.ITEMS]
    assert (decode.cpu > 0).all()
    assert (decode.wall <= items.wall).all()
    assert LoaderWork.AUGMENT not in work


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_augmenting_is_told_apart(transform: str, workers: int, tmp_path: Path) -> None:
    """What the transform computed is a part of the items, counted once; the data set is what it was."""
    before = _patched()
    dataset = TRANSFORMS[transform]()
    attributes = dict(vars(dataset))
    work = _record(DataLoader(dataset, 4, num_workers=workers), tmp_path / "run").work
    assert vars(dataset) == attributes
    assert _patched() == before
    assert (work[LoaderWork.AUGMENT].cpu >= 4 * _CPU_SECONDS).all()
    assert (work[LoaderWork.AUGMENT].wall <= work[LoaderWork.ITEMS].wall).all()


class Asking(Augmented):
    """Asks which function its transform is, and does something else for another one."""

    def __getitem__(self, index: int) -> Any:
        transform = self.transform
        value = torch.tensor([index])
        return transform(value) if transform is _compute and _compute is self.transform else -value


#: A data set that has a function beside it ask that; in a module of its own, since it would count for all in this one.
_BESIDE = """
class Dataset(Augmented):
    def __getitem__(self, index):
        value = torch.tensor([index])
        return self.transform(value) if is_own(self) else -value

def is_own(dataset):
    return dataset.transform is _compute
"""


@pytest.mark.parametrize("place", ["in the data set", "beside it"])
def test_a_transform_is_the_object_that_it_was(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a data set asks for that, it is left alone, and what it costs is part of the items."""
    module = types.ModuleType("asks_beside")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    vars(module).update(Augmented=Augmented, torch=torch, _compute=_compute)
    exec(_BESIDE, vars(module))
    kind = Asking if place == "in the data set" else module.Dataset
    work = _record(DataLoader(kind(_compute), 4), tmp_path / "run").work
    assert LoaderWork.AUGMENT not in work
    assert (work[LoaderWork.ITEMS].cpu >= 4 * _CPU_SECONDS).all()


def test_what_is_decoded_in_a_transform_is_decoding(tmp_path: Path) -> None:
    """Parts do not overlap: together they are no more than the items."""
    dataset = Augmented(lambda value: torch.tensor([_compute(DECODERS["opencv"]()).shape[0] + value.item()]))
    work = _record(DataLoader(dataset, 4), tmp_path / "run").work
    parts = [work[part].wall for part in (LoaderWork.DECODE, LoaderWork.AUGMENT, LoaderWork.READ) if part in work]
    assert (work[LoaderWork.DECODE].wall > 0).all()
    assert (sum(parts) <= work[LoaderWork.ITEMS].wall + 1e-9).all()


class Opening(Dataset[Any]):
    """Computes before and after its transform, which computes too."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        value = _compute(_compute(torch.tensor([float(index)])))
        return _compute(value if self.transform is None else self.transform(value))


@pytest.mark.parametrize("workers", [0, 1])
def test_what_is_computed_before_a_transform_is_opening(workers: int, tmp_path: Path) -> None:
    """It is a part of the items, apart from what comes after the transform; without a transform it is not known."""
    work = _record(DataLoader(Opening(_compute), 4, num_workers=workers), tmp_path / "run").work
    assert (work[LoaderWork.OPEN].cpu >= 4 * 2 * _CPU_SECONDS).all()
    others = work[LoaderWork.ITEMS].cpu - work[LoaderWork.OPEN].cpu - work[LoaderWork.AUGMENT].cpu
    assert (others >= 4 * _CPU_SECONDS - 1e-9).all()
    bare = _record(DataLoader(Opening(None), 4, num_workers=workers), tmp_path / "bare").work
    assert LoaderWork.OPEN not in bare


class Tokeniser:
    """Has the methods of a tokeniser of `transformers`."""

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return self.encode(text)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return [_compute(ord(one)) for one in text]


class Texts(Dataset[Any]):
    """Texts that are tokenised with the items, or later."""

    def __init__(self, tokeniser: Any) -> None:
        self.tokeniser = tokeniser

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return self.tokeniser("ab") if self.tokeniser else "ab"


@pytest.mark.parametrize("late", [False, True])
def test_tokenising_is_counted_with_the_items_wherever_it_is_done(
    late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `collate_fn` too, whose own cost then holds none of it."""
    module = types.ModuleType("transformers.tokenization_utils_base")
    module.PreTrainedTokenizerBase = Tokeniser  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    tokeniser = Tokeniser()

    def collate(items: list[Any]) -> Any:
        return torch.tensor([tokeniser(one) if late else one for one in items])

    loader = DataLoader(Texts(None if late else tokeniser), 4, collate_fn=collate)
    loaded = _record(loader, tmp_path / "run")
    tokenised, items = loaded.work[LoaderWork.TOKENISE], loaded.work[LoaderWork.ITEMS]
    assert (tokenised.cpu >= 8 * _CPU_SECONDS).all()
    assert (items.wall >= tokenised.wall).all()
    assert loaded.passage is not None
    total = items.wall + loaded.work[LoaderWork.COLLATE].wall
    assert np.allclose(total, loaded.passage.ready - loaded.passage.begun, atol=1e-8)


def test_a_tokeniser_of_tokenizers_is_seen_without_transformers(tmp_path: Path) -> None:
    """One text at a time or a batch of them; afterwards the class is as it was."""
    tokenizers = pytest.importorskip("tokenizers")
    before = dict(vars(tokenizers.Tokenizer))
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"ab": 0}, unk_token="ab"))

    def encode(text: str) -> Any:
        return torch.tensor(words.encode(text).ids)

    loaded = _record(DataLoader(Texts(encode), 4), tmp_path / "one")
    assert (loaded.work[LoaderWork.TOKENISE].wall > 0).all()

    def collate(items: list[str]) -> Any:
        return torch.tensor([one.ids for one in words.encode_batch(items)])

    loaded = _record(DataLoader(Texts(None), 4, collate_fn=collate), tmp_path / "batch")
    assert (loaded.work[LoaderWork.TOKENISE].wall > 0).all()
    assert dict(vars(tokenizers.Tokenizer)) == before


def test_blocking_outside_of_the_parts_is_reading(tmp_path: Path) -> None:
    """A pipe that is read until its writer closes it: what the item was blocked for is no computing."""
    loaded = _record(DataLoader(Slow(), 2), tmp_path / "run")
    assert (loaded.work[LoaderWork.READ].wall > 0).all()
    assert (loaded.work[LoaderWork.READ].cpu == 0).all()


class Slow(Dataset[Any]):
    """Waits for an answer of the kernel that takes a while."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        import select

        select.select([], [], [], 0.01)
        return torch.tensor([index])


class _Numbered(Dataset[Any]):
    """Items with a transform, which costs the thread that loads some clocks."""

    def __init__(self) -> None:
        self.transform = abs

    def __len__(self) -> int:
        return 240

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(float(self.transform(index)))


@pytest.mark.parametrize(("short", "seen"), [(1 << 60, (64, 14)), (0, (64, 56))])
def test_of_short_steps_one_in_four_says_what_loading_cost(
    short: int, seen: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without workers: in the steps whose clocks are read, which stand for the others; each batch is what it was."""
    monkeypatch.setattr(recorder, "SHORT_NS", short)
    loader = DataLoader(_Numbered(), batch_size=2)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    batches = []
    with train.profile(loader, output=tmp_path / "run") as watched:
        for batch in watched:
            batches.append(batch.tolist())
            model(batch).sum().backward()
            optimizer.step()
    assert batches == [[float(one), float(one + 1)] for one in range(0, 240, 2)]
    assert isinstance(loader.collate_fn, types.FunctionType)
    run = read_run(tmp_path / "run")
    (rank,) = read_steps(run)
    number = rank.batches.step[rank.batches.step >= 0]
    assert (int((number < 64).sum()), int((number >= 64).sum())) == seen
    (document,) = training_document(run).ranks
    assert document.loading is not None
    assert document.loading.batches_per_step == 1.0
    assert len(read_training(run).loading[LoaderWork.AUGMENT].cpu) == 120
