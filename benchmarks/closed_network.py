"""A network of its own, in which every address of the internet is this process: a name server, and a trap on many ports.

How this works. `unshare` gives a child process namespaces for network and mounts (as root of a user namespace, so that no
rights are needed). There, `ip route add local 0.0.0.0/0 dev lo` makes the kernel deliver whatever is sent to any address to the
child itself, where servers listen. What arrives at 10.0.0.1 or 169.254.169.254 would have arrived at the real one. The child's
`/etc/resolv.conf` names its own name server, so that names go the whole way: getaddrinfo, UDP, an answer.
"""

from __future__ import annotations

import ipaddress
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from headrace.base.network_rules import DEFAULT_PORTS

#: What a public server's address stands for here.
PUBLIC_4, PUBLIC_6 = "93.184.216.34", "2606:2800:220:1::1"
#: Where the trap listens: the ports that are usual, and some that are other services'.
PORTS = (22, 80, 443, 6379, 8080, 8443, 9000)
#: How long the name server keeps a question for `slow.test` waiting.
SLOW_SECONDS = 30

_ENTER = """
ip link set lo up
ip route add local 0.0.0.0/0 dev lo
ip -6 route add local ::/0 dev lo
mount --bind "$0" /etc/resolv.conf
exec "$@"
"""


def missing() -> str | None:
    """Return what this machine lacks for a network of its own; None if nothing."""
    for program in ("unshare", "ip", "mount"):
        if shutil.which(program, path=_PATH) is None:
            return program
    probe = subprocess.run(_command(["true"], "/dev/null"), capture_output=True, text=True, env=_environment())
    return None if probe.returncode == 0 else f"the right to make namespaces ({probe.stderr.strip()[-200:]})"


def run_inside(arguments: Sequence[str], *, timeout_seconds: float) -> str:
    """Run this Python with arguments inside of a network of its own and return what it prints.

    Raises:
        subprocess.CalledProcessError: If it fails; its stderr goes to ours.
    """
    with tempfile.TemporaryDirectory() as folder:
        resolver = Path(folder, "resolv.conf")
        resolver.write_text(f"nameserver 127.0.0.1\noptions timeout:{SLOW_SECONDS} attempts:1\n")
        command = _command([sys.executable, *arguments], str(resolver))
        return subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, timeout=timeout_seconds, env=_environment()
        ).stdout


_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _environment() -> dict[str, str]:
    # A proxy of the environment would be out of reach, and no address is to go past the trap.
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return {**kept, "PATH": _PATH}


def _command(inside: Sequence[str], resolver: str) -> list[str]:
    return ["unshare", "--user", "--map-root-user", "--net", "--mount", "sh", "-ec", _ENTER, resolver, *inside]


class NameServer:
    """Answers A and AAAA questions over UDP on 127.0.0.1:53, for as long as the process lives.

    Args:
        names: For each name its answers, one set of addresses for each time it is asked; the last set stays. A name without
            any never gets an answer; one that is not there does not exist.
    """

    def __init__(self, names: dict[str, list[list[str]]]) -> None:
        self.names = names
        self.asked: list[str] = []
        """Names of A questions, in order."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 53))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            question, client = self._socket.recvfrom(4096)
            answer = self._answer(question)
            if answer:
                self._socket.sendto(answer, client)

    def _answer(self, packet: bytes) -> bytes:
        """Return the answer to a question; RFC 1035, 4."""
        labels, at = [], 12
        while packet[at]:
            labels.append(packet[at + 1 : at + 1 + packet[at]].decode())
            at += packet[at] + 1
        name = ".".join(labels).lower()
        question, kind = packet[12 : at + 5], struct.unpack("!H", packet[at + 1 : at + 3])[0]
        known = self.names.get(name)
        if known is not None and not known:
            return b""
        if kind == 1:
            self.asked.append(name)
        turn = max(self.asked.count(name), 1) - 1  # the AAAA question of a look-up comes after its A question
        found = known[min(turn, len(known) - 1)] if known else []
        wanted = [ipaddress.ip_address(text) for text in found if (kind == 1) == ("." in text and ":" not in text)]
        records = b"".join(
            # The name of the question, its kind, class IN, time to live 0.
            b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 0, len(one.packed)) + one.packed
            for one in wanted
        )
        code = 0x8580 if known is not None else 0x8583  # NXDOMAIN
        return packet[:2] + struct.pack("!HHHHH", code, 1, len(wanted), 0, 0) + question + records


class Trap:
    """HTTP servers on every address and the ports of `PORTS`, which remember at which address each connection arrived.

    A GET of `/to/URL` (the URL percent-encoded) is redirected there, `/close` ends its connection, the rest gets 200.
    """

    def __init__(self) -> None:
        self.arrived: list[tuple[str, int]] = []
        for port in PORTS:
            server = _Server(("::", port), _Handler)
            server.arrived = self.arrived
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 60}, daemon=True).start()

    def strangers(self) -> list[tuple[str, int]]:
        """Return where connections arrived since the last call that is not the public server on one of its ports."""
        # A connection that was made is accepted a moment later.
        time.sleep(0.002)
        found, self.arrived[:] = list(self.arrived), []
        return [place for place in found if place[0] not in (PUBLIC_4, PUBLIC_6) or place[1] not in DEFAULT_PORTS]


class _Server(ThreadingHTTPServer):
    address_family = socket.AF_INET6
    daemon_threads = True
    arrived: list[tuple[str, int]]

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection and note where it arrived, before anything is read."""
        connection, client = super().get_request()
        host, port = connection.getsockname()[:2]
        address = ipaddress.IPv6Address(host.partition("%")[0])
        self.arrived.append((str(address.ipv4_mapped or address), port))
        return connection, client

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that hang up."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path.startswith("/to/"):
            self._answer(302, b"", unquote(self.path.removeprefix("/to/")))
            return
        self.close_connection = self.path == "/close"
        self._answer(200, b"image")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, b"")

    def _answer(self, status: int, body: bytes, location: str | None = None) -> None:
        self.send_response(status)
        if location is not None:
            self.send_header("Location", location.encode().decode("latin-1"))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        pass
