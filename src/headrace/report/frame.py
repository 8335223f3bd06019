"""The frame of every page: head, contents, sections, scripts, and the policy that lets nothing else run or load."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from headrace.report.charts import as_json
from headrace.report.markup import Html, raw, tag
from headrace.report.section import Section


def make_page(
    title: str,
    overview: Html,
    sections: Sequence[Section],
    footer: str,
    *,
    pictures: bool = False,
    script: Html | None = None,
) -> str:
    """Return an HTML document.

    Args:
        title: Of the window.
        overview: What stands above everything else.
        sections: In the order of reading.
        footer: Who made it from what.
        pictures: Whether some stand in the page itself (`data:`).
        script: Another one, of a page that is served: it may ask that server, and so may forms. None: the page is a file.
    """
    charts = [chart for section in sections for chart in section.charts]
    library, drawing, style = (_asset(name) for name in ("charts.min.js", "report.js", "report.css"))
    scripts = [library, drawing, *([script] if script is not None else [])]
    policy = _policy(scripts, style, pictures, is_served=script is not None)
    return "<!doctype html>\n" + tag(
        "html",
        tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=policy),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            tag("meta", name="referrer", content="no-referrer"),
            tag("title", f"{title} · headrace"),
            tag("style", style),
        ),
        tag(
            "body",
            overview,
            _contents(sections),
            tag("main", *(section.element() for section in sections)),
            tag("footer", tag("p", footer)),
            tag("script", raw(as_json(charts)), type="application/json", id="charts"),
            *(tag("script", one) for one in scripts),
        ),
        lang="en",
    )  # fmt: skip


def _contents(sections: Sequence[Section]) -> Html:
    return tag(
        "nav", *(tag("a", section.title, href=f"#{section.anchor}") for section in sections), aria_label="Contents"
    )


def _policy(scripts: Sequence[str], style: str, pictures: bool, *, is_served: bool) -> str:
    allowed = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    images = "img-src data:; " if pictures else ""
    own = "connect-src 'self'; form-action 'self'" if is_served else "form-action 'none'"
    return (
        f"default-src 'none'; {images}script-src {allowed}; style-src 'sha256-{_digest(style)}'; base-uri 'none'; {own}"
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _asset(name: str) -> Html:
    """Return a file of this package, as it is to stand in the page."""
    return raw((files("headrace.report") / "assets" / name).read_text(encoding="utf-8").strip())
