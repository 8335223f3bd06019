"""Variants that tie are compared directly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace.cli.optimization_text import as_text
from headrace.ledger.ledger import Ledger
from headrace.optimize.artifacts import ArtifactStore
from headrace.optimize.goal import Goal
from headrace.optimize.head_to_head import ROUNDS, HeadToHead, Pairs
from headrace.optimize.pareto import Point, best, find_tied
from headrace.optimize.search import optimize
from headrace.report.variants_page import render_variants
from headrace.runs.formats.optimization import OptimizationDocument, TechniqueKind
from headrace.runs.formats.profile import Estimate
from headrace.validate import measuring
from headrace.validate.model_speed import CpuTime, Settled, Speed, Timing, measure_speed

NONE = Estimate(0.0, 0.0, 0.0)


def point(name: str, kind: TechniqueKind = "lossy", mid: float = 2.0) -> Point:
    """Return a variant whose gain is known within a tenth."""
    return Point(name=name, kind=kind, speedup=Estimate(0.9 * mid, mid, 1.1 * mid), drop=NONE, num_bytes=1)


def speed(low: float, ratio: float, high: float, cpu: tuple[float, float, float] | None = None) -> Speed:
    """Return a measured ratio."""
    used = CpuTime(low=cpu[0], ratio=cpu[1], high=cpu[2], a_seconds=1.0, b_seconds=1.0) if cpu else None
    return Speed(ratio=ratio, low=low, high=high, noise=0.0, a_seconds=1.0, b_seconds=1.0, rounds=24, cpu=used)


def held(known: dict[tuple[str, str], Speed | None], points: list[Point], **settings: Any) -> tuple[str, HeadToHead]:
    """Return who wins where these ratios are measured, and what was said."""

    def measure(first: Point, second: Point, *, settled: Settled) -> Speed | None:
        return known[first.name, second.name]

    run_off = HeadToHead(measure, lambda one: f"{one.name} on onnx", **settings)
    return run_off.best(points).name, run_off


def test_who_is_surely_faster_wins_whatever_it_changes() -> None:
    """Two overlap against what is in use, and in pairs the one is 6 % ahead; the one that changes less had been taken."""
    points = [point("int8"), point("bf16", "numeric", 1.95)]
    assert getattr(best(points, "throughput"), "name", "") == "bf16"
    winner, run_off = held({("int8", "bf16"): speed(0.92, 0.94, 0.97)}, points)
    assert winner == "int8"
    (told,) = run_off.held
    assert told.says == "int8 on onnx is 1.06 times as fast as bf16 on onnx (1.03 to 1.09), in pairs"
    assert (told.a, told.b, told.chosen, told.rounds, told.ratio) == (
        "int8",
        "bf16",
        "int8",
        24,
        Estimate(0.92, 0.94, 0.97),
    )


def test_of_two_that_stay_open_the_one_that_changes_less_is_used() -> None:
    """And of one kind the one that was ahead."""
    points = [point("int8"), point("bf16", "numeric")]
    winner, run_off = held({("int8", "bf16"): speed(0.97, 0.99, 1.01)}, points)
    assert winner == "bf16"
    assert "cannot be told apart in pairs (0.97 to 1.01): bf16 on onnx is used" in run_off.held[0].says
    assert held({("a", "b"): speed(0.99, 1.0, 1.01)}, [point("a"), point("b")])[0] == "a"


def test_the_winner_meets_the_next() -> None:
    """Three tie: each meets the one that was left by those before."""
    points = [point("a"), point("b"), point("c", "lossless")]
    known = {("a", "b"): speed(1.01, 1.03, 1.05), ("b", "c"): speed(0.9, 0.95, 0.99)}
    winner, run_off = held(known, points)
    assert winner == "b"
    assert [(one.a, one.b, one.chosen) for one in run_off.held] == [("a", "b", "b"), ("b", "c", "b")]


def test_what_could_not_be_measured_is_open() -> None:
    """Such as a variant that does not open any more: the one that changes less is used, and it is said."""
    winner, run_off = held({("int8", "bf16"): None}, [point("int8"), point("bf16", "numeric")])
    assert winner == "bf16"
    assert "could not be held against each other" in run_off.held[0].says
    assert run_off.held[0].ratio is None


def test_for_cost_cpu_time_decides() -> None:
    """However fast each is; without it nothing is known."""
    points = [point("a"), point("b")]
    faster = speed(0.4, 0.5, 0.6, cpu=(1.1, 1.2, 1.3))
    winner, run_off = held({("a", "b"): faster}, points, by_cpu=True)
    assert winner == "b"
    assert run_off.held[0].says == "b on onnx takes 1.20 times less CPU time than a on onnx (1.10 to 1.30), in pairs"
    assert held({("a", "b"): speed(0.4, 0.5, 0.6)}, points, by_cpu=True)[0] == "a"


def test_those_that_tie_overlap_with_the_fastest() -> None:
    """The fastest first; what surely gains less is not among them."""
    points = [point("slow", mid=1.0), point("b", mid=2.0), point("a", mid=2.1)]
    assert [one.name for one in find_tied(points, "throughput")] == ["a", "b"]


def test_the_truly_faster_of_two_models_is_found() -> None:
    """By the rounds of real calls on a clock of their own: 3 % apart where a block varies by 2 %."""
    random = np.random.default_rng(5)

    class Clock:
        now = 0.0

        def perf_counter(self) -> float:
            return self.now

        process_time = perf_counter

    clock = Clock()

    def model(seconds: float) -> Any:
        def call(batch: Any) -> None:
            clock.now += seconds * float(random.lognormal(0.0, 0.02))

        return call

    models = {"a": model(0.0500), "b": model(0.0485)}

    def measure(first: Point, second: Point, *, settled: Settled) -> Speed | None:
        return measure_speed(
            models[first.name],
            models[second.name],
            np.ones(1),
            rounds=ROUNDS,
            settled=settled,
            timing=Timing(clock=clock),
        )

    run_off = HeadToHead(measure, lambda one: one.name)
    assert run_off.best([point("a"), point("b")]).name == "b"
    assert run_off.held[0].rounds <= ROUNDS


def test_each_is_called_with_images_of_its_own_size(case: Any) -> None:
    """Where the pipeline scales them before the model."""
    seen: list[tuple[Any, np.ndarray]] = []
    settings = {"artifact": str(case.model), "engine": "onnx", "threads": 1, "options": {}}
    known: Any = {
        name: SimpleNamespace(technique=name, settings=settings | ({"input_side": side} if side else {}))
        for name, side in (("whole", None), ("small", 8))
    }
    items: Any = SimpleNamespace(scale_to=lambda side: np.zeros((3, 3, side or 12, side or 12), np.float32))
    nothing: Any = None
    pairs = Pairs(nothing, known, {}, items, 4, print)
    with measuring.using(measure_speed=lambda a, b, batch, **_: seen.append((b, batch))):
        assert pairs.measure(point("whole"), point("small"), settled=bool) is None
    ((model, batch),) = seen
    assert (batch.shape, model.batch.shape) == ((4, 3, 12, 12), (4, 3, 8, 8))


# --- in a search


@pytest.fixture
def also(nets: ModuleType, case: Any, tmp_path: Path) -> Iterator[Path]:
    """The model as given on OpenVINO and its twin on ONNX Runtime tie; in pairs the twin is 7 % ahead, for more CPU time."""
    gains = {("net", "openvino"): 2.0, ("twin", "onnx"): 2.1, ("twin", "openvino"): 1.5}

    def told(ratio: float, cpu: float, within: float) -> Speed:
        low, high = 1 - within, 1 + within
        used = CpuTime(ratio=cpu, low=low * cpu, high=high * cpu, a_seconds=1.0, b_seconds=1.0)
        return Speed(
            ratio=ratio, low=low * ratio, high=high * ratio, noise=0.1, a_seconds=1.0, b_seconds=1.0, rounds=8, cpu=used
        )

    def measured(a: Any, b: Any, batch: Any, *, rounds: int | None = None, **_: Any) -> Speed:
        if rounds == ROUNDS:  # head to head
            return in_pairs(b)
        ratio = gains.get((Path(b.variant["artifact"]).stem, b.variant["engine"]), 1.0)
        return told(ratio, ratio, 0.1)

    def in_pairs(b: Any) -> Speed:
        ratio = 1.07 if "twin" in b.variant["artifact"] else 1 / 1.07
        return told(ratio, 1 / ratio, 0.01)

    weights = {key: value * np.float32(1.000001) for key, value in nets.make_weights().items()}
    with measuring.using(measure_speed=measured, cpu_flags=frozenset):
        yield nets.save_net(tmp_path / "twin.onnx", weights)


def searched(
    case: Any, folder: Path, also: Path, ledger: Ledger | None = None, say: Any = lambda text: None, **goal: Any
) -> OptimizationDocument:
    """Search among the model on OpenVINO and a twin."""
    return optimize(
        case.model, store=ArtifactStore(folder / "artifacts"), golden=case.golden, say=say,
        goal=Goal(max_drop=0.02, batch=8, also=(also,), **goal), memory=ledger.attempts if ledger else None,
    )  # fmt: skip


def test_a_search_ends_with_the_run_off(case: Any, also: Path, tmp_path: Path) -> None:
    """What changes more is recommended because it is surely faster, which text, page and ledger say."""
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        document = searched(case, tmp_path, also, ledger)
        (event,) = ledger.events.events("run-off")
    chosen = next(one for one in document.attempts if one.candidate == document.recommended)
    assert (chosen.technique, chosen.settings["engine"]) == ("also-twin", "onnx")
    says = "also-twin on onnx is 1.07 times as fast as openvino on openvino (1.06 to 1.08), in pairs"
    assert [one.says for one in document.run_offs] == [says]
    assert (event.says, event.attempt) == (says, chosen.id)
    assert says in " ".join(as_text(document, None).split())
    assert says in render_variants(document)


def test_for_cost_the_search_goes_by_cpu_time(case: Any, also: Path, tmp_path: Path) -> None:
    """The same two, and the other one."""
    document = searched(case, tmp_path, also, objective="cost")
    chosen = next(one for one in document.attempts if one.candidate == document.recommended)
    assert (chosen.technique, [one.chosen for one in document.run_offs]) == ("openvino", [chosen.candidate])


def test_nothing_is_held_where_size_is_asked_for_or_the_time_is_over(case: Any, also: Path, tmp_path: Path) -> None:
    """Then speed does not decide, or nothing new is begun: of equals the one that changes less is used."""
    assert searched(case, tmp_path / "size", also, objective="size").run_offs == ()
    said: list[str] = []

    def now() -> float:
        """Return a time beyond the budget once the twin is accepted, the last that is tested."""
        return 2000.0 if any(line.startswith("also-twin on onnx: accept") for line in said) else 0.0

    late = {"budget_seconds": 1000.0, "began": 0.0, "now": now}
    document = searched(case, tmp_path / "late", also, say=said.append, **late)
    assert now() > 1000.0
    assert document.run_offs == ()
    chosen = next(one for one in document.attempts if one.candidate == document.recommended)
    assert chosen.technique == "openvino"
