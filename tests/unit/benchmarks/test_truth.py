"""The benchmark of generated pipelines: one case from one seed, faults that can be taken away, scores of known rows."""

from __future__ import annotations

import itertools
import json
import math
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.paths import RESULTS
from benchmarks.truth import apart, changes, program, recordings, rivals, rows, scores, surroundings
from benchmarks.truth.__main__ import FIRST_REPORTED, ROWS, case_of, fresh_seeds
from benchmarks.truth.changes import draw_changes
from benchmarks.truth.faults import KINDS, own_work
from benchmarks.truth.grammar import DOSES, draw
from benchmarks.truth.judging import FrozenCase
from benchmarks.truth.measuring import alternatives
from benchmarks.truth.rounds import AS_IT_IS
from benchmarks.truth.rows import Frozen, Named, Row, Said, Truth
from benchmarks.truth.spec import Machine
from headrace.base.errors import SettingsError
from headrace.base.records import Job
from headrace.delivery.collect import Collect
from headrace.diagnose import whatif
from headrace.pipeline.definition import Pipeline
from headrace.runs.formats.prediction import Change
from headrace.runs.formats.profile import Estimate

SEEDS = range(150)


def a_seed(*, faults: int) -> int:
    """Return the first seed with so many faults."""
    return next(seed for seed in itertools.count() if len(draw(seed).planted) == faults)


def a_finding(verdict: str, stage: str | None = None, says: str = "") -> Named:
    """Return a finding."""
    return Named(verdict=verdict, stage=stage, cause="", confidence="high", gain=1.2, says=says, evidence=())


def a_row(seed: int, first: Named | None, second: Named | None = None, **gains: float) -> Row:
    """Return what came of a case: `cure_0=1.5` is a sure gain of a half."""
    truths = {
        name.replace("_", " ", 1): Truth(ratio=gain, low=gain * 0.98, high=gain * 1.02, pairs=6)
        for name, gain in gains.items()
    }
    return Row(case=draw(seed), said=Said(first=first, runner_up=second), truths=truths)


def right_for(seed: int, number: int) -> Named:
    """Return a finding that names a fault of a case."""
    case = draw(seed)
    required = case.planted[number].required(case.spec)
    return a_finding(required.verdicts[0], required.stages[0] if required.stages else None)


# --- drawing


def test_a_case_follows_from_its_seed() -> None:
    """Drawn twice, cases and their changes are equal; different seeds give different ones."""
    assert [draw(seed) for seed in SEEDS] == [draw(seed) for seed in SEEDS]
    changes = [[one.says for one in draw_changes(draw(seed).spec, seed, 3)] for seed in SEEDS]
    assert changes == [[one.says for one in draw_changes(draw(seed).spec, seed, 3)] for seed in SEEDS]
    assert len({msgspec.json.encode(draw(seed)) for seed in SEEDS}) == len(SEEDS)


def test_every_kind_of_fault_is_drawn_in_its_range_of_doses() -> None:
    """Nothing of the catalogue is unreachable, and there are cases with none, one and two faults."""
    planted = [draw(seed).planted for seed in range(600)]
    assert {one.kind for faults in planted for one in faults} == set(KINDS)
    assert all(DOSES[0] <= one.dose <= DOSES[1] for faults in planted for one in faults)
    assert {len(faults) for faults in planted} == {0, 1, 2}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_fault_can_be_taken_away(seed: int) -> None:
    """Without all of its faults a case is the healthy pipeline; without any one of them it is neither."""
    case = draw(seed)
    assert case.without(range(len(case.planted))) == case.healthy
    for number in range(len(case.planted)):
        assert case.without((number,)) != case.spec


def test_taking_a_fault_away_leaves_the_other_as_strong_as_it_was() -> None:
    """A service allows a share of what a pipeline did: of the healthy one, not of one whose other fault is taken away."""
    telling = draw(169)
    assert [one.kind for one in telling.planted] == ["heavy_native", "rate_limit"]
    for case in (telling, *(one for one in map(draw, SEEDS) if len(one.planted) == 2 and one.planted[1].stage)):
        stage = case.planted[1].stage
        assert case.without((0,)).stage(stage) == case.spec.stage(stage), case.seed


@pytest.mark.parametrize("seed", range(0, 150, 5))
def test_its_text_is_a_pipeline_with_a_plan(seed: int) -> None:
    """What is drawn, cured or changed can be run: text makes a Pipeline whose stages the Plan knows."""
    case = draw(seed)
    specs = [case.spec, case.healthy, *(asked.spec for asked in draw_changes(case.spec, seed, 3))]
    for spec in (one for one in specs if "receiver_of" not in one.delivery):  # that one starts a server
        pipeline = program.pipeline_of(spec, 1.0)
        fetch = ["fetch"] if spec.shape == "tasks" else []
        assert [stage.name for stage in pipeline.stages] == [*fetch, *(stage.name for stage in spec.stages), "deliver"]
        assert set(program.plan_of(spec).stages) <= {stage.name for stage in pipeline.stages}


def test_a_written_case_stands_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files import nothing of the benchmarks, and the one with the faults gives a pipeline."""
    seed = next(seed for seed in SEEDS if draw(seed).planted and "receiver_of" not in draw(seed).spec.delivery)
    commands = program.write(draw(seed), tmp_path / "case", 5.0)
    files = {path.name for path in (tmp_path / "case").iterdir()}
    assert {"pipeline.py", "pipeline.toml", "library.py", "surroundings.py", "commands.txt"} <= files
    assert "headrace profile pipeline.py:pipeline --plan pipeline.toml" in commands
    assert not any("benchmarks" in path.read_text() for path in (tmp_path / "case").glob("*.py"))
    monkeypatch.syspath_prepend(tmp_path / "case")
    found = runpy.run_path(str(tmp_path / "case" / "pipeline.py"))
    for name in ("library", "surroundings"):
        sys.modules.pop(name, None)
    assert isinstance(found["pipeline"], Pipeline)
    with pytest.raises(FileExistsError, match="not empty"):
        program.write(draw(seed), tmp_path / "case", 5.0)


def test_reported_seeds_follow_from_the_commit() -> None:
    """The same commit gives the same seeds, another one others, and none of them is one of development."""
    first = list(itertools.islice(fresh_seeds("a" * 40), 50))
    assert first == list(itertools.islice(fresh_seeds("a" * 40), 50))
    assert not set(first) & set(itertools.islice(fresh_seeds("b" * 40), 50))
    assert min(first) >= FIRST_REPORTED


@pytest.mark.parametrize(
    ("arrivals", "times"),
    [
        ({"per_second": 10.0}, [0.0, 0.1, 0.2, 0.3]),
        ({"per_second": 10.0, "burst": 2}, [0.0, 0.0, 0.2, 0.2]),
    ],
)
def test_jobs_come_when_they_are_due(arrivals: dict[str, Any], times: list[float]) -> None:
    """Steady jobs are evenly spaced; bursts come together, as many in the long run."""
    due = surroundings._times(surroundings.Arrivals(**arrivals))
    assert list(itertools.islice(due, 4)) == pytest.approx(times)


def test_any_few_dozen_random_arrivals_are_as_many_as_were_asked_for() -> None:
    """A block sees the same few dozen jobs each time; the prediction is for the rate that was asked for, not for their luck."""
    due = list(itertools.islice(surroundings._times(surroundings.Arrivals(per_second=50.0, jitter=True)), 161))
    assert [due[number + 16] - due[number] for number in range(0, 160, 16)] == pytest.approx([16 / 50.0] * 10)
    assert len({round(after - before, 6) for before, after in itertools.pairwise(due)}) > 100


def test_random_arrivals_have_the_mean_that_was_asked_for() -> None:
    """2,000 jobs at 50/s take about 40 s."""
    due = surroundings._times(surroundings.Arrivals(per_second=50.0, jitter=True))
    assert next(itertools.islice(due, 2000, None)) == pytest.approx(40, rel=0.1)


def test_results_go_to_one_place_or_to_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are pipelines of each delivery and of each way to run it; what goes to two places arrives at both."""
    cases = [draw(seed) for seed in range(600)]
    found = [case.healthy for case in cases]
    assert {spec.delivery.partition("(")[0] for spec in found} == {"hr.collect", "hr.jsonl", "hr.callback", "Both"}
    assert {spec.setting("deliver.executor") for spec in found if "callback" in spec.delivery} == {None, "events"}
    carried = [spec for case in cases for spec in (case.spec, case.healthy) if spec.setting("deliver.executor")]
    assert all(spec.delivery.startswith("hr.callback") for spec in carried)
    both = next(spec for spec in found if spec.delivery.startswith("Both") and spec.shape == "chain")
    with monkeypatch.context() as patch:
        patch.setattr(surroundings, "service_of", lambda service: ("127.0.0.1", 1))  # none is started
        delivery = program.pipeline_of(both, 1.0).delivery
    assert isinstance(delivery, surroundings.Both)
    first, second = delivery.deliveries = Collect(), Collect()
    assert delivery.deliver(Job(id="7", payload=b""), b"result")
    assert [len(one.results) for one in (first, second)] == [1, 1]


def test_any_choice_of_cores_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two cores is somebody's only one; of a machine with other cores as many are chosen, and it is told which."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 8})
    few = [spec for spec in (draw(seed).healthy for seed in SEEDS) if spec.machine.cores is not None]
    assert {program.choose_cores(spec.machine) for spec in few} == {(3,), (5,)}
    choices = [program.choose_cores(Machine(cores=2, which=number)) for number in range(4)]
    assert choices == [(3, 5), (3, 8), (5, 8), (3, 5)]
    assert program.choose_cores(Machine()) == (3, 5, 8)
    told = program._command("pipeline", few[0])
    assert f"taskset -c {program.choose_cores(few[0].machine)[0]} sh" in told


# --- scoring


@pytest.mark.parametrize(
    ("low", "ratio", "high", "is_gain"),
    [
        (1.2, 1.5, 1.9, True),
        (0.9, 1.5, 1.9, None),
        (0.98, 1.01, 1.05, False),
        (1.02, 1.08, 1.3, None),
        (1.04, 1.06, 1.09, False),
        (0.9, 1.01, 1.18, False),
        (0.3, 1.0, 3.4, None),
    ],
)
def test_a_gain_is_clear_or_not(low: float, ratio: float, high: float, is_gain: bool | None) -> None:
    """A gain counts where it is a tenth and surely there, does not where it surely is less, and is unclear between."""
    assert Truth(ratio=ratio, low=low, high=high, pairs=6).is_gain is is_gain


def test_verdicts_are_judged_by_the_measured_truth() -> None:
    """First, second, wrong, undecided; and not scored where the cure gains nothing or the machine was disturbed."""
    seed = a_seed(faults=1)
    right, wrong = right_for(seed, 0), a_finding("THERMAL")
    assert scores.score(a_row(seed, right, cure_0=1.5)).outcome == "right"
    assert scores.score(a_row(seed, wrong, right, cure_0=1.5)).outcome == "second"
    assert scores.score(a_row(seed, wrong, cure_0=1.5)).outcome == "wrong"
    undecided = scores.score(a_row(seed, a_finding("INCONCLUSIVE"), cure_0=1.5))
    assert (undecided.outcome, undecided.justified) == ("undecided", False)
    cheap = scores.score(a_row(seed, a_finding("INCONCLUSIVE"), cure_0=1.01))
    assert (cheap.outcome, cheap.justified) == ("not scored", True)
    disturbed = msgspec.structs.replace(a_row(seed, wrong, cure_0=1.5), rivals=0.5)
    assert scores.score(disturbed).outcome == "not scored"


def test_another_stage_is_right_if_halving_it_gains_as_much() -> None:
    """What limited the pipeline before the fault may still be what limits it most."""
    seed = a_seed(faults=1)
    other = a_finding("PREPROCESS", "elsewhere")
    assert scores.score(a_row(seed, other, cure_0=1.5, halved_elsewhere=1.6)).outcome == "right"
    assert scores.score(a_row(seed, other, cure_0=1.5, halved_elsewhere=1.3)).outcome == "wrong"


def test_half_of_a_stage_is_compared_with_half_of_the_fault() -> None:
    """To be rid of ten times the work gains more than half of anything: where the fault was halved as well, that counts."""
    seed = a_seed(faults=1)
    other, planted = a_finding("PREPROCESS", "elsewhere"), f"halved_{draw(seed).planted[0].stage}"
    for half, outcome in ((1.2, "right"), (1.4, "wrong")):
        row = a_row(seed, other, cure_0=1.5, halved_elsewhere=1.3, **{planted: half})
        assert scores.score(row).outcome == outcome


def test_a_fault_of_work_is_halved_where_another_stage_is_blamed() -> None:
    """Only then, and only where a half of it can be done."""
    case = next(case for case in map(draw, SEEDS) if len(case.planted) == 1 and case.planted[0].is_work)
    stage = case.planted[0].stage
    blamed = next(
        Said(first=a_finding(verdict, one.name))
        for one in case.spec.stages
        if one.name != stage and one.part.inmost().whole("repeats", 0) > 1
        for verdict in own_work(case.spec, one.name)
    )
    runs = alternatives(case, (), [FrozenCase(seed=case.seed, at_unix_seconds=0.0, said=blamed, predictions=())])
    assert blamed.first is not None
    assert set(runs) == {AS_IT_IS, "cure 0", f"halved {blamed.first.stage}", f"halved {stage}"}
    half = runs[f"halved {stage}"].stage(stage).part.inmost().whole("repeats")
    assert half == case.spec.stage(stage).part.inmost().whole("repeats") // 2
    named = [FrozenCase(seed=case.seed, at_unix_seconds=0.0, said=Said(first=right_for(case.seed, 0)), predictions=())]
    assert set(alternatives(case, (), named)) == {AS_IT_IS, "cure 0"}


def test_both_of_two_faults_have_to_be_named() -> None:
    """Both count only where both gain; one alone among the first three is half of it, and the third may be what limits next."""
    seed = a_seed(faults=2)
    one, two = right_for(seed, 0), right_for(seed, 1)
    assert scores.score(a_row(seed, one, two, cure_0=1.5, cure_1=1.4)).both is True
    assert scores.score(a_row(seed, one, a_finding("THERMAL"), cure_0=1.5, cure_1=1.4)).both is False
    assert scores.score(a_row(seed, one, two, cure_0=1.5, cure_1=1.0)).both is None
    row = a_row(seed, one, a_finding("THERMAL"), cure_0=1.5, cure_1=1.4)
    then = msgspec.structs.replace(row.said, next_bottleneck=two)
    assert scores.score(msgspec.structs.replace(row, said=then)).both is True


def test_a_starved_pipeline_called_faulty_is_a_false_alarm() -> None:
    """It is healthy if more jobs are done when more come; where they are not, nothing is scored."""
    seed = a_seed(faults=0)
    assert scores.score(a_row(seed, a_finding("ARRIVAL_LIMITED"), arrivals=2.0)).outcome == "right"
    assert scores.score(a_row(seed, a_finding("SOURCE"), arrivals=2.0)).outcome == "alarm"
    assert scores.score(a_row(seed, a_finding("SOURCE"), arrivals=1.05)).outcome == "not scored"


def test_errors_of_predictions() -> None:
    """Errors, coverage and refusals of four predictions worked out by hand."""

    def pair(mid: float, truth: float) -> tuple[Frozen, Truth | None]:
        predicted = Estimate(mid * 0.95, mid, mid * 1.05)
        frozen = Frozen(kind="workers", says="", change=Change(), predicted=predicted)
        return frozen, Truth(ratio=truth, low=truth * 0.99, high=truth * 1.01, pairs=6)

    refused = Frozen(kind="workers", says="", change=Change(), predicted=None, refused="too short"), None
    found = scores.errors([pair(2.0, 1.0), pair(1.02, 1.0), pair(0.8, 0.8), refused])
    assert found["changes"] == 3
    assert found["refused"] == 1
    assert found["mean"] == pytest.approx((1.0 + 0.02 + 0.0) / 3)
    assert found["max"] == pytest.approx(1.0)
    assert found["coverage"] == pytest.approx(2 / 3)
    assert (found["sign_right"], found["n_signed"]) == (1.0, 1)


@pytest.mark.parametrize(("high", "is_known"), [(1.4, True), (1.6, False)])
def test_errors_are_told_apart_by_how_well_the_truth_is_known(high: float, is_known: bool) -> None:
    """Where the measured interval is wide an error may be the measurement's."""
    assert Truth(ratio=1.2, low=1.0, high=high, pairs=3).is_known_well is is_known


def test_what_is_said_after_experiments_is_scored_apart() -> None:
    """A verdict that experiments put right counts there alone; without experiments there is nothing to tell."""
    seed = a_seed(faults=1)
    row = a_row(seed, a_finding("THERMAL"), cure_0=1.5)
    mended = rows.Experimented(said=Said(first=right_for(seed, 0)), predictions=(), seconds=20.0)
    result = scores.summarize([msgspec.structs.replace(row, experimented=mended)])
    assert result["top1"] == 0.0
    assert result["with_experiment"]["top1"] == 1.0
    assert scores.summarize([row])["with_experiment"] is None


def test_the_report_tells_each_wrong_verdict_with_the_truth() -> None:
    """Seed, what was said, and what was measured stand in the text; the object has the figures that are promised."""
    seed = a_seed(faults=1)
    result = scores.summarize([a_row(seed, a_finding("THERMAL", says="it is hot"), cure_0=1.5)])
    assert {"cases", "top1", "top2", "both_of_two", "healthy_false", "whatif", "with_experiment", "seeds"} <= set(
        result
    )
    text = scores.as_text(result)
    assert f"Seed {seed}" in text
    assert "it is hot" in text
    assert "x1.50 [1.47-1.53]" in text


def test_what_a_run_took_and_why_cases_are_not_scored_is_told() -> None:
    """Doses that were scaled, rounds, seconds by part, and reasons, in the object and in the text."""
    pilots = (rows.Pilot(doses=(1.5,), gains=(1.0,)), rows.Pilot(doses=(3.0,), gains=(1.6,)))
    seed = a_seed(faults=1)
    scaled = msgspec.structs.replace(
        a_row(seed, right_for(seed, 0), cure_0=1.6),
        pilots=pilots,
        phases={"pilot": 3.0, "rounds": 9.0},
        rounds=3,
        seconds=12.0,
    )
    harmless = msgspec.structs.replace(a_row(seed, a_finding("THERMAL"), cure_0=1.0), pilots=pilots[:1], seconds=8.0)
    unclear = msgspec.structs.replace(harmless, truths={"cure 0": Truth(ratio=1.2, low=0.9, high=1.6, pairs=12)})
    result = scores.summarize([scaled, harmless, unclear])
    assert result["not_scored_by_reason"] == {"harmless": 1, "not clear": 1}
    assert (result["effort"]["pilots"], result["effort"]["scaled"], result["effort"]["rounds"]) == (4, 1, {3: 1})
    assert result["effort"]["seconds"] == pytest.approx(28 / 3)
    text = scores.as_text(result)
    assert "1 harmless, 1 not clear" in text
    assert "1 cases ran with another dose" in text


def test_a_case_is_written_as_it_ran(tmp_path: Path) -> None:
    """With the doses of its row; of a folder that does not hold it, an error says what to do."""
    seed = a_seed(faults=1)
    stronger = draw(seed).with_doses([1.5])
    rows.append(tmp_path / ROWS, [Row(case=stronger)])
    assert case_of(seed, tmp_path) == stronger
    assert case_of(seed, None) == draw(seed)
    with pytest.raises(SettingsError, match="holds no case of seed"):
        case_of(seed + 1, tmp_path)


# --- files


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    """A run that was killed while it wrote goes on with the rows before."""
    path = tmp_path / "rows.jsonl"
    assert rows.read_rows(path) == []
    rows.append(path, [a_row(0, None), a_row(1, None)])
    path.write_bytes(path.read_bytes()[:-5])
    assert [row.seed for row in rows.read_rows(path)] == [0]


def test_a_stored_recording_is_read_again(tmp_path: Path) -> None:
    """Its row comes back with what is said of its run folder today: here that it cannot be read."""
    folder = tmp_path / "runs" / "7"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    path = recordings.store(a_row(7, a_finding("THERMAL")), folder, tmp_path)
    again = recordings.diagnose_one(path)
    assert again.seed == 7
    assert again.said.first is None
    assert again.said.problem


def test_stored_recordings_can_be_scored() -> None:
    """Their rows are read by today's code, and each says what its truth is; all of them together are small."""
    paths = list(recordings.FOLDER.glob("*.tar.xz"))
    assert paths
    for path in paths:
        assert scores.score(recordings.row_of(path)).outcome != "not scored"
    assert sum(path.stat().st_size for path in paths) < 3_000_000


def test_a_lock_whose_removal_costs_throughput_is_not_named_first() -> None:
    """Whoever holds the lock of seed 4 waits for the GIL; without the lock four threads would: it did x0.83 then."""
    row = recordings.diagnose_one(recordings.FOLDER / "4.tar.xz")
    assert row.truths["cure 1"].ratio < 1
    assert row.said.first is not None
    assert row.said.first.verdict in ("GIL", "SERIALIZATION"), row.said.first.says


def test_this_process_is_not_its_own_rival() -> None:
    """Neither it nor its children count, whatever else runs."""
    with rivals.Rivals() as found:
        ours = found._is_ours(os.getpid(), os.getppid())
    assert ours
    assert found.cores >= 0


def test_how_far_apart_two_runs_are_is_told_of_those_that_ran_as_fast_as_they_could() -> None:
    """A given rate, slow polls, a disturbed machine and a missing rate say nothing of it."""
    seeds = [seed for seed in SEEDS if draw(seed).spec.arrivals.keys().isdisjoint(("per_second", "poll_seconds"))][:10]
    fast = [
        msgspec.structs.replace(a_row(seed, None), throughput=10.0, rates={"as it is": 10.0 * (number + 1)})
        for number, seed in enumerate(seeds)
    ]
    paced = next(seed for seed in SEEDS if "per_second" in draw(seed).spec.arrivals)
    others = [
        msgspec.structs.replace(fast[0], case=draw(paced)),
        msgspec.structs.replace(fast[0], rivals=1.0),
        msgspec.structs.replace(fast[0], rates={}),
        msgspec.structs.replace(fast[0], throughput=None),
    ]
    found = apart.summarize([("truth", row) for row in [*fast, *others]])
    assert found["pipelines"] == 10
    assert (found["nine_in_ten"], found["median"]) == (pytest.approx(math.log(9)), pytest.approx(math.log(5)))
    assert "at most x9.00 in nine of ten" in apart.as_text(found)
    assert "No dated result" in apart.as_text(apart.summarize([]))


def test_what_if_takes_what_two_runs_differ_by_from_the_newest_dated_result() -> None:
    """Its constant is that of the file that its comment names."""
    newest = max(RESULTS.glob("runs_apart_*.json"), key=lambda path: json.loads(path.read_text())["written_at"])
    assert round(json.loads(newest.read_text())["data"]["nine_in_ten"], 2) == whatif._RUNS_APART
    assert newest.stem in Path(whatif.__file__).read_text()


def test_a_dropped_stage_leaves_its_workers_to_the_next() -> None:
    """A prediction keeps the workers that a dropped stage shared with the next; so does what is measured."""
    spec, one, after = next(
        (spec, one, after)
        for spec in (draw(seed).spec for seed in itertools.count())
        for one, after in itertools.pairwise(spec.stages)
        if spec.shape == "chain" and one.kind == after.kind == "cpu"
        and spec.setting(f"{one.name}.workers") and spec.setting(f"{after.name}.executor") is None
    )  # fmt: skip
    found = changes._dropped(spec, one.name)
    assert one.name not in [stage.name for stage in found.stages]
    assert found.setting(f"{one.name}.workers") is None
    assert found.workers(after.name) == spec.workers(one.name)
    assert found.setting(f"{after.name}.executor") == "thread"


def test_pytorch_is_loaded_as_the_pipeline_is_made() -> None:
    """Its first item does not wait for seconds, which a profile of four would mostly record."""
    pytest.importorskip("torch")
    code = "import sys; from benchmarks.truth.library import TorchModel; TorchModel(repeats=1); print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "True\n"
