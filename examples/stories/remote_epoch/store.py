"""A store that takes its time: `python store.py FOLDER MILLISECONDS` serves the files of a folder, and prints its port."""

import http.server
import sys
import time
from pathlib import Path


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers a GET with a file, some time after it came."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Send the file."""
        time.sleep(SECONDS)
        content = (FOLDER / Path(self.path).name).read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


if __name__ == "__main__":
    FOLDER, SECONDS = Path(sys.argv[1]), float(sys.argv[2]) / 1e3
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(server.server_port, flush=True)
    server.serve_forever()
