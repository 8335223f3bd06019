"""Runs the rungs of the ladder one after the other, and says what each step bought."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.base.errors import Interrupted
from headrace.base.plan import Plan
from headrace.base.units import format_duration
from headrace.demo.servers import LOOPBACK, DemoServers
from headrace.demo.workload import REPEATS, fill_queue, make_pipeline, write_pipeline
from headrace.pipeline.execute import Result
from headrace.pipeline.thread_budget import usable_cores
from headrace.pipeline.watching import Watch
from headrace.profiler.profile import ProfileSettings, profile
from headrace.samples.generator import make
from headrace.sources.queue_source import QueueSource

PLANS = Path(__file__).parent / "plans"

#: A step that changes throughput by less than this in one pass is called no change: a shared machine drifts as much.
NOISE_RATIO = 0.05


@dataclass(frozen=True, slots=True)
class Rung:
    """One Plan's run."""

    name: str
    explanation: str
    rate_per_second: float
    """Images per second, from the first job received to the last outcome."""
    answers: dict[str, str]
    """Scene by job."""
    result: Result


@dataclass(frozen=True, slots=True)
class Ladder:
    """All rungs."""

    rungs: Sequence[Rung]
    truth: dict[str, str]
    """Scene by job, as the generator cut it."""

    @property
    def num_agreeing(self) -> int:
        """Jobs that every rung answered alike."""
        return sum(1 for job in self.truth if len({rung.answers.get(job) for rung in self.rungs}) == 1)

    def num_right(self, rung: Rung) -> int:
        """Return how many jobs a rung named rightly."""
        return sum(1 for job, scene in self.truth.items() if rung.answers.get(job) == scene)

    def verdict(self, rung: Rung) -> str:
        """Return what the step to this rung bought, in words."""
        index = list(self.rungs).index(rung)
        if index == 0:
            return "the baseline"
        ratio = rung.rate_per_second / self.rungs[index - 1].rate_per_second
        if abs(ratio - 1) < NOISE_RATIO:
            return f"x{ratio:.2f}: no change that one pass can tell from noise"
        return f"x{ratio:.2f}" if ratio > 1 else f"x{ratio:.2f}: bought nothing here"


def climb(
    folder: Path,
    *,
    count: int,
    delay_seconds: float,
    seed: int = 1,
    watch: Callable[[str, int], Watch | None] = lambda name, total: None,
    progress: Callable[[str], None] = lambda text: None,
) -> Ladder:
    """Make the images, run every rung and return what came out.

    Args:
        folder: Where images, queues, Plans and run folders go; new or empty.
        count: Number of images.
        delay_seconds: The image server's; the only thing that is simulated.
        seed: Of the images.
        watch: Makes the live view of a rung, from its name and its number of images.
        progress: Told what is going on.

    Raises:
        Interrupted: If a rung was stopped by a signal: the others would run on, and say nothing of worth.
    """
    progress(f"cutting {count} crops from the photographs that ship with headrace")
    manifest = make(folder / "images", count=count, seed=seed, split="held_out")
    truth = {label.file: str(label.label) for label in manifest.labels}
    pipeline = write_pipeline(folder, delay_seconds)
    rungs: list[Rung] = []
    with DemoServers(folder / "images", delay_seconds) as servers:
        for path in sorted(PLANS.glob("*.toml")):
            name, explanation = _introduction(path)
            plan = _fit_to_machine(Plan.load(path), name, rungs)
            # One image after the other takes its time; the faster rungs need more images to be timed at all.
            repeats = REPEATS if rungs else 1
            progress(f"running {name} ({repeats * count} images)")
            course = _Course(folder, path.stem, pipeline, servers, truth, repeats)
            try:
                rungs.append(course.run(name, explanation, plan, watch(name, repeats * count)))
                interrupted = rungs[-1].result.interrupted
            except KeyboardInterrupt:  # before its first image: the rungs before it are kept
                if not rungs:
                    raise
                interrupted = True
            if interrupted:
                raise Interrupted(f"interrupted; what ran until then is in {folder}")
    return Ladder(rungs, truth)


def _fit_to_machine(plan: Plan, name: str, rungs: Sequence[Rung]) -> Plan:
    settings = []
    if plan.stages["decode"].workers == 2:
        settings.append(f"decode.workers={usable_cores()}")
    before = {rung.name: rung.rate_per_second for rung in rungs}
    if name == "decode at scale" and before["batched"] < before["overlapped"]:
        # Where batching bought nothing, the next step does not carry it on.
        settings.append("process.batch=1")
    return plan.with_settings(settings).allowing([LOOPBACK])


@dataclass(frozen=True, slots=True)
class _Course:
    """What one rung runs over: each image so many times, in a queue of its own."""

    folder: Path
    stem: str
    pipeline: str
    """How other commands name it."""
    servers: DemoServers
    truth: dict[str, str]
    repeats: int

    def run(self, name: str, explanation: str, plan: Plan, watch: Watch | None) -> Rung:
        """Fill the queue, run the Plan until it is empty, and collect the answers."""
        plan_path = self.folder / "plans" / f"{self.stem}.toml"
        plan_path.parent.mkdir(exist_ok=True)
        plan_path.write_text(plan.as_toml(), encoding="utf-8")
        queue = fill_queue(self.folder / "queues" / f"{self.stem}.db", self.servers, self.truth, self.repeats)
        pipeline = make_pipeline(QueueSource(queue, drain=True), self.pipeline)
        pipeline.options = ("--plan", str(plan_path))
        # A pass is too short to measure what profiling costs by switching it off and on.
        settings = ProfileSettings(measure_overhead=False, curve_batch=0)
        result = profile(pipeline, plan, output=self.folder / "runs" / self.stem, watch=watch, settings=settings)
        rate = float(result.summary.as_dict()["throughput_per_second"] or 0.0)
        return Rung(name, explanation, rate, self._answers(), result)

    def _answers(self) -> dict[str, str]:
        answers: dict[str, str] = {}
        for body in self.servers.take_results():
            file = str(body["id"]).partition("/")[2]
            scene = str(body["result"]["scene"])
            answers[file] = scene if answers.get(file, scene) == scene else "(differs between repeats)"
        return answers


def _introduction(plan: Path) -> tuple[str, str]:
    """Return the name and the explanation in the comment that opens a Plan."""
    lines = plan.read_text(encoding="utf-8").splitlines()
    name, _, explanation = " ".join(line.lstrip("# ") for line in lines if line.startswith("#")).partition(": ")
    return name, explanation


def describe(ladder: Ladder, delay_seconds: float) -> list[str]:
    """Return what the whole ladder gained, whether the answers stayed the same, and what was not real."""
    first, last, total = ladder.rungs[0], ladder.rungs[-1], len(ladder.truth)
    times, cores = last.rate_per_second / first.rate_per_second, f"{usable_cores()} of {os.cpu_count()} cores"
    return [
        f"before {first.rate_per_second:.1f}/s, after {last.rate_per_second:.1f}/s: x{times:.1f}, on {cores}, one pass each.",
        (
            f"Answers: all five runs agree on {ladder.num_agreeing} of {total} images; right: {ladder.num_right(first)} "
            f"before, {ladder.num_right(last)} after."
        ),
        (
            f"Simulated: only the network delay, {format_duration(delay_seconds)} per image. Photographs, queue, HTTP, "
            "decoding, model and callbacks are real."
        ),
    ]
