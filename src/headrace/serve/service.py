"""Runs a pipeline behind HTTP: joins front, door, run and health."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from headrace.base.plan import Plan
from headrace.base.worker_slot import WorkerSlot
from headrace.delivery.callback import Callback
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.execute import Measuring, Result, run
from headrace.pipeline.watching import RunInProgress, Watch, watch_together
from headrace.serve.feedback_api import FeedbackApi
from headrace.serve.front_door import FrontDoor
from headrace.serve.health import Health
from headrace.serve.http.front import Front
from headrace.serve.http.limits import Limits
from headrace.serve.http.routes import Routes
from headrace.serve.jobs_api import JobsApi
from headrace.serve.oip.inference import Inference
from headrace.serve.oip.routes import OipRoutes
from headrace.serve.reply import Reply, ReplyOrCall
from headrace.serve.shared_source import SharedRequestSource
from headrace.serve.source import RequestSource
from headrace.serve.wait_judge import WaitJudge

#: How long clients may take to read their answers once the run has ended.
_LAST_ANSWERS_SECONDS = 5.0


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
    grpc_port: int | None = None
    """Where the Open Inference Protocol is spoken over gRPC as well; 0: any free one; None: nowhere."""


class _Server(Protocol):
    @property
    def url(self) -> str: ...

    def start(self) -> None: ...

    def drain(self, seconds: float) -> object: ...

    def close(self) -> None: ...


def serve(
    pipeline: Pipeline,
    plan: Plan | str | Path | None = None,
    settings: ServeSettings | None = None,
    *,
    tell: Callable[[str], object] = lambda address: None,
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
        tell: Called with each address, such as `http://127.0.0.1:8000`, once it is listened on; models are loaded after that.
        watch: What lives beside the run.
        slot: Of a process that shares the listening socket with others under a supervisor.
        options: Of `headrace.run`.

    Raises:
        SettingsError: If the Plan does not fit, or the address cannot be listened on.
        MissingExtra: If gRPC is wanted and not installed.
        HeadraceError: If a part cannot be opened, or a worker breaks.
    """
    settings = settings or ServeSettings()
    callback = pipeline.delivery if isinstance(pipeline.delivery, Callback) else None
    source = RequestSource() if slot is None else SharedRequestSource()
    pipeline = pipeline.replace_source(source).replace_delivery(ReplyOrCall(callback) if callback else Reply())
    judge = WaitJudge(source)
    door = FrontDoor(source, judge=judge)
    health, routes = Health(door, settings.probes), Routes()
    front = make_front(routes, settings)
    source.soon = front.call_soon
    health.add_to(routes)
    began: list[RunInProgress] = []
    FeedbackApi(lambda: began[0].arms if began else None).add_to(routes)
    JobsApi(door, front.call_later, calls_back=callback is not None).add_to(routes)
    inference = Inference(pipeline, door)
    OipRoutes(inference, health).add_to(routes)
    servers: list[_Server] = [front, *_grpc_fronts(settings, inference, health)]
    source.may_leave = _Leaving(servers, door, settings.leave_seconds).may_leave

    def begin(run_in_progress: RunInProgress) -> Health:
        source.plan_id = run_in_progress.plan.plan_id
        door.follow(run_in_progress.plan.serve, len(pipeline.routes))
        judge.watch(run_in_progress)
        began.append(run_in_progress)
        return health.watch(run_in_progress)

    def start() -> None:
        for server in servers:
            server.start()

    try:
        if settings.listening is None:
            start()
            for server in servers:
                tell(server.url)
        else:
            health.on_ready = start  # until then the processes that share the socket answer
        together = begin if watch is None else watch_together(begin, watch)
        observers = [*options.pop("observers", ()), inference.statistics]
        # No brake: nothing is lost by a failure, since its client hears of it at once.
        return run(
            pipeline, plan, watch=together, slot=slot, measuring=Measuring(brakes=False), observers=observers, **options
        )
    finally:
        for server in servers:
            server.drain(_LAST_ANSWERS_SECONDS)
            server.close()


def make_front(routes: Routes, settings: ServeSettings) -> Front:
    """Return a front that is not started."""
    return Front(
        routes,
        host=settings.host,
        port=settings.port,
        limits=settings.limits,
        tls=settings.tls,
        token=settings.token,
        listening=settings.listening,
    )


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
            reuse_port=settings.listening is not None,
        )
    ]
