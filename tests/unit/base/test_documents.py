"""Tests of the one converter that every document is written with."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import pkgutil
import subprocess
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import headrace.runs.formats as formats
from headrace.base.documents import encode_document
from headrace.base.errors import SettingsError

SOURCE = Path(formats.__file__).parents[2]
#: What is no document: results, lines that a run appends, spans of a trace, and digests that are never shown.
_NO_DOCUMENTS = {
    "store/disk_cache.py",  # the first line of an entry, which is checked by its CRC-32
    "base/documents.py", "delivery/encoding.py", "runs/errors_log.py", "runs/journal.py", "sources/jobs.py",
    "report/chrome_trace.py", "report/ledger_page.py", "ledger/ledger.py", "optimize/conditions.py",
    "optimize/concurrency_attempt.py",
    "optimize/recipe.py", "serve/http/request.py", "serve/oip/http_response.py",
}  # fmt: skip


def _documents() -> list[type[msgspec.Struct]]:
    """Return every struct of the formats."""
    names = [f"{formats.__name__}.{module.name}" for module in pkgutil.iter_modules(formats.__path__)]
    found = {
        value
        for name in [*names, "headrace.runs.run_folder"]
        for value in vars(importlib.import_module(name)).values()
        if isinstance(value, type) and issubclass(value, msgspec.Struct) and value is not msgspec.Struct
    }
    return sorted(found, key=lambda kind: kind.__qualname__)


def _example(kind: Any, *, numpy: bool) -> Any:
    """Return a value of a type, its numbers NumPy's own or Python's."""
    scalars = {float: np.float64(0.25), int: np.int64(7), bool: np.bool_(True), str: "text", Any: np.float32(0.5)}
    if kind in scalars:
        value = scalars[kind]
        return value if numpy or isinstance(value, str) else value.item()
    if kind is type(None):
        return None
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _example(next(one for one in inside if one is not type(None)), numpy=numpy)
    if origin is typing.Literal:
        return inside[0]
    if origin in (tuple, list, Sequence):
        given = [one for one in inside if one is not ...]
        return [_example(one, numpy=numpy) for one in given]
    if origin in (dict, Mapping):
        return {_example(inside[0], numpy=False): _example(inside[1], numpy=numpy)}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind))
    if isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind)):
        fields = {name: _example(hint, numpy=numpy) for name, hint in typing.get_type_hints(kind).items()}
        try:
            return kind(**fields)
        except SettingsError:  # it checks itself, and is possible as it is
            return kind()
    if kind in (dict, object):
        return {"value": _example(float, numpy=numpy)}
    raise AssertionError(f"no example of {kind}: add one")


@pytest.mark.parametrize("kind", _documents(), ids=lambda kind: kind.__qualname__)
def test_a_document_may_hold_numpy_scalars_anywhere(kind: type[msgspec.Struct]) -> None:
    """NumPy's own numbers in any field are written as Python's are."""
    assert encode_document(_example(kind, numpy=True)) == encode_document(_example(kind, numpy=False))


def test_arrays_become_lists_and_nan_becomes_null() -> None:
    """An array is a list, and what is not finite was not measured."""
    assert encode_document({"a": np.array([1.0, np.nan]), "b": np.float32("inf")}) == b'{"a":[1.0,null],"b":null}'


def test_what_json_cannot_carry_is_refused_or_text() -> None:
    """An object of no known kind is an error, or text where that is asked for; a NumPy scalar stays a number in both."""
    with pytest.raises(TypeError, match="PosixPath"):
        encode_document({"path": Path("a")})
    assert encode_document({"path": Path("a"), "x": np.float64(2)}, or_text=True) == b'{"path":"a","x":2.0}'


def test_no_document_is_written_past_the_converter() -> None:
    """Only what is no document calls msgspec's encoder itself."""
    found = {
        str(file.relative_to(SOURCE))
        for file in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("msgspec.json.encode", "msgspec.json.Encoder")
    }
    assert found <= _NO_DOCUMENTS


_FIRST_USE = """
import sys, threading
import msgspec
from headrace.base.documents import convert_document, decode_document

sys.setswitchinterval(1e-6)
for number in range(10):
    Inner = msgspec.defstruct("Inner", [(f"a{i}", "int | None", None) for i in range(30)], module=__name__)
    kind = msgspec.defstruct("Kind", [(f"f{i}", list[Inner], []) for i in range(40)], module=__name__)
    start, found = threading.Barrier(8), []

    def read(index):
        start.wait()
        if index % 2:
            found.append(decode_document(b'{"f39": [{"a29": 1}]}', kind).f39[0].a29)
        else:
            found.append(convert_document({"f39": [{"a29": 1}]}, kind).f39[0].a29)

    threads = [threading.Thread(target=read, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1] * 8, found
"""


def test_threads_may_read_a_type_for_the_first_time_together() -> None:
    """Threads that read the first documents of a type at the same moment do not crash the process, as msgspec alone does."""
    done = subprocess.run([sys.executable, "-c", _FIRST_USE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
