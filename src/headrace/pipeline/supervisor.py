"""Several worker processes of one pipeline, started again when they die.

How this works. The supervisor has one thread, runs no user code and opens no model: nothing of what kills workers is in it.
It forks each worker, so that a new one is there in milliseconds and shares the memory of what was imported; what the two
share is a `WorkerSlot`: a table of what the worker has in flight, which outlives the worker, and a pipe.

    worker dies -> its table is read -> the others hear of it -> a successor, after a pause, gives back what it had lent

Tables, and what is known of deaths, are in a `RecoveryFolder`, which outlives the supervisor: the next one's workers find it
there.

How it ends. SIGTERM and Ctrl-C ask the workers to drain, a second one to give everything back at once. Workers that end by
themselves (a drained queue) are not replaced. What is still there some seconds after the grace period is killed. Workers
are asked by SIGINT and do not heed SIGTERM: a service manager sends that to all processes of a service, and the second signal
means something else than the first. Each worker has a process group of its own, so that the terminal's Ctrl-C comes here
alone. If the supervisor is killed, the kernel kills the workers.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import msgspec

from headrace.base.clock import Clock, SystemClock
from headrace.base.crash_recovery import RecoveryFolder
from headrace.base.in_flight import InFlight, InFlightTable
from headrace.base.log_events import EventText, event_fields
from headrace.base.parent_death import die_with_parent
from headrace.base.policies.blame import BlameBook, Death, Elsewhere, Known, Redriven
from headrace.base.policies.restart import RestartPolicy, Restarts
from headrace.base.records import OutcomeKind
from headrace.base.signals import block_signals
from headrace.base.worker_slot import Ended, Inherited, WorkerSlot
from headrace.pipeline.memory_killer import memory_kills
from headrace.pipeline.renewal import Renewal, Standing

logger = logging.getLogger("headrace")

#: How soon signals and signs of life are heeded; a death wakes the supervisor at once.
_POLL_SECONDS = 0.05
#: How often those who look on are told how far it is.
_PROGRESS_SECONDS = 10.0
#: Before a worker that could not be started is tried again, at least.
_LEAST_PAUSE_SECONDS = 0.1
#: Deaths before any worker has begun after which none will.
_MOST_FIRST_DEATHS = 5
#: Deaths that are kept for the summary.
_MOST_DEATHS = 100
#: A pipe holds 200 KB or so; this is a fifth.
_IDS_AT_ONCE, _NEWS_AT_ONCE = 250, 4
_MISUSE, _DEFECT, _INTERRUPTED = 2, 70, 130
_said = msgspec.msgpack.Decoder(Redriven | Inherited | Elsewhere | Ended)

#: Runs in the worker and returns its exit status; raises what the command line knows how to report.
Work = Callable[[WorkerSlot], int]


def outcomes_in_words(outcomes: Counter[OutcomeKind]) -> str:
    """Return how many deliveries ended how, as the table of a run calls it; empty where none ended."""
    names = {kind: kind.value.replace("_", "-") for kind in OutcomeKind} | {OutcomeKind.RETRY: "retried"}
    return ", ".join(f"{count:,} {names[kind]}" for kind, count in outcomes.items() if count)


class DeathNote(msgspec.Struct, frozen=True, kw_only=True):
    """One death, for the summary."""

    worker: int
    life: int
    pid: int
    cause: str
    lived_seconds: float
    in_work: list[str]
    """Messages that a stage was working on, as far as there are ten."""
    num_in_work: int
    num_waiting: int
    """Messages that it merely held."""


@dataclass
class Supervised:
    """What came of it."""

    status: int = 0
    """For the parent to exit with."""
    reason: str = ""
    """Why it ended otherwise than it should; empty: it did not."""
    restarts: int = 0
    """Workers started in the place of one that died, or that ended when nobody asked it to."""
    num_deaths: int = 0
    deaths: list[DeathNote] = field(default_factory=list)
    """The last of them."""
    outcomes: Counter[OutcomeKind] = field(default_factory=Counter)
    """How deliveries ended, those of workers that died included."""
    documents: list[bytes] = field(default_factory=list)
    """What workers that ended orderly said came of their runs."""
    queue: str = ""
    """Address of the queue, without secrets, as one of those said; empty: none did."""


@dataclass
class _Worker:
    """One process."""

    pid: int
    slot: WorkerSlot
    connection: Connection
    started_at: float
    ended: Ended | None = None
    """What it said when it had finished."""
    does_its_work: bool = False
    beats: int = 0
    silent_seconds: float = 0.0
    leave_by: float | None = None
    killed_for: str = ""
    news: deque[bytes] = field(default_factory=deque)
    """What it has still to be told."""
    num_told: int = 0


@dataclass
class _Post:
    """What follows one another in one slot."""

    number: int
    lives: int = 0
    worker: _Worker | None = None
    start_at: float | None = 0.0
    """When the next is due; None: never."""
    orphans: list[InFlight] = field(default_factory=list)


class Supervisor:
    """Runs workers until all have ended, or until it is told to stop.

    Args:
        num_workers: Side by side.
        work: What a worker does.
        say: Takes a line for people.
        grace_seconds: How long workers may take to finish what they have when they are asked to stop.
        silent_seconds: A worker that gives no sign of life for so long is killed.
        leave_seconds: Beyond the grace period, and for a worker that said it has finished: to close files and leave.
        policy: When a worker that died is started again.
        note: Takes what came of it so far: at the beginning, after each death, and now and then.
        note_death: Takes each death, before a successor starts.
        note_child_end: Takes the process id of each child that ended and is no worker.
        progress: Takes a line now and then: how many workers run, and how jobs ended so far.
        renews: SIGHUP restarts the workers one after the other, while the others work; else it ends the supervisor.
        begun: Called once the first worker has begun; never if what it was to run cannot be loaded.
        stopping: Called when workers are asked to stop.
        recovery: Where what is known outlives this process; None: nowhere.
        clock: For tests.
    """

    def __init__(
        self,
        num_workers: int,
        work: Work,
        *,
        say: Callable[[str], None],
        grace_seconds: float = 30.0,
        silent_seconds: float = 60.0,
        leave_seconds: float = 10.0,
        policy: RestartPolicy | None = None,
        note: Callable[[Supervised], object] = lambda result: None,
        note_death: Callable[[DeathNote], object] = lambda death: None,
        note_child_end: Callable[[int], object] = lambda process: None,
        progress: Callable[[str], object] = lambda text: None,
        recovery: RecoveryFolder | None = None,
        renews: bool = False,
        begun: Callable[[], object] = lambda: None,
        stopping: Callable[[], object] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        self.result = Supervised()
        self._tell_begun = begun
        self._tell_stopping = stopping
        self._heard = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if renews else []))
        self._work = work
        self._say = say
        self._note = note
        self._tell_death = note_death
        self._tell_child_end = note_child_end
        self._progress = progress
        self._grace_seconds = grace_seconds
        self._silent_seconds = silent_seconds
        self._leave_seconds = leave_seconds
        self._restarts = Restarts(policy or RestartPolicy(), num_workers)
        self._clock = clock or SystemClock()
        self._blame = BlameBook()
        self._recovery = recovery
        self._is_blame_kept = True
        self._posts = [_Post(number) for number in range(num_workers)]
        self._num_signals = 0
        self._first_signal: int | None = None
        self._is_drained = True  # as long as no worker says otherwise
        self._has_drained = False  # until one does
        self._num_heeded = 0
        self._stopping = False
        self._kill_at: float | None = None
        self._has_begun = False
        self._num_delivered = 0
        self._tell_at = 0.0
        self._told: tuple[float, int] | None = None
        self._memory_kills = memory_kills()
        self._random = random.Random()
        self._renewal = Renewal(self._tell_people)
        self._slowest_seconds = 0.0

    def run(self) -> Supervised:
        """Run until all workers have ended and return what came of it; in a worker this raises SystemExit."""
        self._note(self.result)
        self._tell_at = self._now() + _PROGRESS_SECONDS
        with self._signals():
            while any(post.worker or post.start_at is not None for post in self._posts):
                now = self._now()
                self._heed_signals(now)
                self._renew()
                self._start_due(now)
                self._pass_news()
                self._listen()
                self._bury_dead()
                self._watch_beats(self._now() - now)
                self._tell_progress(now)
                if not self._is_blame_kept:
                    self._keep_blame()
        if self._recovery is not None:
            is_drained = not self._stopping and not self.result.status
            self._recovery.end({} if is_drained else self._blame.records)
        if self._num_heeded and not self.result.status:
            is_drained = self._is_drained and (self._num_signals, self._first_signal) == (1, signal.SIGTERM)
            self.result.status = 0 if is_drained else _INTERRUPTED
        return self.result

    # --- starting

    def _start_due(self, now: float) -> None:
        for post in self._posts:
            if self._num_heeded < self._num_signals:
                return  # starting many takes a while
            if post.start_at is not None and not post.worker and post.start_at <= now:
                self._start(post)
            if not self._has_begun:
                return  # what keeps the first from beginning would keep all of them, and each would say so

    def _start(self, post: _Post) -> None:
        for other in self._workers():
            self._hear(other.worker)  # the new one is to know what they have found
        table: InFlightTable | None = None
        pipe: tuple[Connection, ...] = ()
        pid = -1
        try:
            name = _table_name(post.number, post.lives + 1)
            table, pipe = self._recovery.table(name) if self._recovery else InFlightTable(), Pipe()
            # Before the fork: what it holds is memory of both processes.
            slot = WorkerSlot(
                post.number, post.lives + 1, len(self._posts), table, self._blame, pipe[1], post.orphans, self._recovery
            )
            pid = self._fork(pipe[0])
        except OSError as error:  # no process, memory or file to be had now, which need not last
            for end in pipe:
                end.close()
            if table is not None:
                table.close()
                self._drop_table(post.number, post.lives + 1)
            self._put_off(post, error)
            return
        ours, theirs = pipe
        if pid == 0:
            raise SystemExit(self._work(slot))
        theirs.close()
        post.lives += 1
        post.start_at = None
        post.orphans = []
        post.worker = _Worker(pid, slot, ours, self._now())
        if post.lives > 1:
            event = event_fields("worker_started", worker=post.number)
            logger.info("worker %d starts again as process %d", post.number, pid, extra=event)

    def _fork(self, ours: Connection) -> int:
        """Return the new worker's process id; 0 in the worker."""
        for stream in (sys.stdout, sys.stderr):  # what waits in them would be written twice
            with suppress(OSError, ValueError):
                stream.flush()
        parent = os.getpid()
        with block_signals(signal.SIGINT, signal.SIGTERM):  # a worker has a handler of its own before it hears one
            pid = os.fork()
            if pid == 0:
                try:
                    self._become_worker(parent, ours)
                except OSError as error:  # not taken for a fork that failed: this is the worker
                    raise RuntimeError("the worker could not leave its supervisor's files behind") from error
        return pid

    def _put_off(self, post: _Post, error: OSError) -> None:
        now = self._now()
        pause = _LEAST_PAUSE_SECONDS + self._restarts.pause(post.number, 0.0, False, self._random.random())
        post.start_at = now + pause
        self._tell_people(
            f"worker {post.number} could not be started: {error.strerror or error}; tried again in {pause:.1f} s. The limits "
            "of processes (ulimit -u, pids.max), of files (ulimit -n) and of memory are the usual causes"
        )

    def _tell_progress(self, now: float) -> None:
        """Say how far the workers are, once all have been started and now and then, and note it."""
        is_complete = self._told is None and all(post.lives for post in self._posts)
        if now < self._tell_at and not is_complete:
            return
        self._tell_at = now + _PROGRESS_SECONDS
        total = self._total()
        before, delivered = self._told, total[OutcomeKind.DELIVERED]
        self._told = (now, delivered)
        rate = (
            "" if before is None or now <= before[0] else f"; {(delivered - before[1]) / (now - before[0]):.3g}/s now"
        )
        ended = outcomes_in_words(total)
        with suppress(OSError):
            self._progress(
                f"{len(self._workers())} of {len(self._posts)} workers run; {ended or 'nothing ended yet'}{rate}"
            )
        if before is not None:
            self._note(replace(self.result, outcomes=total))

    def _tell_people(self, text: str) -> None:
        with suppress(OSError):  # a terminal that is gone or a log on a full disk must not end the workers
            self._say(text)

    def _become_worker(self, parent: int, ours: Connection) -> None:
        """Leave behind what is the supervisor's."""
        os.setpgid(0, 0)
        if not die_with_parent(parent):
            os._exit(1)
        # Not SIG_IGN: programs that the user's code starts would inherit that.
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if signal.SIGHUP in self._heard:
            signal.signal(signal.SIGHUP, lambda *_: None)
        ours.close()
        for post in self._posts:
            if post.worker is not None:
                post.worker.connection.close()
                post.worker.slot.table.close()

    # --- watching

    def _listen(self) -> None:
        """Wait a moment for what workers say; the end of a pipe is the end of a worker."""
        by_connection = {post.worker.connection: post.worker for post in self._workers() if not post.worker.ended}
        if not by_connection:
            time.sleep(_POLL_SECONDS / 5)
            return
        for connection in wait(list(by_connection), _POLL_SECONDS):
            self._hear(by_connection[connection])

    def _hear(self, worker: _Worker) -> None:
        with suppress(EOFError, OSError):
            while not worker.ended and worker.connection.poll():
                said = _said.decode(worker.connection.recv_bytes())
                if isinstance(said, Redriven):
                    self._blame.forget(said.id, said.times)
                    self._is_blame_kept = False
                    self._tell_workers([said])
                    continue
                if isinstance(said, Elsewhere):
                    self._is_blame_kept = not self._blame.join(said.records) and self._is_blame_kept
                    continue
                if isinstance(said, Inherited):
                    self._inherit(said.folder, worker)
                    continue
                worker.ended = said
                worker.leave_by = self._now() + self._leave_seconds
                self.result.queue = said.queue or self.result.queue
                if said.document:
                    self.result.documents.append(said.document)

    def _watch_beats(self, seconds: float) -> None:
        now = self._now()
        delivered = self._total()[OutcomeKind.DELIVERED]
        if delivered > self._num_delivered:
            self._num_delivered = delivered
            self._restarts.note_delivery()
        for post in self._workers():
            worker = post.worker
            beats = worker.slot.table.num_beats
            self._note_begun(beats)
            # What this process slept through (a suspended machine) is not the worker's silence.
            worker.silent_seconds = 0.0 if beats != worker.beats else worker.silent_seconds + min(seconds, 1.0)
            worker.beats = beats
            if worker.ended:
                self._see_off(post, worker, now)
            elif beats and worker.silent_seconds > self._silent_seconds:
                self._kill(worker, f"no sign of life for {self._silent_seconds:g} s")
        if self._kill_at is not None and now > self._kill_at:
            for post in self._workers():
                self._kill(post.worker, f"still there {self._leave_seconds:g} s after the grace period")

    def _note_begun(self, beats: int) -> None:
        if beats and not self._has_begun:
            self._has_begun = True
            self._tell_begun()

    def _see_off(self, post: _Post, worker: _Worker, now: float) -> None:
        if worker.leave_by is not None and now > worker.leave_by and not worker.killed_for:
            self._kill(worker, "it had finished")
            self._tell_people(
                f"worker {post.number} (process {worker.pid}) has finished and does not leave: killed after "
                f"{self._leave_seconds:g} s; a thread that is no daemon is the usual cause"
            )

    def _kill(self, worker: _Worker, reason: str) -> None:
        if not worker.killed_for:
            worker.killed_for = reason
            os.kill(worker.pid, signal.SIGKILL)

    def _bury_dead(self) -> None:
        by_pid = {post.worker.pid: post for post in self._workers()}
        with suppress(ChildProcessError):
            # All children: as the first process of a container it also gets what dead workers leave behind.
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                post = by_pid.get(ended[0])
                if post is not None:
                    self._note_end(post, post.worker, os.waitstatus_to_exitcode(ended[1]))
                else:
                    self._tell_child_end(ended[0])

    # --- after an end

    def _note_end(self, post: _Post, worker: _Worker, code: int) -> None:
        post.worker = None
        table = worker.slot.table
        self._note_begun(table.num_beats)
        counts = table.counts()
        self.result.outcomes.update(counts)
        self._hear(worker)
        worker.connection.close()
        if worker.ended:
            # How its process ended after that, perhaps in a library's clean-up, says nothing about its work.
            said = worker.ended.status
            status = said if said is not None else code if code >= 0 else _DEFECT
            self._decide_after_end(post, worker, status, counts[OutcomeKind.DELIVERED] > 0)
            self._drop_table(post.number, post.lives)
        else:
            self._note_death(post, worker, code, table.messages(), counts[OutcomeKind.DELIVERED] > 0)
        table.close()

    def _inherit(self, folder: str, by: _Worker) -> None:
        """Learn what a worker found that had been left behind; it knows already."""
        if self._recovery is None:
            return
        records = list(self._recovery.read_recovered(folder).book.records.items())
        self._blame.learn(dict(records))
        self._keep_blame(folder)
        portions = range(0, len(records), _IDS_AT_ONCE)
        self._tell_workers([Known(dict(records[first : first + _IDS_AT_ONCE])) for first in portions], but=by)

    def _keep_blame(self, counted: str = "") -> None:
        self._is_blame_kept = True
        if self._recovery is not None:
            self._recovery.keep(self._blame, counted)

    def _drop_table(self, number: int, life: int) -> None:
        if self._recovery is not None:
            self._recovery.drop(_table_name(number, life))

    def _decide_after_end(self, post: _Post, worker: _Worker, status: int, delivered: bool) -> None:
        """Decide about one that ended by itself: it has drained its queue, cannot begin, lost its queue, or was asked to."""
        if self._stopping:
            is_drained = worker.ended is not None and worker.ended.is_drained
            self._is_drained = self._is_drained and (is_drained or not worker.slot.table.num_beats)
            return
        if self._renewal.is_renewed(post.number, worker.pid):
            post.start_at = self._now()
            return
        if not self._has_begun:  # others would end likewise, and none of them is started before the first has begun
            self._end_all(
                status, f"the first worker ended with status {status} before it began; what it said stands above"
            )
        elif status == 0:
            self._has_drained = True
        elif status == _MISUSE and not worker.slot.table.num_beats:
            self._leave_empty(post, status)
        elif status == _DEFECT and self._is_storm(worker):
            self._end_in_storm()
        else:
            self._again(post, worker, delivered)

    def _note_death(self, post: _Post, worker: _Worker, code: int, messages: list[InFlight], delivered: bool) -> None:
        crashed, cause = self._cause(worker, code)
        in_work = [message.id for message in messages if message.in_work and not message.delivered]
        waiting = [message.id for message in messages if not message.in_work and not message.delivered]
        self._tell_others(Death(cause, crashed, in_work, waiting))
        self._keep_blame(_table_name(post.number, post.lives))
        post.orphans = messages
        note = DeathNote(
            worker=post.number,
            life=post.lives,
            pid=worker.pid,
            cause=cause,
            lived_seconds=round(self._now() - worker.started_at, 3),
            in_work=in_work[:10],
            num_in_work=len(in_work),
            num_waiting=len(waiting),
        )
        self.result.num_deaths += 1
        self.result.deaths = [*self.result.deaths, note][-_MOST_DEATHS:]
        self._tell_death(note)
        self._note(self.result)
        if self._stopping and code == _INTERRUPTED:
            return  # asked before it had begun
        text = f"worker {post.number} (process {worker.pid}) died: {cause}; {len(in_work)} jobs in work, {len(waiting)} waiting"
        reason = cause.partition(":")[0].partition(",")[0]
        self._tell_people(EventText(text, "worker_died", logging.ERROR, worker=post.number, code=reason))
        if self._stopping:
            self._is_drained = False
            return
        if not self._has_begun and self.result.num_deaths >= _MOST_FIRST_DEATHS:
            self._end_all(
                _DEFECT, f"the first worker died {_MOST_FIRST_DEATHS} times before it began; the causes stand above"
            )
        elif self._is_storm(worker):
            self._end_in_storm()
        else:
            self._again(post, worker, delivered)

    def _is_storm(self, worker: _Worker) -> bool:
        """Note an end, and return whether no worker can live.

        One that never came to do its work says nothing about others that do theirs: it may have found a Plan that is new.
        """
        is_one_too_many = self._restarts.is_storm(self._now())
        others_work = any(post.worker.slot.does_its_work for post in self._workers())
        return is_one_too_many and (worker.slot.does_its_work or not others_work)

    def _leave_empty(self, post: _Post, status: int) -> None:
        """Start no more workers where settings keep one from beginning, as they would keep the next."""
        self._tell_people(
            f"worker {post.number} cannot begin (status {status}; what it said stands above) and is not started again"
        )
        if not self._has_drained and not any(other.worker or other.start_at is not None for other in self._posts):
            self._end_all(status, "no worker is left that can begin; what the last one said stands above")

    def _again(self, post: _Post, worker: _Worker, delivered: bool) -> None:
        now = self._now()
        self.result.restarts += 1
        post.start_at = now + self._restarts.pause(
            post.number, now - worker.started_at, delivered, self._random.random()
        )

    def _end_in_storm(self) -> None:
        self._end_all(
            _DEFECT,
            f"{self._restarts.storm} and delivered nothing meanwhile; the causes stand above: run the pipeline without "
            "--supervise to look at it",
        )

    def _end_all(self, status: int, reason: str) -> None:
        self.result.status, self.result.reason = status, reason
        self._stop()

    def _cause(self, worker: _Worker, code: int) -> tuple[bool, str]:
        """Return whether it died of what it did, and of what."""
        if worker.killed_for:
            return True, f"SIGKILL by its supervisor: {worker.killed_for}"
        if code != -signal.SIGKILL:
            return True, _name(code)
        before, self._memory_kills = self._memory_kills, memory_kills()
        if before is not None and self._memory_kills is not None:
            if self._memory_kills > before:
                return True, "SIGKILL by the kernel: out of memory"
            return False, "SIGKILL from outside"
        return False, "SIGKILL, from outside or out of memory: the kernel's counters cannot be read here"

    def _tell_others(self, death: Death) -> None:
        self._blame.note_death(death)
        self._tell_workers(death.parts(_IDS_AT_ONCE))

    def _tell_workers(self, news: Sequence[Death | Redriven | Known], *, but: _Worker | None = None) -> None:
        for post in self._workers():
            if post.worker is not but:
                post.worker.news.extend(map(msgspec.msgpack.encode, news))

    def _pass_news(self) -> None:
        """Tell workers the news, no more than a pipe holds: one that hangs would hold up whoever waits for it to read."""
        for post in self._workers():
            worker = post.worker
            while worker.news and worker.num_told - worker.slot.table.num_heard < _NEWS_AT_ONCE:
                worker.num_told += 1
                with suppress(OSError):  # it is dead, and is found so
                    worker.connection.send_bytes(worker.news.popleft())

    # --- ending

    def _stop(self) -> None:
        self._stopping = True
        self._tell_stopping()
        for post in self._posts:
            post.start_at = None
        self._kill_at = self._now() + self._grace_seconds + self._leave_seconds
        self._ask()

    def _ask(self) -> None:
        for post in self._workers():
            os.kill(post.worker.pid, signal.SIGINT)

    def _heed_signals(self, now: float) -> None:
        while self._num_heeded < self._num_signals:
            self._num_heeded += 1
            if not self._stopping:
                self._tell_people("stopping: workers finish what they have")
                self._stop()
            else:
                self._kill_at = min(self._kill_at or now, now) + self._leave_seconds
                self._ask()

    def _renew(self) -> None:
        """Replace workers one after the other where SIGHUP asked for it."""
        if self._stopping or not self._has_begun:
            return
        now = self._now()
        if self._renewal.is_requested:
            for post in self._posts:
                # Its settings kept it from beginning, and may be others now.
                if post.worker is None and post.start_at is None:
                    post.start_at = now
        for post in self._workers():
            worker = post.worker
            if not worker.does_its_work and worker.slot.does_its_work:
                worker.does_its_work = True
                self._slowest_seconds = max(self._slowest_seconds, now - worker.started_at)
        standing = [
            Standing(post.number, worker.pid, worker.does_its_work)
            if (worker := post.worker) is not None
            else Standing(post.number, None, has_begun=False, is_given_up=post.start_at is None)
            for post in self._posts
        ]
        self._renewal.look(standing, now, self._slowest_seconds)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def note(number: int, _: Any) -> None:
            if number == signal.SIGHUP:
                self._renewal.request()
                return
            self._first_signal = self._first_signal or number
            self._num_signals += 1

        before = {number: signal.signal(number, note) for number in self._heard}
        parent = os.getpid()
        try:
            yield
        finally:
            if os.getpid() == parent:  # a worker has its own by now
                for number, handler in before.items():
                    signal.signal(number, handler)

    def _workers(self) -> list[Any]:
        return [post for post in self._posts if post.worker is not None]

    def _total(self) -> Counter[OutcomeKind]:
        total = self.result.outcomes.copy()
        for post in self._workers():
            total.update(post.worker.slot.table.counts())
        return total

    def _now(self) -> float:
        return self._clock.now_ns() / 1e9


def _table_name(number: int, life: int) -> str:
    return f"{number}-{life}"


def _name(code: int) -> str:
    if code >= 0:
        return f"exit code {code}, without having finished"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
