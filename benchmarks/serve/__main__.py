"""headrace behind HTTP beside other servers: rate, latency, overload, and clients that behave badly."""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.serve import crosscheck, environments, mutated, overload, report, restart, strangers, workloads
from benchmarks.serve.contestants import OURS, PEERS, Contestant, Knobs
from benchmarks.serve.speed import Rounds, as_rows, ratio_record, run_rounds
from benchmarks.serve.tuning import best_settings
from benchmarks.serve.workloads import Workload

#: Of headrace's Plan for the emulated device.
BATCH = 32
OPEN_SHARE = 0.8
_KEYS = {"front": "front_us"}
#: Parts in which other servers take part.
_COMPARED = ("emulated", "real")
PARTS = (
    "front",
    "emulated",
    "real",
    "overload",
    "overload_slow",
    "hostile",
    "mutated",
    "crosscheck",
    "canary",
    "restart",
    "restart_grpc",
)


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is run; seconds of each window."""

    rounds: int
    warm_seconds: float
    emulated_seconds: float
    real_seconds: float
    open_seconds: float
    overload_seconds: float
    vanishing: int
    """Times that 64 clients vanish."""
    idle: int
    dripping: int
    slow_seconds: float
    mutated: int
    """Damaged requests; a tenth as many are sent over sockets."""
    restart_requests: int
    """While workers are replaced again and again."""
    peers: tuple[str, ...]
    is_tuned: bool = True
    """Whether each peer's best settings are looked for; else it has the first of its grid."""
    is_quick: bool = False
    """No canary is simulated, and nobody decodes otherwise than most code does."""


FULL = Size(
    rounds=6,
    warm_seconds=1.0,
    emulated_seconds=5.0,
    real_seconds=8.0,
    open_seconds=15.0,
    overload_seconds=60.0,
    vanishing=100,
    idle=10_000,
    dripping=1_000,
    slow_seconds=10.0,
    mutated=1_000_000,
    restart_requests=100_000,
    peers=tuple(peer.program for peer in PEERS),
)
QUICK = Size(
    rounds=1,
    warm_seconds=0.4,
    emulated_seconds=1.0,
    real_seconds=1.5,
    open_seconds=2.0,
    overload_seconds=2.0,
    vanishing=3,
    idle=200,
    dripping=50,
    slow_seconds=1.0,
    mutated=2_000,
    restart_requests=2_000,
    peers=("mosec",),
    is_tuned=False,
    is_quick=True,
)


@dataclass(frozen=True)
class Bench:
    """One run of the benchmark.

    Attributes:
        folder: For files of this run.
        environments: Of the peers.
        perf_analyzer: Command that runs it; None: it is not here.
    """

    size: Size
    folder: Path
    environments: Path
    perf_analyzer: str | None = None

    def measure(self, part: str) -> dict[str, Any]:
        """Run one of PARTS and return its object."""
        measures: Mapping[str, Callable[[], dict[str, Any]]] = {
            "front": self._front,
            "emulated": self._emulated,
            "real": self._real,
            "overload": lambda: self._overload(overload.DEVICES["fast"]),
            "overload_slow": lambda: self._overload(overload.DEVICES["slow"]),
            "hostile": self._hostile,
            "mutated": lambda: mutated.measure_mutated(self.size.mutated, self.size.mutated // 10, _say),
            "crosscheck": self._crosscheck,
            "canary": self._canary,
            "restart": lambda: restart.measure_restarts(self.size.restart_requests, self.folder, _say),
            "restart_grpc": lambda: restart.measure_grpc_restarts(self.size.restart_requests, self.folder, _say),
        }
        return measures[part]()

    def _front(self) -> dict[str, Any]:
        from benchmarks import serve_front

        return serve_front.measure_all(quick=self.size.rounds < FULL.rounds, peer=None)["front_us"]

    def _emulated(self) -> dict[str, Any]:
        workload = workloads.emulated(self.folder)
        contestants, skipped = self._contestants(workload)
        loads = {f"c{count}": self._load(count, self.size.emulated_seconds) for count in (1, 8, 64)}
        found = self._rounds(workload, contestants, loads)
        rates = {load: found.median(OURS.name, load) for load in loads}
        limit = workload.limit_per_second(BATCH)
        return {
            **rates,
            "limit_share": rates["c64"] / limit,
            **_compared(found, "c64"),
            **_details(found, contestants, skipped),
        }

    def _real(self) -> dict[str, Any]:
        workload = workloads.real(self.folder)
        contestants, skipped = self._contestants(workload)
        closed = self._rounds(workload, contestants, {"c64": self._load(64, self.size.real_seconds)})
        result = {
            "c64": closed.median(OURS.name, "c64"),
            **_compared(closed, "c64"),
            **_details(closed, contestants, skipped),
        }
        if not result["best_peer"]:
            return result | {"open_loop_p99_ratio": None}
        rate = OPEN_SHARE * closed.median(result["best_peer"], "c64")
        left = {one: knobs for one, knobs in contestants.items() if one.name in closed.figures}
        load = self._load(128, self.size.open_seconds) | {"rate": rate}
        opened = self._rounds(workload, left, {"open": load})
        calmest = opened.best(opened.peers(), "open", "p99_ms", min)
        ratio = opened.ratio(calmest, "open", "p99_ms")
        return result | {
            "open_loop_p99_ratio": ratio.value,
            "open_loop": {
                "rate": rate,
                "ratio": ratio_record(ratio, calmest),
                "rows": as_rows(opened),
                "failed": opened.failed,
            },
        }

    def _overload(self, device: overload.Device) -> dict[str, Any]:
        rows = overload.measure_overload(
            workloads.emulated(self.folder),
            device,
            self.size.overload_seconds,
            self.size.warm_seconds,
            self.environments,
            _say,
        )
        return {
            "title": device.title,
            "goodput_share": min(row["goodput_share"] for row in rows.values()),
            "p99_within_deadline": all((row["p99_ms"] or math.inf) <= device.deadline_ms for row in rows.values()),
            "computed_for_nobody": sum(row["computed_for_nobody"] for row in rows.values()),
            "deadline_ms": device.deadline_ms,
            "rows": rows,
        }

    def _hostile(self) -> dict[str, Any]:
        workload = workloads.emulated(self.folder)
        vanished = strangers.vanish(workload, self.size.vanishing, self.environments, _say)
        slow = strangers.linger(
            workload, self.size.idle, self.size.dripping, self.size.slow_seconds, self.environments, _say
        )
        flood = strangers.flood(workload, self.size.slow_seconds, self.environments, _say)
        sums = {key: vanished[key] + slow[key] + flood[key] for key in ("crashes", "unanswered")}
        return {**sums, "vanished": vanished, "slow": slow, "flood": flood}

    def _crosscheck(self) -> dict[str, Any]:
        workload, seconds = workloads.emulated(self.folder), self.size.emulated_seconds
        return crosscheck.crosscheck(workload, self.perf_analyzer, seconds, self.environments, _say)

    def _canary(self) -> dict[str, Any]:
        from benchmarks import canary

        return {"false_rollbacks": None, "runs": 0} if self.size.is_quick else canary.measure_all(False)["canary"]

    def _contestants(self, workload: Workload) -> tuple[dict[Contestant, Knobs], dict[str, str]]:
        """Return who takes part with which settings, and why others do not."""
        taking: dict[Contestant, Knobs] = {OURS: {}}
        skipped = {}
        for peer in PEERS:
            try:
                knobs = self._knobs(peer, workload)
            except RuntimeError as error:
                skipped[peer.name] = str(error)
                continue
            taking[peer] = knobs
            if workload.decodes and not self.size.is_quick:  # what is best for the one is for the other
                taking[replace(peer, decode="scaled")] = knobs
        for name, why in skipped.items():
            _say(f"{name}: {why}")
        return taking, skipped

    def _knobs(self, peer: Contestant, workload: Workload) -> Knobs:
        """Return a peer's settings; raises RuntimeError where it takes no part."""
        if peer.program not in self.size.peers:
            raise RuntimeError("left out of this run")
        if workload.name not in peer.grids:
            raise RuntimeError("has no program for this")
        if not environments.is_ready(peer.program, self.environments):
            raise RuntimeError(f"not installed: python -m benchmarks.serve.environments {peer.program}")
        if not self.size.is_tuned:
            return peer.grids[workload.name][0]
        return best_settings(peer, workload, self.environments, _say)

    def _load(self, connections: int, seconds: float) -> dict[str, Any]:
        return {"connections": connections, "seconds": seconds, "warm_seconds": self.size.warm_seconds}

    def _rounds(self, workload: Workload, contestants: Mapping[Contestant, Knobs], loads: Any) -> Rounds:
        found = run_rounds(workload, contestants, loads, self.size.rounds, self.environments, _say)
        if OURS.name in found.failed:
            raise RuntimeError(f"{OURS.name} failed: {found.failed[OURS.name]}")
        return found


def _compared(found: Rounds, load: str) -> dict[str, Any]:
    """Return ours over the best peer; nothing of none. `usual_decode`: over the best of those that decode as most code does."""
    if not found.peers():
        return {"ratio_best_peer": None, "best_peer": None}
    best = found.best(found.peers(), load)
    ratio = found.ratio(best, load)
    usual = found.best([name for name in found.peers() if "decode" not in name] or [best], load)
    return {
        "ratio_best_peer": ratio.value,
        "best_peer": best,
        "ratio": ratio_record(ratio, best),
        "p99_ratio": ratio_record(found.ratio(best, load, "p99_ms"), best),
        "usual_decode": ratio_record(found.ratio(usual, load), usual),
    }


def _details(found: Rounds, contestants: Mapping[Contestant, Knobs], skipped: Mapping[str, str]) -> dict[str, Any]:
    return {
        "rows": as_rows(found),
        "settings": {one.name: dict(knobs) for one, knobs in contestants.items()},
        "not_run": {**skipped, **found.failed},
    }


def measure_all(size: Size, parts: list[str], peers_folder: Path, perf_analyzer: str | None) -> dict[str, Any]:
    """Run the parts and return the benchmark's object."""
    found: dict[str, Any] = {}
    measured = {}
    with tempfile.TemporaryDirectory(prefix="serve-") as folder:
        bench = Bench(size, Path(folder), peers_folder, perf_analyzer)
        for part in parts:
            with measure.Window() as window:
                found[_KEYS.get(part, part)] = bench.measure(part)
            at = datetime.fromtimestamp(window.started_at, UTC)
            measured[part] = {
                "foreign_cores": window.foreign_cores,
                "rounds": size.rounds,
                "seconds": {"emulated": size.emulated_seconds, "real": size.real_seconds}.get(part),
                "tuned": size.is_tuned,
                "at": f"{at:%H:%M} UTC",
            }
    peers = {part: found[part].pop("rows") for part in _COMPARED if part in found}
    return {**found, "peers": peers, "measured": measured, "quick": size.is_quick}


def with_earlier(result: dict[str, Any], file: Path) -> dict[str, Any]:
    """Return a result with the parts that were measured earlier on the same day, and not again.

    A part whose form is another, as it was written by an older benchmark, is left out, and that is said.
    """
    earlier = json.loads(file.read_text())["data"] if file.exists() else {}
    merged = result
    for part in reversed(PARTS):
        if part in result["measured"] or part not in earlier.get("measured", {}):
            continue
        try:
            alone = _part_alone(earlier, part)
            report.as_text(alone)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            _say(
                f"{part}: the result in {file} has an older form ({error!r}) and is left out; measure it again: --only {part}"
            )
            continue
        merged = {**alone, **merged, **{key: alone[key] | merged[key] for key in ("peers", "measured")}}
    return merged


def _part_alone(result: Mapping[str, Any], part: str) -> dict[str, Any]:
    """Return a result that has no other part; raises KeyError where this one is incomplete."""
    key = _KEYS.get(part, part)
    peers = {part: result["peers"][part]} if part in _COMPARED else {}
    return {key: result[key], "peers": peers, "measured": {part: result["measured"][part]}}


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _size(arguments: argparse.Namespace) -> Size:
    given = {
        "rounds": arguments.rounds,
        "emulated_seconds": arguments.seconds,
        "real_seconds": arguments.seconds,
        "overload_seconds": arguments.overload_seconds,
        "mutated": arguments.mutated,
        "restart_requests": arguments.restart_requests,
        "peers": tuple(arguments.peer) if arguments.peer else None,
        "is_tuned": False if arguments.untuned else None,
    }
    changed = {key: value for key, value in given.items() if value is not None}
    return replace(QUICK if arguments.quick else FULL, **changed)


def main() -> int:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run, under 60 s; the claim is the full run's")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.add_argument(
        "--write",
        action="store_true",
        help="write a dated result to benchmarks/results; parts measured earlier that day stay",
    )
    parser.add_argument("--only", action="append", choices=PARTS, help="only this part; repeatable")
    parser.add_argument("--perf-analyzer", metavar="COMMAND", help="runs perf_analyzer, for the part crosscheck")
    shorter = parser.add_argument_group("a shorter full run, which says so in its result")
    shorter.add_argument("--rounds", type=int, metavar="N", help=f"rounds in turn (default {FULL.rounds})")
    shorter.add_argument(
        "--seconds", type=float, metavar="S", help="of each window of emulated and real (default 5 and 8)"
    )
    shorter.add_argument(
        "--restart-requests", type=int, metavar="N", help="while workers are replaced (default 100,000)"
    )
    shorter.add_argument("--overload-seconds", type=float, metavar="S", help="of each overload (default 60)")
    shorter.add_argument("--mutated", type=int, metavar="N", help="damaged requests (default 1,000,000)")
    shorter.add_argument("--peer", action="append", choices=FULL.peers, help="only this peer; repeatable")
    shorter.add_argument("--untuned", action="store_true", help="give each peer the first settings of its grid")
    environments.add_folder_argument(parser)
    arguments = parser.parse_args()
    size = _size(arguments)
    result = measure_all(size, arguments.only or list(PARTS), arguments.environments, arguments.perf_analyzer)
    print(json.dumps(result) if arguments.json else report.as_text(result))
    if arguments.write:
        result = with_earlier(result, measure.result_path("serve").with_suffix(".json"))
        _say(f"written: {measure.write_result('serve', report.as_text(result), result)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
