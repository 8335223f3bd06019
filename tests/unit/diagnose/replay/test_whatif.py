"""Predictions of a change: their interval, what they refuse, and what they warn of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from headrace.base.errors import SettingsError
from headrace.base.plan import Plan
from headrace.diagnose.replay import CannotReplay, Replay
from headrace.diagnose.whatif import in_words, naive_ratio, predict
from headrace.runs.formats.prediction import Change, KindRecord, PredictionDocument, TrackRecord
from headrace.runs.formats.profile import CpuAccount

Make = Callable[..., Replay]


def step(name: str, **values: Any) -> dict[str, Any]:
    """Return one stage of a recorded run; see `conftest.Step`."""
    return {"name": name, **values}


def own_warnings(document: PredictionDocument) -> list[str]:
    """Return warnings but that of runs made by hand: nothing was sampled that laws could be held to."""
    return [one for one in document.warnings if "could not be checked" not in one]


WAITING = [
    step("fetch", wait=0.02, kind="io", workers=2),
    step("decode", cpu=0.004),
    step("deliver", cpu=0.00001, kind="io"),
]


def test_the_measured_rate_is_scaled_by_the_simulated_ratio(replay_of: Make) -> None:
    """Twice the workers of what waits: twice the measured rate, inside its interval."""
    replay = replay_of(WAITING)
    document = predict(replay, Change(settings=("fetch.workers=4",)))
    throughput = document.throughput
    assert throughput.base == pytest.approx(replay.throughput)
    assert throughput.predicted is not None
    assert throughput.ratio is not None
    assert throughput.predicted.mid == pytest.approx(replay.throughput * throughput.ratio.mid)
    assert throughput.ratio.low < 2.0 < throughput.ratio.high
    assert Plan.from_table(document.plan).stages["fetch"].workers == 4


def test_the_interval_is_as_wide_as_earlier_predictions_were_wrong(replay_of: Make) -> None:
    """Where predictions of this kind missed, the interval is wider, and the document says by how much; of another kind, not."""
    replay, change = replay_of(WAITING), Change(speedups={"fetch": 2.0})
    wide, usual = (
        predict(replay, change, TrackRecord(num=20, by_kind={kind: KindRecord(num=20, times=3.0)}))
        for kind in ("speedup", "workers")
    )
    assert (wide.widened, usual.widened) == (3.0, 1.0)
    assert wide.throughput.ratio is not None
    assert usual.throughput.ratio is not None
    assert wide.throughput.ratio.high - wide.throughput.ratio.low > 2.5 * (
        usual.throughput.ratio.high - usual.throughput.ratio.low
    )


def test_nothing_changed_is_predicted_to_change_nothing(replay_of: Make) -> None:
    """The ratio of no change is one, and its interval only the noise of a measurement."""
    ratio = predict(replay_of(WAITING), Change()).throughput.ratio
    assert ratio is not None
    assert ratio.mid == pytest.approx(1.0)
    assert ratio.high - ratio.low < 0.15


def test_the_rate_is_no_better_known_than_that_of_the_run(replay_of: Make) -> None:
    """The interval of the rate is the ratio's, and wider where the recorded rate is itself uncertain."""
    replay = replay_of(WAITING)
    throughput = predict(replay, Change()).throughput
    assert throughput.ratio is not None
    assert throughput.predicted is not None
    spread = throughput.predicted.high / throughput.predicted.mid
    assert replay.throughput_error > 0
    assert spread > throughput.ratio.high / throughput.ratio.mid


def test_a_given_rate_is_known_and_how_much_of_the_old_one_it_is_is_not(replay_of: Make) -> None:
    """100/s as fast as it could be, 40/s to come: 40/s are nearly sure, and x0.4 holds what two fast runs differ by."""
    given = predict(replay_of(WAITING), Change(arrival_rate=40.0)).throughput
    assert given.predicted is not None
    assert given.ratio is not None
    assert given.predicted.high / given.predicted.low < 1.35
    assert given.ratio.high / given.ratio.low > 1.7
    assert given.ratio.low < given.ratio.mid < given.ratio.high


def test_more_jobs_than_can_be_done_leave_the_run_as_fast_as_it_was(replay_of: Make) -> None:
    """300/s to come and 100/s done: both runs are as fast as they can be, in the same hour."""
    ratio = predict(replay_of(WAITING), Change(arrival_rate=300.0)).throughput.ratio
    assert ratio is not None
    assert ratio.high / ratio.low < 1.3


@pytest.mark.parametrize(("comes", "done"), [(40.0, 40.0), (110.0, 100.0)])
def test_jobs_that_can_be_done_are_done_however_far_off_the_replay_is(
    replay_of: Make, comes: float, done: float
) -> None:
    """A quarter too fast as recorded at 100/s: 40/s to come are 40/s, and of 110/s as many are done as the run did."""
    replay = replay_of([step("work", cpu=0.008), step("deliver", cpu=1e-6)], gap=0.01)
    predicted = predict(replay, Change(arrival_rate=comes)).throughput.predicted
    assert predicted is not None
    assert predicted.mid == pytest.approx(done, rel=0.03)


def test_fewer_jobs_than_a_diagnosis_takes_are_refused(replay_of: Make) -> None:
    """What is too little for a verdict is too little for a prediction."""
    with pytest.raises(CannotReplay, match=r"20 jobs were delivered .* needs 30"):
        replay_of(WAITING, num=20)


def test_a_run_whose_replay_is_far_off_predicts_nothing(replay_of: Make) -> None:
    """One worker of 4 ms an item that delivered 100/s: what held it up is not known, and a diagnosis would not say either."""
    replay = replay_of([step("work", cpu=0.004), step("deliver", cpu=1e-6)])
    assert replay.misfit == pytest.approx(1.5, rel=0.05)
    with pytest.raises(CannotReplay, match="does not understand this run"):
        predict(replay, Change(speedups={"work": 2.0}))


def test_the_interval_is_as_wide_as_the_replay_is_off(replay_of: Make) -> None:
    """A quarter too fast as recorded: neither no change nor a large one is known better than that, and it is said."""
    replay = replay_of([step("work", cpu=0.008), step("deliver", cpu=1e-6)], gap=0.01)
    for speedup in (1.0, 2.0):
        document = predict(replay, Change(speedups={"work": speedup}))
        ratio = document.throughput.ratio
        assert ratio is not None
        assert ratio.high / ratio.mid >= 1 + replay.misfit >= 1.2
        assert any("the interval is as wide" in warning for warning in document.warnings)


def test_latency_of_full_queues_is_refused_with_the_next_option(replay_of: Make) -> None:
    """A source that is read as fast as possible says nothing of latency: say how many come."""
    metric = predict(replay_of(WAITING), Change()).latency_p99
    assert metric.predicted is None
    assert "--arrival-rate" in metric.refused


def test_latency_at_a_rate_is_predicted_on_a_quiet_machine(replay_of: Make) -> None:
    """At half of what it can do, an item takes its 24 ms and seldom more."""
    metric = predict(replay_of(WAITING), Change(arrival_rate=40.0)).latency_p50
    assert metric.predicted is not None
    assert 0.024 <= metric.predicted.mid < 0.05


def test_latency_beside_fluctuating_neighbours_is_refused(replay_of: Make) -> None:
    """Threads that waited for a core most of their time: what others do next decides, so there is no number."""
    noisy = [step("decode", cpu=0.004, delay=0.006), step("deliver", cpu=1e-5)]
    metric = predict(replay_of(noisy, gap=0.004), Change(arrival_rate=40.0)).latency_p50
    assert metric.predicted is None
    assert "quiet machine" in metric.refused


def test_latency_of_a_run_that_kept_itself_from_the_cores_is_predicted(replay_of: Make) -> None:
    """Four workers shared two cores while the run was read at full speed: at half of that rate they hardly meet."""
    own = [step("decode", cpu=0.004, delay=0.004, workers=4), step("deliver", cpu=1e-6)]
    metric = predict(replay_of(own, gap=0.002), Change(arrival_rate=200.0)).latency_p50
    assert metric.predicted is not None
    assert 0.004 <= metric.predicted.mid < 0.007


def test_latency_of_an_overload_is_refused(replay_of: Make) -> None:
    """More jobs than can be done: latency grows for as long as that lasts."""
    metric = predict(replay_of(WAITING), Change(arrival_rate=300.0)).latency_p50
    assert metric.predicted is None
    assert "lower --arrival-rate" in metric.refused


def test_beyond_what_was_measured_there_is_no_number(replay_of: Make) -> None:
    """A batch larger than any that was measured is refused, not extrapolated."""
    steps = [step("process", wait=0.01, kind="device"), step("deliver", cpu=1e-6)]
    with pytest.raises(CannotReplay, match="measure it"):
        predict(replay_of(steps), Change(settings=("process.batch=8",)))


def test_stage_timers_take_waiting_for_a_core_for_work(replay_of: Make) -> None:
    """Timers say that 4 workers on 2 busy cores gain twice; there is no core for them."""
    steps = [step("decode", cpu=0.004, delay=0.004, workers=4), step("deliver", cpu=1e-6)]
    replay = replay_of(steps, gap=0.002)
    change = Change(settings=("decode.workers=8",))
    assert naive_ratio(replay, change) == pytest.approx(2.0)
    assert predict(replay, change).throughput.ratio.mid == pytest.approx(1.0, rel=0.02)  # type: ignore[union-attr]


def test_a_change_is_said_in_words() -> None:
    """Each part of a change is named."""
    change = Change(
        settings=("fetch.workers=32",), speedups={"decode": 2.0}, drop=("resize",), cores=4, devices=2, quiet=True
    )
    words = in_words(change)
    assert (
        words == "fetch.workers=32, decode 2 times as fast, without resize, 4 cores, 2 devices, without other programs"
    )
    assert in_words(Change()) == "nothing changed"


MODEL = [step("decode", cpu=0.004, work="decode"), step("process", wait=0.01, kind="device"), step("deliver", cpu=1e-6)]


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("decode.decoder=pillow", "decode.decoder is changed.*--speedup decode"),
        ("model.engine=openvino", "model.engine is changed.*--curve process"),
        ("model.artifact=other.onnx", "model.artifact is changed"),
        ("model.options.inter_op_threads=2", "model.options is changed"),
        ("model.input_side=160", "model.input_side is changed"),
        ("process.options.top=5", "process.options is changed"),
    ],
)
def test_other_work_is_refused_until_its_cost_is_said(replay_of: Make, setting: str, says: str) -> None:
    """What another decoder or engine costs is nowhere in the run: no number, but how to say or measure it."""
    replay = replay_of(MODEL)
    with pytest.raises(CannotReplay, match=says):
        predict(replay, Change(settings=(setting,)))
    told = Change(settings=(setting,), speedups={"decode": 2.0, "process": 2.0})
    assert predict(replay, told).throughput.ratio.mid == pytest.approx(2.0, rel=0.03)  # type: ignore[union-attr]


def test_options_that_two_stages_go_by_are_refused_for_both(replay_of: Make) -> None:
    """What the second stage costs elsewhere is said, and not what the first one saves: refused, with what measures both."""
    replay = replay_of([step("draw", cpu=0.004), step("process", wait=0.01, kind="device"), step("deliver", cpu=1e-6)])
    draw = replay.demands.stages[0]
    draw.info = msgspec.structs.replace(draw.info, follows="process")
    change = Change(settings=("process.options.where=cpu",), cost_curves={"process": {1: 0.001}})
    with pytest.raises(CannotReplay, match=r"what draw costs then.*profile \.\.\. --set process\.options\.where=cpu"):
        predict(replay, change)
    told = msgspec.structs.replace(change, speedups={"draw": 4.0})
    assert predict(replay, told).throughput.ratio is not None


def test_a_setting_that_is_not_simulated_is_named(replay_of: Make) -> None:
    """Tries, bytes and times are taken to change nothing, and that is said; workers are not among them."""
    settings = ("fetch.attempts=9", "decode.queue_bytes=1000", "source.wait_seconds=7", "run.grace_seconds=1")
    replay = replay_of(WAITING)
    (warning,) = own_warnings(predict(replay, Change(settings=(*settings, "decode.workers=4"))))
    for setting in settings:
        assert setting.partition("=")[0] in warning
    assert "workers" not in warning
    assert not own_warnings(predict(replay, Change(settings=("decode.workers=4",))))


def test_what_smaller_images_save_before_the_model_is_named_as_left_out(replay_of: Make) -> None:
    """Whoever says what the model costs then has said nothing of decoding and scaling."""
    change = Change(settings=("model.input_side=160",), speedups={"process": 2.0})
    (warning,) = own_warnings(predict(replay_of(MODEL), change))
    assert "taken to change nothing: model.input_side" in warning


@pytest.mark.full
def test_an_interval_holds_nine_in_ten_resampled_runs(replay_of: Make) -> None:
    """Jobs that differ much: where the model was never wrong, nine in ten other draws of them lie within."""
    wait = np.random.default_rng(5).exponential(0.02, 120)
    replay = replay_of(
        [step("fetch", wait=wait, kind="io", workers=2), step("decode", cpu=0.008), step("deliver", cpu=1e-6)]
    )
    change = Change(settings=("fetch.workers=4",))
    ratio = predict(replay, change, TrackRecord(num=20, p90_error=0.0)).throughput.ratio
    assert ratio is not None
    others = [replay.ratio(change, seed=seed, resampled=True) for seed in range(100, 200)]
    inside = np.mean([ratio.low <= other <= ratio.high for other in others])
    assert 0.8 <= inside <= 1.0


def test_recorded_cpu_time_is_what_was_measured(replay_of: Make) -> None:
    """The processes used 12 ms a job; with half of the stages' work gone about half of that is left. Not measured: none."""
    replay = replay_of([step("work", cpu=0.004), step("deliver", cpu=1e-6)], gap=0.004)
    change = Change(speedups={"work": 2.0})
    assert predict(replay, change).cpu_per_item.base is None
    account = CpuAccount(
        total_seconds=0.012 * 120,
        elapsed_seconds=1.0,
        num_cores=2.0,
        lines=(),
        explained_share=1.0,
        uncertain_share=0.0,
    )
    replay.document = msgspec.structs.replace(replay.document, cpu=account, counters={"delivered": 120})
    metric = predict(replay, change).cpu_per_item
    assert metric.base == pytest.approx(0.012)
    assert metric.predicted is not None
    assert metric.predicted.mid == pytest.approx(0.006, rel=0.02)


def test_more_devices_need_a_device_and_workers_for_them(replay_of: Make) -> None:
    """On a model that runs on the cores they are refused; one worker keeps one device busy, which is said."""
    replay = replay_of(MODEL)
    with pytest.raises(SettingsError, match="--cores"):
        predict(replay, Change(devices=2))
    replay.demands.stages[1].is_exclusive = True
    (warning,) = own_warnings(predict(replay, Change(devices=2)))
    assert "--set process.workers=2" in warning
    both = predict(replay, Change(devices=2, settings=("process.workers=2",)))
    assert not own_warnings(both)
    assert both.throughput.ratio is not None
    assert both.throughput.ratio.mid == pytest.approx(2.0, rel=0.03)
