"""Which format pays: by planted figures, and on real files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.cli.pack_try import Figure, choose_best, try_formats
from headrace.sources.folder import Folder


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
    assert {(one.format, one.order, one.cache) for one in document.figures} >= {
        (name, order, "warm") for name in ("folder", "tar", "parquet") for order in ("random", "sequential")
    }
    assert all(one.us > 0 for one in document.figures)
    assert [file.name for file in tmp_path.iterdir()] == ["files"]
    assert main(["-q", "pack", str(files), "--try", "10", "--json", "-o", str(tmp_path / "data")]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "headrace.pack.try/1"
    assert main(["-q", "pack", str(files), "--try", "10", "-o", str(tmp_path / "data")]) == 0
    assert "random, warm" in capsys.readouterr().out
    assert main(["-q", "pack", str(files), "--try", "10", "--index"]) == 2


def test_samples_of_several_files_are_read_file_by_file(tmp_path: Path) -> None:
    """As the folder is."""
    files = tmp_path / "files"
    files.mkdir()
    for number in range(5):
        (files / f"{number}.jpg").write_bytes(b"picture")
        (files / f"{number}.cls").write_text("3")
    document = try_formats(Folder(files, patterns=("*",)), 10, tmp_path)
    assert document.items == 10
