"""How the benchmarks measure: windows of CPU and wall time, foreign load, interleaved rounds, calibration, result files.

Three rules, learned on shared machines whose speed drifts by a quarter between minutes:

* compare only what ran interleaved in the same minutes, A B C ... C B A, and compare it round by round (``interleave``);
* write down how many cores other programs took meanwhile (``Window.foreign_cores``);
* state a rate beside what the machine's arithmetic allows at that moment (``compute_cost``).

Only ``compute_cost`` imports more than the standard library, so that this module loads in any environment.
"""

import argparse
import json
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, TypeVar

from benchmarks.paths import RESULTS

Result = TypeVar("Result")

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PACKAGES = (
    "headrace", "numpy", "opencv-python-headless", "onnxruntime", "simplejpeg", "pillow", "pycurl", "urllib3",
    "aiohttp", "uvloop", "pyarrow", "msgspec", "torch", "ray",
)  # fmt: skip


# --- CPU and wall time -----------------------------------------------------------------------------------------------


def machine_cpu_seconds() -> tuple[float, float]:
    """Return (busy, stolen) CPU seconds of the whole machine since it started; stolen ones went to other guests."""
    with open("/proc/stat") as file:
        user, nice, system, _idle, _iowait, irq, softirq, steal = (int(x) for x in file.readline().split()[1:9])
    return (user + nice + system + irq + softirq) / TICKS_PER_SECOND, steal / TICKS_PER_SECOND


def tree_cpu_seconds(pid: int | None = None) -> float:
    """Return CPU seconds used so far by a process and its descendants, ended children included.

    Args:
        pid: Root of the tree; None means the calling process.
    """
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (read := _read_process(int(entry))):
            parent, ticks[int(entry)] = read
            children.setdefault(parent, []).append(int(entry))
    total, pending = 0, [pid or os.getpid()]
    while pending:
        process = pending.pop()
        total += ticks.get(process, 0)
        pending += children.get(process, [])
    return total / TICKS_PER_SECOND


def _read_process(pid: int) -> tuple[int, int] | None:
    """Return (parent, CPU ticks with those of ended children), None if the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before may hold spaces and parentheses
    return int(fields[1]), sum(int(x) for x in fields[11:15])


@dataclass
class Window:
    """One measured stretch of time: ``with Window() as window: ...``, then read its fields.

    ``pids`` are roots of process trees that belong to the measurement; by default the calling process.
    """

    pids: Sequence[int] = ()
    started_at: float = 0.0
    """Wall time of the start, seconds since the epoch."""
    seconds: float = 0.0
    """Length."""
    cpu_seconds: float = 0.0
    """CPU seconds of our process trees."""
    busy_cores: float = 0.0
    """Cores busy on average, everybody's."""
    foreign_cores: float = 0.0
    """Cores kept busy on average by processes that are not ours."""
    stolen_cores: float = 0.0
    """Cores on average that the hypervisor gave to other guests."""

    def __enter__(self) -> "Window":
        self._before = self._read()
        self.started_at = time.time()
        self._clock = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._clock
        busy, stolen, own = (after - before for after, before in zip(self._read(), self._before, strict=True))
        self.cpu_seconds = own
        self.busy_cores = busy / self.seconds
        self.stolen_cores = stolen / self.seconds
        self.foreign_cores = max(0.0, (busy - own) / self.seconds)

    def _read(self) -> tuple[float, float, float]:
        own = sum(tree_cpu_seconds(pid) for pid in (self.pids or [os.getpid()]))
        return (*machine_cpu_seconds(), own)


def foreign_cores(seconds: float = 0.5) -> float:
    """Return how many cores other programs keep busy, watched for the given time."""
    with Window() as window:
        time.sleep(seconds)
    return window.foreign_cores


def wait_quiet(limit_cores: float = 0.2, timeout_seconds: float = 30.0) -> float:
    """Wait until other programs use less than ``limit_cores`` or the time is up; return the last reading."""
    deadline = time.monotonic() + timeout_seconds
    while (load := foreign_cores()) >= limit_cores and time.monotonic() < deadline:
        pass
    return load


# --- Rounds ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spread:
    """A median with its range."""

    median: float
    low: float
    high: float
    count: int

    def __format__(self, spec: str) -> str:
        spec = spec or ".3g"
        if self.count == 1:
            return format(self.median, spec)
        return f"{self.median:{spec}} [{self.low:{spec}}-{self.high:{spec}}]"

    def __str__(self) -> str:
        return format(self, "")


def spread(values: Iterable[float]) -> Spread:
    """Return the median, least and greatest of the values.

    Raises:
        ValueError: If there are none.
    """
    values = sorted(values)
    if not values:
        raise ValueError("no values to summarise: every run of this row failed or was skipped")
    return Spread(statistics.median(values), values[0], values[-1], len(values))


def interleave(
    runners: Mapping[str, Callable[[], Result]],
    rounds: int,
    before_round: Callable[[int], object] | None = None,
    on_result: Callable[[str, int, Result], object] | None = None,
) -> dict[str, list[Result]]:
    """Run every runner once per round, forwards in even rounds and backwards in odd ones.

    Turning round lets a steady drift of the machine's speed fall on all alike. An even number of rounds balances it.

    Args:
        runners: What to run, by name.
        rounds: Results per runner, >= 1.
        before_round: Called with the round's number, for example to calibrate.
        on_result: Called with name, round and result as soon as it is there, for example to show or save it.

    Returns:
        Results by name; the n-th of each comes from the n-th round, so they pair.
    """
    results: dict[str, list[Result]] = {name: [] for name in runners}
    for number in range(rounds):
        if before_round:
            before_round(number)
        names = list(runners) if number % 2 == 0 else list(reversed(runners))
        for name in names:
            result = runners[name]()
            results[name].append(result)
            if on_result:
                on_result(name, number, result)
    return results


def paired_ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Return the spread of ours / theirs, round by round.

    Raises:
        ValueError: If the two differ in length: then they did not run in the same rounds.
    """
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} and {len(theirs)} results do not pair: run both in every round")
    return spread(a / b for a, b in zip(ours, theirs, strict=True))


# --- What the machine allows -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ComputeCost:
    """CPU seconds per image of the unavoidable work, alone on one thread, medians over the images."""

    decode: str
    batch: int
    preprocess_seconds: float
    """Decode, resize, crop, normalise."""
    model_seconds: float
    """The model, per image."""
    total_seconds: float
    """Both, measured back to back as a mean over the images: the number to divide cores by."""
    num_images: int

    def limit_per_second(self, num_cores: int | None = None) -> float:
        """Return the rate at which all cores would do nothing but this work."""
        return (num_cores or usable_cores()) / self.total_seconds


def compute_cost(
    image_paths: Sequence[str], decode: Literal["usual", "scaled"], model: str | Path, batch: int = 1
) -> ComputeCost:
    """Measure preprocess and model alone on the calling thread, in CPU seconds per image.

    Preprocess and model alternate, as they do in a pipeline: measured apart, each finds its data in the cache and looks
    about a tenth cheaper.

    Args:
        image_paths: JPEG files; 40 give about 1 % of repeatability on a quiet machine.
        decode: "usual" or "scaled", see ``benchmarks.peers.preprocess``.
        model: ONNX file.
        batch: Images per model call.
    """
    import numpy as np

    from benchmarks.peers.classifier import Classifier
    from benchmarks.peers.preprocess import preprocessor

    preprocess, classify = preprocessor(decode), Classifier(str(model))
    jpegs = [Path(path).read_bytes() for path in image_paths]
    images = np.empty((batch, 3, 224, 224), np.float32)
    groups = [jpegs[i : i + batch] for i in range(0, len(jpegs) - batch + 1, batch)]
    preprocess_samples, model_samples = [], []
    for group in [groups[0], groups[0], *groups]:
        started = time.thread_time()
        for slot, jpeg in zip(images, group, strict=True):
            preprocess(jpeg, slot)
        middle = time.thread_time()
        classify(images)
        preprocess_samples.append((middle - started) / batch)
        model_samples.append((time.thread_time() - middle) / batch)
    preprocess_samples, model_samples = preprocess_samples[2:], model_samples[2:]  # the first two warm up
    return ComputeCost(
        decode=decode,
        batch=batch,
        preprocess_seconds=statistics.median(preprocess_samples),
        model_seconds=statistics.median(model_samples),
        total_seconds=statistics.mean(preprocess_samples) + statistics.mean(model_samples),
        num_images=len(groups) * batch,
    )


# --- Machine and results ---------------------------------------------------------------------------------------------


def usable_cores() -> int:
    """Return the number of cores this process may run on."""
    return len(os.sched_getaffinity(0))


def cpu_model() -> str:
    """Return the processor's name, with family and model where the name alone says little."""
    with open("/proc/cpuinfo") as file:
        facts = dict(re.split(r"\s*:\s*", line.strip(), maxsplit=1) for line in file if ":" in line)
    name = facts.get("model name", platform.machine())
    name = re.sub(r"\((R|TM)\)|CPU|Processor|@.*|\d+-Core", "", name)
    return f"{' '.join(name.split())} (family {facts.get('cpu family', '?')} model {facts.get('model', '?')})"


@dataclass(frozen=True)
class Machine:
    """What a result was measured on. Holds no names of hosts, users or folders."""

    cpu: str
    num_cores: int
    memory_gib: float
    system: str
    python: str
    packages: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        packages = ", ".join(f"{name} {number}" for name, number in self.packages.items())
        return (
            f"{self.cpu}, {self.num_cores} cores, {self.memory_gib:.0f} GiB; {self.system}; {self.python}; {packages}"
        )


def machine() -> Machine:
    """Return a description of this machine and of the installed packages that matter."""
    packages = {}
    for name in PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return Machine(
        cpu=cpu_model(),
        num_cores=usable_cores(),
        memory_gib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
        system=f"{platform.system()} {platform.release()}",
        python=f"Python {platform.python_version()}",
        packages=packages,
    )


def hardware_slug() -> str:
    """Return a short name of the hardware for file names, such as ``amd-epyc-17-2c``."""
    name = re.sub(r"\(family (\S+) model (\S+)\)", r"\2", cpu_model())
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") + f"-{usable_cores()}c"


def run_benchmark(
    theme: str,
    description: str,
    measure_all: Callable[[bool], dict[str, Any]],
    as_text: Callable[[dict[str, Any]], str],
) -> dict[str, Any]:
    """Run one benchmark as its command line asks, print and perhaps write its result, and return it.

    Args:
        theme: The module's name, which begins the names of its results.
        description: What `--help` says first.
        measure_all: Runs everything; told whether a smoke run is enough.
        as_text: Returns the result for readers.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{theme}", description=description)
    parser.add_argument("--quick", action="store_true", help="a smoke run, under 50 s; the claim is the full run's")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.add_argument("--write", action="store_true", help="write a dated result to benchmarks/results")
    arguments = parser.parse_args()
    result = measure_all(arguments.quick)
    print(json.dumps(result) if arguments.json else as_text(result))
    if arguments.write:
        print(f"written: {write_result(theme, as_text(result), result)}", file=sys.stderr, flush=True)
    return result


def run_parts(
    theme: str,
    description: str,
    parts: Mapping[str, Callable[[bool], Any]],
    as_text: Callable[[Mapping[str, Any]], str],
) -> None:
    """Run the parts that the command line names, or all; with `--write`, keep what other calls of today found of the others.

    Args:
        theme: The module's name, which begins the names of its results.
        description: What `--help` says first.
        parts: {name: what runs it, told whether a smoke run is enough}.
        as_text: Returns the result for readers; it may lack parts.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{theme}", description=description)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(parts)}; none: all of them")
    parser.add_argument("--quick", action="store_true", help="a smoke run; the claim is the full run's")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.add_argument("--write", action="store_true", help="write a dated result to benchmarks/results")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.parts if name not in parts]:
        parser.error(f"{', '.join(unknown)}: expected {', '.join(parts)}")
    result = {name: parts[name](arguments.quick) for name in arguments.parts or parts}
    if arguments.write:
        before = result_path(theme).with_suffix(".json")
        result = {**(json.loads(before.read_text())["data"] if before.exists() else {}), **result}
        print(f"written: {write_result(theme, as_text(result), result)}", file=sys.stderr, flush=True)
    print(json.dumps(result) if arguments.json else as_text(result))


def result_path(theme: str) -> Path:
    """Return where today's result of a theme on this machine stands, or will; `train.batch` begins `train_batch_`."""
    return RESULTS / f"{theme.replace('.', '_')}_{hardware_slug()}_{datetime.now(UTC):%Y%m%d}.md"


def write_result(theme: str, text: str, data: object) -> Path:
    """Write ``results/<theme>_<hardware>_<yyyymmdd>.md`` and ``.json``; return the former.

    The machine's description and the time are added to both. A second result of the same day replaces the first:
    results are kept by version control, not by file names.

    Args:
        theme: What was measured, such as "queue_to_callback".
        text: The result for readers, Markdown, beginning with a title.
        data: The result for programs; dataclasses are written as objects.
    """
    now = datetime.now(UTC)
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = result_path(theme)
    here = machine()
    path.write_text(f"{text.rstrip()}\n\n## Machine\n\n{here}. Written {now:%Y-%m-%d %H:%M} UTC.\n")
    record = {"theme": theme, "written_at": now.isoformat(), "machine": asdict(here), "data": data}
    path.with_suffix(".json").write_text(json.dumps(record, indent=1, default=_jsonable) + "\n")
    return path


def _jsonable(value: object) -> object:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)
