"""The whole document, of whole and of poor run folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from headrace.base.records import Counters
from headrace.cli.profile_text import as_text
from headrace.diagnose import profile_document
from headrace.runs.formats.isolation import IsolationDocument
from headrace.runs.formats.profile import ProfileDocument
from headrace.runs.reader import read_run

AT = np.arange(1000) * 0.01


def assert_is_json(document: ProfileDocument) -> None:
    """Every document is encoded and read back as it was; JSON knows neither NaN nor infinity."""
    encoded = msgspec.json.encode(document)
    assert msgspec.json.decode(encoded, type=ProfileDocument) == document
    json.loads(encoded, parse_constant=lambda name: pytest.fail(f"{name} in the document"))


def test_a_profiled_run_has_everything(busy_run: Any) -> None:
    """Run, Plan, window, stages, series and checks stand in one record."""
    run = busy_run.finish(variants=[{"engine": "emulated", "launch_seconds": 0.0}], warnings=["too many threads"])
    document = profile_document(run)
    assert_is_json(document)
    assert (document.run, document.pipeline, document.plan_id) == ("run", "app:pipeline", "p1")
    assert document.plan == {"run": {}}
    assert document.is_emulated
    assert document.warnings == ("too many threads",)
    assert document.counters["delivered"] == 2000
    assert sum(document.latency.bin_counts) == document.latency.num_samples
    assert len({check.name for check in document.checks}) == 17


def test_the_plans_of_a_canary_are_both_told(builder: Any) -> None:
    """With the share of what each answered, the larger first; of a single one nothing more is said than its id."""
    ended = np.arange(1.0, 41.0)
    plans = ["canary" if number % 4 == 0 else "p1" for number in range(40)]
    builder.stage("work").spans("work", arrived=ended - 0.5, ended=ended, plan_id=plans)
    document = profile_document(builder.finish(plans={"canary": {"run": {}}, "p1": {"run": {}}}))
    assert_is_json(document)
    assert (document.plan_id, document.plan_shares) == ("p1", {"p1": 0.75, "canary": 0.25})
    assert list(document.plan_shares) == ["p1", "canary"]
    assert [one.plan_id for one in document.plan_accounts] == ["p1", "canary"]
    assert "plan p1 (75%) and canary (25%)" in as_text(document)


def test_each_plan_of_a_run_has_its_own_account(builder: Any) -> None:
    """Jobs, failures, latency and the time of an item in its batches; nothing where one Plan answered everything."""
    ended = np.arange(1.0, 41.0)
    is_canary = np.arange(40) % 4 == 0
    builder.stage("deliver").spans(
        "deliver",
        arrived=ended - np.where(is_canary, 0.8, 0.4),
        started=ended - 0.4,
        ended=ended,
        plan_id=["canary" if one else "p1" for one in is_canary],
        outcome=["failed" if number == 8 else "ok" for number in range(40)],
        batch_size=[2 if one else 4 for one in is_canary],
    )
    stable, canary = profile_document(builder.finish(plans={"p1": {"run": {}}, "canary": {"run": {}}})).plan_accounts
    assert (stable.delivered, stable.failed, canary.delivered, canary.failed) == (30, 0, 9, 1)
    assert stable.latency.percentile(50) == pytest.approx(0.4)
    assert canary.latency.mean == pytest.approx(0.8)
    assert (stable.stages["deliver"].service, stable.stages["deliver"].mean_batch) == pytest.approx((0.1, 4.0))
    assert (canary.stages["deliver"].service, canary.stages["deliver"].mean_batch) == pytest.approx((0.2, 2.0))


def test_an_mm1_queue_has_the_means_of_theory(single_server: Any, builder: Any) -> None:
    """At half load and 5 ms service: 10 ms in the system, 5 ms waiting, half a worker busy."""
    random = np.random.default_rng(42)
    arrived = np.cumsum(random.exponential(0.01, 40_000))
    single_server(builder, arrived - arrived[0], random.exponential(0.005, 40_000), sample_seconds=0.25)
    document = profile_document(builder.finish())
    work = document.stages[0]
    assert document.latency.mean == pytest.approx(0.010, rel=0.06)
    assert work.queue_wait.mean == pytest.approx(0.005, rel=0.1)
    assert work.utilization == pytest.approx(0.5, rel=0.05)
    quantiles = {one.percent: one.value for one in document.latency.percentiles}
    assert quantiles[50] == pytest.approx(0.010 * np.log(2), rel=0.06)
    assert quantiles[99] == pytest.approx(0.010 * np.log(100), rel=0.12)
    assert document.trusted, document.distrust


def test_a_killed_run_gives_what_was_written(builder: Any) -> None:
    """No exact counts, status running: spans are analysed, and what cannot be checked says so."""
    builder.stage("work").stage("deliver").spans("work", arrived=AT, ended=AT + 0.004)
    builder.spans("deliver", arrived=AT + 0.004, ended=AT + 0.005)
    document = profile_document(builder.finish("running", summary=False))
    assert_is_json(document)
    assert document.status == "running"
    assert document.stages[0].items == 1000
    assert document.throughput == pytest.approx(100, rel=1e-3)
    assert document.not_measured["cpu"] == "the run was not profiled; use headrace profile"
    found = {check.name: check.status for check in document.checks}
    assert found["flow_balance"] == found["forced_flow"] == "not_measured"
    assert found["run_folder"] == "warning"


def test_a_killed_profile_is_not_taken_for_a_plain_run(busy_run: Any) -> None:
    """What was sampled is there, and what was to be written at the end is missing for that reason."""
    document = profile_document(busy_run.finish("running", summary=False))
    assert "did not live" in document.not_measured["cpu"]
    found = {check.name: check for check in document.checks}
    assert "did not live" in found["overhead"].says
    assert found["littles_law"].status == found["utilization_law"].status == "ok"


@pytest.mark.parametrize("summary", [True, False])
def test_a_run_without_spans_has_a_document(builder: Any, summary: bool) -> None:
    """Stages with nothing in them, and reasons; what was not measured is not called trusted."""
    builder.stage("work").stage("deliver")
    document = profile_document(builder.finish(summary=summary))
    assert_is_json(document)
    assert not document.trusted
    assert document.distrust[0].startswith("nothing was measured")
    assert document.throughput is None
    assert (document.slow_item, document.cpu, document.memory_growth) == (None, None, None)
    assert all(stage.service.mean is None for stage in document.stages)
    assert {"throughput", "spans", "resources", "cpu"} <= set(document.not_measured)


def test_one_item_has_a_document(builder: Any) -> None:
    """A mean, and no percentile and no rate."""
    builder.stage("work").stage("deliver").spans("work", arrived=[0.0], ended=[0.01])
    document = profile_document(builder.spans("deliver", arrived=[0.01], ended=[0.02]).finish())
    assert_is_json(document)
    assert document.latency.mean == pytest.approx(0.02)
    assert [one.value for one in document.latency.percentiles] == [None] * 3
    assert document.throughput is None
    assert document.window.is_steady is None
    assert document.slow_item is not None


def test_only_failures_have_a_document(builder: Any) -> None:
    """Nothing was delivered: no latency, no throughput, no slow item, and the failures are counted."""
    builder.stage("work").stage("deliver").spans("work", arrived=AT, ended=AT + 0.004, outcome="failed")
    counters = Counters(received=1000, dead_lettered=1000)
    document = profile_document(builder.finish(counters=counters))
    assert_is_json(document)
    assert document.stages[0].failed == 1000
    assert document.latency.num_samples == 0
    assert document.throughput is None
    assert "delivered" in document.not_measured["throughput"]
    assert not document.distrust


def test_a_folder_of_schema_version_1_has_a_document(builder: Any) -> None:
    """No stages and no summary in run.json, no weights in the spans: names, order and batches come from the spans."""
    builder.spans("fetch", arrived=AT, ended=AT + 0.004)
    batch = np.arange(1000) // 4
    begun = batch * 0.04 + 0.04
    builder.spans(
        "infer", arrived=AT + 0.004, dequeued=begun, started=begun, ended=begun + 0.03, batch_id=batch, batch_size=4
    )
    builder.spans("deliver", arrived=begun + 0.03, ended=begun + 0.031)
    builder.tables = [table.drop_columns("weight") for table in builder.tables]
    run = builder.finish(summary=False, stages=[])
    file = run.path / "run.json"
    old = json.loads(file.read_text())
    del old["stages"], old["summary"]
    file.write_text(json.dumps(old | {"schema_version": 1}))
    document = profile_document(read_run(run.path))
    assert_is_json(document)
    assert [(stage.name, stage.kind) for stage in document.stages] == [
        ("fetch", "unknown"),
        ("infer", "device"),
        ("deliver", "unknown"),
    ]
    assert document.latency.num_samples > 900
    assert document.throughput == pytest.approx(100, rel=0.01)


def test_other_documents_of_the_folder_are_part_of_it(builder: Any) -> None:
    """Isolation and hot spots are carried over; of a stage's files the one that opens in speedscope is named."""
    builder.stage("deliver").spans("deliver", arrived=AT, ended=AT + 0.001)
    run = builder.finish()
    isolation = IsolationDocument(
        pipeline="a:b", plan_id="p", num_items=3, stages=(), variations=(), device_ceiling=None, feeding_headroom=None
    )
    (run.path / "isolation.json").write_bytes(msgspec.json.encode(isolation))
    spots: Path = run.path / "hot_spots"
    spots.mkdir()
    for name in ("faces.decode.speedscope.json", "faces.decode.pstats", "work.json", "work.folded", "notes.txt"):
        (spots / name).touch()
    document = profile_document(run)
    assert document.isolation == isolation
    assert document.layers is None
    assert document.hot_spots == {
        "faces.decode": "hot_spots/faces.decode.speedscope.json",
        "work": "hot_spots/work.folded",
    }


def test_analysing_twice_gives_the_same(busy_run: Any) -> None:
    """Resampling is seeded and nothing depends on the order of sets."""
    run = busy_run.finish()
    assert msgspec.json.encode(profile_document(run)) == msgspec.json.encode(profile_document(read_run(run.path)))
