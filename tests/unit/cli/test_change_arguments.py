"""The options that describe a change: what they make, and what they say to what cannot be."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from headrace.base.errors import RunFolderError, SettingsError
from headrace.base.plan import ModelPlan, Plan, StagePlan
from headrace.cli.change_arguments import add_change_arguments, change_of, parse_varied, plan_settings
from headrace.runs.formats.prediction import Change
from headrace.runs.run_folder import RunFolder, StageInfo

PLAN = Plan(stages={name: StagePlan(workers=1) for name in ("fetch", "decode", "process", "deliver")})


def stage(name: str, kind: str = "cpu") -> StageInfo:
    """Return a recorded stage."""
    return StageInfo(
        name=name,
        kind=kind,
        role="map",
        releases_gil=True,
        executor="thread",
        station=name,
        workers=1,
        queue_capacity=16,
    )


STAGES = [stage("fetch", "io"), stage("decode"), stage("process", "device"), stage("deliver", "io")]


def change(*arguments: str, stages: list[StageInfo] = STAGES) -> Change:
    """Return the change that options describe."""
    parser = argparse.ArgumentParser()
    add_change_arguments(parser)
    return change_of(parser.parse_args(arguments), PLAN, stages)


def test_all_options_at_once() -> None:
    """Each option has its field, in the units of the document."""
    found = change(
        *["--set", "fetch.workers=32", "--set", "run.ordered=true", "--speedup", "decode=2x", "--speedup", "fetch=0.5"],
        *["--drop", "deliver", "--cache", "decode=30%", "--cores", "3.5", "--devices", "2", "--arrival-rate", "3.6k/h"],
        *["--quiet-machine", "--every", "process=3", "--to-device", "fetch=2ms"],
    )
    assert found == Change(
        settings=("fetch.workers=32", "run.ordered=true"),
        speedups={"decode": 2.0, "fetch": 0.5},
        drop=("deliver",),
        cache_hits={"decode": 0.3},
        every={"process": 3},
        on_device={"fetch": 0.002},
        cores=3.5,
        devices=2,
        arrival_rate=1.0,
        quiet=True,
    )
    assert change().is_nothing


def test_model_means_the_only_device_stage() -> None:
    """`model.batch` is no key of the table [model], and means the stage that takes batches; `model.threads` is one."""
    assert change("--set", "model.batch=8").settings == ("process.batch=8",)
    assert change("--set", "model.threads=1").settings == ("model.threads=1",)
    assert change("--set", "model.options.x=1").settings == ("model.options.x=1",)


def test_instances_are_workers_of_the_stages_that_call_the_model() -> None:
    """A recorded Plan has workers; a model with a table of its own is asked about by its name."""
    assert change("--set", "model.instances=2").settings == ("process.workers=2",)
    assert change("--set", "process.instances = 3").settings == ("process.workers= 3",)
    several = [stage("faces.process", "device"), stage("plates.process", "device")]
    plan = Plan(models={"faces": ModelPlan(threads=1)})
    assert plan_settings(["model.instances=2"], plan, several) == ("plates.process.workers=2",)
    assert plan_settings(["models.faces.instances=4"], plan, several) == ("faces.process.workers=4",)
    assert change("--set", "model.devices=[0,1]").settings == ("process.workers=2", "model.devices=[0,1]")
    both = change("--set", "process.workers=4", "--set", "model.devices=[0,1]").settings
    assert Plan().with_settings(both).stages["process"].workers == 4


@pytest.mark.parametrize("setting", ["fetch.instances=2", "models.faces.instances=2", "instances=2"])
def test_instances_of_no_model(setting: str) -> None:
    """A stage that calls none, or a model that is not there: refused with the stages that call one."""
    with pytest.raises(SettingsError, match="no stage of this run calls that model; its device stages are process"):
        change("--set", setting)


def test_model_is_asked_about_where_there_are_several() -> None:
    """Of two device stages none is "the model"."""
    several = [*STAGES, stage("faces.process", "device")]
    with pytest.raises(SettingsError, match=r"2 device stages \(process, faces\.process\); write STAGE\.batch=8"):
        change("--set", "model.batch=8", stages=several)


def test_what_receivers_do_can_be_sped_up() -> None:
    """`receiving` is no stage, and can be named all the same."""
    assert change("--speedup", "receiving=2").speedups == {"receiving": 2.0}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--speedup", "decod=2"], r"--speedup: this run's stages: unknown key 'decod'. Did you mean 'decode'\?"),
        (["--drop", "fetsh"], "--drop: this run's stages: unknown key 'fetsh'. Did you mean 'fetch'"),
        (["--cache", "x=0.5"], "Allowed: decode, deliver, fetch, process"),
        (["--set", "fetc.workers=2"], "--set: this run's stages: unknown key 'fetc'. Did you mean 'fetch'"),
        (["--set", "fetch.wokers=2"], "unknown key 'wokers'. Did you mean 'workers'"),
        (["--set", "fetch.workers=0"], "workers = 0 is not possible"),
        (["--set", "fetch.workers"], "KEY=VALUE such as fetch.workers=32"),
        (["--speedup", "decode"], "expected STAGE=VALUE"),
        (["--speedup", "decode="], "expected STAGE=VALUE"),
        (["--speedup", "decode=0"], "--speedup decode: expected how many times as fast, above 0"),
        (["--speedup", "decode=fast"], "above 0, such as 2, got 'fast'"),
        (["--speedup", "decode=nan"], "above 0"),
        (["--speedup", "decode=inf"], "above 0"),
        (["--speedup", "decode=2", "--speedup", "decode=3"], "names decode twice"),
        (["--cache", "decode=1.5"], "a share from 0 to 1 such as 0.3 or 30%"),
        (["--cache", "decode=130%"], "got '130%'"),
        (["--cache", "decode=nan"], "got 'nan'"),
        (["--cores", "0"], "--cores: expected a number of cores above 0"),
        (["--cores", "-2"], "--cores: expected a number of cores above 0"),
        (["--devices", "1.5"], "--devices: expected a whole number of devices"),
        (["--devices", "0"], "--devices: expected a whole number of devices"),
        (["--arrival-rate", "100"], "--arrival-rate: expected a rate above 0 such as 3M/h, 100/s"),
        (["--curve", "decode=x.json"], "decode is no device stage and takes no batches; --speedup decode=TIMES"),
        (["--curve", "process=none.json"], "none.json cannot be read"),
    ],
)
def test_mistakes_are_named(arguments: list[str], says: str) -> None:
    """Each is refused with the option, the value and what was expected, and near names are proposed."""
    with pytest.raises(SettingsError, match=says):
        change(*arguments)


def test_a_curve_from_json(tmp_path: Path) -> None:
    """Batch sizes are the keys, seconds per call the values, in any order."""
    file = tmp_path / "curve.json"
    file.write_text('{"8": 0.055, "1": 0.012}')
    assert change("--curve", f"process={file}").cost_curves == {"process": {1: 0.012, 8: 0.055}}


@pytest.mark.parametrize(
    "content",
    ["[]", "{}", "1", '{"a": 1}', '{"0": 1}', '{"1": 0}', '{"1": "x"}', '{"1": true}', '{"1": Infinity}', "{", "\udcff",
     '{"²": 1}', '{"1": NaN}'],
)  # fmt: skip
def test_a_file_that_is_no_curve(tmp_path: Path, content: str) -> None:
    """What is not batch sizes with seconds is refused with an example."""
    file = tmp_path / "curve.json"
    file.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(SettingsError, match=r'expected a run folder, or JSON .* such as \{"1": 0.012'):
        change("--curve", f"process={file}")


def make_run(path: Path, curves: dict[str, dict[int, list[float]]]) -> Path:
    """Write a run folder with what its warm-up measured."""
    RunFolder.create(path).update(cost_curves=curves)
    return path


def test_a_curve_from_another_run(tmp_path: Path) -> None:
    """Medians of the calls that warm-up measured: of the stage of this name, else of the only one that there is."""
    both = make_run(tmp_path / "both", {"other": {1: [9.0]}, "process": {8: [0.5, 0.7, 9.0], 1: [0.1]}})
    assert change("--curve", f"process={both}").cost_curves == {"process": {1: 0.1, 8: 0.7}}
    only = make_run(tmp_path / "only", {"model": {1: [0.2]}})
    assert change("--curve", f"process={only}").cost_curves == {"process": {1: 0.2}}


@pytest.mark.parametrize("curves", [{}, {"a": {1: [1.0]}, "b": {1: [1.0]}}, {"process": {1: []}}])
def test_a_run_without_the_curve(tmp_path: Path, curves: dict[str, dict[int, list[float]]]) -> None:
    """None, several of other names, or one without calls: refused, with what there is."""
    path = make_run(tmp_path / "run", curves)
    with pytest.raises(RunFolderError, match="has no cost curve of process; it holds"):
        change("--curve", f"process={path}")


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    """Its own error says so."""
    with pytest.raises(RunFolderError, match=r"run\.json"):
        change("--curve", f"process={tmp_path}")


def test_varied_settings_are_combined() -> None:
    """One option gives its values in order, two every combination; what is written twice is meant once."""
    assert parse_varied(["fetch.workers=8,16,8"]) == [("fetch.workers=8",), ("fetch.workers=16",)]
    assert parse_varied(["a.workers=1,2", "b.batch=4, 8"]) == [
        ("a.workers=1", "b.batch=4"), ("a.workers=1", "b.batch=8"), ("a.workers=2", "b.batch=4"), ("a.workers=2", "b.batch=8"),
    ]  # fmt: skip


@pytest.mark.parametrize("bad", ["fetch.workers", "fetch.workers=", "=1,2", "fetch.workers=1,,2"])
def test_varied_without_values(bad: str) -> None:
    """A key without values, or with an empty one, is refused."""
    with pytest.raises(SettingsError, match="KEY=VALUE,VALUE"):
        parse_varied([bad])


def test_too_many_combinations() -> None:
    """Nine times nine is more than anybody reads."""
    numbers = ",".join(map(str, range(1, 10)))
    with pytest.raises(SettingsError, match="81 scenarios, and 64 is the most"):
        parse_varied([f"a.workers={numbers}", f"b.workers={numbers}"])


def test_a_curve_is_what_run_json_holds(tmp_path: Path) -> None:
    """The sizes of a run folder's curve are numbers, though JSON's keys are text."""
    path = make_run(tmp_path / "run", {"process": {16: [0.5]}})
    assert json.loads((path / "run.json").read_text())["cost_curves"] == {"process": {"16": [0.5]}}
    assert list(change("--curve", f"process={path}").cost_curves["process"]) == [16]
