"""What commands print cannot steer the terminal that shows it."""

import ast
import io
import json
import logging
import tomllib
from pathlib import Path

import pytest

import headrace.cli
from headrace.base.formatting import escape_controls
from headrace.cli import terminal

CLI = Path(headrace.cli.__file__).parent
ATTACK = "\x1b]0;owned\x07\x1b[31mred\x9b2J\u202e"
OBEYED = set("\x1b\x07\x9b\u202e")


def _is_direct(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    return name in ("print", "Console", "rich.print", "sys.stdout.write", "sys.stderr.write", "self._stream.write")


@pytest.mark.parametrize("file", sorted(CLI.glob("*.py")), ids=lambda file: file.stem)
def test_commands_print_through_one_module(file: Path) -> None:
    """No command calls `print`, a stream's `write` or rich's `Console` itself, but with a text of its own."""
    if file.name == "terminal.py":
        return
    direct = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call) and _is_direct(node)]
    found = [
        f"{file.name}:{call.lineno} {ast.unparse(call)}"
        for call in direct
        if not all(isinstance(part, ast.Constant) for part in call.args) and "_plain_line" not in ast.unparse(call)
    ]
    assert not found, "use headrace.cli.terminal"


def test_results_progress_and_json_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters and marks of the direction of writing come out as text."""
    terminal.write(ATTACK)
    terminal.say(ATTACK)
    terminal.speaker("run")(ATTACK)
    terminal.write_json({"name": ATTACK})
    printed = capsys.readouterr()
    assert not OBEYED & set(printed.out + printed.err)
    assert json.loads(printed.out.splitlines()[1]) == {"name": ATTACK}


def test_toml_stays_what_it_was() -> None:
    """A Plan that is printed can be read again, with the same names."""
    assert tomllib.loads(escape_controls('name = "a\x9b\u202eb"')) == {"name": "a\x9b\u202eb"}


def test_tables_are_escaped_and_keep_their_own_colours() -> None:
    """Rich draws names as text, in cells too."""
    from rich.table import Table

    stream = io.StringIO()
    console = terminal.open_console(stream)
    table = Table()
    table.add_column(ATTACK)
    table.add_row(ATTACK)
    console.print(table)
    console.print(ATTACK, style="bold")
    assert not OBEYED & set(stream.getvalue())
    assert "owned" in stream.getvalue()


def test_log_lines_are_escaped() -> None:
    """An item's name in a warning is text."""
    formatter = headrace.cli._ShowableFormatter("headrace: %(message)s")
    line = formatter.format(logging.LogRecord("headrace", logging.WARNING, "", 0, "item %s", (ATTACK,), None))
    assert not OBEYED & set(line)


def test_what_is_no_error_is_none_in_a_log_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address that is said at the start must page nobody; what names no level is an error."""
    told: list[tuple[object, int]] = []

    class _Log:
        def tell(self, line: object, level: int) -> None:
            told.append((line, level))

    monkeypatch.setattr(terminal, "_log", [_Log()])
    terminal.say("metrics at http://127.0.0.1:9400/metrics", level=logging.INFO)
    terminal.say("no such file")
    assert [level for _, level in told] == [logging.INFO, logging.ERROR]
