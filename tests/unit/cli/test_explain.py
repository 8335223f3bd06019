"""`headrace explain`: pages on verdicts in the terminal."""

from __future__ import annotations

import argparse
import json

import pytest

from headrace.base.errors import SettingsError
from headrace.cli import explain
from headrace.runs.formats.diagnosis import VerdictClass


def command(*arguments: str) -> int:
    """Run `headrace explain` with these arguments."""
    parser = argparse.ArgumentParser()
    explain.add_arguments(parser)
    return explain.run(parser.parse_args(arguments))


@pytest.mark.parametrize("name", ["BATCH_DELAY", "batch_delay", "Batch-Delay"])
def test_a_page_is_printed_whole(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """However the class is written; links that a terminal cannot follow are the names to ask for."""
    assert command(name) == 0
    out = capsys.readouterr().out
    assert out.startswith("# BATCH_DELAY\n")
    assert "## A worked example" in out
    assert "- BATCH_UNDERFILL: " in out
    assert ".md)" not in out


@pytest.mark.parametrize("name", ["WARMUP/RECOMPILE", "retry/dup", "LAUNCH/FRAMEWORK"])
def test_names_with_a_slash_are_understood(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The longer names, as they stand in the literature and in the catalogue, lead to the page too."""
    assert command(name) == 0
    assert capsys.readouterr().out.startswith(f"# {name.partition('/')[0].upper()}\n")


def test_without_a_class_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """Each class stands at the beginning of a line, with a sentence below, within 80 columns."""
    assert command() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == list(VerdictClass)
    assert all(len(line) <= 80 for line in lines)
    assert lines[1].startswith("  Nothing in particular limits the run")


@pytest.mark.parametrize(
    ("typed", "hint"), [("GILL", "did you mean GIL?"), ("runs/first", "lists the verdicts"), ("", "lists the verdicts")]
)
def test_an_unknown_class_is_refused(typed: str, hint: str) -> None:
    """With the nearest name where there is one, and that it is no folder either."""
    with pytest.raises(SettingsError, match=f"there is no verdict '{typed}' and no run folder of that name") as raised:
        command(typed)
    assert hint in str(raised.value)


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    """With a class its page, without one all summaries."""
    command("GIL", "--json")
    one = json.loads(capsys.readouterr().out)
    assert (one["schema"], one["class"]) == ("headrace.explain/1", "GIL")
    assert one["text"].startswith("# GIL\n\n")
    assert one["summary"].startswith("Threads wait for Python's global interpreter lock")
    command("--json")
    assert json.loads(capsys.readouterr().out)["classes"]["GIL"] == one["summary"]
