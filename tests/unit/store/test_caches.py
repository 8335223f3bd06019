"""Caches in memory and on disk: never a wrong byte, never more than the limit, one maker at a time."""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.base.cache_setting import CacheSetting
from headrace.base.errors import SettingsError
from headrace.base.pieces import Piece, RemotePiece
from headrace.store.admission import Admission
from headrace.store.cache_key import identity, make_key
from headrace.store.code_hash import hash_code
from headrace.store.disk_cache import DiskCache
from headrace.store.memory_cache import MemoryCache
from headrace.store.single_flight import SingleFlight

VALUES: list[Any] = [
    b"",
    b"abc" * 5_000,
    np.arange(60, dtype=np.float32).reshape(3, 4, 5),
    np.zeros((0, 3), np.uint8),
    np.array(7),
]


def key_of(number: int) -> bytes:
    """Return a key."""
    return make_key(b"recipe", f"item {number}")


def make(kind: str, tmp_path: Path, limit: int = 1 << 20) -> Any:
    """Return a cache."""
    return MemoryCache(limit) if kind == "memory" else DiskCache(tmp_path / "cache", limit)


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_what_was_kept_comes_back_equal(kind: str, tmp_path: Path) -> None:
    """With what was noted; what comes back may be written into without harm to others."""
    cache = make(kind, tmp_path)
    for number, value in enumerate(VALUES):
        assert cache.get(key_of(number)) is None
        assert cache.put(key_of(number), value, [number])
    for number, value in enumerate(VALUES):
        found, note = cache.get(key_of(number))
        assert note == [number]
        assert type(found) is type(value)
        if isinstance(value, np.ndarray):
            assert (found.dtype, found.shape) == (value.dtype, value.shape)
            np.testing.assert_array_equal(found, value)
            found[...] = 1
            np.testing.assert_array_equal(cache.get(key_of(number))[0], value)
        else:
            assert found == value
    assert not cache.put(key_of(99), {"no": "array"}, None)
    assert not cache.put(key_of(98), np.array([object()]), None)
    assert not cache.put(key_of(97), np.zeros(2, [("a", "i4"), ("b", "f4")]), None)


def test_a_buffer_that_is_used_again_does_not_change_what_is_kept() -> None:
    """Decoders write every image into the same memory."""
    cache, buffer = MemoryCache(1 << 20), np.zeros(10, np.uint8)
    cache.put(key_of(0), buffer, None)
    buffer[:] = 9
    assert cache.get(key_of(0))[0].tolist() == [0] * 10  # type: ignore[index]


@pytest.mark.parametrize("kind", ["memory", "disk"])
@pytest.mark.parametrize("evicts", [False, True])
def test_the_limit_is_never_exceeded(kind: str, evicts: bool, tmp_path: Path) -> None:
    """Whatever the policy; a value that is larger than all of it is not kept."""
    cache = make(kind, tmp_path, 200_000)
    cache._admission.evicts = evicts
    for number in range(100):
        cache.put(key_of(number), bytes(9_000), None)
        assert cache.num_bytes <= 200_000
    kept = [number for number in range(100) if cache.get(key_of(number)) is not None]
    assert len(kept) >= 15
    assert (99 in kept) == evicts
    assert not cache.put(key_of(100), bytes(300_000), None)


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_what_an_edit_left_behind_makes_room(kind: str, tmp_path: Path) -> None:
    """In the next run, oldest first; what that run uses stays, as does what is of the same work."""
    cache = make(kind, tmp_path, 200_000)
    keys = {work: [make_key(work, str(number)) for number in range(40)] for work in (b"old ", b"used", b"new ")}
    for key in keys[b"old "][:10] + keys[b"used"][:5]:
        assert cache.put(key, bytes(9_000), None)
    assert not all(cache.put(key, bytes(9_000), None) for key in keys[b"new "])  # in the same run nothing goes
    num_new = sum(cache.get(key) is not None for key in keys[b"new "])
    cache.begin()
    if kind == "disk":
        for key in keys[b"old "][:10] + keys[b"used"][:5]:
            os.utime(cache._path(key), (1, 1))
    assert all(cache.get(key) is not None for key in keys[b"used"][:5])
    kept = [cache.put(key, bytes(9_000), None) for key in keys[b"new "]]
    assert sum(kept) == num_new + 10
    assert all(cache.get(key) is not None for key in keys[b"used"][:5])
    assert not any(cache.get(key) is not None for key in keys[b"old "][:10])
    assert cache.num_bytes <= 200_000


def test_room_on_disk_is_that_of_the_files(tmp_path: Path) -> None:
    """Also for a second user of the folder, and for one that counts again."""
    cache = DiskCache(tmp_path / "cache", 1 << 20)
    for number in range(20):
        cache.put(key_of(number), bytes(5_000), None)
    files = list((tmp_path / "cache" / "headrace-cache-1").glob("??/*"))
    assert cache.num_bytes == 20 * 8_192 == sum(-(-path.stat().st_size // 4_096) * 4_096 for path in files)
    assert DiskCache(tmp_path / "cache", 1 << 20).num_bytes == cache.num_bytes
    (cache.folder / "usage").write_bytes(b"garbage!")
    del cache
    assert DiskCache(tmp_path / "cache", 1 << 20).num_bytes == 20 * 8_192


@pytest.mark.parametrize(
    "damage",
    [b"", b"\x01", b"garbage", b"garbage! " * 9, b"\xff" * 12, b"\xff" * 7 + b"\x7f", bytes(12), bytes(8)],
    ids=["empty", "one", "short", "long", "ones", "huge", "zeros", "unchecked"],
)
def test_a_damaged_usage_is_counted_again(damage: bytes, tmp_path: Path) -> None:
    """By whoever uses the cache, while others do: no more than the limit is kept, and not much less."""
    caches = [DiskCache(tmp_path / "cache", 1 << 20) for _ in range(2)]
    for number in range(100):
        if number in (20, 60):
            (caches[0].folder / "usage").write_bytes(damage)
        caches[number % 2].put(key_of(number), bytes(20_000), None)
    kept = list(caches[0].folder.glob("??/*"))
    assert (1 << 20) * 14 // 16 < len(kept) * 20_480 <= 1 << 20
    assert all(cache.num_bytes <= 1 << 20 for cache in caches)
    caches.clear()
    assert DiskCache(tmp_path / "cache", 1 << 20).num_bytes == len(kept) * 20_480


def test_room_taken_ahead_is_given_back(tmp_path: Path) -> None:
    """Once its process no longer uses the cache; and it is within the limit meanwhile."""
    limit = 32 << 20
    first, second = (DiskCache(tmp_path / "cache", limit) for _ in range(2))
    for number in range(40):
        (first, second)[number % 2].put(key_of(number), bytes(1_000_000), None)
    files = list((tmp_path / "cache" / "headrace-cache-1").glob("??/*"))
    used = len(files) * 1_003_520  # whole blocks
    assert len(files) == limit // 1_003_520
    ahead = second.num_bytes - used
    assert 0 < ahead <= limit // 4_096  # the other's
    del first
    assert second.num_bytes == used


def test_room_taken_ahead_stays_with_the_parent(tmp_path: Path) -> None:
    """A fork that writes takes room of its own."""
    cache = DiskCache(tmp_path / "cache", 32 << 20)
    cache.put(key_of(0), bytes(100), None)
    child = os.fork()
    if not child:
        cache.put(key_of(1), bytes(100), None)
        cache._give_back(0)
        os._exit(0)
    os.waitpid(child, 0)
    cache.put(key_of(2), bytes(100), None)
    del cache
    assert DiskCache(tmp_path / "cache", 32 << 20).num_bytes == 3 * 4_096


@pytest.mark.parametrize("damage", ["cut", "flip", "longer", "empty", "other"])
def test_a_damaged_entry_is_missing(damage: str, tmp_path: Path) -> None:
    """It is removed, so that the next one can be kept."""
    cache = DiskCache(tmp_path / "cache", 1 << 20)
    for number in range(2):
        cache.put(key_of(number), bytes(range(200)) * 10, None)
    path, other = Path(cache._path(key_of(0))), Path(cache._path(key_of(1)))
    content = path.read_bytes()
    path.write_bytes({
        "cut": content[:-7], "flip": content[:-9] + b"\xff" + content[-8:], "longer": content + b"x", "empty": b"",
        "other": other.read_bytes(),
    }[damage])  # fmt: skip
    assert cache.get(key_of(0)) is None
    assert cache.num_damaged == 1
    assert not path.exists()
    assert cache.put(key_of(0), b"again", None)
    assert cache.get(key_of(0)) == (b"again", None)


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    """In the head as in the content."""
    cache = DiskCache(tmp_path / "cache", 1 << 20)
    path = Path(cache._path(key_of(0)))
    cache.put(key_of(0), np.arange(5, dtype=np.int16), [1])
    content = path.read_bytes()
    for place in range(len(content)):
        for bit in (0, 7):
            damaged = bytearray(content)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            assert cache.get(key_of(0)) is None, place


def test_a_folder_of_others_is_refused(tmp_path: Path) -> None:
    """Whoever may write into it decides what the run computes."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(SettingsError, match="can be written by others"):
        DiskCache(tmp_path / "cache", 1 << 20)


def test_files_of_others_stay(tmp_path: Path) -> None:
    """Beside the cache, and within it what has no name of its own: whether it opens, counts or lets go."""
    own = tmp_path / "headrace-cache-1"
    DiskCache(tmp_path, 100_000)
    foreign = [
        folder / name
        for folder in (tmp_path, own, own / "tmp", tmp_path / "tmp", tmp_path / "db", own / "db")
        for name in ("thesis.txt", "usage.bak", "ab")
    ] + [tmp_path / "usage", tmp_path / "claims"]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"mine")
        os.utime(path, (0, 0))
    cache = DiskCache(tmp_path, 100_000)
    cache._admission.evicts = True
    for number in range(300):
        cache.put(bytes([0xDB]) + key_of(number)[1:], bytes(9_000), None)
    assert cache.get(bytes([0xDB]) + key_of(299)[1:]) is not None
    assert [path.read_bytes() for path in foreign] == [b"mine"] * len(foreign)


def test_a_folder_that_is_something_else_is_refused(tmp_path: Path) -> None:
    """As far as that shows: it has the cache's name, and holds what the cache did not write."""
    own = tmp_path / "headrace-cache-1"
    own.mkdir()
    (own / "usage").write_bytes(b"mine")
    with pytest.raises(SettingsError, match="is not a cache of headrace"):
        DiskCache(tmp_path, 1 << 20)
    assert (own / "usage").read_bytes() == b"mine"


def test_a_full_disk_turns_writing_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, with an error; what is there is still read."""
    cache = DiskCache(tmp_path / "cache", 1 << 20)
    cache.put(key_of(0), b"first", None)

    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    assert [cache.put(key_of(number), b"more", None) for number in range(1, 4)] == [False] * 3
    assert cache.is_off
    assert cache.get(key_of(0)) == (b"first", None)
    assert cache.num_bytes == 4_096
    assert caplog.text.count("takes no more (No space left on device)") == 1
    assert not list((cache.folder / "tmp").iterdir())


def test_a_folder_that_was_removed_ends_the_cache_and_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With one error; items are made."""
    cache = DiskCache(tmp_path / "cache", 1 << 20)
    shutil.rmtree(tmp_path / "cache")
    for number in range(2):
        claim = cache.flights.claim(key_of(number))
        assert claim is not None
        assert cache.flights.claim(key_of(number)) is None
        assert cache.get(key_of(number)) is None
        assert not cache.put(key_of(number), b"made", None)
        claim.release()
    assert cache.is_off
    assert caplog.text.count("takes no more") == 1


def lookups(admission: Admission, numbers: Any, size: int = 100) -> None:
    """Look keys up."""
    for number in numbers:
        admission.follow(key_of(number), size)


@pytest.mark.parametrize("count", [200, 9_000])
def test_epochs_keep_and_favourites_let_go(count: int) -> None:
    """By what was measured: with room for half, keeping hits half of an epoch, and letting go next to nothing."""
    rng = np.random.default_rng(0)
    admission = Admission(count * 50)
    for _ in range(3):
        lookups(admission, rng.permutation(count))
    assert not admission.evicts
    assert admission.kept_hits > 2 * admission.recent_hits
    for begin in range(1, 9):  # favourites that change: each week others
        lookups(admission, count * begin + rng.integers(0, count // 4, count))
    assert admission.evicts


def test_what_admission_follows_is_bounded() -> None:
    """Whatever the number of keys."""
    admission = Admission(1 << 40)
    lookups(admission, range(60_000))
    assert len(admission._kept) + len(admission._recent) <= 8_192


@pytest.mark.parametrize("with_file", [False, True])
def test_one_makes_it_and_the_others_wait(with_file: bool, tmp_path: Path) -> None:
    """A claim that is forgotten ends, as one that is released."""
    flights = SingleFlight(tmp_path / "claims" if with_file else None)
    claim = flights.claim(key_of(0))
    assert claim is not None
    assert flights.claim(key_of(0)) is None
    assert flights.claim(key_of(1)) is not None
    got: list[Any] = []
    waiter = threading.Thread(target=lambda: got.append(flights.wait(key_of(0))))
    waiter.start()
    del claim
    waiter.join()
    assert got[0] is not None
    other = SingleFlight(tmp_path / "claims") if with_file else flights
    assert other.claim(key_of(0)) is None
    got.clear()
    assert other.claim(key_of(0)) is not None


def test_who_calls_the_system_keeps_no_other_thread_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one thread takes room that another process holds locked, others find; while one claims, others claim."""
    cache = DiskCache(tmp_path / "cache", 1 << 20)
    cache.put(key_of(0), b"kept", None)
    cache._give_back(0)  # what was taken ahead
    usage = os.open(cache.folder / "usage", os.O_RDWR)
    fcntl.flock(usage, fcntl.LOCK_EX)
    is_there, may_go_on = threading.Event(), threading.Event()

    def lock_byte(self: SingleFlight, key: bytes, kind: int) -> bool:
        if key == key_of(1):
            is_there.set()
            may_go_on.wait()
        return True

    monkeypatch.setattr(SingleFlight, "_lock_byte", lock_byte)
    put = threading.Thread(target=cache.put, args=(key_of(1), b"new", None))
    claim = threading.Thread(target=cache.flights.claim, args=(key_of(1),))
    got: list[Any] = []
    other = threading.Thread(
        target=lambda: got.extend([cache.get(key_of(0)), cache.flights.claim(key_of(2))]), daemon=True
    )
    put.start()
    while not cache._usage_lock.locked():
        pass
    claim.start()
    is_there.wait()
    other.start()
    other.join(30)
    os.close(usage)
    may_go_on.set()
    put.join()
    claim.join()
    assert len(got) == 2
    assert got[0] == (b"kept", None)
    assert cache.get(key_of(1)) == (b"new", None)


def test_a_claim_dies_with_its_process(tmp_path: Path) -> None:
    """Nothing is left to clean up."""
    flights = SingleFlight(tmp_path / "claims")
    program = (
        "import sys, pathlib; from headrace.store.single_flight import SingleFlight\n"
        f"claim = SingleFlight(pathlib.Path({str(tmp_path / 'claims')!r})).claim(bytes.fromhex({key_of(0).hex()!r}))\n"
        "print(claim is not None, flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"True\n"
        assert flights.claim(key_of(0)) is None
        child.kill()
    assert flights.claim(key_of(0)) is not None


def test_content_that_nothing_tells_has_no_identity(tmp_path: Path) -> None:
    """Nor has a file that was changed just now, as another change may leave its time as it is."""
    file = tmp_path / "a.jpg"
    file.write_bytes(b"a")
    assert identity(file) is None
    os.utime(file, ns=(10**18, 10**18))
    before = identity(file)
    assert before == identity(file) is not None
    assert identity(Piece(file, 0, 1)) not in (None, before, identity(Piece(file, 1, 1)))
    file.write_bytes(b"bc")
    os.utime(file, ns=(10**18, 10**18))
    assert identity(file) != before
    assert identity(tmp_path / "none.jpg") is None
    assert identity("https://example.com/a.jpg") is None
    assert identity("https://example.com/a.jpg", is_immutable=True) is not None
    assert identity("file:///etc/passwd", is_immutable=True) is None
    assert identity(RemotePiece("s3://b", "a", 0, 1, 1)) is None
    assert identity(RemotePiece("s3://b", "a", 0, 1, 1, "x")) != identity(RemotePiece("s3://b", "a", 0, 1, 1, "y"))
    assert identity(b"a") != identity(b"b")


def scaled(by: float) -> Any:
    """Return a function that holds a number."""
    return lambda value: value * by


def test_other_code_has_another_hash() -> None:
    """Also the same code that holds other values; where it stands does not matter."""
    hashes = [hash_code(one, "stage") for one in (
        scaled(1.0), scaled(2.0), functools.partial(scaled(1.0), 3), np.sqrt, len, lambda value: value + 1,
    )]  # fmt: skip
    assert len(set(hashes)) == len(hashes)
    assert hash_code(scaled(1.0), "stage") == hashes[0]


@pytest.mark.parametrize(
    "text", ["memory", "memory:", "memory:x", "disk:2GB", "disk::2GB", "ram:2GB", "memory:a:2GB", "memory:10", ""]
)
def test_a_setting_that_means_nothing_is_refused(text: str) -> None:
    """With what is expected."""
    with pytest.raises(SettingsError, match='"memory:SIZE"'):
        CacheSetting.parse(text)


def test_a_setting_is_read() -> None:
    """A folder may hold colons."""
    assert CacheSetting.parse("memory:2GB") == CacheSetting(None, 2 * 10**9, False)
    assert CacheSetting.parse("disk:/a:b/c:1GiB:immutable") == CacheSetting(Path("/a:b/c"), 1 << 30, True)
