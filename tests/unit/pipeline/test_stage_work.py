"""What each stage is said to do, in `run.json`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import headrace as hr
from headrace.runs.reader import read_run

Run = Callable[..., Any]


class Everything(hr.Module):
    """A module that asks for every stage there is."""

    input = hr.ImageInput(short_side=8)

    def preprocess(self, image: Any) -> Any:
        """Pass it on."""
        return image

    def process(self, batch: Any) -> list[int]:
        """Return the number of pixels."""
        return [int(image.size) for image in batch]

    def postprocess(self, result: int) -> int:
        """Pass it on."""
        return result


def works(folder: Path) -> dict[str, str]:
    """Return {stage: what it does}."""
    return {stage.name: stage.work for stage in read_run(folder).info.stages}


def test_headraces_own_stages_say_what_they_do(run: Run, tmp_path: Path) -> None:
    """The stages of a module are known by their work, whatever prefix their names carry."""
    run(None, [], modules={"t": Everything()}, source={"tasks": []}, output=tmp_path / "run")
    assert works(tmp_path / "run") == {
        "fetch": "download",
        "t.decode": "decode",
        "t.resize": "resize",
        "t.preprocess": "preprocess",
        "t.process": "model",
        "t.postprocess": "postprocess",
        "deliver": "deliver",
    }


def test_of_a_users_own_stage_nothing_is_said(run: Run, tmp_path: Path) -> None:
    """A function and an emulated stage do what their author knows, even if they are named `decode`."""
    run([hr.stage("decode", str), hr.emulated("fetch", seconds=0.0)], ["x"], output=tmp_path / "run")
    assert works(tmp_path / "run") == {"decode": "", "fetch": "", "deliver": "deliver"}
