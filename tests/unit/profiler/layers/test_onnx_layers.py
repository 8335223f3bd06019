from pathlib import Path
from types import ModuleType

import numpy as np
import onnxruntime
import pytest

from headrace.base.errors import EngineError, SettingsError
from headrace.profiler.layers import measure_layers, onnx_profile
from headrace.profiler.layers.onnx_profile import OnnxLayers, _calls, _Details, _Event, _own_times
from headrace.runs.formats.layers import LayersDocument


def measure(path: Path, batch_size: int = 2, **changes: object) -> LayersDocument:
    """Measure with few calls and without ceilings."""
    settings: dict[str, object] = {"threads": 1, "inputs": None, "calls": 4, "with_ceilings": False}
    return measure_layers(path, batch_size=batch_size, **{**settings, **changes})  # type: ignore[arg-type]


def event(name: str, ts: float, dur: float, *, op: str = "Conv", cat: str = "Node", tid: int = 1) -> _Event:
    """Return an event of a profile."""
    return _Event(name=name, cat=cat, tid=tid, ts=ts, dur=dur, args=_Details(op_name=op))


def test_nodes_belong_to_the_call_in_which_they_started() -> None:
    """Node events come before their call's in the file; what is outside of calls or is no node belongs to none."""
    events = [
        event("early_kernel_time", 5, 1),
        event("a_kernel_time", 10, 3),
        event("b_kernel_time", 14, 2),
        event("b_fence_before", 13, 1),
        event("model_run", 10, 10, cat="Session"),
        event("a_kernel_time", 33, 3),
        event("model_run", 30, 10, cat="Session"),
    ]
    assert [[e.name for e in call] for call in _calls(events)] == [
        ["a_kernel_time", "b_kernel_time"],
        ["a_kernel_time"],
    ]


def test_the_time_of_a_loop_is_without_that_of_its_body() -> None:
    """A loop of 100 us whose body takes 30 and 20, one of which is itself an If around 15: together still 100."""
    call = [
        event("loop", 0, 100, op="Loop"),
        event("if", 0, 30, op="If"),
        event("inner", 5, 15),
        event("body", 40, 20),
        event("other thread", 50, 10, tid=2),
        event("after", 100, 7),
    ]
    assert _own_times(call) == [50, 15, 15, 20, 10, 7]


def test_the_embedded_product_is_what_onnx_would_write() -> None:
    """The bytes are a valid model of one MatMul, and it multiplies."""
    onnx = pytest.importorskip("onnx")
    model = onnx.load_from_string(onnx_profile._MATMUL)
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == ["MatMul"]
    a, b = np.random.default_rng(0).standard_normal((2, 8, 8), np.float32)
    session = onnxruntime.InferenceSession(onnx_profile._MATMUL, providers=["CPUExecutionProvider"])
    assert np.allclose(session.run(None, {"a": a, "b": b})[0], a @ b, atol=1e-5)
    assert OnnxLayers().matrix_product_seconds(64, threads=1) > 0


def test_a_small_network_gives_the_operations_by_hand(tmp_path: Path, models: ModuleType) -> None:
    """ONNX Runtime fuses the ReLU into the convolution; both counts are those by hand, at a dynamic model's batch of 5."""
    document = measure(models.small_network(tmp_path / "m.onnx"), 5)
    assert document.total_flops == models.small_network_flops(5, relu=False)
    assert document.flops_cross_check == models.small_network_flops(5, relu=True)
    assert [layer.operator for layer in document.layers if layer.flops] == ["Conv", "MaxPool", "Gemm"]
    classifier = document.layers[-1]
    assert classifier.num_bytes == 4 * (5 * 4096 + 4096 * 10 + 5 * 10)  # packed weights are not forgotten
    assert (classifier.output_shape, classifier.precision, classifier.provider) == ("5x10", "float32", "CPU")
    assert sum(layer.seconds for layer in document.layers) == pytest.approx(document.latency_seconds)
    assert not any("differ" in warning for warning in document.warnings)


@pytest.mark.full
@pytest.mark.parametrize(("build", "macs"), [("resnet50", 4.09e9), ("mobilenet_v2", 0.300e9)])
def test_known_networks_as_the_runtime_ran_them(tmp_path: Path, models: ModuleType, build: str, macs: float) -> None:
    """From the runtime's own shapes, within 5 % of the published counts; padding of channels costs MobileNet up to that."""
    model = OnnxLayers().open(getattr(models, build)(tmp_path / "m.onnx"), threads=2, options={})
    feed = {"image": np.zeros((1, 3, 224, 224), np.float32)}
    model.describe(feed)
    for _ in range(3):
        model.run_profiled(feed)
    recording = model.read_recording([1, 2])
    model.close()
    assert recording.num_calls == 2
    assert recording.num_missing == 0
    assert sum(layer.work.flops or 0.0 for layer in recording.layers) == pytest.approx(2 * macs, rel=0.05)
    assert None not in [layer.work.flops for layer in recording.layers]


def test_nothing_is_left_behind(tmp_path: Path, models: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither profiles nor folders stay, also after a failure."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    path = models.small_network(tmp_path / "m.onnx")
    measure(path)
    model = OnnxLayers().open(path, threads=1, options={})
    model.describe({"image": np.zeros((1, 3, 32, 32), np.float32)})
    model.close()
    model.close()
    with pytest.raises(EngineError):
        measure(path, inputs={"image": np.zeros((1, 3, 31, 31), np.float32)})
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["m.onnx"]
    assert list((tmp_path / "temporary").iterdir()) == []


def test_several_inputs(tmp_path: Path, models: ModuleType) -> None:
    """Each is given by its name; an operator that is not in the table is a warning and no zero."""
    nodes = [
        models.node("MatMul", ["left", "right"], ["product"]),
        models.node("Det", ["product"], ["determinant"]),
    ]
    path = models.save(tmp_path / "m.onnx", nodes, {"left": ("n", 3, 5), "right": ("n", 5, 3)}, ["determinant"], {})
    given = {"left": np.ones((1, 3, 5), np.float32), "right": np.ones((1, 5, 3), np.float32)}
    document = measure(path, 4, inputs=given)
    assert {layer.operator: layer.flops for layer in document.layers} == {"MatMul": 2 * 4 * 9 * 5, "Det": None}
    assert any("not known for Det" in warning for warning in document.warnings)
    assert any("leaves out nodes" in warning and "1 Det" in warning for warning in document.warnings)
    assert not any("made up" in warning for warning in document.warnings)


def test_a_quantized_network_counts_as_its_float_twin(tmp_path: Path, models: ModuleType) -> None:
    """Quantize and dequantize around a convolution become QLinearConv; products stay as many, types and bytes shrink."""
    onnxruntime_quantization = pytest.importorskip("onnxruntime.quantization")

    class Images(onnxruntime_quantization.CalibrationDataReader):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            self.left = [{"image": np.random.default_rng(0).standard_normal((1, 3, 32, 32), np.float32)}] * 2

        def get_next(self) -> object:
            return self.left.pop() if self.left else None

    path = models.small_network(tmp_path / "m.onnx")
    onnxruntime_quantization.quantize_static(
        str(path), str(tmp_path / "q.onnx"), Images(), quant_format=onnxruntime_quantization.QuantFormat.QDQ
    )
    document = measure(tmp_path / "q.onnx", 3)
    convolution = next(layer for layer in document.layers if "Conv" in layer.operator)
    assert convolution.operator == "QLinearConv"
    assert convolution.flops == 3 * 2 * 16 * 32 * 32 * 27
    assert convolution.precision in ("uint8", "int8")
    assert document.total_flops == pytest.approx(models.small_network_flops(3, relu=False))
    assert document.flops_cross_check == pytest.approx(document.total_flops, rel=0.05)


def test_a_loop_is_taken_apart(tmp_path: Path, models: ModuleType) -> None:
    """A body that runs four times counts four times, and the loop is not charged with it again."""
    path = models.loop(tmp_path / "m.onnx", rounds=4, side=64)
    document = measure(path, 64)
    product = next(layer for layer in document.layers if layer.operator == "MatMul")
    assert product.flops == 4 * 2 * 64**3
    assert sum(layer.share for layer in document.layers) == pytest.approx(1.0)
    assert sum(layer.raw_seconds for layer in document.layers) <= 1.1 * document.profiled_latency_seconds


def test_parallel_nodes_still_add_up(tmp_path: Path, models: ModuleType) -> None:
    """The Plan's options reach the sessions: with two inter-op threads the table is made all the same."""
    document = measure(models.small_network(tmp_path / "m.onnx"), options={"inter_op_threads": 2})
    assert sum(layer.share for layer in document.layers) == pytest.approx(1.0)


def test_a_profile_that_is_full_loses_no_call(
    tmp_path: Path, models: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls are limited to what the profile holds, with a warning that they are few."""
    monkeypatch.setattr(onnx_profile, "MAX_EVENTS", 80)
    document = measure(models.small_network(tmp_path / "m.onnx"), calls=1000)
    assert document.num_calls + document.num_dropped <= 80 // 7
    assert any("calls were averaged" in warning for warning in document.warnings)
    assert not any("not in the engine's profile" in warning for warning in document.warnings)


def test_models_that_cannot_be_measured_say_why(tmp_path: Path, models: ModuleType) -> None:
    """A missing file, one that is no model, a batch size that is fixed, inputs that fail inside, an unknown option."""
    with pytest.raises(EngineError, match="does not exist"):
        measure(tmp_path / "none.onnx")
    (tmp_path / "text.onnx").write_text("text")
    with pytest.raises(EngineError, match="cannot be opened"):
        measure(tmp_path / "text.onnx")
    fixed = models.small_network(tmp_path / "fixed.onnx", batch=1)
    with pytest.raises(EngineError, match="batches of 1 only"):
        measure(fixed, 2)
    free = models.save(
        tmp_path / "free.onnx",
        [models.node("MatMul", ["x", "w"], ["y"])],
        {"x": ("n", "length")},
        ["y"],
        {"w": np.ones((5, 2), np.float32)},
    )
    with pytest.raises(EngineError, match=r"refuses the inputs x float32\[2, 4\]"):
        measure(free, inputs=np.ones((2, 4), np.float32))
    with pytest.raises(SettingsError, match="spinn"):
        measure(fixed, 1, options={"spinn": True})


def test_names_of_any_kind_are_kept(tmp_path: Path, models: ModuleType) -> None:
    """A node's name may hold quotes, backslashes and letters of other alphabets."""
    name = 'say "y\\ä'
    path = models.save(tmp_path / "m.onnx", [models.node("Relu", ["x"], [name])], {"x": ("n", 300)}, [name], {})
    assert measure(path).layers[0].name == name


def test_a_profile_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    """A broken file is an error of the engine, and is removed."""
    (tmp_path / "profile.json").write_text('[{"name": ')
    with pytest.raises(EngineError, match="cannot be read"):
        onnx_profile._read_profile(str(tmp_path / "profile.json"))
    assert not (tmp_path / "profile.json").exists()


def test_a_product_that_quantizes_its_input_computes_in_whole_numbers(tmp_path: Path, models: ModuleType) -> None:
    """Its first input is float32, its products are not: float32's ceiling says nothing about them."""
    quantization = pytest.importorskip("onnxruntime.quantization")
    weights = {"w": np.random.default_rng(0).standard_normal((64, 32), np.float32)}
    path = models.save(
        tmp_path / "m.onnx", [models.node("MatMul", ["a", "w"], ["b"])], {"a": ("n", 64)}, ["b"], weights
    )
    quantization.quantize_dynamic(str(path), str(tmp_path / "q.onnx"), weight_type=quantization.QuantType.QUInt8)
    (layer,) = measure(tmp_path / "q.onnx", 4).layers
    assert (layer.operator, layer.precision, layer.flops) == ("DynamicQuantizeMatMul", "uint8", 2 * 4 * 64 * 32)
