"""`--otlp`: the SDK that a pipeline's module configures gets the series, and spans of batches and traced jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace.monitor.metrics.table import SERIES, Kind
from headrace.sources.jobs import encode_job
from headrace.sources.sqlite_queue import SqliteQueue
from tests.integration.monitor.otlp_receiver import receive_otlp

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PIPELINE = """
import headrace as hr

def work(batch):
    return batch

pipeline = hr.Pipeline(
    hr.queue("sqlite:///jobs.db", drain=True), stages=[hr.stage("work", work, kind="device")],
    delivery=hr.jsonl("out.jsonl"),
)
"""
SDK = """
import atexit, json, os
from pathlib import Path
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

reader, spans = InMemoryMetricReader(), InMemorySpanExporter()
metrics.set_meter_provider(MeterProvider([reader], shutdown_on_exit=False))
tracers = TracerProvider()
tracers.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(tracers)

def write():
    Path(f"metrics-{os.getpid()}.json").write_text(reader.get_metrics_data().to_json())
    Path(f"spans-{os.getpid()}.json").write_text(json.dumps([json.loads(one.to_json()) for one in spans.get_finished_spans()]))

atexit.register(write)
"""


#: What a user writes who has an OpenTelemetry collector; where it is, the environment says.
EXPORTER = """
from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())]))
tracers = TracerProvider()
tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(tracers)
"""


def run(
    folder: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the pipeline with `--otlp` on two jobs, one of them traced."""
    queue = SqliteQueue(str(folder / "jobs.db"))
    queue.send([encode_job("a", id="traced", attributes={"traceparent": f"00-{TRACE}-{CALLER}-01"}), encode_job("b")])
    queue.close()
    command = [sys.executable, "-m", "headrace", "run", "app:pipeline", "--otlp", *arguments]
    env = os.environ | dict(environment or {})
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=100, check=False)


def collector_at(url: str) -> dict[str, str]:
    """Return the environment that names a collector; with patience, for a busy machine."""
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_TIMEOUT": "90", "OTEL_METRIC_EXPORT_TIMEOUT": "90000",
        "OTEL_BSP_EXPORT_TIMEOUT": "90000",
    }  # fmt: skip


def read(folder: Path, name: str) -> Any:
    """Return what the worker wrote; a supervisor opens no pipeline."""
    (file,) = folder.glob(f"{name}-*.json")
    return json.loads(file.read_text())


@pytest.mark.parametrize("arguments", [(), ("--supervise", "1")])
def test_the_users_sdk_gets_all(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Values, units and descriptions of the table; a batch links to its traced job, whose own span is in the sender's trace."""
    (tmp_path / "app.py").write_text(SDK + PIPELINE)
    ended = run(tmp_path, *arguments)
    assert ended.returncode == 0, ended.stderr
    assert "no OpenTelemetry SDK" not in ended.stderr
    (resource,) = read(tmp_path, "metrics")["resource_metrics"]
    found = {one["name"]: one for scope in resource["scope_metrics"] for one in scope["metrics"]}
    jobs = {point["attributes"]["outcome"]: point["value"] for point in found["headrace_jobs"]["data"]["data_points"]}
    assert jobs["delivered"] == 2
    assert found["headrace_jobs"]["data"]["is_monotonic"]
    assert found["headrace_stage_busy_seconds"]["unit"] == "s"
    assert found["headrace_stage_service_seconds_count"]["data"]["data_points"][0]["attributes"]["worker"] == "0"
    stems = {name.removesuffix("_total"): series for name, series in SERIES.items()}
    for name in found:
        stem = name if name in stems else name.rpartition("_")[0]
        assert found[name]["description"] == stems[stem].meaning
        assert (stems[stem].kind is Kind.HISTOGRAM) == (stem != name)
    spans = {span["name"]: span for span in read(tmp_path, "spans")}
    job = spans["headrace job"]
    assert job["context"]["trace_id"] == f"0x{TRACE}"
    assert job["parent_id"] == f"0x{CALLER}"
    assert job["attributes"]["headrace.outcome"] == "delivered"
    batches = [span for span in read(tmp_path, "spans") if span["name"] == "work batch"]
    assert sum(span["attributes"]["headrace.batch.size"] for span in batches) == 2
    (link,) = [link for span in batches for link in span["links"]]
    assert link["context"]["trace_id"] == f"0x{TRACE}"
    assert all(span["start_time"] <= span["end_time"] for span in spans.values())


@pytest.mark.parametrize("arguments", [(), ("--supervise", "1")])
def test_a_collector_gets_all_from_the_real_exporter(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """OTLP over HTTP: metrics with the table's names and units, last value at the end; a span in the sender's trace."""
    (tmp_path / "app.py").write_text(EXPORTER + PIPELINE)
    with receive_otlp() as received:
        ended = run(tmp_path, *arguments, environment=collector_at(received.url))
    assert ended.returncode == 0, ended.stderr
    jobs = {attributes["outcome"]: value for attributes, value in received.points("headrace_jobs")}
    assert jobs["delivered"] == 2
    stems = {name.removesuffix("_total"): series for name, series in SERIES.items()}
    for metric in received.find_metrics():
        series = stems.get(metric.name) or stems[metric.name.rpartition("_")[0]]
        assert metric.description == series.meaning
        assert metric.sum.is_monotonic == (series.kind is not Kind.GAUGE)
    buckets = {one["le"]: value for one, value in received.points("headrace_job_latency_seconds_bucket")}
    assert buckets["+Inf"] == 2
    (job,) = [span for span in received.spans() if span.name == "headrace job"]
    assert (job.trace_id.hex(), job.parent_span_id.hex()) == (TRACE, CALLER)
    batches = [span for span in received.spans() if span.name == "work batch"]
    assert [link.trace_id.hex() for span in batches for link in span.links] == [TRACE]


def test_a_collector_that_refuses_costs_no_job(tmp_path: Path) -> None:
    """The exporter complains; the jobs are delivered."""
    (tmp_path / "app.py").write_text(EXPORTER + PIPELINE)
    with receive_otlp() as received:
        received.status = 400
        ended = run(tmp_path, environment=collector_at(received.url))
    assert ended.returncode == 0, ended.stderr
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2


def test_no_sdk_is_said_at_the_start(tmp_path: Path) -> None:
    """The run goes on without."""
    (tmp_path / "app.py").write_text(PIPELINE)
    ended = run(tmp_path)
    assert ended.returncode == 0
    assert "no OpenTelemetry SDK is configured for metrics and traces" in ended.stderr
    assert "opentelemetry-instrument" in ended.stderr


def test_the_extra_is_named_where_it_is_missing(tmp_path: Path) -> None:
    """Before a job is received, by the supervisor too."""
    (tmp_path / "app.py").write_text(PIPELINE)
    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry" / "__init__.py").write_text("raise ImportError")
    for arguments in ((), ("--supervise", "2")):
        ended = run(tmp_path, *arguments)
        assert ended.returncode == 3, ended.stderr
        assert ended.stderr.count("pip install 'headrace[otlp]'") == 1
