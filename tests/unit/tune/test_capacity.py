"""How many machines, and for how much: the arithmetic by hand, and the latency goal against M/M/1."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import SettingsError
from headrace.base.goals import parse_price, parse_slo
from headrace.cli.capacity_text import as_text
from headrace.diagnose.replay import CannotReplay
from headrace.runs.formats.capacity import CapacityDocument
from headrace.runs.formats.prediction import Change, TrackRecord
from headrace.runs.formats.profile import Estimate
from headrace.tune import usable_rate
from headrace.tune.capacity import HOURS_PER_MONTH, Need, Wanted, capacity_document, machines_needed

FASTER = Change(speedups={"work": 2.0})


@dataclass(frozen=True)
class Simulated:
    """What the fake simulates."""

    throughput: float
    latencies: np.ndarray


class OneServer:
    """A recorded run of one server with exponential service: M/M/1, whose answers are known.

    Args:
        rate: Jobs per second that it can do.
        run_delay: Share of run delay that the profile holds.
        idle: Came slower than it could be done; the recorded throughput is then half the rate, or the share that is given.
        emulated: The device was.
    """

    def __init__(
        self, rate: float = 100.0, *, run_delay: float | None = 0.0, idle: bool | float = False, emulated: bool = False
    ) -> None:
        self.rate = rate
        self.is_open = bool(idle)
        self.throughput = rate * (0.5 if idle is True else idle or 1.0)
        self.document = SimpleNamespace(
            options=(),
            run="first",
            headrace_version="1",
            pipeline="app:pipeline",
            plan_id="p",
            distrust=(),
            is_emulated=emulated,
            served=False,
            environment=SimpleNamespace(run_delay_share=run_delay),
        )

    def speed(self, change: Change) -> float:
        """Return jobs per second at most."""
        return self.rate * change.speedups.get("work", 1.0)

    def simulate(self, change: Change, *, seed: int = 0, num_jobs: int | None = None) -> Simulated:
        """Run an M/M/1 queue."""
        full = self.speed(change)
        if change.arrival_rate is None:
            return Simulated(min(full, self.throughput * 2 if not self.is_open else self.throughput), np.zeros(0))
        count = num_jobs or 1000
        random = np.random.default_rng(seed)
        arrived = np.cumsum(random.exponential(1 / change.arrival_rate, count))
        service = np.random.default_rng(seed + 1).exponential(1 / full, count)
        ended, free = np.empty(count), 0.0
        for job in range(count):
            free = max(free, arrived[job]) + service[job]
            ended[job] = free
        return Simulated(min(change.arrival_rate, full), ended - arrived)


@pytest.fixture(autouse=True)
def _predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predict what the server can do, give or take a tenth."""

    def predict(replay: OneServer, change: Change, record: TrackRecord) -> Any:
        if change.drop:
            raise CannotReplay("a stage is missing; measure it")
        ratio = replay.speed(change) / replay.rate
        mid = replay.throughput * ratio
        if change.cost_curves:
            return SimpleNamespace(throughput=SimpleNamespace(predicted=None, refused="the curve is too short"))
        told = SimpleNamespace(predicted=Estimate(0.9 * mid, mid, 1.1 * mid), refused="")
        return SimpleNamespace(throughput=told, warnings=("other programs were there",))

    monkeypatch.setattr(usable_rate, "predict", predict)


def plan(server: OneServer, need: Need, *wanted: Wanted) -> CapacityDocument:
    """Return the capacity plan of the fake."""
    return capacity_document(server, need, wanted)  # type: ignore[arg-type]


def test_the_arithmetic_can_be_redone_by_hand() -> None:
    """100/s at full load, 80 of them usable: 1 M an hour takes 278/80, so 4 machines, 2 an hour each, 730 hours."""
    document = plan(OneServer(100), Need(rate=1e6 / 3600, price_per_hour=2.0))
    base = document.options[0]
    assert base.usable_throughput == pytest.approx(80)
    assert base.machines == 4
    assert base.machines_range == (4, 4)
    assert base.cost_per_month == pytest.approx(4 * 2.0 * HOURS_PER_MONTH)
    assert base.cost_per_million == pytest.approx(4 * 2.0)
    assert "other programs were there" in document.warnings
    said = " ".join(document.says)
    assert "278 / 80 = 3.472, so 4 machines" in said
    assert "4 x 2.00 = 8.00 an hour, x 730 hours = 5,840 a month" in said


def test_the_interval_reaches_the_number_of_machines() -> None:
    """Full load of 90 to 110 means 72 to 88 usable: between 12 and 14 machines for 1,000/s."""
    base = plan(OneServer(100), Need(rate=1000.0)).options[0]
    assert (base.machines, base.machines_range) == (13, (12, 14))
    assert base.cost_per_month is None


def test_savings_are_against_the_run_as_recorded() -> None:
    """Twice as fast takes half the machines: 5 instead of 10 save half the month."""
    document = plan(OneServer(100), Need(rate=800.0, price_per_hour=1.0), Wanted("work x2", FASTER))
    base, faster = document.options
    assert (base.machines, faster.machines) == (10, 5)
    assert faster.saves_per_month == pytest.approx(5 * HOURS_PER_MONTH)
    assert base.saves_per_month is None
    assert any("work x2" in line and "5 machines instead of 10" in line for line in document.says)


def test_a_larger_machine_is_no_saving_in_words() -> None:
    """What needs a dearer machine is counted at the same price, so the sentence names the best of the others."""
    dearer = Wanted("4 cores", Change(speedups={"work": 4.0}), note="costs more")
    document = plan(OneServer(100), Need(rate=800.0, price_per_hour=1.0), dearer, Wanted("work x2", FASTER))
    assert [option.name for option in document.options] == ["as recorded", "4 cores", "work x2"]
    assert '"work x2": 5 machines' in document.says[-1]
    assert "note: 4 cores: costs more" in as_text(document)


def test_options_come_best_first_and_refused_ones_last() -> None:
    """What needs fewest machines stands first after the run as recorded; what cannot be told is told so, and stays."""
    document = plan(
        OneServer(100),
        Need(rate=800.0, price_per_hour=1.0),
        Wanted("dropped", Change(drop=("work",))),
        Wanted("another engine", Change(cost_curves={"work": {1: 0.1}})),
        Wanted("slower", Change(speedups={"work": 0.5})),
        Wanted("faster", FASTER),
    )
    assert [option.name for option in document.options] == [
        "as recorded",
        "faster",
        "slower",
        "dropped",
        "another engine",
    ]
    assert document.options[3].refused == "a stage is missing; measure it"
    assert document.options[4].refused == "the curve is too short"
    assert document.options[2].saves_per_month == pytest.approx(-10 * HOURS_PER_MONTH)


def test_a_latency_goal_limits_the_rate_as_in_mm1() -> None:
    """p99 of M/M/1 is ln(100) / (mu - lambda): at most 100 ms up to 54/s of 100/s. Simulated within a tenth."""
    document = plan(OneServer(100), Need(rate=1000.0, slo=parse_slo("p99=100ms")))
    base = document.options[0]
    exact = 100 - math.log(100) / 0.1
    assert base.usable_throughput == pytest.approx(exact, rel=0.1)
    assert base.latency_p99 is not None
    assert base.latency_p99.low <= base.latency_p99.mid <= base.latency_p99.high
    assert base.latency_p99.mid <= 0.11
    assert document.slo_met is True
    assert "the goal is the limit" in base.says


def test_a_lax_goal_leaves_headroom() -> None:
    """A goal that holds at any load does not eat the headroom: bursts and failing machines remain."""
    base = plan(OneServer(100), Need(rate=1000.0, slo=parse_slo("p99=10s"))).options[0]
    assert base.usable_throughput == pytest.approx(80)
    assert "headroom is the limit" in base.says


def test_a_goal_below_the_service_cannot_be_bought() -> None:
    """No number of machines makes the service itself shorter; a faster stage does."""
    document = plan(OneServer(100), Need(rate=10.0, slo=parse_slo("p99=40ms")), Wanted("work x2", FASTER))
    base, faster = document.options
    assert document.slo_met is False
    assert base.machines is None
    assert "cannot be held at any rate" in base.refused
    assert faster.machines == 1
    assert any("work x2" in line for line in document.says)


def test_on_a_noisy_machine_the_goal_is_refused_and_the_rest_told() -> None:
    """Above a tenth of run delay latency is not predicted: machines are counted by throughput, and a warning says why."""
    document = plan(OneServer(100, run_delay=0.25), Need(rate=1000.0, slo=parse_slo("p99=100ms")))
    base = document.options[0]
    assert document.slo_met is None
    assert base.usable_throughput == pytest.approx(80)
    assert base.latency_p99 is None
    assert any("25%" in warning and "headrace profile" in warning for warning in document.warnings)


@pytest.mark.parametrize("share", [0.5, 0.02])
def test_a_run_that_waited_for_jobs_can_do_more(share: float) -> None:
    """Half, or a fiftieth, of what the machine can do came: full load is found by letting more come in simulation."""
    document = plan(OneServer(100, idle=share), Need(rate=800.0))
    assert document.options[0].throughput is not None
    assert document.options[0].throughput.mid == pytest.approx(100, rel=0.01)
    assert document.options[0].machines == 10
    assert any("waited for jobs" in warning for warning in document.warnings)


def test_emulated_is_the_first_word() -> None:
    """Money for made-up times is told as such before anything else."""
    assert "emulated" in plan(OneServer(emulated=True), Need(rate=1.0)).says[0]


@pytest.mark.parametrize(
    ("rate", "usable", "machines"), [(0.1, 10.0, 1), (30.0, 10.0, 3), (0.3, 0.1, 3), (30.1, 10.0, 4)]
)
def test_machines_are_whole(rate: float, usable: float, machines: int) -> None:
    """At least one, and rounding errors of a division make no machine."""
    assert machines_needed(rate, usable) == machines


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"rate": 0.0}, "--rate"),
        ({"rate": 1e12}, "--rate"),
        ({"rate": 1.0, "price_per_hour": -1.0}, "--price"),
        ({"rate": 1.0, "price_per_hour": 1e9}, "--price"),
        ({"rate": 1.0, "headroom": 1.0}, "--headroom"),
        ({"rate": 1.0, "headroom": -0.1}, "--headroom"),
    ],
)
def test_absurd_needs_are_refused(changes: dict[str, Any], key: str) -> None:
    """The message names the option and what is allowed."""
    with pytest.raises(SettingsError, match=key):
        Need(**changes)


@pytest.mark.parametrize("price", [None, 0.75])
@pytest.mark.parametrize("slo", [None, "p99=100ms"])
def test_the_text_fits_a_terminal(price: float | None, slo: str | None) -> None:
    """80 columns, long names on lines of their own, a bar for each option that can be had."""
    need = Need(rate=1000.0, price_per_hour=price, slo=None if slo is None else parse_slo(slo))
    name = "fetch.workers=32, decode.workers=4, process.batch=16, process.max_wait_seconds=0.005"
    document = plan(OneServer(100), need, Wanted(name, FASTER), Wanted("dropped", Change(drop=("work",))))
    text = as_text(document)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "as recorded" in text
    assert "not told: dropped: a stage is missing" in text
    bars = [line.count("#") for line in text.splitlines() if "#" in line]
    first, second = (option.machines or 0 for option in document.options[:2])
    assert bars == [28, round(28 * second / first)]


@pytest.mark.parametrize(("text", "per_hour"), [("61/h", 61.0), ("0.75/h", 0.75), ("1/s", 3600.0)])
def test_a_rate_of_an_hour_is_shown_as_it_was_given(text: str, per_hour: float) -> None:
    """Not as 61.00000000000001."""
    assert parse_price(text) == per_hour
