"""The documents that every test of the report draws, and a reader of HTML."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest


class Page(HTMLParser):
    """What a browser would find in a page.

    Attributes:
        tags: Every element's name and attributes, in order.
        scripts: Content of the script elements.
        values: The numbers in `<data value>`.
        text: All text outside scripts and style.
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.style = ""
        self.text = ""
        self._inside = ""
        self.feed(page)
        self.close()

    @property
    def values(self) -> list[float]:
        """Return the numbers in `<data value>`, in order."""
        return [float(attributes["value"] or "nan") for name, attributes in self.tags if name == "data"]

    def named(self, name: str) -> list[dict[str, str | None]]:
        """Return the attributes of all elements of this name."""
        return [attributes for found, attributes in self.tags if found == name]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.tags.append((tag, dict(attrs)))
        self._inside = tag if tag in ("script", "style") else self._inside

    def handle_endtag(self, tag: str) -> None:
        """Note the end of a script or style."""
        self._inside = "" if tag == self._inside else self._inside

    def handle_data(self, data: str) -> None:
        """Note text."""
        if self._inside == "script":
            self.scripts.append(data)
        elif self._inside == "style":
            self.style += data
        else:
            self.text += data


@pytest.fixture(scope="session")
def documents() -> ModuleType:
    """Return the module `report_documents` beside this file: test folders are not packages, so it is loaded by its path."""
    spec = importlib.util.spec_from_file_location("report_documents", Path(__file__).with_name("report_documents.py"))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def read_page() -> Callable[[str], Page]:
    """Return what reads a page as a browser would."""
    return Page
