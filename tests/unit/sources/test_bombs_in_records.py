"""Files of some kilobytes that would unpack to very much: refused by what stands before each part, wherever the footer lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from headrace.base.errors import SourceError
from headrace.sources import record_formats
from headrace.sources.records import Records
from headrace.store import expansion
from headrace.store.parquet_pages import measure_group
from headrace.store.shard_index import index_path
from headrace.store.shards import list_shard
from tests.unit.store.test_shard_index import make_shard

_BOUND = 2**20


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound that is small enough for a test; the right one is 512 MB."""
    for module in (expansion, record_formats):
        monkeypatch.setattr(module, "MOST_BYTES", _BOUND)
    monkeypatch.setattr(record_formats, "_BYTES_AT_ONCE", _BOUND)


def write_parquet(file: Path, table: pa.Table) -> None:
    """Write a table whose pages have no bound."""
    pyarrow.parquet.write_table(
        table, file, compression="zstd", data_page_size=2**30, dictionary_pagesize_limit=2**30, store_schema=False
    )


def write_feather(file: Path, table: pa.Table) -> None:
    """Write a file of Arrow, compressed."""
    pyarrow.feather.write_feather(table, file, compression="zstd")


def write_stream(file: Path, table: pa.Table) -> None:
    """Write a stream of Arrow, compressed."""
    with pa.ipc.new_stream(file, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table)


@pytest.mark.usefixtures("bound")
@pytest.mark.parametrize(
    ("name", "write"), [("a.parquet", write_parquet), ("a.feather", write_feather), ("b.arrow", write_stream)]
)
def test_a_part_that_unpacks_to_much_is_refused(tmp_path: Path, name: str, write: Any) -> None:
    """Before it is unpacked; what stands before it, is given."""
    write(tmp_path / name, pa.table({"image": [bytes(2 * _BOUND)]}))
    assert (tmp_path / name).stat().st_size < _BOUND / 16
    (one,) = Records(tmp_path / name).entries()
    assert one.refused.startswith("records.damaged: after 0 rows: ")
    assert "bytes of memory, and takes" in one.refused


@pytest.mark.usefixtures("bound")
def test_a_footer_that_lies_is_not_believed(tmp_path: Path) -> None:
    """The sizes of the pages come from the pages."""
    file = tmp_path / "a.parquet"
    write_parquet(file, pa.table({"image": [bytes(2 * _BOUND)] * 3}))
    metadata = pyarrow.parquet.read_metadata(file)
    right = metadata.row_group(0).column(0).total_uncompressed_size

    class Lying:
        """The metadata, with another size of everything."""

        num_columns = 1
        path_in_schema = "image"
        max_repetition_level = 0
        total_uncompressed_size = 10

        def row_group(self, number: int) -> Any:
            return self

        @property
        def schema(self) -> Any:
            return self

        def column(self, number: int) -> Any:
            return self

        def __getattr__(self, name: str) -> Any:
            return getattr(metadata.row_group(0).column(0), name)

    with pa.OSFile(str(file)) as source, pytest.raises(expansion.TooLarge):
        measure_group(lambda at, size: source.read_at(size, at), Lying(), 0, ["image"])
    write_parquet(file, pa.table({"image": [b"%d" % number for number in range(1_000)]}))
    metadata = pyarrow.parquet.read_metadata(file)
    right = metadata.row_group(0).column(0).total_uncompressed_size
    with pa.OSFile(str(file)) as source:
        (chunk,) = measure_group(lambda at, size: source.read_at(size, at), Lying(), 0, ["image"])
    assert right - 200 < chunk.num_bytes <= right  # the footer counts the headers, too


@pytest.mark.usefixtures("bound")
@pytest.mark.parametrize(("name", "write"), [("a.parquet", write_parquet), ("a.feather", write_feather)])
def test_one_value_that_is_a_list_of_itself_costs_its_row(tmp_path: Path, name: str, write: Any) -> None:
    """A text of 100 kB that stands once, and 100 times in one row; the rows around it are given."""
    words = pa.DictionaryArray.from_arrays(pa.array([0, *[1] * 100, 0], pa.int32()), pa.array(["a", "b" * 100_000]))
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 101, 102], pa.int32()), words)
    write(tmp_path / name, pa.table({"image": [b"1", b"2", b"3"], "words": lists}))
    found = list(Records(tmp_path / name, column="words").entries())
    refused = [one.refused.partition(":")[0] for one in found]
    assert refused == [
        "records.value",
        "records.size",
        "records.value",
    ]  # lists of texts are no jobs, but they were read


def test_values_that_share_their_bytes_are_counted_each() -> None:
    """Whatever way Arrow has to name a value more than once."""
    one, number = "x" * 1_000, 100_000
    shared = pa.DictionaryArray.from_arrays(pa.array([0] * number, pa.int32()), pa.array([one]))
    mixed = pa.DictionaryArray.from_arrays(pa.array([1] * number, pa.int32()), pa.array([one * 10_000, "y"]))
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([number], pa.int32()), pa.array([one]))
    views = pa.array([one] * 1_000, pa.string_view())
    assert expansion.measure_values(shared) >= number * 1_000
    assert expansion.measure_values(mixed) < number * 100
    assert expansion.measure_values(runs) >= number * 1_000
    assert expansion.measure_values(views) >= 1_000 * 1_000
    lists = pa.ListArray.from_arrays(pa.array([0, number], pa.int32()), shared)
    fields = pa.StructArray.from_arrays([lists], names=["lists"])
    assert expansion.measure_values(fields) >= number * 1_000
    assert (
        expansion.measure_values(pa.ListArray.from_arrays(pa.array([0, 10**8], pa.int32()), pa.nulls(10**8))) >= 10**8
    )
    for kind in (pa.string(), pa.large_binary()):
        texts = pa.array([one * 20, None, "y" * 500], pa.string()).cast(kind)
        places = pa.DictionaryArray.from_arrays(pa.array([0, 2, None, 1, 2], pa.int32()), texts)
        assert 21_000 <= expansion.measure_values(places, enough=0) < 21_100
    for plain in (pa.array([b"12"] * 10), pa.array([[1, 2]] * 10), pa.array([None] * 10), pa.array([{"a": 1}, None])):
        assert expansion.measure_values(plain) < 1_000
        assert expansion.measure_values(plain.slice(2)) < 1_000


def test_one_text_for_all_members_of_an_index(tmp_path: Path) -> None:
    """6 kB that came to a gigabyte of texts: the footer has the dictionary once."""
    shard = make_shard(tmp_path / "a.tar", {f"{number:03}.jpg": b"1" for number in range(300)})
    index = index_path(shard)
    table = pyarrow.parquet.read_table(index)
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 300, pa.int32()), pa.array(["x" * 2**18]))
    table = table.set_column(table.schema.get_field_index("text"), table.schema.field("text"), texts.cast(pa.string()))
    pyarrow.parquet.write_table(table, index, compression="zstd", dictionary_pagesize_limit=2**30)
    assert index.stat().st_size < 10_000
    with pytest.raises(SourceError, match="are more than a shard can have"):
        list_shard(shard)


def test_long_texts_of_an_index_are_read(tmp_path: Path) -> None:
    """What could be much by its footer, and is not: 200 texts that stand in a dictionary."""
    texts = [str(number % 200) * 1_000 for number in range(300)]
    parts = {f"{number:03}.txt": text.encode() for number, text in enumerate(texts)}
    files = dict(sorted({**parts, **{f"{number:03}.jpg": b"1" for number in range(300)}}.items()))
    shard = make_shard(tmp_path / "a.tar", files)
    assert [one.parts["txt"].text for one in list_shard(shard).samples] == texts
