"""`--recorder` and `headrace snapshot`: what was recorded outlives every kill, and says why it was slow."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.diagnose.analysis import Analysis
from headrace.monitor.recorder import places
from headrace.monitor.recorder.recording import Recording, read_recording
from headrace.runs.reader import read_run
from headrace.sources.jobs import encode_job
from headrace.sources.sqlite_queue import SqliteQueue

pytestmark = pytest.mark.real_clock

APP = """
import os, signal, time
from pathlib import Path
import headrace as hr

def work(value):
    text = bytes(value)
    if text == b"kill" and not Path("killed").exists():
        Path("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.2 if Path("slow").exists() else 0.02)
    if Path("broken").exists():
        raise hr.ItemRejected("broken.on_purpose: this one")
    return 1

pipeline = hr.Pipeline(
    hr.queue("sqlite:///jobs.db"), stages=[hr.stage("work", work, kind="io")], delivery=hr.jsonl("out.jsonl"),
)
"""
#: Longest time for anything; a test that needs it has failed.
PATIENCE_SECONDS = 60.0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the application and a queue that is fed; recordings there too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text(APP)
    SqliteQueue("jobs.db").send([encode_job(b"job %d" % number) for number in range(4_000)])
    return tmp_path


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that are ended after the test."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def _start(started: list[subprocess.Popen[bytes]], *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "headrace", "run", "app.py:pipeline", "--set", "work.workers=2", *options]
    with Path("log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    started.append(process)
    return process


def _snapshot(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", "snapshot", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)


def _wait_for(what: Any) -> Any:
    ends = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < ends:
        if found := what():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {PATIENCE_SECONDS:g} s; the log: {Path('log').read_text()[-3000:]}")


def _recordings(supervisor_or_process: int) -> list[Recording]:
    known = places.list_recordings()
    return [
        read_recording(folder)
        for folder, one in known
        if supervisor_or_process in (one.process, one.supervisor)
    ]  # fmt: skip


def _has_spans(process: int, number: int = 50) -> Any:
    found = _recordings(process)
    return found if found and all(len(one.spans) >= number for one in found) else None


def _incident_folders() -> list[Path]:
    return sorted(path.parent for path in Path("incidents").glob("*/incident.json"))


def test_what_was_recorded_outlives_a_kill(home: Path, started: list[subprocess.Popen[bytes]]) -> None:
    """A snapshot of the dead run is a run folder that everything reads; its recording goes with --remove."""
    process = _start(started, "--recorder", "4MB")
    _wait_for(lambda: _has_spans(process.pid, 200))
    process.kill()
    process.wait()
    listed = json.loads(_snapshot("--list", "--json").stdout)
    assert listed["schema"] == "headrace.recordings/1"
    assert {(one["process"], one["runs"]) for one in listed["recordings"]} >= {(process.pid, False)}
    done = _snapshot(str(process.pid), "--incidents", "incidents", "--remove", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "headrace.incidents/1"
    folder = Path(document["folders"][0])
    assert document["incidents"][0]["id"] == folder.name
    run = read_run(folder)
    assert len(run.spans()) > 0
    profile = Analysis(run).profile
    assert {stage.name for stage in profile.stages} >= {"work", "deliver"}
    assert all(stage.cpu is not None for stage in profile.stages if stage.num_spans)
    assert run.resources().num_rows > 0
    page = home / "page.html"
    for command in (["diagnose", str(folder)], ["report", str(folder), "-o", str(page)]):
        read = subprocess.run([sys.executable, "-m", "headrace", *command], capture_output=True, text=True, check=False)
        assert read.returncode in (0, 4), read.stderr
        if command[0] == "diagnose":
            assert read.stdout.startswith(f"incident {folder.name}: ")
    assert 'id="incident"' in page.read_text()
    assert not _recordings(process.pid)


def test_a_run_that_ends_orderly_leaves_nothing(home: Path, started: list[subprocess.Popen[bytes]]) -> None:
    """Nor does it say anything of the recorder."""
    process = _start(started, "--recorder", "4MB", "--limit", "100")
    assert process.wait(PATIENCE_SECONDS) == 0
    assert not _recordings(process.pid)
    assert "recorder" not in Path("log").read_text()
    assert _snapshot(str(process.pid)).returncode == 2


def test_sigusr2_writes_an_incident_of_a_run_that_goes_on(home: Path, started: list[subprocess.Popen[bytes]]) -> None:
    """And the run is not hurt by it."""
    process = _start(started, "--incidents", "incidents")
    _wait_for(lambda: _has_spans(process.pid))
    os.kill(process.pid, signal.SIGUSR2)
    folder = _wait_for(_incident_folders)[0]
    document = json.loads((folder / "incident.json").read_bytes())
    assert document["trigger"]["kind"] == "signal"
    assert process.poll() is None
    process.terminate()
    assert process.wait(PATIENCE_SECONDS) == 0


def test_a_missed_goal_is_an_incident_that_names_the_stage(home: Path, started: list[subprocess.Popen[bytes]]) -> None:
    """Written once, with the stage that takes longer."""
    process = _start(started, "--incidents", "incidents", "--slo", "p99=150ms")
    _wait_for(lambda: _has_spans(process.pid, 400))
    time.sleep(5)  # a time before, without which there is nothing to compare with
    (home / "slow").touch()
    folder = _wait_for(_incident_folders)[0]
    time.sleep(5)
    document = json.loads((folder / "incident.json").read_bytes())
    assert document["trigger"]["kind"] == "slo"
    assert document["pipeline"] == "app.py:pipeline"
    process.kill()
    process.wait()
    later = json.loads(_snapshot(str(process.pid), "--json", "--remove").stdout)["incidents"][0]
    assert later["changes"][0]["stage"] == "work"
    assert later["changes"][0]["explains_share"] > 0.5
    assert len([one for one in _incident_folders() if "slo" in one.name]) == 1


def test_failures_are_an_incident_with_their_reason(home: Path, started: list[subprocess.Popen[bytes]]) -> None:
    """The most frequent reason is in the words."""
    process = _start(started, "--incidents", "incidents", "--slo-failed", "10%")
    _wait_for(lambda: _has_spans(process.pid, 400))
    time.sleep(5)
    (home / "broken").touch()
    _wait_for(_incident_folders)
    time.sleep(5)
    process.kill()
    process.wait()
    document = json.loads(_snapshot(str(process.pid), "--json", "--remove").stdout)["incidents"][0]
    assert document["changes"][0]["kind"] == "input_failures"
    assert "broken.on_purpose" in document["changes"][0]["says"]


@pytest.mark.full
def test_the_death_of_a_worker_is_an_incident(home: Path, started: list[subprocess.Popen[bytes]]) -> None:
    """Of that worker's recording; the others go on."""
    process = _start(started, "--incidents", "incidents", "--supervise", "2")
    _wait_for(lambda: _has_spans(process.pid))
    SqliteQueue("jobs.db").send([encode_job(b"kill")])
    folder = _wait_for(_incident_folders)[0]
    document = json.loads((folder / "incident.json").read_bytes())
    assert document["trigger"]["kind"] == "death"
    assert "SIGKILL" in document["trigger"]["says"]
    assert "in work: " in document["says"]  # why it died comes before how fast it was
    assert "Until then: " in document["says"]
    os.kill(process.pid, signal.SIGUSR2)  # to the supervisor: each worker that runs is written
    _wait_for(lambda: [one for one in _incident_folders() if "signal" in one.name])
    assert process.poll() is None


@pytest.mark.full
def test_after_a_kill_of_worker_and_supervisor_the_last_seconds_are_there(
    home: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    """Up to half a second before it, and the second that the kernel takes to tell the workers."""
    process = _start(started, "--recorder", "8MB", "--supervise", "2")
    workers = [one.identity.process for one in _wait_for(lambda: _has_spans(process.pid))]
    time.sleep(3)
    killed_ns = time.monotonic_ns()
    for one in (*workers, process.pid):
        os.kill(one, signal.SIGKILL)
    process.wait()
    found = _recordings(process.pid)
    assert len(found) == 2
    for recording in found:
        assert killed_ns - recording.to_ns < 2e9
        assert recording.damaged_bytes == 0
    done = _snapshot(str(process.pid), "--remove", "--json")
    assert len(json.loads(done.stdout)["incidents"]) == 2


def test_a_full_disk_costs_the_incident_and_not_the_run(home: Path, started: list[subprocess.Popen[bytes]]) -> None:
    """It is said, and nothing half is left."""
    process = _start(started, "--recorder", "4MB")
    _wait_for(lambda: _has_spans(process.pid, 200))
    # A limit of the size of files stands for a full disk: every write of more fails.
    command = f"ulimit -f 8; exec {sys.executable} -m headrace snapshot {process.pid} --incidents incidents"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert not _incident_folders()
    assert process.poll() is None


def test_what_the_writer_says_is_a_line_of_the_runs_log(home: Path, started: list[subprocess.Popen[bytes]]) -> None:
    """In JSON too, where the run's is: a collector reads all of it."""
    process = _start(started, "--incidents", "incidents", "--log-format", "json")
    _wait_for(lambda: _has_spans(process.pid))
    Path("incidents").rmdir()
    Path("incidents").touch()
    os.kill(process.pid, signal.SIGUSR2)
    _wait_for(lambda: "an incident was not written" in Path("log").read_text())
    events = [json.loads(line) for line in Path("log").read_text().splitlines()]
    said = [one for one in events if "cannot be made" in one["message"]]
    assert [(one["event"], one["process"] != process.pid) for one in said] == [("error", True)]
    assert process.poll() is None


def test_without_shared_memory_the_recorder_is_off(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning, and the items go on."""
    import headrace as hr
    from headrace.monitor.recorder.recorder import Recorder, RecorderSettings

    monkeypatch.setattr(places, "SHARED_MEMORY", home / "missing" / "folder")
    recorder = Recorder(RecorderSettings())
    pipeline = hr.Pipeline(
        hr.items(list(range(50))), stages=[hr.stage("same", lambda value: value)], delivery=hr.collect()
    )
    result = hr.run(pipeline, observers=[recorder], watch=recorder.watch)
    assert result.counters.delivered == 50
    assert len([record for record in caplog.records if "flight recorder is off" in record.message]) == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--recorder", "much"], "much"),
        (["--recorder", "10kB"], "1MB"),
        (["--slo", "p99=1s"], "--incidents"),
        (["--incidents", "incidents", "--slo", "fast"], "p99=200ms"),
        (["--incidents", "incidents", "--baseline", "nowhere"], "nowhere"),
        (["--incidents", "app.py/incidents"], "--incidents"),
    ],
)
def test_options_that_do_not_fit_are_explained(home: Path, options: list[str], says: str) -> None:
    """Before anything runs."""
    command = [sys.executable, "-m", "headrace", "run", "app.py:pipeline", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("options", [[], ["--supervise", "1"]], ids=["alone", "supervised"])
def test_a_storm_of_signals_ends_no_run(home: Path, started: list[subprocess.Popen[bytes]], options: list[str]) -> None:
    """Incidents are written one after the other, and the signal is harmless while the run ends too."""
    process = _start(started, "--incidents", "incidents", *options)
    _wait_for(lambda: _has_spans(process.pid, 20))
    most = sent = 0
    while process.poll() is None:
        os.kill(process.pid, signal.SIGUSR2)
        most = max(most, sum(b"\0snapshot\0" in _read_command(one) for one in _children(process.pid)))
        sent += 1
        if sent == 200:
            _wait_for(_incident_folders)  # on a busy machine writing the first one takes longer than the storm
            process.terminate()
        time.sleep(0.01)
    assert process.returncode == 0, Path("log").read_text()[-2000:]
    assert most <= 1
    assert _incident_folders()


def _children(process: int) -> set[int]:
    found: set[int] = set()
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found.update(map(int, task.read_text().split()))
    return found


def _read_command(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""
