"""Make one HTML page of a run: it opens anywhere, without network, on a phone, and on paper.

    headrace report runs/first                            writes runs/first/report.html
    headrace report runs/first -o first.html --open
    headrace report runs/first --compare compare.json     with bars of before and after
    headrace report runs/first --trace trace.json.gz      a timeline for ui.perfetto.dev
    headrace report runs/training --tensorboard logs      scalars of a training's steps
    headrace report runs/many                             of `--supervise`, `--shard` or `--on ray`: all processes

The page begins with whether the numbers can be trusted, and what limits the run, as `headrace diagnose` says it, with the
evidence and the remedies. Then it shows for each stage how long items wait and are served, and the use of CPU, memory, disk
and network, and lists what was not measured. All numbers are in tables; a script within the page draws the charts, and nothing
is loaded from elsewhere.

`headrace compare A B -o compare.json` writes a comparison.
"""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.base.documents import decode_document
from headrace.base.errors import HeadraceError, SettingsError
from headrace.base.formatting import pluralize, quote_arg
from headrace.cli.terminal import say, write, write_json
from headrace.runs.file_names import REPORT_FILE

if TYPE_CHECKING:
    from headrace.diagnose.analysis import Analysis
    from headrace.runs.formats.comparison import ComparisonDocument
    from headrace.runs.formats.diagnosis import DiagnosisDocument
    from headrace.runs.reader import Run

SCHEMA = "headrace.report/1"

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "run_folder", metavar="RUN", help="a run folder of `headrace profile`, `headrace run` or `headrace train`"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help=f"the page to write (default: RUN/{REPORT_FILE})")
    parser.add_argument("--compare", metavar="FILE", help="add a comparison (JSON of schema headrace.compare/1)")
    parser.add_argument("--trace", metavar="FILE", help="also write the timeline as Chrome trace (.json or .json.gz)")
    parser.add_argument("--perfetto", metavar="FILE", help="also write the timeline as Perfetto trace (.pftrace)")
    parser.add_argument(
        "--tensorboard",
        metavar="DIR",
        help="of a training: also write step and phases as scalars for TensorBoard into DIR",
    )
    parser.add_argument("--force", action="store_true", help="replace files that exist")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    parser.add_argument("--json", action="store_true", help=f"print what was written as JSON (schema {SCHEMA})")


def run(args: argparse.Namespace) -> int:
    """Write the page, and the timelines that were asked for."""
    from headrace.cli import EXIT_DONE
    from headrace.cli.patience import patience
    from headrace.diagnose.analysis import Analysis
    from headrace.diagnose.whole import whole_document
    from headrace.report.page import render_report
    from headrace.runs.formats.failures import failures_of
    from headrace.runs.incident_file import read_incident
    from headrace.runs.whole_run import WholeRun, read_whole

    found = read_whole(args.run_folder)
    page = Path(args.output) if args.output else found.path / REPORT_FILE
    traces = {kind: Path(file) for kind in ("trace", "perfetto") if (file := getattr(args, kind))}
    _check_outputs([page, *traces.values()], force=args.force)
    if args.tensorboard and found.info.unit != "step":
        raise SettingsError(
            f"--tensorboard is for trainings, and {args.run_folder} is the run of a pipeline; leave it out"
        )
    if found.info.unit == "step":
        return _report_training(args, found, page, traces)
    comparison = _read_comparison(Path(args.compare)) if args.compare else None
    whole = None
    if isinstance(found, WholeRun):
        with patience("report", f"simulating some of {len(found.members)} processes"):
            whole = whole_document(found)
        found = next(member for member in found.members if member.path.name == whole.middle)
    analysis = Analysis(found)
    document = analysis.profile
    folder = os.path.relpath(found.path, page.parent)
    failed = failures_of(found.info.summary)
    with patience("report", "diagnosing the run"):
        diagnosed = diagnose_run(analysis) if whole is None else whole.diagnosis
    incident = read_incident(found.path)
    html = render_report(
        document, comparison, diagnosed=diagnosed, failed=failed, incident=incident, whole=whole, folder=folder
    )
    _write(page, html)
    written = {kind: _write_trace(kind, found, file) for kind, file in traces.items()}
    _tell(args, page, len(html.encode()), document, written)
    if args.open:
        _open(page)
    return EXIT_DONE


def _report_training(args: argparse.Namespace, found: Run, page: Path, traces: dict[str, Path]) -> int:
    """Write the page of a run whose unit is a training step."""
    from headrace.cli import EXIT_DONE
    from headrace.cli.report_tensorboard import check_folder, write_tensorboard
    from headrace.diagnose.training.verdicts import TrainingAnalysis, diagnose_training
    from headrace.report.training_page import render_training

    if args.compare:
        raise SettingsError(
            f"{args.run_folder} is the run of a training, and --compare is about pipelines; leave it out"
        )
    if args.tensorboard:
        check_folder(Path(args.tensorboard), force=args.force)
    analysis = TrainingAnalysis(found)
    html = render_training(analysis.document, diagnose_training(analysis))
    _write(page, html)
    written = {kind: _write_trace(kind, found, file) for kind, file in traces.items()}
    _tell(args, page, len(html.encode()), analysis.document, written)
    if args.tensorboard and (files := write_tensorboard(analysis, Path(args.tensorboard))):
        say(f"{pluralize(len(files), 'event file')}: tensorboard --logdir {quote_arg(args.tensorboard)}")
    if args.open:
        _open(page)
    return EXIT_DONE


def diagnose_run(analysis: Analysis) -> DiagnosisDocument | str:
    """Return the diagnosis, or why there is none: a page without it is better than no page."""
    from headrace.diagnose.diagnosis import diagnosis_document

    try:
        return diagnosis_document(analysis)
    except HeadraceError as error:
        return str(error)
    except Exception as error:
        logger.exception("the diagnosis failed; this is a defect of headrace, please report it with the lines below")
        return f"{type(error).__name__}: {error}; this is a defect of headrace, please report it"


def _check_outputs(files: list[Path], *, force: bool) -> None:
    """Refuse before the work what could not be written after it."""
    for file in files:
        if file.is_dir():
            raise SettingsError(f"{file} is a folder; expected the name of a file to write")
        if file.exists() and not force:
            raise SettingsError(f"{file} exists; choose another name, or replace it with --force")
        if not file.parent.is_dir():
            raise SettingsError(f"{file} cannot be written: there is no folder {file.parent}; make it first")
    if len({file.resolve() for file in files}) < len(files):
        raise SettingsError(f"two outputs have the same name: {', '.join(map(str, files))}; give each its own")


def _read_comparison(file: Path) -> ComparisonDocument:
    import msgspec

    from headrace.runs.formats import comparison

    try:
        document = decode_document(file.read_bytes(), comparison.ComparisonDocument)
    except OSError as error:
        raise SettingsError(f"--compare {file} cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise SettingsError(
            f"--compare {file} is not a comparison ({error}); expected what `headrace compare A B -o FILE` writes"
        ) from error
    if document.schema != comparison.SCHEMA:
        raise SettingsError(f"--compare {file} has schema {document.schema!r}; expected {comparison.SCHEMA!r}")
    return document


def _write(page: Path, html: str) -> None:
    from headrace.runs.run_folder import replace_file

    try:
        replace_file(page, html.encode())
    except OSError as error:
        raise SettingsError(f"{page} cannot be written: {error.strerror}; choose another place with -o") from error


def _write_trace(kind: str, found: Run, file: Path) -> Any:
    if kind == "trace":
        from headrace.report.chrome_trace import write_chrome_trace

        return write_chrome_trace(found, file)
    from headrace.report.perfetto_trace import write_perfetto_trace

    return write_perfetto_trace(found, file)


def _tell(args: argparse.Namespace, page: Path, num_bytes: int, document: Any, traces: dict[str, Any]) -> None:
    from headrace.report.markup import plain  # what a terminal cannot show: file names that are not UTF-8

    if args.json:
        _print_json(page, num_bytes, document, traces)
        return
    verdict = f"{document.trust}: {'; '.join(document.doubts)}" if document.doubts else document.trust
    write(f"{plain(verdict)}\nreport: {plain(page)} ({num_bytes / 1e6:.2f} MB)")
    for summary in traces.values():
        write(f"timeline: {plain(summary.path)} ({summary.num_bytes / 1e6:.2f} MB, {summary.num_items:,} of "
              f"{summary.num_items_total:,} items); open it in https://ui.perfetto.dev")  # fmt: skip
        for note in summary.notes:
            write(f"  {note}")


def _print_json(page: Path, num_bytes: int, document: Any, traces: dict[str, Any]) -> None:

    from headrace.report.markup import plain

    told = {
        "schema": SCHEMA,
        "report": plain(page),
        "num_bytes": num_bytes,
        "run": plain(document.run),
        "trusted": document.trusted,
        "distrust": document.distrust,
        "unchecked": document.unchecked,
        "timelines": {
            kind: {"file": plain(summary.path), "num_bytes": summary.num_bytes, "num_items": summary.num_items,
                   "num_items_total": summary.num_items_total, "notes": summary.notes}
            for kind, summary in traces.items()
        },
    }  # fmt: skip
    write_json(told)


def _open(page: Path) -> None:
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        say(f"headrace: no browser was found; open {page.resolve()} yourself")
