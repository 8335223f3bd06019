"""Cuts the training thread's time into stretches and phases, without gaps; see `runs.training_phases`.

How this works: each event of the loop calls a method here, in the training thread, which reads the thread's clocks once and
appends to a list. A stretch ends where the loader is next asked for a batch after an optimizer step; only
then it is known what it was (a step, validation, neither), and it goes to the writer as one `StretchSpans`, of which the
writer's thread makes rows.

What other threads do (a loader that runs ahead, a second model) is left out: one thread owns the recorder, and events of others
are ignored. It is the thread of the first pass with gradients. It loses the recorder to another that makes an update before it
has made one, because gradients alone are no training, and, once it has ended, to the next one that trains.

Clocks of CPU time and of waiting for a core cost more than all else here. Where steps are shorter than `SHORT_NS` they are
read in one stretch of `METERED_ONE_IN`; the others have wall times only, and who reads the run lets those stand for them. A
stretch is metered or not as a whole, decided where it begins. What the training thread's own loading costs is recorded in
metered stretches only, too.

Where no batch is asked for between two updates, two optimizers make one step (a GAN) and the same optimizer makes two: the step
then ends, in hindsight, where the first forward pass after its update began.
"""

from __future__ import annotations

import itertools
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import get_ident as _get_ident
from typing import Any

from headrace.base.metering import Reading, ThreadMeter
from headrace.base.records import Span
from headrace.runs.training_phases import DEVICE, WHOLE, Kind, Phase, Stretch
from headrace.train.device_clock import DeviceClock, DeviceStep
from headrace.train.loader_spans import LoadedBatch, LoadSpans

_HOST = socket.gethostname()

#: Wall, CPU and run-queue clock; with the device's event, where there is a device; the wall clock alone in what is not metered.
Clocks = Reading | tuple[int, int | None, int | None, Any] | int
#: (phase, micro-batch, when it began).
Mark = tuple[Phase, int, Clocks]


class StretchSpans(Sequence[Span]):
    """The spans of one stretch, made when they are iterated over: in the writer's thread, not in the one that trains."""

    __slots__ = ("_failed", "_kind", "_marks", "_number", "_of", "_rank", "_samples", "_stretch", "_thread")

    def __init__(
        self,
        stretch: str,
        number: int,
        marks: Sequence[Mark],
        rank: int,
        kind: Kind = Kind.PLAIN,
        samples: int = 0,
        failed: bool = False,
        *,
        of: tuple[str, int] | None = None,
        thread: str = "train",
    ) -> None:
        """Keep what the spans are made of.

        Args:
            stretch: What it was: a `Stretch`, or `DEVICE`.
            number: Of this kind of stretch in this process, from 0.
            marks: Where each phase began, the last one being where the stretch ended.
            rank: Of the process among those that train together.
            kind: What sets it apart.
            samples: In its batches; 0: not known.
            failed: An exception ended it.
            of: Host and process; None: this one.
            thread: Whose time it is.
        """
        self._stretch, self._number, self._marks, self._of, self._thread = stretch, number, marks, of, thread
        self._rank, self._kind, self._samples, self._failed = rank, kind, samples, failed

    def __len__(self) -> int:
        return len(self._marks)

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]

    def __iter__(self) -> Iterator[Span]:
        marks = self._marks
        yield self._span(WHOLE, marks[0][2], marks[-1][2], None)
        for (phase, microbatch, begun), (_, _, ended) in itertools.pairwise(marks):
            yield self._span(phase, begun, ended, microbatch)

    def _span(self, stage: str, begun: Clocks, ended: Clocks, microbatch: int | None) -> Span:
        is_whole = microbatch is None
        host, process = self._of or (_HOST, os.getpid())
        began, cpu_began, delay_began = _whole(begun)
        end, cpu_end, delay_end = _whole(ended)
        return Span(
            unit=self._stretch,
            unit_id=str(self._number),
            parent_id=None,
            stage=stage,
            plan_id="",
            host=host,
            process=process,
            thread=self._thread,
            rank=self._rank,
            attempt=1,
            outcome="failed" if self._failed and is_whole else "ok",
            arrived=began,
            dequeued=began,
            started=began,
            ended=end,
            put=end,
            cpu=_difference(cpu_end, cpu_began),
            run_delay=_difference(delay_end, delay_began),
            batch_id=microbatch,
            batch_size=self._samples if is_whole else None,
            release_reason=self._kind or None if is_whole else None,
            queue_depth=0,
            bytes_in=0,
            bytes_out=0,
            shape_key=None,
        )


def _whole(clocks: Clocks) -> Reading:
    """Return a reading of all clocks of the host, with None for those that were not read."""
    return (clocks, None, None) if isinstance(clocks, int) else clocks[:3]


def _difference(ended: int | None, begun: int | None) -> int | None:
    return None if ended is None or begun is None else max(ended - begun, 0)


class OwnTime:
    """What recording takes of the training thread, counted while it goes on.

    A stretch is ended, and the cost of a batch noted, while the thread waits for a batch: that is measured in one stretch of
    `TIMED_ONE_IN`. Of the other marks the one behind a batch is, and stands for them. What PyTorch takes to call a hook is not
    in it. Reading the thread's CPU time would cost as much as a mark, so wall time is read: where the core was somebody else's,
    it counts up to `MOST_OWN_NS`.

    Attributes:
        wait_ns: Within the waits for batches that were timed.
        num_batches: That came.
        num_timed: Of them.
        mark_ns: Of the marks that were timed, one for each of these batches.
        num_marks: All.
    """

    __slots__ = ("mark_ns", "num_batches", "num_marks", "num_timed", "wait_ns")

    def __init__(self) -> None:
        self.wait_ns = self.num_batches = self.num_timed = self.mark_ns = self.num_marks = 0

    def note_batch(self, noted_ns: int, mark_ns: int) -> None:
        """A batch came that is timed: what noting its cost took, and the mark behind it."""
        self.num_timed += 1
        self.wait_ns += min(noted_ns, MOST_OWN_NS)
        self.mark_ns += min(mark_ns, MOST_OWN_NS)

    def note_wait(self, taken_ns: int) -> None:
        """The end of a stretch took so long, when a batch was asked for."""
        self.wait_ns += min(taken_ns, MOST_OWN_NS)

    def describe(self) -> dict[str, float]:
        """Return seconds of the training thread: in all, and within each wait for a batch."""
        if not self.num_timed:
            return {}
        wait_ns, mark_ns = self.wait_ns / self.num_timed, self.mark_ns / self.num_timed
        return {
            "thread_seconds": (wait_ns * self.num_batches + mark_ns * self.num_marks) / 1e9,
            "wait_seconds": wait_ns / 1e9,
        }


#: A mark and the noting of a batch take microseconds; what takes longer than this waited for a core.
MOST_OWN_NS = 1_000_000
#: Batches learnt from without any update ever seen: whoever accumulates more has an optimizer that nobody can see.
MOST_ACCUMULATED = 256
#: Backward passes without a forward pass before them, until it is said that forward passes are not measured.
MOST_UNSEEN = 8
#: Marks of one stretch that are kept; a stretch with more is cut, and `UNEVEN`.
MOST_MARKS = 100_000
#: From steps below this on, ns, CPU time is read in one stretch of so many only, once this many steps were metered.
SHORT_NS, METERED_ONE_IN, METERED_FIRST = 10_000_000, 4, 64
#: Recording times itself in one stretch of so many: no multiple of `METERED_ONE_IN`, so that both kinds of stretch are timed.
TIMED_ONE_IN = 5
_now = time.monotonic_ns
#: No thread has this id: of a recorder that is closed.
_NOBODY = -1
#: An attribute of an enumeration takes longer to find than a clock to read (Python 3.11).
_AFTER = Phase.AFTER
_BACKWARD = Phase.BACKWARD
_BEFORE_UPDATE = Phase.BEFORE_UPDATE
_EPOCH_START = Phase.EPOCH_START
_EXCHANGE = Phase.EXCHANGE
_FORWARD = Phase.FORWARD
_LOSS = Phase.LOSS
_OPTIMIZER = Phase.OPTIMIZER
_OUTSIDE = Phase.OUTSIDE
_PREPARE = Phase.PREPARE
_WAIT = Phase.WAIT
_BETWEEN, _STEP, _VALIDATION = Stretch.BETWEEN, Stretch.STEP, Stretch.VALIDATION
_PLAIN = Kind.PLAIN
_UNEVEN = Kind.UNEVEN


class Recorder:
    """The state of one training thread; methods are called at the events of its loop.

    Attributes:
        steps: Steps that ended.
        num_learnt: Batches that were learnt from.
        rank: Of this process.
        last_step: After so many steps `enough` is called.
        enough: Called in the training thread, between two steps.
        search: Called where modules may be called that nobody watches: a new epoch, a backward pass without a forward pass.
        step_ended: Called behind each step, when the next stretch has begun.
        not_measured: {what: why}, learnt while recording.
        own: What recording itself took of the training thread.
        is_metered: Whether clocks of CPU time are read in the stretch in progress.
        clock: Of the device; None: this PyTorch knows none.
    """

    #: As attributes of a dictionary they would lie too far apart: what is told in the middle of a step finds caches cold.
    __slots__ = (
        "_again_at", "_candidate", "_eval_at", "_in_use", "_is_aborted", "_is_epoch_start", "_is_new_epoch", "_is_open",
        "_is_training", "_is_validation", "_kind", "_last_request", "_last_wall", "_load_numbers", "_loads", "_marks",
        "_meter", "_microbatch", "_most_used", "_num_forward", "_num_stretches", "_num_unseen", "_num_updates", "_num_used",
        "_num_wanted", "_numbers", "_owner", "_read", "_read_all", "_samples", "_thread", "_train_at", "_update_depth",
        "_updated", "_updates_are_unseen", "_updating", "_used", "_write", "clock", "enough", "is_metered", "last_step",
        "not_measured", "num_learnt", "own", "rank", "search", "step_ended", "steps",
    )  # fmt: skip

    # Of the stretch in progress; `_begin` sets them.
    _is_training: bool
    _is_validation: bool
    _is_epoch_start: bool
    _is_aborted: bool
    _kind: Kind
    _samples: int
    _num_wanted: int
    _num_used: int
    #: Calls with gradients.
    _num_forward: int
    #: The last batch that was learnt from; -1: none was.
    _used: int
    #: Optimizers that have updated, and the one that does.
    _updated: set[int]
    _updating: int
    #: Position of the mark at which a batch was last asked for, and the samples that had come by then.
    _last_request: tuple[int, int] | None
    #: Positions of the first forward passes after the last update: without gradients, and with.
    _eval_at: int | None
    _train_at: int | None
    #: Position of the first forward or backward pass within the update: of a closure, or after an update that raised.
    _again_at: int | None

    def __init__(self, write: Callable[[Sequence[Span]], None], *, rank: int = 0) -> None:
        """Begin outside of any step.

        Args:
            write: Takes the spans of each stretch; `SpanWriter.stage_finished`.
            rank: Of this process.
        """
        self.steps = 0
        self.num_learnt = 0
        self.rank = rank
        self.last_step = sys.maxsize
        self.enough: Callable[[], None] = _do_nothing
        self.search: Callable[[], None] = _do_nothing
        self.step_ended: Callable[[], None] = _do_nothing
        self.not_measured: dict[str, str] = {}
        self.own = OwnTime()
        self._write = write
        self._meter = ThreadMeter(_now)
        #: Of the host, in a stretch that is metered; made once: each `self._meter.read` would be a new object.
        self._read_all: Callable[[], Clocks] = self._meter.read
        self._read: Callable[[], Clocks] = self._read_all
        self.clock: DeviceClock | None = None
        self.is_metered = True
        #: Wall time of the last step, ns.
        self._last_wall = SHORT_NS
        self._num_stretches = 0
        #: Batches of the step that used most.
        self._most_used = 0
        self._owner: int | None = None
        #: The owner; None: nobody is.
        self._thread: threading.Thread | None = None
        #: Thread of the first event, until one trains.
        self._candidate: int | None = None
        self._numbers = dict.fromkeys(Stretch, 0)
        #: Number of the batch that was last asked for, and of the one that is worked on.
        self._microbatch = self._in_use = 0
        self._update_depth = 0
        self._num_updates = 0
        self._num_unseen = 0
        self._updates_are_unseen = False
        self._marks: list[Mark] = []
        #: {micro-batch: what loading it cost}, until the stretch ends that used it.
        self._loads: dict[int, LoadedBatch] = {}
        self._load_numbers = itertools.count()
        self._is_open = True
        self._is_new_epoch = False
        self._switch(_OUTSIDE)
        self._begin()

    @property
    def takes_forward(self) -> bool:
        """Whether a module that is called now is part of the loop: not of loading, nor computed again in a backward pass."""
        if not self._is_mine():  # the phase is that of a thread that loads, until one trains
            return self._owner is None or self._has_owner_ended()
        phase = self._marks[-1][0]
        return phase is not _WAIT and phase is not _BACKWARD and phase is not _EXCHANGE

    @property
    def phase(self) -> Phase:
        """The one that the training thread is in; may be asked for in any thread."""
        return self._marks[-1][0]

    @property
    def thread(self) -> int | None:
        """`threading.get_ident()` of the thread that trains; None: none does."""
        return self._owner

    # Events of the loop, in their usual order.

    def epoch_begins(self) -> None:
        """`iter(loader)` was called."""
        if self._is_mine():
            self._switch(_EPOCH_START)
            self._end_if_done()
            self.search()

    def epoch_began(self) -> None:
        """`iter(loader)` returned."""
        if self._is_mine():
            self._switch(_OUTSIDE)
            self._is_new_epoch = True

    def batch_wanted(self) -> None:
        """The loader was asked for a batch: here a stretch ends, if it had what makes it one."""
        if self._owner != _get_ident() and not self._is_mine():
            return
        marks = self._marks
        if marks[-1][0] is _WAIT:  # a loader within a loader
            return
        self._in_use = self._microbatch = self._microbatch + 1
        self._switch(_WAIT)
        is_timed = self._num_stretches % TIMED_ONE_IN == 1
        begun = _now() if is_timed else 0
        if self._update_depth:  # the optimizer raised, and the program went on
            self._update_depth, self._is_aborted = 0, True
        if self._updated and self._eval_at is None:  # as most steps
            self._end(len(marks) - 1)
        else:
            self._end_if_done()
        self._last_request = (len(self._marks) - 1, self._samples)
        self._num_wanted += 1
        if self._is_new_epoch:
            self._is_epoch_start, self._is_new_epoch = True, False
        if is_timed:
            self.own.note_wait(_now() - begun)

    def batch_came(self, samples: int, load: LoadedBatch | None = None) -> None:
        """The loader gave a batch of so many samples; 0: not known.

        Args:
            samples: In the batch.
            load: What loading it cost; None: not known.
        """
        if (self._owner == _get_ident() or self._is_mine()) and self._marks[-1][0] is _WAIT:
            self._samples += samples
            if load is not None:
                self._loads[self._microbatch] = load
            own = self.own
            own.num_batches += 1
            if self._num_stretches % TIMED_ONE_IN == 1:
                came = _now()
                self._switch(_PREPARE)
                own.note_batch(0 if load is None else came - load.taken, _now() - came)
            else:
                self._switch(_PREPARE)
        elif load is not None:
            self._write_load(load, None)

    def batch_failed(self, load: LoadedBatch | None) -> None:
        """The loader raised an exception instead of giving a batch."""
        if load is not None:
            self._write_load(load, None)

    def batches_ended(self) -> None:
        """The loader had no batch left."""
        if self._is_mine() and self._marks[-1][0] is _WAIT:
            self._num_wanted -= 1
            self._switch(_OUTSIDE)
            # Nobody learnt from these batches, nor will, unless a step's are all asked for before the first is used (Trainer).
            is_ahead = 0 < self._num_wanted <= self._most_used
            if not self._is_training and not self._is_validation and not is_ahead:
                self._end(len(self._marks) - 1)

    def forward_begins(self, *, training: bool) -> None:
        """The outermost module was called, with or without gradients."""
        if self._owner != _get_ident():
            if training:
                self._own()
            if not self._is_mine():
                return
        phase = self._marks[-1][0]
        if phase is _WAIT or phase is _BACKWARD or phase is _EXCHANGE:  # see `takes_forward`
            return
        if training and self._is_validation:
            self._end_at_request()
        elif training and not self._is_training and not self._num_wanted:
            self._switch(_FORWARD)
            self._end(len(self._marks) - 1)  # what was before the first step of a loop without a loader
        if len(self._marks) > MOST_MARKS:
            self._end(None)
        if self._updated:
            self._note_after_update(training=training)
        if training:
            if self._update_depth:
                self._note_again()
            self._num_forward += 1
            # Batches that were all asked for before the first call are used one after the other.
            self._in_use = self._microbatch - max(self._num_wanted - self._num_forward, 0)
            self._use_batch()
        self._is_training |= training
        self._is_validation |= not self._is_training
        if self._marks[-1][0] is not _FORWARD:
            self._switch(_FORWARD)

    def forward_ended(self, *, failed: bool = False) -> None:
        """The outermost module returned, or raised."""
        if (self._owner == _get_ident() or self._is_mine()) and self._marks[-1][0] is _FORWARD:
            is_training = self._is_training
            if failed and is_training:
                self._is_aborted = True
            self._switch(_LOSS if is_training else _OUTSIDE)

    def backward_begins(self) -> None:
        """`backward()` was called."""
        if self._owner != _get_ident():
            self._own()
            if not self._is_mine():
                return
        if self._update_depth:
            self._note_again()
        if self._updated and self._train_at is None:
            self._train_at = len(self._marks) if self._eval_at is None else self._eval_at
        if not self._is_training and not self._is_validation:
            self._note_unseen_forward()
        self._is_training, self._is_validation = True, False  # a model in `eval()` may learn
        if self._used != self._in_use:
            self._use_batch()
        self._switch(_BACKWARD)

    def gradients_complete(self) -> None:
        """The gradients of this process are there; what follows in `backward()` is the exchange with others.

        With several modules this is called for each of them: the last call counts.
        """
        if self._is_mine():
            phase, microbatch, reading = self._marks[-1]
            if phase is _EXCHANGE:
                self._marks[-1] = _BACKWARD, microbatch, reading
            self._switch(_EXCHANGE)

    def backward_ended(self, *, failed: bool = False) -> None:
        """`backward()` returned, or raised."""
        if self._owner == _get_ident() or self._is_mine():
            if failed:
                self._is_aborted = True
            self._switch(_OPTIMIZER if self._update_depth else _BEFORE_UPDATE)

    def update_begins(self, optimizer: int = 0) -> None:
        """`optimizer.step()` was called, or what calls it.

        Args:
            optimizer: Which, by `id`.
        """
        if self._owner != _get_ident():
            self._own()
            if not self._is_mine():
                return
        if self._update_depth and optimizer == self._updating and self._again_at is not None:
            self._end_raised_update(self._again_at)
        self._update_depth += 1
        if self._update_depth > 1:
            return
        if optimizer in self._updated:
            self._end_before_update()
        elif not self._is_training and not self._num_wanted and not self._is_validation:
            self._end(None)
        self._updating, self._again_at = optimizer, None
        self._is_training, self._is_validation = True, False
        self._switch(_OPTIMIZER)

    def update_ended(self) -> None:
        """`optimizer.step()` returned."""
        if self._owner != _get_ident() and not self._is_mine():
            self._note_other_update()
            return
        self._update_depth -= 1
        if self._update_depth <= 0:
            self._update_depth = 0
            self._num_updates += 1
            self._updates_are_unseen = self._is_aborted = False
            self._updated.add(self._updating)
            self._eval_at = self._train_at = self._again_at = None
            self._switch(_AFTER)

    def enter(self, phase: Phase) -> Phase:
        """Begin a phase that may lie within any other, such as `CHECKPOINT`; return the one to `leave` to."""
        before = self._marks[-1][0]
        if self._is_mine():
            self._switch(phase)
        return before

    def leave(self, before: Phase) -> None:
        """Go back to the phase in which `enter` was called."""
        if self._is_mine():
            self._switch(before)

    def set_kind(self, kind: Kind) -> None:
        """Say what sets the step in progress apart."""
        if self._is_mine():
            self._kind = kind

    def training_ended(self) -> None:
        """The loop has ended here: its last step is whole, whichever thread closes."""
        if self._is_mine():
            self._switch(_OUTSIDE)

    def close(self, *, failed: bool = False) -> None:
        """End the stretch in progress; another thread than the one that trains ends it at its last event.

        Args:
            failed: An exception ends it.
        """
        if self._is_open:
            self.training_ended()
            self._is_aborted |= failed
            self._end_unseen()
            if self.clock is not None:
                self._write_device(self.clock.finish())
            self._is_open = False
            self._owner, self._thread = _NOBODY, None
            self._meter.close()

    # How it is kept.

    def _is_mine(self) -> bool:
        if self._owner is None and self._candidate is None:
            self._candidate = _get_ident()
        return self._is_open and (self._candidate if self._owner is None else self._owner) == _get_ident()

    def _own(self) -> None:
        """Let this thread be the one that trains, if none is, or if the one that was has ended."""
        if self._owner is None or self._has_owner_ended():
            self._take()

    def _has_owner_ended(self) -> bool:
        return self._thread is not None and not self._thread.is_alive()

    def _note_other_update(self) -> None:
        """Another thread than the owner has made an update: it trains, and the owner does not unless it makes some too."""
        if not self._is_open or self._owner is None:
            return
        if not self._num_updates and not self._updates_are_unseen:
            self._take()
        else:
            self.not_measured["training in another thread"] = (
                "two threads make updates: steps are those of the one that made the first"
            )

    def _take(self) -> None:
        """Let this thread be the one that trains; what another has begun is no part of its steps."""
        if self._num_updates:
            self._end_unseen()
        before = self._candidate if self._owner is None else self._owner
        self._owner, self._thread = _get_ident(), threading.current_thread()
        if before in (None, self._owner):
            return
        # The clocks of that thread are not those of this one.
        _, microbatch, begun = self._marks[0]
        self._marks = [(_OUTSIDE, microbatch, _whole(begun)[0])]
        for load in self._loads.values():
            self._write_load(load, None)
        self._loads.clear()
        self._update_depth = self._num_unseen = 0
        self._is_new_epoch = self._updates_are_unseen = False
        self.not_measured.pop("forward", None)
        self._switch(_OUTSIDE)
        self._begin()
        self.search()

    def _end_unseen(self) -> None:
        """End the stretch in progress at its last event: of a step, what came behind that is not known."""
        self._split_validation()
        if self._is_training and self._marks[-1][0] is not _OUTSIDE:
            self._kind = self._kind or Kind.CUT
        self._end(len(self._marks) - 1)

    def _switch(self, phase: Phase) -> None:
        self._marks.append((phase, self._in_use, self._read()))

    def _begin(self) -> None:
        """Begin a stretch that nothing is known of, at the last mark."""
        self._num_stretches = number = self._num_stretches + 1
        self.is_metered = number % METERED_ONE_IN == 0 or self._last_wall >= SHORT_NS or self.steps < METERED_FIRST
        if self.is_metered:
            self._meter_stretch()
        else:
            self._read = _now
        self._is_training = self._is_validation = self._is_epoch_start = self._is_aborted = False
        self._kind = _PLAIN
        self._samples = self._num_wanted = self._num_used = self._num_forward = self._updating = 0
        self._used = -1
        self._updated = set()
        self._last_request = self._eval_at = self._train_at = self._again_at = None

    def _meter_stretch(self) -> None:
        """Read all clocks from the last mark on, which is the first of this stretch."""
        has_device = self.clock is not None and self.clock.is_ready()
        self._read = self._read_with_device if has_device else self._read_all
        if self._marks:
            phase, microbatch, begun = self._marks[-1]
            if isinstance(begun, int):
                begun = (begun, *self._meter.read()[1:])
            if has_device and len(begun) == len(_whole(begun)):
                begun = (*begun, self._event())
            self._marks[-1] = phase, microbatch, begun

    def _read_with_device(self) -> Clocks:
        return (*self._meter.read(), self._event())

    def _event(self) -> Any:
        return None if self.clock is None else self.clock.record()

    def _note_unseen_forward(self) -> None:
        self.search()
        self._num_unseen += 1
        if self._num_unseen >= MOST_UNSEEN:
            self.not_measured["forward"] = (
                f"backward() came without a call of a module before it, {MOST_UNSEEN} times or more (a compiled function, "
                "`module.compile()`, a model without modules): the forward pass is part of `prepare`"
            )

    def _use_batch(self) -> None:
        """Count the batch in progress as one that was learnt from."""
        if self._used != self._in_use:
            self._used = self._in_use
            self._num_used += 1
            self.num_learnt += 1

    def _note_after_update(self, *, training: bool) -> None:
        if training and self._train_at is None:
            self._train_at = len(self._marks)
        elif not training and self._eval_at is None:
            self._eval_at = len(self._marks)

    def _end_if_done(self) -> None:
        """End the stretch at the last mark, unless it is a step in the making: the batch is one more micro-batch of that."""
        is_begun = self._is_training or (self._num_wanted > 0 and not self._is_validation)
        is_done = bool(self._updated) or self._is_aborted or (self._updates_are_unseen and self._is_training)
        if is_done or not is_begun or len(self._marks) > MOST_MARKS:
            if self._eval_at is not None:
                self._split_validation()
            self._end(len(self._marks) - 1)
        elif not self._num_updates and self._num_used >= MOST_ACCUMULATED:
            self._updates_are_unseen = True
            self.not_measured["optimizer"] = (
                f"no optimizer of torch.optim was called in {MOST_ACCUMULATED} batches: each batch counts as a step, "
                "and its update is part of `before_update`"
            )
            self._end(len(self._marks) - 1)

    def _split_validation(self) -> None:
        """End the step where batches went through the model without gradients after its update, if they did."""
        at = self._eval_at
        if self._updated and at is not None and self._train_at is None:
            self._end(at)
            self._is_validation = True

    def _end_before_update(self) -> None:
        """End the step in hindsight: the same optimizer updates again, and no batch was asked for in between."""
        train_at, eval_at = self._train_at, self._eval_at
        if train_at is None:
            self._end(None)
        elif eval_at is not None and eval_at < train_at:
            self._end(eval_at)
            self._is_validation = True
            self._end(train_at - eval_at)
        else:
            self._end(train_at)
        self._use_batch()

    def _note_again(self) -> None:
        if self._update_depth and self._again_at is None:
            self._again_at = len(self._marks)

    def _end_raised_update(self, at: int) -> None:
        """End the step whose update raised, in hindsight: the program went on, and the same optimizer begins again."""
        self._update_depth, self._is_aborted = 0, True
        self._end(at)
        self._marks = [(_BEFORE_UPDATE if mark[0] is _OPTIMIZER else mark[0], *mark[1:]) for mark in self._marks]
        self._is_training = True
        self._use_batch()

    def _end_at_request(self) -> None:
        """End the stretch where a batch was last asked for: what came of it belongs to the next one."""
        if self._last_request is None:
            self._end(None)
            return
        at, samples = self._last_request
        later, is_epoch_start = self._samples - samples, self._is_epoch_start
        self._samples, self._num_wanted = samples, self._num_wanted - 1
        self._end(at)
        self._samples, self._num_wanted, self._last_request = later, 1, (0, 0)
        self._is_epoch_start = is_epoch_start

    def _end(self, at: int | None) -> None:
        """Write the stretch, and begin the next one.

        Args:
            at: Position of the mark at which it ended; None: it ends now.
        """
        if at is None:
            at = len(self._marks)
            self._switch(_OUTSIDE)
        marks = self._marks
        if at == len(marks) - 1:  # usually: then nothing is copied
            self._marks = [marks[at]]
        else:
            marks, self._marks = marks[: at + 1], marks[at:]
        self.own.num_marks += at
        is_step = False
        if at:
            is_step = self._is_training
            stretch = _STEP if is_step else _VALIDATION if self._is_validation else _BETWEEN
            number = self._numbers[stretch]
            kind = self._kind or (self._kind_of_step() if is_step else _PLAIN)
            self._write(StretchSpans(stretch, number, marks, self.rank, kind, self._samples, self._is_aborted))
            if self.clock is not None and self._read == self._read_with_device:
                self._write_device(self.clock.keep(number if is_step else None, marks))
            if self._loads:
                for phase, microbatch, _ in marks[:-1]:
                    if phase is _WAIT and microbatch in self._loads:
                        self._write_load(self._loads.pop(microbatch), number if is_step else None)
            self._numbers[stretch] = number + 1
            if is_step:
                self.steps += 1
                if self._num_used > self._most_used:
                    self._most_used = self._num_used
                begun, ended = marks[0][2], marks[at][2]
                is_wall = type(begun) is int and type(ended) is int
                self._last_wall = ended - begun if is_wall else _whole(ended)[0] - _whole(begun)[0]  # type: ignore[operator]
        self._begin()
        if is_step:
            self.step_ended()
        if self.steps >= self.last_step:
            self.last_step = sys.maxsize  # once
            self.enough()

    def _write_load(self, load: LoadedBatch, step: int | None) -> None:
        """Write what loading a batch cost, with the step that used it."""
        if self._is_open:
            self._write(LoadSpans(load, next(self._load_numbers), step, self.rank))

    def _write_device(self, steps: Iterable[DeviceStep]) -> None:
        for number, device, marks in steps:
            self._write(StretchSpans(DEVICE, number, marks, rank=self.rank, thread=device))

    def _kind_of_step(self) -> Kind:
        if self._is_epoch_start:
            return Kind.EPOCH_START
        if not self._updated and not self._updates_are_unseen and not self._is_aborted:
            return _UNEVEN  # what was left over at the end
        return _PLAIN if self._num_wanted in (0, self._num_used) else _UNEVEN


def _do_nothing() -> None:
    pass
