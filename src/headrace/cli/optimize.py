"""Make a model cheaper, and prove it: engines, precisions, int8, workers and batch; pruning and training with a recipe.

    headrace optimize scenes.onnx --data calibration.npz --golden golden.npz --max-drop 0.5pt
    headrace optimize scenes.onnx --data calibration.npz --golden golden.npz -o plan.toml
    headrace optimize scenes.onnx --pipeline jobs:pipeline --data train/ --golden held_out/
    headrace optimize scenes.onnx --pipeline jobs:pipeline --data train/ --golden held_out/ --source photos/ -o plan.toml
    headrace optimize scenes.onnx --run runs/today --rate 100/s --data calibration.npz --golden golden.npz
    headrace optimize scenes.onnx@openvino,precision=bf16 --explain
    headrace optimize training:recipe --pipeline jobs:pipeline --data train/ --golden held_out/

int8 needs `pip install 'headrace[onnx]'`, half of the ladder `headrace[openvino]`; what is missing is said, and not tried.

Every candidate passes the same gates, cheapest first: it opens, int8 is really int8, it answers alike, it is faster (calls in
turn), and on the golden set it is as often right within --max-drop. What was tried is in the ledger, rejected or not; the same
is not tried twice. It takes some seconds for each candidate, and a pass over the golden set for each that is surely faster:
minutes for a small model and 3,000 images, with a recipe as long as its training.

--data is calibration data, --golden decides: .npz files with the arrays inputs (items, ...), as the model takes them, and
labels (items,); or folders with labels.jsonl or a folder for each class, which --pipeline decodes and preprocesses. They
must have no item and no source (photograph, camera) in common. With --run nothing is tried where the model is too small a
share of the run to matter, or where --slo and --rate are met already.
With --pipeline and --source the whole pipeline is measured with what was found, and nothing recommended that gains it nothing.
--explain shows what the engine makes of one variant: which layers run in int8, and what conversions cost. --portability says
for each engine what would fail there: operators, batch sizes, precisions, and what is missing on this machine. It calls the
file with --golden, which may be an .npz file with one array for each of several inputs; else with noise.

MODULE:ATTRIBUTE in the place of MODEL names a recipe, an object of yours with `example`, `build()`, `fit(network, teacher)` and
`evaluate(network)`: the PyTorch network is converted, and pruned and trained again too.

-o writes a Plan that uses the variant; `headrace ledger rollback PLAN` takes it back. --report writes a page with the picture.

Exit status: 0 a variant or a layout is recommended; 2 misuse; 3 something is not installed; 4 none is; 130 interrupted, and
the same command goes on.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base.formatting import quote_arg
from headrace.cli import EXIT_DONE, EXIT_INTERRUPTED
from headrace.cli.metric_argument import find_metric
from headrace.cli.optimize_arguments import declare
from headrace.cli.output_file import check_output
from headrace.cli.search_worth import check_worth
from headrace.cli.terminal import speaker, write, write_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.base.plan import Plan
    from headrace.ledger.ledger import Ledger
    from headrace.optimize.artifacts import ArtifactStore
    from headrace.optimize.concurrency import Concurrency
    from headrace.optimize.goal import Goal
    from headrace.optimize.pipeline_speedup import PipelineSpeedup
    from headrace.optimize.recipe import Buildable
    from headrace.runs.formats.census import CensusDocument
    from headrace.runs.formats.optimization import OptimizationDocument
    from headrace.validate.golden import Golden
    from headrace.validate.items import Items
    from headrace.validate.variant_spec import VariantSpec

_say = speaker("optimize")

EXIT_NOTHING = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    declare(parser)


def run(args: argparse.Namespace) -> int:
    """Search, and print what came of it."""
    _check_together(args)
    if args.explain or args.portability:
        args.threads, of_recipe = args.threads or 1, _names_recipe(args.model)
        _convert_recipe(args)
        return _explain(args) if args.explain else _portability(args, of_recipe=of_recipe)
    document, proved = find_cheaper_model(args)
    _print(args, document)
    if document.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_DONE if proved else EXIT_NOTHING


def find_cheaper_model(args: argparse.Namespace) -> tuple[OptimizationDocument, bool]:
    """Search, and write the Plan, its decision and the page; return what was found, and whether it is proved."""
    import msgspec

    from headrace.base.plan import Plan
    from headrace.diagnose.analysis import Analysis
    from headrace.engines.networks import names
    from headrace.ledger.ledger import Ledger
    from headrace.optimize.artifacts import ArtifactStore
    from headrace.optimize.cost_summary import with_cost_summary
    from headrace.optimize.pipeline_speedup import PipelineSpeedup
    from headrace.runs.reader import read_run

    check_output(args.output, force=args.force)
    check_output(args.report, force=args.force, option="--report")
    plan = Plan.load(args.plan) if args.plan else Plan()
    args.began, args.named = time.monotonic(), args.model  # a recipe's file takes its place
    stage, args.key = _device_stage(args, plan)
    args.threads = args.threads or plan.model_of(args.key).threads or 1
    analysis = Analysis(read_run(args.run_folder)) if args.run_folder else None
    ceiling, stopped = check_worth(args, analysis, _say)
    if stopped is not None:
        return stopped, False
    with Ledger.open(args.ledger) as ledger:
        store = ArtifactStore(ledger.path.parent / "artifacts")
        networks = names() if args.pipeline else ()  # before the recipe's module, which no worker loads
        recipe = _recipe(args, store)  # before the sets are read: it says which file the model is
        golden = _items(args, args.golden)
        pipeline = PipelineSpeedup.of(analysis) if analysis else None
        document = _search(args, ledger, plan, stage, store, recipe, golden, networks, pipeline)
        proved = _is_proved(document)
        if proved and not document.interrupted and args.pipeline and (args.source or args.run_folder):
            document = _end_to_end(args, ledger, plan, document, stage)
            proved = _is_proved(document)
        elif proved and not document.interrupted:
            document = _add_end_to_end_hint(args, document)
        document = with_cost_summary(msgspec.structs.replace(document, ceiling=ceiling), _price(args.price))
        if args.output and proved and not document.interrupted:
            _accept(args, ledger, plan, document, stage)
        if args.report and not document.interrupted:
            _write_page(args, ledger, document, golden)
    return document, proved


def _check_together(args: argparse.Namespace) -> None:
    """Raise SettingsError for an option that would do nothing without another."""
    from headrace.base.errors import SettingsError

    if args.source and not args.pipeline:
        raise SettingsError("--source is what a pipeline is measured on; name it with --pipeline MODULE:ATTRIBUTE")
    if args.against and not args.explain:
        raise SettingsError("--against is what --explain holds a variant against; add --explain, or leave it out")


def _print(args: argparse.Namespace, document: OptimizationDocument) -> None:
    from headrace.cli.optimization_text import as_text

    if args.json:
        _print_json(document)
    else:
        write(as_text(document, None if document.interrupted else args.output), end="")


def _is_proved(document: OptimizationDocument) -> bool:
    return bool(document.recommended or (document.layout and document.layout.verdict == "accept"))


def _end_to_end(
    args: argparse.Namespace, ledger: Ledger, plan: Plan, document: OptimizationDocument, stage: str
) -> OptimizationDocument:
    """Run the pipeline with what was found, and say what it gains."""
    import dataclasses

    from headrace.cli.loading import load_pipeline, parse_source
    from headrace.compare.blocks import read_items
    from headrace.optimize.better_plan import better_plan
    from headrace.optimize.end_to_end import Question, judge, judge_end_to_end

    pipeline = load_pipeline(args.pipeline)
    if args.source:
        pipeline.source = parse_source(args.source, drain=False)
    now = plan.model_of(args.key)
    model = dataclasses.replace(now, artifact=now.artifact or str(Path(args.model).absolute()))
    question = Question(
        pipeline=pipeline, source=read_items(pipeline), before=plan.with_model(args.key, model),
        after=better_plan(plan, document, stage, args.key)[0], stage=stage, found=document,
    )  # fmt: skip
    found = judge_end_to_end(
        question, runs=ledger.path.parent, recorded=Path(args.run_folder) if args.run_folder else None, ledger=ledger,
        say=_say,
    )  # fmt: skip
    return judge(document, found, anyway=args.anyway)


def _add_end_to_end_hint(args: argparse.Namespace, document: OptimizationDocument) -> OptimizationDocument:
    """Say that nobody knows what the pipeline gains, and the command that tells."""
    import msgspec

    says = "the model was timed alone: what a pipeline gains is not known until it is measured with --source"
    return msgspec.structs.replace(
        document, warnings=(*document.warnings, says), next_command=_format_measuring_command(args)
    )


def _format_measuring_command(args: argparse.Namespace) -> str:
    """Return the same command with the pipeline measured; capitals stand for what was not given.

    A Plan that was written over the one in use is taken back first: else what was found would be held against itself.
    """
    from headrace.validate.policy import MAX_SLICE_DROP

    given = {
        "--data": args.data, "--golden": args.golden, "--max-drop": f"{100 * args.max_drop:g}pt",
        "--max-slice-drop": f"{100 * args.max_slice_drop:g}pt" if args.max_slice_drop != MAX_SLICE_DROP else None,
        "--metric": args.metric if args.metric != "top1" else None, "--batch": args.batch, "--threads": args.threads,
        "--for": args.objective if args.objective != "throughput" else None, "--plan": args.plan, "--ledger": args.ledger,
        "--input-sizes": ",".join(map(str, args.input_sizes)), "-o": args.output, "--price": args.price,
        "--target": args.target if args.target != "here" else None,
        "--budget": f"{args.budget:g}s" if args.budget else None,
    }  # fmt: skip
    words = [args.named, *(word for option, value in given.items() if value for word in (option, str(value)))]
    words += [word for file in args.also for word in ("--also", file)]
    switches = {"--robustness": args.robustness, "--no-layout": args.no_layout, "--force": args.output}
    words += [option for option, is_set in switches.items() if is_set]
    words += ["--pipeline", args.pipeline or "MODULE:ATTRIBUTE", "--source", "SOURCE"]
    command = f"headrace optimize {' '.join(map(quote_arg, words))}"
    if not (args.output and args.plan and Path(args.output).resolve() == Path(args.plan).resolve()):
        return command
    back = ["rollback", args.output, *(["--ledger", args.ledger] if args.ledger else [])]
    return f"headrace ledger {' '.join(map(quote_arg, back))} && {command}"


def _device_stage(args: argparse.Namespace, plan: Plan) -> tuple[str, str]:
    """Return the stage that runs the model, and the key of its table in the Plan: empty where `[model]` is its table.

    Raises:
        SettingsError: If a pipeline has several modules, and it cannot be told which one the model is of.
    """
    from headrace.base.errors import SettingsError
    from headrace.base.plan import model_key

    if not args.pipeline:
        if plan.models:
            raise SettingsError(
                f"--plan {args.plan} has several models ({', '.join(plan.models)}): name the pipeline that runs this one, with "
                "--pipeline MODULE:ATTRIBUTE"
            )
        return "process", ""
    from headrace.cli.loading import load_pipeline
    from headrace.cli.module_argument import stage_of_model
    from headrace.stages.module import ProcessStage

    pipeline = load_pipeline(args.pipeline)
    stage = stage_of_model(pipeline, args.model)
    key = model_key(stage.task, stage.name)
    is_only = sum(isinstance(one, ProcessStage) for one in pipeline.stages) == 1
    if not key and not is_only:
        raise SettingsError(
            f"{args.pipeline} has several modules, and nothing in the Plan tells {stage.name}'s model from the others': give "
            "its stages a prefix or a task, as in module.stages(prefix='faces.')"
        )
    return stage.name, key if key in plan.models or not is_only else ""


def _search(
    args: argparse.Namespace,
    ledger: Ledger,
    plan: Plan,
    stage: str,
    store: ArtifactStore,
    recipe: Buildable | None,
    golden: Golden | None,
    networks: tuple[str, ...],
    pipeline: PipelineSpeedup | None,
) -> OptimizationDocument:
    from headrace.ledger.ledger import hardware_fingerprint
    from headrace.optimize.search import optimize
    from headrace.runs.hardware import find_hardware
    from headrace.validate import measuring

    calibration = _items(args, args.data, labelled=False)
    _check_source(args, {"--data": calibration, "--golden": golden})
    return optimize(
        Path(args.model),
        store=store,
        goal=_goal(args, plan, stage),
        calibration=calibration,
        golden=golden,
        memory=ledger.attempts,
        hardware=hardware_fingerprint(find_hardware()),
        recipe=recipe,
        networks=networks,
        pipeline=pipeline,
        weigh=measuring.current().measure_memory,
        in_use=plan.model_of(args.key),
        say=_say,
    )


def _check_source(args: argparse.Namespace, sets: Mapping[str, Golden | None]) -> None:
    """Refuse to measure the pipeline on files that a set holds, before anything is searched for."""
    from headrace.cli.loading import parse_source
    from headrace.sources.finite import FiniteSource
    from headrace.validate.disjoint import check_production

    source = parse_source(args.source, drain=False) if args.pipeline and args.source else None
    if isinstance(source, FiniteSource):
        check_production((one.payload for one in source.parts() if isinstance(one.payload, Path)), sets)


def _goal(args: argparse.Namespace, plan: Plan, stage: str) -> Goal:
    from headrace.cli.golden_argument import find_declared_output
    from headrace.optimize.goal import Goal
    from headrace.pipeline.thread_budget import usable_cores

    return Goal(
        objective=args.objective,
        max_drop=args.max_drop,
        max_slice_drop=args.max_slice_drop,
        metric=find_metric(args.metric),
        robustness=args.robustness,
        threads=args.threads,
        batch=args.batch or (1 if args.objective == "latency" else 8),
        budget_seconds=args.budget,
        began=args.began,
        concurrency=None if args.no_layout else _concurrency(args, plan, stage),
        cores=usable_cores(),
        again=args.again,
        price_per_hour=_price(args.price),
        pipeline=args.pipeline or "",
        output=find_declared_output(args.pipeline, args.model),
        target=args.target,
        input_sizes=args.input_sizes,
        also=tuple(map(Path, args.also)),
    )


def _recipe(args: argparse.Namespace, store: ArtifactStore) -> Buildable | None:
    """Return the recipe that stands in the place of the model, and put its converted file there; None if it is a file."""
    if not _names_recipe(args.model):
        return None
    from headrace.cli.loading import load_attribute
    from headrace.optimize.recipe import check_recipe
    from headrace.optimize.trained import converted

    target = args.model
    recipe = check_recipe(load_attribute(target), target)
    _say(f"{target}: building and converting the network")
    args.model = converted(recipe, target, store).file
    return recipe


def _convert_recipe(args: argparse.Namespace) -> None:
    """Put the converted file of a recipe in its place, for what looks at a file; MODULE:ATTRIBUTE@ENGINE keeps its engine."""
    from headrace.ledger.ledger import Ledger
    from headrace.optimize.artifacts import ArtifactStore

    args.model, at, engine = args.model.partition("@")
    if _names_recipe(args.model):
        with Ledger.open(args.ledger) as ledger:
            store = ArtifactStore(ledger.path.parent / "artifacts")
        _recipe(args, store)
        _say(f"converted: {args.model}")
    args.model += at + engine


def _names_recipe(model: str) -> bool:
    return ":" in model and not Path(model.partition("@")[0]).exists()


def _items(args: argparse.Namespace, path: str | None, *, labelled: bool = True) -> Golden | None:
    from headrace.cli.golden_argument import read_items
    from headrace.validate.variant_spec import parse_variant

    return read_items(path, args.pipeline, parse_variant(args.model, args.threads), _say, labelled=labelled)


def _price(text: str | None) -> float | None:
    from headrace.base.errors import SettingsError
    from headrace.base.goals import parse_price

    try:
        return None if text is None else parse_price(text)
    except ValueError as error:
        raise SettingsError(str(error)) from None


def _concurrency(args: argparse.Namespace, plan: Plan, stage: str) -> Concurrency:
    """Return the concurrency of the Plan as it is."""
    from headrace.base.plan import StagePlan
    from headrace.optimize.concurrency import Concurrency

    now = plan.stages.get(stage, StagePlan())
    batch = now.batch or (args.batch or 1 if args.objective == "latency" else 1)
    return Concurrency(workers=now.workers or 1, threads=plan.model_of(args.key).threads or args.threads, batch=batch)


def _accept(args: argparse.Namespace, ledger: Ledger, plan: Plan, document: OptimizationDocument, stage: str) -> None:
    """Write the Plan and the decision."""
    import datetime

    from headrace.optimize.better_plan import better_plan, proof_of
    from headrace.runs.hardware import find_hardware
    from headrace.runs.plan_file import plan_text

    proof = proof_of(document)
    changed, reasons = better_plan(plan, document, stage, args.key)
    text = plan_text(
        changed,
        reasons,
        [
            document.says,
            f"Attempt {proof.id} of the ledger; headrace ledger rollback {quote_arg(args.output)} takes it back.",
        ],
        made_by="optimize",
        subject=args.model,
        hardware=find_hardware(),
        today=datetime.datetime.now(tz=datetime.UTC).date(),
    )
    ledger.attempts.accept(
        Path(args.output), text, attempt_id=proof.id, why=document.says, unless_exists=not args.force
    )


def _write_page(
    args: argparse.Namespace, ledger: Ledger, document: OptimizationDocument, golden: Golden | None
) -> None:
    from headrace.cli.output_file import write_output
    from headrace.optimize.layers_of_choice import with_layers
    from headrace.report.variants_page import render_variants
    from headrace.validate.thumbnails import thumbnails

    if golden is not None:
        document = with_layers(document, golden.inputs)
    worst = [item for attempt in document.attempts for item in attempt.validation.worst]
    page = render_variants(document, ledger.attempts.decisions(last=20), thumbnails(worst, golden))
    write_output(Path(args.report), page, option="--report")
    _say(f"written: {args.report}")


def _explain(args: argparse.Namespace) -> int:
    import numpy as np

    from headrace.cli.golden_argument import noise
    from headrace.cli.optimization_text import census_text
    from headrace.validate.precision_audit import audit_precision, check_can_tell
    from headrace.validate.variant_spec import parse_variant

    spec = parse_variant(args.model, args.threads)
    check_can_tell(spec)
    size = args.batch or 1
    given = _items(args, args.data, labelled=False) or noise(spec, args.pipeline, size)
    items = given.inputs if given.is_made_up else given.scale_to(spec.model.input_side)
    batch = items[np.arange(size) % len(items)]
    document = _add_layers(args, spec, audit_precision(spec, batch), items)
    if args.json:
        _print_json(document)
    else:
        write(census_text(document), end="")
    return EXIT_DONE


def _add_layers(args: argparse.Namespace, spec: VariantSpec, census: CensusDocument, items: Items) -> CensusDocument:
    """Return the census with how far each tensor is from that of the model that --against names."""
    import msgspec

    from headrace.validate.layer_errors import first_beyond, layer_errors
    from headrace.validate.variant_spec import parse_variant
    from headrace.validate.variants import precision_of

    if not args.against:
        return census
    layers = layer_errors(parse_variant(args.against, args.threads), spec, items)
    first = first_beyond(layers, precision_of(spec))
    return msgspec.structs.replace(census, layers=layers, diverges_at=first.name if first else "")


def _portability(args: argparse.Namespace, *, of_recipe: bool) -> int:
    from headrace.base.errors import SettingsError
    from headrace.cli.golden_argument import find_prepared_shape
    from headrace.cli.optimization_text import portability_text
    from headrace.optimize.portability import find_portability
    from headrace.runs.cpu_features import cpu_flags

    if not Path(args.model).is_file():
        raise SettingsError(
            f"--portability {args.model}: there is no such file; expected an ONNX file, or a recipe as MODULE:ATTRIBUTE"
        )
    given = _items(args, args.golden or args.data, labelled=False)
    document = find_portability(
        Path(args.model), cpu_flags(), of_recipe=of_recipe, items=given.inputs if given else None,
        prepared=None if given else find_prepared_shape(args.pipeline, args.model),
    )  # fmt: skip
    if args.json:
        _print_json(document)
    else:
        write(portability_text(document), end="")
    return EXIT_DONE


def _print_json(document: object) -> None:

    write_json(document, indented=True)
