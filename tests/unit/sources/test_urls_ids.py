"""What the ids of a list of URLs show."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.sources.urls import UrlList


def test_secrets_are_cut_from_ids() -> None:
    """Neither password nor query is in an id, and what was cut still tells two URLs apart; the payload is whole."""
    urls = ["https://u:secret@host/a.jpg?sig=ONE", "https://u:secret@host/a.jpg?sig=TWO", "https://host/b.jpg"]
    entries = list(UrlList(urls).entries())
    ids = [entry.id for entry in entries]
    assert not any(part in id_ for id_ in ids for part in ("secret", "ONE", "TWO"))
    assert len(set(ids)) == 3
    assert ids[2] == "https://host/b.jpg"
    assert [entry.payload for entry in entries] == urls


@pytest.mark.parametrize(
    ("content", "gives"),
    [("a.jpg\n", True), ("# some\n\nfile:///a.jpg\n", True), ("https://example.com/a.jpg\n", False), ("", False)],
)
def test_files_of_a_list_may_be_cold_or_warm(tmp_path: Path, content: str, gives: bool) -> None:
    """So it is said whether they are files; before, only those of folders and shards had a state."""
    (tmp_path / "list.txt").write_text(content)
    assert UrlList(tmp_path / "list.txt").gives_files is gives
    assert UrlList([content.split()[-1]] if content else []).gives_files is content.startswith("#")
    assert not UrlList(tmp_path / "gone.txt").gives_files
    assert not UrlList("https://example.com/list.txt").gives_files
