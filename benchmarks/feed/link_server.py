"""Answers ranges of a folder's files as an object store does, late and at a limited rate, until it is killed.

`python -m benchmarks.feed.link_server FOLDER SECONDS BYTES_PER_SECOND` prints its address.
"""

from __future__ import annotations

import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def main(folder: str, latency_seconds: str, bytes_per_second: str) -> None:
    """Serve."""
    data, latency, rate = Path(folder), float(latency_seconds), float(bytes_per_second)
    lock, free_at = threading.Lock(), [0.0]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = data / self.path.partition("?")[0].rpartition("/")[2]
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            size = path.stat().st_size
            start, end = int(first), min(size, int(last) + 1)
            time.sleep(latency)
            self.send_response(206)
            self.send_header("Content-Length", str(end - start))
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
            self.send_header("ETag", '"1"')
            self.send_header("Last-Modified", "Tue, 24 Nov 2026 00:00:00 GMT")
            self.end_headers()
            with path.open("rb") as file:
                file.seek(start)
                while start < end:
                    part = file.read(min(262_144, end - start))
                    start += len(part)
                    with lock:
                        free_at[0] = max(free_at[0], time.monotonic()) + len(part) / rate
                        wait = free_at[0] - time.monotonic()
                    time.sleep(max(0.0, wait))
                    self.wfile.write(part)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
