"""`Server-Timing`: where the time of one answer went, as browsers read it (W3C Server Timing)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from headrace.base.passage import Passage

#: What may not stand in a metric's name (RFC 9110, token).
_NO_TOKEN = re.compile(r"[^!#$%&'*+.^_`|~0-9A-Za-z-]")


def tell_timing(passages: Sequence[Passage], total_ns: int) -> tuple[str, str]:
    """Return the header that names each stage, in the order in which they began, and `total`.

    Of several passages through one stage (parts of a fan-out, other tries) the time from the first one's begin to the last
    one's end is told, with the largest batch.

    Args:
        passages: Of one job, in any order.
        total_ns: From the first byte of the request to its answer.
    """
    by_stage: dict[str, list[Passage]] = {}
    for one in sorted(passages, key=lambda one: one.started):
        by_stage.setdefault(one.stage, []).append(one)
    metrics = [_metric(stage, of_stage) for stage, of_stage in by_stage.items()]
    return "Server-Timing", ", ".join([*metrics, f"total;dur={total_ns / 1e6:.3f}"])


def _metric(stage: str, passages: Sequence[Passage]) -> str:
    ns = max(one.ended for one in passages) - passages[0].started
    size = max(one.batch_size or 0 for one in passages)
    batch = f';desc="batch of {size}"' if size else ""
    return f"{_NO_TOKEN.sub('_', stage)};dur={ns / 1e6:.3f}{batch}"
