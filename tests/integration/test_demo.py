"""`headrace demo` as a user meets it, who loses patience."""

from __future__ import annotations

import contextlib
import html
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.base.errors import Interrupted
from headrace.cli import main, make_parser
from headrace.demo.ladder import climb
from headrace.sources.sqlite_queue import SqliteQueue

#: Options whose value is written by the command.
_WRITTEN = {"-o", "--output"}


def test_the_page_begins_with_the_gain_and_every_command_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ladder comes first, then the diagnosis; what page and terminal suggest is typed where the demo was started."""
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--count", "30", "--delay", "20ms", "-o", "a demo"]) == 0
    printed = capsys.readouterr().out
    page = Path("a demo/report.html").read_text()
    assert re.findall('<section id="([^"]+)">', page)[:3] == ["ladder", "diagnosis", "next"]
    on_page = [html.unescape(text) for text in re.findall("<code>(headrace [^<]*)</code>", page)]
    suggested = re.findall("^ +(headrace .*)$", printed, re.MULTILINE)
    assert len(suggested) == 5
    assert set(suggested) <= set(on_page)
    for command in on_page:
        argv = shlex.split(command)[1:]
        _, rest = make_parser(argv).parse_known_args(argv)
        assert not rest, command
        before = ["", *argv]
        paths = [
            word for word, option in zip(argv, before, strict=False) if "a demo" in word and option not in _WRITTEN
        ]
        assert all(Path(path.removesuffix(":pipeline")).exists() or path == "a demo/runs/own" for path in paths), (
            command
        )
    for command in suggested:
        assert main(shlex.split(command)[1:]) in (0, 4), command  # 4: so few images may not suffice to tell
    assert "runs differ in their pipeline" not in capsys.readouterr().out


def test_ctrl_c_ends_the_whole_demonstration(tmp_path: Path) -> None:
    """Ctrl-C in the first rung runs no second one, and exits with 130."""
    command = [sys.executable, "-c", "from headrace.cli import main; raise SystemExit(main())", "demo"]
    out = tmp_path / "out"
    demo = subprocess.Popen([*command, "--count", "40", "--delay", "300ms", "-o", str(out)], stderr=subprocess.PIPE)
    give_up_at = time.monotonic() + 90
    while not _is_at_work(out) and time.monotonic() < give_up_at:
        time.sleep(0.05)
    demo.send_signal(signal.SIGINT)
    _, told = demo.communicate(timeout=90)
    assert demo.returncode == 130, told.decode()
    assert f"interrupted; what ran until then is in {out}" in told.decode()
    assert len(list(out.glob("runs/*"))) == 1


def _is_at_work(out: Path) -> bool:
    """Whether the first rung has received an image: a run that has none yet leaves nothing."""
    if not list(out.glob("runs/*")):
        return False
    for path in out.glob("queues/*.db"):
        with contextlib.closing(SqliteQueue(path)) as queue:
            if queue.statistics().in_flight:
                return True
    return False


def test_ctrl_c_between_two_rungs_names_what_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the second one has no image yet, the first is still worth a word."""
    seen: list[str] = []

    def watch(name: str, total: int) -> None:
        seen.append(name)
        if len(seen) == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match="what ran until then is in"):
        climb(tmp_path, count=30, delay_seconds=0.0, watch=watch)
    assert len(list(tmp_path.glob("runs/*"))) == 1
