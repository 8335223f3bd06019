"""Completion in a real bash, by the script that `headrace completion bash` prints."""

from __future__ import annotations

import subprocess

import pytest

from headrace.cli import COMMANDS, main

_TRY = """
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_headrace 2>&1
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script() -> str:
    """What a user's `~/.bashrc` evaluates."""
    with pytest.MonkeyPatch.context() as patch:
        lines: list[str] = []
        patch.setattr("headrace.cli.completion.write", lines.append)
        assert main(["completion", "bash"]) == 0
    return "\n".join(lines)


def completed(script: str, *words: str) -> list[str]:
    """Return what bash offers for the last of the words."""
    ran = subprocess.run(["bash", "-c", script + _TRY, "bash", *words], capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    return ran.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["di"], ["diagnose"]),
        (["run", "--pl"], ["--plan"]),
        (["-q", "queue", ""], ["stats", "peek", "redrive", "purge"]),
        (["queue", "peek", "sqlite:///a.db", "--d"], ["--dead"]),
        (["optimize", "m.onnx", "--for", "t"], ["throughput"]),
        (["completion", "z"], ["zsh"]),
        (["run", "jobs.py", "--set", "fetch.w"], ["fetch.workers="]),
        (["tune", "jobs.py", "--set", "decode.sc"], ["decode.scale="]),
        (["queue", "stats", "redis"], ["redis://", "rediss://", "redis+sentinel://"]),
        (["submit", "sqli"], ["sqlite://"]),
        (["run", "jobs.py", "--source", "sq"], ["sqlite://", "sqs://"]),
        (["run", "jobs.py", "--source", ""], []),  # before it has begun, a folder or file
        (["run", "--plan", ""], []),  # a file: the shell's own
        (["report", ""], []),
    ],
)
def test_what_is_offered(script: str, words: list[str], offered: list[str]) -> None:
    """Commands, actions, options, choices and settings; nothing where a file is meant, which the shell completes."""
    assert completed(script, "headrace", *words) == offered


def test_every_command_is_offered(script: str) -> None:
    """The script knows the commands that there are."""
    assert completed(script, "headrace", "") == list(COMMANDS)


def test_the_script_registers_itself_and_starts_no_python(script: str) -> None:
    """Bash completes `headrace` by it, with names of files as the default; a word costs no start of Python."""
    ran = subprocess.run(["bash", "-c", f"{script}\ncomplete -p headrace"], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["complete", "-o", "default", "-F", "_headrace", "headrace"]
    assert "$(headrace" not in script


def test_zsh_gets_the_same_through_bashs_interface(capsys: pytest.CaptureFixture[str]) -> None:
    """Zsh is first asked to understand `complete`."""
    assert main(["completion", "zsh"]) == 0
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert "bashcompinit" in first
    assert second == "_headrace() {"
