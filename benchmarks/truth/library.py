"""What stages do: real work whose cost is in proportion to `repeats`, services to call, things to wait on.

An item is a piece of text as bytes; a stage gets it, does its work on it and hands it on, so that any stage can follow any
other. `repeats` says how often the work is done for one item: half as many are half the cost, which is how a cause is halved
and how a stage is made twice as fast. Items are of different lengths, and so are their costs.

This file and `surroundings.py` are copied beside a pipeline that is written out; neither imports more than headrace and what it
computes with.
"""

from __future__ import annotations

import atexit
import csv
import ctypes
import fcntl
import functools
import gc
import hashlib
import http.client
import io
import json
import logging
import os
import random
import re
import sqlite3
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

import headrace as hr
from benchmarks.truth.surroundings import Service, service_of

_WORDS = re.compile(r"[a-z]+(?:'[a-z]+)?")
_DATES = re.compile(r"\b(\d{1,2})/(\d{1,2})/(\d{4})\b|\b[A-Z]\w+(?: [A-Z]\w+)+\b")
_BUFFER = bytes(range(256)) * 256


@dataclass(frozen=True)
class Repeated:
    """Work that is done so many times for each item; a fraction is one shorter call."""

    repeats: int = 1

    def __call__(self, item: bytes) -> bytes:
        """Do it."""
        for _ in range(self.repeats):
            self.work(item)
        return item

    def work(self, item: bytes) -> object:
        """Do it once."""
        raise NotImplementedError(f"{type(self).__name__} must define work()")


# --- Python code, and C code that keeps the GIL


class Tokenise(Repeated):
    """Counts the words of a text."""

    def work(self, item: bytes) -> object:
        """Do it once."""
        return Counter(_WORDS.findall(item.decode("latin-1").lower()))


class FindNames(Repeated):
    """Looks for dates and names by a regular expression that tries much."""

    def work(self, item: bytes) -> object:
        """Do it once."""
        return _DATES.findall(item.decode("latin-1"))


class EditDistance(Repeated):
    """Compares two lines letter by letter, in pure Python."""

    def work(self, item: bytes) -> object:
        """Do it once."""
        a, b = item[:24], item[24:48]
        row = list(range(len(b) + 1))
        for i, left in enumerate(a, 1):
            before, row[0] = row[0], i
            for j, right in enumerate(b, 1):
                before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (left != right))
        return row[-1]


class Json(Repeated):
    """Writes a record as JSON and reads it again."""

    def work(self, item: bytes) -> object:
        """Do it once."""
        words = item.decode("latin-1").split()
        return json.loads(json.dumps({"words": words, "lengths": [len(word) for word in words]}))


class Table(Repeated):
    """Reads the text as a table and sorts its rows by a key."""

    def work(self, item: bytes) -> object:
        """Do it once."""
        rows = list(csv.reader(io.StringIO(item.decode("latin-1").replace(" ", ",").replace(".", "\n"))))
        return sorted(rows, key=lambda row: (len(row), row))


# --- C code that lets go of the GIL


class Compress(Repeated):
    """Compresses the text, several times over."""

    def work(self, item: bytes) -> object:
        """Do it once."""
        return zlib.compress(item * 4, 6)


class Digest(Repeated):
    """Takes a digest."""

    def work(self, item: bytes) -> object:
        """Do it once."""
        return hashlib.sha256(_BUFFER + item).digest()


class Blur(Repeated):
    """Makes an image of the text, blurs and scales it."""

    def work(self, item: bytes) -> object:
        """Do it once."""
        image = np.resize(np.frombuffer(item, np.uint8), (160, 160, 3))
        return cv2.resize(cv2.GaussianBlur(image, (7, 7), 2.0), (224, 224), interpolation=cv2.INTER_CUBIC)


class DecodeJpeg(Repeated):
    """Decodes a small photograph."""

    def work(self, item: bytes) -> object:
        """Do it once."""
        return cv2.imdecode(_jpeg(item[0] % 4), cv2.IMREAD_COLOR)


@functools.cache
def _jpeg(number: int) -> np.ndarray:
    noise = np.random.default_rng(number).integers(0, 255, (12, 16, 3), dtype=np.uint8)
    image = cv2.resize(noise, (256, 192), interpolation=cv2.INTER_CUBIC)
    encoded: np.ndarray = cv2.imencode(".jpg", image)[1]
    return encoded


class SortNumbers(Repeated):
    """Sorts numbers in NumPy."""

    def work(self, item: bytes) -> object:
        """Do it once."""
        return np.sort(_numbers(item[0] % 8))


class Spectrum(Repeated):
    """Takes spectra of windows of a signal in NumPy, as audio features are."""

    def work(self, item: bytes) -> object:
        """Do it once."""
        windows = _numbers(item[0] % 8)[:8192].reshape(16, 512) * np.hanning(512)
        return np.log1p(np.abs(np.fft.rfft(windows, axis=1)))


class CopyMemory(Repeated):
    """Moves memory: more than a cache holds."""

    def work(self, item: bytes) -> object:
        """Do it once."""
        return _large()[item[0] % 2].copy()


@functools.cache
def _large() -> np.ndarray:
    return np.ones((2, 1 << 18))


@functools.cache
def _numbers(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random(16384)


class Cluster(Repeated):
    """Takes a step of k-means in NumPy: the nearest centre of each point, and the points' sums by centre."""

    def work(self, item: bytes) -> object:
        """Do it once."""
        points = _numbers(item[0] % 8)[:2048].reshape(256, 8)
        nearest = ((points[:, None] - points[:12]) ** 2).sum(axis=2).argmin(axis=1)
        return [np.bincount(nearest, column, 12) for column in points.T]


class Forest(Repeated):
    """Asks 64 decision trees about 64 rows, level by level in NumPy."""

    def work(self, item: bytes) -> object:
        """Do it once."""
        rows, split_by, limits = _numbers(item[0] % 8)[:512].reshape(64, 8), *_trees()
        each_row, each_tree = np.arange(64)[:, None], np.arange(64)
        node = np.zeros((64, 64), np.intp)
        for _ in range(6):
            is_right = rows[each_row, split_by[each_tree, node]] > limits[each_tree, node]
            node = 2 * node + 1 + is_right
        return node.mean(axis=1)


@functools.cache
def _trees() -> tuple[np.ndarray, np.ndarray]:
    """Return what each node of each tree asks for: a column and its limit."""
    numbers = np.random.default_rng(5)
    return numbers.integers(8, size=(64, 63)), numbers.random((64, 63))


@dataclass(frozen=True)
class Blas(Repeated):
    """Multiplies matrices; BLAS computes with threads of its own."""

    threads: int = 1
    """Of each call."""

    def work(self, item: bytes) -> object:
        """Do it once."""
        _blas_threads(self.threads)
        matrix = _matrix(192)
        return matrix @ matrix


@functools.cache
def _matrix(size: int) -> np.ndarray:
    return np.random.default_rng(0).random((size, size), dtype=np.float32)


_LIMITED: dict[str, int] = {}


def _blas_threads(number: int) -> None:
    """Give BLAS calls of this process so many threads from now on, whatever the machine has."""
    if _LIMITED.get("threads") != number:
        _LIMITED["threads"] = number
        for set_threads in _blas_libraries():
            set_threads(number)


@functools.cache
def _blas_libraries() -> tuple[Callable[[int], object], ...]:
    """Return what sets the threads of each OpenBLAS of this process; its name says how NumPy's own was built."""
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if "openblas" in line}
    names = ("openblas_set_num_threads", "scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_")
    libraries = [ctypes.CDLL(path) for path in sorted(paths)]
    return tuple(getattr(library, name) for library in libraries for name in names if hasattr(library, name))


# --- Models: batches on the cores


@dataclass(frozen=True)
class Model:
    """A network of dense layers in NumPy, called with batches."""

    repeats: int = 8
    """Layers."""
    launches: int = 0
    """Small calls before the layers, as many whatever the batch: what a framework costs."""
    threads: int = 1
    """Of each call."""

    def __call__(self, batch: Sequence[bytes]) -> list[bytes]:
        """Return the items."""
        _blas_threads(self.threads)
        values = np.stack([np.resize(np.frombuffer(item, np.uint8), 256) for item in batch]).astype(np.float32) / 255
        small, weights = _matrix(64), _matrix(256) / 128
        for _ in range(self.launches):
            small @ small
        for _ in range(self.repeats):
            values = np.tanh(values @ weights)
        return list(batch)


@dataclass(frozen=True)
class TorchModel(Model):
    """The same in PyTorch, where that is installed."""

    def __post_init__(self) -> None:
        """Load PyTorch before the run begins, as people load a model: it takes seconds."""
        import torch  # noqa: F401

    def __call__(self, batch: Sequence[bytes]) -> list[bytes]:
        """Return the items."""
        import torch

        torch.set_num_threads(self.threads)
        with torch.inference_mode():
            values = torch.tensor(np.stack([np.resize(np.frombuffer(item, np.uint8), 256) for item in batch])) / 255
            small, weights = torch.from_numpy(_matrix(64)), torch.from_numpy(_matrix(256)) / 128
            for _ in range(self.launches):
                small @ small
            for _ in range(self.repeats):
                values = torch.tanh(values @ weights)
        return list(batch)


class Steps(hr.Module):
    """One of the modules of a pipeline with several tasks.

    Args:
        before: What is done with each item before the model.
        model: The model.
        after: What is done with each item after it.
    """

    input = hr.BytesInput()

    def __init__(
        self, before: Callable[[bytes], bytes], model: Callable[[Any], list[bytes]], after: Callable[[bytes], bytes]
    ) -> None:
        self._before, self._model, self._after = before, model, after

    def preprocess(self, value: bytes) -> bytes:
        """Return the item."""
        return self._before(value)

    def process(self, batch: Any) -> list[bytes]:
        """Return the items."""
        return self._model(batch)

    def postprocess(self, result: bytes) -> bytes:
        """Return the item."""
        return self._after(result)


# --- Waiting


@dataclass(frozen=True)
class Sleep:
    """Waits, as for a device that nothing else shows."""

    seconds: float

    def __call__(self, item: bytes) -> bytes:
        """Wait."""
        time.sleep(self.seconds)
        return item


@dataclass(frozen=True)
class Call:
    """Asks a service over HTTP, on a connection of each worker's own that stays open; asks again after 429."""

    service: Service

    def __call__(self, item: bytes) -> bytes:
        """Ask."""
        address = service_of(self.service)
        while True:
            status, pause = _post(address, item)
            if status != http.HTTPStatus.TOO_MANY_REQUESTS:
                return item
            time.sleep(pause)


_CONNECTIONS = threading.local()


def _post(address: tuple[str, int], body: bytes) -> tuple[int, float]:
    """Return the status, and how long to wait before asking again."""
    known: dict[tuple[str, int], http.client.HTTPConnection] = _CONNECTIONS.__dict__.setdefault("open", {})
    connection = known.get(address)
    if connection is None:
        connection = known[address] = http.client.HTTPConnection(*address, timeout=30)
    connection.request("POST", "/", body)
    response = connection.getresponse()
    response.read()
    return response.status, float(response.headers.get("Retry-After", "0"))


@dataclass(frozen=True)
class Lookup(Repeated):
    """Reads rows of a SQLite table, and writes one if asked to."""

    writes: bool = False
    """Commits a row for each item, to a file."""

    def work(self, item: bytes) -> object:
        """Do it once."""
        database = _database(threading.get_ident())
        found = database.execute("SELECT count(*) FROM words WHERE word BETWEEN ? AND ?", ("b", "q")).fetchone()
        if self.writes:
            with database:
                database.execute("INSERT INTO seen VALUES (?)", (item[:16],))
        return found


_DATABASE = os.path.join(tempfile.gettempdir(), f"truth-{os.getpid()}.sqlite")


@functools.cache
def _database(thread: int) -> sqlite3.Connection:
    database = sqlite3.connect(_DATABASE, timeout=30)
    with database:
        database.execute("CREATE TABLE IF NOT EXISTS words (word TEXT)")
        database.execute("CREATE TABLE IF NOT EXISTS seen (item BLOB)")
        if not database.execute("SELECT 1 FROM words LIMIT 1").fetchone():
            database.executemany("INSERT INTO words VALUES (?)", [(f"{chr(97 + n % 26)}{n}",) for n in range(2000)])
    return database


@dataclass(frozen=True)
class Write:
    """Writes the item to a file, and waits until the disk has it if asked to."""

    repeats: int = 1
    """Writes for each item."""
    sync: bool = False
    kilobytes: int = 4

    def __call__(self, item: bytes) -> bytes:
        """Write."""
        file = _scratch(threading.get_ident())
        for _ in range(self.repeats):
            os.pwrite(file, item[:1] * (self.kilobytes * 1024), 0)
            if self.sync:
                os.fsync(file)
        return item


@functools.cache
def _scratch(thread: int) -> int:
    with tempfile.NamedTemporaryFile(delete=False, prefix="truth-") as file:
        os.unlink(file.name)
        return os.dup(file.fileno())


# --- Around the work


@dataclass(frozen=True)
class OneAtATime:
    """Does the work while it holds the one lock that all workers share."""

    work: Callable[[bytes], bytes]

    def __call__(self, item: bytes) -> bytes:
        """Do it."""
        with _LOCK:
            return self.work(item)


_LOCK = threading.Lock()


@dataclass(frozen=True)
class Collecting:
    """Has Python look for cyclic garbage before each item, among objects that live."""

    work: Callable[[bytes], bytes]
    living: int

    def __call__(self, item: bytes) -> bytes:
        """Do it."""
        living = _living(self.living)
        living.append([item])
        if len(living) > self.living + 100:
            del living[self.living :]
        gc.collect()
        return self.work(item)


@functools.cache
def _living(number: int) -> list[Any]:
    return [{"number": [one]} for one in range(number)]


@dataclass(frozen=True)
class Logging:
    """Logs lines for each item, to a pipe that whoever reads it drains slowly."""

    work: Callable[[bytes], bytes]
    lines: int
    bytes_per_second: int

    def __call__(self, item: bytes) -> bytes:
        """Do it."""
        logger = _slow_log(self.bytes_per_second)
        for number in range(self.lines):
            logger.debug("item %s line %d of the debug log, which nobody asked for", item[:8].hex(), number)
        return self.work(item)


_PIPE_BYTES = 4096


@functools.cache
def _slow_log(bytes_per_second: int) -> logging.Logger:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)  # else a short run ends before it is full
    threading.Thread(target=_drain, args=(reading, bytes_per_second), name="log-reader", daemon=True).start()
    logger = logging.getLogger(f"truth.{bytes_per_second}")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(logging.StreamHandler(os.fdopen(writing, "w", buffering=1)))
    return logger


def _drain(reading: int, bytes_per_second: int) -> None:
    while got := os.read(reading, 4096):
        time.sleep(len(got) / bytes_per_second)


@dataclass(frozen=True)
class Rarely:
    """Does the work of some items several times: those of one kind are dear."""

    work: Callable[[bytes], bytes]
    every: int
    """One item in so many is of that kind."""
    times: int

    def __call__(self, item: bytes) -> bytes:
        """Do it."""
        for _ in range(self.times if item[0] % self.every == 0 else 1):
            self.work(item)
        return item


@dataclass(frozen=True)
class Failing:
    """Fails the first try of some items, once its work is done."""

    work: Callable[[bytes], bytes]
    share: float

    def __call__(self, item: bytes) -> bytes:
        """Do it."""
        self.work(item)
        if hr.current_jobs()[0].attempt == 1 and random.random() < self.share:
            raise ConnectionError("the other side hung up")
        return item


# --- Cutting and joining


@dataclass(frozen=True)
class Cut:
    """Cuts an item into pieces of equal cost: each is the item."""

    pieces: int

    def __call__(self, item: bytes) -> hr.Fan:
        """Cut it."""
        return hr.Fan([item] * self.pieces, item)


def paste(joined: hr.Joined) -> Any:
    """Return the item that was cut."""
    return joined.keep


@dataclass(frozen=True)
class Large:
    """Makes a large result of an item: numbers as a list, which a delivery has to write as text."""

    numbers: int

    def __call__(self, item: bytes) -> list[float]:
        """Make it."""
        found: list[float] = _numbers(item[0] % 8)[: self.numbers].tolist()
        return found


def results_file() -> str:
    """Return a file that is not there yet, in a folder of its own that goes when this process ends."""
    folder = tempfile.TemporaryDirectory(prefix="truth-")
    atexit.register(folder.cleanup)
    return os.path.join(folder.name, "results.jsonl")
