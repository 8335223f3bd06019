"""Receivers that are down, slow, gone or refuse: what becomes of the jobs, seen from the queue and from the receiver."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest

import headrace as hr
from headrace.base.records import Burial, DeadLetter
from headrace.cli import main
from headrace.sources.jobs import encode_job
from headrace.sources.sqlite_queue import SqliteQueue
from headrace.testing import Call, Receiver, Reply

pytestmark = pytest.mark.real_clock

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NETWORK = {"allow": ["127.0.0.1"]}
#: A receiver that is down is noticed and tried again within fractions of a second.
SOON: dict[str, Any] = {
    "timeout_seconds": 5,
    "breaker_failures": 3,
    "breaker_seconds": 0.1,
    "breaker_max_seconds": 0.2,
    "postpone_max_seconds": 0.3,
}


class Bench:
    """A queue in a file, and workers on it that count what they work on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "jobs.db"
        self.address = f"sqlite:///{self.path}"
        self.queue = SqliteQueue(self.path)
        self.worked_on: Counter[str] = Counter()
        self._lock = threading.Lock()

    def send(self, count: int, callback: str, prefix: str = "job") -> None:
        """Send so many jobs."""
        self.queue.send([encode_job(b"x" * (n + 1), id=f"{prefix}-{n}", callback=callback) for n in range(count)])

    def run(self, *, drain: bool = True, limit: int | None = None, **options: Any) -> hr.Result:
        """Run a worker until the queue is empty."""

        def work(job: bytes) -> dict[str, int]:
            with self._lock:
                self.worked_on[str(len(job))] += 1
            return {"length": len(job)}

        pipeline = hr.Pipeline(
            hr.queue(self.address, drain=drain, visibility="5s"),
            stages=[hr.fetch("fetch"), hr.stage("work", work)],
            delivery=hr.callback(),
        )
        plan = {
            "source": {"wait_seconds": 0.05},
            "network": NETWORK,
            "run": {"brake_after": 0},
            "stages": {"deliver": {"workers": 4, "options": {**SOON, **options}}},
        }
        return hr.run(pipeline, hr.Plan.from_table(plan), limit=limit)

    def letters(self) -> list[DeadLetter]:
        """Return the dead letters."""
        return cast("list[DeadLetter]", self.queue.peek(1000, dead=True))

    def remaining(self) -> int:
        """Return how many messages are in the queue in any state but dead."""
        state = self.queue.statistics()
        return state.visible + state.in_flight + state.delayed


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    """Return a queue and workers."""
    bench = Bench(tmp_path)
    yield bench
    bench.queue.close()


def test_a_receiver_that_is_down_for_a_while_costs_nothing(bench: Bench) -> None:
    """Every result is delivered when it is back: none is lost or worked out twice, no receive count runs out."""
    with Receiver(lambda call: Reply(503 if call.number <= 12 else 200)) as receiver:
        bench.send(40, receiver.url)
        result = bench.run()
        assert receiver.taken == {f"job-{n}": {"length": n + 1} for n in range(40)}
        assert receiver.num_duplicates == 0
    assert set(bench.worked_on.values()) == {1}
    assert (bench.remaining(), bench.letters()) == (0, [])
    assert result.counters.delivered == 40
    notes = result.counters.notes
    assert notes["source.postponed"] >= 3
    assert notes["deliver.breaker_opened"] == 1
    assert notes["deliver.answers_5xx"] == 12
    assert notes["deliver.refused_while_open"] >= 1


def test_a_dead_receiver_does_not_hold_up_the_others(bench: Bench) -> None:
    """While one host is away for as long as the test lasts, the jobs for another go through, in no more calls than usual."""
    with Receiver() as alive, Receiver(lambda call: Reply(hang=True)) as dead:
        bench.send(60, dead.url, "dead")
        bench.send(60, alive.url, "alive")
        result = bench.run(timeout_seconds=0.5, give_up_seconds=1)
        assert set(alive.taken) == {f"alive-{n}" for n in range(60)}
        assert len(alive.calls) == 60
        assert len(dead.calls) < 60
    assert {json.loads(letter.body)["id"] for letter in bench.letters()} == {f"dead-{n}" for n in range(60)}
    assert all("given up after 1 s: give_up_seconds" in letter.reason for letter in bench.letters())
    assert result.counters.delivered == 60
    assert result.counters.dead_lettered == 60


def test_what_is_given_up_keeps_its_result(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """It is a dead letter with reason and result, and a redrive delivers the result without working it out again."""
    with Receiver(lambda call: Reply(500)) as receiver:
        bench.send(3, receiver.url)
        bench.run(give_up_seconds=0.5)
        assert [json.loads(letter.kept)["result"] for letter in bench.letters()] == [
            {"length": int(json.loads(letter.body)["id"][-1]) + 1} for letter in bench.letters()
        ]
        assert main(["queue", "peek", bench.address, "--dead", "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)["messages"]
        assert {message["result"]["length"] for message in shown} == {1, 2, 3}
        assert all("answered 500" in message["reason"] for message in shown)
        assert main(["queue", "peek", bench.address, "--dead"]) == 0
        assert 'result  {"length": 1}' in capsys.readouterr().out

        receiver.reply = lambda call: Reply()
        assert main(["queue", "redrive", bench.address]) == 0
        bench.run()
        assert receiver.taken == {f"job-{n}": {"length": n + 1} for n in range(3)}
    assert set(bench.worked_on.values()) == {1}


def test_a_redriven_job_may_be_worked_on_again(bench: Bench) -> None:
    """`--rework` leaves the results behind."""
    with Receiver(lambda call: Reply(422)) as receiver:
        bench.send(2, receiver.url)
        bench.run()
        receiver.reply = lambda call: Reply()
        assert main(["queue", "redrive", bench.address, "--rework"]) == 0
        bench.run()
        assert len(receiver.taken) == 2
    assert set(bench.worked_on.values()) == {2}


def test_a_redriven_job_has_all_its_time_again(bench: Bench) -> None:
    """It is not given up at its first failure because it failed long ago."""
    with Receiver(lambda call: Reply(500)) as receiver:
        bench.send(1, receiver.url)
        bench.run(give_up_seconds=0.3)
        time.sleep(0.3)
        bench.queue.redrive()
        receiver.reply = lambda call: Reply(500 if call.number < num_calls + 3 else 200)
        num_calls = len(receiver.calls)
        bench.run(give_up_seconds=20)
        assert set(receiver.taken) == {"job-0"}
    assert bench.letters() == []


@pytest.mark.smoke
@pytest.mark.parametrize("status", [301, 400, 404, 413])
def test_a_refused_result_is_a_dead_letter(bench: Bench, status: int) -> None:
    """An answer that is final ends the job at once, with result and reason, after one call."""
    with Receiver(lambda call: Reply(status, (("Location", "/elsewhere"),))) as receiver:
        bench.send(1, receiver.url)
        result = bench.run()
        assert len(receiver.calls) == 1
    (letter,) = bench.letters()
    assert f"answered {status}, expected 2xx" in letter.reason
    assert json.loads(letter.kept)["result"] == {"length": 1}
    assert result.counters.rejected == 1


def test_gone_ends_all_jobs_for_the_address(bench: Bench) -> None:
    """After one 410 the others are rejected unasked, with the reason, and counted."""
    with Receiver(lambda call: Reply(410)) as receiver:
        bench.send(20, receiver.url)
        result = bench.run()
        assert 1 <= len(receiver.calls) <= 4  # as many as workers
    assert len(bench.letters()) == 20
    assert sum("Gone before" in letter.reason for letter in bench.letters()) == 20 - len(receiver.calls)
    assert result.counters.notes["deliver.refused_as_gone"] == 20 - len(receiver.calls)


@pytest.mark.parametrize("status", [429, pytest.param(503, marks=pytest.mark.slow)])
def test_retry_after_is_heeded(bench: Bench, status: int) -> None:
    """Nobody is called again before the time that it asks for."""
    moments: list[float] = []

    def reply(call: Call) -> Reply:
        moments.append(time.monotonic())
        return Reply(200) if call.number > 1 else Reply(status, (("Retry-After", "1"),))

    with Receiver(reply) as receiver:
        bench.send(1, receiver.url)
        bench.run()
        assert len(receiver.taken) == 1
    assert moments[1] - moments[0] >= 0.99


def test_a_retry_after_beyond_the_budget_waits_in_the_queue(bench: Bench) -> None:
    """A worker does not wait for an hour: the job goes back, is held back for that long, and keeps its result."""
    with Receiver(lambda call: Reply(503, (("Retry-After", "3600"),))) as receiver:
        bench.send(1, receiver.url)
        result = bench.run(drain=False, limit=1)
        assert len(receiver.calls) == 1
    assert result.counters.retried == 1
    state = bench.queue.statistics()
    assert (state.delayed, state.dead) == (1, 0)


def test_secrets_are_nowhere(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A run with signed callbacks, successes and failures, leaves no secret in its folder, its log or its queue."""
    monkeypatch.setenv("CALLBACK_SECRETS", SECRET)
    caplog.set_level(logging.DEBUG)
    run_folder = tmp_path / "run"
    with Receiver(lambda call: Reply(200 if call.number % 2 else 400), secrets=(SECRET,)) as receiver:
        bench.send(6, receiver.url)
        pipeline = hr.Pipeline(
            hr.queue(bench.address, drain=True),
            stages=[hr.fetch("fetch"), hr.stage("work", len)],
            delivery=hr.callback(secret_env="CALLBACK_SECRETS"),
        )
        result = hr.run(pipeline, hr.Plan.from_table({"network": NETWORK}), output=run_folder)
        assert len(receiver.taken) == 3
    secret = SECRET.removeprefix("whsec_")
    written = [path.read_bytes() for path in [*run_folder.rglob("*"), *tmp_path.glob("jobs.db*")] if path.is_file()]
    assert len(written) > 3
    assert not any(secret.encode() in data for data in written)
    assert secret not in caplog.text + repr(result) + repr(pipeline) + repr(vars(pipeline.delivery))


def test_a_forged_result_is_not_signed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that somebody put beside a job is not delivered under our signature: the job is worked on."""
    monkeypatch.setenv("CALLBACK_SECRETS", SECRET)
    with Receiver(secrets=(SECRET,)) as receiver:
        bench.send(1, receiver.url)
        (message,) = bench.queue.receive(1)
        bench.queue.dead_letter([Burial(message, "", b'{"v":1,"since":null,"tries":0,"seal":"","result":"forged"}')])
        bench.queue.redrive()
        result = bench.run(secret_env="CALLBACK_SECRETS")
        assert receiver.taken == {"job-0": {"length": 1}}
    assert result.counters.notes["deliver.kept_refused"] == 1


def test_a_postponed_result_needs_the_delivery_in_a_station_of_its_own(bench: Bench) -> None:
    """With everything inline there is no way to the delivery but through the work: it is done again, and delivered."""
    with Receiver(lambda call: Reply(500 if call.number == 1 else 200)) as receiver:
        bench.send(1, receiver.url)
        pipeline = hr.Pipeline(
            hr.queue(bench.address, drain=True),
            stages=[hr.fetch("fetch"), hr.stage("work", len)],
            delivery=hr.callback(),
        )
        inline = {name: {"executor": "inline", "attempts": 1} for name in ("fetch", "work", "deliver")}
        hr.run(pipeline, hr.Plan.from_table({"stages": inline, "network": NETWORK}))
        assert receiver.taken == {"job-0": 1}


@pytest.mark.slow
def test_down_and_then_failing_every_second_time(bench: Bench) -> None:
    """Down for five seconds and then answering half of the calls with 500: nothing is lost, and few retries follow at once."""
    up_at: list[float] = []

    def reply(call: Call) -> Reply:
        if not up_at:
            up_at.append(time.monotonic() + 5.0)
        return Reply(200 if time.monotonic() > up_at[0] and call.number % 2 else 500)

    with Receiver(reply) as receiver, Receiver() as other:
        bench.send(300, receiver.url)
        bench.send(300, other.url, "other")
        result = bench.run()
        assert receiver.taken == {f"job-{n}": {"length": n + 1} for n in range(300)}
        assert len(other.taken) == 300
    assert set(bench.worked_on.values()) == {2}  # one job of each receiver has each length
    assert (bench.remaining(), bench.letters()) == (0, [])
    notes = result.counters.notes
    assert notes["deliver.retries_withheld"] > 0
    # Calls that failed and whose job did not go back to the queue: those were tried again at once.
    retried_at_once = notes["deliver.answers_5xx"] - (notes["source.postponed"] - notes["deliver.refused_while_open"])
    assert 0 < retried_at_once <= 10 + 0.1 * len(receiver.calls)


def test_a_worker_from_the_command_line(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A Plan names where the secrets are, `headrace run --json` shows how callbacks were answered, and no secret."""
    (tmp_path / "app.py").write_text(
        "import headrace as hr\n"
        f"pipeline = hr.Pipeline(hr.queue({bench.address!r}), stages=[hr.fetch('fetch'), hr.stage('n', len)],"
        " delivery=hr.callback())\n"
    )
    (tmp_path / "plan.toml").write_text(
        '[network]\nallow = ["127.0.0.1"]\n[stages.deliver.options]\nsecret_env = "CALLBACK_SECRETS"\n'
    )
    monkeypatch.setenv("CALLBACK_SECRETS", SECRET)
    with Receiver(lambda call: Reply(200 if call.number > 1 else 404), secrets=(SECRET,)) as receiver:
        bench.send(5, receiver.url)
        arguments = ["run", f"{tmp_path}/app.py:pipeline", "--plan", f"{tmp_path}/plan.toml", "--limit", "5", "--json"]
        assert main(arguments) == 0
        assert len(receiver.taken) == 4
    printed = capsys.readouterr()
    notes = json.loads(printed.out)["counters"]["notes"]
    assert (notes["deliver.answers_2xx"], notes["deliver.answers_4xx"]) == (4, 1)
    assert SECRET.removeprefix("whsec_") not in printed.out + printed.err
