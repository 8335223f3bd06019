"""Results as columns."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from headrace.base.errors import DeliveryFailed, DeliveryRejected, SettingsError
from headrace.base.records import Job
from headrace.delivery.parquet import Parquet


@pytest.fixture
def delivery(tmp_path: Path) -> Parquet:
    """An open delivery into a folder of its own."""
    delivery = Parquet(tmp_path / "out")
    delivery.open(None)
    return delivery


def deliver(delivery: Parquet, *results: Any) -> None:
    """Deliver results of jobs 0, 1, ..."""
    for number, result in enumerate(results):
        assert delivery.deliver(Job(str(number), b""), result) is False


def rows(folder: Path) -> list[dict[str, Any]]:
    """The folder as one table."""
    found: list[dict[str, Any]] = pyarrow.parquet.read_table(folder).to_pylist()
    return found


def test_dicts_become_columns(delivery: Parquet) -> None:
    """The keys of results are columns beside the id; what a result does not have is null."""
    deliver(delivery, {"label": "cat", "score": 0.5}, {"label": "dog", "box": [1, 2]})
    delivery.flush()
    assert rows(delivery.folder) == [
        {"id": "0", "label": "cat", "score": 0.5, "box": None},
        {"id": "1", "label": "dog", "score": None, "box": [1, 2]},
    ]


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([1, 2], [1, 2]),
        (["a", None], ["a", None]),
        ([0.5, 2], [0.5, 2.0]),
        ([[1, 2], []], [[1, 2], []]),
        ([np.float32(0.5), np.float32(1)], [0.5, 1.0]),
        ([np.arange(3), np.arange(2)], [[0, 1, 2], [0, 1]]),
        ([None, None], [None, None]),
    ],
    ids=str,
)
def test_other_results_are_one_column(delivery: Parquet, results: list[Any], expected: list[Any]) -> None:
    """Results of one type keep it, in the column `result`."""
    deliver(delivery, *results)
    delivery.flush()
    assert [row["result"] for row in rows(delivery.folder)] == expected


@pytest.mark.parametrize(
    "results",
    [
        [1, "a"],
        [{"a": 1}, 2],
        [[1, "a"]],
        [[[1.0, 2.0], [3.0, 4.0]], 5],
        [True, 2],
        [2**70, 1],
        [1, 2**64 - 1, -1],
    ],
    ids=str,
)
def test_mixed_results_are_json(delivery: Parquet, results: list[Any]) -> None:
    """What no column of one type can hold stays readable as JSON text."""
    deliver(delivery, *results)
    delivery.flush()
    assert [json.loads(row["result"]) for row in rows(delivery.folder)] == results


def test_mixed_values_of_one_key_are_json(delivery: Parquet) -> None:
    """Only the column that is mixed becomes text."""
    deliver(delivery, {"a": 1, "b": 1}, {"a": 2, "b": "x"})
    delivery.flush()
    assert rows(delivery.folder) == [{"id": "0", "a": 1, "b": "1"}, {"id": "1", "a": 2, "b": '"x"'}]


def test_arrays_of_several_axes_are_nested_lists(delivery: Parquet) -> None:
    """Boxes are the same column whether a stage returns an array or lists."""
    deliver(delivery, np.ones((2, 2)), [[0.5, 1.0]])
    delivery.flush()
    assert [row["result"] for row in rows(delivery.folder)] == [[[1, 1], [1, 1]], [[0.5, 1.0]]]


PARTS: dict[str, tuple[list[Any], list[Any]]] = {
    "no boxes first": ([[], []], [[0.5, 1.5]]),
    "nothing first": ([None], ["text"]),
    "whole numbers first": ([1, 0], [0.97]),
    "boxes as dicts": ([{"boxes": []}], [{"boxes": [{"x": 1, "name": "cat"}]}]),
    "a key that comes later": ([{"a": 1}], [{"a": 2, "b": [1.5]}]),
    "a key that goes": ([{"a": 1, "b": "x"}], [{"a": 2.5}]),
    "matrices": ([[]], [np.ones((2, 4)).tolist()]),
}


@pytest.mark.parametrize("kind", PARTS)
def test_parts_are_one_table_whatever_came_first(delivery: Parquet, kind: str) -> None:
    """A wider type in a later part widens the parts before it: readers see one column, with every value as it was."""
    for results in (*PARTS[kind], PARTS[kind][0]):
        deliver(delivery, *results)
        delivery.flush()
    expected = [*PARTS[kind][0], *PARTS[kind][1], *PARTS[kind][0]]
    found = rows(delivery.folder)
    if isinstance(expected[0], dict):
        for row, result in zip(found, expected, strict=True):
            assert {key: value for key, value in row.items() if key != "id" and value is not None} == result
    else:
        assert [row["result"] for row in found] == expected
    schemas = {str(pyarrow.parquet.read_schema(part)) for part in delivery.folder.glob("part-*.parquet")}
    assert len(schemas) == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [([True], [3]), (["text"], [7]), ([2**53 + 1], [0.5]), ([{"a": 1}], [[1, 2]]), (["text"], [["a", 1]]),
     ([{}], [{"a": {"b": 1}}])],
    ids=str,
)  # fmt: skip
def test_parts_without_a_common_type_are_json(delivery: Parquet, first: list[Any], second: list[Any]) -> None:
    """Truth is no number, and a large number no fraction: such a column is JSON text in every part, and stays so."""
    column = "value"
    for results in (first, second, first):
        deliver(delivery, *({column: result} for result in results))
        delivery.flush()
    assert [json.loads(row[column]) for row in rows(delivery.folder)] == [*first, *second, *first]


NAN, INFINITY = float("nan"), float("inf")
NUMBERS: dict[str, tuple[list[Any], list[Any]]] = {
    "floats": ([NAN, -INFINITY, None], [1.5]),
    "whole numbers first": ([1, 0], [NAN]),
    "lists": ([[NAN, 1.0]], [[INFINITY]]),
    "dicts": ([[{"score": NAN, "box": [INFINITY]}]], [[{"score": 1, "box": []}]]),
    "arrays": ([np.array([np.nan, 1], np.float32)], [np.array([np.inf])]),
    "matrices": ([np.array([[np.nan, 1.0]])], [[[2]]]),
    "arrays within": ([[{"box": np.array([np.nan])}]], [[{"box": np.array([1])}]]),
    "scalars": ([np.float32("nan")], [np.float16("inf")]),
}


def plain(value: Any) -> Any:
    """Return lists and numbers that can be compared, NaN as text."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return list(map(plain, value))
    return "NaN" if isinstance(value, float) and np.isnan(value) else value


@pytest.mark.parametrize("kind", NUMBERS)
def test_nan_and_infinity_are_numbers(delivery: Parquet, kind: str) -> None:
    """They come back as they were, in columns of numbers, whatever part they came in."""
    for results in NUMBERS[kind]:
        deliver(delivery, *results)
        delivery.flush()
    found = [row["result"] for row in rows(delivery.folder)]
    assert plain(found) == plain([result for results in NUMBERS[kind] for result in results])


@pytest.mark.parametrize(
    ("first", "second"),
    [([NAN], ["text"]), ([2**53 + 1], [INFINITY]), ([[NAN]], [{"a": NAN}]), ([{"deep": {}}], [{"deep": {"a": NAN}}])],
)
def test_nan_in_a_column_of_json(delivery: Parquet, first: list[Any], second: list[Any]) -> None:
    """Where a column has to be JSON text they are texts: no result of the part is lost for them, at any time."""
    for results in (first, second, first):
        deliver(delivery, *({"value": result} for result in results))
        delivery.flush()
    found = [json.loads(row["value"]) for row in rows(delivery.folder)]
    in_words = {INFINITY: "Infinity"}
    expected = [in_words.get(one, one) if isinstance(one, float) else one for one in plain([*first, *second, *first])]
    assert found == expected


def test_workers_of_several_processes_share_one_folder(tmp_path: Path) -> None:
    """Each widens what the other wrote."""
    one, other = Parquet(tmp_path / "out"), Parquet(tmp_path / "out")
    for delivery, results in ((one, [[]]), (other, [[1]]), (one, [[0.5]]), (other, [[]])):
        delivery.open(None)
        deliver(delivery, *results)
        delivery.flush()
    assert sorted(row["result"] for row in rows(tmp_path / "out")) == [[], [], [0.5], [1.0]]


def test_parts_of_a_run_that_was_killed_are_put_right(tmp_path: Path) -> None:
    """Parts of several types, as an older headrace or a run that was killed left them, are one table after opening."""
    folder = tmp_path / "out"
    folder.mkdir()
    for number, values in enumerate(([[]], [[1.5]], [[2]])):
        pyarrow.parquet.write_table(pyarrow.table({"id": ["a"], "result": values}), folder / f"part-{number}.parquet")
    delivery = Parquet(folder)
    delivery.open(None)
    assert [row["result"] for row in rows(folder)] == [[], [1.5], [2.0]]


@pytest.mark.parametrize("empty", [{}, {"deep": {}}, [{}]], ids=str)
def test_a_dict_that_is_always_empty(delivery: Parquet, empty: Any) -> None:
    """Parquet has no column of nothing; it is written as JSON, instead of failing for ever."""
    deliver(delivery, {"a": empty}, {"a": empty})
    delivery.flush()
    assert [json.loads(row["a"]) for row in rows(delivery.folder)] == [empty, empty]


def test_keys_that_are_no_text(delivery: Parquet) -> None:
    """Numbers as keys, such as classes, name columns, and their values are there."""
    deliver(delivery, {0: 0.5, np.int64(7): 0.25})
    delivery.flush()
    assert rows(delivery.folder) == [{"id": "0", "0": 0.5, "7": 0.25}]


def test_a_result_with_an_id_of_its_own(delivery: Parquet) -> None:
    """The job's id stays `id`; the result's gets a name that is free."""
    deliver(delivery, {"id": 5}, {"id": 6, "result_id": 7})
    delivery.flush()
    assert rows(delivery.folder) == [
        {"id": "0", "result_result_id": 5, "result_id": None},
        {"id": "1", "result_result_id": 6, "result_id": 7},
    ]


def test_a_result_that_cannot_be_written_is_told_at_once(delivery: Parquet) -> None:
    """It is rejected as its own job's fault, and does not hold back the others of its part."""
    deliver(delivery, {"a": 1})
    for bad in (object(), {"a": "\ud800"}, [2j]):
        with pytest.raises(DeliveryRejected, match="cannot be written"):
            delivery.deliver(Job("bad", b""), bad)
    delivery.flush()
    assert rows(delivery.folder) == [{"id": "0", "a": 1}]


def test_nothing_is_durable_before_flush(delivery: Parquet) -> None:
    """`deliver` says False and writes nothing; `flush` writes one closed file; there is no other trace."""
    deliver(delivery, 1, 2)
    assert list(delivery.folder.iterdir()) == []
    delivery.flush()
    (part,) = delivery.folder.iterdir()
    assert part.name.startswith("part-")
    assert part.suffix == ".parquet"
    assert pyarrow.parquet.read_metadata(part).num_rows == 2


def test_flush_of_nothing_writes_nothing(delivery: Parquet) -> None:
    """There are no empty parts."""
    delivery.flush()
    deliver(delivery, 1)
    delivery.flush()
    delivery.flush()
    assert len(list(delivery.folder.iterdir())) == 1


def test_parts_follow_one_another(delivery: Parquet) -> None:
    """Each flush closes a part with what came since the last, and their names sort in order."""
    for results in ([1, 2], [3], [4, 5, 6]):
        deliver(delivery, *results)
        delivery.flush()
    parts = sorted(delivery.folder.iterdir())
    assert [pyarrow.parquet.read_table(part)["result"].to_pylist() for part in parts] == [[1, 2], [3], [4, 5, 6]]


def test_close_writes_the_rest(delivery: Parquet) -> None:
    """Nothing that was delivered is lost at the end."""
    deliver(delivery, 1)
    delivery.close()
    assert len(rows(delivery.folder)) == 1


def test_earlier_parts_stay(tmp_path: Path) -> None:
    """A second run into the same folder adds its own parts."""
    for result in (1, 2):
        delivery = Parquet(tmp_path)
        delivery.open(None)
        deliver(delivery, result)
        delivery.close()
    assert sorted(row["result"] for row in rows(tmp_path)) == [1, 2]


def test_threads_lose_nothing(delivery: Parquet) -> None:
    """Results delivered while others are written are in one part or another, once."""

    def work(worker: int) -> None:
        for number in range(100):
            delivery.deliver(Job(f"{worker}-{number}", b""), number)
            if number % 25 == 0:
                delivery.flush()

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    delivery.close()
    ids = [row["id"] for row in rows(delivery.folder)]
    assert len(ids) == len(set(ids)) == 300


def test_how_often_the_runtime_is_to_flush(tmp_path: Path) -> None:
    """Rows and seconds per file are what the runtime is told."""
    delivery = Parquet(tmp_path, rows_per_file=5, seconds_per_file=2.5)
    assert (delivery.flush_items, delivery.flush_seconds) == (5, 2.5)


def test_what_cannot_be_written_is_kept(delivery: Parquet) -> None:
    """A flush that fails may be tried again: the results are kept, and no half file is left."""
    deliver(delivery, 1, 2)
    shutil.rmtree(delivery.folder)
    with pytest.raises(DeliveryFailed, match=r"part-.*\.parquet cannot be written: "):
        delivery.flush()
    delivery.folder.mkdir()
    delivery.flush()
    assert [row["result"] for row in rows(delivery.folder)] == [1, 2]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """It is told before the first result."""
    (tmp_path / "file").write_bytes(b"")
    for folder in (tmp_path / "file", tmp_path / "file" / "out"):
        with pytest.raises(SettingsError, match=r"results folder .* cannot be written: "):
            Parquet(folder).open(None)


def test_a_folder_that_cannot_be_written() -> None:
    """A folder that is there but takes no files, as /proc for anybody, is told before the first result."""
    with pytest.raises(SettingsError, match=r"results folder /proc cannot be written: "):
        Parquet("/proc").open(None)


CHILD = """
import os, signal, sys
from headrace.base.errors import DeliveryFailed
from headrace.base.records import Job
from headrace.delivery.parquet import Parquet
delivery = Parquet(sys.argv[1])
delivery.open(None)
for number in range(10):
    delivery.deliver(Job(str(number), b""), "x" * 5000)
delivery.flush()
delivery.deliver(Job("late", b""), 1)
"""


def run_child(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Deliver ten results, flush, deliver one more, and go on with the script."""
    return subprocess.run(
        [sys.executable, "-c", CHILD + script, str(folder)], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_killed_process_leaves_closed_parts(tmp_path: Path) -> None:
    """After SIGKILL the folder is readable and holds what was flushed."""
    child = run_child(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    assert child.returncode == -signal.SIGKILL
    assert [row["id"] for row in rows(tmp_path)] == [str(number) for number in range(10)]


def test_a_full_disk_leaves_no_half_file(tmp_path: Path) -> None:
    """A part that does not fit is removed, its results are kept, and it is written once there is room."""
    child = run_child(
        tmp_path,
        """
import resource
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (200, unlimited[1]))
try:
    delivery.flush()
except DeliveryFailed:
    print(len(os.listdir(sys.argv[1])))
resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
delivery.close()
print(len(os.listdir(sys.argv[1])))
""",
    )
    assert (child.returncode, child.stdout, child.stderr) == (0, "1\n2\n", "")


def test_attributes_go_along_with_the_result(delivery: Parquet) -> None:
    """As JSON text, also where a result has a key of that name, and where others have none."""
    delivery.deliver(Job("a", b"", attributes={"order": "7"}), {"attributes": 1})
    delivery.deliver(Job("b", b""), {"attributes": 2})
    delivery.flush()
    delivery.deliver(Job("c", b""), {"attributes": 3})
    delivery.flush()
    found = {row["id"]: row for row in rows(delivery.folder)}
    assert json.loads(found["a"]["attributes"]) == {"order": "7"}
    assert [found["a"]["result_attributes"], found["b"]["attributes"]] == [1, None]


def nested(levels: int, inner: Any = 1) -> Any:
    """Return a list in a list, so many times."""
    for _ in range(levels):
        inner = [inner]
    return inner


@pytest.mark.parametrize(
    "odd", [nested(60), nested(900), {"a": nested(99)}, np.datetime64("2020-01-01")], ids=["60", "900", "dict", "day"]
)
def test_an_odd_result_costs_no_other_its_part(delivery: Parquet, odd: Any) -> None:
    """Readers refuse deep columns, and Arrow has no type for some values: such a column is JSON text."""
    deliver(delivery, {"a": 1, "odd": odd}, {"a": 2, "odd": None})
    delivery.flush()
    deliver(delivery, {"a": 3, "odd": odd})
    delivery.flush()
    assert [row["a"] for row in rows(delivery.folder)] == [1, 2, 3]


def test_many_keys_are_written(delivery: Parquet) -> None:
    """Thousands of columns are slow to read, and no reason to stand still."""
    deliver(delivery, {f"k{number}": number for number in range(3_000)})
    delivery.flush()
    assert rows(delivery.folder)[0]["k2999"] == 2999


def test_parts_half_widened_by_a_killed_worker_keep_their_values(delivery: Parquet) -> None:
    """One worker is killed between two replacements; another, which has the folder open, goes on with both kinds of parts."""
    for result in ("cat", "dog"):
        deliver(delivery, {"x": result})
        delivery.flush()
    first = min(delivery.folder.glob("part-*.parquet"))
    other = Parquet(delivery.folder)
    other.open(None)
    kept = {part: part.read_bytes() for part in delivery.folder.glob("part-*.parquet") if part != first}
    deliver(other, {"x": 7})  # makes the column JSON text, in every part
    other.flush()
    for part, content in kept.items():  # as if it had been killed after the first
        part.write_bytes(content)
    for part in set(delivery.folder.glob("part-*.parquet")) - {first, *kept}:
        part.unlink()
    deliver(delivery, {"x": "bird"})
    delivery.flush()
    assert sorted(json.loads(row["x"]) for row in rows(delivery.folder)) == ["bird", "cat", "dog"]
