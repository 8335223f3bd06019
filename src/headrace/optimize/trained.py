"""Techniques that train: for int8; pruning in rounds, with int8, bfloat16 and smaller inputs on top; a teacher at the last.

They need a recipe (`headrace.optimize.recipe`). Every network becomes an ONNX file that is compared with it, and passes the
same gates as any other candidate. What the recipe's own data refute is kept as an attempt with that reason, without a test on
the golden set.
"""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import asdict
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.errors import EngineError
from headrace.optimize.artifacts import ArtifactStore
from headrace.optimize.expected_speedup import INT8, WITH_VNNI, ExpectedSpeedup
from headrace.optimize.presets import X86_VNNI
from headrace.optimize.recipe import Buildable, Trainable
from headrace.optimize.smaller import smaller_input, why_no_size
from headrace.optimize.techniques import (
    REFUTED,
    Candidates,
    Subject,
    Technique,
    Why,
    in_precision,
    int8_of,
    keep_file,
    on_all_engines,
    on_engine,
    why_no_bfloat16,
    why_no_int8,
)
from headrace.runs.formats.optimization import Artifact
from headrace.validate.items import NamedItems, main_array

#: Share of the weights that is set to zero by magnitude pruning.
ZEROS = 0.5


def converted(recipe: Buildable, target: str, store: ArtifactStore) -> Artifact:
    """Return the ONNX file of a recipe's network.

    Args:
        recipe: The user's.
        target: MODULE:ATTRIBUTE; the attribute names the file.
        store: Where it is kept.

    Raises:
        EngineError: If it cannot be converted, or the file answers otherwise than the network.
        MissingExtra: If PyTorch or onnx is missing.
    """
    from headrace.optimize.torch_files import convert

    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        output = Path(folder) / f"{target.rpartition(':')[2]}.onnx"
        convert(recipe.build(), recipe.example, output, names=getattr(recipe, "names", None))
        return store.add(output)


#: From 30 % of MobileNetV2's channels to 65 % of ResNet-18's.
_PRUNED = ExpectedSpeedup(1.7, 7.2)
#: Why a model file is not trained.
NO_RECIPE = "it needs a way to train: name a recipe, MODULE:ATTRIBUTE, instead of a model file"


def _no_recipe(subject: Subject) -> str | None:
    if subject.recipe is None:
        return NO_RECIPE
    if not isinstance(subject.recipe, Trainable):
        return "the recipe has no `fit` and `evaluate`"
    return None


def _no_training_for_int8(subject: Subject) -> Why | None:
    if subject.calibration is not None and isinstance(subject.calibration.inputs, NamedItems):
        return "the model takes several inputs, and training for int8 hands a network one"
    return _no_recipe(subject) or why_no_int8(subject)


def _prune(subject: Subject) -> Candidates:
    """Give the file of each round; the cliff, too, with what refutes it."""
    parent = subject.original
    for number, (found, network) in enumerate(_make_pruning(subject).rounds(), 1):
        why = f"{found.says}: too much lost, rolled back to the round before" if found.is_cliff else None
        parent = _export(subject, f"pruned-{number}", parent, network, _facts(found), why)
        yield from _on_engines(subject, parent)


def _on_engines(subject: Subject, artifact: Artifact) -> Candidates:
    """Give a file on each engine; on one where it is refuted already."""
    if REFUTED in artifact.parameters:
        yield on_engine(subject, artifact, subject.engines[0])
    else:
        yield from on_all_engines(subject, artifact)


def _good_rounds(subject: Subject) -> list[Artifact]:
    """Return the files of the rounds that stand."""
    return [artifact for artifact in _rounds(subject) if REFUTED not in artifact.parameters]


def _rounds(subject: Subject) -> list[Artifact]:
    """Return the files of all rounds; `pruned` has made them."""
    made = (subject.made.get(f"pruned-{number}") for number in count(1))
    return [artifact for artifact in takewhile(bool, made) if artifact]


def _prune_to_int8(subject: Subject) -> Candidates:
    for pruned in _good_rounds(subject):
        yield from int8_of(subject, pruned, pruned.technique)


def _prune_to_bfloat16(subject: Subject) -> Candidates:
    for pruned in _good_rounds(subject):
        yield from in_precision(subject, pruned, "bf16")


def _prune_smaller(subject: Subject) -> Candidates:
    """Give the rounds that stand with the smaller inputs, in int8 where it can be: alone, each is a candidate already."""
    for pruned in _good_rounds(subject):
        for size in (size for size in subject.input_sizes if why_no_size(subject, size) is None):
            small = smaller_input(subject, pruned, size, f"{pruned.technique}-input-{size}")
            yield from (
                on_all_engines(subject, small) if why_no_int8(subject) else int8_of(subject, small, small.technique)
            )


def _no_sizes(subject: Subject) -> str | None:
    if not subject.input_sizes:
        return "no smaller inputs are named; --input-sizes 192,160 tries them with pruned networks too"
    reasons = [why_no_size(subject, size) for size in subject.input_sizes]
    return None if None in reasons else reasons[0]


def _distil(subject: Subject) -> Candidates:
    """Train the smallest network once more, as long, with a teacher: there it has most to win."""
    num_rounds = len(_rounds(subject))
    if not num_rounds:
        raise EngineError("no pruned network was trained, and this would be the smallest of them")
    plain, found, network = _make_pruning(subject).distil(num_rounds)
    told = (
        f"with {found.share:.0%} of the channels pruned and the network as given for a teacher it is right for "
        f"{found.right:.1%} of the recipe's own data, trained as long without one for {plain.right:.1%}"
    )
    why = None
    if found.right == plain.right:
        why = f"{told}: the recipe's `evaluate` cannot tell them apart, and a teacher that is not seen to help is not used"
    elif found.right < plain.right:
        why = f"{told}: a teacher that does not help is not used"
    elif found.is_cliff:
        why = f"{told}; as given {found.right_before:.1%}: too much lost all the same"
    artifact = _export(subject, "distilled", subject.original, network, _facts(found), why)
    yield from _on_engines(subject, artifact)
    if why is None and why_no_int8(subject) is None:
        yield from int8_of(subject, artifact, artifact.technique)


def _qat(subject: Subject) -> Candidates:
    """Train with the rounding of int8, and quantize what comes out as any other network."""
    from headrace.optimize.int8 import quantize
    from headrace.optimize.onnx_files import fold
    from headrace.optimize.qat import train
    from headrace.optimize.torch_files import convert

    recipe, calibration = subject.recipe, subject.calibration
    assert isinstance(recipe, Trainable)
    assert calibration is not None
    decides = f"qat {subject.recipe_key} {subject.original.sha256} {calibration.sha256}"
    if subject.preset != X86_VNNI:  # which all networks were trained for before there were others
        decides += f" {subject.preset.name}"
    kept = subject.store.folder / "rounds" / f"{hashlib.sha256(decides.encode()).hexdigest()[:16]}.pt"
    found, network = train(recipe, main_array(calibration.inputs), kept, subject.say, preset=subject.preset)
    refuted = {REFUTED: f"{found.says}: too much lost all the same"} if found.is_lost else {}

    def write_float32(output: Path) -> dict[str, Any]:
        converted = output.with_suffix(".converted.onnx")
        convert(network, recipe.example, converted, names=getattr(recipe, "names", None))
        fold(converted, output)
        return asdict(found)

    def write_int8(output: Path) -> dict[str, Any]:
        return {
            **quantize(Path(trained.file), calibration.inputs, output, preset=subject.preset),
            **asdict(found),
            **refuted,
        }

    trained = keep_file(subject, "qat-float32", subject.original, write_float32)
    yield from _on_engines(subject, keep_file(subject, "qat", trained, write_int8))


def _set_to_zero(subject: Subject) -> Candidates:
    """Set the smallest weights to zero, untrained: that it is no faster needs no training to be seen."""
    from headrace.optimize.onnx_files import load, numpy_helper, save

    def make(output: Path) -> dict[str, Any]:
        model = load(subject.path)
        for tensor in model.graph.initializer:
            weights = numpy_helper.to_array(tensor)
            if weights.ndim >= 2 and weights.dtype == np.float32:
                small = np.abs(weights) < np.quantile(np.abs(weights), ZEROS)
                tensor.CopyFrom(numpy_helper.from_array(np.where(small, np.float32(0), weights), tensor.name))
        save(model, output)
        return {"zeros": ZEROS}

    yield from on_all_engines(subject, keep_file(subject, "zeroed", subject.original, make))


def _make_pruning(subject: Subject) -> Any:
    from headrace.optimize.pruning import Pruning  # torch and torch-pruning

    assert isinstance(subject.recipe, Trainable)
    key = f"{subject.recipe_key} {subject.original.sha256}"
    return Pruning(
        recipe=subject.recipe, folder=subject.store.folder / "rounds", key=key, shares=subject.prune_shares,
        say=subject.say, stop=subject.stop,
    )  # fmt: skip


def _facts(found: Any) -> dict[str, Any]:
    return {
        "channels_pruned": found.share, "multiplications": found.multiplications, "right": found.right,
        "right_untrained": found.right_untrained, "right_before": found.right_before,
    }  # fmt: skip


def _export(
    subject: Subject, name: str, parent: Artifact, network: Any, facts: dict[str, Any], refuted: str | None
) -> Artifact:
    from headrace.optimize.torch_files import convert

    recipe = subject.recipe
    if recipe is None:
        raise EngineError("there is no recipe")

    def make(output: Path) -> dict[str, Any]:
        convert(network, recipe.example, output, names=getattr(recipe, "names", None))
        return {**facts, **({REFUTED: refuted} if refuted else {})}

    return keep_file(subject, name, parent, make)


#: Tried where int8 is wrong, and nothing that trains nothing mends it without giving some of its speed away.
QAT = Technique(
    name="qat", kind="trained", needs="calibration data and a recipe that trains", expected=INT8, in_int8=True,
    says="int8 that the network was trained for: all of int8's speed (1.8 to 8 times measured) for one more training",
    why_not=_no_training_for_int8, candidates=_qat,
)  # fmt: skip

#: Tried after all that trains nothing, in this order.
TRAINED = (
    Technique(
        name="pruned", kind="trained", needs="a recipe that trains", expected=_PRUNED,
        says="fewer channels, trained again (2.6 to 4 times measured on ResNet-18 and MobileNetV2 at half of the channels)",
        why_not=_no_recipe, candidates=_prune,
    ),
    Technique(
        name="pruned-bf16", kind="trained", needs="a recipe that trains", expected=ExpectedSpeedup(2.7, 16.0),
        says="fewer channels in bfloat16",
        why_not=lambda subject: _no_recipe(subject) or why_no_bfloat16(subject), candidates=_prune_to_bfloat16,
    ),
    Technique(
        name="pruned-int8", kind="trained", needs="calibration data and a recipe that trains",
        says="fewer channels in int8: the gains multiply, and so may the losses",
        expected=ExpectedSpeedup(3.3, 8.5, WITH_VNNI), in_int8=True,
        why_not=lambda subject: _no_recipe(subject) or why_no_int8(subject), candidates=_prune_to_int8,
    ),
    Technique(
        name="pruned-input", kind="trained", needs="a recipe that trains", option="--input-sizes",
        says="fewer channels on fewer pixels, in int8 where it can be: three gains that multiply, and three losses that add up",
        why_not=lambda subject: _no_recipe(subject) or _no_sizes(subject), candidates=_prune_smaller,
    ),
    Technique(
        name="distilled", kind="trained", needs="a recipe that trains", expected=_PRUNED,
        says="the smallest pruned network, trained as long with the network as given for a teacher",
        why_not=_no_recipe, candidates=_distil,
    ),
    Technique(
        name="zeroed", kind="trained", needs="a recipe that trains", expected=ExpectedSpeedup(0.9, 1.02),
        says=f"{ZEROS:.0%} of the weights zero: faster only where an engine leaves zeros out",
        why_not=_no_recipe, candidates=_set_to_zero,
    ),
)  # fmt: skip
