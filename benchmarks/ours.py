"""Runs headrace once, in a process of its own, on the same jobs as a peer.

Reads {workload, jobs, plan, settings} from a file and writes the window to another.

As for the peers, what a service has ready before its first job (imports, opened model, worker threads, filled queue) is
made before the window starts, which is when the first job is asked for. The warm-up with a real item is inside.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import headrace as hr
from benchmarks.measure import Window
from benchmarks.paths import ROOT
from benchmarks.peers import Bench, Outcome, Settings
from headrace.base.protocols import Source
from headrace.sources.addresses import open_queue
from headrace.sources.finite import Entry, FiniteSource
from headrace.sources.jobs import encode_job
from headrace.stages.module import ProcessStage

PLANS = ROOT / "benchmarks" / "plans"


def run(bench: Bench, plan: str, count: int, settings: Sequence[str] = ()) -> Outcome:
    """Run headrace on a bench in a fresh process; see `Bench.run` for the peers' side.

    Args:
        bench: Entered.
        plan: File name in `benchmarks/plans`, or a path; its model goes before the bench's.
        count: Number of items.
        settings: Replaced in the Plan, `KEY=VALUE`.
    """
    jobs = bench._jobs(count)  # noqa: SLF001 - the bench makes every contestant's jobs
    order = {"workload": bench.workload, "jobs": asdict(jobs), "plan": plan, "settings": list(settings)}
    with tempfile.TemporaryDirectory() as folder:
        request, reply = Path(folder, "request"), Path(folder, "reply")
        request.write_text(json.dumps(order))
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.ours", request, reply], cwd=ROOT, capture_output=True, text=True
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
            return Outcome("headrace", Settings(), count, error=f"ended with code {done.returncode}: {last}")
        window = Window(**json.loads(reply.read_text()))
    return bench.outcome("headrace", Settings(), count, window)


class Classifier(hr.Module):
    """MobileNetV2-like: 224 x 224, a thousand classes."""

    input = hr.ImageInput(short_side=256, crop=224)

    def load(self, context: Any) -> None:
        """Open the model that the Plan names."""
        self.network = context.open_model()

    def preprocess(self, value: Any) -> Any:
        """Return float32 (3, 224, 224)."""
        return hr.images.normalize(value)

    def process(self, batch: Any) -> list[dict[str, object]]:
        """Return label and score of each image."""
        logits = self.network(batch)
        labels = logits.argmax(axis=1)
        return [{"label": int(label), "score": float(row[label])} for label, row in zip(labels, logits, strict=True)]


class Device(hr.Module):
    """The emulated device, and nothing else."""

    input = hr.ArrayInput()

    def load(self, context: Any) -> None:
        """Open the device."""
        self.device = context.open_model()

    def process(self, batch: Any) -> list[dict[str, object]]:
        """Return a label for each item."""
        return [{"label": 7, "score": 0.5}] * len(self.device(batch))


class Listed(FiniteSource):
    """Jobs from a list of (id, payload)."""

    def __init__(self, jobs: Sequence[tuple[str, Any]], attributes: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._jobs = jobs
        self._attributes = attributes or {}

    @property
    def gives_files(self) -> bool:
        """Whether the jobs are paths, as of a folder."""
        return isinstance(self._jobs[0][1], Path)

    def entries(self) -> Iterator[Entry]:
        """Return the jobs in order."""
        return (Entry(name, payload, self._attributes) for name, payload in self._jobs)


class Started:
    """A source that starts the window when the first job is asked for."""

    def __init__(self, source: Source, window: Window) -> None:
        self._source = source
        self._window = window
        self._started = False

    def receive(self, limit: int, wait_seconds: float) -> list[hr.Job] | None:
        """Start the window, once, and receive."""
        if not self._started:
            self._started = True
            self._window.__enter__()
        return self._source.receive(limit, wait_seconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


def queue_pipeline(jobs: Mapping[str, Any], folder: Path) -> hr.Pipeline:
    """Return the pipeline over a SQLite queue that holds the jobs."""
    return hr.Pipeline(_filled_queue(jobs, folder), module=Classifier(), delivery=hr.callback())


def folder_pipeline(jobs: Mapping[str, Any]) -> hr.Pipeline:
    """Return the pipeline over a list of files."""
    source = Listed([(path, Path(path)) for path in jobs["paths"]])
    return hr.Pipeline(source, module=Classifier(), delivery=hr.parquet(jobs["output"]))


def emulated_pipeline(jobs: Mapping[str, Any]) -> hr.Pipeline:
    """Return the pipeline with real HTTP, a preprocess that sleeps, and the emulated device."""
    source = Listed([(str(i), url) for i, url in jobs["items"]], {"callback": jobs["callback_url"]})
    stages = [
        hr.fetch("fetch"),
        hr.emulated("preprocess", seconds=jobs["preprocess_seconds"]),
        ProcessStage("process", Device()),
    ]
    return hr.Pipeline(source, stages=stages, delivery=hr.callback())


def _filled_queue(jobs: Mapping[str, Any], folder: Path) -> Source:
    address = f"sqlite:///{folder}/jobs.db"
    queue = open_queue(address)
    queue.send([encode_job(url, id=str(i), callback=jobs["callback_url"]) for i, url in jobs["items"]])
    queue.close()
    return hr.queue(address, drain=True)


def main() -> None:
    """Run what the request says and write the window."""
    request, reply = (Path(argument) for argument in sys.argv[1:3])
    order = json.loads(request.read_text())
    jobs, settings = order["jobs"], list(order["settings"])
    if order["workload"] == "emulated":
        options = {"launch_seconds": jobs["device_fixed_seconds"], "item_seconds": jobs["device_item_seconds"]}
        settings += [f"model.options.{key}={value}" for key, value in options.items()]
    else:
        settings.append(f"model.artifact={json.dumps(jobs['model'])}")
    plan = hr.Plan.load(PLANS / order["plan"])
    if plan.model.artifact is not None:  # an optimized one, which is what is to be shown
        settings = [setting for setting in settings if not setting.startswith("model.artifact=")]
    plan = plan.with_settings(settings).allowing(["127.0.0.1"])
    window = Window()
    with tempfile.TemporaryDirectory() as folder:
        make = {"folder": folder_pipeline, "emulated": emulated_pipeline}.get(order["workload"])
        pipeline = make(jobs) if make else queue_pipeline(jobs, Path(folder))
        pipeline.source = Started(pipeline.source, window)
        hr.run(pipeline, plan)
        window.__exit__()
    reply.write_text(json.dumps(asdict(window)))


if __name__ == "__main__":
    main()
