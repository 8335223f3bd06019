"""One training process that is being recorded: recorder, hooks and files together.

How this works: a session belongs to one process. It writes `spans/HOST-PID-NNNNNN.parquet` and `training/HOST-PID.json` below
the run folder, which may be shared with other ranks; who made that folder (`headrace train`, or `profile` here) writes its
`run.json`. A forked child inherits the session's objects but not its thread: in a child the recorder is silent.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from headrace.base.documents import encode_document
from headrace.base.formatting import encodable
from headrace.base.metering import thread_cpu_seconds
from headrace.base.records import Span
from headrace.runs.file_names import SPANS_FOLDER
from headrace.runs.formats.training import LoaderInfo, TrainingProcess, process_file
from headrace.runs.run_folder import replace_file
from headrace.runs.span_files import SpanWriter
from headrace.runs.training_phases import WORKERS
from headrace.train.current import armed_session, read_asked
from headrace.train.device_clock import DeviceClock
from headrace.train.fingerprints import LoaderPrints, PrintedLoader
from headrace.train.kept_lines import KeptLines
from headrace.train.layer_times import LayerTimes
from headrace.train.line_sampler import LineSampler
from headrace.train.loader_source import LoaderSources
from headrace.train.loader_watch import Tally, WatchedLoader
from headrace.train.machine_use import MachineUse
from headrace.train.memory_owned import describe_memory
from headrace.train.memory_sampler import MemorySampler
from headrace.train.profiler_schedule import LAYERS_VARIABLE, VARIABLE, parse_schedule
from headrace.train.ranges import make_recorder
from headrace.train.shared_folder import SharedFolder
from headrace.train.torch_hooks import TorchHooks
from headrace.train.torch_profiler import ScheduledProfiler
from headrace.train.undisturbed import call_undisturbed

logger = logging.getLogger("headrace")


class Session:
    """Records the training of this process into a run folder, from its making until `close`.

    Attributes:
        folder: The run folder.
        recorder: Is told of the events of the loop.
        hooks: Tell it what PyTorch does.
        loaders: What was wrapped, for `training/HOST-PID.json`.
        process: Whose it is.
    """

    def __init__(
        self, folder: Path, *, script: str = "", framework: str = "torch", forked_from: int | None = None
    ) -> None:
        """Begin.

        Args:
            folder: The run folder; exists.
            script: What runs.
            framework: Whose loop it is.
            forked_from: The process that trained already when this one was forked from it; None: none did.
        """
        self.folder, self._script, self.framework = folder, encodable(script), framework
        self._forked_from = forked_from
        self.process = os.getpid()
        (folder / SPANS_FOLDER).mkdir(parents=True, exist_ok=True)
        self._writer = SpanWriter(folder / SPANS_FOLDER, rotate_seconds=2.0)
        self.recorder, self._why_no_ranges = make_recorder(self._write, rank=find_rank()[0])
        if torch.version.cuda or torch.version.hip:
            self.recorder.clock = DeviceClock(torch.cuda)
        self.hooks = TorchHooks(self.recorder)
        self.loaders: list[LoaderInfo] = []
        #: Return the loaders that were wrapped, or None once they are gone.
        self._known: list[Callable[[], Any]] = []
        self._prints: list[LoaderPrints] = []
        self._tallies: list[Tally] = []
        self._sources = LoaderSources()
        self._describing: threading.Thread | None = None
        #: Rank and number of ranks after the first step: many programs have left their process group when they end.
        self._ranks = find_rank()
        self._helper_seconds = 0.0
        self._machine: MachineUse | None = None
        self._use: dict[str, float] = {}
        self._lines: LineSampler | None = None
        self._memory: MemorySampler | None = None
        self._kept = KeptLines(self.recorder)
        self._layers = LayerTimes(self.recorder, lambda: self.hooks.modules) if read_asked(LAYERS_VARIABLE) else None
        self.recorder.step_ended = self._step_ended
        self._profiler = self._make_profiler(read_asked(VARIABLE))
        if gc.isenabled():
            # A full collection is due after so many imports, of some 0.3 s in each process. What recording keeps would bring it
            # about within a step, and workers that are forked later would have one each.
            gc.collect()

    def _step_ended(self) -> None:
        """Go on with what looks into some steps, one after the other: each makes steps slower."""
        if self._layers is not None and not self._layers.is_over:
            self._layers.step()
        else:
            self._kept.step()

    def _make_profiler(self, schedule: str) -> ScheduledProfiler | None:
        """Return what runs torch.profiler on a schedule; None where nobody asked for it."""
        if not schedule:
            return None
        profiler = ScheduledProfiler(self.folder, parse_schedule(schedule), self.recorder)
        self.recorder.step_ended = profiler.step
        return profiler

    def watch(self, loader: Any) -> WatchedLoader:
        """Return a loader that behaves as the given one, and is recorded."""
        at = next((at for at, known in enumerate(self._known) if known() is loader), len(self._known))
        if at == len(self._known):
            self._known.append(_refer(loader))
            self._prints.append(LoaderPrints(_find_sampler(loader)))
            self._tallies.append(Tally())
            self.loaders.append(describe_loader(loader))
        return PrintedLoader(loader, self.recorder, self._prints[at], self._sources, self._tallies[at])

    def close(self, *, failed: bool = False) -> None:
        """Stop recording and write what is left; in a forked child this does nothing.

        Args:
            failed: An exception ended the training.
        """
        if os.getpid() != self.process:
            return
        try:
            if self._profiler is not None:
                self._profiler.close()
        finally:
            call_undisturbed(lambda: self._close(failed=failed))

    def _close(self, *, failed: bool) -> None:
        try:
            self._close_parts(failed=failed)
        except (
            Exception
        ) as error:  # The program's own end is not ours to break, whatever it did to its files and threads.
            logger.error(
                "the end of the recording in %s may not be whole: %s: %s", self.folder, type(error).__name__, error
            )

    def _close_parts(self, *, failed: bool) -> None:
        """Close each part, whatever another one raises; the one that was added last is the first."""
        with contextlib.ExitStack() as parts:
            parts.callback(lambda: self._write_description(has_ended=True))
            parts.callback(self._join_describing)
            parts.callback(self._writer.close)
            parts.callback(lambda: self.recorder.close(failed=failed))
            parts.callback(self._sources.close)
            parts.callback(self.hooks.detach)
            for helper in (self._layers, self._kept, self._memory, self._lines):
                if helper is not None:
                    parts.callback(helper.close)
            self._helper_seconds = _measure_helpers()
            self._use = {} if self._machine is None else self._machine.describe()

    def _join_describing(self) -> None:
        """Wait for the early description, which the last step may have begun: it must not replace the last one."""
        if self._describing is not None:
            self._describing.join()

    def _write_description(self, *, has_ended: bool) -> None:
        try:
            file = process_file(self.folder, socket.gethostname(), self.process)
            file.parent.mkdir(exist_ok=True)
            replace_file(file, encode_document(self._describe(has_ended=has_ended), indent=True) + b"\n")
        except OSError as error:
            logger.error(
                "what trained cannot be written to %s: %s; steps that were written are there", self.folder, error
            )

    def _write(self, spans: Sequence[Span]) -> None:
        if os.getpid() != self.process:
            return
        self._writer.stage_finished(spans)
        if self._lines is None and self.recorder.steps:
            self._lines = LineSampler(lambda: self.recorder.phase, lambda: self.recorder.thread)
            self._machine = MachineUse()
            self._memory = MemorySampler(
                lambda: (self.recorder.steps, self.recorder.phase),
                on_growth=lambda: setattr(self._kept, "is_wanted", True),
                is_disturbed=lambda: self._kept.is_tracing,
            )
        if self._describing is None and self.recorder.steps:
            self._ranks = find_rank()
            # Early, for a process that is killed; beside the thread that trains, which must not wait for a disk.
            self._describing = threading.Thread(target=self._describe_early, name="headrace-describe", daemon=True)
            self._describing.start()

    def _describe_recording(self) -> dict[str, float]:
        """Return what recording took; empty where no loader was seen."""
        own = self.recorder.own.describe()
        return own | {"helper_seconds": self._helper_seconds} if own else own

    def _describe_lines(self) -> dict[str, list[list[str | float]]]:
        """Return the lines of the training thread by phase, and those of loader workers, where there were samples enough."""
        found = {} if self._lines is None else self._lines.describe()
        workers = self._sources.lines.describe()
        return found | ({WORKERS: workers} if workers else {})

    def _why_no_device(self) -> dict[str, str]:
        why = "" if self.recorder.clock is None else self.recorder.clock.not_measured
        return {"time on the device": why} if why else {}

    def _why_no_layers(self) -> dict[str, str]:
        return {"time of the parts": self._layers.why_not} if self._layers is not None and self._layers.why_not else {}

    def _why_no_trace(self) -> dict[str, str]:
        why = "" if self._profiler is None else self._profiler.why_not
        return {"trace of torch.profiler": why} if why else {}

    def _describe_early(self) -> None:
        try:
            self._write_description(has_ended=False)
        except RuntimeError as error:  # the model changed while it was looked through; `close` writes the file again
            logger.debug("what trains is described at the end: %s", error)

    def _describe(self, *, has_ended: bool) -> TrainingProcess:
        world_size = (find_rank() if _is_in_group() else self._ranks)[1]
        trained = self.hooks.describe()
        return TrainingProcess(
            host=socket.gethostname(),
            process=self.process,
            rank=self.recorder.rank,
            world_size=world_size,
            script=self._script,
            framework=self.framework,
            torch_version=str(torch.__version__),
            threads=torch.get_num_threads(),
            device=trained.device,
            modules=trained.modules,
            num_parameters=trained.num_parameters,
            parameter_bytes=trained.parameter_bytes,
            optimizers=trained.optimizers,
            loaders=tuple(
                msgspec.structs.replace(info, num_learnt=tally.num_learnt)
                for info, tally in zip(self.loaders, self._tallies, strict=True)
            ),
            lost_spans=self._writer.lost_spans,
            steps=self.recorder.steps,
            has_ended=has_ended,
            not_measured={
                **self.recorder.not_measured,
                **self.hooks.exchange.not_measured,
                **self._sources.why_not,
                **self._why_no_trace(),
                **self._why_no_device(),
                **self._why_no_layers(),
                **({"ranges of phases": self._why_no_ranges} if self._why_no_ranges else {}),
            },
            details={
                "batches": [prints.describe() for prints in self._prints],
                "slow_items": self._sources.slow.describe(),
                "kept_lines": self._kept.describe(),
                "layers": [] if self._layers is None else self._layers.describe(),
                "lines": self._describe_lines(),
                "torch_profiler": None if self._profiler is None else self._profiler.describe(),
                "gradients": trained.gradients,
                "memory": None if self._memory is None else describe_memory(self._memory, trained.owned),
                "forked_from": self._forked_from,
                "recording": self._describe_recording(),
                "cores": self._use,
                "span_files": self._writer.describe_files(),
            },
        )


@contextlib.contextmanager
def profile(loader: Any, *, output: str | Path, force: bool = False) -> Iterator[WatchedLoader]:
    """Record the training loop in this block: two lines around what is there already.

        with headrace.train.profile(loader, output="runs/first") as loader:
            for images, labels in loader:
                ...

    Args:
        loader: Whatever the loop iterates over, usually a `torch.utils.data.DataLoader`.
        output: Run folder to write; `headrace diagnose` reads it. Ranks of one process group write into the same folder.
        force: Replace what an earlier run left in the folder.

    Yields:
        A loader that gives the same batches.

    Raises:
        RunFolderError: If the folder cannot be taken.
    """
    if (armed := armed_session()) is not None:
        logger.warning(
            "`headrace train` records this process already, into its own run folder; %s is not written", output
        )
        # Loaders of PyTorch are watched there whatever they are for; twice would count each wait twice.
        yield loader if isinstance(loader, torch.utils.data.DataLoader) else armed.watch(loader)
        return
    folder = SharedFolder(output, pipeline="train.profile", force=force)
    session = Session(folder.path, script="train.profile")
    failed = True
    try:
        yield session.watch(loader)
        failed = False
    finally:
        end_recording(session, folder, failed=failed)


def end_recording(session: Session, folder: SharedFolder, *, failed: bool) -> None:
    """Close a session and its folder, in the thread that trained: each of the two whatever is raised before it.

    PyTorch's handler of a killed worker may raise at any moment of it, also behind the error by which the loop ended.

    Args:
        session: What recorded.
        folder: Where its process wrote.
        failed: An exception ended the training.
    """
    try:
        session.recorder.training_ended()
    finally:
        try:
            session.close(failed=failed)
        finally:
            call_undisturbed(lambda: folder.finish("failed" if failed else "finished"))


def _measure_helpers() -> float:
    """Return the CPU time of the threads that headrace has started here: they take the interpreter from the one that trains."""
    helpers = [one.native_id for one in threading.enumerate() if one.name.startswith("headrace-")]
    return sum(thread_cpu_seconds(one) or 0.0 for one in helpers if one is not None)


def find_rank() -> tuple[int, int]:
    """Return the rank of this process and how many there are: of the process group, or as a launcher says."""
    if _is_in_group():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return _number("RANK", 0), _number("WORLD_SIZE", 1)


def _is_in_group() -> bool:
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def _number(variable: str, otherwise: int) -> int:
    """Return a number from the environment; what is none there is nothing of a launcher's."""
    try:
        return int(os.environ.get(variable, otherwise))
    except ValueError:
        return otherwise


def _refer(loader: Any) -> Callable[[], Any]:
    """Return what gives the loader while it lives; a list and others of its kind live on."""
    try:
        return weakref.ref(loader)
    except TypeError:
        return lambda: loader


def _find_sampler(loader: Any) -> str:
    sampler = getattr(loader, "sampler", None)
    return "" if sampler is None else type(sampler).__qualname__


def describe_loader(loader: Any) -> LoaderInfo:
    """Return what is known of a loader; of one that is not PyTorch's only its class."""
    dataset = getattr(loader, "dataset", None)
    try:
        num_items: int | None = len(dataset)  # type: ignore[arg-type]
    except Exception:  # Without a length, or with one that cannot be told: whatever it raises.
        num_items = None
    return LoaderInfo(
        kind=f"{type(loader).__module__}.{type(loader).__qualname__}",
        dataset="" if dataset is None else type(dataset).__qualname__,
        num_items=num_items,
        workers=getattr(loader, "num_workers", 0),
        prefetch_factor=getattr(loader, "prefetch_factor", None),
        batch_size=getattr(loader, "batch_size", None),
        in_order=getattr(loader, "in_order", True),
        persistent_workers=getattr(loader, "persistent_workers", False),
        pin_memory=getattr(loader, "pin_memory", False),
    )
