"""A run on another machine than its Plan was proved on says so once, counts it for the metrics, and goes on."""

from __future__ import annotations

import argparse
import datetime
import logging
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import headrace as hr
from headrace.base.plan import Plan
from headrace.cli import environment_check
from headrace.monitor.published import forget_published, published
from headrace.runs.hardware import find_hardware
from headrace.runs.plan_file import plan_text

CHANGED = ("headrace_environment_changed", ())


@pytest.fixture(autouse=True)
def nothing_published() -> Iterator[None]:
    """Begin and leave with no values."""
    forget_published()
    yield
    forget_published()


def look(plan: Path | None) -> None:
    """Open what looks at a run under this Plan."""
    pipeline = hr.Pipeline(hr.items([1]), stages=[hr.stage("same", abs)], delivery=hr.collect())
    args = argparse.Namespace(plan=None if plan is None else str(plan))
    assert environment_check.open_companion(args, pipeline, Plan(), None) is None


@pytest.mark.parametrize(("cores", "count"), [(0, 0), (4096, 1)])
def test_what_differs_is_counted_and_said(
    cores: int, count: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The line names what differs and the command that says more; where nothing does there is none."""
    hardware = find_hardware()
    hardware = msgspec.structs.replace(hardware, num_cores=cores or hardware.num_cores)
    today = datetime.date(2026, 11, 23)
    text = plan_text(Plan(), {}, [], made_by="tune", subject="a:b", hardware=hardware, today=today)
    (tmp_path / "plan.toml").write_text(text)
    with caplog.at_level(logging.WARNING, "headrace"):
        look(tmp_path / "plan.toml")
    assert published()[CHANGED] == count
    assert [record.event for record in caplog.records] == ["environment_changed"] * count  # type: ignore[attr-defined]
    assert ("expected 4,096" in caplog.text and "headrace doctor --plan" in caplog.text) == bool(count)


@pytest.mark.parametrize("text", [None, "[stages.process]\nbatch = 8\n", "not TOML ["])
def test_what_is_not_known_is_not_said(text: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No Plan, one that somebody wrote by hand, and one that cannot be read: the run itself will say the latter."""
    if text is not None:
        (tmp_path / "plan.toml").write_text(text)
    with caplog.at_level(logging.WARNING, "headrace"):
        look(None if text is None else tmp_path / "plan.toml")
    assert CHANGED not in published()
    assert not caplog.records
