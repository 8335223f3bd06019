"""`headrace capacity` where the run itself says that it is no ground to plan on."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.cli import capacity, main
from headrace.diagnose.analysis import Analysis
from headrace.diagnose.replay import CannotReplay
from headrace.runs import reader
from headrace.runs.formats.capacity import CapacityDocument, CapacityOption
from headrace.runs.formats.prediction import Change


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read any folder as a run."""
    monkeypatch.setattr(reader, "read_run", lambda path: SimpleNamespace(path=path, info=SimpleNamespace(unit="item")))


@pytest.mark.parametrize("option", ["--rate", "--machines", "--cameras"])
def test_an_empty_value_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As a variable of the shell that is not set gives it."""
    assert main(["capacity", "first", option, ""]) == 2
    assert "expected" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "many"])
def test_gpus_of_workers_are_a_number(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before Ray is asked."""
    with pytest.raises(SystemExit):
        main(["run", "jobs.py:pipeline", "--on", "ray", f"--worker-gpus={text}"])
    assert "expected a number of GPUs" in capsys.readouterr().err


@pytest.mark.usefixtures("recorded")
def test_an_untrusted_run_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 4, with the failed check and the way on; no number is printed."""
    document = SimpleNamespace(trusted=False, distrust=("clocks ran backwards",))
    monkeypatch.setattr(Analysis, "replay", SimpleNamespace(document=document))
    assert main(["capacity", "first", "--rate", "10/s"]) == 4
    out, err = capsys.readouterr()
    assert out == ""
    assert "clocks ran backwards" in err
    assert "--untrusted" in err


@pytest.mark.usefixtures("recorded")
def test_a_run_that_cannot_be_replayed_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 4 with the reason that the replay gives."""

    def refuse(analysis: object) -> None:
        raise CannotReplay("no spans; profile again")

    monkeypatch.setattr(Analysis, "replay", property(refuse))
    assert main(["capacity", "first", "--rate", "10/s"]) == 4
    assert "no spans; profile again" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("machines", "slo", "met", "status"),
    [
        (3, "", None, 0),
        (3, "p99 <= 1 s", True, 0),
        (None, "p99 <= 1 s", False, 1),
        (3, "p99 <= 1 s", None, 4),
        (None, "", None, 4),
    ],
)
def test_exit_status(machines: int | None, slo: str, met: bool | None, status: int) -> None:
    """0 told, 1 the goal holds at no rate, 4 it cannot be told."""
    option = CapacityOption(
        name="as recorded",
        change=Change(),
        throughput=None,
        usable_throughput=None,
        machines=machines,
        cost_per_million=None,
        cost_per_month=None,
        saves_per_month=None,
        latency_p99=None,
        says="",
    )
    document = CapacityDocument(
        run="first",
        headrace_version="1",
        pipeline="p",
        plan_id="p",
        rate=1.0,
        slo=slo,
        slo_met=met,
        price_per_hour=None,
        options=(option,),
        says=(),
    )
    assert capacity._status(document) == status


@pytest.mark.full
def test_a_profile_in_which_nothing_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """That is said, and not that it is no profile."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("idle_jobs.py").write_text(
        "import headrace as hr\n"
        "queue = hr.queue('sqlite:///none.db', drain=True)\n"
        "pipeline = hr.Pipeline(queue, stages=[hr.stage('same', len)], delivery=hr.jsonl('r.jsonl'))\n"
    )
    main(["profile", "idle_jobs.py:pipeline", "-o", "idle"])
    capsys.readouterr()
    assert main(["capacity", "idle", "--machines", "8"]) == 4
    assert "only 0 jobs were recorded" in capsys.readouterr().err
    assert main(["deploy", "idle_jobs.py:pipeline", "--run", "idle", "-o", "files"]) == 2
    assert "headrace profile, for some seconds" in capsys.readouterr().err
