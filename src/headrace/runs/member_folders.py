"""The folders of a run of several processes, each of which is a run folder.

RUN/worker-K-L         of `--supervise` and `--on ray`: worker or portion K, begun for the L-th time
RUN/shard-I-of-N       of `--shard I/N`
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from headrace.runs.contained_files import is_own_folder
from headrace.runs.file_names import RUN_JSON

_MEMBER = re.compile(r"worker-\d+-\d+|shard-\d+-of-(\d+)")


def is_member_name(name: str) -> bool:
    """Return whether a folder is called as those of members are."""
    return _MEMBER.fullmatch(name) is not None


def count_portions(names: Iterable[str]) -> Counter[int]:
    """Return how many of the folders are those of portions: {number of all portions: how many}."""
    found = (_MEMBER.fullmatch(name) for name in names)
    return Counter(int(match[1]) for match in found if match is not None and match[1])


def find_members(folder: Path) -> list[Path]:
    """Return the folders of a run's members, by their numbers; none where the folder holds a run itself, or is not there."""
    if (folder / RUN_JSON).exists() or not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if is_member_name(path.name) and is_own_folder(folder, path)]
    return sorted((path for path in found if path.is_dir()), key=lambda path: _numbers(path.name))


def find_foreign(folder: Path) -> list[str]:
    """Return the names of members that are links out of the folder, which are not followed."""
    if (folder / RUN_JSON).exists() or not folder.is_dir():
        return []
    return sorted(
        path.name for path in folder.iterdir() if is_member_name(path.name) and not is_own_folder(folder, path)
    )


def _numbers(name: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", name)]
