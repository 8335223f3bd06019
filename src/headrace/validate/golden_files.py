"""Reads the files of a golden set, which somebody else may have made: they end in data or in a SettingsError.

A file may be a device or a pipe that never ends, unpack to more than there is memory, or lie about its size; a name in
`labels.jsonl` may lead anywhere. Arrays are read without pickle.
"""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import psutil

from headrace.base.errors import FetchFailed, FetchRejected, SettingsError
from headrace.base.plan import DecodePlan
from headrace.base.units import format_size
from headrace.stages.local_files import file_reader

#: A class has a place in a model's output; more than that no output has.
MOST_CLASSES = 2**31
_read = file_reader(None, DecodePlan().max_bytes)


def read_file(file: Path) -> bytes:
    """Return a regular file of at most `DecodePlan.max_bytes`, links followed.

    Raises:
        SettingsError: If it is none, or cannot be read.
    """
    try:
        return _read(file)
    except (FetchRejected, FetchFailed) as error:
        raise SettingsError(f"{error}; take its line out of the golden set, or put the file right") from None


def file_in(folder: Path, name: object, where: str) -> Path:
    """Return the file in the folder that a line names.

    Args:
        folder: Of the golden set.
        name: As written in the line.
        where: The line, for the error.

    Raises:
        SettingsError: If it is no name, or leads out of the folder.
    """
    parts = Path(name).parts if isinstance(name, str) and "\0" not in name else ()
    if not parts or ".." in parts or Path(*parts).is_absolute():
        raise SettingsError(
            f"{where} names the file {name!r:.120}; expected one in {folder}, such as a.jpg or night/a.jpg: copy it there, or "
            "link it"
        )
    return folder.joinpath(*parts)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an `.npz` file, or that of an `.npy` file as `inputs`.

    Raises:
        SettingsError: If it cannot be read, or its arrays need more than the memory that is free.
    """
    if not path.is_file():
        problem = "is no regular file" if path.exists() else "does not exist"
        raise SettingsError(f"{path} {problem}; expected a golden set, .npz or .npy")
    try:
        if path.suffix != ".npz":
            with path.open("rb") as file:
                _check_room(path, _num_bytes(file), path.stat().st_size)
            return {"inputs": np.load(path, allow_pickle=False)}
        with zipfile.ZipFile(path) as parts:
            _check_room(path, sum(_size_in(parts, part) for part in parts.infolist()))
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays}
    except SettingsError:
        raise
    except Exception as error:  # zipfile and NumPy raise whatever a damaged part leads them to
        raise SettingsError(
            f"{path} is no golden set that can be read ({type(error).__name__}: {error!s:.200}); expected an .npz file with "
            "the array inputs, and labels if they are known, or an .npy file of inputs"
        ) from None


def read_array(data: IO[bytes]) -> np.ndarray:
    """Return the array of an `.npy` file; whatever is wrong with it raises a ValueError."""
    try:
        size = data.seek(0, 2)
        data.seek(0)
        if _num_bytes(data) > size:
            raise ValueError("it is shorter than its own shape says")
        data.seek(0)
        array: np.ndarray = np.load(data, allow_pickle=False)
    except Exception as error:  # as above
        raise ValueError(f"{type(error).__name__}: {error!s:.200}") from None
    return array


def _size_in(parts: zipfile.ZipFile, part: zipfile.ZipInfo) -> int:
    """Return how many bytes of memory a part of an archive takes; raises ValueError if it lies about its shape."""
    with parts.open(part) as file:
        num_bytes = _num_bytes(file)
    if num_bytes > part.file_size:
        raise ValueError(f"{part.filename} is shorter than its own shape says")
    return part.file_size


def _num_bytes(file: IO[bytes]) -> int:
    """Return the bytes of the array whose `.npy` header comes next: one an item at least, for those without any never end."""
    version: Any = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return max(math.prod(shape) * dtype.itemsize, *shape[:1], 0)


def _check_room(path: Path, num_bytes: int, num_stored: int | None = None) -> None:
    if num_stored is not None and num_bytes > num_stored:
        raise SettingsError(f"{path} is shorter than its own shape says: it was cut off, or is none of NumPy's files")
    free = psutil.virtual_memory().available
    if num_bytes > free:
        raise SettingsError(
            f"{path} unpacks to {format_size(num_bytes)}, and {format_size(free)} of memory are free; take fewer items, or a "
            "machine with more memory"
        )
