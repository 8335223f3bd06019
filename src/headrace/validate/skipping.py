"""What it costs to look at fewer frames: accuracy, delays and events on labelled clips, for several ways to skip and smooth.

How this works: one run answered every frame. What a model says of a frame does not depend on the frames that were left out, so
each way is tried on these answers: of each stream every n-th is kept, smoothed by time where that is asked for, and holds until
the next one. Frames next to one another are nearly the same picture, so the interval of a drop is drawn from stretches of ten
seconds, which are taken to be independent.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headrace import __version__
from headrace.base.documents import decode_document
from headrace.base.errors import ItemRejected, SettingsError
from headrace.base.formatting import pluralize
from headrace.base.given_files import read_given_file
from headrace.base.settings import check
from headrace.runs.formats.outcomes import Decided
from headrace.runs.formats.skipping import FrameEvents, SkippingDocument, SkippingResult
from headrace.stages.temporal import Smooth
from headrace.validate.set_noninferiority import judge_set

_MOST_BYTES = 2**31
#: Names that a warning shows.
_MOST_SHOWN = 5
_STRETCH_SECONDS = 10.0
#: Of the frames between the first and the last of a clip: some may have been rejected.
_LEAST_SHARE = 0.9
#: Of all ways together: that one is accepted whose drop is larger.
_ALPHA = 0.05
_COLUMNS = ("stream", "from", "to", "label")


@dataclass(frozen=True, slots=True)
class Stretch:
    """For how long a label holds."""

    begin: float
    end: float
    label: str


@dataclass(frozen=True, slots=True)
class Clip:
    """The answers to all frames of one stream, in time."""

    stream: str
    seconds: np.ndarray
    answers: tuple[Any, ...]
    truth: tuple[Stretch, ...]
    labels: tuple[str | None, ...]
    """Of each frame; None: it has none."""
    names: Mapping[int, Any]
    """{place of the largest score: label}, as the answers pair them."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to look at clips."""

    every: int = 1
    smooth_seconds: float | None = None

    @property
    def name(self) -> str:
        """In words."""
        smoothed = "" if self.smooth_seconds is None else f", smoothed by {self.smooth_seconds:g} s"
        return f"{'every frame' if self.every == 1 else f'every {self.every} frames'}{smoothed}"


def compare_ways(
    results: str,
    labels: str,
    ways: Sequence[Way],
    *,
    max_drop: float,
    event: str | None = None,
) -> SkippingDocument:
    """Return what each way costs against every frame with answers as they are.

    Args:
        results: JSON Lines of a run over clips with `every=1`.
        labels: CSV with the columns stream, from, to (seconds) and label.
        ways: To be tried.
        max_drop: Largest acceptable drop of the share of labelled frames that are right.
        event: A label whose stretches are counted as events.

    Raises:
        SettingsError: If a file cannot be understood, or they do not belong together.
    """
    check(0 < max_drop < 1, "max_drop", max_drop, "a share between 0 and 1")
    ways = [way for way in dict.fromkeys(ways) if way != Way()]
    check(bool(ways), "--every", [], "at least one way to look at fewer frames or to smooth, such as 3")
    text = _read(labels, "--labels")
    truth = _read_labels(text, labels)
    clips = _read_clips(results, truth)
    num_labelled = sum(label is not None for clip in clips for label in clip.labels)
    if not num_labelled:
        raise SettingsError(f"no frame of {results} has a label in {labels}: compare its streams and seconds")
    if event is not None and not any(stretch.label == event for clip in clips for stretch in clip.truth):
        raise SettingsError(f"--event {event}: {labels} has no such label")
    groups = _Groups(clips)
    reference_told = _tell(clips, Way())
    _refuse_strangers(clips, reference_told, results, labels)
    reference = _score(clips, reference_told, Way(), event)
    tried = tuple(_judged(clips, groups, reference_told, way, event, max_drop, _ALPHA / len(ways)) for way in ways)
    passed = [place for place, one in enumerate(tried) if one.outcome == "passed"]
    best = min(passed, key=lambda place: (tried[place].work, -tried[place].right), default=None)
    return SkippingDocument(
        headrace_version=__version__,
        results=results,
        labels=labels,
        labels_sha256=hashlib.sha256(text).hexdigest(),
        streams=len(clips),
        frames=sum(len(clip.labels) for clip in clips),
        labelled_frames=num_labelled,
        stretches=groups.num,
        max_drop=max_drop,
        alpha=_ALPHA / len(ways),
        reference=reference,
        tried=tried,
        best=best,
        says=_say(ways, tried, best, max_drop),
        warnings=_warn_of_unknown(truth, clips, results, labels),
    )


# --- reading


def _read(path: str, option: str) -> bytes:
    try:
        return read_given_file(Path(path), _MOST_BYTES)
    except OSError as error:
        raise SettingsError(f"{option} {path} cannot be read: {error}") from None


def _read_labels(text: bytes, path: str) -> dict[str, tuple[Stretch, ...]]:
    """Return {stream: its stretches in time}."""
    try:
        rows = list(csv.DictReader(io.StringIO(text.decode("utf-8-sig"))))
    except (UnicodeDecodeError, csv.Error) as error:
        raise SettingsError(f"--labels {path} is no CSV: {error}") from None
    missing = [name for name in _COLUMNS if not rows or name not in rows[0]]
    if missing:
        raise SettingsError(
            f"--labels {path} has no column {', '.join(missing)}; expected {','.join(_COLUMNS)} and rows"
        )
    found: dict[str, list[Stretch]] = {}
    for number, row in enumerate(rows, 2):
        try:
            begin, end, label = float(row["from"]), float(row["to"]), row["label"].strip()
        except (TypeError, ValueError, AttributeError):
            raise SettingsError(
                f"--labels {path}, line {number}: expected {','.join(_COLUMNS)}, times in seconds"
            ) from None
        if not (0 <= begin < end < float("inf") and label):
            raise SettingsError(f"--labels {path}, line {number}: expected from < to, and a label")
        found.setdefault(row["stream"], []).append(Stretch(begin, end, label))
    for stream, stretches in found.items():
        stretches.sort(key=lambda one: one.begin)
        for one, later in itertools.pairwise(stretches):
            if later.begin < one.end:
                raise SettingsError(f"--labels {path}: {stream} has two labels at {later.begin:g} s")
    return {stream: tuple(stretches) for stream, stretches in found.items()}


def _read_clips(path: str, truth: Mapping[str, tuple[Stretch, ...]]) -> list[Clip]:
    """Return the clips of a file of results that have labels."""
    frames: dict[str, dict[int, tuple[float, Any]]] = {}
    seen = ""
    for number, line in enumerate(_read(path, "--frames").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row: Any = decode_document(line, object)
            attributes = row["attributes"]
            stream, frame, seconds = attributes["stream"], attributes["frame"], attributes["seconds"]
            answer = row["result"]
        except (ValueError, KeyError, TypeError):
            raise SettingsError(
                f"--frames {path}, line {number}: expected a result of a run over hr.video, with the attributes stream, frame "
                "and seconds"
            ) from None
        is_placed = isinstance(stream, str) and isinstance(frame, int) and isinstance(seconds, int | float)
        if not is_placed:
            raise SettingsError(f"--frames {path}, line {number}: the frame has no time or number: {attributes!r}")
        seen = seen or stream
        if stream in truth:
            known = frames.setdefault(stream, {}).setdefault(frame, (float(seconds), answer))
            if known[1] != answer:
                raise SettingsError(
                    f"--frames {path}, line {number}: frame {frame} of {stream} has another answer above: the file holds two "
                    "runs, as results are appended; run again into a new file"
                )
    if seen and truth and not frames:
        raise SettingsError(
            f"no frame of {path} has a label: a stream is called {seen!r} there, and {next(iter(truth))!r} in --labels"
        )
    names = _pair_names(answer for clip in frames.values() for _, answer in clip.values())
    return [_make_clip(path, stream, frames[stream], truth[stream], names) for stream in sorted(frames)]


def _warn_of_unknown(truth: Iterable[str], clips: Sequence[Clip], results: str, labels: str) -> tuple[str, ...]:
    """Return which labelled streams judged nothing: a name that is wrong in one of the files would be missed by nobody."""
    unknown = sorted(set(truth) - {clip.stream for clip in clips})
    if not unknown:
        return ()
    shown = ", ".join(map(repr, unknown[:_MOST_SHOWN])) + (", ..." if len(unknown) > _MOST_SHOWN else "")
    num = pluralize(len(unknown), "stream")
    says = f"{labels} has labels of {num} of which {results} has no frame ({shown}): they judge nothing"
    return (f"{says}; where a name is wrong, correct it",)


def _refuse_strangers(clips: Sequence[Clip], told: Sequence[Sequence[str]], results: str, labels: str) -> None:
    """Raise SettingsError where no answer is any of the labels: every way would be wrong, and none worse than another."""
    known = {label for clip in clips for label in clip.labels if label is not None}
    answers = {answer for one in told for answer in one}
    if known.isdisjoint(answers):
        said, true = (", ".join(map(repr, sorted(names)[:_MOST_SHOWN])) for names in (answers, known))
        raise SettingsError(
            f"no answer in {results} is a label of {labels}: answers are {said}, and labels {true}; call both by the same names"
        )


def _pair_names(answers: Iterable[Any]) -> dict[int, Any]:
    """Return {place of the largest score: label that answers have beside it}."""
    names: dict[int, Any] = {}
    for answer in answers:
        scores = answer.get("scores") if isinstance(answer, Mapping) else None
        if isinstance(scores, list) and scores and all(isinstance(score, int | float) for score in scores):
            names.setdefault(max(range(len(scores)), key=scores.__getitem__), answer.get("label"))
    return {place: label for place, label in names.items() if isinstance(label, str | int)}


def _make_clip(
    path: str,
    stream: str,
    frames: Mapping[int, tuple[float, Any]],
    truth: tuple[Stretch, ...],
    names: Mapping[int, Any],
) -> Clip:
    numbers = sorted(frames)
    expected = numbers[-1] - numbers[0] + 1
    if len(numbers) < _LEAST_SHARE * expected:
        raise SettingsError(
            f"--frames {path}: of {stream} {len(numbers):,} of {expected:,} frames have results; run it over every frame, "
            "without every, fps, keyframes or motion"
        )
    seconds = np.array([frames[number][0] for number in numbers])
    if (np.diff(seconds) < 0).any():
        raise SettingsError(f"--frames {path}: the times of {stream} run backwards")
    labels = tuple(_label_at(truth, at) for at in seconds)
    return Clip(stream, seconds, tuple(frames[number][1] for number in numbers), truth, labels, names)


def _frames_of(clip: Clip, stretch: Stretch) -> list[int]:
    """Return the places of the frames within a stretch."""
    begin, end = np.searchsorted(clip.seconds, [stretch.begin, stretch.end])
    return list(range(int(begin), int(end)))


def _label_at(truth: Iterable[Stretch], at: float) -> str | None:
    return next((one.label for one in truth if one.begin <= at < one.end), None)


# --- looking


def _tell(clips: Sequence[Clip], way: Way) -> list[list[str]]:
    """Return for each clip the answer that holds at each of its frames."""
    return [_tell_clip(clip, way) for clip in clips]


def _tell_clip(clip: Clip, way: Way) -> list[str]:
    smooth = None if way.smooth_seconds is None else Smooth(way.smooth_seconds)
    told, last = [], ""
    for number, (seconds, answer) in enumerate(zip(clip.seconds, clip.answers, strict=True)):
        if number % way.every == 0:
            last = _answer(clip, number, answer if smooth is None else _smoothed(clip, smooth, answer, float(seconds)))
        told.append(last)
    return told


def _smoothed(clip: Clip, smooth: Smooth, answer: Any, seconds: float) -> Any:
    try:
        smoothed = smooth(answer, seconds)
    except ItemRejected as error:
        raise SettingsError(f"--smooth: {clip.stream} at {seconds:g} s: {error}") from None
    return clip.names.get(smoothed["label"], smoothed["label"])


def _answer(clip: Clip, number: int, answer: Any) -> str:
    """Return the label of a result: itself, or what stands under `label`."""
    label = answer.get("label") if isinstance(answer, Mapping) else answer
    if isinstance(label, bool) or not isinstance(label, str | int):
        raise SettingsError(
            f"the result of {clip.stream}, frame {number}, is no label, and has none under 'label': {answer!r:.100}"
        )
    return str(label)


# --- scoring


def _score(clips: Sequence[Clip], told: Sequence[Sequence[str]], way: Way, event: str | None) -> SkippingResult:
    right = total = flips = 0
    minutes = 0.0
    delays: list[float | None] = []
    for clip, answers in zip(clips, told, strict=True):
        known = [(label, answer) for label, answer in zip(clip.labels, answers, strict=True) if label is not None]
        total += len(known)
        right += sum(label == answer for label, answer in known)
        flips += _count_changes(answer for _, answer in known) - _count_changes(label for label, _ in known)
        minutes += float(clip.seconds[-1] - clip.seconds[0]) / 60
        delays += _delays(clip, answers)
    found = sorted(delay for delay in delays if delay is not None)
    num_frames = sum(len(clip.labels) for clip in clips)
    return SkippingResult(
        every=way.every,
        smooth_seconds=way.smooth_seconds,
        work=sum(-(-len(clip.labels) // way.every) for clip in clips) / num_frames,
        right=right / total,
        flips_per_minute=max(0, flips) / minutes if minutes else 0.0,
        changes=len(delays),
        never_told=len(delays) - len(found),
        delay_seconds=statistics.median(found) if found else None,
        delay_p90_seconds=found[min(len(found) - 1, int(0.9 * len(found)))] if found else None,
        events=None if event is None else _count_events(clips, told, event),
    )


def _count_changes(labels: Iterable[str]) -> int:
    return sum(one != later for one, later in itertools.pairwise(labels))


def _delays(clip: Clip, told: Sequence[str]) -> list[float | None]:
    """Return for each stretch that has frames how long it took until its label was told; None: it was not."""
    found: list[float | None] = []
    for stretch in clip.truth:
        inside = _frames_of(clip, stretch)
        if inside:
            first = next((place for place in inside if told[place] == stretch.label), None)
            found.append(None if first is None else float(clip.seconds[first] - clip.seconds[inside[0]]))
    return found


def _count_events(clips: Sequence[Clip], told: Sequence[Sequence[str]], event: str) -> FrameEvents:
    total = found = false = 0
    for clip, answers in zip(clips, told, strict=True):
        is_event = [answer == event for answer in answers]
        for stretch in clip.truth:
            inside = _frames_of(clip, stretch)
            if stretch.label == event and inside:
                total += 1
                found += any(is_event[place] for place in inside)
        for is_on, run in itertools.groupby(range(len(answers)), key=is_event.__getitem__):
            places = list(run)
            labels = {clip.labels[place] for place in places}
            false += is_on and event not in labels and labels != {None}
    return FrameEvents(label=event, total=total, found=found, false=false)


class _Groups:
    """Stretches of ten seconds, each with its labelled frames."""

    def __init__(self, clips: Sequence[Clip]) -> None:
        self._of_frame: list[np.ndarray] = []
        self.num = 0
        for clip in clips:
            _, place = np.unique((clip.seconds // _STRETCH_SECONDS).astype(int), return_inverse=True)
            self._of_frame.append(self.num + place)
            self.num += int(place.max()) + 1

    def count(self, clips: Sequence[Clip], told: Sequence[Sequence[str]]) -> tuple[np.ndarray, np.ndarray]:
        """Return of each stretch how many frames have a label, and how many are right."""
        known, right = np.zeros(self.num), np.zeros(self.num)
        for clip, answers, places in zip(clips, told, self._of_frame, strict=True):
            has_label = np.array([label is not None for label in clip.labels])
            is_right = np.array([label == answer for label, answer in zip(clip.labels, answers, strict=True)])
            np.add.at(known, places, has_label)
            np.add.at(right, places, has_label & is_right)
        return known, right


def _judged(
    clips: Sequence[Clip],
    groups: _Groups,
    reference: Sequence[Sequence[str]],
    way: Way,
    event: str | None,
    max_drop: float,
    alpha: float,
) -> SkippingResult:
    told = _tell(clips, way)
    known, before = groups.count(clips, reference)
    _, after = groups.count(clips, told)

    def value(places: np.ndarray) -> tuple[float, float]:
        total = known[places].sum()
        return (float(before[places].sum() / total), float(after[places].sum() / total)) if total else (np.nan, np.nan)

    found = judge_set(value, len(known), None, max_drop, alpha)
    return msgspec.structs.replace(
        _score(clips, told, way, event),
        drop=found.drop,
        drop_low=found.low,
        drop_high=found.high,
        outcome=found.outcome,
        why=found.why,
    )


def verdict_of(document: SkippingDocument) -> Decided:
    """Return `passed` where one way is acceptable, `rejected` where none can be, else `inconclusive`."""
    if document.best is not None:
        return "passed"
    return "rejected" if all(one.outcome == "rejected" for one in document.tried) else "inconclusive"


def _say(ways: Sequence[Way], tried: Sequence[SkippingResult], best: int | None, max_drop: float) -> str:
    if best is not None:
        one = tried[best]
        return (
            f"{ways[best].name}: {one.work:.0%} of the work, and of the frames {one.right:.1%} right; the drop is at most "
            f"{100 * (one.drop_high or 0.0):.2f} points, of {100 * max_drop:g} that are acceptable"
        )
    if all(one.outcome == "rejected" for one in tried):
        return f"none: each loses more than {100 * max_drop:g} points"
    return f"not decided: {next(one.why for one in tried if one.outcome == 'inconclusive')}"


def parse_ways(every: str, smooth: str | None) -> list[Way]:
    """Return the ways that `--every 2,3` and `--smooth 0.25,0.5` name together: each number of frames, with and without.

    Raises:
        SettingsError: If one is no number.
    """
    try:
        numbers = [int(part) for part in every.split(",")]
        lives = [float(part.strip().removesuffix("s")) for part in smooth.split(",")] if smooth else []
    except ValueError:
        raise SettingsError(
            f"--every {every}{f' --smooth {smooth}' if smooth else ''}: expected numbers such as 2,3,5 and seconds such as 0.25"
        ) from None
    check(all(1 <= number <= 10_000 for number in numbers), "--every", every, "whole numbers from 1, such as 2,3,5")
    check(all(0 < life < 1e4 for life in lives), "--smooth", smooth, "seconds above 0, such as 0.25")
    return [Way(number, life) for life in (None, *lives) for number in sorted(set(numbers) | {1})]
