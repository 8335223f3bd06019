"""Run every decoder over good, odd and damaged files, at sizes that make every branch run: `make fuzz`.

    python tools/fuzz_decoders.py [FOLDER ...] --seconds 600     # public corpora that you have put there, and damaged copies
    python tools/fuzz_decoders.py --file build/fuzz/crash-1a2b   # one file again, in this process

How this works. The cases are numbered: first every file of the folders and of `benchmarks.hostile_inputs`, then copies of them
with a seeded dose of damage. Child processes examine them by turns and say which one they begin, so that one which dies or
does not end names its culprit: the parent keeps that file, and a new child goes on behind it. Children run with glibc's checks
of the heap where it has them.

What is looked at, for every file: each decoder of a Plan, with JPEGs reduced by 1, 2, 4 and 8, and short and long sides from 8
to 512.
Found is a crash, a hang, an exception without a code, a byte written behind a buffer of ours, an image of another size than the
header says, verdicts that depend on the decoder, or pixels that do.

Good places for files: libjpeg-turbo/seed-corpora, python-pillow/Pillow, image-rs/image, image-rs/image-png, google/wuffs.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import hashlib
import json
import os
import queue
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from headrace.base.errors import DecodeRejected
from headrace.base.plan import DecodePlan
from headrace.stages.decode import DecodeChain
from headrace.stages.decode_limits import factor_of
from headrace.stages.decoders import read_jpeg, reduced_size
from headrace.stages.image_header import ImageHeader, image_format, read_header
from headrace.stages.images import fit
from headrace.stages.inputs import ImageInput

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.hostile_inputs import binary
from benchmarks.hostile_inputs.files import odd_files, unusual_jpegs
from benchmarks.hostile_inputs.mutations import DAMAGES, good_files

FACTORS = (1, 2, 4, 8)
DECODERS = ("auto", "opencv", "pillow")
FORMATS = ("jpeg", "png", "webp", "gif", "bmp", "tiff")
MOST_BYTES, MOST_PIXELS = 4_000_000, 16_000_000
_CANARY_BYTES = 4_000_000
#: Mean difference in grey levels from which the pixels of two decoders are not the same picture; JPEG: two formulas for CMYK.
_MOST_DIFFERENCE = {"jpeg": 8.0}
#: A child imports, and makes our own files.
_START_SECONDS = 60
_MALLOC_DEBUG = "libc_malloc_debug.so.0"


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something that must not be."""

    kind: str
    """`crash`, `hang`, `untyped`, `overflow`, `size`, `verdict` or `pixels`."""
    what: str
    """In words."""


class Cases:
    """Numbered inputs: as they are, then damaged ones without end.

    Args:
        folders: Searched for files, also below.
        seed: Equal seeds give equal damage.
    """

    def __init__(self, folders: Sequence[Path], seed: int) -> None:
        self._seed = seed
        own = {**good_files(), **unusual_jpegs(), **odd_files()}
        self._own = [(f"own: {kind}", data) for kind, data in own.items() if "Mpx" not in kind]
        self._files = sorted(
            Path(root, name) for folder in folders for root, _, names in os.walk(folder) for name in names
        )
        random.Random(seed).shuffle(self._files)
        self.num_whole = len(self._own) + len(self._files)
        """Cases that are not damaged by us."""

    def __getitem__(self, index: int) -> tuple[str, bytes]:
        """Return the name and the bytes of a case."""
        if index < self.num_whole:
            return self._whole(index)
        rng = random.Random(f"{self._seed} {index}")
        name, data = self._whole(rng.randrange(self.num_whole))
        doses = [rng.choice(sorted(_DOSES)) for _ in range(rng.choice((1, 1, 2, 4)))]
        for dose in doses:
            data = damaged(data, dose, rng)
        return f"{name}: {', '.join(doses)}, case {index}", data[:MOST_BYTES]

    def _whole(self, index: int) -> tuple[str, bytes]:
        if index < len(self._own):
            return self._own[index]
        path = self._files[index - len(self._own)]
        with path.open("rb") as file:
            return str(path), file.read(MOST_BYTES)


def damaged(data: bytes, dose: str, rng: random.Random) -> bytes:
    """Return a damaged copy; the same file where it is too small or too odd for that damage."""
    try:
        return _DOSES[dose](data, rng)
    except (ValueError, IndexError):
        return data


def _another_kind(data: bytes, rng: random.Random) -> bytes:
    return binary.with_jpeg_kind(data, rng.randrange(16), rng.choice((8, 8, 8, 12, 16)))


def _another_size(data: bytes, rng: random.Random) -> bytes:
    return binary.with_jpeg_size(data, rng.choice((1, 7, 8, 63, 64, 1000)), rng.choice((1, 7, 8, 63, 64, 1000)))


_DOSES = {name: spoil for name, (spoil, _) in DAMAGES.items()}
_DOSES |= {"another kind of jpeg": _another_kind, "another size of jpeg": _another_size}


def examine(data: bytes, *, every: bool, counts: collections.Counter[str]) -> Iterator[Finding]:
    """Yield what is wrong about the decoders on one file, at once: the next call may be the last.

    Args:
        data: The file.
        every: Whether to try every size; two of them else.
        counts: Where to count what was run.
    """
    header = known_header(data)
    wanted: list[ImageInput | None] = [_short(64), _long(64)]
    if header is not None and header.format == "jpeg":
        if header.height * header.width <= MOST_PIXELS:
            yield from check_canaries(data, header, counts)
        shorter, longer = sorted((header.height, header.width))
        short_sides = sorted({min(512, max(8, shorter // factor)) for factor in FACTORS})
        long_sides = sorted({min(512, max(8, longer // factor)) for factor in FACTORS})
        wanted = [None, *map(_short, short_sides), *map(_long, long_sides)]
        if not every:
            wanted = random.Random(data[:4096]).sample(wanted, min(2, len(wanted)))
    for one in wanted:
        ends = {decoder: decode_end(data, header, decoder, one, counts) for decoder in DECODERS}
        yield from (end for end in ends.values() if isinstance(end, Finding))
        yield from compare(ends, header, one)
    blended = decode_end(data, header, "auto", None, counts, background="#204060")
    if isinstance(blended, Finding):
        yield blended


def _short(side: int) -> ImageInput:
    return ImageInput(short_side=side, crop=side)


def _long(side: int) -> ImageInput:
    return ImageInput(long_side=side, pad="#727272")


def known_header(data: bytes) -> ImageHeader | None:
    """Return the header of a file of a known format; None for any other."""
    format_ = image_format(data)
    try:
        return None if format_ is None else read_header(data, format_)
    except DecodeRejected:
        return None


def _plan(decoder: str) -> DecodePlan:
    return DecodePlan(decoder=decoder, formats=FORMATS, max_pixels=MOST_PIXELS)


def check_canaries(data: bytes, header: ImageHeader, counts: collections.Counter[str]) -> Iterator[Finding]:
    """Yield a finding for each call that writes behind the buffer it was given."""
    for factor in FACTORS:
        height, width = reduced_size(header, factor)
        for colorspace, channels in (("RGB", 3), ("GRAY", 1), ("CMYK", 4)):
            num_bytes = height * width * channels
            buffer = np.empty(num_bytes + _CANARY_BYTES, np.uint8)
            buffer[num_bytes:] = 0xA5
            counts[f"canary, factor {factor}"] += 1
            try:
                read_jpeg(data, header, factor, colorspace, buffer, is_fast=factor > 1)
            except ValueError:
                counts[f"canary refused, factor {factor}"] += 1
            written = int((buffer[num_bytes:] != 0xA5).sum())
            if written:
                yield Finding(
                    "overflow", f"{written:,} bytes behind {num_bytes:,}, reduced by {factor} to {colorspace}"
                )


def decode_end(
    data: bytes,
    header: ImageHeader | None,
    decoder: str,
    wanted: ImageInput | None,
    counts: collections.Counter[str],
    *,
    background: str | None = None,
) -> np.ndarray | str | Finding:
    """Return the image that one way of decoding gives, the code of its rejection, or what is wrong."""
    where = f"decoder = {decoder}, {_shown(wanted)}, background = {background}"
    short_side, long_side = (None, None) if wanted is None else (wanted.short_side, wanted.long_side)
    try:
        chain = DecodeChain(
            *(_plan(decoder), short_side, counts), reuse_buffer=True, background=background, long_side=long_side
        )
        image = chain.decode(data)
        if wanted is not None:
            fit(image, wanted)
    except DecodeRejected as rejected:
        return rejected.code
    except Exception as error:  # what this looks for
        return Finding("untyped", f"{where}: {type(error).__name__}: {error}")
    if header is None:
        return Finding("verdict", f"{where}: decoded although its header is refused")
    factor = factor_of(header, short_side or 0, long_side or 0)
    counts[f"decoded {header.format}, {decoder}, factor {factor}"] += 1
    counts[f"decoded by its {'long' if long_side else 'short'} side, factor {factor}"] += 1
    expected = reduced_size(header, factor)
    if image.shape[:2] not in (expected, expected[::-1]):  # turned, by its orientation
        return Finding("size", f"{where}: {image.shape} where the header says {expected}")
    return image


def _shown(wanted: ImageInput | None) -> str:
    if wanted is None:
        return "every pixel"
    return f"long_side = {wanted.long_side}" if wanted.long_side else f"short_side = {wanted.short_side}"


def compare(
    ends: dict[str, np.ndarray | str | Finding], header: ImageHeader | None, wanted: ImageInput | None
) -> Iterator[Finding]:
    """Yield findings where the decoders of a Plan do not agree on one file."""
    verdicts = {name: "ok" if isinstance(end, np.ndarray) else str(end) for name, end in ends.items()}
    if len(set(verdicts.values())) > 1:
        yield Finding("verdict", f"{_shown(wanted)}: {verdicts}")
        return
    if header is not None and header.format == "jpeg" and wanted is not None:
        return  # the fast transforms overflow otherwise than the exact ones where coefficients are nonsense
    first = ends["auto"]
    for name, other in ends.items():
        if header is None or not isinstance(first, np.ndarray) or not isinstance(other, np.ndarray):
            continue
        difference = float(np.abs(first.astype(np.int16) - other).mean())
        if difference > _MOST_DIFFERENCE.get(header.format, 1.0):
            yield Finding("pixels", f"{header.format}, {_shown(wanted)}: {name} differs by {difference:.0f}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How long, over what, and where findings are kept."""

    folders: Sequence[Path] = ()
    seconds: float = 300.0
    seed: int = 1
    num_cases: int | None = None
    """At most; None: until the time is over."""
    limit_seconds: float = 60.0
    """A case that takes longer is a hang."""
    keep: Path = Path("build/fuzz")
    workers: int = os.cpu_count() or 1
    program: Path = Path(__file__)


def child(settings: Settings, first: int, step: int) -> None:
    """Examine every `step`-th case; say on stdout which one begins, what was found, and at the end what was run."""
    cases, counts = Cases(settings.folders, settings.seed), collections.Counter[str]()
    end, index = time.monotonic() + settings.seconds, first
    while time.monotonic() < end and (settings.num_cases is None or index < settings.num_cases):
        print(json.dumps({"begin": index}), flush=True)
        for finding in examine(cases[index][1], every=index < cases.num_whole, counts=counts):
            print(json.dumps({"index": index, **dataclasses.asdict(finding)}), flush=True)
        index += step
        if index % 64 < step:
            print(json.dumps({"counts": counts}), flush=True)
            counts.clear()
    print(json.dumps({"counts": counts}), flush=True)


class Campaign:
    """The parent: starts children, watches them, keeps what they find."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._cases = Cases(settings.folders, settings.seed)
        self._end = time.monotonic() + settings.seconds
        self._lock = threading.Lock()
        self._seen: collections.Counter[tuple[str, str]] = collections.Counter()
        self.counts: collections.Counter[str] = collections.Counter()
        self.begun = 0
        self.num_found = 0

    def run(self) -> int:
        """Return the number of findings when the time is over."""
        threads = [
            threading.Thread(target=self._watch, args=(number,), daemon=True)
            for number in range(self._settings.workers)
        ]
        for thread in threads:
            thread.start()
        told = time.monotonic()
        while any(thread.is_alive() for thread in threads):
            threads[0].join(0.2)
            threads[-1].join(0.2)
            if time.monotonic() - told > 10:
                told = time.monotonic()
                print(f"{max(0.0, self._end - told):.0f} s left: {self._sum()}", file=sys.stderr, flush=True)
        return self.num_found

    def _sum(self) -> str:
        whole = min(self.begun, self._cases.num_whole)
        return (
            f"{whole:,} of {self._cases.num_whole:,} files, {self.begun - whole:,} damaged copies, "
            f"{self.num_found} findings"
        )

    def report(self) -> str:
        """Return what was run, in words."""
        lines = [self._sum(), *(f"{number:>10,} {what}" for what, number in sorted(self.counts.items()))]
        return "\n".join(lines)

    def _watch(self, first: int) -> None:
        """Run one child after the other until the time or the cases are over; each begins behind the last one's culprit."""
        while time.monotonic() < self._end:
            culprit = self._watch_one(first)
            if culprit is None:
                return
            first = culprit + self._settings.workers

    def _watch_one(self, first: int) -> int | None:
        """Run a child and return the case that it died of; None if it came to its end."""
        left = max(0.1, self._end - time.monotonic())
        command = [sys.executable, "-X", "faulthandler", str(self._settings.program), "--child", str(first)]
        command += [*map(str, self._settings.folders), *self._arguments(left)]
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, **_heap_checks()}
            )
            index, is_hung = self._listen(process)
            code = process.wait()
            errors.seek(0)
            said = errors.read()[-1500:]
        if is_hung:
            self._found(index, Finding("hang", f"longer than {self._settings.limit_seconds:.0f} s"))
        elif code:
            self._found(index, Finding("crash", f"ended with code {code}: {said}"))
        else:
            return None
        return max(first, index)

    def _arguments(self, seconds: float) -> list[str]:
        settings = self._settings
        cases = [] if settings.num_cases is None else ["--cases", str(settings.num_cases)]
        return ["--seconds", str(seconds), "--seed", str(settings.seed), "--workers", str(settings.workers), *cases]

    def _listen(self, process: subprocess.Popen[str]) -> tuple[int, bool]:
        """Take what a child says until it ends; return the case it began last, and whether it was killed for its silence."""
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=_read_lines, args=(process, lines), daemon=True).start()
        index = -1
        while True:
            limit = self._settings.limit_seconds + (_START_SECONDS if index < 0 else 0)
            try:
                line = lines.get(timeout=limit)
            except queue.Empty:
                process.kill()
                return index, True
            if line is None:
                return index, False
            said = json.loads(line)
            with self._lock:
                if "begin" in said:
                    index = said["begin"]
                    self.begun += 1
                elif "counts" in said:
                    self.counts.update(said["counts"])
            if "kind" in said:
                self._found(said["index"], Finding(said["kind"], said["what"]))

    def _found(self, index: int, finding: Finding) -> None:
        """Keep the file of a finding and say how to see it again; of findings that read alike the first five."""
        name, data = self._cases[index] if index >= 0 else ("no case", b"")
        signature = finding.kind, re.sub(r"\d+", "0", finding.what)[:200]
        with self._lock:
            self.num_found += 1
            self._seen[signature] += 1
            if self._seen[signature] > 5:
                return
        self._settings.keep.mkdir(parents=True, exist_ok=True)
        path = self._settings.keep / f"{finding.kind}-{hashlib.sha256(data).hexdigest()[:12]}"
        path.write_bytes(data)
        print(f"{finding.kind}: {name!r}: {finding.what}", flush=True)
        print(f"    see it again: {sys.executable} tools/fuzz_decoders.py --file {path}", flush=True)


def _read_lines(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            lines.put(line)
    lines.put(None)


def _heap_checks() -> dict[str, str]:
    """Return the environment in which glibc looks for damage at every release of memory; nothing where it cannot."""
    probe = {**os.environ, "LD_PRELOAD": _MALLOC_DEBUG}
    tried = subprocess.run([sys.executable, "-c", ""], env=probe, capture_output=True, check=False)
    if tried.returncode or tried.stderr:
        return {}
    return {"LD_PRELOAD": _MALLOC_DEBUG, "GLIBC_TUNABLES": "glibc.malloc.check=3", "MALLOC_PERTURB_": "165"}


def again(path: Path) -> int:
    """Examine one file in this process and print what is found; 1 if anything is."""
    counts = collections.Counter[str]()
    findings = list(examine(path.read_bytes(), every=True, counts=counts))
    for finding in findings:
        print(f"{finding.kind}: {finding.what}")
    print("\n".join(f"{number:>10,} {what}" for what, number in sorted(counts.items())))
    return 1 if findings else 0


def main() -> int:
    """Run the campaign; 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="files to try, and to damage")
    parser.add_argument("--seconds", type=float, default=300.0, help="how long (default: 300)")
    parser.add_argument("--cases", type=int, help="how many at most")
    parser.add_argument("--seed", type=int, default=1, help="equal seeds give equal damage")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="child processes")
    parser.add_argument("--file", type=Path, help="examine one file, in this process")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.file:
        return again(args.file)
    missing = [str(folder) for folder in args.folders if not folder.is_dir()]
    if missing:
        parser.error(f"no folder: {', '.join(missing)}")
    settings = Settings(
        folders=args.folders, seconds=args.seconds, seed=args.seed, num_cases=args.cases, workers=args.workers
    )
    if args.child is not None:
        child(settings, args.child, settings.workers)
        return 0
    campaign = Campaign(settings)
    num_found = campaign.run()
    print(campaign.report())
    return 1 if num_found else 0


if __name__ == "__main__":
    sys.exit(main())
