"""Layers of a model as ONNX Runtime runs it, from its own profiler.

How this works: three sessions with the pipeline's options. `describe` opens one that keeps its weights unpacked, because
the profiler leaves packed weights out of the shapes it reports, makes one call and closes it. The other two are called in
turns, one without and one with profiling. ONNX Runtime writes the profile when it ends, into a temporary folder that goes
with the model. It holds a limited number of events and drops the rest in silence, so calls are limited to what fits, and
what is there is counted.

A node that holds a graph of its own (If, Loop, Scan) contains its nodes' times; they are taken out of it, so that the
layers add up. Times are whole microseconds, cut off.

References:
    https://onnxruntime.ai/docs/performance/tune-performance/profiling-tools.html
"""

from __future__ import annotations

import bisect
import dataclasses
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime

from headrace.base.documents import decode_document
from headrace.base.errors import EngineError, HeadraceError
from headrace.base.formatting import pluralize
from headrace.base.protocols import TensorSpec
from headrace.base.settings import build
from headrace.engines import ONNX
from headrace.engines.onnx_engine import OnnxOptions, make_session_options, open_session, tensor_specs
from headrace.profiler.layers.graph_count import count_graph
from headrace.profiler.layers.operations import Tensor, Work, count
from headrace.profiler.layers.protocol import Feed, LayerFacts, Recording
from headrace.profiler.layers.timing import best_seconds

MAX_EVENTS = 200_000
"""Of a profile; ONNX Runtime drops what is beyond a million, and each takes a kilobyte of file."""
_SUFFIX = "_kernel_time"
#: What ONNX Runtime adds to a node's name in the file when it changes the layout of its data.
_OWN_SUFFIX = re.compile(r"(_nchwc|_token_\d+)+$")
_CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})
_QUANTIZES_ITS_INPUT = frozenset({"DynamicQuantizeMatMul", "DynamicQuantizeLSTM"})
_EVENTS_PER_CALL = 2  # besides the nodes: model_run and the executor's
_DTYPES = {"float": "float32", "double": "float64"}
_COARSE_SECONDS = 2e-6

#: A matrix product of two inputs, as ONNX would write it: the package that does is not needed to run models.
#: {"a": (m, k), "b": (k, n)} -> {"c": (m, n)}, float32, IR version 8, opset 13.
_MATMUL = (
    b'\x08\x08:[\n\x11\n\x01a\n\x01b\x12\x01c"\x06MatMul\x12\x01gZ\x15\n\x01a\x12\x10\n\x0e\x08\x01\x12\n\n\x03\x12\x01m'
    b"\n\x03\x12\x01kZ\x15\n\x01b\x12\x10\n\x0e\x08\x01\x12\n\n\x03\x12\x01k\n\x03\x12\x01nb\x15\n\x01c\x12\x10\n\x0e\x08"
    b"\x01\x12\n\n\x03\x12\x01m\n\x03\x12\x01nB\x04\n\x00\x10\r"
)


class _Details(msgspec.Struct):
    """What the profile says of a node."""

    op_name: str = ""
    node_index: str = ""
    provider: str = ""
    input_type_shape: list[dict[str, list[int]]] = msgspec.field(default_factory=list)
    output_type_shape: list[dict[str, list[int]]] = msgspec.field(default_factory=list)


class _Event(msgspec.Struct):
    """One event of the profile, in the Chrome trace format; times in microseconds."""

    name: str = ""
    cat: str = ""
    tid: int = 0
    ts: float = 0.0
    dur: float = 0.0
    args: _Details = msgspec.field(default_factory=_Details)

    @property
    def key(self) -> str:
        """Unique within the model; names need not be."""
        return f"{self.name}#{self.args.node_index}"


class OnnxLayers:
    """Opens ONNX files to measure their layers; a `LayerProfiler`."""

    engine = ONNX

    def open(self, artifact: Path, *, threads: int, options: Mapping[str, Any]) -> OnnxProfiledModel:
        """See `LayerProfiler.open`."""
        return OnnxProfiledModel(artifact, threads, options)

    def matrix_product_seconds(self, side: int, *, threads: int) -> float:
        """See `LayerProfiler.matrix_product_seconds`."""
        options = make_session_options(threads=threads, options={})
        session = onnxruntime.InferenceSession(_MATMUL, options, providers=["CPUExecutionProvider"])
        matrix = np.random.default_rng(0).standard_normal((side, side), np.float32)
        return best_seconds(lambda: session.run(None, {"a": matrix, "b": matrix}))


class OnnxProfiledModel:
    """A model opened with and without profiling; a `ProfiledModel`."""

    def __init__(self, artifact: Path, threads: int, options: Mapping[str, Any]) -> None:
        self._artifact = artifact
        self._threads = threads
        self._options = options
        self._settings = build(OnnxOptions, options, "[model.options]")
        self._plain: Any = open_session(artifact, self._session_options(), self._settings)
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-layers-")
        self._profiled: Any = None
        self._num_calls = 0
        self._layers: dict[str, LayerFacts] = {}
        self._events_per_call = 1
        self.inputs: Sequence[TensorSpec] = tensor_specs(self._plain.get_inputs())

    @property
    def max_profiled_calls(self) -> int:
        """Calls whose events fit into the profile."""
        return max(1, MAX_EVENTS // self._events_per_call)

    def describe(self, feed: Feed) -> None:
        """Make one call that tells the layers' shapes."""
        options = self._session_options()
        options.add_session_config_entry("session.disable_prepacking", "1")
        session = self._open_profiled(options, "shapes")
        _run(session, feed, self._artifact)
        events = _read_profile(session.end_profiling())
        nodes = [event for call in _calls(events) for event in call]
        if not nodes:
            raise EngineError(
                f"ONNX Runtime's profile of {self._artifact} names no layer; its version {onnxruntime.__version__} may "
                "write another format than the one known here (a `_kernel_time` event per node)"
            )
        self._events_per_call = len(nodes) + _EVENTS_PER_CALL
        self._layers = _facts(nodes, _attributes(self._artifact, feed))
        self._profiled = self._open_profiled(self._session_options(), "layers")

    def run(self, feed: Feed) -> None:
        """Run without profiling."""
        _run(self._plain, feed, self._artifact)

    def run_profiled(self, feed: Feed) -> None:
        """Run with profiling."""
        self._num_calls += 1
        _run(self._profiled, feed, self._artifact)

    def read_recording(self, kept: Sequence[int]) -> Recording:
        """End the profile and return what it holds of these calls."""
        session, self._profiled = self._profiled, None
        calls = _calls(_read_profile(session.end_profiling()))
        there = [calls[number] for number in kept if number < len(calls)]
        positions = {key: position for position, key in enumerate(self._layers)}
        seconds = np.zeros(len(positions))
        strangers: Counter[str] = Counter()
        for call in there:
            for event, own_microseconds in zip(call, _own_times(call), strict=True):
                if event.key in positions:
                    seconds[positions[event.key]] += own_microseconds * 1e-6 / len(there)
                else:
                    strangers[event.name.removesuffix(_SUFFIX)] += 1
        return Recording(
            layers=tuple(self._layers.values()),
            raw_seconds=seconds,
            num_calls=len(there),
            num_missing=self._num_calls - len(calls),
            warnings=tuple(_list_warnings(seconds, strangers)),
        )

    def close(self) -> None:
        """Free the sessions and remove the profiles."""
        if self._profiled is not None:
            self._profiled.end_profiling()  # else it is written when the session goes, into a folder that is gone
        self._plain = self._profiled = None
        self._folder.cleanup()

    def _session_options(self) -> Any:
        return make_session_options(threads=self._threads, options=self._options)

    def _open_profiled(self, options: Any, name: str) -> Any:
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(self._folder.name) / name)
        return open_session(self._artifact, options, self._settings)


def _run(session: Any, feed: Feed, artifact: Path) -> None:
    try:
        session.run(None, feed)
    except Exception as error:  # ONNX Runtime raises its own types, none of them public
        shapes = ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in feed.items())
        raise EngineError(f"{artifact} refuses the inputs {shapes}: {error}") from error


def _read_profile(file: str) -> list[_Event]:
    """Return the events of a profile and remove the file."""
    path = Path(file)
    data = path.read_bytes()
    path.unlink()
    try:
        return decode_document(data, list[_Event])
    except msgspec.DecodeError as error:
        raise EngineError(
            f"ONNX Runtime {onnxruntime.__version__} wrote a profile that cannot be read: {error}; it may be of another format "
            "than the Chrome trace known here"
        ) from error


def _calls(events: Iterable[_Event]) -> list[list[_Event]]:
    """Return each call's node events in the order they started; a node belongs to the call during which it started."""
    runs = sorted((e for e in events if e.cat == "Session" and e.name == "model_run"), key=lambda e: e.ts)
    starts = [run.ts for run in runs]
    calls: list[list[_Event]] = [[] for _ in runs]
    nodes = (e for e in events if e.cat == "Node" and e.name.endswith(_SUFFIX))
    # The longest first where several start in the same microsecond: it contains the others.
    for event in sorted(nodes, key=lambda e: (e.ts, -e.dur)):
        number = bisect.bisect_right(starts, event.ts) - 1
        if number >= 0 and event.ts <= starts[number] + runs[number].dur:
            calls[number].append(event)
    return calls


def _own_times(call: Sequence[_Event]) -> list[float]:
    """Return the microseconds of each node without those of the nodes that it contains."""
    own = [event.dur for event in call]
    open_nodes: list[int] = []  # control flow whose time is not over, innermost last
    for number, event in enumerate(call):
        while open_nodes and event.ts >= call[open_nodes[-1]].ts + call[open_nodes[-1]].dur:
            open_nodes.pop()
        if open_nodes and event.tid == call[open_nodes[-1]].tid:
            own[open_nodes[-1]] = max(0.0, own[open_nodes[-1]] - event.dur)
        if event.args.op_name in _CONTROL_FLOW:
            open_nodes.append(number)
    return own


def _facts(nodes: Iterable[_Event], attributes: Mapping[str, Mapping[str, Any]]) -> dict[str, LayerFacts]:
    """Return {key: facts}; the work of a node that a loop runs several times in a call is added up."""
    facts: dict[str, LayerFacts] = {}
    for node in nodes:
        layer = _layer(node, attributes)
        if node.key in facts:
            before = facts[node.key]
            layer = dataclasses.replace(layer, work=before.work + layer.work, num_events=before.num_events + 1)
        facts[node.key] = layer
    return facts


def _layer(node: _Event, attributes: Mapping[str, Mapping[str, Any]]) -> LayerFacts:
    name, details = node.name.removesuffix(_SUFFIX), node.args
    inputs, outputs = _tensors(details.input_type_shape), _tensors(details.output_type_shape)
    known = attributes.get(name) or attributes.get(_OWN_SUFFIX.sub("", name), {})
    work = Work(0.0, 0.0) if details.op_name in _CONTROL_FLOW else count(details.op_name, inputs, outputs, known)
    return LayerFacts(
        key=node.key,
        name=name,
        operator=details.op_name,
        provider=details.provider.removesuffix("ExecutionProvider"),
        work=work,
        output_shape="x".join(str(length) for length in outputs[0].shape) if outputs else "",
        precision=_precision(details.op_name, inputs, outputs),
    )


def _precision(operator: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    """Return the type of the products: that of the weights where the operator quantizes its other input itself."""
    if operator in _QUANTIZES_ITS_INPUT and len(inputs) > 1:
        return inputs[1].dtype
    return (inputs or outputs)[0].dtype if inputs or outputs else ""


def _tensors(shapes: Iterable[Mapping[str, Sequence[int]]]) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(_DTYPES.get(dtype, dtype), tuple(shape)) for tensor in shapes for dtype, shape in tensor.items()
    )


def _attributes(artifact: Path, feed: Feed) -> Mapping[str, Mapping[str, Any]]:
    """Return what the file says of its nodes; nothing where it cannot be read, and poolings stay uncounted."""
    try:
        return count_graph(artifact, {name: array.shape for name, array in feed.items()}).attributes
    except HeadraceError:
        return {}


def _list_warnings(seconds: np.ndarray, strangers: Mapping[str, int]) -> list[str]:
    warnings = []
    if strangers:
        warnings.append(
            f"{sum(strangers.values())} events of nodes that the first call did not run are not in the table, such as "
            f"{next(iter(strangers))}: the model takes another path from call to call"
        )
    coarse = seconds < _COARSE_SECONDS
    if seconds[coarse].sum() > 0.1 * seconds.sum():
        share = seconds[coarse].sum() / seconds.sum()
        warnings.append(
            f"{pluralize(int(coarse.sum()), 'layer')} of less than 2 us each, {share:.0%} of the time together: ONNX Runtime "
            "counts whole microseconds, so such times are rough"
        )
    return warnings
