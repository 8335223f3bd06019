"""Tells a story by typing its commands: a profile, the diagnosis, each proposal asked and tried, and a picture of it all.

The slow program is a pipeline, which `headrace profile` runs, or a script that trains, which `headrace train` runs.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from headrace.base.documents import decode_document
from headrace.base.errors import HeadraceError
from headrace.base.formatting import COLUMNS, quote_arg, wrap_lines
from headrace.base.units import format_rate
from headrace.demo.pictures import Outcome, draw_outcomes, draw_waterfall, format_factor
from headrace.demo.stories import Change, Story, read_story
from headrace.diagnose.training.profile import describe_training
from headrace.diagnose.training.steps import read_steps
from headrace.runs.formats.comparison import ComparisonDocument
from headrace.runs.formats.diagnosis import DiagnosisDocument
from headrace.runs.formats.prediction import PredictionDocument
from headrace.runs.formats.profile import ProfileDocument
from headrace.runs.reader import read_run
from headrace.samples.generator import make

#: Where the slow run is profiled into.
RUN = "runs/slow"
#: Pairs of blocks: the fewest that give an interval, so that a story takes less than a minute.
PAIRS = 6
_DIAGNOSING = ["diagnose", RUN]
#: "It cannot be told" is an answer too.
_ACCEPTED = (0, 4)

_Document = TypeVar("_Document")


class CommandFailed(HeadraceError):
    """A command of a story ended as it must not."""


def list_commands(story: Story) -> list[str]:
    """Return what a story types, in this order; nothing where its `story.py` tells it."""
    if not story.slow:
        return []
    asked = [command for change in story.changes for command in (_asking(change), _trying(story, change)) if command]
    return [_as_typed(command) for command in (_profiling(story), _DIAGNOSING, *asked)]


def _profiling(story: Story) -> list[str]:
    if story.is_training:
        return ["train", "-o", RUN, story.slow]
    pipeline, _, plan = story.slow.partition("@")
    return ["profile", pipeline, "--plan", plan, "-o", RUN]


def _asking(change: Change) -> list[str]:
    return ["whatif", RUN, *change.whatif] if change.whatif else []


def _trying(story: Story, change: Change) -> list[str]:
    if not change.tried:
        return []
    if story.is_training:
        return ["train", "compare", story.slow, change.tried, "--blocks", str(PAIRS)]
    return ["compare", story.slow, change.tried, "--blocks", str(PAIRS), "--items", str(story.items)]


def _as_typed(command: list[str]) -> str:
    return f"$ headrace {' '.join(map(quote_arg, command))}"


def tell(folder: Path, write: Callable[[str], None]) -> None:
    """Tell the story whose files a folder holds: by its `story.py` if it has one, else by the commands that its kind has.

    Raises:
        CommandFailed: If a command failed.
    """
    program = folder / "story.py"
    if not program.exists():
        Telling(read_story(folder), folder, write).tell()
        return
    # It writes beside its files, so that its commands can be typed where both are.
    with subprocess.Popen(
        [sys.executable, "-u", "story.py", "."], cwd=folder, stdout=subprocess.PIPE, text=True
    ) as told:
        for line in told.stdout or ():
            write(line.rstrip("\n"))
    if told.returncode:
        raise CommandFailed(f"{program} ended with {told.returncode}")


class Telling:
    """One story, being told in a folder that holds a copy of its files.

    Args:
        story: What `story.toml` says.
        folder: Runs, results and photographs are written there.
        write: Takes the next line.
    """

    def __init__(self, story: Story, folder: Path, write: Callable[[str], None]) -> None:
        self._story = story
        self._folder = folder
        self._write = write

    def tell(self) -> None:
        """Type all commands and write what came of them.

        Raises:
            CommandFailed: If a command failed, or the program needs a package that is not installed.
        """
        story = self._story
        if missing := [name for name in story.needs if find_spec(name) is None]:
            raise CommandFailed(f"this story's program needs {', '.join(missing)}: pip install {' '.join(missing)}")
        self._tell(story.title, "=" * len(story.title), f"What people believed: {story.believed}")
        self._prepare()
        self._record() if story.is_training else self._profile()
        self._diagnose()
        outcomes = [self._propose(change) for change in story.changes]
        self._say("", *draw_outcomes(outcomes), "")
        self._tell(story.learned, story.emulated)

    def _prepare(self) -> None:
        """Write what the pipeline reads."""
        if self._story.photos:
            make(self._folder / "photos", count=self._story.photos, seed=1, split="held_out")
        if program := self._story.prepare:
            self._write(f"\n$ python {program}")
            self._run([sys.executable, program])

    def _profile(self) -> None:
        found = self._type(_profiling(self._story), ProfileDocument)
        if found and found.throughput:
            self._say(f"  {format_rate(found.throughput)}; the service of an item, stage after stage (waits left out):")
            services = [(stage.name, stage.service.mean or 0.0) for stage in found.stages]
            self._say(*(f"  {line}" for line in draw_waterfall(services)))

    def _record(self) -> None:
        """Record the training; what `headrace train` prints of it is drawn shorter."""
        command = _profiling(self._story)
        self._write(f"\n{_as_typed(command)}")
        self._run([sys.executable, "-m", "headrace", *command])
        run = read_run(self._folder / RUN)
        ranks = describe_training(run, read_steps(run)).ranks
        if ranks and ranks[0].samples_per_second:
            self._say(f"  {ranks[0].samples_per_second:.4g} samples/s; a step, phase after phase:")
            self._say(*(f"  {line}" for line in draw_waterfall([(one.phase, one.seconds) for one in ranks[0].phases])))

    def _diagnose(self) -> None:
        found = self._type(_DIAGNOSING, DiagnosisDocument)
        if not found:
            return
        self._say(f"  {found.first.title}   [confidence: {found.first.confidence}]", f"    {found.first.says}")
        if found.runner_up:
            self._say(f"  runner-up: {found.runner_up.title}")

    def _propose(self, change: Change) -> Outcome:
        """Ask what a proposal would bring, and try it."""
        self._say("", change.asks)
        predicted = self._type(_asking(change), PredictionDocument)
        if predicted and (metric := predicted.throughput):
            self._say(f"  predicted: {format_factor(metric.ratio) if metric.ratio else metric.refused}")
            self._say(f"  {predicted.limit_after}")
        measured = self._type(_trying(self._story, change), ComparisonDocument)
        if measured:
            self._say(*(f"  {line}" for line in measured.says[:1]))
        return Outcome(change.name, predicted, measured)

    def _type(self, command: list[str], kind: type[_Document]) -> _Document | None:
        """Show a command, run it, and return the document that it prints; None without a command, or where it said why not."""
        if not command:
            return None
        self._write(f"\n{_as_typed(command)}")
        done = self._run([sys.executable, "-m", "headrace", *command, "--json"])
        if not done.stdout:
            self._say(*(f"  {line}" for line in done.stderr.splitlines()[-1:]))
            return None
        return decode_document(done.stdout, kind)

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(command, cwd=self._folder, capture_output=True, text=True, check=False)
        if done.returncode not in _ACCEPTED:
            raise CommandFailed(f"{' '.join(command[1:])} ended with {done.returncode}: {done.stderr.strip()}")
        return done

    def _tell(self, *sentences: str) -> None:
        for text in sentences:
            self._write(textwrap.fill(text, COLUMNS))

    def _say(self, *lines: str) -> None:
        for line in wrap_lines(lines):
            self._write(line)
