"""Hostile model files: refused before an engine opens them, with a reason, and nothing outside their folder is touched."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import openvino
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from headrace.base.errors import EngineError, SettingsError
from headrace.base.plan import ModelPlan, Plan
from headrace.engines import engine, onnx_references, open_model
from headrace.engines.model_files import check_onnx, check_torch_weights
from headrace.engines.onnx_references import MESSAGES, external_tensors
from headrace.engines.traits import BUILT_IN

Watching = Callable[..., Any]

WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3)
#: Of sixteen bytes more than the weights need.
SIZE = WEIGHTS.nbytes + 16
READERS = ("onnx", "openvino")


def external(name: str = "w", dims: tuple[int, ...] = (4, 3), **entries: object) -> TensorProto:
    """Return a tensor with these entries in external_data; `_` in a key's place separates repeated ones."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    tensor.dims.extend(dims)
    for key, value in entries.items():
        tensor.external_data.add(key=key.rstrip("_"), value=str(value))
    return tensor


def model_of(*tensors: TensorProto, in_node: bool = False) -> onnx.ModelProto:
    """Return x @ w, or (x @ w) + x @ v and so on."""
    products = [helper.make_node("MatMul", ["x", tensor.name], [f"y{n}"]) for n, tensor in enumerate(tensors)]
    total = helper.make_node("Sum", [f"y{n}" for n in range(len(tensors))], ["y"])
    constants = []
    if in_node:
        for tensor in tensors:
            node = helper.make_node("Constant", [], [tensor.name])
            attribute = node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR)
            attribute.t.CopyFrom(tensor)
            constants.append(node)
    graph = helper.make_graph(
        [*constants, *products, total],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])],
        [] if in_node else list(tensors),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a model's weights, and beside the folder a file that is none of the model's business."""
    (tmp_path / "model").mkdir()
    content = WEIGHTS.tobytes() + b"\0" * 16
    (tmp_path / "model" / "w.bin").write_bytes(content)
    (tmp_path / "secret.bin").write_bytes(content)
    return tmp_path / "model"


def write(folder: Path, model: onnx.ModelProto, name: str = "m.onnx") -> Path:
    """Write a model without a look at what it refers to."""
    (folder / name).write_bytes(model.SerializeToString())
    return folder / name


def opened(name: str, artifact: Path) -> Any:
    """Return an engine's model."""
    return engine(name).open(artifact, threads=1, options={})


ONES = np.ones((2, 4), np.float32)


@pytest.mark.parametrize("name", READERS)
def test_weights_beside_the_model_are_read(folder: Path, name: str) -> None:
    """External data in the model's own folder, and below it, works on both engines."""
    (folder / "deep").mkdir()
    (folder / "w.bin").rename(folder / "deep" / "w.bin")
    model = opened(name, write(folder, model_of(external(location="deep/w.bin", offset=0, length=48))))
    np.testing.assert_allclose(model(ONES), ONES @ WEIGHTS)


#: What the model says -> what the reason says.
HOSTILE: Mapping[str, tuple[dict[str, object], str]] = {
    "parent": ({"location": "../secret.bin"}, "own folder"),
    "parent inside": ({"location": "deep/../../secret.bin"}, "own folder"),
    "backslashes": ({"location": "..\\secret.bin"}, "own folder"),
    "absolute": ({"location": "/ABSOLUTE"}, "own folder"),
    "drive": ({"location": "c:/secret.bin"}, "own folder"),
    "file address": ({"location": "file:///ABSOLUTE"}, "own folder"),
    "home": ({"location": "~/secret.bin"}, "own folder"),
    "device": ({"location": "/dev/zero"}, "own folder"),
    "nothing": ({"location": ""}, "own folder"),
    "memory": ({"location": "*/_ORT_MEM_ADDR_/*", "offset": 4096, "length": 48}, "own folder"),
    "missing": ({"location": "none.bin"}, "not there"),
    "symbolic link": ({"location": "symbolic.bin"}, "link that leads out"),
    "link to a device": ({"location": "zero.bin"}, "link that leads out"),
    "linked folder": ({"location": "linked/secret.bin"}, "link that leads out"),
    "link to itself": ({"location": "circle.bin"}, "not there"),
    "hard link": ({"location": "hard.bin"}, "hard links"),
    "pipe": ({"location": "pipe.bin"}, "regular file"),
    "folder": ({"location": "."}, "regular file"),
    "beyond the end": ({"location": "w.bin", "offset": 40, "length": 48}, "cut off"),
    "far beyond the end": ({"location": "w.bin", "offset": 10**17, "length": 48}, "cut off"),
    "below the start": ({"location": "w.bin", "offset": -48, "length": 48}, "whole number"),
    "no number": ({"location": "w.bin", "offset": "0x10"}, "whole number"),
    "overflow": ({"location": "w.bin", "offset": "9" * 400}, "whole number"),
    "too short": ({"location": "w.bin", "length": 12}, "needs 48 bytes"),
    "huge shape": ({"location": "w.bin", "length": 48, "dims": (2**62, 2**62)}, "needs"),
    "negative shape": ({"location": "w.bin", "length": 48, "dims": (-4, -3)}, "needs"),
    "two places": ({"location": "w.bin", "location_": "../secret.bin"}, "2 entries for location"),
    "no place": ({"offset": 0, "length": 48}, "0 entries for location"),
}


@pytest.mark.parametrize("in_node", [False, True], ids=["initializer", "constant"])
@pytest.mark.parametrize("case", HOSTILE)
def test_references_that_lead_elsewhere_are_refused(
    folder: Path, case: str, in_node: bool, watch_files: Watching
) -> None:
    """Each is refused by both engines with a plain reason, and the file outside is never opened, not even by native code."""
    entries, reason = HOSTILE[case]
    secret = folder.parent / "secret.bin"
    (folder / "deep").mkdir()
    (folder / "symbolic.bin").symlink_to("../secret.bin")
    (folder / "zero.bin").symlink_to("/dev/zero")
    (folder / "linked").symlink_to("..")
    (folder / "circle.bin").symlink_to("circle.bin")
    (folder / "hard.bin").hardlink_to(secret)
    os.mkfifo(folder / "pipe.bin")
    entries = {
        key: str(value).replace("/ABSOLUTE", str(secret)) if key == "location" else value
        for key, value in entries.items()
    }
    if "location" not in entries:  # the word must be in the file, as it is in one with other tensors
        entries = {**entries, "note": "location"}
    artifact = write(folder, model_of(external(**entries), in_node=in_node))  # type: ignore[arg-type]
    with watch_files(secret, folder / "pipe.bin") as watch:
        for name in READERS:
            with pytest.raises(EngineError, match=reason) as refused:
                opened(name, artifact)
            assert "Traceback" not in str(refused.value)
        assert not watch.was_opened()


def test_the_watch_sees_what_native_code_opens(folder: Path, watch_files: Watching) -> None:
    """What ONNX Runtime opens is seen, so that a test which sees nothing says something."""
    import onnxruntime

    artifact = write(folder, model_of(external(location="w.bin")))
    with watch_files(folder / "w.bin") as watch:
        assert not watch.was_opened()
        onnxruntime.InferenceSession(str(artifact), providers=["CPUExecutionProvider"])
        assert watch.was_opened()


def test_the_mark_of_memory_is_refused_where_such_a_file_exists(folder: Path) -> None:
    """A folder called `*` does not make an address in memory a file."""
    (folder / "*" / "_ORT_MEM_ADDR_").mkdir(parents=True)
    (folder / "*" / "_ORT_MEM_ADDR_" / "*").write_bytes(b"\0" * 8192)
    entries: dict[str, Any] = {"location": "*/_ORT_MEM_ADDR_/*", "offset": 4096, "length": 48}
    artifact = write(folder, model_of(external(**entries)))
    for name in READERS:
        with pytest.raises(EngineError, match="own folder"):
            opened(name, artifact)


def test_a_cache_of_links_still_loads(folder: Path) -> None:
    """A hub's cache has names that link into a folder of blobs; model and weights load through them."""
    blobs, snapshot = folder / "models--a--b" / "blobs", folder / "models--a--b" / "snapshots" / "0123" / "onnx"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (folder / "w.bin").rename(blobs / "1f2e")
    write(blobs, model_of(external(location="m.onnx_data", length=48)), "3d4c")
    (snapshot / "m.onnx").symlink_to("../../../blobs/3d4c")
    (snapshot / "m.onnx_data").symlink_to("../../../blobs/1f2e")
    np.testing.assert_allclose(opened("onnx", snapshot / "m.onnx")(ONES), ONES @ WEIGHTS)


def test_a_linked_folder_still_loads(folder: Path) -> None:
    """A mounted volume whose current version is a link, and a model named through a link to its folder, load."""
    write(folder, model_of(external(location="w.bin")))
    volume = folder.parent / "volume"
    volume.mkdir()
    (volume / "..data").symlink_to(folder)
    (volume / "m.onnx").symlink_to("..data/m.onnx")
    (volume / "w.bin").symlink_to("..data/w.bin")
    for artifact in (volume / "m.onnx", volume / "..data" / "m.onnx"):
        np.testing.assert_allclose(opened("onnx", artifact)(ONES), ONES @ WEIGHTS)


def test_shared_weights_load_and_overlapping_ones_do_not(folder: Path) -> None:
    """Two tensors may be one region, as tied weights are, and may not share parts of regions."""
    tied = model_of(external(location="w.bin", length=48), external("v", location="w.bin", length=48))
    np.testing.assert_allclose(opened("onnx", write(folder, tied))(ONES), 2 * ONES @ WEIGHTS)
    overlapping = model_of(external(location="w.bin", length=48), external("v", location="w.bin", offset=16))
    with pytest.raises(EngineError, match="'w' and 'v' overlap in"):
        check_onnx(write(folder, overlapping))


def test_a_file_of_references_keeps_nobody_busy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tensor with a reference counts as what it costs: a file of nothing else is refused long before its end."""
    monkeypatch.setattr(onnx_references, "MOST_FIELDS", 2_000)
    few, many = (
        model_of(*(external(f"t{number}", location="w.bin", length=48) for number in range(count)))
        for count in (50, 150)
    )
    assert [name for name, _ in check_onnx(write(folder, few)).sidecars] == ["w.bin"]
    with pytest.raises(EngineError, match="more than 2,000 parts"):
        check_onnx(write(folder, many))


def test_references_are_found_wherever_a_tensor_may_stand() -> None:
    """Every path from a model to a tensor in the format's own description is walked, and no field number is wrong."""
    wanted: dict[str, dict[int, str]] = {}
    waiting = [onnx.ModelProto.DESCRIPTOR]
    seen = set()
    while waiting:
        message = waiting.pop()
        if message.name in seen:
            continue
        seen.add(message.name)
        inside = {field.number: field.message_type for field in message.fields if field.message_type is not None}
        wanted[message.name] = {number: kind.name for number, kind in inside.items()}
        waiting += inside.values()
    leading = {"TensorProto"}
    while grown := {name for name, inside in wanted.items() if leading & set(inside.values())} - leading:
        leading |= grown
    expected = {
        name: {number: kind for number, kind in inside.items() if kind in leading}
        for name, inside in wanted.items()
        if name in leading and name != "TensorProto"
    }
    assert expected == MESSAGES


def test_references_in_branches_functions_and_sparse_tensors(tmp_path: Path) -> None:
    """A tensor in a branch, a function's node, a sparse tensor and a training graph is found."""
    model = model_of(external("first", location="1"))
    branch = helper.make_graph([], "then", [], [], [external("second", location="2")])
    model.graph.node.append(helper.make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch))
    sparse = model.graph.sparse_initializer.add()
    sparse.values.CopyFrom(external("third", location="3"))
    sparse.indices.CopyFrom(external("fourth", location="4"))
    node = helper.make_node("Constant", [], ["k"])
    node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR).t.CopyFrom(external("fifth", location="5"))
    model.functions.append(
        helper.make_function("d", "f", [], ["k"], [node], [helper.make_opsetid("", 17)]),
    )
    model.training_info.add().initialization.initializer.append(external("sixth", location="6"))
    found = {tensor.name: tensor.values("location") for tensor in external_tensors(write(tmp_path, model))}
    names = ("first", "second", "third", "fourth", "fifth", "sixth")
    assert found == {name: [str(number)] for number, name in enumerate(names, 1)}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.9, 0.99])
def test_a_file_that_was_cut_off(folder: Path, name: str, kept: float) -> None:
    """A model cut anywhere is an error of headrace's, not a crash."""
    whole = write(folder, model_of(external(location="w.bin"))).read_bytes()
    (folder / "cut.onnx").write_bytes(whole[: int(len(whole) * kept)])
    with pytest.raises(EngineError, match=r"cut.onnx"):
        opened(name, folder / "cut.onnx")


@pytest.mark.parametrize(
    "content", [b"text", b"<net/>", b"\x80\x04pickle", b"PK\x03\x04", b"\0\0\0\0ORTM", b"\xff" * 40]
)
def test_a_file_of_another_format(folder: Path, content: bytes) -> None:
    """What is no ONNX file is said to be none, whatever it is called; OpenVINO would read XML under any name."""
    (folder / "other.onnx").write_bytes(content)
    for name in READERS:
        with pytest.raises(EngineError, match="it is no ONNX file"):
            opened(name, folder / "other.onnx")


_EXAMPLE = model_of(external(location="w.bin", offset=0, length=48), in_node=True).SerializeToString()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, len(_EXAMPLE) - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_damaged_files_end_in_an_answer(tmp_path: Path, changes: list[tuple[int, int]]) -> None:
    """Whatever bytes are wrong, the reader answers with tensors or with its one error."""
    content = bytearray(_EXAMPLE)
    for place, byte in changes:
        content[place] = byte
    (tmp_path / "m.onnx").write_bytes(content)
    with contextlib.suppress(EngineError):
        assert all(tensor.entries for tensor in external_tensors(tmp_path / "m.onnx"))


def test_pipes_and_devices_are_no_models(tmp_path: Path) -> None:
    """A pipe or device in place of a model is refused at once and not waited for."""
    os.mkfifo(tmp_path / "m.onnx")
    for path in (tmp_path / "m.onnx", tmp_path, Path("/dev/zero")):
        for name in READERS:
            with pytest.raises(EngineError, match="regular file"):
                opened(name, path)
    with pytest.raises(EngineError, match="cannot be read"):
        opened("onnx", Path("a\0b"))


def ir(folder: Path) -> Path:
    """Write the model as OpenVINO's XML with its weights beside it."""
    core = openvino.Core()
    openvino.save_model(
        core.read_model(str(write(folder, model_of(external(location="w.bin", length=48))))),
        str(folder / "m.xml"),
        compress_to_fp16=False,
    )
    return folder / "m.xml"


def test_xml_with_its_weights(folder: Path) -> None:
    """OpenVINO's own format opens, and its hash covers the weights."""
    artifact = ir(folder)
    model = opened("openvino", artifact)
    np.testing.assert_allclose(model(ONES), ONES @ WEIGHTS)
    with (folder / "m.bin").open("ab") as file:
        file.write(b"more")
    assert opened("openvino", artifact).variant["sha256"] != model.variant["sha256"]


@pytest.mark.parametrize("link", ["symbolic", "hard"])
def test_weights_of_xml_stay_in_the_folder(folder: Path, link: str, watch_files: Watching) -> None:
    """A link in place of the weights is refused, and what it leads to is not opened."""
    artifact = ir(folder)
    secret = folder.parent / "secret.bin"
    secret.write_bytes((folder / "m.bin").read_bytes())
    (folder / "m.bin").unlink()
    (folder / "m.bin").symlink_to(secret) if link == "symbolic" else (folder / "m.bin").hardlink_to(secret)
    with watch_files(secret) as watch:
        with pytest.raises(EngineError, match="link"):
            opened("openvino", artifact)
        assert not watch.was_opened()


def test_xml_entities_open_nothing(folder: Path, watch_files: Watching) -> None:
    """OpenVINO's parser knows no external entities: the file named is not opened, whatever becomes of the model."""
    artifact = ir(folder)
    secret = folder.parent / "secret.bin"
    text = artifact.read_text().replace('name="x"', 'name="&leak;"')
    assert "&leak;" in text
    header, _, rest = text.partition("?>")
    artifact.write_text(f'{header}?><!DOCTYPE net [<!ENTITY leak SYSTEM "file://{secret}">]>{rest}')
    with watch_files(secret) as watch:
        with contextlib.suppress(EngineError):
            opened("openvino", artifact)
        assert not watch.was_opened()


def test_xml_with_a_layer_that_openvino_does_not_have(folder: Path) -> None:
    """A custom operation is an error: no library is looked for."""
    artifact = ir(folder)
    text = artifact.read_text()
    assert 'type="MatMul" version="opset1"' in text
    artifact.write_text(text.replace('type="MatMul" version="opset1"', 'type="Mine" version="extension"'))
    with pytest.raises(EngineError, match="cannot be opened by OpenVINO"):
        opened("openvino", artifact)


@pytest.mark.parametrize("suffix", [".pb", ".tflite", ".pdmodel", ".pt", ".bin", ""])
def test_openvino_reads_no_other_format(folder: Path, suffix: str) -> None:
    """Formats with references that are not checked here are not handed to OpenVINO."""
    artifact = write(folder, model_of(external(location="w.bin")), f"other{suffix}")
    with pytest.raises(EngineError, match=r"end in .onnx or .xml"):
        opened("openvino", artifact)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full if name == "torch" else ()) for name in sorted(BUILT_IN)]
)
@pytest.mark.parametrize(
    "key", ["custom_op_library", "register_custom_ops_library", "extensions", "cache_dir", "config"]
)
def test_no_option_loads_a_library(name: str, key: str) -> None:
    """No engine takes an option that would load native code or a configuration from a path."""
    if name == "torch":
        pytest.importorskip("torch")
    plan = Plan.from_table({"model": {"engine": name, "artifact": "/none.onnx", "options": {key: "/tmp/evil.so"}}})
    with pytest.raises((SettingsError, EngineError)) as refused:
        open_model(plan.model, None, 1)
    assert "evil" not in str(refused.value) or isinstance(refused.value, SettingsError)


def test_the_hash_of_a_model_with_other_files(folder: Path) -> None:
    """It is the hash of what sha256sum prints, so that it can be had without headrace."""
    artifact = write(folder, model_of(external(location="w.bin")))
    printed = subprocess.run(["sha256sum", "m.onnx", "w.bin"], cwd=folder, capture_output=True, check=True).stdout
    assert opened("onnx", artifact).variant["sha256"] == hashlib.sha256(printed).hexdigest()
    (folder / "w.bin").write_bytes(b"\1" * SIZE)
    assert check_onnx(artifact).sha256() != hashlib.sha256(printed).hexdigest()


@pytest.mark.parametrize("name", READERS)
def test_a_pinned_model(make_model: Callable[..., Path], name: str) -> None:
    """The pinned model opens; another one in its place is refused before an engine has seen it."""
    artifact = make_model()
    digest = hashlib.sha256(artifact.read_bytes()).hexdigest()
    plan = ModelPlan(artifact=str(artifact), engine=name, sha256=digest.upper())
    assert open_model(plan, None, 1).variant["sha256"] == digest
    make_model(with_label=True)
    with pytest.raises(EngineError, match=f"the Plan pins {digest}"):
        open_model(plan, None, 1)
    with pytest.raises(SettingsError, match="64 hexadecimal digits"):
        open_model(ModelPlan(artifact=str(artifact), sha256="abc"), None, 1)


def test_a_pin_covers_the_weights(folder: Path) -> None:
    """Weights in a file of their own that were changed are another model."""
    artifact = write(folder, model_of(external(location="w.bin")))
    plan = ModelPlan(artifact=str(artifact), sha256=check_onnx(artifact).sha256())
    open_model(plan, None, 1)
    (folder / "w.bin").write_bytes(b"\1" * SIZE)
    with pytest.raises(EngineError, match="another model, or was changed"):
        open_model(plan, None, 1)


@pytest.mark.parametrize("suffix", [".pt2", ".ts", ".engine", ".so", ".pkl"])
def test_what_runs_code_has_to_be_pinned(tmp_path: Path, suffix: str) -> None:
    """A program is not opened unless the Plan names its hash, which the error tells."""
    artifact = tmp_path / f"m{suffix}"
    artifact.write_bytes(b"program")
    digest = hashlib.sha256(b"program").hexdigest()
    with pytest.raises(EngineError, match=rf'can run code .* sha256 = "{digest}"'):
        open_model(ModelPlan(artifact=str(artifact)), None, 1)
    with pytest.raises(EngineError, match="no ONNX file"):  # pinned: the engine is asked
        open_model(ModelPlan(artifact=str(artifact), sha256=digest), None, 1)


def test_layers_of_what_runs_code_need_the_pin_too(tmp_path: Path) -> None:
    """A census of an exported program, which opens it past the engine, is refused without a pin."""
    from headrace.validate.precision_audit import audit_precision
    from headrace.validate.variant_spec import parse_variant

    artifact = tmp_path / "m.pt2"
    artifact.write_bytes(b"program")
    with pytest.raises(EngineError, match="can run code"):
        audit_precision(parse_variant(f"{artifact}@torch"), ONES)


class Payload:
    """Runs a command where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch PWNED",)


def zipped(path: Path, *names: str) -> Path:
    """Write a zip file with these members."""
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"")
    return path


def test_torch_weights(tmp_path: Path) -> None:
    """Weights pass; programs, old pickles and a PyTorch that runs them in spite of weights_only do not."""
    import pickle

    weights = zipped(tmp_path / "w.pt", "w/data.pkl", "w/data/0", "w/version")
    assert check_torch_weights(weights, "2.9.1+cpu").artifact == weights
    with pytest.raises(EngineError, match="CVE-2025-32434"):
        check_torch_weights(weights, "2.5.1")
    for name in ("m/code/__torch__.py", "m/constants.pkl", "data/aotinductor/model/x.so", "archive_format"):
        with pytest.raises(EngineError, match="it holds a program"):
            check_torch_weights(zipped(tmp_path / "m.pt", "m/data.pkl", name), "2.9.1")
    with pytest.raises(EngineError, match="it holds no weights"):
        check_torch_weights(zipped(tmp_path / "z.pt", "other"), "2.9.1")
    (tmp_path / "old.pt").write_bytes(pickle.dumps(Payload()))
    with pytest.raises(EngineError, match="old form can run code"):
        check_torch_weights(tmp_path / "old.pt", "2.9.1")
    assert not Path("PWNED").exists()


def safetensors(path: Path, header: str, num_bytes: int) -> Path:
    """Write a file with this header and so many bytes of data."""
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + b"\0" * num_bytes)
    return path


def tensor(begin: int, end: int, shape: str = "[1]", dtype: str = "F32") -> str:
    """Return what a header says of a tensor."""
    return f'{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}'


def test_safetensors(tmp_path: Path) -> None:
    """Tensors one after another, a note, an empty one and a type of tomorrow pass; the old PyTorch does not matter there."""
    parts = [f'"b":{tensor(4, 12, "[2,1]")}', f'"a":{tensor(0, 4)}', f'"c":{tensor(12, 12, "[0,7]")}']
    more = [f'"d":{tensor(12, 13, "[5]", "F2_NEW")}', '"__metadata__":{"format":"pt"}']
    good = safetensors(tmp_path / "w.safetensors", "{" + ",".join([*parts, *more]) + "}", 13)
    assert check_torch_weights(good, "1.13").artifact == good


HOSTILE_HEADERS = {
    "overlap": (f'{{"a":{tensor(0, 4)},"b":{tensor(0, 4)}}}', 4, "overlap"),
    "hole": (f'{{"a":{tensor(0, 4)},"b":{tensor(8, 12)}}}', 12, "leave holes"),
    "beyond": (f'{{"a":{tensor(0, 400, "[100]")}}}', 4, "cut off or added"),
    "added": (f'{{"a":{tensor(0, 4)}}}', 100, "cut off or added"),
    "overflow": (f'{{"a":{tensor(0, 4, f"[{2**62},{2**62},4]")}}}', 4, "not of their shape"),
    "backwards": (f'{{"a":{tensor(0, 0, "[0]")},"b":{tensor(4, 0)}}}', 4, "overlap"),
    "negative": (f'{{"a":{tensor(-4, 0)}}}', 4, "cannot be read"),
    "negative shape": (f'{{"a":{tensor(0, 4, "[-1]")}}}', 4, "cannot be read"),
    "huge number": (f'{{"a":{tensor(0, 10**400)}}}', 4, "cannot be read"),
    "many axes": (f'{{"a":{tensor(0, 4, str([2**62] * 5000))}}}', 4, "cannot be read"),
    "no offsets": ('{"a":{"dtype":"F32"}}', 4, "cannot be read"),
    "no JSON": ("{not json", 4, "cannot be read"),
    "a list": ("[]", 4, "cannot be read"),
    "depth": ("[" * 100_000, 4, "cannot be read"),
    "twice": (f'{{"a":{tensor(0, 4)},"a":{tensor(4, 8)}}}', 8, "leave holes"),
}


@pytest.mark.parametrize("case", HOSTILE_HEADERS)
def test_hostile_safetensors(tmp_path: Path, case: str) -> None:
    """Headers that contradict themselves or the file are refused before the file is read."""
    header, num_bytes, reason = HOSTILE_HEADERS[case]
    with pytest.raises(EngineError, match=reason):
        check_torch_weights(safetensors(tmp_path / "w.safetensors", header, num_bytes), "2.9.1")


def test_safetensors_that_were_cut_off(tmp_path: Path) -> None:
    """A length beyond the file, or beyond 100 MB, is refused without making room for it."""
    path = tmp_path / "w.safetensors"
    for content in (b"", b"\1", (100 * 2**20).to_bytes(8, "little") + b"{}", b"\xff" * 60):
        path.write_bytes(content)
        with pytest.raises(EngineError, match=r"its header (would have|cannot be read)"):
            check_torch_weights(path, "2.9.1")
    with path.open("wb") as file:
        file.write((200 * 10**6).to_bytes(8, "little"))
        file.truncate(300 * 10**6)  # a hole: takes no space on disk
    with pytest.raises(EngineError, match="at most 100,000,000"):
        check_torch_weights(path, "2.9.1")


def test_the_gate_needs_no_extra() -> None:
    """The gate works in the core install: it imports neither onnx nor an engine."""
    code = "import sys, headrace.engines.model_files; print({'onnx', 'onnxruntime', 'torch', 'openvino'} & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "set()"
