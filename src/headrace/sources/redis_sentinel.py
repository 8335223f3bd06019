"""Finds a Redis server by asking Sentinels which one is the primary now, and again whenever a connection is lost.

    redis+sentinel://[user:password@]host:26379,other:26379/SERVICE/DATABASE

User and password are the servers'; Sentinels get them too where they refuse to answer without. Behind Sentinels as behind any
failover, what the primary had not yet passed on to the replica that follows it is gone; `min-replicas-to-write 1` keeps a
primary that is cut off from taking more.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

SCHEME = "redis+sentinel"
_PORT = 26379
#: Sentinels answer at once or not at all, and there are others to ask.
_SECONDS = 1.0


@dataclass(frozen=True)
class SentinelAddress:
    """Where Sentinels are, and whom they are asked for."""

    sentinels: tuple[tuple[str, int], ...]
    service: str
    database: int
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str) -> SentinelAddress:
        """Return what an address says; `schemes` has found it possible."""
        parts = urlsplit(url)
        login, _, hosts = parts.netloc.rpartition("@")
        user, _, password = login.partition(":")
        places = [urlsplit(f"//{host}") for host in hosts.split(",")]
        service, _, database = parts.path.strip("/").partition("/")
        return cls(
            tuple((place.hostname or "localhost", place.port or _PORT) for place in places),
            unquote(service),
            int(database or 0),
            unquote(user) or None,
            unquote(password) or None,
        )

    def __str__(self) -> str:
        """Show it without user and password."""
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.sentinels)
        return f"{SCHEME}://{hosts}/{self.service}/{self.database}"

    def open_primary(self, **settings: Any) -> Any:
        """Return a `redis.Redis` whose connections lead to whichever server is the primary when they are made.

        Args:
            settings: Of its connections.
        """
        asking: dict[str, Any] = {
            "socket_timeout": _SECONDS,
            "socket_connect_timeout": _SECONDS,
            "retry": Retry(NoBackoff(), 0),
        }
        login = {"username": self.user, "password": self.password}
        asked = login if self._want_a_password(asking) else {}
        manager: Any = Sentinel  # the package's own types say nothing of it
        sentinel = manager(self.sentinels, sentinel_kwargs={**asking, **asked})
        return sentinel.master_for(self.service, db=self.database, **login, **settings)

    def _want_a_password(self, asking: dict[str, Any]) -> bool:
        """Return whether the first Sentinel that can be reached refuses to answer without one."""
        for host, port in self.sentinels:
            with contextlib.closing(redis.Redis(host, port, **asking)) as sentinel:
                try:
                    sentinel.ping()
                except redis.AuthenticationError:
                    return True
                except redis.RedisError:
                    continue  # the next may answer; if none does, the call for the primary says so
                return False
        return False
