"""`headrace whatif` as a command: what it asks of the simulator (a fake), what it prints, what it writes down."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from headrace.base.errors import SettingsError
from headrace.base.plan import Plan, StagePlan
from headrace.cli import COMMANDS, main
from headrace.diagnose.analysis import Analysis
from headrace.diagnose.replay import CannotReplay
from headrace.ledger.ledger import Ledger
from headrace.runs.formats.prediction import (
    Change,
    PredictedMetric,
    PredictionDocument,
    PredictionsDocument,
    TrackRecord,
)
from headrace.runs.formats.profile import Estimate
from headrace.runs.reader import read_run
from headrace.runs.run_folder import RunFolder, StageInfo

NAMES = ("fetch", "process", "deliver")
REFUSED = PredictedMetric(
    base=0.5, predicted=None, ratio=None, refused="the machine was not quiet; profile again at night"
)


@dataclass
class Fake:
    """Stands for the simulator: workers of fetch are the ratio, and what was asked is kept."""

    asked: list[tuple[Change, TrackRecord]] = field(default_factory=list)
    error: Exception | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    distrust: tuple[str, ...] = ()

    def predict(self, replay: Any, change: Change, *, record: TrackRecord) -> PredictionDocument:
        """Answer like `headrace.diagnose.whatif.predict`."""
        self.asked.append((change, record))
        if self.error:
            raise self.error
        workers = float(dict(setting.split("=") for setting in change.settings).get("fetch.workers", "2"))
        known: dict[str, Any] = {
            "created_unix_seconds": 1.0,
            "headrace_version": "0.1.0",
            "run": "first",
            "pipeline": "jobs:pipeline",
            "plan_id": "0123456789abcdef",
            "change": change,
            "says": ", ".join(change.settings) or "a change",
            "plan": {"version": 1, "stages": {"fetch": {"workers": int(workers)}}},
            "throughput": PredictedMetric(
                base=10.0,
                predicted=Estimate(9 * workers, 10 * workers, 11 * workers),
                ratio=Estimate(0.9 * workers, workers, 1.1 * workers),
            ),
            "latency_p50": PredictedMetric(base=0.5, predicted=Estimate(0.2, 0.25, 0.3), ratio=Estimate(0.4, 0.5, 0.6)),
            "latency_p99": REFUSED,
            "cpu_per_item": PredictedMetric(base=None, predicted=None, ratio=None),
            "bound_ratio": 2.1,
            "naive_ratio": 3.3,
            "limit_after": "the cores",
            "simulated_base": 9.7,
            "record": record,
            "warnings": ("the run was short",),
        }
        return PredictionDocument(**{**known, **self.fields})


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a run folder that nobody has to be able to simulate, and work beside it."""
    folder = RunFolder.create(tmp_path / "first", pipeline="jobs:pipeline")
    kinds = {"process": "device"}
    folder.update(
        stages=[
            StageInfo(
                name=name, kind=kinds.get(name, "io"), role="map", releases_gil=True, executor="thread", station=name,
                workers=1, queue_capacity=16,
            )
            for name in NAMES
        ]
    )  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_LEDGER", raising=False)
    monkeypatch.setitem(COMMANDS, "whatif", "predict what a change would do")
    return folder.path


@pytest.fixture
def fake(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Put a fake simulator in the place of the real one."""
    made = Fake()
    plan = Plan(stages={name: StagePlan(workers=1) for name in NAMES})
    replay = SimpleNamespace(run=read_run(run_folder), plan=plan, document=made)
    monkeypatch.setattr(Analysis, "replay", replay)
    monkeypatch.setitem(sys.modules, "headrace.diagnose.whatif", SimpleNamespace(predict=made.predict))  # type: ignore[arg-type]
    return made


def test_a_prediction_as_text(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    """The answer comes first, then what was refused and why, the grounds, the record, and the commands that prove it."""
    assert main(["whatif", "first", "--set", "fetch.workers=2"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0] == "jobs:pipeline, run first, plan 0123456789ab: 10/s measured"
    assert lines[2] == "predicted: 20/s, x2 (1.8 to 2.2) of the run as recorded"
    assert "not predicted: latency p99: the machine was not quiet; profile again at night" in out
    assert "not predicted: CPU per item: it was not measured" in out
    assert "then limits: the cores" in out
    assert "bounds on the CPU demand say x2.1" in out
    assert "timers of the stages would say x3.3" in out
    assert "simulated at 9.7/s, -3.0 % of what was measured" in out
    assert "not well understood" not in out
    assert "record of this tool: no prediction of this ledger has been measured yet" in out
    assert "warning: the run was short" in out
    assert lines[-3:] == [
        "  headrace ledger show p1 --plan > changed.toml",
        "  headrace compare first changed.toml --pipeline jobs:pipeline -o compare.json",
        "  headrace ledger measured p1 compare.json",
    ]
    assert all(len(line) <= 80 for line in lines[:-3])


def test_it_is_in_the_ledger_before_it_is_shown(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    """The document on stdout bears the id under which the ledger holds the same."""
    assert main(["whatif", "first", "--set", "fetch.workers=3", "--speedup", "process=2", "--json"]) == 0
    printed = msgspec.json.decode(capsys.readouterr().out, type=PredictionDocument)
    assert printed.change == Change(settings=("fetch.workers=3",), speedups={"process": 2.0})
    with Ledger("runs/ledger.sqlite", must_exist=True) as ledger:
        assert ledger.prediction(printed.id).document == printed
        assert len(ledger.predictions()[0].hardware) == 12


def test_the_record_is_shown_with_the_next_prediction(fake: Fake, tmp_path: Path) -> None:
    """What the ledger knows of earlier ones is given to the prediction."""
    arguments = ["whatif", "first", "--set", "fetch.workers=2", "--ledger", "mine.sqlite"]
    assert main(arguments) == 0
    with Ledger(tmp_path / "mine.sqlite") as ledger:
        ledger.write_measurement("p1", Estimate(1.9, 2.0, 2.1), "24 pairs")
    assert main(arguments) == 0
    assert [record.num for _, record in fake.asked] == [0, 1]
    assert not (tmp_path / "runs").exists()


def test_without_a_ledger_nothing_is_written(fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--no-ledger` leaves no file, and no command that would need an id."""
    assert main(["whatif", "first", "--set", "fetch.workers=2", "--no-ledger"]) == 0
    out = capsys.readouterr().out
    assert "not written to a ledger" in out
    assert "headrace ledger" not in out
    assert [path.name for path in tmp_path.iterdir()] == ["first"]


def test_several_scenarios_are_a_table(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    """Each value is predicted together with the other changes, written down, and the best is named with its equals."""
    assert main(["whatif", "first", "--vary", "fetch.workers=1,8,9", "--drop", "deliver"]) == 0
    out, err = capsys.readouterr()
    assert [change for change, _ in fake.asked] == [
        Change(settings=(f"fetch.workers={number}",), drop=("deliver",)) for number in (1, 8, 9)
    ]
    rows = [line.split() for line in out.splitlines() if line.startswith("p")]
    assert [row[:4] for row in rows] == [
        ["p1", "fetch.workers=1", "10/s", "x1"],
        ["p2", "fetch.workers=8", "80/s", "x8"],
        ["p3", "fetch.workers=9", "90/s", "x9"],
    ]
    assert "best: fetch.workers=9, x9; then limits: the cores" in out
    assert "not predicted: latency: " not in out  # p50 was predicted
    assert "3 of 3: fetch.workers=9" in err
    assert main(["whatif", "first", "--vary", "fetch.workers=10,11"]) == 0
    assert "not surely worse: fetch.workers=10" in capsys.readouterr().out


def test_several_scenarios_as_json(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    """One document holds all of them; what was refused as a whole has its reason."""
    assert main(["whatif", "first", "--vary", "fetch.workers=1,2", "--vary", "process.batch=4", "--json"]) == 0
    document = msgspec.json.decode(capsys.readouterr().out, type=PredictionsDocument)
    assert [one.id for one in document.predictions] == ["p1", "p2"]
    assert document.predictions[1].change.settings == ("fetch.workers=2", "process.batch=4")
    fake.error = CannotReplay("a batch of 99 was never measured; profile with run.warm_up")
    assert main(["whatif", "first", "--vary", "process.batch=99", "--json"]) == 4
    document = msgspec.json.decode(capsys.readouterr().out, type=PredictionsDocument)
    assert document.predictions == ()
    assert document.refused == {"process.batch=99": "a batch of 99 was never measured; profile with run.warm_up"}


@pytest.mark.parametrize("json", [[], ["--json"]])
def test_outside_of_what_was_measured_is_status_4(
    fake: Fake, capsys: pytest.CaptureFixture[str], json: list[str]
) -> None:
    """The reason is told, no number is, and the ledger stays empty."""
    fake.error = CannotReplay("a batch of 99 was never measured")
    assert main(["whatif", "first", "--set", "process.batch=99", *json]) == 4
    out, err = capsys.readouterr()
    assert out == ""
    assert "not predicted: a batch of 99 was never measured" in err
    with Ledger("runs/ledger.sqlite") as ledger:
        assert ledger.predictions() == []


def test_a_throughput_that_is_refused_is_status_4(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    """The document says why; it is printed, and not written down."""
    fake.fields = {"throughput": REFUSED}
    assert main(["whatif", "first", "--set", "fetch.workers=2"]) == 4
    out = capsys.readouterr().out
    assert "NOT PREDICTED: the machine was not quiet; profile again at night" in out
    assert "nothing was written to the ledger" in out
    assert main(["whatif", "first", "--vary", "fetch.workers=2,3"]) == 4
    out = capsys.readouterr().out
    assert "not predicted: fetch.workers=3: the machine was not quiet" in out
    with Ledger("runs/ledger.sqlite") as ledger:
        assert ledger.predictions() == []


def test_a_run_that_cannot_be_simulated_is_status_4(
    run_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reason and next command are told, and no ledger is made."""

    def refuse(analysis: Any) -> Any:
        raise CannotReplay("the run has no CPU times; profile it with `headrace profile`")

    monkeypatch.setattr(Analysis, "replay", property(refuse))
    assert main(["whatif", "first", "--set", "fetch.workers=2"]) == 4
    assert "no CPU times; profile it with" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_an_untrusted_run_is_refused(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless the user wants a prediction all the same, nothing rests on numbers that contradict one another."""
    fake.distrust = ("Little's law does not hold",)
    arguments = ["whatif", "first", "--set", "fetch.workers=2"]
    assert main(arguments) == 4
    assert "not trusted, and what rests on it would not be either: Little's law does not" in capsys.readouterr().err
    assert not fake.asked
    assert main([*arguments, "--untrusted"]) == 0


def test_one_reason_is_told_once(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    """Both percentiles of latency are refused for the same reason, mostly."""
    fake.fields = {"latency_p50": REFUSED}
    assert main(["whatif", "first", "--set", "fetch.workers=2"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "not predicted: latency p50 and latency p99: the machine was not quiet" in out
    assert out.count("the machine was not quiet") == 1


@pytest.mark.parametrize(("naive", "is_told"), [(3.3, True), (2.05, False), (1.95, False), (1.0, True), (None, False)])
def test_stage_timers_are_warned_of_where_they_differ(
    fake: Fake, capsys: pytest.CaptureFixture[str], naive: float | None, is_told: bool
) -> None:
    """Within 5 % of the prediction they say the same, and there is nothing to warn of."""
    fake.fields = {"naive_ratio": naive}
    assert main(["whatif", "first", "--set", "fetch.workers=2"]) == 0
    assert ("not to go by" in capsys.readouterr().out) == is_told


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "nothing is changed; say what"),
        (["--speedup", "fetsh=2"], "Did you mean 'fetch'"),
        (["--vary", "fetc.workers=1,2"], "Did you mean 'fetch'"),
        (["--set", "fetch.workers=2", "--ledger", "x", "--no-ledger"], "contradict one another"),
        (["--set", "fetch.workers=2", "--ledger", "first/run.json"], "damaged or not a ledger"),
    ],
)
def test_misuse_is_status_2(fake: Fake, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    """Nothing to predict, unknown stages and ledgers that are none: the reason, and nothing is simulated."""
    assert main(["whatif", "first", *arguments]) == 2
    assert says in capsys.readouterr().err
    assert fake.asked == []


@pytest.mark.parametrize("error", [ValueError("only on device stages"), SettingsError("only on device stages")])
def test_what_the_simulator_finds_impossible_is_misuse(
    fake: Fake, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    """A batch on a stage that takes none, for instance."""
    fake.error = error
    assert main(["whatif", "first", "--set", "fetch.batch=2"]) == 2
    assert "headrace: only on device stages" in capsys.readouterr().err


def test_a_missing_run_is_status_2(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that does not exist is named."""
    assert main(["whatif", "nowhere", "--set", "fetch.workers=2"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_an_emulated_device_is_said_to_be_one(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    """Alone and in a table."""
    fake.fields = {"is_emulated": True}
    assert main(["whatif", "first", "--set", "fetch.workers=2"]) == 0
    assert "The device was emulated" in capsys.readouterr().out
    assert main(["whatif", "first", "--vary", "fetch.workers=2,3"]) == 0
    assert "The device was emulated" in capsys.readouterr().out


def test_a_base_that_is_simulated_badly_is_doubted(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    """A fifth off is worth a word."""
    fake.fields = {"simulated_base": 12.0}
    assert main(["whatif", "first", "--set", "fetch.workers=2"]) == 0
    assert "this run is not well understood" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "proof"),
    [
        (["--speedup", "fetch=2"], "headrace compare first jobs:pipeline@changed.toml -o compare.json"),
        (["--cores", "8"], "headrace ledger measured p1 first first-changed --ledger 'my ledger'"),
        (["--quiet-machine"], "headrace profile jobs:pipeline -o first-changed"),
        (["--set", "fetch.workers=2"], "headrace ledger show p1 --plan --ledger 'my ledger' > changed.toml"),
    ],
)
def test_the_proof_fits_the_change(
    fake: Fake, capsys: pytest.CaptureFixture[str], arguments: list[str], proof: str
) -> None:
    """A Plan is compared, a change in the code too, a change of the surroundings is profiled there."""
    assert main(["whatif", "first", *arguments, "--ledger", "my ledger"]) == 0
    assert proof in capsys.readouterr().out


def test_the_proof_of_a_run_that_served_serves_again(
    fake: Fake, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was recorded behind HTTP is recorded so again, with its options: no `headrace profile`, which has no requests."""
    info = json.loads((run_folder / "run.json").read_bytes())
    (run_folder / "run.json").write_text(json.dumps(info | {"served": True, "options": ["--port", "8080"]}))
    assert main(["whatif", "first", "--quiet-machine"]) == 0
    told = capsys.readouterr().out
    assert "headrace serve jobs:pipeline --port 8080 --profile -o first-changed" in told
    assert "headrace profile" not in told


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--set", "fetch.workers=2", "--set", "fetch.workers=4"], "fetch.workers is set twice"),
        (["--set", "fetch.workers=2", "--vary", "fetch.workers=4,8"], "fetch.workers is set twice"),
        (["--drop", "fetch", "--speedup", "fetch=2"], "contradict one another"),
    ],
)
def test_options_that_contradict_one_another_are_refused(
    fake: Fake, capsys: pytest.CaptureFixture[str], options: list[str], named: str
) -> None:
    """Two values for one thing: which of them was meant is asked, not guessed."""
    assert main(["whatif", "first", *options]) == 2
    assert named in capsys.readouterr().err
    assert not fake.asked
