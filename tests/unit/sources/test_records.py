"""The rows of files that hold many items are jobs."""

from __future__ import annotations

import errno
import gzip
import json
import os
import sqlite3
import struct
import sys
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

import headrace as hr
from headrace.base.errors import SettingsError, SourceError
from headrace.cli.loading import parse_source
from headrace.sources.records import Records
from headrace.store.crc32c import masked_crc32c
from headrace.store.lmdb_file import write_lmdb as write_pairs

ROWS = [{"image": f"picture {number}".encode(), "label": number, "name": f"n{number}"} for number in range(200)]


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write a table in several row groups."""
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path.with_suffix(".parquet"), row_group_size=70)
    return path.with_suffix(".parquet")


def write_feather(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write an Arrow file, compressed."""
    pyarrow.feather.write_feather(pa.Table.from_pylist(rows), path.with_suffix(".feather"), compression="lz4")
    return path.with_suffix(".feather")


def write_stream(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write an Arrow stream, as data sets of Hugging Face are kept."""
    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_stream(path.with_suffix(".arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=90)
    return path.with_suffix(".arrow")


def _varint(value: int) -> bytes:
    value %= 2**64
    found = b""
    while value > 0x7F:
        found, value = found + bytes([value & 0x7F | 0x80]), value >> 7
    return found + bytes([value])


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _feature(value: Any) -> bytes:
    if isinstance(value, bytes | str):
        return _field(1, _field(1, value if isinstance(value, bytes) else value.encode()))
    if isinstance(value, int):
        return _field(3, _field(1, _varint(value)))
    return _field(2, _field(1, np.asarray(value, "<f4").tobytes()))


def make_record(row: Mapping[str, Any]) -> bytes:
    """Return an example as it stands in a TFRecord file."""
    entries = [_field(1, _field(1, key.encode()) + _field(2, _feature(value))) for key, value in row.items()]
    data = _field(1, b"".join(entries))
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))


def write_tfrecord(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write what TensorFlow writes."""
    path.with_suffix(".tfrecord").write_bytes(b"".join(map(make_record, rows)))
    return path.with_suffix(".tfrecord")


def write_zipped(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write it compressed."""
    path.with_suffix(".tfrecords").write_bytes(gzip.compress(b"".join(map(make_record, rows))))
    return path.with_suffix(".tfrecords")


def write_sqlite(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write a table of blobs, and an index that another order could come from."""
    with sqlite3.connect(path.with_suffix(".sqlite")) as file:
        file.execute("CREATE TABLE photos (image BLOB, label INTEGER, name VARCHAR(20))")
        file.execute("CREATE INDEX by_name ON photos (name DESC, image, label)")
        file.execute("CREATE VIEW seen AS SELECT * FROM photos")
        file.executemany("INSERT INTO photos VALUES (:image, :label, :name)", rows)
    file.close()
    return path.with_suffix(".sqlite")


def write_lmdb(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write keys and images; there is no room for labels."""
    with path.with_suffix(".lmdb").open("wb") as file:
        images = [row["image"] for row in rows]
        write_pairs(
            file, [b"%06d" % number for number in range(len(rows))], lambda n: len(images[n]), images.__getitem__
        )
    return path.with_suffix(".lmdb")


def write_hdf5(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write a data set for each column, and one that is of something else."""
    import h5py

    with h5py.File(path.with_suffix(".h5"), "w") as file:
        images = file.create_dataset("image", (len(rows),), dtype=h5py.vlen_dtype(np.uint8))
        for number, row in enumerate(rows):
            images[number] = np.frombuffer(row["image"], np.uint8)
        file["label"] = [row["label"] for row in rows]
        file["name"] = [row["name"] for row in rows]
        file["classes"] = ["cat", "dog", "bird"]
    return path.with_suffix(".h5")


Write = Callable[[Path, list[dict[str, Any]]], Path]
TABLES: list[Write] = [write_parquet, write_feather, write_stream]
LABELLED: list[Write] = [
    *TABLES,
    write_tfrecord,
    write_zipped,
    write_sqlite,
    pytest.param(write_hdf5, marks=pytest.mark.full),
]
ALL: list[Write] = [*LABELLED, write_lmdb]


@pytest.mark.parametrize("write", ALL)
def test_rows_are_jobs(tmp_path: Path, write: Write) -> None:
    """In order, with the bytes as payload and the rest as attributes; the command line knows the file by its end."""
    file = write(tmp_path / "train", ROWS)
    found = list(Records(file).entries())
    assert [entry.payload for entry in found] == [row["image"] for row in ROWS]
    assert [entry.id for entry in found] == [f"{file.name}#{number}" for number in range(200)]
    assert found[7].attributes == ({"key": "000007"} if write is write_lmdb else {"label": 7} | found[7].attributes)
    assert [part.payload for part in Records(file).parts()] == [file]  # which may be cold or warm
    assert isinstance(parse_source(str(file), drain=False), Records)
    assert isinstance(parse_source(f"records://{file}?column=image", drain=False), Records)


def test_crc32c_is_that_of_the_standard() -> None:
    """RFC 3720: 32 zeros have 8A9136AA; masked as TFRecord does."""
    crc = 0x8A9136AA
    assert masked_crc32c(bytes(32)) == ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


@pytest.mark.parametrize("write", TABLES)
def test_payloads_of_all_kinds(tmp_path: Path, write: Write) -> None:
    """Images of Hugging Face, text, numbers; a row without a value is refused, and alone."""
    rows = [
        {"photo": {"bytes": b"x", "path": "a.jpg"}, "text": "züri", "vector": [1.0, 2.0], "callback": "https://e.com"},
        {"photo": {"bytes": None, "path": "b.jpg"}, "text": None, "vector": None, "callback": ""},
    ]
    file = write(tmp_path / "a", rows)
    photo, no_photo = Records(file).entries()
    assert (photo.payload, photo.attributes) == (b"x", {"text": "züri"})
    assert no_photo.refused.startswith("records.empty: ")
    assert next(Records(file, column="text").entries()).payload == "züri".encode()
    vector = next(Records(file, column="vector").entries()).payload
    assert isinstance(vector, np.ndarray)
    assert vector.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("write", ALL)
def test_a_file_that_is_damaged_is_one_rejected_job(tmp_path: Path, write: Write) -> None:
    """What comes before the damage is given, and so are the other files."""
    damaged = write(tmp_path / "a", ROWS)
    damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size * 3 // 4])
    write(tmp_path / "b", ROWS[:2])
    *given, last = [entry for entry in Records(tmp_path).entries() if entry.id.startswith("a.")]
    assert last.id == f"{damaged.name}#"
    assert last.refused.startswith(f"records.damaged: after {len(given):,} rows: ")
    assert [entry.payload for entry in given] == [row["image"] for row in ROWS[: len(given)]]
    assert len([entry for entry in Records(tmp_path).entries() if entry.id.startswith("b.")]) == 2


@pytest.mark.parametrize("write", ALL)
@pytest.mark.parametrize("content", [b"", b"x", bytes(20_000), b"SQLite format 3\0" + bytes(90)])
def test_what_is_no_such_file_is_one_rejected_job(tmp_path: Path, write: Write, content: bytes) -> None:
    """Whatever the name says."""
    file = write(tmp_path / "a", ROWS[:2])
    file.write_bytes(content)
    try:
        found = [entry.refused for entry in Records(file).entries()]
    except SourceError as error:
        found = [str(error)]  # an empty file is a SQLite file without a table
    assert len(found) == (0 if content == b"" and "tfrecord" in file.suffix else 1)
    assert all(one.startswith("records.damaged: after 0 rows: ") or "has no table" in one for one in found)


@pytest.mark.parametrize("at", range(0, 200, 3))
def test_a_wrong_byte_of_a_tfrecord_gives_no_wrong_sample(tmp_path: Path, at: int) -> None:
    """Wherever it is: the record is refused, alone where the next one can be found."""
    file = write_tfrecord(tmp_path / "a", ROWS[:3])
    content = bytearray(file.read_bytes())
    content[at % len(content)] ^= 0x10
    file.write_bytes(content)
    found = list(Records(file, column="image").entries())
    assert [entry.refused[:17] for entry in found if entry.refused] in (["records.checksum:"], ["records.damaged: "])
    whole = {f"a.tfrecord#{number}": row["image"] for number, row in enumerate(ROWS[:3])}
    assert all(entry.payload == whole[entry.id] for entry in found if not entry.refused)
    assert len(found) == 3 or found[-1].id == "a.tfrecord#"


def test_a_column_that_is_not_clear_is_asked_for(tmp_path: Path) -> None:
    """With the names of those that there are."""
    file = write_parquet(tmp_path / "a", [{"left": 1, "right": 2}])
    with pytest.raises(SourceError, match="left, right: name one with column="):
        list(Records(file).entries())
    with pytest.raises(SourceError, match="no column 'up'; it has left, right"):
        list(Records(file, column="up").entries())


def test_a_folder_without_such_files_is_refused(tmp_path: Path) -> None:
    """And so is a file of another kind."""
    (tmp_path / "a.csv").write_text("a,b")
    with pytest.raises(SourceError, match=r"\*\.parquet"):
        Records(tmp_path).entries()
    with pytest.raises(SourceError, match="has no rows that can be read"):
        Records(tmp_path / "a.csv").entries()


def test_a_run_over_rows_is_resumed(tmp_path: Path) -> None:
    """Each row is done once, and a file that changed meanwhile is refused."""
    file = write_parquet(tmp_path / "rows", ROWS)
    done: list[bytes] = []

    def note(value: bytes) -> int:
        done.append(value)
        return len(value)

    def pipeline() -> hr.Pipeline:
        return hr.Pipeline(
            source=hr.records(file), stages=[hr.stage("note", note)], delivery=hr.jsonl(tmp_path / "out.jsonl")
        )

    hr.run(pipeline(), limit=50)
    hr.run(pipeline(), resume=True)
    assert sorted(done) == sorted(row["image"] for row in ROWS)
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 200


def write_two(path: Path, kind: str) -> Path:
    """Write two tables of two rows, `left` and `right`."""
    if kind == "sqlite":
        with sqlite3.connect(path.with_suffix(".sqlite")) as file:
            for name in ("left", "right"):
                file.execute(f"CREATE TABLE {name} (image BLOB)")
                file.executemany(
                    f"INSERT INTO {name} VALUES (?)", [(f"{name} {number}".encode(),) for number in (0, 1)]
                )
        file.close()
        return path.with_suffix(".sqlite")
    import h5py

    with h5py.File(path.with_suffix(".h5"), "w") as file:
        for name in ("left", "right"):
            file[f"{name}/image"] = np.array([f"{name} {number}".encode() for number in (0, 1)])
    return path.with_suffix(".h5")


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("hdf5", marks=pytest.mark.full)])
def test_one_of_several_tables(tmp_path: Path, kind: str) -> None:
    """It is named, in the program or in the address."""
    file = write_two(tmp_path / "a", kind)
    found = list(Records(file, table="right").entries())
    assert [entry.payload for entry in found] == [b"right 0", b"right 1"]
    named = parse_source(f"records://{file}?column=image&table=left", drain=False)
    assert isinstance(named, Records)
    assert [entry.payload for entry in named.entries()] == [b"left 0", b"left 1"]
    assert named.where == f"the records of {file}, column image, table left"
    with pytest.raises(SourceError, match="left, right"):
        list(Records(file, table="up").entries())


def test_a_file_with_a_question_mark_in_its_name(tmp_path: Path) -> None:
    """An address is cut only at what it may name."""
    file = write_parquet(tmp_path / "what?", ROWS[:2])
    source = parse_source(f"records://{file}", drain=False)
    assert isinstance(source, Records)
    assert len(list(source.entries())) == 2


@pytest.mark.full
def test_hdf5_leads_to_no_other_file(tmp_path: Path) -> None:
    """Links, data kept in other files and data sets put together from them are left out."""
    import h5py

    (tmp_path / "secret").write_bytes(b"secret!!")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["image"] = np.array([b"secret"])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["linked"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/image")
        file["soft"] = h5py.SoftLink("/linked")
        file.create_dataset("kept", (8,), "S1", external=[(str(tmp_path / "secret"), 0, 8)])
        layout = h5py.VirtualLayout((1,), "S6")
        layout[0] = h5py.VirtualSource(tmp_path / "other.h5", "image", (1,))[0]
        file.create_virtual_dataset("virtual", layout)
        file["own"] = np.array([b"own"])
    assert [entry.payload for entry in Records(tmp_path / "a.h5").entries()] == [b"own"]
    for name in ("linked", "soft", "kept", "virtual"):
        with pytest.raises(SourceError, match="it has own"):
            list(Records(tmp_path / "a.h5", column=name).entries())


@pytest.mark.full
def test_a_bomb_in_hdf5_is_not_unpacked(tmp_path: Path) -> None:
    """A chunk of 1 GB, of which the file has a few kilobytes."""
    import h5py

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("image", (2**17, 2**13), "u1", chunks=(2**17, 2**13), compression="gzip")
    (entry,) = Records(tmp_path / "a.h5").entries()
    assert "a row or chunk takes 1,073,741,824 bytes" in entry.refused


def test_sqlite_reads_no_views_and_computes_nothing(tmp_path: Path) -> None:
    """A file of somebody's could make them last forever."""
    with sqlite3.connect(tmp_path / "a.sqlite") as file:
        file.execute("CREATE TABLE t (image BLOB, twice BLOB AS (image || image))")
        file.execute("INSERT INTO t (image) VALUES (x'01')")
        file.execute(
            "CREATE VIEW forever AS WITH RECURSIVE n (image) AS (SELECT 1 UNION ALL SELECT image FROM n) SELECT * FROM n"
        )
    file.close()
    (entry,) = Records(tmp_path / "a.sqlite").entries()
    assert (entry.payload, entry.attributes) == (b"\x01", {})
    with pytest.raises(SourceError, match="has no table 'forever'; it has t"):
        list(Records(tmp_path / "a.sqlite", table="forever").entries())


def test_sqlite_text_that_is_none(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 come as they are, and rows of SQLite need not keep to their types."""
    with sqlite3.connect(tmp_path / "a.sqlite") as file:
        file.execute("CREATE TABLE t (image, name TEXT)")
        file.execute("INSERT INTO t VALUES (CAST(x'ff00' AS TEXT), CAST(x'ff' AS TEXT)), (NULL, 7), (3, 'c')")
    file.close()
    text, nothing, number = Records(tmp_path / "a.sqlite").entries()
    assert (text.payload, text.attributes) == (b"\xff\x00", {})
    assert nothing.refused.startswith("records.empty: ")
    assert (number.payload, number.attributes) == (np.int64(3), {"name": "c"})


def test_a_queue_beside_records_is_left_alone(tmp_path: Path) -> None:
    """A folder's `.db` may be a queue; named itself it is read."""
    write_sqlite(tmp_path / "a", ROWS[:2]).rename(tmp_path / "a.db")
    write_parquet(tmp_path / "b", ROWS[:3])
    assert len(list(Records(tmp_path).entries())) == 3
    assert len(list(Records(tmp_path / "a.db").entries())) == 2


@pytest.mark.full
def test_tables_beside_plain_pairs_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The plain ones are read; that there is more is said, and how to come to it."""
    import lmdb

    file = tmp_path / "both.lmdb"
    with lmdb.open(str(file), subdir=False, max_dbs=2) as library, library.begin(write=True) as writing:
        writing.put(b"a", b"plain")
        writing.put(b"b", b"in a table", db=library.open_db(b"named", txn=writing))
    assert [entry.payload for entry in Records(file).entries()] == [b"plain"]
    assert "also has the tables 'named', of which nothing was read: name one with table=" in caplog.text


def test_a_folder_of_lmdb(tmp_path: Path) -> None:
    """The command line knows it by its name, and the lock beside it is none."""
    (tmp_path / "train.lmdb").mkdir()
    write_lmdb(tmp_path / "a", ROWS[:2]).rename(tmp_path / "train.lmdb" / "data.mdb")
    (tmp_path / "train.lmdb" / "lock.mdb").write_bytes(bytes(8192))
    source = parse_source(str(tmp_path / "train.lmdb"), drain=False)
    assert isinstance(source, Records)
    assert [entry.id for entry in source.entries()] == ["data.mdb#0", "data.mdb#1"]


def test_caches_of_hugging_face_are_no_rows(tmp_path: Path) -> None:
    """`map` leaves them beside what `save_to_disk` wrote."""
    write_stream(tmp_path / "data-00000-of-00001", ROWS[:3])
    write_stream(tmp_path / "cache-1234", ROWS[:5])
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    assert len(list(Records(tmp_path).entries())) == 3
    (tmp_path / "state.json").write_text("[")
    assert len(list(Records(tmp_path).entries())) == 8


class Endless:
    """What `hr.records` needs of an `IterableDataset` of Hugging Face."""

    split = "train"
    _fingerprint = "abc"

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.table = pa.Table.from_pylist(rows)

    def with_format(self, kind: str) -> Endless:
        """Return tables of Arrow, as it does."""
        assert kind == "arrow"
        return self

    def iter(self, number: int) -> Any:
        """Return so many rows at a time."""
        return iter(self.table.to_batches(number))


class DataSet(Endless):
    """What it needs of a `Dataset`."""

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, rows: slice) -> pa.Table:
        return self.table[rows]


def test_a_data_set_of_hugging_face(tmp_path: Path) -> None:
    """Its rows are jobs; images that it names are files, as the program made it."""
    (tmp_path / "a.png").write_bytes(b"png")
    names = [str(tmp_path / "a.png"), str(tmp_path / "gone.png")]
    rows = [{"image": {"bytes": None, "path": name}, "label": number} for number, name in enumerate(names)]
    source = Records(DataSet(rows))
    there, gone = source.entries()
    assert (there.id, there.payload, there.attributes) == ("train#0", tmp_path / "a.png", {"label": 0})
    assert gone.refused.startswith("records.empty: ")
    assert gone.refused.endswith("gone.png' and holds no bytes, and there is no such file here")
    assert source.where == "the data set train"
    assert [dict(part.attributes) for part in source.parts()] == [{"fingerprint": "abc", "rows": 2}]
    several = Records({"train": DataSet(ROWS), "test": DataSet(ROWS[:2])})
    assert [entry.id for entry in several.entries()][-3:] == ["train#199", "test#0", "test#1"]


def test_a_data_set_of_hugging_face_without_a_length() -> None:
    """It is read once, and a run over it keeps no checkpoint."""
    source = Records(Endless(ROWS))
    assert [entry.payload for entry in source.entries()] == [row["image"] for row in ROWS]
    assert source.where is None


def test_a_file_of_somebody_names_no_file(tmp_path: Path) -> None:
    """Not even one that is there."""
    file = write_parquet(tmp_path / "a", [{"image": {"bytes": None, "path": "/etc/hostname"}}])
    (entry,) = Records(file).entries()
    assert entry.refused.startswith(
        "records.empty: the column 'image' names the file '/etc/hostname' and holds no bytes"
    )


@pytest.mark.full
def test_data_sets_by_their_own_package(tmp_path: Path) -> None:
    """Indices, splits and columns that are images, as `datasets` keeps them."""
    import datasets

    made = datasets.Dataset.from_list(ROWS).shuffle(seed=3)
    found = [(entry.payload, entry.attributes["label"]) for entry in Records(made).entries()]
    assert found == [(row["image"], row["label"]) for row in made]
    assert [label for _, label in found] != list(range(200))
    assert Records(made.to_iterable_dataset()).where is None
    made.save_to_disk(tmp_path / "saved")
    assert [entry.attributes["label"] for entry in Records(tmp_path / "saved").entries()] == [
        label for _, label in found
    ]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".tfrecord", ".lmdb", ".sqlite", ".h5"])
def test_a_pipe_or_a_link_to_nothing_is_not_waited_for(tmp_path: Path, suffix: str) -> None:
    """It is one rejected job, and the others are read."""
    os.mkfifo(tmp_path / f"a{suffix}")
    (tmp_path / f"b{suffix}").symlink_to("nowhere")
    write_parquet(tmp_path / "c", ROWS[:2])
    pipe, link, *others = Records(tmp_path).entries()
    assert pipe.refused == "records.damaged: after 0 rows: it is no regular file"
    assert link.refused == "records.damaged: after 0 rows: No such file or directory"
    assert len(others) == 2


@pytest.mark.parametrize("write", [write_parquet, write_stream, write_tfrecord])
def test_a_table_where_there_is_none(tmp_path: Path, write: Write) -> None:
    """It is not passed over in silence."""
    with pytest.raises(SourceError, match="leave table='x' out"):
        list(Records(write(tmp_path / "a", ROWS[:2]), table="x").entries())


@pytest.mark.parametrize("write", [write_parquet, write_feather, write_stream])
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.list_(pa.float32()), [0.5, 2.0]),
        (pa.list_(pa.uint8(), 2), [1, 255]),
        (pa.list_(pa.list_(pa.int16())), [[1, 2], [3, 4]]),
        (pa.large_list(pa.bool_()), [True, False]),
        (pa.list_(pa.float16()), []),
    ],
)
def test_numbers_keep_their_type(tmp_path: Path, write: Write, kind: Any, value: list[Any]) -> None:
    """A model of float32 takes no float64, and pixels of int64 take eight times the memory."""
    written = write(tmp_path / "a", [{"x": b""}])
    schema = pa.schema([("x", kind)])
    table = pa.table({"x": pa.array([value, None, value], kind)}, schema)
    if written.suffix == ".parquet":
        pyarrow.parquet.write_table(table, written)
    else:
        with (pa.ipc.new_file if written.suffix == ".feather" else pa.ipc.new_stream)(written, schema) as writer:
            writer.write_table(table)
    first, none, _ = Records(written, column="x").entries()
    inner = kind.value_type
    while pa.types.is_list(inner):
        inner = inner.value_type
    assert isinstance(first.payload, np.ndarray)
    assert (first.payload.dtype, first.payload.tolist()) == (np.dtype(inner.to_pandas_dtype()), value)
    assert none.refused.startswith("records.empty: ")


@pytest.mark.parametrize("write", TABLES)
@pytest.mark.parametrize("axes", [None, [1, 0]])
def test_tensors_keep_their_shape(tmp_path: Path, write: Write, axes: list[int] | None) -> None:
    """The file has their numbers in one list, and says apart how they stand."""
    written = write(tmp_path / "a", [{"x": b""}])
    kind = pa.fixed_shape_tensor(pa.int16(), [2, 3], permutation=axes)
    column = pa.ExtensionArray.from_storage(kind, pa.array([[1, 2, 3, 4, 5, 6], None], kind.storage_type))
    table = pa.table({"x": column})
    if written.suffix == ".parquet":
        pyarrow.parquet.write_table(table, written)
    else:
        with (pa.ipc.new_file if written.suffix == ".feather" else pa.ipc.new_stream)(written, table.schema) as writer:
            writer.write_table(table)
    first, none = Records(written, column="x").entries()
    assert isinstance(first.payload, np.ndarray)
    expected = np.array([[1, 2, 3], [4, 5, 6]], np.int16)
    np.testing.assert_array_equal(first.payload, expected if axes is None else expected.T, strict=True)
    assert none.refused.startswith("records.empty: ")


@pytest.mark.parametrize("kind", [pa.list_(pa.binary()), pa.map_(pa.string(), pa.binary())])
def test_a_list_of_nothing_is_no_array(tmp_path: Path, kind: Any) -> None:
    """Nothing says that numbers were meant."""
    pyarrow.parquet.write_table(pa.table({"x": pa.array([[]], kind)}), tmp_path / "a.parquet")
    (entry,) = Records(tmp_path / "a.parquet", column="x").entries()
    assert entry.refused.startswith("records.empty: ")


def test_texts_of_tfrecords_are_attributes(tmp_path: Path) -> None:
    """They are bytes there, such as the name that `headrace pack` writes; other bytes beside the item are left out."""
    row = {"image": b"\xff\xd8", "name": "zürich.jpg", "mask": b"\xff\xd8", "code": b"\x00\x01", "long": "a" * 1_001}
    (entry,) = Records(write_tfrecord(tmp_path / "a", [row]), column="image").entries()
    assert (entry.payload, entry.attributes) == (b"\xff\xd8", {"name": "zürich.jpg"})


def test_numbers_of_tfrecords_keep_their_type(tmp_path: Path) -> None:
    """They are float32 or int64 there."""
    file = write_tfrecord(tmp_path / "a", [{"x": [0.5, 2.0]}])
    (entry,) = Records(file, column="x").entries()
    assert isinstance(entry.payload, np.ndarray)
    assert (entry.payload.dtype, entry.payload.tolist()) == (np.dtype("float32"), [0.5, 2.0])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([[1, 2], [3]], "a list of 2 values (list)"),
        ([b"one", b"two"], "a list of 2 values (bytes)"),
        ({"width": 3, "height": 4}, "the fields width, height"),
    ],
)
def test_a_value_that_cannot_be_a_job_is_not_called_empty(tmp_path: Path, value: Any, said: str) -> None:
    """The reason says what is there, and what could be."""
    (entry,) = Records(write_parquet(tmp_path / "a", [{"x": value}]), column="x").entries()
    assert entry.refused == (
        f"records.value: the column 'x' holds {said}; expected bytes, text, numbers, or equally long lists of numbers"
    )


def test_a_table_of_a_data_set_in_memory_is_refused() -> None:
    """Here, too."""
    with pytest.raises(SettingsError, match="a data set in memory has no tables"):
        list(Records({"train": DataSet(ROWS), "test": DataSet(ROWS)}, table="train").entries())


@pytest.mark.parametrize(
    "name", ["a.tfrecord-00000-of-00002", "a-train.TFRecords-00001-of-00002", "train-00001-of-01024", "a.tfrecord.gz"]
)
def test_shards_of_tfrecord_by_their_usual_names(tmp_path: Path, name: str) -> None:
    """As TensorFlow Datasets names them: alone, in a folder, by a pattern and as a source of the command line."""
    data = write_tfrecord(tmp_path / "plain", ROWS[:3]).read_bytes()
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / name
    file.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    sources = [Records(file), parse_source(str(file), drain=False), Records(tmp_path / "data" / f"{name[0]}*")]
    if name == name.lower() and "tfrecord" in name:  # a folder may hold others with such a name
        sources.append(Records(tmp_path / "data"))
    for source in sources:
        assert [(entry.id, entry.payload) for entry in source.entries()] == [  # type: ignore[attr-defined]
            (f"{name}#{number}", ROWS[number]["image"]) for number in range(3)
        ]


@pytest.mark.parametrize("query", ["colum=image", "column=image&Table=x", "table=a&column"])
def test_a_misspelt_address_of_records_is_named(tmp_path: Path, query: str) -> None:
    """Not as a file that is not there."""
    file = write_parquet(tmp_path / "a", ROWS)
    with pytest.raises(SettingsError, match=r"expected column=NAME and table=NAME alone behind the \?"):
        parse_source(f"records://{file}?{query}", drain=False)


@pytest.mark.full
def test_groups_without_data_sets_name_those_below(tmp_path: Path) -> None:
    """HDF5 files often keep their splits in groups."""
    import h5py

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["train/x/images"] = np.zeros((3, 2))
        file.create_group("empty")
    for table, groups in ((None, "empty, train"), ("train", "x"), ("empty", "none")):
        with pytest.raises(SourceError, match=f"the groups there are {groups}: name one with table="):
            list(Records(tmp_path / "a.h5", column="images", table=table).entries())


@pytest.mark.full
def test_references_of_hdf5_are_no_column(tmp_path: Path) -> None:
    """They name other data sets; their names are not what is in those."""
    import h5py

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["own"] = np.array([b"x", b"y"])
        for name, kind in (("image", h5py.ref_dtype), ("region", h5py.regionref_dtype)):
            file.create_dataset(name, (2,), kind)
    (first, second) = Records(tmp_path / "a.h5").entries()
    assert (first.payload, second.payload, first.attributes) == (b"x", b"y", {})
    with pytest.raises(SourceError, match="no column 'image'; it has own"):
        list(Records(tmp_path / "a.h5", column="image").entries())


@pytest.mark.full
def test_structures_of_hdf5_are_no_column(tmp_path: Path) -> None:
    """Their fields would become one array; and the root is a group like others."""
    import h5py

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["image"] = np.zeros(2, dtype=[("a", "i4"), ("b", "f4")])
        file["own"] = np.array([b"x", b"y"])
    assert [entry.payload for entry in Records(tmp_path / "a.h5", table="/").entries()] == [b"x", b"y"]
    with pytest.raises(SourceError, match="no column 'image'; it has own"):
        list(Records(tmp_path / "a.h5", column="image").entries())


def test_a_folder_of_records_given_as_one_of_images_says_what_to_write(tmp_path: Path) -> None:
    """As somebody does with what `save_to_disk` wrote."""
    (tmp_path / "train").mkdir()
    write_stream(tmp_path / "train" / "data-0", ROWS)
    with pytest.raises(
        SourceError, match=r"has no file named .*; data-0\.arrow holds rows, which records://.* reads"
    ) as info:
        list(parse_source(str(tmp_path), drain=False).entries())  # type: ignore[attr-defined]
    address = str(info.value).rpartition("which ")[2].removesuffix(" reads")
    assert len(list(parse_source(address, drain=False).entries())) == len(ROWS)  # type: ignore[attr-defined]


def test_tfrecords_compressed_with_zlib_are_named(tmp_path: Path) -> None:
    """TensorFlow writes them, too; a record whose length has the same first bytes is read."""
    data = write_tfrecord(tmp_path / "plain", ROWS[:3]).read_bytes()
    (tmp_path / "a.tfrecord").write_bytes(zlib.compress(data))
    (entry,) = Records(tmp_path / "a.tfrecord").entries()
    assert "ZLIB, which is not read" in entry.refused
    beside = write_tfrecord(tmp_path / "b", [{"image": b"x" * 300}]).stat().st_size - 16 - 300
    file = write_tfrecord(tmp_path / "b", [{"image": b"x" * (0x178 - beside)}])
    assert file.read_bytes()[:2] == b"\x78\x01"
    (entry,) = Records(file).entries()
    assert entry.payload == b"x" * (0x178 - beside)


@pytest.mark.parametrize("names", [["images", "labels"], ["whatever"]])
def test_the_column_of_arrays_is_found(tmp_path: Path, names: list[str]) -> None:
    """By its usual name, or as there is no other."""
    rows = [{name: [number, number] for name in names} for number in range(3)]
    found = list(Records(write_parquet(tmp_path / "a", rows)).entries())
    assert [entry.payload.tolist() for entry in found] == [[0, 0], [1, 1], [2, 2]]


@pytest.mark.parametrize("call", ["stat", "open"])
def test_a_file_waits_for_a_handle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Else its rows would be rejected for good, and those of all files behind it."""
    path = write_parquet(tmp_path / "a", ROWS)
    usual, failed = getattr(Path, call), []

    def fail_once(self: Path, *args: Any, **more: Any) -> Any:
        if (
            self == path
            and not failed
            and sys._getframe(1).f_code.co_filename.endswith(("records.py", "patient_open.py"))
        ):
            failed.append(1)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return usual(self, *args, **more)

    monkeypatch.setattr("headrace.base.patient_open._PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(Path, call, fail_once)
    assert [entry.refused for entry in Records(path).entries()] == [""] * len(ROWS)
    assert failed
