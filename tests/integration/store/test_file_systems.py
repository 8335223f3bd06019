"""File systems of fsspec as sources of jobs and of batches: memory, local, zip, tar, caches, and some that fail."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import tarfile
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.base.errors import SettingsError, SourceError
from headrace.base.pieces import RemotePiece
from headrace.base.plan import Plan
from headrace.cli import main
from headrace.cli.loading import parse_source
from headrace.store import object_shards, objects
from headrace.store.cache_key import identity
from headrace.store.object_reader import ObjectReader

pytestmark = pytest.mark.full
PLAN = Plan.from_table({"stages": {"fetch": {"workers": 8}}})
FILES = {f"{index:03d}.jpg": f"picture {index} ".encode() * 2_000 for index in range(40)}


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (objects, object_shards):
        monkeypatch.setattr(module, "PAUSES", (0.0, 0.0))


def make(kind: str, tmp_path: Path) -> tuple[Any, str]:
    """Return a file system that holds FILES, a text and a hidden file, and the path they are below."""
    import fsspec

    folder = tmp_path / "in" / "2026"
    folder.mkdir(parents=True)
    for name, data in {**FILES, "notes.txt": b"x", ".hidden.jpg": b"x"}.items():
        (folder / name).write_bytes(data)
    if kind == "zip":
        with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as packed:
            for path in folder.iterdir():
                packed.write(path, f"2026/{path.name}")
        return fsspec.filesystem("zip", fo=str(tmp_path / "a.zip")), "2026"
    if kind == "tar":
        with tarfile.open(tmp_path / "a.tar", "w") as packed:
            packed.add(folder, "2026")
        return fsspec.filesystem("tar", fo=str(tmp_path / "a.tar")), "2026"
    if kind == "simplecache":
        options = {"target_protocol": "file", "cache_storage": str(tmp_path / "cache")}
        return fsspec.filesystem("simplecache", **options), str(folder)
    if kind == "dir":
        return fsspec.filesystem("dir", path=str(tmp_path / "in"), fs=fsspec.filesystem("file")), "2026"
    if kind == "file":
        return fsspec.filesystem("file"), str(folder)
    memory = fsspec.filesystem("memory", skip_instance_cache=True)
    memory.store, memory.pseudo_dirs = {}, [""]  # else one for the whole process
    for path in folder.iterdir():
        memory.pipe_file(f"/in/2026/{path.name}", path.read_bytes())
    return memory, "memory://in/2026"


def run(source: Any, plan: Plan = PLAN, **options: Any) -> tuple[Any, dict[str, bytes]]:
    """Run a pipeline that returns the bytes it was given."""
    kept = hr.collect()
    result = hr.run(hr.Pipeline(source, stages=[hr.fetch("fetch")], delivery=kept), plan, **options)
    return result, dict(kept.results)


@pytest.mark.parametrize("kind", ["memory", "file", "zip", "dir", "tar", "simplecache"])
def test_every_file_below_a_path_is_a_job(kind: str, tmp_path: Path) -> None:
    """With the bytes it has, whatever eight threads do at once."""
    fs, path = make(kind, tmp_path)
    result, read = run(hr.objects(path, fs=fs))
    assert read == FILES
    assert result.counters.notes["fetch.object_requests"] == len(FILES)
    assert result.counters.notes["source.listed_objects"] == len(FILES) + 2


def test_one_file_is_a_job_of_its_own(tmp_path: Path) -> None:
    """Named by itself."""
    fs, path = make("memory", tmp_path)
    assert run(hr.objects(f"{path}/001.jpg", fs=fs))[1] == {"001.jpg": FILES["001.jpg"]}


def test_a_run_is_resumed(tmp_path: Path) -> None:
    """By names, as from a folder."""
    fs, path = make("zip", tmp_path)
    pipeline = hr.Pipeline(
        hr.objects(path, fs=fs),
        stages=[hr.fetch("fetch"), hr.stage("size", len)],
        delivery=hr.jsonl(tmp_path / "out.jsonl"),
    )
    hr.run(pipeline, PLAN, limit=7)
    result = hr.run(pipeline, PLAN, resume=True)
    assert result.before is not None
    assert (result.before.delivered, result.counters.delivered) == (7, 33)


def test_archives_with_the_same_names_are_two_sources(tmp_path: Path) -> None:
    """The file of the archive is part of what a resumed run compares."""
    fs, path = make("zip", tmp_path)
    assert str(tmp_path / "a.zip") in hr.objects(path, fs=fs).where


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_file_that_is_replaced_meanwhile_is_rejected(kind: str, tmp_path: Path) -> None:
    """Also by one of the same size, and where the file system keeps what it listed."""
    fs, path = make(kind, tmp_path)
    source = hr.objects(path, fs=fs)
    entries = {entry.id: entry.payload for entry in source.entries()}
    whole = fs._strip_protocol(f"{path}/004.jpg")
    fs.pipe_file(whole, bytes(len(FILES["004.jpg"])))
    if kind == "file":
        os.utime(whole, (1, 1))
    reader = ObjectReader(1 << 30, 5.0)
    with pytest.raises(Exception, match=r"object\.changed: .*2026/004\.jpg was replaced") as caught:
        reader(entries["004.jpg"])
    assert "slash" not in str(caught.value)
    assert reader(entries["005.jpg"]) == FILES["005.jpg"]


def test_what_the_file_system_remembers_is_asked_again(tmp_path: Path) -> None:
    """As those of stores do, which keep their lists until they are told to let go."""
    fs, path = make("memory", tmp_path)
    known: dict[str, Any] = {}
    ask = fs.info

    def info(name: str, **options: Any) -> Any:
        return known.setdefault(name, ask(name, **options))

    fs.info, fs.invalidate_cache = info, lambda name=None: known.clear()
    (entry, *_) = hr.objects(path, fs=fs).entries()
    fs.info(f"/in/2026/{entry.id}")
    fs.pipe_file(f"/in/2026/{entry.id}", b"another")
    with pytest.raises(Exception, match=r"object\.(changed|short)"):
        ObjectReader(1 << 30, 5.0)(entry.payload)


class Forbidden(OSError):
    """As libraries raise it: with a status, and a text that holds what nobody should read."""

    status = 403


@pytest.mark.parametrize(
    ("error", "code", "outcome"),
    [
        (FileNotFoundError("x"), "object.missing", "rejected"),
        (PermissionError("x"), "object.forbidden", "rejected"),
        (Forbidden("https://x/?sig=very-secret"), "object.forbidden", "rejected"),
        (OSError(errno.EBUSY, "SlowDown"), "object.busy", "dead_lettered"),
        (ConnectionResetError("very-secret"), "object.failed", "dead_lettered"),
        (ValueError("very-secret"), "object.failed", "dead_lettered"),
    ],
)
def test_a_file_system_that_fails_has_codes(error: Exception, code: str, outcome: str, tmp_path: Path) -> None:
    """One item; the others go on, and nothing that the library says is quoted."""
    fs, path = make("memory", tmp_path)
    read = fs.cat_file

    def cat_file(name: str, **options: Any) -> bytes:
        if name.endswith("005.jpg"):
            raise error
        return read(name, **options)

    fs.cat_file = cat_file
    result, got = run(hr.objects(path, fs=fs), output=tmp_path / "run")
    assert got.keys() == FILES.keys() - {"005.jpg"}
    assert getattr(result.counters, outcome) == 1
    said = (tmp_path / "run" / "errors.jsonl").read_text()
    assert code in said
    assert "very-secret" not in said


def test_one_that_fails_for_now_is_asked_again(tmp_path: Path) -> None:
    """A cut body, then an error, then the file; also while listing."""
    fs, path = make("memory", tmp_path)
    read, find, left, lists = fs.cat_file, fs.find, [b"short", OSError("x")], [TimeoutError("x")]

    def cat_file(name: str, **options: Any) -> bytes:
        answer = left.pop() if name.endswith("007.jpg") and left else read(name, **options)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def find_later(*args: Any, **options: Any) -> Any:
        if lists:
            raise lists.pop()
        return find(*args, **options)

    fs.cat_file, fs.find = cat_file, find_later
    result, got = run(hr.objects(path, fs=fs))
    assert got == FILES
    assert result.counters.rejected == result.counters.dead_lettered == 0
    assert not left


@pytest.mark.parametrize("path", ["memory://in/none", "memory://in/2026/none.jpg"])
def test_nothing_there_is_a_clear_stop(path: str, tmp_path: Path) -> None:
    """Before the run."""
    fs, _ = make("memory", tmp_path)
    with pytest.raises(SourceError, match=r"object\.missing: memory://.*none.* does not exist"):
        list(hr.objects(path, fs=fs).entries())


def test_what_is_no_file_system_is_refused() -> None:
    """A text that names one, and one that only answers to `await`."""
    from fsspec.implementations.http import HTTPFileSystem

    with pytest.raises(SettingsError, match=r"fs = 'str' is not possible; allowed: a file system of fsspec"):
        hr.objects("photos", fs="s3")
    with pytest.raises(SettingsError, match="without asynchronous=True"):
        hr.objects("https://127.0.0.1/x", fs=HTTPFileSystem(asynchronous=True))


@pytest.mark.parametrize(("kind", "seconds"), [("memory", 10.0), ("tar", 0.3)])
def test_only_kinds_that_allow_it_are_read_by_threads_at_once(kind: str, seconds: float, tmp_path: Path) -> None:
    """A tar file has one position, which its members share."""
    fs, path = make(kind, tmp_path)
    read, met, were_two = fs.cat_file, threading.Barrier(2), threading.Event()

    def cat_file(*args: Any, **options: Any) -> Any:
        with contextlib.suppress(
            threading.BrokenBarrierError
        ):  # the first waits for another, which a lock does not let in
            met.wait(seconds)
            were_two.set()
        return read(*args, **options)

    fs.cat_file = cat_file
    assert run(hr.objects(path, fs=fs))[1] == FILES
    assert were_two.is_set() == (kind == "memory")


def test_an_address_of_fsspec_is_a_source_and_is_packed(tmp_path: Path) -> None:
    """Also a chain of several; packing takes every file that is not hidden, as from a folder."""
    make("zip", tmp_path)
    address = f"fsspec://zip://2026::{tmp_path}/a.zip"
    assert run(parse_source(address, drain=False))[1] == FILES
    assert main(["-q", "pack", address, "-o", str(tmp_path / "data")]) == 0
    assert run(hr.shards(tmp_path / "data"))[1] == {**FILES, "notes.txt": b"x"}


@pytest.mark.parametrize(
    ("address", "error", "says"),
    [
        ("fsspec://nobody://nas/photos", SettingsError, "Protocol not known: nobody"),
        ("fsspec://zip://2026::{folder}/none.zip", SourceError, "cannot open the address .FileNotFoundError"),
        ("fsspec://", SettingsError, "an address that fsspec opens behind fsspec://"),
    ],
)
def test_an_address_that_fsspec_does_not_open_is_refused(
    address: str, error: type[Exception], says: str, tmp_path: Path
) -> None:
    """Before the first job, with what it is."""
    with pytest.raises(error, match=says):
        list(parse_source(address.format(folder=tmp_path), drain=False).entries())


def test_without_fsspec_its_addresses_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """As headrace does not need it."""
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(SettingsError, match="pip install fsspec"):
        parse_source("fsspec://memory://photos", drain=False)


def test_a_job_of_a_queue_names_no_address_of_fsspec(tmp_path: Path) -> None:
    """It would be opened with what the worker may read."""
    make("zip", tmp_path)
    result, read = run(hr.items([f"fsspec://zip://2026/001.jpg::{tmp_path}/a.zip"]))
    assert (read, result.counters.rejected) == ({}, 1)


@pytest.fixture
def packed(tmp_path: Path) -> Any:
    """Pack FILES with labels into shards, and return a file system that holds them below `packed`."""
    import fsspec

    fs, _ = make("memory", tmp_path)
    folder = tmp_path / "files"
    folder.mkdir()
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    assert main(["-q", "pack", str(folder), "-o", str(tmp_path / "data"), "--shard", "200KB"]) == 0
    memory = fsspec.filesystem("memory", skip_instance_cache=True)
    memory.store = fs.store
    for file in (tmp_path / "data").iterdir():
        memory.pipe_file(f"/packed/{file.name}", file.read_bytes())
    return memory


def test_neighbours_in_a_shard_come_at_once(packed: Any) -> None:
    """By blocks, as from a bucket; other bytes than were packed are rejected."""
    result, read = run(hr.objects("/packed", fs=packed))
    assert read == FILES
    assert result.counters.notes["fetch.object_requests"] < len(FILES) / 2
    (shard, *_) = (name for name in packed.store if name.endswith(".tar"))
    content = bytearray(packed.cat_file(shard))
    content[600] ^= 1
    packed.pipe_file(shard, bytes(content))
    result, read = run(hr.objects("/packed", fs=packed))
    assert result.counters.rejected == 1
    assert all(data == FILES[name] for name, data in read.items())


def test_the_loader_reads_shards_of_a_file_system(packed: Any) -> None:
    """Each sample once, in the order that a folder of them has."""
    with hr.loader(
        "/packed", 8, fs=packed, transform=lambda sample: (sample.key, sample.parts["jpg"]), seed=3
    ) as loader:
        got = [one for batch in loader for one in zip(*batch, strict=True)]
    assert sorted(got) == sorted((name.removesuffix(".jpg"), data) for name, data in FILES.items())
    with pytest.raises(SettingsError, match=r"path = .*with fs the path of a folder"):
        hr.loader(Path("/packed"), 8, fs=packed)  # type: ignore[arg-type]


def test_a_server_without_ranges_is_said(packed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives the whole shard for every sample, as plain web servers do: never a wrong sample, and no "short" answer."""
    monkeypatch.setattr("headrace.store.object_shards.PAUSES", (0.0,))
    whole = type(packed).cat_file
    monkeypatch.setattr(type(packed), "cat_file", lambda fs, path, start=None, end=None: whole(fs, path))
    with (
        hr.loader("/packed", 8, fs=packed) as loader,
        pytest.raises(SourceError, match=r"object\.failed: .* bytes where .* were asked for: .* ranges"),
    ):
        list(loader)


@pytest.mark.parametrize("block", [1, None])
def test_a_shard_that_is_forbidden_costs_its_own_samples(
    block: int | None, packed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is read first, when nothing else was, and where one block has samples of all shards."""
    first, *others = sorted(name for name in packed.store if name.endswith(".tar"))
    samples = {name: len(object_shards.ObjectShardReader([name], fs=packed)) for name in (first, *others)}
    read = packed.cat_file

    def refuse_first(path: str, *args: Any, **options: Any) -> bytes:
        if path.endswith(first):
            raise PermissionError(path)
        return bytes(read(path, *args, **options))

    monkeypatch.setattr(packed, "cat_file", refuse_first)
    with hr.loader("/packed", 1, fs=packed, shuffle=False, block=block, rejects="skip", workers=1) as loader:
        assert sum(len(batch) for batch in loader) == sum(samples[name] for name in others) > 0
        assert loader.num_rejected == samples[first] > 0


def test_a_time_alone_is_a_version_only_once_it_is_past() -> None:
    """Another change within the same step of the clock would look the same to a cache."""
    import time

    young = RemotePiece("sftp://h/a", "b.jpg", 0, 5, 5, f"time {time.time()} 5", None, object())
    old = RemotePiece("sftp://h/a", "b.jpg", 0, 5, 5, f"time {time.time() - 60} 5", None, object())
    assert identity(young) is None
    assert identity(old) is not None


class Told:
    """A file system that tells of one file what it was given."""

    def __init__(self, listed: dict[str, Any], info: dict[str, Any], **own: Any) -> None:
        self.find = lambda path, detail: {"a/b.jpg": {"size": 1, **listed}}
        self.info = lambda path: {"size": 1, **info}
        self.cat_file = lambda path, start, end: b"x"
        vars(self).update(own)


def payload_of(fs: Any) -> Any:
    """Return the payload of the only job."""
    (entry,) = hr.objects("a", fs=fs).entries()
    return entry.payload


@pytest.mark.parametrize(("listed", "told"), [("0x8D", '"0x8D"'), ('W/"e"', '"e"')])
def test_quotes_of_an_etag_are_no_part_of_it(listed: str, told: str) -> None:
    """Older adlfs lists them without and answers with them."""
    assert ObjectReader(1 << 30, 5.0)(payload_of(Told({"etag": listed}, {"etag": told}))) == b"x"


@pytest.mark.parametrize(
    ("info", "kind"),
    [
        ({"Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}, "time 1445412480.0 "),
        ({"modify": "20151021072800"}, "time 1445412480.0 "),
        ({"updated": "2015-10-21T07:28:00+00:00"}, "time 1445412480.0 "),
        ({"modificationTime": 1445412480000}, "time 1445412480.0 "),
        ({"Content-MD5": "abc="}, "Content-MD5 abc= "),
        ({"modify": "Oct 21 07:28"}, "text Oct 21 07:28 "),
    ],
)
def test_versions_of_other_kinds_are_known(info: dict[str, Any], kind: str) -> None:
    """By their own words; a time that cannot be read is a version, but nothing is cached by it."""
    payload = payload_of(Told(info, info))
    assert payload.etag.startswith(kind)
    assert (identity(payload) is None) == kind.startswith("text")


def test_a_text_time_of_now_may_change_once_more() -> None:
    """As a number does."""
    from email.utils import formatdate

    now = {"Last-Modified": formatdate(usegmt=True)}
    assert identity(payload_of(Told(now, now))) is None


def test_the_same_path_elsewhere_is_another_source(tmp_path: Path) -> None:
    """On another host, and below another base: `resume` and caches go by it."""
    from fsspec.implementations.dirfs import DirFileSystem
    from fsspec.implementations.local import LocalFileSystem

    hosts = {hr.objects("/a", fs=Told({}, {}, storage_options={"host": name})).where for name in ("nas", "other")}
    bases = {hr.objects("a", fs=DirFileSystem(str(tmp_path / name), LocalFileSystem())).where for name in ("x", "y")}
    assert len(hosts) == len(bases) == 2
    assert str(tmp_path / "x" / "a") in min(bases)


def test_nothing_is_cached_of_an_archive_or_a_cache(tmp_path: Path) -> None:
    """A member of the same name, size and time may have other bytes; a cache may give old ones as the new version's."""
    for kind in ("tar", "zip", "simplecache"):
        fs, path = make(kind, tmp_path / kind)
        (entry, *_) = hr.objects(path, fs=fs).entries()
        assert identity(entry.payload) is None
        assert ObjectReader(1 << 30, 5.0)(entry.payload) == FILES["000.jpg"]
    assert entry.payload.etag is None


def test_a_wrapped_kind_is_read_as_its_own_kind(tmp_path: Path) -> None:
    """Its functions await, and two threads still share one position."""
    from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

    from headrace.store.file_systems import _allows_many

    assert not _allows_many(AsyncFileSystemWrapper(make("tar", tmp_path)[0]))


def test_the_root_is_not_the_working_folder() -> None:
    """A slash was taken away at its end, which was all there is."""
    from fsspec.implementations.local import LocalFileSystem

    class Here(LocalFileSystem):
        """Notes what is listed."""

        asked: str

        def find(self, path: str, *args: Any, **options: Any) -> Any:
            type(self).asked = path
            return {"/x/a.jpg": {"size": 1, "type": "file", "mtime": 1.0}}

    assert [entry.payload.path for entry in hr.objects("/", fs=Here()).entries()] == ["x/a.jpg"]
    assert Here.asked == "/"


def test_one_shard_is_named_by_itself(packed: Any) -> None:
    """Its index is beside it; what is named twice, as itself or a folder above, is read once."""
    shards = sorted(name for name in packed.store if name.endswith(".tar"))
    _, read = run(hr.objects(shards[0], fs=packed))
    assert 0 < len(read) < len(FILES)
    with hr.loader(shards[0], 8, fs=packed) as loader:
        assert sum(len(batch) for batch in loader) == len(read)
    with hr.loader(["/packed", "/packed/", shards[0]], 8, fs=packed) as loader:
        assert sum(len(batch) for batch in loader) == len(FILES)


def test_a_file_system_that_cannot_be_sent_is_named(packed: Any) -> None:
    """Not `transform`, which was not even given."""
    packed.storage_options = {"key": lambda: 0}
    with pytest.raises(SettingsError, match="`fs` cannot be sent there"):
        hr.loader("/packed", 8, fs=packed, executor="process")


def test_a_password_in_a_path_is_not_shown() -> None:
    """Also of a kind that leaves it in the path, and knows its host besides."""
    fs = Told({}, {}, host="nas")
    with pytest.raises(SourceError, match="names no tar shard") as caught:
        hr.loader("sftp://u:pw1x@nas/packed", 8, fs=fs)
    assert "pw1x" not in str(caught.value) + hr.objects("sftp://u:pw1x@nas/packed", fs=fs).where
