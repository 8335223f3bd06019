"""Every text is escaped, whatever it holds."""

from __future__ import annotations

import pytest

from headrace.report.markup import Html, join, plain, raw, sentence, table, tag


def test_text_is_escaped_and_markup_is_kept() -> None:
    """A string becomes text; what `tag` made stays an element."""
    assert tag("p", "<b> & \"'", tag("i", "x")) == "<p>&lt;b&gt; &amp; &quot;&#x27;<i>x</i></p>"


def test_attributes_are_escaped_and_may_be_left_out() -> None:
    """A quote cannot end an attribute; None and False leave it out, True has no value."""
    made = tag("a", href='"><script>', class_="x", hidden=True, title=None, open=False)
    assert made == '<a href="&quot;&gt;&lt;script&gt;" class="x" hidden></a>'


def test_plain_text_joined_to_markup_is_escaped_again() -> None:
    """Adding a string to markup gives a string, so that a slip makes too much escaping and never too little."""
    made = tag("b", "x") + "<script>"
    assert not isinstance(made, Html)
    assert "<script>" not in join([made])


@pytest.mark.parametrize("bad", ["\x00", "\x1b", "\udc80", "\u202e", "\x85", "\ufffe"])
def test_what_cannot_be_shown_is_replaced(bad: str) -> None:
    """Control characters, halves of surrogates and turned reading directions become U+FFFD, and can be written as UTF-8."""
    assert plain(f"a{bad}b") == "a\ufffdb"
    assert plain(f"a{bad}b").encode()


def test_void_elements_have_no_end() -> None:
    """`<br>` and `<meta>` are not closed."""
    assert tag("br") == "<br>"
    assert tag("meta", charset="utf-8") == '<meta charset="utf-8">'


def test_a_table_shows_a_dash_for_what_was_not_measured() -> None:
    """None is a dash; numbers' columns are marked, text columns are not."""
    made = table(["stage", "service"], [["fetch", None], ["decode", raw("<data>1</data>")]])
    assert '<td>fetch</td><td class="n">\N{EN DASH}</td>' in made
    assert '<th class="n" scope="col">service</th>' in made
    assert '<td class="n"><data>1</data></td>' in made


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("it waits", "It waits."),
        ("delay:fetch: it sleeps", "delay:fetch: it sleeps."),
        ("native_threads: one", "native_threads: one."),
        ("note: twice!", "Note: twice!"),
        ("", ""),
    ],
)
def test_a_name_keeps_its_small_letter(text: str, shown: str) -> None:
    """What a user would type stays as it is typed."""
    assert sentence(text) == shown
