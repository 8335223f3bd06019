"""Beyond one machine: workers on a local Ray cluster, portions, fleets, predictions and autoscaling.

    python -m benchmarks.scale --json [--quick] [--only PART]... [--write]

On Ray: beside `--supervise`, beside Ray Data's own program, and while actors and nodes are killed. Portions (`--shard I/N`) are
killed and begun again with `--resume`. Fleets, predictions and autoscaling have modules of their own (`benchmarks.scale_*`).

Rates are those from the first result to the last, medians of turns in which every design runs once. All designs run the same
function on the same files and cores; Ray Data's program is the fused one, an actor for each core, and for the model also the
chain of operators of its documentation. Killed are actors, processes of leases and, with their nodes, raylets.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks import models, scale_autoscaling, scale_fleet, scale_prediction, scale_ray_data
from benchmarks.measure import write_result
from benchmarks.ours import PLANS
from benchmarks.scale_text import describe
from headrace.samples import catalogue

#: That one portion is killed when it is next looked, every 50 ms.
_KILL_CHANCE = 0.2
#: So many that there is work until the last kill: a kill each second or so, and a node takes seconds to come.
_ITEMS_A_KILL = 300
_APP = Path(__file__).with_name("scale_app.py")
#: What is done in less than a minute; a Ray cluster alone takes half of one to come up and go.
QUICK_PARTS = ("shards", "fleet", "autoscaling")
PARTS = ("rates", "model", "dataset", "kills", "shards", "fleet", "prediction", "autoscaling")


class Bench:
    """A working folder with photographs, and the commands that are run there."""

    def __init__(self, folder: Path, num_items: int, *, are_empty: bool = False) -> None:
        self.folder = folder
        self.num_items = num_items
        shutil.copy(_APP, folder / "scale_app.py")
        photographs = sorted((Path(catalogue.__file__).parent / "photographs").glob("*.jpg"))
        (folder / "photos").mkdir()
        for number in range(num_items):
            target = folder / "photos" / f"{number:05}.jpg"
            if are_empty:
                target.touch()
            else:
                shutil.copy(photographs[number % len(photographs)], target)

    def headrace(self, *words: str, silent: bool = False) -> subprocess.Popen[str]:
        """Begin a command; what it says goes to a pipe, or nowhere where nobody reads one."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen(
            [sys.executable, "-m", "headrace", *words], cwd=self.folder, env=environment, text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL if silent else subprocess.PIPE,
        )  # fmt: skip

    def fill(self) -> None:
        """Put all photographs into the queue."""
        (self.folder / "queued.jsonl").unlink(missing_ok=True)
        self.headrace("submit", "sqlite:///jobs.db", "--inline", "photos").communicate()

    def clear_results(self) -> None:
        """Remove what an earlier run over the folder wrote."""
        for file in self.folder.glob("r*.jsonl*"):
            shutil.rmtree(file) if file.is_dir() else file.unlink()

    def times(self, pattern: str) -> list[float]:
        """Return when each result was there, in order."""
        return sorted(json.loads(line)["result"]["at"] for line in self.lines(pattern))

    def ids(self, pattern: str) -> Counter[str]:
        """Return how many results each item has."""
        return Counter(json.loads(line)["id"] for line in self.lines(pattern))

    def lines(self, pattern: str) -> Iterator[bytes]:
        """Return whole lines of files."""
        for file in self.folder.glob(pattern):
            yield from (line for line in file.read_bytes().splitlines() if line.endswith(b"}"))


def rate(times: list[float]) -> float:
    """Return results a second."""
    return (len(times) - 1) / (times[-1] - times[0])


def supervised(bench: Bench) -> float:
    """Return the rate of two supervised workers."""
    bench.fill()
    bench.headrace("run", "scale_app.py:queued", "--supervise", "2").communicate()
    return rate(bench.times("queued.jsonl"))


def on_ray(bench: Bench) -> tuple[float, float]:
    """Return the rate of two workers on Ray, and the seconds from the last one's being there to the first result."""
    bench.fill()
    process = bench.headrace("run", "scale_app.py:queued", "--on", "ray", "--workers", "2")
    assert process.stderr is not None
    there = 0.0
    for line in process.stderr:
        there = time.time() if "workers are there" in line and not there else there
    process.wait()
    times = bench.times("queued.jsonl")
    return rate(times), times[0] - there


def on_ray_from_files(bench: Bench) -> float:
    """Return the rate of two workers on Ray over the folder, with portions as they are by default."""
    bench.clear_results()
    words = ["--results", "r.jsonl", "--on", "ray", "--workers", "2"]
    bench.headrace("run", "scale_app.py:listed", *words).communicate()
    return rate(bench.times("r.jsonl"))


def classified_on_ray(bench: Bench) -> float:
    """Return the rate of two workers on Ray that classify the folder's photographs."""
    bench.clear_results()
    words = [
        "--plan",
        str(PLANS / "folder_to_parquet.toml"),
        "--set",
        f"model.artifact={json.dumps(str(models.build()))}",
    ]
    words += ["--results", "r.jsonl", "--on", "ray", "--workers", "2"]
    bench.headrace("run", "scale_app.py:classified", *words).communicate()
    return rate(bench.times("r.jsonl"))


def poisoned(num_rows: int) -> dict[str, Any]:
    """Return what becomes of a Dataset's rows of which every twentieth is poisoned."""
    import ray

    import headrace as hr

    def make() -> hr.Pipeline:
        def work(value: int) -> int:
            if value % 20 == 0:
                raise ValueError("poisoned")
            return value + 1

        return hr.Pipeline(hr.items([0]), stages=[hr.stage("work", work)])

    with scale_ray_data.local_ray(runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}}):
        ray.data.DataContext.get_current().enable_progress_bars = False
        pool = ray.data.ActorPoolStrategy(size=2)
        rows = ray.data.from_items([{"item": number, "id": number} for number in range(num_rows)])
        found = rows.map_batches(hr.ray.map_batches(make), batch_size=100, compute=pool).take_all()
    missing = {row["id"] for row in found if row["error"]}
    return {
        "rows": num_rows,
        "rows_out": len(found),
        "poisoned": num_rows // 20,
        "missing": len(missing),
        "exactly_those": missing == set(range(0, num_rows, 20)),
        "right": all(row["result"] == row["id"] + 1 for row in found if not row["error"]),
    }


def kill_workers(bench: Bench, num_kills: int, num_nodes: int) -> dict[str, int]:
    """Return what is lost and repeated while workers are killed again and again, and some with their nodes."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    node = {"num_cpus": 2, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "num_cpus": 0, "include_dashboard": False})
    nodes = [cluster.add_node(**node), cluster.add_node(**node)]
    cluster.wait_for_nodes()
    words = [
        "--results",
        "r.jsonl",
        "--on",
        cluster.address,
        "--workers",
        "2",
        "--worker-cores",
        "1",
        "--portions",
        "4",
    ]
    process = bench.headrace("run", "scale_app.py:waiting", *words)
    chance, done, raylets, num_lines = random.Random(1), 0, 0, 0
    try:
        while process.poll() is None:
            time.sleep(1.0)
            victims, lines = _workers(), sum(1 for _ in bench.lines("r-*.jsonl"))
            if done + raylets >= num_kills or not victims or lines < num_lines + _ITEMS_A_KILL // 4:
                continue  # on a busy machine a worker takes longer to come than a second
            num_lines = lines
            if raylets < num_nodes and (done + raylets) % max(1, num_kills // max(1, num_nodes)) == 1:
                cluster.remove_node(nodes.pop(0), allow_graceful=False)
                nodes.append(_add_node(cluster, node))
                raylets += 1
            else:
                with contextlib.suppress(psutil.Error):
                    chance.choice(victims).kill()
                    done += 1
        said = process.stderr.read() if process.stderr else ""
    finally:
        cluster.shutdown()
    if process.returncode:
        sys.stderr.write(said)
    found = bench.ids("r.jsonl")
    return {
        "status": process.returncode,
        "kills": done,
        "raylets": raylets,
        "lost": bench.num_items - len(found),
        "repeated": sum(found.values()) - len(found),
    }


def _add_node(cluster: Any, node: Mapping[str, Any]) -> Any:
    """Add a node to a cluster that is busy: Ray itself gives up where that takes half a minute."""
    while True:
        try:
            return cluster.add_node(**node)
        except Exception as error:  # it says no more than "Exception"
            if "timed out during startup" not in str(error):
                raise


def kill_portions(bench: Bench, num_portions: int, num_kills: int) -> dict[str, Any]:
    """Return what is lost and repeated while the portions of an array job are killed, and begun again by its scheduler."""
    words = ["run", "scale_app.py:waiting", "--results", "s.jsonl", "--shard"]
    chance, kills = random.Random(1), 0
    running = {
        number: bench.headrace(*words, f"{number}/{num_portions}", silent=True) for number in range(num_portions)
    }
    statuses: dict[int, int] = {}
    while running:
        time.sleep(0.05)
        for number, process in list(running.items()):
            if (status := process.poll()) is None:
                continue
            if status == -signal.SIGKILL:
                again = [*words, f"{number}/{num_portions}", "--resume"]
                running[number] = bench.headrace(*again, silent=True)
            else:
                statuses[number] = status
                del running[number]
        begun = [number for number in running if list(bench.lines(f"s-{number}-of-{num_portions}.jsonl"))]
        if begun and kills < num_kills and chance.random() < _KILL_CHANCE:
            running[chance.choice(begun)].kill()
            kills += 1
    gathered = bench.headrace("gather", "s.jsonl", silent=True).wait()
    found = bench.ids("s.jsonl")
    return {
        "portions": num_portions,
        "kills": kills,
        "statuses": sorted(set(statuses.values())),
        "gather_status": gathered,
        "lost": bench.num_items - len(found),
        "repeated": sum(found.values()) - len(found),
    }


def _workers() -> list[psutil.Process]:
    """Return actors, and processes of leases that are at work."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if words and (words[0] == "ray::Worker.work" or "headrace.cli.leased" in words):
                found.append(process)
    return found


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return the document."""
    quick = args.quick
    asked = args.only or (QUICK_PARTS if quick else PARTS)
    found: dict[str, Any] = {
        "ray": {"share_of_supervise": None, "ratio_ray_data": None, "kills": None, "lost": None, "repeated": None},
        "shards": None, "fleet": None, "prediction": {"max_error": None}, "autoscaling": {"over_oracle": None},
        "left_out": [part for part in PARTS if part not in asked],
    }  # fmt: skip
    if "rates" in asked:
        with _bench(600 if quick else 2000) as bench:
            found["ray"] |= _rates(bench, (32,) if quick else (32, 128), 1 if quick else args.turns)
    if "model" in asked:
        with _bench(200 if quick else 1000) as bench:
            found["ray"]["model"] = _model_rates(bench, (8,) if quick else (2, 8), 1 if quick else args.turns)
    if "dataset" in asked:
        found["ray"]["dataset"] = poisoned(200 if quick else 1000)
    if "kills" in asked:
        with _bench(400 if quick else _ITEMS_A_KILL * args.kills, are_empty=True) as bench:
            found["ray"] |= kill_workers(bench, 2 if quick else args.kills, 1 if quick else args.kills // 8)
    if "shards" in asked:
        with _bench(400 if quick else 8000, are_empty=True) as bench:
            found["shards"] = kill_portions(bench, 2 if quick else 4, 2 if quick else args.kills)
    if "fleet" in asked:
        found["fleet"] = {"redis": scale_fleet.ordeal("redis", 4 if quick else 20)}
    if "prediction" in asked:
        found["prediction"] = scale_prediction.measure_all(quick)["prediction"]
    if "autoscaling" in asked:
        loads = scale_autoscaling.measure_all(1 if quick else 10)
        found["autoscaling"] = {"over_oracle": max(one["over_oracle"] for one in loads.values()), "loads": loads}
    return found


@contextlib.contextmanager
def _bench(num_items: int, *, are_empty: bool = False) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="headrace-scale-") as name:
        yield Bench(Path(name), num_items, are_empty=are_empty)


def _medians(turns: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}


def _median_ratio(turns: Sequence[dict[str, float]], ours: str, theirs: str) -> float:
    return statistics.median(turn[ours] / turn[theirs] for turn in turns)


def _rates(bench: Bench, batch_sizes: Sequence[int], num_turns: int) -> dict[str, Any]:
    """Return medians over turns: of ratios within a turn, and of each design's rate."""
    turns = [_turn(bench, batch_sizes) for _ in range(num_turns)]
    return {
        "share_of_supervise": _median_ratio(turns, "on_ray", "supervise"),
        "ratio_ray_data": _median_ratio(turns, "on_ray_from_files", "ray_data"),
        "first_result_seconds": max(turn.pop("first_result_seconds") for turn in turns),
        "rates": _medians(turns),
        "turns": turns,
    }


def _turn(bench: Bench, batch_sizes: Sequence[int]) -> dict[str, float]:
    supervise = supervised(bench)
    ray, first = on_ray(bench)
    from_files = on_ray_from_files(bench)
    own = max(rate(scale_ray_data.shrink(bench.folder, size)) for size in batch_sizes)
    return {
        "supervise": supervise, "on_ray": ray, "on_ray_from_files": from_files, "ray_data": own,
        "first_result_seconds": first,
    }  # fmt: skip


def _model_rates(bench: Bench, batch_sizes: Sequence[int], num_turns: int) -> dict[str, Any]:
    """Return the same of designs that classify, beside Ray Data's fused program and its chain of operators."""

    def best(program: Callable[[Path, int], list[float]]) -> float:
        return max(rate(program(bench.folder, size)) for size in batch_sizes)

    turns = [
        {
            "on_ray": classified_on_ray(bench),
            "ray_data_fused": best(scale_ray_data.classify),
            "ray_data_operators": best(scale_ray_data.classify_in_operators),
        }
        for _ in range(num_turns)
    ]
    return {
        "ratio_fused": _median_ratio(turns, "on_ray", "ray_data_fused"),
        "ratio_operators": _median_ratio(turns, "on_ray", "ray_data_operators"),
        "rates": _medians(turns),
        "turns": turns,
    }


def main() -> int:
    """Measure, and print the document."""
    parser = argparse.ArgumentParser(prog="benchmarks.scale", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument(
        "--quick", action="store_true", help=f"less of everything, and {', '.join(QUICK_PARTS)} alone: a minute"
    )
    parser.add_argument("--only", choices=PARTS, action="append", help="a part, instead of all; may be repeated")
    parser.add_argument("--turns", type=int, default=3, metavar="N", help="of the rates")
    parser.add_argument(
        "--kills", type=int, default=32, metavar="N", help="how many workers, nodes and portions are killed"
    )
    parser.add_argument("--write", action="store_true", help="write the dated result")
    args = parser.parse_args()
    found = measure(args)
    sys.stdout.write(json.dumps(found, indent=None if args.json else 2) + "\n")
    if args.write:
        write_result("scale", describe(found, sys.argv[1:]), found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
