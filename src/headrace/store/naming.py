"""Gives items the names of members, once and for all: from the list of items alone, so that a resumed run gives the same."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from headrace.base.errors import SettingsError
from headrace.store.samples import IMAGE_PARTS, split_name

_SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_STRANGE = re.compile(r"[\x00-\x1f\x7f\\:*?\"<>|#%&]+")
_AGAIN = re.compile(r"#\d+$")
#: Ends the id of what a list names twice.
_TWICE = re.compile(r"(?<=\w)#\d+$")
#: Ends the id of an address that has more than it shows: see `sources.urls`.
_HIDDEN = re.compile(r"(?:\?\.\.\.)?(~[0-9a-f]{8})$")
#: Characters of one segment: file systems take 255 bytes.
_LONGEST_SEGMENT = 120
#: Characters of a name; a reader of tar refuses longer ones.
_LONGEST_PATH = 1_024


@dataclass(frozen=True, slots=True)
class Named:
    """An item and where it goes."""

    id: str
    name: str
    begins_sample: bool
    """Whether it is the first file of a sample, so that a shard may begin with it."""


def name_members(ids: Iterable[str]) -> list[Named]:
    """Return a name for each item, in order.

    Each image is a sample of its own, as it is a job of its own in a folder: dots in its stem become `_`, and a stem that comes
    again gets a number. Neighbours with the stem of an image join it, unless they are images: `0001.json` beside `0001.jpg`.
    """
    keys: set[str] = set()
    split = ((one, *_split(one)) for one in ids)
    groups = (list(group) for _, group in itertools.groupby(split, key=lambda found: found[1]))
    return [named for group in groups for named in _name_group(group, keys)]


def _name_group(group: Sequence[tuple[str, str, str]], keys: set[str]) -> Iterator[Named]:
    """Yield names for neighbours with one stem, given as (id, stem, part)."""
    key = ""
    taken: set[str] = set()
    for one, stem, part in group:
        is_second = part in taken or (part in IMAGE_PARTS and bool(taken & IMAGE_PARTS))
        begins = not key or is_second
        if begins:
            key, taken = _new_key(stem, keys), set()
        taken.add(part)
        yield Named(one, f"{key}.{part}", begins)


def keep_names(ids: Iterable[str]) -> list[Named]:
    """Return the names of items that come from shards: as they are there, but for a sample whose key was there before.

    An id that came again ends in `#2`, which is no part of the name.
    """
    named: list[Named] = []
    keys: set[str] = set()
    last, key, parts = None, "", set[str]()
    for one in ids:
        sample, part = split_name(_AGAIN.sub("", one))
        begins = sample != last or part in parts
        if begins:
            last, key, parts = sample, _free_key(sample, keys), set()
        parts.add(part)
        named.append(Named(one, f"{key}.{part}" if part else key, begins))
    return named


def rename_images(named: Sequence[Named], format: str | None) -> list[Named]:  # noqa: A002
    """Return names that say which format images get.

    Args:
        named: As they are called.
        format: Of all images, `jpeg` or `webp`; None: it stays.

    Raises:
        SettingsError: If a sample has several images, which would no longer fit one another where one of them is made smaller.
    """
    images = 0
    for one in named:
        images = (0 if one.begins_sample else images) + _is_image(one.name)
        if images > 1:
            raise SettingsError(
                f"the sample of {one.name} has several images: a photograph that is made smaller no longer fits its mask; "
                "pack them as they are, without --short-side, --encode and --quality"
            )
    suffix = {"jpeg": "jpg", "webp": "webp", None: ""}[format]
    return [replace(one, name=f"{one.name.rpartition('.')[0]}.{suffix}") if suffix and _is_image(one.name) else one
            for one in named]  # fmt: skip


def _is_image(name: str) -> bool:
    return name.rpartition(".")[2].lower() in IMAGE_PARTS


def _new_key(stem: str, keys: set[str]) -> str:
    folder, slash, last = stem.rpartition("/")
    return _free_key(folder + slash + last.replace(".", "_"), keys)


def _free_key(wanted: str, keys: set[str]) -> str:
    key, number = wanted, 1
    while key in keys:
        number += 1
        key = f"{wanted}~{number}"
    keys.add(key)
    return key


def _split(one: str) -> tuple[str, str]:
    """Return an item's stem, safe as a name, and its part, such as `jpg`."""
    text = _SCHEME.sub("", one)
    is_address = text != one
    if _has_suffix(once := _TWICE.sub("", text)) or is_address:
        text = once
    hidden = _HIDDEN.search(text) if is_address else None
    if hidden:  # it goes behind the stem, as nothing is a suffix that ends with it
        text = text[: hidden.start()]
    segments = [_STRANGE.sub("_", part)[-_LONGEST_SEGMENT:] for part in text.split("/") if part not in ("", ".", "..")]
    while len(segments) > 1 and sum(map(len, segments)) + len(segments) > _LONGEST_PATH:
        del segments[0]
    path = "/".join(segments) or "_"
    folder, slash, last = path.rpartition("/")
    stem, _, part = last.rpartition(".") if _has_suffix(last) else (last, "", "bin")
    stem = (stem.lstrip(".") or "_") + (hidden[1] if hidden else "")
    return folder + slash + stem, part.lower()


def _has_suffix(name: str) -> bool:
    stem, dot, part = name.rpartition(".")
    return bool(dot and stem and part.isalnum())
