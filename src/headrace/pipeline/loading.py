"""Finds the Pipeline, or another object of a program, that a user names."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.base.error_origin import describe, find_origin
from headrace.base.errors import SettingsError
from headrace.base.signature import check_takes
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
    module = _load_module(target, name)
    name = module.__name__
    found = getattr(module, attribute, None)
    if found is None:
        pipelines = [key for key, value in vars(module).items() if isinstance(value, Pipeline)]
        hint = f"; it defines {', '.join(pipelines)}" if pipelines else ""
        raise SettingsError(f"{name} has no attribute {attribute!r}{hint}")
    if callable(found) and not isinstance(found, Pipeline):
        check_takes(found, (), target)
        try:
            found = found()
        except (Exception, SystemExit) as error:
            raise _failure(f"{target} failed", error) from error
    if not isinstance(found, Pipeline):
        raise SettingsError(f"{target} is a {type(found).__name__}, expected a headrace.Pipeline")
    # A module's bare name could be any word: who suggests a command has to know that it is one.
    found.name = target if ":" in target or target.endswith(".py") else f"{target}:{attribute}"
    return found


def load_attribute(target: str) -> Any:
    """Return what `package.module:attribute` or `path/to/file.py:attribute` names; raises what `load_pipeline` raises."""
    name, _, attribute = target.partition(":")
    module = _load_module(target, name)
    if not hasattr(module, attribute):
        raise SettingsError(f"{module.__name__} has no attribute {attribute!r}")
    return getattr(module, attribute)


def _load_module(target: str, name: str) -> ModuleType:
    return _import_file(target, Path(name)) if name.endswith(".py") else _import(name, os.getcwd())


def _import_file(target: str, path: Path) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise SettingsError(f"{path} does not exist; expected MODULE:ATTRIBUTE or FILE.py:ATTRIBUTE, got {target!r}")
    module = _import(path.stem, str(path.parent))
    if Path(getattr(module, "__file__", None) or "").resolve() != path:
        # By its name, so that a child process can import it again; the name may be taken.
        other = getattr(module, "__file__", None) or "built into Python"
        raise SettingsError(
            f"{path.name} bears the name of another module, {module.__name__} ({other}): rename the file"
        )
    return module


def _import(name: str, folder: str) -> ModuleType:
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise SettingsError(f"there is no module {name!r} here or installed; expected MODULE:ATTRIBUTE") from None
        raise _failure(f"{name} cannot be imported", error) from error
    except (Exception, SystemExit) as error:
        raise _failure(f"{name} cannot be imported", error) from error


def _failure(what: str, error: BaseException) -> SettingsError:
    """Return what a user's code raised, and where; a SyntaxError's own message says that."""
    origin = None if isinstance(error, SyntaxError) else find_origin(error)
    failure = SettingsError(f"{what}: {describe(error, origin)}")
    failure.origin = origin
    return failure
