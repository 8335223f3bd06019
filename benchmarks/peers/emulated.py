"""Peers of the emulated ladder: real HTTP, a preprocess step that sleeps, a device that sleeps.

Nothing here computes, so what is left is the price of the design itself: threads, locks, event loop, HTTP client. At the
original speed (222 ms of I/O, 63 ms of preprocessing, 13.6 + 34 n ms on the device) every reasonable design reaches the
device's limit; a hundred times faster they part.

The asyncio peer has two forms. In the one that could be real, preprocessing occupies an executor thread, as real preprocessing
would. In the other (``on_loop=True``) it is a timer of the event loop, which only a sleep can be: it shows what the loop
and the HTTP client cost alone; it is a check on the first, not a design.
"""

import asyncio
import ctypes
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from benchmarks.measure import Window
from benchmarks.peers.http_clients import make_client
from benchmarks.peers.protocol import EmulatedJobs, Peer, Settings, grid
from benchmarks.peers.threads import END, answer, collect, finish, start

PR_SET_TIMERSLACK = 29
BATCH = 32


class Device:
    """An emulated accelerator: one batch at a time, a fixed time plus a time per item."""

    def __init__(self, fixed_seconds: float, item_seconds: float) -> None:
        self._fixed_seconds, self._item_seconds = fixed_seconds, item_seconds
        self._lock = threading.Lock()

    def __call__(self, items: list[object]) -> list[tuple[int, float]]:
        """Occupy the device; return a label and score for each item."""
        with self._lock:
            time.sleep(self._fixed_seconds + self._item_seconds * len(items))
        return [(7, 0.5)] * len(items)


def limit_per_second(jobs: EmulatedJobs, batch: int) -> float:
    """Return the device's rate with full batches."""
    return batch / (jobs.device_fixed_seconds + jobs.device_item_seconds * batch)


def sharpen_sleeps() -> None:
    """Ask Linux for sleeps exact to a microsecond instead of 50; threads started later inherit it."""
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0)


def run_threads(jobs: EmulatedJobs, settings: Settings) -> Window:
    """The stages of ``queue_threads``, with sleeps."""
    sharpen_sleeps()
    client = make_client(settings.client, settings.io_workers + settings.callback_workers)
    device = Device(jobs.device_fixed_seconds, jobs.device_item_seconds)
    waiting = iter(jobs.items)
    downloaded, ready = queue.Queue(settings.io_workers), queue.Queue(4 * settings.batch)
    answered = queue.Queue(256)

    def download() -> None:
        for item_id, url in waiting:
            downloaded.put((item_id, client.get(url)))

    def prepare() -> None:
        while (item := downloaded.get()) is not END:
            time.sleep(jobs.preprocess_seconds)
            ready.put(item)

    def infer() -> None:
        ended = False
        while not ended:
            batch, ended = collect(ready, settings.batch, settings.batch_wait_seconds)
            if batch:
                for (item_id, _), result in zip(batch, device(batch), strict=True):
                    answered.put(answer(item_id, *result))

    def call_back() -> None:
        while (body := answered.get()) is not END:
            client.post(jobs.callback_url, body)

    with Window() as window:
        downloaders = start(settings.io_workers, download)
        preparers = start(settings.preprocess_workers, prepare)
        models = start(1, infer)
        callers = start(settings.callback_workers, call_back)
        finish(downloaders, downloaded, settings.preprocess_workers)
        finish(preparers, ready, 1)
        finish(models, answered, settings.callback_workers)
        finish(callers)
    return window


def run_asyncio(jobs: EmulatedJobs, settings: Settings) -> Window:
    """The stages of ``queue_asyncio``, with sleeps."""
    import uvloop

    from benchmarks.peers.queue_asyncio import pipeline

    sharpen_sleeps()
    device = Device(jobs.device_fixed_seconds, jobs.device_item_seconds)
    preparing, inferring = ThreadPoolExecutor(settings.preprocess_workers), ThreadPoolExecutor(1)
    # uvloop's timers count whole milliseconds, so the loop's own sleep is 1 ms here, and the tasks hide it.
    on_loop = settings.on_loop

    async def prepare(payload: bytes) -> object:
        if on_loop:
            await asyncio.sleep(jobs.preprocess_seconds)
        else:
            await asyncio.get_running_loop().run_in_executor(preparing, time.sleep, jobs.preprocess_seconds)
        return payload

    async def infer(batch: list[object]) -> list[tuple[int, float]]:
        return await asyncio.get_running_loop().run_in_executor(inferring, device, batch)

    with Window() as window:
        uvloop.run(pipeline(jobs.items, jobs.callback_url, settings, prepare, infer))
    return window


PEERS = (
    Peer(
        name="threads",
        title="threads and bounded queues",
        workload="emulated",
        grid=grid(
            batch=(BATCH,), client=("pycurl", "http.client", "urllib3"), io_workers=(16, 32), preprocess_workers=(4, 8)
        ),
        run=run_threads,
    ),
    Peer(
        name="asyncio",
        title="asyncio, aiohttp, uvloop; preprocess in an executor",
        workload="emulated",
        grid=grid(
            batch=(BATCH,),
            client=("aiohttp",),
            io_workers=(64, 32, 128),
            preprocess_workers=(4, 8),
            callback_workers=(64, 16),
        ),
        run=run_asyncio,
    ),
    Peer(
        name="asyncio-timers",
        title="asyncio, aiohttp, uvloop; preprocess as a timer",
        workload="emulated",
        grid=grid(
            batch=(BATCH,),
            client=("aiohttp",),
            on_loop=(True,),
            io_workers=(64, 32, 128, 256),
            callback_workers=(64, 32, 16),
        ),
        run=run_asyncio,
    ),
)
