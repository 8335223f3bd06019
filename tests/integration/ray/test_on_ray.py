"""Whole workers on a local Ray cluster: every item once whatever dies, as loud as on one machine, and drained by Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.diagnose.whole import whole_document
from headrace.runs.whole_run import WholeRun, read_whole

ray = pytest.importorskip("ray")

JOBS = '''"""Counts the bytes of files."""
import itertools
import os
import signal
import time

import headrace as hr

number = itertools.count()


def hold():
    """Let ten through in each process, and the others once the test says go."""
    while next(number) >= 10 and not os.path.exists("go"):
        time.sleep(0.02)


def work(path):
    hold()
    time.sleep(0.02)
    if path.name == "bad.jpg":
        raise hr.ItemRejected("bad.photo: no photo")
    if path.name == "killer.jpg":
        os.kill(os.getpid(), signal.SIGKILL)
    return len(path.read_bytes())


def measure(data):
    hold()
    time.sleep(0.02)
    return len(data)


def breaks(path):
    raise ValueError("mine")


stages = [hr.stage("work", work)]
pipeline = hr.Pipeline(hr.folder("photos"), stages=stages, delivery=hr.jsonl("own.jsonl"))
broken = hr.Pipeline(hr.folder("photos"), stages=[hr.stage("breaks", breaks)])
queued = hr.Pipeline(
    hr.queue("sqlite:///jobs.db", drain=True), stages=[hr.stage("measure", measure)], delivery=hr.jsonl("own.jsonl")
)
'''
NAMES = [f"{number:03}.jpg" for number in range(120)]
#: Much more than a run takes; a machine may be slow.
PATIENCE = 120


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of one node of two cores, with neither dashboard nor usage statistics."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - 15 otherwise
    made = cluster_utils.Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "object_store_memory": 80_000_000, "include_dashboard": False},
    )
    yield made
    made.shutdown()


@pytest.fixture
def client_server(cluster: Any) -> Iterator[str]:
    """Begin a server of Ray Client, and give its address: a machine that is no node joins the cluster through it."""
    port = free_port()
    words = ["-m", "ray.util.client.server", "--address", cluster.address, "--host", "127.0.0.1", "--port", str(port)]
    words += ["--mode", "legacy"]  # the other one begins a process for each client, and gives up after 30 s
    server = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: is_open(port))
        yield f"ray://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(PATIENCE)


def is_open(port: int) -> bool:
    """Return whether somebody listens."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


BEGUN: list[subprocess.Popen[str]] = []


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A working folder with the program and its files; ends what a test left."""
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "go").touch()
    (tmp_path / "photos").mkdir()
    for name in NAMES:
        (tmp_path / "photos" / name).write_bytes(b"x")
    yield tmp_path
    while BEGUN:
        process = BEGUN.pop()
        process.kill()
        process.communicate()


def begin(cluster: Any, folder: Path, *words: str, address: str = "") -> subprocess.Popen[str]:
    """Start the command."""
    command = [sys.executable, "-m", "headrace", "run", *words, "--on", address or cluster.address, "--workers", "2"]
    command += ["--portions", "3"] if "--results" in words else []
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    BEGUN.append(process)
    return process


def begin_held(cluster: Any, folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start the command; none of its workers can do all of its part before the test says go."""
    (folder / "go").unlink()
    return begin(cluster, folder, *words)


def end(process: subprocess.Popen[str], status: int = 0) -> tuple[str, str]:
    """Wait for its end, and return what it printed."""
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == status, out + err
    return out, err


def ids(folder: Path, pattern: str = "r.jsonl") -> list[str]:
    """Return the ids of all results, sorted."""
    lines = [line for file in folder.glob(pattern) for line in file.read_bytes().splitlines()]
    return sorted(json.loads(line)["id"] for line in lines if line.endswith(b"}"))


def wait_for(condition: Any) -> Any:
    """Return what a condition says once it is true of it."""
    until = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return found


def both_at_work(folder: Path, pattern: str = "r-*.jsonl") -> list[psutil.Process]:
    """Return the processes of both workers' actors once each has work: one may come seconds after the other.

    One alone lets no more than ten through.
    """
    wait_for(lambda: len(ids(folder, pattern)) > 10)
    return actors()


def actors() -> list[psutil.Process]:
    """Return the processes of workers' actors."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if words and words[0].startswith("ray::Worker"):
            found.append(process)
    return found


def test_every_item_once_and_one_file_of_results(cluster: Any, folder: Path) -> None:
    """Rejected items are told with their reason; each portion has a run folder, profiled, and all are read as one run."""
    (folder / "photos" / "bad.jpg").write_bytes(b"x")
    out, err = end(begin(cluster, folder, "jobs.py:pipeline", "--results", "r.jsonl", "-o", "runs/a", "--profile"))
    assert ids(folder) == NAMES
    assert "2 workers: 120 delivered, 1 rejected; 0 deaths" in out
    assert "bad.photo" in out
    assert "3 portions" in err
    whole = read_whole(folder / "runs" / "a")
    assert isinstance(whole, WholeRun)
    assert [run.path.name for run in whole.members] == ["worker-0-1", "worker-1-1", "worker-2-1"]
    assert all((run.path / "profiling.json").is_file() for run in whole.members)
    assert whole.info.counters.delivered == 120
    found = whole_document(whole, budget_seconds=1.0)
    assert (found.delivered, found.failed) == (120, 1)
    assert len(set(whole.spans().column("unit_id").to_pylist())) == 121
    assert json.loads((folder / "runs" / "a" / "supervised.json").read_text())["outcomes"]["delivered"] == 120
    refused = end(begin(cluster, folder, "jobs.py:pipeline", "--results", "r.jsonl"), status=2)[1]
    assert "go on with --resume" in refused


def test_through_a_client_server_as_from_a_node(cluster: Any, folder: Path, client_server: str) -> None:
    """`ray://`: every item once; where no server is, it says so."""
    end(begin(cluster, folder, "jobs.py:pipeline", "--results", "r.jsonl", address=client_server))
    assert ids(folder) == NAMES
    nobody = f"ray://127.0.0.1:{free_port()}"
    _, err = end(begin(cluster, folder, "jobs.py:pipeline", "--results", "s.jsonl", address=nobody), status=2)
    assert "no Ray cluster could be joined there" in err


def test_nothing_is_lost_or_repeated_when_actors_and_their_processes_die(cluster: Any, folder: Path) -> None:
    """Ray starts the actor again, and the portion goes on where its results end; nobody is suspected of the kill."""
    process = begin_held(cluster, folder, "jobs.py:pipeline", "--results", "r.jsonl")
    first, second = both_at_work(folder)
    first.kill()
    second.children()[0].kill()
    (folder / "go").touch()
    out, err = end(process)
    assert ids(folder) == NAMES
    assert "it goes on with the next free worker" in err
    assert "2 deaths" in out


@pytest.mark.slow
def test_an_item_that_kills_is_given_up_and_the_others_are_done(cluster: Any, folder: Path) -> None:
    """As after crashes of a run on one machine."""
    (folder / "photos" / "killer.jpg").write_bytes(b"x")
    out, _ = end(begin(cluster, folder, "jobs.py:pipeline", "--results", "r.jsonl"))
    assert ids(folder) == NAMES
    assert "120 delivered, 1 dead-lettered" in out


@pytest.mark.slow
def test_the_users_error_is_told_with_file_and_line(cluster: Any, folder: Path) -> None:
    """With the exit status of a run on one machine."""
    words = ["--results", "r.jsonl", "--set", "run.brake_after=0"]
    out, err = end(begin(cluster, folder, "jobs.py:broken", *words), status=1)
    assert "ValueError: mine (jobs.py:35)" in out
    assert 'File "jobs.py", line 35' in err
    assert "has no attribute 'nope'" in end(begin(cluster, folder, "jobs.py:nope"), status=2)[1]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_what_is_in_hand_and_the_rest_is_resumed(
    cluster: Any, folder: Path, number: signal.Signals
) -> None:
    """Nothing twice; the exit status says that it was cut off, whoever asked for it."""
    process = begin_held(cluster, folder, "jobs.py:pipeline", "--results", "r.jsonl")
    both_at_work(folder)
    process.send_signal(number)
    (folder / "go").touch()
    end(process, status=130)
    num_done = len(ids(folder, "r-*.jsonl"))
    assert 10 <= num_done < len(NAMES)
    assert not (folder / "r.jsonl").exists()
    (folder / "photos" / "new.jpg").write_bytes(b"x")
    end(begin(cluster, folder, "jobs.py:pipeline", "--results", "r.jsonl", "--resume"))
    assert ids(folder) == [*NAMES, "new.jpg"]


@pytest.mark.slow
def test_workers_of_a_queue_share_it(cluster: Any, folder: Path) -> None:
    """All jobs are delivered; an actor that dies takes none with it."""
    command = [sys.executable, "-m", "headrace", "submit", "sqlite:///jobs.db", "--inline", "photos"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    process = begin_held(cluster, folder, "jobs.py:queued", "--set", "source.visibility_seconds=5")
    both_at_work(folder, "own.jsonl")[0].kill()
    (folder / "go").touch()
    out, _ = end(process)
    assert "1 deaths" in out
    found = ids(folder, "own.jsonl")
    assert len(set(found)) == len(NAMES)
    # What was in hand at the death may be repeated.
    assert len(found) <= len(NAMES) + 16


@pytest.mark.slow
def test_a_node_dies_and_nothing_is_lost_or_repeated(cluster: Any, folder: Path) -> None:
    """Its portions go on on the node that is left."""
    node = cluster.add_node(num_cpus=2, object_store_memory=80_000_000)
    cluster.wait_for_nodes()
    process = begin_held(cluster, folder, "jobs.py:pipeline", "--results", "r.jsonl", "--worker-cores", "2")
    both_at_work(folder)
    cluster.remove_node(node, allow_graceful=False)
    (folder / "go").touch()
    _, err = end(process)
    assert ids(folder) == NAMES
    assert "its worker is gone" in err
