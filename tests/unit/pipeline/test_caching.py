"""What a Plan's cache changes in a run: the work, and nothing else."""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

import headrace as hr
from headrace.base.errors import ItemRejected, SettingsError
from headrace.base.plan import Plan
from headrace.base.records import Span
from headrace.pipeline import caching

CALLS: Counter[bytes] = Counter()
LOCK = threading.Lock()
#: By which functions tell that they were called: what they hold would be part of their keys.
calls = logging.getLogger("calls of test_caching")


class CountCalls(logging.Handler):
    """Counts what is logged."""

    def emit(self, record: logging.LogRecord) -> None:
        """Count it."""
        with LOCK:
            CALLS[cast("bytes", record.msg)] += 1


calls.addHandler(CountCalls())
calls.setLevel(logging.INFO)
calls.propagate = False


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Forget what other tests kept."""
    CALLS.clear()
    MARKS.clear()
    caching._stores.clear()
    yield
    caching._stores.clear()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a folder of 12 old files."""
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(12):
        write(folder / f"{number:02d}.jpg", f"picture {number}".encode())
    return folder


def write(path: Path, data: bytes, when: int = 10**18) -> None:
    """Write a file that was changed long ago."""
    path.write_bytes(data)
    os.utime(path, ns=(when, when))


def slow(data: bytes) -> bytes:
    """Double, and take long enough for the others to come."""
    threading.Event().wait(0.3)
    return double(data)


def double(data: bytes) -> bytes:
    """Return the data twice, and count that."""
    calls.info(data)
    if data == b"bad":
        raise ItemRejected("test.bad: it is bad")
    return data * 2


def run(source: Any, cache: str, *, stage: str = "double", function: Any = double, **stages: Any) -> Any:
    """Run fetch, double and a stage behind it; return the result and {id: what came}."""
    kept = hr.collect()
    table = {name: dict(values) for name, values in stages.items()}
    table.setdefault(stage, {})["cache"] = cache
    pipeline = hr.Pipeline(
        source,
        stages=[hr.fetch("fetch"), hr.stage("double", function, deterministic=True), hr.stage("behind", bytes)],
        delivery=kept,
    )
    MARKS.append(Marks())
    result = hr.run(pipeline, Plan.from_table({"stages": table}), observers=[MARKS[-1]])
    return result, dict(kept.results)


#: Of the runs of a test, in order.
MARKS: list[Marks] = []


class Marks(hr.Observer):
    """Counts what spans say of caches."""

    def __init__(self) -> None:
        self.found: dict[str, Counter[str]] = {}

    def stage_finished(self, spans: Sequence[Span]) -> None:
        """Count."""
        for span in spans:
            if span.cached is not None:
                self.found.setdefault(span.stage, Counter())[span.cached] += 1


def setting(kind: str, tmp_path: Path, size: str = "10MB") -> str:
    """Return a Plan's text."""
    return f"memory:{size}" if kind == "memory" else f"disk:{tmp_path / 'cache'}:{size}"


@pytest.mark.parametrize("kind", ["memory", "disk"])
@pytest.mark.parametrize("executor", ["thread", "events"])
def test_the_second_run_does_no_work_again(kind: str, executor: str, files: Path, tmp_path: Path) -> None:
    """Neither the stage nor those before it: a file that became unreadable is not looked into."""
    cache = setting(kind, tmp_path)
    first, results = run(hr.folder(files), cache, fetch={"executor": executor})
    assert results == {f"{number:02d}.jpg": f"picture {number}".encode() * 2 for number in range(12)}
    notes = first.counters.notes
    assert (notes["double.cache_misses"], notes["double.cache_kept"]) == (12, 12)
    second, again = run(hr.folder(files), cache, fetch={"executor": executor})
    assert again == results
    assert [one.found for one in MARKS] == [{"double": {"miss": 12}}, {"fetch": {"hit": 12}, "double": {"hit": 12}}]
    assert second.counters.notes["double.cache_hits"] == 12
    assert set(CALLS.values()) == {1}


def test_other_content_and_other_work_are_not_found(files: Path, tmp_path: Path) -> None:
    """A file that was replaced is read again, and a function that was changed is called again."""
    cache = setting("disk", tmp_path)
    run(hr.folder(files), cache)
    write(files / "03.jpg", b"another 3", 10**18 + 1)
    _, results = run(hr.folder(files), cache)
    assert results["03.jpg"] == b"another 3" * 2
    assert CALLS[b"another 3"] == 1
    assert sum(CALLS.values()) == 13
    _, results = run(hr.folder(files), cache, function=lambda data: data + b"!")
    assert results["03.jpg"] == b"another 3!"


def test_a_file_that_changes_while_it_is_read_is_not_kept(files: Path, tmp_path: Path) -> None:
    """What it was before and after differ."""

    def change(data: bytes) -> bytes:
        write(files / "00.jpg", b"changed", 10**18 + 5)
        return double(data)

    result, _ = run(hr.folder(files / "00.jpg"), setting("memory", tmp_path), function=change)
    assert result.counters.notes["double.cache_misses"] == 1
    assert "double.cache_kept" not in result.counters.notes


def test_what_is_asked_for_at_once_is_made_once(files: Path, tmp_path: Path) -> None:
    """The others wait for the first."""
    addresses = tmp_path / "list.txt"
    addresses.write_text("\n".join([str(files / "05.jpg")] * 20))
    result, results = run(hr.urls(addresses), setting("memory", tmp_path), function=slow, fetch={"workers": 8})
    assert set(results.values()) == {b"picture 5" * 2}
    assert len(results) == 20
    assert CALLS == {b"picture 5": 1}
    assert result.counters.notes["double.cache_hits"] == 19


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_rejection_is_not_kept_and_holds_nobody_up(kind: str, files: Path, tmp_path: Path) -> None:
    """It is found again each time, and its claim ends."""
    write(files / "00.jpg", b"bad")
    for times in (1, 2):
        result, results = run(hr.folder(files), setting(kind, tmp_path))
        assert (result.counters.rejected, len(results)) == (1, 11)
        assert CALLS[b"bad"] == times


@pytest.mark.parametrize("executor", ["inline", "thread"])
def test_another_try_after_a_hit_gives_the_result(executor: str, files: Path) -> None:
    """Not what came into the station: what was found is given up with the try that found it."""
    failed: list[str] = []
    wanted: list[int] = []

    def behind(data: bytes) -> bytes:
        if len(failed) < wanted[-1]:
            failed.append(hr.current_jobs()[0].id)
            raise ConnectionError("busy")
        return data

    settings = ['double.cache="memory:10MB"', f'double.executor="{executor}"', 'behind.executor="inline"']
    settings += ["fetch.attempts=3", "double.attempts=3"]
    for times in (0, 2):
        wanted.append(times)
        kept = hr.collect()
        stages = [hr.fetch("fetch"), hr.stage("double", double, deterministic=True), hr.stage("behind", behind)]
        result = hr.run(
            hr.Pipeline(hr.folder(files / "00.jpg"), stages=stages, delivery=kept), Plan().with_settings(settings)
        )
        assert dict(kept.results) == {"00.jpg": b"picture 0" * 2}
    assert failed == ["00.jpg"] * 2
    assert CALLS == {b"picture 0": 1}
    assert result.counters.notes["double.cache_hits"] == (3 if executor == "inline" else 1)


def test_a_cache_that_is_full_leaves_results_as_they_are(files: Path, tmp_path: Path) -> None:
    """What finds no room is made each time, and counted."""
    for number in range(12):
        write(files / f"{number:02d}.jpg", bytes([number]) * 100_000)
    for _ in range(2):
        result, results = run(hr.folder(files), setting("memory", tmp_path, "1.1MB"))
        assert results == {f"{number:02d}.jpg": bytes([number]) * 200_000 for number in range(12)}
    notes = result.counters.notes
    assert (notes["double.cache_hits"], notes["double.cache_full"]) == (5, 7)


def test_two_caches_on_one_way_work_together(files: Path, tmp_path: Path) -> None:
    """What the last one lacks may be in the first."""
    run(hr.folder(files), "memory:10MB", stage="fetch")
    result, _ = run(hr.folder(files), "memory:10MB", fetch={"cache": "memory:10MB"})
    notes = result.counters.notes
    assert (notes["fetch.cache_hits"], notes["double.cache_misses"], notes["double.cache_kept"]) == (12, 12, 12)
    result, _ = run(hr.folder(files), "memory:10MB", fetch={"cache": "memory:10MB"})
    assert result.counters.notes["double.cache_hits"] == 12


def test_an_image_keeps_its_placement(files: Path, tmp_path: Path) -> None:
    """Boxes are to be drawn into the file's picture, whether it was decoded or found."""
    import cv2
    import numpy as np

    class Where(hr.Module):
        input = hr.ImageInput(short_side=32, crop=32)

        def process(self, batch: Any) -> list[Any]:
            return [(one.image, one.scaled, one.size) for one in hr.current_placements()]

    found = []
    encoded = cv2.imencode(".png", np.zeros((60, 80, 3), np.uint8))[1].tobytes()
    write(files / "00.jpg", encoded)
    for _ in range(2):
        kept = hr.collect()
        pipeline = hr.Pipeline(hr.folder(files / "00.jpg"), module=Where(), delivery=kept)
        result = hr.run(pipeline, Plan().with_settings([f'resize.cache="disk:{tmp_path / "cache"}:10MB"']))
        found.append(dict(kept.results))
    assert result.counters.notes["resize.cache_hits"] == 1
    assert found[0] == found[1]
    assert found[0]["00.jpg"][0] == (60, 80)


@pytest.mark.parametrize(
    ("stages", "says"),
    [
        ({"behind": {"cache": "memory:1GB"}}, "behind does not say that equal items give equal results"),
        ({"deliver": {"cache": "memory:1GB"}}, "deterministic"),
        ({"double": {"cache": "memory:1GB", "executor": "process"}}, "processes of its own"),
        ({"double": {"cache": "1GB"}}, "memory:SIZE"),
    ],
)
def test_what_cannot_be_kept_is_refused(stages: Any, says: str, files: Path) -> None:
    """Before the first job, with the reason."""
    stages_of = [hr.fetch("fetch"), hr.stage("double", double, deterministic=True), hr.stage("behind", bytes)]
    with pytest.raises(SettingsError, match=says):
        hr.run(hr.Pipeline(hr.folder(files), stages=stages_of), Plan.from_table({"stages": stages}))
