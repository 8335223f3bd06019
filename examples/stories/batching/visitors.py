"""Visitors: each opens a page of 16 thumbnails, and the browser asks for all of them at once.

Pages are opened at times that were drawn beforehand, whatever the service does; latency counts from the moment a page was to
be opened.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

PAGE = 16
#: Pages per second on average. A page comes 0.35 to 0.65 s after the one before.
RATE = 2.0
SEED = 36


@dataclass(frozen=True)
class Seen:
    """What visitors saw; latencies in seconds."""

    images: list[float]
    pages: list[float]
    """Until the last image of each page."""
    num_failed: int

    def page_p50(self) -> float:
        """Return the median of pages."""
        return sorted(self.pages)[len(self.pages) // 2]


async def _ask(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], request: bytes) -> bool:
    reader, writer = connection
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    await reader.readexactly(length)
    return b" 200 " in head.split(b"\r\n")[0]


async def _visit(address: str, path: str, num_pages: int) -> Seen:
    host, port = urlsplit(address).hostname, urlsplit(address).port
    draw = random.Random(SEED)
    image = draw.randbytes(12_800)
    request = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(image)}\r\n\r\n".encode() + image
    idle = [await asyncio.open_connection(host, port) for _ in range(4 * PAGE)]
    images: list[float] = []
    pages: list[float] = []
    failed = 0

    async def open_page(due: float) -> None:
        nonlocal failed
        await asyncio.sleep(due - time.monotonic())
        mine = [idle.pop() for _ in range(PAGE)]

        async def one(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bool:
            good = await _ask(connection, request)
            images.append(time.monotonic() - due)
            return good

        failed += PAGE - sum(await asyncio.gather(*map(one, mine)))
        pages.append(time.monotonic() - due)
        idle.extend(mine)

    due = time.monotonic() + 0.2
    tasks = []
    for _ in range(num_pages):
        tasks.append(asyncio.create_task(open_page(due)))
        due += draw.uniform(0.7, 1.3) / RATE
    await asyncio.gather(*tasks)
    for _, writer in idle:
        writer.close()
    return Seen(images, pages, failed)


def visit(address: str, path: str, num_pages: int) -> Seen:
    """Open so many pages of a service and return what was seen."""
    return asyncio.run(_visit(address, path, num_pages))
