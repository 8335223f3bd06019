"""Address, path or place in a file -> bytes."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from headrace.base.calls import Call, InThread, run_call
from headrace.base.destinations import Destinations, place_of
from headrace.base.errors import FetchFailed, FetchPostponed, FetchRejected
from headrace.base.http_answer import Response, is_permanent
from headrace.base.http_client import HttpClient
from headrace.base.http_error import HttpError, strip_secrets
from headrace.base.http_settings import HttpSettings
from headrace.base.network_rules import NetworkRules
from headrace.base.pieces import Piece, RemotePiece
from headrace.base.plan import Plan
from headrace.base.policies.breaker import BreakerPolicy
from headrace.base.records import Job
from headrace.base.settings import build, check
from headrace.stages.local_files import PieceReader, file_reader
from headrace.stages.stage import Stage, StageContext
from headrace.store.object_reader import ObjectReader

#: What there is nothing to fetch of. A tuple: `bytes | np.ndarray` would be made anew for each look.
_FETCHED = (bytes, np.ndarray)
_HTTP = ("http://", "https://")


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings(HttpSettings):
    """Limits of one download, and when to stop calling a server that does not answer; `[stages.fetch.options]`."""

    breaker_failures: int = 5
    """Failures in a row that open the circuit breaker of an address, of all below a path, or of a host."""
    breaker_seconds: float = 5.0
    """First time for which it stays open; doubles with each probe that fails."""
    breaker_max_seconds: float = 60.0
    """Longest time for which it stays open."""
    give_up_seconds: float = 86_400.0
    """Age of a job up to which an open breaker does not count as a try."""

    def __post_init__(self) -> None:
        """Check every value."""
        HttpSettings.__post_init__(self)
        for key in ("breaker_seconds", "breaker_max_seconds", "give_up_seconds"):
            check(getattr(self, key) > 0, key, getattr(self, key), "more than 0")
        check(self.breaker_failures >= 1, "breaker_failures", self.breaker_failures, "a whole number >= 1")


class FetchStage(Stage):
    """Downloads http(s) addresses, reads paths, file addresses and parts of shards; bytes and arrays pass unchanged.

    Counts `NAME.connections`, the connections it opened, and `NAME.connect_microseconds`, the time to open them.

    Jobs may come from strangers: the Plan's `[network]` says which addresses and files they may name. The reason of a refusal
    begins with a stable code, such as `ssrf.address`, `http.too_large` or `file.refused`.

    A server that fails to answer several times in a row is not called for a while (circuit breaker): jobs for it are postponed
    and counted in `NAME.refused_while_open`; `NAME.breaker_opened` counts how often it opened. An error status is an answer.

    Options (`[stages.fetch.options]`): see `FetchSettings`.
    """

    kind = "io"
    releases_gil = True
    work = "download"
    executor = "events"
    may_carry = True
    waits_on_many = True

    def passes(self, value: Any) -> bool:
        """Return whether there is nothing to fetch."""
        return isinstance(value, _FETCHED)

    def goes_to(self, job: Job, value: Any) -> tuple[str, str]:
        """Return the host of an address and its domain; for anything else this machine."""
        return place_of(value) if isinstance(value, str) else ("", "")

    def recipe(self, plan: Plan) -> Mapping[str, Any]:
        """Return what may be fetched: a result that is kept passes by the rules."""
        options = plan.stages[self.name].options if self.name in plan.stages else {}
        return {"stage": "fetch", "network": dataclasses.asdict(plan.network), "max_bytes": options.get("max_bytes")}

    def open(self, context: StageContext) -> Callable[[Any], Any]:
        """Return a fetcher with a connection of its own, kept alive."""
        settings = build(FetchSettings, context.options, f"[stages.{self.name}.options]")

        def count_connection(number: int, seconds: float) -> None:
            context.count(f"{self.name}.connections", number)
            context.count(f"{self.name}.connect_microseconds", round(seconds * 1e6))

        network = context.plan.network
        client = HttpClient(settings, count_connection, NetworkRules(network))
        policy = BreakerPolicy(
            failures=settings.breaker_failures,
            open_seconds=settings.breaker_seconds,
            max_open_seconds=max(settings.breaker_seconds, settings.breaker_max_seconds),
            probe_seconds=2 * settings.timeout_seconds,
        )
        known = context.shared.setdefault("servers", Destinations(policy))
        servers = _Servers(known, client, context, self.name, settings.give_up_seconds)
        # Shared by the workers: neighbours in a shard come with one request.
        objects = context.shared.setdefault("objects", ObjectReader(settings.max_bytes, settings.timeout_seconds))
        read_object = functools.partial(_read_object, objects, context, self.name)
        return _Fetcher(servers, read_object, network.files, settings.max_bytes)


def _read_object(objects: ObjectReader, context: StageContext, name: str, piece: RemotePiece) -> bytes:
    """Return a piece, and count what its requests cost."""
    return objects(piece, lambda what, number: context.count(f"{name}.object_{what}", number))


class _Fetcher:
    """What one worker calls, and what one thread calls that carries the calls of many."""

    def __init__(
        self, servers: _Servers, objects: Callable[[RemotePiece], bytes], files: list[str] | None, max_bytes: int
    ) -> None:
        self._servers = servers
        self._objects = objects
        self._read_file = file_reader(files, max_bytes)
        self._read_piece = PieceReader(files, max_bytes)
        # Whoever wrote the address may have no access to this machine, whatever source it came through.
        self._read_address = file_reader(files or [], max_bytes)

    def carried(self, job: Job, payload: Any) -> Call[Any]:
        """Return a call that fetches; see `headrace.base.carrier.Carried`."""
        if type(payload) is str and payload.startswith(_HTTP):  # nearly all, one generator less
            return self._servers.downloading(payload)
        return self._fetching(payload)

    def __call__(self, payload: Any) -> Any:
        """Return the bytes behind an address or path; bytes and arrays as they are."""
        return run_call(self._fetching(payload))

    def _fetching(self, payload: Any) -> Call[Any]:
        if isinstance(payload, _FETCHED):
            return payload
        if isinstance(payload, Path):
            return (yield InThread(functools.partial(self._read_file, payload)))
        if isinstance(payload, Piece):
            return (yield InThread(functools.partial(self._read_piece, payload)))
        if isinstance(payload, RemotePiece):
            return (yield InThread(functools.partial(self._objects, payload)))
        if not isinstance(payload, str):
            raise FetchRejected(
                f"fetch.type: the job holds {type(payload).__name__}; expected an address, a path or bytes; a module that "
                "takes what is in the job has input = hr.ArrayInput()"
            )
        scheme = payload.partition(":")[0].lower()
        if scheme == "file":
            return (yield InThread(functools.partial(self._read_address, _path(payload))))
        if scheme in ("http", "https"):
            return (yield from self._servers.downloading(payload))
        shown = strip_secrets(payload)
        hint = "; texts of a program come with hr.items(values, texts=True)" if " " in payload.strip() else ""
        raise FetchRejected(f"ssrf.scheme: address {shown!r} cannot be fetched; expected http, https or file{hint}")


class _Servers:
    """Downloads for one worker; all workers share the circuit breakers."""

    def __init__(
        self, known: Destinations, client: HttpClient, context: StageContext, name: str, patience_seconds: float
    ) -> None:
        self._known = known
        self._client = client
        self._context = context
        self._name = name
        self._patience_seconds = patience_seconds

    def downloading(self, url: str) -> Call[bytes]:
        """Return the body behind an address.

        Raises:
            FetchPostponed: If its server is left alone for a while.
            FetchFailed: If another try may succeed.
            FetchRejected: If no try can succeed.
        """
        server = self._known.find(url)
        wait = server.admit(time.monotonic())
        if wait is not None:
            raise self._postpone(url, wait, server.last_failure)
        try:
            response = yield from self._client.getting(url)
        except HttpError as error:
            if error.permanent:
                server.was_not_called()
                raise FetchRejected(str(error)) from None
            if server.note_failure(time.monotonic(), error.code, whole_host=error.is_unreachable):
                self._context.count(f"{self._name}.breaker_opened")
            raise FetchFailed(str(error)) from None
        except BaseException:
            server.was_not_called()
            raise
        server.note_answer()
        return _body_of(response, url)

    def _postpone(self, url: str, seconds: float, how: str) -> FetchPostponed:
        self._context.count(f"{self._name}.refused_while_open")
        error = FetchPostponed(
            f"http.left_alone: {strip_secrets(url)} was not called: it failed too often of late ({how})"
        )
        error.retry_after_seconds = seconds
        error.patience_seconds = self._patience_seconds
        return error


def _path(url: str) -> Path:
    """Return the path that a file address stands for; raises FetchRejected if it is on another machine."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise FetchRejected(f"ssrf.url: {url!r:.200} cannot be read as an address: {error}") from None
    if parts.netloc.lower() not in ("", "localhost"):
        raise FetchRejected(f"ssrf.url: {url!r:.200} names a file of another machine; expected file:///PATH")
    return Path(unquote(parts.path))


def _body_of(response: Response, url: str) -> bytes:
    """Return the body of an answer; raises FetchFailed and FetchRejected if it is none that was asked for."""
    if response.status in (200, 203):  # 206 would be a part that nobody asked for, 204 nothing
        return response.body
    kind = FetchRejected if response.status < 300 or is_permanent(response.status) else FetchFailed
    raise kind(f"http.status: {strip_secrets(url)} answered {response.status}, expected 200")
