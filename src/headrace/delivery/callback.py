"""HTTP POST of each result to the address that its job names."""

from __future__ import annotations

import math
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

from headrace.base.calls import Call, InThread, run_call
from headrace.base.clock import Clock, SystemClock
from headrace.base.destinations import Destination, Destinations, host_of
from headrace.base.dialing import encode_ascii
from headrace.base.errors import DeliveryFailed, DeliveryPostponed, DeliveryRejected, SettingsError
from headrace.base.http_answer import Response, is_permanent
from headrace.base.http_client import HttpClient
from headrace.base.http_error import HttpError, strip_secrets
from headrace.base.http_settings import HttpSettings
from headrace.base.network_rules import NetworkPlan, NetworkRules
from headrace.base.policies.breaker import BreakerPolicy
from headrace.base.policies.retry import PostponePolicy
from headrace.base.records import Job, Kept
from headrace.base.settings import build, check
from headrace.delivery import kept_results
from headrace.delivery.encoding import encode, record_of
from headrace.delivery.signing import Secrets, parse_secrets

#: Printable ASCII but for the percent sign, which `quote` writes.
_PLAIN = "".join(chr(code) for code in range(0x20, 0x7F) if code != ord("%"))
_NEEDS_NO_QUOTING = re.compile("[0-9A-Za-z_.:/-]+")
_GONE = 410


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackSettings(HttpSettings):
    """Limits of one callback, and what happens when a receiver fails; the Plan's `[stages.deliver.options]`."""

    secret_env: str | None = None
    """Environment variable with the secrets that sign callbacks: `whsec_...`, separated by spaces, the newest first."""
    secret_file: str | None = None
    """File with the secrets, instead of the variable."""
    give_up_seconds: float = 86_400.0
    """Time from the first failure after which a result that cannot be delivered goes to the dead-letter queue."""
    postpone_max_seconds: float = 300.0
    """Longest pause between two tries of such a result; after the receiver is back, delivery takes this long at most."""
    breaker_failures: int = 5
    """Failures in a row that open the circuit breaker of an address, of all below a path, or of a host."""
    breaker_seconds: float = 5.0
    """First time for which it stays open; doubles with each probe that fails."""
    breaker_max_seconds: float = 60.0
    """Longest time for which it stays open."""
    retry_ratio: float = 0.1
    """Immediate retries per call of a destination, on average; further ones wait in the queue."""

    def __post_init__(self) -> None:
        """Check every value."""
        HttpSettings.__post_init__(self)
        for key in ("give_up_seconds", "postpone_max_seconds", "breaker_seconds", "breaker_max_seconds"):
            check(getattr(self, key) > 0, key, getattr(self, key), "more than 0")
        check(self.breaker_failures >= 1, "breaker_failures", self.breaker_failures, "a whole number >= 1")
        check(0 <= self.retry_ratio <= 1, "retry_ratio", self.retry_ratio, "0 to 1")
        # Empty does not mean "unsigned": an unset variable in a script would switch signing off unnoticed.
        check(self.secret_env != "", "secret_env", self.secret_env, "the name of an environment variable")
        check(self.secret_file != "", "secret_file", self.secret_file, "the path of a file")
        if self.secret_env and self.secret_file:
            raise SettingsError("secret_env and secret_file are both given; expected one of them")


def _refuse_secrets(options: Mapping[str, Any]) -> None:
    """Raise SettingsError if a setting contains a secret: every run stores its Plan, and errors show values."""
    for key, value in options.items():
        if "whsec_" in str(value):
            raise SettingsError(
                f"{key} holds a secret (not shown); expected where it is: secret_env, an environment variable, or secret_file"
            )


class Callback:
    """Posts `{"id", "task", "attributes", "result"}` as JSON to `job.attributes["callback"]`.

    The job's id is sent as `Idempotency-Key` and `webhook-id`, percent-encoded if it is not plain ASCII, and the id of the Plan
    that made the result as `X-Headrace-Plan`. Delivery is at least
    once: a receiver that keeps the ids it has seen can drop a second copy. With secrets, every callback is signed by Standard
    Webhooks; see `headrace.delivery.signing`.

    Only 2xx is success; redirects are not followed. Without an answer, and after 408, 425, 429 and 5xx, delivery is tried
    again: first by the `deliver` stage, with full jitter, within the budgets of the Plan and of the destination, and not
    before its `Retry-After`; then by the queue, which keeps the result, until `give_up_seconds` are over. A destination that
    fails several times in a row is not called for a while (circuit breaker), and an address that answers 410 Gone not for the
    rest of the run. Any other answer is final.

    Counts `deliver.answers_2xx` (3xx, 4xx, 5xx), `deliver.no_answer`, `deliver.breaker_opened`, `deliver.refused_while_open`,
    `deliver.retries_withheld`, `deliver.disabled_addresses`, `deliver.refused_as_gone`, `deliver.kept_refused`;
    `deliver.connections`, the connections it opened, and `deliver.connect_microseconds`, the time to open them.

    An address that a job names is called if the Plan's `[network]` allows it; `url` comes from the operator.

    Args:
        url: Where to post when a job names no address.
        headers: Added to each request.
        body: (job, result) -> value that is posted as JSON, for receivers that expect something else than `{"id", "task",
            "attributes", "result"}`. If it raises, that one delivery fails.
        secret_env: Environment variable that holds the secrets, `whsec_...`, separated by spaces, the newest first. A Plan
            overrides it.
        secret_file: File that holds them, instead of the variable.
        clock: For tests.
    """

    flush_items = 1
    flush_seconds = 0.0
    default_workers = 8

    def __init__(
        self,
        url: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        body: Callable[[Job, Any], Any] | None = None,
        secret_env: str | None = None,
        secret_file: str | Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.url = url
        self.headers = {"Content-Type": "application/json", **(headers or {})}
        self._body = body or record_of
        self.postponement = PostponePolicy()
        self._secret_place = {
            "secret_env": secret_env,
            "secret_file": None if secret_file is None else str(secret_file),
        }
        _refuse_secrets(self._secret_place)  # what is wrong is told where it is written
        CallbackSettings(**self._secret_place)  # type: ignore[arg-type]
        self._clock = clock or SystemClock()
        self._settings = CallbackSettings()
        self._network = NetworkPlan()
        self._secrets: Secrets | None = None
        self._destinations = Destinations(BreakerPolicy(), self._settings.retry_ratio)
        self._local = threading.local()
        self._context: Any = None
        self._counting = threading.Lock()

    def open(self, context: Any) -> None:
        """Read the Plan's `[stages.deliver.options]`, see `CallbackSettings`, and the secrets.

        Raises:
            SettingsError: If an option is unknown or impossible, or the secrets are not where they should be.
        """
        self._context = context
        options = dict(context.options)
        _refuse_secrets(options)
        if not {"secret_env", "secret_file"} & set(options):
            options |= {key: place for key, place in self._secret_place.items() if place is not None}
        self._settings = settings = build(CallbackSettings, options, "[stages.deliver.options]")
        self._network = context.plan.network
        self._secrets = _read_secrets(settings)
        self.postponement = PostponePolicy(
            give_up_seconds=settings.give_up_seconds, max_seconds=settings.postpone_max_seconds
        )
        policy = BreakerPolicy(
            failures=settings.breaker_failures,
            open_seconds=settings.breaker_seconds,
            max_open_seconds=max(settings.breaker_seconds, settings.breaker_max_seconds),
            probe_seconds=2 * settings.timeout_seconds,
        )
        self._destinations = context.shared["servers"] = Destinations(policy, settings.retry_ratio)

    def deliver(self, job: Job, result: Any) -> bool:
        """Post one result; see `protocols.Delivery.deliver`."""
        return run_call(self.delivering(job, result))

    def delivering(self, job: Job, result: Any) -> Call[bool]:
        """Return a call that posts one result; see `protocols.CarriesCalls`."""
        url = self._address(job)
        body: bytes
        if self._body is record_of:
            body = encode(record_of(job, result))
        else:  # the user's code may take its time: where one thread carries all calls, it would hold up the others
            body = yield InThread(lambda: encode(self._body(job, result)))
        destination = self._admit(url)
        client = self._client(is_ours=not job.attributes.get("callback"))
        try:
            response = yield from client.posting(url, body, self._headers(job, body))
        except HttpError as error:
            if error.permanent:
                destination.was_not_called()
                raise DeliveryRejected(str(error)) from None
            self._count("no_answer")
            self._note_failure(destination, "no answer", str(error), whole_host=error.is_unreachable)
        except BaseException:
            destination.was_not_called()
            raise
        self._count(f"answers_{response.status // 100}xx")
        if not 200 <= response.status < 300:
            self._handle_refusal(destination, url, response)
        destination.note_answer()
        return True

    def check(self, job: Job, result: Any) -> bytes:
        """Return the body that would be posted, and send nothing; call after `open`. See `protocols.Checkable`."""
        url = self._address(job)
        body = encode(self._body(job, result))
        refusal = self._rules(is_ours=not job.attributes.get("callback")).judge_unresolved(encode_ascii(url))
        if refusal is not None:
            raise DeliveryRejected(str(HttpError(refusal.code, url, refusal.why, permanent=True)))
        return body

    def goes_to(self, job: Job) -> tuple[str, str]:
        """Return the address of the receiver without its query, and its host; see `protocols.Addressed`."""
        url = job.attributes.get("callback") or self.url or ""
        return url.partition("?")[0], host_of(url)

    def keep(self, job: Job, kept: Kept) -> bytes:
        """Return a result that could not be delivered as bytes; see `protocols.KeepsResults`."""
        return kept_results.keep(job, kept, self._secrets)

    def take_up(self, job: Job) -> Kept | None:
        """Return the result that was kept with a job; see `protocols.KeepsResults`."""
        kept = kept_results.take_up(job, self._secrets)
        if kept is None:
            self._count("kept_refused")
        return kept

    def flush(self) -> None:
        """Do nothing: a result is durable once its receiver has answered."""

    def close(self) -> None:
        """Do nothing: connections close with their threads."""

    def _address(self, job: Job) -> str:
        url = job.attributes.get("callback") or self.url
        if not url:
            raise DeliveryRejected("the job names no callback address and the pipeline has no default one")
        if not isinstance(url, str):
            raise DeliveryRejected(f"the job's callback address is {url!r}; expected text")
        if self._destinations.is_disabled(url):
            self._count("refused_as_gone")
            raise DeliveryRejected(
                f"{strip_secrets(url)} answered {_GONE} Gone before and gets nothing more in this run; "
                "if it is back, start the run again and redrive"
            )
        return url

    def _admit(self, url: str) -> Destination:
        destination = self._destinations.find(url)
        wait = destination.admit(self._now())
        if wait is not None:
            self._count("refused_while_open")
            how = destination.last_failure
            self._postpone(f"{strip_secrets(url)} was not called: it failed too often of late ({how})", wait)
        return destination

    def _headers(self, job: Job, body: bytes) -> dict[str, str]:
        key = _header_id(job.id)
        timestamp = str(math.floor(self._clock.unix_seconds()))
        headers = {**self.headers, "Idempotency-Key": key, "webhook-id": key, "webhook-timestamp": timestamp}
        if job.plan_id:
            headers["X-Headrace-Plan"] = job.plan_id
        if self._secrets is not None:
            headers["webhook-signature"] = self._secrets.sign(key, timestamp, body)
        return headers

    def _handle_refusal(self, destination: Destination, url: str, response: Response) -> NoReturn:
        what = f"{strip_secrets(url)} answered {response.status}, expected 2xx"
        if not is_permanent(response.status):
            self._note_failure(destination, f"answered {response.status}", what, response.retry_after_seconds or 0.0)
        destination.note_answer()
        if response.status == _GONE:
            self._destinations.disable(url)
            self._count("disabled_addresses")
        raise DeliveryRejected(what)

    def _note_failure(
        self,
        destination: Destination,
        how: str,
        what: str,
        retry_after_seconds: float = 0.0,
        *,
        whole_host: bool = False,
    ) -> NoReturn:
        now = self._now()
        if destination.note_failure(now, how, whole_host=whole_host):
            self._count("breaker_opened")
        wait = destination.retry_in(now)
        if wait is not None:
            if not wait:
                self._count("retries_withheld")
            self._postpone(what, max(wait, retry_after_seconds))
        error = DeliveryFailed(what)
        error.retry_after_seconds = retry_after_seconds
        raise error

    def _postpone(self, what: str, seconds: float) -> NoReturn:
        error = DeliveryPostponed(what)
        error.retry_after_seconds = seconds
        raise error

    def _now(self) -> float:
        return self._clock.now_ns() / 1e9

    def _client(self, *, is_ours: bool) -> HttpClient:
        # Two clients, so that no stranger's request uses a connection that the operator's address allowed.
        clients: dict[bool, HttpClient] = self._local.__dict__.setdefault("clients", {})
        client = clients.get(is_ours)
        if client is None:
            rules = self._rules(is_ours=is_ours)
            client = clients[is_ours] = HttpClient(self._settings, self._count_connection, rules)
        return client

    def _rules(self, *, is_ours: bool) -> NetworkRules:
        return NetworkRules(self._network.relax_for_operator() if is_ours else self._network)

    def _count_connection(self, number: int, seconds: float) -> None:
        self._count("connections", number)
        self._count("connect_microseconds", round(seconds * 1e6))

    def _count(self, name: str, number: int = 1) -> None:
        if self._context is not None:
            with self._counting:  # the workers share one context
                self._context.count(f"deliver.{name}", number)


def _header_id(job_id: str) -> str:
    """Return an id in a form that a header can carry: spaces at its ends would be trimmed."""
    if _NEEDS_NO_QUOTING.fullmatch(job_id):
        return job_id
    key = quote(job_id, safe=_PLAIN)
    inner = key.strip(" ")
    start = key.index(inner) if inner else 0
    return "%20" * start + inner + "%20" * (len(key) - start - len(inner))


def _read_secrets(settings: CallbackSettings) -> Secrets | None:
    if settings.secret_env:
        where = f"the environment variable {settings.secret_env} (secret_env)"
        text = os.environ.get(settings.secret_env)
        if text is None:
            raise SettingsError(f"{where} is not set; expected one or several secrets whsec_..., the newest first")
    elif settings.secret_file:
        where = f"the file {settings.secret_file} (secret_file)"
        try:
            text = Path(settings.secret_file).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise SettingsError(f"{where} is not text") from None
        except OSError as error:
            raise SettingsError(f"{where} cannot be read: {error.strerror}") from None
    else:
        return None
    try:
        return parse_secrets(text)
    except ValueError as error:
        raise SettingsError(f"{where}: {error}") from None
