"""The rows of Parquet, Arrow and TFRecord files are jobs."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

import headrace as hr
from headrace.base.errors import SourceError
from headrace.cli.loading import parse_source
from headrace.sources.record_formats import _masked_crc32c
from headrace.sources.records import Records

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
    return length + struct.pack("<I", _masked_crc32c(length)) + data + struct.pack("<I", _masked_crc32c(data))


def write_tfrecord(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write what TensorFlow writes."""
    path.with_suffix(".tfrecord").write_bytes(b"".join(map(make_record, rows)))
    return path.with_suffix(".tfrecord")


def write_zipped(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write it compressed."""
    path.with_suffix(".tfrecords").write_bytes(gzip.compress(b"".join(map(make_record, rows))))
    return path.with_suffix(".tfrecords")


Write = Callable[[Path, list[dict[str, Any]]], Path]
TABLES: list[Write] = [write_parquet, write_feather, write_stream]
ALL: list[Write] = [*TABLES, write_tfrecord, write_zipped]


@pytest.mark.parametrize("write", ALL)
def test_rows_are_jobs(tmp_path: Path, write: Write) -> None:
    """In order, with the bytes as payload and the rest as attributes; the command line knows the file by its end."""
    file = write(tmp_path / "train", ROWS)
    found = list(Records(file).entries())
    assert [entry.payload for entry in found] == [row["image"] for row in ROWS]
    assert [entry.id for entry in found] == [f"{file.name}#{number}" for number in range(200)]
    assert found[7].attributes["label"] == 7
    assert isinstance(parse_source(str(file), drain=False), Records)
    assert isinstance(parse_source(f"records://{file}?column=image", drain=False), Records)


def test_crc32c_is_that_of_the_standard() -> None:
    """RFC 3720: 32 zeros have 8A9136AA; masked as TFRecord does."""
    crc = 0x8A9136AA
    assert _masked_crc32c(bytes(32)) == ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


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


@pytest.mark.parametrize("at", [0, 5, 8, 20])
def test_a_wrong_byte_of_a_tfrecord_gives_no_wrong_sample(tmp_path: Path, at: int) -> None:
    """Whatever it changes, the file ends there with a refusal, or the value of its own record is what is there."""
    file = write_tfrecord(tmp_path / "a", ROWS[:3])
    content = bytearray(file.read_bytes())
    content[at] ^= 0xFF
    file.write_bytes(content)
    found = list(Records(file, column="image").entries())
    assert found[-1].refused or len(found) == 3


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
