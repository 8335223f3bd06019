"""Shows the board in a browser: an HTTP server for this machine, which only reads.

How this works: a thread looks through the folders every few seconds and says what to do next for the newest run of each
pipeline, one after the other; requests are answered from what it found. A page asks `/state` every few seconds, puts new counts
in their places, and loads itself again when something else has changed. Ids stand for paths, so no address leads out of what
was found; a `Host` that is not this server's is refused, so that no site elsewhere can read it through a visitor's browser.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http.server import ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

from headrace.base.documents import encode_document
from headrace.base.errors import HeadraceError, SettingsError
from headrace.monitor.board.finding import Finder, Found
from headrace.monitor.board.page import render_board
from headrace.monitor.board.records import Advice, Record
from headrace.monitor.local_page import LocalPageHandler
from headrace.report.frame import make_page
from headrace.report.markup import raw, tag

logger = logging.getLogger("headrace")

#: Between two looks, as long as one takes no longer.
_LOOK_SECONDS = 3.0
_IDLE_SECONDS = 60

#: Return the page of one thing, or of two runs that are compared, as HTML; raise a HeadraceError where there is none.
Show = Callable[[Record], str]
Compare = Callable[[Record, Record], str]
#: Returns what to do next, from a run folder; None: nothing is known.
Advise = Callable[[Record], Advice | None]


class Board:
    """What is shown; `close` ends its thread.

    Args:
        name: Of what is looked through.
        finder: Looks.
        advise: See `Advise`.
    """

    def __init__(self, name: str, finder: Finder, advise: Advise) -> None:
        self.name = name
        self.advice: dict[str, Advice | None] = {}
        self._finder = finder
        self._advise = advise
        self._stop = threading.Event()
        self.found = finder.look()
        self._thread = threading.Thread(target=self._keep_looking, name="board", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End."""
        self._stop.set()

    @property
    def version(self) -> str:
        """Changes when the page would; counts of what runs do not count."""
        said = [
            (record.id, record.at, record.trouble, record.run and record.run.state, sorted(record.facts.items()))
            for record in self.found.records
        ]
        advice = sorted(self.advice.items(), key=lambda one: one[0])
        return hashlib.sha256(repr((said, advice)).encode()).hexdigest()[:12]

    def record(self, record_id: str) -> Record | None:
        """Return what an id stands for."""
        return next((record for record in self.found.records if record.id == record_id), None)

    def _keep_looking(self) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            try:
                self.found = self._finder.look()
                record = newest_unadvised(self.found, self.advice)
                if record is not None:
                    self.advice[record.id] = self._advise(record)
            except Exception:
                logger.exception("the board could not look; it tries again")


def newest_unadvised(found: Found, advice: Mapping[str, Advice | None]) -> Record | None:
    """Return the newest finished run of a pipeline about which nothing was said yet; None: there is none left."""
    pipelines: set[str] = set()
    for record in found.records:
        if record.run is None or record.run.state == "runs" or record.run.pipeline in pipelines:
            continue
        if record.id not in advice:
            return record
        if advice[record.id]:
            pipelines.add(record.run.pipeline)
        elif (
            sum(
                one.run is not None and one.run.pipeline == record.run.pipeline and one.id in advice
                for one in found.records
            )
            > 2
        ):
            pipelines.add(record.run.pipeline)  # nothing could be said of three: so it is with the others
    return None


class BoardServer(ThreadingHTTPServer):
    """The server; `serve_forever` until `shutdown`.

    Args:
        board: That is shown.
        pages: {kind: what shows one}.
        compare: Shows two runs.
        host: To listen on.
        port: 0: any that is free.

    Attributes:
        address: Of the page.

    Raises:
        SettingsError: If the port cannot be used.
    """

    daemon_threads = True

    def __init__(self, board: Board, pages: Mapping[str, Show], compare: Compare, host: str, port: int) -> None:
        self.board, self.pages, self.compare, self._host = board, pages, compare, host
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise SettingsError(
                f"port {port} of {host} cannot be used: {error.strerror}; name another with --port (0: any that is free)"
            ) from None
        self.address = f"http://{host}:{self.server_port}/"

    def is_asked_for(self, host: str) -> bool:
        """Return whether a request meant this server: where strangers may come anyway, any name will do."""
        name = host.rpartition(":")[0] or host
        return name in ("127.0.0.1", "localhost", self._host) or self._host not in ("127.0.0.1", "localhost")

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away."""


class _Handler(LocalPageHandler):
    server: BoardServer
    timeout = _IDLE_SECONDS

    def do_GET(self) -> None:  # noqa: N802 - the standard library's name
        """Answer."""
        if not self.server.is_asked_for(self.headers.get("Host") or ""):
            self._send_problem(403, "this page is for this machine alone: open it at the address that was printed")
            return
        asked = urlsplit(self.path)
        try:
            self._answer(asked.path, parse_qs(asked.query, max_num_fields=20).get("run", []))
        except HeadraceError as error:
            self._send_problem(422, str(error))
        except Exception as error:  # of one damaged folder; the board goes on
            logger.exception("a page of the board could not be made")
            self._send_problem(500, f"{type(error).__name__}: {error}; this is a defect of headrace, please report it")

    def _answer(self, path: str, runs: Sequence[str]) -> None:
        board = self.server.board
        if path == "/":
            page = render_board(board.name, board.found, board.advice, time.time(), script=_script())
            self._send(200, page.encode(), "text/html; charset=utf-8")
        elif path == "/state":
            live = {
                record.id: f"{record.run.delivered:,} delivered"
                for record in board.found.records
                if record.run is not None and record.run.state == "runs"
            }
            document = {"version": board.version, "live": live}
            self._send(200, encode_document(document), "application/json")
        elif path == "/compare":
            self._send_comparison([board.record(run) for run in runs])
        else:
            _, kind, record_id = (*path.split("/"), "", "")[:3]
            record = board.record(record_id)
            show = self.server.pages.get(kind)
            if record is None or record.kind != kind or show is None:
                self._send_problem(
                    404, "there is nothing here; it may have been moved or deleted since the board was opened"
                )
            else:
                self._send(200, show(record).encode(), "text/html; charset=utf-8")

    def _send_comparison(self, records: Sequence[Record | None]) -> None:
        found = [record for record in records if record is not None and record.run is not None]
        if len(found) != 2:
            self._send_problem(
                400, f"tick two runs, not {len(found)}; the one ticked that began first is called before"
            )
            return
        before, after = sorted(found, key=lambda record: record.at)
        self._send(200, self.server.compare(before, after).encode(), "text/html; charset=utf-8")

    def _send_problem(self, status: int, why: str) -> None:
        overview = tag("header", tag("h1", why), tag("p", tag("a", "Back to the board", href="/")))
        self._send(status, make_page("Board", overview, [], "headrace board").encode(), "text/html; charset=utf-8")


def _script() -> Any:
    return raw((files("headrace.monitor.board") / "board.js").read_text(encoding="utf-8").strip())
