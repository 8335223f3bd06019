"""Runs peers, each in a process of its own, on one workload; says what came out and whether it is right.

A bench holds what all runs share: the corpus, the model, the servers. Each run starts a fresh interpreter, so that no
peer inherits another's threads, memory or imports, and reads the number of answers and their labels afterwards.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.measure import Window
from benchmarks.paths import HEAVY_PYTHON, ROOT
from benchmarks.peers import tuning
from benchmarks.peers.protocol import Decode, EmulatedJobs, FolderJobs, QueueJobs, Settings, Workload
from benchmarks.peers.registry import is_heavy, is_runnable
from benchmarks.servers import CallbackStats, Servers

NOT_INSTALLED = "not run: python -m benchmarks.setup_peers installs it"


@dataclass(frozen=True)
class Outcome:
    """One run of one peer. ``error`` is None exactly if the figures mean something."""

    peer: str
    settings: Settings
    num_items: int
    error: str | None = None
    """Why there are no figures, or why they must not be used (answers missing or doubled)."""
    seconds: float = 0.0
    """From the start to the last callback received, or to the written file."""
    rate: float = 0.0
    """Items per second over ``seconds``."""
    steady_rate: float | None = None
    """Rate between the tenth and the ninetieth percentile callback, None without callbacks. Start-up drops out of it only
    if it is short against the run: give Ray some thousand items before quoting it."""
    num_missing: int = 0
    num_duplicates: int = 0
    cpu_seconds_per_item: float = 0.0
    """Of the peer's processes, without the servers."""
    server_cpu_seconds_per_item: float = 0.0
    busy_cores: float = 0.0
    """Everybody's."""
    foreign_cores: float = 0.0
    """Kept busy by processes that belong neither to the peer nor to the servers."""
    stolen_cores: float = 0.0
    labels: dict[str, int] = field(default_factory=dict, repr=False)
    """Label by id or path. Left out of JSON by ``record``."""

    def record(self) -> dict[str, object]:
        """Return the outcome for JSON, labels left out."""
        return {name: value for name, value in asdict(self).items() if name != "labels"}


class Bench:
    """A workload on which peers run; a context manager.

    Args:
        decode: How all peers of this bench decode; their settings follow it.
    """

    workload: Workload
    screen_items = 200
    """Items per run while tuning."""

    def __init__(self, decode: Decode = "usual") -> None:
        self.decode = decode

    def __enter__(self) -> "Bench":
        self._temporary = Path(tempfile.mkdtemp(prefix="peers-"))
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._temporary, ignore_errors=True)

    def run(self, peer: str, settings: Settings, count: int, timeout_seconds: float = 300.0) -> Outcome:
        """Run a peer once on ``count`` items; failures come back as an outcome with ``error``."""
        settings = Settings(**{**asdict(settings), "decode": self.decode})
        if not is_runnable(peer):
            return Outcome(peer, settings, count, error=NOT_INSTALLED)
        order = {"jobs": asdict(self._jobs(count)), "settings": asdict(settings)}
        try:
            window = Window(**self._ask(peer, order, timeout_seconds))
        except RuntimeError as error:
            return Outcome(peer, settings, count, error=str(error))
        return self.outcome(peer, settings, count, window)

    def grid(self, peer: str) -> list[Settings]:
        """Return the settings a peer declares worth trying."""
        return [Settings(**{**point, "decode": self.decode}) for point in self._describe(peer)["grid"]]

    def title(self, peer: str) -> str:
        """Return a peer's one-line description."""
        return self._describe(peer)["title"]

    def tune(self, peer: str, budget_seconds: float = 120.0, retune: bool = False) -> tuning.Tuned:
        """Return a peer's best settings on this workload, from the cache unless ``retune``; see ``tuning.tune``."""
        return tuning.tune(self, peer, budget_seconds, retune)

    def outcome(self, peer: str, settings: Settings, count: int, window: Window) -> Outcome:
        """Return the outcome of a run that has just ended, whoever ran it: the caller's own program may pass its window."""
        raise NotImplementedError

    @property
    def identity(self) -> dict[str, object]:
        """What tuned settings depend on, for the cache's key."""
        raise NotImplementedError

    def _jobs(self, count: int) -> QueueJobs | FolderJobs | EmulatedJobs:
        raise NotImplementedError

    def _describe(self, peer: str) -> Mapping[str, object]:
        return self._ask(peer, {}, timeout_seconds=60.0)

    def _ask(self, peer: str, order: Mapping[str, object], timeout_seconds: float) -> dict[str, object]:
        """Run the worker process; return its reply.

        Raises:
            RuntimeError: If it fails or takes too long. Everything it started is ended.
        """
        request, reply, log = (self._temporary / name for name in ("request", "reply", "log"))
        reply.unlink(missing_ok=True)
        request.write_text(json.dumps({"workload": self.workload, "peer": peer, **order}))
        python = HEAVY_PYTHON if is_heavy(peer) else sys.executable
        with log.open("w") as output:
            process = subprocess.Popen(
                [python, "-m", "benchmarks.peers.worker", request, reply],
                cwd=ROOT,
                env=_environment(),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                raise RuntimeError(f"no end after {timeout_seconds:.0f} s: {_last_line(log)}") from None
            finally:
                if process.returncode != 0:
                    _end_group(process)
        if process.returncode != 0 or not reply.exists():
            raise RuntimeError(f"ended with code {process.returncode}: {_last_line(log)}")
        return json.loads(reply.read_text())


class QueueBench(Bench):
    """Queue to callback: images over HTTP after a delay, answers by callback.

    Args:
        decode: "usual" or "scaled".
        delay_ms: Mean delay of an image.
        corpus_folder: Images; None builds the default corpus.
        model: ONNX file; None builds the default model.
    """

    workload = "queue"

    def __init__(
        self,
        decode: Decode = "usual",
        delay_ms: float = 80.0,
        corpus_folder: Path | None = None,
        model: Path | None = None,
    ) -> None:
        super().__init__(decode)
        self.delay_ms = delay_ms
        self.corpus_folder, self.model = _inputs(corpus_folder, model)
        self.servers = Servers(self.corpus_folder)

    def __enter__(self) -> "QueueBench":
        super().__enter__()
        self.servers.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.servers.__exit__(*exception)
        super().__exit__(*exception)

    @property
    def identity(self) -> dict[str, object]:
        """Delay, corpus and model."""
        return {"delay_ms": self.delay_ms, "corpus": self.corpus_folder.name, "model": self.model.name}

    def reset(self) -> None:
        """Forget all callbacks; a run of the caller's own program starts with this."""
        self.servers.reset(self.delay_ms)

    def outcome(self, peer: str, settings: Settings, count: int, window: Window) -> Outcome:
        """Count the callbacks and compare them with the jobs."""
        labels = {str(key): _label(answer) for key, answer in self.servers.answers().items()}
        return _outcome_of_callbacks(peer, settings, count, window, self.servers.stats(), labels)

    def _jobs(self, count: int) -> QueueJobs:
        self.reset()
        return QueueJobs(items=self.servers.jobs(count), callback_url=self.servers.callback_url, model=str(self.model))


class FolderBench(Bench):
    """Folder to Parquet.

    Args:
        decode: "usual" or "scaled".
        corpus_folder: Images; None builds the default corpus.
        model: ONNX file; None builds the default model.
    """

    workload = "folder"

    def __init__(self, decode: Decode = "usual", corpus_folder: Path | None = None, model: Path | None = None) -> None:
        super().__init__(decode)
        self.corpus_folder, self.model = _inputs(corpus_folder, model)

    @cached_property
    def paths(self) -> list[str]:
        """All images."""
        return sorted(str(path) for path in self.corpus_folder.glob("*.jpg"))

    @property
    def output(self) -> Path:
        """Where a run writes its Parquet file or folder."""
        return self._temporary / "labels.parquet"

    @property
    def identity(self) -> dict[str, object]:
        """Corpus and model."""
        return {"corpus": self.corpus_folder.name, "model": self.model.name}

    def reset(self) -> None:
        """Remove the last output; a run of the caller's own program starts with this."""
        if self.output.is_dir():
            shutil.rmtree(self.output)
        self.output.unlink(missing_ok=True)

    def outcome(self, peer: str, settings: Settings, count: int, window: Window) -> Outcome:
        """Count the rows of the output and compare them with the jobs."""
        from benchmarks.peers.parquet import read_labels

        rows = [(Path(path).name, label) for path, label in read_labels(str(self.output))]
        labels = dict(rows)
        return Outcome(
            peer,
            settings,
            count,
            error=_wrong(count - len(labels), len(rows) - len(labels)),
            seconds=window.seconds,
            rate=count / window.seconds,
            num_missing=count - len(labels),
            num_duplicates=len(rows) - len(labels),
            cpu_seconds_per_item=window.cpu_seconds / count,
            busy_cores=window.busy_cores,
            foreign_cores=window.foreign_cores,
            stolen_cores=window.stolen_cores,
            labels=labels,
        )

    def _jobs(self, count: int) -> FolderJobs:
        self.reset()
        if count > len(self.paths):
            raise ValueError(f"{count} images asked of a corpus of {len(self.paths)}: build a larger one")
        return FolderJobs(paths=self.paths[:count], model=str(self.model), output=str(self.output))


class EmulatedBench(Bench):
    """The emulated ladder: no images, sleeps instead of work, real HTTP.

    Args:
        speed: 1 is 222 ms of I/O, 63 ms of preprocessing and 13.6 + 34 n ms on the device; 100 a hundredth of that.
    """

    workload = "emulated"
    screen_items = 3000

    def __init__(self, speed: float = 100.0) -> None:
        super().__init__()
        self.speed = speed
        self.servers = Servers()

    def __enter__(self) -> "EmulatedBench":
        super().__enter__()
        self.servers.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.servers.__exit__(*exception)
        super().__exit__(*exception)

    @property
    def identity(self) -> dict[str, object]:
        """The speed."""
        return {"speed": self.speed}

    def reset(self) -> None:
        """Forget all callbacks; a run of the caller's own program starts with this."""
        self.servers.reset(222.0 / self.speed)

    def outcome(self, peer: str, settings: Settings, count: int, window: Window) -> Outcome:
        """Count the callbacks and compare them with the jobs."""
        return _outcome_of_callbacks(peer, settings, count, window, self.servers.stats(), {})

    def limit_per_second(self, batch: int = 32) -> float:
        """Return the device's rate with full batches."""
        return batch / (0.0136 + 0.034 * batch) * self.speed

    def _jobs(self, count: int) -> EmulatedJobs:
        self.reset()
        return EmulatedJobs(
            items=self.servers.jobs(count, payload=True),
            callback_url=self.servers.callback_url,
            preprocess_seconds=0.063 / self.speed,
            device_fixed_seconds=0.0136 / self.speed,
            device_item_seconds=0.034 / self.speed,
        )


def _label(answer: Mapping[str, Any]) -> int:
    # headrace's callback carries the result under its own key, beside the job's id and task.
    return int(answer.get("result", answer)["label"])


def different_labels(one: Outcome, other: Outcome) -> list[str]:
    """Return the ids or paths that both answered, with different labels."""
    return [key for key, label in one.labels.items() if other.labels.get(key, label) != label]


def _inputs(corpus_folder: Path | None, model: Path | None) -> tuple[Path, Path]:
    """Return the given corpus and model, or the default ones, built if need be."""
    # Imported here: every peer's process imports this package, also in an environment without onnx.
    from benchmarks import corpus, models

    return corpus_folder or corpus.build(), model or models.build()


def _outcome_of_callbacks(
    peer: str, settings: Settings, count: int, window: Window, stats: CallbackStats, labels: dict[str, int]
) -> Outcome:
    if stats.last_callback is None:
        return Outcome(peer, settings, count, error="no callback arrived")
    seconds = stats.last_callback - window.started_at
    return Outcome(
        peer,
        settings,
        count,
        error=_wrong(count - stats.num_unique, stats.num_duplicates),
        seconds=seconds,
        rate=count / seconds,
        steady_rate=stats.steady_rate,
        num_missing=count - stats.num_unique,
        num_duplicates=stats.num_duplicates,
        cpu_seconds_per_item=window.cpu_seconds / count,
        server_cpu_seconds_per_item=stats.cpu_seconds / count,
        busy_cores=window.busy_cores,
        foreign_cores=max(0.0, window.foreign_cores - stats.cpu_seconds / window.seconds),
        stolen_cores=window.stolen_cores,
        labels=labels,
    )


def _wrong(num_missing: int, num_duplicates: int) -> str | None:
    if num_missing or num_duplicates:
        return f"{num_missing} answers missing, {num_duplicates} doubled"
    return None


def _environment() -> dict[str, str]:
    """Return the peers' environment: one thread per numeric call, nothing sent home, this package importable."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }


def _end_group(process: subprocess.Popen) -> None:
    """End a worker and what it started in its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else "it printed nothing"
