"""The frames of video files as jobs: none lost, none given twice, whatever ends the run.

How this works: one thread decodes, one clip after another, and keeps a few frames ahead (`read_ahead`); the receiver takes them
from there. Frames cannot be listed before they are decoded. So a run that is resumed decodes again from the start of each clip
and passes by the frames that are done, before they are converted; suspects of a crash come first, in a pass of their own.
"""

from __future__ import annotations

import copy
import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.base.errors import SettingsError, SourceError
from headrace.base.formatting import encodable, pluralize
from headrace.base.named_paths import Named, list_paths
from headrace.base.plan import SourcePlan
from headrace.base.records import SourceWork
from headrace.base.settings import check, unknown_key
from headrace.sources.addresses import VIDEO_SUFFIXES
from headrace.sources.clips import Clip, Frame
from headrace.sources.finite import Entry, FiniteSource, WorkList
from headrace.sources.folder import find_all_files
from headrace.sources.frames import check_device, choose, parse_region, parse_size, parse_yes, require_device
from headrace.sources.read_ahead import ReadAhead

#: Names of video files; case does not matter. What moves and is called like a picture is one here.
VIDEO_PATTERNS = tuple(f"*{suffix}" for suffix in (*VIDEO_SUFFIXES, ".gif", ".apng"))
#: Frames that are decoded ahead.
_DEPTH = 4
#: FFmpeg takes no more for most codecs.
_MOST_THREADS = 16
#: The most frames that wait to be tried again: each is an image in memory.
_MOST_WAITING = 32
#: The last # parts an id: there may be others in a clip's name.
_ID = re.compile(r"(?P<clip>.*)#(?P<number>0|[1-9][0-9]{0,17})?", re.DOTALL)
_Counted = tuple[Entry | None, Mapping[str, int]]


class Video(FiniteSource):
    """One job per frame of video files: the payload is the image, uint8 (height, width, 3), RGB, upright.

    The id is `CLIP#NUMBER`: the file's name below the folder, and the number of the decoded frame from 0. Both are also
    `job.stream` and `job.sequence`, and attributes with the frame's time: `stream`, `frame`, `seconds`. A clip that is refused
    as a whole has the id `CLIP#`. Nothing is dropped: where the pipeline is slower, decoding waits. Takes the extra `video`.

    Args:
        paths: A file, a folder of clips, a pattern, or a list of these.
        every: Take each so many-th decoded frame.
        fps: Take at most so many frames in a second of the clip's time.
        keyframes: Decode keyframes alone, which costs a tenth; the number then counts these.
        references: Decode no frames that no other frame needs; the number then counts the others.
        size: (width, height), or one number for a square, to which frames are scaled while they are converted.
        region: The part that is given: (left, top, right, bottom) as shares of the picture, such as (0, 0.5, 1, 1).
        motion: Give frames alone in which so large a share of the picture moves, such as 0.005, those of the second after, and
            one every two seconds.
        threads: Threads that decode a clip. Its frames are the same, and come in the same order.
        device: "cuda": an NVIDIA GPU decodes what it can. Not tried on one yet.
        max_receives: Tries of one job.
    """

    unit = "frame"

    def __init__(
        self,
        paths: Named,
        *,
        every: int = 1,
        fps: float | None = None,
        keyframes: bool = False,
        references: bool = False,
        size: tuple[int, int] | int | None = None,
        region: Sequence[float] | None = None,
        motion: float | None = None,
        threads: int = 1,
        device: str | None = None,
        max_receives: int = 3,
    ) -> None:
        super().__init__(max_receives=max_receives)
        self._paths = list_paths(paths, "paths", addresses="; live streams are for hr.live_video")
        self._choice = choose(
            every=every,
            fps=fps,
            keyframes=keyframes,
            references=references,
            size=size,
            region=region,
            motion=motion,
        )
        is_count = isinstance(threads, int) and not isinstance(threads, bool) and 1 <= threads <= _MOST_THREADS
        check(is_count, "threads", threads, f"a whole number from 1 to {_MOST_THREADS}")
        self._threads = threads
        check_device(device)
        self._device = device
        self._portion = ""
        self._holds: Callable[[str], bool] = _all
        """Of the clips, which are read, by name."""
        self._found: dict[str, Path] | None = None
        """The clips of the run that is about to begin: found, and what is left out told, once."""
        self._reader: ReadAhead[_Counted] | None = None
        self._totals: Mapping[str, int] = {}

    @property
    def where(self) -> str:
        """The absolute paths, and what chooses the frames."""
        paths = ", ".join(os.path.abspath(path) for path in self._paths)
        return f"{self._portion}the frames of {paths}{self._choice}"

    @property
    def lists_ahead(self) -> bool:
        """False: frames are known once they are decoded."""
        return False

    @property
    def work(self) -> SourceWork:
        """Decoding and converting; see `protocols.WorksForJobs`."""
        return SourceWork(
            does=f"decodes frames with {pluralize(self._threads, 'thread')} and converts them, one clip after another",
            is_decoding=True,
            cheaper=(
                *self._choice.cheaper(),
                f"decode with more threads, where cores are free: threads={2 * self._threads}",
            ),
            threads=self._threads,
            jobs_ahead=_DEPTH,
            **self._measured(),
        )

    def _measured(self) -> dict[str, float]:
        """Return what a frame took of the thread that decodes, up to now; empty before there was one."""
        reader = self._reader
        if reader is None or not reader.num_read:
            return {}
        return {
            "cpu_seconds": reader.cpu_seconds / reader.num_read,
            "wait_seconds": reader.wait_seconds / reader.num_read,
        }

    def parts(self) -> Iterator[Entry]:
        """Return the clips, with what tells that one is another file than before."""
        self._found = self._find_clips()
        return (Entry(name, path, _version(path)) for name, path in self._found.items())

    def job_ids(self) -> Callable[[str], bool]:
        """Return what tells whether a frame may have an id."""
        names = self._known_clips().keys()
        return lambda item: _split(item)[0] in names

    def owns(self, item: str) -> bool:
        """Return whether a frame is of a clip that is read here."""
        return self._holds(_split(item)[0])

    def with_parts(self, name: str, holds: Callable[[str], bool]) -> Video:
        """Return the same with those clips alone whose name is held."""
        part = copy.copy(self)
        part.__dict__.update(_portion=f"{name} of ", _holds=holds)
        return part

    def entries(self) -> Iterator[Entry]:
        """Decode all clips in the caller's thread, and give their frames.

        Raises:
            SourceError: If there is no clip; names the path.
            MissingExtra: If PyAV is not installed.
        """
        require_device(self._device)
        return (entry for entry, _ in self._read(self._find_clips(), None) if entry is not None)

    def remaining(self) -> Iterator[Entry | None]:
        """Return the frames of a run, read ahead."""
        require_device(self._device)
        self._totals = {}
        clips = self._known_clips()
        self._found = None  # the next run may find others
        read = self._read_around(clips) if self._goes_around else self._read(clips, self._work_list)
        self._reader = ReadAhead(read, _DEPTH, "video")
        return self._take_counted(self._reader)

    def _rounds(self) -> Iterator[Entry | None]:
        return self.remaining()  # its thread goes around

    def _read_around(self, clips: Mapping[str, Path]) -> Generator[_Counted, None, None]:
        """Give the frames again and again, with the counts of their own turn."""
        for turn in itertools.count(1):
            num_read = 0
            for entry, counts in self._read(clips, None):
                num_read += entry is not None
                yield entry and entry.again(turn), counts
            if not num_read:
                return

    def follow(self, work_list: WorkList | None) -> None:
        """Give out what a work list leaves, its suspects in the order in which they are decoded."""
        if work_list is not None:
            places = {name: place for place, name in enumerate(self._known_clips())}
            order = {one.id: _split(one.id) for one in work_list.entries}
            ordered = sorted(work_list.entries, key=lambda one: (places[order[one.id][0]], order[one.id][1] or 0))
            work_list = replace(work_list, entries=ordered)
        super().follow(work_list)

    def open(self, settings: SourcePlan) -> None:
        """Find the clips, and begin to decode."""
        super().open(settings)
        opened = self._require_open()
        opened.most_waiting = _MOST_WAITING
        assert self._reader is not None
        self._reader.start(opened.notify)

    def notes(self) -> dict[str, int]:
        """Return what was decoded, given, skipped and damaged, up to the last frame that was received: `video.*`."""
        return {**super().notes(), **{f"video.{name}": number for name, number in self._totals.items() if number}}

    def close(self) -> None:
        """End it; what was decoded ahead is dropped, and not counted."""
        super().close()
        self._found = None
        if self._reader is not None:
            self._reader.close()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the state of a run behind when pickled."""
        return {**super().__getstate__(), "_found": None, "_reader": None, "_totals": {}}

    def _known_clips(self) -> dict[str, Path]:
        if self._found is None:
            self._found = self._find_clips()
        return self._found

    def _find_clips(self) -> dict[str, Path]:
        """Return {name: file}, sorted; names are relative to the folder that holds all that was named."""
        files, root = find_all_files(self._paths, patterns=VIDEO_PATTERNS, tells_others=True)
        clips = {encodable(file.relative_to(root).as_posix()): file for file in files}
        if len(clips) < len(files):
            raise SourceError(f"two clips below {root} have one name once it is written as text; rename one")
        return {name: file for name, file in clips.items() if self._holds(name)}

    def _read(self, clips: Mapping[str, Path], work_list: WorkList | None) -> Generator[_Counted, None, None]:
        """Give the frames, each with the counts up to it, and last the counts alone."""
        counts: Counter[str] = Counter()
        ended: set[str] = set()
        if work_list is not None:
            ended = set(work_list.ended)
            yield from self._suspects(clips, [entry.id for entry in work_list.entries], counts)
            ended |= {entry.id for entry in work_list.entries}
        for name, path in clips.items():
            for frame in self._frames(name, path, counts, lambda item: item not in ended):
                entry = _entry_of(name, frame)
                if entry.id not in ended:  # a refusal that an earlier start of the run noted
                    yield entry, dict(counts)
        yield None, dict(counts)

    def _suspects(self, clips: Mapping[str, Path], suspects: Sequence[str], counts: Counter[str]) -> Iterator[_Counted]:
        """Give these frames, which are sorted, and a refusal for one that does not come any more."""
        for name, path in clips.items():
            wanted = {item for item in suspects if _split(item)[0] == name}
            came = set()
            if wanted:
                for frame in self._frames(name, path, counts, wanted.__contains__):
                    entry = _entry_of(name, frame)
                    if entry.id in wanted:
                        came.add(entry.id)
                        yield entry, dict(counts)
            for item in (one for one in suspects if one in wanted - came):
                yield Entry(item, b"", refused="video.gone: the clip has no such frame any more"), dict(counts)

    def _frames(self, name: str, path: Path, counts: Counter[str], is_wanted: Callable[[str], bool]) -> Iterator[Frame]:
        """Give the frames of a clip whose id is wanted."""
        return Clip(path, name, self._choice, counts, self._threads, self._device).frames(
            lambda number: is_wanted(f"{name}#{number}")
        )

    def _take_counted(self, reader: ReadAhead[_Counted]) -> Iterator[Entry | None]:
        for counted in reader:
            if counted is None:
                yield None
                continue
            entry, self._totals = counted
            if entry is not None:
                yield entry


def open_address(address: str, *, drain: bool = False) -> Video:
    """Return the source at `video://PATH?every=5&keyframes=yes&size=224x224&motion=0.005`; each parameter may be left out.

    Args:
        address: A file, folder or pattern behind `video://`; `video:///clips` is absolute.
        drain: Unused: the source has an end.

    Raises:
        SettingsError: If a parameter cannot be understood.
    """
    # Not by urlsplit: `?` and `#` may stand in a pattern or a name.
    path, mark, query = address.partition("://")[2].rpartition("?")
    if not mark or "=" not in query:
        path, query = address.partition("://")[2], ""
    if not path:
        raise SettingsError(f"{address} names no files; expected video://clips/ or video://clip.mp4?every=5")
    options: dict[str, Any] = {}
    for part in filter(None, query.split("&")):
        key, _, value = part.partition("=")
        if key not in _READERS:
            raise unknown_key(key, f"the address {address}", _READERS)
        try:
            options[key] = _READERS[key](value)
        except (ValueError, KeyError):
            raise SettingsError(
                f"the address {address} has {key}={value}; expected every=5, fps=2.5, keyframes=yes, references=yes, "
                "size=224x224, region=0,0.5,1,1, motion=0.005, threads=2 or device=cuda"
            ) from None
    return Video(path, **options)


def _version(path: Path) -> dict[str, int]:
    """Return the size of a file and when it was written, as far as they are known."""
    try:
        status = path.stat()
    except OSError:
        return {}
    return {"bytes": status.st_size, "written_ns": status.st_mtime_ns}


def _entry_of(name: str, frame: Frame) -> Entry:
    if frame.image is None:
        # A frame that cannot be converted has its own number; what ends a clip has none.
        is_frame = frame.refused.startswith("video.convert")
        return Entry(f"{name}#{frame.number if is_frame else ''}", b"", refused=frame.refused, stream=name)
    attributes: dict[str, Any] = {"stream": name, "frame": frame.number, "seconds": frame.seconds}
    if frame.is_corrupt:
        attributes["corrupt"] = True
    return Entry(f"{name}#{frame.number}", frame.image, attributes, stream=name, sequence=frame.number)


def _all(name: str) -> bool:
    return True


def _split(item: str) -> tuple[str, int | None]:
    """Return the clip and the number of an id; no number if it is of a clip as a whole, an empty name if it is no id."""
    parts = _ID.fullmatch(item)
    return (parts["clip"], int(parts["number"]) if parts["number"] else None) if parts else ("", None)


#: {parameter of an address: what reads its value}.
_READERS: dict[str, Callable[[str], Any]] = {
    "every": int,
    "fps": float,
    "keyframes": parse_yes,
    "references": parse_yes,
    "size": parse_size,
    "region": parse_region,
    "motion": float,
    "threads": int,
    "device": str,
}
