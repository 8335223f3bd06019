"""What a cheaper model does for a whole pipeline: predicted, written down, measured, and refused where it gains nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.base.errors import HeadraceError
from headrace.base.plan import ModelPlan, Plan, StagePlan
from headrace.base.records import SourceWork
from headrace.compare.contenders import Blocks
from headrace.diagnose.analysis import Analysis
from headrace.diagnose.replay import CannotReplay
from headrace.ledger.ledger import Ledger
from headrace.optimize import end_to_end as end_to_end_module
from headrace.optimize.better_plan import better_plan
from headrace.optimize.end_to_end import Question, judge, judge_end_to_end, speedup_at
from headrace.optimize.expected_speedup import ExpectedSpeedup
from headrace.optimize.pipeline_speedup import PipelineSpeedup, predict_speedup
from headrace.runs.formats.comparison import Beside, ComparisonDocument, Side
from headrace.runs.formats.optimization import Artifact, Attempt, EndToEnd, OptimizationDocument, Whole
from headrace.runs.formats.profile import Estimate
from headrace.runs.formats.variants import ValidationDocument, VariantSide
from headrace.runs.reader import read_run
from headrace.sources.finite import Entry, FiniteSource

SIDE = VariantSide(name="device", variant={}, open_seconds=0.0)
FILE = Artifact(sha256="0" * 64, file="net.onnx", num_bytes=1)


class Timed(hr.Module):
    """A model that only takes time, behind a stage that does too."""

    input = hr.BytesInput()

    def __init__(self, before_seconds: float) -> None:
        self.before_seconds = before_seconds

    def load(self, context: Any) -> None:
        """Open what the Plan names."""
        self.model = context.open_model()

    def preprocess(self, value: Any) -> Any:
        """Take time."""
        time.sleep(self.before_seconds)
        return value

    def process(self, batch: Any) -> list[float]:
        """Answer."""
        return [float(one[0]) for one in self.model(batch)]


def device(item_seconds: float) -> dict[str, Any]:
    """Return the `[model]` table of a device."""
    return {"engine": "emulated", "options": {"item_seconds": item_seconds}}


def found(seconds: float, speedup: float) -> OptimizationDocument:
    """Return a search that recommends a device of this speed."""
    document = ValidationDocument(
        a=SIDE, b=SIDE, verdict="accept", says="", gates=(), batch=1, golden="", num_items=1
    )  # fmt: skip
    attempt = Attempt(
        id="a1", model=FILE.sha256, technique="faster", kind="lossless", hypothesis="it is", candidate="device", says="",
        settings=device(seconds), artifact=FILE, verdict="accept", seconds=0.0, validation=document,
        speedup=Estimate(speedup, speedup, speedup),
    )  # fmt: skip
    return OptimizationDocument(
        baseline=SIDE, model=FILE, objective="throughput", max_drop=0.01, batch=1, golden="", attempts=(attempt,),
        recommended="device", says="faster",
    )  # fmt: skip


def measured(
    folder: Path, *, before: float, after: float, preparing: float, batch: int = 1, objective: Any = "throughput"
) -> tuple[EndToEnd, OptimizationDocument]:
    """Measure a pipeline whose model takes `after` seconds an item instead of `before`."""
    for number in range(40):
        (folder / f"{number}.txt").write_text("x")
    source = hr.folder(folder, patterns=["*.txt"])
    pipeline = hr.Pipeline(source, module=Timed(preparing), delivery=hr.jsonl(folder / "out.jsonl"))
    plan = Plan(model=ModelPlan(**device(before)), stages={"process": StagePlan(batch=batch)})
    search = msgspec.structs.replace(found(after, before / after), objective=objective)
    question = Question(
        pipeline=pipeline, source=source, before=plan, after=better_plan(plan, search, "process")[0],
        stage="process", found=search,
    )  # fmt: skip
    with Ledger(folder / "ledger.sqlite") as ledger:
        told = judge_end_to_end(question, runs=folder, ledger=ledger, blocks=Blocks(pairs=6, seconds=0.3))
    return told, judge(search, told, anyway=False)


class Made(FiniteSource):
    """25 items for each of which it works."""

    work = SourceWork(does="makes them")

    def entries(self) -> Iterator[Entry]:
        """Make them."""
        return (Entry(f"item-{number}", str(number).encode()) for number in range(25))


class FailsFirst(Timed):
    """One whose first item fails."""

    def preprocess(self, value: Any) -> Any:
        """Raise for it."""
        if value == b"0":
            raise ValueError("it is the first")
        return value


@pytest.mark.full
def test_what_is_recorded_tries_each_job_once_and_goes_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in what is measured: no job comes again because it failed; and a short source is no short recording."""

    def measure(*args: Any, **options: Any) -> None:
        raise HeadraceError("it is not measured here")

    monkeypatch.setattr(end_to_end_module, "compare_pipelines", measure)
    pipeline = hr.Pipeline(Made(), module=FailsFirst(0.0), delivery=hr.collect())
    plan = Plan(model=ModelPlan(**device(0.001)))
    question = Question(
        pipeline=pipeline, source=pipeline.source, before=plan, after=plan, stage="process", found=found(0.001, 2.0)
    )
    with pytest.raises(HeadraceError, match="not measured here"):
        judge_end_to_end(question, runs=tmp_path, blocks=Blocks(pairs=2, seconds=0.001))

    (folder,) = tmp_path.glob("optimize-*")
    counters = read_run(folder).info.counters
    assert (counters.received, counters.retried, counters.dead_lettered) == (60, 0, 3)


@pytest.mark.measures
def test_a_gain_is_predicted_measured_and_remembered(tmp_path: Path) -> None:
    """Where the model is what takes the time; the prediction stands in the ledger beside what came of it, and so does whose.

    From the same recording it is told what a technique's range would come to. Where others take the cores it may be that the
    gain cannot be told: then nothing is recommended.
    """
    told, document = measured(tmp_path, before=0.008, after=0.002, preparing=0.0)
    if told.verdict == "underpowered":
        assert document.recommended is None
        return
    assert told.verdict == "better"
    assert told.predicted is not None
    assert told.measured is not None
    assert told.error == pytest.approx(told.predicted.mid / told.measured.mid - 1)
    assert document.recommended == "device"
    assert "end to end" in document.says
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        entry = ledger.prediction(told.prediction)
        (event,) = ledger.events.events("pipeline", attempt="a1")
    assert entry.measured is not None
    assert entry.measured.ratio.mid == told.measured.mid
    assert (event.prediction, event.speedup, event.verdict) == (told.prediction, told.measured, "better")
    forecast = PipelineSpeedup.of(Analysis(read_run(told.run)))
    whole = predict_speedup(ExpectedSpeedup(1.0, 4.0), forecast)
    assert whole is not None
    assert whole.whole_low == pytest.approx(1.0)
    assert whole.whole_high is not None
    assert 1.5 < whole.whole_high <= 4.01


@pytest.mark.measures
def test_for_latency_the_pipeline_is_judged_by_latency(tmp_path: Path) -> None:
    """Its throughput is told beside it, and is what was predicted."""
    told, _ = measured(tmp_path, before=0.008, after=0.002, preparing=0.0, objective="latency")
    assert told.metric == "latency_p50"
    assert told.gained is not None
    assert told.measured is not None
    assert told.predicted is not None
    assert told.before_per_second > 0
    assert "an item is through" in told.says
    assert "times the throughput" in told.says


def compared(cpu: tuple[float, float, float], throughput: tuple[float, float, float], verdict: Any) -> Any:
    """Return a comparison by CPU time, with the throughput beside it."""
    low, mid, high = throughput
    beside = Beside(
        metric="throughput", unit="items/s", higher_is_better=True, ratio=mid, ratio_low=low, ratio_high=high, a=10.0,
        b=10.0 * mid, verdict=verdict,
    )  # fmt: skip
    side = Side(name="", pipeline="", plan_id="", median=0.1)
    return ComparisonDocument(
        a=side, b=side, metric="cpu_per_item", unit="s/item", higher_is_better=False, paired=True, num_pairs=8,
        ratio=cpu[1], ratio_low=cpu[0], ratio_high=cpu[2], margin=0.02, budget=None, verdict="better",
        is_regression=False, pairs_needed=None, beside=(beside,),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("throughput", "verdict", "expected"),
    [((0.98, 1.0, 1.01), "no_difference", "better"), ((0.8, 0.85, 0.9), "worse", "worse")],
)
def test_for_cost_less_cpu_time_counts_where_the_pipeline_is_no_slower(
    throughput: tuple[float, float, float], verdict: str, expected: str
) -> None:
    """And what is less of it and surely slower is not recommended."""
    search = msgspec.structs.replace(found(0.002, 2.0), objective="cost")
    question: Any = SimpleNamespace(found=search, pipeline=SimpleNamespace(name="p"), before=Plan(), after=Plan())
    run: Any = SimpleNamespace(path=Path("run"))
    document = compared((0.4, 0.5, 0.625), throughput, verdict)
    told = end_to_end_module._tell(question, run, document, None, "", "not asked", None)
    assert (told.verdict, told.metric) == (expected, "cpu_per_item")
    assert told.gained == Estimate(1.6, 2.0, 2.5)
    assert told.measured == Estimate(*throughput)
    assert (told.before_per_second, told.after_per_second) == (10.0, 10.0 * throughput[1])
    assert told.says.startswith("2.00 times less CPU time an item (1.60 to 2.50); end to end")
    assert judge(search, told, anyway=False).recommended == ("device" if expected == "better" else None)


def test_a_prediction_for_smaller_images_says_what_it_does_not_count() -> None:
    """The recording knows what the images cost before the model as they were, so the model alone is predicted."""
    sides: Any = {name: Plan(model=ModelPlan(input_side=side)) for name, side in (("before", None), ("after", 160))}
    question: Any = SimpleNamespace(found=found(0.002, 2.0), pipeline=SimpleNamespace(name="p"), **sides)
    run: Any = SimpleNamespace(path=Path("run"))
    predicted: Any = SimpleNamespace(throughput=SimpleNamespace(ratio=Estimate(1.4, 1.5, 1.6)))
    document = compared((0.4, 0.5, 0.625), (1.9, 2.0, 2.1), "better")
    told = end_to_end_module._tell(question, run, document, predicted, "p1", "", None)
    assert "predicted 1.50 (1.40 to 1.60), by the model alone: what images of another size cost before it" in told.says
    same: Any = SimpleNamespace(**{**vars(question), "after": question.before})
    assert "by the model alone" not in end_to_end_module._tell(same, run, document, predicted, "p1", "", None).says


@pytest.mark.measures
@pytest.mark.slow
def test_a_model_that_nobody_waits_for_is_refused_with_the_ceiling(tmp_path: Path) -> None:
    """Another stage takes eight times as long: half the model's time buys nothing, and it is said what even none would buy."""
    told, document = measured(tmp_path, before=0.002, after=0.001, preparing=0.016)
    assert told.verdict != "better"
    assert told.ceiling is not None
    assert told.ceiling < 1.5
    assert document.recommended is None
    assert "cost nothing at all" in document.says
    assert judge(found(0.002, 2.0), told, anyway=True).recommended == "device"


@pytest.mark.full
def test_a_pipeline_that_fails_with_it_keeps_what_it_has(tmp_path: Path) -> None:
    """Its module cannot do with the other model: that is the verdict, with the reason, and no error of the search."""
    source = hr.folder(tmp_path, patterns=["*.txt"])
    for number in range(40):
        (tmp_path / f"{number}.txt").write_text("x")
    module = Timed(0.0)
    pipeline = hr.Pipeline(source, module=module, delivery=hr.jsonl(tmp_path / "out.jsonl"))
    pipeline.name = "some/where.py:pipeline"
    search, plan = found(0.001, 2.0), Plan(model=ModelPlan(**device(0.002)))
    missing = Plan(model=ModelPlan(artifact=str(tmp_path / "gone.onnx")))
    question = Question(
        pipeline=pipeline, source=source, before=plan, after=missing, stage="process", found=search
    )  # fmt: skip
    told = judge_end_to_end(question, runs=tmp_path, blocks=Blocks(pairs=6, seconds=0.3))
    assert told.verdict == "worse"
    assert "gone.onnx" in told.says
    assert Path(told.run).parent == tmp_path
    assert judge(search, told, anyway=False).recommended is None


def laid_out(search: OptimizationDocument, *, batch: int, ratio: float) -> OptimizationDocument:
    """Return a search whose variant was timed in the Plan's layout, too, and has none of its own."""
    layout = msgspec.structs.replace(
        search.attempts[0], technique="layout", verdict="reject", gate="speed", stages={"workers": 1, "batch": batch},
        whole=Whole(
            ratio=Estimate(ratio, ratio, ratio), before_per_second=1.0, after_per_second=ratio, before="x", after="x"
        ),
    )  # fmt: skip
    return msgspec.structs.replace(search, layout=layout)


def test_what_is_predicted_was_timed_in_the_batch_of_the_plan() -> None:
    """In another batch the same variant gains another time as much."""
    search = found(0.001, 2.0)
    assert speedup_at(search, 1) == 2.0
    assert speedup_at(laid_out(search, batch=8, ratio=3.0), 8) == 3.0
    assert speedup_at(laid_out(search, batch=8, ratio=3.0), 1) == 2.0
    assert speedup_at(laid_out(search, batch=1, ratio=1.5), 1) == 1.5


def test_a_batch_in_which_nothing_was_timed_is_refused() -> None:
    """It is said in which it was, and how to time it in this one."""
    search = found(0.001, 8.0)
    for batch in (4, 16):
        with pytest.raises(CannotReplay, match=f"timed in batches of 1.*--batch {batch} "):
            speedup_at(search, batch)
    untimed = msgspec.structs.replace(
        search, attempts=(msgspec.structs.replace(search.attempts[0], speedup=None),)
    )  # fmt: skip
    with pytest.raises(CannotReplay, match="not timed"):
        speedup_at(untimed, 1)


@pytest.mark.slow
def test_what_cannot_be_predicted_is_measured(tmp_path: Path) -> None:
    """The pipeline has other batches than those that were timed: it is said, and both run all the same."""
    told, _ = measured(tmp_path, before=0.008, after=0.001, preparing=0.0, batch=4)
    assert told.predicted is None
    assert "those of the Plan are of 4" in told.refused
    assert told.measured is not None


@pytest.mark.parametrize(
    ("objective", "verdict", "stays"),
    [
        ("size", "no_difference", True),
        ("size", "underpowered", False),
        ("size", "worse", False),
        ("throughput", "no_difference", False),
    ],
)
def test_what_is_enough_for_an_objective(objective: Any, verdict: Any, stays: bool) -> None:
    """A smaller file is enough where the pipeline surely loses nothing; few pairs do not show that."""
    search = msgspec.structs.replace(found(0.001, 1.0), objective=objective)
    told = EndToEnd(
        pipeline="p", source="40 items", predicted=None, refused="no run", measured=Estimate(0.7, 1.0, 1.4), error=None,
        before_per_second=10.0, after_per_second=10.0, num_pairs=8, verdict=verdict, ceiling=None, run="run", says="alike",
    )  # fmt: skip
    assert (judge(search, told, anyway=False).recommended is not None) is stays


def test_a_layout_is_refused_with_the_rest() -> None:
    """It was timed with the model alone."""
    search = found(0.001, 2.0)
    layout = msgspec.structs.replace(search.attempts[0], technique="layout", stages={"workers": 2, "batch": 4})
    told = EndToEnd(
        pipeline="p", source="40 items", predicted=None, refused="no run", measured=Estimate(0.9, 0.95, 0.99), error=None,
        before_per_second=10.0, after_per_second=9.5, num_pairs=8, verdict="worse", ceiling=None, run="run", says="slower",
    )  # fmt: skip
    document = judge(msgspec.structs.replace(search, layout=layout), told, anyway=False)
    assert document.layout is not None
    assert (document.layout.verdict, document.layout.gate) == ("reject", "pipeline")
