"""Decides where a run goes on: opens the checkpoint that an earlier one left, or begins one, and says what is against it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.base.errors import CheckpointError, SettingsError, StageStalled
from headrace.base.plan import Plan
from headrace.base.protocols import Recoverable
from headrace.pipeline.checkpoint import FORCE, JOURNAL, VERSION, Checkpoint, Past
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.run_identity import answers_of, differences, fingerprint
from headrace.pipeline.runtime import Runtime
from headrace.runs.journal import Journal, Locked
from headrace.sources.finite import Entry, FiniteSource

logger = logging.getLogger("headrace")


@contextlib.contextmanager
def keep_checkpoint(
    checkpoint: Checkpoint | None, pipeline: Pipeline, runtime: Runtime, *, force: bool
) -> Iterator[None]:
    """Let a run follow its checkpoint, if it has one, and note how it ended."""
    if checkpoint is None or not isinstance(pipeline.source, FiniteSource):
        yield
        return
    pipeline.source.follow(checkpoint.make_work_list(lambda: runtime.interrupted))
    runtime.before_receiving.append(lambda: checkpoint.check_models(runtime.variants(), force))
    ended = "failed"
    try:
        yield
        ended = "interrupted" if runtime.interrupted else "finished"
    except StageStalled:
        ended = "stalled"
        raise
    finally:
        pipeline.source.follow(None)
        is_unbegun = ended != "finished" and not runtime.context.counters.received
        # A list says itself what is left of it.
        is_all = pipeline.source.lists_ahead or pipeline.source.was_exhausted
        checkpoint.close(ended, is_all=is_all, discard=checkpoint.before is None and is_unbegun)


def open_checkpoint(
    pipeline: Pipeline, plan: Plan, *, resume: bool, place: Path | None, force: bool, any_model: bool
) -> Checkpoint | None:
    """Return the checkpoint that a run keeps, locked; None where it keeps none.

    Args:
        pipeline: What is run; its delivery is repaired when it is resumed.
        plan: Resolved.
        resume: Go on with what an earlier run left.
        place: The checkpoint's folder; None: beside the results.
        force: Begin anew where a run was cut off; with `resume`: go on where it cannot be checked that it is the same run.
        any_model: The model may change while it runs anyway.

    Raises:
        CheckpointError: If there is nothing to resume, or it is of another run; if a run that was cut off is not resumed;
            if another process is at it.
    """
    asked = resume or place is not None
    found = _where(pipeline, place, asked)
    if found is None:
        return None
    source, place, recoverable = found
    entries = list(source.parts())
    if len({entry.id for entry in entries}) < len(entries):
        _refuse(f"two entries of {source.where} have the same id, so none can be told from its results", asked)
        return None
    journal = _open_journal(place, asked, resume, bool(force and recoverable and recoverable.has_results))
    if journal is None:
        return None
    try:
        past = Past()
        for record in journal.records:
            past.read(record)
        if journal.num_damaged:
            logger.warning("%d records of %s are damaged and left out", journal.num_damaged, journal.path)
        header = _header(pipeline, source, entries, plan)
        earlier = None
        if resume:
            listed = {entry.id for entry in entries}
            is_job = listed.__contains__ if source.lists_ahead else source.job_ids()
            changed = _changed(past, [] if source.lists_ahead else entries)
            what = _Resumption(journal, past, header, is_job, source.owns, recoverable, any_model, changed)
            delivered = _resume(what, force)
            if (past.is_cut_off or past.has_more) and (delivered or past.done):
                _warn_of_streams(pipeline)
        else:
            _check_abandoned(journal, past, recoverable, force, source)
            _warn_of_repetition(journal, past, recoverable, source, force)
            past, delivered = Past(), set()
            earlier = (journal.header, journal.records) if journal.header else None
            journal.begin({**header, "mark": recoverable.mark() if recoverable else {}})
        return Checkpoint(
            place,
            journal,
            past,
            entries,
            delivered,
            max_crashes=plan.source.max_receives or source.max_receives,
            notes_delivered=recoverable is None,
            resumed=resume,
            num_listed=source.num_listed,
            earlier=earlier,
            is_job=None if source.lists_ahead else source.job_ids(),
        )
    except OSError as error:
        journal.close()
        _refuse(f"the checkpoint {place} cannot be used: {error}", asked)
        return None
    except BaseException:
        journal.close()
        raise


def is_held(place: Path) -> bool:
    """Return whether a process is at work on a checkpoint's folder; False also where that cannot be known."""
    try:
        if (place / JOURNAL).is_file():
            Journal(place / JOURNAL).close()
    except Locked:
        return True
    except OSError:
        return False
    return False


def _where(pipeline: Pipeline, place: Path | None, asked: bool) -> tuple[FiniteSource, Path, Recoverable | None] | None:
    """Return what is resumed, the checkpoint's folder, and the delivery if its results can be read back."""
    source, delivery = pipeline.source, pipeline.delivery
    if not isinstance(source, FiniteSource) or source.where is None:
        if asked:
            why = (
                "values in memory are gone with their program: put them into files, or into a queue"
                if isinstance(source, FiniteSource)
                else "a queue itself keeps what is not done: start the run again without --resume and --checkpoint"
            )
            raise CheckpointError(f"only a run over a folder or a list of URLs is resumed; {why}")
        return None
    recoverable = delivery if isinstance(delivery, Recoverable) and delivery.checkpoint is not None else None
    place = place or (recoverable.checkpoint if recoverable else None)
    if place is not None:
        return source, place, recoverable
    if asked:
        raise CheckpointError(
            f"results of {type(delivery).__name__} cannot be read back; say where to keep what was done with --checkpoint "
            "DIR (checkpoint=DIR), from the first start on"
        )
    return None


def _refuse(reason: str, asked: bool) -> None:
    """Say why no checkpoint can be kept; an error only for those who asked for one."""
    if asked:
        raise CheckpointError(f"the run cannot be resumed: {reason}")
    logger.warning("no checkpoint is kept, so the run cannot be resumed: %s", reason)


def _open_journal(place: Path, asked: bool, resume: bool, adopts: bool) -> Journal | None:
    path = place / JOURNAL
    if resume and not path.exists() and not adopts:
        raise CheckpointError(
            f"there is nothing to resume: no checkpoint {place}; leave out --resume at the first start. If results are there "
            "and their checkpoint was lost: --resume --force counts every result as done"
        )
    try:
        place.mkdir(parents=True, exist_ok=True)
        return Journal(path)
    except Locked:
        raise CheckpointError(
            f"another run has the checkpoint {place}: it is at the same results; wait for it, or stop it"
        ) from None
    except OSError as error:
        _refuse(f"the checkpoint {place} cannot be written: {error}", asked)
        return None


def _check_abandoned(
    journal: Journal, past: Past, recoverable: Recoverable | None, force: bool, source: FiniteSource
) -> None:
    """Raise CheckpointError if a new run would go over one that was cut off, and whose results are still there."""
    if force or not past.is_cut_off or journal.header is None:
        return
    delivered: set[str] = set()
    if recoverable is not None:
        try:
            delivered = set(filter(source.owns, recoverable.recover(journal.header.get("mark", {}))))
        except (FileNotFoundError, SettingsError):
            return  # the results were taken away: nobody means to go on
    if num_done := len(delivered | past.done.keys()):
        total = f" of {journal.header.get('entries', 0):,}" if source.lists_ahead else ""
        raise CheckpointError(
            f"an earlier run was cut off with {num_done:,}{total} done: go on with "
            "--resume (resume=True), or begin anew behind its results with --force (force=True); its checkpoint is "
            f"{journal.path.parent}"
        )


def _warn_of_repetition(
    journal: Journal, past: Past, recoverable: Recoverable | None, source: FiniteSource, force: bool
) -> None:
    """Say that a run that finished is done again behind its own results; some mean it, most forgot `--resume`."""
    if force or past.is_cut_off or recoverable is None or not recoverable.has_results:
        return
    if journal.header is None:
        logger.warning(
            "results are there already, and no checkpoint says of which items (a profile keeps none): all is done now, behind "
            "them. Where only what is missing there should be done: --resume --force (resume=True, force=True); where this is "
            "meant, --force (force=True) leaves out this line"
        )
    elif journal.header.get("source") == source.where:
        logger.warning(
            "an earlier run over %s finished, and its results are still there: all is done again behind them. Where only what "
            "is new should be done: --resume (resume=True); where this is meant, --force (force=True) leaves out this line",
            source.where,
        )


def _warn_of_streams(pipeline: Pipeline) -> None:
    """Say what is not gone on with: what stages knew of a stream went with the earlier start."""
    if stages := [stage.name for stage in pipeline.stages if stage.keeps_streams]:
        logger.warning(
            "what %s knew of the streams is gone with the earlier start, and begins anew at the first frame that is done now: "
            "an event that goes on there is told again, one that ends there may not be, and objects get other numbers. To have "
            "the stream whole, do its clip again from the start, with other results",
            ", ".join(stages),
        )


@dataclass(frozen=True, slots=True)
class _Resumption:
    """What is there, and what is wanted."""

    journal: Journal
    past: Past
    header: Mapping[str, Any]
    is_job: Callable[[str], bool]
    """Whether the source has, or may have, a job of this id."""
    owns: Callable[[str], bool]
    """Whether a result of this id is one of the source's."""
    recoverable: Recoverable | None
    any_model: bool
    changed: Sequence[str]
    """Parts of the source that are others than when the run came to know them."""


def _resume(what: _Resumption, force: bool) -> set[str]:
    """Return the ids of what was delivered.

    Raises:
        CheckpointError: If it may not be the same run, and `force` is not given.
    """
    journal, past, header = what.journal, what.past, what.header
    was = journal.header or {}
    delivered, mark, doubts = _recover(what, was.get("mark", {}))
    done = delivered | past.done.keys()
    doubts += _doubts(what, was, done)
    if doubts and not force:
        raise CheckpointError(f"{doubts[0]}; {FORCE}")
    for doubt in doubts:
        logger.warning("resumed although %s", doubt)
    if doubts:
        journal.begin({**header, "mark": mark}, journal.records)
    elif was["fingerprint"] != header["fingerprint"]:
        gone = sum(not what.is_job(item) for item in done)
        logger.warning(
            "the source has changed: %d entries at the start, %d now; what is new will be done, and %d that were done are gone",
            was["entries"],
            header["entries"],
            gone,
        )
    return delivered


def _recover(what: _Resumption, mark: Mapping[str, Any]) -> tuple[set[str], Mapping[str, Any], list[str]]:
    """Return what was delivered, where the run's results begin from now on, and what is odd about them."""
    noted = {item for item, kind in what.past.done.items() if kind == "delivered"}
    if what.recoverable is None:
        return noted, mark, []
    recover = what.recoverable.recover
    try:
        return {item for item in recover(mark) if what.owns(item)}, mark, []
    except FileNotFoundError as error:
        return set(), {}, [f"the results are gone ({error.filename or error}): without --resume all is done again"]
    except SettingsError as error:
        return (
            {item for item in recover({}) if what.owns(item)},
            {},
            [f"the results are others than those of the run: {error}"],
        )


def _changed(past: Past, parts: Sequence[Entry]) -> list[str]:
    return [one.id for one in parts if one.attributes and past.parts.get(one.id, one.attributes) != one.attributes]


def _doubts(what: _Resumption, was: Mapping[str, Any], done: set[str]) -> list[str]:
    """Return the reasons for which this may not be the run that left the checkpoint."""
    place, header = what.journal.path.parent, what.header
    if not was:
        return [f"the checkpoint {place} is empty or damaged, so nobody knows what the results there are of"]
    if was.get("checkpoint") != VERSION:
        return [f"the checkpoint {place} has version {was.get('checkpoint')}; this headrace knows {VERSION}"]
    doubts = []
    if was["source"] != header["source"]:
        doubts.append(
            f"the checkpoint {place} is of {was['source']}, and this run is over {header['source']}: write it to another output"
        )
    elif done and not any(map(what.is_job, done)):
        doubts.append(
            f"none of the {len(done):,} that are done is in {header['source']} any more: its content is another"
        )
    if what.changed:
        others = f", and {len(what.changed) - 1:,} more are" if len(what.changed) > 1 else ""
        doubts.append(
            f"{what.changed[0]} is another file than when the run began with it (by its size, or when it was written){others}: "
            "results of two files would be mixed. Bring back what it was, or write to another output"
        )
    changed = [] if what.any_model else differences(was["answers"], header["answers"])
    if changed:
        doubts.append(
            f"answers of two kinds would be mixed: {'; '.join(changed)}. Set it back (--set), or write to another output"
        )
    return doubts


def _header(pipeline: Pipeline, source: FiniteSource, entries: Sequence[Entry], plan: Plan) -> dict[str, Any]:
    return {
        "checkpoint": VERSION,
        "pipeline": pipeline.name,
        "source": source.where,
        "entries": len(entries),
        "fingerprint": fingerprint(entries),
        "answers": answers_of(pipeline, plan),
    }
