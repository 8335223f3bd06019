"""One image (or one batch) after the other: download, preprocess, model, callback."""

from benchmarks.measure import Window
from benchmarks.peers.classifier import Classifier
from benchmarks.peers.http_clients import make_client
from benchmarks.peers.preprocess import preprocessor, warm_up_jpeg
from benchmarks.peers.protocol import Peer, QueueJobs, Settings, grid
from benchmarks.peers.threads import answer


def run(jobs: QueueJobs, settings: Settings) -> Window:
    client, preprocess = make_client(settings.client, 1), preprocessor(settings.decode)
    classify = Classifier(jobs.model, settings.ort_threads).warm_up(settings.batch)
    preprocess(warm_up_jpeg())
    with Window() as window:
        for start in range(0, len(jobs.items), settings.batch):
            items = jobs.items[start : start + settings.batch]
            images = [preprocess(client.get(url)) for _, url in items]
            for (item_id, _), result in zip(items, classify(images), strict=True):
                client.post(jobs.callback_url, answer(item_id, *result))
    return window


PEER = Peer(
    name="sequential",
    title="sequential loop",
    workload="queue",
    grid=grid(client=("pycurl", "urllib3", "http.client"), ort_threads=(2, 1), batch=(1, 2)),
    run=run,
)
