"""Senders that are killed and freeze, and clips whose bytes are damaged: what comes back, how soon, and whether anything grows.

python -m benchmarks.video.faults [live] [rtsp] [growth] [clips] [--quick] [--json] [--write]
"""

from __future__ import annotations

import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import headrace as hr
from benchmarks import measure
from benchmarks.live_video import Seen
from benchmarks.paths import ROOT
from benchmarks.video.clips import FPS, clip
from benchmarks.video.senders import Order, cameras, damage

SIZE, SMALL = (640, 360), (160, 96)
_AWAY_SECONDS, _FROZEN_SECONDS, _PATIENCE_SECONDS = 0.5, 4.0, 3.0
#: So often each camera sends damaged bytes, and for so long: 2 s are 50 frames.
_DAMAGES, _DAMAGED_SECONDS = 2, 2.0
#: Before each failure: one that breaks off sooner is tried again later.
_PAUSE_SECONDS = 10.5
_SECONDS = {"away": _AWAY_SECONDS, "freeze": _FROZEN_SECONDS, "damage": _DAMAGED_SECONDS}
_MOST_FREEZES = 20
#: Between two looks at what the process holds.
_HELD_SECONDS = 2.0
#: How long memory is watched, how often, and from when on a camera fails every so many seconds.
_GROWTH_SECONDS, _LOOK_SECONDS, _FIRST_FAILURE_SECONDS, _FAILURE_SECONDS = 600.0, 15.0, 30.0, 0.5
#: A camera that is not back after so long is lost.
_MOST_SECONDS = 10.0


def run(quick: bool) -> dict[str, Any]:
    """Return what became of cameras that failed, over TCP and by RTSP, and of damaged clips; quickly, all at the same time."""
    if not quick:
        return {name: part(quick) for name, part in PARTS.items()}
    with ThreadPoolExecutor(len(PARTS)) as pool:
        ended = list(pool.map(lambda name: _in_a_process("--quick", "--json", name), PARTS))
    for name, one in zip(PARTS, ended, strict=True):
        if one.returncode:
            raise RuntimeError(f"faults, {name}: {_why(one)}")
    return {name: part for one in ended for name, part in json.loads(one.stdout).items()}


def _in_a_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.video.faults", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def _why(ended: subprocess.CompletedProcess[str]) -> str:
    """Return how a process ended and the last that it said."""
    return f"exit status {ended.returncode}; {ended.stderr[-2000:].strip() or 'it said nothing'}"


def _over_tcp(quick: bool) -> dict[str, Any]:
    count, kills, damages = (4, 1, 1) if quick else (25, 4, _DAMAGES)
    return _live("tcp", count, kills, damages, 1.0 if quick else _PAUSE_SECONDS)


def _by_rtsp(quick: bool) -> dict[str, Any]:
    return _live("rtsp", 2 if quick else 10, 1 if quick else 2, 1, 1.0 if quick else _PAUSE_SECONDS)


def _live(scheme: str, num_cameras: int, kills: int, damages: int, pause: float) -> dict[str, Any]:
    """Let all cameras but the last fail again and again; the last one tells what the others notice."""
    with cameras(clip(8, SIZE, suffix=".ts"), num_cameras + 1, scheme) as (addresses, order):
        names = [f"camera-{number}" for number in range(len(addresses))]
        source = hr.live_video(
            dict(zip(names, addresses, strict=True)), fps=5, size=224, max_age=0.5, patience=_PATIENCE_SECONDS
        )
        seen = Seen()
        story: dict[str, Any] = {}
        teller = threading.Thread(target=lambda: _tell(story, source, seen, order, names[:-1], (kills, damages, pause)))
        teller.start()
        hr.run(hr.Pipeline(source, stages=[hr.emulated("model", seconds=0.002)], delivery=seen))
        teller.join()
        counts = source.counts()
    unbalanced = sum(
        each["decoded"] - sum(number for what, number in each.items() if what != "decoded") for each in counts.values()
    )
    recoveries = story["recoveries"]
    back = {
        what: [seconds for kind, _, seconds in recoveries if kind == what and seconds is not None] for what in _SECONDS
    }
    witness = [(at, age) for at, name, age in seen.answers if name == names[-1]]
    begin = story["began"]
    return {
        "tried": Counter(what for what, _, _ in recoveries),
        "lost": len(recoveries) - sum(map(len, back.values())),
        "recovery_median_seconds": {what: statistics.median(found) for what, found in back.items() if found},
        "recovery_most_seconds": {what: max(found) for what, found in back.items() if found},
        "frames_unaccounted": unbalanced,
        "witness_age_p99_before": _p99([age for at, age in witness if at < begin]),
        "witness_age_p99": _p99([age for at, age in witness if at >= begin]),
        "grew": {what: story["after"][what] - story["before"][what] for what in story["before"]},
        "grew_in_second_half": {what: story["after"][what] - story["half"][what] for what in story["half"]},
    }


def _tell(
    story: dict[str, Any],
    source: Any,
    seen: Seen,
    order: Order,
    names: list[str],
    plan: tuple[int, int, float],
) -> None:
    """Order failures, one thread for each camera; note how soon answers come again, and what the process holds."""
    kills, damages, pause = plan
    _wait(lambda: len({name for _, name, _ in seen.answers}) > len(names), 20.0)
    time.sleep(2.0)
    story["before"], story["began"], story["recoveries"] = _held(), time.monotonic(), []
    lock = threading.Lock()

    def trouble(camera: int) -> None:
        chance = random.Random(camera)
        events = ["away"] * kills + ["freeze"] * (camera < _MOST_FREEZES) + ["damage"] * damages
        for what in chance.sample(events, len(events)):
            time.sleep(pause + chance.uniform(0.0, 1.5))
            seconds = _SECONDS[what]
            with lock:
                order(what, camera, seconds)
            back = time.monotonic() + seconds
            came = _wait(lambda back=back: any(n == names[camera] and at > back for at, n, _ in seen.answers[-500:]),  # type: ignore[misc]
                         seconds + _MOST_SECONDS)  # fmt: skip
            story["recoveries"].append((what, camera, max(0.0, time.monotonic() - back) if came else None))

    held, over = [story["before"]], threading.Event()

    def watch() -> None:
        while not over.wait(_HELD_SECONDS):
            held.append(_held())

    threads = [threading.Thread(target=trouble, args=(camera,)) for camera in range(len(names))]
    watcher = threading.Thread(target=watch)
    for thread in (watcher, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(2.0)
    over.set()
    watcher.join()
    story["after"], story["half"] = _held(), held[len(held) // 2]
    source.stop()


def _growth(quick: bool) -> dict[str, Any]:
    """Let cameras fail one after the other for ten minutes, and look again and again what the process holds."""
    seconds, pause = (12.0, 2.0) if quick else (_GROWTH_SECONDS, _LOOK_SECONDS)
    with cameras(clip(8, SIZE, suffix=".ts"), 26) as (addresses, order):
        source = hr.live_video(addresses, fps=5, size=224, max_age=0.5, patience=_PATIENCE_SECONDS)
        looks: list[dict[str, float]] = []

        def tell() -> None:
            chance, began, failures = random.Random(0), time.monotonic(), 0
            while (now := time.monotonic() - began) < seconds:
                if now >= pause * (len(looks) + 1):
                    looks.append({"seconds": now, "failures": failures, **_held()})
                if now >= (pause if quick else _FIRST_FAILURE_SECONDS):
                    what = "away" if chance.random() < 0.8 else "freeze"
                    order(what, chance.randrange(len(addresses)), _SECONDS[what])
                    failures += 1
                time.sleep(_FAILURE_SECONDS)
            source.stop()

        teller = threading.Thread(target=tell)
        teller.start()
        hr.run(hr.Pipeline(source, stages=[hr.emulated("model", seconds=0.002)], delivery=Seen()))
        teller.join()
    return {"looks": looks, "opened": source.notes()["video.opened"]}


def _wait(is_so: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def _held() -> dict[str, float]:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return {
        "threads": threading.active_count(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mib": int(status["VmRSS"].split()[0]) / 1024,
    }


def _p99(ages: list[float]) -> float | None:
    return sorted(ages)[math.ceil(0.99 * len(ages)) - 1] if ages else None


def _mutate(quick: bool) -> dict[str, Any]:
    """Decode many damaged clips in two processes, which a crash would end."""
    half = 100 if quick else 5_000
    with ThreadPoolExecutor(2) as pool:
        halves = list(pool.map(lambda first: _in_a_process("--damaged", str(first), str(half)), (0, half)))
    found = [json.loads(one.stdout.splitlines()[-1]) for one in halves if not one.returncode]
    ended: Counter[str] = Counter()
    for one in found:
        ended.update(one["ended"])
    return {
        "tried": sum(one["tried"] for one in found),
        "crashed": len(halves) - len(found),
        "crashes": [_why(one) for one in halves if one.returncode],
        "errors": sum(one["errors"] for one in found),
        "ended": dict(ended),
        "grew_mib": max((one["grew_mib"] for one in found), default=math.nan),
    }


def _decode_damaged(first: int, count: int) -> dict[str, Any]:
    """Decode clips of three containers with bytes changed, cut out, doubled or cut off; the seed is the number."""
    originals = [(suffix, clip(1, SMALL, suffix=suffix).read_bytes()) for suffix in (".ts", ".mp4", ".mkv")]
    codes: Counter[str] = Counter()
    errors = 0
    before = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(first, first + count):
            if number == first + count // 4:
                before = _held()["mib"]
            suffix, data = originals[number % len(originals)]
            path = Path(folder) / f"damaged{suffix}"
            path.write_bytes(damage(data, random.Random(number)))
            try:
                for entry in hr.video(path, size=32).entries():
                    codes[entry.refused.split(":")[0] or "given"] += 1
            except Exception as error:  # what is looked for
                errors += 1
                codes[type(error).__name__] += 1
    return {
        "tried": count,
        "errors": errors,
        "ended": dict(codes),
        "grew_mib": _held()["mib"] - before,
    }


#: {name of a part: what runs it}.
PARTS: dict[str, Callable[[bool], dict[str, Any]]] = {
    "live": _over_tcp,
    "rtsp": _by_rtsp,
    "growth": _growth,
    "clips": _mutate,
}
_TITLES = {"live": "Cameras over TCP", "rtsp": "Cameras by RTSP, over TCP"}


def as_text(result: Mapping[str, Any]) -> str:
    """Return the result for readers."""
    lines = ["# Senders that fail, and damaged clips"]
    for name, title in _TITLES.items():
        if name in result:
            lines += [f"\n## {title}\n", _say_live(result[name])]
    if growth := result.get("growth"):
        lines += ["\n## Memory of 26 cameras that fail again and again\n", _say_growth_of(growth)]
    if clips := result.get("clips"):
        lines += ["\n## Clips\n", _say_clips(clips)]
    return "\n".join(lines) + "\n"


def _say_clips(clips: Mapping[str, Any]) -> str:
    return f"""- {clips["tried"]:,} clips with damaged bytes: {clips["crashed"]} crashes, {clips["errors"]} errors that are no
  refusals; memory grew by {clips["grew_mib"]:.1f} MiB in the last three quarters. What came: {clips["ended"]}"""


def _say_live(live: Mapping[str, Any]) -> str:
    tried = live["tried"]
    num_damaged = tried.get("damage", 0) * round(_DAMAGED_SECONDS * FPS)
    before, then = (
        "-" if age is None else f"{age * 1e3:.0f} ms"
        for age in (live["witness_age_p99_before"], live["witness_age_p99"])
    )
    return f"""- {tried.get("away", 0)} times a sender was away for {_AWAY_SECONDS:g} s, {tried.get("freeze", 0)} times it sent
  nothing for {_FROZEN_SECONDS:g} s; {live["lost"]} did not come back. The next answer came {_say(live, "away")} after an
  absence, {_say(live, "freeze")} after a freeze (a keyframe comes every 2 s)
- {tried.get("damage", 0)} times a sender sent damaged bytes for {_DAMAGED_SECONDS:g} s, {num_damaged:,} frames in all;
  the next answer came {_say(live, "damage")} after them
- {live["frames_unaccounted"]} decoded frames of which it is not known what became of them
- answers of a camera that did not fail: p99 of their age {before} before, {then} while the others failed
- grew: {_say_growth(live["grew"])}; in the second half of the time: {_say_growth(live["grew_in_second_half"])}"""


def _say_growth_of(growth: Mapping[str, Any]) -> str:
    looks = growth["looks"]
    rows = [looks[round(share * (len(looks) - 1))] for share in (0, 0.1, 0.25, 0.5, 0.75, 1)]
    lines = [f"| {one['seconds']:.0f} | {one['failures']} | {one['mib']:.0f} | {one['threads']} |" for one in rows]
    text = f"""Every half second one of them is cut off or sends nothing; {growth["opened"]:,} connections in all.

| after s | failures | MiB | threads |
|---|---|---|---|
"""
    return text + "\n".join(lines)


def _say_growth(grew: Mapping[str, float]) -> str:
    return ", ".join(f"{number:+.1f} {'MiB' if what == 'mib' else what}" for what, number in grew.items())


def _say(live: Mapping[str, Any], what: str) -> str:
    if what not in live["recovery_median_seconds"]:
        return "never"
    return f"{live['recovery_median_seconds'][what]:.2f} s (at most {live['recovery_most_seconds'][what]:.2f} s)"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--damaged"]:
        print(json.dumps(_decode_damaged(*map(int, sys.argv[2:4]))))
    else:
        measure.run_parts("video.faults", "Senders that fail, and damaged clips.", PARTS, as_text)
