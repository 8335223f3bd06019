"""A list of URLs, in the program, in a file or at an http(s) address; a file may list local files instead."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from headrace.base.errors import SourceError
from headrace.base.http_client import HttpClient
from headrace.base.http_error import HttpError, strip_secrets
from headrace.base.http_settings import HttpSettings
from headrace.base.named_paths import read_path
from headrace.base.network_rules import NetworkPlan, NetworkRules
from headrace.base.settings import check
from headrace.sources.finite import Entry, FiniteSource

_HTTP = re.compile("https?://", re.IGNORECASE)
#: Of a list at an address: some ten million names.
_MOST_BYTES = 10**9


class UrlList(FiniteSource):
    """One job per URL: the payload is the URL; the id is the URL without password and query, numbered if repeated.

    Args:
        urls: The URLs, in a list or an iterator, which is read now; or a file with one per line; empty lines and lines that
            start with # are skipped. A file may list local files instead, relative to its own folder: then there is one job
            per path. Its first line decides, and all others must be of the same kind: if strangers can add addresses to a
            list, a path among them must not open a file. The http(s) address of such a list works as well; then a line that
            is no URL is one relative to the list's.
        max_receives: Tries of one job.
    """

    def __init__(self, urls: Iterable[str] | Path | str, *, max_receives: int = 3) -> None:
        super().__init__(max_receives=max_receives)
        self._address = urls if isinstance(urls, str) and _HTTP.match(urls) else None
        self._urls: Path | list[str] = []
        if isinstance(urls, str | bytes | os.PathLike) or not isinstance(urls, Iterable):
            self._urls = Path() if self._address else read_path(urls, "urls")
        else:
            self._urls = _check_urls(urls)

    @property
    def where(self) -> str:
        """The path or address of the list, or a text that says that the URLs are in the program."""
        if self._address:
            return f"the list {strip_secrets(self._address)}"
        return f"the list {self._urls.absolute()}" if isinstance(self._urls, Path) else "a list in the program"

    @property
    def gives_files(self) -> bool:
        """Whether the first entry is a file of this machine; see `protocols.GivesFiles`."""
        if self._address:
            return False
        if not isinstance(self._urls, Path):
            return str(next(iter(self._urls), ""))[:5].lower() == "file:"
        try:
            first = next((text for _, text in _lines(_read(self._urls), "")), "://")
        except SourceError:  # `entries` says why
            return False
        return "://" not in first or first[:5].lower() == "file:"

    def entries(self) -> Iterator[Entry]:
        """Return the URLs in order; a file is read now, so that its errors are reported before the run."""
        if self._address:
            where = strip_secrets(self._address)
            lines = [(number, urljoin(self._address, line)) for number, line in _lines(_download(self._address), where)]
        elif isinstance(self._urls, Path):
            lines, where = _lines(_read(self._urls), str(self._urls)), str(self._urls)
        else:
            lines, where = list(enumerate(self._urls, 1)), "the list of URLs"
        if not lines:
            raise SourceError(f"{where} names no URL")
        if isinstance(self._urls, Path) and not self._address and "://" not in lines[0][1]:
            return _files(lines, where, self._urls.parent)
        for number, url in lines:
            if "://" not in url or any(character.isspace() for character in url):
                raise SourceError(
                    f"{where}: entry {number} is not a URL: {url[:100]!r}; expected one such as https://example.com/a.jpg. "
                    "Files of this machine come from a folder, a pattern such as photos/*.jpg, or a list of nothing else"
                )
        return _entries((_name(url), url) for _, url in lines)


def _files(lines: list[tuple[int, str]], where: str, folder: Path) -> Iterator[Entry]:
    """Return the files in a list; a missing one fails only its own job, unless it is the first."""
    number, first = lines[0]
    path = os.path.abspath(folder / first)
    if not os.path.isfile(path):
        raise SourceError(
            f"{where}: entry {number} is neither a URL nor a file: {first[:100]!r}; there is no {path[:300]}. Paths are "
            "relative to the folder of the list"
        )
    for number, name in lines:
        if "://" in name:
            raise SourceError(
                f"{where}: entry {number} is a URL, and those before it are files: {strip_secrets(name)[:100]!r}; make two "
                "lists"
            )
    return _entries((name, folder / name) for _, name in lines)


def _lines(content: bytes, where: str) -> list[tuple[int, str]]:
    try:
        text = content.decode("utf-8-sig")  # with or without the mark that some editors put in front
    except UnicodeDecodeError as error:
        raise SourceError(f"the list of URLs {where} cannot be read: {error}") from error
    numbered = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1))
    return [(number, line) for number, line in numbered if line and not line.startswith("#")]


def _check_urls(urls: Iterable[str]) -> list[str]:
    """Return URLs as a list; each is a text, and no path of this machine."""
    found = list(urls)
    for number, url in enumerate(found, 1):
        check(isinstance(url, str), f"urls: entry {number}", type(url).__name__,
              "a text such as 'https://example.com/a.jpg'; hr.items takes a list of paths")  # fmt: skip
    return found


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise SourceError(f"the list of URLs {path} cannot be read: {error}") from error


def _download(address: str) -> bytes:
    """Return a list that the operator named: wherever it is, and not only on the public internet."""
    client = HttpClient(HttpSettings(max_bytes=_MOST_BYTES), rules=NetworkRules(NetworkPlan().relax_for_operator()))
    try:
        answer = client.get(address)
    except HttpError as error:
        raise SourceError(f"the list of URLs cannot be downloaded: {error}") from None
    finally:
        client.close()
    if answer.status != 200:
        raise SourceError(
            f"the list of URLs {strip_secrets(address)} cannot be downloaded: it answered {answer.status}, expected 200"
        )
    return answer.body


def _entries(named: Iterable[tuple[str, Any]]) -> Iterator[Entry]:
    seen: dict[str, int] = {}
    for name, payload in named:
        count = seen[name] = seen.get(name, 0) + 1
        yield Entry(name if count == 1 else f"{name}#{count}", payload)


def _name(url: str) -> str:
    # An id goes into logs, spans and results; a password or a signed query must not. The hash keeps shortened ids apart.
    shown = strip_secrets(url)
    return url if shown == url else f"{shown}~{hashlib.sha256(url.encode()).hexdigest()[:8]}"
