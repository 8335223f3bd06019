"""Made-up runs with one thing wrong: the verdict names it, and not what the catalogue of faults calls the wrong answer."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from headrace.base.records import Counters, SourceWork
from headrace.cli.diagnosis_text import as_text
from headrace.diagnose.analysis import Analysis
from headrace.diagnose.budget import Budget
from headrace.diagnose.diagnosis import diagnosis_document
from headrace.diagnose.verdict import cores, flow, intake, python, ranking
from headrace.diagnose.verdict.facts import Facts
from headrace.diagnose.verdict.proposal import Proposal
from headrace.runs.formats.diagnosis import Candidate, DiagnosisDocument, VerdictClass
from headrace.runs.formats.prediction import Change
from headrace.runs.reader import Run, read_run

Diagnose = Callable[..., DiagnosisDocument]


@pytest.fixture
def diagnose(make_run: Callable[[Any], Run], pipe: Any) -> Diagnose:
    """Makes a run and diagnoses it."""

    def run_and_diagnose(*stages: Any, **settings: Any) -> DiagnosisDocument:
        found = diagnosis_document(Analysis(make_run(pipe(stages=list(stages), **settings))))
        print(as_text(found))  # what a failing test shows
        return found

    return run_and_diagnose


@pytest.fixture
def random() -> np.random.Generator:
    """The same numbers in every test."""
    return np.random.default_rng(11)


def model(made: Any, **changes: Any) -> Any:
    """Return a device stage that costs little."""
    values = {"name": "process", "kind": "device", "work": "model", "cpu": 0.001, "batch": 1}
    return made(**(values | changes))


def test_a_stage_that_computes_most_is_named_by_its_work(diagnose: Diagnose, made: Any) -> None:
    """Decoding takes the cores: DECODE, although the device beside it is at work too."""
    found = diagnose(made(name="decode", work="decode", cpu=0.02, workers=2), model(made, cpu=0.005), cores=4)
    assert (found.first.verdict, found.first.stage) == (VerdictClass.DECODE, "decode")
    assert found.first.gain is not None
    assert found.first.gain == pytest.approx(1.2, abs=0.03)
    assert found.first.confidence == "high"


def test_a_stage_behind_a_slow_one_is_not_blamed(diagnose: Diagnose, made: Any) -> None:
    """A slow callback fills every queue before it: CALLBACK, not the model that waits to hand on."""
    found = diagnose(
        made(name="decode", work="decode", cpu=0.002, workers=2),
        model(made, cpu=0.004),
        made(name="deliver", kind="io", work="deliver", cpu=1e-4, wait=0.02),
    )
    assert (found.first.verdict, found.first.stage) == (VerdictClass.CALLBACK, "deliver")


def test_download_latency_asks_for_workers(diagnose: Diagnose, made: Any, random: Any) -> None:
    """Two workers wait for a slow server, whatever the size of what they get: latency, and more workers gain."""
    size = random.integers(50_000, 400_000, 400)
    found = diagnose(
        made(name="fetch", kind="io", work="download", cpu=2e-4, wait=0.02, workers=2, bytes_out=size), model(made)
    )
    assert (found.first.verdict, found.first.cause) == (VerdictClass.DOWNLOAD_LATENCY, "")
    ratio = found.first.remedies[0].ratio
    assert found.first.remedies[0].settings == ("fetch.workers=4",)
    assert ratio is not None
    assert ratio.mid == pytest.approx(2.0, rel=0.1)


def test_bandwidth_does_not_ask_for_workers(diagnose: Diagnose, made: Any, random: Any) -> None:
    """A link hands out bytes one image after the other: time grows with bytes, bytes per second are steady."""
    size = random.integers(50_000, 400_000, 400)
    found = diagnose(
        made(name="fetch", kind="io", work="download", cpu=2e-4, wait=size / 1e7, bytes_out=size), model(made)
    )
    assert (found.first.verdict, found.first.stage) == (VerdictClass.BANDWIDTH, "fetch")
    assert not any(remedy.settings for remedy in found.first.remedies)


def test_a_slow_few_are_a_tail(diagnose: Diagnose, made: Any) -> None:
    """One download in fifty takes fifty times as long: the cause is the tail, not the usual latency."""
    wait = np.full(400, 0.01)
    wait[::50] = 0.5
    found = diagnose(made(name="fetch", kind="io", work="download", cpu=2e-4, wait=wait, workers=2), model(made))
    assert (found.first.verdict, found.first.cause) == (VerdictClass.DOWNLOAD_LATENCY, "tail")


def test_a_connection_for_each_item_is_set_up(diagnose: Diagnose, made: Any) -> None:
    """As many connections as items, and most of the time goes into making them."""
    notes = {"fetch.connections": 400, "fetch.connect_microseconds": 400 * 12_000}
    counters = Counters(received=400, delivered=400, notes=notes)
    found = diagnose(
        made(name="fetch", kind="io", work="download", cpu=2e-4, wait=0.02, workers=2),
        model(made),
        changes={"counters": counters},
    )
    assert (found.first.verdict, found.first.cause) == (VerdictClass.DOWNLOAD_LATENCY, "set-up")


def test_connections_that_are_kept_are_no_set_up(diagnose: Diagnose, made: Any) -> None:
    """Two connections for two workers, kept alive: plain latency."""
    counters = Counters(
        received=400, delivered=400, notes={"fetch.connections": 2, "fetch.connect_microseconds": 9_000}
    )
    found = diagnose(
        made(name="fetch", kind="io", work="download", cpu=2e-4, wait=0.02, workers=2),
        model(made),
        changes={"counters": counters},
    )
    assert found.first.cause == ""


def test_threads_that_wait_for_the_gil(diagnose: Diagnose, made: Any) -> None:
    """Four threads of pure Python do the work of one: GIL, not CPU_SATURATION; a core is free."""
    found = diagnose(
        made(name="preprocess", work="preprocess", cpu=0.01, wait=0.03, state="gil", workers=4, releases_gil=False),
        model(made),
        cores=4,
    )
    assert (found.first.verdict, found.first.stage) == (VerdictClass.GIL, "preprocess")
    assert any("preprocess.executor=process" in remedy.settings for remedy in found.first.remedies)


@pytest.mark.parametrize("cores", [1, 2])
def test_on_one_core_nobody_waits_for_the_gil_alone(diagnose: Diagnose, made: Any, cores: int) -> None:
    """Three stages of Python code that are as dear wait for the GIL: on one full core they would wait for that instead."""
    steps = [
        made(name=name, cpu=0.003, wait=0.006, state="gil", releases_gil=False) for name in ("parse", "look", "rank")
    ]
    found = diagnose(*steps, cores=cores)
    named = [one.verdict for one in (found.first, found.runner_up, found.next_bottleneck) if one is not None]
    assert (VerdictClass.GIL in named) == (cores == 2)


def test_delivery_cannot_run_in_processes_and_is_not_sent_there(diagnose: Diagnose, made: Any) -> None:
    """Encoding results holds the GIL: the advice is what can be followed, and no executor that the runtime refuses."""
    found = diagnose(
        made(name="preprocess", work="preprocess", cpu=0.001),
        made(
            name="deliver", work="deliver", kind="io", cpu=0.01, wait=0.03, state="gil", workers=4, releases_gil=False
        ),
        cores=4,
    )
    assert (found.first.verdict, found.first.cause) == (VerdictClass.SERIALIZATION, "gil")
    assert found.first.stage == "deliver"
    assert not any("executor=process" in setting for remedy in found.first.remedies for setting in remedy.settings)
    assert any("NumPy arrays rather than lists" in remedy.says for remedy in found.first.remedies)


@pytest.mark.parametrize(
    ("size", "verdict"), [(243_000, VerdictClass.SERIALIZATION), (2_000, VerdictClass.CPU_SATURATION)]
)
def test_large_results_are_named_where_all_cores_are_at_work(
    diagnose: Diagnose, made: Any, size: int, verdict: VerdictClass
) -> None:
    """A quarter of the CPU writes results, three stages take the rest: large results are the choice; of small ones no word."""
    stages = [made(name=name, cpu=0.001, delay=0.003) for name in ("pack", "copy", "sort")]
    writes = made(name="deliver", kind="io", work="deliver", cpu=0.001, delay=0.003, bytes_in=size)
    found = diagnose(*stages, writes, cores=1)
    assert found.first.verdict == verdict
    if verdict is VerdictClass.SERIALIZATION:
        assert (found.first.stage, found.first.cause) == ("deliver", "cores")


def test_a_run_that_is_mostly_its_beginning_says_so(facts_of: Callable[[Any], Facts], pipe: Any, made: Any) -> None:
    """A model that serves its first item after 3 s, of some 6 s in all, makes a run that is not understood: profile longer."""
    load = np.concatenate([[3.0], np.full(399, 0.007)])
    facts = facts_of(pipe(stages=[made(name="fetch", cpu=1e-4), model(made, cpu=load)]))
    assert ranking._find_late_stage(facts) is None  # it was served at once, and took long
    spans, own = facts.evidence.spans, facts.evidence.stage_rows("process")
    spans.started[own] = np.maximum(spans.started[own], spans.arrived[own].min() + 3_000_000_000)
    late = ranking._find_late_stage(facts)
    assert late is not None
    assert late == ("process", pytest.approx(3.0, abs=0.01))
    assert "process served its first item 3.00 s after it came" in ranking._describe_misfit(facts, 1.2)
    assert "profile a longer run" in ranking._decide(facts).says


def test_a_delivery_to_a_file_waits_for_no_answer(diagnose: Diagnose, made: Any) -> None:
    """It is blocked, and neither a connection nor a wait for the network was seen: no CALLBACK."""
    found = diagnose(
        model(made, cpu=0.001), made(name="deliver", work="deliver", kind="io", cpu=1e-4, wait=0.02, state="other")
    )
    assert (found.first.verdict, found.first.cause, found.first.stage) == (VerdictClass.DISK, "results", "deliver")


@pytest.mark.parametrize(("every", "is_named"), [(8, True), (1, False)])
def test_a_kind_of_items_that_costs_much_is_named_with_examples(
    diagnose: Diagnose, made: Any, random: Any, every: int, is_named: bool
) -> None:
    """One item in eight takes sixty times as long: the verdict says so and names three of them; all alike are no kind."""
    cost = random.lognormal(0.0, 0.1, 400) * 0.001
    cost[::every] *= 60
    found = diagnose(made(name="denoise", work="preprocess", cpu=cost), model(made, cpu=1e-4))
    assert found.first.stage == "denoise"
    if is_named:
        assert (found.first.verdict, found.first.cause) == (VerdictClass.INPUT_SKEW, "kinds")
        named = found.first.says.partition("Such items: ")[2].split(", ")
        assert len(named) == 3
        assert all(int(name.removeprefix("job-")) % every == 0 for name in named)
    else:
        assert found.first.verdict is VerdictClass.PREPROCESS


@pytest.mark.parametrize(
    ("workers", "cores", "delay", "verdict"),
    [(1, 4, 0.0, VerdictClass.DECODE), (4, 2, 0.02, VerdictClass.CPU_SATURATION)],
)
def test_decoding_at_scale_is_the_first_advice(
    diagnose: Diagnose, made: Any, workers: int, cores: int, delay: float, verdict: VerdictClass
) -> None:
    """It costs nothing: before more workers, and where the cores are saturated before more of them."""
    found = diagnose(
        made(name="decode", work="decode", cpu=0.02, delay=delay, workers=workers),
        model(made, cpu=2e-4),
        cores=cores,
        settings=["model.threads=1", "decode.scale=full"],
    )
    assert found.first.verdict is verdict
    assert found.first.remedies[0].settings == ("decode.scale=auto",)


@pytest.mark.parametrize(
    ("wait", "workers", "verdict"), [(0.0, 1, VerdictClass.POSTPROCESS), (0.03, 4, VerdictClass.GIL)]
)
def test_suppression_in_python_is_sent_to_nms(
    diagnose: Diagnose, made: Any, wait: float, workers: int, verdict: VerdictClass
) -> None:
    """Whether it waits for the GIL or only computes."""
    post = made(
        name="postprocess", work="postprocess", cpu=0.01, wait=wait, state="gil", workers=workers, releases_gil=False
    )
    found = diagnose(model(made, cpu=0.001), post, cores=4)
    assert found.first.verdict is verdict
    assert any("hr.nms" in remedy.says for remedy in found.first.remedies)


def scored(
    verdict: str,
    stage: str | None,
    *,
    gain: float,
    share: float,
    cause: str = "",
    is_seen: bool = False,
    resource: str = "",
) -> ranking._Scored:
    """Return a proposal with its gain."""
    proposal = Proposal(
        verdict=VerdictClass(verdict), stage=stage, cause=cause, says="", rule="", resources=(resource or verdict,),
        share=share, is_seen=is_seen,
    )  # fmt: skip
    return ranking._Scored(proposal, gain, gain - 1, gain - 1)


def test_what_gains_more_comes_first_and_among_alike_what_was_seen() -> None:
    """GC and GIL gain alike, and the collector was seen; the tail gains less, however large its share; own work is last."""
    own = scored("PREPROCESS", "parse", gain=1.18, share=0.0)
    waits = scored("GIL", "parse", gain=1.18, share=0.66)
    seen = scored("GC", "parse", gain=1.17, share=0.4, is_seen=True)
    less = scored("DOWNLOAD_LATENCY", "fetch", gain=1.05, share=0.95, is_seen=True)
    assert ranking._in_order([own, less, waits, seen]) == [seen, waits, own, less]
    small = scored("GC", "parse", gain=1.17, share=0.12, is_seen=True)
    assert ranking._in_order([small, waits]) == [waits, small]
    assert ranking._in_order([scored("GIL", "a", gain=0.9, share=0.5)])  # a loss is in order, too


def test_another_limit_of_about_the_same_gain_is_the_runner_up() -> None:
    """Before another reading of the same resource's time; a smaller one is not."""
    first = scored("LOCK", "parse", gain=1.19, share=0.6)
    same = ranking._Scored(dataclasses.replace(first.proposal, verdict=VerdictClass("GC"), share=0.4), 1.19, 0.19)
    other, small = (scored("CALLBACK", "deliver", gain=gain, share=0.0) for gain in (1.17, 1.04))
    assert ranking._choose_runner_up(first, [same, other]) is other
    assert ranking._choose_runner_up(first, [same, small]) is same


@pytest.mark.parametrize(
    ("verdict", "gain", "is_other"),
    [("CPU_SATURATION", 1.04, True), ("CPU_SATURATION", 1.02, False), ("INCONCLUSIVE", 1.04, False)],
)
def test_a_stage_is_not_named_twice_where_another_is_worth_finding(verdict: str, gain: float, is_other: bool) -> None:
    """Two stages share the cores: that the first of them works is said, the second is not; else its own work is left to say."""
    first = scored(verdict, "parse", gain=1.12, share=0.4)
    own = scored("PREPROCESS", "parse", gain=1.12, share=0.0)
    other = dataclasses.replace(own.proposal, stage="embed")
    small = ranking._Scored(other, gain, gain - 1)
    assert ranking._choose_runner_up(first, [own, small]) is (small if is_other else own)


@pytest.mark.parametrize(
    ("verdict", "cause", "is_behind"),
    [("DEVICE_COMPUTE", "anomaly", True), ("RETRY", "failures", True), ("GIL", "", False)],
)
def test_what_may_be_a_symptom_stands_behind_what_gains_more(verdict: str, cause: str, is_behind: bool) -> None:
    """Dear calls of x1.01 do not come before neighbours of x1.83; of the GIL a simulation may not know yet."""
    special = scored(verdict, "process", gain=1.01, share=0.9, cause=cause)
    ordinary = scored("NEIGHBOUR", None, gain=1.83, share=0.0)
    assert ranking._gains_less(special, [special, ordinary]) is is_behind
    assert not ranking._gains_less(ordinary, [special, ordinary])


def test_what_was_seen_around_a_run_that_is_not_understood(
    facts_of: Callable[[Any], Facts], pipe: Any, made: Any
) -> None:
    """Other programs were counted on the cores: they come before threads that wait for one that lost its core."""
    facts = facts_of(pipe(stages=[made(name="parse", work="preprocess", cpu=0.01, workers=1)]))
    waits = scored("GIL", "parse", gain=1.0, share=0.9)
    around = scored("NEIGHBOUR", None, gain=1.0, share=0.5, is_seen=True)
    inferred = scored("STARVED", None, gain=1.0, share=1.0)
    chosen = ranking._by_facts(facts, [waits, around, inferred])
    assert chosen is not None
    assert chosen.proposal is around.proposal


def test_more_threads_than_cores_saturate_them(diagnose: Diagnose, made: Any) -> None:
    """Four threads of C on two cores wait for a core half of the time: CPU_SATURATION, not GIL."""
    found = diagnose(
        made(name="preprocess", work="preprocess", cpu=0.01, delay=0.01, workers=4), model(made, cpu=2e-4), cores=2
    )
    assert (found.first.verdict, found.first.stage) == (VerdictClass.CPU_SATURATION, "preprocess")


def test_other_programs_are_neighbours(diagnose: Diagnose, made: Any) -> None:
    """Others hold one of two cores, and threads wait for theirs: the environment, not the stage."""
    found = diagnose(
        made(name="decode", work="decode", cpu=0.01, delay=0.01, workers=2), model(made, cpu=2e-4), cores=2, others=1.0
    )
    assert (found.first.verdict, found.first.stage) == (VerdictClass.NEIGHBOUR, None)


def test_neighbours_gain_no_less_than_the_fifth_more_cores_that_they_take(facts_of: Any, made: Any, pipe: Any) -> None:
    """On one core others use 0.38 and the run 0.6: without them it has more than a fifth more."""
    stages = [made(name=name, cpu=0.001, delay=0.00013, workers=2, releases_gil=False) for name in ("score", "blur")]
    facts = facts_of(pipe(stages=stages, cores=1, others=0.38, gauges={("processes", "cpu_cores"): 0.6}))
    [found] = [one for one in cores.rules(facts) if one.verdict is VerdictClass.NEIGHBOUR]
    assert facts.gain(*found.resources) == max(facts.gain("cores"), facts.gain("neighbours"))


@pytest.mark.parametrize(("others", "is_kept"), [(0.6, False), (0.9, True)])
def test_where_cores_are_left_over_a_fifth_of_what_neighbours_take_counts(
    facts_of: Any, made: Any, pipe: Any, others: float, is_kept: bool
) -> None:
    """The run uses 0.95 of two cores; only where all are at work is their going compared with a fifth more of something."""
    stages = [made(name=name, cpu=0.001, delay=0.0004, workers=2, releases_gil=False) for name in ("score", "blur")]
    facts = facts_of(pipe(stages=stages, cores=2, others=others, gauges={("processes", "cpu_cores"): 0.95}))
    facts = dataclasses.replace(
        facts,
        candidates=(
            Candidate(name="neighbours", kind="neighbours", stage=None, gain=1.25, says="others go", utilization=None),
        ),
    )
    [found] = [one for one in cores.rules(facts) if one.verdict is VerdictClass.NEIGHBOUR]
    assert facts.gain(*found.resources) == 1.25
    fifth = 1.25 ** (math.log(1.2) / math.log(1 + facts.other_cores / facts.own_cores))
    assert ranking._score_alike(facts, found) == pytest.approx((1.25 if is_kept else fifth) - 1)


def test_a_quota_stops_the_run(diagnose: Diagnose, made: Any) -> None:
    """Throttled in four of five periods: QUOTA, not the stage that computes."""
    found = diagnose(
        made(name="decode", work="decode", cpu=0.01, delay=0.01, workers=2),
        model(made, cpu=2e-4),
        cores=2,
        quota=1.0,
        gauges={("machine", "throttled_ratio"): 0.8},
    )
    assert found.first.verdict is VerdictClass.QUOTA


@pytest.mark.parametrize(
    ("stopped", "verdict"), [(0.5, VerdictClass.QUOTA), (0.02, VerdictClass.GIL), (None, VerdictClass.GIL)]
)
def test_stops_that_were_seen_outrank_a_smaller_gain_by_simulation(
    diagnose: Diagnose, made: Any, stopped: float | None, verdict: VerdictClass
) -> None:
    """Threads stopped with the GIL look like waiting for it; how long they were stopped was seen, and decides."""
    time = {} if stopped is None else {("machine", "throttled_cpu_cores"): stopped}
    found = diagnose(
        made(name="decode", work="decode", cpu=0.002, wait=0.002, state="gil", workers=2, releases_gil=False),
        model(made, cpu=5e-4),
        cores=2,
        quota=1.5,
        gauges={("machine", "throttled_ratio"): 0.87, **time},
    )
    assert found.first.verdict is verdict
    if verdict is VerdictClass.QUOTA:
        own = next(one.value for one in found.first.evidence if one.name == "cores")
        assert own is not None
        assert found.first.gain == pytest.approx(min(1 + 0.2 * 0.87, (1.5 * own + 0.5) / (1.5 * own)))
        assert not any(remedy.ratio for remedy in found.first.remedies)


def test_workers_that_take_turns_share_a_lock(diagnose: Diagnose, made: Any) -> None:
    """Four workers, one at a time, cores free: LOCK, not GIL."""
    found = diagnose(
        made(name="preprocess", work="preprocess", cpu=0.01, wait=0.03, state="lock", workers=4), model(made), cores=4
    )
    assert (found.first.verdict, found.first.stage) == (VerdictClass.LOCK, "preprocess")


def test_the_collector_is_named_before_the_stage_it_runs_in(diagnose: Diagnose, made: Any) -> None:
    """Two fifths of the time in the cyclic collector: GC, not PREPROCESS."""
    seconds = np.linspace(0.0, 4.0 * 0.4, 60)
    found = diagnose(
        made(name="preprocess", work="preprocess", cpu=0.01), model(made), gauges={("run", "gc_seconds"): seconds}
    )
    assert found.first.verdict is VerdictClass.GC
    assert found.runner_up is not None
    assert found.runner_up.verdict is VerdictClass.PREPROCESS


@pytest.mark.parametrize(
    ("seen", "part", "stage", "of_its_work"),
    [
        ("stage:parse", 0.6, "parse", 0.24),
        ("stage:parse", 0.4, "parse", 0.16),
        ("source", 1.0, "preprocess", 0.36),
    ],
)
def test_the_collector_is_where_it_was_seen(
    facts_of: Callable[[Any], Facts], pipe: Any, made: Any, seen: str, part: float, stage: str, of_its_work: float
) -> None:
    """A stage that computes less than another collects; none does most of it if nobody looked, or others than stages did.

    Without the collector its stage is faster by what that took of it, and no more.
    """
    seconds = np.linspace(0.0, 4.0 * 0.4, 60)
    stages = [made(name="preprocess", work="preprocess", cpu=0.011), made(name="parse", cpu=0.01)]
    gauges = {("run", "gc_seconds"): seconds, (seen, "gc_seconds"): part * seconds}
    proposals = ranking.all_proposals(facts_of(pipe(stages=stages, gauges=gauges)))
    (found,) = [one for one in proposals if one.verdict is VerdictClass.GC]
    assert found.stage == stage
    assert ("most of it in parse" in found.says) is (part == 0.6)
    assert found.removal is not None
    assert found.removal.speedups[stage] == pytest.approx(1 / (1 - of_its_work), rel=0.05)


@pytest.mark.parametrize(("workers", "delay", "faster"), [(1, 0.0, 1.11), (16, 0.038, 1.5)])
def test_without_the_collector_a_stage_waits_for_its_server_as_before(
    facts_of: Callable[[Any], Facts], pipe: Any, made: Any, workers: int, delay: float, faster: float
) -> None:
    """It computes for 3 of 10 ms, a third of that collects: without it one worker takes 9 ms, and the cores have 2 to do."""
    count = 400
    seconds = np.linspace(0.0, count * 0.001, 60)
    load = made(name="load", kind="io", cpu=0.003, wait=0.007, delay=delay, workers=workers)
    gauges = {("run", "gc_seconds"): seconds, ("stage:load", "gc_seconds"): seconds}
    facts = facts_of(pipe(stages=[load], num_jobs=count, cores=1, gauges=gauges))
    (found,) = [one for one in python.rules(facts) if one.verdict is VerdictClass.GC]
    assert found.removal is not None
    assert found.removal.speedups["load"] == pytest.approx(faster, rel=0.05)


@pytest.mark.parametrize(("wait", "delay", "is_lesser"), [(0.0046, 0.0011, True), (0.0057, 0.0, False)])
def test_waiting_for_a_core_is_part_of_a_stage_s_own_work(
    facts_of: Callable[[Any], Facts], pipe: Any, made: Any, wait: float, delay: float, is_lesser: bool
) -> None:
    """A stage waits 4.6 of 10 ms for the GIL of another: its own 4.3 are more with the 1.1 that they wait for a core."""
    waiting = made(name="blur", cpu=0.0043, wait=wait, delay=delay, state="gil", meanwhile="parse")
    facts = facts_of(pipe(stages=[waiting, made(name="parse", cpu=0.005, releases_gil=False)]))
    (found,) = [one for one in ranking.all_proposals(facts) if one.verdict is VerdictClass.GIL]
    assert found.stage == "parse"
    assert found.is_lesser is is_lesser


@pytest.mark.parametrize(("seen", "verdict"), [("stage:parse", VerdictClass.GC), ("source", VerdictClass.GIL)])
def test_a_collector_that_is_much_of_the_holder_s_work_is_named_before_the_gil(
    diagnose: Diagnose, made: Any, seen: str, verdict: VerdictClass
) -> None:
    """What waits for the GIL waits longer than the collector runs; that it runs is why."""
    seconds = np.linspace(0.0, 4.0 * 0.27, 60)
    waiting = made(name="preprocess", work="preprocess", cpu=0.002, wait=0.006, state="gil", meanwhile="parse")
    holding = made(name="parse", cpu=0.008, wait=0.002, releases_gil=False)
    gauges = {("run", "gc_seconds"): seconds, (seen, "gc_seconds"): seconds}
    found = diagnose(waiting, holding, gauges=gauges)
    assert (found.first.verdict, found.first.stage) == (verdict, "parse")


@pytest.mark.parametrize(
    ("holds", "other", "seconds", "is_fused"), [(0.008, 0.01, 1.1, True), (0.0015, 0.006, 0.21, False)]
)
def test_the_gil_comes_first_where_the_collector_is_little(
    facts_of: Callable[[Any], Facts], pipe: Any, made: Any, holds: float, other: float, seconds: float, is_fused: bool
) -> None:
    """Little of what the holder's workers compute, in stages fused with it too, or so little that `GC` is not named at all."""
    waiting = made(name="preprocess", work="preprocess", cpu=0.0005, wait=0.006, state="gil", meanwhile="parse")
    stages = [waiting, made(name="parse", cpu=holds, releases_gil=False), made(name="load", cpu=other)]
    collected = np.linspace(0.0, seconds, 60)
    gauges = {("run", "gc_seconds"): collected, ("stage:parse", "gc_seconds"): collected}
    facts = facts_of(pipe(stages=stages, gauges=gauges))
    if is_fused:
        account = msgspec.structs.replace(facts.stages[2].account, station="parse")
        fused = dataclasses.replace(facts.stages[2], account=account)
        facts = dataclasses.replace(facts, stages=(*facts.stages[:2], fused))
    (found,) = [one for one in python.rules(facts) if one.verdict is VerdictClass.GIL]
    assert (found.stage, found.is_lesser) == ("parse", False)


@pytest.mark.parametrize(
    ("is_seen", "gain", "verdict"),
    [
        (True, 1.22, VerdictClass.GC),
        (False, 1.22, VerdictClass.NEIGHBOUR),
        (True, 1.1, VerdictClass.NEIGHBOUR),
    ],
)
def test_what_was_seen_of_the_same_resource_is_the_runner_up(is_seen: bool, gain: float, verdict: VerdictClass) -> None:
    """A collector takes the cores that a quota allows: named before another resource, if it was seen and gains as much."""
    first = scored("QUOTA", None, gain=1.23, share=0.97, is_seen=True, resource="cores")
    collects = scored("GC", None, gain=gain, share=0.1, is_seen=is_seen, resource="cores")
    others = scored("NEIGHBOUR", None, gain=1.2, share=0.5, is_seen=True, resource="neighbours")
    found = ranking._choose_runner_up(first, [collects, others])
    assert found is not None
    assert found.proposal.verdict is verdict


@pytest.mark.parametrize(("size", "is_named"), [(243_000, True), (2_000, False)])
def test_large_results_are_named_beside_a_collector(diagnose: Diagnose, made: Any, size: int, is_named: bool) -> None:
    """A tenth of what is computed writes results: a fifth less of that gains little, and none of it another tenth."""
    seconds = np.linspace(0.0, 3.0, 60)
    found = diagnose(
        made(name="parse", cpu=0.006, delay=0.0008, releases_gil=False),
        made(name="deliver", kind="io", work="deliver", cpu=0.0007, delay=0.004, bytes_in=size),
        cores=1,
        runtime=1e-5,
        gauges={("run", "gc_seconds"): seconds, ("stage:parse", "gc_seconds"): seconds},
    )
    named = [(one.verdict, one.cause) for one in (found.first, found.runner_up, found.next_bottleneck) if one]
    assert named[0][0] is VerdictClass.GC
    assert ((VerdictClass.SERIALIZATION, "cores") in named) is is_named, named


@pytest.mark.parametrize(("cpu", "resource"), [(0.0015, "stage:deliver"), (0.004, "gil")])
def test_writing_results_is_named_where_stages_wait_for_the_gil(
    facts_of: Callable[[Any], Facts], pipe: Any, made: Any, cpu: float, resource: str
) -> None:
    """A seventh of what is computed stands for itself; a third of it for the GIL, which it takes from all else."""
    stages = [
        made(name="preprocess", work="preprocess", cpu=0.002, wait=0.006, state="gil", meanwhile="parse"),
        made(name="parse", cpu=0.006, wait=0.002, releases_gil=False),
        made(name="deliver", kind="io", work="deliver", cpu=cpu, bytes_in=243_000),
    ]
    (found,) = [one for one in cores.rules(facts_of(pipe(stages=stages))) if one.cause == "gil"]
    assert (found.verdict, found.stage, found.resources[0]) == (VerdictClass.SERIALIZATION, "deliver", resource)
    (waits,) = [one for one in found.evidence if one.name == "gil"]
    assert "preprocess's service waiting for the GIL: 75%" in waits.says
    assert not any("more cores" in one.says for one in found.advice)


def test_a_small_cause_that_was_seen_is_not_what_limits_next(diagnose: Diagnose, made: Any) -> None:
    """Behind decoding a stage has the GIL, for which another waits most of its time; an eighth of all computing collects."""
    seconds = np.linspace(0.0, 1.0, 60)
    found = diagnose(
        made(name="decode", work="decode", cpu=0.02),
        made(name="look", cpu=0.002, wait=0.006, state="gil", meanwhile="parse"),
        made(name="parse", cpu=0.01, releases_gil=False),
        gauges={("run", "gc_seconds"): seconds, ("stage:parse", "gc_seconds"): seconds},
    )
    assert (found.first.verdict, found.first.stage) == (VerdictClass.DECODE, "decode")
    assert found.next_bottleneck is not None
    assert (found.next_bottleneck.verdict, found.next_bottleneck.stage) == (VerdictClass.GIL, "parse")


def test_a_third_cause_is_left_out_and_said_to_be_once_the_budget_is_used_up(
    facts_of: Callable[[Any], Facts], pipe: Any, made: Any
) -> None:
    """As everything else is that was not simulated."""
    seconds = np.linspace(0.0, 3.0, 60)
    stages = [
        made(name="parse", cpu=0.006, delay=0.0008, releases_gil=False),
        made(name="deliver", kind="io", work="deliver", cpu=0.0007, delay=0.004, bytes_in=243_000),
    ]
    gauges = {("run", "gc_seconds"): seconds, ("stage:parse", "gc_seconds"): seconds}
    facts = facts_of(pipe(stages=stages, cores=1, runtime=1e-5, gauges=gauges))
    found = {one.verdict: one for one in ranking.all_proposals(facts) if one.is_seen}
    collects, writes = found[VerdictClass.GC], found[VerdictClass.SERIALIZATION]
    others = [ranking._Scored(writes, None, 0.0)]
    assert ranking._name_another(facts, collects, None, others) is not None
    facts.replay.budget = Budget(1e-9)
    assert ranking._name_another(facts, collects, None, others) is None
    assert facts.replay.budget.left_out == ["what SERIALIZATION costs beside the others"]


def test_two_causes_are_removed_with_the_settings_of_both() -> None:
    """What headrace itself takes goes by settings, what a stage does by its speed."""
    fused, faster = Change(settings=("look.executor=inline",)), Change(speedups={"parse": 4.0})
    both = Change(settings=fused.settings, speedups=faster.speedups)
    assert ranking._together(fused, faster) == ranking._together(faster, fused) == both


def test_reading_waits_for_the_disk(diagnose: Diagnose, made: Any) -> None:
    """A reader that is blocked on the disk: DISK, not DECODE."""
    found = diagnose(
        made(name="read", kind="io", work="download", cpu=1e-4, wait=0.02, state="disk"),
        made(name="decode", work="decode", cpu=0.005),
        model(made),
    )
    assert (found.first.verdict, found.first.stage) == (VerdictClass.DISK, "read")


def test_a_compute_stage_that_waits_for_the_disk_writes_a_log(diagnose: Diagnose, made: Any) -> None:
    """Preprocess reads nothing and waits for the disk while the run writes: LOGGING, not DISK."""
    found = diagnose(
        made(name="preprocess", work="preprocess", cpu=0.002, wait=0.01, state="disk"),
        model(made),
        gauges={("processes", "write_bytes_per_second"): 1e6, ("processes", "read_bytes_per_second"): 0.0},
    )
    assert (found.first.verdict, found.first.stage) == (VerdictClass.LOGGING, "preprocess")


def test_a_log_is_not_guessed(diagnose: Diagnose, made: Any) -> None:
    """The same where nobody counted what was read and written: it waits for the disk, and no more is known."""
    found = diagnose(made(name="preprocess", work="preprocess", cpu=0.002, wait=0.01, state="disk"), model(made))
    assert (found.first.verdict, found.first.stage) == (VerdictClass.DISK, "preprocess")


def test_pages_from_swap_are_memory_pressure(diagnose: Diagnose, made: Any) -> None:
    """Blocked on the disk under memory pressure: MEMORY_PRESSURE, not DISK."""
    found = diagnose(
        made(name="preprocess", work="preprocess", cpu=0.002, wait=0.01, state="disk"),
        model(made),
        gauges={("machine", "memory_pressure_ratio"): 0.4, ("processes", "major_faults_per_second"): 500.0},
    )
    assert found.first.verdict is VerdictClass.MEMORY_PRESSURE


def test_a_device_kept_at_work_computes(diagnose: Diagnose, made: Any) -> None:
    """Full batches, a queue that is full: DEVICE_COMPUTE, not the framework."""
    curve = {1: [0.01], 2: [0.02], 4: [0.04], 8: [0.08]}
    found = diagnose(
        made(name="decode", work="decode", cpu=0.002, workers=2),
        model(made, cpu=0.08, batch=8),
        changes={"cost_curves": {"process": curve}},
    )
    assert (found.first.verdict, found.first.cause) == (VerdictClass.DEVICE_COMPUTE, "")


def test_a_fixed_cost_at_batch_one_is_launching(diagnose: Diagnose, made: Any) -> None:
    """A call costs 20 ms and an item 1 ms: LAUNCH, and a larger batch buys most of it."""
    curve = {size: [0.02 + 0.001 * size] for size in (1, 2, 4, 8)}
    found = diagnose(
        made(name="decode", work="decode", cpu=0.001),
        model(made, cpu=0.021),
        changes={"cost_curves": {"process": curve}},
    )
    assert (found.first.verdict, found.first.stage) == (VerdictClass.LAUNCH, "process")
    assert found.first.remedies[0].settings == ("process.batch=8",)
    assert found.first.remedies[0].ratio is not None
    assert found.first.remedies[0].ratio.mid > 3


def test_calls_of_one_kind_that_cost_more_are_an_anomaly(diagnose: Diagnose, made: Any) -> None:
    """Every fifth call takes eight times as long at the same shape: an anomaly, not a matter of the batch."""
    cpu = np.full(400, 0.005)
    cpu[::5] = 0.04
    found = diagnose(made(name="decode", work="decode", cpu=0.001, shape="float32 (10,)"), model(made, cpu=cpu))
    assert (found.first.verdict, found.first.cause) == (VerdictClass.DEVICE_COMPUTE, "anomaly")
    assert "same batch and shape cost from 5.00 ms to 8.0 times as much; why was not measured" in found.first.says
    assert "as if all were cheap" in found.first.remedies[0].says


@pytest.mark.parametrize("is_noted", [True, False])
def test_calls_whose_inputs_differ_or_are_not_known_are_no_anomaly(
    diagnose: Diagnose, made: Any, is_noted: bool
) -> None:
    """Every fifth input is larger and costs more; all outputs have one shape, which says nothing of the inputs."""
    cpu = np.full(400, 0.005)
    cpu[::5] = 0.04
    shapes = ["float32 (80, 80)", *["float32 (10, 10)"] * 4] * 80
    before = made(name="preprocess", work="preprocess", cpu=0.001, shape=shapes if is_noted else None)
    found = diagnose(before, model(made, cpu=cpu, shape="float32 (1,)"))
    assert "anomaly" not in {one.cause for one in (found.first, found.runner_up, found.next_bottleneck) if one}


@pytest.mark.parametrize(
    ("native", "gain"),
    [(0.0, 2.0), (2.0, 2.0 / 1.5), (None, None)],
)
def test_a_layout_of_threads_that_costs_nothing_is_the_first_remedy(
    make_run: Callable[[Any], Run], builder: Any, pipe: Any, made: Any, native: float | None, gain: float | None
) -> None:
    """One worker of two threads: two of one thread each, with what its threads leave idle; without a number if not known."""
    run = make_run(_one_worker_of_two_threads(pipe, made))
    if native is not None:
        builder.profiling(process_cpu_seconds=4.1 + native, native_cpu_seconds=native)
    found = diagnosis_document(Analysis(read_run(run.path))).first
    assert found.verdict is VerdictClass.DEVICE_COMPUTE
    first = found.remedies[0]
    assert first.settings == ("process.workers=2", "model.threads=1")
    assert first.command.startswith("headrace profile" if gain is None else "headrace whatif")
    assert (first.ratio and first.ratio.mid) == (gain and pytest.approx(gain, rel=0.05))


def test_threads_that_are_never_idle_are_left_as_they_are(
    make_run: Callable[[Any], Run], builder: Any, pipe: Any, made: Any
) -> None:
    """A call that keeps both its threads busy leaves another layout nothing to gain."""
    run = make_run(_one_worker_of_two_threads(pipe, made))
    builder.profiling(process_cpu_seconds=8.1, native_cpu_seconds=4.0)
    found = diagnosis_document(Analysis(read_run(run.path))).first
    assert found.verdict is VerdictClass.DEVICE_COMPUTE
    assert not any(one.settings for one in found.remedies)


def _one_worker_of_two_threads(pipe: Any, made: Any) -> Any:
    """Return a run of a model whose one worker has both cores."""
    return pipe(
        stages=[made(name="decode", work="decode", cpu=1e-5), model(made, cpu=0.01)],
        cores=2,
        settings=["model.threads=2"],
        changes={"variants": [{"engine": "onnx", "threads": 2}], "options": ["--source", "photos"]},
    )


def test_first_sights_of_shapes_are_warm_up(diagnose: Diagnose, made: Any) -> None:
    """The first item of every shape takes forty times as long as those after it: WARMUP, not jitter."""
    shapes = [f"float32 ({number // 20}, 8)" for number in range(400)]
    cpu = np.full(400, 0.002)
    cpu[::20] = 0.08
    found = diagnose(made(name="resize", work="resize", cpu=2e-4, shape=shapes), model(made, cpu=cpu))
    assert (found.first.verdict, found.first.stage) == (VerdictClass.WARMUP, "process")


def test_cores_that_slow_down_are_thermal(diagnose: Diagnose, made: Any) -> None:
    """CPU per item rises in every stage alike while inputs stay: THERMAL, not INPUT_SKEW."""
    rise = np.linspace(1.0, 2.0, 400)
    found = diagnose(
        made(name="decode", work="decode", cpu=0.01 * rise),
        made(name="preprocess", cpu=0.006 * rise),
        model(made, cpu=1e-4),
    )
    assert found.first.verdict is VerdictClass.THERMAL


def test_a_stage_that_waits_is_not_slow_because_the_cores_are(diagnose: Diagnose, made: Any) -> None:
    """Its CPU time grows with that of all others, and a download still takes 30 ms of waiting: more of them at a time help."""
    rise = np.linspace(1.0, 2.0, 400)
    found = diagnose(
        made(name="fetch", work="download", kind="io", cpu=0.001 * rise, wait=0.03),
        made(name="preprocess", cpu=0.001 * rise),
        model(made, cpu=1e-4),
    )
    assert (found.first.verdict, found.first.stage) == (VerdictClass.DOWNLOAD_LATENCY, "fetch")


def test_larger_inputs_are_skew(diagnose: Diagnose, made: Any) -> None:
    """Decoding takes longer because images grow: INPUT_SKEW, not a slower decoder."""
    size = np.linspace(100_000, 400_000, 400)
    found = diagnose(made(name="decode", work="decode", cpu=size * 5e-8, bytes_in=size), model(made, cpu=1e-4))
    assert (found.first.verdict, found.first.stage) == (VerdictClass.INPUT_SKEW, "decode")


def test_a_slower_decoder_is_not_skew(diagnose: Diagnose, made: Any, random: Any) -> None:
    """The cost rises and the sizes do not: no INPUT_SKEW."""
    size = random.integers(100_000, 400_000, 400)
    found = diagnose(
        made(name="decode", work="decode", cpu=np.linspace(0.01, 0.02, 400), bytes_in=size), model(made, cpu=1e-4)
    )
    assert found.first.verdict is VerdictClass.DECODE


def test_large_results_are_serialization(diagnose: Diagnose, made: Any) -> None:
    """The delivery computes, on results of a megabyte: SERIALIZATION, not the network."""
    found = diagnose(
        model(made), made(name="deliver", kind="io", work="deliver", cpu=0.01, wait=0.001, bytes_in=1_000_000)
    )
    assert (found.first.verdict, found.first.stage) == (VerdictClass.SERIALIZATION, "deliver")


def test_a_stage_after_the_model_postprocesses(diagnose: Diagnose, made: Any) -> None:
    """A user's own stage that computes behind the model: POSTPROCESS."""
    found = diagnose(model(made), made(name="boxes", cpu=0.01))
    assert (found.first.verdict, found.first.stage) == (VerdictClass.POSTPROCESS, "boxes")


@pytest.mark.parametrize("state", ["sleep", "process", "network", "unknown"])
def test_a_compute_stage_that_waits_is_given_workers(diagnose: Diagnose, made: Any, state: str) -> None:
    """Kind cpu, next to no CPU time and no waiting for a core: the advice is to wait side by side, not to make code cheaper."""
    found = diagnose(made(name="look", cpu=1e-4, wait=0.01, state=state, workers=2), cores=4)
    assert found.first.stage == "look"
    assert found.first.remedies[0].settings == ("look.workers=4",)
    ratio = found.first.remedies[0].ratio
    assert ratio is not None
    assert ratio.mid == pytest.approx(2.0, rel=0.1)
    advice = " ".join(remedy.says for remedy in found.first.remedies)
    assert "cheaper" not in advice
    assert ('kind="io"' in advice) == (state != "network")


@pytest.mark.parametrize("changes", [{"cpu": 0.01}, {"cpu": 1e-4, "delay": 0.01}, {"wait": 0.01, "state": "lock"}])
def test_a_compute_stage_that_does_not_wait_is_made_cheaper(facts_of: Any, pipe: Any, made: Any, changes: Any) -> None:
    """It computes, or waits for a core or a lock: nobody calls that waiting for something outside."""
    facts = facts_of(pipe(stages=[made(name="look", **changes)]))
    says = " ".join(one.says for one in cores.rules(facts) if one.stage == "look" and not one.share)
    assert "per item" in says
    assert "waits rather than computes" not in says


def test_too_few_arrivals_are_no_fault(diagnose: Diagnose, made: Any) -> None:
    """Half as many jobs come as could be done: ARRIVAL_LIMITED with its headroom, and no stage named."""
    found = diagnose(
        made(name="decode", work="decode", cpu=0.01), model(made), arrivals=np.arange(400) * 0.02, in_flight=64
    )
    assert (found.first.verdict, found.first.stage) == (VerdictClass.ARRIVAL_LIMITED, None)
    assert "2.0 times" in found.first.says


def test_a_broker_that_gives_one_job_a_call(diagnose: Diagnose, made: Any) -> None:
    """Jobs wait in the queue and a call of 20 ms brings one of ten: BROKER, not too few arrivals."""
    received = {
        "calls": 400, "empty_calls": 0, "jobs": 400, "asked": 4000, "full_calls": 0, "call_seconds": 8.0,
        "empty_call_seconds": 0.0, "blocked_seconds": 0.05, "last_age_seconds": 9.0, "mean_age_seconds": 5.0,
    }  # fmt: skip
    found = diagnose(
        made(name="decode", work="decode", cpu=0.002),
        model(made),
        arrivals=np.arange(400) * 0.02,
        receiving=received,
        in_flight=64,
        gauges={("source", "visible"): 300.0},
    )
    assert found.first.verdict is VerdictClass.BROKER
    assert found.first.remedies[0].settings == ("source.receivers=4",)


@pytest.mark.parametrize(("age", "verdict"), [(9.0, VerdictClass.SOURCE), (None, VerdictClass.STARVED)])
def test_a_source_that_is_slow(diagnose: Diagnose, made: Any, age: float | None, verdict: VerdictClass) -> None:
    """It takes 200 ms to hand out ten jobs: SOURCE if they are old; else it may be that there are none, STARVED."""
    received = {
        "calls": 40, "empty_calls": 0, "jobs": 400, "asked": 400, "full_calls": 40, "call_seconds": 8.0,
        "empty_call_seconds": 0.0, "blocked_seconds": 0.05, "last_age_seconds": age,
    }  # fmt: skip
    found = diagnose(
        made(name="decode", work="decode", cpu=0.002), model(made), arrivals=np.arange(400) * 0.02, receiving=received
    )
    assert found.first.verdict is verdict
    if verdict is VerdictClass.STARVED:
        assert not any(remedy.ratio or remedy.settings for remedy in found.first.remedies)
        assert next(remedy.command for remedy in found.first.remedies if remedy.command).endswith("--experiment")
        assert found.runner_up is not None
        assert found.runner_up.verdict is VerdictClass.SOURCE
        assert "not measured" in found.first.says
        assert "not measured" in found.runner_up.says
        assert found.first.confidence != "high"


@pytest.mark.parametrize(("is_decoding", "verdict"), [(True, VerdictClass.DECODE), (False, VerdictClass.SOURCE)])
def test_a_source_that_has_all_its_jobs_is_not_starved(
    diagnose: Diagnose, made: Any, is_decoding: bool, verdict: VerdictClass
) -> None:
    """It brings one of ten jobs in 20 ms, and says at what it works: no broker, no sender; its own ways out are named."""
    received = {
        "calls": 400, "empty_calls": 200, "jobs": 400, "asked": 4000, "full_calls": 0, "call_seconds": 8.0,
        "empty_call_seconds": 4.0, "blocked_seconds": 0.05,
    }  # fmt: skip
    work = SourceWork(
        does="decodes frames with 1 thread", is_decoding=is_decoding, cheaper=("take fewer frames: fps=5",)
    )
    found = diagnose(
        made(name="shrink", cpu=0.002), model(made), arrivals=np.arange(400) * 0.02, receiving=received,
        changes={"source_work": work},
    )  # fmt: skip
    assert (found.first.verdict, found.first.stage) == (verdict, None)
    assert "decodes frames with 1 thread" in found.first.says
    way, question = found.first.remedies
    assert (way.says, way.settings) == ("take fewer frames: fps=5", ())
    assert question.command.endswith("--speedup receiving=2")


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, VerdictClass.BROKER),
        ({"gap_correlation": -0.45}, VerdictClass.STARVED),
        ({"gap_correlation": None}, VerdictClass.STARVED),
        ({"gap_spread": 1.0}, VerdictClass.STARVED),
        ({"most_calls": 60}, VerdictClass.STARVED),
        ({"most_jobs": 1}, VerdictClass.STARVED),
        ({"asked": 410}, VerdictClass.STARVED),
    ],
    ids=["its own time", "a clock", "not recorded", "at random", "as many as there are", "one by one", "all asked for"],
)
def test_a_source_that_hands_out_few_at_a_time(
    diagnose: Diagnose, made: Any, changes: dict[str, Any], verdict: VerdictClass
) -> None:
    """It does not tell what waits in it; four of ten, 40 ms each, at no clock's times, are BROKER."""
    received = {
        "calls": 100, "empty_calls": 0, "jobs": 400, "asked": 1000, "full_calls": 0, "call_seconds": 4.0,
        "empty_call_seconds": 0.0, "blocked_seconds": 0.05, "most_jobs": 4, "most_calls": 100, "gap_spread": 0.02,
        "gap_correlation": 0.05,
    }  # fmt: skip
    found = diagnose(
        made(name="decode", work="decode", cpu=0.002), model(made), arrivals=np.arange(400) * 0.01,
        receiving=received | changes,
    )  # fmt: skip
    assert found.first.verdict is verdict
    is_regular = changes.keys().isdisjoint({"gap_correlation", "gap_spread"}) or changes == {"gap_correlation": None}
    second = found.runner_up and found.runner_up.verdict
    assert (second is VerdictClass.SOURCE) == (verdict is VerdictClass.STARVED and is_regular)


def test_two_equal_stages_tie(diagnose: Diagnose, made: Any) -> None:
    """Decoding and the model take equally long with a worker each: TIE, both named, and a single fix buys little."""
    found = diagnose(made(name="decode", work="decode", cpu=0.01), model(made, cpu=0.01), cores=4)
    assert found.first.verdict is VerdictClass.TIE
    assert "decode" in found.first.says
    assert "process" in found.first.says
    assert found.first.gain is not None
    assert found.first.gain < 1.05


@pytest.mark.parametrize(("model_seconds", "verdict"), [(0.0095, VerdictClass.TIE), (0.008, VerdictClass.DECODE)])
def test_a_tie_is_within_a_tenth(diagnose: Diagnose, made: Any, model_seconds: float, verdict: VerdictClass) -> None:
    """Decoding at 10 ms ties with a model of 9.5 ms; one of 8 ms leaves it to decoding."""
    found = diagnose(made(name="decode", work="decode", cpu=0.01), model(made, cpu=model_seconds), cores=4)
    assert found.first.verdict is verdict


def test_equal_shares_of_the_cores_tie(diagnose: Diagnose, made: Any) -> None:
    """Two stages share two cores evenly: each alone gives half of what both give."""
    found = diagnose(
        made(name="decode", work="decode", cpu=0.01, delay=0.005, workers=2),
        made(name="preprocess", work="preprocess", cpu=0.01, delay=0.005, workers=2),
        model(made, cpu=1e-4),
        cores=2,
    )
    assert found.first.verdict is VerdictClass.TIE


def test_wasted_deliveries_are_retries(diagnose: Diagnose, made: Any) -> None:
    """Three in ten tries to deliver fail: RETRY, not just a slow callback."""
    outcome = ["failed" if number % 10 < 3 else "ok" for number in range(400)]
    found = diagnose(
        made(name="decode", work="decode", cpu=0.001),
        model(made),
        made(name="deliver", kind="io", work="deliver", cpu=1e-4, wait=0.02, outcome=outcome),
    )
    assert (found.first.verdict, found.first.cause) == (VerdictClass.RETRY, "failures")


@pytest.mark.parametrize("wait", [0.02, 0.0])
def test_retries_are_of_the_stage_that_fails(facts_of: Any, pipe: Any, made: Any, wait: float) -> None:
    """Three in ten deliveries fail, slowly or at once: what decode and the model did for them in vain is no fault of theirs."""
    has_failed = np.arange(400) % 10 < 3
    stages = (
        made(name="decode", work="decode", cpu=0.001),
        model(made),
        made(
            name="deliver",
            kind="io",
            work="deliver",
            cpu=1e-4,
            wait=np.where(has_failed, wait, 0.02),
            outcome=["failed" if failed else "ok" for failed in has_failed],
        ),
    )
    counters = Counters(received=400, delivered=280, retried=120)
    found = list(flow.rules(facts_of(pipe(stages=stages, changes={"counters": counters}))))
    assert [(one.verdict, one.stage) for one in found] == [(VerdictClass.RETRY, "deliver")]


@pytest.mark.parametrize("counted", ["retried", "returned"])
def test_deliveries_that_were_given_back_are_wasted(facts_of: Any, pipe: Any, made: Any, counted: str) -> None:
    """Three in ten jobs are given back before their delivery, and do not come again in this run: decoding them was in vain."""
    has_failed = np.arange(400) % 10 < 3
    outcome = ["failed" if failed else "ok" for failed in has_failed]
    stages = (
        made(name="decode", work="decode", cpu=0.001),
        made(name="deliver", kind="io", work="deliver", cpu=1e-4, wait=0.02, outcome=outcome),
    )
    facts = facts_of(pipe(stages=stages, changes={"counters": Counters(received=400, delivered=280, **{counted: 120})}))
    decode = facts.stage("decode")
    assert decode is not None
    assert flow.compute_wasted_share(facts, decode) == pytest.approx(0.3, abs=0.01)


@pytest.mark.parametrize(
    ("counted", "verdicts"),
    [({}, [VerdictClass.STARVED, VerdictClass.SOURCE]), ({"retried": 40}, []), ({"returned": 40}, [])],
)
def test_waiting_for_retries_is_no_slow_source(
    facts_of: Any, pipe: Any, made: Any, counted: dict[str, int], verdicts: list[VerdictClass]
) -> None:
    """Calls bring few jobs: STARVED or SOURCE, nothing promised of more calls; none where jobs may come again."""
    received = {
        "calls": 80, "empty_calls": 0, "jobs": 400, "asked": 800, "full_calls": 0, "call_seconds": 8.0,
        "empty_call_seconds": 0.0, "blocked_seconds": 0.05,
    }  # fmt: skip
    stages = (made(name="decode", work="decode", cpu=0.002), model(made))
    fields = {"stages": stages, "arrivals": np.arange(400) * 0.02, "receiving": received}
    counters = Counters(received=400, delivered=400 - sum(counted.values()), **counted)
    found = list(intake.rules(facts_of(pipe(**fields, changes={"counters": counters}))))
    assert [one.verdict for one in found] == verdicts
    assert not any(advice.settings for one in found for advice in one.advice)


def test_too_many_threads_in_the_model(diagnose: Diagnose, made: Any) -> None:
    """Four workers with sixteen threads each on two cores: OVERSUBSCRIPTION, not the stage before."""
    found = diagnose(
        made(name="decode", work="decode", cpu=0.001),
        model(made, cpu=0.02, delay=0.02, workers=4, batch=1),
        cores=2,
        settings=["model.threads=16"],
        gauges={("machine", "runnable"): 40.0},
    )
    assert (found.first.verdict, found.first.stage) == (VerdictClass.OVERSUBSCRIPTION, "process")


def test_threads_of_a_model_that_is_hardly_called_take_no_cores(diagnose: Diagnose, made: Any) -> None:
    """Sixteen threads on two cores, but at work a twentieth of the time: it is decoding that fills the cores."""
    found = diagnose(
        made(name="decode", work="decode", cpu=0.02, delay=0.005, workers=2),
        made(name="resize", work="resize", cpu=0.005, delay=0.002, workers=2),
        model(made, cpu=0.0005),
        cores=2,
        settings=["model.threads=16"],
    )
    assert (found.first.verdict, found.first.stage) == (VerdictClass.DECODE, "decode")
    assert found.runner_up is None or found.runner_up.verdict is not VerdictClass.OVERSUBSCRIPTION


def test_a_gain_that_no_rule_explains_is_no_health(diagnose: Diagnose, made: Any) -> None:
    """One job at a time through ten stages that wait: none alone gains 3 %, yet two at a time would do twice as much."""
    waiting = [made(name=f"ask{number}", kind="io", wait=0.002, cpu=1e-5) for number in range(10)]
    full = {
        "calls": 20,
        "empty_calls": 0,
        "full_calls": 20,
        "asked": 200,
        "call_seconds": 0.002,
        "blocked_seconds": 4.0,
    }
    found = diagnose(
        *waiting,
        in_flight=1,
        num_jobs=200,
        arrivals=0.0203 * np.arange(200),
        receiving=full | {"empty_call_seconds": 0.0},
    )
    assert found.candidates[0].name == "in_flight"
    assert found.candidates[0].gain > 1.5
    assert found.first.verdict is VerdictClass.INCONCLUSIVE
    assert "2 instead of 1 jobs in flight" in found.first.says
    assert found.experiment


@pytest.mark.parametrize(
    ("fetch", "device", "said"),
    [(0.001, 0.01, (VerdictClass.BATCH_UNDERFILL, "process")), (0.05, 0.002, (VerdictClass.DOWNLOAD_LATENCY, "fetch"))],
)
def test_only_a_device_that_has_to_do_is_underfilled(
    diagnose: Diagnose, made: Any, fetch: float, device: float, said: tuple[VerdictClass, str]
) -> None:
    """Four jobs at a time, batches of one where sixteen cost twice as much: to blame is who takes the time."""
    each = max(4 * device, fetch + device)
    full = {"calls": 40, "empty_calls": 0, "full_calls": 40, "call_seconds": 0.002, "blocked_seconds": 100 * each}
    found = diagnose(
        made(name="fetch", kind="io", work="download", cpu=1e-5, wait=fetch, workers=8),
        model(made, cpu=device, batch=None, reason="free"),
        in_flight=4,
        arrivals=np.repeat(np.arange(100) * each, 4),
        receiving=full | {"empty_call_seconds": 0.0},
        settings=["model.threads=1", "process.batch=16"],
        gauges={("run", "in_flight"): 4.0},
        changes={"cost_curves": {"process": {1: [device], 16: [2 * device]}}},
    )
    assert (found.first.verdict, found.first.stage) == said
