"""Which handler answers which path."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.serve.http.request import Answer, Request, error_answer

#: Answers at once, or returns None and answers later by `Request.answer`. Called in the front's thread: it must not block.
#: What stands in the path's places comes by name.
Handler = Callable[..., Answer | None]
#: Called in the front's thread once the head is read and before the body is: returns the answer that refuses the request, or
#: None to let it in. The request has no body yet.
Gate = Callable[[Request], Answer | None]

_PLACE, _REST = re.compile(r"\\\{([a-z_]+)\\\}"), re.compile(r"\\\{([a-z_]+)\\\*\\\}$")


@dataclass(frozen=True, slots=True)
class Found:
    """What answers a request."""

    handler: Handler
    places: dict[str, str] = field(default_factory=dict)
    gate: Gate | None = None


@dataclass(frozen=True, slots=True)
class _Route:
    path: str
    pattern: re.Pattern[str]
    methods: dict[str, Found] = field(default_factory=dict)


class Routes:
    """Handlers by path and method."""

    def __init__(self) -> None:
        self._fixed: dict[str, dict[str, Found]] = {}
        self._routes: list[_Route] = []

    def add(self, method: str, path: str, handler: Handler, gate: Gate | None = None) -> None:
        """Let a handler answer a path: `{name}` stands for anything but a slash, `{name*}` at the end for all that is left."""
        if "{" in path:
            methods = self._route(path).methods
        else:
            methods = self._fixed.setdefault(path, {})
        methods[method] = Found(handler, gate=gate)

    def find(self, method: str, path: str) -> Found | Answer:
        """Return what answers a request, or the answer 404 or 405."""
        methods, places = self._methods(path)
        if methods is None:
            return error_answer(404, "http.path", f"there is nothing at {path:.200}")
        found = methods.get(method)
        if found is None and method == "HEAD":
            found = methods.get("GET")
        if found is None:
            allowed = ", ".join(sorted(methods))
            return error_answer(405, "http.method", f"{path:.200} takes {allowed}, got {method}", ("Allow", allowed))
        return Found(found.handler, places, found.gate) if places else found

    def listed(self) -> list[tuple[str, str]]:
        """Return method and path of each handler."""
        every = {**self._fixed, **{route.path: route.methods for route in self._routes}}
        return [(method, path) for path, methods in every.items() for method in methods]

    def answer(self, request: Request) -> Answer | None:
        """Call the handler of a request, whose body is there; answers 404 and 405 itself."""
        found = self.find(request.method, request.path)
        return found if isinstance(found, Answer) else found.handler(request, **found.places)

    def _route(self, path: str) -> _Route:
        for route in self._routes:
            if route.path == path:
                return route
        places = _REST.sub(r"(?P<\1>.+)", _PLACE.sub(r"(?P<\1>[^/]+)", re.escape(path)))
        self._routes.append(_Route(path, re.compile(places)))
        return self._routes[-1]

    def _methods(self, path: str) -> tuple[dict[str, Found] | None, dict[str, str]]:
        methods = self._fixed.get(path)
        if methods is not None:
            return methods, {}
        for route in self._routes:
            match = route.pattern.fullmatch(path)
            if match:
                return route.methods, match.groupdict()
        return None, {}
