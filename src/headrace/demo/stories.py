"""The stories that `headrace demo NAME` tells: folders with a `story.toml` and the slow program as people write it."""

from __future__ import annotations

import difflib
import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.base.errors import SettingsError

STORY = "story.toml"
#: In an installed wheel, which carries `examples/stories` here; and in a checkout.
_PLACES = (Path(__file__).parent / "examples", Path(__file__).parents[3] / "examples" / "stories")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something that was proposed, and what `headrace` makes of it before and after it is done."""

    name: str
    """In the picture: `native code`."""
    asks: str
    """The proposal, as a question."""
    whatif: tuple[str, ...] = ()
    """Options of `headrace whatif`; empty where nothing is predicted."""
    tried: str = ""
    """The pipeline and Plan, or script, that is compared with the slow one; empty for a proposal that nobody tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A slow pipeline, what people believed of it, and what was proposed."""

    title: str
    believed: str
    """Before anybody measured."""
    learned: str
    """What remains when the story is over."""
    slow: str = ""
    """The pipeline and Plan before: `jobs.py:slow@slow.toml`, or a script that trains: `train.py`; empty where the folder has a
    `story.py` that tells it."""
    photos: int = 0
    """Photographs that the pipeline reads from the folder `photos`."""
    prepare: str = ""
    """A program that writes what the pipeline reads; empty where nothing has to be written."""
    items: int = 0
    """Items of a block of the comparison."""
    emulated: str = ""
    """What is not real, in a sentence."""
    changes: tuple[Change, ...] = ()
    """In the order in which they were proposed."""
    needs: tuple[str, ...] = ()
    """Packages that the program imports and headrace does not bring, such as `torch`."""

    @property
    def is_training(self) -> bool:
        """Whether the slow program is a script that trains."""
        return self.slow.split(" ")[0].endswith(".py")


def find_folders() -> dict[str, Path]:
    """Return {name of a story: its folder}, by name; none where neither a wheel nor a checkout carries them."""
    for place in _PLACES:
        if found := sorted(place.glob(f"*/{STORY}")):
            return {path.parent.name: path.parent for path in found}
    return {}


def read_story(folder: Path) -> Story:
    """Return what a story's folder says."""
    return msgspec.convert(tomllib.loads((folder / STORY).read_text(encoding="utf-8")), Story, strict=True)


def find_folder(name: str) -> Path:
    """Return the folder of a story.

    Raises:
        SettingsError: If there is no story of that name.
    """
    folders = find_folders()
    if name not in folders:
        near = difflib.get_close_matches(name, folders, n=1)
        guess = f"did you mean {near[0]}? " if near else ""
        listed = ", ".join(folders) or "none came with this installation"
        raise SettingsError(f"there is no story '{name}'; {guess}the stories: {listed} (headrace demo --list)")
    return folders[name]


def copy_story(source: Path, folder: Path) -> None:
    """Copy the files of a story into a folder, where the reader can change and run them; without the transcript."""
    shutil.copytree(source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "transcript.txt"))
