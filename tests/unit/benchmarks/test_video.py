"""The parts of the benchmark of video that need no camera."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("av")
pytest.importorskip("onnx")

from benchmarks.video import clips, faults
from benchmarks.video.clips import clip, label_of
from benchmarks.video.held import _between, is_held
from benchmarks.video.memory import is_first
from benchmarks.video.senders import damage, rtp_pieces


def test_damage_is_reproducible_and_damages() -> None:
    """The seed alone decides; most of a thousand are other bytes."""
    data = bytes(range(256)) * 20
    assert damage(data, random.Random(3)) == damage(data, random.Random(3))
    assert sum(damage(data, random.Random(seed)) != data for seed in range(1000)) > 950


def test_what_is_held() -> None:
    """All frames came, next to none was dropped, and answers are not too old."""
    good = {"dropped_share": 0.01, "came_share": 0.99, "age_p99": 0.5}
    assert is_held(good)
    for worse in ({"dropped_share": 0.011}, {"came_share": 0.97}, {"age_p99": 0.51}):
        assert not is_held({**good, **worse})


def test_which_count_is_tried_next() -> None:
    """Halves what is open between held and not held, also below the fewest that were tried."""
    for most in range(25):
        tried = {17: most >= 17, 22: most >= 22}
        while (count := _between(tried)) is not None:
            tried[count] = most >= count
        assert most >= 22 or max((count for count, is_so in tried.items() if is_so), default=0) == most


def test_labels() -> None:
    """A photograph is shown for two seconds, and then the next one."""
    assert [label_of(seconds) for seconds in (0.0, 1.9, 2.0, 8.0)] == ["chelsea", "chelsea", "coffee", "chelsea"]
    assert label_of(0.0, first=1) == "coffee"


def test_rtp_carries_every_unit_whole() -> None:
    """Small units as they are; a large one in parts that say where it begins and ends, as RFC 6184 has it."""
    units = [bytes([0x67]) + b"s" * 10, bytes([0x65]) + bytes(range(1, 256)) * 12]
    small, *parts = rtp_pieces(b"".join(b"\0\0\0\1" + unit for unit in units))
    assert small == units[0]
    assert [part[0] & 0x1F for part in parts] == [28] * 3
    assert [part[1] >> 6 for part in parts] == [0b10, 0b00, 0b01]
    assert bytes([parts[0][0] & 0xE0 | parts[0][1] & 0x1F]) + b"".join(part[2:] for part in parts) == units[1]


def test_what_came_first() -> None:
    """A run went down while its neighbour grew, and nothing ran short before."""
    assert is_first({"degraded_after": 1.0, "failcnt_after": 1.1})
    assert is_first({"degraded_after": 1.0})
    assert not is_first({"degraded_after": 1.2, "failcnt_after": 1.1})
    assert not is_first({"degraded_after": 1.2, "total_pgmajfault_after": 1.1})
    assert not is_first({"degraded_after": -0.5})
    assert not is_first({"degraded_after": None})


def test_parts_that_begin_together_share_a_clip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written once, and the parts that wait for it get it whole."""
    written: list[Path] = []
    write = clips._write
    monkeypatch.setattr(clips, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(clips, "_write", lambda path, *how: (written.append(path), write(path, *how)))
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: clip(1, (64, 36)), range(4)))
    assert len(written) == len(set(paths)) == 1
    assert paths[0].stat().st_size > 1000


@pytest.mark.full
def test_a_part_that_ends_early_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    """How its process ended, and the last that it said."""
    monkeypatch.setattr(faults, "PARTS", {"nobody": faults.PARTS["clips"]})
    with pytest.raises(RuntimeError, match=r"faults, nobody: exit status 2; (.|\n)*nobody: expected live, rtsp"):
        faults.run(quick=True)
