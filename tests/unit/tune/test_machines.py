"""What more machines bring: which limits, what is left on one, where it ends, and the words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from headrace.base.errors import SettingsError
from headrace.base.plan import Plan
from headrace.cli import main
from headrace.cli.machines_text import as_text
from headrace.diagnose.replay import CannotReplay
from headrace.runs.formats.diagnosis import VerdictClass
from headrace.runs.formats.machines import MachinesDocument
from headrace.runs.formats.prediction import Change
from headrace.runs.formats.profile import Estimate
from headrace.tune import machines
from headrace.tune.capacity import Wanted
from headrace.tune.machines import Wish, machines_document, parse_machines
from headrace.tune.shared_limits import parse_limit

BATCH, WORKERS = Change(settings=("process.batch=16",)), Change(settings=("decode.workers=4",))


def make_stage(name: str, work: str, **sizes: float) -> Any:
    """Return the account of a stage."""
    return SimpleNamespace(name=name, work=work, items=100, bytes_in=None, bytes_out=None, **sizes)


def make_replay(**others: Any) -> Any:
    """Return a run of 100 jobs, each of which fetches 200 kB and sends 1 kB."""
    stages = (
        SimpleNamespace(name="fetch", work="download", items=100, bytes_in=None, bytes_out=200e3),
        SimpleNamespace(name="deliver", work="deliver", items=100, bytes_in=1e3, bytes_out=None),
    )
    profile = SimpleNamespace(
        run="first", headrace_version="1", pipeline="app:pipeline", plan_id="p", is_emulated=False, options=(),
        counters={"delivered": 100}, stages=stages, throughput=100.0, latency=SimpleNamespace(mean=0.5),
        window=SimpleNamespace(warm_up_seconds=1.0, from_seconds=0.0, to_seconds=10.0), **others,
    )  # fmt: skip
    gains = {BATCH.settings: 2.1, WORKERS.settings: 1.2}
    return SimpleNamespace(
        document=profile, plan=Plan(), is_open=False, ratio=lambda change: gains.get(tuple(change.settings), 1.0)
    )


class Done:
    """Completions at an even pace."""

    def at(self, seconds: Any) -> Any:
        """Return the count then."""
        return 100.0 * np.asarray(seconds)


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Callable[..., MachinesDocument]:
    """Return what plans a fake of 100 jobs a second, whose diagnosis is the one given."""

    def ask(
        wish: Wish,
        *limits: str,
        verdict: VerdictClass = VerdictClass.DECODE,
        left: tuple[Change, ...] = (),
        notes: Mapping[str, int] | None = None,
    ) -> MachinesDocument:
        replay = make_replay()
        spans = SimpleNamespace(origin_ns=4_000_000_000, __len__=lambda: 1)
        evidence = SimpleNamespace(
            spans=type("Spans", (), {"origin_ns": spans.origin_ns, "__len__": lambda self: 1})(),
            info=SimpleNamespace(started_monotonic_ns=1_000_000_000, source_work=None),
            summary={"counters": {"notes": notes or {}}},
        )
        analysis: Any = SimpleNamespace(replay=replay, profile=replay.document, evidence=evidence)
        finding = SimpleNamespace(verdict=verdict, stage="deliver")
        monkeypatch.setattr(machines, "_one_machine", lambda replay, wish: Estimate(90.0, 100.0, 110.0))
        monkeypatch.setattr(
            machines, "diagnosis_document", lambda analysis: SimpleNamespace(first=finding, runner_up=None)
        )
        monkeypatch.setattr(machines, "remedies", lambda analysis: [Wanted("more", change) for change in left])
        monkeypatch.setattr(machines, "plan_changes", lambda replay: [])
        monkeypatch.setattr(machines, "completions", lambda evidence, delivered: Done())
        return machines_document(analysis, wish, [parse_limit(text, replay) for text in limits])

    return ask


def said(document: MachinesDocument) -> str:
    """Return the words."""
    return " ".join(document.says)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("100", (1, 2, 4, 8, 16, 32, 64, 100)), ("1", (1,)), ("4", (1, 2, 4)), ("3,1, 3", (1, 3)), ("2,5", (2, 5))],
)
def test_numbers_of_machines(text: str, numbers: tuple[int, ...]) -> None:
    """One number stands for the powers of two up to it; several are taken as they are."""
    assert parse_machines(text) == numbers


@pytest.mark.parametrize("text", ["", "x", "1,,2", "-1", "1.5", "٣", "9999999"])
def test_what_is_no_number_of_machines(text: str) -> None:
    """It is named."""
    with pytest.raises(SettingsError, match="--machines"):
        parse_machines(text)


@pytest.mark.parametrize(
    ("text", "jobs_per_second"),
    [
        ("receiver=500/s", 500.0),
        ("receiver=1MB/s", 1000.0),
        ("store=1GB/s", 5000.0),
        ("network=8Gbit/s", 1e9 / 201e3),
        ("queue=3000/s", 15_000.0),
        ("database=2000/s:4", 500.0),
        ("disk=1MB/s:10kB", 100.0),
        ("store=3600/h", 1.0),
    ],
)
def test_limits(text: str, jobs_per_second: float) -> None:
    """The unit says what is counted; what a job uses comes from the run, or behind the colon."""
    assert parse_limit(text, make_replay()).jobs_per_second == pytest.approx(jobs_per_second)


@pytest.mark.parametrize(
    "text",
    ["receiver", "=5/s", "receiver=", "receiver=5", "receiver=0/s", "receiver=-5/s", "database=5/s",
     "database=5/s:", "network=5/s", "database=5/s:0", "database=5/s:-1", "database=5/s:nan", "database=5/s:inf",
     "database=5/s:1e300",
     "disk=1MB/s:x",
     "a b=1/s", "ключ=1/s"],
)  # fmt: skip
def test_what_is_no_limit(text: str) -> None:
    """Each is refused with an example of one."""
    with pytest.raises(SettingsError, match="--limit"):
        parse_limit(text, make_replay())


def test_where_it_stops_being_linear(ask: Callable[..., MachinesDocument]) -> None:
    """250 calls a second do for 2.5 machines: four bring 250, and the words say what holds them up."""
    document = ask(Wish(machines=(1, 2, 4)), "receiver=250/s", "store=1GB/s")
    assert document.linear_up_to == pytest.approx(2.5)
    assert [row.limited_by for row in document.rows] == ["", "", "receiver"]
    assert document.rows[2].jobs_per_second == pytest.approx(250, rel=0.01)
    assert document.rows[1].efficiency > 0.98
    assert "stops being linear at 2.5 machines" in said(document)
    assert "More than 3 machines bring nothing" in said(document)


def test_what_the_run_ran_into_is_a_limit(ask: Callable[..., MachinesDocument]) -> None:
    """A run that its receiver held to a rate shows that more machines bring nothing, unless the user knows better."""
    document = ask(Wish(machines=(1, 2)), verdict=VerdictClass.RATE_LIMIT)
    assert [limit.name for limit in document.limits] == ["deliver"]
    assert document.rows[1].jobs_per_second == pytest.approx(document.rows[0].jobs_per_second, rel=0.02)
    known = ask(Wish(machines=(1, 2)), "deliver=900/s:1", verdict=VerdictClass.RATE_LIMIT)
    assert [limit.per_second for limit in known.limits] == [900.0]


def test_not_yet(ask: Callable[..., MachinesDocument]) -> None:
    """What the diagnosis still finds on one machine stands first, the most first."""
    document = ask(Wish(machines=(1, 2)), left=(WORKERS, BATCH, WORKERS))
    assert [left.ratio for left in document.left] == [2.1, 1.2]
    assert document.says[0].startswith("Not yet: x2.1 is left on one machine")
    assert "also left: x1.2" in as_text(document)


def test_little_is_left(ask: Callable[..., MachinesDocument]) -> None:
    """Without a remedy there is no such line, and changed machines are not asked for more."""
    assert "Not yet" not in said(ask(Wish(machines=(1, 2))))
    assert ask(Wish(machines=(2,), change=BATCH), left=(BATCH,)).left == ()


def test_costs(ask: Callable[..., MachinesDocument]) -> None:
    """At 0.72 an hour, 360,000 jobs an hour cost 2 a million; four machines at 250/s cost 3.2."""
    document = ask(Wish(machines=(1, 4), price_per_hour=0.72), "receiver=250/s")
    assert document.rows[0].cost_per_million == pytest.approx(2.0, rel=0.01)
    assert document.rows[1].cost_per_million == pytest.approx(3.2, rel=0.01)
    assert "A million jobs cost 2.00 with 1 machine and 3.20 with 4." in said(document)


def test_start_and_interruptions(ask: Callable[..., MachinesDocument]) -> None:
    """Booting is added to what the run took to be warm (3 s and 1 s), and both are counted."""
    document = ask(Wish(machines=(1, 50), boot_seconds=86.0, interruptions_per_hour=0.5))
    assert document.start_seconds == pytest.approx(90.0)
    assert "4.00 s of it opening models and warming up" in said(document)
    last = document.rows[-1]
    assert 5 < last.interruptions < 60
    assert last.starting_share == pytest.approx(90 * (50 + last.interruptions) / (50 * 3600), rel=0.1)
    assert "0.5 an hour of each machine" in said(document)


def test_live_streams_are_not_shared(ask: Callable[..., MachinesDocument]) -> None:
    """A queue's jobs go to whoever is free; a camera is on one machine."""
    assert any("--cameras" in warning for warning in ask(Wish(machines=(8,)), notes={"video.decoded": 9}).warnings)
    assert not any("--cameras" in warning for warning in ask(Wish(machines=(8,))).warnings)


def test_nothing_known_is_said(ask: Callable[..., MachinesDocument]) -> None:
    """Without a limit it is linear, and a warning says that this is for want of limits."""
    document = ask(Wish(machines=(1, 8)))
    assert document.linear_up_to is None
    assert "it is linear" in said(document)
    assert any("--limit" in warning for warning in document.warnings)


def test_the_document_can_be_read_back(ask: Callable[..., MachinesDocument]) -> None:
    """As JSON and back it is the same; and the table has a row and a bar for each number."""
    document = ask(Wish(machines=(1, 2, 4), price_per_hour=1.0), "receiver=250/s")
    assert msgspec.json.decode(msgspec.json.encode(document), type=MachinesDocument) == document
    lines = [line for line in as_text(document).splitlines() if line.endswith("#")]
    assert [line.split()[0] for line in lines] == ["1", "2", "4"]
    assert max(map(len, as_text(document).splitlines())) <= 80


def test_two_limits_of_one_name(ask: Callable[..., MachinesDocument]) -> None:
    """They would be one server in the words and two in the simulation."""
    with pytest.raises(SettingsError, match="twice"):
        ask(Wish(machines=(1,)), "receiver=250/s", "receiver=1MB/s")


def test_a_machine_without_a_rate(ask: Callable[..., MachinesDocument], monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be multiplied."""

    def refuse(*arguments: object) -> None:
        raise CannotReplay("too short")

    ask(Wish(machines=(1,)))
    monkeypatch.setattr(machines, "_one_machine", refuse)
    with pytest.raises(CannotReplay):
        machines_document(SimpleNamespace(replay=make_replay(), profile=make_replay().document), Wish(machines=(1,)))  # type: ignore[arg-type]


def test_a_machine_that_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused, and not divided by."""

    class Idle:
        def __init__(self, replay: object, seed: int) -> None:
            pass

        def predict(self, change: Change, record: object) -> Any:
            return SimpleNamespace(throughput=SimpleNamespace(predicted=Estimate(0.0, 0.0, 0.0)))

        def full_load(self, change: Change, predicted: Estimate) -> Estimate:
            return predicted

    monkeypatch.setattr(machines, "UsableMachine", Idle)
    with pytest.raises(CannotReplay, match="does nothing"):
        machines_document(SimpleNamespace(replay=make_replay(), profile=make_replay().document), Wish(machines=(1,)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [["--machines", "2", "--slo", "p99=1s"], ["--machines", "2", "--headroom", "10%"], ["--machines", "2", "--only"],
     ["--machines", "0"], ["--machines", "1001"], ["--machines", "2", "--start", "2h"], ["--machines", "2", "--start", "x"],
     ["--machines", "2", "--interruptions", "often"], ["--machines", "2", "--interruptions", "9/s"],
     ["--rate", "1/s", "--limit", "a=1/s"], ["--rate", "1/s", "--start", "1s"], ["--cameras", "1/s", "--interruptions", "1/h"],
     ["--machines", "2", "--rate", "3/s"]],
)  # fmt: skip
def test_options_that_do_not_go_together(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Misuse: status 2, before the run is read."""
    try:
        status = main(["capacity", "nowhere", *options])
    except SystemExit as error:
        status = int(str(error.code))
    assert status == 2
    assert "nowhere" not in capsys.readouterr().err.replace("usage", "")


def test_too_many_machines_are_named_as_typed() -> None:
    """And not by a power of two on the way to them."""
    with pytest.raises(SettingsError, match="5000"):
        Wish(machines=parse_machines("5000"))
