"""The memory of the recorder: bounded, readable while it is written, and never wrong data taken for right."""

import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest

from headrace.monitor.recorder import ring
from headrace.monitor.recorder.ring import (
    BlockKind,
    RingWriter,
    decode_blocks,
    encode_block,
    limit_to_room,
    own_root,
    read_blocks,
    remove_recording,
)


def _contents(folder: Path) -> list[bytes]:
    return [block.content for block in read_blocks(folder).blocks if block.kind == BlockKind.SPANS]


def test_what_was_appended_is_read_in_order_while_the_writer_lives(tmp_path: Path) -> None:
    """Nobody has to be asked for it."""
    writer = RingWriter(tmp_path / "one", 2**20)
    for number in range(100):
        assert writer.append(BlockKind.SPANS, b"%d" % number)
    assert _contents(tmp_path / "one") == [b"%d" % number for number in range(100)]


def test_memory_stays_within_its_bound_and_keeps_the_newest(tmp_path: Path) -> None:
    """The oldest file goes when another begins; each begins with the identity."""
    writer = RingWriter(tmp_path / "one", 2**20)
    writer.identify(b"who")
    for number in range(2_000):
        writer.append(BlockKind.SPANS, b"%06d" % number + bytes(2_000))
        assert sum(path.stat().st_size for path in (tmp_path / "one").iterdir()) <= 2**20
    found = _contents(tmp_path / "one")
    assert found[-1][:6] == b"001999"
    assert len(found) * 2_030 > 2**20 * 6 / 8
    for path in (tmp_path / "one").iterdir():
        assert decode_blocks(path.read_bytes()).blocks[0].content == b"who"


def test_a_writer_killed_at_any_byte_loses_its_last_block_alone() -> None:
    """Every length of a file that was cut off gives its whole blocks."""
    blocks = [encode_block(BlockKind.SPANS, number, bytes([number]) * 20) for number in range(3)]
    whole = b"".join(blocks)
    for length in range(len(whole) + 1):
        found = decode_blocks(whole[:length])
        assert [block.number for block in found.blocks] == list(range(length // len(blocks[0])))
        assert found.damaged_bytes == length % len(blocks[0])


def test_no_byte_that_is_damaged_gives_a_block_that_was_not_written() -> None:
    """Each byte is changed, in each of some ways; the block goes, and its neighbours stay."""
    blocks = [encode_block(kind, number, os.urandom(30)) for number, kind in enumerate((1, 2, 3))]
    whole = b"".join(blocks)
    right = {(block.kind, block.number, block.content) for block in decode_blocks(whole).blocks}
    for at in range(len(whole)):
        for change in (0x01, 0x80, 0xFF):
            damaged = bytearray(whole)
            damaged[at] ^= change
            found = decode_blocks(bytes(damaged))
            assert {(block.kind, block.number, block.content) for block in found.blocks} < right
            assert len(found.blocks) == 2
            assert found.damaged_bytes == len(blocks[0])


def test_noise_is_no_recording() -> None:
    """Bytes of anybody's making end nothing."""
    generator = random.Random(3)
    for _ in range(200):
        noise = generator.randbytes(generator.randrange(400)) + b"hrF1" + generator.randbytes(40)
        found = decode_blocks(noise)
        assert not found.blocks
        assert found.damaged_bytes == len(noise)


def test_where_memory_is_short_blocks_are_lost_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once; what is written when there is memory again is whole, and so is what was there before."""
    writer = RingWriter(tmp_path / "one", 2**20)
    writer.append(BlockKind.SPANS, b"before")
    real = os.write

    def short(file: int, content: Any) -> int:
        return real(file, content[:10])

    def full(file: int, content: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    for stand_in in (short, full):
        monkeypatch.setattr(ring.os, "write", stand_in)
        assert not writer.append(BlockKind.SPANS, b"lost")
    monkeypatch.setattr(ring.os, "write", real)
    assert writer.append(BlockKind.SPANS, b"after")
    assert _contents(tmp_path / "one") == [b"before", b"after"]
    assert read_blocks(tmp_path / "one").damaged_bytes == 0
    assert writer.lost_blocks == 2
    assert len([record for record in caplog.records if "flight recorder lost" in record.message]) == 1


def test_where_memory_is_short_the_oldest_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But some of what is there stays, however long it lasts."""
    writer = RingWriter(tmp_path / "one", 2**20)
    for number in range(600):
        writer.append(BlockKind.SPANS, b"%06d" % number + bytes(2_000))
    before = len(list((tmp_path / "one").iterdir()))

    def full(file: int, content: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ring.os, "write", full)
    for _ in range(20):
        writer.append(BlockKind.SPANS, b"lost")
    assert before > 3
    assert len(list((tmp_path / "one").iterdir())) == 3


def test_a_recording_is_removed_without_anything_else(tmp_path: Path) -> None:
    """A file of somebody else stays, with its folder."""
    writer = RingWriter(tmp_path / "one", 2**20)
    writer.append(BlockKind.SPANS, b"x")
    (tmp_path / "one" / "note").write_text("mine")
    writer.close(remove=True)
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["note"]
    (tmp_path / "one" / "note").unlink()
    remove_recording(tmp_path / "one")
    assert not (tmp_path / "one").exists()


def test_a_recording_takes_at_most_a_quarter_of_what_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers have little, and others need it more; with hardly any there is no recording."""
    free = os.statvfs(tmp_path)
    assert limit_to_room(tmp_path, 2**20) == 2**20

    class Small:
        f_bavail, f_frsize = 64 * 2**20 // free.f_frsize, free.f_frsize

    monkeypatch.setattr(ring.os, "statvfs", lambda path: Small)
    assert limit_to_room(tmp_path, 32 * 2**20) == 16 * 2**20
    Small.f_bavail = 2**20 // free.f_frsize
    with pytest.raises(OSError, match="free"):
        limit_to_room(tmp_path, 32 * 2**20)


def test_a_place_that_others_can_write_is_refused(tmp_path: Path) -> None:
    """Somebody could put recordings there."""
    root = own_root(tmp_path)
    assert own_root(tmp_path) == root
    root.chmod(0o777)
    with pytest.raises(PermissionError, match="remove it"):
        own_root(tmp_path)
