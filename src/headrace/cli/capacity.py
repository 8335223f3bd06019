"""Say how many machines a rate needs and what they cost; how many cameras one machine holds; or what more machines bring.

    headrace capacity runs/first --rate 3M/h --price 0.75/h
    headrace capacity runs/first --rate 100/s --slo p99=500ms --headroom 30%
    headrace capacity runs/clips --cameras 25/s --slo p99=200ms
    headrace capacity runs/first --machines 100 --limit receiver=1000/s --limit store=1GB/s --price 0.75/h
    headrace capacity runs/first --rate 100/s --change "new decoder: --speedup decode=3" --change "--set process.batch=16"

RUN is a profile of one machine at work. The rate is the load of all machines together. Without --slo a machine is used up to
full load less the headroom; with it up to the rate at which the simulated latency still meets the goal, if that is less.

With --machines it says what more machines bring that work on one queue, where that stops being linear and why, and what is
still left on one machine.

Exit status: 0 done; 1 the recorded pipeline meets the goal of --slo at no rate; 2 misuse; 4 inconclusive.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from headrace.cli import EXIT_DONE, EXIT_NEGATIVE
from headrace.cli.change_arguments import add_change_arguments, change_of
from headrace.cli.terminal import say, write, write_json

if TYPE_CHECKING:
    from headrace.base.goals import LatencyGoal
    from headrace.diagnose.analysis import Analysis
    from headrace.diagnose.replay import Replay
    from headrace.runs.formats.cameras import CamerasDocument
    from headrace.runs.formats.capacity import CapacityDocument
    from headrace.runs.formats.prediction import TrackRecord
    from headrace.tune.capacity import Need, Wanted
    from headrace.tune.machines import Wish

EXIT_INCONCLUSIVE = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("run_folder", metavar="RUN", help="a run folder of `headrace profile`")
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--rate", metavar="RATE", help="jobs that come, such as 3M/h, 100/s or 50k/day")
    asked.add_argument(
        "--cameras",
        metavar="RATE",
        help="instead: say how many cameras that send so many frames, such as 25/s, one machine holds; RUN is of video",
    )
    asked.add_argument(
        "--machines",
        metavar="N[,N...]",
        help="instead: say what so many machines bring; one number stands for 1, 2, 4 and so on up to it",
    )
    parser.add_argument("--slo", metavar="GOAL", help="a percentile of the latency to keep, such as p99=500ms")
    parser.add_argument("--price", metavar="PRICE", help="of one machine, such as 0.75/h, in your currency")
    parser.add_argument("--headroom", metavar="SHARE", help="the share of full load to leave free (default 20%%)")
    parser.add_argument(
        "--change",
        action="append",
        default=[],
        dest="named",
        metavar="'NAME: OPTIONS'",
        help="a change to evaluate, in the options below, such as 'new decoder: --speedup decode=3'; may be repeated",
    )
    parser.add_argument(
        "--limit",
        action="append",
        default=[],
        metavar="NAME=AMOUNT[:PER_JOB]",
        help="with --machines: what all share, such as receiver=500/s, store=1GB/s, queue=3000/s or database=2000/s:3 (three "
        "calls a job); may be repeated",
    )
    parser.add_argument("--start", metavar="TIME", help="with --machines: what a machine takes to boot, such as 90s")
    parser.add_argument(
        "--interruptions", metavar="RATE", help="with --machines: how often one is taken away, such as 0.05/h (spot)"
    )
    parser.add_argument("--only", action="store_true", help="look at the changes given and at no others")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the simulated arrivals (default 0)")
    parser.add_argument("--untrusted", action="store_true", help="plan even from a run whose checks failed")
    parser.add_argument(
        "--ledger", metavar="FILE", help="the ledger whose record is shown (default runs/ledger.sqlite)"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the result as JSON (schema headrace.capacity/1, headrace.cameras/1 or headrace.machines/1)",
    )
    add_change_arguments(parser.add_argument_group("one change", "options that make one change together"))  # type: ignore[arg-type]


def run(args: argparse.Namespace) -> int:
    """Plan, and print it."""
    from headrace.cli.capacity_text import as_text
    from headrace.diagnose.analysis import Analysis
    from headrace.diagnose.replay import CannotReplay
    from headrace.runs.reader import read_run
    from headrace.tune.cameras import cameras_document
    from headrace.tune.capacity import capacity_document

    wish = None if args.machines is None else _wish(args)
    _check_beside_machines(args)
    need = None if args.cameras is not None or wish else _need(args)
    cameras = None if args.cameras is None else _cameras(args)
    analysis = Analysis(read_run(args.run_folder))
    try:
        replay = analysis.replay
        if replay.document.distrust and not args.untrusted:
            raise CannotReplay(
                f"{args.run_folder} is not trusted, and a plan that rests on it would not be either: "
                f"{'; '.join(replay.document.distrust)}. Profile again, or add --untrusted to plan all the same"
            )
        if wish is not None:
            return _tell_machines(args, analysis, wish)
        if cameras is not None:
            return _tell_cameras(args, cameras_document(replay, *cameras, seed=args.seed))
    except CannotReplay as error:
        say(f"headrace capacity: {error}")
        return EXIT_INCONCLUSIVE
    assert need is not None
    document = capacity_document(
        replay, need, _list_wanted(args, analysis), record=_record(args.ledger), seed=args.seed
    )
    if args.json:
        write_json(document, indented=True)
    else:
        write(as_text(document), end="")
    return _status(document)


def _status(document: CapacityDocument) -> int:
    base = document.options[0]
    if document.slo and document.slo_met is False:
        return EXIT_NEGATIVE
    if base.machines is None or (document.slo and document.slo_met is None):
        return EXIT_INCONCLUSIVE
    return EXIT_DONE


def _need(args: argparse.Namespace) -> Need:
    from headrace.base.errors import SettingsError
    from headrace.base.goals import parse_price, parse_rate, parse_slo
    from headrace.tune.capacity import HEADROOM, Need

    try:
        return Need(
            rate=parse_rate(args.rate),
            slo=None if args.slo is None else parse_slo(args.slo),
            price_per_hour=None if args.price is None else parse_price(args.price),
            headroom=HEADROOM if args.headroom is None else _share(args.headroom),
        )
    except SettingsError:
        raise
    except ValueError as error:
        raise SettingsError(str(error)) from None


def _cameras(args: argparse.Namespace) -> tuple[float, LatencyGoal | None, float]:
    """Return the frames a second of a camera, the goal and the headroom.

    Raises:
        SettingsError: If something else is asked for beside it.
    """
    from headrace.base.errors import SettingsError

    beside = [("--price", args.price), ("--change", args.named), ("--only", args.only)]
    for option, value in beside:
        if value:
            raise SettingsError(f"--cameras says what one machine holds, so {option} has no place beside it")
    need = _need(argparse.Namespace(**{**vars(args), "rate": args.cameras}))
    return need.rate, need.slo, need.headroom


def _wish(args: argparse.Namespace) -> Wish:
    """Return what is asked about more machines.

    Raises:
        SettingsError: If something else is asked for beside it.
    """
    from headrace.base.errors import SettingsError
    from headrace.base.goals import parse_price
    from headrace.base.units import parse_seconds
    from headrace.tune.machines import Wish, parse_machines

    beside = [("--slo", args.slo), ("--headroom", args.headroom), ("--change", args.named), ("--only", args.only)]
    for option, value in beside:
        if value:
            raise SettingsError(f"--machines says what machines at full load bring, so {option} has no place beside it")
    try:
        return Wish(
            machines=parse_machines(args.machines),
            boot_seconds=0.0 if args.start is None else parse_seconds(args.start),
            # a rate per hour, read as a price is: 0 is one, too
            interruptions_per_hour=0.0 if args.interruptions is None else _per_hour(args.interruptions),
            price_per_hour=None if args.price is None else parse_price(args.price),
            seed=args.seed,
        )
    except SettingsError:
        raise
    except ValueError as error:
        raise SettingsError(str(error)) from None


def _check_beside_machines(args: argparse.Namespace) -> None:
    from headrace.base.errors import SettingsError

    for option, value in (("--limit", args.limit), ("--start", args.start), ("--interruptions", args.interruptions)):
        if value and args.machines is None:
            raise SettingsError(f"{option} is of --machines, such as --machines 100")


def _per_hour(text: str) -> float:
    from headrace.base.goals import parse_price

    try:
        return parse_price(text)
    except ValueError:
        raise ValueError(f"--interruptions: expected a rate such as 0.05/h or 1/day, got {text!r}") from None


def _tell_machines(args: argparse.Namespace, analysis: Analysis, wish: Wish) -> int:
    import dataclasses

    from headrace.cli.machines_text import as_text
    from headrace.tune.machines import machines_document
    from headrace.tune.shared_limits import parse_limit

    replay = analysis.replay
    wish = dataclasses.replace(wish, change=change_of(args, replay.plan, analysis.run.info.stages))
    document = machines_document(analysis, wish, [parse_limit(text, replay) for text in args.limit])
    if args.json:
        write_json(document, indented=True)
    else:
        write(as_text(document), end="")
    return EXIT_DONE


def _tell_cameras(args: argparse.Namespace, document: CamerasDocument) -> int:
    from headrace.base.formatting import wrap_lines

    if args.json:
        write_json(document, indented=True)
    else:
        lines = [document.pipeline or document.run, *document.says, *([document.refused] if document.refused else [])]
        write("\n".join(wrap_lines([*lines, *(f"warning: {one}" for one in document.warnings)])) + "\n", end="")
    if document.slo and document.slo_met is False:
        return EXIT_NEGATIVE
    return EXIT_INCONCLUSIVE if document.cameras is None or (document.slo and document.slo_met is None) else EXIT_DONE


def _share(text: str) -> float:
    """Return a share from `20%` or `0.2`."""
    try:
        return float(text.strip().removesuffix("%")) / (100 if "%" in text else 1)
    except ValueError:
        raise ValueError(f"--headroom: expected a share such as 20% or 0.2, got {text!r}") from None


def _list_wanted(args: argparse.Namespace, analysis: Analysis) -> list[Wanted]:
    """Return the user's changes, and unless they are all that is wanted those worth showing."""
    from headrace.base.errors import SettingsError
    from headrace.diagnose.whatif import in_words
    from headrace.tune.capacity import Wanted
    from headrace.tune.improvements import find_improvements

    replay, stages = analysis.replay, analysis.run.info.stages
    found = [_parse_named(text, replay) for text in args.named]
    change = change_of(args, replay.plan, stages)
    if not change.is_nothing:
        found.insert(0, Wanted(in_words(change), change))
    for one in found:
        if one.change.arrival_rate is not None:
            raise SettingsError("--arrival-rate is no improvement: --rate says what comes")
    if args.only and not found:
        raise SettingsError("--only leaves nothing to look at: give a change, such as --speedup decode=2")
    return found if args.only else [*found, *find_improvements(analysis)]


class _Options(argparse.ArgumentParser):
    """Options within one argument."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of ending the program."""
        from headrace.base.errors import SettingsError

        raise SettingsError(f"--change: {message}; expected 'NAME: OPTIONS' such as 'new decoder: --speedup decode=3'")


def _parse_named(text: str, replay: Replay) -> Wanted:
    """Return a change written as `NAME: OPTIONS`; the name may be left out."""
    from headrace.base.errors import SettingsError
    from headrace.diagnose.whatif import in_words
    from headrace.tune.capacity import Wanted

    parser = _Options(prog="--change", add_help=False, allow_abbrev=False)
    add_change_arguments(parser)
    name, colon, options = text.partition(":")
    if not colon or name.lstrip().startswith("--"):
        name, options = "", text
    try:
        words = shlex.split(options)
    except ValueError as error:
        raise SettingsError(f"--change {text!r}: {error}") from None
    given = parser.parse_args(words)
    change = change_of(given, replay.plan, replay.run.info.stages)
    if change.is_nothing:
        raise SettingsError(f"--change {text!r} changes nothing; expected options such as --speedup decode=3")
    return Wanted(name.strip() or in_words(change), change)


def _record(given: str | None) -> TrackRecord:
    """Return how well the ledger's predictions did; one that is not there yet is not made."""
    from headrace.ledger.ledger import Ledger, ledger_path
    from headrace.runs.formats.prediction import TrackRecord

    path: Any = ledger_path(given)
    if given is None and not Path(path).exists():
        return TrackRecord(num=0)
    with Ledger.open(path, must_exist=True) as ledger:
        return ledger.track_record()
