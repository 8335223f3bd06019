"""Which handler answers which path."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.serve.http.request import Answer, Request, error_answer

#: Answers at once, or returns None and answers later by `Request.answer`. Called in the front's thread: it must not block.
#: What stands in the path's places comes by name.
Handler = Callable[..., Answer | None]

_PLACE, _REST = re.compile(r"\\\{([a-z_]+)\\\}"), re.compile(r"\\\{([a-z_]+)\\\*\\\}$")


@dataclass(frozen=True, slots=True)
class _Route:
    pattern: re.Pattern[str]
    handlers: dict[str, Handler]


class Routes:
    """Handlers by path and method."""

    def __init__(self) -> None:
        self._fixed: dict[str, dict[str, Handler]] = {}
        self._patterns: list[tuple[str, _Route]] = []

    def add(self, method: str, path: str, handler: Handler) -> None:
        """Let a handler answer a path: `{name}` stands for anything but a slash, `{name*}` at the end for all that is left."""
        if "{" not in path:
            self._fixed.setdefault(path, {})[method] = handler
            return
        for known, route in self._patterns:
            if known == path:
                route.handlers[method] = handler
                return
        places = _REST.sub(r"(?P<\1>.+)", _PLACE.sub(r"(?P<\1>[^/]+)", re.escape(path)))
        pattern = re.compile(places)
        self._patterns.append((path, _Route(pattern, {method: handler})))

    def answer(self, request: Request) -> Answer | None:
        """Call the handler of a request; answers 404 and 405 itself."""
        handlers, places = self._find(request.path)
        if handlers is None:
            return error_answer(404, "http.path", f"there is nothing at {request.path:.200}")
        handler = handlers.get(request.method)
        if handler is None and request.method == "HEAD":
            handler = handlers.get("GET")
        if handler is None:
            allowed = ", ".join(sorted(handlers))
            return error_answer(
                405, "http.method", f"{request.path:.200} takes {allowed}, got {request.method}", ("Allow", allowed)
            )
        return handler(request, **places)

    def _find(self, path: str) -> tuple[dict[str, Handler] | None, Mapping[str, Any]]:
        handlers = self._fixed.get(path)
        if handlers is not None:
            return handlers, {}
        for _, route in self._patterns:
            match = route.pattern.fullmatch(path)
            if match:
                return route.handlers, match.groupdict()
        return None, {}
