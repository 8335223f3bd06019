"""Steps as columns, read from a folder that a recorder wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.diagnose.training.steps import read_steps
from headrace.diagnose.training.verdicts import TrainingAnalysis
from headrace.runs.reader import read_run
from headrace.runs.run_folder import RunFolder
from headrace.runs.span_files import SpanWriter
from headrace.runs.training_phases import Kind, Phase
from headrace.train.recorder import Recorder
from tests.unit.diagnose.training.made_runs import MadeRun


def _record(path: Path) -> None:
    """Write two epochs of two steps, each of two micro-batches, and a validation after each epoch."""
    folder = RunFolder.create(path, pipeline="train.py", unit="step")
    writer = SpanWriter(path / "spans")
    recorder = Recorder(writer.stage_finished)
    for _ in range(2):
        recorder.epoch_begins()
        recorder.epoch_began()
        for _ in range(2):
            for _ in range(2):
                recorder.batch_wanted()
                recorder.batch_came(8)
                recorder.forward_begins(training=True)
                recorder.forward_ended()
                recorder.backward_begins()
                recorder.backward_ended()
            recorder.update_begins()
            recorder.update_ended()
        recorder.forward_begins(training=False)
        recorder.forward_ended()
    recorder.close()
    writer.close()
    folder.finish("finished")


def test_columns_hold_what_was_recorded(tmp_path: Path) -> None:
    """Steps in order, with their samples and micro-batches; phases add up to the step."""
    _record(tmp_path / "run")
    (rank,) = read_steps(read_run(tmp_path / "run"))
    steps = rank.steps
    assert steps.number.tolist() == [0, 1, 2, 3]
    assert steps.samples.tolist() == [16] * 4
    assert steps.microbatches.tolist() == [2] * 4
    assert steps.kinds == (Kind.EPOCH_START, Kind.PLAIN) * 2
    assert steps.is_plain.tolist() == [False, True] * 2
    assert np.allclose(sum(times.wall for times in steps.phases.values()), steps.wall, atol=1e-9)
    assert np.all(np.diff(steps.started) > 0)
    assert Phase.WAIT in steps.phases
    assert Phase.EXCHANGE not in steps.phases
    assert (len(rank.validation), len(rank.batches)) == (2, 0)


def test_steps_that_were_metered_stand_for_the_others(tmp_path: Path) -> None:
    """Of a phase as large a share of the wall time; what was metered stays as it was."""
    run = MadeRun(tmp_path / "run")
    for number in range(12):
        run.stretch({Phase.FORWARD: 1.0 + number, Phase.BACKWARD: 2.0}, cpu_share=0.5, delay_share=0.25)
    path = run.finish()
    _forget(path, lambda number: number % 4 != 0)
    (rank,) = read_steps(read_run(path))
    assert rank.steps.num_metered == 3
    for times in rank.steps.phases.values():
        np.testing.assert_allclose(times.cpu, 0.5 * times.wall, rtol=1e-6)
        np.testing.assert_allclose(times.run_delay, 0.25 * times.wall, rtol=1e-6)


def test_a_step_in_which_the_thread_waited_stands_for_none_that_was_shorter(tmp_path: Path) -> None:
    """The first eight of many steps were ten times as long, because the thread was blocked: the others only compute."""
    run = MadeRun(tmp_path / "run")
    for number in range(48):
        is_slow = number < 8
        run.stretch({Phase.FORWARD: 10.0 if is_slow else 1.0}, cpu_share=0.1 if is_slow else 1.0)
    path = run.finish()
    _forget(path, lambda number: number >= 8 and number % 4 != 0)
    (rank,) = read_steps(read_run(path))
    forward = rank.steps.phases[Phase.FORWARD]
    np.testing.assert_allclose(forward.cpu, 0.001, rtol=1e-6)
    np.testing.assert_allclose(forward.blocked[8:], 0.0, atol=1e-9)


def _forget(path: Path, is_unread: Callable[[int], bool]) -> None:
    """Take CPU times out of the steps of a run folder."""
    for file in (path / "spans").glob("*.parquet"):
        table = pq.read_table(file)
        unread = [is_unread(int(unit)) for unit in table["unit_id"].to_pylist()]
        for name in ("cpu", "run_delay"):
            values = [None if gone else value for value, gone in zip(table[name].to_pylist(), unread, strict=True)]
            column = pa.array(values, table.schema.field(name).type)
            table = table.set_column(table.schema.get_field_index(name), table.schema.field(name), column)
        pq.write_table(table, file)


def test_no_table_of_spans_is_kept(tmp_path: Path) -> None:
    """A million steps are ten million spans: what is worked out of them is kept, and they are not."""
    run = MadeRun(tmp_path / "run")
    for _ in range(40):
        run.stretch({Phase.FORWARD: 1.0, Phase.BACKWARD: 2.0})
    found = read_run(run.finish())
    before = pa.total_allocated_bytes()
    analysis = TrainingAnalysis(found)
    assert not found.problems
    assert len(analysis.ranks[0].steps) == 40
    assert pa.total_allocated_bytes() - before < 1_000, "a table of these 120 spans has 20,000 bytes"


def test_a_step_may_lie_in_several_files(tmp_path: Path) -> None:
    """Its phases are found in whichever file they are."""
    _record(tmp_path / "run")
    whole = read_steps(read_run(tmp_path / "run"))
    (file,) = (tmp_path / "run" / "spans").iterdir()
    table = pq.read_table(file)
    for row in range(len(table)):
        pq.write_table(table.slice(row, 1), file.with_name(f"host-1-{len(table) - row:06d}.parquet"))
    file.unlink()
    (before,), (after,) = whole, read_steps(read_run(tmp_path / "run"))
    for kind in ("steps", "validation", "between"):
        old, new = getattr(before, kind), getattr(after, kind)
        assert (new.kinds, new.number.tolist()) == (old.kinds, old.number.tolist())
        assert {phase: times.wall.tolist() for phase, times in new.phases.items()} == {
            phase: times.wall.tolist() for phase, times in old.phases.items()
        }
        assert new.microbatches.tolist() == old.microbatches.tolist()
