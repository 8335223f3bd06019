"""HDF5 files that are damaged, half written, or hold an item in each data set."""

from __future__ import annotations

import logging
import struct
from pathlib import Path

import numpy as np
import pytest

from headrace.base.errors import SourceError
from headrace.sources import hdf5_rows
from headrace.sources.records import Records

pytestmark = pytest.mark.full


def test_a_file_on_which_the_library_loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong length in the heap of values of any length: the library never came back, and the run with it."""
    import h5py

    with h5py.File(tmp_path / "a.h5", "w") as file:
        values = file.create_dataset("image", (20,), dtype=h5py.vlen_dtype(np.uint8))
        for number in range(20):
            values[number] = np.full(20 + number, number, np.uint8)
    content = bytearray((tmp_path / "a.h5").read_bytes())
    heap = content.index(b"GCOL")
    content[heap + 24 : heap + 32] = struct.pack("<Q", 0)
    (tmp_path / "a.h5").write_bytes(content)
    monkeypatch.setattr(hdf5_rows, "CPU_SECONDS", 1)
    (one,) = Records(tmp_path / "a.h5").entries()
    assert one.refused.startswith(
        "records.damaged: after 0 rows: HDF5's library read for more than 1 s of processor time"
    )


@pytest.mark.parametrize("is_scalar", [False, True])
def test_a_data_set_for_each_image(tmp_path: Path, is_scalar: bool) -> None:
    """Bytes of files under their names: each is an item, not each of its bytes."""
    import h5py

    images = {f"{number}.jpg": bytes([number]) * (10 + number) for number in range(5)}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, data in images.items():
            file[f"train/{name}"] = np.void(data) if is_scalar else np.frombuffer(data, np.uint8)
    found = list(Records(tmp_path / "a.h5", table="train").entries())
    assert {entry.attributes["name"]: entry.payload for entry in found} == images
    assert [entry.id for entry in found] == [f"a.h5#{number}" for number in range(5)]


def test_images_of_one_size_each_in_a_data_set(tmp_path: Path) -> None:
    """Nothing tells them from columns, but the user."""
    import h5py

    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(3):
            file[f"picture{number}"] = np.full((4, 4, 3), number, np.uint8)
    with pytest.raises(SourceError, match="it has picture0, picture1, picture2: name one with column="):
        list(Records(tmp_path / "a.h5").entries())
    found = list(Records(tmp_path / "a.h5", column="*").entries())
    assert [np.asarray(entry.payload).shape for entry in found] == [(4, 4, 3)] * 3


def test_bytes_one_by_one_are_no_items(tmp_path: Path) -> None:
    """One data set of bytes was a job for each of them; labels beside images stay attributes."""
    import h5py

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["image"] = np.zeros(5_000, np.uint8)
    with pytest.raises(SourceError, match=r"each row of image is one byte; .*column=\*"):
        list(Records(tmp_path / "a.h5").entries())
    (one,) = Records(tmp_path / "a.h5", column="*").entries()
    assert one.payload == bytes(5_000)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["image"] = np.ones((3, 8, 8), np.uint8)
        file["label"] = np.arange(3, dtype=np.uint8)
    assert [entry.attributes["label"] for entry in Records(tmp_path / "b.h5").entries()] == [0, 1, 2]


def test_rows_that_were_not_written_in_a_part_that_was(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A writer that stopped in the middle leaves zeros, which nothing tells from images that are black: it is said."""
    import h5py

    with h5py.File(tmp_path / "a.h5", "w") as file:
        images = file.create_dataset("image", (200, 8, 8), "u1", chunks=(100, 8, 8))
        images[:130] = 1
    with caplog.at_level(logging.WARNING, logger="headrace"):
        assert len(list(Records(tmp_path / "a.h5").entries())) == 200
    assert "the last 70 of 200 rows of /image hold nothing but 0, as rows do that were never written" in caplog.text
    caplog.clear()
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["image"][199] = 1
    assert len(list(Records(tmp_path / "a.h5").entries())) == 200
    assert not caplog.text


def test_a_file_that_nobody_closed(tmp_path: Path) -> None:
    """Where the file itself says so."""
    import h5py

    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        file["image"] = np.ones((3, 8, 8), np.uint8)
        file.flush()
        (tmp_path / "b.h5").write_bytes((tmp_path / "a.h5").read_bytes())
    (one,) = Records(tmp_path / "b.h5").entries()
    assert "already open for write" in one.refused
