"""A machine is compared with what was proved elsewhere: what differs is said, and what is not known never counts as good."""

from __future__ import annotations

import dataclasses
import datetime
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.base.documents import encode_document
from headrace.base.errors import SettingsError
from headrace.base.handoff import HandoffCost
from headrace.base.plan import Plan
from headrace.cli import main
from headrace.ledger.ledger import Ledger, hardware_fingerprint
from headrace.monitor.doctor import fingerprints, references
from headrace.monitor.doctor.change import is_environment_changed, list_changes
from headrace.monitor.doctor.examination import examine
from headrace.monitor.doctor.machine import Machine
from headrace.monitor.doctor.plan_needs import list_needs
from headrace.monitor.doctor.references import Reference
from headrace.monitor.doctor.table import CHECKS
from headrace.runs.formats.doctor import DoctorDocument, Finding
from headrace.runs.formats.optimization import Artifact, Asked, Attempt
from headrace.runs.formats.variants import ValidationDocument, VariantSide
from headrace.runs.hardware import find_hardware
from headrace.runs.plan_file import plan_text, read_proof
from headrace.runs.run_folder import RunFolder

LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max processes             {processes}               96365                processes
Max open files            {files}                20000                files
"""
FILES = {
    "proc/cpuinfo": "processor: 0\nvendor_id: GenuineIntel\ncpu family: 6\nmodel: 1\nmodel name: Xeon\nstepping: 2\n"
    "flags: fma avx2 avx512_vnni\n",
    "proc/meminfo": "MemTotal: 16000000 kB\nMemAvailable: 12000000 kB\nSwapTotal: 0 kB\n",
    "proc/self/limits": LIMITS.format(processes=5000, files=20000),
    "proc/self/cgroup": "0::/\n",
    "proc/1/cgroup": "0::/\n",
    "proc/stat": "cpu 100 0 100 800 0 0 0 0 0 0\n",
    "proc/pressure/cpu": "some avg10=0.00 avg60=1.50 avg300=0.00 total=1\n",
    "proc/sys/kernel/perf_event_paranoid": "2\n",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "dev/shm/.keep": "",
}


def make_machine(root: Path, files: dict[str, str | None] | None = None, **changes: Any) -> Machine:
    """Return a machine whose files are in a folder; None leaves one out."""
    for name, text in {**FILES, **(files or {})}.items():
        if text is not None:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
    known: dict[str, Any] = {
        "root": root, "environ": {}, "disk": lambda folder: (10**10, 10**11), "clock": lambda: True,
        "handoff": lambda: HandoffCost(20e-6, 30e-6), "python": "3.12.1",
    }  # fmt: skip
    return Machine(**{**known, **changes})


def against(machine: Machine, **facts: Any) -> DoctorDocument:
    """Return what is found when this is expected."""
    return examine(machine, [Reference(name="there", facts=facts)])


def found(document: DoctorDocument, name: str) -> Finding:
    """Return the finding of a check."""
    (one,) = [finding for finding in document.findings if finding.name == name]
    return one


def test_a_good_machine_is_fit_alone(tmp_path: Path) -> None:
    """Every check of it is as it should be, and none is unknown."""
    document = examine(make_machine(tmp_path))
    assert document.is_fit
    assert [one for one in document.findings if one.status != "ok"] == []
    assert {one.name for one in document.findings} == set(CHECKS)


@pytest.mark.parametrize(
    ("name", "files", "changes", "status"),
    [
        ("open_files", {"proc/self/limits": LIMITS.format(processes=5000, files=64)}, {}, "matters"),
        ("open_files", {"proc/self/limits": LIMITS.format(processes=5000, files=512)}, {}, "note"),
        ("processes", {"sys/fs/cgroup/pids.max": "32\n"}, {}, "matters"),
        ("cpu_flags", {"proc/cpuinfo": "model name: Old\nflags: sse2\n"}, {}, "note"),
        ("clock_source", {"sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet"}, {}, "note"),
        ("clock_synchronized", {}, {"clock": lambda: False}, "note"),
        ("cpu_pressure_ratio", {"proc/pressure/cpu": "some avg10=9 avg60=40.0 avg300=9 total=1\n"}, {}, "note"),
        ("steal_ratio", {"proc/stat": "cpu 100 0 100 700 0 0 0 100 0 0\n"}, {}, "note"),
        ("governor", {"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n"}, {}, "note"),
        ("ptrace_scope", {"proc/sys/kernel/yama/ptrace_scope": "3\n"}, {}, "note"),
        ("disk_free_bytes", {}, {"disk": lambda folder: (10**6, 10**9)}, "matters"),
        ("shm_bytes", {}, {"disk": lambda folder: (10**10, 10**7)}, "note"),
        ("memory_available_bytes", {"proc/meminfo": "MemTotal: 900000 kB\nMemAvailable: 9000 kB\n"}, {}, "matters"),
        ("handoff_seconds", {}, {"handoff": lambda: HandoffCost(5e-4, 1e-3)}, "note"),
        ("thread_variables", {}, {"environ": {"OMP_NUM_THREADS": "1"}}, "note"),
    ],
)  # fmt: skip
def test_a_shortage_is_found(
    name: str, files: dict[str, str | None], changes: Any, status: str, tmp_path: Path
) -> None:
    """Each says why it matters and what to do; what matters makes the machine unfit."""
    document = examine(make_machine(tmp_path, files, **changes))
    finding = found(document, name)
    assert finding.status == status
    assert finding.expected
    assert finding.why
    assert finding.do
    assert document.is_fit == (status != "matters")


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({"num_cores": 10_000}, "matters"),
        ({"num_cores": 0}, "note"),
        ({"cpu_flags": ["avx2", "amx_int8"]}, "matters"),
        ({"cpu_flags": ["avx2"]}, "note"),
        ({"python": "3.12.9"}, "note"),
        ({"python": "3.11.1"}, "matters"),
        ({"python": "3.12.1"}, "ok"),
        ({"packages": {"numpy": "0.1"}}, "matters"),
        ({"memory_bytes": 64 * 10**9}, "matters"),
        ({"memory_bytes": 8 * 10**9}, "ok"),
        ({"accelerators": ["Tesla T4"]}, "matters"),
        ({"engines": ["onnx"]}, "ok"),
        ({"engines": ["other"]}, "matters"),
        ({"processor": {"model": "Xeon", "id": "GenuineIntel 6/1/2"}}, "ok"),
        ({"processor": {"model": "Xeon", "id": "GenuineIntel 6/9/2"}}, "matters"),
        ({"governor": "powersave"}, "matters"),
        ({"kernel": "2.6"}, "note"),
        ({"thread_variables": {"OMP_NUM_THREADS": "1"}}, "matters"),
        ({"open_files": None}, "matters"),
        ({"open_files": 100}, "ok"),
        ({"handoff_seconds": 1e-6}, "note"),
    ],
)  # fmt: skip
def test_what_differs_is_found(facts: dict[str, Any], status: str, tmp_path: Path) -> None:
    """Less than was proved with matters, more does not."""
    finding = found(against(make_machine(tmp_path), **facts), next(iter(facts)))
    assert finding.status == status
    assert finding.compared_with == "there"


def test_only_what_differs_is_shown(tmp_path: Path) -> None:
    """Of packages and flags those that are otherwise, not the whole list."""
    document = against(make_machine(tmp_path), packages={"numpy": "0.1"}, cpu_flags=["avx2", "amx_int8"])
    assert found(document, "packages").expected == "numpy 0.1"
    assert found(document, "cpu_flags").seen == "without amx_int8, also fma avx512_vnni"


@pytest.mark.parametrize(
    "name", ["proc/self/limits", "proc/stat", "proc/pressure/cpu", "sys/kernel/mm/transparent_hugepage/enabled"]
)
@pytest.mark.parametrize("text", [None, "", "?? ??\n"])
def test_what_the_system_does_not_tell_is_not_known(name: str, text: str | None, tmp_path: Path) -> None:
    """It is listed with the reason, and is no finding that something is good."""
    document = examine(make_machine(tmp_path, {name: text}))
    unknown = [one for one in document.findings if one.status == "unknown"]
    assert unknown
    assert all(one.seen for one in unknown)
    assert set(document.fingerprint.unknown) == {one.name for one in unknown}


def test_an_unknown_fact_that_is_expected_names_the_expectation(tmp_path: Path) -> None:
    """Nobody takes it for compared."""
    finding = found(against(make_machine(tmp_path, {"proc/self/limits": None}), open_files=20_000), "open_files")
    assert (finding.status, finding.expected, finding.compared_with) == ("unknown", "20,000", "there")


def test_a_machine_equals_its_own_fingerprint(tmp_path: Path) -> None:
    """Written to a file and read back."""
    machine = make_machine(tmp_path / "root")
    (tmp_path / "f.json").write_bytes(encode_document(fingerprints.make_fingerprint(machine)))
    document = examine(machine, [references.of_fingerprint(tmp_path / "f.json")])
    assert [one for one in document.findings if one.status != "ok"] == []


def fingerprint_text(**changes: Any) -> str:
    """Return a fingerprint's file."""
    known = {"schema": "headrace.fingerprint/1", "headrace_version": "1", "made_unix_seconds": 1, "facts": {}}
    return json.dumps({**known, **changes})


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "[" * 100_000, "\x00\xff", "{}", "x" * 2_000_000, fingerprint_text(schema="headrace.fingerprint/2"),
        fingerprint_text(facts={"num_cores": "many"}), fingerprint_text(facts={"num_cores": [1]}),
        fingerprint_text(facts={"packages": "all"}), fingerprint_text(facts={"packages": {"numpy": 3}}),
        fingerprint_text(facts={"cpu_flags": 7}), fingerprint_text(facts={"memory_bytes": 10**400}),
        fingerprint_text(facts={"python": None}), fingerprint_text(facts={"clock_source": True}),
    ],
    ids=range(15),
)  # fmt: skip
def test_a_damaged_fingerprint_is_an_error_in_words(text: str, tmp_path: Path) -> None:
    """Old, hostile or no fingerprint at all: never a traceback."""
    (tmp_path / "f.json").write_text(text, encoding="latin-1")
    machine = make_machine(tmp_path / "root")
    with pytest.raises(SettingsError, match=r"f\.json"):
        examine(machine, [references.of_fingerprint(tmp_path / "f.json")])


def test_facts_of_a_newer_headrace_are_not_known(tmp_path: Path) -> None:
    """They are named, and nothing is concluded from them."""
    assert found(against(make_machine(tmp_path), colour="red"), "colour").status == "unknown"


def test_a_run_folder_is_compared(tmp_path: Path) -> None:
    """Hardware, versions and the price of waking a thread as it recorded them; another processor matters."""
    folder = RunFolder.create(tmp_path / "run")
    same = examine(Machine(), [references.of_run(tmp_path / "run")])
    assert {one.status for one in same.findings if one.compared_with} <= {"ok", "note"}
    folder.update(hardware=msgspec.structs.replace(find_hardware(), cpu_model="Other", cpu_id="Other 1/2/3"))
    other = examine(Machine(), [references.of_run(tmp_path / "run")])
    assert found(other, "processor").status == "matters"


def test_what_to_do_names_what_the_reference_has(tmp_path: Path) -> None:
    """Not a figure that may be lower than what this machine has."""
    facts = {"open_files": 10**9, "shm_bytes": 10**15}
    (tmp_path / "other.json").write_text(fingerprint_text(facts=facts))
    findings = examine(Machine(), [references.of_fingerprint(tmp_path / "other.json")])
    assert "ulimit -n 1000000000 before" in found(findings, "open_files").do
    assert "--shm-size 1000000000000000b" in found(findings, "shm_bytes").do


def test_lines_of_a_lock_for_other_pythons_do_not_count(tmp_path: Path) -> None:
    """Nor those for other systems; a line with extras and a marker that is true here does."""
    machine = Machine(packages=("msgspec", "numpy"))
    own = machine.versions["msgspec"]
    (tmp_path / "lock").write_text(
        f"numpy==1.0 ; python_version < '3.8'\nmsgspec==0.1; sys_platform == 'win32' \\\n"
        f"msgspec[yaml]=={own} ; python_version >= '3.11' \\\n    --hash=sha256:0\n"
    )
    reference = references.of_lock(tmp_path / "lock")
    assert reference.facts == {"packages": {"msgspec": own}}
    assert examine(machine, [reference]).is_fit


def test_a_lock_is_compared(tmp_path: Path) -> None:
    """Names as people write them; a line with a marker is no demand, and of several versions one is enough."""
    machine = Machine(packages=("msgspec", "pytest", "no-such-thing", "not-here"))
    own = machine.versions
    (tmp_path / "lock").write_text(
        f"# made by hand\nMsgSpec=={own['msgspec']} \\\n    --hash=sha256:00\n"
        f"pytest==0.1 ; python_version < '3'\npytest=={own['pytest']} ; python_version >= '3'\n"
        "not_here==1.0 ; sys_platform == 'win32'\n"
    )
    assert examine(machine, [references.of_lock(tmp_path / "lock")]).is_fit
    (tmp_path / "lock").write_text("no_such.thing==1.0\nmsgspec==0.0.1\n")
    finding = found(examine(machine, [references.of_lock(tmp_path / "lock")]), "packages")
    assert finding.expected == "msgspec 0.0.1, no-such-thing 1.0"
    (tmp_path / "lock").write_text("nothing here")
    with pytest.raises(SettingsError, match="pins no package"):
        references.of_lock(tmp_path / "lock")


# --- Plans


def proved_text(plan: Plan, **changes: Any) -> str:
    """Return a Plan's file as `tune` writes it, measured here or elsewhere."""
    hardware = msgspec.structs.replace(find_hardware(), **changes)
    today = datetime.date(2026, 11, 23)
    return plan_text(plan, {}, ["Better."], made_by="tune", subject="a:b", hardware=hardware, today=today)


def test_the_comments_of_a_plan_say_where_it_was_measured(tmp_path: Path) -> None:
    """They come back as they were written; a Plan made by hand says nothing."""
    proof = read_proof(proved_text(Plan(), cpu_model="Xeon, 2nd (R)", num_cores=16, accelerators=("T4", "A10 G")))
    assert proof is not None
    assert (proof.cpu_model, proof.num_cores, proof.accelerators) == ("Xeon, 2nd (R)", 16, ("T4", "A10 G"))
    assert proof.python == find_hardware().python
    assert proof.versions == Machine().versions
    assert read_proof("[stages.process]\nbatch = 8\n") is None
    before = read_proof("# Measured on AMD EPYC, 2 cores; on another machine another Plan may be better.\n")
    assert before is not None
    assert dataclasses.asdict(before) == {
        "cpu_model": "AMD EPYC", "num_cores": 2, "accelerators": (), "python": "", "versions": {},
    }  # fmt: skip


def test_whether_the_environment_changed_since_the_plan_was_proved(tmp_path: Path) -> None:
    """No, yes, and nobody knows."""
    plan = tmp_path / "plan.toml"
    plan.write_text(proved_text(Plan()))
    assert is_environment_changed(plan) is False
    plan.write_text(proved_text(Plan(), num_cores=4096))
    assert [one.name for one in list_changes(plan) or ()] == ["num_cores"]
    assert is_environment_changed(plan) is True
    plan.write_text("[stages.process]\nbatch = 8\n")
    assert is_environment_changed(plan) is None


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (['model.engine="nothing"'], "model.engine"),
        (['model.artifact="missing.onnx"'], "model.artifact"),
        (['model.artifact="here.onnx"', f'model.sha256="{"0" * 64}"'], "model.artifact"),
        (["model.threads=4096"], "model.threads"),
        (['model.options.provider="cuda"'], "model.provider"),
        (['model.engine="openvino"', 'model.options.precision="bf16"'], "model.precision"),
        (['decode.executor="process"'], "shm_bytes"),
        (["fetch.workers=900"], "open_files"),
    ],
)
def test_what_a_plan_needs_and_is_not_there_matters(
    settings: list[str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engine, file, hash, cores, GPU, instructions, shared memory and open files."""
    monkeypatch.chdir(tmp_path)
    Path("here.onnx").write_bytes(b"model")
    limits = {"proc/self/limits": LIMITS.format(processes=5000, files=1024)}
    machine = make_machine(tmp_path / "root", limits, disk=lambda folder: (10**10, 64 * 2**20))
    needs = list_needs(Plan().with_settings(settings), "plan.toml", machine)
    bad = [one for one in needs.findings if one.status != "ok"]
    assert [(one.name, one.status) for one in bad] == [(name, "matters")]
    assert all(one.do and one.why and one.expected for one in bad)


def test_a_decision_about_a_file_that_was_changed_since_matters(tmp_path: Path) -> None:
    """What was proved is then not what runs; the machine of its comments counts too."""
    plan = tmp_path / "plan.toml"
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.attempts.accept(plan, proved_text(Plan()), why="faster")
    (as_decided,) = references.of_ledger(tmp_path / "ledger.sqlite", plan, Machine())
    assert [one.status for one in as_decided.findings] == ["ok"]
    assert as_decided.facts["num_cores"] == find_hardware().num_cores
    plan.write_text(proved_text(Plan().with_settings(["process.batch=8"])))
    (changed,) = references.of_ledger(tmp_path / "ledger.sqlite", None, Machine())
    assert [one.status for one in changed.findings] == ["matters"]
    assert changed.findings[0].seen == "changed since"


def test_a_variant_that_another_machine_proved_matters(tmp_path: Path) -> None:
    """The attempt behind the decision names the machine and its versions; on that machine all is well."""
    here, other = hardware_fingerprint(find_hardware()), "0123456789ab"
    for hardware, status in ((here, "ok"), (other, "matters"), ("", "unknown")):
        file = tmp_path / f"{hardware or 'none'}.sqlite"
        with Ledger(file) as ledger:
            attempt = ledger.attempts.write_attempt(make_attempt(hardware, {"numpy": "0.1"}))
            ledger.attempts.accept(tmp_path / "plan.toml", "", attempt_id=attempt.id, why="faster")
        (reference,) = references.of_ledger(file, tmp_path / "plan.toml", Machine())
        assert [one.status for one in reference.findings] == ["ok", status]
        assert reference.facts == {"packages": {"numpy": "0.1"}}


def make_attempt(hardware: str, versions: dict[str, str]) -> Attempt:
    """Return an attempt that a machine accepted."""
    side = VariantSide(name="net.onnx@onnx", variant={"engine": "onnx"}, open_seconds=0.1)
    document = ValidationDocument(
        a=side, b=side, verdict="accept", says="yes", gates=(), batch=1, golden="", golden_sha256="", num_items=1
    )
    return Attempt(
        model="ab", technique="int8", kind="lossy", hypothesis="faster", candidate="int8.onnx", validation=document,
        artifact=Artifact(sha256="cd", file="int8.onnx", num_bytes=1), verdict="accept", says="faster", seconds=1.0,
        hardware=hardware, asked=Asked(max_drop=0.01, alpha=0.05, machine="AMD EPYC, 2 cores", versions=versions),
    )  # fmt: skip


# --- the command


def test_the_command_says_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 1 with a machine that was otherwise, 0 with this one; JSON for scripts."""
    file = tmp_path / "f.json"
    assert main(["doctor", "--fingerprint", str(file)]) in (0, 1)
    assert main(["doctor", "--fingerprint", str(file)]) == 2  # it exists
    told = json.loads(file.read_text())
    told["facts"]["num_cores"] = 4096
    file.write_text(json.dumps(told))
    capsys.readouterr()
    assert main(["doctor", "--against", str(file)]) == 1
    assert "MATTERS  cores (affinity)" in capsys.readouterr().out
    assert main(["doctor", "--against", str(file), "--json"]) == 1
    document = msgspec.json.decode(capsys.readouterr().out, type=DoctorDocument)
    assert document.findings[0].status == "matters"
    assert not document.is_fit


@pytest.mark.parametrize(
    "options",
    [
        ["--plan", "no.toml"],
        ["--lock", "no.lock"],
        ["--run", "no"],
        ["--ledger", "no.sqlite"],
        ["--against", "no.json"],
    ],
)
def test_a_missing_file_is_misuse(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names it."""
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", *options]) == 2
    assert options[1] in capsys.readouterr().err
