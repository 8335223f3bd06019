"""What came, was wanted and was answered of each live stream, as rates; from the counts of a run folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.base.records import StreamRecord
from headrace.runs.formats.profile import StreamAccount
from headrace.runs.run_folder import RunInfo


def stream_accounts(info: RunInfo) -> tuple[StreamAccount, ...]:
    """Return the account of each live stream of a run; empty where there is none."""
    return tuple(_account(record) for record in info.streams)


def _account(record: StreamRecord) -> StreamAccount:
    skipped, dropped = _named(record.counts, "skipped_"), _named(record.counts, "dropped_")
    came = record.counts.get("decoded", 0)
    wanted, answered = came - sum(skipped.values()), record.ended.get("delivered", 0)
    shared: dict[str, Any] = {
        name: value for name, value in msgspec.structs.asdict(record).items() if name not in ("counts", "ended")
    }
    return StreamAccount(
        **shared,
        came=came,
        wanted=wanted,
        answered=answered,
        came_per_second=_rate(came, record.seconds),
        wanted_per_second=_rate(wanted, record.seconds),
        answered_per_second=_rate(answered, record.seconds),
        skipped=skipped,
        dropped=dropped,
        failed={reason: number for reason, number in record.ended.items() if reason != "delivered"},
    )


def _named(counts: Mapping[str, int], prefix: str) -> dict[str, int]:
    return {name.removeprefix(prefix): number for name, number in counts.items() if name.startswith(prefix)}


def _rate(number: int, seconds: float) -> float | None:
    return number / seconds if seconds > 0 else None
