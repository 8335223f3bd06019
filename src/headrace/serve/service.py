"""Runs a pipeline behind HTTP: joins front, door, run and health."""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from headrace.base.plan import Plan
from headrace.base.worker_slot import WorkerSlot
from headrace.delivery.callback import Callback
from headrace.pipeline.canary import CanaryPlace
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.execute import Measuring, Result, run
from headrace.pipeline.watching import RunInProgress, Watch, watch_together
from headrace.runs.canary_folder import CanaryFolder
from headrace.serve.answers_folder import AnswersFolder
from headrace.serve.feedback_api import FeedbackApi
from headrace.serve.front_door import FrontDoor
from headrace.serve.health import Health
from headrace.serve.http.front import Front
from headrace.serve.http.limits import Limits, fit_to_files
from headrace.serve.http.routes import Routes
from headrace.serve.jobs_api import CallLater, JobsApi
from headrace.serve.kept_answers import Answers
from headrace.serve.npy import arrays_of
from headrace.serve.oip.inference import Inference
from headrace.serve.oip.routes import OipRoutes
from headrace.serve.openapi.document import add_openapi
from headrace.serve.page.trial_page import add_page
from headrace.serve.reply import Reply, ReplyOrCall
from headrace.serve.shared_source import SharedRequestSource
from headrace.serve.source import RequestSource
from headrace.serve.wait_judge import WaitJudge

logger = logging.getLogger("headrace")

#: Calls a function in a loop's thread as soon as that has read all that is there.
CallSoon = Callable[[Callable[[], object]], object]
#: How long clients may take to read their answers once the run has ended.
_LAST_ANSWERS_SECONDS = 5.0
#: How old connections become where processes share the port: a minute after a restart clients are spread over all again.
_SHARED_CONNECTION_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Where a service listens, and what it lets in."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0: any free one."""
    token: str | None = None
    """What clients send as `Authorization: Bearer TOKEN`; None: nothing is asked for."""
    tls: tuple[str, str] | None = None
    """Files of the certificate and its key."""
    limits: Limits = field(default_factory=Limits)
    probes: Mapping[str, Any] = field(default_factory=dict)
    """{task: payload} with which the service tries itself; see `health`."""
    leave_seconds: float = 5.0
    """How long clients are told to go elsewhere before the service ends; it ends sooner once all have gone."""
    listening: socket.socket | None = None
    """A socket to listen on instead, for processes that share one."""
    tells_failures: bool | None = None
    """Whether a 500 says what failed, with files and lines of this machine; None: only where it listens on loopback. The log
    always says it."""
    answers: Path | None = None
    """Folder in which processes that share the port keep the answers that nobody waited for; None: each keeps its own."""
    grpc_port: int | None = None
    """Where the Open Inference Protocol is spoken over gRPC as well; 0: any free one; None: nowhere."""
    grpc_listening: socket.socket | None = None
    """A socket to listen on for gRPC instead, for processes that share one."""


class _Server(Protocol):
    @property
    def url(self) -> str: ...

    @property
    def counts(self) -> dict[str, int]: ...

    def start(self) -> None: ...

    def drain(self, seconds: float) -> object: ...

    def close(self) -> None: ...


def serve(
    pipeline: Pipeline,
    plan: Plan | str | Path | None = None,
    settings: ServeSettings | None = None,
    *,
    tell: Callable[[str], object] = lambda address: None,
    tell_ready: Callable[[], object] = lambda: None,
    watch: Watch | None = None,
    slot: WorkerSlot | None = None,
    **options: Any,
) -> Result:
    """Answer requests with a pipeline until SIGTERM, Ctrl-C or `stop`.

    Args:
        pipeline: What is done with each; its source is left aside, and its delivery too, except for a callback, which calls
            the receivers that jobs name.
        plan: How; see `headrace.run`.
        settings: Where to listen.
        tell: Called with each address, such as `http://127.0.0.1:8000`, once it is listened on and the run folder is there;
            models are loaded after that.
        tell_ready: Called once `/readyz` says so for the first time, by the thread that probes.
        watch: What lives beside the run.
        slot: Of a process that shares the listening socket with others under a supervisor.
        options: Of `headrace.run`.

    Raises:
        SettingsError: If the Plan does not fit, or the address cannot be listened on.
        MissingExtra: If gRPC is wanted and not installed.
        HeadraceError: If a part cannot be opened, or a worker breaks.
    """
    settings = settings or ServeSettings()
    if slot is not None:
        slot.expect_serving()
        settings = dataclasses.replace(
            settings, limits=dataclasses.replace(settings.limits, connection_seconds=_SHARED_CONNECTION_SECONDS)
        )
    service = Service(pipeline, settings.probes, is_shared=slot is not None, kept=_kept_answers(settings, slot))
    service.source.tells_failures = tells_failures(settings)
    front = make_front(service.routes, settings)
    service.begin(front.call_soon, front.call_later, front.call_after_reading, has_token=settings.token is not None)
    servers: list[_Server] = [front, *_grpc_fronts(settings, service.inference, service.health)]
    service.source.refused = lambda: {
        **service.door.refused,
        **{code: number for server in servers for code, number in count_refusals(server.counts).items()},
    }
    service.source.may_leave = _Leaving(servers, service.door, settings.leave_seconds).may_leave

    def start() -> None:
        for server in servers:
            server.start()

    def begin_ready() -> None:
        if settings.listening is not None:  # until then the processes that share the socket answer
            start()
        if slot is not None:
            slot.note_serving()
        tell_ready()

    def announce(run_in_progress: RunInProgress) -> contextlib.AbstractContextManager[None]:
        for server in servers:
            tell(server.url)
        return contextlib.nullcontext()

    try:
        if settings.listening is None:
            start()
            watch = watch_together(announce, *([watch] if watch else []))
        service.health.on_ready = begin_ready
        if slot is not None:
            service.health.on_hung = end_this_process
        return service.run(plan, watch=watch, slot=slot, **options)
    finally:
        for server in servers:
            server.drain(_LAST_ANSWERS_SECONDS)
            server.close()


class Service:
    """A pipeline whose jobs are requests, without what brings these.

    Args:
        pipeline: See `serve`.
        probes: See `ServeSettings`.
        is_shared: Whether several processes serve beside one another, under a supervisor.
        kept: Where answers are kept that nobody waited for; None: in this process.

    Attributes:
        routes: Who answers what.
        source, door, health, inference: See their modules.
    """

    def __init__(
        self, pipeline: Pipeline, probes: Mapping[str, Any], *, is_shared: bool = False, kept: Answers | None = None
    ) -> None:
        self._callback = pipeline.delivery if isinstance(pipeline.delivery, Callback) else None
        self.source = SharedRequestSource() if is_shared else RequestSource()
        delivery = Reply() if self._callback is None else ReplyOrCall(self._callback)
        self._pipeline = pipeline.replace_source(self.source).replace_delivery(delivery)
        self._run: RunInProgress | None = None
        self._is_shared = is_shared
        self._kept = kept
        self._canary_folder: CanaryFolder | None = None
        self._judge = WaitJudge(self.source)
        self.door = FrontDoor(self.source, judge=self._judge)
        self.source.refused = lambda: self.door.refused
        self.source.answered_at = dict.fromkeys(self._pipeline.routes, 0.0)
        self.health, self.routes = Health(self.door, probes, answered_at=self.source.answered_at.get), Routes()
        self.inference = Inference(self._pipeline, self.door)

    def begin(
        self,
        call_soon: CallSoon,
        call_later: CallLater,
        call_after_reading: CallSoon | None = None,
        *,
        has_token: bool = False,
    ) -> None:
        """Add the routes; the calls are of the loop in whose thread handlers are called, and may be made by any thread."""
        self.source.soon, self.source.after_reading = call_soon, call_after_reading or call_soon
        self.health.add_to(self.routes)
        FeedbackApi(lambda: self._run.arms if self._run else None, lambda: self._canary_folder).add_to(self.routes)
        calls_back, arrays = self._callback is not None, arrays_of(self._pipeline)
        JobsApi(self.door, call_later, calls_back=calls_back, arrays=arrays, kept=self._kept).add_to(self.routes)
        OipRoutes(self.inference, self.health).add_to(self.routes)
        self.health.on_proof = self.inference.learn
        add_page(self.routes)
        add_openapi(self.routes, [one.outline() for one in self.inference.models.values()], has_token=has_token)

    def run(self, plan: Plan | str | Path | None, *, watch: Watch | None = None, **options: Any) -> Result:
        """Run the pipeline until a signal or `stop`; see `headrace.run`."""
        beside = options.get("beside")
        if self._is_shared and isinstance(beside, CanaryPlace):
            self._canary_folder = CanaryFolder(beside.folder)
        together = self._watch if watch is None else watch_together(self._watch, watch)
        options["measuring"] = dataclasses.replace(options.get("measuring", Measuring()), brakes=False)
        options["observers"] = [*options.get("observers", ()), self.inference.statistics]
        # No brake: nothing is lost by a failure, since its client hears of it at once.
        return run(self._pipeline, plan, watch=together, **options)

    def _watch(self, run_in_progress: RunInProgress) -> Health:
        self._run = run_in_progress
        self.source.plan_id = run_in_progress.plan.plan_id
        self.door.follow(run_in_progress.plan.serve, len(self._pipeline.routes))
        self._judge.watch(run_in_progress)
        return self.health.watch(run_in_progress)


def end_this_process(why: str) -> None:
    """End a process that answers nobody any more, or a worker in which a call hangs.

    Nobody outside can end that worker, as whoever asks `/livez` is answered by any of them. It ends as by a crash, so that its
    supervisor finds out which request it was, and starts another.
    """
    logger.error("this process ends itself, for its supervisor to start another: %s", why)
    os.kill(os.getpid(), signal.SIGABRT)


def _kept_answers(settings: ServeSettings, slot: WorkerSlot | None) -> Answers | None:
    if settings.answers is None or slot is None:
        return None
    try:
        return AnswersFolder(settings.answers, f"{slot.number}-{slot.generation}")
    except OSError as error:
        logger.error("answers of jobs that nobody waits for are known to this process alone: %s", error)
        return None


def tells_failures(settings: ServeSettings) -> bool:
    """Return whether clients are told what fails on this machine."""
    if settings.tells_failures is not None:
        return settings.tells_failures
    return is_loopback(settings.host)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost"


def count_refusals(counts: Mapping[str, int]) -> dict[str, int]:
    """Return what a front refused before a route heard of it, by code: `http.body_size`, ..."""
    return {code: number for code, number in counts.items() if code.startswith(("http.", "oip."))}


def make_front(routes: Routes, settings: ServeSettings) -> Front:
    """Return a front that is not started, and without which its process ends."""
    front = Front(
        routes,
        host=settings.host,
        port=settings.port,
        limits=fit_to_files(settings.limits),
        tls=settings.tls,
        token=settings.token,
        listening=settings.listening,
    )
    front.on_broken = end_this_process
    return front


class _Leaving:
    """Lets clients go before the run ends: each connection is closed with its next answer."""

    def __init__(self, servers: Sequence[_Server], door: FrontDoor, seconds: float) -> None:
        self._servers = servers
        self._door = door
        self._seconds = seconds
        self._threads: list[threading.Thread] = []

    def may_leave(self) -> bool:
        """Return whether all are gone, or the time is over; the first call tells them."""
        if not self._threads:
            self._door.leave()
            self._threads = [
                threading.Thread(target=server.drain, args=(self._seconds,), name="leaving", daemon=True)
                for server in self._servers
            ]
            for thread in self._threads:
                thread.start()
        return not any(thread.is_alive() for thread in self._threads)


def _grpc_fronts(settings: ServeSettings, inference: Inference, health: Health) -> list[_Server]:
    """Return the gRPC server, if one is wanted."""
    if settings.grpc_port is None:
        return []
    from headrace.serve.oip.grpc_front import GrpcFront

    return [
        GrpcFront(
            inference,
            health,
            host=settings.host,
            port=settings.grpc_port,
            limits=settings.limits,
            token=settings.token,
            tls=settings.tls,
            listening=settings.grpc_listening,
        )
    ]
