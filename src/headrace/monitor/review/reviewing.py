"""A review: the rounds of a folder, what was said of their items, and what follows from it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from headrace.base.documents import decode_document, encode_document
from headrace.base.errors import RunFolderError, SettingsError
from headrace.base.formatting import pluralize
from headrace.base.in_flight import read_regular
from headrace.monitor.review.estimate import Stratum, estimate_errors
from headrace.monitor.review.rounds import make_round
from headrace.monitor.review.store import MOST_DOCUMENT, read_samples, replace_private
from headrace.monitor.review.verdicts import append_verdicts, read_verdicts
from headrace.runs.formats.review import (
    Drawn,
    GroupEstimate,
    ReviewEstimate,
    ReviewRound,
    ReviewSample,
    SampledAnswer,
    VerdictLine,
)

CONFIDENCE = 0.95
_ROUNDS = "rounds"


class Review:
    """A folder, as a reviewer sees it. Thread-safe.

    Args:
        folder: Which a run had as `--review`.
        number: Of the round; None: the last one, and a first one where there is none.
        is_new: Begin a round over all that is kept now.
        clock: Returns Unix seconds.

    Attributes:
        round: That is reviewed.
        problems: What could not be read, in words.

    Raises:
        RunFolderError: If there is no such folder or round, it cannot be read, or nothing is kept in it.
    """

    def __init__(
        self,
        folder: Path,
        number: int | None = None,
        *,
        is_new: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not folder.is_dir():
            raise RunFolderError(
                f"there is no review folder {folder}; expected the one of a run: start that with --review {folder}"
            )
        self.folder = folder
        self._clock = clock
        self._lock = threading.RLock()
        self._undo: list[list[VerdictLine]] = []
        samples, self.problems = read_samples(folder)
        self._items = {f"{sample.id}/{item.key}": item for sample in samples for item in sample.items}
        self.is_blurred = any(sample.blur for sample in samples)
        self._names = _list_names(samples)
        self.round = self._make_round(samples) if is_new else self._find_round(samples, number)
        self._verdicts, damaged = read_verdicts(folder)
        self.problems += damaged

    # --- rounds

    def _find_round(self, samples: Sequence[ReviewSample], number: int | None) -> ReviewRound:
        known = self.list_rounds()
        if number is None:
            return self._read_round(known[-1]) if known else self._make_round(samples)
        if number not in known:
            raise RunFolderError(f"{self.folder} has no round {number}; it has {', '.join(map(str, known)) or 'none'}")
        return self._read_round(number)

    def list_rounds(self) -> list[int]:
        """Return the numbers of the rounds, in order."""
        folder = self.folder / _ROUNDS
        return sorted(int(path.stem) for path in folder.glob("*.json") if path.stem.isdecimal())

    def _read_round(self, number: int) -> ReviewRound:
        path = self.folder / _ROUNDS / f"{number:03}.json"
        try:
            found = decode_document(read_regular(path, MOST_DOCUMENT), ReviewRound)
            if any(not 0 <= one.cell < len(found.cells) for one in found.draws):
                raise msgspec.DecodeError("a draw names a cell that there is not")
        except (OSError, msgspec.DecodeError) as error:
            raise RunFolderError(
                f"{path} is no round of a review ({error!s:.200}); begin another with --new-round"
            ) from None
        return found

    def _make_round(self, samples: Sequence[ReviewSample]) -> ReviewRound:
        number = (self.list_rounds() or [0])[-1] + 1
        made = make_round(samples, number, self._clock())
        if made is None:
            raise RunFolderError(
                f"nothing is kept in {self.folder} yet{': ' + self.problems[0] if self.problems else ''}; expected a run with "
                f"--review {self.folder} that has delivered something (it writes every ten seconds, and at its end)"
            )
        try:
            (self.folder / _ROUNDS).mkdir(exist_ok=True, mode=0o700)
            replace_private(self.folder / _ROUNDS / f"{number:03}.json", encode_document(made))
        except OSError as error:
            raise RunFolderError(f"{self.folder / _ROUNDS} cannot be written: {error.strerror}") from None
        return made

    # --- items and verdicts

    def find_item(self, item: str) -> SampledAnswer | None:
        """Return an item of the round; None if it is not kept any more."""
        return self._items.get(item)

    def probability_of(self, drawn: Drawn) -> float:
        """Return the probability with which an answer of its kind (class, arm, hour, reason) was kept."""
        cell = self.round.cells[drawn.cell]
        return cell.num_kept / max(1, cell.num_answers)

    def verdict_of(self, item: str) -> VerdictLine | None:
        """Return what was said of an item; None: nothing."""
        return self._verdicts.get(item)

    def list_open(self, limit: int) -> list[str]:
        """Return the next items to review, in the order of the draws, and after them those that were skipped."""
        with self._lock:
            kept = [one.item for one in self.round.draws if one.item in self._items]
            fresh = [item for item in kept if item not in self._verdicts]
            skipped = [item for item in kept if item in self._verdicts and self._verdicts[item].verdict == "skip"]
        return [*fresh, *skipped][:limit]

    def count_reviewed(self) -> int:
        """Return of how many items of the round something was said, skipped ones left out."""
        with self._lock:
            said = [self._verdicts.get(one.item) for one in self.round.draws]
        return sum(one is not None and one.verdict != "skip" for one in said)

    def record(self, said: Sequence[VerdictLine]) -> None:
        """Write down what was said of items, all at once.

        Raises:
            SettingsError: If an item is none of the round.
            RunFolderError: If it cannot be written.
        """
        known = {one.item for one in self.round.draws}
        unknown = [one.item for one in said if one.item not in known]
        if unknown:
            raise SettingsError(f"{unknown[0]!r} is no item of round {self.round.number} of {self.folder}")
        stamped = [msgspec.structs.replace(one, unix_seconds=one.unix_seconds or self._clock()) for one in said]
        with self._lock:
            before = [self._verdicts.get(one.item) or VerdictLine(item=one.item, verdict="none") for one in stamped]
            append_verdicts(self.folder, stamped)
            self._undo.append(before)
            self._apply(stamped)

    def undo(self) -> list[str]:
        """Take back what was last recorded, and return its items; none if nothing was."""
        with self._lock:
            if not self._undo:
                return []
            before = self._undo[-1]
            append_verdicts(self.folder, before)
            self._undo.pop()
            self._apply(before)
        return [one.item for one in before]

    def _apply(self, said: Sequence[VerdictLine]) -> None:
        for one in said:
            self._verdicts[one.item] = one
            if one.verdict == "none":
                del self._verdicts[one.item]

    def list_names(self) -> list[str]:
        """Return the classes that are known: of the models' files, of answers, and of labels."""
        with self._lock:
            labels = [one.label for one in self._verdicts.values() if one.label]
        return list(dict.fromkeys([*self._names, *sorted(labels)]))

    # --- what follows

    def estimate(self) -> ReviewEstimate:
        """Return the accuracy as far as it is known."""
        with self._lock:
            drawn = [(one.cell, self._judge(one.item)) for one in self.round.draws]
        num = next((index for index, (_, said) in enumerate(drawn) if said == "open"), len(drawn))
        counted = drawn[:num]
        cells = self.round.cells
        overall = self._estimate_group("", range(len(cells)), counted)
        waiting = sum(said != "open" for _, said in drawn[num:])
        return ReviewEstimate(
            round=self.round.number,
            first_unix_seconds=self.round.first_unix_seconds,
            last_unix_seconds=self.round.last_unix_seconds,
            confidence=CONFIDENCE,
            overall=overall,
            by_class=self._estimate_by([one.name for one in cells], counted),
            by_arm=self._estimate_by([one.arm for one in cells], counted) if any(one.arm for one in cells) else (),
            num_to_review=len(drawn) - num - waiting,
            num_waiting=waiting,
            num_missed=self.round.num_missed,
            num_uncovered=self.round.num_uncovered,
            says=_put_in_words(overall),
        )

    def _judge(self, item: str) -> str:
        """Return `wrong`, `correct`, `unknown` or `open`."""
        said = self._verdicts.get(item)
        if said is None:
            return "open" if item in self._items else "unknown"
        return said.verdict if said.verdict in ("wrong", "correct") else "unknown"

    def _estimate_by(self, keys: Sequence[str], counted: Sequence[tuple[int, str]]) -> tuple[GroupEstimate, ...]:
        groups: dict[str, list[int]] = {}
        for index, key in enumerate(keys):
            groups.setdefault(key, []).append(index)
        found = [self._estimate_group(name, cells, counted) for name, cells in groups.items()]
        return tuple(sorted(found, key=lambda one: -one.num_answers))

    def _estimate_group(self, name: str, cells: Collection[int], counted: Sequence[tuple[int, str]]) -> GroupEstimate:
        places = {cell: place for place, cell in enumerate(cells)}
        own = [(places[cell], said) for cell, said in counted if cell in places]
        strata = [Stratum(self.round.cells[cell].num_answers, self.round.cells[cell].preference) for cell in cells]
        wrong = [None if said == "unknown" else said == "wrong" for _, said in own]
        found = estimate_errors(strata, [place for place, _ in own], wrong, confidence=CONFIDENCE)
        return GroupEstimate(
            name=name,
            num_answers=sum(one.num_answers for one in strata),
            num_reviewed=len(own),
            num_wrong=sum(one is True for one in wrong),
            num_unsure=sum(one is None for one in wrong),
            accuracy=None if found.rate is None else 1 - found.rate,
            low=1 - found.high,
            high=1 - found.low,
        )


def _list_names(samples: Sequence[ReviewSample]) -> list[str]:
    told: Mapping[str, None] = dict.fromkeys(
        name for sample in samples for names in sample.class_names.values() for name in names
    )
    seen = sorted({item.name for sample in samples for item in sample.items} - {""})
    return list(dict.fromkeys([*told, *seen]))


def _put_in_words(overall: GroupEstimate) -> str:
    if overall.accuracy is None:
        return f"nothing is known of {pluralize(overall.num_answers, 'answer')}: none was reviewed"
    unsure = f", {overall.num_unsure} of them without a verdict" if overall.num_unsure else ""
    return (
        f"{overall.accuracy:.1%} of {pluralize(overall.num_answers, 'answer')} are right, by "
        f"{overall.num_reviewed} reviewed ones{unsure}; with {CONFIDENCE:.0%} confidence {overall.low:.1%} to "
        f"{overall.high:.1%}, however often you look"
    )
