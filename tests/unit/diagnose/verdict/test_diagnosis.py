"""The whole document: goals, refusals, distrust, what comes second and next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from headrace.base.goals import parse_slo
from headrace.cli.diagnosis_text import as_text
from headrace.diagnose.analysis import Analysis
from headrace.diagnose.budget import Budget
from headrace.diagnose.diagnosis import RateGoal, diagnosis_document
from headrace.diagnose.verdict.trust import propose_untrusted
from headrace.runs.formats.diagnosis import SCHEMA, DiagnosisDocument, VerdictClass
from headrace.runs.formats.profile import CpuAccount
from headrace.runs.formats.profiling import OverheadBlock, OverheadEstimate
from headrace.runs.reader import Run

MakeRun = Callable[[Any], Run]


@pytest.fixture
def decoding(made: Any, pipe: Any) -> Any:
    """A pipeline that decoding limits: 10 ms with one worker, 100 a second; latencies from its queue of 16."""
    return pipe(stages=[made(name="decode", work="decode", cpu=0.01), made(name="rest", cpu=0.004)], num_jobs=800)


def test_the_document_goes_through_json(make_run: MakeRun, decoding: Any) -> None:
    """What is printed as JSON is read back as the same document."""
    found = diagnosis_document(Analysis(make_run(decoding)))
    again = msgspec.json.decode(msgspec.json.encode(found), type=DiagnosisDocument)
    assert again.schema == SCHEMA
    assert again.first == found.first


def test_gains_are_the_simulation_s(make_run: MakeRun, decoding: Any) -> None:
    """The verdict's gain is that of its candidate; the tightest bound by hand is the throughput."""
    found = diagnosis_document(Analysis(make_run(decoding)))
    named = {one.name: one.gain for one in found.candidates}
    assert found.first.gain == max(named["stage:decode"], named["workers:decode"])
    assert found.bounds[0].throughput == pytest.approx(100, rel=0.02)
    assert found.throughput == pytest.approx(100, rel=0.02)


def test_what_limits_next_is_named(make_run: MakeRun, decoding: Any) -> None:
    """With decoding out of the way the stage behind it limits."""
    found = diagnosis_document(Analysis(make_run(decoding)))
    assert found.next_bottleneck is not None
    assert found.next_bottleneck.stage == "rest"


def test_goals_that_are_met_are_good_enough(make_run: MakeRun, decoding: Any) -> None:
    """Both goals are met: good enough, and the verdict stands all the same."""
    found = diagnosis_document(Analysis(make_run(decoding)), [parse_slo("p50=1s"), RateGoal(90)])
    assert found.good_enough is True
    assert found.first.verdict is VerdictClass.DECODE


def test_a_goal_that_is_missed_is_not(make_run: MakeRun, decoding: Any) -> None:
    """A rate beyond what the run did is missed, with the rate that it did."""
    found = diagnosis_document(Analysis(make_run(decoding)), [RateGoal(200)])
    assert found.good_enough is False
    assert found.goals[0].measured == pytest.approx(100, rel=0.02)


def test_a_percentile_without_enough_jobs_is_open(make_run: MakeRun, made: Any, pipe: Any) -> None:
    """Of 200 jobs no p99 is known: neither met nor missed, and how many are needed is said."""
    run = make_run(pipe(stages=[made(name="decode", work="decode", cpu=0.01)], num_jobs=200))
    found = diagnosis_document(Analysis(run), [parse_slo("p99=1s")])
    assert found.good_enough is None
    assert "needed" in found.goals[0].why


def test_a_rate_that_never_came_is_open(make_run: MakeRun, made: Any, pipe: Any) -> None:
    """Where no more jobs came, the run does not show how many it could do."""
    run = make_run(
        pipe(stages=[made(name="decode", work="decode", cpu=0.01)], arrivals=np.arange(400) * 0.02, in_flight=64)
    )
    assert diagnosis_document(Analysis(run), [RateGoal(80)]).good_enough is None


def test_a_percentile_that_a_run_does_not_tell_is_open(make_run: MakeRun, decoding: Any) -> None:
    """A run tells p50, p90 and p99; p95 is not made up."""
    found = diagnosis_document(Analysis(make_run(decoding)), [parse_slo("p95=1s")])
    assert found.goals[0].is_met is None
    assert "p90" in found.goals[0].why


def test_too_few_jobs_are_refused(make_run: MakeRun, made: Any, pipe: Any) -> None:
    """Twenty jobs give no verdict: the reason, and the command that gives more."""
    found = diagnosis_document(Analysis(make_run(pipe(stages=[made(name="decode", cpu=0.01)], num_jobs=20))))
    assert found.first.verdict is VerdictClass.INCONCLUSIVE
    assert found.candidates == ()
    assert found.experiment.startswith("headrace profile app:pipeline")


def test_a_run_without_clocks_is_refused(builder: Any) -> None:
    """A run that was not profiled has no CPU times: INCONCLUSIVE, and profile it."""
    ended = np.arange(1, 101) * 0.01
    builder.stage("work").stage("deliver", kind="io")
    builder.spans("work", arrived=ended - 0.01, ended=ended).spans("deliver", arrived=ended, ended=ended)
    found = diagnosis_document(Analysis(builder.finish()))
    assert found.first.verdict is VerdictClass.INCONCLUSIVE
    assert "headrace profile" in found.first.says + found.experiment


def test_a_run_whose_checks_fail_is_untrusted(make_run: MakeRun, decoding: Any) -> None:
    """More deliveries counted than jobs received: UNTRUSTED comes before any stage."""
    from headrace.base.records import Counters

    decoding.changes = {"counters": Counters(received=800, delivered=900)}
    found = diagnosis_document(Analysis(make_run(decoding)))
    assert found.first.verdict is VerdictClass.UNTRUSTED
    assert found.runner_up is not None
    assert found.runner_up.verdict is VerdictClass.DECODE
    assert not found.trusted


def test_profiling_that_costs_a_twelfth_is_untrusted(make_run: MakeRun, decoding: Any, builder: Any) -> None:
    """Blocks with the clocks on take 8 % more CPU per item, surely: the answer would be about profiling."""
    run = make_run(decoding)
    random = np.random.default_rng(3)
    blocks = [
        OverheadBlock(
            on=on, seconds=1.0, items=200, cpu_seconds=(1.08 if on else 1.0) * random.normal(1.0, 0.004),
            passages={"decode": 100, "rest": 100},
        )
        for on in [True, False, False, True] * 8
    ]  # fmt: skip
    builder.profiling(blocks=blocks)
    found = diagnosis_document(Analysis(run))
    assert (found.first.verdict, found.first.cause) == (VerdictClass.UNTRUSTED, "overhead")


@pytest.mark.parametrize(("cores", "is_too_much"), [(1.6, True), (0.5, False), (None, True)])
def test_a_large_share_of_next_to_nothing_is_no_reason_to_distrust(
    make_run: MakeRun, decoding: Any, cores: float | None, is_too_much: bool
) -> None:
    """Profiling takes 8 % more CPU per item; of a run that computes half of the time on one core that is 4 % of a core."""
    seconds = 20.0
    used = None
    if cores is not None:
        used = CpuAccount(
            total_seconds=cores * seconds, elapsed_seconds=seconds, num_cores=4.0, lines=(), explained_share=1.0
        )
    overhead = OverheadEstimate(
        low=1.08, mid=1.1, high=1.12, clocks_ratio=(1.08, 1.1, 1.12), num_pairs=9, says="+10 %",
        helper_core_share=None, writer_core_share=None, thread_core_share=None,
    )  # fmt: skip
    changed = msgspec.structs.replace(Analysis(make_run(decoding)).profile, overhead=overhead, cpu=used)
    assert (propose_untrusted(changed) is not None) is is_too_much


def test_a_noisy_machine_is_warned_of(make_run: MakeRun, decoding: Any) -> None:
    """Others use a core of four: the gains hold for such a machine only, and it says so."""
    decoding.others = 1.0
    found = diagnosis_document(Analysis(make_run(decoding)))
    assert any("noisy" in warning for warning in found.warnings)


def test_missing_is_never_nought(make_run: MakeRun, decoding: Any) -> None:
    """What was not measured supports nothing, and has no value."""
    decoding.others, decoding.receiving = None, None
    found = diagnosis_document(Analysis(make_run(decoding)))
    unknown = [one for one in found.first.evidence if one.value is None]
    assert all(one.supports is None for one in unknown)
    assert found.first.verdict is VerdictClass.DECODE


def test_a_diagnosis_whose_budget_is_used_up_says_what_it_left_out(make_run: MakeRun, decoding: Any) -> None:
    """What limits is not known then, and never called healthy; what was not simulated is listed, in JSON and for readers."""
    found = diagnosis_document(Analysis(make_run(decoding)), budget=Budget(1e-9))
    assert found.candidates == ()
    assert found.first.verdict is VerdictClass.INCONCLUSIVE
    assert "--budget-seconds" in found.first.says
    assert "decode 20 % faster" in found.left_out
    assert msgspec.json.decode(msgspec.json.encode(found), type=DiagnosisDocument).left_out == found.left_out
    text = as_text(found)
    assert f"Not simulated within 1e-09 s of computing: {len(found.left_out)}" in text
    assert "--budget-seconds" in text


def test_a_usual_diagnosis_leaves_nothing_out(make_run: MakeRun, decoding: Any) -> None:
    """The usual budget is many times what a run of a few stages takes."""
    assert diagnosis_document(Analysis(make_run(decoding))).left_out == ()


def test_one_analysis_serves_profile_diagnosis_and_predictions(make_run: MakeRun, decoding: Any) -> None:
    """Evidence is collected and the simulation calibrated once, whoever asks first."""
    analysis = Analysis(make_run(decoding))
    profile, replay = analysis.profile, analysis.replay
    before = replay.num_simulations
    found = diagnosis_document(analysis)
    assert analysis.replay is replay
    assert replay.document is analysis.profile is profile
    assert replay.evidence is analysis.evidence
    assert replay.num_simulations > before
    assert found.throughput == profile.throughput
