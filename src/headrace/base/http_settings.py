"""Limits of HTTP requests."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.base.settings import check

#: What browsers follow (WHATWG Fetch, HTTP-redirect fetch).
MOST_REDIRECTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Limits of one request."""

    timeout_seconds: float = 30.0
    """The whole request, redirects included."""
    connect_timeout_seconds: float = 5.0
    """Resolving the name; and after that, TCP and TLS set-up."""
    min_bytes_per_second: int = 100
    """GET: slower than this for `slow_seconds` on end, the wait for the answer included, ends the request."""
    slow_seconds: float = 15.0
    """Rounded up to whole seconds."""
    max_bytes: int = 64 * 10**6
    """Largest body."""
    max_redirects: int = 3
    """Redirects followed by GET; POST follows none."""

    def __post_init__(self) -> None:
        """Check every value."""
        for key in ("timeout_seconds", "connect_timeout_seconds", "slow_seconds", "max_bytes"):
            check(getattr(self, key) > 0, key, getattr(self, key), "more than 0")
        check(
            0 <= self.max_redirects <= MOST_REDIRECTS,
            *("max_redirects", self.max_redirects, f"a whole number from 0 to {MOST_REDIRECTS}"),
        )
        check(self.min_bytes_per_second >= 0, "min_bytes_per_second", self.min_bytes_per_second, "a whole number >= 0")
