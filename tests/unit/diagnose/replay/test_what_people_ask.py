"""What-ifs of skipping items, of moving a stage to the device, and of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.base.errors import SettingsError
from headrace.base.plan import Plan
from headrace.diagnose.analysis import Analysis
from headrace.diagnose.replay import CannotReplay, Replay
from headrace.diagnose.replay.decoding import scale_factors
from headrace.diagnose.whatif import in_words, predict
from headrace.runs.formats.prediction import Change

Make = Callable[..., Replay]

MODEL = [
    {"name": "decode", "cpu": 0.002},
    {"name": "process", "wait": 0.01, "kind": "device"},
    {"name": "deliver", "cpu": 1e-6},
]
VARIANTS = {"variants": [{"engine": "emulated", "launch_seconds": 0.01, "item_seconds": 0.0}]}
EMULATED = {
    "settings": ["model.engine=emulated", "model.options.launch_seconds=0.01", "model.options.item_seconds=0.0"],
    "changes": VARIANTS,
}


def test_a_cache_in_front_of_the_model_saves_calls(replay_of: Make) -> None:
    """Half of the items are known: the device that was busy all the time does twice as many."""
    assert replay_of(MODEL).ratio(Change(cache_hits={"process": 0.5})) == pytest.approx(2.0, rel=0.05)


def test_a_cache_saves_as_much_of_batches(replay_of: Make) -> None:
    """Batches of 4 that are full of what has to be done: three of four items known leave a quarter of them."""
    steps = [{"name": "process", "wait": 0.04, "kind": "device", "batch": 4}, {"name": "deliver", "cpu": 1e-6}]
    ratio = replay_of(steps, gap=0.01).ratio(Change(cache_hits={"process": 0.75}))
    assert ratio == pytest.approx(4.0, rel=0.1)


def test_every_third_item_costs_a_third(replay_of: Make) -> None:
    """A model that looks at one image in three lets three times as many through; then something else limits, or not."""
    change = Change(every={"process": 3})
    assert replay_of(MODEL).ratio(change) == pytest.approx(3.0, rel=0.05)
    assert in_words(change) == "one in 3 items of process"
    assert change.kinds == ("cache",)


def test_a_cache_and_every_other_item_multiply() -> None:
    """Of every second item half are known: a quarter costs something."""
    assert Change(cache_hits={"process": 0.5}, every={"process": 2}).skipped("process") == pytest.approx(0.75)


def test_a_stage_on_the_device_takes_turns_with_the_model(replay_of: Make) -> None:
    """Twelve milliseconds of a core become two on the device, which has the model's ten already."""
    steps = [{"name": "prepare", "cpu": 0.012}, *MODEL[1:]]
    replay = replay_of(steps, gap=0.012, cores=1, **EMULATED)
    change = Change(on_device={"prepare": 0.005})
    assert replay.ratio(Change()) == 1.0
    assert replay.ratio(change) == pytest.approx(0.012 / 0.015, rel=0.06)
    assert replay.ratio(Change(on_device={"prepare": 0.001})) == pytest.approx(0.012 / 0.011, rel=0.06)
    after = replay.simulate(change)
    assert after.utilization["device:prepare"] > 0.9
    assert after.cpu_per_job < 0.2 * replay.simulate().cpu_per_job


def test_without_a_device_the_stage_gets_one(replay_of: Make) -> None:
    """A model on the cores and a stage on a device of its own: only the stage's work leaves the cores."""
    steps = [{"name": "prepare", "cpu": 0.012, "workers": 2}, {"name": "deliver", "cpu": 1e-6}]
    replay = replay_of(steps, gap=0.012, cores=1)
    assert replay.ratio(Change(on_device={"prepare": 0.004})) == pytest.approx(3.0, rel=0.1)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (Change(on_device={"process": 0.001}), "kind cpu"),
        (Change(on_device={"decode": 0.0}), "more than 0"),
        (Change(every={"decode": 0}), "whole number"),
        (Change(every={"resize": 2}), "resize"),
    ],
)
def test_what_is_impossible_is_refused(replay_of: Make, change: Change, says: str) -> None:
    """A model is on its device already; nothing takes no time; half an item cannot be done."""
    with pytest.raises((SettingsError, ValueError), match=says):
        replay_of(MODEL).ratio(change)


def with_memory(builder: Any, **plan: Any) -> Replay:
    """Return a run of a stage whose items have 1 MB, at 200 to 300 MB of memory."""
    builder.stage("work", kind="cpu", workers=2, queue_capacity=8)
    builder.stage("deliver", kind="io", role="deliver", executor="inline", station="work")
    count = 60
    arrived = [0.01 * number for number in range(count)]
    for name, seconds in (("work", 0.02), ("deliver", 1e-6)):
        builder.spans(
            name, arrived=arrived, ended=[one + seconds for one in arrived], cpu=seconds, bytes_in=1_000_000,
            bytes_out=1_000_000,
        )  # fmt: skip
    builder.gauge("processes", "rss_bytes", [0.0, 0.3, 0.6], [200e6, 300e6, 250e6])
    table = Plan().with_settings(
        ["work.workers=2", "work.queue_items=8", "work.executor=thread", "deliver.executor=inline", "deliver.workers=2"]
    )
    return Analysis(builder.finish(plans={"p1": table.as_table()})).replay


def test_memory_is_the_measured_peak_and_what_queues_hold_more(builder: Any) -> None:
    """A queue of 108 items instead of 8, of 1 MB each, may hold 100 MB more; nothing changed, nothing more."""
    replay = with_memory(builder)
    usual, longer = (predict(replay, Change(settings=settings)).memory for settings in ((), ("work.queue_items=108",)))
    assert usual is not None
    assert usual.base == 300e6
    assert usual.predicted is not None
    assert usual.predicted.mid == pytest.approx(300e6)
    assert longer is not None
    assert longer.predicted is not None
    assert longer.predicted.high >= 400e6
    assert longer.predicted.low <= 300e6 + 100e6


def test_processes_bring_an_interpreter_each(builder: Any) -> None:
    """Four worker processes take some hundred megabytes each."""
    found = predict(with_memory(builder), Change(settings=("work.executor=process", "work.workers=4"))).memory
    assert found is not None
    assert found.predicted is not None
    assert found.predicted.mid > 700e6


def test_memory_that_was_not_sampled_is_not_predicted(replay_of: Make) -> None:
    """Short runs have no samples of it, and that is said."""
    found = predict(replay_of(MODEL), Change(every={"process": 2})).memory
    assert found is not None
    assert found.predicted is None
    assert "not sampled" in found.refused


CACHED = Change(settings=("work.cache=memory:1GB",))
TWO = [
    {"name": "fetch", "cpu": 0.002, "bytes_out": 2_000},
    {"name": "work", "cpu": 0.008, "bytes_out": 100_000},
    {"name": "deliver", "cpu": 1e-6},
]


def test_a_cache_of_the_plan_is_predicted_for_the_next_run(replay_of: Make) -> None:
    """With room for all items only looking up is left; half the room saves half of the work of both stages."""
    replay = replay_of([*TWO[:2], {"name": "rest", "cpu": 0.010}, TWO[2]], num=120, gap=0.02, cores=1)
    whole, half = (replay.ratio(Change(settings=(f"work.cache=memory:{size}",))) for size in ("100MB", "6.024MB"))
    assert whole == pytest.approx(2.0, rel=0.05)
    assert half == pytest.approx(20 / 15, rel=0.05)
    (says,) = [text for text in predict(replay, CACHED).assumes if "same" in text]
    assert says.startswith(
        "the run over the same 120 items after one that kept their results: 100% of them fit into work.cache"
    )


def test_a_run_that_had_a_cache_predicts_no_other_one(replay_of: Make) -> None:
    """What its stages cost includes what was found."""
    replay = replay_of(TWO, settings=["model.threads=1", "work.cache=memory:1GB"])
    with pytest.raises(CannotReplay, match="profile once without"):
        replay.ratio(Change(settings=("work.cache=memory:2GB",)))
    assert replay.ratio(Change(settings=("work.workers=1",))) == pytest.approx(1.0)


def test_the_scale_has_no_effect_on_a_decoder_that_cannot_reduce() -> None:
    """Every pixel is decoded by nvJPEG: whatever the images, another scale costs what this one does."""
    recorded = Plan.from_table({"decode": {"decoder": "nvjpeg", "scale": "full"}})
    of_no_run: Any = None
    assert scale_factors(of_no_run, of_no_run, recorded, recorded.with_settings(["decode.scale=auto"])) == {}
