"""What the ids of a list of URLs show."""

from __future__ import annotations

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
