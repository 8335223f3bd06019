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
import pkgutil
from collections.abc import Mapping
from typing import Any

from headrace.base.errors import SettingsError
from headrace.base.settings import check


def installed_packages() -> list[str]:
    """Return the names of the installed packages that bring parts of any kind; imports none."""
    found = importlib.metadata.distributions()
    return sorted({one.name for one in found if any(entry.group.startswith("headrace.") for entry in one.entry_points)})


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

    def load(self, name: str) -> Any:
        """Import a part and return it.

        Raises:
            SettingsError: If there is none of this name, or if another package's cannot be imported.
            MissingExtra: If a library that a built-in part needs is not installed.
        """
        check(name in self, self._setting, name, ", ".join(self.names()))
        if name in self._built_in:
            return pkgutil.resolve_name(self._built_in[name])
        entry = self._others[name]
        try:
            return entry.load()
        except (ImportError, AttributeError) as error:
            package = entry.dist.name if entry.dist else "an installed package"
            raise SettingsError(
                f"{self._setting} = {name!r}: {package} brings it as {entry.value}, which cannot be imported: {error}; "
                f"install what {package} needs, or remove it"
            ) from error

    @functools.cached_property
    def _others(self) -> dict[str, importlib.metadata.EntryPoint]:
        found = importlib.metadata.entry_points(group=self.group)
        return {entry.name: entry for entry in found if entry.name not in self._built_in}
