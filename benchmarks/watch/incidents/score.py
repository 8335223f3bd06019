"""Plants incidents, keeps what the recorder of each left behind, and says whether the rules name it.

python -m benchmarks.watch.incidents.score                     plant all, keep the recordings, score them
python -m benchmarks.watch.incidents.score --stored            score the kept recordings again, in seconds
python -m benchmarks.watch.incidents.score --seed 2 "slow"     with other doses; only incidents with this in their name
python -m benchmarks.watch.incidents.score third --write watch_unseen     a dated result
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.measure import Window, write_result
from benchmarks.paths import CACHE
from benchmarks.watch.incidents.catalogue import COMPOUND, FIRST, SECOND, SECOND_COMPOUND, THIRD, THIRD_COMPOUND
from benchmarks.watch.incidents.planted import Planted, is_right
from benchmarks.watch.incidents.world import CORE_KNOBS
from headrace.base.documents import encode_document
from headrace.monitor.recorder.incident import write_incident
from headrace.monitor.recorder.places import find_recordings
from headrace.monitor.recorder.recording import Recording, read_recording
from headrace.monitor.recorder.ring import remove_recording
from headrace.monitor.recorder.triggers import Trigger

#: Length of a run; at half of it something changes.
SECONDS = 16.0
STORE = CACHE / "incidents"
GROUPS = {
    "first": FIRST,
    "first, two at once": COMPOUND,
    "second": SECOND,
    "second, two at once": SECOND_COMPOUND,
    "third": THIRD,
    "third, two at once": THIRD_COMPOUND,
}
_ABOUT = "planted.json"
_LAST = "deliver"
#: A job takes 65 ms where nothing disturbs it; times that a run is tried until it is not much slower.
_MOST_USUAL_SECONDS, _MOST_TRIES = 0.12, 3
#: A sleep that ends so late says that this program, and with it the run, was stopped for a while.
_MOST_LATE_SECONDS = 1.0
#: Runs at the same time where nothing is done to the cores: each takes a third of one.
_AT_ONCE = 2


def plant(planted: Planted, kept: Path, seed: int, seconds: float = SECONDS) -> None:
    """Run an incident, kill the run, and keep its recording in a folder.

    A run that others of the machine slowed down before anything was planted is run again: what it shows is another incident.
    """
    print(f"incident: {planted.name}", file=sys.stderr, flush=True)
    for number in range(1, _MOST_TRIES + 1):
        usual = _plant_once(planted, kept, seed, seconds)
        if usual <= _MOST_USUAL_SECONDS or number == _MOST_TRIES:
            return
        print(f"again: a job took {usual:.3f} s before anything was planted", file=sys.stderr, flush=True)


def _plant_once(planted: Planted, kept: Path, seed: int, seconds: float) -> float:
    """Plant it; return the median latency before, in seconds; infinity where the machine stood still."""
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    knobs = planted.draw(seed)
    command = [sys.executable, "-m", "benchmarks.watch.incidents.world", json.dumps(knobs), str(seconds)]
    world = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        process, changed_ns = map(int, world.stdout.readline().split() if world.stdout else ())
        with Window([world.pid]) as window:
            time.sleep(seconds)
    finally:
        world.kill()
        world.wait()
        _remove_quotas(world.pid)
    folder, _ = find_recordings(str(process))[0]
    for part in folder.glob("*.part"):
        shutil.copy(part, kept)
    remove_recording(folder)
    about = {"name": planted.name, "knobs": knobs, "seed": seed, "foreign_cores": round(window.foreign_cores, 2)}
    (kept / _ABOUT).write_text(json.dumps(about))
    stood_still = window.seconds > seconds + _MOST_LATE_SECONDS
    return math.inf if stood_still else _measure_latency(read_recording(kept), changed_ns)


def _measure_latency(recording: Recording, until_ns: int) -> float:
    """Return the median latency of the jobs that were done by then; without one, infinity."""
    begins: dict[str, int] = {}
    for span in recording.spans:
        begins[span.unit_id] = min(begins.get(span.unit_id, span.arrived), span.arrived)
    ended = [
        (span.put - begins[span.unit_id]) / 1e9
        for span in recording.spans
        if span.stage == _LAST and span.put < until_ns
    ]
    return statistics.median(ended) if ended else math.inf


def _remove_quotas(process: int) -> None:
    """Remove the control group that a killed run left behind."""
    for group in Path("/sys/fs/cgroup").glob(f"**/headrace-{process}"):
        with suppress(OSError):
            group.rmdir()


def score(planted: Planted, kept: Path) -> dict[str, Any]:
    """Return what was planted, what a recording names, and whether that is right."""
    about = json.loads((kept / _ABOUT).read_text())
    with tempfile.TemporaryDirectory(prefix="headrace-incident-") as folder:
        trigger = Trigger("asked", "benchmark")
        found = write_incident(read_recording(kept), Path(folder), trigger, name=planted.name, budget_seconds=0.0)
    document = json.loads(encode_document(found))
    changes = document["changes"]
    return {
        "name": planted.name,
        "knobs": about["knobs"],
        "expected": [f"{kind.value} {stage or ''}".strip() for kind, stage in planted.expected],
        "named": [f"{one['kind']} {one['stage'] or ''}".strip() for one in changes[:3]],
        "shares": [round(one["explains_share"], 2) for one in changes[:3]],
        "latency_seconds": [document["baseline"]["latency"], document["incident"]["latency"]],
        "failed_shares": [document["baseline"]["failed_share"], document["incident"]["failed_share"]],
        "says": document["says"],
        "foreign_cores": about["foreign_cores"],
        "right": is_right(planted, changes),
    }


def score_all(
    incidents: Iterable[Planted], *, seed: int, store: Path = STORE, is_stored: bool = False, seconds: float = SECONDS
) -> Iterator[dict[str, Any]]:
    """Yield the score of each incident.

    Args:
        incidents: Which.
        seed: Of the doses.
        store: Where recordings are kept.
        is_stored: Plant nothing, and take the recordings that are there; incidents without one are left out.
        seconds: Length of a run.
    """
    chosen = list(incidents)
    if not is_stored:
        alone = [one for one in chosen if one.knobs.keys() & CORE_KNOBS]
        for together, number in (([one for one in chosen if one not in alone], _AT_ONCE), (alone, 1)):
            with ThreadPoolExecutor(number) as pool:
                for _ in pool.map(lambda one: plant(one, _place(store, one), seed, seconds), together):
                    pass
    for one in chosen:
        if (_place(store, one) / _ABOUT).exists():
            yield score(one, _place(store, one))


def _place(store: Path, planted: Planted) -> Path:
    return store / planted.name.replace(" ", "-").replace("/", "-")


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "words", nargs="*", help="incidents with one of these in their name, or groups: " + ", ".join(GROUPS)
    )
    parser.add_argument("--stored", action="store_true", help="plant nothing; score the recordings that are kept")
    parser.add_argument("--store", type=Path, default=STORE, help="folder that keeps them")
    parser.add_argument("--seed", type=int, default=1, help="of the doses")
    parser.add_argument("--json", action="store_true", help="print everything that is known of each")
    parser.add_argument("--write", metavar="THEME", help="write a dated result under this name")
    parser.add_argument("--note", default="", help="what the result's readers must know")
    arguments = parser.parse_args()
    tables, scores = [], {}
    for group, incidents in GROUPS.items():
        words = arguments.words
        chosen = [one for one in incidents if not words or group in words or any(word in one.name for word in words)]
        if not chosen:
            continue
        found = []
        for one in score_all(chosen, seed=arguments.seed, store=arguments.store, is_stored=arguments.stored):
            found.append(one)
            print(json.dumps(one, indent=1) if arguments.json else as_line(one), flush=True)
        if not found:
            continue
        print(f"{group}: {sum(one['right'] for one in found)} of {len(found)}", flush=True)
        scores[group] = {"right": sum(one["right"] for one in found), "of": len(found), "each": found}
        tables.append(as_table(group, scores[group]))
    if arguments.write:
        text = "\n\n".join(["# Watching: planted incidents", arguments.note, *tables])
        print(f"written: {write_result(arguments.write, text, scores)}", file=sys.stderr, flush=True)


def as_line(scored: dict[str, Any]) -> str:
    """Return one score in a line."""
    named = ", ".join(f"{name} {share:.0%}" for name, share in zip(scored["named"], scored["shares"], strict=True))
    before, after = (f"{1e3 * one:.0f} ms" if one else "-" for one in scored["latency_seconds"])
    return f"{'ok   ' if scored['right'] else 'WRONG'} {scored['name']} ({before} -> {after}): {named or 'nothing'}"


def as_table(group: str, scored: dict[str, Any]) -> str:
    """Return how the incidents of one list were named, with a line for each."""
    head = "| planted | latency, failures | expected | named first | explains | right |"
    lines = [f"### Incidents, {group}: {scored['right']} of {scored['of']}", "", head, "|---|---|---|---|---|---|"]
    for one in scored["each"]:
        number = len(one["expected"])
        named = ", ".join(one["named"][: number if number == 1 else 3]) or "-"
        shares = ", ".join(f"{share:.0%}" for share in one["shares"][: number if number == 1 else 3])
        right = "yes" if one["right"] else "no"
        lines.append(
            f"| {one['name']} | {_effect(one)} | {', '.join(one['expected'])} | {named} | {shares} | {right} |"
        )
    return "\n".join(lines)


def _effect(scored: dict[str, Any]) -> str:
    before, after = (f"{1e3 * one:.0f}" if one else "-" for one in scored["latency_seconds"])
    failed = [one or 0.0 for one in scored["failed_shares"]]
    return f"{before} -> {after} ms" + (f", {failed[0]:.0%} -> {failed[1]:.0%}" if failed[1] > failed[0] + 0.01 else "")


if __name__ == "__main__":
    main()
