"""Put jobs into a queue: URLs, files, or every image of a folder.

    headrace submit sqlite:///jobs.db photos/ --task scenes
    headrace submit sqs://photos https://example.com/1.jpg --callback https://example.com/done
    find /data -name '*.jpg' | headrace submit redis://cache:6379/0 --from - --attribute order=7

Paths are made absolute, because the worker runs in another folder; with --inline the files themselves travel, for workers
that do not see this machine's disk. A SQLite queue is made when it is missing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from headrace.cli.pipeline_arguments import address
from headrace.cli.terminal import is_quiet, progress_stream, say, write, write_json

#: Jobs per call of the queue.
_BATCH = 100
#: Characters of a file's name that go into its job's id.
_LONGEST_NAME = 200
#: Ids shown unless --json asks for all.
_NUM_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "queue",
        metavar="QUEUE",
        type=address,
        help="address, such as sqlite:///jobs.db?queue=night or sqs://photos, or env:NAME",
    )
    parser.add_argument("items", nargs="*", metavar="URL-or-PATH", help="a URL, an image, a folder or a quoted pattern")
    parser.add_argument("--from", dest="from_file", metavar="FILE", help="a file with one per line; - for the input")
    parser.add_argument("--inline", action="store_true", help="send the bytes of files rather than their paths")
    parser.add_argument("--task", default="", metavar="T", help="the module that takes the jobs, if there are several")
    parser.add_argument("--callback", metavar="URL", help="where the results are sent")
    parser.add_argument(
        "--attribute",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="attributes",
        help="passed on with the result; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print the ids as JSON (schema headrace.submit/1)")


def run(args: argparse.Namespace) -> int:
    """Send the jobs and print their ids."""
    from headrace.base.errors import SettingsError
    from headrace.base.formatting import encodable
    from headrace.cli import EXIT_DONE
    from headrace.sources.addresses import open_queue, parse_address

    parse_address(args.queue)
    if args.callback:
        _note_refused(args.callback)
    attributes = dict(_attribute(text) for text in args.attributes)
    payloads = [payload for item in _items(args) for payload in _payloads(item)]
    if not payloads:
        raise SettingsError("nothing to submit; name URLs, files or folders, or a list with --from FILE")
    queue = open_queue(args.queue)
    is_long = len(payloads) > 10 * _BATCH
    # One line that is written over is for a terminal.
    shows_progress = is_long and sys.stderr.isatty() and progress_stream() is None and not is_quiet()
    try:
        sent = []
        for start in range(0, len(payloads), _BATCH):
            jobs = [(_new_id(payload), payload) for payload in payloads[start : start + _BATCH]]
            queue.send([_body(id_, payload, args, attributes) for id_, payload in jobs])
            sent += jobs
            if shows_progress:
                say(f"{len(sent)} of {len(payloads)} sent", end="\r")
        if shows_progress:
            say("")
    except ValueError as error:  # too large for this queue
        raise SettingsError(f"{len(sent)} of {len(payloads)} jobs were sent; {error}") from error
    finally:
        queue.close()
    if args.json:
        jobs_json = [{"id": id_, "payload": str(payload)} for id_, payload in sent]
        write_json({"schema": "headrace.submit/1", "queue": queue.name, "count": len(sent), "jobs": jobs_json})
        return EXIT_DONE
    write(f"{len(sent)} {'job' if len(sent) == 1 else 'jobs'} sent to {queue.name}")
    for id_, payload in sent[:_NUM_SHOWN]:
        write(f"{id_}  {encodable(str(payload))}")
    if len(sent) > _NUM_SHOWN:
        write(f"... and {len(sent) - _NUM_SHOWN} more; --json prints all ids")
    return EXIT_DONE


def _note_refused(callback: str) -> None:
    """Say on stderr where a worker's rules refuse a callback address unless its operator allows it."""
    from ipaddress import IPv4Address

    from headrace.base.http_error import strip_secrets
    from headrace.base.network_rules import NetworkPlan, NetworkRules, Refusal, parse_target

    target = parse_target(callback)
    refusal: Refusal | None
    if isinstance(target, Refusal):
        refusal = target
    else:
        known = IPv4Address("127.0.0.1") if target.host == "localhost" else target.address
        refusal = NetworkRules(NetworkPlan()).judge(target, [known] if known else [])
    if refusal is not None:
        say(
            f"headrace submit: workers refuse the callback {strip_secrets(callback)} ({refusal.code}) unless told "
            f"otherwise: {refusal.why}"
        )


def _items(args: argparse.Namespace) -> Iterator[str]:
    """Yield what was named on the command line, then the lines of the list."""
    yield from args.items
    if args.from_file == "-":
        yield from _lines(sys.stdin)
    elif args.from_file:
        from headrace.base.errors import SettingsError

        try:
            with open(args.from_file, encoding="utf-8-sig") as file:
                yield from _lines(file)
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"--from {args.from_file} cannot be read: {error}") from error


def _lines(file: Iterable[str]) -> Iterator[str]:
    stripped = (line.strip() for line in file)
    return (line for line in stripped if line and not line.startswith("#"))


def _payloads(item: str) -> list[str | Path]:
    """Return the URL, or the absolute paths that a file, folder or pattern stands for."""
    if "://" in item:
        _check_scheme(item)
        return [item]
    from headrace.sources.folder import find_files

    files, _ = find_files(Path(item).absolute())
    return list(files)


def _check_scheme(url: str) -> None:
    """Raise SettingsError for an address that no worker would fetch: all of its jobs would be rejected."""
    from headrace.base.errors import SettingsError
    from headrace.sources.addresses import hide_secrets

    scheme = url.partition("://")[0].lower()
    if scheme not in ("http", "https", "file"):
        raise SettingsError(
            f"{hide_secrets(url)} is not sent: workers fetch http, https and file addresses and paths; a source of the program "
            "reads the others, such as headrace run ... --source s3://bucket/name. For a program whose own first stage reads "
            "it, send it from Python: headrace.sources.addresses.open_queue(QUEUE).send"
        )


def _body(id_: str, payload: str | Path, args: argparse.Namespace, attributes: dict[str, str]) -> bytes:
    from headrace.base.errors import SourceError
    from headrace.base.formatting import encodable
    from headrace.sources.jobs import encode_job

    content: str | Path | bytes = payload
    if args.inline and isinstance(payload, Path):
        try:
            content = payload.read_bytes()
        except OSError as error:
            raise SourceError(f"{payload} cannot be read: {error.strerror}") from error
    if isinstance(payload, Path):
        attributes = {"path": encodable(str(payload)), **attributes}
    return encode_job(content, id=id_, task=args.task, callback=args.callback, attributes=attributes)


def _attribute(text: str) -> tuple[str, str]:
    from headrace.base.errors import SettingsError

    key, equals, value = text.partition("=")
    if not key or not equals:
        raise SettingsError(f"--attribute {text!r}: expected KEY=VALUE")
    return key, value


def _new_id(payload: str | Path) -> str:
    """Return an id that people recognise, and that a second submission of the same file does not repeat."""
    import uuid

    from headrace.base.formatting import encodable

    name = payload.name if isinstance(payload, Path) else payload.partition("?")[0].rpartition("/")[2]
    return f"{encodable(name)[-_LONGEST_NAME:]}-{uuid.uuid4().hex[:12]}".lstrip("-")
