"""How much faster `headrace optimize` makes two trained networks, within half a point of their accuracy, and how it gets there.

    python -m benchmarks.model_variants [--quick] [--json] [--write]

ResNet-18 and MobileNetV2 (`benchmarks.trained_models`) name the photograph that a crop was cut from. Calibration data are crops
of the regions that training saw, the golden set crops of regions that it never saw, its sources the photographs. All variants
are made and judged by the product's own commands, speed at 224 pixels, batch 1:

    models       `headrace optimize RECIPE`: best accepted variant over ONNX Runtime in float32, without training and with; the
                 same pairs again at two threads
    smaller      the same with `--input-sizes 192,176,160`, all of it over float32 at 224 pixels. These networks were trained on
                 views of 128 to 192 pixels and are right more often on 160 to 192 than on 224: smaller inputs cost them
                 nothing, and others something
    search       on the MobileNetV2's file: the variant that the search recommends against the best of all combinations of
                 files, engines and their options, called in turn; how many of them the search tried
    end_to_end   a folder of real JPEGs to Parquet with the Plan that `headrace optimize -o` wrote, with the best of twelve
                 choices of workers and batch (`--set`), against the peers of `benchmarks.peers` (tuned too, float32 model)
    defects, honest, false_accept   `benchmarks.planted_defects`

The full run needs PyTorch and torch-pruning (`pip install -e '.[bench,openvino,prune]'`) and about two hours on two quiet
cores, the two trainings included; training, golden set, rounds of pruning and what was judged are kept, and an interrupted run
goes on. `--quick` trains nothing: it asks the gates about a few defects, and takes the rest from the newest full result of this
hardware, which it names.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import headrace as hr
from benchmarks import comparison, corpus, measure, ours, planted_defects
from benchmarks.ours import PLANS, Classifier
from benchmarks.paths import CACHE, RESULTS, ROOT, digest
from benchmarks.peers import FolderBench
from headrace.base.errors import EngineError, HeadraceError
from headrace.optimize.artifacts import ArtifactStore
from headrace.optimize.equalization import equalize
from headrace.optimize.group_revert import revert
from headrace.optimize.int8 import quantize
from headrace.optimize.onnx_files import fold
from headrace.optimize.search import Goal, optimize
from headrace.samples import generator
from headrace.samples.catalogue import NAMES as NAMED
from headrace.samples.labels import read_labels
from headrace.validate.golden import Golden
from headrace.validate.golden_folder import read_golden_folder
from headrace.validate.model_speed import measure_speed
from headrace.validate.parity import BANDS
from headrace.validate.policy import Policy
from headrace.validate.variant_spec import parse_variant
from headrace.validate.variants import validate_variants

NAMES = ("mobilenetv2", "resnet18")
MAX_DROP = 0.005
GOLDEN_ITEMS, CALIBRATION_ITEMS = 8800, 256
GOLDEN_SEED, CALIBRATION_SEED = 31, 22
INPUT_SIZES = "192,176,160"
RECIPE_VERSION = 1  # part of the cache's key: raise it when the same settings would give other results
FOLDER = CACHE / "model_variants"
#: What a candidate of the exhaustive search is run with.
ENGINES = (
    "onnx", "onnx,spin=true", "onnx,inter_op_threads=2", "openvino,precision=f32", "openvino,precision=bf16",
    "openvino,precision=f16",
)  # fmt: skip
#: Of the optimized Plan end to end: workers that take a file from its path to its row, and images of a call of the model.
WORKERS, BATCHES, TUNING_COUNT = (2, 3, 4), (2, 4, 8, 16), 400
#: What a smoke run cannot measure.
KNOWN = ("models", "smaller", "accuracy_change_points", "search", "end_to_end")
_HEADRACE = "import sys; from headrace.cli import main; sys.exit(main())"

pipeline = hr.Pipeline(hr.folder("photos"), module=Classifier(), delivery=hr.jsonl("labels.jsonl"))


# --- what is judged on ------------------------------------------------------------------------------------------------


def make_items(split: str, count: int, seed: int) -> Path:
    """Return a folder of crops of one split with their labels and sources; made once.

    A crop's source is the region of the photograph that it was cut from: crops of one region are no independent witnesses.
    """
    folder = FOLDER / f"{split}-{digest([RECIPE_VERSION, split, count, seed])}"
    if not folder.exists():
        _say(f"cutting {count} crops, {split}")
        partial_folder = folder.with_suffix(f".{os.getpid()}.partial")
        generator.make(partial_folder, count=count, seed=seed, split=split)  # type: ignore[arg-type]
        rows = [
            {"file": one.file, "label": one.label, "source": f"{one.label}, {split}"}
            for one in read_labels(partial_folder)
        ]
        (partial_folder / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        partial_folder.rename(folder)
    return folder


# --- models -----------------------------------------------------------------------------------------------------------


def optimized(name: str, *options: str) -> dict[str, Any]:
    """Run `headrace optimize` on a recipe, and return its document; what was judged before is in the ledger."""
    work = FOLDER / "work"
    work.mkdir(parents=True, exist_ok=True)
    calibration = make_items("train", CALIBRATION_ITEMS, CALIBRATION_SEED)
    golden = make_items("held_out", GOLDEN_ITEMS, GOLDEN_SEED)
    output = work / f"{name}{'-smaller' if options else ''}"
    command = [
        "optimize", f"benchmarks.trained_models:{name}", "--pipeline", "benchmarks.model_variants:pipeline",
        "--data", calibration, "--golden", golden, "--max-drop", f"{100 * MAX_DROP}pt", "--for", "latency",
        "--ledger", work / "ledger.sqlite", "--plan", PLANS / "folder_to_parquet.toml", "-o", f"{output}.toml",
        "--no-layout", "--force", "--report", f"{output}.html", "--json", *options,
    ]  # fmt: skip
    Path(f"{output}.toml").unlink(missing_ok=True)
    return _headrace(*command, ends_with=(0, 4))


def _headrace(*command: object, ends_with: tuple[int, ...]) -> dict[str, Any]:
    """Run a command as a user would type it, and return its JSON."""
    words = [str(word) for word in command]
    _say(f"headrace {' '.join(words)}")
    done = subprocess.run(
        [sys.executable, "-c", _HEADRACE, *words], cwd=ROOT, env=_environment(), stdout=subprocess.PIPE, check=False
    )
    if done.returncode not in ends_with:
        raise RuntimeError(f"headrace {words[0]} ended with status {done.returncode}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def model_figures(name: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the best accepted variants, without training and with, at one thread and at two."""
    accepted = [one for one in document["attempts"] if one["verdict"] == "accept" and one["speedup"]]
    untrained = [one for one in accepted if one["kind"] != "trained" or one["technique"].startswith("input-")]
    figures: dict[str, Any] = {}
    for key, choice in (("untrained", untrained), ("trained", accepted)):
        best = max(choice, key=lambda one: one["speedup"]["mid"], default=None)
        figures[key] = None if best is None else best["speedup"]["mid"]
        figures[f"{key}_variant"] = None if best is None else _variant(best, document)
    figures["refused"] = [
        f"{one['technique']} on {one['settings']['engine']}: {one['says']}"
        for one in document["attempts"]
        if one["verdict"] == "reject"
    ]
    figures["skipped"] = [f"{one['technique']}: {one['why']}" for one in document["skipped"]]
    figures["says"] = document["says"]
    return figures


def _variant(attempt: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    accuracy = next(gate for gate in attempt["validation"]["gates"] if gate["name"] == "accuracy")["values"]
    source = [accuracy.get("source_low"), accuracy.get("source_high")]
    settings = attempt["settings"]
    return {
        "technique": attempt["technique"], "settings": {**settings, "artifact": Path(settings["artifact"]).name},
        "bytes": attempt["artifact"]["num_bytes"],
        "speedup": attempt["speedup"], "right": [accuracy["a"], accuracy["b"]],
        "accuracy_change_points": -100 * accuracy["drop"],
        "accuracy_change_by_photograph": sorted(-100 * end for end in source if end is not None),
        "two_threads": race_at_two_threads(document["baseline"]["name"], attempt["candidate"]),
    }  # fmt: skip


def race_at_two_threads(first: str, second: str) -> dict[str, float | None] | None:
    """Return how much faster the second variant is with two threads, both."""
    a, b = (parse_variant(text.replace("threads=1", "threads=2"), 2) for text in (first, second))
    items = read_golden_folder(make_items("train", CALIBRATION_ITEMS, CALIBRATION_SEED), Classifier(), labelled=False)
    found = validate_variants(a, b, items, Policy(batch=1, retrained=True), gates=("static", "speed"))
    speed = next((gate.values for gate in found.gates if gate.name == "speed"), None)
    return None if speed is None else {key: speed[key] for key in ("low", "ratio", "high")}


# --- search -----------------------------------------------------------------------------------------------------------


def search_figures(document: Mapping[str, Any]) -> dict[str, Any]:
    """Hold the search against all combinations, on the file of the trained MobileNetV2 at one thread and batch 1."""
    model = Path(document["model"]["file"])
    golden, calibration = (
        read_golden_folder(folder, Classifier(), NAMED)
        for folder in (
            make_items("held_out", GOLDEN_ITEMS, GOLDEN_SEED),
            make_items("train", CALIBRATION_ITEMS, CALIBRATION_SEED),
        )
    )
    with tempfile.TemporaryDirectory() as temporary:
        goal = Goal(objective="latency", max_drop=MAX_DROP, batch=1)
        found = optimize(
            model, store=ArtifactStore(Path(temporary) / "artifacts"), goal=goal, golden=golden, calibration=calibration,
            say=_say,
        )  # fmt: skip
        files = _files(model, calibration.inputs, Path(temporary))
        grid = [f"{file}@{engine}" for file, engine in itertools.product(files, ENGINES)]
        best = _best_of(grid, model, golden)
        chosen = found.recommended or found.baseline.name
        ratio = 1.0
        if best is not None and best != chosen:
            speed = measure_speed(parse_variant(best).open(), parse_variant(chosen).open(), golden.inputs[:1])
            ratio = speed.ratio if speed else float("nan")
    return {
        "best_ratio": ratio, "trials_share": len(found.attempts) / len(grid), "tried": len(found.attempts),
        "combinations": len(grid), "found": _short(chosen), "exhaustive": _short(best or "nothing"),
    }  # fmt: skip


def _files(model: Path, items: np.ndarray, folder: Path) -> Iterator[Path]:
    """Give every file that the techniques without training can make of the model."""
    folded, even = folder / "folded.onnx", folder / "equalized.onnx"
    fold(model, folded)
    equalize(folded, even)
    yield model
    yield folded
    for name, source, signed in (
        ("int8", folded, False),
        ("int8-signed", folded, True),
        ("int8-equalized", even, False),
    ):
        quantize(source, items, folder / f"{name}.onnx", signed=signed)
        yield folder / f"{name}.onnx"
    reverted = folder / "int8-reverted.onnx"
    with contextlib.suppress(EngineError):  # there is none where no few groups are to blame
        if revert(folder / "int8.onnx", folded, items, reverted, goal=BANDS["int8"] / 2).tensors:
            yield reverted


def _best_of(grid: list[str], model: Path, golden: Golden) -> str | None:
    """Return the fastest of all that the golden set accepts; only those faster than the model as given are asked about."""
    baseline, timed = parse_variant(str(model)), []
    policy = Policy(max_drop=MAX_DROP, batch=1)
    first = baseline.open()
    for number, text in enumerate(grid, 1):
        try:
            speed = measure_speed(first, parse_variant(text).open(), golden.inputs[:1], rounds=8)
        except HeadraceError as error:
            _say(f"[{number}/{len(grid)}] {_short(text)}: {error}")
            continue
        assert speed is not None
        _say(f"[{number}/{len(grid)}] {_short(text)}: {speed.ratio:.2f}")
        timed.append((speed.ratio, text))
    for ratio, text in sorted(timed, reverse=True):
        if ratio <= 1:
            return None
        found = validate_variants(baseline, parse_variant(text), golden, policy, gates=("static", "accuracy"))
        _say(f"{_short(text)}: {found.verdict}")
        if found.verdict == "accept":
            return text
    return None


def _short(text: str) -> str:
    return text.rpartition("/")[2]


# --- end to end -------------------------------------------------------------------------------------------------------


def end_to_end(document: Mapping[str, Any]) -> dict[str, Any]:
    """Run the folder benchmark with the tuned Plan of the optimized MobileNetV2 against the peers with the float32 file."""
    model = Path(document["model"]["file"])
    make_bench = partial(FolderBench, model=model)
    optimized_plan = FOLDER / "work" / "mobilenetv2-smaller.toml"
    plan = "folder_to_parquet.toml"  # where nothing was accepted
    if optimized_plan.exists():
        plan = _tuned(optimized_plan, make_bench)
    found = comparison.compare(make_bench, plan, quick=False, rounds=6, count=1000, model=model)
    best = max(found["peers"], key=found["peers"].__getitem__)
    rates = found["rounds_of"]
    ratios = {
        key: measure.paired_ratios(rates[comparison.HEADRACE], rates[peer])
        for key, peer in (("vs_naive", "sequential/usual"), ("vs_best_peer", best))
    }
    return {
        **{key: ratio.median for key, ratio in ratios.items()},
        **{f"{key}_range": [ratio.low, ratio.high] for key, ratio in ratios.items()},
        "rounds": rates, "best_peer": best, "optimized": optimized_plan.exists(),
        "images_per_second": found["headrace"], "peers": found["peers"], "failed": found["failed"],
        "foreign_cores": found["foreign_cores"], "rates": found["spreads"]["rates"],
    }  # fmt: skip


def _tuned(plan: Path, make_bench: Callable[..., FolderBench]) -> str:
    """Return the Plan with the workers and the batch that are fastest on this folder, tried as the peers' settings are."""
    tuned, rates = plan.with_suffix(".tuned.toml"), {}
    with make_bench("scaled", corpus_folder=corpus.build()) as bench:
        for workers, batch in itertools.product(WORKERS, BATCHES):
            settings = (f"fetch.workers={workers}", f"process.batch={batch}")
            outcomes = [ours.run(bench, str(plan), TUNING_COUNT, settings) for _ in range(2)]
            rates[settings] = max(outcome.rate for outcome in outcomes)
            _say(f"{' '.join(settings)}: {rates[settings]:.1f}/s")
    tuned.write_text(hr.Plan.load(plan).with_settings(max(rates, key=rates.__getitem__)).as_toml())
    return str(tuned)


# --- all of it --------------------------------------------------------------------------------------------------------


def measure_all(quick: bool) -> dict[str, Any]:
    """Return the benchmark's object."""
    return _measure_quickly() if quick else _measure_fully()


def _measure_fully() -> dict[str, Any]:
    documents, models = _all_models("")
    smaller, on_fewer_pixels = _all_models("-smaller", "--input-sizes", INPUT_SIZES)
    planted = _step("planted-defects", partial(planted_defects.measure_all, False))
    result = {
        "models": models, "smaller": on_fewer_pixels,
        "accuracy_change_points": {
            name: {key: one["accuracy_change_points"] for key, one in _variants(models[name])} for name in NAMES
        },
        "search": _step("search", partial(search_figures, documents["mobilenetv2"])),
        **{key: planted[key] for key in ("defects", "honest", "false_accept")},
        "end_to_end": _step("end-to-end", partial(end_to_end, smaller["mobilenetv2"])),
        "golden_items": GOLDEN_ITEMS, "max_drop": MAX_DROP, "quick": False,
    }  # fmt: skip
    shutil.rmtree(_steps(), ignore_errors=True)  # complete: the next run measures anew
    return result


def _all_models(suffix: str, *options: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the search's document of each network, and its figures."""
    documents = {name: _step(f"optimize-{name}{suffix}", partial(optimized, name, *options)) for name in NAMES}
    figures = {name: _step(f"figures-{name}{suffix}", partial(model_figures, name, documents[name])) for name in NAMES}
    return documents, figures


def _variants(figures: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for key in ("untrained", "trained"):
        if figures[f"{key}_variant"]:
            yield key, figures[f"{key}_variant"]


def _measure_quickly() -> dict[str, Any]:
    known, name = _newest_result()
    planted = planted_defects.measure_all(True)
    return {
        **{key: known.get(key) for key in KNOWN},
        **{key: planted[key] for key in ("defects", "honest", "false_accept")},
        "quick": True, "not_measured_now": list(KNOWN), "taken_from": name,
    }  # fmt: skip


def _newest_result() -> tuple[dict[str, Any], str | None]:
    found = sorted(RESULTS.glob(f"model_variants_{measure.hardware_slug()}_*.json"))
    return (json.loads(found[-1].read_text())["data"], found[-1].name) if found else ({}, None)


def _steps() -> Path:
    return (
        FOLDER / f"steps-{digest([RECIPE_VERSION, GOLDEN_ITEMS, CALIBRATION_ITEMS, MAX_DROP, measure.hardware_slug()])}"
    )


def _step(name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what a step gives, kept until the whole run is complete."""
    path = _steps() / f"{name}.json"
    if not path.exists():
        _say(f"--- {name}")
        began = time.monotonic()
        result = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(".partial")
        written.write_text(json.dumps({"seconds": time.monotonic() - began, "result": result}))
        written.rename(path)
    kept = json.loads(path.read_text())
    _say(f"--- {name}: {kept['seconds']:.0f} s")
    result_kept: dict[str, Any] = kept["result"]
    return result_kept


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- telling ----------------------------------------------------------------------------------------------------------


def as_text(result: Mapping[str, Any]) -> str:
    """Return the result for readers."""
    lines = [
        "# How much faster `headrace optimize` makes a network", "",
        (f"Times the speed of ONNX Runtime in float32, 224 pixels, batch 1; at most {100 * MAX_DROP:g} points lost on "
        f"{GOLDEN_ITEMS:,} crops of regions that no training saw (interval: photographs drawn anew)."), "",
    ]  # fmt: skip
    if result.get("quick"):
        lines += [
            f"A smoke run: {', '.join(result['not_measured_now'])} are from {result['taken_from'] or 'nowhere'}.",
            "",
        ]
    lines += [
        "| model | | variant | one thread | two threads | right | change, points |", "|---|---|---|---|---|---|---|",
        *_all_rows(result, "models", ""), *_all_rows(result, "smaller", ", smaller inputs tried"), "",
    ]  # fmt: skip
    search, planted, fair = result["search"], result["defects"], result["honest"]
    if search:
        lines.append(
            f"- Search: {search['found']}, {search['best_ratio']:.2f} times the speed of the best of {search['combinations']} "
            f"combinations ({search['exhaustive']}), after trying {search['trials_share']:.0%} of them."
        )
    lines.append(
        f"- Gates: {planted['caught']} of {planted['n']} planted defects refused, {fair['refused']} of {fair['n']} honest "
        f"variants; at the margin {result['false_accept']:.1%} accepted."
    )
    whole = result["end_to_end"]
    if whole:
        lines.append(
            f"- Folder of JPEGs to Parquet with the optimized MobileNetV2: {whole['images_per_second']:.1f} images/s, "
            f"{_ratio(whole, 'vs_naive')} times one after the other, {_ratio(whole, 'vs_best_peer')} times the best peer "
            f"({whole['best_peer']}), both with the float32 model; median of rounds in turn and their range."
        )
    refused = {
        f"- {name}: {one}": None
        for part in ("models", "smaller")
        for name, figures in (result.get(part) or {}).items()
        for one in figures["refused"]
    }
    return "\n".join([*lines, "", "## Tried and refused", "", *refused])


def _ratio(whole: Mapping[str, Any], key: str) -> str:
    """Return a ratio with the range of its rounds, which older results do not have."""
    ends = whole.get(f"{key}_range")
    return f"{whole[key]:.2f}" + ("" if ends is None else f" ({ends[0]:.2f} to {ends[1]:.2f})")


def _all_rows(result: Mapping[str, Any], part: str, told: str) -> Iterator[str]:
    for name, figures in (result.get(part) or {}).items():
        yield from _rows(name, figures, told)


def _rows(name: str, figures: Mapping[str, Any], told: str) -> Iterator[str]:
    for key, one in _variants(figures):
        speed, two = one["speedup"], one["two_threads"]
        at_two = "-" if two is None else f"{two['ratio']:.2f} ({two['low']:.2f} to {two['high']:.2f})"
        change = " to ".join(f"{end:+.2f}" for end in one["accuracy_change_by_photograph"])
        variant = f"{one['technique']} on {one['settings']['engine']}"
        at_one = f"{speed['mid']:.2f} ({speed['low']:.2f} to {speed['high']:.2f})"
        right = f"{one['right'][1]:.2%} of {one['right'][0]:.2%}"
        points = f"{one['accuracy_change_points']:+.2f} ({change})"
        yield f"| {name} | {key}{told} | {variant} | {at_one} | {at_two} | {right} | {points} |"


if __name__ == "__main__":
    measure.run_benchmark("model_variants", (__doc__ or "").splitlines()[0], measure_all, as_text)
