"""What is watched: each statistic, its family, and the words for a change of it.

A statistic is a mean over items, or a share of them. Those on a logarithmic scale (base 10) change by a factor. The weight of a
family is its part of the evidence that an alarm needs; many statistics in one family do not take from the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

#: {family: weight}. What is refused comes first: no statistic says sooner that something broke.
FAMILY_WEIGHTS = {"verdict": 0.45, "file": 0.1, "pixels": 0.25, "value": 0.1, "answer": 0.1, "own": 0.1}
#: Of strata that are judged alone, so that one bad camera of twenty is found.
STRATUM_WEIGHT = 0.15
#: Statistics whose names begin so are of the user's own function, of answers' classes, and of times.
OWN, CLASS, SECONDS = "own.", "class.", "seconds."
#: {share: what it is a share of}.
SHARES = {
    "refused": "items",
    "exif": "files",
    "turned": "files",
    "not_jpeg": "files",
    "grey": "files",
    "abstained": "answers",
}


@dataclass(frozen=True, slots=True)
class Statistic:
    """How one is told."""

    family: str
    up: str
    """What images are when it is larger: `brighter`."""
    down: str
    is_log: bool = False


_KNOWN: dict[str, Statistic] = {
    "refused": Statistic("verdict", "more files cannot be decoded", "fewer files cannot be decoded"),
    "exif": Statistic("file", "more files have EXIF", "fewer files have EXIF"),
    "turned": Statistic("file", "more files are turned by EXIF", "fewer files are turned by EXIF"),
    "not_jpeg": Statistic("file", "fewer files are JPEG", "more files are JPEG"),
    "grey": Statistic("file", "more files are grey", "fewer files are grey"),
    "pixels": Statistic("file", "images are larger", "images are smaller", is_log=True),
    "bytes": Statistic("file", "files are larger", "files are smaller", is_log=True),
    "bytes_per_pixel": Statistic("file", "files are less compressed", "files are more compressed", is_log=True),
    "aspect": Statistic("file", "images are wider", "images are taller", is_log=True),
    "brightness": Statistic("pixels", "images are brighter", "images are darker"),
    "dark_end": Statistic("pixels", "shadows are brighter", "shadows are darker"),
    "bright_end": Statistic("pixels", "highlights are brighter", "highlights are darker"),
    "contrast": Statistic("pixels", "contrast is higher", "contrast is lower"),
    "saturation": Statistic("pixels", "colours are stronger", "colours are paler"),
    "red_cast": Statistic("pixels", "images are redder", "images are less red"),
    "blue_cast": Statistic("pixels", "images are bluer", "images are less blue"),
    "entropy": Statistic("pixels", "images are busier", "images are plainer"),
    "sharpness": Statistic("pixels", "images are sharper", "images are more blurred", is_log=True),
    "noise": Statistic("pixels", "images are noisier", "images are smoother", is_log=True),
    "length": Statistic("value", "values are longer", "values are shorter", is_log=True),
    "mean": Statistic("value", "numbers are larger", "numbers are smaller"),
    "spread": Statistic("value", "numbers vary more", "numbers vary less"),
    "nan_share": Statistic("value", "more numbers are NaN", "fewer numbers are NaN"),
    "abstained": Statistic("answer", "more items get no answer", "fewer items get no answer"),
    "top_score": Statistic("answer", "the model is more certain", "the model is less certain"),
    "boxes": Statistic("answer", "more objects are found", "fewer objects are found"),
    "answer": Statistic("answer", "answers are larger", "answers are smaller"),
}


def statistic_of(name: str) -> Statistic | None:
    """Return what is known of a statistic; None if it is not judged, as CPU times are not."""
    if name.startswith(OWN):
        own = name.removeprefix(OWN)
        return Statistic("own", f"{own} is larger", f"{own} is smaller")
    if name.startswith(CLASS):
        answer = name.removeprefix(CLASS)
        return Statistic("answer", f"the answer {answer!r} is more frequent", f"the answer {answer!r} is rarer")
    return _KNOWN.get(name)


def share_of(name: str) -> str | None:
    """Return what a share is of; None for a count that is none."""
    return "answers" if name.startswith(CLASS) else SHARES.get(name)


def is_time(name: str) -> bool:
    """Return whether it is the CPU time of a stage: kept to explain latency, and not judged."""
    return name.startswith(SECONDS) and "*" not in name


def family_weights(names: Iterable[str]) -> dict[str, float]:
    """Return the weight of each of these statistics that is judged, 1 - `STRATUM_WEIGHT` together."""
    families = {name: known.family for name in names if (known := statistic_of(name)) is not None}
    sizes = Counter(families.values())
    total = sum(FAMILY_WEIGHTS[family] for family in sizes)
    return {
        name: (1 - STRATUM_WEIGHT) * FAMILY_WEIGHTS[family] / total / sizes[family] for name, family in families.items()
    }
