"""Threads for I/O and model, processes for preprocessing, images in shared memory.

How this works: a downloader waits for a free slot of the shared array and sends (id, slot, JPEG) to the processes;
whichever takes it writes the image into the slot and sends (id, slot) back; a model thread forms a batch, copies the
slots out, frees them and calls the model; callback threads post. Slots bound the memory. The end travels downloaders ->
processes -> model -> callbacks; a process that ends has flushed its answers, so joining it before telling the model
threads loses nothing.
"""

import multiprocessing
import queue
from typing import Any

from benchmarks.measure import Window
from benchmarks.peers.classifier import Classifier
from benchmarks.peers.http_clients import make_client
from benchmarks.peers.preprocess import preprocessor, warm_up_jpeg
from benchmarks.peers.protocol import Decode, Peer, QueueJobs, Settings, grid
from benchmarks.peers.shared_images import SharedImages
from benchmarks.peers.threads import END, answer, collect, finish, start


def preprocess_process(decode: Decode, num_slots: int, name: str, todo: Any, done: Any, ready: Any) -> None:
    """Preprocess into shared slots until END."""
    preprocess = preprocessor(decode)
    with SharedImages(num_slots, name) as images:
        preprocess(warm_up_jpeg())
        ready.wait()
        while (task := todo.get()) is not END:
            item_id, slot, jpeg = task
            preprocess(jpeg, images.array[slot])
            done.put((item_id, slot))


def run(jobs: QueueJobs, settings: Settings) -> Window:
    client = make_client(settings.client, settings.io_workers + settings.callback_workers)
    classify = Classifier(jobs.model, settings.ort_threads).warm_up(settings.batch)
    num_slots = 4 * settings.batch * settings.model_workers + 4 * settings.preprocess_workers
    context = multiprocessing.get_context("spawn")
    todo, done = context.Queue(), context.Queue()
    ready = context.Barrier(settings.preprocess_workers + 1)
    waiting = iter(jobs.items)
    free: queue.SimpleQueue[int] = queue.SimpleQueue()
    answered = queue.Queue(256)
    for slot in range(num_slots):
        free.put(slot)

    def download() -> None:
        for item_id, url in waiting:
            jpeg = client.get(url)
            todo.put((item_id, free.get(), jpeg))

    def infer() -> None:
        ended = False
        while not ended:
            batch, ended = collect(done, settings.batch, settings.batch_wait_seconds)
            if batch:
                slots = [slot for _, slot in batch]
                inputs = images.array[slots]
                for slot in slots:
                    free.put(slot)
                for (item_id, _), result in zip(batch, classify(inputs), strict=True):
                    answered.put(answer(item_id, *result))

    def call_back() -> None:
        while (body := answered.get()) is not END:
            client.post(jobs.callback_url, body)

    with SharedImages(num_slots) as images:
        arguments = (settings.decode, num_slots, images.name, todo, done, ready)
        processes = [
            context.Process(target=preprocess_process, args=arguments) for _ in range(settings.preprocess_workers)
        ]
        for process in processes:
            process.start()
        ready.wait()
        with Window() as window:
            downloaders = start(settings.io_workers, download)
            models = start(settings.model_workers, infer)
            callers = start(settings.callback_workers, call_back)
            finish(downloaders, todo, settings.preprocess_workers)
            finish(processes, done, settings.model_workers)
            finish(models, answered, settings.callback_workers)
            finish(callers)
    return window


PEER = Peer(
    name="processes",
    title="threads, preprocess processes, shared memory",
    workload="queue",
    grid=grid(client=("pycurl", "urllib3"), batch=(1, 2, 4, 8), preprocess_workers=(2, 1), model_workers=(1, 2)),
    run=run,
)
