"""What came of one case: a line of a file, so that a run of hours can be interrupted and gone on with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.truth.grammar import Case
from headrace.runs.formats.diagnosis import DiagnosisDocument, Finding
from headrace.runs.formats.prediction import Change
from headrace.runs.formats.profile import Estimate

#: A cause whose removal gains less than this is not worth finding; one that surely gains more than `SURE` is there.
WORTH_FINDING, SURE = 1.10, 1.03
#: A healthy pipeline does at least so much more when more jobs come; a cure that surely gains less and seems to gain nothing
#: counts as one that gains nothing.
HAS_ROOM = 1.2
#: Cores that others use at our expense from which on they are a fault of their own.
DISTURBING_CORES = 0.25
#: A gain whose interval spans less than this is known so closely that a prediction's error is mostly the prediction's.
KNOWN_WELL = 1.5


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """One finding of a diagnosis, in short."""

    verdict: str
    stage: str | None
    cause: str
    confidence: str
    gain: float | None
    says: str
    evidence: tuple[str, ...]
    """Each fact with `+` for, `-` against, `?` not measured."""


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What a diagnosis says, frozen before the truth is measured."""

    first: Named | None
    runner_up: Named | None = None
    next_bottleneck: Named | None = None
    problem: str = ""
    """Why there is none."""

    @property
    def two(self) -> tuple[Named, ...]:
        """The first two."""
        return tuple(one for one in (self.first, self.runner_up) if one is not None)

    @property
    def three(self) -> tuple[Named, ...]:
        """These, and what limits next."""
        return self.two + ((self.next_bottleneck,) if self.next_bottleneck is not None else ())


class Frozen(msgspec.Struct, frozen=True, kw_only=True):
    """One prediction, frozen before the change is made."""

    kind: str
    says: str
    change: Change
    predicted: Estimate | None
    """Ratio of throughputs; None: refused."""
    refused: str = ""
    warnings: tuple[str, ...] = ()


class Experimented(msgspec.Struct, frozen=True, kw_only=True):
    """What is said and predicted once the profile has made experiments of its own, as frozen before the truth was measured."""

    said: Said
    predictions: tuple[Frozen, ...]
    seconds: float
    """That the experiments took."""
    problem: str = ""
    """Why there are none; then the rest is what the recording tells."""


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """A gain as measured: throughput after over throughput before, in interleaved blocks."""

    ratio: float
    low: float
    high: float
    """95 % interval, whenever the rounds ended: see `rounds`."""
    pairs: int

    @property
    def is_gain(self) -> bool | None:
        """Whether it was worth finding; None: not clear."""
        if self.ratio >= WORTH_FINDING and self.low >= SURE:
            return True
        is_none = self.high < WORTH_FINDING or (self.ratio < SURE and self.high < HAS_ROOM)
        return False if is_none else None

    @property
    def is_known_well(self) -> bool:
        """Whether it was measured so closely that a prediction can be held against it."""
        return self.high <= KNOWN_WELL * self.low


class Pilot(msgspec.Struct, frozen=True, kw_only=True):
    """One short trial of a case before anything is recorded: whether what is wrong with it makes a difference."""

    doses: tuple[float, ...]
    """Of its faults; of a healthy case, the jobs that come per second."""
    gains: tuple[float | None, ...]
    """Throughput without each fault over the one with all; of a healthy case, with more jobs. None: too few results."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One case."""

    case: Case
    """As it ran: drawn then (the grammar may draw another one from the same seed today), with the doses of the last pilot."""
    pilots: tuple[Pilot, ...] = ()
    """In order: the first with the doses as drawn, the last with those of `case`."""
    throughput: float | None = None
    """Of the profile, jobs per second."""
    said: Said = Said(first=None)
    predictions: tuple[Frozen, ...] = ()
    experimented: Experimented | None = None
    """None: no experiment was made."""
    truths: dict[str, Truth] = {}
    """{what was done: gain}: `cure 0`, `cure 1`, `arrivals` (healthy cases: more jobs come), `halved STAGE`, `change 0`, ... in
    the order of `predictions`; of older rows also `cure all`."""
    rates: dict[str, float] = {}
    """{the same, and `as it is`: median jobs per second}."""
    rivals: float = 0.0
    """Cores that other programs of our priority or above used during the profile."""
    foreign: float = 0.0
    """Cores that any other programs used."""
    seconds: float = 0.0
    phases: dict[str, float] = {}
    """{part of the case: its seconds}."""
    rounds: int = 0
    """Of interleaved blocks, until all that was asked was clear."""
    problem: str = ""
    """Why it could not be measured."""
    headrace: str = ""
    """Commit."""

    @property
    def seed(self) -> int:
        """Of the case."""
        return self.case.seed

    @property
    def faults(self) -> tuple[str, ...]:
        """In words, in the order of the case."""
        return tuple(map(str, self.case.planted))

    @property
    def is_disturbed(self) -> bool:
        """Whether others took so much that there was another thing wrong."""
        return self.rivals >= DISTURBING_CORES


def named(finding: Finding | None) -> Named | None:
    """Return a finding in short."""
    if finding is None:
        return None
    marks = {True: "+", False: "-", None: "?"}
    return Named(
        verdict=finding.verdict.value,
        stage=finding.stage,
        cause=finding.cause,
        confidence=finding.confidence,
        gain=finding.gain,
        says=finding.says,
        evidence=tuple(f"{marks[line.supports]} {line.name}: {line.says}" for line in finding.evidence),
    )


def said(document: DiagnosisDocument) -> Said:
    """Return what a diagnosis says, in short."""
    return Said(
        first=named(document.first),
        runner_up=named(document.runner_up),
        next_bottleneck=named(document.next_bottleneck),
    )


def read_rows(path: Path) -> list[Row]:
    """Return the lines of a file; a last one that was cut off is left out. No file: none."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [msgspec.json.decode(line, type=Row) for line in lines if line.endswith(b"\n")]


def append(path: Path, lines: Sequence[msgspec.Struct]) -> None:
    """Add lines to a file, and have them on the disk before anything else is done."""
    with path.open("ab") as file:
        file.writelines(msgspec.json.encode(line) + b"\n" for line in lines)
        file.flush()
