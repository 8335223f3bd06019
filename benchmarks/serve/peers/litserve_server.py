"""LitServe with its own batching; with batch 1 one request per call."""

from typing import Annotated, Any

import litserve
from fastapi import Body

from benchmarks.serve.peers.common import Work, settings

CHOSEN = settings()


class Whole(litserve.LitAPI):
    """Prepares as a request comes, runs whole batches."""

    def setup(self, device: str) -> None:
        self._work = Work(CHOSEN)

    def decode_request(self, request: Annotated[bytes, Body(media_type="image/jpeg")]) -> Any:
        return self._work.prepare(request)

    def batch(self, inputs: list[Any]) -> list[Any]:
        return inputs

    def predict(self, inputs: Any) -> Any:
        return self._work.answer(inputs) if isinstance(inputs, list) else self._work.answer([inputs])[0]

    def unbatch(self, output: list[Any]) -> list[Any]:
        return output

    def encode_response(self, output: dict[str, Any]) -> dict[str, Any]:
        return output


if __name__ == "__main__":
    batching = {"max_batch_size": CHOSEN.batch, "batch_timeout": CHOSEN.wait_ms / 1e3} if CHOSEN.batch > 1 else {}
    litserve.LitServer(Whole(**batching), accelerator="cpu", workers_per_device=CHOSEN.workers, fast_queue=True).run(
        host="127.0.0.1", port=CHOSEN.port, num_api_servers=1, log_level="warning", generate_client_file=False
    )
