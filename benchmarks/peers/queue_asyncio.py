"""asyncio with aiohttp and uvloop; preprocessing and model in executor threads.

How this works: ``io_workers`` tasks download and hand the bytes to the preprocess executor, then put the image into
``ready``; ``model_workers`` tasks form batches and hand them to the model executor; each answer becomes a callback task,
at most ``callback_workers`` at a time. The downloads end when the jobs do; then each model task finds an END.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import aiohttp
import uvloop

from benchmarks.measure import Window
from benchmarks.peers.classifier import Classifier
from benchmarks.peers.preprocess import preprocessor, warm_up_jpeg
from benchmarks.peers.protocol import Peer, QueueJobs, Settings, grid
from benchmarks.peers.threads import END, answer


async def collect(source: asyncio.Queue, most: int, wait_seconds: float) -> tuple[list, bool]:
    """Return a batch and whether END was met; the twin of ``threads.collect``."""
    item = await source.get()
    if item is END:
        return [], True
    batch = [item]
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_seconds
    while len(batch) < most:
        try:
            # wait_for costs a task; take without waiting when possible
            item = source.get_nowait() if not source.empty() else await _get_before(source, deadline - loop.time())
        except TimeoutError:
            break
        if item is END:
            return batch, True
        batch.append(item)
    return batch, False


async def _get_before(source: asyncio.Queue, seconds: float) -> object:
    return await asyncio.wait_for(source.get(), seconds)


async def pipeline(
    items: list[tuple[int, str]],
    callback_url: str,
    settings: Settings,
    prepare: Callable[[bytes], Awaitable[object]],
    infer: Callable[[list], Awaitable[list[tuple[int, float]]]],
) -> None:
    """Download, ``prepare``, ``infer`` and call back for every item; also serves the emulated workload."""
    waiting = iter(items)
    ready: asyncio.Queue = asyncio.Queue(4 * settings.batch * settings.model_workers)
    calling: set[asyncio.Task] = set()
    limit = asyncio.Semaphore(settings.callback_workers)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def download() -> None:
            for item_id, url in waiting:
                async with session.get(url) as response:
                    body = await response.read()
                await ready.put((item_id, await prepare(body)))

        async def call_back(body: dict[str, object]) -> None:
            async with limit, session.post(callback_url, json=body) as response:
                await response.read()

        async def classify() -> None:
            ended = False
            while not ended:
                batch, ended = await collect(ready, settings.batch, settings.batch_wait_seconds)
                if not batch:
                    continue
                results = await infer([image for _, image in batch])
                for (item_id, _), result in zip(batch, results, strict=True):
                    task = asyncio.create_task(call_back(answer(item_id, *result)))
                    calling.add(task)
                    task.add_done_callback(calling.discard)

        async with asyncio.TaskGroup() as models:
            for _ in range(settings.model_workers):
                models.create_task(classify())
            async with asyncio.TaskGroup() as downloads:
                for _ in range(settings.io_workers):
                    downloads.create_task(download())
            for _ in range(settings.model_workers):
                await ready.put(END)
        await asyncio.gather(*calling)


def run(jobs: QueueJobs, settings: Settings) -> Window:
    preprocess = preprocessor(settings.decode)
    classify = Classifier(jobs.model, settings.ort_threads).warm_up(settings.batch)
    preprocess(warm_up_jpeg())
    preparing = ThreadPoolExecutor(settings.preprocess_workers)
    inferring = ThreadPoolExecutor(settings.model_workers)

    async def prepare(jpeg: bytes) -> object:
        return await asyncio.get_running_loop().run_in_executor(preparing, preprocess, jpeg)

    async def infer(images: list) -> list[tuple[int, float]]:
        return await asyncio.get_running_loop().run_in_executor(inferring, classify, images)

    with Window() as window:
        uvloop.run(pipeline(jobs.items, jobs.callback_url, settings, prepare, infer))
    return window


PEER = Peer(
    name="asyncio",
    title="asyncio, aiohttp, uvloop, executors",
    workload="queue",
    grid=grid(
        client=("aiohttp",), model_workers=(1, 2), preprocess_workers=(2, 1), batch=(1, 2, 8), io_workers=(32, 64)
    ),
    run=run,
)
