"""The run in which an incident is planted: `python -m benchmarks.watch.incidents.world KNOBS SECONDS`, killed from outside.

Images are downloaded from a server, decoded, given to an emulated model and posted to a receiver, at a steady rate that uses a
third of a core. At half of the time one thing changes; everything else stays. Servers are processes of their own.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
import os
import sys
import tempfile
import threading
import time
import tracemalloc
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from PIL import Image

from benchmarks.faults import work
from benchmarks.faults.case import ChangedStage
from benchmarks.faults.environment_faults import cpu_quota
from benchmarks.faults.image_server import ServerSettings
from benchmarks.faults.outside import busy_programs
from benchmarks.faults.server import Server
from benchmarks.faults.shapes import OnDevice
from benchmarks.faults.sources import Broker, FedQueue
from benchmarks.watch.incidents import neighbours
from benchmarks.watch.incidents.actions import Actions
from benchmarks.watch.quiet import before_others
from headrace.base.plan import Plan
from headrace.delivery.callback import Callback
from headrace.monitor.recorder.recorder import Recorder, RecorderSettings
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.execute import run
from headrace.pipeline.following import Following
from headrace.runs.run_folder import replace_file
from headrace.sources.jobs import encode_job
from headrace.stages.fetch import FetchStage
from headrace.stages.stage import Stage, stage

RATE = 20.0
_CAMERAS, _CHANGED_CAMERA = 5, 3
_USUAL = ServerSettings(latency_seconds=0.01, callback_seconds=0.005)
#: Servers that may change, by the knob that says how.
_SERVERS = ("host", "receiver", "lookup")
#: Images in the server: (first, number, megapixels).
_IMAGES = {"usual": (0, 8, 0.5), "large": (8, 4, 3.0), "huge": (12, 4, 6.0)}
#: Single files behind these, by what is wrong with them; the body is the largest of those, and nothing is at the last number.
_ODD = {"garbage": 16, "cut": 17, "empty": 18, "flat": 19, "body": 15, "gone": 99}
#: The usual images as PNG, behind these: (first, number).
_PNG = 20, 4
#: Port at which nobody listens.
_NOBODY = "http://127.0.0.1:9"
#: Knobs by which threads or programs compete for cores.
CORE_KNOBS = frozenset({"neighbours", "beside", "quota", "cores", "thread", "holder"})
_FLAT_PIXELS = 4200, 2800


class World:
    """What can change.

    Args:
        knobs: {name: value}. Of what comes: `rate` (times), `copies` (of each job), `images` (a name), `of_camera` (what one
            camera sends), `at_once` (jobs that come together). Of servers: `host`, `receiver`, `lookup` (their settings),
            `only` (one camera's host), `refuses` (which of them takes no connection), `names` (seconds of the name server),
            `service` (seconds until it is done). Of the machine: `neighbours`, `beside` (name, arguments), `quota`, `cores`.
            Of the run: `model` (times), `hang` (stage, calls), `around` and `always` ((stage, action, how much), ...),
            `holder` and `thread` (action, how much, pause), `threads`, `heap` (objects), `tracing` (frames), `reader` (seconds
            for a line of the log). `always` is done from the beginning.
        seconds: When they take effect.
        names: Port of the name server.
    """

    def __init__(self, knobs: dict[str, Any], seconds: float, names: int) -> None:
        self.knobs = knobs
        self.begins = time.monotonic() + seconds
        self.stack = contextlib.ExitStack()
        self.actions = Actions(self.now, names)
        self.hung = itertools.count()

    def now(self, name: str, usual: Any) -> Any:
        """Return a knob's value at this moment."""
        return self.knobs.get(name, usual) if time.monotonic() >= self.begins else usual

    def begin(self) -> None:
        """Wait, and do what is done beside the stages."""
        time.sleep(max(0.0, self.begins - time.monotonic()))
        if size := self.knobs.get("heap"):  # not before: what is there when a run begins is frozen, and never looked at
            self.actions.keep_heap(int(size))
        if frames := self.knobs.get("tracing"):
            tracemalloc.start(frames)
        self._change_machine()
        if holder := self.knobs.get("holder"):
            self.actions.start_thread(*holder, locked=True)
        for _ in range(self.knobs.get("threads", 1)):
            if thread := self.knobs.get("thread"):
                self.actions.start_thread(*thread)

    def _change_machine(self) -> None:
        if number := self.knobs.get("neighbours"):
            self.stack.enter_context(busy_programs(number))
        if beside := self.knobs.get("beside"):
            self.stack.enter_context(getattr(neighbours, beside[0])(*beside[1:]))
        if cores := self.knobs.get("quota"):
            self.stack.enter_context(cpu_quota(cores))
        if self.knobs.get("cores"):
            for task in os.listdir("/proc/self/task"):
                os.sched_setaffinity(int(task), {min(os.sched_getaffinity(0))})

    def around(self, name: str, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a stage's call with what happens around it."""

        def changed(value: Any) -> Any:
            for where, what, *much in (*self.knobs.get("always", ()), *self.now("around", ())):
                if where == name:
                    self.actions.do(what, *much)
            stuck, calls = self.now("hang", ("", 0))
            if stuck == name and next(self.hung) < calls:
                time.sleep(3600)
            return call(value)

        return changed


class Cameras(FedQueue):
    """Jobs of some cameras at a steady rate, which may change."""

    world: World
    urls: dict[str, str]
    """Of the usual server, and of those that change."""

    def _feed(self) -> None:
        due, number = time.monotonic(), 0
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            at_once = int(self.world.now("at_once", 1))
            due += at_once / (RATE * self.world.now("rate", 1.0))
            for job in range(number, number + at_once):
                self._fed.send([self._job(job)] * int(self.world.now("copies", 1)))
            number += at_once

    def _job(self, number: int) -> bytes:
        now, is_changed = self.world.now, number % _CAMERAS == _CHANGED_CAMERA
        images = now("images", "usual")
        first, count, _ = (*_PNG, 0.0) if images == "png" else _IMAGES.get(images, (_ODD["flat"], 1, 0.0))
        odd = now("of_camera", "")
        index = _ODD[odd] if odd and is_changed else first + number % count
        host = self.url_of("host") if is_changed or not now("only", False) else self.urls["usual"]
        receiver = f"{self.url_of('receiver')}/results"
        return encode_job(f"{host}/images/{index}", id=f"cam{number % _CAMERAS}-{number}", callback=receiver)

    def url_of(self, role: str) -> str:
        """Return where a server of a role is at this moment."""
        return self.urls[role if self.world.now(role, None) is not None else "usual"]


def main(knobs: dict[str, Any], seconds: float) -> None:
    """Run until killed."""
    work.calibrate()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_come_first(knobs))
        urls = {"usual": stack.enter_context(Server(_USUAL, make_images())).url}
        for role in _SERVERS:
            if role == knobs.get("refuses"):
                urls[role] = _NOBODY
            elif changes := knobs.get(role):
                settings = msgspec.structs.replace(_USUAL, **changes)
                urls[role] = stack.enter_context(Server(settings, make_images())).url
        names = stack.enter_context(neighbours.name_server()) if knobs.keys() & {"names", "service"} else 0
        world = World(knobs, seconds / 2, names)
        source = Cameras(["unused"], 3600.0, Broker(rate_per_second=RATE))
        source.world, source.urls = world, urls
        source._bodies = map(source._job, itertools.count(1_000_000))  # noqa: SLF001 - the first job, which warms up
        file = Path(tempfile.mkdtemp(prefix="headrace-incident-")) / "plan.toml"
        plan = write_plan(file, 1.0)
        threading.Thread(target=world.begin, daemon=True).start()
        if factor := knobs.get("model"):
            threading.Timer(seconds / 2, lambda: write_plan(file, factor)).start()
        recorder = Recorder(RecorderSettings())
        print(os.getpid(), round(world.begins * 1e9), flush=True)
        run(
            Pipeline(source, stages=make_stages(world, source), delivery=Callback(f"{urls['usual']}/results"), name="cameras"),
            plan,
            observers=[recorder],
            watch=recorder.watch,
            beside=Following(file=file, judge=lambda *_: None, settings=_SETTINGS) if knobs.get("model") else None,
        )  # fmt: skip


_SETTINGS = (
    "fetch.workers=8", "lookup.workers=3", "decode.workers=2", "process.batch=4", "deliver.workers=8", "decode.scale=full",
)  # fmt: skip


def _come_first(knobs: dict[str, Any]) -> contextlib.AbstractContextManager[None]:
    """Let this session come before others of the machine, where that is allowed.

    Neighbours that are planted are of this session. Where nothing is done to the cores, the run also comes before all that is
    not real-time.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text("-20")
    return contextlib.nullcontext() if knobs.keys() & CORE_KNOBS else before_others(20)


@functools.cache
def make_images() -> list[bytes]:
    """Return the files of the servers, in the order of `_IMAGES` and `_ODD`."""
    images = [file for _, count, size in _IMAGES.values() for file in work.photographs(count, size)]
    flat = io.BytesIO()
    with Image.open(io.BytesIO(images[0])) as image:
        image.resize((12, 8)).resize(_FLAT_PIXELS, Image.Resampling.BILINEAR).save(
            flat, "JPEG", quality=40, optimize=True
        )
    odd = [b"this is no image" * 500, images[0][: len(images[0]) // 2], b"", flat.getvalue()]
    return [*images, *odd, *map(_as_png, images[: _PNG[1]])]


def _as_png(image: bytes) -> bytes:
    file = io.BytesIO()
    with Image.open(io.BytesIO(image)) as opened:
        opened.save(file, "PNG", compress_level=6)
    return file.getvalue()


def write_plan(file: Path, factor: float) -> Plan:
    """Write the Plan with a model so many times as slow, and return it."""
    options = f"launch_seconds = 0.004\nitem_seconds = {0.008 * factor}"
    content = f'[model]\nengine = "emulated"\n\n[model.options]\n{options}\n'
    replace_file(file, content.encode())
    return Plan.load(file).with_settings(_SETTINGS).allowing(["127.0.0.1"])


def make_stages(world: World, source: Cameras) -> tuple[Stage, ...]:
    """Return fetch, lookup, decode, resize, preprocess, process; each may be changed."""

    def look_up(value: bytes) -> bytes:
        with urllib.request.urlopen(f"{source.url_of('lookup')}/images/{_ODD['garbage']}") as answer:
            answer.read()
        return value

    stages = (FetchStage("fetch"), stage("lookup", look_up, kind="io"), *OnDevice().stages())
    return tuple(ChangedStage(one, functools.partial(world.around, one.name)) for one in stages)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), float(sys.argv[2]))
