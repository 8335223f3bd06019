import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from headrace.base.errors import EngineError, SettingsError
from headrace.base.protocols import TensorSpec
from headrace.profiler.layers import as_text, measure_layers
from headrace.profiler.layers.operations import Work
from headrace.profiler.layers.protocol import Feed, LayerFacts, LayerProfiler, Recording
from headrace.profiler.layers.table import Measurement, assemble
from headrace.profiler.layers.timing import NUM_WARM_UP_CALLS, Timing, time_calls
from headrace.runs.formats.layers import Ceilings, LayersDocument

CEILINGS = Ceilings(flops_per_second=100e9, bytes_per_second=10e9, threads=1, method="given")


def facts(name: str, work: Work, precision: str = "float32") -> LayerFacts:
    """Return a layer's facts."""
    return LayerFacts(key=name, name=name, operator="Conv", provider="CPU", work=work, precision=precision)


LAYERS = (facts("large", Work(300e6, 1e6)), facts("small", Work(0.0, 10e6)), facts("strange", Work(None, 1e6)))


class ScriptedModel:
    """A model whose calls only count, with layers of known times."""

    inputs: Sequence[TensorSpec] = [TensorSpec("x", "float32", ("n", 2))]

    def __init__(self, max_profiled_calls: int = 1000) -> None:
        self.max_profiled_calls = max_profiled_calls
        self.calls = ""
        self.closed = False
        self.shape: tuple[int, ...] | None = None

    def describe(self, feed: Feed) -> None:
        """Keep the shape."""
        self.shape = feed["x"].shape

    def run(self, _feed: Feed) -> None:
        """Count a plain call."""
        self.calls += "A"

    def run_profiled(self, _feed: Feed) -> None:
        """Count a profiled call."""
        self.calls += "B"

    def read_recording(self, kept: Sequence[int]) -> Recording:
        """Return known times."""
        return Recording(LAYERS, np.array([3e-9, 1e-9, 1e-9]), len(kept))

    def close(self) -> None:
        """Remember it."""
        self.closed = True


class ScriptedProfiler:
    """Opens the scripted model."""

    engine = "scripted"

    def __init__(self, model: ScriptedModel) -> None:
        self.model = model

    def open(self, _artifact: Path, *, threads: int, options: Mapping[str, Any]) -> ScriptedModel:
        """Return it."""
        return self.model

    def matrix_product_seconds(self, side: int, *, threads: int) -> float:
        """Return a second."""
        return 1.0


def test_an_adapter_of_ones_own_is_measured() -> None:
    """Whatever fits the protocol gives a table whose layers add up to the latency, and is closed."""
    model = ScriptedModel()
    profiler: LayerProfiler = ScriptedProfiler(model)
    document = measure_layers(
        Path("model.bin"), engine=profiler, threads=1, batch_size=3, inputs=None, calls=20, with_ceilings=False
    )
    assert model.shape == (3, 2)
    assert model.closed
    assert document.engine == "scripted"
    assert sum(layer.seconds for layer in document.layers) == pytest.approx(document.latency_seconds)
    assert sum(layer.share for layer in document.layers) == pytest.approx(1.0)
    assert document.num_calls + document.num_dropped == model.calls.count("B") > 20
    assert {layer.bound for layer in document.layers} == {"unknown"}
    assert any("made up" in warning for warning in document.warnings)
    assert any("one way only" in warning for warning in document.warnings)
    assert msgspec.json.decode(msgspec.json.encode(document), type=LayersDocument) == document


def test_a_model_that_fails_is_closed() -> None:
    """A model that refuses its inputs leaves no session open."""

    class Refusing(ScriptedModel):
        def describe(self, feed: Feed) -> None:
            raise EngineError("no")

    model = Refusing()
    with pytest.raises(EngineError):
        measure_layers(Path("m"), engine=ScriptedProfiler(model), threads=1, batch_size=1, inputs=None)
    assert model.closed


@pytest.mark.parametrize("wrong", [{"threads": 0}, {"batch_size": 0}, {"calls": 0}, {"seconds": 0.0}])
def test_numbers_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    """The error names the number."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        measure_layers(Path("m"), **{"threads": 1, "batch_size": 1, "inputs": None, **wrong})


def test_an_engine_without_layers_is_refused() -> None:
    """The emulated device has none; the error names the engines that have."""
    with pytest.raises(SettingsError, match=r"'emulated'.*onnx"):
        measure_layers(Path("m"), engine="emulated", threads=1, batch_size=1, inputs=None)


def test_calls_alternate_in_blocks() -> None:
    """A warm-up, then A B B A, with one call of each block that does not count."""
    model = ScriptedModel()
    timing = time_calls(model, {}, calls=8, seconds=60)
    blocks = model.calls[model.calls.index("B") :]
    assert blocks == "B" * NUM_WARM_UP_CALLS + "A" * 5 + "B" * 10 + "A" * 5
    assert len(timing.plain) == 8
    assert len(timing.profiled) == NUM_WARM_UP_CALLS + 10
    assert timing.first_of_block == {0, 1, 2, 3, 8}


@pytest.mark.parametrize("room", [3, 5, 6, 9, 50])
def test_no_more_calls_than_the_profile_holds(room: int) -> None:
    """Calls beyond what the engine's profiler keeps are not made, whatever is asked for; plain ones are there to compare."""
    model = ScriptedModel(max_profiled_calls=room)
    timing = time_calls(model, {}, calls=10_000, seconds=60)
    assert model.calls.count("B") == len(timing.profiled) <= room
    assert timing.plain
    assert timing.kept()


def test_first_and_disturbed_calls_are_not_averaged() -> None:
    """A call half again as long as the median was interrupted by something else."""
    timing = Timing(plain=[1.0], profiled=[9.0, 1.0, 1.1, 1.0, 5.0, 1.2], first_of_block={0, 3})
    assert timing.kept() == [1, 2, 5]
    assert timing.profiled_latency_seconds == pytest.approx(1.15)


def measured(**changes: Any) -> Measurement:
    """Return a measurement of 10 ms, of which the layers take 6, 3 and 1."""
    known: dict[str, Any] = {
        "engine": "scripted",
        "artifact": "model.bin",
        "batch_size": 1,
        "threads": 1,
        "timing": Timing(plain=[10e-3] * 20, profiled=[10.5e-3] * 20),
        "recording": Recording(LAYERS, np.array([6e-3, 3e-3, 1e-3]), 20),
        "ceilings": CEILINGS,
        "cross_check": 301e6,
    }
    return Measurement(**{**known, **changes})


def test_a_table_by_hand() -> None:
    """300 million operations in 6 ms are half of a ceiling of 100 billion a second; 10 MB in 3 ms a third of 10 GB/s."""
    document = assemble(measured())
    large, small, strange = document.layers
    assert (large.bound, large.flops_per_second, large.intensity) == ("compute", pytest.approx(50e9), 300)
    assert large.of_ceiling == pytest.approx(0.5)
    assert (small.bound, small.of_ceiling) == ("memory", pytest.approx(1 / 3))
    assert (strange.bound, strange.flops, strange.intensity) == ("unknown", None, None)
    assert document.total_flops == 300e6
    assert document.inflation == pytest.approx(1.05)
    assert document.warnings == ("operations are not known for Conv (10.0% of the time); the total leaves them out",)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cross_check": 400e6}, "counts of operations differ: 3e[+]08 .* 4e[+]08"),
        ({"timing": Timing(plain=[10e-3], profiled=[13e-3])}, "1.30 times slower"),
        ({"timing": Timing(plain=[10e-3], profiled=[8e-3])}, "0.80 times.*something else used the machine"),
        ({"recording": Recording(LAYERS, np.array([6e-3, 3e-3, 1e-3]), 20, num_missing=5)}, "5 of the profiled calls"),
        ({"recording": Recording(LAYERS, np.array([6e-3, 3e-3, 1e-3]), 3)}, "only 3 calls"),
        ({"recording": Recording(LAYERS, np.array([4e-3, 2e-3, 1e-3]), 20)}, "30% of a call passes outside the layers"),
        ({"recording": Recording(LAYERS, np.array([12e-3, 6e-3, 2e-3]), 20)}, "1.90 times the call's: layers ran side by side"),
        ({"recording": Recording((facts("fast", Work(1.5e9, 1.0)),), np.array([10e-3]), 20)}, "fast 1.50 times"),
        ({"recording": Recording((facts("q", Work(1e9, 1.0), "uint8"),), np.array([10e-3]), 20)}, "layers in uint8"),
        ({"warnings": ("found before",)}, "found before"),
    ],
)  # fmt: skip
def test_each_doubt_is_a_warning(changes: dict[str, Any], says: str) -> None:
    """What speaks against the figures is written beside them."""
    warnings = " | ".join(assemble(measured(**changes)).warnings)
    assert re.search(says, warnings), warnings


def test_nothing_recorded_is_an_error() -> None:
    """A table of zeros would look like an answer."""
    for recording in (Recording((), np.zeros(0), 0), Recording(LAYERS, np.zeros(3), 20)):
        with pytest.raises(EngineError, match="recorded no layer's time"):
            assemble(measured(recording=recording))


def test_text_shows_the_longest_layers_and_the_warnings() -> None:
    """The longest first, the others summed up, every warning, the ceilings."""
    text = as_text(assemble(measured()), limit=2)
    lines = text.splitlines()
    assert lines[0] == "model.bin, scripted, batch 1, 1 thread"
    assert lines[6].split() == ["large", "Conv", "-", "6.00", "ms", "60.0%", "0.3", "50", "300.0", "compute", "50%"]
    assert "and 1 more, 10.0% of the time" in lines
    assert "time by what limits it: compute 60%, memory 30%, unknown 10%" in lines
    assert "ceilings here: 100 GFLOP/s; 10 GB/s from memory, up to 10 GB/s from caches" in lines
    assert "warning: operations are not known" in text


def test_text_without_ceilings_and_counts() -> None:
    """What was not measured is a dash."""
    recording = Recording((facts("n" * 60, Work(None, None)),), np.array([10e-3]), 20)
    text = as_text(assemble(measured(recording=recording, ceilings=None, cross_check=None)))
    assert "- GFLOP a call; - by the graph" in text
    assert "ceilings here" not in text
    assert "..." + "n" * 33 in text


def test_a_profiler_that_holds_too_few_calls_is_named() -> None:
    """A model whose single call nearly fills the engine's profiler cannot be measured, and is told so before it is tried."""
    with pytest.raises(EngineError, match="cannot hold 3 calls"):
        time_calls(ScriptedModel(max_profiled_calls=2), {}, calls=None, seconds=60)
