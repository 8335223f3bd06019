"""Predict what a change would do to a recorded run, before anybody tries it.

    headrace whatif runs/first --set fetch.workers=32 --set process.batch=8
    headrace whatif runs/first --speedup decode=2
    headrace whatif runs/first --vary fetch.workers=8,16,32
    headrace whatif runs/first --curve process=runs/other-engine --cores 8
    headrace whatif runs/first --arrival-rate 100/s --json
    headrace whatif runs/training --set loader.workers=4 --speedup augment=2

Options given together make one change. --vary predicts each of its values and prints a table. A prediction goes to the ledger
before it is measured, so that every new prediction is shown with the track record of earlier ones; `headrace ledger` lists
them. If a change cannot be predicted, the output says why, and what to do next.

Exit status: 0 predicted; 2 misuse; 4 the throughput cannot be predicted.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.cli import EXIT_DONE
from headrace.cli.change_arguments import add_change_arguments
from headrace.cli.terminal import say, speaker, write, write_json

if TYPE_CHECKING:
    from headrace.diagnose.replay import Replay
    from headrace.ledger.ledger import Ledger
    from headrace.runs.formats.prediction import Change, PredictionDocument, TrackRecord
    from headrace.runs.reader import Run

    Predict = Callable[..., PredictionDocument]  # (Change, record=TrackRecord)

_say = speaker("whatif")

EXIT_INCONCLUSIVE = 4
#: `run.json`'s unit where a model was trained.
STEP = "step"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("run_folder", metavar="RUN", help="a run folder of `headrace profile` or of a training")
    add_change_arguments(parser)
    parser.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="KEY=A,B,...",
        help="predict each of these values of a setting; given twice, every combination",
    )
    add_ledger_argument(parser)
    parser.add_argument(
        "--untrusted", action="store_true", help="predict even from a run whose checks failed, with a warning"
    )
    parser.add_argument("--no-ledger", action="store_true", help="write nothing down, and show no record")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print JSON (schema headrace.prediction/1; with --vary headrace.predictions/1)",
    )


def add_ledger_argument(parser: argparse._ActionsContainer) -> None:
    """Declare where the ledger is."""
    parser.add_argument(
        "--ledger", metavar="FILE", help="the ledger (default: $HEADRACE_LEDGER, else runs/ledger.sqlite)"
    )


def run(args: argparse.Namespace) -> int:
    """Predict, write it down, and print it."""
    from headrace.base.errors import SettingsError
    from headrace.cli import whatif_text
    from headrace.cli.patience import patience
    from headrace.diagnose.replay import CannotReplay
    from headrace.runs.reader import read_run
    from headrace.runs.rerun_command import profile_again

    if args.ledger and args.no_ledger:
        raise SettingsError("--ledger and --no-ledger contradict one another; give one of them")
    recorded = read_run(args.run_folder)
    try:
        with patience("whatif", "simulating the run as it was"):
            changes, predict = _open_training(args, recorded) if recorded.info.unit == STEP else _open(args, recorded)
    except CannotReplay as error:
        say(f"headrace whatif: {error}")
        return EXIT_INCONCLUSIVE
    with _ledger(args) as ledger, patience("whatif", "simulating the changed run, several times for its interval"):
        answers = _predict(recorded, predict, changes, ledger)
    shown = whatif_text.Shown(
        run_folder=args.run_folder,
        ledger=str(ledger.path) if ledger else None,
        ledger_option=args.ledger,
        recording=profile_again(recorded.info, "-o", f"{args.run_folder}-changed"),
        program=tuple(recorded.info.options) if recorded.info.unit == STEP else (),
    )
    if args.json:
        _print_json(args, recorded.path.name, answers)
    elif args.vary:
        write(whatif_text.as_table(answers.documents, answers.refused, shown), end="")
    elif answers.documents:
        write(whatif_text.as_text(answers.documents[0], shown), end="")
    if not args.vary:
        for why in answers.refused.values():
            say(f"headrace whatif: not predicted: {why}")
    return EXIT_DONE if answers.has_throughput else EXIT_INCONCLUSIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answers:
    documents: tuple[PredictionDocument, ...]
    refused: dict[str, str]
    """{change in words: why nothing is predicted}."""
    record: TrackRecord

    @property
    def has_throughput(self) -> bool:
        """Whether all that was asked was predicted."""
        return not self.refused and all(document.throughput.ratio for document in self.documents)


def _open(args: argparse.Namespace, recorded: Run) -> tuple[list[Change], Predict]:
    """Return the changes of a pipeline's run, and what predicts each."""
    from headrace.diagnose.analysis import Analysis
    from headrace.diagnose.whatif import predict

    replay = Analysis(recorded).replay
    _check_trusted(replay.document.distrust, args)
    return _changes(args, replay), functools.partial(predict, replay)


def _open_training(args: argparse.Namespace, recorded: Run) -> tuple[list[Change], Predict]:
    """Return the changes of a training's run, and what predicts each."""
    from headrace.cli.change_arguments import training_changes_of
    from headrace.diagnose.training.simulation_whatif import TrainingReplay, check_options

    changes = training_changes_of(args)
    for change in changes:
        check_options(change)
    replay = TrainingReplay(recorded)
    _check_trusted(replay.recorded.distrust, args)
    return changes, replay.predict


def _check_trusted(distrust: Sequence[str], args: argparse.Namespace) -> None:
    """Raise CannotReplay for a run whose numbers contradict one another, unless the user wants it all the same."""
    from headrace.diagnose.replay import CannotReplay

    if distrust and not args.untrusted:
        raise CannotReplay(
            f"{args.run_folder} is not trusted, and what rests on it would not be either: "
            f"{'; '.join(distrust)}. Profile again, or add --untrusted to predict all the same"
        )


def _changes(args: argparse.Namespace, replay: Replay) -> list[Change]:
    """Return the scenarios: one, or one for each combination of `--vary`."""
    import msgspec

    from headrace.base.errors import SettingsError
    from headrace.cli.change_arguments import change_of, parse_varied, plan_settings

    stages = replay.run.info.stages
    change = change_of(args, replay.plan, stages)
    if not args.vary:
        if change.is_nothing:
            raise SettingsError(
                "nothing is changed; say what, such as --set fetch.workers=32, --speedup decode=2 or --vary process.batch=1,2,4"
            )
        return [change]
    return [
        msgspec.structs.replace(change, settings=(*change.settings, *plan_settings(varied, replay.plan, stages)))
        for varied in parse_varied(args.vary)
    ]


@contextlib.contextmanager
def _ledger(args: argparse.Namespace) -> Iterator[Ledger | None]:
    """Open the ledger first: a prediction that could not be written down would be made in vain."""
    if args.no_ledger:
        yield None
        return
    from headrace.ledger.ledger import Ledger

    with Ledger.open(args.ledger) as ledger:
        yield ledger


def _predict(recorded: Run, predict: Predict, changes: Sequence[Change], ledger: Ledger | None) -> _Answers:
    from headrace.diagnose.replay import CannotReplay
    from headrace.runs.formats.prediction import TrackRecord

    record = ledger.track_record() if ledger else TrackRecord(num=0)
    documents, refused = [], {}
    for number, change in enumerate(changes, 1):
        if len(changes) > 1:
            _say(f"{number} of {len(changes)}: {', '.join(change.settings)}")
        try:
            documents.append(_predict_one(recorded, functools.partial(predict, change, record=record), ledger))
        except CannotReplay as error:
            refused[", ".join(change.settings) or "this change"] = str(error)
    return _Answers(documents=tuple(documents), refused=refused, record=record)


def _predict_one(recorded: Run, predict: Callable[[], PredictionDocument], ledger: Ledger | None) -> PredictionDocument:
    import msgspec

    from headrace.base.errors import SettingsError

    try:
        document = predict()
    except ValueError as error:  # what cannot be set: a batch on a stage that takes none, ...
        raise SettingsError(str(error)) from error
    if ledger is None or document.throughput.ratio is None:
        return document
    id_ = ledger.write_prediction(document, hardware=recorded.info.hardware)
    return msgspec.structs.replace(document, id=id_)


def _print_json(args: argparse.Namespace, run: str, answers: _Answers) -> None:
    import msgspec

    from headrace.runs.formats.prediction import PredictionsDocument

    printed: msgspec.Struct
    if args.vary:
        printed = PredictionsDocument(
            run=run, predictions=answers.documents, refused=answers.refused, record=answers.record
        )
    elif answers.documents:
        (printed,) = answers.documents
    else:
        return  # refused as a whole: there is nothing to print, and stderr says why
    write_json(printed, indented=True)
