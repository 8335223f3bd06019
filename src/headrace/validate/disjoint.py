"""Whether sets of items are apart: what a model was made from, or chosen by, cannot judge it.

Two sets are apart if they have no item in common, and no source where sources are known: the photograph, camera or video that
items were cut from. Two crops of one photograph are two items, and an answer learned from the one is right for the other.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from headrace.base.errors import SettingsError
from headrace.base.formatting import pluralize
from headrace.validate.golden import Golden
from headrace.validate.items import contents

#: Items or sources that a message names.
_NAMED = 3


def check_disjoint(sets: Mapping[str, Golden | None]) -> None:
    """Raise SettingsError if two sets share an item or a source; the message names both sets and what they share.

    Args:
        sets: {the option that named it: a set, or None if there is none}.
    """
    given = [(option, one) for option, one in sets.items() if one is not None]
    items = {
        option: {_content(item): place for place, item in enumerate(contents(one.inputs))} for option, one in given
    }
    for (first, a), (second, b) in combinations(given, 2):
        shared = [content for content in items[first] if content in items[second]]
        if shared:
            pairs = [(_item(a, items[first][one]), _item(b, items[second][one])) for one in shared[:_NAMED]]
            such = ", ".join(f"{one} (there {other})" for one, other in pairs)
            more = f" and {len(shared) - _NAMED} more" if len(shared) > _NAMED else ""
            raise SettingsError(
                f"{pluralize(len(shared), 'item')} of {first} {a.name} {'is' if len(shared) == 1 else 'are'} in {second} "
                f"{b.name} too: {such}{more}; what a model was made from cannot judge it: take them out of one of the two"
            )
        sources = sorted(list_known_sources(a) & list_known_sources(b))
        if sources:
            raise SettingsError(
                f"{first} {a.name} and {second} {b.name} share {_format_sources(sources)}; what comes from one photograph, "
                "camera or video is too alike to judge what was made from it: put each source into one of the two sets, or "
                "call regions that are apart by names of their own (source in labels.jsonl, the array sources in an .npz file)"
            )


def check_production(files: Iterable[Path], sets: Mapping[str, Golden | None]) -> None:
    """Raise SettingsError if a file on which the whole pipeline is measured is one of a set's, by its content.

    Only files of equal size are read; sets of arrays have no files, and are not looked at.
    """
    for option, one in sets.items():
        sizes: dict[int, list[str]] = {}
        for file in one.files if one is not None else ():
            sizes.setdefault(os.path.getsize(file), []).append(file)
        shared = [file for file in files if _is_among(file, sizes)] if sizes else []
        if one is not None and shared:
            raise SettingsError(
                f"{pluralize(len(shared), 'file')} of --source, such as {shared[0]}, {'is' if len(shared) == 1 else 'are'} in "
                f"{option} {one.name} too; whether it is faster in production is asked of images that chose nothing: name "
                "others with --source"
            )


def list_known_sources(one: Golden) -> set[str]:
    """Return the sources of a set's items, as far as they are known."""
    of_all = () if one.sources is None else np.unique(one.sources)
    return {str(source) for source in of_all if str(source)} | one.some_sources


def _item(one: Golden, place: int) -> str:
    """Return what an item is called: its file, or its place in the arrays."""
    return one.files[place] if one.files else f"item {place}"


def _content(item: Iterable[np.ndarray]) -> bytes:
    """Return a hash of an item; of fractions in the precision that models take, whichever a file has them in."""
    digest = hashlib.sha256()
    for array in item:
        digest.update((array.astype(np.float32) if array.dtype.kind == "f" else array).tobytes())
    return digest.digest()


def _is_among(file: Path, sizes: Mapping[int, Sequence[str]]) -> bool:
    alike = sizes.get(file.stat().st_size, ()) if file.is_file() else ()
    return bool(alike) and any(Path(one).read_bytes() == file.read_bytes() for one in alike)


def _format_sources(sources: Sequence[str]) -> str:
    rest = len(sources) - _NAMED
    more = f" and {rest} more" if rest > 0 else ""
    return f"{pluralize(len(sources), 'source')} ({', '.join(sources[:_NAMED])}{more})"
