"""Workers, threads and batch of a variant: what is timed, what is kept, and what is written to a Plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from headrace import engines
from headrace.base.errors import EngineError
from headrace.base.plan import ModelPlan, Plan, StagePlan
from headrace.base.protocols import Model
from headrace.cli import main
from headrace.cli.ledger_text import attempts_listed
from headrace.cli.optimization_text import as_text
from headrace.engines import emulated as emulated_module
from headrace.engines.emulated import EmulatedEngine
from headrace.engines.onnx_engine import OnnxEngine
from headrace.ledger.ledger import Ledger
from headrace.optimize.artifacts import ArtifactStore
from headrace.optimize.better_plan import better_plan
from headrace.optimize.catalogue import METHODS, Methods
from headrace.optimize.concurrency import Concurrency, answers_alike, divide_cores, search_concurrency
from headrace.optimize.goal import Goal
from headrace.optimize.head_to_head import Pairs
from headrace.optimize.pareto import Point
from headrace.optimize.replay_attempt import replay_attempt
from headrace.optimize.search import optimize
from headrace.optimize.techniques import Technique, on_engine
from headrace.report.variants_page import render_variants
from headrace.runs.formats.optimization import Attempt, OptimizationDocument
from headrace.runs.formats.profile import Estimate
from headrace.validate import measuring
from headrace.validate.metrics import metric_named
from headrace.validate.model_speed import Timing
from headrace.validate.variant_spec import VariantSpec, parse_variant

FIRST = Concurrency(workers=1, threads=1, batch=1)


@pytest.fixture(autouse=True)
def short_blocks() -> Iterator[None]:
    """Blocks of a few milliseconds: what is tested is what is made of them."""
    with measuring.using(timing=Timing(block_seconds=0.01)):
        yield


class VirtualTime:
    """Time that only sleeping passes: what a device takes is known to the nanosecond, however busy the machine is."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        """Return seconds slept by all."""
        return self._now

    perf_counter = monotonic

    def process_time(self) -> float:
        """Return no CPU seconds: who sleeps needs none."""
        return 0.0

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, short_blocks: None) -> Iterator[VirtualTime]:
    """The time of emulated devices, and of those who time them."""
    time = VirtualTime()
    monkeypatch.setattr(emulated_module, "time", time)
    with measuring.using(timing=Timing(0.01, time)):
        yield time


def emulated(**options: float) -> VariantSpec:
    """Return a device that takes this time; one call at a time, so that more workers gain nothing."""
    return VariantSpec("device", ModelPlan(engine="emulated", options=options))


@pytest.mark.parametrize(
    ("cores", "wanted"), [(1, [(1, 1)]), (2, [(2, 1), (1, 2)]), (6, [(6, 1), (3, 2), (1, 4), (1, 6)])]
)
def test_cores_are_divided_by_powers_of_two(cores: int, wanted: list[tuple[int, int]]) -> None:
    """From a worker for each core to one worker with all of them."""
    assert divide_cores(cores, "throughput") == wanted
    assert {workers for workers, _ in divide_cores(cores, "latency")} == {1}


@pytest.mark.usefixtures("clock")
def test_batches_grow_where_a_call_costs_by_itself() -> None:
    """A launch of 5 ms is shared by the items of a batch; the ratio that counts is of new rounds against the first."""
    found = search_concurrency(emulated(launch_seconds=0.005), np.zeros((3, 2), np.float32), FIRST, cores=1)
    assert found.best.batch >= 8
    assert found.speed is not None
    assert found.speed.low > 2
    taken = [one.batch for one in found.timed if one.chosen]
    assert taken == sorted(taken)
    assert taken[-1] == found.best.batch


@pytest.mark.usefixtures("clock")
def test_batches_stay_small_where_they_gain_nothing() -> None:
    """5 ms an item, whatever the batch: of equals the smaller one stays, and growing ends after two."""
    found = search_concurrency(emulated(item_seconds=0.005), np.zeros((3, 2), np.float32), FIRST, cores=1)
    assert found.best == FIRST
    assert found.speed is None
    assert [one.batch for one in found.timed] == [1, 2, 4]


def test_a_batch_that_the_model_refuses_is_left_out(nets: ModuleType, tmp_path: Path) -> None:
    """A model of a fixed batch keeps it; what it refuses is told."""
    path = nets.save_net(tmp_path / "net.onnx", nets.make_weights())
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, path)
    items = np.zeros((4, 3, nets.SIDE, nets.SIDE), np.float32)
    found = search_concurrency(parse_variant(str(path)), items, FIRST, cores=1)
    assert found.best.batch == 1
    assert {"1 x 1 thread, batch 2", "1 x 1 thread, batch 4"} <= set(found.refused)


def test_a_stop_ends_the_sweep_with_what_is_known() -> None:
    """Nothing is timed after it."""
    items = np.zeros((3, 2), np.float32)
    found = search_concurrency(emulated(launch_seconds=0.005), items, FIRST, cores=2, stop=lambda: True)
    assert (found.best, found.speed) == (FIRST, None)
    assert len(found.timed) == 1


def test_a_model_that_looks_at_its_neighbours_is_found(case: Any, tmp_path: Path) -> None:
    """Less the mean of the batch an item is answered otherwise in every batch."""
    nodes = [helper.make_node("ReduceMean", ["x"], ["m"], axes=[0]), helper.make_node("Sub", ["x", "m"], ["y"])]
    shape = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in "xy"]
    graph = helper.make_graph(nodes, "centred", shape[:1], shape[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "centred.onnx")
    items = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)
    assert answers_alike(parse_variant(str(tmp_path / "centred.onnx")), items, (2, 8)) > 0.1
    assert answers_alike(parse_variant(str(case.model)), case.inputs, (1, 8)) < 1e-4


def test_answers_whose_shape_hangs_on_the_batch_are_not_alike(tmp_path: Path) -> None:
    """As many columns as some item of the batch has above 0, as detections are filled up: no batch fits another."""
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], axes=[0], keepdims=0),
        helper.make_node("Greater", ["most", "zero"], ["is_there"]),
        helper.make_node("Compress", ["x", "is_there"], ["y"], axis=1),
    ]
    inputs, outputs = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", columns])
        for name, columns in (("x", 3), ("y", "m"))
    )
    zero = helper.make_tensor("zero", TensorProto.FLOAT, [], [0.0])
    graph = helper.make_graph(nodes, "rows", [inputs], [outputs], [zero])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "rows.onnx"
    )
    items = np.float32([[1, 0, 0], [1, 1, 0], [1, 1, 1], [1, 0, 0]])
    assert answers_alike(parse_variant(str(tmp_path / "rows.onnx")), items, (1, 4)) == np.inf


def detector(path: Path, *, moved_by_others: bool) -> VariantSpec:
    """Save a model that gives its rows of six columns as far as some item of the batch has any; maybe less their mean."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[0]),
        helper.make_node("Sub", ["x", "m"], ["moved"]),
        helper.make_node("ReduceMax", ["x"], ["most"], axes=[0, 2], keepdims=0),
        helper.make_node("Greater", ["most", "zero"], ["is_there"]),
        helper.make_node("Compress", ["moved" if moved_by_others else "x", "is_there"], ["y"], axis=1),
    ]
    inputs, outputs = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", rows, 6]) for name, rows in (("x", 3), ("y", "m"))
    )
    zero = helper.make_tensor("zero", TensorProto.FLOAT, [], [0.0])
    graph = helper.make_graph(nodes, "detections", [inputs], [outputs], [zero])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return parse_variant(str(path))


def test_detections_that_are_filled_up_are_alike_in_any_batch(tmp_path: Path) -> None:
    """A detector may have larger batches; one whose detections hang on the batch's other items may not."""
    row, nothing = [2.0, 2, 12, 12, 0.9, 1], [0.0] * 6
    items = np.float32([[row, nothing, nothing], [row, row, nothing], [row, row, row], [nothing, nothing, nothing]])
    assert answers_alike(detector(tmp_path / "own.onnx", moved_by_others=False), items, (1, 4)) == 0.0
    assert answers_alike(detector(tmp_path / "others.onnx", moved_by_others=True), items, (1, 4)) == np.inf


def searched(
    case: Any, ledger: Ledger, folder: Path, *, batch: int = 8, concurrency: Concurrency | None = FIRST,
    methods: Methods = METHODS,
) -> Any:  # fmt: skip
    """Search, with concurrency at last, on a machine of one core."""
    goal = Goal(max_drop=0.02, batch=batch, concurrency=concurrency, cores=1)
    return optimize(
        case.model, store=ArtifactStore(folder / "artifacts"), goal=goal, calibration=case.calibration,
        golden=case.golden, memory=ledger.attempts, methods=methods,
    )  # fmt: skip


@pytest.mark.full
@pytest.mark.real_clock
@pytest.mark.usefixtures("speeds")
def test_the_layout_of_the_winner_is_an_attempt_of_the_ledger(case: Any, tmp_path: Path) -> None:
    """With every layout that was timed; a second search recalls it, and a Plan gets its settings where it was accepted."""
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        found = searched(case, ledger, tmp_path).layout
        assert found is not None
        assert found.layouts[0].chosen
        assert found.whole is not None
        assert ledger.attempts.attempt(found.id).technique == "layout"
        again = searched(case, ledger, tmp_path)
    assert again.layout.is_recalled
    assert again.layout.layouts == found.layouts
    plan, reasons = better_plan(Plan(stages={"process": StagePlan(queue_items=40)}), again, "process")
    assert plan.model.artifact is not None
    assert plan.stages["process"].queue_items == 40
    if again.layout.verdict == "accept":
        assert plan.stages["process"].batch == again.layout.stages["batch"]
        assert "stages.process.workers" in reasons
    else:
        assert plan.stages["process"].batch is None


class SlowEngine:
    """ONNX Runtime's answers, in the time of a device whose cost of a call and of an item are known; 6 ms an item if not."""

    def open(self, artifact: Path | None, *, threads: int, options: Mapping[str, Any], calls: int = 1) -> Model:
        """Return the model with the emulated engine's options."""
        time = EmulatedEngine().open(None, threads=threads, options=options or {"item_seconds": 0.006})
        return SlowModel(OnnxEngine().open(artifact, threads=threads, options={}), time)


class SlowModel:
    """Answers as one model does, and takes as long as another."""

    def __init__(self, answers: Model, time: Model) -> None:
        self._answers, self._time = answers, time
        self.inputs, self.outputs, self.metadata = answers.inputs, answers.outputs, answers.metadata
        self.variant = {**answers.variant, "engine": "slow"}

    def __call__(self, batch: Any) -> Any:
        """Return the answers."""
        self._time(batch)
        return self._answers(batch)


def use_engines(monkeypatch: pytest.MonkeyPatch, **classes: str) -> None:
    """Have Plans name classes of this file."""
    parts = {name: f"{__name__}:{cls}" for name, cls in classes.items()}
    monkeypatch.setattr(engines, "ENGINES", engines.ENGINES.with_parts(parts))


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch, clock: VirtualTime) -> Methods:
    """Two techniques, of 2 ms an item and of 2.5 ms a call: at a batch of one the first is ahead."""

    def technique(name: str, options: dict[str, float]) -> Technique:
        return Technique(
            name=name, kind="lossless", says="", why_not=lambda subject: None,
            candidates=lambda subject: iter([on_engine(subject, subject.original, "slow", options)]),
        )  # fmt: skip

    use_engines(monkeypatch, onnx="SlowEngine", slow="SlowEngine")
    # No other engine: it would be timed by this clock, which it never moves.
    return Methods(
        of_the_file=(technique("single", {"item_seconds": 0.002}), technique("batched", {"launch_seconds": 0.0025}))
    )


def technique_of(document: OptimizationDocument, candidate: str | None) -> str:
    """Return which technique made a candidate."""
    return next(one.technique for one in document.attempts if one.candidate == candidate)


def test_the_second_wins_with_its_own_layout(case: Any, tmp_path: Path, devices: Methods) -> None:
    """Each is laid out for itself: at batch 1 the one is ahead, and in its own layout the other."""
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        document, again = (searched(case, ledger, tmp_path, batch=1, methods=devices) for _ in range(2))
        listed = attempts_listed(ledger.attempts.attempts())
    assert technique_of(document, document.front[0]) == "single"
    assert technique_of(document, document.recommended) == "batched"
    assert [technique_of(document, one.of) for one in document.laid_out] == ["single", "batched"]
    assert document.layout is not None
    assert document.layout.of == document.recommended
    batch = document.layout.stages["batch"]
    assert batch > 4
    assert better_plan(Plan(), document, "process")[0].stages["process"].batch == batch
    assert again.recommended == document.recommended
    assert all(one.is_recalled for one in again.laid_out)
    for shown in (as_text(document, None), listed):
        assert f"1 x 1, batch {batch}" in shown
    assert "batched on slow, its own layout" in render_variants(document)


def test_a_run_off_is_in_their_own_layouts(case: Any, tmp_path: Path, devices: Methods) -> None:
    """There the second is ahead by what both came to; in calls of one item it is behind."""
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        document = searched(case, ledger, tmp_path, batch=1, methods=devices)
    single, batched = document.laid_out
    known, nothing = {attempt.candidate: attempt for attempt in document.attempts}, Estimate(0.0, 0.0, 0.0)
    first, second = (
        Point(name=one.of, kind="lossless", speedup=nothing, drop=nothing, num_bytes=1) for one in (single, batched)
    )
    subject: Any = SimpleNamespace(called="the model as given")

    def ratio(layouts: Mapping[str, Attempt]) -> float:
        pairs = Pairs(subject, known, layouts, case.calibration, 1, print)
        found = pairs.measure(first, second, settled=lambda speed: False)
        assert found is not None
        return found.ratio

    assert single.whole is not None
    assert batched.whole is not None
    assert ratio({}) < 1
    gained = batched.whole.ratio.mid / single.whole.ratio.mid
    assert ratio({one.of: one for one in document.laid_out}) == pytest.approx(gained, rel=0.05)


class AloneEngine(SlowEngine):
    """Of the variants one cannot be shared by workers."""

    def open(self, artifact: Path | None, *, threads: int, options: Mapping[str, Any], calls: int = 1) -> Model:
        """Refuse it."""
        if calls > 1 and options == {"item_seconds": 0.002}:
            raise EngineError("one caller alone")
        return super().open(artifact, threads=threads, options=options, calls=calls)


def test_where_one_cannot_be_laid_out_all_are_compared_in_one_layout(
    case: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: Methods
) -> None:
    """What the second gains by its own layout is not held against the first's without one."""
    use_engines(monkeypatch, slow="AloneEngine")
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        two = Concurrency(workers=2, threads=1, batch=1)
        document = searched(case, ledger, tmp_path, batch=1, concurrency=two, methods=devices)
    assert technique_of(document, document.recommended) == "single"
    assert [technique_of(document, one.of) for one in document.laid_out] == ["batched"]
    assert any("compared in the Plan's" in warning for warning in document.warnings)


def test_the_layout_of_another_engine_is_done_again_on_that_engine(case: Any, tmp_path: Path, devices: Methods) -> None:
    """Both run the file as it was given: on the model's own engine no batch would gain anything."""
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        found = searched(case, ledger, tmp_path, batch=1, methods=devices).layout
    assert found is not None
    assert (found.verdict, found.artifact.sha256) == ("accept", found.model)
    again = replay_attempt(
        found, store=tmp_path / "artifacts", metric=metric_named, hardware="",
        read=lambda path, pipeline, labelled: case.golden if labelled else case.calibration,
    )  # fmt: skip
    assert found.speedup is not None
    assert again.speedup is not None
    assert again.speedup.mid == pytest.approx(found.speedup.mid, rel=0.01)


def test_in_one_layout_the_first_wins(case: Any, tmp_path: Path, devices: Methods) -> None:
    """As with `--no-layout`, where all are compared at the same batch."""
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        document = searched(case, ledger, tmp_path, batch=1, concurrency=None, methods=devices)
    assert technique_of(document, document.recommended) == "single"
    assert document.laid_out == ()


@pytest.mark.slow
@pytest.mark.usefixtures("speeds")
def test_the_command_writes_a_layout_that_it_shows(
    case: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table of layouts is printed, unless it is left out."""
    sets = ["--data", str(case.folder / "calibration.npz"), "--golden", str(case.folder / "golden.npz")]
    ledger = ["--ledger", str(tmp_path / "ledger.sqlite")]
    plan = tmp_path / "my plan.toml"
    assert main(["optimize", str(case.model), *sets, "--max-drop", "2pt", *ledger, "-o", str(plan)]) == 0
    told = capsys.readouterr().out
    assert "workers x threads" in told
    assert f"headrace ledger rollback '{plan}'" in told
    assert Plan.load(plan).model.artifact is not None
    assert main(["optimize", str(case.model), *sets, "--max-drop", "2pt", *ledger, "--no-layout"]) == 0
    assert "workers x threads" not in capsys.readouterr().out
