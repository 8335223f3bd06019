"""Show a team's runs, incidents, decisions and what to do next on one page.

    headrace board                            of the current folder, at http://127.0.0.1:8765
    headrace board runs/ /data/team/runs
    headrace board --port 0 --open
    headrace board runs/ -o monday.html       one file, to send or to keep
    headrace board runs/ --json

It looks through the folders for whatever headrace writes: run folders, incidents, ledgers, histories, and the folders of
drift, reviews, canaries and loops. It reads only, needs no server of a database, and shows runs that go on as they go on.
Click a run for its report; tick two to compare them. Folders that are links are not followed.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.output_file import check_output, write_output
from headrace.cli.terminal import say, speaker, write, write_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.monitor.board.finding import Finder, Found
    from headrace.monitor.board.records import Advice, Record
    from headrace.runs.reader import Run

SCHEMA = "headrace.board/1"
_say = speaker("board")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "folders", metavar="FOLDER", nargs="*", default=["."], help="to look through (default: the current one)"
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1: this machine alone)"
    )
    parser.add_argument("--port", type=int, default=8765, help="port (default 8765; 0: any that is free)")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the page into one file instead")
    parser.add_argument("--force", action="store_true", help="replace FILE")
    parser.add_argument("--json", action="store_true", help=f"print what was found as JSON (schema {SCHEMA})")


def run(args: argparse.Namespace) -> int:
    """Show the board until Ctrl-C, or write it."""
    from headrace.base.errors import SettingsError
    from headrace.cli import EXIT_DONE
    from headrace.monitor.board.finding import Finder

    folders = [Path(folder) for folder in args.folders]
    for folder in folders:
        if not folder.is_dir():
            raise SettingsError(f"{folder} is no folder; name one that holds run folders, such as runs")
    check_output(args.output, force=args.force)
    finder = Finder(folders)
    name = ", ".join(folder.resolve().name or str(folder) for folder in folders)
    if args.json:
        write_json(_as_dict(finder.look()))
    elif args.output:
        _write_page(Path(args.output), name, finder)
    else:
        _serve(args, name, finder)
    return EXIT_DONE


def _serve(args: argparse.Namespace, name: str, finder: Finder) -> None:
    import webbrowser

    from headrace.monitor.board.server import Board, BoardServer

    board = Board(name, finder, advise)
    try:
        pages = {
            "run": _show_run, "incident": _show_run, "ledger": _show_ledger, "drift": _show_drift, "loop": _show_loop,
            "history": lambda record: _show_history(record, board.found.records),
        }  # fmt: skip
        with BoardServer(board, pages, _show_comparison, args.host, args.port) as server:
            _say(f"{server.address} shows {len(board.found.records):,} things; Ctrl-C ends it")
            if args.host not in ("127.0.0.1", "localhost"):
                say("headrace board: warning: others can reach this address, and all that it shows")
            if args.open:
                webbrowser.open(server.address)
            try:
                server.serve_forever(poll_interval=0.2)
            except KeyboardInterrupt:
                _say("ended")
    finally:
        board.close()


def _write_page(output: Path, name: str, finder: Finder) -> None:
    from headrace.monitor.board.page import render_board
    from headrace.monitor.board.server import newest_unadvised

    found = finder.look()
    advice: dict[str, Advice | None] = {}
    while (record := newest_unadvised(found, advice)) is not None:
        _say(f"reading {record.name}")
        advice[record.id] = advise(record)
    write_output(output, render_board(name, found, advice, time.time()))
    write(f"written: {output}")


def advise(record: Record) -> Advice | None:
    """Return what the diagnosis of a run says to do next; None where it says nothing."""
    from headrace.base.errors import HeadraceError
    from headrace.cli.explain import page, summary
    from headrace.cli.report import diagnose_run
    from headrace.diagnose.analysis import Analysis
    from headrace.monitor.board.advising import make_advice
    from headrace.runs.reader import read_run

    try:
        found = diagnose_run(Analysis(read_run(record.path)))
    except HeadraceError:
        return None
    return None if isinstance(found, str) else make_advice(found, summary(page(found.first.verdict)))


def _show_run(record: Record) -> str:
    from headrace.cli.report import diagnose_run
    from headrace.diagnose.analysis import Analysis
    from headrace.report.page import render_report
    from headrace.runs.formats.failures import failures_of
    from headrace.runs.reader import read_run

    found: Run = read_run(record.path)
    analysis = Analysis(found)
    failed = failures_of(found.info.summary)
    return render_report(
        analysis.profile, None, diagnosed=diagnose_run(analysis), failed=failed, folder=str(record.path)
    )


def _show_comparison(before: Record, after: Record) -> str:
    from headrace.cli.report import diagnose_run
    from headrace.compare.comparison import METRICS, Question, compare_runs
    from headrace.diagnose.analysis import Analysis
    from headrace.report.page import render_report
    from headrace.runs.formats.failures import failures_of
    from headrace.runs.reader import read_run

    runs = [read_run(record.path) for record in (before, after)]
    comparison = compare_runs(runs[0], runs[1], question=Question(metric=METRICS["throughput"]), seed=0)
    analysis = Analysis(runs[1])
    failed = failures_of(runs[1].info.summary)
    return render_report(
        analysis.profile, comparison, diagnosed=diagnose_run(analysis), failed=failed, folder=str(after.path)
    )


def _show_ledger(record: Record) -> str:
    from headrace.base.errors import LedgerError
    from headrace.report.ledger_page import render_ledger

    if record.ledger is None:
        raise LedgerError(record.trouble)
    return render_ledger(record.name, record.ledger.attempts, record.ledger.decisions)


def _show_history(record: Record, records: Sequence[Record]) -> str:
    from headrace.monitor.history.document import make_document, read_windows
    from headrace.monitor.history.page import render_history
    from headrace.monitor.history.store import History

    ledgers = [one.path for one in records if one.ledger is not None]
    with History(record.path, must_exist=True) as history:
        document = make_document(history, ledger=_find_nearest(ledgers, record.path))
        return render_history(document, [read_windows(history, verdict) for verdict in document.baselines])


def _find_nearest(files: Sequence[Path], place: Path) -> Path | None:
    """Return the file whose folder shares most of its way with that of a place; None without files."""

    def count_shared(file: Path) -> int:
        return sum(a == b for a, b in zip(file.parent.parts, place.parent.parts, strict=False))

    return max(files, key=count_shared, default=None)


def _show_drift(record: Record) -> str:
    from headrace.monitor.drift.folder import DriftFolder
    from headrace.monitor.drift.judging import recording
    from headrace.report.drift_page import render_drift

    folder = DriftFolder(record.path)
    scores = folder.scores()
    return render_drift(recording(folder.windows()[0], str(folder.path)) if scores is None else scores)


def _show_loop(record: Record) -> str:
    from headrace.loop.folder import LOOP_FILE, read_loop
    from headrace.report.loop_page import render_loop

    return render_loop(read_loop(record.path / LOOP_FILE), record.facts.get("says", ""))


def _as_dict(found: Found) -> dict[str, Any]:
    import dataclasses

    def describe(record: Record) -> Mapping[str, Any]:
        said: dict[str, Any] = {
            "kind": record.kind,
            "path": str(record.path),
            "name": record.name,
            "at_unix_seconds": record.at,
        }
        if record.trouble:
            said["trouble"] = record.trouble
        if record.run is not None:
            said["run"] = dataclasses.asdict(record.run)
        if record.incident is not None:
            said["incident"] = record.incident
        if record.comparison is not None:
            said["comparison"] = record.comparison
        if record.alarms:
            said["alarms"] = list(record.alarms)
        return {**said, **({"facts": dict(record.facts)} if record.facts else {})}

    return {
        "schema": SCHEMA,
        "records": [describe(record) for record in found.records],
        "passed_over": list(found.passed_over),
    }
