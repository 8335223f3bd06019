"""The recorder in a run: it watches, has incidents written, and never fails the run."""

import errno
import functools
import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.base.errors import HeadraceError, RunFolderError
from headrace.base.policies.canary import CanaryPolicy
from headrace.base.records import Job, Outcome, OutcomeKind
from headrace.monitor.recorder import places
from headrace.monitor.recorder.log_lines import LogLines
from headrace.monitor.recorder.recorder import Recorder, RecorderSettings, start_incident
from headrace.monitor.recorder.recording import Recording, read_recording
from headrace.monitor.recorder.store import IncidentStore
from headrace.monitor.recorder.triggers import Progress, Trigger
from headrace.pipeline.watching import watch_together
from headrace.runs.canary_folder import CanaryFolder
from headrace.runs.formats.canary import CanaryState


class _Incidents:
    """Takes what would be written."""

    def __init__(self) -> None:
        self.found: list[tuple[Recording, Trigger]] = []

    def take(self, settings: RecorderSettings, recording: Path, trigger: Trigger) -> None:
        """Read it at once."""
        self.found.append((read_recording(recording), trigger))


class _Breaks:
    """A watch that breaks when the run is over."""

    def __init__(self, _: Any) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        raise HeadraceError("on purpose")


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Recorder, _Incidents]:
    """A recorder in a folder of its own, whose incidents are taken and not written."""
    monkeypatch.setattr(places, "SHARED_MEMORY", tmp_path)
    incidents = _Incidents()
    return Recorder(RecorderSettings(incidents=tmp_path / "incidents"), write_incident=incidents.take), incidents


def _pipeline(function: Any = lambda value: value) -> hr.Pipeline:
    return hr.Pipeline(hr.items(list(range(300))), stages=[hr.stage("same", function)], delivery=hr.collect())


def test_a_run_that_goes_well_leaves_nothing(recorder: tuple[Recorder, _Incidents]) -> None:
    """Neither does one in which an item fails."""

    def fail(value: int) -> int:
        if value == 7:
            raise hr.ItemRejected("on purpose")
        return value

    watching, incidents = recorder
    result = hr.run(_pipeline(fail), observers=[watching], watch=watching.watch)
    assert result.counters.delivered == 299
    assert not incidents.found
    assert places.list_recordings() == []


def test_what_waits_for_its_turn_has_not_failed(recorder: tuple[Recorder, _Incidents]) -> None:
    """Jobs given back for a full share leave their room to the reasons of failures."""
    watching, _ = recorder
    for _ in range(1000):
        watching.job_settled(Job("a", b""), Outcome(OutcomeKind.RETURNED, "share.full: it waits", 1.0, spared=True))
    watching.job_settled(Job("b", b""), Outcome(OutcomeKind.REJECTED, "decode: not an image"))
    assert [line.job_id for line in watching.take_failed()] == ["b"]


def test_a_run_that_breaks_is_an_incident(recorder: tuple[Recorder, _Incidents]) -> None:
    """With the error, the spans and what they cost, the machine and the Plan."""
    watching, incidents = recorder
    with pytest.raises(HeadraceError, match="on purpose"):
        hr.run(_pipeline(), observers=[watching], watch=watch_together(watching.watch, _Breaks))
    ((recording, trigger),) = incidents.found
    assert trigger.kind == "failed"
    assert "on purpose" in trigger.says
    assert {span.stage for span in recording.spans} == {"same", "deliver"}
    assert sum(span.weight for span in recording.spans) == 600
    assert all(span.cpu is not None for span in recording.spans)
    assert "cpu_busy_cores" in recording.samples[-1].values["machine"] or len(recording.samples) == 1
    assert [stage.name for stage in recording.identity.info.stages] == ["same", "deliver"]
    assert len(recording.identity.info.plans) == 1


def test_trouble_of_the_recorder_is_none_of_the_run(
    recorder: tuple[Recorder, _Incidents], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once."""
    from headrace.monitor.recorder import recorder as module

    def break_down(spans: Any) -> bytes:
        raise RuntimeError("a defect")

    monkeypatch.setattr(module, "pack_spans", break_down)
    watching, _ = recorder
    result = hr.run(_pipeline(), observers=[watching], watch=watching.watch)
    assert result.counters.delivered == 300
    assert len([record for record in caplog.records if "records no more" in record.message]) == 1


def test_the_error_of_a_run_stays_its_own(
    recorder: tuple[Recorder, _Incidents], caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever goes wrong when an incident of it is written."""

    def break_down(*_: object) -> None:
        raise ValueError("embedded null byte")

    watching, _ = recorder
    watching.write_incident = break_down
    with pytest.raises(HeadraceError, match="on purpose"):
        hr.run(_pipeline(), observers=[watching], watch=watch_together(watching.watch, _Breaks))
    assert "the flight recorder failed" in caplog.text


@pytest.mark.parametrize("says", ["a\0b", "\ud800", "x" * 1_000_000])
def test_words_of_a_user_are_an_argument(says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No program takes a NUL, half a character or megabytes."""
    monkeypatch.setattr(sys, "executable", "/bin/true")
    settings = RecorderSettings(incidents=tmp_path)
    process = start_incident(settings, tmp_path, Trigger("failed", says))
    assert process is not None
    assert process.wait() == 0


def test_words_of_an_incident_are_in_no_command_line(tmp_path: Path) -> None:
    """Every user of the machine can read those; they come by a pipe, whose end lets a gradual one begin."""
    settings = RecorderSettings(incidents=tmp_path)
    process = start_incident(settings, tmp_path / "none", Trigger("slo", "user:secret@host failed"))
    assert process is not None
    assert process.stdin is not None
    assert not process.stdin.closed
    assert b"secret" not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    process.stdin.close()
    assert process.wait() == 2  # there is no such recording


def test_the_last_warnings_of_a_run_are_recorded() -> None:
    """Of any logger, without secrets, and only the newest."""
    lines = LogLines()
    lines.begin()
    try:
        for number in range(30):
            logging.getLogger("somebody.else").warning("try %d of redis://me:secret@host failed", number)
    finally:
        lines.end()
    taken = [event.says for event in lines.take()]
    assert len(taken) == 20
    assert taken[-1] == "warning: try 29 of redis://...@host failed"
    assert lines.take() == []


def test_several_workers_have_one_incident(recorder: tuple[Recorder, _Incidents], tmp_path: Path) -> None:
    """Whoever claims it first writes it; the others know."""
    store = IncidentStore(tmp_path / "incidents")
    assert store.claim("failed", 600.0)
    watching, incidents = recorder
    with pytest.raises(HeadraceError, match="on purpose"):
        hr.run(_pipeline(), observers=[watching], watch=watch_together(watching.watch, _Breaks))
    assert not incidents.found
    assert watching.incidents == 0
    assert store.claim("slo", 600.0)
    assert not store.claim("slo", 600.0)


def _wait_until(incidents: _Incidents, value: int) -> int:
    """Be a stage whose first item waits until there is an incident."""
    ends = time.monotonic() + 30.0
    while value == 0 and not incidents.found and time.monotonic() < ends:
        time.sleep(0.05)
    return value


@pytest.mark.real_clock
def test_jobs_that_do_not_end_are_an_incident(
    recorder: tuple[Recorder, _Incidents], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written while the run stands still, and once."""
    from headrace.monitor.recorder import recorder as module

    monkeypatch.setattr(module, "Progress", functools.partial(Progress, stall_seconds=1.0))
    watching, incidents = recorder
    hr.run(_pipeline(functools.partial(_wait_until, incidents)), observers=[watching], watch=watching.watch)
    ((recording, trigger),) = incidents.found
    assert trigger.kind == "stall"
    assert "none has ended for" in trigger.says
    assert recording.samples


@pytest.mark.real_clock
def test_an_incident_that_could_not_be_written_is_tried_again(
    recorder: tuple[Recorder, _Incidents], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A full disk has room again some time; nothing else of its kind happens within ten minutes."""
    from headrace.monitor.recorder import recorder as module

    monkeypatch.setattr(module, "Progress", functools.partial(Progress, stall_seconds=1.0))
    monkeypatch.setattr(module, "_AGAIN_SECONDS", 0.0)
    _, incidents = recorder

    def fail_first(settings: RecorderSettings, recording: Path, trigger: Trigger) -> subprocess.Popen[bytes] | None:
        if (tmp_path / "tried").exists():
            return incidents.take(settings, recording, trigger)
        (tmp_path / "tried").touch()
        with pytest.raises(RunFolderError), IncidentStore(settings.incidents or tmp_path).new(trigger.kind):
            raise OSError(errno.ENOSPC, "No space left on device")
        return subprocess.Popen(["false"], stdin=subprocess.PIPE)

    watching = Recorder(RecorderSettings(incidents=tmp_path / "incidents"), write_incident=fail_first)
    hr.run(_pipeline(functools.partial(_wait_until, incidents)), observers=[watching], watch=watching.watch)
    ((_, trigger),) = incidents.found
    assert trigger.kind == "stall"


@pytest.mark.real_clock
def test_a_canary_that_is_rolled_back_is_an_incident(tmp_path: Path, recorder: tuple[Recorder, _Incidents]) -> None:
    """With the reason; one that was rolled back before the run is none."""
    _, incidents = recorder
    folder = CanaryFolder(tmp_path / "canary")
    began = time.time()

    def roll_back(at: float, name: str) -> None:
        state = CanaryState(id=name, status="running", model={}, policy=CanaryPolicy(), step=0, since_unix_seconds=at)
        folder.write(state.done("rolled back", at, "it fails more", "headrace"))

    roll_back(began - 60.0, "before")

    def work(value: int) -> int:
        if value == 0:
            time.sleep(1.5)
            assert not incidents.found
            roll_back(time.time(), "c1")
        return _wait_until(incidents, value)

    settings = RecorderSettings(incidents=tmp_path / "incidents", canary=folder.path)
    watching = Recorder(settings, write_incident=incidents.take)
    hr.run(_pipeline(work), observers=[watching], watch=watching.watch)
    ((_, trigger),) = incidents.found
    assert (trigger.kind, trigger.says) == ("rollback", "canary c1 was rolled back: it fails more")
