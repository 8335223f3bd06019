"""Results as objects of an S3 server: every promise of a delivery, and what a run makes of a store that refuses."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet
import pytest

import headrace as hr
from headrace.base.errors import DeliveryFailed, SettingsError
from headrace.base.records import Job
from headrace.cli.loading import parse_results
from headrace.testing.delivery_conformance import DeliveryConformance

pytest.importorskip("obstore")


def objects(bucket: Any, prefix: str) -> list[bytes]:
    """Return the parts below a prefix."""
    found = bucket.list_objects_v2(Bucket="photos", Prefix=f"{prefix}/part-").get("Contents", [])
    return [bucket.get_object(Bucket="photos", Key=one["Key"])["Body"].read() for one in found]


class TestJsonLinesObjects(DeliveryConformance):
    """Lines."""

    @pytest.fixture
    def make_delivery(self, s3: Any, bucket: Any) -> Callable[[], Any]:
        """Return a delivery to the same place."""
        self.bucket = bucket
        return lambda: parse_results("s3://photos/scores.jsonl")

    def read_results(self) -> dict[str, Any]:
        """Read all lines."""
        lines = [
            msgspec.json.decode(line) for part in objects(self.bucket, "scores.jsonl") for line in part.splitlines()
        ]
        return {line["id"]: line["result"] for line in lines}


class TestParquetObjects(DeliveryConformance):
    """Columns."""

    @pytest.fixture
    def make_delivery(self, s3: Any, bucket: Any) -> Callable[[], Any]:
        """Return a delivery to the same place."""
        self.bucket = bucket
        return lambda: parse_results("s3://photos/out/scores")

    def read_results(self) -> dict[str, Any]:
        """Read all parts."""
        tables = [pyarrow.parquet.read_table(io.BytesIO(part)) for part in objects(self.bucket, "out/scores")]
        rows = [row for table in tables for row in table.to_pylist()]
        return {row.pop("id"): row for row in rows}


def test_a_place_that_may_not_be_written_is_known_before_the_first_result(s3: Any, bucket: Any) -> None:
    """The store answers 403, and no credentials are in the message."""
    s3.refuse = {"/out/_headrace": [403]}
    with pytest.raises(SettingsError, match=r"object\.forbidden") as refused:
        parse_results("s3://photos/out").open(None)
    assert "very-secret" not in str(refused.value)


def test_a_store_that_refuses_for_a_while_loses_nothing(s3: Any, bucket: Any) -> None:
    """What was not put is kept, and put by the next flush, once."""
    delivery = parse_results("s3://photos/out.jsonl")
    delivery.open(None)
    s3.refuse = {".jsonl": [503, 503]}
    delivery.deliver(Job("a", b""), 1)
    for _ in range(2):
        with pytest.raises(DeliveryFailed, match=r"object\.busy"):
            delivery.flush()
    delivery.close()
    (part,) = objects(bucket, "out.jsonl")
    assert msgspec.json.decode(part) == {"id": "a", "task": "", "result": 1}


def test_a_whole_run_is_resumed_from_its_objects(
    s3: Any, bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second start does only what the first one left."""
    monkeypatch.chdir(tmp_path)
    for number in range(6):
        Path(f"{number}.txt").write_text(str(number))
    seen = []

    def count(data: bytes) -> int:
        seen.append(data)
        return len(data)

    def start(**options: Any) -> Any:
        source = hr.folder(tmp_path, patterns=["*.txt"])
        stages = [hr.fetch("fetch"), hr.stage("count", count)]
        return hr.run(hr.Pipeline(source, stages=stages, delivery=parse_results("s3://photos/out.jsonl")), **options)

    start(limit=2)
    start(resume=True)
    assert sorted(seen) == [b"%d" % number for number in range(6)]
    lines = [msgspec.json.decode(line) for part in objects(bucket, "out.jsonl") for line in part.splitlines()]
    assert sorted(line["id"] for line in lines) == [f"{number}.txt" for number in range(6)]


def test_a_whole_bucket_is_no_place_for_results() -> None:
    """Results need a name of their own in it."""
    with pytest.raises(SettingsError, match="s3://photos/results"):
        parse_results("s3://photos")
