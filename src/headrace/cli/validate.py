"""Say whether one variant of a model may stand in for another: does it answer alike, how fast is it, is it as often right?

    headrace validate scenes.onnx scenes_int8.onnx --golden golden.npz
    headrace validate scenes.onnx scenes.onnx@openvino,precision=bf16 --golden golden.npz --max-drop 0.5pt
    headrace validate scenes.onnx scenes_int8.onnx --golden held_out/ --data train/ --pipeline jobs:pipeline
    headrace validate scenes.onnx scenes.onnx@openvino --batch 8 --threads 2 --min-speedup 1.2

With --frames it says what it costs to look at fewer frames: accuracy, delays and events on labelled clips, by the answers of
one run over every frame.

    headrace validate --frames all.jsonl --labels labels.csv --every 2,3,5 --smooth 0.25 --max-drop 1pt

A variant is MODEL[@ENGINE[,KEY=VALUE]...]: a file with the engine that runs it (onnx unless named) and its settings; keys
are threads, input_side and the engine's own (precision). A is the one in use, B the one that would take its place.

The gates are those of `headrace optimize`, which makes and tries many variants; here you name one pair, and nothing is made or
changed. The ledger, if there is one, only records that the golden set was used.

A golden set is an .npz file with the arrays inputs (items, ...), as the model takes them, and labels (items,); or a folder with
labels.jsonl or a folder for each class, which --pipeline decodes and preprocesses. For --metric map, map50 and iou it holds
boxes with classes, or masks, instead of labels. Without labels the two must agree. Without a golden set they are compared on
noise, which can only show that B is broken (of the size that --pipeline prepares if an axis is free). Data on which B was
calibrated or trained cannot judge it: name it as --data, and a golden set that shares an item or a known source (photograph,
camera) with it is refused.

Exit status: 0 B may replace A; 1 it may not; 3 an engine is not installed; 4 inconclusive, so do not use B either; 130
interrupted.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base.errors import SettingsError
from headrace.cli import EXIT_DONE, EXIT_INTERRUPTED
from headrace.cli.metric_argument import add_metric_argument, find_metric
from headrace.cli.output_file import check_output, write_output
from headrace.cli.pipeline_arguments import points
from headrace.cli.terminal import as_json, open_console, say, write_machine_readable
from headrace.cli.validate_frames import add_frames_arguments

if TYPE_CHECKING:
    from headrace.runs.formats.variants import ValidationDocument
    from headrace.validate.golden import Golden

_STATUS = {"accept": EXIT_DONE, "reject": 1, "inconclusive": 4}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("a", metavar="A", nargs="?", help="the variant in use: MODEL[@ENGINE[,KEY=VALUE]...]")
    parser.add_argument("b", metavar="B", nargs="?", help="the variant that would take its place, the same")
    parser.add_argument("--golden", metavar="FILE", help="an .npz file with inputs and labels, or a folder of images")
    parser.add_argument(
        "--data",
        metavar="FILE",
        help="data on which B was calibrated or trained, in the same form; refused if it is in --golden",
    )
    parser.add_argument(
        "--pipeline",
        metavar="MODULE:ATTRIBUTE",
        help="the pipeline that decodes and preprocesses the images of folders",
    )
    parser.add_argument(
        "--max-drop", type=points, default=0.005, metavar="DROP",
        help="largest acceptable drop of the share of right answers: 0.5pt, 0.5%% or 0.005 (default 0.5pt)",
    )  # fmt: skip
    parser.add_argument(
        "--max-slice-drop", type=points, default=0.05, metavar="DROP",
        help="largest acceptable drop within a part of the golden set, such as a class (default 5pt)",
    )  # fmt: skip
    add_metric_argument(parser)
    parser.add_argument(
        "--robustness",
        action="store_true",
        help="also compare on damaged images: blur, noise, JPEG, light, rotation, grey",
    )
    parser.add_argument("--min-speedup", type=float, metavar="RATIO", help="reject a B that is not RATIO times as fast")
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="items of a call (default 1)")
    parser.add_argument(
        "--threads", type=int, default=1, metavar="N", help="threads of a call, unless a variant names them (default 1)"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the result as JSON (schema headrace.validate/1)")
    parser.add_argument(
        "--report",
        metavar="FILE",
        help="write a page with every gate, parts of the golden set, and items that were lost",
    )
    parser.add_argument("--force", action="store_true", help="replace FILE")
    parser.add_argument(
        "--ledger", metavar="FILE",
        help="counts that the golden set has judged (default: $HEADRACE_LEDGER, else runs/ledger.sqlite, where it exists)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the result as JSON (schema headrace.validate/1)")
    add_frames_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Validate, and print the verdict."""
    if args.frames:
        return _run_frames(args)
    if args.a is None or args.b is None:
        raise SettingsError("two variants are needed: headrace validate A B; or --frames FILE with --labels FILE")
    from headrace.cli.golden_argument import find_declared_output, find_prepared_shape, read_items
    from headrace.cli.golden_uses import count_uses
    from headrace.validate.disjoint import check_disjoint
    from headrace.validate.policy import Policy
    from headrace.validate.sample_size import sample_size_told
    from headrace.validate.variant_spec import parse_variant
    from headrace.validate.variants import validate_variants

    check_output(args.output, force=args.force)
    check_output(args.report, force=args.force, option="--report")
    a, b = parse_variant(args.a, args.threads), parse_variant(args.b, args.threads)
    policy = Policy(
        max_drop=args.max_drop,
        max_slice_drop=args.max_slice_drop,
        min_speedup=args.min_speedup,
        batch=args.batch,
        metric=find_metric(args.metric),
        robustness=args.robustness,
        # Its module registers the networks that the torch engine may be asked for, too.
        output=find_declared_output(args.pipeline, a.model.artifact),
    )
    golden = read_items(args.golden, args.pipeline, a, _say)
    check_disjoint({"--data": read_items(args.data, args.pipeline, a, _say, labelled=False), "--golden": golden})
    needed = sample_size_told(len(golden), policy) if golden else ""
    if needed:
        _say(needed)
    with count_uses(args.ledger, _say) as count:
        prepared = None if golden else find_prepared_shape(args.pipeline, a.model.artifact)
        document = validate_variants(a, b, golden, policy, say=_say, prepared=prepared)
        if golden is not None:
            count(document)
    encoded = as_json(document, indented=True)
    if args.output:
        write_output(Path(args.output), encoded)
    if args.report:
        _write_page(args.report, document, golden)
    if args.json:
        write_machine_readable(encoded)
    else:
        _print(document)
    return EXIT_INTERRUPTED if document.interrupted else _STATUS[document.verdict]


def _run_frames(args: argparse.Namespace) -> int:
    from headrace.cli.validate_frames import validate_frames

    for name in ("a", "golden", "data", "pipeline", "min_speedup", "report"):
        if getattr(args, name) is not None:
            shown = f"A {args.a}" if name == "a" else f"--{name.replace('_', '-')}"
            raise SettingsError(
                f"{shown} is about variants of a model, and --frames about clips; leave out one of them"
            )
    return validate_frames(args)


def _say(text: str) -> None:
    say(text)


def _write_page(file: str, document: ValidationDocument, golden: Golden | None) -> None:
    from headrace.report.validation_page import render_validation
    from headrace.validate.thumbnails import thumbnails

    page = render_validation(document, thumbnails(document.worst, golden))
    write_output(Path(file), page, option="--report")
    _say(f"written: {file}")


def _print(document: ValidationDocument) -> None:
    from rich.table import Table

    from headrace.base.units import format_duration
    from headrace.cli.lost_text import slices_told, worst_told
    from headrace.cli.optimization_text import layers_told

    console = open_console()  # a file may be called net[int8].onnx
    console.print(document.verdict.upper(), style="bold", end="  ")
    console.print(document.says)
    table = Table(box=None, pad_edge=False, show_edge=False)
    for heading in ("", "variant", "engine", "precision", "threads", "opens in", "a call takes"):
        table.add_column(heading)
    for name, side in (("A", document.a), ("B", document.b)):
        times = map(format_duration, (side.open_seconds, side.call_seconds))
        table.add_row(name, *(cell or "-" for cell in side.cells), *times)
    console.print(table)
    for gate in document.gates:
        console.print(f"{gate.name:9} {gate.outcome:13} {gate.says}")
    lost = [*slices_told(document.slices, document.num_slices), *worst_told(document.worst)]
    for line in (*lost, *layers_told(document.layers, document.diverges_at)):
        console.print(line)
    for warning in document.warnings:
        console.print(f"note: {warning}")
    if document.next_command:
        console.print(f"next: {document.next_command}", soft_wrap=True)
