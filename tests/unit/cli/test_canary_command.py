"""`headrace canary`: what it does to the folder of a run, and what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.base.plan import Plan
from headrace.base.policies.canary import CanaryPolicy, Seen
from headrace.base.policies.evidence import Counts
from headrace.cli import main
from headrace.ledger.ledger import Ledger
from headrace.runs.canary_folder import CallMark, CanaryFolder


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CanaryFolder:
    """A folder as a run makes it, and a Plan beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_LEDGER", raising=False)
    (tmp_path / "candidate.toml").write_text('[model]\nartifact = "new.onnx"\nengine = "openvino"\n')
    return CanaryFolder(tmp_path / "canary")


def test_a_canary_is_started_once(folder: CanaryFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """Its state holds the Plan's model and what is acceptable; a second one is refused while it runs."""
    assert main(["canary", "start", "candidate.toml", "--steps", "10%,100%", "--max-slowdown", "50%"]) == 0
    state = folder.read()
    assert state is not None
    assert (state.status, state.share, state.policy.max_slowdown) == ("running", 0.1, 0.5)
    assert (state.model["artifact"], state.model["engine"]) == ("new.onnx", "openvino")
    assert main(["canary", "start", "candidate.toml"]) == 2
    assert f"canary {state.id} in" in capsys.readouterr().err


def test_a_key_is_drawn_on_demand(folder: CanaryFolder) -> None:
    """Its state says which attribute of jobs."""
    assert main(["canary", "start", "candidate.toml", "--key", "camera"]) == 0
    state = folder.read()
    assert state is not None
    assert state.policy.key == "camera"


def test_batches_of_its_plan_count(folder: CanaryFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What else a Plan says of stages stays as the run has it, and that is said."""
    plan = '[model]\nartifact = "new.onnx"\n[stages.process]\nbatch = 4\n'
    (tmp_path / "batches.toml").write_text(plan)
    assert main(["canary", "start", "batches.toml"]) == 0
    state = folder.read()
    assert state is not None
    assert state.batches == {"process": 4}
    assert "count" not in capsys.readouterr().err
    main(["canary", "rollback"])
    (tmp_path / "batches.toml").write_text(f"{plan}workers = 2\n")
    assert main(["canary", "start", "batches.toml"]) == 0
    assert "only [model], [models] and batches of batches.toml count" in capsys.readouterr().err


def test_a_rollback_by_hand_is_written_down(folder: CanaryFolder, tmp_path: Path) -> None:
    """In the state, and in the ledger that was named."""
    main(["canary", "start", "candidate.toml"])
    assert main(["canary", "rollback", "--why", "users complain", "--ledger", "ledger.sqlite"]) == 0
    state = folder.read()
    assert state is not None
    assert (state.status, state.share, state.steps[-1].by) == ("rolled back", 0.0, "user")
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        (event,) = ledger.events.events("canary")
    assert event.verdict == "rolled back"
    assert "users complain" in event.says
    assert main(["canary", "rollback"]) == 2  # there is nothing left to take back
    assert main(["canary", "start", "candidate.toml"]) == 0


def test_a_start_is_written_down_before_a_run_can_see_it(folder: CanaryFolder) -> None:
    """Else a run that takes it back at once would have that written down before its start."""
    seen: list[object] = []
    state = folder.start(Plan(), CanaryPolicy(), record=lambda started: seen.extend((started, folder.read())))
    assert seen == [state, None]
    assert folder.read() == state


def test_nobody_promotes_what_no_run_has_opened(capsys: pytest.CaptureFixture[str]) -> None:
    """The run may not be there at all."""
    main(["canary", "start", "candidate.toml"])
    assert main(["canary", "promote"]) == 2
    assert "was opened by no run yet" in capsys.readouterr().err


def test_status_tells_scripts_how_it_stands(folder: CanaryFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """0 while it runs, 4 where it was waited for in vain, 1 once it is rolled back; as JSON, too."""
    main(["canary", "start", "candidate.toml"])
    assert main(["canary", "status"]) == 0
    assert main(["canary", "status", "--wait", "10ms"]) == 4
    main(["canary", "rollback", "--why", "a test"])
    capsys.readouterr()
    assert main(["canary", "status", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["reason"] == "a test"


def test_without_a_run_there_is_nothing_to_act_on(capsys: pytest.CaptureFixture[str]) -> None:
    """The error says how to get a folder."""
    assert main(["canary", "status", "--at", "elsewhere"]) == 2
    assert "start that with --canary DIR" in capsys.readouterr().err
    assert main(["canary", "status"]) == 2
    assert "no canary was started" in capsys.readouterr().err


def test_what_workers_saw_is_added_up(folder: CanaryFolder) -> None:
    """Of this canary alone, and also of workers that have ended; a torn file counts for nothing."""
    seen = Seen(jobs={0.1: Counts(stable=9, canary=1)}, num_pairs=2)
    folder.write_seen("c1", seen)
    (folder.path / "seen-1.json").write_bytes((next(folder.path.glob("seen-*.json"))).read_bytes())
    (folder.path / "seen-2.json").write_text("{torn")
    assert folder.sum_seen("c1") == seen.plus(seen)
    assert folder.sum_seen("c2") == Seen()


def test_who_died_in_a_call_is_known(folder: CanaryFolder) -> None:
    """Once, and not of a worker that lives or ended outside of a call."""
    mark = CallMark(folder)
    with mark:
        (folder.path / "call-node-7-ab").write_bytes((next(folder.path.glob("call-*"))).read_bytes())
        assert folder.find_dead() == ["node-7-ab"]
        assert folder.find_dead() == []
    (folder.path / "call-node-8-ab").write_bytes(b"\0")
    assert folder.find_dead() == []
    mark.close()
    assert not list(folder.path.glob("call-*"))


def test_a_worker_of_another_machine_lives_by_its_lock(folder: CanaryFolder) -> None:
    """Its process has a number that means nothing here; and two workers of one number do not write into one file."""
    other = CanaryFolder(folder.path)
    mark = CallMark(other)
    with mark:
        file = folder.path / f"call-{other.worker}"
        file.rename(folder.path / "call-far-99999999-ab")
        assert folder.find_dead() == []
        assert folder.find_others() == ["far-99999999-ab"]
    seen = Seen(num_pairs=2)
    for one in (folder, other):
        one.write_seen("c1", seen)
    assert folder.sum_seen("c1") == seen.plus(seen)


def test_a_mark_is_not_written_through_a_link(tmp_path: Path) -> None:
    """Somebody who may write into the folder cannot let a canary empty a file of its user's."""
    folder, victim = CanaryFolder(tmp_path), tmp_path / "notes.txt"
    victim.write_text("kept")
    for name in (f"call-{folder.worker}", "call-else-1-ab"):
        (tmp_path / name).symlink_to(victim)
    with CallMark(folder):
        assert victim.read_text() == "kept"
    assert folder.find_dead() == []
    assert victim.read_text() == "kept"


@pytest.mark.parametrize("damage", ['{"id": 3', "", '"step": 99', '"steps": []'])
def test_a_damaged_state_is_told_and_rolled_back(
    folder: CanaryFolder, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    """Without a crash, and with the command that helps; what was found is kept, and another canary can be started."""
    main(["canary", "start", "candidate.toml"])
    file = folder.path / "state.json"
    key = damage.partition(":")[0]
    good = json.loads(file.read_bytes())
    content = json.dumps({**good, **json.loads(f"{{{damage}}}")}) if key in ('"step"', '"steps"') else damage
    file.write_text(content)
    for action in (["status"], ["promote"], ["start", "candidate.toml"]):
        assert main(["canary", *action]) == 2
        assert "headrace canary rollback --at canary makes the folder good again" in capsys.readouterr().err
    assert main(["canary", "rollback", "--why", "a torn file"]) == 0
    assert "rolled back" in capsys.readouterr().out
    state = folder.read()
    assert state is not None
    assert (state.status, state.share, state.reason) == ("rolled back", 0.0, "a torn file")
    assert (folder.path / "state-damaged.json").read_text() == content
    assert main(["canary", "start", "candidate.toml"]) == 0
