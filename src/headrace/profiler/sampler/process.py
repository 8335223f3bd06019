"""The sampler's loop: look at threads often, read resources seldom, listen to the profiled process.

How this works: one thread, which sleeps in `select` on its pipe until the next look is due. Looks are not evenly spaced:
Python lets a thread keep the GIL for 5 ms, and an even pace of 100 or 200 Hz would keep step with that. How long they are apart
follows from what they cost, by this process's own CPU clock: at most `MAX_SHARE` of a core, and `TOTAL_SHARE` with the
resources. In the first `EAGER_SECONDS` it may be `EAGER_SHARE`: else a short run has too few looks to tell the GIL from a disk.
After `DENSE_SECONDS` only a tenth is looked at, so that the file of a long run stays small.

The sampler keeps the normal priority. With a lower one it would come to look when a core happens to be free, and see
less running than there is.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Sequence
from typing import Any

from headrace.profiler.sampler.gpu import Gpus
from headrace.profiler.sampler.machine import MachineReader, Measured
from headrace.profiler.sampler.messages import Report, SamplerSettings, ThreadPlace
from headrace.profiler.sampler.processes import Processes
from headrace.profiler.sampler.rates import Rates
from headrace.profiler.sampler.thread_states import ThreadStates
from headrace.runs.resource_files import ResourceWriter, StateWriter

#: Of a core: what all may cost, and looking at threads of it.
TOTAL_SHARE = 0.006
MAX_SHARE = 0.004
_MIN_SHARE = 0.002
#: The same of looks while the run is young.
EAGER_SHARE, EAGER_SECONDS = 0.015, 10.0
DENSE_SECONDS = 300.0
_THINNING = 10
#: States are written and the pace is set this often: a kill of everything loses at most what was seen in this time.
_UPKEEP_SECONDS = 0.25
#: A last sample of resources is taken if the one before is older.
_SHORTEST_SECONDS = 0.1
_GOLDEN_RATIO = 0.6180339887498949


class Pace:
    """How long to wait from one look at the threads to the next.

    Attributes:
        is_thinned: Whether only a tenth of the looks are wanted.
        is_eager: Whether looks may cost more.
    """

    def __init__(self, hertz: float) -> None:
        self.is_thinned = False
        self.is_eager = False
        self._shortest = 1 / hertz
        self._max_share = MAX_SHARE
        self._cost_seconds: float | None = None
        self._phase = 0.0

    def tell(self, cpu_seconds: float, num_looks: int, resources_share: float) -> None:
        """Take note of costs.

        Args:
            cpu_seconds: Of the looks since the last call.
            num_looks: How many those were.
            resources_share: Of a core, that reading resources takes; it is left out of what looks may cost.
        """
        self._max_share = max(_MIN_SHARE, min(MAX_SHARE, TOTAL_SHARE - resources_share))
        if num_looks:
            cost = cpu_seconds / num_looks
            # Smoothed over about two seconds: what a look costs jumps with what others do to the caches.
            self._cost_seconds = (
                cost if self._cost_seconds is None else self._cost_seconds + (cost - self._cost_seconds) / 8
            )

    def period(self) -> float:
        """Return the mean time between looks, seconds."""
        shortest = self._shortest * (_THINNING if self.is_thinned else 1)
        most = EAGER_SHARE if self.is_eager else self._max_share
        return max(shortest, (self._cost_seconds or 0.0) / most)

    def next_wait(self) -> float:
        """Return the next wait, seconds: between half and one and a half periods, spread evenly."""
        self._phase = (self._phase + _GOLDEN_RATIO) % 1.0
        return self.period() * (0.5 + self._phase)


class Resources:
    """Reads all resources and writes them."""

    def __init__(self, settings: SamplerSettings) -> None:
        self._machine = MachineReader(settings.process)
        self._processes = Processes(settings.process, os.getpid())
        self._gpus = Gpus()
        self._rates = Rates()
        self._failed: dict[str, str] = {}
        self.writer = ResourceWriter(settings.folder, "helper")

    @property
    def not_measured(self) -> dict[str, str]:
        """{what: why}."""
        return self._machine.not_measured | self._processes.not_measured | self._gpus.not_measured | self._failed

    def sample(self) -> None:
        """Read and write everything once. Never raises."""
        time_ns = time.monotonic_ns()
        try:
            self.writer.write(time_ns, self._measure(time_ns / 1e9))
        except Exception as error:  # A file of the kernel that nobody has seen yet must not end the looks at threads.
            self._failed["resources"] = f"{type(error).__name__}: {error}"

    def set_workers(self, places: Sequence[ThreadPlace]) -> None:
        """Say which threads are workers from now on."""
        self._processes.set_workers((place.process, place.thread_id) for place in places)

    def close(self) -> None:
        """Close the file, and let go of the GPUs' driver."""
        self.writer.close()
        self._gpus.close()

    def _measure(self, now: float) -> Measured:
        measured = self._machine.sample(now)
        processes = measured["processes"] = self._processes.sample(now)
        sampler = self._rates.growth("helper", time.process_time(), now)
        busy, own = measured["machine"].get("cpu_busy_cores"), processes.get("cpu_cores")
        if busy is not None and own is not None and sampler is not None:
            # The kernel counts in hundredths of a second: the difference of two such counts may be a little below 0.
            measured["machine"]["other_cpu_cores"] = max(0.0, busy - own - sampler)
        return measured | self._gpus.sample()


class SamplerProcess:
    """Watches until it is told to close, its pipe closes, or the profiled process is gone."""

    def __init__(self, settings: SamplerSettings, control: int) -> None:
        """Prepare to watch.

        Args:
            settings: What to watch; its process must be this one's parent.
            control: File descriptor on which the profiled process talks.
        """
        self._control = control
        self._parent = settings.process
        self._unread = b""
        self._closing = False
        self._resources = Resources(settings)
        self._sample_seconds = 1 / settings.resource_hertz
        self._sampled = 0.0
        self._sampling_cpu = 0.0
        self._opening_cpu = 0.0
        self._states = ThreadStates(settings.gil, gil_reason=settings.gil_reason)
        self._writer = StateWriter(settings.folder, "helper")
        self._pace = Pace(settings.state_hertz)
        self._has_threads = False
        self._num_looks = 0
        self._first_look = self._last_look = self._next_look = 0.0

    def run(self) -> Report:
        """Watch, and return how it went."""
        self._sample()
        began, sampling = time.monotonic(), self._sampling_cpu  # the first sample costs more: caches are cold
        upkeep, looks, cpu = began + _UPKEEP_SECONDS, 0, self._measure_looking_cpu()
        while not self._closing:
            self._listen(min(upkeep, self._next_sample(), *((self._next_look,) if self._has_threads else ())))
            now = time.monotonic()
            if self._has_threads and now >= self._next_look:
                self._look(now)
            if now >= self._next_sample():
                self._sample()
            if now >= upkeep:
                self._writer.flush()
                share = (self._sampling_cpu - sampling) / (now - began)
                self._pace.tell(self._measure_looking_cpu() - cpu, self._num_looks - looks, share)
                upkeep, looks, cpu = now + _UPKEEP_SECONDS, self._num_looks, self._measure_looking_cpu()
                # Its pipe need not close with it: children that it forked hold the other end too.
                self._closing = self._closing or os.getppid() != self._parent
        if time.monotonic() - self._sampled >= _SHORTEST_SECONDS:
            self._sample()
        return self._close()

    def _listen(self, until: float) -> None:
        """Sleep until then, or until the profiled process has something to say."""
        ready, _, _ = select.select([self._control], [], [], max(0.0, until - time.monotonic()))
        if ready:
            content = os.read(self._control, 1 << 16)
            self._closing = not content
            *lines, self._unread = (self._unread + content).split(b"\n")
            for line in lines:
                self._obey(json.loads(line))

    def _obey(self, message: dict[str, Any]) -> None:
        if "threads" in message:
            before = time.process_time()
            places = [ThreadPlace(*place) for place in message["threads"]]
            self._states.set_threads(places)
            self._resources.set_workers(places)
            self._writer.name_threads([(place.process, place.name) for place in places])
            self._has_threads = bool(places) and self._states.can_look
            # Of no look: a short run would be looked at a few times a second for it.
            self._opening_cpu += time.process_time() - before
        self._closing = self._closing or "close" in message

    def _look(self, now: float) -> None:
        self._writer.write(time.monotonic_ns(), self._states.look())
        self._num_looks += 1
        self._first_look, self._last_look = self._first_look or now, now
        self._pace.is_eager = now - self._first_look < EAGER_SECONDS
        self._pace.is_thinned = now - self._first_look > DENSE_SECONDS
        self._next_look = now + self._pace.next_wait()

    def _sample(self) -> None:
        before = time.process_time()
        self._sampled = time.monotonic()
        self._resources.sample()
        self._sampling_cpu += time.process_time() - before

    def _next_sample(self) -> float:
        return self._sampled + self._sample_seconds

    def _measure_looking_cpu(self) -> float:
        """Return the CPU time of everything but reading resources and opening what is looked at, seconds."""
        return time.process_time() - self._sampling_cpu - self._opening_cpu

    def _close(self) -> Report:
        self._states.close()
        self._writer.close()
        self._resources.close()
        elapsed = self._last_look - self._first_look
        return Report(
            cpu_seconds=time.process_time(),
            state_samples_per_second=(self._num_looks - 1) / elapsed if elapsed > 0 else None,
            lost_samples=self._writer.lost_lines + self._resources.writer.lost_ticks,
            not_measured=self._resources.not_measured | self._states.not_measured,
            outputs={name: sorted(found) for name, found in self._states.outputs.items() if found},
        )
