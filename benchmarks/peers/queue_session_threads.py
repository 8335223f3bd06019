"""Every thread does everything with its own session: download, preprocess, model, callback."""

from benchmarks.measure import Window
from benchmarks.peers.classifier import Classifier
from benchmarks.peers.http_clients import make_client
from benchmarks.peers.preprocess import preprocessor, warm_up_jpeg
from benchmarks.peers.protocol import Peer, QueueJobs, Settings, grid
from benchmarks.peers.threads import answer, finish, start


def run(jobs: QueueJobs, settings: Settings) -> Window:
    client, preprocess = make_client(settings.client, settings.io_workers), preprocessor(settings.decode)
    preprocess(warm_up_jpeg())
    classifiers = [Classifier(jobs.model, settings.ort_threads).warm_up(1) for _ in range(settings.io_workers)]
    waiting = iter(jobs.items)

    def work() -> None:
        classify = classifiers.pop()
        for item_id, url in waiting:
            image = preprocess(client.get(url))
            client.post(jobs.callback_url, answer(item_id, *classify([image])[0]))

    with Window() as window:
        finish(start(settings.io_workers, work))
    return window


PEER = Peer(
    name="session-threads",
    title="one ONNX Runtime session per thread",
    workload="queue",
    grid=grid(client=("pycurl", "urllib3", "http.client"), io_workers=(24, 16, 32, 48, 12, 64)),
    run=run,
)
