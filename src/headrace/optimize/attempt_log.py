"""The attempts of one search, written to the ledger as they are decided: an interrupted search goes on from there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from headrace.ledger.attempts import Attempts
from headrace.optimize.goal import Goal
from headrace.optimize.search_words import name_attempt
from headrace.optimize.techniques import Obstacle, Technique
from headrace.runs.formats.events import Event
from headrace.runs.formats.optimization import Attempt, RunOff, Skipped
from headrace.runs.formats.variants import VariantSide


@dataclass(slots=True)
class AttemptLog:
    """What was tried and what was not.

    Args:
        model: sha256 of the model as given.
        goal: Its price goes into attempts; with `again` nothing is recalled.
        memory: Where it is written; None: nowhere.
        hardware: Fingerprint of this machine.
        say: Told each outcome, one line at a time.
    """

    model: str
    goal: Goal
    memory: Attempts | None = None
    hardware: str = ""
    say: Callable[[str], object] = lambda text: None
    attempts: list[Attempt] = field(default_factory=list)
    """One for each variant."""
    skipped: list[Skipped] = field(default_factory=list)
    in_use: Attempt | None = None
    """The judgement of what the Plan uses, where that is not the model as given."""
    baseline: VariantSide | None = None
    """What is in use, as it was measured beside the candidates."""

    def recall(self, key: str) -> Attempt | None:
        """Return what the ledger knows of an attempt."""
        return self.memory.recall(key) if self.memory and not self.goal.again else None

    def write(self, attempt: Attempt, *, is_kept: bool = True) -> Attempt:
        """Return an attempt with what it cost; where it is kept, written to the ledger and with its id."""
        price = self.goal.price_per_hour
        if price is not None:
            attempt = msgspec.structs.replace(attempt, money=attempt.seconds * price / 3600)
        return self.memory.write_attempt(attempt) if is_kept and self.memory else attempt

    def add(self, attempt: Attempt) -> None:
        """Keep an attempt, in the place of one of the same variant: two techniques may make the very same file."""
        others = [other for other in self.attempts if other.candidate != attempt.candidate]
        self.attempts[:] = [*others, attempt]

    def decide(self, attempt: Attempt, *, write: bool) -> Attempt:
        """Keep an attempt and say its outcome; write it to the ledger if it is final."""
        attempt = self.write(attempt, is_kept=write)
        self.say(f"{name_attempt(attempt)}: {attempt.verdict}: {attempt.says}")
        self.add(attempt)
        return attempt

    def keep_baseline(self, side: VariantSide) -> None:
        """Keep the first measurement of what is in use, but prefer one whose memory is known."""
        if self.baseline is None or (self.baseline.memory_bytes is None and side.memory_bytes is not None):
            self.baseline = side

    def list_accepted(self) -> list[Attempt]:
        """Return the accepted attempts that were timed."""
        return [attempt for attempt in self.attempts if attempt.verdict == "accept" and attempt.speedup]

    def skip(self, technique: Technique, obstacle: Obstacle) -> None:
        """Note and say that a technique is not tried."""
        self.skipped.append(Skipped(technique=technique.name, why=obstacle.why))
        self.say(f"{technique.name}: not tried: {obstacle.why}")
        self.note_untried([technique], obstacle)

    def note_untried(self, techniques: Iterable[Technique], obstacle: Obstacle) -> None:
        """Write to the ledger that techniques were not tried, why, and what would change that; what is usual is not said."""
        if self.memory is None:
            return
        until = obstacle.until or "what it says is missing; every search looks anew"
        for technique in techniques:
            self.memory.write_event(
                Event(
                    kind="skip", model=self.model, technique=technique.name, says=obstacle.why, would_change=until,
                    hardware=self.hardware,
                )
            )  # fmt: skip

    def write_head_to_head(self, found: RunOff) -> None:
        """Say how two variants compare directly, and write it to the ledger."""
        self.say(found.says)
        if self.memory is None:
            return
        chosen = next((attempt for attempt in self.attempts if attempt.candidate == found.chosen), None)
        self.memory.write_event(
            Event(
                kind="run-off", attempt=chosen.id if chosen else "", model=self.model,
                technique=chosen.technique if chosen else "", says=found.says, hardware=self.hardware, speedup=found.ratio,
            )
        )  # fmt: skip
