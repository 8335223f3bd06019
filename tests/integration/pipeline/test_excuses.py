"""A supervisor or a lone run that is killed again and again with all it has costs no good job, and poison ends all the same."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.base.records import DeadLetter
from headrace.sources.jobs import encode_job
from headrace.sources.sqlite_queue import SqliteQueue

pytestmark = [
    pytest.mark.real_clock,
    pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="what is left behind is in shared memory"),
]

APP = """
import json, os, signal, time
import headrace as hr

def work(value):
    order = json.loads(value)
    if order.get("poison"):
        if order["supervised"]:
            os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    if os.path.exists("killing"):
        open("begun", "a").write("!")
        time.sleep(60.0)
    return order["n"]

pipeline = hr.Pipeline(
    hr.queue("sqlite:///jobs.db", visibility=30, drain=True), stages=[hr.stage("work", work)], delivery=hr.jsonl("out.jsonl"),
)
"""
PLAN = "[source]\nmax_in_flight = 8\nmax_receives = 3\n[stages.work]\nworkers = 4\n"
COMMAND = (sys.executable, "-c", "from headrace.cli import main; raise SystemExit(main())", "run", "app.py:pipeline")
#: The same with its shared memory in the service's folder, where a test may take it away.
_FORGETFUL_CODE = (
    "from pathlib import Path; from headrace.base import crash_recovery; crash_recovery.SHARED_MEMORY = Path('memory'); "
    "from headrace.cli import main; raise SystemExit(main())"
)
FORGETFUL = (sys.executable, "-c", _FORGETFUL_CODE, "run", "app.py:pipeline")
SUPERVISED = pytest.mark.parametrize("options", [("--supervise", "1"), ()], ids=["supervised", "alone"])


class Service:
    """A pipeline in a folder, its queue, and the process that runs it now."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "app.py").write_text(APP)
        (folder / "plan.toml").write_text(PLAN)
        self.queue = SqliteQueue(folder / "jobs.db")
        self.command = COMMAND
        self.process: subprocess.Popen[bytes] | None = None

    def use_memory_of_its_own(self) -> Path:
        """Have the command use a folder as shared memory from now on, with short loans, and return the folder."""
        (self.folder / "app.py").write_text(APP.replace("visibility=30", "visibility=1"))
        (self.folder / "memory").mkdir()
        self.command = FORGETFUL
        return self.folder / "memory"

    def send(self, orders: list[dict[str, Any]]) -> None:
        """Send one job each."""
        bodies = [json.dumps({"n": number, **order}).encode() for number, order in enumerate(orders)]
        self.queue.send([encode_job(body, id=f"job-{number}") for number, body in enumerate(bodies)])

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        """Start the command, as a service manager would."""
        command = [*self.command, "--plan", "plan.toml", *options]
        with (self.folder / "said").open("ab") as said:
            self.process = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=said)
        return self.process

    def kill_at_work(self, num_in_work: int, *options: str) -> None:
        """Start the command and kill it when so many jobs are in work; the kernel kills its workers with it."""
        process = self.start_to_work(num_in_work, *options)
        process.kill()
        process.wait()

    def start_to_work(self, num_in_work: int, *options: str) -> subprocess.Popen[bytes]:
        """Start the command and wait until so many jobs are in work."""
        begun = self.folder / "begun"
        begun.write_text("")
        process = self.start(*options)
        until = time.monotonic() + 60.0
        while len(begun.read_text()) < num_in_work:
            assert time.monotonic() < until, (self.folder / "said").read_text()
            time.sleep(0.02)
        return process

    def delivered(self) -> set[int]:
        """Return the numbers of the jobs that were delivered."""
        file = self.folder / "out.jsonl"
        return {json.loads(line)["result"] for line in file.read_text().splitlines() if line.endswith("}")}

    def dead(self) -> list[DeadLetter]:
        """Return the dead letters."""
        return [letter for letter in self.queue.peek(100, dead=True) if isinstance(letter, DeadLetter)]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """Give a service and end what is left of it."""
    made = Service(tmp_path)
    yield made
    if made.process is not None:
        made.process.kill()
        made.process.wait()
    made.queue.close()


@SUPERVISED
def test_jobs_in_flight_at_kills_of_all_are_delivered(service: Service, options: tuple[str, ...]) -> None:
    """Four kills with jobs in work, where three deliveries are allowed, dead-letter none of them."""
    (service.folder / "killing").touch()
    service.send([{}] * 4)
    for num_in_work in (4, 4, 1, 1):  # suspects run one by one
        service.kill_at_work(num_in_work, *options)
    (service.folder / "killing").unlink()
    assert service.start(*options).wait(60) == 0, (service.folder / "said").read_text()
    assert [letter.reason for letter in service.dead()] == []
    assert service.delivered() == set(range(4))


@SUPERVISED
def test_poison_that_kills_all_is_dead_lettered(service: Service, options: tuple[str, ...]) -> None:
    """A job that takes its supervisor along ends after a bounded number of deliveries, and those beside it are delivered."""
    orders = [{"poison": number == 3, "supervised": bool(options)} for number in range(12)]
    service.send(orders)
    statuses = []
    while not statuses or (statuses[-1] == -signal.SIGKILL and len(statuses) < 12):
        statuses.append(service.start(*options).wait(60))
    assert statuses[-1] in (0, 1), (statuses, (service.folder / "said").read_text())
    assert [json.loads(letter.body)["id"] for letter in service.dead()] == ["job-3"]
    assert service.delivered() == set(range(12)) - {3}


def test_poison_in_parse_costs_no_neighbour(service: Service) -> None:
    """A message that kills whoever parses it ends alone after the deliveries allowed; those received with it are delivered."""
    parse = (
        "def parse(body):\n"
        "    if b'poison' in body:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return {'data': body}\n"
        "\npipeline ="
    )
    app = APP.replace("drain=True", "drain=True, parse=parse").replace("\npipeline =", "\n" + parse)
    (service.folder / "app.py").write_text(app)
    service.queue.send([json.dumps({"n": n, "who": who}).encode() for n, who in enumerate(("a", "poison", "b"))])
    statuses = []
    while not statuses or (statuses[-1] == -signal.SIGKILL and len(statuses) < 8):
        statuses.append(service.start().wait(60))
    assert statuses.count(-signal.SIGKILL) == 3, (statuses, (service.folder / "said").read_text())
    assert [b"poison" in letter.body for letter in service.dead()] == [True]
    assert service.delivered() == {0, 2}


def test_kills_that_nobody_remembers_cost_no_job(service: Service) -> None:
    """Where shared memory is lost with each kill, as with a container that is made again, jobs get one more try, alone."""
    memory = service.use_memory_of_its_own()
    (service.folder / "killing").touch()
    service.send([{}] * 3)
    for _ in range(4):
        service.kill_at_work(1)
        shutil.rmtree(memory)
        memory.mkdir()
    (service.folder / "killing").unlink()
    assert service.start().wait(60) == 0, (service.folder / "said").read_text()
    assert service.dead() == []
    assert service.delivered() == set(range(3))


def test_shared_memory_that_is_removed_ends_no_worker(service: Service) -> None:
    """The successor of a worker that is killed after that works on, and drains the queue."""
    memory = service.use_memory_of_its_own()
    (service.folder / "killing").touch()
    service.send([{}] * 3)
    process = service.start_to_work(3, "--supervise", "1")
    shutil.rmtree(memory)
    (service.folder / "killing").unlink()
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)
    assert process.wait(60) == 0, (service.folder / "said").read_text()
    assert service.delivered() == set(range(3))


def test_nothing_stays_behind_after_a_drain(service: Service) -> None:
    """A run that was killed and one that then drained the queue leave no file in shared memory."""
    root = Path(f"/dev/shm/headrace.{os.geteuid()}")
    (service.folder / "killing").touch()
    service.send([{}] * 4)
    service.kill_at_work(4, "--supervise", "1")
    (service.folder / "killing").unlink()
    mine = [path for path in root.glob("*/queue") if service.queue.identity in path.read_text()]
    assert len(mine) == 1
    assert service.start("--supervise", "1").wait(60) == 0
    assert [path for path in root.glob("**/queue") if service.queue.identity in path.read_text()] == []
