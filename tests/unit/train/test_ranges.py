"""Phases as ranges for Nsight Systems and VTune: one for each phase, none left open, and the recording as without."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from headrace.base.records import Span
from headrace.train.ranges import VARIABLE, RangedRecorder, find_calls, make_recorder
from headrace.train.recorder import Recorder


class Ranges:
    """What a tool would be told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def push(self, name: str) -> None:
        """A range begins."""
        self.said.append(name)

    def pop(self) -> None:
        """The last one ends."""
        self.said.append("end")


def step(recorder: Recorder) -> None:
    """Make one step."""
    recorder.batch_wanted()
    recorder.batch_came(4)
    recorder.forward_begins(training=True)
    recorder.forward_ended()
    recorder.backward_begins()
    recorder.backward_ended()
    recorder.update_begins()
    recorder.update_ended()


def test_each_phase_is_a_range() -> None:
    """In order, one ends before the next begins, and the recorder writes what it would write without."""
    ranges, written = Ranges(), list[list[Span]]()
    recorder = RangedRecorder(lambda spans: written.append(list(spans)), (ranges.push, ranges.pop))
    step(recorder)
    step(recorder)
    recorder.close()
    phases = ["wait", "prepare", "forward", "loss", "backward", "before_update", "optimizer", "after"]
    expected = ["outside", "end"] + [word for phase in phases * 2 for word in (phase, "end")] + ["outside", "end"]
    assert ranges.said == expected
    steps = [spans for spans in written if spans[0].unit == "step"]
    assert [[span.stage for span in spans[1:]] for spans in steps] == [phases, phases]


def test_nvtx_has_a_domain_and_a_range_for_each_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package of NVIDIA, played by one with its names."""
    ranges = Ranges()
    domain = types.SimpleNamespace(
        get_event_attributes=lambda message, category: f"{category} {message}",
        push_range=ranges.push,
        pop_range=ranges.pop,
    )
    asked: list[str] = []
    module: Any = types.ModuleType("nvtx")
    module.get_domain = lambda name: asked.append(name) or domain
    monkeypatch.setitem(sys.modules, "nvtx", module)
    push, pop = find_calls("nvtx")
    push("forward")
    pop()
    assert asked == ["headrace"]
    assert ranges.said == ["phase forward", "end"]


def test_without_the_package_the_training_is_recorded_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """An extra that is missing costs the ranges alone."""
    monkeypatch.setenv(VARIABLE, "nvtx")
    monkeypatch.setitem(sys.modules, "nvtx", None)
    recorder, why = make_recorder(lambda _: None, rank=0)
    assert type(recorder) is Recorder
    assert "nvtx" in why


@pytest.mark.full
def test_itt_of_pytorch_takes_ranges_without_vtune() -> None:
    """Its functions are there, and do nothing where no tool listens."""
    pytest.importorskip("torch")
    push, pop = find_calls("itt")
    assert (push("forward"), pop()) == (None, None)
