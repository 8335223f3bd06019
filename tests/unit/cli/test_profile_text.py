"""What a profile says in a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from headrace.cli.profile_text import as_text
from headrace.diagnose import profile_document
from headrace.runs.formats.profile import (
    BlockedSplit,
    Check,
    Distribution,
    ProfileDocument,
    RuntimeCost,
    StageAccount,
)
from headrace.runs.reader import read_run
from headrace.runs.run_folder import RunFolder


def document(folder: Path, **changes: Any) -> ProfileDocument:
    """Return the analysis of a run that did nothing, changed."""
    RunFolder.create(folder / "run", pipeline="app:pipeline", force=True).finish("finished")
    return msgspec.structs.replace(profile_document(read_run(folder / "run")), trusted=True, distrust=(), **changes)


def account(**changes: Any) -> StageAccount:
    """Return a stage of which nothing is known but what is given."""
    nothing = Distribution(num_samples=0, mean=None, minimum=None, maximum=None, percentiles=())
    values: dict[str, Any] = dict.fromkeys(StageAccount.__struct_fields__[:-2])
    texts = dict.fromkeys(("name", "kind", "executor", "station"), "work")
    counts = dict.fromkeys(("items", "failed", "num_spans"), 0)
    return StageAccount(**values | texts | counts | {"service": nothing, "queue_wait": nothing} | changes)


def check(name: str, status: Any) -> Check:
    """Return a check."""
    return Check(name=name, status=status, value=None, limit=None, says="why")


def test_checks_that_were_not_made_were_not_passed(tmp_path: Path) -> None:
    """A run of a moment is not said to have passed what could not be checked."""
    checks = (check("flow_balance", "ok"), check("littles_law", "not_measured"))
    text = as_text(document(tmp_path, checks=checks))
    assert "TRUSTED: 1 check passed, 0 failed, 0 warnings, 1 not measured\n" in text
    assert "checks:\n  not measured: littles_law" in text


def test_large_rates_are_written_out(tmp_path: Path) -> None:
    """Nobody reads 4.507e+04/s."""
    assert "throughput 45,071/s" in as_text(document(tmp_path, throughput=45_070.6))
    assert "throughput 558.3/s" in as_text(document(tmp_path, throughput=558.31))


def test_frames_are_called_so(tmp_path: Path) -> None:
    """Of a run over video, and items of any other."""
    shown = {"counters": {"received": 3}, "stages": (account(),)}
    text = as_text(document(tmp_path, unit="frame", **shown))
    assert "frames: 3 received" in text
    assert "Where a frame's time goes (means; a batch's service counts for each frame):" in text
    assert "jobs: 3 received" in as_text(document(tmp_path, **shown))


def test_what_was_found_and_has_no_name_is_not_unknown(tmp_path: Path) -> None:
    """Time in other system calls was sampled; only what was not is unknown."""
    other = account(blocked=0.01, blocked_split=BlockedSplit(other=0.01, num_samples=50))
    assert "other 100%" in as_text(document(tmp_path, stages=(other,)))
    unknown = account(blocked=0.01, blocked_split=BlockedSplit(unknown=0.01))
    assert "unknown" in as_text(document(tmp_path, stages=(unknown,)))


def test_the_runtimes_cost_has_a_line_of_its_own(tmp_path: Path) -> None:
    """What headrace itself took for an item; no line where it is not known."""
    runtime = RuntimeCost(
        seconds=1.0,
        seconds_per_item=25e-6,
        share=0.5,
        core_share=0.25,
        parts={"making spans": 25e-6},
        voluntary_switches_per_item=2.0,
        involuntary_switches_per_item=None,
        says="25.0 us of CPU time per item",
    )
    assert "\nruntime: 25.0 us of CPU time per item\n" in as_text(document(tmp_path, runtime=runtime))
    assert "runtime:" not in as_text(document(tmp_path))
