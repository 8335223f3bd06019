"""Run folders of trainings that never were: spans of which every duration is known."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from headrace.base.records import Span
from headrace.runs.formats.training import LoaderInfo, TrainingProcess, process_file
from headrace.runs.run_folder import RunFolder
from headrace.runs.span_files import SpanWriter
from headrace.runs.training_phases import BATCH, DEVICE, WHOLE, Kind, LoaderWork, Phase, Stretch

_MS = 1_000_000


class MadeRun:
    """Writes one rank after the other; times are milliseconds."""

    def __init__(self, path: Path, *, samples: int = 8) -> None:
        self.path, self._samples = path, samples
        self._folder = RunFolder.create(path, pipeline="train.py", options=["train.py", "--lr", "0.1"], unit="step")
        self._writer = SpanWriter(path / "spans")
        self._numbers: dict[tuple[int, str], int] = {}
        self._now: dict[int, int] = {}
        #: {number: when it began}, of steps of rank 0.
        self._begun: dict[int, int] = {}

    def stretch(
        self,
        phases: Mapping[Phase, float],
        *,
        stretch: Stretch = Stretch.STEP,
        rank: int = 0,
        kind: Kind = Kind.PLAIN,
        cpu_share: float = 1.0,
        delay_share: float = 0.0,
        asleep: Collection[Phase] = (),
        failed: bool = False,
        whole: float | None = None,
    ) -> int:
        """Add a stretch of 8 samples and return its number.

        Args:
            phases: {phase: milliseconds}, in order.
            stretch: What it was.
            rank: Of the process, whose id is 100 + rank.
            kind: What sets it apart.
            cpu_share: Part of each phase that the training thread computed.
            delay_share: Part in which it had no core.
            asleep: Phases in which it did neither.
            failed: An exception ended it.
            whole: Milliseconds of the stretch; None: the sum of its phases.
        """
        number = self._numbers.get((rank, stretch), 0)
        self._numbers[rank, stretch] = number + 1
        began = self._now.get(rank, 0)
        if stretch is Stretch.STEP and not rank:
            self._begun[number] = began
        at, spans = began, []
        for phase, milliseconds in phases.items():
            ended = at + int(milliseconds * _MS)
            shares = (0.0, 0.0) if phase in asleep else (cpu_share, delay_share)
            cpu, delay = (int((ended - at) * share) for share in shares)
            spans.append(_span(stretch, number, phase, rank, at, ended, cpu, delay))
            at = ended
        ended = at if whole is None else began + int(whole * _MS)
        cpu, delay = (sum(getattr(one, name) for one in spans) for name in ("cpu", "run_delay"))
        whole_span = _span(stretch, number, WHOLE, rank, began, ended, cpu, delay, kind=kind, failed=failed)
        spans.append(msgspec.structs.replace(whole_span, batch_size=self._samples))
        self._now[rank] = at
        self._writer.stage_finished(spans)
        return number

    def on_device(self, number: int, phases: Mapping[Phase, float]) -> None:
        """Add what `cuda:0` took for the phases of a step of rank 0, milliseconds."""
        at, spans = self._now[0], []
        for phase, milliseconds in {**phases, WHOLE: sum(phases.values())}.items():
            began = self._now[0] if phase == WHOLE else at
            at = began + int(milliseconds * _MS)
            spans.append(_span(DEVICE, number, phase, 0, began, at, None, None, thread="cuda:0"))
        self._writer.stage_finished(spans)

    def batch(self, number: int, work: Mapping[LoaderWork, tuple[float, float]], *, worker: int = 0) -> None:
        """Add what a batch cost: {work: (milliseconds, part of it that was computed)}; step `number` used it."""
        self._writer.stage_finished(self.spans_of_batch(number, work, worker=worker))

    def spans_of_batch(
        self, number: int, work: Mapping[LoaderWork, tuple[float, float]], *, worker: int = 0
    ) -> list[Span]:
        """Return the spans that `batch` adds: collating begins when the items are there, and sending after it.

        The batch is taken when its step begins.
        """
        passed = (LoaderWork.ITEMS, LoaderWork.COLLATE, LoaderWork.SEND)
        taken = self._begun.get(number, 0)
        spans, first = [], taken - sum(int(wall * _MS) for name, (wall, _) in work.items() if name in passed)
        at = first
        for name, (wall, share) in work.items():
            own = int(wall * _MS)
            began = at if name in (LoaderWork.COLLATE, LoaderWork.SEND) else first
            who = {"step": number, "process": 500 + worker}
            spans.append(_span(BATCH, number, name, 0, began, began + own, int(own * share), 0, **who))
            if name in passed:
                at = began + own
        return [msgspec.structs.replace(one, put=at) for one in spans]

    def finish(
        self,
        *,
        workers: int = 2,
        world_size: int | None = None,
        lost: int = 0,
        cut: Collection[int] = (),
        **details: object,
    ) -> Path:
        """Close the files, and write what each process says of itself: `details` as they are, of None nothing.

        Ranks in `cut` were killed before they could end their recording.
        """
        self._writer.close()
        details = {name: one for name, one in details.items() if one is not None}
        ranks = sorted(self._now)
        for rank in ranks:
            about = _process(
                rank,
                len(ranks) if world_size is None else world_size,
                workers,
                lost,
                details,
            )
            about = msgspec.structs.replace(
                about, has_ended=rank not in cut, steps=self._numbers.get((rank, Stretch.STEP), 0)
            )
            file = process_file(self.path, "here", 100 + rank)
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(msgspec.json.encode(about))
        self._folder.finish("finished")
        return self.path


def plain_steps(run: MadeRun, phases: Mapping[Phase, float], count: int = 40, *, cpu_share: float = 1.0) -> None:
    """Add an epoch: a first step of the same duration, and plain ones."""
    for index in range(count):
        run.stretch(phases, kind=Kind.EPOCH_START if index == 0 else Kind.PLAIN, cpu_share=cpu_share)


def _span(
    unit: str, number: int, stage: str, rank: int, started: int, ended: int, cpu: int | None, delay: int | None, *,
    kind: Kind = Kind.PLAIN, failed: bool = False, step: int | None = None, process: int | None = None, thread: str = "train",
) -> Span:  # fmt: skip
    is_forward = stage == Phase.FORWARD
    return Span(
        unit=unit, unit_id=str(number), parent_id=None if step is None else str(step), stage=stage, plan_id="", host="here",
        process=100 + rank if process is None else process, thread=thread, rank=rank, attempt=1,
        outcome="failed" if failed else "ok", arrived=started, dequeued=started, started=started, ended=ended, put=ended,
        cpu=cpu, run_delay=delay, batch_id=0 if is_forward else None, batch_size=8 if stage == WHOLE else None,
        release_reason=kind or None, queue_depth=0, bytes_in=0, bytes_out=0, shape_key=None,
    )  # fmt: skip


def _process(rank: int, world_size: int, workers: int, lost: int, details: dict[str, object]) -> TrainingProcess:
    loader = LoaderInfo(
        kind="torch.utils.data.DataLoader", dataset="Photos", num_items=320, workers=workers, prefetch_factor=2,
        batch_size=8, in_order=True, persistent_workers=False, pin_memory=False,
    )  # fmt: skip
    return TrainingProcess(
        host="here", process=100 + rank, rank=rank, world_size=world_size, script="train.py", framework="torch",
        torch_version="2.13.0", threads=1, device="cpu", modules=("Net",), num_parameters=1_000, parameter_bytes=4_000,
        optimizers=("SGD",), loaders=(loader,), lost_spans=lost, details=details,
    )  # fmt: skip


def names(found: Sequence[object]) -> list[str]:
    """Return what the parts of a document are named."""
    return [
        str(getattr(one, "what", None) or getattr(one, "phase", None) or getattr(one, "work", one)) for one in found
    ]
