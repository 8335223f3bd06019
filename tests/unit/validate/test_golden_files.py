"""Golden sets of others: whatever their files hold, they end in data or in one clear error."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

import headrace as hr
from headrace.base.errors import SettingsError
from headrace.validate.golden import read_golden
from headrace.validate.golden_files import file_in, read_arrays, read_file
from headrace.validate.golden_folder import read_golden_folder


def _npy(shape: tuple[int, ...], descr: str = "<f4") -> bytes:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
    return header.getvalue()


def _zip(path: Path, content: bytes, *, flags: int = 0, method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w") as parts:
        parts.writestr("inputs.npy", content)
    data = bytearray(path.read_bytes())
    for start, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = data.find(start) + offset
        data[place : place + 4] = flags.to_bytes(2, "little") + method.to_bytes(2, "little")
    path.write_bytes(data)
    return path


def _whole() -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros((3, 2), np.float32))
    return file.getvalue()


BROKEN: dict[str, Callable[[Path], Path]] = {
    "encrypted": lambda folder: _zip(folder / "a.npz", _whole(), flags=1),
    "unknown compression": lambda folder: _zip(folder / "a.npz", _whole(), method=99),
    "no zip": lambda folder: _written(folder / "a.npz", b"PK\x05\x06nothing"),
    "huge shape in a zip": lambda folder: _zip(folder / "a.npz", _npy((2**50, 2))),
    "huge shape": lambda folder: _written(folder / "a.npy", _npy((2**50, 2))),
    "negative shape": lambda folder: _written(folder / "a.npy", _npy((-5,))),
    "damaged header": lambda folder: _written(folder / "a.npy", _whole().replace(b"{'descr'", b"{'de(cr'")),
    "objects": lambda folder: _written(folder / "a.npy", _npy((1,), "|O")),
    "items without bytes": lambda folder: _written(folder / "a.npy", _npy((10**12,), "|V0")),
    "items without bytes in a zip": lambda folder: _zip(folder / "a.npz", _npy((10**9,), "<U0")),
    "an empty axis": lambda folder: _written(folder / "a.npy", _npy((10**12, 0))),
    "pipe": lambda folder: _pipe(folder / "a.npy"),
    "device": lambda folder: _linked(folder / "a.npy", "/dev/zero"),
    "folder": lambda folder: folder,
    "nothing": lambda folder: folder / "none.npz",
}  # fmt: skip


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def _linked(path: Path, target: str) -> Path:
    path.symlink_to(target)
    return path


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_of_arrays_is_a_clear_error(kind: str, tmp_path: Path) -> None:
    """Encrypted, damaged, endless or lying files name themselves."""
    file = BROKEN[kind](tmp_path)
    with pytest.raises(SettingsError, match=str(file)):
        read_golden(file)


def test_arrays_beyond_the_memory_are_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small archive of many zeros is refused by what its headers say, before anything is unpacked."""
    np.savez_compressed(tmp_path / "a.npz", inputs=np.zeros((1000, 1000)))
    free = psutil.virtual_memory()._replace(available=1_000_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    with pytest.raises(SettingsError, match=r"unpacks to .* of memory are free"):
        read_arrays(tmp_path / "a.npz")


class _Bytes(hr.Module):
    input = hr.ImageInput(short_side=8, crop=8)

    def process(self, batch: object) -> list[int]:
        return []


LINES = {
    "a large label": f'{{"file": "a.png", "label": {2**70}}}',
    "a negative label": '{"file": "a.png", "label": -1}',
    "deep": '{"file": "a.png", "label": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "NUL in the name": json.dumps({"file": "a\0.png", "label": 0}),
    "half a character": '{"file": "a.png", "label": "\\ud800"}',
    "an absolute name": '{"file": "/etc/hostname", "label": 0}',
    "a name that leads out": '{"file": "night/../../a.png", "label": 0}',
    "a number as name": '{"file": 7, "label": 0}',
    "a pipe": '{"file": "pipe.png", "label": 0}',
    "a device": '{"file": "zero.png", "label": 0}',
    "a mask outside": '{"file": "a.png", "mask": "../a.png"}',
    "a large class": f'{{"file": "a.png", "boxes": [[0, 0, 1, 1]], "classes": [{2**70}]}}',
    "boxes without an end": '{"file": "a.png", "boxes": [[0, 0, 1e999, 1]], "classes": [0]}',
    "a list": "[1, 2]",
}


@pytest.mark.parametrize("kind", LINES)
def test_a_broken_line_is_a_clear_error(kind: str, tmp_path: Path) -> None:
    """Lines of labels.jsonl that name what they may not, or hold what no label is."""
    _pipe(tmp_path / "pipe.png")
    _linked(tmp_path / "zero.png", "/dev/zero")
    from PIL import Image

    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "labels.jsonl").write_text(LINES[kind])
    with pytest.raises(SettingsError):
        read_golden_folder(tmp_path, _Bytes())


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01\x00", _npy((2**50, 2)), b"\x89PNG\r\n\x1a\n\0\0"])
@pytest.mark.parametrize("name", ["mask.npy", "mask.png"])
def test_a_broken_mask_is_a_clear_error(name: str, content: bytes, tmp_path: Path) -> None:
    """Masks are read like everything else of a stranger."""
    from PIL import Image

    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / name).write_bytes(content)
    (tmp_path / "labels.jsonl").write_text(json.dumps({"file": "a.png", "mask": name}))
    with pytest.raises(SettingsError, match=name):
        read_golden_folder(tmp_path, _Bytes())


def test_names_stay_in_the_folder(tmp_path: Path) -> None:
    """What is named below the folder is found there; a link to a regular file elsewhere is followed."""
    assert file_in(tmp_path, "night/a.png", "line 1") == tmp_path / "night" / "a.png"
    outside = _written(tmp_path / "outside", b"abc")
    assert read_file(_linked(tmp_path / "link", str(outside))) == b"abc"
