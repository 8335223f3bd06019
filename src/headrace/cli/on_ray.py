"""`--on ray` of `headrace run`: whole workers on a Ray cluster, which places them and starts them again.

A queue is shared by its workers anyway. A folder, a list or a bucket is divided into portions as by `--shard`, several for each
worker, and who is free takes the next one: a portion whose worker died goes on where its results end, with whoever is free.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.base.records import OutcomeKind
from headrace.cli.pipeline_arguments import open_pipeline, positive, stdout_kept
from headrace.cli.portions import checkpoint_of_portion, give_portion_its_own, name_for_portion
from headrace.cli.terminal import say, speaker, write, write_json

if TYPE_CHECKING:
    from headrace.base.protocols import Source
    from headrace.pipeline.gathering import Gathered
    from headrace.pipeline.supervisor import Supervised
    from headrace.ray.crew import Crewed
    from headrace.ray.leases import Lease
    from headrace.sources.portions import Portion

#: For each worker: who is faster does more, and what died is not one worker's whole share.
_PORTIONS_EACH = 4
#: Deaths of one portion in a row in which it came no further, and of a worker of a queue soon after its start, after which the
#: run ends.
_MOST_DEATHS = 10
_LONG_SECONDS = 60.0
#: Deaths in a row, of all and for each worker, after none of which anything more was delivered.
_MOST_IN_VAIN, _IN_VAIN_EACH = 20, 5
#: Options that are for one worker on one machine.
_ALONE = (
    "supervise", "shard", "dry_run", "limit", "shadow", "canary", "ledger", "max_failed", "metrics", "otlp", "recorder",
    "incidents", "review", "history", "drift",
)  # fmt: skip
#: Variables of this process that its workers have too: where modules are, and what headrace reads.
_PASSED_ON = ("PYTHONPATH",)
#: Ray sets them for what it starts; headrace has a budget of threads of its own.
_NOT_RAYS = ("OMP_NUM_THREADS",)


def add_ray_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where workers live, and how many of which size."""
    parser.add_argument(
        "--on",
        metavar="ray[://HOST:PORT]",
        help="run the workers on a Ray cluster; of a folder or list each does portions",
    )
    parser.add_argument("--workers", type=positive, metavar="N", help="with --on: how many workers (default: 2)")
    parser.add_argument(
        "--worker-cores", type=positive, metavar="N",
        help="with --on: cores of each worker (default: as many as give all of them a place)",
    )  # fmt: skip
    parser.add_argument("--worker-gpus", type=_gpus, default=0.0, metavar="N", help="with --on: GPUs of each worker")
    parser.add_argument(
        "--portions", type=positive, metavar="N",
        help="with --on: portions of a folder or list (default: four for each worker; with --resume: as at the start)",
    )  # fmt: skip


def _gpus(text: str) -> float:
    """Return a number of GPUs, which may be a share of one."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e6:
        raise argparse.ArgumentTypeError(f"expected a number of GPUs such as 1 or 0.5, got {text}")
    return number


def check_no_cluster(args: argparse.Namespace) -> None:
    """Raise SettingsError for options of a cluster without one."""
    from headrace.base.errors import SettingsError

    for option in ("workers", "worker_cores", "worker_gpus", "portions"):
        if getattr(args, option):
            raise SettingsError(f"--{option.replace('_', '-')} is for workers on a cluster: say where, with --on ray")


def run_on_ray(args: argparse.Namespace) -> int:
    """Run the workers, put their results together, and return the exit status."""
    from headrace.cli import EXIT_DONE, EXIT_NEGATIVE
    from headrace.ray.cluster import RayCluster
    from headrace.runs.earlier_run import take_folder

    args.workers = args.workers or 2
    pipeline, plan = _check(args)
    leases = _divide(args, pipeline.source) if _is_list(pipeline.source) else _places(args)
    held = take_folder(Path(args.output), force=args.force, resumed=args.resume) if args.output else None
    with stdout_kept(args.json), _sigterm_of_ray():
        cluster = RayCluster(args.on, args.workers, cores=args.worker_cores, gpus=args.worker_gpus)
        try:
            crewed, numbers = _work(args, cluster, leases, plan.run.grace_seconds)
        finally:
            cluster.close()
        gathered = _gather(args, crewed, leases) if _is_list(pipeline.source) else []
    result = _sum_up(crewed, gathered, numbers)
    if held is not None:
        held.close()
    if crewed.reason:
        say(f"headrace run: {crewed.reason}")
    _tell(args, result)
    is_in_vain = not result.outcomes[OutcomeKind.DELIVERED] and bool(
        result.outcomes[OutcomeKind.REJECTED] or result.outcomes[OutcomeKind.DEAD_LETTERED]
    )
    return result.status or (EXIT_NEGATIVE if is_in_vain else EXIT_DONE)


# --- before


def _check(args: argparse.Namespace) -> tuple[Any, Any]:
    """Return pipeline and Plan; raises SettingsError for what does not go together."""
    from headrace.base.errors import SettingsError
    from headrace.base.protocols import Recoverable

    scheme, is_address, host = args.on.partition("://")
    if (is_address or ":" not in args.on) and (scheme != "ray" or bool(is_address) != bool(host)):
        raise SettingsError(f"--on is ray, ray://HOST:PORT or HOST:PORT, got {args.on!r}")
    _, has_port, port = (host if is_address else args.on).rpartition(":")
    if has_port and not (port.isdecimal() and 0 < int(port) < 1 << 16):
        raise SettingsError(
            f"--on {args.on}: the port is {port!r}; expected a number from 1 to 65535, as in ray://HOST:10001"
        )
    for option in _ALONE:
        if getattr(args, option, None):
            raise SettingsError(f"--{option.replace('_', '-')} is for one worker; leave it or --on out")
    pipeline, plan = open_pipeline(args)
    if not _is_list(pipeline.source):
        if args.resume or args.portions:
            raise SettingsError(
                "--resume and --portions are for a folder, a list or a bucket; a queue itself keeps what is not done"
            )
        return pipeline, plan
    if not args.results:
        delivery = pipeline.delivery
        if isinstance(delivery, Recoverable) and delivery.checkpoint is not None:
            raise SettingsError(
                f"--on {args.on}: the pipeline names one place for the results of all workers ({type(delivery).__name__}); "
                "say --results results.jsonl: each portion writes its own, and at the end they are put together"
            )
        if not args.checkpoint:
            raise SettingsError(
                f"--on {args.on}: results of {type(delivery).__name__} cannot be read back, so a worker that dies would do all "
                "again; say where to keep what was done with --checkpoint DIR, on a disk that all nodes see"
            )
    return pipeline, plan


def _is_list(source: Source) -> bool:
    from headrace.sources.finite import FiniteSource

    return isinstance(source, FiniteSource)


def _divide(args: argparse.Namespace, source: Source) -> list[Lease]:
    """Return a lease for each portion."""
    from headrace.cli.portions import take_portion
    from headrace.ray.leases import Lease
    from headrace.sources.portions import Portion

    count = _count_portions(args)
    take_portion(source, Portion(0, count))  # refuses what has no list
    leases = []
    for index in range(count):
        portion = Portion(index, count)
        mine = argparse.Namespace(**{**vars(args), "shard": portion})
        give_portion_its_own(mine, portion)
        leases.append(Lease(f"portion {portion}", index, mine))
    return leases


def _count_portions(args: argparse.Namespace) -> int:
    """Return how many portions there are; of a run that is resumed, as many as it had.

    Raises:
        SettingsError: If results are there and it is not to be resumed, or not as it was divided.
    """
    from headrace.base.errors import SettingsError
    from headrace.pipeline.gathering import counts_of

    wanted: int = args.portions or args.workers * _PORTIONS_EACH
    if not args.results or "://" in args.results:
        if args.resume and not args.portions:
            raise SettingsError(
                "--resume: say --portions as at the first start, which printed it; here nothing tells it"
            )
        return wanted
    results = Path(args.results)
    counts = counts_of(results)
    if args.resume:
        if len(counts) != 1 or (args.portions and counts != {args.portions}):
            found = f"those of {' and of '.join(map(str, sorted(counts)))} portions" if counts else "none"
            raise SettingsError(
                f"--resume: beside {results} there should be results of {args.portions or 'some'} portions, and there are "
                f"{found}"
            )
        return counts.pop()
    if counts and not args.force:
        raise SettingsError(
            f"beside {results} there are results of {' and of '.join(map(str, sorted(counts)))} portions: go on with --resume, "
            "or begin anew behind them with --force"
        )
    if results.exists() and not counts:
        raise SettingsError(
            f"{results} is there already, and the results of all portions are to be put there; take it away"
        )
    return counts.pop() if len(counts) == 1 and not args.portions else wanted


def _places(args: argparse.Namespace) -> list[Lease]:
    """Return a lease for each worker of a queue."""
    from headrace.ray.leases import Lease

    return [Lease(f"worker {number}", number, argparse.Namespace(**vars(args))) for number in range(args.workers)]


# --- meanwhile


def _work(
    args: argparse.Namespace, cluster: Any, leases: list[Lease], grace_seconds: float
) -> tuple[Crewed, list[int]]:
    """Return what came of the leases, and the signals that came."""
    from headrace.ray.crew import Crew
    from headrace.ray.leases import Setting

    passed_on = {
        name: value for name, value in os.environ.items() if name in _PASSED_ON or name.startswith("HEADRACE_")
    }
    not_rays = {name: os.environ.get(name) for name in _NOT_RAYS}
    setting = Setting(os.getcwd(), {**passed_on, **not_rays}, cluster.cores, grace_seconds)
    news = speaker("run", is_news=True)
    is_json = getattr(args, "log_format", "text") == "json"
    with _signals() as numbers:
        speaker("run")(
            f"{args.workers} workers of {cluster.cores} {'core' if cluster.cores == 1 else 'cores'} on {cluster.num_nodes} "
            f"{'node' if cluster.num_nodes == 1 else 'nodes'}, {len(leases)} "
            f"{'places at the queue' if leases[0].args.shard is None else 'portions'}"
        )
        most_in_vain = max(_MOST_IN_VAIN, _IN_VAIN_EACH * args.workers)
        deaths = Deaths(most_in_vain, _look_if_possible, lambda: _count_delivering(crew.result))
        crew = Crew(
            _Prepared(cluster, args),
            setting,
            args.workers,
            say=news,
            tell=(lambda line: say(line.partition("| ")[2])) if is_json else say,
            progress=speaker("run", event="progress"),
            enough_because=deaths.enough_because,
            num_stops=lambda: len(numbers),
        )
        return crew.run(leases), numbers


class _Prepared:
    """A cluster whose leases know, when they are handed out, whether they go on with what is there already."""

    def __init__(self, cluster: Any, args: argparse.Namespace) -> None:
        self._cluster = cluster
        self._output = args.output
        self._lives: Counter[int] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def call(self, worker: Any, method: str, *arguments: Any) -> Any:
        """Call a method; see `crew.Cluster`."""
        if method == "work":
            arguments = (self._prepare(arguments[0]),)
        return self._cluster.call(worker, method, *arguments)

    def _prepare(self, lease: Lease) -> Lease:
        import dataclasses

        from headrace.pipeline.checkpoint import JOURNAL

        mine = argparse.Namespace(**vars(lease.args))
        self._lives[lease.number] += 1
        if self._output:
            mine.output = str(Path(self._output) / f"worker-{lease.number}-{self._lives[lease.number]}")
        place = None if mine.shard is None else _place_of(mine)
        if place is not None:
            mine.resume = (place / JOURNAL).is_file() and (mine.resume or lease.attempt > 0)
            mine.force = mine.force and not mine.resume
        return dataclasses.replace(lease, args=mine, place=str(place or ""))


def _place_of(args: argparse.Namespace) -> Path | None:
    """Return the checkpoint of a portion; None: it has none."""
    from headrace.cli.loading import parse_results

    if args.checkpoint:
        return Path(args.checkpoint)
    portion: Portion = args.shard
    delivery = parse_results(name_for_portion(args.results, portion))
    place = checkpoint_of_portion(args, delivery, portion) or getattr(delivery, "checkpoint", None)
    return None if place is None else Path(place)


class Deaths:
    """Counts deaths of leases, and says when it is enough.

    Args:
        most_in_vain: Deaths in a row, of all, in whose portions nothing more was delivered, and meanwhile no other was done
            that delivered something: each item would end so.
        look: Returns what became of a portion by now; None: nobody knows.
        count_delivering: Returns how many portions are done that delivered something.
    """

    def __init__(
        self,
        most_in_vain: int,
        look: Callable[[Lease], Gathered | None],
        count_delivering: Callable[[], int] = lambda: 0,
    ) -> None:
        self._most_in_vain, self._look, self._count_delivering = most_in_vain, look, count_delivering
        self._num_delivering = 0
        self._in_a_row: Counter[int] = Counter()
        self._left: dict[int, int] = {}
        self._delivered: Counter[int] = Counter()
        self._in_vain = 0

    def enough_because(self, lease: Lease, seconds: float) -> str:
        """Return why it is not tried again; empty: it came further, or did not die so often in a row, and somebody delivers.

        Args:
            lease: Of what died.
            seconds: For how long it had been at work.
        """
        number, found = lease.number, self._look(lease)
        has_come_further = seconds >= _LONG_SECONDS if found is None else found.left != self._left.get(number)
        self._in_a_row[number] = 1 if has_come_further else self._in_a_row[number] + 1
        if found is not None:
            num_delivering = self._count_delivering()
            is_in_vain = len(found.delivered) <= self._delivered[number] and num_delivering == self._num_delivering
            self._in_vain = self._in_vain + 1 if is_in_vain else 0
            self._num_delivering = num_delivering
            self._left[number], self._delivered[number] = found.left, len(found.delivered)
        if (times := self._in_a_row[number]) > _MOST_DEATHS:
            how = f"within {_LONG_SECONDS:g} s of its start" if lease.args.shard is None else "and came no further"
            return f"{lease.name} died {times} times in a row {how}"
        if self._in_vain > self._most_in_vain:
            return (
                f"{self._in_vain} deaths in a row, and none that died had delivered more than before; last {lease.name}"
            )
        return ""


def _count_delivering(crewed: Crewed) -> int:
    """Return how many leases are done whose run delivered something."""
    import json

    documents = [report.document for _, report in crewed.done if report.document]
    return sum(json.loads(document)["counters"]["delivered"] > 0 for document in documents)


def _look_if_possible(lease: Lease) -> Gathered | None:
    from headrace.base.errors import HeadraceError
    from headrace.pipeline.checkpoint import JOURNAL
    from headrace.pipeline.gathering import Gathered

    if (portion := lease.args.shard) is None:
        return None
    try:
        place = _place_of(lease.args)
        if place is not None and not (place / JOURNAL).is_file():  # it died before it had begun
            return Gathered(portion=portion, results=Path(), delivered=set(), rejected=0, given_up=0, left=-1)
        return _look_at(lease.args)
    except (HeadraceError, OSError):  # the one that died has not let go of it, or the disk cannot be read now
        return None


def _look_at(args: argparse.Namespace) -> Gathered:
    from headrace.cli.loading import parse_results
    from headrace.pipeline.gathering import look_at

    portion: Portion = args.shard
    if not args.results:
        return look_at(portion, "", lambda _: None, _place_of(args))
    return look_at(portion, name_for_portion(args.results, portion), parse_results, _place_of(args))


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Note signals that ask for the end, as long as the workers are there."""
    numbers: list[int] = []
    heard = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, _: numbers.append(number)) for number in heard}
    try:
        yield numbers
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _sigterm_of_ray() -> Iterator[None]:
    """Let SIGTERM interrupt where Ray's handler, set by `ray.init`, hears it: while a cluster is joined, and after the work."""
    try:
        yield
    except SystemExit as error:
        if error.code == signal.SIGTERM:
            raise KeyboardInterrupt from None
        raise


# --- after


def _gather(args: argparse.Namespace, crewed: Crewed, leases: list[Lease]) -> list[Gathered]:
    """Return what became of each portion that was begun; puts their results together where all of them are done."""
    from headrace.base.errors import HeadraceError
    from headrace.pipeline.gathering import find_doubled, find_growth, find_mixed, join

    gathered = []
    for lease in leases:
        with contextlib.suppress(HeadraceError):
            gathered.append(_look_at(lease.args))
    for says in filter(None, (*find_mixed(gathered), find_growth(gathered))):
        say(f"headrace run: {says}", level=logging.WARNING)
    is_whole = len(gathered) == len(leases) and not any(one.left for one in gathered)
    if crewed.is_unfinished or crewed.status or not args.results or "://" in args.results:
        return gathered
    doubled = find_doubled(gathered)
    if doubled or not is_whole:
        crewed.status = 3
        crewed.reason = (
            f"{len(doubled):,} items are in several portions, such as {doubled[0]}"
            if doubled
            else "some portions are not done to their end; headrace gather --check says which"
        )
        return gathered
    join(gathered, Path(args.results), replaces=args.resume or args.force)
    return gathered


def _sum_up(crewed: Crewed, gathered: list[Gathered], numbers: list[int]) -> Supervised:
    """Return it as that of workers on one machine is told."""
    import json

    from headrace.cli import EXIT_INTERRUPTED
    from headrace.pipeline.supervisor import DeathNote, Supervised

    documents = [report.document for _, report in crewed.done if report.document]
    outcomes: Counter[OutcomeKind] = Counter()
    if gathered:
        outcomes[OutcomeKind.DELIVERED] = sum(len(one.delivered) for one in gathered)
        outcomes[OutcomeKind.REJECTED] = sum(one.rejected for one in gathered)
        outcomes[OutcomeKind.DEAD_LETTERED] = sum(one.given_up for one in gathered)
    else:
        for document in documents:
            counters = json.loads(document)["counters"]
            for kind in (OutcomeKind.DELIVERED, OutcomeKind.REJECTED, OutcomeKind.DEAD_LETTERED):
                outcomes[kind] += counters[kind.value]
    status = crewed.status
    is_ended = bool(numbers) and not gathered and numbers != [signal.SIGTERM]
    if numbers and not status and (crewed.is_unfinished or is_ended):
        status = EXIT_INTERRUPTED
    return Supervised(
        status=status,
        reason=crewed.reason,
        restarts=sum(lease.attempt > 0 for lease, _ in crewed.done),
        num_deaths=len(crewed.deaths),
        deaths=[
            DeathNote(
                worker=lease.number, life=lease.attempt + 1, pid=0, cause=cause, lived_seconds=seconds, in_work=[],
                num_in_work=0, num_waiting=0,
            )
            for lease, cause, seconds in crewed.deaths[-100:]
        ],
        outcomes=outcomes,
        documents=documents,
        queue=next((report.queue for _, report in crewed.done if report.queue), ""),
    )  # fmt: skip


def _tell(args: argparse.Namespace, result: Supervised) -> None:
    from headrace.base.documents import encode_document
    from headrace.cli.supervising import as_dict, as_text
    from headrace.runs.file_names import SUPERVISED_FILE
    from headrace.runs.run_folder import replace_file

    if args.output:
        content = encode_document(as_dict(args.workers, result), indent=True)
        replace_file(Path(args.output) / SUPERVISED_FILE, content + b"\n")
    if args.json:
        write_json(as_dict(args.workers, result))
        return
    write(as_text(args.workers, result, args.output))
    if args.output:
        write(f"run folders: {args.output}/worker-*")
    if args.results and "://" not in args.results and Path(args.results).exists() and not result.status:
        write(f"results: {args.results}")
