"""`headrace train scale`: what it prints, and what it refuses."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from headrace.base.errors import SettingsError
from headrace.cli import main
from headrace.cli.train_scale import add_word_arguments, run_word
from headrace.cli.train_scale_text import as_text
from headrace.runs.formats.profile import Estimate
from headrace.runs.formats.scaling import MeasuredLink, Part, PredictedRanks, Proposal, Rung, ScalingDocument


def _rung(ranks: int, efficiency: float, **losses: float) -> Rung:
    return Rung(
        ranks=ranks,
        rounds=3,
        num_steps=81,
        samples_per_second=1000.0 * ranks * efficiency,
        step_seconds=0.01 / efficiency,
        samples_per_step=10.0 * ranks,
        efficiency=Estimate(efficiency * 0.9, efficiency, efficiency * 1.1),
        parts=dict.fromkeys(Part, 0.001),
        losses={part: losses.get(part.name.lower(), 0.0) for part in Part},
        predicted=Estimate(900.0, 1000.0, 1100.0) if ranks > 1 else None,
    )


DOCUMENT = ScalingDocument(
    headrace_version="0",
    created_unix_seconds=0.0,
    script="train.py",
    folder="runs/scale",
    num_cores=2.0,
    threads=1,
    steps=30,
    rungs=(_rung(1, 1.0), _rung(2, 0.8, transfer=0.2), _rung(4, 0.2, no_core=0.5, transfer=0.3)),
    link=MeasuredLink(
        ranks=2,
        latency_seconds=1e-4,
        bytes_per_second=1e9,
        message_cpu_seconds=5e-5,
        byte_cpu_seconds=5e-10,
        error=0.04,
        measured=(),
    ),
    gradient_bytes=2_000_000,
    predicted=(
        PredictedRanks(
            ranks=8,
            here=Estimate(800.0, 900.0, 1000.0),
            apart=Estimate(5000.0, 6000.0, 7000.0),
            slower_below=4e6,
            good_above=None,
        ),
    ),
    proposals=(Proposal(says="exchange once for 2 batches", setting="accumulate=2", ratio=Estimate(1.1, 1.3, 1.5)),),
)


def test_losses_shared_cores_and_predictions_are_said() -> None:
    """Each with its figures, in 80 columns."""
    text = as_text(DOCUMENT)
    assert max(map(len, text.splitlines())) <= 80
    assert "4 ranks are SLOWER than one: efficiency 20%" in text
    assert "4 ranks share 2 cores" in text
    assert _row(text, "no core") == ["+0.0%", "+50.0%"]
    assert _row(text, "together") == ["+20.0%", "+80.0%"]
    assert "4.00 MB/s" in text
    assert "x1.3 (1.1 to 1.5): exchange once for 2 batches" in text


def _row(text: str, name: str) -> list[str]:
    return next(line for line in text.splitlines() if line.startswith(name)).removeprefix(name).split()


def test_one_rank_alone_is_no_comparison() -> None:
    """Nothing is lost, and nothing is proposed."""
    text = as_text(ScalingDocument(**{**_fields(), "rungs": DOCUMENT.rungs[:1], "predicted": (), "proposals": ()}))
    assert "efficiency lost" not in text
    assert "would help" not in text


def _fields() -> dict[str, object]:
    return {name: getattr(DOCUMENT, name) for name in ScalingDocument.__struct_fields__}


def _parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_word_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "no script is named"),
        (("missing.py",), "does not exist"),
        (("torchrun", "train.py"), "name the script alone"),
        (("-m",), "-m names no module"),
    ],
)
def test_what_cannot_be_trained_is_refused(words: tuple[str, ...], says: str) -> None:
    """Before anything is started."""
    with pytest.raises(SettingsError, match=says):
        run_word(_parse(*words))


def test_one_rank_is_always_measured() -> None:
    """The others are measured against it."""
    assert _parse("--ranks", "4,2", "train.py").ranks == (1, 2, 4)


def test_too_few_steps_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Of eight steps five are left."""
    with pytest.raises(SystemExit):
        _parse("--steps", "4", "train.py")
    assert "expected 8 or more" in capsys.readouterr().err


def test_the_command_says_why_nothing_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A script that raises: its last lines are repeated, the exit status is 1."""
    script = tmp_path / "train.py"
    script.write_text("raise ValueError('no data')\n")
    assert main(["train", "scale", "--ranks", "1", "-o", str(tmp_path / "scale"), str(script)]) == 1
    err = capsys.readouterr().err
    assert "rank 0 of 1 ended with exit status 1" in err
    assert "ValueError: no data" in err


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Below a file there is no folder: refused in a line, before anything is started."""
    script = tmp_path / "train.py"
    script.touch()
    assert main(["train", "scale", "-o", str(script / "scale"), str(script)]) == 2
    assert "cannot be written: Not a directory; name another folder" in capsys.readouterr().err
