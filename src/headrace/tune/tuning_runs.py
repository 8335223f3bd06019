"""Runs a pipeline's Plans for tuning: a pilot, the sweep of batch sizes, profiles; all over the same items."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from pathlib import Path

from headrace.base.errors import Interrupted, JobsFail
from headrace.base.formatting import pluralize
from headrace.base.plan import Plan, resolve, with_instances_as_workers
from headrace.compare.blocks import Block, Contender, SameItems, as_in_blocks, fewest_items, replace_parts
from headrace.compare.contenders import Say, lasts, run_block, run_pilot
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.stage_defaults import stage_defaults
from headrace.pipeline.thread_budget import usable_cores
from headrace.profiler.profile import profile
from headrace.runs.reader import Run, read_run
from headrace.sources.finite import FiniteSource
from headrace.tune.paced_items import PacedItems
from headrace.tune.space import thread_counts
from headrace.tune.sweep import BatchCosts, ThreadCosts, device_stages, sweep_batches

_PILOT_SECONDS = 0.5
FEWEST_PROFILED = 60
_MOST_PROFILED = 50_000
#: Batches up to this tell what threads gain.
_THREADS_BATCH = 4


class TuningRuns:
    """Runs Plans of one pipeline.

    Args:
        pipeline: What is done.
        written: The base Plan, as the user wrote it.
        source: Where the items come from; read once.
        runs: Folder for the run folders.
        deliver: Hand results to the pipeline's own delivery.
        say: Told about the progress, one line at a time.

    Attributes:
        num_runs: Plans that were run so far, but for the pilot.
        seconds: Wall time of all runs so far.
        is_emulated: The device is.
    """

    def __init__(
        self, pipeline: Pipeline, written: Plan, source: FiniteSource, runs: Path, *, deliver: bool, say: Say
    ) -> None:
        self.pipeline = pipeline
        self.written = with_instances_as_workers(written, stage_defaults(pipeline, written))
        self.items = SameItems(source)
        self.deliver = deliver
        self.cores = usable_cores()
        self.say = say
        self.num_runs = 0
        self.seconds = 0.0
        self.is_emulated = False
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", pipeline.name).strip("-") or "pipeline"
        self._folder = runs / f"tune-{name}-{time.strftime('%Y%m%d-%H%M%S')}"
        self._num_profiles = 0
        self._thread_costs: dict[int, dict[str, BatchCosts]] = {}
        self._pilot: Block | None = None

    def resolve(self, settings: Sequence[str] = ()) -> Plan:
        """Return the base Plan with settings replaced and everything filled in; raises SettingsError."""
        written = self.written.with_settings(settings)
        return resolve(written, stage_defaults(self.pipeline, written), self.cores)

    def pilot(self) -> float:
        """Return the base's rate, jobs per second, from runs that grow until they tell it.

        Raises:
            JobsFail: If most of its jobs fail.
            HeadraceError: If the base cannot run.
        """
        base = Contender(name="base", pipeline=self.pipeline, plan=self.resolve())
        began = time.monotonic()
        block = run_pilot(
            "base",
            lambda num_items: run_block(base, self.items, num_items, deliver=self.deliver),
            _PILOT_SECONDS,
            self.say,
        )
        self.seconds += time.monotonic() - began
        self._pilot = block
        self.is_emulated = block.is_emulated
        if block.failed > block.delivered:
            raise JobsFail(
                f"{block.delivered} of {block.delivered + block.failed} jobs gave a result; the first failure: "
                f"{block.first_failure}. Only a Plan whose jobs succeed can be tuned"
            )
        return block.throughput or 0.0

    def expect_block(self, seconds: float) -> float:
        """Return about how long a block of so many seconds takes of the base, by the pilot, opening and closing included.

        A slow pipeline's takes longer: fewer items than a block must have tell no rate.
        """
        if self._pilot is None:
            return seconds
        num_items = math.ceil(seconds * (self._pilot.throughput or 1.0))
        return lasts(self._pilot, max(fewest_items(self.resolve()), num_items))

    @property
    def opening_seconds(self) -> float:
        """How long the base takes to open and close, by the pilot; 0 before there was one."""
        return lasts(self._pilot, 0) if self._pilot else 0.0

    def elsewhere(self) -> dict[str, tuple[str, ...]]:
        """Return {setting: its value, then the others} of what could be computed at another place; see `Stage.elsewhere`."""
        plan = self.resolve()
        return {key: values for stage in self.pipeline.stages for key, values in stage.elsewhere(plan).items()}

    def emulates_device(self, settings: Sequence[str]) -> bool:
        """Return whether a stage that takes batches only takes time under these settings."""
        plan = self.resolve(settings)
        return any(stage.kind == "device" and stage.is_emulated(plan) for stage in self.pipeline.stages)

    def sweep(self, largest: int, settings: Sequence[str] = ()) -> dict[str, BatchCosts]:
        """Return {device stage: what its batches cost}, up to the largest that is worth it; `settings` to the base Plan."""
        found = {}
        for stage in device_stages(self.pipeline.stages):
            self.say(f"batch sizes of {stage}: one short run")
            began = time.monotonic()
            found[stage] = sweep_batches(self.pipeline, self.resolve(settings), stage, self.items, largest=largest)
            self.seconds += time.monotonic() - began
            self.num_runs += 1
        return found

    def sweep_threads(self) -> ThreadCosts:
        """Return what calls cost with each number of threads inside them that may be tried; measured once.

        How much a small model gains by threads, or loses, no run with one number of them tells.
        """
        if not self._thread_costs:
            began = time.monotonic()
            self.say("threads inside calls of the model: short runs")
            for threads in thread_counts(self.cores):
                plan = self.resolve([f"model.threads={threads}"])
                self._thread_costs[threads] = {
                    stage: sweep_batches(self.pipeline, plan, stage, self.items, largest=_THREADS_BATCH)
                    for stage in device_stages(self.pipeline.stages)
                }
            self.seconds += time.monotonic() - began
            self.num_runs += len(self._thread_costs)
        return self._thread_costs

    def profile(self, settings: Sequence[str], rate: float, seconds: float, *, arrivals: float | None = None) -> Run:
        """Profile a Plan and return its run folder, a new one.

        Args:
            settings: To the base Plan.
            rate: Jobs per second that it is expected to do.
            seconds: How long it should take, about.
            arrivals: Jobs per second that come, at random times; None: the source always has the next one.

        Raises:
            HeadraceError: If it cannot run.
            Interrupted: If the user stopped it.
        """
        self._num_profiles += 1
        self.items.num_items = min(_MOST_PROFILED, max(FEWEST_PROFILED, math.ceil(rate * seconds)))
        folder = self._folder.with_name(f"{self._folder.name}-{self._num_profiles}")
        expected = self.items.num_items / rate
        self.say(f"profile of {pluralize(self.items.num_items, 'item')}, about {expected:.0f} s, into {folder}")
        began = time.monotonic()
        source, limit = self.items.source_for(self.pipeline)
        if arrivals is not None:
            paced = PacedItems(self.items, arrivals)
            paced.num_items = self.items.num_items
            source, limit = paced, None
        pipeline = replace_parts(self.pipeline, source, self.pipeline.delivery if self.deliver else None)
        with as_in_blocks(source, limit):
            result = profile(pipeline, self.resolve(settings), output=folder, limit=limit)
        self.seconds += time.monotonic() - began
        self.num_runs += 1
        if result.interrupted:
            raise Interrupted(f"interrupted while profiling; what was recorded is in {folder}")
        return read_run(folder)
