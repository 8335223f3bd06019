"""What becomes of ten thousand hostile inputs: files and messages through whole pipelines, addresses through the fetch rules.

Each part runs in a process of its own, so that one that dies or hangs is counted and not suffered:

* ``threads``    files of `benchmarks.hostile_inputs`, decoded in threads
* ``processes``  other files of the same kinds, decoded in child processes with limits on time and memory
* ``messages``   bodies in a SQLite queue
* ``addresses``  `benchmarks.hostile_addresses`: every class of address that must not be reached

Good images go among the files and the messages; their results must be those of the same image alone. Counted are: crashes
(a part that died, a child that died), hangs (a part or an item that did not end in time), and untyped ends (neither a result
nor a reason with a code). `surprises` are verdicts other than those that the corpus says are right, and addresses that were
reached.

    python -m benchmarks.hostile [--quick] [--json] [--write]
"""

from __future__ import annotations

import argparse
import collections
import importlib
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil

import headrace as hr
from benchmarks import measure
from benchmarks.hostile_inputs import hostile_files, hostile_messages, mutated_files
from benchmarks.hostile_inputs.mutations import good_files
from benchmarks.paths import ROOT
from headrace.base.errors import HeadraceError
from headrace.base.observer import Observer
from headrace.base.records import Job, Outcome, Span
from headrace.delivery.collect import Collect
from headrace.sources.addresses import open_queue
from headrace.sources.finite import Entry, FiniteSource
from headrace.sources.jobs import encode_job
from headrace.stages.decode import decode
from headrace.stages.images import fit

WANTED = hr.ImageInput(short_side=64, crop=64)
SEED = 20261121
#: Files by threads, files by processes, messages; of addresses there are as many as there are.
FULL, QUICK = (60_000, 60_000, 20_000, 0), (600, 600, 600, 0)
#: An input that took longer has hung. A tenth of it would do on a machine with nothing else to do.
ITEM_SECONDS = 20.0
#: One good image after so many hostile inputs.
GOOD_EVERY = 10
_CODE = re.compile(r"\b((?:decode|message)\.[a-z_]+): ")
_POLL_SECONDS = 0.1


@dataclass
class Part:
    """How the inputs of one part ended."""

    name: str
    inputs: int = 0
    """Hostile ones."""
    crashes: int = 0
    hangs: int = 0
    untyped: int = 0
    surprises: int = 0
    good: int = 0
    good_kept: int = 0
    slowest_seconds: float = 0.0
    """Longest service of one input by the decoding stage, its waits for a core included."""
    peak_rss_mb: float = 0.0
    """Of the process and its children, sampled."""
    seconds: float = 0.0
    verdicts: dict[str, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)
    """Of crashes, hangs, untyped ends and surprises."""


class Mean(hr.Module):
    """The mean of an image: what becomes of each good one can be checked."""

    input = WANTED

    def preprocess(self, value: Any) -> Any:
        """Return float32 (3, 64, 64)."""
        return hr.images.normalize(value)

    def process(self, batch: Any) -> list[float]:
        """Return one number for each image."""
        return [float(image.mean()) for image in batch]


class Files(FiniteSource):
    """Hostile files with good images among them; generated as they are asked for."""

    def __init__(self, number: int, seed: int) -> None:
        super().__init__(max_receives=1)
        self._number = number
        self._seed = seed
        self.expected: dict[str, tuple[str, frozenset[str]]] = {}

    def entries(self) -> Iterator[Entry]:
        """Return the files, and after every tenth a good image."""
        good = list(good_files())
        for index, file in enumerate(self._hostile()):
            name = f"{index}"
            self.expected[name] = (file.kind, file.verdicts)
            yield Entry(name, file.data)
            if index % GOOD_EVERY == 0:
                kind = good[index // GOOD_EVERY % len(good)]
                yield Entry(f"good {index} {kind}", good_files()[kind])

    def _hostile(self) -> Iterator[Any]:
        rng = random.Random(self._seed)
        kinds = list(hostile_files())
        rng.shuffle(kinds)
        yield from kinds
        yield from mutated_files(max(0, self._number - len(kinds)), self._seed)


class Ends(Observer):
    """Remembers how each job ended and how long the slowest took."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self.slowest_seconds = 0.0

    def job_settled(self, job: Job, outcome: Outcome) -> None:
        """Keep it."""
        self.outcomes[job.id] = outcome

    def stage_finished(self, spans: Sequence[Span]) -> None:
        """Keep the longest service."""
        for span in spans:
            if span.stage == "decode":
                self.slowest_seconds = max(self.slowest_seconds, (span.ended - span.started) / 1e9)


def run_files(name: str, number: int, seed: int) -> Part:
    """Return how files end in a pipeline that decodes in threads or in processes."""
    plan = hr.Plan.from_table({"stages": {"decode": _DECODE[name]}, "run": {"warm_up": False}})
    source, ends, results = Files(number, seed), Ends(), Collect()
    hr.run(hr.Pipeline(source, module=Mean(), delivery=results), plan, observers=[ends])
    part = Part(name, inputs=len(source.expected), slowest_seconds=ends.slowest_seconds)
    for id_, (kind, verdicts) in source.expected.items():
        outcome = ends.outcomes.get(id_)
        _judge(part, f"{kind} ({id_})", outcome, verdicts)
    _judge_good(
        part, {id_: id_.split(" ", 2)[2] for id_ in ends.outcomes if id_.startswith("good")}, dict(results.results)
    )
    if ends.slowest_seconds > ITEM_SECONDS:
        part.hangs += 1
        part.examples.append(f"an item took {ends.slowest_seconds:.1f} s")
    return part


_DECODE: dict[str, dict[str, Any]] = {
    "threads": {"workers": 2},
    "processes": {
        "executor": "process",
        "workers": 2,
        "time_limit_seconds": ITEM_SECONDS,
        "memory_limit_bytes": "1GB",
    },
}


def run_messages(name: str, number: int, seed: int) -> Part:
    """Return how message bodies end: dead-lettered with a code, or as an ordinary job; good ones among them are done."""
    good = good_files()
    bodies, names = [], {}
    for index, body in enumerate(hostile_messages(number, seed)):
        bodies.append(body)
        if index % GOOD_EVERY == 0:
            kind = list(good)[index // GOOD_EVERY % len(good)]
            names[f"good {index}"] = kind
            bodies.append(encode_job(good[kind], id=f"good {index}"))
    ends, results = Ends(), Collect()
    with tempfile.TemporaryDirectory() as folder:
        address = f"sqlite:///{folder}/jobs.db"
        queue = open_queue(address)
        for start in range(0, len(bodies), 100):
            queue.send(bodies[start : start + 100])
        plan = hr.Plan.from_table({"run": {"warm_up": False}, "source": {"receive_batch": 10}})
        pipeline = hr.Pipeline(hr.queue(address, drain=True, max_receives=1), stages=_decoding(), delivery=results)
        hr.run(pipeline, plan, observers=[ends])
        dead = queue.peek(2 * len(bodies), dead=True)
        queue.close()
    part = Part(name, inputs=number, slowest_seconds=ends.slowest_seconds)
    refused = [letter.reason for letter in dead]
    for reason in refused:
        _judge(part, reason[:60], reason, None)
    unknown = number + len(names) - len(refused) - len(results.results)
    if unknown:
        part.untyped += abs(unknown)
        part.examples.append(f"{unknown} messages ended nowhere")
    _judge_good(part, names, dict(results.results))
    return part


def _decoding() -> list[Any]:
    # No fetch: a message that happens to be a job names an address, which is another part's matter.
    return [hr.stage("refuse_addresses", _refuse_addresses), *Mean().stages()]


def _refuse_addresses(value: Any) -> Any:
    if not isinstance(value, bytes):
        raise hr.DecodeRejected("decode.type: an ordinary job, which names an address")
    return value


def _judge(part: Part, what: str, outcome: Outcome | str | None, verdicts: frozenset[str] | None) -> None:
    reason = outcome.reason if isinstance(outcome, Outcome) else outcome
    if reason is None:
        part.untyped += 1
        verdict = "no end at all"
    elif not reason:
        verdict = "ok"
    elif "took longer than time_limit_seconds" in reason:
        part.hangs += 1
        verdict = "hang"
    elif "the process working on it died" in reason:
        part.crashes += 1
        verdict = "crash"
    else:
        found = _CODE.search(reason)
        verdict = found[1] if found else "untyped"
        part.untyped += found is None
    part.verdicts[verdict] = part.verdicts.get(verdict, 0) + 1
    known = verdict == "ok" or "." in verdict
    is_surprise = known and verdicts is not None and verdict not in verdicts
    part.surprises += is_surprise
    if (is_surprise or not known) and len(part.examples) < 20:
        part.examples.append(f"{what}: {verdict}: {(reason or '')[:200]}")


def _judge_good(part: Part, kinds: Mapping[str, str], results: Mapping[str, float]) -> None:
    alone = {
        kind: float(hr.images.normalize(fit(decode(data, short_side=64), WANTED)).mean())
        for kind, data in good_files().items()
    }
    part.good = len(kinds)
    part.good_kept = sum(abs(results.get(id_, 1e9) - alone[kind]) < 1e-4 for id_, kind in kinds.items())


def run_addresses(name: str, number: int, seed: int) -> Part:
    """Return how addresses end by the fetch rules; those that something was sent to are surprises."""
    try:
        found = importlib.import_module("benchmarks.hostile_addresses").run()
    except (ImportError, HeadraceError) as error:  # it needs a network namespace of its own
        return Part(name, examples=[f"not run: {error}"])
    part = Part(name, found["tried"], untyped=found["untyped"], surprises=found["let_through"])
    part.slowest_seconds = found["slowest_seconds"]
    part.examples = [json.dumps(case) for case in found["cases"][:20]]
    return part


PARTS = {"threads": run_files, "processes": run_files, "messages": run_messages, "addresses": run_addresses}


def watched(name: str, number: int, seed: int, limit_seconds: float) -> Part:
    """Run a part in a process of its own and return how it ended; one that dies is a crash, one that does not end a hang."""
    command = [sys.executable, "-X", "faulthandler", "-m", "benchmarks.hostile"]
    command += ["--part", name, "--number", str(number), "--seed", str(seed)]
    began, peak = time.monotonic(), 0.0
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=errors)
        while process.poll() is None and time.monotonic() - began < limit_seconds:
            peak = max(peak, _tree_rss_mb(process.pid))
            time.sleep(_POLL_SECONDS)
        hung = process.poll() is None
        if hung:
            process.kill()
        process.wait()
        output.seek(0)
        errors.seek(0)
        lines, said = output.read().splitlines(), errors.read()[-2000:]
    if hung or process.returncode or not lines:
        end = "did not end" if hung else f"ended with code {process.returncode}"
        return Part(name, number, crashes=int(not hung), hangs=int(hung), examples=[f"the part {end}: {said}"])
    part = Part(**json.loads(lines[-1]))
    part.peak_rss_mb, part.seconds = peak, time.monotonic() - began
    return part


def _tree_rss_mb(pid: int) -> float:
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0.0
    total = 0
    for process in processes:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total / 1e6


def run_all(*, quick: bool, seed: int) -> dict[str, Any]:
    """Return the sums over all parts, and each part."""
    limit = 300.0 if quick else 3600.0
    numbers = QUICK if quick else FULL
    # Side by side where time is short: the addresses mostly wait, and the others start Python and make their files.
    with ThreadPoolExecutor(len(PARTS) if quick else 1) as pool:
        seeds = range(seed, seed + len(PARTS))
        parts = list(pool.map(watched, PARTS, numbers, seeds, [limit] * len(PARTS)))
    sums = {key: sum(getattr(part, key) for part in parts) for key in _SUMMED}
    return {
        **sums,
        "peak_rss_mb": max(part.peak_rss_mb for part in parts),
        "seed": seed,
        "parts": {part.name: asdict(part) for part in parts},
    }


_SUMMED = ("inputs", "crashes", "hangs", "untyped", "surprises", "good", "good_kept")


def as_text(found: Mapping[str, Any]) -> str:
    """Return the result for readers."""
    head = (
        "part",
        "inputs",
        "crashes",
        "hangs",
        "untyped",
        "surprises",
        "good images",
        "kept",
        "slowest s",
        "peak RSS MB",
    )
    sums = (
        f"{found['inputs']:,} hostile inputs, seed {found['seed']}: {found['crashes']} crashes, {found['hangs']} hangs, "
        f"{found['untyped']} ends without a code; {found['good_kept']} of {found['good']} good images among them kept their "
        "results."
    )
    keys = ("inputs", "crashes", "hangs", "untyped", "surprises", "good", "good_kept")
    lines = [
        "# Hostile inputs",
        "",
        sums,
        "Slowest: the longest decode of one input, waits for a core included. Peak RSS: a part's processes together, sampled.",
        "",
        f"| {' | '.join(head)} |",
        "|" + "---|" * len(head),
    ]
    verdicts: collections.Counter[str] = collections.Counter()
    for part in found["parts"].values():
        cells = [
            part["name"],
            *(f"{part[key]:,}" for key in keys),
            f"{part['slowest_seconds']:.1f}",
            f"{part['peak_rss_mb']:.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
        verdicts.update(part["verdicts"])
    lines += ["", "| verdict | inputs |", "|---|---|"]
    lines += [f"| `{verdict}` | {number:,} |" for verdict, number in verdicts.most_common()]
    examples = [example for part in found["parts"].values() for example in part["examples"]]
    if examples:
        lines += ["", "## What was not as it should be", "", *(f"- {example}" for example in examples)]
    return "\n".join(lines)


def main() -> int:
    """Run the benchmark from the command line; 1 if anything crashed, hung, had no code, or a good image was lost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few of the inputs, in under 50 s")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.add_argument("--write", action="store_true", help="write a dated result to benchmarks/results")
    parser.add_argument("--seed", type=int, default=SEED, help="equal seeds give equal inputs")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        print(json.dumps(asdict(PARTS[arguments.part](arguments.part, arguments.number, arguments.seed))))
        return 0
    found = run_all(quick=arguments.quick, seed=arguments.seed)
    print(json.dumps(found) if arguments.json else as_text(found))
    if arguments.write:
        print(f"written: {measure.write_result('hostile', as_text(found), found)}", file=sys.stderr)
    wrong = sum(found[key] for key in ("crashes", "hangs", "untyped", "surprises")) + found["good"] - found["good_kept"]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
