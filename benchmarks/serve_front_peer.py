"""The peer of `benchmarks.serve_front`: uvicorn without a pipeline; needs nothing but uvicorn.

python serve_front_peer.py      prints the port, then serves until it is killed
"""

import asyncio
import socket

import uvicorn


async def app(scope, receive, send):
    """Read the body, answer with its length."""
    if scope["type"] != "http":
        return
    parts = []
    more = True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    body = b'{"bytes": %d}' % sum(map(len, parts))
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as finder:
        port = finder.getsockname()[1]
    # uvicorn listens by itself: of a socket that it is given it does not switch Nagle's algorithm off.
    server = uvicorn.Server(uvicorn.Config(app, port=port, http="httptools", log_level="warning", access_log=False))
    asyncio.run(announce(server, port))


async def announce(server, port):
    """Serve, and print the port once that has begun."""
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    print(port, flush=True)
    await serving


if __name__ == "__main__":
    main()
