"""Finds the source and the delivery that a user names on the command line; the Pipeline, see `pipeline.loading`."""

from __future__ import annotations

import logging
from pathlib import Path

from headrace.base.errors import SettingsError
from headrace.base.protocols import Delivery, Source
from headrace.base.registry import SCHEME_OR_SUFFIX, Registry
from headrace.pipeline.definition import check_delivery, check_source
from headrace.pipeline.loading import load_attribute as load_attribute
from headrace.pipeline.loading import load_pipeline as load_pipeline
from headrace.sources.addresses import QUEUES, SOURCES, hide_secrets, hide_secrets_in_errors, is_list_address, suffix_of

logger = logging.getLogger("headrace")

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

#: Ends of names of files: as `--results` they would become folders of this name.
_FILES = frozenset({
    ".csv", ".tsv", ".json", ".txt", ".xml", ".yaml", ".yml", ".html", ".xls", ".xlsx", ".db", ".sqlite", ".sqlite3", ".npy",
    ".npz", ".pkl", ".h5", ".hdf5", ".arrow", ".feather", ".tar", ".zip", ".gz", ".tgz", ".zst", ".tfrecord", ".lmdb",
})  # fmt: skip

#: Ends of names of files that hold rows as text, which nothing here reads.
_LINES = frozenset({".csv", ".tsv", ".jsonl", ".ndjson"})


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
        from headrace.sources.live_video import LiveVideo

        if isinstance(own, LiveVideo):
            return own.replace_end()
        raise SettingsError(
            f"--drain is for a queue or live streams, and the pipeline's source is a {type(own).__name__}: leave it out, or "
            "name a queue with --source"
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
    elif suffix_of(text) in SOURCES and (Path(text).is_file() or (Path(text) / "data.mdb").is_file()):
        source = SOURCES.make(suffix_of(text), Source, text)
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

    if Path(text).suffix.lower() in _LINES and Path(text).is_file():
        logger.warning(
            "%s is one item, and not one for each of its lines: rows are read from Parquet, Arrow, TFRecord, LMDB, SQLite and "
            "HDF5, addresses and paths from a .txt with one a line",
            text,
        )
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

        if name.lower() in _FILES and not text.endswith("/") and not Path(text).is_dir():
            raise SettingsError(
                f"--results: {text} is no kind of file that results are written into; name a file such as "
                f"{Path(text).with_suffix('.jsonl')}, a folder for files of Parquet such as {Path(text).with_suffix('')}/, or "
                "an address such as sqlite:///results.db?table=results"
            )
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
