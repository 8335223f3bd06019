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
from benchmarks.peers.registry import is_heavy, is_runnable
from benchmarks.setup_peers import HEAVY

if TYPE_CHECKING:
    from benchmarks.peers.bench import Bench, Outcome

FINALISTS = 3
FINAL_ROUNDS = 2
# Items of a screening run against the bench's usual number. One image at a time needs 80 ms each; Ray needs seconds to
# start, and fewer items would tune the start.
SCREEN_FACTOR = {("queue", "sequential"): 0.3, ("queue", "ray"): 4, ("folder", "ray"): 2.5}
FINAL_FACTOR = 2  # a final run has this many times the items of a screening run


@dataclass(frozen=True)
class Trial:
    """One settings tried."""

    settings: Settings
    rates: list[float]
    """Items per second of each run; empty if all failed."""
    foreign_cores: list[float]
    """What other programs took meanwhile: a tuning on a busy machine is worth repeating with ``retune``."""
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
    here = machine()
    key = [bench.decode, bench.identity, [asdict(point) for point in points], HEAVY if is_heavy(peer) else ()]
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
    count = int(bench.screen_items * SCREEN_FACTOR.get((bench.workload, peer), 1))
    trials: list[Trial] = []
    for settings in points:
        elapsed = time.monotonic() - started
        if trials and elapsed + FINALISTS * FINAL_ROUNDS * FINAL_FACTOR * elapsed / len(trials) > budget_seconds:
            break  # the rest of the budget belongs to the finalists
        outcome = bench.run(peer, settings, count)
        trials.append(_trial(settings, [outcome]))
    trials.sort(key=_rate, reverse=True)
    finalists = [trial for trial in trials if trial.rates][:FINALISTS]
    longer = FINAL_FACTOR * count
    runners = {str(t.settings): (lambda s=t.settings: bench.run(peer, s, longer)) for t in finalists}
    final = interleave(runners, FINAL_ROUNDS) if len(finalists) > 1 else {}
    # The screening's rate is dropped for the finalists: it was the reason to choose them, so it is biased upwards.
    again = [_trial(trial.settings, final[str(trial.settings)]) for trial in finalists if final]
    again = sorted((trial for trial in again if trial.rates), key=_rate, reverse=True) or finalists
    rest = [trial for trial in trials if trial.settings not in [t.settings for t in again]]
    best = again[0].settings if again else None
    return Tuned(peer, best, len(points), [*again, *rest], time.monotonic() - started)


def _trial(settings: Settings, outcomes: "list[Outcome]") -> Trial:
    good = [outcome for outcome in outcomes if not outcome.error]
    errors = [outcome.error for outcome in outcomes if outcome.error]
    return Trial(settings, [o.rate for o in good], [o.foreign_cores for o in good], errors[0] if errors else None)


def _rate(trial: Trial) -> float:
    return statistics.median(trial.rates) if trial.rates else 0.0


def _from_json(value: dict) -> Tuned:
    trials = [Trial(**{**trial, "settings": Settings(**trial["settings"])}) for trial in value["trials"]]
    settings = Settings(**value["settings"]) if value["settings"] else None
    return Tuned(value["peer"], settings, value["num_points"], trials, 0.0)
