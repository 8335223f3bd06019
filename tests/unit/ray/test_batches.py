"""A pipeline as a step of a Dataset: one row for each row, errors as a column."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr

POISON = b"bad"


def measure(payload: Any) -> Any:
    """Refuse what is poisoned."""
    if payload == POISON:
        raise hr.ItemRejected("bad.row: poisoned")
    if payload == b"breaks":
        raise ValueError("mine")
    return {"size": len(payload)}


def pipeline() -> hr.Pipeline:
    """Return the pipeline of these tests."""
    return hr.Pipeline(hr.items([b""]), stages=[hr.stage("measure", measure)])


@pytest.fixture
def step() -> Iterator[Callable[..., Any]]:
    """Makes steps, and ends them."""
    made: list[Any] = []

    def make(*words: Any, **options: Any) -> Any:
        made.append(hr.ray.map_batches(*words, **options)())
        return made[-1]

    yield make
    for one in made:
        one.close()


def objects(*values: Any) -> Any:
    """Return a column as numpy holds bytes of several lengths."""
    column = np.empty(len(values), object)
    column[:] = values
    return column


def test_each_row_gives_one_row_in_order(step: Callable[..., Any]) -> None:
    """Other columns go through, the payload does not; the run goes on over batches."""
    one = step(pipeline)
    for start in (0, 10):
        column = objects(*(b"x" * (start + number) for number in range(10)))
        found = one({"bytes": column, "name": np.arange(10)})
        assert [result["size"] for result in found["result"]] == list(range(start, start + 10))
        assert list(found) == ["name", "result", "error"]
        assert set(found["error"]) == {""}


def test_a_poisoned_row_costs_itself_alone(step: Callable[..., Any]) -> None:
    """Its reason stands in its row."""
    found = step(pipeline(), error="why")({"bytes": objects(b"1", POISON, b"333", b"breaks")})
    assert [result and result["size"] for result in found["result"]] == [1, None, 3, None]
    assert "bad.row: poisoned" in found["why"][1]
    assert "ValueError: mine" in found["why"][3]
    assert (found["why"][0], found["why"][2]) == ("", "")


def test_many_failed_rows_in_a_row_cost_themselves_alone(step: Callable[..., Any]) -> None:
    """Each has its reason, and the run goes on: the rows of a batch wait for it."""
    one = step(pipeline)
    found = one({"bytes": objects(*[b"breaks"] * 30, b"1")})
    assert all("mine" in reason for reason in found["error"][:30])
    assert found["result"][30] == {"size": 1}
    assert one({"bytes": objects(b"12")})["result"][0] == {"size": 2}


@pytest.mark.parametrize("name", ["result", "error"])
def test_a_column_of_the_rows_is_not_replaced(step: Callable[..., Any], name: str) -> None:
    """The other name can be given."""
    rows = {"bytes": objects(b"1"), name: np.array([7])}
    with pytest.raises(hr.SettingsError, match=f"column '{name}' already.*{name}="):
        step(pipeline)(rows)
    found = step(pipeline, **{name: "ours"})(rows)
    assert found[name].tolist() == [7]


def test_a_block_without_rows_and_columns_is_one(step: Callable[..., Any]) -> None:
    """What a filter left nothing of has no column to work on, and is no reason to end the Dataset."""
    found = step(pipeline)({})
    assert {name: list(values) for name, values in found.items()} == {"result": [], "error": []}


def test_an_empty_batch_is_one(step: Callable[..., Any]) -> None:
    """Ray makes them."""
    found = step(pipeline)({"bytes": objects()})
    assert (len(found["result"]), len(found["error"])) == (0, 0)


def test_single_values_are_pythons(step: Callable[..., Any]) -> None:
    """Numpy has types of its own for texts and numbers of a column."""
    one = step(hr.Pipeline(hr.items([1]), stages=[hr.stage("kind", lambda value: type(value).__name__)]))
    assert list(one({"path": np.array(["a", "b"])})["result"]) == ["str", "str"]
    assert list(one({"item": np.array([1, 2])})["result"]) == ["int", "int"]


def test_a_path_is_a_file(step: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows hold texts: absolute or below the working folder, as the guide has them; other columns' texts are no files."""

    class Sizes(hr.Module):
        input = hr.BytesInput()

        def process(self, batch: list[bytes]) -> list[int]:
            return [len(data) for data in batch]

    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"123")
    monkeypatch.chdir(tmp_path)
    one = step(hr.Pipeline(hr.folder("photos"), module=Sizes(), delivery=hr.collect()))
    paths = ["photos/a.jpg", str(tmp_path / "photos" / "a.jpg"), "photos/none.jpg", "ftp://far/a.jpg"]
    found = one({"path": np.array(paths)})
    assert list(found["result"]) == [3, 3, None, None]
    assert "ssrf.scheme" in found["error"][3]
    assert "ssrf.scheme" in one({"item": np.array(["photos/a.jpg"])})["error"][0]


def test_the_column_can_be_named(step: Callable[..., Any]) -> None:
    """One that is not there is an error that names those that are."""
    found = step(pipeline, column="body")({"bytes": objects(b"12"), "body": objects(b"1")})
    assert found["result"][0] == {"size": 1}
    with pytest.raises(hr.SettingsError, match="the columns 'a', 'b'"):
        step(pipeline)({"a": objects(b"1"), "b": objects(b"2")})


def test_other_formats_of_batches_are_named(step: Callable[..., Any]) -> None:
    """A table of pyarrow is no dictionary of arrays; the message says which format is."""
    with pytest.raises(hr.SettingsError, match=r'a batch is a pyarrow Table; .* `batch_format="numpy"`'):
        step(pipeline)(pa.table({"bytes": [b"1"]}))


def test_what_keeps_the_whole_pipeline_from_running_is_raised(step: Callable[..., Any]) -> None:
    """A row for each would hide it."""
    with pytest.raises(hr.SettingsError, match="no_such"):
        step(pipeline, plan=hr.Plan().with_settings(["no_such.workers=2"]))({"bytes": objects(b"1")})


def test_a_name_is_looked_up_in_the_actor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: Callable[..., Any]
) -> None:
    """As the command line does it."""
    (tmp_path / "step_jobs.py").write_text(
        "import headrace as hr\npipeline = hr.Pipeline(hr.items([1]), stages=[hr.stage('same', lambda value: value)])\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert step("step_jobs.py:pipeline")({"item": np.array([3])})["result"][0] == 3


@pytest.mark.parametrize("wrong", [None, 3, []])
def test_what_is_no_pipeline_is_refused(wrong: Any) -> None:
    """Here, and not in an actor."""
    with pytest.raises(hr.SettingsError, match="expected a Pipeline"):
        hr.ray.map_batches(wrong)


def test_naming_it_loads_no_ray() -> None:
    """Nor does the module of the command."""
    code = "import sys, headrace as hr, headrace.cli.on_ray; hr.ray.map_batches; print('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
