"""Variants of a small classifier, each with one thing wrong, and the gate that says so."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace.base.errors import EngineError, SettingsError
from headrace.cli import main
from headrace.ledger.ledger import Ledger
from headrace.runs.formats.variants import ValidationDocument
from headrace.validate import measuring
from headrace.validate.golden import Golden, read_golden
from headrace.validate.model_speed import Timing, measure_speed
from headrace.validate.parity import compare_outputs, top_1
from headrace.validate.policy import Policy
from headrace.validate.variant_spec import parse_variant, variant_text
from headrace.validate.variants import validate_variants

FEATURES, CLASSES = 16, 5
WEIGHTS = np.random.default_rng(1).standard_normal((FEATURES, CLASSES)).astype(np.float32)


def save(path: Path, weights: np.ndarray, name: str = "x", dtype: int = TensorProto.FLOAT, batch: Any = "batch") -> str:
    """Write x @ weights as a model file and return its path."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", [name, "w"], ["scores"])],
        "tiny",
        [helper.make_tensor_value_info(name, dtype, [batch, weights.shape[0]])],
        [helper.make_tensor_value_info("scores", dtype, [batch, weights.shape[1]])],
        [numpy_helper.from_array(weights, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return str(path)


@pytest.fixture(autouse=True)
def short_blocks() -> Iterator[None]:
    """What is timed here is not looked at."""
    with measuring.using(timing=Timing(0.0005)):
        yield


@pytest.fixture
def incumbent(tmp_path: Path) -> str:
    """The model in use."""
    return save(tmp_path / "a.onnx", WEIGHTS)


@pytest.fixture
def golden(tmp_path: Path) -> Callable[..., Golden]:
    """Writes a golden set that the model in use gets right in nine of ten cases, sorted by class, and reads it."""

    def make(num_items: int = 3000, *, labelled: bool = True) -> Golden:
        random = np.random.default_rng(2)
        inputs = random.standard_normal((num_items, FEATURES)).astype(np.float32)
        labels = (inputs @ WEIGHTS).argmax(axis=1)
        wrong = random.random(num_items) < 0.1
        labels[wrong] = (labels[wrong] + 1) % CLASSES
        order = np.argsort(labels, kind="stable")
        arrays = {"inputs": inputs[order], **({"labels": labels[order]} if labelled else {})}
        np.savez(tmp_path / "golden.npz", **arrays)
        return read_golden(tmp_path / "golden.npz")

    return make


def judge(a: str, b: str, golden: Golden | None, **policy: Any) -> ValidationDocument:
    """Return the document of two variants."""
    return validate_variants(parse_variant(a), parse_variant(b), golden, Policy(**policy))


def outcomes(document: ValidationDocument) -> dict[str, str]:
    """Return what each gate said."""
    return {gate.name: gate.outcome for gate in document.gates}


@pytest.mark.parametrize("engine", ["", "@openvino", "@openvino,precision=f32,threads=2"])
def test_the_same_model_on_another_engine_is_accepted(
    incumbent: str, golden: Callable[..., Golden], engine: str
) -> None:
    """It answers alike and is as often right; what really ran is in the document."""
    document = judge(incumbent, incumbent + engine, golden(), batch=8)
    assert document.verdict == "accept"
    assert outcomes(document) == dict.fromkeys(
        ("static", "parity", "batches", "extremes", "speed", "accuracy"), "passed"
    )
    assert document.b.variant["engine"] == ("openvino" if engine else "onnx")
    assert document.b.variant["sha256"] == document.a.variant["sha256"]
    assert document.num_items == 3000
    accuracy = document.gates[-1]
    assert (accuracy.values["drop"], accuracy.values["discordance"]) == (0.0, 0.0)
    assert accuracy.values["a"] == pytest.approx(0.9, abs=0.02)


def test_a_model_that_is_less_often_right_is_rejected(
    incumbent: str, golden: Callable[..., Golden], tmp_path: Path
) -> None:
    """By the accuracy gate, with the drop and its interval; that the numbers differ is a note, for labels are the judge."""
    noisy = WEIGHTS + 0.5 * np.random.default_rng(3).standard_normal(WEIGHTS.shape).astype(np.float32)
    document = judge(incumbent, save(tmp_path / "b.onnx", noisy), golden())
    assert document.verdict == "reject"
    assert outcomes(document)["accuracy"] == "rejected"
    values = document.gates[-1].values
    assert values["low"] is not None
    assert values["low"] > 0.005
    assert document.warnings


def test_a_swapped_input_is_found_by_the_accuracy_and_not_by_shapes(
    incumbent: str, golden: Callable[..., Golden], tmp_path: Path
) -> None:
    """BGR for RGB: everything fits, nothing is right."""
    document = judge(incumbent, save(tmp_path / "b.onnx", WEIGHTS[::-1].copy()), golden())
    assert outcomes(document) == {
        **dict.fromkeys(("static", "parity", "batches", "extremes", "speed"), "passed"),
        "accuracy": "rejected",
    }


@pytest.mark.parametrize("labelled", [True, False])
def test_one_broken_answer_is_enough(
    incumbent: str, golden: Callable[..., Golden], tmp_path: Path, labelled: bool
) -> None:
    """NaN in one class: parity says so and nothing dearer is asked."""
    broken = WEIGHTS.copy()
    broken[0, 0] = np.nan
    document = judge(incumbent, save(tmp_path / "b.onnx", broken), golden(labelled=labelled))
    assert document.verdict == "reject"
    assert outcomes(document) == {"static": "passed", "parity": "rejected"}
    assert "NaN" in document.says


def test_without_labels_they_must_agree(incumbent: str, golden: Callable[..., Golden], tmp_path: Path) -> None:
    """Agreement bounds the damage: the same file passes, one that answers differently in one of twenty cases does not."""
    assert judge(incumbent, incumbent, golden(labelled=False)).verdict == "accept"
    noisy = WEIGHTS + 0.02 * np.random.default_rng(3).standard_normal(WEIGHTS.shape).astype(np.float32)
    document = judge(
        incumbent, save(tmp_path / "b.onnx", noisy), golden(20_000, labelled=False), max_drop=0.001, batch=512
    )
    assert document.verdict == "reject"


def test_few_items_are_inconclusive_and_it_says_how_many_more(incumbent: str, golden: Callable[..., Golden]) -> None:
    """200 items cannot show half a point."""
    document = judge(incumbent, incumbent, golden(200))
    assert document.verdict == "inconclusive"
    assert "more would decide it" in document.says


def test_without_a_golden_set_nothing_is_accepted(incumbent: str, tmp_path: Path) -> None:
    """Noise shows what is broken; it does not show what is right."""
    document = judge(incumbent, incumbent, None)
    assert document.verdict == "inconclusive"
    assert document.golden == "noise"
    assert document.next_command is not None
    assert "--golden" in document.next_command
    other = save(tmp_path / "b.onnx", np.random.default_rng(9).standard_normal(WEIGHTS.shape).astype(np.float32))
    assert judge(incumbent, other, None).verdict == "reject"


def test_another_interface_is_rejected_before_anything_is_run(incumbent: str, tmp_path: Path) -> None:
    """Other features, another type, a fixed batch, a file that is no model."""
    wider = save(tmp_path / "wider.onnx", np.ones((FEATURES + 1, CLASSES), np.float32))
    double = save(tmp_path / "double.onnx", WEIGHTS.astype(np.float64), dtype=TensorProto.DOUBLE)
    fixed = save(tmp_path / "fixed.onnx", WEIGHTS, batch=1)
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    for path, says in (
        (wider, "not the same model"),
        (double, "not the same model"),
        (str(broken), "cannot be opened"),
    ):
        document = judge(incumbent, path, None)
        assert outcomes(document) == {"static": "rejected"}
        assert says in document.says
    assert "refuses a batch of 4" in judge(incumbent, fixed, None, batch=4).says
    with pytest.raises(EngineError, match="cannot be opened"):
        judge(str(broken), incumbent, None)
    with pytest.raises(SettingsError, match="a file that exists"):
        judge(incumbent, str(tmp_path / "typo.onnx"), None)


def test_labels_that_fit_nothing_prove_nothing(incumbent: str, golden: Callable[..., Golden]) -> None:
    """Numbers that are no places in the output: equally wrong is not as good."""
    good = golden()
    document = judge(incumbent, incumbent, dataclasses.replace(good, labels=np.full(len(good), 99)))
    assert document.verdict == "inconclusive"
    assert "the labels go from 99 to 99, and the model has 5 classes" in document.says
    shuffled = np.random.default_rng(0).permutation(good.labels)
    document = judge(incumbent, incumbent, dataclasses.replace(good, labels=shuffled))
    assert document.verdict == "inconclusive"
    assert "the commonest class" in document.says


def test_a_set_with_few_items_of_a_rare_class_can_accept(incumbent: str, tmp_path: Path) -> None:
    """Five positives among 216: more right than always naming the commonest class nobody can be, and that is enough."""
    inputs = np.random.default_rng(2).standard_normal((4000, FEATURES)).astype(np.float32)
    labels = (inputs @ WEIGHTS).argmax(axis=1)
    chosen = np.concatenate([np.flatnonzero(labels == 0)[:211], np.flatnonzero(labels == 1)[:5]])
    np.savez(tmp_path / "rare.npz", inputs=inputs[chosen], labels=labels[chosen])
    document = judge(incumbent, incumbent, read_golden(tmp_path / "rare.npz"), max_drop=0.05, max_slice_drop=0.5)
    assert (document.num_items, document.verdict) == (216, "accept")


@pytest.mark.parametrize("asked", range(1, 60, 7))
def test_an_interruption_is_never_a_rejection(incumbent: str, golden: Callable[..., Golden], asked: int) -> None:
    """Wherever it comes, also between the answers of the two: nothing is known then."""
    count = itertools.count()
    with measuring.using(noticing=lambda: contextlib.nullcontext(lambda: next(count) >= asked)):
        document = judge(incumbent, incumbent, golden(200), batch=8)
    assert (document.verdict, document.interrupted) == ("inconclusive", True)


def test_a_speed_that_is_asked_for_decides(incumbent: str, golden: Callable[..., Golden]) -> None:
    """A thousand times as fast it is not."""
    document = judge(incumbent, incumbent, golden(), min_speedup=1000.0)
    assert document.verdict == "reject"
    assert outcomes(document)["speed"] == "rejected"


class Ticks:
    """Time that passes only where it is told to, a little unevenly."""

    def __init__(self) -> None:
        self.now = 0.0
        self._uneven = itertools.cycle([0.98, 1.0, 1.03, 0.99, 1.01])

    def perf_counter(self) -> float:
        """Return seconds."""
        return self.now

    process_time = perf_counter  # all of it is computing

    def take(self, seconds: float) -> None:
        """Let about so many pass."""
        self.now += seconds * next(self._uneven)


def test_the_ratio_is_that_of_the_calls() -> None:
    """What takes ten times as long has a tenth of the speed, within the interval; stopped early there is no ratio."""
    clock = Ticks()
    timing = Timing(clock=clock)
    one, ten = (lambda batch, seconds=seconds: clock.take(seconds) for seconds in (0.0001, 0.001))
    batch = np.ones((4, 1000))
    found = measure_speed(ten, one, batch, timing=timing)
    assert found is not None
    assert found.low <= found.ratio <= found.high
    assert found.ratio == pytest.approx(10, rel=0.05)
    assert found.cpu is not None
    assert found.cpu.ratio == pytest.approx(10, rel=0.05)
    assert measure_speed(one, one, batch, stop=lambda: True, timing=timing) is None


def test_cpu_time_is_not_time() -> None:
    """Who sleeps where another computes needs less of the processor, however long both take."""

    def compute(batch: np.ndarray) -> None:
        end = time.process_time() + 0.002
        while time.process_time() < end:
            pass

    found = measure_speed(compute, lambda batch: time.sleep(0.002), np.ones(1), rounds=6)
    assert found is not None
    assert found.cpu is not None
    assert found.cpu.low <= found.cpu.ratio <= found.cpu.high
    assert found.cpu.ratio > 2
    assert found.cpu.a_seconds > found.cpu.b_seconds


def test_parity_counts_what_is_broken_in_both() -> None:
    """An item that A breaks too is not held against B; distances are of whole items only."""
    a = np.array([[1.0, 2.0], [np.nan, 1.0], [3.0, 4.0]])
    b = np.array([[1.0, 2.0], [1.0, 1.0], [np.inf, 4.0]])
    found = compare_outputs(a, b)
    assert (found.broken_a, found.broken_b, found.relative_l2, found.cosine) == (1, 1, 0.0, 1.0)
    assert compare_outputs(a, b[:, :1]).shapes
    assert compare_outputs({"p": a, "q": a}, a).shapes
    assert top_1({"scores": a[:1], "label": np.array([1])}).tolist() == [1]  # type: ignore[union-attr]
    assert top_1(np.zeros((3, 4, 5))) is None


def test_bad_golden_sets_are_refused(tmp_path: Path) -> None:
    """No file, no inputs, labels that do not fit, pickled objects: an error with what was found and what is expected."""
    np.savez(tmp_path / "other.npz", images=np.zeros(3))
    np.savez(tmp_path / "short.npz", inputs=np.zeros((3, 4)), labels=np.zeros(2, int))
    np.savez(tmp_path / "text.npz", inputs=np.zeros((3, 4)), labels=np.array(["a", "b", "c"]))
    np.savez(tmp_path / "empty.npz", inputs=np.zeros((0, 4)))
    np.savez(tmp_path / "objects.npz", inputs=np.array([{}], dtype=object))
    (tmp_path / "no.npz").write_bytes(b"PK not really")
    for name, says in (
        ("none.npz", "does not exist"), ("other.npz", "it has images"), ("short.npz", r"expected \(3,\)"),
        ("text.npz", "whole numbers"), ("empty.npz", "at least one"), ("objects.npz", "no golden set"),
        ("no.npz", "no golden set"),
    ):  # fmt: skip
        with pytest.raises(SettingsError, match=says):
            read_golden(tmp_path / name)
    np.save(tmp_path / "bare.npy", np.zeros((3, 4)))
    assert len(read_golden(tmp_path / "bare.npy")) == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("m.onnx@openvin", "engine"),
        ("@onnx", "model"),
        ("m.onnx@openvino,precision", "KEY=VALUE"),
        ("m.onnx@onnx,threads=0", "threads"),
    ],
)
def test_bad_variants_are_refused(text: str, says: str) -> None:
    """With what is allowed."""
    with pytest.raises(SettingsError, match=says):
        parse_variant(text)


def test_a_variant_is_read_as_it_is_written() -> None:
    """File, engine, threads, and the engine's own settings with their types."""
    spec = parse_variant("m.onnx@onnx,threads=3,spin=true,inter_op_threads=2", threads=1)
    assert (spec.model.artifact, spec.model.engine, spec.model.threads) == ("m.onnx", "onnx", 3)
    assert spec.model.options == {"spin": True, "inter_op_threads": 2}
    assert parse_variant("m.onnx", threads=2).model.threads == 2


def test_a_variant_is_written_as_it_is_read() -> None:
    """Numbers, words, and true in small letters; so that a candidate of the ledger can be typed."""
    text = "m.pt@torch,threads=2,network=small,channels_last=true"
    assert variant_text(parse_variant(text).model) == text


def test_the_command_tells_by_its_status(
    incumbent: str,
    golden: Callable[..., Golden],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """0 it may, 1 it may not, 4 not known, with names as they are; with --json one document on stdout."""
    golden()
    assert (
        main(["validate", incumbent, incumbent, "--golden", str(tmp_path / "golden.npz"), "--max-drop", "0.5pt"]) == 0
    )
    assert "ACCEPT" in capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "400")
    assert main(["validate", incumbent, save(tmp_path / "b[int8].onnx", WEIGHTS)]) == 4
    assert "b[int8].onnx" in capsys.readouterr().out
    other = save(tmp_path / "b.onnx", -WEIGHTS)
    assert main(["validate", incumbent, other, "--golden", str(tmp_path / "golden.npz"), "--json"]) == 1
    out, err = capsys.readouterr()
    assert '"schema": "headrace.validate/1"' in out
    assert "accuracy: rejected" in err


def test_what_was_lost_is_told_as_text_as_json_and_on_a_page(
    incumbent: str, golden: Callable[..., Golden], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A variant that forgot one class: that part first, with both shares of right answers, and its items."""
    golden()
    weights = WEIGHTS.copy()
    weights[:, 2] = 0.0
    other, page, file = save(tmp_path / "b.onnx", weights), tmp_path / "page.html", tmp_path / "told.json"
    command = ["validate", incumbent, other, "--golden", str(tmp_path / "golden.npz")]
    assert main([*command, "--report", str(page), "-o", str(file)]) == 1
    told = capsys.readouterr().out
    assert "5 parts, those that lost most" in told
    document = msgspec.json.decode(file.read_bytes(), type=ValidationDocument)
    first = document.slices[0]
    assert (first.name, first.outcome, document.num_slices) == ("class 2", "rejected", CLASSES)
    assert first.a is not None
    assert first.b is not None
    assert first.drop == pytest.approx(first.a - first.b)
    assert sum(one.num_items for one in document.slices) == 3000
    assert told.index("class 2") < told.index("class 0")
    assert f"{document.worst[0].item} " in told
    shown = page.read_text()
    for expected in ("B may not stand in for A", "Parts of the golden set", "Items that lost most", "class 2"):
        assert expected in shown
    assert main([*command, "--report", str(page)]) == 2  # what is there stays without --force


def test_a_missing_engine_says_nothing_about_the_variant(
    incumbent: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 3 with the line that installs it, for B as for A: it is not rejected."""
    monkeypatch.setitem(sys.modules, "openvino", None)
    monkeypatch.delitem(sys.modules, "headrace.engines.openvino_engine", raising=False)
    for pair in ([incumbent, f"{incumbent}@openvino"], [f"{incumbent}@openvino", incumbent]):
        assert main(["validate", *pair]) == 3
        out, err = capsys.readouterr()
        assert "pip install 'headrace[openvino]'" in err
        assert "REJECT" not in out


def test_what_a_variant_was_made_from_cannot_judge_it(
    incumbent: str, golden: Callable[..., Golden], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Calibration data that hold golden items, or come from the same camera, are misuse; others are not."""
    given = golden(600)
    sources = np.array(["cam1", "cam2"]).repeat(300)
    np.savez(tmp_path / "golden.npz", inputs=given.inputs, labels=given.labels, sources=sources)
    np.savez(tmp_path / "same.npz", inputs=given.inputs[:5])
    np.savez(tmp_path / "camera.npz", inputs=given.inputs[:5] + 1, sources=np.array(["cam1"] * 5))
    np.savez(tmp_path / "apart.npz", inputs=given.inputs[:5] + 1, sources=np.array(["cam3"] * 5))
    command = [
        "validate",
        incumbent,
        incumbent,
        "--golden",
        str(tmp_path / "golden.npz"),
        "--max-drop",
        "3pt",
        "--data",
    ]
    for name, said in (("same", "5 items of --data"), ("camera", "share 1 source (cam1)")):
        assert main([*command, str(tmp_path / f"{name}.npz")]) == 2
        assert said in capsys.readouterr().err
    assert main([*command, str(tmp_path / "apart.npz")]) == 0


def test_a_golden_set_that_judged_is_counted(
    incumbent: str,
    golden: Callable[..., Golden],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the ledger that is named, and in the default one once it exists; noise is no golden set."""
    given, file = golden(), tmp_path / "runs" / "ledger.sqlite"
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_LEDGER", raising=False)
    command = ["validate", incumbent, incumbent, "--golden", str(tmp_path / "golden.npz")]
    main(command)
    assert not file.exists()
    main([*command, "--ledger", str(file)])
    assert "has judged 1 time, by" in capsys.readouterr().err
    main(command)
    main(["validate", incumbent, incumbent])
    with Ledger(file) as ledger:
        assert ledger.attempts.golden_uses(given.sha256) == 2
        assert [event.kind for event in ledger.events.events()] == ["validation"] * 2


def test_a_ledger_that_cannot_count_is_said(
    incumbent: str, golden: Callable[..., Golden], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Misuse where it was named; else the judgement is worth having all the same."""
    golden()
    (tmp_path / "text").write_text("no ledger")
    command = ["validate", incumbent, incumbent, "--golden", str(tmp_path / "golden.npz"), "--max-drop", "0.5pt"]
    assert main([*command, "--ledger", str(tmp_path / "text")]) == 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_LEDGER", str(tmp_path / "text"))
        assert main(command) == 0
    assert "not counted: " in capsys.readouterr().err
