"""Address or path -> bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from headrace.base.errors import FetchFailed, FetchRejected
from headrace.base.http_client import HttpClient, HttpError, HttpSettings, is_permanent, without_secrets
from headrace.base.network_rules import NetworkRules
from headrace.base.settings import build
from headrace.stages.local_files import file_reader
from headrace.stages.stage import Stage, StageContext


class FetchStage(Stage):
    """Downloads http(s) addresses, reads paths and file addresses; bytes and arrays pass as they are.

    Counts `NAME.connections`, those it had to open, and `NAME.connect_microseconds`, what setting them up took.

    Jobs may be a stranger's: which addresses and which files they may name is the Plan's `[network]`. The reason of a refusal
    begins with a stable code, such as `ssrf.address`, `http.too_large` or `file.refused`.

    Options (`[stages.fetch.options]`): those of `headrace.base.http_client.HttpSettings`.
    """

    kind = "io"
    releases_gil = True
    work = "download"

    def open(self, context: StageContext) -> Callable[[Any], Any]:
        """Return a fetcher with a connection of its own, kept alive."""
        settings = build(HttpSettings, context.options, f"[stages.{self.name}.options]")

        def count_connection(number: int, seconds: float) -> None:
            context.count(f"{self.name}.connections", number)
            context.count(f"{self.name}.connect_microseconds", round(seconds * 1e6))

        network = context.plan.network
        client = HttpClient(settings, count_connection, NetworkRules(network))
        read_file = file_reader(network.files, settings.max_bytes)
        # An address may be written by somebody who has no access to this machine, whatever it came through.
        read_address = file_reader(network.files or [], settings.max_bytes)

        def fetch_one(payload: Any) -> Any:
            if isinstance(payload, bytes | np.ndarray):
                return payload
            if isinstance(payload, Path):
                return read_file(payload)
            scheme = payload.partition(":")[0].lower()
            if scheme == "file":
                return read_address(_path(payload))
            if scheme in ("http", "https"):
                return download(client, payload)
            shown = without_secrets(payload)
            raise FetchRejected(f"ssrf.scheme: address {shown!r} cannot be fetched; expected http, https or file")

        return fetch_one


def _path(url: str) -> Path:
    """Return the path that a file address stands for; raises FetchRejected if it is on another machine."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise FetchRejected(f"ssrf.url: {url!r:.200} cannot be read as an address: {error}") from None
    if parts.netloc.lower() not in ("", "localhost"):
        raise FetchRejected(f"ssrf.url: {url!r:.200} names a file of another machine; expected file:///PATH")
    return Path(unquote(parts.path))


def download(client: HttpClient, url: str) -> bytes:
    """Return the body behind an address.

    Raises:
        FetchFailed: Worth another try.
        FetchRejected: Not.
    """
    try:
        response = client.get(url)
    except HttpError as error:
        raise (FetchRejected if error.permanent else FetchFailed)(str(error)) from None
    if response.status in (200, 203):  # 206 would be a part that nobody asked for, 204 nothing
        return response.body
    kind = FetchRejected if response.status < 300 or is_permanent(response.status) else FetchFailed
    raise kind(f"http.status: {without_secrets(url)} answered {response.status}, expected 200")
