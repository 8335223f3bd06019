"""Objects of an S3 server as jobs: all of them once, whatever the server answers; shards by few requests."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.base.errors import SettingsError, SourceError
from headrace.base.plan import Plan
from headrace.cli import main
from headrace.cli.loading import parse_source

pytest.importorskip("obstore")
PLAN = Plan.from_table({"stages": {"fetch": {"workers": 8}}})


def fill(bucket: Any, number: int = 20, prefix: str = "2026/") -> dict[str, bytes]:
    """Put objects into the bucket; return {id: bytes}."""
    files = {f"{index:03d}.jpg": f"picture {index} ".encode() * 200 for index in range(number)}
    for name, data in files.items():
        bucket.put_object(Bucket="photos", Key=f"{prefix}{name}", Body=data)
    return files


def run(source: Any, plan: Plan = PLAN, **options: Any) -> tuple[Any, dict[str, bytes]]:
    """Run a pipeline that returns the bytes it was given."""
    kept = hr.collect()
    result = hr.run(hr.Pipeline(source, stages=[hr.fetch("fetch")], delivery=kept), plan, **options)
    return result, dict(kept.results)


@pytest.mark.smoke
def test_every_object_below_a_prefix_is_a_job(s3: Any, bucket: Any) -> None:
    """Others are not: of another prefix, hidden, or no image. The run's notes tell the requests and their time."""
    files = fill(bucket)
    for key in ("2026-other/x.jpg", "2026/.hidden.jpg", "2026/notes.txt"):
        bucket.put_object(Bucket="photos", Key=key, Body=b"x")
    result, read = run(hr.objects("s3://photos/2026/"))
    assert read == files
    notes = result.counters.notes
    assert notes["fetch.object_requests"] == len(files)
    assert notes["fetch.object_bytes"] == sum(map(len, files.values()))
    assert notes["fetch.object_first_byte_microseconds"] > 0
    assert notes["source.listed_objects"] == len(files) + 2  # a hidden one and a text are listed, too
    assert notes["source.list_microseconds"] > 0
    assert "source.index_microseconds" not in notes


def test_what_a_console_shows_as_a_folder_is_no_object(s3: Any, bucket: Any, tmp_path: Path) -> None:
    """An empty object whose name ends with a slash, which cannot be asked for; an empty one beside it is packed."""
    files = {f"a/{name}": data for name, data in fill(bucket, 3, "2026/a/").items()}
    for key in ("2026/", "2026/a/", "2026/empty.txt"):
        bucket.put_object(Bucket="photos", Key=key, Body=b"")
    assert main(["-q", "pack", "s3://photos/2026", "-o", str(tmp_path / "data")]) == 0
    result, read = run(hr.shards(tmp_path / "data"))
    assert (read, result.counters.rejected) == ({**files, "empty.txt": b""}, 0)


def test_one_object_is_a_job_of_its_own(s3: Any, bucket: Any) -> None:
    """Named by its whole path."""
    files = fill(bucket, 2)
    _, read = run(hr.objects("s3://photos/2026/001.jpg"))
    assert list(read.values()) == [files["001.jpg"]]


def test_a_name_is_not_taken_for_an_answer(s3: Any, bucket: Any) -> None:
    """Objects are called `403.jpg` and `metadata/...`; what is looked for in a message is what the server said."""
    files = fill(bucket, 2) | {"403.jpg": b"x" * 500, "metadata.jpg": b"y" * 500}
    for name in ("403.jpg", "metadata.jpg"):
        bucket.put_object(Bucket="photos", Key=f"2026/{name}", Body=files[name])
    s3.refuse = {"403.jpg": [500], "metadata.jpg": [500]}
    result, read = run(hr.objects("s3://photos/2026/"))
    assert read == files
    assert result.counters.rejected == 0


def test_a_bucket_that_does_not_exist_is_named(s3: Any, bucket: Any) -> None:
    """At once: asking again does not make it."""
    with pytest.raises(SourceError, match=r"object\.missing: the bucket s3://nobody does not exist"):
        list(hr.objects("s3://nobody/2026").entries())


@pytest.mark.parametrize("name", ["a//b.jpg", "tab\t.jpg", "a/../b.jpg"])
def test_a_name_that_cannot_be_asked_for_is_explained(name: str, s3: Any, bucket: Any) -> None:
    """S3 allows such names; the library does not, and lists nothing beside them."""
    fill(bucket, 1)
    bucket.put_object(Bucket="photos", Key=f"2026/{name}", Body=b"x")
    named = re.escape(repr(f"2026/{name}"))
    with pytest.raises(
        SourceError, match=rf"object\.name: s3://photos/2026: the name {named} cannot be asked for: .*control"
    ):
        list(hr.objects("s3://photos/2026").entries())


@pytest.mark.parametrize("url", ["nonsense", "ftp://127.0.0.1:9000", "http://", "http://[", "http://127.0.0.1:99999"])
def test_an_endpoint_that_is_no_address_is_an_error(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library panics, which no `except Exception` catches."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    with pytest.raises(SourceError, match="AWS_ENDPOINT_URL is no address of a server"):
        list(hr.objects("s3://photos").entries())


def test_an_address_with_brackets_is_an_error() -> None:
    """Not a ValueError of the standard library."""
    with pytest.raises(SourceError, match=r"s3://\[ is no address of a bucket"):
        hr.objects("s3://[")


def test_requests_that_are_refused_for_now_are_made_again(s3: Any, bucket: Any) -> None:
    """503 with slow-down, 500, and a body that is cut off: nothing is lost, nothing is half."""
    files = fill(bucket)
    s3.refuse = {"003.jpg": [503, 503], "007.jpg": [500], "009.jpg": [429]}
    s3.cut_bodies = 2
    result, read = run(hr.objects("s3://photos/2026"))
    assert read == files
    asked = [path for _, path, _ in s3.seen]
    assert [sum(name in path for path in asked) for name in ("003.jpg", "007.jpg", "009.jpg")] >= [3, 2, 2]
    assert result.counters.rejected == result.counters.dead_lettered == 0


@pytest.mark.parametrize(
    ("status", "code"), [(403, "object.forbidden"), (404, "object.missing"), (401, "object.forbidden")]
)
def test_what_will_never_be_read_is_rejected_with_a_code(
    status: int, code: str, s3: Any, bucket: Any, tmp_path: Path
) -> None:
    """One item; the others go on."""
    files = fill(bucket)
    s3.refuse = {"005.jpg": [status] * 9}
    result, read = run(hr.objects("s3://photos/2026"), output=tmp_path / "run")
    assert read.keys() == files.keys() - {"005.jpg"}
    assert result.counters.rejected == 1
    assert code in (tmp_path / "run" / "errors.jsonl").read_text()


def test_an_object_that_is_replaced_meanwhile_is_rejected(s3: Any, bucket: Any, tmp_path: Path) -> None:
    """The bytes would be those of another listing."""
    files = fill(bucket)

    def replace(path: str) -> None:
        if path.endswith("004.jpg"):
            s3.before = None
            bucket.put_object(Bucket="photos", Key="2026/004.jpg", Body=b"another " * 300)

    source = hr.objects("s3://photos/2026")
    s3.before = replace
    result, read = run(source, output=tmp_path / "run")
    assert read.keys() == files.keys() - {"004.jpg"}
    assert result.counters.rejected == 1
    assert "object.changed" in (tmp_path / "run" / "errors.jsonl").read_text()


def test_a_run_over_objects_is_resumed(s3: Any, bucket: Any, tmp_path: Path) -> None:
    """By their names, as from a folder; `--source s3://` is such a source."""
    fill(bucket)
    source = parse_source("s3://photos/2026", drain=False)
    pipeline = hr.Pipeline(
        source, stages=[hr.fetch("fetch"), hr.stage("size", len)], delivery=hr.jsonl(tmp_path / "out.jsonl")
    )
    hr.run(pipeline, PLAN, limit=7)
    result = hr.run(pipeline, PLAN, resume=True)
    assert result.before is not None
    assert (result.before.delivered, result.counters.delivered) == (7, 13)


def test_no_secret_is_said(
    s3: Any, bucket: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither where a bucket is refused, nor where an address holds what it should not."""
    fill(bucket, 1)
    caplog.set_level(logging.DEBUG)
    s3.refuse = {"/photos": [403] * 9}
    with pytest.raises(SourceError, match=r"object\.forbidden: s3://photos/2026 may not be used") as caught:
        list(hr.objects("s3://photos/2026").entries())
    with pytest.raises(SourceError, match="holds more than a bucket") as also:
        hr.objects("s3://AKIAX:hidden@photos/2026")
    with pytest.raises((SourceError, SettingsError)) as third:
        parse_source("s3://AKIAX:hidden@photos/2026", drain=False)
    said = f"{caught.value} {also.value} {third.value} {caplog.text}"
    assert "very-secret" not in said
    assert "hidden" not in said


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("s3://photos/none", r"none does not exist, and there is nothing below this name$"),
        ("s3://nobucket/x", "nobucket"),
    ],
)
def test_nothing_there_is_a_clear_stop(url: str, says: str, s3: Any, bucket: Any) -> None:
    """Before the run."""
    with pytest.raises(SourceError, match=says):
        list(hr.objects(url).entries())


def upload_shards(bucket: Any, tmp_path: Path, number: int = 200, shard: str = "3MB") -> dict[str, bytes]:
    """Pack files and upload what was packed; return {id: bytes}."""
    folder = tmp_path / "files"
    folder.mkdir()
    files = {f"{index:03d}.jpg": bytes([index % 251]) * 20_000 for index in range(number)}
    for name, data in files.items():
        (folder / name).write_bytes(data)
        (folder / name).with_suffix(".cls").write_text(name[2])
    assert main(["-q", "pack", str(folder), "-o", str(tmp_path / "data"), "--shard", shard]) == 0
    for file in (tmp_path / "data").iterdir():
        bucket.upload_file(str(file), "photos", f"packed/{file.name}")
    return files


def test_neighbours_in_a_shard_come_with_one_request(s3: Any, bucket: Any, tmp_path: Path) -> None:
    """By the index: 200 samples of two shards and a bit by a request for each block; the labels are attributes."""
    files = upload_shards(bucket, tmp_path)
    s3.seen.clear()
    source = hr.objects("s3://photos/packed")
    assert [entry.attributes["cls"] for entry in source.entries()] == [name[2] for name in files]
    s3.seen.clear()
    result, read = run(source)
    assert read == files
    assert result.counters.notes["source.index_microseconds"] > 0
    ranges = [
        headers
        for method, path, headers in s3.seen
        if path.endswith(".tar") and "range" in {name.lower() for name in headers}
    ]
    assert result.counters.notes["fetch.object_requests"] == len(ranges) <= 4
    assert all("if-match" in {name.lower() for name in headers} for headers in ranges)


def test_a_shard_that_is_damaged_gives_no_wrong_sample(s3: Any, bucket: Any, tmp_path: Path) -> None:
    """The checksum of the index is compared; a shard without an index is refused before the run."""
    files = upload_shards(bucket, tmp_path, 60)
    shard = tmp_path / "data" / "shard-000000.tar"
    content = bytearray(shard.read_bytes())
    content[1_536 + 100] ^= 1  # of the first picture: behind a label and a header
    bucket.put_object(Bucket="photos", Key="packed/shard-000000.tar", Body=bytes(content))
    result, read = run(hr.objects("s3://photos/packed"))
    assert result.counters.rejected == 1
    assert all(data == files[name] for name, data in read.items())
    bucket.put_object(Bucket="photos", Key="packed/shard-000000.tar", Body=bytes(content[:-512]))
    with pytest.raises(SourceError, match="is of a file of"):
        list(hr.objects("s3://photos/packed").entries())
    bucket.delete_object(Bucket="photos", Key="packed/shard-000000.idx.parquet")
    with pytest.raises(SourceError, match=r"has no index packed/shard-000000\.idx\.parquet"):
        list(hr.objects("s3://photos/packed").entries())


def test_blocks_behind_are_asked_for_before_they_are_needed(s3: Any, bucket: Any, tmp_path: Path) -> None:
    """One worker alone keeps two requests under way."""
    files = upload_shards(bucket, tmp_path, 400, "64MB")
    s3.latency_seconds, s3.most_at_once = 0.3, 0
    _, read = run(hr.objects("s3://photos/packed"), Plan.from_table({"stages": {"fetch": {"workers": 1}}}))
    assert read == files
    assert s3.most_at_once >= 2


def test_objects_are_packed_like_files(s3: Any, bucket: Any, tmp_path: Path) -> None:
    """`headrace pack s3://...` with what the store refuses for now in between."""
    files = fill(bucket)
    s3.refuse = {"003.jpg": [503]}
    assert main(["-q", "pack", "s3://photos/2026", "-o", str(tmp_path / "data")]) == 0
    _, read = run(hr.shards(tmp_path / "data"))
    assert read == files


def test_jobs_of_a_queue_name_no_objects(s3: Any, bucket: Any, tmp_path: Path) -> None:
    """They would be read with the worker's credentials; `submit` refuses the address already."""
    result, read = run(hr.items(["s3://photos/2026/000.jpg"]))
    assert not read
    assert result.counters.rejected == 1


def test_strange_names_are_names(s3: Any, bucket: Any) -> None:
    """`?`, `#`, `%` and blanks are letters; what begins with a slash is rejected, and never read as another object."""
    names = ("a?b.jpg", "c#d.jpg", "e%3Ff.jpg", "g h+i.jpg", "ü.jpg")
    for name in (*names, "same.jpg"):
        bucket.put_object(Bucket="photos", Key=f"q?r#s/{name}", Body=name.encode())
    _, read = run(hr.objects("s3://photos/q?r#s/"))
    assert read == {name: name.encode() for name in (*names, "same.jpg")}
    bucket.put_object(Bucket="photos", Key="/q?r#s/same.jpg", Body=b"another")
    bucket.put_object(Bucket="photos", Key="/alone.jpg", Body=b"alone")
    result, read = run(hr.objects("s3://photos/"))
    assert sorted(read.values()) == sorted(name.encode() for name in (*names, "same.jpg"))
    assert result.counters.rejected == 2


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("s3://photos//a.jpg", r"begins with a slash"),
        ("s3://photos/?AWSAccessKeyId=AKIA", r"come from the environment"),
    ],
)
def test_addresses_that_cannot_be_meant_are_refused(url: str, says: str) -> None:
    """And nothing of a query is quoted."""
    with pytest.raises(SourceError, match=says) as raised:
        hr.objects(url)
    assert "AKIA" not in str(raised.value)
