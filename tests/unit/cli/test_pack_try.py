"""Which format pays: by planted figures, and on real files."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.cli.pack_try import Figure, choose_best, try_formats
from headrace.cli.pack_ways import write_ways
from headrace.sources.folder import Folder
from headrace.store.formats import FORMATS


@pytest.mark.parametrize(
    ("folder", "tar", "parquet", "decode_us", "expected"),
    [
        (20.0, 6.0, 500.0, 560.0, "none"),  # warm and local: 14 us of 580
        (20.0, 6.0, 500.0, None, "tar"),  # nothing is decoded
        (300.0, 60.0, 1_600.0, 560.0, "tar"),  # cold
        (300.0, 80.0, 50.0, 560.0, "parquet"),  # cold, in order
        (300.0, 299.0, 400.0, 560.0, "none"),
        (20_000.0, 900.0, 30_000.0, 560.0, "tar"),  # a network
        (10.0, 12.0, 11.0, None, "none"),
        (100.0, 94.9, 200.0, None, "tar"),
        (100.0, 95.1, 200.0, None, "none"),
        (60.0, 40.0, 30.0, 500.0, "parquet"),
    ],
)
def test_the_best_is_chosen_only_where_it_pays(
    folder: float, tar: float, parquet: float, decode_us: float | None, expected: str
) -> None:
    """The rule: 5 % of reading from the folder and decoding."""
    costs = {"folder": folder, "tar": tar, "parquet": parquet}
    figures = [Figure(format=name, order="random", cache="cold", us=us) for name, us in costs.items()]
    assert choose_best(figures, decode_us) == {"random, cold": expected}


def test_every_format_is_measured_on_real_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In both orders; cold only where the kernel let go of the pages; nothing stays behind."""
    files = tmp_path / "files"
    files.mkdir()
    for number in range(30):
        (files / f"{number:02d}.bin").write_bytes(os.urandom(9_000))
    document = try_formats(Folder(files, patterns=("*",)), 20, tmp_path)
    assert document.items == 20
    assert document.mean_bytes == 9_000
    assert document.decode_us is None
    assert {(one.format, one.order) for one in document.figures if one.cache == "warm"} == {
        *((name, "sequential") for name in ("folder", *FORMATS)),
        *((name, "random") for name in ("folder", "tar", "parquet")),  # the others are read in order only
    }
    assert all(one.us > 0 for one in document.figures)
    assert [file.name for file in tmp_path.iterdir()] == ["files"]
    assert main(["-q", "pack", str(files), "--try", "10", "--json", "-o", str(tmp_path / "data")]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "headrace.pack.try/1"
    assert main(["-q", "pack", str(files), "--try", "10", "-o", str(tmp_path / "data")]) == 0
    assert "random, warm" in capsys.readouterr().out
    assert main(["-q", "pack", str(files), "--try", "10", "--index"]) == 2


def test_every_way_gives_every_item(tmp_path: Path) -> None:
    """Or their times could not be compared; in the order that was asked for, where that can be."""
    contents = {f"{number:03d}.bin": os.urandom(number * 50) for number in range(1, 150)}
    ways = write_ways(contents, tmp_path)
    assert list(ways) == ["folder", *FORMATS]
    numbers = random.Random(1).sample(range(len(contents)), len(contents))
    items = list(contents.values())
    for name, way in ways.items():
        expected = items if way.in_order_only else [items[number] for number in numbers]
        assert list(way.open()(numbers)) == expected, name


def test_large_files_are_tried_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is written once for each format; one is tried whatever its size."""
    files = tmp_path / "files"
    files.mkdir()
    for number in range(6):
        (files / f"{number}.bin").write_bytes(bytes(1_000))
    for limit, number in ((2_500, 2), (10, 1)):
        monkeypatch.setattr("headrace.cli.pack_try._MOST_BYTES", limit)
        assert try_formats(Folder(files, patterns=("*",)), 6, tmp_path).items == number


def test_samples_of_several_files_are_read_file_by_file(tmp_path: Path) -> None:
    """As the folder is."""
    files = tmp_path / "files"
    files.mkdir()
    for number in range(5):
        (files / f"{number}.jpg").write_bytes(b"picture")
        (files / f"{number}.cls").write_text("3")
    document = try_formats(Folder(files, patterns=("*",)), 10, tmp_path)
    assert document.items == 10
