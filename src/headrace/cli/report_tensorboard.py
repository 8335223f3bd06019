"""The scalars of a training for TensorBoard: each step, its phases, and samples per second; one folder for each rank."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base.errors import SettingsError
from headrace.report.tensorboard_file import Row, write_scalars

if TYPE_CHECKING:
    from headrace.diagnose.training.steps import RankSteps
    from headrace.diagnose.training.verdicts import TrainingAnalysis


def check_folder(folder: Path, *, force: bool) -> None:
    """Refuse before the work a folder that has something in it."""
    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"{folder} is a file; expected a folder for TensorBoard")
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise SettingsError(f"{folder} is not empty; choose another folder, or add to it with --force")


def write_tensorboard(analysis: TrainingAnalysis, folder: Path) -> list[Path]:
    """Write the steps of each rank into a folder of its own; return the files."""
    started = analysis.run.info.started_unix_seconds
    return [
        write_scalars(folder / f"rank{one.rank}", _rows(one, started), started=started + one.steps.started[0])
        for one in analysis.ranks
    ]


def _rows(rank: RankSteps, started: float) -> Iterator[Row]:
    steps = rank.steps
    phases = [(f"phase_seconds/{phase}", times.wall.tolist()) for phase, times in steps.phases.items()]
    columns = zip(
        steps.number.tolist(), steps.started.tolist(), steps.wall.tolist(), steps.samples.tolist(), strict=True
    )
    for place, (number, began, wall, samples) in enumerate(columns):
        values = {"step/seconds": wall}
        if samples and wall:
            values["step/samples_per_second"] = samples / wall
        values |= {name: times[place] for name, times in phases}
        yield started + began + wall, number, values
