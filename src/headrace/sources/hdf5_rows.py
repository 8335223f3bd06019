"""The rows of an HDF5 file, read by another process.

HDF5's library reads damaged files in the worst way: it may loop for ever, end the process, or take all memory, and nothing that
a thread does can stop it. So `hdf5_file` runs it in a process of its own, whose processor time for a few rows and whose memory
the kernel limits; what happens there is a reason why the file is damaged.
"""

from __future__ import annotations

import importlib.util
import logging
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from headrace.base.errors import MissingExtra, SourceError
from headrace.sources.rows import EVERY, DamagedFile, DamagedRow, Rows, Wanted

logger = logging.getLogger("headrace")

#: Processor time that the library may take for a few rows.
CPU_SECONDS = 30
_EACH = {"value": "binary", "name": "string"}
_LENGTH = struct.Struct("<Q")


def read_hdf5(path: Path, wanted: Wanted) -> Rows:
    """Return the rows of the data sets in a group of an HDF5 file: row N is item N of each that has as many.

    Where each data set is an item of its own (the bytes of a file, or column `*`), each is a row `{"value", "name"}`.
    """
    if not _is_installed():
        raise MissingExtra(f"{path.name}: HDF5", "hdf5")
    with tempfile.TemporaryFile() as errors, _start(errors) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            asked = {
                "path": str(path),
                "table": wanted.table,
                "each": wanted.column == EVERY,
                "cpu_seconds": CPU_SECONDS,
            }
            _send(child.stdin, asked)
            described = _receive(child, errors)
            kinds = described["kinds"]
            is_each = described["each"] and wanted.column not in kinds
            _send(child.stdin, {"columns": [] if is_each else _choose(path, wanted, kinds), "each": is_each})
            if is_each:
                wanted.choose(_EACH)
            while (row := _receive(child, errors)) != {}:
                if "refused" in row:
                    yield DamagedRow(row["refused"])
                elif "warning" in row:
                    logger.warning("%s: %s", path, row["warning"])
                else:
                    yield {name: _decode(value) for name, value in row["row"].items()}
        except BrokenPipeError:
            raise _died(child, errors) from None
        finally:
            child.kill()


def _is_installed() -> bool:
    try:
        return importlib.util.find_spec("h5py") is not None
    except ValueError:  # a test that says it is not
        return False


def _start(errors: IO[bytes]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "headrace.sources.hdf5_file"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)


def _choose(path: Path, wanted: Wanted, kinds: Mapping[str, str]) -> list[str]:
    """Return the columns to read; the first is the payload."""
    columns = wanted.choose({name: kind.removesuffix("*") for name, kind in kinds.items()})
    if kinds[columns[0]] == "uint8*":
        raise SourceError(
            f"{path}: each row of {columns[0]} is one byte; if each data set of the group is an item, such as the bytes of an "
            "image, name column=* (otherwise name another column)"
        )
    return columns


def _send(file: IO[bytes], message: Mapping[str, Any]) -> None:
    data = msgspec.msgpack.encode(message)
    file.write(_LENGTH.pack(len(data)) + data)
    file.flush()


def _receive(child: subprocess.Popen[bytes], errors: IO[bytes]) -> dict[str, Any]:
    """Return the next message of the child.

    Raises:
        SourceError: If it says that other things have to be named.
        DamagedFile: If it says that the file is damaged, or if it died of it.
    """
    assert child.stdout is not None
    head = child.stdout.read(_LENGTH.size)
    data = child.stdout.read(_LENGTH.unpack(head)[0]) if len(head) == _LENGTH.size else b""
    if not data:
        raise _died(child, errors)
    message: dict[str, Any] = msgspec.msgpack.decode(data)
    if "unclear" in message:
        raise SourceError(message["unclear"])
    if "damaged" in message:
        raise DamagedFile(message["damaged"])
    return message


def _died(child: subprocess.Popen[bytes], errors: IO[bytes]) -> DamagedFile:
    code = child.wait()
    if code == -signal.SIGXCPU:
        return DamagedFile(f"HDF5's library read for more than {CPU_SECONDS} s of processor time and gave no row")
    if code < 0:
        return DamagedFile(f"HDF5's library ended its process ({signal.Signals(-code).name})")
    errors.seek(0)
    last = errors.read()[-500:].decode(errors="replace").strip().splitlines()
    return DamagedFile(f"the process that reads it ended: {last[-1] if last else code}")


def _decode(value: Any) -> Any:
    if isinstance(value, dict):
        return np.frombuffer(value["data"], value["type"]).reshape(value["shape"]).copy()
    return value
