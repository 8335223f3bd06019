"""README, the tutorial and the guides are followed as a reader would: every command, in order, on the files of the page.

A page is run in a folder of its own. "Save this as `NAME`:" before a block makes the file; of a block whose first word is a
program's every line is typed; of a transcript those that begin with `$ `; and Python that imports what it needs is run. What a
page takes from another one it says in a paragraph that begins with "Commands use": the sections that this links to come first.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.sources.addresses import open_queue
from headrace.testing import Receiver

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "examples/README.md", "docs/tutorial/first-pipeline.md"]
PAGES += sorted(str(file.relative_to(ROOT)) for file in (ROOT / "docs" / "guides").glob("*.md"))


@dataclass(frozen=True)
class Mark:
    """Steps of a page that are not simply run.

    Attributes:
        page: The page.
        start: How the steps begin.
        how: Words. `elsewhere`: never run here; `minutes`: only by `make test-slow`; `endless`: Ctrl-C is typed once the page's
            queue is empty.
        reason: Why, for those that read this list.
    """

    page: str
    start: str
    how: str
    reason: str


MARKS = [
    Mark("docs/guides/diagnosing.md", "headrace", "minutes", "a walk with comparisons and a search"),
    Mark(
        "docs/guides/faults.md",
        "python -m benchmarks.faults F8 --dose 2 --fixed",
        "minutes",
        "like the one before",
    ),
    Mark("docs/guides/packing.md", "import datasets", "elsewhere", "a package that headrace does not need"),
    Mark("docs/guides/traces.md", "headrace train read rank0", "elsewhere", "traces of several GPUs"),
    Mark("docs/guides/layers.md", "from pathlib", "minutes", "half a minute of a machine with one core to spare"),
    Mark(
        "docs/guides/faults.md",
        "python -m benchmarks.faults F8 --dose 2 --cost",
        "minutes",
        "blocks of two in turn",
    ),
    Mark("docs/guides/faults.md", "from benchmarks", "minutes", "blocks of two in turn"),
    Mark("docs/guides/faults.md", "python -m benchmarks.truth --full", "elsewhere", "an hour of cases"),
    Mark("docs/guides/faults.md", "python -m benchmarks.truth --rescore", "elsewhere", "of that hour"),
    Mark(
        "docs/guides/faults.md",
        "python -m benchmarks.truth --quick",
        "elsewhere",
        "tests/unit/benchmarks/test_truth.py does it",
    ),
    Mark("docs/guides/optimizing.md", "headrace", "minutes", "a search, and what rests on it"),
    Mark("docs/guides/optimizing.md", "cp", "minutes", "of what the search made"),
    Mark("docs/guides/optimizing.md", "printf", "minutes", "of the search"),
    Mark("docs/guides/optimizing.md", "cat", "minutes", "of what the search wrote"),
    Mark("docs/guides/optimizing.md", "wc", "minutes", "of what was run"),
    Mark(
        "docs/guides/optimizing.md",
        "headrace optimize training:recipe",
        "elsewhere",
        "it needs a network of yours, and PyTorch",
    ),
    Mark("docs/guides/optimizing.md", "from headrace.engines.networks", "elsewhere", "it needs a network of yours"),
    Mark("docs/guides/stories.md", "headrace demo nms", "minutes", "blocks of two in turn"),
    Mark("README.md", "pip install", "elsewhere", "it installs; `.ci/run` does the like"),
    Mark("README.md", "make ", "elsewhere", "these make an environment of their own; `.ci/run` does"),
    Mark("README.md", "headrace run jobs.py:pipeline --allow localhost", "endless", "it serves a queue"),
    Mark("README.md", "headrace tune", "minutes", "some Plans are measured in turn"),
    Mark(
        "docs/guides/canary.md",
        "headrace",
        "elsewhere",
        "`python -m benchmarks.canary_story` types what the page shows",
    ),
    Mark(
        "docs/guides/comparing.md", "headrace gate", "elsewhere", "tests/integration/monitor/test_gate.py has checkouts"
    ),
    Mark(
        "docs/guides/batch-size.md", "headrace train", "minutes", "a process that imports PyTorch for each batch size"
    ),
    Mark("docs/guides/ranks.md", "headrace", "minutes", "three processes that import PyTorch"),
    Mark("docs/guides/comparing.md", "headrace compare", "minutes", "20 pairs of blocks and more"),
    Mark("docs/guides/comparing.md", "from jobs import", "minutes", "24 pairs of blocks"),
    Mark("docs/guides/deploying.md", "make image", "elsewhere", "it needs docker, podman or buildah"),
    Mark("docs/guides/deploying.md", "docker ", "elsewhere", "it needs docker"),
    Mark(
        "docs/guides/deploying.md",
        "pip install",
        "elsewhere",
        "it installs, in a network; tests/integration/supply does the like",
    ),
    Mark(
        "docs/guides/from-celery.md", "import", "elsewhere", "tests/unit/test_guides_run.py runs them, with receivers"
    ),
    Mark("docs/guides/from-celery.md", "from", "elsewhere", "tests/unit/test_guides_run.py runs them, with receivers"),
    Mark(
        "docs/guides/from-sqs-worker.md",
        "import",
        "elsewhere",
        "sources/test_guide_of_sqs_workers.py runs it, with moto",
    ),
    Mark(
        "docs/guides/from-sqs-worker.md",
        "headrace",
        "elsewhere",
        "sources/test_guide_of_sqs_workers.py runs them, with moto",
    ),
    Mark("docs/guides/small-devices.md", "pip install", "elsewhere", "it asks the index"),
    Mark("docs/guides/object-stores.md", "pip install", "elsewhere", "it installs; the extra is in `dev`"),
    Mark("docs/guides/databases.md", "pip install", "elsewhere", "it installs; the extra is in `dev`"),
    Mark("docs/guides/databases.md", "headrace run", "elsewhere", "it writes to a server of the reader's"),
    Mark("docs/guides/ray.md", "pip install", "elsewhere", "it installs; the extra is in requirements/full.txt"),
    Mark("docs/guides/ray.md", "headrace", "minutes", "a Ray cluster of its own"),
    Mark("docs/guides/ray.md", "from", "minutes", "a Ray cluster of its own"),
    Mark("docs/guides/video.md", "pip install", "elsewhere", "it installs; the extra is in requirements/full.txt"),
    Mark(
        "docs/guides/video.md", "headrace", "elsewhere", "sources/test_video.py runs the like, on clips that it makes"
    ),
    Mark(
        "docs/guides/capacity.md",
        "headrace profile jobs.py:pipeline --source 'video:",
        "elsewhere",
        "sources/test_video.py runs the like, on clips that it makes",
    ),
    Mark("docs/guides/capacity.md", "headrace capacity runs/clips", "elsewhere", "sources/test_video.py runs the like"),
    Mark("docs/guides/video.md", "import", "elsewhere", "sources/test_video.py runs the like, on clips that it makes"),
    Mark("docs/guides/object-stores.md", "headrace", "elsewhere", "store/test_objects.py runs the like, with moto"),
    Mark("docs/guides/extending.md", "pip", "elsewhere", "it installs; tests/integration/examples/test_plugin.py does"),
    Mark("docs/guides/extending.md", "headrace", "elsewhere", "of what was installed, like the one before"),
    Mark("docs/guides/hot-spots.md", "from headrace.profiler.nvtx", "elsewhere", "it needs a GPU"),
    Mark("docs/guides/experiments.md", "headrace profile", "minutes", "the experiment takes up to a minute"),
    Mark("docs/guides/experiments.md", "headrace diagnose", "minutes", "another one, on the recorded run's pipeline"),
    Mark("docs/guides/isolation.md", "headrace profile", "minutes", "each stage runs at each setting"),
    Mark("docs/guides/isolation.md", "from jobs import", "minutes", "each stage runs at each setting"),
    Mark("docs/guides/loop.md", "headrace loop", "minutes", "a search, with its proof"),
    Mark("docs/guides/loop.md", "headrace ledger", "minutes", "of what the loop wrote"),
    Mark("docs/guides/ladder.md", "headrace ladder", "minutes", "some Plans are measured in turn"),
    Mark("docs/guides/ladder.md", "from jobs import", "minutes", "some Plans are measured in turn"),
    Mark(
        "docs/guides/own-stages.md",
        "import",
        "elsewhere",
        "tests/unit/test_guides_run.py runs them, and looks at the results",
    ),
    Mark("docs/guides/board.md", "headrace board runs/", "elsewhere", "monitor/test_board.py opens it in a browser"),
    Mark("docs/guides/reviewing.md", "headrace review reviews --port", "elsewhere", "it serves a page until Ctrl-C"),
    Mark(
        "docs/guides/serving.md", "headrace", "elsewhere", "tests/integration/serve asks services of its own, likewise"
    ),
    Mark(
        "docs/guides/monitoring.md",
        "headrace run",
        "elsewhere",
        "it goes on for ever; tests/integration/monitor/test_metrics.py runs the like",
    ),
    Mark("docs/guides/monitoring.md", "headrace serve", "elsewhere", "like the one before"),
    Mark("docs/guides/monitoring.md", "headrace fleet", "elsewhere", "of those that go on for ever"),
    Mark(
        "docs/guides/monitoring.md",
        "headrace monitor check",
        "elsewhere",
        "monitor/test_rules_on_prometheus.py does it",
    ),
    Mark("docs/guides/monitoring.md", "pip install", "elsewhere", "it installs, in a network"),
    Mark(
        "docs/guides/monitoring.md",
        "opentelemetry-instrument",
        "elsewhere",
        "of what was installed; tests/integration/monitor/test_otlp.py runs the like",
    ),
    Mark("docs/guides/monitoring.md", "curl", "elsewhere", "of those that go on for ever"),
    Mark("docs/guides/incidents.md", "headrace run", "endless", "it serves a queue"),
    Mark(
        "docs/guides/drift.md",
        "headrace run",
        "elsewhere",
        "it needs 40 windows of what a queue serves; tests/integration/monitor/test_drift.py does the like",
    ),
    Mark(
        "docs/guides/drift.md",
        "headrace monitor drift learn watch/",
        "elsewhere",
        "it needs 40 windows of what a queue serves; tests/integration/monitor/test_drift.py does the like",
    ),
    Mark(
        "docs/guides/drift.md",
        "headrace monitor drift show",
        "elsewhere",
        "it needs 40 windows of what a queue serves; tests/integration/monitor/test_drift.py does the like",
    ),
    Mark("docs/guides/simulator.md", "python -m benchmarks", "elsewhere", "it takes an hour"),
    Mark("docs/guides/supervising.md", "headrace run", "endless", "it serves a queue"),
    Mark("docs/guides/tuning.md", "headrace tune", "minutes", "some Plans are measured in turn"),
    Mark("docs/guides/tuning.md", "headrace run", "minutes", "of what `tune` found"),
    Mark("docs/guides/validating.md", "pip install", "elsewhere", "it installs, in a network"),
    Mark("docs/guides/validating.md", "headrace validate cars.onnx", "elsewhere", "headrace has no detector"),
    Mark("docs/guides/what-if.md", "headrace compare", "minutes", "24 pairs of blocks"),
    Mark("docs/guides/what-if.md", "headrace ledger measured", "minutes", "of what `compare` measured"),
]

#: What these commands may end with besides 0. 1: this machine is too slow for what was asked; 4: too busy to tell.
_MAY_END = {
    "capacity": {1, 4},
    "compare": {1, 4},
    "diagnose": {1, 4},
    "doctor": {1},
    "loop": {1, 4},
    "optimize": {4},
    "tune": {4},
    "validate": {1, 4},
    "whatif": {4},
}
_PROGRAMS = r"headrace [a-z]+\b(?!:)|python |pip |make |docker |cp |printf |wc |cat |\(|[A-Z_]+=\S+ headrace"
_BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<text>(?:.*\n)*?)```$|(?P<indented>(?:^    .*\n)+)", re.MULTILINE)
_SAVE = re.compile(r"[Ss]ave this as `(?P<name>[^`]+)`[^\n]*\n*\Z")
_USES = re.compile(r"Commands use .*?\.(?=\s)", re.DOTALL)
_LINK = re.compile(r"\]\((?P<page>[^)#]*)#(?P<anchor>[^)]+)\)")


@dataclass(frozen=True)
class Step:
    """A file to save, where it has a name, else a command or Python to run."""

    text: str
    save_as: str = ""
    is_python: bool = False


def steps(text: str) -> Iterator[Step]:
    """Return what a page or a section asks its reader to do, in order."""
    for block in _BLOCK.finditer(text):
        lines = (
            block["text"] if block["text"] is not None else re.sub(r"^    ", "", block["indented"], flags=re.MULTILINE)
        )
        if name := _SAVE.search(text, 0, block.start()):
            yield Step(lines, name["name"])
        elif block["language"] == "python" and re.match(r"(from|import) ", lines):
            yield Step(lines, is_python=True)
        elif block["language"] in (None, "", "bash") and re.match(rf"(\$ )?({_PROGRAMS})", lines):
            transcript = lines.startswith("$ ")
            for line in lines.replace("\\\n", " ").splitlines():
                if line.startswith("$ ") or (line and not transcript):
                    yield Step(line.removeprefix("$ "))


def steps_before(page: str) -> tuple[Step, ...]:
    """Return the steps of other pages' sections that a page says its commands use."""
    found: list[Step] = []
    if uses := _USES.search((ROOT / page).read_text(encoding="utf-8")):
        for link in _LINK.finditer(uses[0]):
            other = ((ROOT / page).parent / link["page"]).resolve()
            found += steps(section(other.read_text(encoding="utf-8"), link["anchor"]))
    return tuple(found)


def section(text: str, anchor: str) -> str:
    """Return the section of a page that an anchor names."""
    for found in re.finditer(r"^(#+) (.*)\n", text, re.MULTILINE):
        if re.sub(r"[^\w\s-]", "", found[2].lower()).strip().replace(" ", "-") == anchor:
            rest = re.split(rf"^#{{1,{len(found[1])}}} ", text[found.end() :], maxsplit=1, flags=re.MULTILINE)
            return rest[0]
    raise AssertionError(f"no section #{anchor}")


@dataclass
class Reader:
    """Who follows a page in a folder, with a receiver of results where pages have theirs.

    Attributes:
        folder: Where files are saved and commands are typed.
        port: Port of the receiver.
        missing: Plans that a search did not write, because nothing was better on this machine.
        seen: The commands that ran.
    """

    folder: Path
    port: int

    def __post_init__(self) -> None:
        self.missing: set[str] = set()
        self.seen: list[str] = []

    def follow(self, step: Step, how: str = "") -> None:
        """Save the file, or type the command and see that it ends well."""
        if step.save_as:
            (self.folder / step.save_as).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / step.save_as).write_text(step.text)
        elif step.is_python:
            (self.folder / "page.py").write_text(step.text)
            self._type("python page.py", how)
        elif not self.missing & set(step.text.split()):
            self._type(step.text, how)

    def _type(self, command: str, how: str) -> None:
        began = time.monotonic()
        line = command.replace("localhost:8000", f"localhost:{self.port}")
        with subprocess.Popen(
            ["bash", "-o", "pipefail", "-c", line],
            cwd=self.folder,
            env={**os.environ, "PATH": f"{self._programs()}:{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            if "endless" in how:
                self._interrupt_when_idle(process)
            output, log = process.communicate()
        self.seen.append(f"{time.monotonic() - began:.1f} s: {command}")
        words = re.findall(r"headrace (\w+)", command) or [""]
        allowed = {0, 130} if "endless" in how else {0} | _MAY_END.get(words[-1], set())
        assert process.returncode in allowed, f"$ {command}\n{output}{log}\nexit status {process.returncode}"
        assert "defect of headrace" not in log, f"$ {command}\n{log}"
        written = re.search(r"headrace (?:tune|optimize) .*-o (\S+)", command)
        if written and not (self.folder / written[1]).exists():
            self.missing.add(written[1])

    def _programs(self) -> Path:
        """Return a folder with the programs of pages that belong to the Python that runs this."""
        folder = self.folder.parent / "programs"
        if not folder.exists():
            folder.mkdir()
            for name, words in (("headrace", "-m headrace"), ("python", ""), ("torchrun", "-m torch.distributed.run")):
                (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
                (folder / name).chmod(0o755)
        return folder

    def _interrupt_when_idle(self, process: subprocess.Popen[str]) -> None:
        """Type Ctrl-C when nothing is left in the page's queue, and the command has had time to begin."""
        began = time.monotonic()
        while process.poll() is None and (time.monotonic() < began + 3 or self._has_jobs()):
            time.sleep(0.1)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)

    def _has_jobs(self) -> bool:
        queue = open_queue(f"sqlite:///{self.folder}/jobs.db")
        found = queue.statistics()
        queue.close()
        return bool(found.visible or found.in_flight or found.delayed)


@pytest.fixture(scope="module")
def make_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return what makes a page's folder with what comes first; steps that pages share are done once."""

    @functools.cache
    def prepare(first: tuple[Step, ...]) -> Path:
        folder = tmp_path_factory.mktemp("first") / "work"
        folder.mkdir()
        reader = Reader(folder, port=0)
        for step in first:
            reader.follow(step)
        return folder

    def make(page: str) -> Path:
        folder = tmp_path_factory.mktemp("page") / "work"
        shutil.copytree(prepare(steps_before(page)), folder)
        shutil.copytree(ROOT / "examples", folder / "examples")
        (folder / "benchmarks").symlink_to(ROOT / "benchmarks")
        return folder

    return make


def mark_of(page: str, step: Step) -> Mark:
    """Return the mark of a step, one without words if it has none."""
    found = [mark for mark in MARKS if mark.page == page and step.text.startswith(mark.start) and not step.save_as]
    return max(found, key=lambda mark: len(mark.start), default=Mark(page, "", "", ""))


def follow(page: str, make_folder: Callable[[str], Path], *, leave_out: tuple[str, ...]) -> Reader:
    """Follow a page to its end."""
    with Receiver() as receiver:
        reader = Reader(make_folder(page), receiver.port)
        for step in steps((ROOT / page).read_text(encoding="utf-8")):
            how = mark_of(page, step).how
            if not any(word in how for word in leave_out):
                reader.follow(step, how)
    print(*reader.seen, sep="\n")
    return reader


def has_steps(page: str, *, minutes: bool) -> bool:
    """Return whether a page has commands that are typed here: such as take minutes, or others."""
    marks = [mark_of(page, step) for step in steps((ROOT / page).read_text(encoding="utf-8")) if not step.save_as]
    return any(("minutes" in mark.how) == minutes for mark in marks if "elsewhere" not in mark.how)


@pytest.mark.parametrize("page", [page for page in PAGES if has_steps(page, minutes=False)])
def test_the_commands_of_a_page_work_in_order(page: str, make_folder: Callable[[str], Path]) -> None:
    """Nothing fails that a page prints, but for what takes minutes."""
    assert follow(page, make_folder, leave_out=("elsewhere", "minutes")).seen


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", [page for page in PAGES if has_steps(page, minutes=True)])
def test_all_commands_of_a_page_work_in_order(page: str, make_folder: Callable[[str], Path]) -> None:
    """Nothing fails that a page prints, in whatever time."""
    assert follow(page, make_folder, leave_out=("elsewhere",)).seen


@pytest.mark.smoke
def test_programs_of_all_frameworks_are_run() -> None:
    """What the guide shows of a callback is a program, which the tests above run; not a line out of one."""
    page = (ROOT / "docs/guides/training.md").read_text(encoding="utf-8")
    typed = "\n".join(step.text for step in steps(page) if step.is_python)
    assert sorted(set(re.findall(r"headrace\.train\.(\w+Callback)", typed))) == [
        "KerasCallback",
        "LightningCallback",
        "TrainerCallback",
    ]


@pytest.mark.smoke
@pytest.mark.parametrize("mark", MARKS, ids=lambda mark: f"{mark.page}: {mark.start}")
def test_every_mark_is_of_a_command(mark: Mark) -> None:
    """What a page no longer prints is no longer excused."""
    found = steps((ROOT / mark.page).read_text(encoding="utf-8"))
    assert mark.how
    assert mark.reason
    assert any(mark_of(mark.page, step) == mark for step in found)
