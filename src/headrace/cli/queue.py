"""Look into a queue and its dead letters, and move them.

    headrace queue stats sqlite:///jobs.db
    headrace queue peek sqs://photos --dead -n 5
    headrace queue redrive redis://cache:6379/0 --rework
    headrace queue purge sqlite:///jobs.db --dead

Peeking at an SQS queue receives the messages for an instant, which raises their receive count. Redriving moves dead letters
back to their queue, with a receive count of zero. A job whose result could not be delivered keeps its result, which is
delivered unchanged; with --rework the job is worked on again. Purging cannot be undone and asks first.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from headrace.cli.pipeline_arguments import address
from headrace.cli.terminal import say, write, write_json

if TYPE_CHECKING:
    from headrace.base.protocols import Queue
    from headrace.base.records import DeadLetter, Message

#: Characters of a body that are shown unless --json asks for all.
_NUM_SHOWN = 300


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="{stats,peek,redrive,purge}")
    stats = actions.add_parser("stats", help="count messages that wait, are in flight, are delayed, are dead")
    peek = actions.add_parser("peek", help="show messages, or dead letters with their reasons")
    redrive = actions.add_parser("redrive", help="move dead letters back to the queue")
    purge = actions.add_parser("purge", help="remove all messages, or all dead letters, for good")
    for action in (stats, peek, redrive, purge):
        action.add_argument(
            "queue", metavar="QUEUE", type=address, help="address, such as sqlite:///jobs.db?queue=night, or env:NAME"
        )
        action.add_argument("--json", action="store_true", help="print JSON (schema headrace.queue/1)")
    for action in (peek, purge):
        action.add_argument("--dead", action="store_true", help="the dead letters instead of the messages")
    peek.add_argument("-n", type=_positive, default=10, metavar="N", help="show N at most (default 10)")
    redrive.add_argument("-n", type=_positive, metavar="N", help="move N at most (default all)")
    redrive.add_argument("--rework", action="store_true", help="leave kept results behind: work the jobs out again")
    purge.add_argument("--yes", action="store_true", help="do not ask")


def run(args: argparse.Namespace) -> int:
    """Carry out the action and print what came of it."""
    from headrace.cli import EXIT_DONE

    queue = _open(args.queue)
    try:
        answer, text = _ACTIONS[args.action](queue, args)
    finally:
        queue.close()
    if args.json:
        write_json({"schema": "headrace.queue/1", "action": args.action, "queue": queue.name, **answer})
    else:
        write(text)
    return EXIT_DONE


def _open(address: str) -> Queue:
    """Open a queue that exists: looking must not make a file."""
    from headrace.base.errors import SourceError
    from headrace.sources.addresses import open_queue, parse_address

    if path := parse_address(address).missing_file:
        raise SourceError(f"the queue file {path} does not exist; `headrace submit` makes it with the first job")
    return open_queue(address)


def _stats(queue: Queue, args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from headrace.base.units import format_duration

    state = queue.statistics()
    age = state.oldest_age_seconds
    counts = {"visible": state.visible, "in_flight": state.in_flight, "delayed": state.delayed, "dead": state.dead}
    lines = [queue.name, *(f"{name.replace('_', ' '):<12}{count:>8}" for name, count in counts.items())]
    if age is not None:
        lines.append(f"{'oldest':<12}{format_duration(age):>8}")
    return {**counts, "oldest_age_seconds": age}, "\n".join(lines)


def _peek(queue: Queue, args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    found = queue.peek(args.n, dead=args.dead)
    text = "\n".join(_format_message(one) for one in found) or ("no dead letters" if args.dead else "no messages")
    return {"dead": args.dead, "messages": [_describe_message(one) for one in found]}, text


def _redrive(queue: Queue, args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    moved = queue.redrive(args.n, rework=args.rework)
    return {"moved": moved}, f"{_pluralize(moved, 'dead letter')} moved back to {queue.name}"


def _purge(queue: Queue, args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    what = "dead letter" if args.dead else "message"
    if not args.yes:
        _confirm(queue, what, args.dead)
    removed = queue.purge(dead=args.dead)
    return {"dead": args.dead, "removed": removed}, f"{_pluralize(removed, what)} removed from {queue.name}"


_ACTIONS = {"stats": _stats, "peek": _peek, "redrive": _redrive, "purge": _purge}


def _confirm(queue: Queue, what: str, dead: bool) -> None:
    from headrace.base.errors import SettingsError

    if not sys.stdin.isatty():
        raise SettingsError("purge asks before it removes anything, and there is no terminal to ask at; add --yes")
    state = queue.statistics()
    count = state.dead if dead else state.visible + state.in_flight + state.delayed
    say(f"Remove {_pluralize(count, what)} from {queue.name} for good? [y/N] ", end="")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise SettingsError("nothing was removed")


def _pluralize(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _format_message(one: Message | DeadLetter) -> str:
    from headrace.base.records import DeadLetter
    from headrace.base.units import format_duration

    moment, verb = (one.died_at, "died") if isinstance(one, DeadLetter) else (one.sent_at, "sent")
    age = format_duration(max(0.0, time.time() - moment))
    lines = [f"{one.id}  received {_pluralize(one.receive_count, 'time')}, {verb} {age} ago"]
    if isinstance(one, DeadLetter):
        lines.append(f"  reason  {one.reason if one.reason.isprintable() else ascii(one.reason)}")
    if one.kept:
        lines.append(f"  result  {_format_payload(one.kept, _result(one.kept))}")
    # Bodies and reasons quote strangers: nothing in them may steer the terminal.
    return "\n".join([*lines, f"  body    {_format_payload(one.body, one.body.decode(errors='replace'))}"])


def _format_payload(data: bytes, text: object) -> str:
    whole = text if isinstance(text, str) else json.dumps(text)
    shown = whole if len(whole) <= _NUM_SHOWN else f"{whole[:_NUM_SHOWN]}... ({len(data)} bytes)"
    return shown if shown.isprintable() else ascii(shown)


def _result(kept: bytes) -> Any:
    """Return the result that is kept with a message, as JSON values; as text where it is none of ours."""
    try:
        return json.loads(kept)["result"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return kept.decode(errors="replace")


def _describe_message(one: Message | DeadLetter) -> dict[str, Any]:
    from headrace.base.records import DeadLetter

    fields: dict[str, Any] = {"id": one.id, "receive_count": one.receive_count}
    if isinstance(one, DeadLetter):
        fields |= {"reason": one.reason, "died_at": one.died_at}
    else:
        fields["sent_at"] = one.sent_at
    if one.kept:
        fields["result"] = _result(one.kept)
    try:
        fields["body"] = one.body.decode()
    except UnicodeDecodeError:
        fields["body_base64"] = base64.b64encode(one.body).decode()
    return fields


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number >= 1, got {text}")
    return int(text)
