"""The service as one writes it first: a thread for each request, and each calls the model with its own image.

python naive.py 8001
"""

from __future__ import annotations

import http.server
import json
import sys

from device import open_device

device = open_device()


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request after another of a connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_POST(self) -> None:
        """Name one image."""
        image = self.rfile.read(int(self.headers["Content-Length"]))
        label = float(device([image])[0, 0])
        answer = json.dumps({"label": label}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the name in the base class
        """Say nothing."""


if __name__ == "__main__":
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    print(f"listening on http://127.0.0.1:{server.server_address[1]}", file=sys.stderr, flush=True)
    server.serve_forever()
