"""Whether listing the objects of a bucket took long beside working on them: it comes before the first job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headrace.base.units import format_duration

#: Of the run, and at least so many seconds, from which on it is worth a word.
_SHARE, _LEAST_SECONDS = 0.1, 1.0


def warn_of_listing(notes: Mapping[str, int], elapsed_seconds: float) -> Iterator[str]:
    """Yield what to say of it, if there is something.

    Args:
        notes: Of the run, as `sources.objects` counts them.
        elapsed_seconds: From the first job on.
    """
    listing, indexes = (notes.get(f"source.{name}_microseconds", 0) / 1e6 for name in ("list", "index"))
    share = (listing + indexes) / max(listing + indexes + elapsed_seconds, 1e-9)
    if listing + indexes < _LEAST_SECONDS or share < _SHARE:
        return
    read = f", and reading the indexes of its shards {format_duration(indexes)}" if indexes else ""
    yield (
        f"listing {notes.get('source.listed_objects', 0):,} objects took {format_duration(listing)}{read}, before the first "
        f"job: {share:.0%} of the whole; name a longer prefix, or pack many small objects into shards (headrace pack)"
    )
