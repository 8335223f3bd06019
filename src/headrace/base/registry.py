"""Finds parts by name: those that come with headrace, and those that other installed packages bring.

How this works: a package names its part in an entry point, here an engine called `tflite`:

    [project.entry-points."headrace.engines"]
    tflite = "their_package.engine:TfLiteEngine"

Its module is imported when somebody asks for that name, and not before. Listing the names reads the metadata of the installed
packages, once per registry. What comes with headrace cannot be replaced: a Plan means the same on every machine.
"""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import pkgutil
import re
from collections.abc import Iterator, Mapping
from typing import Any

from headrace.base.error_origin import find_origin
from headrace.base.errors import SettingsError
from headrace.base.settings import check

logger = logging.getLogger("headrace")


class Registry:
    """The parts of one kind, by name.

    Args:
        group: Entry points that other packages use: "headrace.engines".
        built_in: {name: "module:object"} of what comes with headrace.
        setting: What a wrong name is a value of, for the error: "model.engine".
    """

    def __init__(self, group: str, built_in: Mapping[str, str], setting: str) -> None:
        self.group = group
        self._built_in = dict(built_in)
        self._setting = setting

    def __contains__(self, name: object) -> bool:
        """Return whether there is a part of this name; imports none."""
        return name in self._built_in or name in self._others

    def names(self) -> list[str]:
        """Return all names: headrace's own first, then those of other packages in order of the alphabet."""
        return [*self._built_in, *sorted(self._others)]

    def check(self, name: str, setting: str = "") -> None:
        """Raise SettingsError unless there is a part of this name; imports none.

        Args:
            name: Of the part.
            setting: What the error calls it; empty: as the registry does.
        """
        if name not in self:  # else nothing but headrace's own table was looked at
            check(False, setting or self._setting, name, ", ".join(self.names()))

    def load(self, name: str) -> Any:
        """Import a part and return it.

        Raises:
            SettingsError: If there is none of this name, several packages bring it, or another package's cannot be imported.
            MissingExtra: If a library that a built-in part needs is not installed.
        """
        self.check(name)
        if name in self._built_in:
            return pkgutil.resolve_name(self._built_in[name])
        entry, *rivals = self._others[name]
        if rivals:
            packages = " and ".join(_package_of(one) for one in (entry, *rivals))
            raise SettingsError(f"{self._setting} = {name!r}: {packages} bring a part of this name; remove all but one")
        try:
            return entry.load()
        except (Exception, SystemExit) as error:  # another package's code ran
            package = _package_of(entry)
            failure = SettingsError(
                f"{self._setting} = {name!r}: {package} brings it as {entry.value}, which cannot be imported: "
                f"{type(error).__name__}: {error}; install what {package} needs, or remove it"
            )
            failure.origin = find_origin(error)
            raise failure from error

    def with_parts(self, parts: Mapping[str, str]) -> Registry:
        """Return a registry with more parts, or others by the same names: for a test, or a benchmark that plants a defect."""
        return Registry(self.group, {**self._built_in, **parts}, self._setting)

    def packages(self, name: str) -> set[str]:
        """Return the package that brings a part and those that it requires; none for a part of headrace's own."""
        return {package for entry in self._others.get(name, ()) for package in _packages(entry)}

    @functools.cached_property
    def _others(self) -> dict[str, list[importlib.metadata.EntryPoint]]:
        found: dict[str, list[importlib.metadata.EntryPoint]] = {}
        for entry in _entry_points():
            if entry.group == self.group and entry.name not in self._built_in:
                found.setdefault(entry.name, []).append(entry)
        return found


def installed_packages() -> set[str]:
    """Return the packages that bring parts of any kind, and those that they require."""
    return {name for entry in _entry_points() if entry.group.startswith("headrace.") for name in _packages(entry)}


def _entry_points() -> Iterator[importlib.metadata.EntryPoint]:
    """Give those of all installed packages; one whose metadata cannot be read has none, and does not hide the others."""
    seen: set[str] = set()
    for package in importlib.metadata.distributions():
        try:
            name, entries = package.name, list(package.entry_points)
        except Exception as error:  # what a half-removed package left, or a hand wrote
            logger.debug("the metadata of an installed package cannot be read: %s", error)
            continue
        if name and name not in seen:  # None: the folder has no METADATA; twice: the first on the path is imported
            seen.add(name)
            yield from entries


def _package_of(entry: importlib.metadata.EntryPoint) -> str:
    return entry.dist.name if entry.dist else "an installed package"


def _packages(entry: importlib.metadata.EntryPoint) -> set[str]:
    if entry.dist is None:
        return set()
    required = [line for line in entry.dist.requires or () if "extra ==" not in line]
    return {entry.dist.name, *(re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in required)} - {"headrace"}
