"""Steps and phases of traces: what `prof.step()` marked, what is inferred, and where time goes that nobody named."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.runs.training_phases import Kind, Phase, Stretch
from headrace.train.trace.columns import Columns
from headrace.train.trace.cutting import CannotCut, Cut, CutStretch, cut_trace
from headrace.train.trace.events import TraceFile
from tests.unit.train.trace.made_traces import AUTOGRAD, MadeTrace, cuda_trace


def cut(trace: MadeTrace, folder: Path) -> Cut:
    """Return the steps of a trace."""
    return cut_trace(Columns(TraceFile(trace.write(folder / "t.json"))))


def micros(stretch: CutStretch) -> dict[Phase, float]:
    """Return {phase: microseconds} of a stretch."""
    found: dict[Phase, float] = {}
    for (phase, _, start), (_, _, end) in zip(stretch.marks, stretch.marks[1:], strict=False):
        found[phase] = found.get(phase, 0.0) + (end - start) / 1000
    return found


def test_phases_add_up_to_the_step(tmp_path: Path) -> None:
    """Autograd's own thread counts for the one that trains, and what lies between has the name of its place."""
    found = cut(cuda_trace(3, sync=True, after=30), tmp_path)
    assert [one.number for one in found.steps] == [10, 11, 12]
    for one in found.steps:
        assert sum(micros(one).values()) == pytest.approx((one.end - one.start) / 1000)
    step = micros(found.steps[1])
    assert step[Phase.WAIT] == pytest.approx(100)
    assert step[Phase.FORWARD] == pytest.approx(100)
    assert step[Phase.BACKWARD] == pytest.approx(200)
    assert step[Phase.OPTIMIZER] == pytest.approx(100)
    assert step[Phase.AFTER] > 30
    assert "loss" in found.not_measured
    assert found.has_workers is True
    assert found.optimizers == ("SGD",)


def test_modules_tell_the_loss_from_the_forward_pass(tmp_path: Path) -> None:
    """With stacks the outermost module is the forward pass; a loss is none."""
    trace = cuda_trace(2)
    for start in (0.0, 500.0):
        trace.host("nn.Module: Net_0", start + 105, 60, cat="python_function")
        trace.host("nn.Module: Linear_0", start + 110, 20, cat="python_function")
        trace.host("nn.Module: CrossEntropyLoss_0", start + 170, 20, cat="python_function")
    found = cut(trace, tmp_path)
    step = micros(found.steps[0])
    assert step[Phase.FORWARD] == pytest.approx(60)
    assert step[Phase.LOSS] == pytest.approx(35)
    assert "loss" not in found.not_measured


def test_batches_that_are_accumulated_are_one_step(tmp_path: Path) -> None:
    """`prof.step()` after each batch, an update after two; what begins or ends in the middle is uneven."""
    trace = MadeTrace()
    for number in range(7):
        at = number * 500.0
        trace.note(f"ProfilerStep#{number}", at, 500)
        trace.note("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, 100)
        trace.host("aten::linear", at + 100, 100)
        trace.host("autograd::engine::evaluate_function: AddmmBackward0", at + 200, 200)
        if number % 2 == 0:
            trace.note("Optimizer.step#SGD.step", at + 400, 50)
    found = cut(trace, tmp_path)
    assert [(one.number, one.kind) for one in found.steps] == [
        (0, Kind.UNEVEN),
        (2, Kind.PLAIN),
        (4, Kind.PLAIN),
        (6, Kind.PLAIN),
    ]
    assert len({microbatch for phase, microbatch, _ in found.steps[1].marks if phase is Phase.FORWARD}) == 2
    assert found.has_workers is False


def test_steps_are_inferred_where_nobody_marked_them(tmp_path: Path) -> None:
    """From the request for a batch after an update to the next; the last one is cut off by the end of the trace."""
    trace = cuda_trace(4)
    trace.events = [event for event in trace.events if not event["name"].startswith("ProfilerStep")]
    found = cut(trace, tmp_path)
    assert [one.kind for one in found.steps] == [Kind.PLAIN] * 3 + [Kind.UNEVEN]
    assert "nobody called it" in found.not_measured["steps as prof.step() marks them"]
    trace.events = [event for event in trace.events if not event["name"].startswith("enumerate")]
    assert [one.kind for one in cut(trace, tmp_path).steps] == [Kind.PLAIN] * 3
    trace.events = [event for event in trace.events if not event["name"].startswith("Optimizer")]
    with pytest.raises(CannotCut, match=r"neither prof\.step\(\)"):
        cut(trace, tmp_path)


def test_what_learns_nothing_is_no_step(tmp_path: Path) -> None:
    """A marked stretch without a backward pass is validation, one without anything is neither."""
    trace = cuda_trace(2)
    end = 1000.0
    trace.note("ProfilerStep#12", end, 300)
    trace.note("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", end, 100)
    trace.host("aten::linear", end + 100, 50)
    trace.host("aten::relu", end + 160, 20)
    trace.note("ProfilerStep#13", end + 300, 20)
    found = cut(trace, tmp_path)
    assert [one.stretch for one in found.stretches] == [Stretch.STEP, Stretch.STEP, Stretch.VALIDATION, Stretch.BETWEEN]


def test_what_is_left_of_an_exchange_on_the_host_is_no_backward_pass(tmp_path: Path) -> None:
    """Gloo goes on in another thread when the gradients are there; Kineto may end it long after the training thread went on."""
    trace = cuda_trace(2)
    trace.events = [event for event in trace.events if "Optimizer" not in event["name"]]
    for start in (0.0, 500.0):
        trace.note("gloo:all_reduce", start + 395, 90, thread=AUTOGRAD + 5)
        trace.host("torch.distributed.ddp.reducer::copy_bucket_to_grad", start + 440, 10)
        trace.note("Optimizer.step#SGD.step", start + 460, 30)
    step = micros(cut(trace, tmp_path).steps[0])
    assert step[Phase.EXCHANGE] == pytest.approx(50)
    assert step[Phase.OPTIMIZER] == pytest.approx(30)
