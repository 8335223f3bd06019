"""FastAPI under uvicorn (httptools, uvloop) with a batcher written by hand, as is usual; with batch 1 a pool of threads."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import uvicorn
from fastapi import FastAPI, Request

from benchmarks.serve.peers.common import Work, settings

CHOSEN = settings()
app = FastAPI()
work = Work(CHOSEN)
preparing, running = ThreadPoolExecutor(2), ThreadPoolExecutor(1)
waiting: asyncio.Queue = asyncio.Queue()
tasks: list[asyncio.Task] = []


async def make_batches() -> None:
    """Take what waits, wait a while for more, run it, and give the answers back; for ever."""
    loop = asyncio.get_running_loop()
    while True:
        batch = [await waiting.get()]
        ends = loop.time() + CHOSEN.wait_ms / 1e3
        while len(batch) < CHOSEN.batch:
            if not waiting.empty():
                batch.append(waiting.get_nowait())
                continue
            try:
                batch.append(await asyncio.wait_for(waiting.get(), ends - loop.time()))
            except TimeoutError:
                break
        answers = await loop.run_in_executor(running, work.answer, [prepared for prepared, _ in batch])
        for (_, future), answer in zip(batch, answers, strict=True):
            future.set_result(answer)


@app.post("/predict")
async def predict(request: Request) -> dict:
    loop = asyncio.get_running_loop()
    payload = await request.body()
    if CHOSEN.batch == 1:
        return await loop.run_in_executor(preparing, lambda: work.answer([work.prepare(payload)])[0])
    if not tasks:
        tasks.append(loop.create_task(make_batches()))
    is_cheap = CHOSEN.workload == "emulated"
    prepared = work.prepare(payload) if is_cheap else await loop.run_in_executor(preparing, work.prepare, payload)
    future = loop.create_future()
    waiting.put_nowait((prepared, future))
    return await future


if __name__ == "__main__":
    uvicorn.run(
        app, host="127.0.0.1", port=CHOSEN.port, loop="uvloop", http="httptools", access_log=False, log_level="warning"
    )
