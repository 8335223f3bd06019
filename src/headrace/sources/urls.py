"""A list of URLs, in the program or in a file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from headrace.base.errors import SourceError
from headrace.base.http_client import without_secrets
from headrace.sources.finite import Entry, FiniteSource


class UrlList(FiniteSource):
    """One job per URL: the payload is the URL; so is the id, without password and query, and with a number if named twice.

    Args:
        urls: The URLs, or a file with one per line; empty lines and lines that start with # do not count.
        max_receives: Tries of one job.
    """

    def __init__(self, urls: Sequence[str] | Path | str, *, max_receives: int = 3) -> None:
        super().__init__(max_receives=max_receives)
        self._urls = Path(urls) if isinstance(urls, str) else urls

    @property
    def where(self) -> str:
        """The file, or that the URLs are in the program."""
        return f"the list {self._urls.absolute()}" if isinstance(self._urls, Path) else "a list in the program"

    def entries(self) -> Iterator[Entry]:
        """Return the URLs in order; a file is read now, so that what is wrong with it is told before the run."""
        if isinstance(self._urls, Path):
            lines, where = _lines(self._urls), str(self._urls)
        else:
            lines, where = list(enumerate(self._urls, 1)), "the list of URLs"
        urls = []
        for number, url in lines:
            if "://" not in url or any(character.isspace() for character in url):
                raise SourceError(f"{where}: entry {number} is not a URL: {url[:100]!r}")
            urls.append(url)
        if not urls:
            raise SourceError(f"{where} names no URL")
        return _entries(urls)


def _lines(path: Path) -> list[tuple[int, str]]:
    try:
        text = path.read_text(encoding="utf-8-sig")  # with or without the mark that some editors put in front
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"the list of URLs {path} cannot be read: {error}") from error
    numbered = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1))
    return [(number, line) for number, line in numbered if line and not line.startswith("#")]


def _entries(urls: list[str]) -> Iterator[Entry]:
    seen: dict[str, int] = {}
    for url in urls:
        name = _name(url)
        count = seen[name] = seen.get(name, 0) + 1
        yield Entry(name if count == 1 else f"{name}#{count}", url)


def _name(url: str) -> str:
    # An id goes into logs, spans and results; a password or a signed query must not. The hash tells apart what was cut.
    shown = without_secrets(url)
    return url if shown == url else f"{shown}~{hashlib.sha256(url.encode()).hexdigest()[:8]}"
