"""Smaller inputs that the pipeline makes: `input_side` from the image to the Plan, and where it cannot be."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import cv2
import numpy as np
import onnx
import pytest

import headrace as hr
from headrace.base.errors import EngineError, SettingsError
from headrace.base.plan import ModelPlan, Plan
from headrace.cli import main
from headrace.delivery.collect import Collect
from headrace.optimize.artifacts import ArtifactStore
from headrace.optimize.better_plan import better_plan
from headrace.optimize.catalogue import Methods
from headrace.optimize.concurrency import Concurrency
from headrace.optimize.goal import Goal
from headrace.optimize.search import optimize
from headrace.optimize.smaller import narrow, smaller_input
from headrace.optimize.techniques import Subject
from headrace.pipeline.execute import run as execute
from headrace.runs.formats.optimization import OptimizationDocument
from headrace.validate.golden import Golden
from headrace.validate.golden_folder import read_golden_folder
from headrace.validate.policy import Policy
from headrace.validate.variant_spec import VariantSpec, parse_variant, variant_settings, variant_text
from headrace.validate.variants import validate_variants

FULL, FEWER = 12, 8
#: What is tried with the model as given is tested elsewhere.
SMALLER_ALONE = Methods(of_the_file=())

JOBS = f"""
import numpy as np
import headrace as hr


class Scenes(hr.Module):
    input = hr.ImageInput(short_side={FULL + 2}, crop={FULL})

    def preprocess(self, image):
        return (image.astype(np.float32) / 64 - 2).transpose(2, 0, 1)

    def process(self, batch):
        return [0] * len(batch)


pipeline = hr.Pipeline(hr.folder("."), module=Scenes(), delivery=hr.jsonl("out.jsonl"))
"""


class Scenes(hr.Module):
    """Takes pictures of twelve pixels, as the networks of these tests do."""

    input = hr.ImageInput(short_side=FULL + 2, crop=FULL)
    seen: set[tuple[int, ...]]

    def load(self, context: Any) -> None:
        """Open the model that the Plan names."""
        self.network = context.open_model()

    def preprocess(self, image: np.ndarray) -> np.ndarray:
        """Put the channels first."""
        return (image.astype(np.float32) / 64 - 2).transpose(2, 0, 1)

    def process(self, batch: Any) -> Sequence[Any]:
        """Return the class of each, and how large its image was."""
        return [(int(scores.argmax()), batch.shape[-1]) for scores in self.network(batch)]


class Stubborn(Scenes):
    """Scales images itself."""

    def preprocess(self, image: np.ndarray) -> np.ndarray:
        """Scale to what it always takes."""
        return super().preprocess(cv2.resize(image, (FULL, FULL)))


class AsTheyCome(Stubborn):
    """Takes images of any size."""

    input = hr.ImageInput()


class WithMean(Scenes):
    """Knows a mean image, which has one size."""

    def preprocess(self, image: np.ndarray) -> np.ndarray:
        """Take it off."""
        return super().preprocess(image - np.zeros((FULL, FULL, 3), np.uint8))


class Halving(Scenes):
    """Has its images halved."""

    input = hr.ImageInput(short_side=2 * FULL, crop=2 * FULL)

    def preprocess(self, image: np.ndarray) -> np.ndarray:
        """Take every other pixel."""
        return super().preprocess(image[::2, ::2])


def write_images(folder: Path, count: int, seed: int) -> Path:
    """Write pictures of large shapes, whose classes a label names."""
    folder.mkdir()
    random = np.random.default_rng(seed)
    lines = []
    for number in range(count):
        picture = cv2.resize(random.integers(0, 256, (3, 3, 3), np.uint8), (28, 28), interpolation=cv2.INTER_CUBIC)
        cv2.imwrite(str(folder / f"{number}.png"), picture)
        lines.append(json.dumps({"file": f"{number}.png", "label": 0, "source": f"camera {seed}-{number}"}))
    (folder / "labels.jsonl").write_text("\n".join(lines))
    return folder


def read(folder: Path, model: Path, module: hr.Module | None = None) -> Golden:
    """Return a set, labelled by what the model says of it."""
    golden = read_golden_folder(folder, module or Scenes())
    answers = VariantSpec("", ModelPlan(artifact=str(model), threads=1)).open()(np.ascontiguousarray(golden.inputs))
    return replace(golden, labels=np.asarray(answers).argmax(1))


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Pictures to calibrate on, and to judge on."""
    return write_images(tmp_path / "calibration", 40, 1), write_images(tmp_path / "golden", 300, 2)


def found(case: Any, folders: tuple[Path, Path], store: Path, module: hr.Module | None = None, **goal: Any) -> Any:
    """Return a search with smaller inputs of which every one that is faster is right enough."""
    calibration, golden = (read(folder, case.model, module) for folder in folders)
    return optimize(
        case.model, store=ArtifactStore(store), calibration=calibration, golden=golden,
        goal=Goal(max_drop=0.9, max_slice_drop=0.9, batch=4, input_sizes=(FEWER,), **goal), methods=SMALLER_ALONE,
    )  # fmt: skip


def smaller(document: OptimizationDocument, engine: str = "onnx") -> Any:
    """Return the attempt with the smaller input in int8."""
    return next(
        one for one in document.attempts if one.technique == f"input-{FEWER}-int8" and one.settings["engine"] == engine
    )


@pytest.mark.usefixtures("speeds")
def test_where_the_pipeline_prepares_the_sets_it_makes_the_images_smaller(
    case: Any, folders: tuple[Path, Path], tmp_path: Path, speeds: dict[tuple[str, bool], float]
) -> None:
    """No Resize in the model; the Plan says so, and a run with it gives the module smaller images and loses none."""
    speeds["openvino", True] = 1.5  # the smaller ones are accepted on ONNX Runtime
    document = found(case, folders, tmp_path / "artifacts")
    attempt = smaller(document)
    assert attempt.settings["input_side"] == FEWER
    assert "input_side=8" in attempt.candidate
    made = onnx.load(attempt.artifact.file)
    assert "Resize" not in {node.op_type for node in made.graph.node}
    assert [axis.dim_value for axis in made.graph.input[0].type.tensor_type.shape.dim][1:] == [3, FEWER, FEWER]
    plan = better_plan(Plan(), replace_recommended(document, attempt.candidate), "process")[0]
    assert Plan.from_table(plan.as_table()).model.input_side == FEWER
    delivered = Collect()
    execute(hr.Pipeline(hr.folder(str(folders[1])), module=Scenes(), delivery=delivered), plan)
    assert [side for _, (_, side) in delivered.results] == [FEWER] * 300


def replace_recommended(document: OptimizationDocument, candidate: str) -> OptimizationDocument:
    """Return a search that recommends this one: which of two equals it takes is not what is tested."""
    import msgspec

    return msgspec.structs.replace(document, recommended=candidate, layout=None)


@pytest.mark.full
@pytest.mark.usefixtures("speeds")
def test_a_module_that_scales_images_itself_gets_the_resize_in_the_model(
    case: Any, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    """Its input says nothing of what its preprocess makes of it."""
    attempt = smaller(found(case, folders, tmp_path / "artifacts", Stubborn()))
    assert "input_side" not in attempt.settings
    assert "Resize" in {node.op_type for node in onnx.load(attempt.artifact.file).graph.node}


@pytest.mark.parametrize(
    ("module", "says"), [(AsTheyCome, "ImageInput with short_side"), (WithMean, "broadcast"), (Halving, "")]
)
def test_a_module_that_cannot_prepare_that_size_ends_no_search(
    case: Any, folders: tuple[Path, Path], tmp_path: Path, module: type[hr.Module], says: str
) -> None:
    """Nor is a file named for a size on which it does not compute: the model scales the images, and why is said."""
    store, said = ArtifactStore(tmp_path / "artifacts"), list[str]()
    subject = Subject(
        original=store.add(case.model), store=store, calibration=read_golden_folder(folders[0], module()), threads=1,
        flags=frozenset(), engines=("onnx",), scales_before=True, say=said.append,
    )  # fmt: skip
    made = smaller_input(subject, subject.original, FEWER, f"input-{FEWER}")
    assert (made.parameters["input"], made.parameters["of"]) == (FEWER, FULL)
    assert "input_side" not in made.parameters
    assert says in "".join(said)


@pytest.mark.full
@pytest.mark.usefixtures("speeds")
def test_sets_of_arrays_get_the_resize_in_the_model(case: Any, tmp_path: Path) -> None:
    """Nobody can prepare them anew."""
    document = optimize(
        case.model, store=ArtifactStore(tmp_path), goal=Goal(max_drop=0.9, batch=4, input_sizes=(FEWER,)),
        calibration=case.calibration, golden=case.golden, methods=SMALLER_ALONE,
    )  # fmt: skip
    attempt = smaller(document)
    assert "input_side" not in attempt.settings
    assert "Resize" in {node.op_type for node in onnx.load(attempt.artifact.file).graph.node}


@pytest.mark.full
@pytest.mark.usefixtures("speeds")
def test_layouts_spoiled_images_and_a_second_search_know_the_size(
    case: Any, folders: tuple[Path, Path], tmp_path: Path, speeds: dict[tuple[str, bool], float]
) -> None:
    """With the smaller one in the Plan as the incumbent, with --robustness, and with workers and batches."""
    speeds["openvino", True] = 1.5
    first = found(case, folders, tmp_path / "artifacts", robustness=True)
    attempt = smaller(first)
    gates = {gate.name: gate.outcome for gate in attempt.validation.gates}
    assert gates["robustness"] in ("passed", "rejected")  # asked, whatever it says of random weights
    calibration, golden = (read(folder, case.model) for folder in folders)
    second = optimize(
        case.model, store=ArtifactStore(tmp_path / "artifacts"), calibration=calibration, golden=golden,
        in_use=ModelPlan(**attempt.settings),
        goal=Goal(max_drop=0.9, max_slice_drop=0.9, batch=4, concurrency=Concurrency(workers=1, threads=1, batch=1)),
        methods=SMALLER_ALONE,
    )  # fmt: skip
    assert second.in_use is not None
    assert second.in_use.settings["input_side"] == FEWER
    assert second.in_use.validation.num_items == 300
    assert second.laid_out
    assert all(one.layouts[0].items_per_second > 0 for one in second.laid_out)


def test_two_sizes_are_compared_on_the_same_items(case: Any, folders: tuple[Path, Path], tmp_path: Path) -> None:
    """Each is given the images as its pipeline would make them."""
    golden = read(folders[1], case.model)
    narrow(case.model, FEWER, golden.scale_to(FEWER)[0], tmp_path / "narrow.onnx")
    spec = parse_variant(f"{tmp_path / 'narrow.onnx'}@onnx,input_side={FEWER}")
    assert parse_variant(variant_text(spec.model)).model == spec.model == ModelPlan(**variant_settings(spec.model))
    policy = Policy(max_drop=0.9, max_slice_drop=0.9, retrained=True, batch=4)
    document = validate_variants(
        parse_variant(str(case.model)), spec, golden, policy, gates=("static", "parity", "speed", "accuracy")
    )
    assert document.verdict == "accept"
    own = np.asarray(spec.open()(np.ascontiguousarray(golden.scale_to(FEWER)))).argmax(1)
    assert golden.labels is not None
    accuracy = next(gate for gate in document.gates if gate.name == "accuracy").values
    assert accuracy["b"] == pytest.approx((own == golden.labels).mean())


def test_two_variants_for_smaller_images_are_looked_into_at_their_size(
    case: Any, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    """Where they begin to differ is found on the images that both take."""
    golden = replace(read(folders[1], case.model), labels=None)
    narrow(case.model, FEWER, golden.scale_to(FEWER)[0], tmp_path / "a.onnx")
    model = onnx.load(tmp_path / "a.onnx")
    weights = next(one for one in model.graph.initializer if one.name == "pw.w")
    weights.CopyFrom(onnx.numpy_helper.from_array(-onnx.numpy_helper.to_array(weights), weights.name))
    onnx.save(model, tmp_path / "b.onnx")
    a, b = (parse_variant(f"{tmp_path / name}.onnx@onnx,input_side={FEWER}") for name in "ab")
    document = validate_variants(a, b, golden, Policy(batch=4), gates=("static", "parity"))
    assert document.verdict == "reject"
    assert document.diverges_at == "pw.y"
    assert not any("cannot be told" in warning for warning in document.warnings)


def test_variants_of_two_sizes_say_so(case: Any, folders: tuple[Path, Path], tmp_path: Path) -> None:
    """Both inputs are named, and what is between the layers is not held against what has another size."""
    golden = replace(read(folders[1], case.model), labels=None)
    narrow(case.model, FEWER, golden.scale_to(FEWER)[0], tmp_path / "b.onnx")
    a, b = parse_variant(str(case.model)), parse_variant(f"{tmp_path / 'b.onnx'}@onnx,input_side={FEWER}")
    document = validate_variants(a, b, golden, Policy(batch=4), gates=("static", "parity"))
    static = next(gate for gate in document.gates if gate.name == "static")
    assert f"3, {FULL}, {FULL}], B " in static.says
    assert f"3, {FEWER}, {FEWER}]" in static.says
    assert "images of different sizes" in " ".join(document.warnings)


def test_a_network_for_images_of_any_size_is_narrowed_too(case: Any, tmp_path: Path) -> None:
    """How large its images were is then not told."""
    model = onnx.load(case.model)
    for place, axis in enumerate(model.graph.input[0].type.tensor_type.shape.dim[2:]):
        axis.dim_param = f"side{place}"
    onnx.save(model, tmp_path / "any.onnx")
    made = narrow(tmp_path / "any.onnx", FEWER, np.zeros((3, FEWER, FEWER), np.float32), tmp_path / "narrow.onnx")
    assert made == {"input_side": FEWER}


@pytest.mark.full
def test_explain_asks_a_variant_with_the_images_that_it_takes(
    case: Any,
    folders: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In the size of its `input_side`."""
    narrow(case.model, FEWER, np.zeros((3, FEWER, FEWER), np.float32), tmp_path / "narrow.onnx")
    (tmp_path / "narrow_jobs.py").write_text(JOBS)
    monkeypatch.chdir(tmp_path)
    sets = ["--data", str(folders[0]), "--pipeline", "narrow_jobs.py:pipeline"]
    assert main(["optimize", f"narrow.onnx@onnx,input_side={FEWER}", "--explain", *sets]) == 0
    assert "narrow.onnx" in capsys.readouterr().out


def test_arrays_have_one_size(case: Any, tmp_path: Path) -> None:
    """And what to give instead is said."""
    with pytest.raises(SettingsError, match=r"input_side = 8 asks for another: give a folder of images .*--pipeline"):
        case.golden.scale_to(FEWER)
    spec = parse_variant(f"{case.model}@onnx,input_side={FEWER}")
    with pytest.raises(SettingsError, match="holds items of one size"):
        validate_variants(parse_variant(str(case.model)), spec, case.golden)


def test_a_network_that_needs_its_size_is_not_narrowed(case: Any, tmp_path: Path, nets: ModuleType) -> None:
    """It is tried on an image before anything else."""
    model = onnx.load(case.model)
    pool = next(node for node in model.graph.node if node.op_type == "GlobalAveragePool")
    pool.op_type = "MaxPool"  # of a fixed part
    pool.attribute.append(onnx.helper.make_attribute("kernel_shape", [nets.SIDE, nets.SIDE]))
    onnx.save(model, tmp_path / "fixed.onnx")
    with pytest.raises(EngineError, match="not fully convolutional"):
        narrow(tmp_path / "fixed.onnx", FEWER, np.zeros((3, FEWER, FEWER), np.float32), tmp_path / "narrow.onnx")
