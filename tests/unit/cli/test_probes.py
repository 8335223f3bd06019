"""`--probe` of `headrace serve`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import headrace as hr
from headrace.base.errors import SettingsError
from headrace.cli.probes import read_probes
from headrace.samples.catalogue import PHOTOGRAPHS


class Doing(hr.Module):
    """Takes what it is told to take."""

    def __init__(self, taken: object) -> None:
        self.input = taken  # type: ignore[assignment]

    def process(self, batch: list[object]) -> list[object]:
        """Return it."""
        return batch


MIXED = hr.Pipeline(
    hr.items([]),
    modules={
        "scenes": Doing(hr.ImageInput()),
        "words": Doing(hr.TextInput()),
        "sums": Doing(hr.ArrayInput(dtype="float32", shape=(2,))),
    },
)


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text").write_bytes(b"a text")
    Path("a=b").write_bytes(b"an odd name")
    np.save("pair.npy", np.array([1, 2], np.float32))


def test_each_task_has_its_own() -> None:
    """And images ours where nothing is given for them; a task for which there is nothing has none."""
    photograph = PHOTOGRAPHS[0].path.read_bytes()
    assert read_probes([], MIXED) == {"scenes": photograph}
    probes = read_probes(["words=text", "sums=pair.npy"], MIXED)
    assert (probes["words"], probes["scenes"]) == (b"a text", photograph)
    assert probes["sums"].tolist() == [1, 2]


def test_one_is_for_all_tasks() -> None:
    """Also where its name has an equals sign."""
    texts = hr.Pipeline(hr.items([]), modules={"a": Doing(hr.TextInput()), "b": Doing(hr.BytesInput())})
    assert read_probes(["text"], texts) == {"a": b"a text", "b": b"a text"}
    assert read_probes(["a=b"], hr.Pipeline(hr.items([]), module=Doing(hr.TextInput()))) == {"": b"an odd name"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["wrods=text"], "there is no task 'wrods'; there is scenes, words, sums"),
        (["words=nothing"], "nothing"),
        (["words=text", "words=pair.npy"], "there is text already"),
        (["sums=text"], "send a NumPy file"),
        (["text", "words=text"], "there is text already"),
    ],
)
def test_what_cannot_be_tried_is_told_at_once(given: list[str], said: str) -> None:
    """And not by a service that never becomes ready."""
    with pytest.raises(SettingsError, match="--probe") as refused:
        read_probes(given, MIXED)
    assert said in str(refused.value)
