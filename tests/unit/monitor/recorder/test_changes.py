"""What changed between two times: each change is named where its effect is seen, and nothing where nothing changed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.base.records import SCHEMA_VERSION, OutcomeKind, Span
from headrace.diagnose.analysis import Analysis
from headrace.monitor.recorder.changes import Comparison
from headrace.monitor.recorder.recording import Identity, Recording, Sample, States, Threads
from headrace.monitor.recorder.state import RunState
from headrace.monitor.recorder.window import write_window
from headrace.runs.errors_log import ErrorLine
from headrace.runs.formats.incident import ChangeKind, IncidentChange
from headrace.runs.reader import read_run
from headrace.runs.run_folder import RunInfo, StageInfo

_SECOND = 1_000_000_000
_STAGES = {
    "fetch": ("io", "map", "download"),
    "ask": ("io", "map", ""),
    "decode": ("cpu", "map", "decode"),
    "deliver": ("io", "deliver", "deliver"),
}

#: Seconds of CPU, of waiting for a core and of being blocked, by stage.
Work = dict[str, tuple[float, float, float]]
_USUAL: Work = {
    "fetch": (0.001, 0.0, 0.01),
    "ask": (0.001, 0.0, 0.002),
    "decode": (0.004, 0.0, 0.0),
    "deliver": (0.001, 0.0, 0.005),
}


def _info() -> RunInfo:
    stages = [
        StageInfo(
            name=name, kind=kind, role=role, releases_gil=True, executor="thread", station=name, workers=2,
            queue_capacity=8, work=work,
        )
        for name, (kind, role, work) in _STAGES.items()
    ]  # fmt: skip
    return RunInfo(
        schema_version=SCHEMA_VERSION, headrace_version="0", status="running", pipeline="m:p", host="host",
        started_unix_seconds=1_000.0, started_monotonic_ns=0, clock_offsets_ns={"host": 0}, stages=stages,
        plans={"p1": {"model": {"engine": "onnx"}}, "p2": {"model": {"engine": "openvino"}}},
    )  # fmt: skip


def _spans(
    work: Work,
    *,
    rate: float = 10.0,
    wait: float = 0.0,
    num_bytes: int = 1_000,
    failing: float = 0.0,
    plan: str = "p1",
    at_once: int = 1,
    fails_in: str = "decode",
) -> list[Span]:
    spans = []
    for number in range(int(20 * rate)):
        at = number // at_once * at_once / rate
        for stage in _STAGES:
            cpu, delay, blocked = work[stage]
            began = at + (wait if stage == "decode" else 0.0)
            ended = began + cpu + delay + blocked
            failure = "rejected" if stage == "decode" else "failed"
            is_bad = stage == fails_in and number % 10 < failing * 10
            arrived, started, put = (round(one * _SECOND) for one in (at, began, ended))
            spans.append(
                Span(
                    "item", f"cam{number % 4}-{number}", None, stage, plan, "host", 1, f"{stage}-0", 0, 1,
                    failure if is_bad else "ok", arrived, started, started, put, put, round(cpu * _SECOND),
                    round(delay * _SECOND), None, None, None, 0, num_bytes, num_bytes * 3, None,
                )
            )  # fmt: skip
            if is_bad:
                break
            at = ended
    return spans


def _samples(**gauges: float) -> list[Sample]:
    machine = {"other_cpu_cores": 0.1, "cpu_steal_ratio": 0.0, "throttled_ratio": 0.0, "usable_cores": 2.0} | gauges
    rate, failing, own = machine.pop("rate", 10.0), machine.pop("failing", 0.0), machine.pop("own", 0.5)
    again, busy, longest = machine.pop("again", 0.0), machine.pop("busy", 0.1), machine.pop("longest", 0.1)
    return [
        Sample(
            round(second * _SECOND),
            {
                "machine": machine,
                "processes": {"cpu_cores": own, "rss_bytes": 1e8 + machine.get("leak", 0.0) * second},
                "run": {
                    "received": (rate + again) * second,
                    "given_back": again * second,
                    "longest_call_seconds": longest,
                    "delivered": rate * (1 - failing) * second,
                    "settled": rate * second,
                    "failed": rate * failing * second,
                },
                **{
                    f"stage:{name}": {"busy_workers": busy if name == "fetch" else 0.1, "workers": 2.0}
                    for name in _STAGES
                },
            },
        )
        for second in range(20)
    ]


def _looks(spans: list[Span], letter: str) -> list[tuple[Threads, States]]:
    """Return looks at the middle of each span of fetch and decode, at which its worker was blocked in a state."""
    threads = Threads([(1, f"{stage}-0") for stage in _STAGES])
    return [
        (
            threads,
            States((span.started + span.ended) // 2, "".join(letter if span.stage == one else "-" for one in _STAGES)),
        )
        for span in spans
        if letter and span.stage != "deliver"
    ]


@pytest.fixture
def compare(tmp_path: Path) -> Callable[..., list[IncidentChange]]:
    """Return what changed from a usual time to another."""

    def state(
        name: str, spans: list[Span], samples: list[Sample], letter: str, reason: str = "", **info: Any
    ) -> RunState:
        identity = Identity(process=1, process_started=1, boot="b", info=msgspec.structs.replace(_info(), **info))
        bad = [span.unit_id for span in spans if span.outcome != "ok"] if reason else []
        errors = [ErrorLine(one, 1, OutcomeKind.RETRY, reason, 1_010.0) for one in bad]
        recording = Recording(
            tmp_path, identity, spans=spans, samples=samples, states=_looks(spans, letter), errors=errors
        )
        write_window(recording, tmp_path / name, 0, 40 * _SECOND)
        return RunState(Analysis(read_run(tmp_path / name)))

    def compared(
        work: Work | None = None,
        gauges: dict[str, float] | None = None,
        *,
        info: dict[str, Any] | None = None,
        letter: str = "",
        reason: str = "",
        is_stuck: bool = False,
        usual: Work = _USUAL,
        usual_gauges: dict[str, float] | None = None,
        **more: Any,
    ) -> list[IncidentChange]:
        before = state("before", _spans(usual), _samples(**usual_gauges or {}), "")
        spans = [] if is_stuck else _spans(work or usual, **more)
        after = state("after", spans, _samples(**gauges or {}), letter, reason, **info or {})
        return Comparison(before, after).changes()

    return compared


def _slower(stage: str, cpu: float = 0.0, delay: float = 0.0, blocked: float = 0.0) -> Work:
    usual = _USUAL[stage]
    return {**_USUAL, stage: (usual[0] + cpu, usual[1] + delay, usual[2] + blocked)}


@pytest.mark.parametrize(
    ("kind", "stage", "change"),
    [
        (ChangeKind.DOWNLOAD, "fetch", {"work": _slower("fetch", blocked=0.2)}),
        (ChangeKind.RECEIVER, "deliver", {"work": _slower("deliver", blocked=0.2)}),
        (ChangeKind.CODE, "decode", {"work": _slower("decode", cpu=0.05)}),
        (ChangeKind.INPUT_SIZE, "fetch", {"work": _slower("decode", cpu=0.012), "num_bytes": 4_000}),
        (ChangeKind.NEIGHBOUR, None, {"work": _slower("decode", delay=0.05), "gauges": {"other_cpu_cores": 1.8}}),
        (ChangeKind.NEIGHBOUR, None, {"work": _slower("decode", delay=0.05), "gauges": {"cpu_steal_ratio": 0.5}}),
        (ChangeKind.QUOTA, None, {"work": _slower("decode", delay=0.05), "gauges": {"throttled_ratio": 0.6}}),
        (ChangeKind.CORES, None, {"work": _slower("decode", delay=0.05), "gauges": {"usable_cores": 1.0}}),
        (ChangeKind.ARRIVALS, None, {"rate": 30.0, "wait": 0.3, "gauges": {"rate": 30.0}}),
        (ChangeKind.INPUT_FAILURES, "decode", {"failing": 0.3, "gauges": {"failing": 0.3}}),
        (ChangeKind.CODE, None, {"work": _slower("decode", delay=0.05), "gauges": {"own": 1.9}}),
        (ChangeKind.GIL, None, {"work": _slower("fetch", blocked=0.05), "gauges": {"own": 1.2}, "letter": "g"}),
        (ChangeKind.LOCK, "fetch", {"work": _slower("fetch", blocked=0.05), "letter": "l"}),
        (ChangeKind.DISK, "decode", {"work": _slower("decode", blocked=0.05), "letter": "d"}),
        (ChangeKind.REMOTE, "decode", {"work": _slower("decode", blocked=0.05), "letter": "w"}),
        (ChangeKind.ARRIVALS, None, {"at_once": 25, "wait": 0.3}),
        (ChangeKind.ARRIVALS, None, {"at_once": 25, "wait": 0.3, "work": _slower("fetch", blocked=0.01)}),
        (
            ChangeKind.RECEIVER,
            "deliver",
            {"failing": 1.0, "fails_in": "deliver", "gauges": {"failing": 1.0, "again": 9.0}},
        ),
        (
            ChangeKind.REMOTE,
            "ask",
            {
                "failing": 1.0,
                "fails_in": "ask",
                "gauges": {"failing": 0.5, "again": 9.0},
                "reason": "ask: item cam1-7: URLError: <urlopen error [Errno 111] Connection refused>",
            },
        ),
        (
            ChangeKind.CODE,
            "ask",
            {"failing": 1.0, "fails_in": "ask", "gauges": {"failing": 1.0}, "reason": "ask: KeyError: 'x'"},
        ),
        (ChangeKind.WORKERS, "fetch", {"is_stuck": True, "gauges": {"busy": 2.0, "longest": 9.0}}),
    ],
)
def test_what_changed_is_named_first(
    compare: Callable[..., list[IncidentChange]], kind: ChangeKind, stage: str | None, change: dict[str, Any]
) -> None:
    """With where it shows, a share that says how much it explains, and the next step."""
    found = compare(**change)[0]
    assert (found.kind, found.stage) == (kind, stage)
    assert found.explains_share > 0.5
    assert found.to_do


def test_bursts_are_said_as_such(compare: Callable[..., list[IncidentChange]]) -> None:
    """With how many come at once; and jobs that come again because they failed are no more arrivals than before."""
    found = compare(at_once=25, wait=0.3)[0]
    assert "less evenly: up to 25 within a quarter of a second, before 3" in found.says
    failing = compare(failing=1.0, fails_in="deliver", gauges={"failing": 1.0, "again": 30.0})
    assert [one.kind for one in failing] == [ChangeKind.RECEIVER]


def test_where_nothing_changed_nothing_is_named(compare: Callable[..., list[IncidentChange]]) -> None:
    """Not even by a little."""
    assert compare() == []


def test_what_is_seen_and_explains_nothing_has_no_share(compare: Callable[..., list[IncidentChange]]) -> None:
    """Others on the cores, another model: the jobs are as fast as before."""
    found = compare(gauges={"other_cpu_cores": 1.5}, plan="p2")
    assert {(change.kind, change.explains_share) for change in found} == {
        (ChangeKind.NEIGHBOUR, 0.0),
        (ChangeKind.MODEL, 0.0),
    }


def test_a_slow_download_is_not_blamed_on_a_busy_machine(compare: Callable[..., list[IncidentChange]]) -> None:
    """A change counts only where its effect is seen."""
    found = compare(work=_slower("fetch", blocked=0.2), gauges={"other_cpu_cores": 1.5})
    assert found[0].kind is ChangeKind.DOWNLOAD
    assert found[0].explains_share > 0.9


def test_another_environment_is_named(compare: Callable[..., list[IncidentChange]]) -> None:
    """Of a baseline that is another run."""
    found = compare(info={"versions": {"numpy": "9.9"}})
    assert [change.kind for change in found] == [ChangeKind.ENVIRONMENT]
    assert "numpy none -> 9.9" in found[0].says


@pytest.mark.parametrize("others", [1.92, 1.2])
def test_others_on_nearly_every_core_are_blamed_before_a_stage(
    compare: Callable[..., list[IncidentChange]], others: float
) -> None:
    """Threads wait for cores, CPU time swells, and stages wait for threads that wait: none of it is a stage's own."""
    work = {**_USUAL, "fetch": (0.001, 0.02, 0.01), "decode": (0.006, 0.03, 0.025)}
    found = compare(work=work, gauges={"other_cpu_cores": others})
    assert found[0].kind is ChangeKind.NEIGHBOUR
    assert found[0].explains_share > 0.9


def test_a_stage_that_computes_much_more_is_blamed_beside_others_on_the_cores(
    compare: Callable[..., list[IncidentChange]],
) -> None:
    """Others cost a stage half its CPU time at most, not ten times."""
    found = compare(work=_slower("decode", cpu=0.05, delay=0.01), gauges={"other_cpu_cores": 1.5})
    assert [(one.kind, one.stage) for one in found[:2]] == [(ChangeKind.CODE, "decode"), (ChangeKind.NEIGHBOUR, None)]


def test_waiting_in_proportion_to_more_work_has_the_cause_of_the_work(
    compare: Callable[..., list[IncidentChange]],
) -> None:
    """On cores that others used as much before, who computes longer waits for them longer."""
    crowded = {"other_cpu_cores": 1.5}
    usual = {**_USUAL, "decode": (0.004, 0.004, 0.0)}
    work = {**_USUAL, "decode": (0.024, 0.024, 0.0)}
    found = compare(work, crowded, usual=usual, usual_gauges=crowded)
    assert (found[0].kind, found[0].stage) == (ChangeKind.CODE, "decode")
    assert found[0].explains_share > 0.9
