"""The campaign over the decoders: a short one finds nothing, and whatever may go wrong is seen."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.hostile_inputs.mutations import good_files

ROOT = Path(__file__).parents[3]
FILE = ROOT / "tools" / "fuzz_decoders.py"


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    """Return the tool as a module."""
    spec = importlib.util.spec_from_file_location("fuzz_decoders", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzz_decoders"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.mark.full
def test_a_short_campaign_finds_nothing(fuzz: ModuleType, tmp_path: Path) -> None:
    """Our own files, those of a folder and damaged copies end as they should, and each branch of the decoders runs."""
    (tmp_path / "photographs").mkdir()
    (tmp_path / "photographs" / "one.jpg").write_bytes(good_files()["jpeg with exif"])
    settings = fuzz.Settings(
        folders=[tmp_path / "photographs"], seconds=120, num_cases=150, workers=2, keep=tmp_path / "kept"
    )
    campaign = fuzz.Campaign(settings)
    assert (campaign.run(), campaign.begun) == (0, 150)
    assert not (tmp_path / "kept").exists()
    for decoder in fuzz.DECODERS:
        for factor in fuzz.FACTORS:
            assert campaign.counts[f"decoded jpeg, {decoder}, factor {factor}"] > 0
        for format_ in ("png", "webp", "gif", "bmp"):
            assert campaign.counts[f"decoded {format_}, {decoder}, factor 1"] > 0
    for factor in fuzz.FACTORS:
        for side in ("short", "long"):
            assert campaign.counts[f"decoded by its {side} side, factor {factor}"] > 0
    assert campaign.counts["canary, factor 8"] > campaign.counts["canary refused, factor 8"] > 0


FAULTS = {
    "crash": "def examine(*_, **__): os.abort()",
    "hang": "def examine(*_, **__): time.sleep(600)",
    "untyped": "class DecodeChain:\n def __init__(self, *_, **__): raise KeyError(1)",
    "overflow": "def read_jpeg(data, header, factor, colorspace, buffer, **_): buffer[header.width * header.height * 4] = 0",
    "size": "def reduced_size(header, factor): return header.height + 1, header.width",
    "verdict": "def compare(*_): return [Finding('verdict', 'they differ')]",
    "pixels": "_MOST_DIFFERENCE = {'jpeg': -1.0}",
}


@pytest.mark.full
@pytest.mark.parametrize("kind", FAULTS)
def test_a_planted_fault_is_found(fuzz: ModuleType, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """A child that dies, hangs or finds something is reported with its file, which is kept, and the next case is tried."""
    program = tmp_path / "planted.py"
    # The tool with the fault put in before it begins.
    begin = "if __name__"
    planted = FILE.read_text().replace(begin, f"{FAULTS[kind]}\n\n\n{begin}")
    planted = planted.replace("Path(__file__).resolve().parents[1]", repr(str(ROOT)))  # it lies elsewhere
    program.write_text(planted)
    limit = 3 if kind == "hang" else 60
    settings = fuzz.Settings(
        seconds=240, num_cases=2, workers=1, limit_seconds=limit, keep=tmp_path / "kept", program=program
    )
    campaign = fuzz.Campaign(settings)
    assert campaign.run() >= 2
    assert campaign.begun == 2
    kept = {path.read_bytes() for path in (tmp_path / "kept").iterdir() if path.name.startswith(f"{kind}-")}
    assert good_files()["jpeg"] in kept
    said = capsys.readouterr().out
    assert f"{kind}: 'own: jpeg': " in said
    assert "see it again: " in said


def test_one_file_again(fuzz: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """The command that a finding names tries every size of that file and says what was run."""
    file = tmp_path / "a.jpg"
    file.write_bytes(good_files()["jpeg"])
    assert fuzz.again(file) == 0
    assert "decoded jpeg, pillow, factor 8" in capsys.readouterr().out


def test_equal_seeds_give_equal_cases(fuzz: ModuleType) -> None:
    """A case is the same whenever it is asked for, and another with another seed."""
    first, again, other = fuzz.Cases([], 1), fuzz.Cases([], 1), fuzz.Cases([], 2)
    indices = range(first.num_whole, first.num_whole + 20)
    assert [first[index] for index in indices] == [again[index] for index in indices]
    assert [first[index] for index in indices] != [other[index] for index in indices]
