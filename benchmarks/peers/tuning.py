"""Finds a peer's best settings: every point of its grid once, briefly; then the best few again, longer and interleaved.

The winner is remembered in ``benchmarks/.cache`` under a hash of all it depends on (grid, workload, processor, cores,
versions). A comparison against an untuned peer is worth nothing, and tuning takes longer than the comparison; so it is
done once per machine, and the record says what was tried.
"""

import json
import statistics
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from benchmarks.measure import cpu_model, interleave, machine
from benchmarks.paths import CACHE, digest
from benchmarks.peers.protocol import Settings
from benchmarks.peers.registry import is_runnable

if TYPE_CHECKING:
    from benchmarks.peers.bench import Bench

FINALISTS = 3
FINAL_ROUNDS = 2
FINAL_SHARE = 0.4  # of the budget, kept for the finalists


@dataclass(frozen=True)
class Trial:
    """One settings tried."""

    settings: Settings
    rates: list[float]
    """Items per second of each run; empty if all failed."""
    error: str | None = None


@dataclass(frozen=True)
class Tuned:
    """What tuning found."""

    peer: str
    settings: Settings | None
    """The best; None if the peer cannot run here."""
    num_points: int
    """Size of the grid."""
    trials: list[Trial]
    """What was tried, the best first; fewer than ``num_points`` if the budget ended the screening."""
    seconds: float
    """What it took; 0 from the cache."""

    @property
    def is_complete(self) -> bool:
        """Whether every point of the grid was tried."""
        return len(self.trials) == self.num_points


def tune(bench: "Bench", peer: str, budget_seconds: float, retune: bool = False) -> Tuned:
    """Return the best settings of a peer on a bench.

    Args:
        bench: An entered bench.
        peer: Its name.
        budget_seconds: Rough limit of time. A budget that ends the screening early is visible in ``is_complete``.
        retune: Measure even if the cache knows.
    """
    if not is_runnable(peer):
        return Tuned(peer, None, 0, [], 0.0)
    points = bench.grid(peer)
    key = [bench.workload, bench.decode, bench.identity, [asdict(point) for point in points]]
    here = machine()
    path = CACHE / f"tuned-{bench.workload}-{peer}-{digest([key, cpu_model(), here.num_cores, here.packages])}.json"
    if path.exists() and not retune:
        return _from_json(json.loads(path.read_text()))
    tuned = _search(bench, peer, points, budget_seconds)
    if tuned.settings is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(tuned), indent=1))
    return tuned


def _search(bench: "Bench", peer: str, points: list[Settings], budget_seconds: float) -> Tuned:
    started = time.monotonic()
    screening_ends = started + budget_seconds * (1 - FINAL_SHARE)
    trials: list[Trial] = []
    for settings in points:
        if trials and time.monotonic() > screening_ends:
            break
        outcome = bench.run(peer, settings, bench.screen_items)
        trials.append(Trial(settings, [] if outcome.error else [outcome.rate], outcome.error))
    trials.sort(key=_rate, reverse=True)
    finalists = [trial for trial in trials if trial.rates][:FINALISTS]
    runners = {str(t.settings): (lambda s=t.settings: bench.run(peer, s, 2 * bench.screen_items)) for t in finalists}
    final = interleave(runners, FINAL_ROUNDS) if len(finalists) > 1 else {}
    # The screening's rate is dropped for the finalists: it was the reason to choose them, so it is biased upwards.
    again = [
        Trial(trial.settings, [outcome.rate for outcome in final[str(trial.settings)] if not outcome.error])
        for trial in finalists
        if final
    ]
    again = sorted((trial for trial in again if trial.rates), key=_rate, reverse=True) or finalists
    rest = [trial for trial in trials if trial.settings not in [t.settings for t in again]]
    best = again[0].settings if again else None
    return Tuned(peer, best, len(points), [*again, *rest], time.monotonic() - started)


def _rate(trial: Trial) -> float:
    return statistics.median(trial.rates) if trial.rates else 0.0


def _from_json(value: dict) -> Tuned:
    trials = [Trial(Settings(**trial["settings"]), trial["rates"], trial["error"]) for trial in value["trials"]]
    settings = Settings(**value["settings"]) if value["settings"] else None
    return Tuned(value["peer"], settings, value["num_points"], trials, 0.0)
