"""A word on listing a bucket, where it takes a good part of the whole."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.base.records import Counters
from headrace.diagnose import profile_document
from headrace.diagnose.listing import warn_of_listing


@pytest.mark.parametrize(
    ("listing", "index", "elapsed", "says"),
    [
        (5.0, 0.0, 20.0, "listing 1,000 objects took 5.00 s, before the first job: 20% of the whole"),
        (4.0, 1.0, 20.0, "took 4.00 s, and reading the indexes of its shards 1.00 s, before"),
        (5.0, 0.0, 100.0, ""),
        (0.5, 0.0, 0.5, ""),
        (0.0, 0.0, 10.0, ""),
    ],
)
def test_listing_is_named_where_it_matters(listing: float, index: float, elapsed: float, says: str) -> None:
    """From a tenth of the whole and a second on."""
    notes = {
        "source.listed_objects": 1_000,
        "source.list_microseconds": round(listing * 1e6),
        "source.index_microseconds": round(index * 1e6),
    }
    found = list(warn_of_listing(notes, elapsed))
    assert len(found) == bool(says)
    assert says in "".join(found)


def test_a_profile_says_it(busy_run: Any) -> None:
    """Among its warnings, which profile, diagnose and report print."""
    notes = {"source.listed_objects": 9, "source.list_microseconds": 9_000_000_000}
    run = busy_run.finish(counters=Counters(received=10, delivered=10, notes=notes))
    assert any("listing 9 objects took" in one for one in profile_document(run).warnings)
