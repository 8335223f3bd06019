"""Numbers, sentences and tables for a terminal."""

from __future__ import annotations

import pytest

from headrace.base.formatting import align_columns, pluralize, wrap_lines


@pytest.mark.parametrize(("number", "words"), [(0, "0 items"), (1, "1 item"), (1200, "1,200 items")])
def test_a_number_of_things(number: int, words: str) -> None:
    """One is singular, and thousands are set apart."""
    assert pluralize(number, "item") == words


def test_long_lines_go_on_further_in() -> None:
    """A line longer than a terminal is cut between words; its rest stands two columns further in than its beginning."""
    first, second = wrap_lines(["  " + "word " * 20])
    assert first.startswith("  word")
    assert len(first) <= 80
    assert second.startswith("    word")


def test_what_cannot_be_cut_stays_whole() -> None:
    """Paths and addresses can still be copied, empty lines stay, and a line break within a sentence is none."""
    path = "/" + "long-name/" * 12
    assert wrap_lines([path, "", "one\ntwo"]) == [path, "", "one two"]


def test_columns_stay_aligned_with_wide_letters() -> None:
    """Letters that a terminal draws two columns wide, or none, are counted so."""
    assert align_columns([("画像", "1"), ("e\u0301", "23")]) == ["画像   1", "e\u0301     23"]


def test_the_first_columns_may_be_words() -> None:
    """As many columns as are asked for are set to the left, the others to the right."""
    assert align_columns([("a", "b", "1"), ("aa", "bb", "23")], num_left=2) == ["a   b    1", "aa  bb  23"]
