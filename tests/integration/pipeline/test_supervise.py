"""`headrace run --supervise`: what kills a worker ends in the dead-letter queue, and everything else is delivered."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import RunFolderError
from headrace.base.records import DeadLetter
from headrace.diagnose.whole import whole_document
from headrace.runs.reader import read_run
from headrace.runs.whole_run import WholeRun, read_whole
from headrace.sources.jobs import encode_job
from headrace.sources.sqlite_queue import SqliteQueue

pytestmark = pytest.mark.real_clock

APP = """
import ctypes, json, os, signal, sys, time
from pathlib import Path
import headrace as hr

def work(value):
    order = json.loads(value)
    time.sleep(order.get("sleep", 0.005))
    match order.get("do"):
        case "segfault": ctypes.string_at(0)
        case "exit":
            if not Path("mended").exists():
                os._exit(3)
        case "exit, then fail":
            if not Path("mended").exists():
                os._exit(3)
            raise hr.ItemFailed("not found")
        case "hold": ctypes.PyDLL(None).sleep(1000)
        case "kill once":
            flag = Path(order["flag"])
            if not flag.exists():
                flag.touch()
                os.kill(os.getpid(), signal.SIGKILL)
    return order["n"]

pipeline = hr.Pipeline(
    hr.queue("sqlite:///jobs.db", visibility={visibility}, drain={drain}),
    stages=[hr.stage("work", work)], delivery=hr.jsonl("out.jsonl"),
)
"""
SLOW_ACKS = """
import json, time
import headrace as hr
from headrace.sources.sqlite_queue import SqliteQueue

class SlowAcks(SqliteQueue):
    def ack(self, receipts):
        time.sleep(1.5 if receipts else 0)
        return super().ack(receipts)

pipeline = hr.Pipeline(
    hr.queue(SlowAcks("jobs.db", visibility_seconds=30), drain=True),
    stages=[hr.stage("work", lambda value: json.loads(value)["n"])], delivery=hr.jsonl("out.jsonl"),
)
"""
FAILS_ONCE = """
from pathlib import Path
import headrace as hr

def work(value):
    if not Path("seen").exists():
        Path("seen").touch()
        raise ValueError("not yet")
    return len(value)

pipeline = hr.Pipeline(hr.queue("sqlite:///jobs.db"), stages=[hr.stage("work", work)], delivery=hr.jsonl("out.jsonl"))
"""
PLAN = "[run]\nsilent_seconds = 1.0\n[stages.work]\nworkers = 3\n"


class Service:
    """A supervised pipeline in a folder, and the queue it reads."""

    def __init__(self, folder: Path, *, visibility: float = 30.0, drain: bool = True) -> None:
        self.folder = folder
        (folder / "app.py").write_text(APP.replace("{visibility}", str(visibility)).replace("{drain}", str(drain)))
        (folder / "plan.toml").write_text(PLAN)
        self.queue = SqliteQueue(folder / "jobs.db")
        self.process: subprocess.Popen[str] | None = None

    def send(self, orders: list[dict[str, Any]]) -> None:
        """Send one job each."""
        bodies = [json.dumps({"n": number, **order}).encode() for number, order in enumerate(orders)]
        self.queue.send([encode_job(body, id=f"job-{number}") for number, body in enumerate(bodies)])

    def start(self, *arguments: str, workers: int = 2) -> subprocess.Popen[str]:
        """Start the command."""
        program = [sys.executable, "-c", "from headrace.cli import main; raise SystemExit(main())"]
        command = [*program, "run", "app.py:pipeline", "--plan", "plan.toml", "--supervise", str(workers), *arguments]
        self.process = subprocess.Popen(
            command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        return self.process

    def run(self, *arguments: str, workers: int = 2) -> dict[str, Any]:
        """Run until the queue is drained and return the document."""
        process = self.start("--json", *arguments, workers=workers)
        told, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
        document: dict[str, Any] = json.loads(told)
        return document

    def delivered(self) -> set[int]:
        """Return the numbers of the jobs that were delivered."""
        file = self.folder / "out.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return {json.loads(line)["result"] for line in lines if line.endswith("}")}

    def dead(self) -> list[DeadLetter]:
        """Return the dead letters."""
        return [letter for letter in self.queue.peek(100, dead=True) if isinstance(letter, DeadLetter)]

    def children(self) -> list[int]:
        """Return the worker processes."""
        assert self.process is not None
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextlib.contextmanager
def service(folder: Path, **settings: Any) -> Iterator[Service]:
    """Give a service and end what is left of it."""
    made = Service(folder, **settings)
    try:
        yield made
    finally:
        if made.process is not None:
            made.process.kill()
            made.process.communicate()
        made.queue.close()


def test_a_slow_service_is_no_silence(tmp_path: Path) -> None:
    """A queue whose acks hang for longer than `silent_seconds` kills no worker and blames no job."""
    with service(tmp_path) as made:
        (tmp_path / "app.py").write_text(SLOW_ACKS)
        made.send([{}])
        document = made.run(workers=1)
        assert made.delivered() == {0}
        assert (document["deaths"], document["status"]) == (0, 0)


@pytest.mark.slow
def test_a_redriven_job_is_judged_by_what_it_does_now(tmp_path: Path) -> None:
    """A blamed job that is mended, redriven, and then fails for another reason ends with that reason, not with the old one."""
    with service(tmp_path, drain=False) as made:
        made.send([{"do": "exit, then fail"}])
        made.start("--set", "source.max_receives=3", "--set", "stages.work.attempts=1", workers=1)
        wait_until(made.dead)
        (tmp_path / "mended").touch()
        made.queue.redrive()
        wait_until(made.dead)
        (letter,) = made.dead()
        assert "not found" in letter.reason
        assert letter.receive_count == 3


def test_a_module_that_leaves_at_once_ends_all(tmp_path: Path) -> None:
    """Where the first of several workers ends before it begins, the supervisor ends too and says so, with the place."""
    with service(tmp_path) as made:
        (tmp_path / "app.py").write_text("raise SystemExit(0)\n")
        process = made.start(workers=2)
        _, said = process.communicate(timeout=90)
        assert process.returncode == 2
        assert "app cannot be imported: SystemExit: 0 (app.py:1)" in said
        assert "ended with status 2 before it began" in said


def wait_until(condition: Callable[[], Any], seconds: float = 90.0) -> None:
    """Return once the condition holds."""
    give_up_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up_at, "waited in vain"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Return whether a process runs, zombies excluded."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("do", "cause"), [("segfault", "SIGSEGV"), ("exit", "exit code 3"), ("hold", "no sign of life")]
)
def test_poison_alone_is_dead_lettered(tmp_path: Path, do: str, cause: str) -> None:
    """Of fifty jobs with one that kills its worker, that one is dead-lettered with the reason and all others delivered."""
    with service(tmp_path) as made:
        made.send([{"do": do} if number == 25 else {} for number in range(50)])
        document = made.run()
        (letter,) = made.dead()
        assert json.loads(letter.body)["id"] == "job-25"
        assert "killed its worker 2 times" in letter.reason
        assert cause in letter.reason
        assert made.delivered() == set(range(50)) - {25}
        assert (document["deaths"], document["restarts"]) == (2, 2)
        assert document["outcomes"]["dead_lettered"] == 1


@pytest.mark.slow
def test_neighbours_keep_their_deliveries(tmp_path: Path) -> None:
    """Jobs that were with several poisonous ones at their deaths are delivered even where one delivery is allowed."""
    with service(tmp_path) as made:
        made.send([{"do": "segfault"} if number in (3, 11, 19) else {} for number in range(30)])
        made.run("--set", "source.max_receives=1", workers=1)
        assert made.delivered() == set(range(30)) - {3, 11, 19}
        assert {json.loads(letter.body)["id"] for letter in made.dead()} == {"job-3", "job-11", "job-19"}


def test_the_end_says_what_failed_and_where_it_is(tmp_path: Path) -> None:
    """A job that killed its workers is among the reasons and in errors.jsonl, and the commands name its queue."""
    with service(tmp_path) as made:
        made.send([{"do": "segfault"}, {}])
        told, said = made.start("-o", "runs").communicate(timeout=120)
        assert "killed its worker" in said
        assert "1 delivered" in told
        assert "1 dead-lettered" in told
        assert "what failed:\n1 other: killed its worker 2 times (SIGSEGV)" in told
        assert "headrace queue peek sqlite:///jobs.db --dead" in told
        errors = [line for file in (tmp_path / "runs").glob("*/errors.jsonl") for line in file.read_text().splitlines()]
        assert ["killed its worker" in json.loads(line)["reason"] for line in errors] == [True]


@pytest.mark.smoke
def test_the_end_of_a_run_that_lost_nothing(tmp_path: Path) -> None:
    """Where a job was tried again and delivered, nothing is dead, and no command for dead letters is given."""
    (tmp_path / "app.py").write_text(FAILS_ONCE)
    with contextlib.closing(SqliteQueue(tmp_path / "jobs.db")) as queue:
        queue.send([encode_job(b"x", id="a")])
    program = [sys.executable, "-c", "from headrace.cli import main; raise SystemExit(main())"]
    command = [*program, "run", "app.py:pipeline", "--supervise", "1", "--drain"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert "1 retried" in ran.stdout
    assert "what failed:\n1 work: ValueError: not yet" in ran.stdout
    assert "headrace queue" not in ran.stdout


def test_a_kill_from_outside_blames_nobody(tmp_path: Path) -> None:
    """A job whose worker is killed from outside is delivered, and so is everything else; the restart is counted."""
    with service(tmp_path) as made:
        flag = str(tmp_path / "flag")
        made.send([{"do": "kill once", "flag": flag} if number == 5 else {} for number in range(20)])
        document = made.run(workers=1)
        assert made.delivered() == set(range(20))
        assert not made.dead()
        assert (document["deaths"], document["restarts"]) == (1, 1)
        assert document["last_deaths"][0]["cause"].startswith("SIGKILL")


def test_a_redriven_job_is_tried_afresh(tmp_path: Path) -> None:
    """A blamed job that somebody moves back to its queue runs again, although the supervisor remembers it."""
    with service(tmp_path, drain=False) as made:
        made.send([{"do": "exit"}])
        made.start(workers=1)
        wait_until(made.dead)
        (tmp_path / "mended").touch()
        assert made.queue.redrive() == 1
        wait_until(made.delivered)
        assert made.delivered() == {0}
        assert not made.dead()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_signals_drain_all(tmp_path: Path, number: signal.Signals, status: int) -> None:
    """Either ends the workers cleanly: what they had is delivered once, the rest is in the queue, nothing is lent."""
    with service(tmp_path, drain=False) as made:
        made.send([{} for _ in range(2000)])
        process = made.start()
        wait_until(lambda: len(made.children()) == 2 and made.delivered())
        process.send_signal(number)
        _, said = process.communicate(timeout=90)
        assert process.returncode == status, said
        lines = (tmp_path / "out.jsonl").read_text().splitlines()
        state = made.queue.statistics()
        assert len(lines) == len(made.delivered()) < 2000
        assert (state.visible, state.in_flight, state.delayed, state.dead) == (2000 - len(lines), 0, 0, 0)


@pytest.mark.slow
def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    """The second SIGTERM gives back at once what would take longer than the patience of whoever sends it."""
    with service(tmp_path, drain=False) as made:
        made.send([{"sleep": 60} for _ in range(6)])
        process = made.start()
        wait_until(lambda: made.queue.statistics().in_flight >= 4)
        process.terminate()
        wait_until(lambda: "stopping" in (process.stderr.readline() if process.stderr else ""))
        process.terminate()
        process.communicate(timeout=120)
        assert process.returncode == 130
        assert made.queue.statistics().in_flight == 0


def test_a_dead_supervisor_leaves_no_worker(tmp_path: Path) -> None:
    """When the supervisor is killed its workers are gone too, and what they had comes back."""
    with service(tmp_path, drain=False, visibility=2) as made:
        made.send([{"sleep": 0.05} for _ in range(60)])
        process = made.start()
        wait_until(lambda: len(made.children()) == 2 and made.queue.statistics().in_flight)
        workers = made.children()
        process.kill()
        wait_until(lambda: not any(is_alive(worker) for worker in workers), 30)
        process.communicate(timeout=120)
        made.start("--source", f"sqlite:///{tmp_path}/jobs.db?visibility=2s", "--drain")
        assert made.process is not None
        made.process.communicate(timeout=120)
        assert made.delivered() == set(range(60))


@pytest.mark.slow
def test_a_worker_that_somebody_drains_is_replaced(tmp_path: Path) -> None:
    """SIGINT to one worker lets it finish what it has; another takes its place."""
    with service(tmp_path, drain=False) as made:
        made.send([{"sleep": 0.02} for _ in range(400)])
        made.start()
        wait_until(lambda: len(made.children()) == 2 and len(made.delivered()) > 10)
        first = made.children()[0]
        os.kill(first, signal.SIGINT)
        wait_until(lambda: len(made.children()) == 2 and first not in made.children())
        wait_until(lambda: len(made.delivered()) == 400)
        assert made.delivered() == set(range(400))
        assert not made.dead()


def test_a_death_storm_ends_the_service(tmp_path: Path) -> None:
    """Where every job kills its worker the supervisor gives up with 70 and says why, instead of emptying the queue."""
    with service(tmp_path) as made:
        made.send([{"do": "segfault"} for _ in range(100)])
        process = made.start(workers=1)
        _, said = process.communicate(timeout=120)
        assert process.returncode == 70, said
        assert "died 5 times within 60 s and delivered nothing" in said
        assert len(made.dead()) <= 5


def test_what_keeps_the_first_worker_from_beginning_is_told_once(tmp_path: Path) -> None:
    """A module that cannot be imported is one message and the command's own exit status, whatever N is."""
    with service(tmp_path) as made:
        (tmp_path / "app.py").write_text("import there_is_no_such_module\n")
        process = made.start(workers=4)
        _, said = process.communicate(timeout=90)
        assert process.returncode == 2
        assert said.count("app cannot be imported") == 1


def test_a_slip_of_the_hand_starts_nothing(tmp_path: Path) -> None:
    """Ten thousand worker processes are refused before the first."""
    with service(tmp_path) as made:
        process = made.start(workers=10_000)
        _, said = process.communicate(timeout=90)
        assert process.returncode == 2
        assert "at most 256" in said


def test_a_folder_cannot_be_shared(tmp_path: Path) -> None:
    """A source that every worker would do all of is refused, and the message says what to do."""
    with service(tmp_path) as made:
        (tmp_path / "photos").mkdir()
        process = made.start("--source", "photos")
        _, said = process.communicate(timeout=90)
        assert process.returncode == 2
        assert "headrace submit" in said


def test_each_life_has_its_run_folder(tmp_path: Path) -> None:
    """With -o each worker process writes a whole run folder, and the supervisor what it saw."""
    with service(tmp_path) as made:
        made.send([{"do": "segfault"} if number == 5 else {} for number in range(20)])
        made.run("-o", "RUN", workers=1)
        assert sorted(path.name for path in (tmp_path / "RUN").iterdir()) == [
            "supervised.json", "worker-0-1", "worker-0-2", "worker-0-3",
        ]  # fmt: skip
        document = json.loads((tmp_path / "RUN" / "supervised.json").read_text())
        assert document["schema"] == "headrace.supervised/1"
        with pytest.raises(RunFolderError, match=r"name it: \S+worker-0-1, \S+worker-0-2"):
            read_run(tmp_path / "RUN")
        assert read_run(tmp_path / "RUN" / "worker-0-3").info.status == "finished"
        assert [death["cause"] for death in document["last_deaths"]] == ["SIGSEGV", "SIGSEGV"]


def test_workers_that_are_profiled_are_diagnosed_together(tmp_path: Path) -> None:
    """One that dies meanwhile has what it wrote by then; the whole counts what all did."""
    with service(tmp_path) as made:
        made.send([{"do": "segfault"} if number == 5 else {} for number in range(200)])
        made.run("-o", "RUN", "--profile", workers=2)
    whole = read_whole(tmp_path / "RUN")
    assert isinstance(whole, WholeRun)
    found = whole_document(whole, budget_seconds=1.0)
    ended = [member for member in found.members if member.status == "finished"]
    assert len(ended) == 2
    assert len(found.members) == 4  # the job that kills is tried twice
    assert not any("was profiled" in note for note in found.notes)
    assert any("SIGSEGV" in note for note in found.notes), found.notes
    assert sum(member.delivered for member in ended) <= found.delivered <= 200


@pytest.mark.slow
def test_without_a_supervisor_the_receive_count_ends_it(tmp_path: Path) -> None:
    """Started again and again by hand, one job at a time, poison is dead-lettered before it is run once more."""
    with service(tmp_path, visibility=0.5) as made:
        made.send([{"do": "segfault"} if number == 2 else {} for number in range(5)])
        settings = ["--set", "source.max_in_flight=1", "--set", "source.max_receives=3"]
        program = [sys.executable, "-c", "from headrace.cli import main; raise SystemExit(main())"]
        codes = []
        while not codes or (codes[-1] and len(codes) < 10):
            done = subprocess.run(
                [*program, "run", "app.py:pipeline", *settings],
                cwd=tmp_path,
                capture_output=True,
                timeout=60,
                check=False,
            )
            codes.append(done.returncode)
        assert codes == [-signal.SIGSEGV] * 3 + [0]
        # Beside it perhaps neighbours that were delivered each time and whose ack died with the worker.
        reasons = {json.loads(letter.body)["id"]: letter.reason for letter in made.dead()}
        assert "received 4 times, allowed are 3" in reasons["job-2"]
        assert made.delivered() == {0, 1, 3, 4}


def test_machines_of_a_fleet_learn_of_poison_from_one_another(tmp_path: Path) -> None:
    """It kills twice in all and not twice on each, and its neighbours are delivered."""
    with service(tmp_path) as made, contextlib.ExitStack() as others:
        made.send([{"do": "segfault"} if number == 3 else {"sleep": 0.05} for number in range(200)])
        machines = [made, *(others.enter_context(service(tmp_path)) for _ in range(2))]
        for number, machine in enumerate(machines):
            machine.start("--json", "--fleet", "fleet", "--results", f"out-{number}.jsonl", workers=1)
        told = [machine.process.communicate(timeout=120) for machine in machines if machine.process is not None]
        deaths = [json.loads(out)["deaths"] for out, _ in told]
        assert sum(deaths) == 2, told
        (letter,) = made.dead()
        assert "killed its worker 2 times" in letter.reason
        lines = [line for file in tmp_path.glob("out-*.jsonl") for line in file.read_text().splitlines()]
        assert {json.loads(line)["result"] for line in lines} == set(range(200)) - {3}
        assert list((tmp_path / "fleet").glob("*.suspects.msgpack"))
