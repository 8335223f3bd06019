"""mosec: a front in Rust, one worker that prepares and runs whole batches."""

import sys

from mosec import Server, Worker

from benchmarks.serve.peers.common import Work, settings

CHOSEN = settings()


class Whole(Worker):
    """Prepares and runs a batch; with batch 1 mosec gives single requests."""

    def __init__(self) -> None:
        super().__init__()
        self._work = Work(CHOSEN)

    def deserialize(self, data: bytes) -> bytes:
        return data

    def forward(self, data: list[bytes] | bytes) -> object:
        if isinstance(data, list):
            return self._work.answer([self._work.prepare(payload) for payload in data])
        return self._work.answer([self._work.prepare(data)])[0]


if __name__ == "__main__":
    sys.argv[1:] = ["--address", "127.0.0.1", "--port", str(CHOSEN.port), "--log-level", "warning"]
    sys.argv += ["--timeout", "30000", "--capacity", "4096"]
    server = Server()
    server.append_worker(Whole, num=CHOSEN.workers, max_batch_size=CHOSEN.batch, max_wait_time=int(CHOSEN.wait_ms))
    server.run()
