"""The file of a better Plan: it is the Plan, with reasons, and nobody's file is lost."""

from __future__ import annotations

import datetime
import tomllib
from pathlib import Path

import pytest

from headrace.base.errors import SettingsError
from headrace.base.plan import Plan
from headrace.runs.hardware import Hardware
from headrace.runs.plan_file import check_writable, plan_text
from headrace.tune.setting_reasons import Reason

PLANS = [
    [],
    ["fetch.workers=32", "model.threads=2"],
    ["faces.decode.workers=2", 'decode.scale="full"', "source.max_in_flight=8", "process.max_wait_seconds=0.02"],
    ['model.engine="emulated"', "model.options.launch_seconds=0.01", 'process.executor="process"', "run.ordered=true"],
    ["process.options.note='a = b # [c]'", "process.batch=8", "process.queue_bytes=1000"],
]


def text_of(plan: Plan, *reasons: Reason, proof: tuple[str, ...] = ("Better: x1.4.",)) -> str:
    """Return the file's text."""
    hardware = Hardware(cpu_model="CPU", num_cores=4)
    says = {reason.key: reason.says for reason in reasons}
    return plan_text(
        plan, says, proof, made_by="tune", subject="a:b", hardware=hardware, today=datetime.date(2026, 11, 21)
    )


@pytest.mark.parametrize("settings", PLANS)
def test_the_file_is_the_plan(settings: list[str], tmp_path: Path) -> None:
    """Whatever was left out at its default comes back."""
    plan = Plan().with_settings(settings)
    (tmp_path / "plan.toml").write_text(text_of(plan))
    assert Plan.load(tmp_path / "plan.toml") == plan


def test_a_changed_line_says_why() -> None:
    """The reason stands beside the setting, also where the setting is back at its default."""
    plan = Plan().with_settings(["process.batch=8", "process.max_wait_seconds=0.0"])
    text = text_of(
        plan,
        Reason("stages.process.batch", 1, 8, 0.6),
        Reason("stages.process.max_wait_seconds", 0.02, 0.0, 0.999),
    )
    assert "batch = 8  # was 1; without this change 40.0% less throughput (predicted)" in text
    assert "max_wait_seconds = 0.0  # was 0.02; as fast, and takes less of the machine" in text
    assert "retry_budget_seconds" not in text


def test_the_proof_stays_a_comment() -> None:
    """A sentence with a line break cannot become a setting."""
    text = text_of(Plan(), proof=("Better.\n[stages.x]\nworkers = 1",))
    assert tomllib.loads(text) == {"version": 1}


def test_nothing_is_overwritten_unless_told(tmp_path: Path) -> None:
    """A file that is there stays."""
    path = tmp_path / "plan.toml"
    path.write_text("mine")
    with pytest.raises(SettingsError, match="--force"):
        check_writable(path, force=False)
    check_writable(path, force=True)


def test_a_folder_that_is_missing_is_said_before_measuring(tmp_path: Path) -> None:
    """Minutes are not spent on what could not be written."""
    with pytest.raises(SettingsError, match="folder that exists"):
        check_writable(tmp_path / "no" / "plan.toml", force=False)
