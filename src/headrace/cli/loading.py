"""Finds the Pipeline that a user names on the command line."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path

from headrace.base.errors import SettingsError
from headrace.base.protocols import Source
from headrace.pipeline.definition import Pipeline


def load_pipeline(target: str) -> Pipeline:
    """Return the Pipeline named `package.module:attribute` or `path/to/file.py:attribute`.

    The attribute may also be a function without arguments that returns a Pipeline; `:pipeline` is the default. The
    working folder is searched first.

    Raises:
        SettingsError: If there is no such module or attribute, it fails to import, or it is not a Pipeline.
    """
    name, _, attribute = target.partition(":")
    attribute = attribute or "pipeline"
    if name.endswith(".py"):
        path = Path(name).resolve()
        if not path.is_file():
            raise SettingsError(
                f"{name} does not exist; expected MODULE:ATTRIBUTE or FILE.py:ATTRIBUTE, got {target!r}"
            )
        sys.path.insert(0, str(path.parent))
        name = path.stem
    else:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and name.startswith(error.name):
            raise SettingsError(f"there is no module {name!r} here or installed; expected MODULE:ATTRIBUTE") from None
        raise SettingsError(f"{name} cannot be imported: {error}") from error
    except Exception as error:
        raise SettingsError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error
    found = getattr(module, attribute, None)
    if found is None:
        pipelines = [key for key, value in vars(module).items() if isinstance(value, Pipeline)]
        hint = f"; it defines {', '.join(pipelines)}" if pipelines else ""
        raise SettingsError(f"{name} has no attribute {attribute!r}{hint}")
    if callable(found) and not isinstance(found, Pipeline):
        found = found()
    if not isinstance(found, Pipeline):
        raise SettingsError(f"{target} is a {type(found).__name__}, expected a headrace.Pipeline")
    found.name = target
    return found


def parse_source(text: str, *, drain: bool) -> Source:
    """Return the source that a user names: a queue's address, a folder or glob of images, or a file with one URL per line.

    Raises:
        SettingsError: If it is none of them.
    """
    if "://" in text:
        from headrace.sources.queue_source import QueueSource

        return QueueSource(text, drain=drain)
    if Path(text).is_file() and Path(text).suffix in (".txt", ".lst", ".urls"):
        from headrace.sources.urls import UrlList

        return UrlList(text)
    from headrace.sources.folder import Folder

    return Folder(text)
