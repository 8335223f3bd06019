"""Damaged requests: `tools/fuzz_http.py` with few cases; `make fuzz-http` sends a million."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.full  # aiohttp comes with `make test-rest`


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    """Return the tool, which is in no package."""
    pytest.importorskip("aiohttp")
    file = Path(__file__).resolve().parents[4] / "tools" / "fuzz_http.py"
    spec = importlib.util.spec_from_file_location("fuzz_http", file)
    assert spec is not None
    assert spec.loader is not None
    sys.modules["fuzz_http"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_difference_to_aiohttp_is_unknown(fuzz: ModuleType) -> None:
    """What the front takes, and how it reads it, differs from a strict parser only where the list says why."""
    known = fuzz.reviewed()
    found = {difference: (number, data) for number, data, difference in fuzz.compare(range(3000))}
    assert {difference: case for difference, case in found.items() if difference not in known} == {}


@pytest.mark.parametrize("piece_bytes", [1, 2, 7])
def test_where_the_network_cuts_changes_nothing(fuzz: ModuleType, piece_bytes: int) -> None:
    """In small pieces the same requests are taken, and the same refused.

    Only behind the end of chunks it matters: what comes together with it is not read, and the connection ends.
    """
    ours = fuzz.Ours()
    for number in range(500):
        data = fuzz.damaged(number)
        whole, cut = ours.read(data), ours.read(data, piece_bytes)
        assert cut == whole or (whole[1] == "it closes" and cut[0][: len(whole[0])] == whole[0]), number
    assert ours.shared.bodies.used_bytes == 0


def test_differences_would_be_seen(fuzz: ModuleType) -> None:
    """Each kind of difference has a name: a request more, one less, another body."""
    one, other = fuzz.Taken("GET", "/a", {}, b""), fuzz.Taken("GET", "/a", {}, b"b")
    assert fuzz.difference(([one], ""), ([], "why")) == "looser: why"
    assert fuzz.difference(([], "why"), ([one], "")) == "stricter: why"
    assert fuzz.difference(([one], ""), ([other], "")) == "other: body"
    assert fuzz.difference(([one], "a"), ([one], "b")) == ""


def test_damaged_requests_over_sockets_hurt_no_good_one(fuzz: ModuleType) -> None:
    """The good requests between them are all answered, and no byte of a body is kept."""
    counts = fuzz.send(range(300))
    assert counts["body_bytes"] == 0
    assert "5xx" not in counts or counts["5xx"] == counts.get("http.coding", 0) + counts.get("http.version", 0)
