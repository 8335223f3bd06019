"""HTML from Python: every text is escaped on its way in, so that no name, id or error of a run can become markup."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

# Control characters, halves of surrogate pairs (file names that are not UTF-8) and marks that turn the reading direction of
# what follows: none of them has a place in a page.
_UNSHOWABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u200e\u200f\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
#: Stands for what was not measured.
DASH = "\N{EN DASH}"
#: Text longer than this is not squeezed into a narrow column.
_SENTENCE = 30
_TAG = re.compile("<[^>]*>")
_VOID = frozenset({"br", "img", "input", "link", "meta", "wbr"})


class Html(str):
    """Text that is markup already. Only `tag`, `join` and `raw` make it."""

    __slots__ = ()


def plain(text: object) -> str:
    """Return a value as text without characters that cannot be shown; each becomes U+FFFD."""
    return _UNSHOWABLE.sub("\ufffd", str(text))


def sentence(text: str) -> str:
    """Return a text with a large letter at its beginning, unless that is a name (`delay:fetch`), and a full stop at its end."""
    is_name = re.match(r"\S*(_|:\S)", text) is not None
    begun = text if is_name else f"{text[:1].upper()}{text[1:]}"
    return f"{begun}{'' if text.endswith(('.', '!', '?')) or not text else '.'}"


def tag(_name: str, *children: str | None, **attributes: str | bool | None) -> Html:
    """Return an element.

    Args:
        _name: Of the element.
        *children: Markup, or text, which is escaped; None is left out.
        **attributes: Values are escaped; False and None leave the attribute out, True writes it without a value. A trailing
            underscore is dropped (`class_`), others become hyphens (`aria_label`).
    """
    written = "".join(_attribute(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())
    if _name in _VOID:
        return Html(f"<{_name}{written}>")
    return Html(f"<{_name}{written}>{join(children)}</{_name}>")


def join(parts: Iterable[str | None]) -> Html:
    """Return parts one after the other: markup as it is, text escaped, None left out."""
    return Html("".join(_escape(part) for part in parts if part is not None))


def raw(text: str) -> Html:
    """Take text for markup: only for what comes from this package's own files."""
    return Html(text)


def table(
    head: Sequence[str], rows: Iterable[Sequence[str | None]], *, text_columns: int = 1, caption: str = ""
) -> Html:
    """Return a table that scrolls by itself where the screen is narrow.

    Args:
        head: Titles of the columns.
        rows: Cells; None is shown as a dash and means "not measured".
        text_columns: How many columns at the left are text; the others are numbers, aligned to the right.
        caption: What the table shows, for those who do not see the page.
    """
    header = tag("tr", *(_cell("th", title, index, text_columns, scope="col") for index, title in enumerate(head)))
    body = [
        tag("tr", *(_cell("td", DASH if cell is None else cell, index, text_columns) for index, cell in enumerate(row)))
        for row in rows
    ]
    title = tag("caption", caption) if caption else None
    # tabindex: what scrolls must be reachable by keyboard.
    return tag("div", tag("table", title, tag("thead", header), tag("tbody", *body)), class_="scroll", tabindex="0")


def side_by_side(*tables: str | None) -> Html:
    """Return tables next to one another where the screen is wide enough."""
    return tag("div", *tables, class_="tables")


def fold(summary: str, *children: str | None) -> Html:
    """Return what opens on a click, without JavaScript too."""
    return tag("details", tag("summary", summary), *children)


def note(*children: str | None) -> Html:
    """Return a paragraph of explanation."""
    return tag("p", *children, class_="note")


def bullets(texts: Iterable[str]) -> Html:
    """Return a list."""
    return tag("ul", *(tag("li", text) for text in texts))


def _cell(name: str, content: str, index: int, text_columns: int, scope: str | None = None) -> Html:
    is_sentence = index < text_columns and len(_TAG.sub("", content)) > _SENTENCE
    kind = "n" if index >= text_columns else "s" if is_sentence else None
    return tag(name, content, class_=kind, scope=scope)


def _escape(part: str) -> str:
    return part if isinstance(part, Html) else html.escape(plain(part))


def _attribute(name: str, value: str | bool | None) -> str:
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{html.escape(plain(value))}"'
