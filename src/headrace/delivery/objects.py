"""Results as objects of a store (S3, Google Cloud Storage, Azure): parts, each complete from the moment it is there.

An object cannot be appended to, so results are kept until a flush puts them as one object; then they are durable, and their
jobs settled. A part that was cut off does not exist: stores show an object when all of it has come.
"""

from __future__ import annotations

import io
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow
import pyarrow.parquet

from headrace.base.errors import DeliveryFailed, ItemError, SettingsError
from headrace.base.records import Job
from headrace.delivery.encoding import attributes_of, encode, encode_any_number, record_of
from headrace.delivery.parquet import Row, make_table
from headrace.store.objects import Bucket, ObjectAddress

logger = logging.getLogger("headrace")

_JSON_LINES = (".jsonl", ".ndjson")
#: Put at the beginning, so that a bucket which may not be written is known before the first result; readers of Parquet skip
#: names that begin so.
_MARKER = "_headrace"


class _Line(msgspec.Struct):
    id: str


_id_decoder = msgspec.json.Decoder(_Line)


class ObjectResults:
    """Puts `part-*.parquet`, or `part-*.jsonl` where the address ends with `.jsonl`, below an address.

    Rows and lines are those of `Parquet` and `JsonLines`. Each part has the column types of its own rows: let readers unify
    them (DuckDB's `union_by_name`, Spark's `mergeSchema`).

    Args:
        address: `s3://bucket/results`, `gs://...` or `az://...`.
        rows_per_object: Results after which a part is put.
        seconds_per_object: Time after which a part is put anyway, so that a queue's jobs are settled soon.

    Raises:
        SettingsError: If the address names no place below a bucket.
        MissingExtra: If obstore is not installed.
    """

    default_workers = 1

    def __init__(self, address: str, *, rows_per_object: int = 20_000, seconds_per_object: float = 10.0) -> None:
        place = ObjectAddress.parse(address)
        if not place.prefix:
            raise SettingsError(
                f"--results: {address} names a whole bucket; expected a place in it: {place.store}/results"
            )
        self.address = f"{place.store}/{place.prefix}"
        self.flush_items = rows_per_object
        self.flush_seconds = seconds_per_object
        self._prefix = place.prefix
        self._suffix = ".jsonl" if place.prefix.endswith(_JSON_LINES) else ".parquet"
        self._bucket = Bucket(place.store)
        self._lock = threading.Lock()
        self._rows: list[Row | bytes] = []
        self._part = 0
        self._run = self._stem = ""

    @property
    def checkpoint(self) -> Path:
        """Folder for the state that resuming needs, in the working folder."""
        return Path(self.address.replace("://", "-").replace("/", "-") + ".checkpoint")

    @property
    def has_results(self) -> bool:
        """Whether there is any part."""
        return bool(self._parts("part-"))

    def mark(self) -> dict[str, Any]:
        """Return what the names of a new run's parts begin with."""
        self._run = uuid.uuid4().hex[:12]
        return {"parts": f"part-{self._run}"}

    def recover(self, mark: Mapping[str, Any]) -> set[str]:
        """Return the ids of the results in the parts that a mark names; see `protocols.Recoverable`."""
        ours = str(mark.get("parts", "part-"))
        self._run = ours.removeprefix("part-")
        if not self._bucket.list_below(self._prefix):
            raise FileNotFoundError(self.address)
        return {one for part in self._parts(ours) for one in self._read_ids(part.path, part.size)}

    def open(self, context: Any) -> None:
        """See that objects can be put there."""
        self._run = self._run or uuid.uuid4().hex[:12]
        # A run that goes on has other parts than those of its earlier starts.
        self._stem = f"part-{self._run}-{socket.gethostname()}-{os.getpid()}-{time.time_ns()}"
        try:
            self._bucket.put(f"{self._prefix}/{_MARKER}", b"Results of headrace are put here.\n")
        except ItemError as error:
            raise SettingsError(f"results cannot be put below {self.address}: {error.reason}") from None

    def deliver(self, job: Job, result: Any) -> bool:
        """Keep one result for the next part; see `protocols.Delivery.deliver`."""
        # Refused now, for this job alone: in `flush` it would hold up all others for ever.
        line = self.check(job, result)
        with self._lock:
            self._rows.append(line if self._suffix == ".jsonl" else Row(job.id, attributes_of(job), result))
        return False

    def check(self, job: Job, result: Any) -> bytes:
        """Return a result's line or row as JSON; see `protocols.Checkable`."""
        return (encode if self._suffix == ".jsonl" else encode_any_number)(record_of(job, result))

    def flush(self) -> None:
        """Put the kept results as one object.

        Raises:
            DeliveryFailed: If that fails; they stay kept.
        """
        with self._lock:
            if not self._rows:
                return
            path = f"{self._prefix}/{self._stem}-{self._part:06d}{self._suffix}"
            try:
                self._bucket.put(path, self._encode())
            except (ItemError, pyarrow.ArrowException) as error:
                raise DeliveryFailed(f"{self.address} cannot be written: {getattr(error, 'reason', error)}") from None
            self._part += 1
            self._rows = []

    def close(self) -> None:
        """Put the rest."""
        self.flush()
        self._run = ""

    def _encode(self) -> bytes:
        if self._suffix == ".jsonl":
            return b"".join(line + b"\n" for line in self._rows if isinstance(line, bytes))
        target = io.BytesIO()
        pyarrow.parquet.write_table(make_table([row for row in self._rows if isinstance(row, Row)]), target)
        return target.getvalue()

    def _parts(self, begin: str) -> Sequence[Any]:
        begin = f"{self._prefix}/{begin}"
        return [
            one for one in self._bucket.list_below(self._prefix)
            if one.path.startswith(begin) and one.path.endswith(self._suffix)
        ]  # fmt: skip

    def _read_ids(self, path: str, size: int) -> list[str]:
        try:
            data = self._bucket.get(path, 0, size, None).data
            if self._suffix == ".jsonl":
                return [_id_decoder.decode(line).id for line in data.splitlines()]
            return [str(one) for one in pyarrow.parquet.read_table(io.BytesIO(data), columns=["id"])["id"].to_pylist()]
        except (ItemError, msgspec.DecodeError, pyarrow.ArrowException, KeyError) as error:
            raise SettingsError(
                f"the results {path} cannot be read back ({getattr(error, 'reason', error)}); resume again when they can, or "
                "begin anew with --force"
            ) from None
