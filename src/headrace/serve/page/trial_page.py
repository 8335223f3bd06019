"""The page on which people try a service; see `headrace.serve.page`.

It loads nothing from elsewhere and talks to nobody but the service: its policy, which the browser enforces, allows its one
script and its one style by their digests. It is the same for every service: what there is it reads from `/openapi.json`, with
the token that its user gives, so that who has none learns nothing from it.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

from headrace.serve.http.request import Answer, Request
from headrace.serve.http.routes import Routes

_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Try it · headrace</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">"""


def add_page(routes: Routes) -> None:
    """Add the page at `/`."""
    routes.add("GET", "/", _show)


def _show(request: Request) -> Answer:
    return _make()


@cache
def _make() -> Answer:
    assets = files("headrace.serve.page") / "assets"
    body, script, own = ((assets / name).read_text(encoding="utf-8") for name in ("page.html", "page.js", "page.css"))
    style = (files("headrace.report") / "assets" / "report.css").read_text(encoding="utf-8") + own
    text = f"{_HEAD}<style>{style}</style></head>\n<body>{body}<script>{script}</script></body></html>\n"
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; connect-src 'self'; "
        "img-src blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = (
        ("Content-Security-Policy", policy),
        ("X-Content-Type-Options", "nosniff"),
        ("Referrer-Policy", "no-referrer"),
        ("Cache-Control", "no-cache"),
    )
    return Answer(200, text.encode(), "text/html; charset=utf-8", headers)


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
