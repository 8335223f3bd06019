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
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from headrace.base.error_origin import describe, find_origin
from headrace.base.errors import HeadraceError, SettingsError
from headrace.base.protocols import find_missing_members
from headrace.base.settings import check, list_names

logger = logging.getLogger("headrace")

#: What a Plan and the text of a variant can name.
_NAME = re.compile(r"[a-z0-9][a-z0-9._+-]*")
#: What an address can begin with (RFC 3986; `urlsplit` makes it lower case), or a file end with.
SCHEME_OR_SUFFIX = re.compile(r"[a-z][a-z0-9+.-]*|\.[a-z0-9_+-]+")
#: Characters of a wrong object that are shown.
_MOST_SHOWN = 80


class Registry:
    """The parts of one kind, by name.

    Args:
        group: Entry points that other packages use: "headrace.engines".
        built_in: {name: "module:object"} of what comes with headrace.
        setting: What a wrong name is a value of, for the error: "model.engine".
        pattern: What names can be written. A part of another package by any other name is left out with a warning.
    """

    def __init__(self, group: str, built_in: Mapping[str, str], setting: str, pattern: re.Pattern[str] = _NAME) -> None:
        self.group = group
        self._built_in = dict(built_in)
        self._setting = setting
        self._pattern = pattern

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
            check(False, setting or self._setting, name, list_names(self.names(), name))

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
            why = f"which cannot be imported; install what {_package_of(entry)} needs, or remove it"
            raise self._failure(name, why, error) from error

    def call(
        self,
        name: str,
        function: Callable[..., Any],
        *arguments: Any,
        failure: type[HeadraceError] = SettingsError,
        **options: Any,
    ) -> Any:
        """Return what a function of a part returns.

        Args:
            name: Of the part.
            function: Of the part.
            arguments: For the function.
            failure: What is raised where the function of another package raises no error of headrace's.
            options: For the function.

        Raises:
            HeadraceError: If the part raises one; else `failure`, which names the package that brings the part.
        """
        try:
            return function(*arguments, **options)
        except HeadraceError:
            raise
        except (Exception, SystemExit) as error:
            if name in self._built_in:
                raise  # a defect of headrace, and to be reported as one
            raise self._failure(name, "which failed", error, failure) from error

    def make(self, name: str, protocol: type, *arguments: Any, **options: Any) -> Any:
        """Call a part and return what it makes.

        Args:
            name: Of the part.
            protocol: What it has to make.
            arguments: For the part.
            options: For the part.

        Raises:
            HeadraceError: If the part raises one; as `load` does.
            SettingsError: If it is of another package, and cannot be called, raises anything else, or makes something else.
        """
        part = self.load(name)
        if not callable(part):
            raise self.refuse(name, f"is {_show(part)}", f"a function or class that makes a {_place_of(protocol)}")
        made = self.call(name, part, *arguments, **options)
        self.check_made(name, "returned", made, protocol)
        return made

    def check_made(self, name: str, did: str, made: object, protocol: type) -> None:
        """Raise SettingsError unless a part made what it should, as far as its members show.

        Args:
            name: Of the part.
            did: How the part made it: "returned".
            made: By the part.
            protocol: What it should have made.
        """
        missing = find_missing_members(made, protocol)
        if missing:
            lacks = "" if made is None else f", which has no {', '.join(missing)}"
            raise self.refuse(name, f"{did} {_show(made)}{lacks}", f"a {_place_of(protocol)}")

    def refuse(self, name: str, did: str, expected: str) -> SettingsError:
        """Return the error for a part that is, or does, something else than expected.

        Args:
            name: Of the part.
            did: What it is or did: "is None".
            expected: What it should be or do.
        """
        return SettingsError(f"{self._introduce(name)}, which {did}; expected {expected}")

    def _failure(
        self, name: str, why: str, error: BaseException, kind: type[HeadraceError] = SettingsError
    ) -> HeadraceError:
        origin = find_origin(error)
        failure = kind(f"{self._introduce(name)}, {why}: {describe(error, origin)}")
        failure.origin = origin
        return failure

    def _introduce(self, name: str) -> str:
        """Return which part it is, and who brings it: whom the user has to ask."""
        entry = next(iter(self._others.get(name, ())), None)
        package, place = (_package_of(entry), entry.value) if entry else ("headrace", self._built_in[name])
        return f"{self._setting} = {name!r}: {package} brings it as {place}"

    def with_parts(self, parts: Mapping[str, str]) -> Registry:
        """Return a registry with more parts, or others by the same names: for a test, or a benchmark that plants a defect."""
        return Registry(self.group, {**self._built_in, **parts}, self._setting, self._pattern)

    def packages(self, name: str) -> set[str]:
        """Return the package that brings a part and those that it requires; none for a part of headrace's own."""
        return {package for entry in self._others.get(name, ()) for package in _packages(entry)}

    @functools.cached_property
    def _others(self) -> dict[str, list[importlib.metadata.EntryPoint]]:
        found: dict[str, list[importlib.metadata.EntryPoint]] = {}
        for entry in _entry_points():
            if entry.group != self.group or entry.name in self._built_in:
                continue
            if self._pattern.fullmatch(entry.name):
                found.setdefault(entry.name, []).append(entry)
            else:
                logger.warning(
                    "%s: %s brings %s by the name %a, which cannot be used: it is left out; a name matches %s",
                    *(self.group, _package_of(entry), entry.value, entry.name, self._pattern.pattern),
                )
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


def _show(part: object) -> str:
    text = repr(part)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _place_of(protocol: type) -> str:
    return f"{protocol.__module__}.{protocol.__name__}"


def _packages(entry: importlib.metadata.EntryPoint) -> set[str]:
    if entry.dist is None:
        return set()
    required = [line for line in entry.dist.requires or () if "extra ==" not in line]
    return {entry.dist.name, *(re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in required)} - {"headrace"}
