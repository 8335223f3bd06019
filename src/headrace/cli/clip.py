"""Keep a stretch of a pipeline's live streams as clips, which can be read again and again.

    headrace clip jobs:pipeline --seconds 60 -o clips/
    headrace clip jobs:pipeline --source 'rtsp://camera-1/main' --seconds 60 -o clips/

tune, compare, loop and capacity need the same frames again, and a camera sends none twice. The packets are copied as they
come, all streams at the same time, one clip for each: nothing is decoded or encoded again, so no pixel changes. What is
measured on clips is what the pipeline can do with such frames; no frame is dropped there, and none grows old.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.base.formatting import align_columns, quote_arg
from headrace.base.units import format_duration, format_size
from headrace.cli.pipeline_arguments import PIPELINE_HELP, address, seconds
from headrace.cli.terminal import write, write_json

if TYPE_CHECKING:
    from headrace.sources.stream_clips import StreamClip

_MOST_SECONDS = 86_400.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("pipeline", metavar="MODULE:ATTRIBUTE", help=PIPELINE_HELP)
    parser.add_argument(
        "--source", metavar="ADDRESS", type=address, help="a live stream instead of the pipeline's source"
    )
    parser.add_argument(
        "--seconds", type=seconds, default=60.0, metavar="S", help="how much of each stream (default 60)"
    )
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="the folder of the clips, STREAM.mkv")
    parser.add_argument("--json", action="store_true", help="print what was kept as JSON (schema headrace.clip/1)")


def run(args: argparse.Namespace) -> int:
    """Keep the clips, and say how to go on."""
    from headrace.base.errors import SettingsError
    from headrace.base.settings import check
    from headrace.cli import EXIT_DONE, EXIT_MISSING
    from headrace.cli.loading import choose_source, load_pipeline
    from headrace.sources.live_video import LiveVideo

    check(args.seconds <= _MOST_SECONDS, "--seconds", args.seconds, f"at most {_MOST_SECONDS:.0f}")
    source = choose_source(load_pipeline(args.pipeline).source, args.source, drain=False)
    if not isinstance(source, LiveVideo):
        raise SettingsError(
            f"headrace clip keeps live streams, and the source is a {type(source).__name__}, which can be read as it is"
        )
    folder = Path(args.output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"-o {folder} cannot be made: {error.strerror}") from None
    stop = threading.Event()
    with _ended_by_signals(stop):
        clips = source.keep_clips(folder, args.seconds, stop)
    kept = [clip for clip in clips if clip.packets]
    place = f"video://{folder}{source.clip_parameters}"
    following = shlex.join(["headrace", "tune", args.pipeline, "--source", place]) if kept else ""
    if args.json:
        write_json({"schema": "headrace.clip/1", "clips": [_as_dict(clip) for clip in clips], "source": place})
    else:
        write("\n".join([*_table(clips), *([f"next: {following}"] if following else [])]))
    return EXIT_DONE if all(clip.packets and clip.is_written for clip in clips) else EXIT_MISSING


@contextlib.contextmanager
def _ended_by_signals(stop: threading.Event) -> Iterator[None]:
    """Let the first Ctrl-C or SIGTERM end the clips, which are written as far as they go, and the second one the command."""

    def end(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _as_dict(clip: StreamClip) -> dict[str, Any]:
    return {
        "stream": clip.stream,
        "file": str(clip.file) if clip.packets else None,
        "packets": clip.packets,
        "num_bytes": clip.num_bytes,
        "seconds": clip.seconds,
        "why": clip.why,
    }


def _table(clips: list[StreamClip]) -> list[str]:
    rows = [
        (
            clip.stream,
            quote_arg(clip.file) if clip.packets else "-",
            f"{clip.packets:,}",
            format_duration(clip.seconds),
            format_size(clip.num_bytes),
            clip.why or "whole",
        )
        for clip in clips
    ]
    return align_columns([("stream", "clip", "packets", "covers", "size", ""), *rows], num_left=2)
