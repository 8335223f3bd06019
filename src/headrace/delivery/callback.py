"""HTTP POST of each result to the address that its job names."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from headrace.base.errors import DeliveryFailed, DeliveryRejected
from headrace.base.http_client import HttpClient, HttpError, HttpSettings, is_permanent, without_secrets
from headrace.base.network_rules import NetworkPlan, NetworkRules
from headrace.base.records import Job
from headrace.base.settings import build
from headrace.delivery.encoding import encode

#: Printable ASCII but for the percent sign, which `quote` writes.
_PLAIN = "".join(chr(code) for code in range(0x20, 0x7F) if code != ord("%"))


class Callback:
    """Posts `{"id", "task", "result", ...}` as JSON to `job.attributes["callback"]`.

    The job's id goes along as `Idempotency-Key`, percent-encoded where it is not plain ASCII: delivery is at least once, and
    a receiver that keeps the keys it has seen can drop a second copy. Failed posts are retried by the `deliver` stage with
    full jitter within the Plan's budget. Counts `deliver.connections`, those it had to open, and
    `deliver.connect_microseconds`, what setting them up took.

    An address that a job names is contacted if the Plan's `[network]` allows it; `url` is the operator's own word.

    Args:
        url: Where to post when a job names no address.
        headers: Added to each request.
    """

    flush_items = 1
    flush_seconds = 0.0
    default_workers = 8

    def __init__(self, url: str | None = None, *, headers: Mapping[str, str] | None = None) -> None:
        self.url = url
        self.headers = {"Content-Type": "application/json", **(headers or {})}
        self._settings = HttpSettings()
        self._network = NetworkPlan()
        self._local = threading.local()
        self._context: Any = None
        self._counting = threading.Lock()

    def open(self, context: Any) -> None:
        """Read the options of the Plan's `[stages.deliver.options]`; see `HttpSettings`."""
        self._context = context
        self._settings = build(HttpSettings, context.options, "[stages.deliver.options]")
        self._network = context.plan.network

    def deliver(self, job: Job, result: Any) -> bool:
        """Post one result; see `protocols.Delivery.deliver`."""
        named = job.attributes.get("callback")
        url = named or self.url
        if not url:
            raise DeliveryRejected("the job names no callback address and the pipeline has no default one")
        if not isinstance(url, str):
            raise DeliveryRejected(f"the job's callback address is {url!r}; expected text")
        body = encode({"id": job.id, "task": job.task, "result": result})
        try:
            headers = {**self.headers, "Idempotency-Key": quote(job.id, safe=_PLAIN)}
            headers = {**self.headers, "Idempotency-Key": quote(job.id, safe=_PLAIN)}
            response = self._client(is_ours=not named).post(url, body, headers)
        except HttpError as error:
            raise (DeliveryRejected if error.permanent else DeliveryFailed)(str(error)) from None
        if not 200 <= response.status < 300:
            kind = DeliveryRejected if is_permanent(response.status) else DeliveryFailed
            raise kind(f"{without_secrets(url)} answered {response.status}, expected 2xx")
        return True

    def flush(self) -> None:
        """Nothing waits: the receiver's answer is the proof."""

    def close(self) -> None:
        """Connections close with their threads."""

    def _client(self, *, is_ours: bool) -> HttpClient:
        # Two, so that no stranger's request goes over a connection that was opened on the operator's word.
        clients: dict[bool, HttpClient] = self._local.__dict__.setdefault("clients", {})
        if is_ours not in clients:
            rules = NetworkRules(self._network.for_operator() if is_ours else self._network)
            clients[is_ours] = HttpClient(self._settings, self._count_connection, rules)
        return clients[is_ours]

    def _count_connection(self, number: int, seconds: float) -> None:
        if self._context is not None:
            with self._counting:  # the workers share one context
                self._context.count("deliver.connections", number)
                self._context.count("deliver.connect_microseconds", round(seconds * 1e6))
