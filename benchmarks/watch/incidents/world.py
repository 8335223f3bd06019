"""The run in which an incident is planted: `python -m benchmarks.watch.incidents.world KNOBS SECONDS`, killed from outside.

Images are downloaded from a server, decoded, given to an emulated model and posted to a receiver, at a steady rate that uses a
third of a core. At half of the time one thing changes; everything else stays. Servers are processes of their own.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import json
import os
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.faults import work
from benchmarks.faults.case import ChangedStage
from benchmarks.faults.environment_faults import cpu_quota
from benchmarks.faults.image_server import ServerSettings
from benchmarks.faults.outside import busy_programs
from benchmarks.faults.server import Server
from benchmarks.faults.shapes import OnDevice
from benchmarks.faults.sources import Broker, FedQueue
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
_CAMERAS = 5
_SERVERS = {
    "usual": ServerSettings(latency_seconds=0.01, callback_seconds=0.005),
    "slow": ServerSettings(latency_seconds=0.3, callback_seconds=0.3),
    "narrow": ServerSettings(latency_seconds=0.01, bytes_per_second=0.8e6),
    "failing": ServerSettings(callback_failures=0.5),
}
#: Images in the server: (first, number, megapixels).
_IMAGES = {"usual": (0, 8, 0.5), "large": (8, 4, 3.0), "huge": (12, 4, 6.0)}
_GARBAGE, _CUT = 16, 17


class World:
    """What can change.

    Args:
        knobs: {name: value}: `rate` (times), `images`, `host`, `receiver`, `lookup` (names), `garbage` (a camera's name, or
            `cut`), `neighbours`, `quota`, `cores`, `model` (times), `around` (stage, what, how much), `hang` (stage, calls),
            `gc` (objects), `leak` (bytes for each item).
        seconds: When they take effect.
    """

    def __init__(self, knobs: dict[str, Any], seconds: float) -> None:
        self.knobs = knobs
        self.begins = time.monotonic() + seconds
        self.stack = contextlib.ExitStack()
        self.kept: list[Any] = []
        self.lock = threading.Lock()
        self.hung = itertools.count()

    def now(self, name: str, usual: Any) -> Any:
        """Return a knob's value at this moment."""
        return self.knobs.get(name, usual) if time.monotonic() >= self.begins else usual

    def begin(self) -> None:
        """Wait, and do what is done to the machine."""
        time.sleep(max(0.0, self.begins - time.monotonic()))
        if number := self.knobs.get("neighbours"):
            self.stack.enter_context(busy_programs(number))
        if cores := self.knobs.get("quota"):
            self.stack.enter_context(cpu_quota(cores))
        if self.knobs.get("cores"):
            for task in os.listdir("/proc/self/task"):
                os.sched_setaffinity(int(task), {min(os.sched_getaffinity(0))})
        if size := self.knobs.get("gc"):
            self.kept = [[number] for number in range(size)]
        if self.knobs.get("around", ("", ""))[1] == "lock":
            threading.Thread(target=self._hold_lock, daemon=True).start()

    def _hold_lock(self) -> None:
        while True:
            with self.lock:
                time.sleep(self.knobs["around"][2])
            time.sleep(0.001)

    def around(self, name: str, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a stage's call with what happens around it."""

        def changed(value: Any) -> Any:
            where, what, much = self.now("around", ("", "", 0.0))
            if where == name:
                self._do(what, much)
            stuck, calls = self.now("hang", ("", 0))
            if stuck == name and next(self.hung) < calls:
                time.sleep(3600)
            if name == "preprocess":
                if self.now("gc", 0):
                    gc.collect()
                if size := self.now("leak", 0):
                    self.kept.append(bytearray(os.urandom(1024) * int(size / 1024)))
            return call(value)

        return changed

    def _do(self, what: str, much: float) -> None:
        if what == "burn":
            work.burn(much)
        elif what == "spin":
            work.spin(much)
        elif what == "sleep":
            time.sleep(much)
        elif what == "lock":
            with self.lock:
                pass
        elif what == "disk":
            with tempfile.NamedTemporaryFile(dir=Path.home()) as file:
                for _ in range(int(much)):
                    file.write(bytes(1 << 19))
                    file.flush()
                    os.fsync(file.fileno())


class Cameras(FedQueue):
    """Jobs of some cameras at a steady rate, which may change."""

    world: World
    servers: dict[str, Server]

    def _feed(self) -> None:
        due, number = time.monotonic(), 0
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            due += 1 / (RATE * self.world.now("rate", 1.0))
            self._fed.send([self._job(number)])
            number += 1

    def _job(self, number: int) -> bytes:
        camera = f"cam{number % _CAMERAS}"
        first, count, _ = _IMAGES[self.world.now("images", "usual")]
        garbage = self.world.now("garbage", "")
        index = (
            _GARBAGE if garbage == camera else _CUT if garbage == "cut" and number % 5 == 0 else first + number % count
        )
        host, receiver = (
            self.servers[self.world.now("host", "usual")],
            self.servers[self.world.now("receiver", "usual")],
        )
        return encode_job(f"{host.url}/images/{index}", id=f"{camera}-{number}", callback=receiver.callback_url)


def main(knobs: dict[str, Any], seconds: float) -> None:
    """Run until killed."""
    work.calibrate()
    images = [file for _, count, size in _IMAGES.values() for file in work.photographs(count, size)]
    images += [b"this is no image" * 500, images[0][: len(images[0]) // 2]]
    with contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(Server(settings, images)) for name, settings in _SERVERS.items()}
        world = World(knobs, seconds / 2)
        source = Cameras(["unused"], 3600.0, Broker(rate_per_second=RATE))
        source.world, source.servers = world, servers
        source._bodies = map(source._job, itertools.count(1_000_000))  # noqa: SLF001 - the first job, which warms up
        place = Path(tempfile.mkdtemp(prefix="headrace-incident-"))
        file = place / "plan.toml"
        plan = write_plan(file, 1.0)
        threading.Thread(target=world.begin, daemon=True).start()
        if factor := knobs.get("model"):
            threading.Timer(seconds / 2, lambda: write_plan(file, factor)).start()
        recorder = Recorder(RecorderSettings())
        print(os.getpid(), flush=True)
        run(
            Pipeline(
                source,
                stages=make_stages(world, servers),
                delivery=Callback(servers["usual"].callback_url),
                name="cameras",
            ),
            plan,
            observers=[recorder],
            watch=recorder.watch,
            beside=Following(file=file, judge=lambda *_: None, settings=_SETTINGS) if knobs.get("model") else None,
        )


_SETTINGS = (
    "fetch.workers=8", "lookup.workers=3", "decode.workers=2", "process.batch=4", "deliver.workers=8", "decode.scale=full",
)  # fmt: skip


def write_plan(file: Path, factor: float) -> Plan:
    """Write the Plan with a model so many times as slow, and return it."""
    options = f"launch_seconds = 0.004\nitem_seconds = {0.008 * factor}"
    content = f'[model]\nengine = "emulated"\n\n[model.options]\n{options}\n'
    replace_file(file, content.encode())
    return Plan.load(file).with_settings(_SETTINGS).allowing(["127.0.0.1"])


def make_stages(world: World, servers: dict[str, Server]) -> tuple[Stage, ...]:
    """Return fetch, lookup, decode, resize, preprocess, process; each may be changed."""

    def look_up(value: bytes) -> bytes:
        url = f"{servers[world.now('lookup', 'usual')].url}/images/{_GARBAGE}"
        with urllib.request.urlopen(url) as answer:
            answer.read()
        return value

    stages = (FetchStage("fetch"), stage("lookup", look_up, kind="io"), *OnDevice().stages())
    return tuple(ChangedStage(one, functools.partial(world.around, one.name)) for one in stages)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), float(sys.argv[2]))
