"""What every rung of the demo runs: its queue and its pipeline, which `pipeline.py` offers to other commands."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from headrace.base.plan import SourcePlan
from headrace.delivery.callback import Callback
from headrace.demo.scenes import Scenes
from headrace.demo.servers import DemoServers
from headrace.pipeline.definition import Pipeline
from headrace.sources.addresses import open_queue
from headrace.sources.jobs import encode_job
from headrace.sources.queue_source import QueueSource

PIPELINE = "pipeline.py"
#: How often each image is run by every rung but the first, which takes its time.
REPEATS = 4

_PROGRAM = '''"""The pipeline of `headrace demo`, for other commands; its server answers after {milliseconds:g} ms."""

from pathlib import Path

from headrace.demo.workload import serve_again

pipeline = serve_again(Path(__file__).parent, delay_seconds={delay_seconds!r})
'''


def write_pipeline(folder: Path, delay_seconds: float) -> str:
    """Write the program that offers the pipeline to other commands, and return how they name it."""
    file = folder / PIPELINE
    file.write_text(_PROGRAM.format(milliseconds=1000 * delay_seconds, delay_seconds=delay_seconds), encoding="utf-8")
    return f"{file}:pipeline"


def make_pipeline(source: QueueSource, name: str = "pipeline") -> Pipeline:
    """Return the pipeline over a source."""
    return Pipeline(source, module=Scenes(), delivery=Callback(), name=name)


def serve_again(folder: Path, delay_seconds: float) -> Pipeline:
    """Return the pipeline over the images of a demo that is over; its servers start with each run.

    Args:
        folder: The demo's.
        delay_seconds: The image server's.
    """
    return make_pipeline(ServedAgain(folder, delay_seconds))


def fill_queue(file: Path, servers: DemoServers, images: Iterable[str], repeats: int) -> str:
    """Put jobs into a queue's file, each image so many times, and return its address."""
    file.parent.mkdir(exist_ok=True)
    address = _address(file)
    with contextlib.closing(open_queue(address)) as queue:
        queue.send(
            [
                encode_job(servers.image_url(image), id=f"{turn}/{image}", callback=servers.callback_url)
                for turn in range(repeats)
                for image in images
            ]
        )
    return address


def _address(file: Path) -> str:
    return f"sqlite:///{file.resolve()}"


class ServedAgain(QueueSource):
    """The demo's images once more: from its servers, which run while the source is open, by a queue of its own."""

    def __init__(self, folder: Path, delay_seconds: float) -> None:
        self._images = folder / "images"
        self._file = folder / "queues" / f"again-{os.getpid()}.db"
        self._delay_seconds = delay_seconds
        self._running = contextlib.ExitStack()
        super().__init__(_address(self._file), drain=True)

    def open(self, settings: SourcePlan) -> None:
        """Start the servers, fill the queue and open it."""
        servers = self._running.enter_context(DemoServers(self._images, self._delay_seconds))
        names = sorted(path.name for path in self._images.iterdir() if path.suffix != ".jsonl")
        self._running.callback(self._remove_queue)
        fill_queue(self._file, servers, names, REPEATS)
        super().open(settings)

    def close(self) -> None:
        """Close the queue, remove it and end the servers."""
        super().close()
        self._running.close()

    def _remove_queue(self) -> None:
        for path in self._file.parent.glob(f"{self._file.name}*"):  # SQLite keeps up to two files beside it
            path.unlink(missing_ok=True)
