"""`--review DIR`: keeps a sample of the answers, with what the model saw, for people to review."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.companions import BesideWorkers, Companion
from headrace.cli.pipeline_arguments import points, positive

if TYPE_CHECKING:
    from headrace.base.plan import Plan
    from headrace.base.worker_slot import WorkerSlot
    from headrace.monitor.review.catching import Places
    from headrace.monitor.review.reading import ResultReader
    from headrace.pipeline.definition import Pipeline
    from headrace.stages.stage import Stage

_OPTIONS = ("review_share", "review_bytes", "review_days", "review_pixels", "review_blur", "review_original")
_LEAST_BYTES = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    group = parser.add_argument_group(
        "review",
        "Keep some answers with the picture that the model saw, for `headrace review DIR`. Off unless a folder is named: the "
        "folder may then hold pictures of people; only its owner can read it.",
    )
    group.add_argument("--review", metavar="DIR", help="the folder in which a sample of the answers is kept")
    group.add_argument(
        "--review-share",
        type=points,
        metavar="SHARE",
        help="of the jobs, by chance, that are looked at (default 100%%)",
    )
    group.add_argument("--review-bytes", metavar="SIZE", help="that the folder may take, such as 500MB (default 1GiB)")
    group.add_argument("--review-days", type=positive, metavar="N", help="for which it is kept (default 30)")
    group.add_argument(
        "--review-pixels",
        type=positive,
        metavar="N",
        help="of the longer side of a kept picture, at most (default 512)",
    )
    group.add_argument(
        "--review-blur", action="store_true", help="blur pictures so that faces and plates cannot be recognised"
    )
    group.add_argument(
        "--review-original", action="store_true", help="keep the files that came instead of what the model saw of them"
    )


def open_companion(
    args: argparse.Namespace, pipeline: Pipeline, plan: Plan, slot: WorkerSlot | None
) -> Companion | None:
    """Return what keeps the sample; None without `--review`."""
    from headrace.base.errors import SettingsError
    from headrace.monitor.review.catching import ReviewCatcher, ReviewSettings
    from headrace.monitor.review.pictures import PictureSettings
    from headrace.monitor.review.store import open_folder

    given = [name for name in _OPTIONS if getattr(args, name)]
    if not args.review:
        if given:
            raise SettingsError(
                f"--{given[0].replace('_', '-')} goes with --review DIR; name a folder, or leave it out"
            )
        return None
    if args.review_original and (args.review_blur or args.review_pixels):
        raise SettingsError(
            "--review-original keeps files as they came; leave it, or --review-blur and --review-pixels, out"
        )
    settings = ReviewSettings(
        folder=open_folder(Path(args.review)),
        share=args.review_share or 1.0,
        max_bytes=_read_size(args.review_bytes or "1GiB"),
        max_days=args.review_days or 30,
        pictures=PictureSettings(
            pixels=args.review_pixels or 512, blur=args.review_blur, original=args.review_original
        ),
        num_workers=1 if slot is None else slot.num_workers,
    )
    catcher = ReviewCatcher(settings, find_places(pipeline, plan, original=args.review_original))
    return Companion(observers=[catcher], instruments=[catcher], watch=catcher.watch)


def _read_size(text: str) -> int:
    from headrace.base.errors import SettingsError
    from headrace.base.units import parse_size

    try:
        size = parse_size(text)
    except ValueError as error:
        raise SettingsError(f"--review-bytes: {error}") from None
    if size < _LEAST_BYTES:
        raise SettingsError(f"--review-bytes {text} is too little for a sample; expected at least 1MB")
    return size


def open_beside_workers(args: argparse.Namespace) -> BesideWorkers | None:
    """Return None: each worker writes files of its own."""
    return None


def find_places(pipeline: Pipeline, plan: Plan, *, original: bool) -> Places:
    """Return where pictures and answers of a pipeline are caught.

    Args:
        pipeline: Of which there is one route for each task.
        plan: Whose models it uses.
        original: Whether the files that came are kept, not what the model saw.
    """
    from headrace.monitor.review.catching import Places

    pictures: set[str] = set()
    answers: dict[str, ResultReader] = {}
    without = set()
    for route in pipeline.routes.values():
        stages = [stage for stage in route if stage.role != "deliver"]
        if not stages:
            continue
        found = _find_picture_stage(stages, original=original)
        pictures |= {found} - {""}
        answers[stages[-1].name] = _make_reader(stages, plan)
        without |= set() if found else {stages[-1].name}
    return Places(pictures=frozenset(pictures), answers=answers, without_picture=frozenset(without))


def _find_picture_stage(stages: list[Stage], *, original: bool) -> str:
    """Return the stage that makes what the model sees, or takes the file that came; empty if there is none."""
    made = [stage.name for stage in stages if stage.work in ("decode", "resize")]
    if not made:
        return ""
    return made[0] if original else made[-1]


def _make_reader(stages: list[Stage], plan: Plan) -> ResultReader:
    """Return what reads the results of a route, by what its module and its model's file say."""
    from headrace.base.meaning import Declared
    from headrace.engines.onnx_metadata import read_metadata
    from headrace.monitor.review.reading import ResultReader
    from headrace.stages.module import ProcessStage
    from headrace.validate.meaning_choice import class_names, meaning_of

    process = next((stage for stage in reversed(stages) if isinstance(stage, ProcessStage)), None)
    if process is None:
        return ResultReader(meaning_of=meaning_of)
    file = plan.model_of(process.task, process.name).artifact or process.defaults().model
    metadata = read_metadata(Path(file)) if file else {}
    return ResultReader(Declared(process.module.output, metadata), class_names(metadata) or (), meaning_of)
