"""`--otlp`: the SDK that a pipeline's module configures gets the series, and spans of batches and traced jobs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.monitor.metrics.table import SERIES, Kind
from headrace.sources.jobs import encode_job
from headrace.sources.sqlite_queue import SqliteQueue

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


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the pipeline with `--otlp` on two jobs, one of them traced."""
    queue = SqliteQueue(str(folder / "jobs.db"))
    queue.send([encode_job("a", id="traced", attributes={"traceparent": f"00-{TRACE}-{CALLER}-01"}), encode_job("b")])
    queue.close()
    command = [sys.executable, "-m", "headrace", "run", "app:pipeline", "--otlp", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)


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
