"""Notice when images, or what the model makes of them, are no longer what they were.

    headrace serve jobs:pipeline --drift watch/ --drift-key camera      record, and compare once there is a baseline
    headrace monitor drift learn watch/                                 take what was recorded for what is usual
    headrace monitor drift show watch/ --html drift.html                what moved, since when, at which camera
    headrace monitor drift learn watch/ --images photos/                a baseline from a folder of images
    headrace monitor drift compare before/ after/                       two folders of images, or two run folders

Items are judged by windows, and each camera, site or user (--drift-key) is compared with itself: images of one camera resemble
one another, and a test that takes each for a new fact raises false alarms most of the time. `learn` says how small a shift
this baseline can show, and how soon. `show` ends with exit status 0; with --check, 1 if something has drifted.
"""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.terminal import speaker, write, write_json

if TYPE_CHECKING:
    from headrace.runs.formats.drift import DriftBaseline, DriftDocument, DriftWindow

_say = speaker("monitor drift")


def add_topic_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    learn = actions.add_parser("learn", help="take what was recorded, or a folder of images, for what is usual")
    learn.add_argument("folder", metavar="DIR", help="the folder of --drift; `baseline.json` is written there")
    learn.add_argument(
        "--images", metavar="FOLDER", help="learn from these images, or this run folder, and not from what was recorded"
    )
    learn.add_argument(
        "--from", dest="since", type=_time, metavar="TIME", help="leave out what came before: 2026-11-23T14:00"
    )
    learn.add_argument(
        "--until", type=_time, metavar="TIME", help="leave out what came later (UTC, unless it says otherwise)"
    )
    learn.add_argument("--force", action="store_true", help="replace a baseline that exists")
    show = actions.add_parser("show", help="say what has changed since the baseline")
    show.add_argument("folder", metavar="DIR", help="the folder of --drift")
    show.add_argument("--check", action="store_true", help="exit status 1 if something has drifted")
    compare = actions.add_parser("compare", help="compare images or runs with others that are as they should be")
    compare.add_argument(
        "before", metavar="A", help="what is usual: a folder of images, a run folder, or one of --drift"
    )
    compare.add_argument("after", metavar="B", help="what is compared with it")
    compare.add_argument("--check", action="store_true", help="exit status 1 if something has drifted")
    for action in (learn, compare):
        action.add_argument(
            "--key", metavar="NAME", default="", help="folder: each folder of images is compared with itself"
        )
        action.add_argument(
            "--window", type=int, metavar="N", help="images of a window (default: a fortieth of the images)"
        )
    for action in (show, compare):
        action.add_argument("--html", metavar="FILE", help="also write a page with charts")
        action.add_argument("--force", action="store_true", help="replace a page that exists")
    for action, does in ((learn, _learn), (show, _show), (compare, _compare)):
        action.add_argument("--json", action="store_true", help="print the document as JSON")
        action.set_defaults(action=does)


def run_topic(args: argparse.Namespace) -> int:
    """Run the action and return its exit status."""
    status: int = args.action(args)
    return status


def _learn(args: argparse.Namespace) -> int:
    from headrace.base.errors import SettingsError
    from headrace.cli import EXIT_DONE
    from headrace.monitor.drift.folder import BASELINE_FILE, DriftFolder
    from headrace.monitor.drift.learning import learn

    folder = DriftFolder(args.folder, make=bool(args.images))
    file = folder.path / BASELINE_FILE
    if file.exists() and not args.force:
        raise SettingsError(f"{file} exists; replace it with --force: later windows are then compared with the new one")
    windows = _recorded(Path(args.images) if args.images else folder.path, args)
    baseline = learn(windows, key=windows[-1].key if windows else args.key, hours=windows[-1].hours if windows else 0)
    folder.write_baseline(baseline)
    if args.json:
        write_json(baseline, indented=True)
    else:
        write(_as_text(baseline, str(file)))
    return EXIT_DONE


def _recorded(path: Path, args: argparse.Namespace) -> list[DriftWindow]:
    from headrace.base.errors import SettingsError

    windows = [
        window
        for window in _read(path, args)
        if (args.since is None or window.began >= args.since) and (args.until is None or window.ended <= args.until)
    ]
    kinds = sorted({(window.key, window.hours) for window in windows})
    if len(kinds) > 1:
        raise SettingsError(
            f"{path} was recorded with different strata: {', '.join(f'key {key!r}, hours {hours}' for key, hours in kinds)}; "
            "choose a stretch with one of them by --from and --until"
        )
    return windows


def _read(path: Path, args: argparse.Namespace) -> list[DriftWindow]:
    from headrace.monitor.drift.recorded import read_windows

    said = -1

    def progress(done: int, of: int) -> None:
        nonlocal said
        if done * 10 // of > said:
            said = done * 10 // of
            _say(f"{path}: {done:,} of {of:,} images")

    return read_windows(path, key=args.key, window_items=args.window, progress=progress)


def _show(args: argparse.Namespace) -> int:
    import msgspec

    from headrace.base.errors import SettingsError
    from headrace.monitor.drift.folder import DriftFolder
    from headrace.monitor.drift.judging import judge, recording, say_waiting

    folder = DriftFolder(args.folder)
    if not folder.is_one():
        raise SettingsError(
            f"{folder.path} holds nothing of a drift monitor; expected a folder that `headrace run --drift DIR` wrote, or "
            "`headrace serve`"
        )
    windows, damaged = folder.windows()
    if damaged:
        _say(f"{damaged} lines of {folder.path} cannot be read and are left out")
    baseline, waiting = folder.baseline(), folder.waiting()
    if baseline is None:
        document = recording(windows, str(folder.path), waiting)
    else:
        later = [window for window in windows if window.began >= baseline.ended]
        document = judge(baseline, later, str(folder.path))
    if any(part.items for part in waiting):  # answers alone wait where an earlier part counted their items
        document = msgspec.structs.replace(document, says=(*document.says, say_waiting(waiting)))
    return _finish(document, args)


def _compare(args: argparse.Namespace) -> int:
    import msgspec

    from headrace.cli.output_file import check_output
    from headrace.monitor.drift.judging import judge
    from headrace.monitor.drift.learning import learn

    check_output(args.html, force=args.force, option="--html")
    before = _read(Path(args.before), args)
    baseline = learn(before, key=before[0].key if before else args.key, hours=before[0].hours if before else 0)
    args.window = args.window or baseline.window_items
    document = judge(baseline, _read(Path(args.after), args), args.after)
    # Of folders, times are those of files: hours of the day mean nothing there.
    return _finish(msgspec.structs.replace(document, warnings=()), args)


def _finish(document: DriftDocument, args: argparse.Namespace) -> int:
    from headrace.cli import EXIT_DONE, EXIT_NEGATIVE
    from headrace.cli.output_file import check_output, write_output

    if args.html:
        from headrace.report.drift_page import render_drift

        check_output(args.html, force=args.force, option="--html")
        write_output(Path(args.html), render_drift(document), option="--html")
    if args.json:
        write_json(document, indented=True)
    else:
        write(_told(document))
        if args.html:
            write(f"page: {args.html}")
    return EXIT_NEGATIVE if args.check and document.verdict == "drift" else EXIT_DONE


def _told(document: DriftDocument) -> str:
    verdict = document.verdict if document.windows or document.verdict == "recording" else "nothing judged"
    lines = [f"{verdict.upper()}: {document.folder}, {document.windows} windows of {document.items:,} items"]
    lines += [f"  {line}" for line in document.says]
    if document.refusals:
        worst = ", ".join(f"{code} {number:,}" for code, number in list(document.refusals.items())[:4])
        lines.append(f"  not decoded: {worst}")
    if document.lost:
        lines.append(f"  {document.lost:,} items could not be counted")
    if document.promise is not None:
        lines.append(f"what this can show: {document.promise.says}")
    lines += [f"note: {warning}" for warning in document.warnings]
    return "\n".join(lines)


def _as_text(baseline: DriftBaseline, file: str) -> str:
    strata = (
        f", {len(baseline.strata)} {'stratum' if len(baseline.strata) == 1 else 'strata'} ({baseline.key})"
        if baseline.key
        else ""
    )
    learnt = (
        f"learnt: {baseline.windows} windows of {baseline.items:,} items{strata}; "
        f"{len(baseline.means)} means and {len(baseline.rates)} shares"
    )
    lines = [
        learnt,
        f"what this can show: {baseline.promise.says}",
        *(f"note: {warning}" for warning in baseline.warnings),
        f"baseline: {file}",
    ]
    return "\n".join(lines)


def _time(text: str) -> float:
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; expected 2026-11-23 or 2026-11-23T14:00") from None
    return (found if found.tzinfo else found.replace(tzinfo=datetime.UTC)).timestamp()
