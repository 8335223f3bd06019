"""Files of rows that are damaged, hostile, or written to while they are read: a reason, and never a wrong row."""

from __future__ import annotations

import gzip
import os
import shutil
import sqlite3
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from headrace.base.errors import SourceError
from headrace.sources.finite import Entry
from headrace.sources.records import Records
from headrace.store.crc32c import masked_crc32c
from headrace.store.tfrecord import make_record

IMAGES = [b"picture %d" % number for number in range(300)]


def framed(data: bytes) -> bytes:
    """Return a record with right checksums, whatever it holds."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))


def only_last_refused(found: list[Entry]) -> str:
    """Check that all but the last are the rows as they were written; return why the last is refused."""
    *given, last = found
    assert [entry.payload for entry in given] == IMAGES[: len(given)]
    return last.refused


@pytest.mark.parametrize(
    "message",
    [
        b"\x08\x01",  # a number where the features would be
        b"\x0a\x02\x08\x01",  # where a feature would be
        b"\x0a\x04\x0a\x02\x08\x01",  # where its name would be
        b"\x0a\x09\x0a\x07\x0a\x01a\x12\x02\x08\x01",  # where its values would be
        b"\x0a\x0b\x0a\x09\x0a\x01a\x12\x04\x12\x02\x08\x01",  # where floats would be
        b"\x0a\x0b\x0a\x09\x0a\x01a\x12\x04\x0a\x02\x08\x01",  # where bytes would be
    ],
)
def test_a_message_of_another_kind_costs_one_row(tmp_path: Path, message: bytes) -> None:
    """TFRecord files hold any messages, and some begin like an example."""
    file = tmp_path / "a.tfrecord"
    file.write_bytes(framed(message) + make_record({"a": b"behind it"}))
    first, second = Records(file, column="a").entries()
    assert first.refused.startswith("records.damaged: the record is no tf.train.Example")
    assert second.payload == b"behind it"


@pytest.mark.parametrize("at", range(10, 2_000, 97))
def test_a_wrong_byte_of_a_compressed_file(tmp_path: Path, at: int) -> None:
    """The library has errors of its own."""
    file = tmp_path / "a.tfrecord"
    content = bytearray(gzip.compress(b"".join(make_record({"a": one}) for one in IMAGES), mtime=0))
    content[at % len(content)] ^= 0xFF
    file.write_bytes(content)
    *given, last = Records(file, column="a").entries()
    assert last.refused.startswith(("records.damaged: ", "records.checksum: "))
    whole = {f"a.tfrecord#{number}": image for number, image in enumerate(IMAGES)}
    assert all(entry.refused or entry.payload == whole[entry.id] for entry in given)


@pytest.mark.parametrize("offset", [2**31 - 8, -8, 5_000_000])
def test_offsets_that_lead_out_of_an_arrow_file(tmp_path: Path, offset: int) -> None:
    """They are not followed: that would end the process, or give what else is in its memory."""
    offsets = pa.py_buffer(struct.pack("<4i", 0, 4, offset, 8))
    images = pa.Array.from_buffers(pa.binary(), 3, [None, offsets, pa.py_buffer(b"aaaabbbb")])
    file = tmp_path / "a.arrow"
    with pa.ipc.new_stream(str(file), pa.schema([("image", pa.binary())])) as writer:
        writer.write_batch(pa.record_batch([pa.array(IMAGES[:3])], ["image"]))
        writer.write_batch(pa.record_batch([images], ["image"]))
    code = (
        "import sys; from headrace import records; [print(repr(one.refused)) for one in records(sys.argv[1]).entries()]"
    )
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *given, last = done.stdout.splitlines()
    assert given == ["''"] * 3
    assert last.startswith("'records.damaged: after 3 rows: ")


def test_checksums_of_parquet_are_compared(tmp_path: Path) -> None:
    """A writer may put them there."""
    file = tmp_path / "a.parquet"
    table = pa.table({"image": [image * 20 for image in IMAGES]})
    pyarrow.parquet.write_table(
        table, file, compression="none", use_dictionary=False, write_page_checksum=True, row_group_size=100
    )
    content = bytearray(file.read_bytes())
    content[content.index(b"picture 150") + 3] ^= 0x01
    file.write_bytes(content)
    *given, last = Records(file).entries()
    assert [entry.payload for entry in given] == [image * 20 for image in IMAGES[: len(given)]]
    assert last.refused.startswith("records.damaged: ")


def test_a_label_that_is_no_text(tmp_path: Path) -> None:
    """The column says that it is text; the library finds out when it makes a string of it."""
    label = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(struct.pack("<ii", 0, 2)), pa.py_buffer(b"\xff\xfe")]
    )
    pyarrow.parquet.write_table(pa.table({"image": [b"a"], "label": label}), tmp_path / "a.parquet")
    (one,) = Records(tmp_path / "a.parquet").entries()
    assert one.refused.startswith("records.damaged: after 0 rows: ")


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("ns")])
def test_a_time_that_python_does_not_know(tmp_path: Path, kind: pa.DataType) -> None:
    """It is no item, and no trace of a library."""
    pyarrow.parquet.write_table(pa.table({"when": pa.array([2**62 + 1], kind)}), tmp_path / "a.parquet")
    (one,) = Records(tmp_path / "a.parquet", column="when").entries()
    assert one.refused.startswith("records.")


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_name_that_comes_twice_is_not_guessed(tmp_path: Path, kind: str) -> None:
    """Which of them is the item cannot be told."""
    table = pa.Table.from_arrays(
        [pa.array([b"a"]), pa.array([b"b"]), pa.array(["c"])], names=["image", "image", "name"]
    )
    file = tmp_path / f"a.{kind}"
    if kind == "parquet":
        pyarrow.parquet.write_table(table, file)
    else:
        with pa.ipc.new_file(str(file), table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(SourceError, match="no column 'image'"):
        list(Records(file, column="image").entries())
    assert [entry.payload for entry in Records(file, column="name").entries()] == [b"c"]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "tfrecord"])
def test_a_file_that_is_written_to_while_it_is_read(tmp_path: Path, kind: str) -> None:
    """What would come is of two files."""
    file = tmp_path / f"a.{kind}"
    for images in (IMAGES[::-1], IMAGES):
        table = pa.table({"image": images})
        if kind == "parquet":
            pyarrow.parquet.write_table(table, tmp_path / "new", row_group_size=64, compression="none")
        elif kind == "arrow":
            with pa.ipc.new_file(str(tmp_path / "new"), table.schema) as writer:
                writer.write_table(table, max_chunksize=64)
        else:
            (tmp_path / "new").write_bytes(b"".join(make_record({"image": one}) for one in images))
        if not file.exists():
            other = (tmp_path / "new").read_bytes()
            file.touch()
    (tmp_path / "new").rename(file)
    entries = Records(file, column="image").entries()
    found = [next(entries)]
    file.write_bytes(other)
    os.utime(file, ns=(1, 1))
    assert "written to while it was read" in only_last_refused([*found, *entries])


def test_a_file_that_is_replaced_while_it_is_read(tmp_path: Path) -> None:
    """The old one is still open, and is read to its end."""
    file = tmp_path / "a.tfrecord"
    file.write_bytes(b"".join(make_record({"image": one}) for one in IMAGES))
    entries = Records(file).entries()
    found = [next(entries)]
    (tmp_path / "new").write_bytes(make_record({"image": b"another"}))
    (tmp_path / "new").rename(file)
    assert [entry.payload for entry in [*found, *entries]] == IMAGES


def test_a_bomb_in_parquet_is_not_unpacked(tmp_path: Path) -> None:
    """One value of 24 MB for 2,000 rows: as they were read, 64 of them were in memory twice."""
    bomb = pa.DictionaryArray.from_arrays(pa.array([0] * 2_000, pa.int32()), pa.array([bytes(24 << 20)]))
    file = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pa.table({"image": bomb}), file, compression="zstd", store_schema=False)
    assert file.stat().st_size < 100_000
    code = (
        "import sys; from headrace import records; entries = records(sys.argv[1]).entries(); "
        "sizes = [len(next(entries).payload) for _ in range(20)]; "
        # Not getrusage: its peak holds that of the process that started this one.
        "print(sizes, open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True)
    sizes, _, kilobytes = done.stdout.strip().rpartition(" ")
    assert sizes == str([24 << 20] * 20)
    assert int(kilobytes) < 1_200_000


def test_half_a_transaction_in_a_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that was killed left the journal by which it would be taken back; here nobody can do that."""
    (tmp_path / "copy").mkdir()
    connection = sqlite3.connect(tmp_path / "a.sqlite", isolation_level=None)
    connection.execute("CREATE TABLE photos (image BLOB)")
    connection.executemany("INSERT INTO photos VALUES (?)", [(b"old" + bytes(500),) for _ in range(200)])
    connection.execute("PRAGMA cache_size = 2")
    connection.execute("BEGIN")
    connection.execute("UPDATE photos SET image = CAST('new' AS BLOB) || zeroblob(500)")
    for name in ("a.sqlite", "a.sqlite-journal"):
        shutil.copy(tmp_path / name, tmp_path / "copy")
    connection.close()
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    (one,) = Records(tmp_path / "copy" / "a.sqlite").entries()
    assert one.refused.startswith("records.damaged: after 0 rows: ")


@pytest.mark.full
def test_rows_of_hdf5_that_were_never_written(tmp_path: Path) -> None:
    """A writer that was killed leaves zeros behind, and 1,400 bytes may say that there are 2**50 of them."""
    import h5py

    with h5py.File(tmp_path / "a.h5", "w") as file:
        images = file.create_dataset("image", (2**50, 8), chunks=(64, 8), dtype="u1")
        images[:100] = 1
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_dataset("image", (2**50, 8), dtype="u1")
    *given, last = Records(tmp_path / "a.h5", column="image").entries()
    assert len(given) == 128
    assert last.refused == "records.damaged: after 128 rows: /image: nothing was ever written at row 128"
    (one,) = Records(tmp_path / "b.h5", column="image").entries()
    assert one.refused == "records.damaged: after 0 rows: /image: nothing was ever written"


@pytest.mark.full
def test_rows_of_hdf5_of_all_layouts(tmp_path: Path) -> None:
    """Compact, contiguous, chunked in other axes, and empty ones."""
    import h5py

    values = np.arange(130 * 6, dtype="<i4").reshape(130, 2, 3)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["contiguous"] = values
        file.create_dataset("chunked", data=values, chunks=(7, 1, 2))
        file.create_dataset("packed", data=values, chunks=(200, 2, 3), maxshape=(None, 2, 3), compression="gzip")
        file.create_dataset("empty", (130, 0, 3), dtype="<i4")
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple(values.shape)
        h5py.h5d.create(file.id, b"compact", h5py.h5t.STD_I32LE, space, properties).write(
            h5py.h5s.ALL, h5py.h5s.ALL, values
        )
    for name in ("contiguous", "chunked", "packed", "compact"):
        found = list(Records(tmp_path / "a.h5", column=name).entries())
        assert np.array_equal(np.stack([np.asarray(entry.payload) for entry in found]), values)
    assert len(list(Records(tmp_path / "a.h5", column="empty").entries())) == 130
