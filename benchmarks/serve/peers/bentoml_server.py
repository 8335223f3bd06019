"""BentoML with adaptive batching; with batch 1 one request per call."""

import subprocess
import sys
from typing import Annotated

import bentoml
from bentoml.validators import ContentType

from benchmarks.serve.peers.common import Work, settings

CHOSEN = settings()
COMMON = {"traffic": {"timeout": 30, "max_concurrency": 4096}, "logging": {"access": {"enabled": False}}}


@bentoml.service(workers=CHOSEN.workers, **COMMON)
class Model:
    """Prepares and runs what BentoML put into one batch."""

    def __init__(self) -> None:
        self._work = Work(CHOSEN)

    @bentoml.api(batchable=True, max_batch_size=max(2, CHOSEN.batch), max_latency_ms=2000)
    def run(self, items: list[bytes]) -> list[dict]:
        return self._work.answer([self._work.prepare(payload) for payload in items])


@bentoml.service(workers=1, **COMMON)
class Front:
    """Takes single requests: BentoML batches only calls between services."""

    model = bentoml.depends(Model)

    @bentoml.api(route="/predict")
    async def predict(self, image: Annotated[bytes, ContentType("image/jpeg")], /) -> dict:
        return (await self.model.to_async.run([image]))[0]


if __name__ == "__main__":
    command = [sys.executable, "-m", "bentoml", "serve", "benchmarks.serve.peers.bentoml_server:Front"]
    sys.exit(subprocess.call([*command, "--host", "127.0.0.1", "--port", str(CHOSEN.port)]))
