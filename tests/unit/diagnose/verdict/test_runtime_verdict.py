"""Made-up runs in which headrace itself takes most of the CPU time, and such in which it does not matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.cli.diagnosis_text import as_text
from headrace.diagnose.analysis import Analysis
from headrace.diagnose.diagnosis import diagnosis_document
from headrace.diagnose.verdict import runtime
from headrace.diagnose.verdict.facts import Facts
from headrace.diagnose.verdict.proposal import Proposal
from headrace.runs.formats.diagnosis import VerdictClass
from headrace.runs.reader import Run

#: Items of some microseconds that together take enough CPU time to be shared out.
JOBS = 1000


@pytest.fixture
def propose(make_run: Callable[[Any], Run], pipe: Any) -> Callable[..., list[Proposal]]:
    """Makes a run and returns what the rules on the runtime propose."""

    def make_and_propose(*stages: Any, **settings: Any) -> list[Proposal]:
        replay = Analysis(make_run(pipe(stages=list(stages), **settings))).replay
        return list(runtime.rules(Facts.of(replay, [], [])))

    return make_and_propose


def tiny(made: Any, name: str, **changes: Any) -> Any:
    """Return a stage of some microseconds whose workers wait for the GIL most of the time."""
    values = {"name": name, "cpu": 2e-6, "wait": 8e-5, "state": "gil", "releases_gil": False}
    return made(**(values | changes))


def test_many_trivial_stages_are_the_runtimes_doing(make_run: Callable[[Any], Run], pipe: Any, made: Any) -> None:
    """Five stages of 2 us, and 75 us of handing on: RUNTIME, with the stages to fuse and what that buys."""
    stages = [tiny(made, f"step{number}") for number in range(5)]
    found = diagnosis_document(Analysis(make_run(pipe(stages=stages, num_jobs=JOBS, runtime=75e-6))))
    print(as_text(found))
    assert (found.first.verdict, found.first.stage) == (VerdictClass.RUNTIME, None)
    fuse = found.first.remedies[0]
    assert fuse.settings == tuple(f"step{number}.executor=inline" for number in range(1, 5))
    assert "headrace whatif" in fuse.command
    assert any("3 times per item" in one.says for one in found.first.evidence)


def test_stages_that_work_are_not_the_runtimes_doing(propose: Any, made: Any) -> None:
    """The same handing on beside 20 ms of decoding is nothing, although all cores are at work."""
    decode = made(name="decode", work="decode", cpu=0.02, workers=2)
    assert not propose(decode, made(name="prepare", cpu=0.005), cores=2, runtime=75e-6)


def test_a_run_that_has_cores_to_spare_is_not_limited_by_the_runtime(propose: Any, made: Any) -> None:
    """Items that come one at a time are handed on at a cost that nobody waits for."""
    assert not propose(tiny(made, "step0"), made(name="device", cpu=1e-6, wait=0.01, kind="io"), runtime=75e-6)


def test_without_cpu_clocks_nothing_is_said_of_the_runtime(propose: Any, made: Any) -> None:
    """What was not measured is not taken for nothing, nor for much."""
    assert not propose(tiny(made, "step0"), tiny(made, "step1"), num_jobs=JOBS)


def test_only_stages_that_compute_in_threads_are_to_be_fused(propose: Any, made: Any) -> None:
    """Not with a download, nor a stage in processes, nor a device, nor the delivery; nor where fusing leaves no time."""
    stages = [
        tiny(made, "fetch", kind="io"),
        tiny(made, "first"),
        tiny(made, "second"),
        tiny(made, "apart", executor="process"),
        tiny(made, "third"),
        tiny(made, "device", kind="device"),
        tiny(made, "fourth"),
    ]
    [found] = propose(*stages, num_jobs=JOBS, runtime=75e-6)
    assert found.advice[0].settings == ("second.executor=inline",)


def test_cheap_stages_beside_a_dear_one_are_named_by_what_handing_on_takes(propose: Any, made: Any) -> None:
    """Decode takes most, 60 us, and five stages of 2 us cost 15 us each to hand on to: special, for what that takes."""
    stages = [made(name="decode", cpu=6e-5, releases_gil=False), *(tiny(made, f"step{number}") for number in range(5))]
    [found] = propose(*stages, num_jobs=JOBS, runtime=50e-6)
    assert found.advice[0].settings == tuple(f"step{number}.executor=inline" for number in range(5))
    assert 0.1 <= found.share < 0.5


def test_advice_that_stands_alone_is_no_alternative(propose: Any, made: Any) -> None:
    """Nothing can be fused with a download, and the run has no queue: what is left to do does not begin with "or"."""
    stages = [tiny(made, f"fetch{number}", kind="io") for number in range(5)]
    [found] = propose(*stages, num_jobs=JOBS, runtime=75e-6)
    assert [one.says.partition(":")[0] for one in found.advice] == ["put more work into one item"]
