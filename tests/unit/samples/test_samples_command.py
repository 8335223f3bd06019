"""`headrace samples make` and `headrace samples list`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from headrace.cli.samples import add_arguments, run
from headrace.samples.catalogue import NAMES


def _run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args(words))


def test_make_writes_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`make` writes the files asked for and prints where the labels are."""
    code = _run("make", str(tmp_path / "images"), "--count", "4", "--seed", "1")

    assert code == 0
    assert len(list((tmp_path / "images").iterdir())) == 5
    assert str(tmp_path / "images" / "labels.jsonl") in capsys.readouterr().out


def test_make_prints_one_json_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`make --json` prints one object with the counts."""
    _run("make", str(tmp_path), "--count", "8", "--seed", "1", "--messy", "0.5", "--split", "train", "--json")
    answer = json.loads(capsys.readouterr().out)

    assert (answer["version"], answer["num_files"], answer["split"]) == (1, 8, "train")
    assert sum(answer["num_by_kind"].values()) == 8
    assert sum(answer["num_by_messy"].values()) == 4


def test_misuse_is_told_on_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong value ends with exit code 2 and a message on standard error alone."""
    code = _run("make", str(tmp_path), "--count", "0")
    captured = capsys.readouterr()

    assert code == 2
    assert captured.out == ""
    assert "count is 0" in captured.err


def test_force_is_needed_for_a_folder_with_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without `--force` a folder that is not empty is refused with a message that names the flag."""
    first = _run("make", str(tmp_path), "--count", "1")
    second = _run("make", str(tmp_path), "--count", "1")
    third = _run("make", str(tmp_path), "--count", "1", "--force")

    assert (first, second, third) == (0, 2, 0)
    assert "--force" in capsys.readouterr().err


def test_list_shows_every_photograph_with_its_licence(capsys: pytest.CaptureFixture[str]) -> None:
    """`list` prints a line with licence and credit for every photograph."""
    assert _run("list") == 0
    lines = capsys.readouterr().out.splitlines()

    assert [line.split()[0] for line in lines[: len(NAMES)]] == list(NAMES)
    assert "CC BY 2.0      danielbuechele" in next(line for line in lines if line.startswith("pagoda"))


def test_list_prints_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    """`list --json` prints one object with all photographs."""
    _run("list", "--json")
    answer = json.loads(capsys.readouterr().out)

    assert [photograph["name"] for photograph in answer["photographs"]] == list(NAMES)
