"""A device whose memory runs out: does a run with a `[budget]` shrink first, and is the peak of a batch predicted?

python -m benchmarks.video.memory [ramps] [without] [predicted] [--quick] [--json] [--write]

How this works: each ramp is a run in a control group of its own, of a GiB. Beside it in the group another process
takes more and more, as a neighbour on a device does, and keeps it. Seeds say how fast and how much. Without swap, as here, what
comes first once the group is full is that the kernel takes pages of files away (major faults) and kills. Needs root and control
groups of version 1. Peaks are of ten models, each in a process of its own, in batches up to 32.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import headrace as hr
from benchmarks import measure
from benchmarks.paths import ROOT
from benchmarks.video.networks import MODELS
from headrace.base.plan import Plan
from headrace.pipeline import execute
from headrace.pipeline.memory_forecast import MemoryForecast
from headrace.sources.finite import Entry, FiniteSource

LIMIT = 2**30
#: Before the neighbour grows, while it does and is there, and a window of throughput.
_STEADY_SECONDS, _RAMP_SECONDS, _WINDOW_SECONDS = 2.5, 5.0, 2.5
#: The neighbour ends with so much: then a run that does not shrink needs more than there is, and one that does fits.
_MOST_TAKEN = (380, 480)
_MIB_PER_SECOND = (80, 200)
_BATCH, _IN_FLIGHT = 16, 36
_LARGEST = 32
_RAMPS, _CONTROLS = 20, 3
#: Of a group: pages read again, swapped out, and how often its limit was reached.
_SHORTAGES = ("total_pgmajfault", "total_swap", "failcnt")
#: Errors are told of these sizes: smaller ones are measured to predict them.
_PREDICTED_FROM = 4


def _all_ramps(quick: bool) -> list[dict[str, Any]]:
    """Return what became of each ramp."""
    return [_ramp(seed) for seed in range(2 if quick else _RAMPS)]


def _ramps_without(quick: bool) -> list[dict[str, Any]]:
    """Return what becomes of the first ramps where the Plan has no budget."""
    return [_ramp(seed, "--without") for seed in range(1 if quick else _CONTROLS)]


def _all_predictions(quick: bool) -> dict[str, Any]:
    """Return of each model what was predicted of each batch, and measured."""
    return {name: _in_child("--peaks", name) for name in list(MODELS)[: 2 if quick else None]}


# --- ramps


@contextlib.contextmanager
def group(limit: int) -> Iterator[Path]:
    """Give a control group below this process's own, with a limit of memory."""
    own = next(
        line.split(":", 2)[2] for line in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in line
    )
    path = Path("/sys/fs/cgroup/memory") / own.strip("/") / f"headrace-{os.getpid()}"
    path.mkdir()
    try:
        (path / "memory.limit_in_bytes").write_text(str(limit))
        yield path
    finally:
        for process in (path / "cgroup.procs").read_text().split():  # the neighbour of a run that was killed
            os.kill(int(process), signal.SIGKILL)
        time.sleep(0.5)
        path.rmdir()


def _ramp(seed: int, how: str = "--ramp") -> dict[str, Any]:
    with group(LIMIT) as path:
        child = subprocess.run(
            [sys.executable, "-m", "benchmarks.video.memory", how, str(seed), str(path)],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        kills = dict(line.split() for line in (path / "memory.oom_control").read_text().splitlines())
        found = {"seed": seed, "kills": int(kills["oom_kill"]), "status": child.returncode}
        if child.returncode:
            return {**found, "said": child.stderr[-500:]}
        return {**found, **json.loads(child.stdout.splitlines()[-1])}


class Seen:
    """Notes when each answer came."""

    flush_items, flush_seconds, default_workers, is_instant = 1, 1.0, 1, True

    def __init__(self) -> None:
        self.times: list[float] = []

    def open(self, context: Any) -> None:
        """Do nothing."""

    def deliver(self, job: hr.Job, result: Any) -> bool:
        """Note it."""
        self.times.append(time.time())
        return True

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Frames(FiniteSource):
    """Makes frames of two megapixels, one when it is asked for, until an event is set."""

    def __init__(self, over: threading.Event) -> None:
        super().__init__()
        self._over = over

    @property
    def lists_ahead(self) -> bool:
        """False: there is no end of them."""
        return False

    def entries(self) -> Iterator[Entry]:
        """Give them."""
        for number in itertools.count():
            if self._over.is_set():
                return
            yield Entry(str(number), np.full((1080, 1920, 3), number % 251, np.uint8))


class Pictures(hr.Module):
    """Shrinks photographs of two megapixels for MobileNetV2."""

    input = hr.ArrayInput()

    def load(self, context: Any) -> None:
        """Open the model."""
        self.network = context.open_model()

    def preprocess(self, image: np.ndarray) -> np.ndarray:
        """Return what the model takes."""
        return hr.images.normalize(
            np.ascontiguousarray(image[:: image.shape[0] // 224, :: image.shape[1] // 224][:224, :224])
        )

    def process(self, batch: Any) -> list[int]:
        """Return a label for each."""
        return [int(one.argmax()) for one in self.network(batch)]


def _tell_ramp(seed: int, path: Path, *, has_budget: bool) -> dict[str, Any]:
    """Run in the group, with a neighbour that grows, and return what came first."""
    (path / "cgroup.procs").write_text(str(os.getpid()))
    chance = random.Random(seed)
    speed, most = chance.uniform(*_MIB_PER_SECOND), chance.randint(*_MOST_TAKEN)
    seen = Seen()
    story: dict[str, Any] = {}
    over = threading.Event()

    def neighbour() -> None:
        while not seen.times:
            time.sleep(0.05)
        time.sleep(_STEADY_SECONDS)
        story["began"], story["faults"], story["first"] = time.time(), _look(path)["total_pgmajfault"], {}
        program = (
            f"import time\nheld = []\nfor _ in range({most}):\n held.append(b'x' * 2**20)\n time.sleep({1 / speed})\n"
            "time.sleep(99)"
        )
        with subprocess.Popen([sys.executable, "-c", program]) as other:
            until = time.time() + _RAMP_SECONDS
            while time.time() < until:
                look = _look(path)
                for what in _SHORTAGES:
                    if look.get(what, 0) > (story["faults"] if what == "total_pgmajfault" else 0):
                        story["first"].setdefault(what, time.time())
                story["most"] = max(story.get("most", 0), look["used"])
                time.sleep(0.02)
            other.kill()
        over.set()

    watcher = threading.Thread(target=neighbour)
    watcher.start()
    path_of_model, _, engine = MODELS["MobileNetV2"]()
    own = (f"process.batch={_BATCH}", f"source.max_in_flight={_IN_FLIGHT}")
    budget = (f"budget.memory={LIMIT}",) if has_budget else ()
    settings = (f"model.artifact={path_of_model}", *own, *budget, *engine)
    result = hr.run(
        hr.Pipeline(Frames(over), module=Pictures(), delivery=seen),
        plan=Plan().with_settings(settings),
    )
    watcher.join()
    steps = result.budget.steps if result.budget else []
    began, down = story["began"], next((step.at_unix_seconds for step in steps if step.is_down), None)
    rates = _rates(seen.times, began)
    return {
        "mib_per_second": speed,
        "mib": most,
        "degraded_after": None if down is None else down - began,
        "steps": [(round(step.at_unix_seconds - began, 2), step.rung, step.why) for step in steps],
        **{f"{what}_after": at - began for what, at in story["first"].items()},
        "most_share": story["most"] / LIMIT,
        "least_rate": min(rates["then"]) / rates["before"],
    }  # fmt: skip


def _rates(times: Sequence[float], began: float) -> dict[str, Any]:
    """Return answers a second before the neighbour grew, and of each window since then."""
    before = [at for at in times if began - _STEADY_SECONDS + 1 <= at < began]
    windows = [began + _WINDOW_SECONDS * number for number in range(int(_RAMP_SECONDS / _WINDOW_SECONDS))]
    then = [sum(first <= at < first + _WINDOW_SECONDS for at in times) / _WINDOW_SECONDS for first in windows]
    return {"before": len(before) / (_STEADY_SECONDS - 1), "then": then}


def _look(path: Path) -> dict[str, int]:
    told = dict(line.split() for line in (path / "memory.stat").read_text().splitlines())
    found = {name: int(number) for name, number in told.items()}
    return found | {
        "used": int((path / "memory.usage_in_bytes").read_text()),
        "failcnt": int((path / "memory.failcnt").read_text()),
    }


# --- predictions


def _in_child(*arguments: str) -> Any:
    command = [sys.executable, "-m", "benchmarks.video.memory", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _tell_peaks(name: str) -> dict[str, Any]:
    """Run a model over a few items, and return what was predicted of each batch in the warm-up, and measured."""
    kept: list[MemoryForecast] = []

    class Kept(MemoryForecast):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            kept.append(self)

    setattr(execute, "MemoryForecast", Kept)  # noqa: B010  # a run tells a refusal alone, and here all are wanted
    path, shape, settings = MODELS[name]()

    class Calls(hr.Module):
        input = hr.ArrayInput()

        def load(self, context: Any) -> None:
            self.network = context.open_model()

        def process(self, batch: Any) -> list[float]:
            return [float(one.ravel()[0]) for one in self.network(batch)]

    hr.run(
        hr.Pipeline(hr.items([np.ones(shape, np.float32)] * 4), module=Calls(), delivery=hr.collect()),
        plan=Plan().with_settings(
            (f"model.artifact={path}", f"process.batch={_LARGEST}", f"budget.memory={64 << 30}", *settings)
        ),
    )
    (forecast,) = kept
    predicted, peaks = forecast.predicted["process"], forecast.peaks["process"]
    return {
        str(size): {"predicted": predicted[size], "measured": peaks[size]}
        for size in sorted(peaks)
        if size >= _PREDICTED_FROM
    }


def _errors(sizes: Mapping[str, Mapping[str, int]]) -> dict[str, float]:
    return {size: one["predicted"] / one["measured"] - 1 for size, one in sizes.items()}


def as_text(result: Mapping[str, Any]) -> str:
    """Return the result for readers."""
    says = {"ramps": _say_ramps, "without": _say_without, "predicted": _say_predictions}
    return "\n".join(say(result[part]) for part, say in says.items() if part in result)


def _say_ramps(ramps: Sequence[Mapping[str, Any]]) -> str:
    through = [one for one in ramps if not one["status"]]
    least = min((one["least_rate"] for one in through), default=0.0)
    return f"""# A device whose memory runs out

A run has `[budget] memory` of {LIMIT >> 20} MiB in a control group with as much. Frames of two megapixels, {_IN_FLIGHT} in
flight, batches of {_BATCH} to MobileNetV2. A neighbour in the group takes more and more and keeps it. There is no swap: once
the group is full, pages of files are taken away, which a major fault reads again, and then a process is killed.

- {sum(map(is_first, ramps))} of {len(ramps)} ramps: the run went down once the neighbour grew, before the first major fault
  and before the group was full
- {len(ramps) - len(through)} runs ended, and the kernel killed {sum(one["kills"] for one in ramps)} processes
- throughput in the worst {_WINDOW_SECONDS:g} s of a ramp: {least:.0%} of what it was before

| taken | MiB/s | went down after | group full after | major fault after | most of the group | least throughput |
|---|---|---|---|---|---|---|
{chr(10).join(map(_row, ramps))}
"""


def _say_without(ramps: Sequence[Mapping[str, Any]]) -> str:
    killed = sum(bool(one["status"]) for one in ramps)
    full = sum("failcnt_after" in one or bool(one["status"]) for one in ramps)
    return f"""## The first {len(ramps)} of them without a budget

The group was full in {full} of them, and {killed} of the runs were killed.
"""


def _say_predictions(predicted: Mapping[str, Any]) -> str:
    worst = {name: max(map(abs, _errors(sizes).values())) for name, sizes in predicted.items()}
    lines = [
        f"| {name} | {' | '.join(f'{error:+.1%}' for error in _errors(sizes).values())} |"
        for name, sizes in predicted.items()
    ]
    sizes = list(next(iter(predicted.values())))
    return f"""# Is the peak of a batch predicted?

Error of the process's predicted peak, by size of the batch, from those of the two smaller sizes.
{sum(one <= 0.1 for one in worst.values())} of {len(worst)} models are within a tenth at each size.

| model | {" | ".join(sizes)} |
|---|{"---|" * len(sizes)}
{chr(10).join(lines)}
"""


def is_first(ramp: Mapping[str, Any]) -> bool:
    """Return whether a run went down once the neighbour grew, and before anything of its group ran short."""
    down = ramp.get("degraded_after")
    return down is not None and down > 0 and all(down < ramp.get(f"{what}_after", math.inf) for what in _SHORTAGES)


def _row(one: Mapping[str, Any]) -> str:
    if one["status"]:
        return f"| | | ended with {one['status']} | | | | |"
    after = [one.get(key) for key in ("degraded_after", "failcnt_after", "total_pgmajfault_after")]
    told = ["never" if at is None else f"{at:.1f} s" for at in after]
    share, least = f"{one['most_share']:.0%}", f"{one['least_rate']:.0%}"
    return f"| {one['mib']} MiB | {one['mib_per_second']:.0f} | {' | '.join(told)} | {share} | {least} |"


if __name__ == "__main__":
    if sys.argv[1:2] in (["--ramp"], ["--without"]):
        print(json.dumps(_tell_ramp(int(sys.argv[2]), Path(sys.argv[3]), has_budget=sys.argv[1] == "--ramp")))
    elif sys.argv[1:2] == ["--peaks"]:
        print(json.dumps(_tell_peaks(sys.argv[2])))
    else:
        parts = {"ramps": _all_ramps, "without": _ramps_without, "predicted": _all_predictions}
        measure.run_parts("video.memory", "A device whose memory runs out.", parts, as_text)
