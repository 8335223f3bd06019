"""Times as people read them on the day."""

from __future__ import annotations

import datetime


def moment(unix_seconds: float) -> str:
    """Return a time in UTC, such as `14:10 UTC`, with the date if it was not within the last day before now."""
    then = datetime.datetime.fromtimestamp(unix_seconds, datetime.UTC)
    is_recent = abs((datetime.datetime.now(datetime.UTC) - then).total_seconds()) < 86_400
    return then.strftime("%H:%M UTC" if is_recent else "%Y-%m-%d %H:%M UTC")
