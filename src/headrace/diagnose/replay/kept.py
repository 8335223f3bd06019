"""What a Plan's caches do to a run whose items come again: which share is found, and what finding costs.

Predicted is the run over the same items after one that kept what fits: of a cache that is too small the share that fits is
found, as what is there is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from headrace.base.cache_setting import CacheSetting
from headrace.base.plan import Plan
from headrace.diagnose.cache_costs import ENTRY_BYTES, hit_seconds
from headrace.diagnose.replay.demands import CannotReplay, Demands
from headrace.runs.formats.prediction import Change
from headrace.runs.formats.profile import ProfileDocument


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What caches that a change adds come to."""

    shares: Mapping[str, float] = field(default_factory=dict)
    """{stage that is passed by: share of its items}."""
    hit_seconds: Mapping[str, float] = field(default_factory=dict)
    """{stage that looks up: CPU seconds of a hit}."""
    says: str = ""
    """What is taken for granted; empty: no cache is added."""


def find_kept(recorded: Plan, changed: Plan, demands: Demands, document: ProfileDocument) -> Kept:
    """Return what the caches do that a changed Plan has and the recorded one had not.

    Raises:
        CannotReplay: If the recorded run had other caches: what its stages cost without them is not known.
    """
    names = [one.name for one in demands.stages]
    before = {name: recorded.stages[name].cache for name in names}
    after = {name: changed.stages[name].cache for name in names}
    if before == after:
        return Kept()
    if had := [name for name, cache in before.items() if cache]:
        raise CannotReplay(
            f"this run had the cache {had[0]}.cache = {before[had[0]]!r}, and another one is asked for; profile once without "
            "caches and predict from that run"
        )
    last = [name for name, cache in after.items() if cache][-1]
    stage = next(one for one in document.stages if one.name == last)
    setting = CacheSetting.parse(after[last] or "")
    if not stage.bytes_out:
        raise CannotReplay(f"how large the results of {last} are was not measured, so not how many fit; profile again")
    jobs = max(1, int(document.counters.get("delivered", 0)))
    need = jobs * (stage.bytes_out + ENTRY_BYTES)
    share = min(1.0, setting.limit_bytes / need)
    seconds = hit_seconds(stage.bytes_out, on_disk=setting.folder is not None)
    route = next(one.route for one in demands.stages if one.name == last)
    passed = [one.name for one in demands.stages[: names.index(last) + 1] if one.route in ("", route)]
    return Kept(
        shares=dict.fromkeys(passed, share),
        hit_seconds={passed[0]: seconds},
        says=(
            f"the run over the same {jobs:,} items after one that kept their results: {share:.0%} of them fit into "
            f"{last}.cache, and a hit costs {seconds * 1e6:,.0f} us"
        ),
    )


def pass_by(change: Change, kept: Kept) -> Change:
    """Return a change in which the stages up to a cache skip what is found."""
    if not kept.shares:
        return change
    shares = {
        name: 1.0 - (1.0 - change.cache_hits.get(name, 0.0)) * (1.0 - share) for name, share in kept.shares.items()
    }
    return msgspec.structs.replace(change, cache_hits=change.cache_hits | shares)
