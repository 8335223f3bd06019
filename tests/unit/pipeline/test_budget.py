"""A Plan's `[budget]`: what is measured, what does not fit, down the ladder and up again."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.base.budget import BudgetPlan
from headrace.base.errors import DoesNotFit, SettingsError
from headrace.base.observer import Observer
from headrace.base.plan import Plan, StageDefaults, resolve
from headrace.base.policies import descent
from headrace.base.policies.descent import Descent
from headrace.base.records import Span
from headrace.cli import main
from headrace.cli.budget_steps import record_budget_steps
from headrace.ledger.ledger import Ledger
from headrace.pipeline import sensors
from headrace.pipeline.execute import run as execute
from headrace.pipeline.garbage import resident_bytes
from headrace.pipeline.governor import BudgetReport, Governor, Step, budget_of
from headrace.pipeline.memory_forecast import MemoryForecast, TooLarge
from headrace.pipeline.rungs import rungs_of
from headrace.pipeline.sensors import MemorySensor, PowerSensor, Reading, State, TemperatureSensor, open_sensors
from headrace.pipeline.watching import RunInProgress
from headrace.testing import ListSource

MB = 10**6
Run = Callable[..., Any]


def write(root: Path, **files: object) -> None:
    """Write files whose names are paths with `__` for `/`."""
    for name, text in files.items():
        file = root / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")


def status(resident: int, swapped: int = 0, own: int = 0) -> str:
    """Return what /proc/PID/status says, of bytes."""
    return f"VmRSS:\t{resident // 1024} kB\nRssAnon:\t{own // 1024} kB\nVmSwap:\t{swapped // 1024} kB"


# --- the setting


def test_sizes_and_numbers_are_one_plan(tmp_path: Path) -> None:
    """`"512MB"` and 512000000 are the same Plan, which its own TOML gives again; without a budget there is no key of it."""
    written = Plan.from_table({"budget": {"memory": "512MB", "watts": 5, "ladder": ["process.batch=1"]}})
    assert (
        written.plan_id
        == Plan.from_table({"budget": {"memory": 512 * MB, "watts": 5.0, "ladder": ("process.batch=1",)}}).plan_id
    )
    (tmp_path / "plan.toml").write_text(written.as_toml())
    assert Plan.load(tmp_path / "plan.toml") == written
    assert Plan().with_settings(['budget.memory="512MB"']).budget == BudgetPlan(memory=512 * MB)
    assert "budget" not in Plan().as_table()


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"memory": "5"}, "memory"), ({"memory": "5 apples"}, "memory"), ({"memory": 1000}, "memory"),
        ({"memory": True}, "memory"), ({"memory": 1.5e9}, "memory"), ({"watts": 0}, "watts"), ({"watts": "5W"}, "watts"),
        ({"temperature": 900}, "temperature"), ({"ladder": ["faster"]}, "ladder"), ({"ladder": "process.batch=1"}, "ladder"),
        ({"ladder": ["budget.watts=3"]}, "ladder"), ({"wats": 5}, "wats"),
        ({"ladder": ["process.batch=1"]}, "ladder .*memory, watts or temperature beside it"),
    ],
)  # fmt: skip
def test_what_is_no_budget(table: dict[str, Any], says: str) -> None:
    """It is refused with its key."""
    with pytest.raises(SettingsError, match=says):
        Plan.from_table({"budget": table})


def test_workers_of_a_supervisor_share_the_memory() -> None:
    """Each of four has a quarter; watts and heat are the machine's, and stay."""
    plan = Plan(budget=BudgetPlan(memory=400 * MB, watts=5.0))
    assert budget_of(plan, 4) == BudgetPlan(memory=100 * MB, watts=5.0)
    assert budget_of(Plan(budget=BudgetPlan()), 1) is None


# --- sensors


@pytest.mark.parametrize(("used", "state"), [(50, "clear"), (80, "near"), (91, "over"), (120, "over")])
def test_memory_of_the_process(tmp_path: Path, used: int, state: State) -> None:
    """Resident and swapped memory count against the limit; of children what is their own."""
    write(
        tmp_path,
        proc__self__status=status((used - 20) * MB, swapped=10 * MB),
        proc__77__status=status(50 * MB, own=10 * MB),
    )
    sensor = MemorySensor(100 * MB, lambda: {77, 78}, tmp_path)
    assert sensor.not_measured == ""
    reading = sensor.read(0.0)
    assert reading is not None
    assert reading.state == state
    assert "100 MB" in reading.says


@pytest.mark.parametrize(
    ("files", "state"),
    [
        ({"memory.max": 100 * MB, "memory.current": 98 * MB, "memory.stat": f"active_file {30 * MB}"}, "clear"),
        ({"memory.max": 100 * MB, "memory.current": 98 * MB, "memory.stat": f"inactive_file {4 * MB}"}, "over"),
        ({"memory.max": "max", "memory.current": 98 * MB}, "clear"),
        ({"memory.limit_in_bytes": 100 * MB, "memory.usage_in_bytes": 85 * MB, "memory.stat": "nonsense"}, "near"),
    ],
)
def test_memory_of_the_control_group(tmp_path: Path, files: dict[str, object], state: State) -> None:
    """What others in the group use counts against its limit; files that the kernel can drop do not."""
    write(tmp_path, proc__self__status=status(10 * MB), proc__self__cgroup="0::/run\n4:memory:/run")
    folder = "memory/run" if "memory.limit_in_bytes" in files else "run"
    write(tmp_path / "sys/fs/cgroup" / folder, **files)
    reading = MemorySensor(100 * MB, tuple, tmp_path).read(0.0)
    assert reading is not None
    assert reading.state == state


def test_pressure_comes_before_the_limit(tmp_path: Path) -> None:
    """Where tasks wait for memory for a tenth of the time it is short, however little the run uses."""
    write(tmp_path, proc__self__status=status(10 * MB))
    sensor = MemorySensor(100 * MB, tuple, tmp_path)
    states = []
    for second, total in enumerate((0, 50_000, 300_000, 300_000)):
        write(tmp_path, proc__pressure__memory=f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\nfull total=0")
        reading = sensor.read(float(second))
        states.append(reading and reading.state)
    assert states == ["clear", "clear", "over", "clear"]


def test_power_by_the_processors_counter(tmp_path: Path) -> None:
    """Packages are added, their parts are not; a counter that begins anew gives no nonsense."""
    rapl = tmp_path / "sys/class/powercap"
    sensor = None
    said = []
    for second, joules in enumerate((0, 2, 8, 1, 3)):
        for name in ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0"):
            write(rapl / name, energy_uj=joules * 10**6)
        sensor = sensor or PowerSensor(5.0, tmp_path)
        reading = sensor.read(float(second))
        said.append(reading and reading.state)
    assert said == [None, "clear", "over", "over", "clear"]


def test_power_by_a_meter_and_heat(tmp_path: Path) -> None:
    """An INA on the board says microwatts; the hottest of all sensors counts; one that answers nonsense is left out."""
    write(
        tmp_path / "sys/class", hwmon__hwmon0__power1_input=4_900_000, thermal__thermal_zone0__temp=61_000,
        hwmon__hwmon0__temp1_input=76_000, thermal__thermal_zone1__temp="",
    )  # fmt: skip
    power, heat = PowerSensor(5.0, tmp_path).read(0.0), TemperatureSensor(80.0, tmp_path).read(0.0)
    assert power == Reading("near", "the machine takes 4.9 W of 5 W")
    assert heat == Reading("near", "the machine is at 76 of 80 degrees")


def test_what_cannot_be_measured_is_said(tmp_path: Path) -> None:
    """Without meters each sensor has its reason, and reads nothing."""
    sensors = open_sensors(BudgetPlan(memory=100 * MB, watts=5.0, temperature=80.0), tuple, tmp_path)
    assert [one.name for one in sensors if one.not_measured] == ["memory", "watts", "temperature"]
    assert [one.read(0.0) for one in sensors] == [None, None, None]


# --- the ladder


def test_down_at_once_and_up_after_a_while() -> None:
    """Two rungs down with time to settle between them, up after five clear seconds each, and no lower than the ladder."""
    ladder = Descent(2)
    over = [ladder.look(now, is_over=True, is_clear=False) for now in (0.0, 0.5, 1.0, 2.0, 3.0)]
    assert over == [1, 0, 1, 0, 0]
    clear = [ladder.look(float(now), is_over=False, is_clear=True) for now in range(4, 16)]
    assert [now for now, step in enumerate(clear, 4) if step] == [9, 14]
    assert ladder.rung == 0


def test_near_is_neither() -> None:
    """Between both limits it stays where it is, and what was clear before does not count."""
    ladder = Descent(1, rung=1)
    clear = [now != 3 for now in range(8)]
    assert [ladder.look(float(now), is_over=False, is_clear=is_clear) for now, is_clear in enumerate(clear)] == [0] * 8


def test_a_step_up_that_is_regretted_takes_longer_the_next_time() -> None:
    """A run between two rungs goes up ever less often."""
    ladder, ups = Descent(1), []
    for tenth in range(4000):
        now = tenth / 10
        step = ladder.look(now, is_over=ladder.rung == 0, is_clear=ladder.rung == 1)
        ups += [now] if step < 0 else []
    waits = [round(later - before) for before, later in itertools.pairwise(ups)]
    assert waits == sorted(waits)
    assert len(ups) <= 7


def resolved(ladder: Sequence[str] = (), **settings: Any) -> Plan:
    """Return the resolved Plan of fetch and process under a budget."""
    stages = [StageDefaults(name="fetch", kind="io", workers=2), StageDefaults(name="process", kind="device")]
    budget = {"memory": "512MB", "ladder": list(ladder)}
    return resolve(Plan.from_table({"budget": budget, "stages": {"process": {"batch": 8}}, **settings}), stages, 2)


def test_without_a_ladder_batches_and_jobs_are_halved() -> None:
    """Down to batches of one, and to what the workers have in hand."""
    rungs = rungs_of(resolved())
    assert [rung.stages["process"].batch for rung in rungs[:3]] == [4, 2, 1]
    in_flight = [rung.source.max_in_flight or 0 for rung in rungs]
    assert in_flight == sorted(in_flight, reverse=True)
    assert in_flight[-1] == 3
    assert len({rung.plan_id for rung in rungs}) == len(rungs)
    assert rungs_of(Plan()) == []


def test_declared_rungs_add_up() -> None:
    """Each keeps what those before it lowered."""
    first, second = rungs_of(resolved(["process.batch=2", "fetch.workers=1"]))
    assert (first.stages["process"].batch, first.stages["fetch"].workers) == (2, 2)
    assert (second.stages["process"].batch, second.stages["fetch"].workers) == (2, 1)


@pytest.mark.parametrize(
    ("rung", "says"),
    [
        ("process.batch=8", "no less"), ("process.batch=16", "no less"), ("fetch.workers=3", "no less"),
        ("fetch.batch=1", "no less"), ("proces.batch=2", "proces"), ("process.executor=process", "while a run"),
        ("model.threads=1", "while a run"), ("process.btach=2", "btach"), ("run.ordered=true", "while a run"),
    ],
)  # fmt: skip
def test_rungs_that_are_refused(rung: str, says: str) -> None:
    """What cannot change in a run, or asks for no less, is refused by its text."""
    with pytest.raises(SettingsError, match=says):
        rungs_of(resolved([rung]))


# --- what fits


class Meter:
    """Memory that a test sets."""

    def __init__(self, used: int) -> None:
        self.used = used

    def read(self) -> int:
        """Return it."""
        return self.used


def warm_up(forecast: MemoryForecast, meter: Meter, costs: Callable[[int], int], largest: int = 32) -> int | None:
    """Call each size twice, as warm-up does, with the memory that it costs; return the largest that may be made."""
    size = 1
    try:
        while size <= largest:
            for _ in range(2):
                forecast.before_batch("process", size)
                meter.used = costs(size)
            size *= 2
    except TooLarge:
        pass
    return forecast.end_warm_up("process", largest)


def forecast_of(limit: int, opened: int) -> tuple[MemoryForecast, Meter]:
    """Return a forecast of a process that has opened its models, and its memory."""
    meter = Meter(opened)
    forecast = MemoryForecast(limit, meter.read, meter.read)
    forecast.check_opened()
    return forecast, meter


def test_a_batch_that_would_not_fit_is_never_made() -> None:
    """100 MB and 10 more for each item fit into 300 up to 16; 32 is predicted to the byte, and not called."""
    forecast, meter = forecast_of(300 * MB, 80 * MB)
    called = []

    def cost(size: int) -> int:
        called.append(size)
        return (100 + 10 * size) * MB

    assert warm_up(forecast, meter, cost) == 16
    assert max(called) == 16
    assert forecast.predicted["process"][32] == 420 * MB
    assert forecast.peaks["process"] == {size: (100 + 10 * size) * MB for size in (1, 2, 4, 8, 16)}


def test_all_batches_fit() -> None:
    """Nothing is capped, and each size from 4 on is predicted to the byte."""
    forecast, meter = forecast_of(500 * MB, 80 * MB)
    assert warm_up(forecast, meter, lambda size: (100 + 10 * size) * MB) is None
    assert all(forecast.predicted["process"][size] == forecast.peaks["process"][size] for size in (4, 8, 16, 32))


def test_a_batch_that_turned_out_too_large_is_not_made_again() -> None:
    """Memory that jumps beyond what was predicted caps at the size before."""
    forecast, meter = forecast_of(300 * MB, 80 * MB)
    assert warm_up(forecast, meter, lambda size: 400 * MB if size == 4 else 100 * MB) == 2


def test_what_never_fits_is_refused() -> None:
    """Before the first job, or with the first batch."""
    with pytest.raises(DoesNotFit, match="before its first job"):
        forecast_of(300 * MB, 301 * MB)
    forecast, meter = forecast_of(300 * MB, 80 * MB)
    with pytest.raises(DoesNotFit, match="batch of 1"):
        warm_up(forecast, meter, lambda size: 310 * MB)


def test_weights_alone_are_too_much(tmp_path: Path) -> None:
    """A file that is larger than what is left is refused before it is opened; one that is missing is left to its engine."""
    (tmp_path / "m.weights").write_bytes(b"0" * 2 * MB)
    forecast = MemoryForecast(100 * MB, lambda: 99 * MB)
    forecast.check_files([str(tmp_path / "missing.onnx")])
    with pytest.raises(DoesNotFit, match="before any model is opened"):
        forecast.check_files([str(tmp_path / "m.weights")])


# --- the governor


class Gauge:
    """A sensor that a test sets."""

    name, not_measured = "memory", ""

    def __init__(self) -> None:
        self.state: State = "clear"

    def read(self, now: float) -> Reading:
        """Return the state that was set."""
        return Reading(self.state, f"it is {self.state}")


def test_what_is_held_for_nothing_goes_first() -> None:
    """A shortage that giving back ends is no step; one that stays is, and the rung's Plan is then in force."""
    plan = resolved()
    plans, gauge, now, given = [plan, *rungs_of(plan)], Gauge(), [0.0], []
    held: list[Plan] = []
    counts: dict[str, int] = {}

    def hold_to(plan: Plan) -> Plan:
        held.append(plan)
        return plan

    governor = Governor(
        [gauge], plans, hold_to=hold_to, counts=counts, give_back=lambda: given.append(now[0]), now=lambda: now[0]
    )
    governor.switched = held.append

    def look(state: State, seconds: float) -> None:
        gauge.state, now[0] = state, now[0] + seconds
        governor.look()

    look("over", 1.0)
    look("near", 0.1)
    assert (given, held) == ([1.0], [])
    look("over", 1.0)
    assert held == [plans[1], plans[1]]
    look("near", 5.0)  # on a rung, what could be given back may be all that keeps it there
    assert given == [1.0, 7.1]
    look("clear", 0.1)
    look("clear", 6.0)
    assert held[2:] == [plan, plan]
    assert [(step.rung, step.is_down, step.plan_id) for step in governor.report.steps] == [
        (1, True, plans[1].plan_id),
        (0, False, plan.plan_id),
    ]
    assert counts == {"budget.given_back": 2, "budget.down": 1, "budget.up": 1}
    assert "1 rung down" in governor.warnings()[0]


def test_a_sensor_that_fails_is_told_once_and_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    """The thread goes on: the run keeps its watch, and the terminal is not filled ten times a second."""
    again = threading.Event()

    class Broken(Gauge):
        """Raises at first."""

        num = 0

        def read(self, now: float) -> Reading:
            """Raise, or answer from the third time on."""
            self.num += 1
            if self.num < 3:
                raise OSError("the meter is gone")
            again.set()
            return super().read(now)

    plan = resolved()
    with caplog.at_level("ERROR"), Governor([Broken()], [plan, *rungs_of(plan)], hold_to=lambda plan: plan):
        assert again.wait(60)
    assert caplog.text.count("cannot be watched") == 1


# --- whole runs


def keeps(bytes_per_item: int, most: list[int]) -> Any:
    """Return a device stage that keeps memory for the largest batch that it saw, as engines do."""
    kept = [np.zeros(0, np.uint8)]

    def process(batch: Sequence[Any]) -> list[int]:
        most.append(len(batch))
        if len(batch) * bytes_per_item > kept[0].size:
            kept[0] = np.ones(len(batch) * bytes_per_item, np.uint8)
        time.sleep(0.001)
        return [len(batch)] * len(batch)

    return hr.stage("process", process, kind="device")


def test_a_run_makes_only_batches_that_fit(run: Run) -> None:
    """With room for about eight items of 20 MB, batches of 32 are capped at warm-up, and all items are delivered."""
    sizes: list[int] = []
    memory = round((resident_bytes() + 250 * MB) / 0.9)
    ran = run(
        [keeps(20 * MB, sizes)], [b"x"] * 100, {"stages": {"process": {"batch": 32}}, "budget": {"memory": memory}}
    )
    assert ran.result.counters.delivered == 100
    assert 1 <= max(sizes) <= 16


def test_a_run_that_cannot_fit_is_refused(tmp_path: Path) -> None:
    """Nothing is received, and no folder is left behind."""
    source = ListSource([b"x"] * 3)
    pipeline = hr.Pipeline(source, stages=[keeps(MB, [])])
    with pytest.raises(DoesNotFit, match="before any model is opened"):
        execute(pipeline, Plan.from_table({"budget": {"memory": "40MB"}}), output=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert source.outcomes == {}


def test_down_and_up_again_in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that grows while items come has the run step down, and once it is free up; spans tell the rungs apart."""
    monkeypatch.setattr(descent, "_SETTLE_SECONDS", 0.05)
    monkeypatch.setattr(descent, "_HOLD_SECONDS", 0.1)
    # What the tests before left in this process may be most of the budget: the run's part alone is to decide.
    monkeypatch.setattr(sensors, "_CLEAR", 0.98 * sensors._OVER)
    held: list[Any] = []
    runs: list[RunInProgress] = []

    @contextlib.contextmanager
    def watch(progress: RunInProgress) -> Iterator[None]:
        runs.append(progress)
        yield

    def wait_for(note: str) -> None:
        until = time.monotonic() + 60
        while note not in runs[0].state().notes and time.monotonic() < until:
            time.sleep(0.01)

    def work(number: Any) -> int:
        if int(number) < 20:
            held.append(np.ones(10 * MB, np.uint8))
        elif int(number) == 20:
            wait_for("budget.down")
        elif int(number) == 40:
            held.clear()
            wait_for("budget.up")
        return int(number)

    stages = [hr.stage("work", work, kind="cpu"), hr.stage("process", list, kind="device")]
    pipeline = hr.Pipeline(ListSource([str(number).encode() for number in range(60)]), stages=stages)
    plan = Plan.from_table(
        {"budget": {"memory": round((resident_bytes() + 150 * MB) / 0.9)}, "stages": {"work": {"workers": 1}}}
    )
    recorder = Recorder()
    result = execute(pipeline, plan, observers=[recorder], watch=watch)
    report = result.budget
    assert report is not None
    assert result.counters.delivered == 60
    assert report.lowest >= 1
    assert any(not step.is_down for step in report.steps)
    assert {span.plan_id for span in recorder.spans} >= {result.plan_id, report.steps[0].plan_id}
    assert set(result.plans) >= {step.plan_id for step in report.steps}
    assert result.counters.notes["budget.down"] >= 1
    assert any("down and" in warning for warning in result.warnings)


class Recorder(Observer):
    """Keeps the spans."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def stage_finished(self, spans: Sequence[Span]) -> None:
        """Keep them."""
        self.spans.extend(spans)


def test_a_run_with_a_budget_may_name_a_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its steps are kept there, beside no shadow or canary; one that cannot be used is refused before anything is done."""
    monkeypatch.chdir(tmp_path)
    Path("budget_jobs.py").write_text(
        "import headrace as hr\n"
        "pipeline = hr.Pipeline(hr.items([b'x']), stages=[hr.stage('see', len)], delivery=hr.collect())\n"
    )
    command = ["-q", "run", "budget_jobs.py:pipeline", "--ledger", "l.sqlite"]
    assert main(command) == 2
    command += ["--set", "budget.memory='64GB'"]
    assert main(command) == 0
    Path("l.sqlite").write_bytes(b"no ledger" * 100)
    assert main(command) == 2


def test_steps_are_events_of_a_ledger(tmp_path: Path, run: Run) -> None:
    """Each step is one, with its rung, Plan and reason; a ledger that cannot be written is told, and fails nothing."""
    args = argparse.Namespace(ledger=str(tmp_path / "ledger.sqlite"))
    result = dataclasses.replace(
        run([hr.stage("work", lambda value: value, kind="cpu")], [b"x"]).result, budget=BudgetReport()
    )
    assert result.budget is not None
    record_budget_steps(args, result, pytest.fail)
    assert not Path(args.ledger).exists()
    result.budget.num_rungs = 2
    for rung, is_down in ((1, True), (0, False)):
        step = Step(at_unix_seconds=1.8e9, rung=rung, is_down=is_down, plan_id=f"plan{rung}", why="it is warm")
        result.budget.steps.append(step)
    record_budget_steps(args, result, pytest.fail)
    with Ledger.open(args.ledger) as ledger:
        events = ledger.events.events()
    assert [(event.kind, event.verdict) for event in events] == [("budget", "up"), ("budget", "down")]
    assert "rung 1 of 2, Plan plan1: it is warm" in events[1].says
    said: list[object] = []
    record_budget_steps(argparse.Namespace(ledger=str(tmp_path)), result, said.append)
    assert len(said) == 1
