"""The evidence beside the simulation: what was not measured speaks neither for nor against."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from headrace.diagnose.analysis import Analysis
from headrace.diagnose.diagnosis import diagnosis_document
from headrace.diagnose.gil_holders import GilHolders
from headrace.diagnose.verdict import agreement, device, python, ranking
from headrace.diagnose.verdict.proposal import Proposal
from headrace.runs.formats.diagnosis import VerdictClass


def test_a_queue_that_was_not_measured_is_not_empty(facts_of: Any, pipe: Any, made: Any) -> None:
    """A full queue before decode says nothing where that after it is not known; after the last stage there is none."""
    stages = [made(name="decode", work="decode", cpu=0.01), made(name="resize", work="resize", cpu=0.001)]
    facts = facts_of(pipe(stages=stages))
    decode, resize, deliver = facts.stages
    unknown = dataclasses.replace(resize, account=msgspec.structs.replace(resize.account, queue_depth_mean=None))
    without = dataclasses.replace(facts, stages=(decode, unknown, deliver))

    known, not_known = (agreement.lines(one, decode)[1] for one in (facts, without))
    assert known.supports is True
    assert (not_known.value, not_known.supports) == (None, None)
    assert "resize: not measured" in not_known.says
    assert "none comes after it" in agreement.lines(facts, deliver)[1].says


@pytest.mark.parametrize(("holder", "speaks"), [("parse", None), ("blur", False)])
def test_stations_that_wait_for_the_gil_say_nothing_against_who_holds_it(
    facts_of: Any, pipe: Any, made: Any, holder: str, speaks: bool | None
) -> None:
    """A full queue and long service after `parse` are its own doing where it has the GIL that `blur` waits for."""
    stages = [
        made(name="parse", cpu=0.009, releases_gil=False),
        made(name="blur", cpu=0.001, wait=0.02, state="gil", queue=64),
    ]
    facts = facts_of(pipe(stages=stages))
    facts.__dict__["gil_holders"] = GilHolders(100, {holder: 0.9, "deliver": 0.1})
    _, gradient, path = agreement.lines(facts, facts.stages[0])
    assert [gradient.supports, path.supports] == [speaks, speaks]
    assert all(("waits for the GIL" in one.says) == (speaks is None) for one in (gradient, path))


@pytest.mark.parametrize(("own", "speaks"), [(0.95, None), (0.6, False)])
def test_stations_that_wait_for_a_core_say_nothing_against_who_uses_it(
    facts_of: Any, pipe: Any, made: Any, own: float, speaks: bool | None
) -> None:
    """Jobs stand before `journal`, which waits for the core that `parse` computes on; where it is free they speak."""
    stages = [
        made(name="journal", cpu=0.0003, delay=0.01, queue=64),
        made(name="parse", cpu=0.009, workers=2),
    ]
    facts = facts_of(pipe(stages=stages, cores=1, gauges={("processes", "cpu_cores"): own}, others=0.0))
    busy, gradient, path = agreement.lines(facts, facts.stages[1])
    assert [gradient.supports, path.supports] == [speaks, speaks], (busy.says, gradient.says, path.says)
    assert all(("waits for a core" in one.says) == (speaks is None) for one in (gradient, path))


@pytest.mark.parametrize(("size", "named"), [(70_000, "deliver"), (2_000, "parse")])
def test_of_stages_that_hold_the_gil_about_as_often_a_choice_is_named(
    facts_of: Any, pipe: Any, made: Any, size: int, named: str
) -> None:
    """Large results written as text before Python code that computes more; small ones are not what it is. Both are told."""
    stages = [
        made(name="parse", cpu=0.009, releases_gil=False),
        made(name="blur", cpu=0.001, wait=0.02, state="gil", queue=64),
        made(name="deliver", kind="io", work="deliver", cpu=0.005, bytes_in=size),
    ]
    facts = facts_of(pipe(stages=stages))
    facts.__dict__["gil_holders"] = GilHolders(77, {"parse": 0.39, "deliver": 0.31, "blur": 0.0})
    (found,) = python.rules(facts)
    assert found.stage == named
    other = "parse" if named == "deliver" else "deliver"
    assert f"{named} needs it most, and {other} held it about as often" in found.says


def test_of_stages_that_hold_the_gil_about_as_often_one_that_keeps_it_is_named(
    facts_of: Any, pipe: Any, made: Any
) -> None:
    """`copy` uses three times the CPU time of `match`, and was not seen with the GIL more often: it lets go of it."""
    stages = [
        made(name="copy", cpu=0.009, wait=0.006, state="gil", workers=2),
        made(name="match", cpu=0.003, releases_gil=False, workers=2),
    ]
    facts = facts_of(pipe(stages=stages))
    facts.__dict__["gil_holders"] = GilHolders(138, {"match": 0.35, "copy": 0.28})
    found = next(one for one in python.rules(facts) if one.verdict == "GIL")
    assert found.stage == "match"
    assert "copy held it about as often" in found.says


def test_who_was_seen_with_the_gil_longest_is_named(facts_of: Any, pipe: Any, made: Any) -> None:
    """`match` held it longer by more than the samples leave open, though `parse` uses more CPU time; the figures are told."""
    stages = [
        made(name="parse", cpu=0.009, wait=0.006, state="gil", workers=2, releases_gil=False),
        made(name="match", cpu=0.003, releases_gil=False, workers=2),
    ]
    facts = facts_of(pipe(stages=stages))
    facts.__dict__["gil_holders"] = GilHolders(40, {"match": 0.3, "parse": 0.2}, {"match": 0.02, "parse": 0.03})
    found = next(one for one in python.rules(facts) if one.verdict == "GIL")
    assert found.stage == "match"
    assert any(
        "match held it 30% (26% to 34%) of the time and parse, the next, 20% (14% to 26%)" in one.says
        for one in found.evidence
    )


def test_who_waits_for_the_gil_and_holds_it_as_often_is_not_what_another_gains(
    facts_of: Any, pipe: Any, made: Any
) -> None:
    """`look` limits, by work of its own beside its waiting: what it gains is its own, and comes before the GIL of `find`."""
    stages = [
        made(name="look", work="preprocess", cpu=0.009, wait=0.006, state="gil", workers=2),
        made(name="find", work="postprocess", cpu=0.003, releases_gil=False, workers=2),
    ]
    facts = facts_of(pipe(stages=stages, cores=2))
    facts.__dict__["gil_holders"] = GilHolders(61, {"look": 0.37, "find": 0.34})
    gil = next(one for one in python.rules(facts) if one.verdict == "GIL")
    assert gil.stage == "find"
    assert "stage:look" not in gil.resources
    assert facts.gain("stage:look") > 1.1
    first = ranking.rank(facts).first
    assert (first.verdict, first.stage) == ("PREPROCESS", "look")


def test_who_computes_for_longer_than_it_waits_for_the_gil_limits_by_its_own_work(
    make_run: Any, pipe: Any, made: Any
) -> None:
    """`sort` computes 3.4 ms and waits 3 ms for `split`, which was seen with the GIL: it did not promise to let go; it does."""
    sort = made(name="sort", cpu=0.0034, wait=0.003, state="gil", releases_gil=False, meanwhile="split")
    split = made(name="split", cpu=0.0027, delay=0.003, releases_gil=False)
    analysis = Analysis(make_run(pipe(stages=[sort, split], cores=2, runtime=2e-4)))
    replay = analysis.replay
    assert (replay.holds_gil["sort"], replay.holds_gil["split"]) == (0.0, 1.0)
    assert abs(replay.misfit) < 0.15
    found = diagnosis_document(analysis).first
    assert (found.verdict, found.stage) == ("PREPROCESS", "sort")


def test_a_stage_made_faster_frees_the_gil_that_it_was_seen_to_hold(facts_of: Any, pipe: Any, made: Any) -> None:
    """What `rank` gains is what the GIL gains: nobody doubts it because its own workers and queues are not full."""
    stages = [
        made(name="blur", cpu=0.001, wait=0.008, state="gil", workers=2),
        made(name="rank", cpu=0.006, releases_gil=False, workers=2),
    ]
    facts = facts_of(pipe(stages=stages, cores=2))
    facts.__dict__["gil_holders"] = GilHolders(275, {"rank": 0.8, "blur": 0.08})
    found = next(one for one in python.rules(facts) if one.verdict == "GIL")
    assert found.stage == "rank"
    assert {"gil", "stage:rank", "stage:blur"} <= set(found.resources)


@pytest.mark.parametrize("holder", ["process", "rank"])
def test_launches_gain_what_the_gil_gains_where_they_hold_it(facts_of: Any, pipe: Any, made: Any, holder: str) -> None:
    """A call of which most is launching is Python code, too: fewer, larger batches are what frees the GIL."""
    curve = {size: [0.02 + 0.001 * size] for size in (1, 2, 4, 8)}
    stages = [
        made(name="process", kind="device", work="model", batch=1, cpu=0.021),
        made(name="rank", cpu=0.02, wait=0.02, state="gil", releases_gil=False),
    ]
    facts = facts_of(pipe(stages=stages, changes={"cost_curves": {"process": curve}}))
    facts.__dict__["gil_holders"] = GilHolders(100, {holder: 0.9})
    launch = next(one for one in device.rules(facts) if one.verdict == "LAUNCH")
    assert ("gil" in launch.resources) == (holder == "process")


@pytest.mark.parametrize(("doubled", "first"), [(1.11, "PREPROCESS"), (1.60, "LAUNCH")], ids=["less", "more"])
def test_a_batch_twice_as_large_is_not_compared_with_a_fifth(
    facts_of: Any, pipe: Any, made: Any, monkeypatch: pytest.MonkeyPatch, doubled: float, first: str
) -> None:
    """x1.11 for a batch twice as large is x1.03 for a fifth more: a stage that gains x1.06 by a fifth comes before it."""
    facts = facts_of(pipe(stages=[made(name="parse", cpu=0.004), made(name="model", cpu=0.004)]))
    own = next(one for one in facts.candidates if one.name == "stage:parse")
    candidates = (
        msgspec.structs.replace(own, gain=1.06),
        msgspec.structs.replace(own, name="batch:model", kind="batch", stage="model", gain=doubled),
    )
    facts = dataclasses.replace(facts, candidates=candidates)
    proposals = [
        Proposal(verdict=VerdictClass(name), stage=stage, says="", rule="", resources=(resource,), share=share)
        for name, stage, resource, share in (
            ("LAUNCH", "model", "batch:model", 0.3), ("PREPROCESS", "parse", "stage:parse", 0.0)
        )
    ]  # fmt: skip
    monkeypatch.setattr(ranking, "all_proposals", lambda _: proposals)
    assert ranking._rank(facts)[0].proposal.verdict == first
