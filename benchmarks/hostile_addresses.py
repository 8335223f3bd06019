"""Jobs that name every kind of address that a worker must not contact, against a real name server and a trap.

Each special address is tried as it is written, by a name that resolves to it, by a redirect from a public server, and as a
callback; besides unusual spellings, other schemes and ports, mixed answers, answers that change, and names that do not resolve.
All of it runs in a network of its own (`closed_network`), in which the trap is at every address, and "let through" means that
a connection arrived where none may.

    python -m benchmarks.hostile_addresses [--json]
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, cast
from urllib.parse import quote

from benchmarks import closed_network
from benchmarks.closed_network import PUBLIC_4, PUBLIC_6, NameServer, Trap
from headrace.base import dialing
from headrace.base.calls import Call
from headrace.base.carrier import Carrier
from headrace.base.errors import HeadraceError, ItemError, ItemRejected
from headrace.base.network_rules import NetworkPlan
from headrace.base.plan import Plan, StagePlan
from headrace.base.records import Job
from headrace.delivery.callback import Callback
from headrace.stages.fetch import FetchStage
from headrace.stages.stage import StageContext

#: One address at least of each range that is not the public internet; see `headrace.base.address_ranges`.
SPECIAL = (
    "127.0.0.1", "127.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.254", "192.168.0.1", "169.254.169.254", "169.254.170.2",
    "100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192", "0.0.0.0", "0.1.2.3", "192.0.0.1", "192.0.2.1",
    "192.88.99.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255",
    "::1", "::", "::7f00:1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:0:7f00:1",
    "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::", "2002:a9fe:a9fe::1", "2001:0:7f00:1::",
    "2001:db8::1", "3fff::1", "100::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fd12:3456::1", "fe80::1", "fec0::1", "ff02::1",
)  # fmt: skip
#: Hosts that resolvers and URL parsers read as 127.0.0.1 or as another host than it seems, with what follows them.
SPELLINGS = (
    "2130706433", "0x7f000001", "0x7f.1", "127.1", "0177.0.0.1", "017700000001", "127.0.0.01", "127.0.0.1.", "0",
    "\uff11\uff12\uff17.0.0.1", "\u2460\u2461\u2466.0.0.1", "127\u30020\u30020\u30021", "127%2e0%2e0%2e1", "%31%32%37.0.0.1",
    "localhost", "LOCALHOST", "localhost.", "a.localhost", "loc\u0430lhost",
    "\u24db\u24de\u24d2\u24d0\u24db\u24d7\u24de\u24e2\u24e3",
    "user@127.0.0.1", "public.test@127.0.0.1", "public.test:80@127.0.0.1", "a@b@127.0.0.1", "127.0.0.1@public.test@127.0.0.1",
    "public.test\\@127.0.0.1", "127.0.0.1\\@public.test", "127.0.0.1\\.public.test", "public.test#@127.0.0.1",
    "127.0.0.1#@public.test", "127.0.0.1?@public.test", "127.0.0.1:80\\@public.test:80", "127.0.0.1%00.public.test",
    "127.0.0.1%09", "127.0.0.1\t", " 127.0.0.1", "[::1%25lo]", "[::ffff:7f00:1]", "[0:0:0:0:0:0:0:1]", "[::127.0.0.1]",
    "[::1]@public.test@[::1]", "public.test:22", "public.test:6379", "public.test:9000", "user:password@public.test",
)  # fmt: skip
#: Addresses that are no http and no https, or not whole.
OTHERS = (
    "file:///etc/hostname", "FILE:///etc/hostname", "file://127.0.0.1/etc/hostname", "gopher://127.0.0.1:6379/_INFO",
    "gopher://public.test/_x", "ftp://127.0.0.1/a", "ftp://public.test/a", "dict://127.0.0.1:6379/INFO", "ldap://127.0.0.1/",
    "tftp://127.0.0.1/a", "smb://127.0.0.1/a", "scp://127.0.0.1/a", "telnet://127.0.0.1:6379", "imap://127.0.0.1/",
    "ws://127.0.0.1/", "mqtt://127.0.0.1/a", "unix:///run/docker.sock", "http+unix://%2Frun%2Fdocker.sock/info",
    "unix:/run/docker.sock:/info", "http:///run/docker.sock", "http://unix:/run/docker.sock:/info",
    "data:image/png;base64,AA==",
    "javascript:alert(1)", "jar:http://127.0.0.1!/", "//127.0.0.1/", "http:127.0.0.1", "http:/127.0.0.1/", "http:///127.0.0.1/",
    "http:\\\\127.0.0.1\\", "http://", "127.0.0.1", "/etc/hostname", "", "http://public.test:0/", "http://public.test:65616/",
    "http://public.test:+80/", "http://public.test:80a/",
)  # fmt: skip
_SECONDS = 2.0
_CODE = re.compile(r"(ssrf|http|file)\.[a-z_]+: ")


@dataclass(frozen=True, slots=True)
class Tried:
    """One job and what came of it."""

    way: str
    address: str
    """As the job named it."""
    outcome: str
    """`refused`; `failed`: worth another try; `public`: the public server answered, and nothing arrived elsewhere; `let
    through`: something did, or was read that no public server sent; `untyped`: an error without a code."""
    reason: str
    seconds: float
    arrived: list[tuple[str, int]]


def run() -> dict[str, Any]:
    """Try them all.

    Returns {"tried", "refused", "failed", "public", "let_through", "untyped", "slowest_seconds", "by_way", "cases"}; "cases"
    are those that were let through or gave an untyped error: none, if all is well.

    Raises:
        HeadraceError: If this machine cannot make a network of its own, or the trap does not work.
    """
    tried = run_cases()
    controls = [one for one in tried if one.way == "control"]
    if not all(one.outcome in ("public", "let through") for one in controls):
        raise HeadraceError(f"the trap does not work: {controls}")
    cases = [one for one in tried if one.way != "control"]

    def count(*outcomes: str, way: str | None = None) -> int:
        return sum(one.outcome in outcomes and way in (None, one.way) for one in cases)

    ways = sorted({one.way for one in cases})
    return {
        "tried": len(cases),
        "refused": count("refused"),
        "failed": count("failed"),
        "public": count("public"),
        "let_through": count("let through"),
        "untyped": count("untyped"),
        "slowest_seconds": max(one.seconds for one in cases),
        "by_way": {
            way: {"tried": sum(one.way == way for one in cases), "refused": count("refused", way=way)} for way in ways
        },
        "cases": [asdict(one) for one in cases if one.outcome in ("let through", "untyped")],
    }


def run_cases(*, carried: bool = False) -> list[Tried]:
    """Return every case with its outcome.

    Args:
        carried: Whether the requests are carried (`headrace.base.carrier`) instead of waited for one by one.

    Raises:
        HeadraceError: If this machine cannot make a network of its own.
    """
    lacking = closed_network.missing()
    if lacking is not None:
        raise HeadraceError(
            f"hostile addresses are tried in a network of their own, for which this machine lacks {lacking}"
        )
    way = "--carried" if carried else "--waiting"
    printed = closed_network.run_inside(["-m", "benchmarks.hostile_addresses", "--inside", way], timeout_seconds=120)
    return [Tried(**{**one, "arrived": [tuple(place) for place in one["arrived"]]}) for one in json.loads(printed)]


def _inside(*, carried: bool) -> list[Tried]:
    """Try them all, inside of the network of its own."""
    names = NameServer(_names())
    return list(_World(names, Trap(), carried=carried).cases())


class _Carried:
    """Has a carrier do what would be waited for, one call at a time."""

    def __init__(self, call: Callable[..., Call[Any]]) -> None:
        self._call = call
        self._carrier = Carrier()

    def __call__(self, job: Job, value: Any) -> Any:
        self._carrier.begin(self._call(job, value), job)
        (ended,) = self._carrier.wait(None)
        if ended.error is not None:
            raise ended.error
        return ended.value


def _names() -> dict[str, list[list[str]]]:
    named = {_name(address): [[address]] for address in SPECIAL}
    return {
        **named,
        "public.test": [[PUBLIC_4, PUBLIC_6]],
        "public4.test": [[PUBLIC_4]],
        "mixed1.test": [[PUBLIC_4, "10.0.0.1"]],
        "mixed2.test": [["10.0.0.1", PUBLIC_4]],
        "mixed3.test": [[PUBLIC_4, "::1"]],
        "mixed4.test": [["127.0.0.1", PUBLIC_6]],
        "rebind.test": [[PUBLIC_4], ["127.0.0.1"]],
        "rebind-reconnect.test": [[PUBLIC_4], ["127.0.0.1"]],
        "rebind-pin.test": [[PUBLIC_4], ["127.0.0.1"]],
        "rotating.test": [[PUBLIC_4], [PUBLIC_6], [PUBLIC_4]],
        "rebind-back.test": [["127.0.0.1"], [PUBLIC_4]],
        "empty.test": [[]],
        "slow.test": [],
    }


def _name(address: str) -> str:
    return f"a{address.replace('.', '-').replace(':', 'x')}z.test"


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _context(stage: str, plan: Plan) -> StageContext:
    options = {"timeout_seconds": 2 * _SECONDS, "connect_timeout_seconds": _SECONDS}

    def no_model(path: str | None = None) -> Any:
        raise AssertionError("no stage here has a model")

    return StageContext(stage, 0, plan, options, None, no_model)


class _World:
    """Tries cases, one after the other."""

    def __init__(self, names: NameServer, trap: Trap, *, carried: bool) -> None:
        self._carried = carried
        self._names = names
        self._trap = trap
        # As for a queue on the network: no files.
        self._plan = Plan(stages={"fetch": StagePlan()}, network=NetworkPlan(files=[]))

    def cases(self) -> Iterator[Tried]:
        yield from self._controls()
        time.sleep(0.5)
        self._trap.strangers()  # what was late of the controls
        fetch, post = self._fetcher(), self._poster()
        for address in SPECIAL:
            direct, named = f"http://{_host(address)}/", f"http://{_name(address)}/"
            yield self._try("address", direct, fetch)
            yield self._try("name", named, fetch)
            yield self._try("redirect to address", f"http://public.test/to/{quote(direct, safe='')}", fetch)
            yield self._try("redirect to name", f"http://public.test/to/{quote(named, safe='')}", fetch)
            yield self._try("callback", direct, post)
            yield self._try("callback by name", named, post)
        for host in SPELLINGS:
            yield self._try("spelling", f"http://{host}/", fetch)
            yield self._try("redirect to spelling", f"http://public.test/to/{quote(f'http://{host}/', safe='')}", fetch)
            yield self._try("callback by spelling", f"http://{host}/", post)
        for address in OTHERS:
            yield self._try("scheme", address, fetch)
            yield self._try("callback by scheme", address or "x:", post)
        for address in (other for other in OTHERS if "://" in other):
            yield self._try("redirect to scheme", f"http://public.test/to/{quote(address, safe='')}", fetch)
        yield from self._names_that_change(fetch)
        yield self._try("redirects", _redirected("http://public.test/", 6), fetch)
        yield self._try("redirects", _redirected("http://public.test/", 4), fetch)

    def _controls(self) -> Iterator[Tried]:
        """The public server answers; and without rules a connection to each kind of address would arrive."""
        for url in (
            "http://public.test/",
            f"http://{PUBLIC_4}/",
            f"http://[{PUBLIC_6}]/",
            _redirected("http://public4.test/", 3),
        ):
            yield self._try("control", url, self._fetcher())
        everything = NetworkPlan(allow=["0.0.0.0/0", "::/0"])
        for address in (
            "127.0.0.1",
            "10.0.0.1",
            "169.254.169.254",
            "100.64.0.1",
            "::1",
            "fd12:3456::1",
            "64:ff9b::7f00:1",
        ):
            for host in (_host(address), _name(address)):
                yield self._try("control", f"http://{host}/", self._fetcher(Plan(network=everything)))

    def _names_that_change(self, fetch: Callable[[str], object]) -> Iterator[Tried]:
        for number in range(1, 5):
            yield self._try("mixed answer", f"http://mixed{number}.test/", self._fetcher())
        for name in ("nowhere.test", "empty.test", "slow.test"):
            yield self._try("no answer", f"http://{name}/", fetch)
        # A worker that has judged the first answer goes on with it, over the connection and over a new one; one that asks
        # again gets the second answer, and judges that.
        for name, path in (("rebind.test", ""), ("rebind-reconnect.test", "close")):
            worker = self._fetcher()
            yield self._try("control", f"http://{name}/{path}", worker)
            yield self._try("control", f"http://{name}/{path}", worker)
            assert self._names.asked.count(name) == 1, f"{name} was resolved more than once"
            yield self._try("rebinding", f"http://{name}/", self._fetcher())
        worker = self._fetcher()
        for url in ("http://rotating.test/close", "http://ROTATING.test/close", "http://rotating.test:80/close") * 2:
            yield self._try("control", url, worker)
        yield self._try("rebinding", "http://rebind-back.test/", self._fetcher())
        yield self._try("rebinding", "http://rebind-pin.test/", self._forget_and_fetch)

    def _fetcher(self, plan: Plan | None = None) -> Callable[[str], object]:
        opened: Any = FetchStage("fetch").open(_context("fetch", plan or self._plan))
        if not self._carried:
            return cast("Callable[[str], object]", opened)
        fetch = _Carried(opened.carried)
        return lambda url: fetch(Job("1", b""), url)

    def _forget_and_fetch(self, url: str) -> object:
        """Fetch with a libcurl that forgets the addresses that it was given, and resolves for itself."""
        kept, dialing.JUDGED_SECONDS = dialing.JUDGED_SECONDS, 0
        try:
            return self._fetcher()(url)
        finally:
            dialing.JUDGED_SECONDS = kept

    def _poster(self) -> Callable[[str], object]:
        callback = Callback()
        callback.open(_context("deliver", self._plan))
        post = _Carried(callback.delivering) if self._carried else callback.deliver
        return lambda url: post(Job("1", b"", attributes={"callback": url}), {})

    def _try(self, way: str, url: str, go: Callable[[str], object]) -> Tried:
        late = [] if way == "control" else self._trap.strangers()
        began, reason = time.monotonic(), ""
        try:
            answer = go(url)
            outcome = "public" if answer in (b"image", True) else "let through"
        except ItemError as error:
            reason = error.reason
            outcome = "refused" if isinstance(error, ItemRejected) else "failed"
            if not _CODE.match(reason):
                outcome = "untyped"
        except Exception as error:
            outcome, reason = "untyped", f"{type(error).__name__}: {error}"
        seconds = time.monotonic() - began
        arrived = late + self._trap.strangers()
        return Tried(way, url, "let through" if arrived else outcome, reason, seconds, arrived)


def _redirected(url: str, times: int) -> str:
    for _ in range(times):
        url = f"http://public4.test/to/{quote(url, safe='')}"
    return url


def main() -> int:
    """Print the counts."""
    if "--inside" in sys.argv:
        print(json.dumps([asdict(one) for one in _inside(carried="--carried" in sys.argv)]))
        return 0
    result = run()
    print(json.dumps(result, indent=2))
    return int(bool(result["let_through"] or result["untyped"]))


if __name__ == "__main__":
    sys.exit(main())
