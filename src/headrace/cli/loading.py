"""Finds the Pipeline, the source and the delivery that a user names on the command line."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.base.error_origin import describe, find_origin
from headrace.base.errors import SettingsError
from headrace.base.protocols import Delivery, Source
from headrace.base.registry import SCHEME_OR_SUFFIX, Registry
from headrace.base.signature import check_takes
from headrace.pipeline.definition import Pipeline, check_delivery, check_source
from headrace.sources.addresses import QUEUES, SOURCES, hide_secrets, hide_secrets_in_errors, is_list_address

_JSON_LINES = "headrace.delivery.jsonl:JsonLines"
_OBJECTS = "headrace.delivery.objects:ObjectResults"
_TABLE = "headrace.delivery.sql:SqlTable"
#: What `--results` writes besides folders of Parquet. {".suffix": called with the file}, {scheme: with the address}.
DELIVERIES = Registry(
    "headrace.deliveries",
    {
        ".jsonl": _JSON_LINES,
        ".ndjson": _JSON_LINES,
        **dict.fromkeys(("s3", "gs", "az"), _OBJECTS),
        "sqlite": _TABLE,
        "postgresql": _TABLE,
    },
    "--results",
    SCHEME_OR_SUFFIX,
)


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
        raise SettingsError(f"{path.name} bears the name of another module, {module.__name__}: rename the file")
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


def choose_source(own: Source, text: str | None, *, drain: bool) -> Source:
    """Return where a pipeline's jobs come from: from what is named, else from its own source.

    What the program says of its queue (`parse`, `max_receives`, ...) holds for a queue that takes its place, too.

    Args:
        own: The pipeline's.
        text: What the user names; None: nothing.
        drain: Whether the run is to end when the queue is empty.

    Raises:
        SettingsError: If it is nothing that can be a source, or nothing that can be drained.
    """
    from headrace.sources.queue_source import QueueSource

    if text and not (_is_queue(text) and isinstance(own, QueueSource)):
        return parse_source(text, drain=drain)
    if not text and not drain:
        return own
    if not isinstance(own, QueueSource):
        raise SettingsError(
            f"--drain is for a queue, and the pipeline's source is a {type(own).__name__}: leave it out, or name a queue "
            "with --source"
        )
    chosen = own.replace_address(text, drain=drain)
    if drain:
        chosen.check_is_there()
    return chosen


def parse_source(text: str, *, drain: bool) -> Source:
    """Return the source that a user names: an address, a file with a URL or path per line, a folder or a glob.

    Other packages add addresses of queues, addresses of other sources, and kinds of files; see `headrace.sources.addresses`.

    Raises:
        SettingsError: If it is none of them.
    """
    if _is_queue(text):
        from headrace.sources.queue_source import QueueSource

        queue = QueueSource(text, drain=drain)
        if drain:
            queue.check_is_there()
        return queue
    scheme, is_address, _ = text.partition("://")
    if is_list_address(text):
        from headrace.sources.urls import UrlList

        source: Source = UrlList(text)
    elif is_address:
        with hide_secrets_in_errors(text):
            source = SOURCES.make(scheme.lower(), Source, text, drain=drain)
    elif Path(text).suffix in SOURCES and (Path(text).is_file() or (Path(text) / "data.mdb").is_file()):
        source = SOURCES.make(Path(text).suffix, Source, text)
    else:
        return _find_files(text)
    check_source(source)
    if drain and source.is_endless:
        raise SettingsError(f"--drain: {hide_secrets(text)} cannot be drained")
    return source


def _find_files(text: str) -> Source:
    """Return the tar shards that a path names, else its files."""
    from headrace.sources.folder import Folder
    from headrace.sources.shards import Shards
    from headrace.store.shards import find_shards

    return Folder(text) if find_shards(text) is None else Shards(text)


def parse_results(text: str) -> Delivery:
    """Return the delivery that a user names: a file by its suffix, an address by its scheme, else a folder of Parquet files.

    Raises:
        SettingsError: If it is an address, and no package that is installed knows the scheme.
    """
    scheme, is_address, _ = text.partition("://")
    name = scheme.lower() if is_address else Path(text).suffix
    if not is_address and name not in DELIVERIES:
        from headrace.delivery.parquet import Parquet

        return Parquet(text)
    with hide_secrets_in_errors(text):
        delivery: Delivery = DELIVERIES.make(name, Delivery, text)
    check_delivery(delivery)
    return delivery


def _is_queue(text: str) -> bool:
    """Return whether this is the address of a queue, and not of another source.

    Raises:
        SettingsError: If it is an address of a scheme that nobody knows.
    """
    scheme, is_address, _ = text.partition("://")
    scheme = scheme.lower()
    if not is_address or scheme in SOURCES or is_list_address(text):
        return False
    if scheme not in QUEUES:
        known = [f"{one}://" for one in (*QUEUES.names(), *SOURCES.names()) if not one.startswith(".")]
        raise SettingsError(
            f"--source: an address starts with one of {', '.join(known)}, got {scheme!r}; files are named by a path without a "
            "scheme, and a SQLite queue is sqlite:///jobs.db"
        )
    return True
